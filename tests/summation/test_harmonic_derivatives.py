import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._base.numerics import normalise
from clusterjax._summation import ratio
from clusterjax._summation.harmonic import summation as expand
from clusterjax._summation.harmonic.circle import CircleSeries
from tests.helpers import normal, rotation, sphere_tokens


N = 140  # more than a chunk of the causal sums on the circle


@pytest.fixture(autouse=True)
def one_degree(monkeypatch):
    """Replaces several degrees by one, to compile less."""
    for d in (2, 3):
        monkeypatch.setitem(expand.DEGREES, (d, 8), ((23,), (23,)))
    monkeypatch.setitem(expand.DEGREES, (4, 8), ((16,), ()))


def loss_of(summation, mask, with_values):
    """Returns a loss of all sums that depends on no shift; tokens are retracted, so that gradients are tangential."""

    def loss(beta, form, x, masses, values):
        y = normalise(x)
        found = summation.exponential(beta * y @ form, y, values if with_values else None, masses, mask)
        mean = ratio(found.total, found.normaliser)
        return jnp.sum(jnp.cos(2 * mean)) + jnp.sum(jnp.sin(found.shift + jnp.log(found.normaliser)))

    return loss


def point_of(d, form, n=N):
    """Returns the arguments of the loss; two of the tokens are the poles."""
    x = sphere_tokens(0, n, d).at[:2].set(jnp.stack([jnp.eye(d)[-1], -jnp.eye(d)[-1]]))
    forms = {"rotation": rotation(1, d), "general": jnp.eye(d) + 0.3 * normal(2, d, d)}
    return jnp.asarray(1.1), forms[form], x, 0.5 + jnp.abs(normal(3, n)), normal(4, n, 2)


def assert_same_derivatives(found, wanted, allowed=1e-11):
    for one, two in zip(found, wanted, strict=True):
        assert np.all(np.isfinite(one))
        np.testing.assert_allclose(one, two, rtol=0, atol=allowed * max(1.0, float(jnp.abs(two).max())))


@pytest.mark.exhaustive
@pytest.mark.parametrize("with_values", (False, True))
@pytest.mark.parametrize("mask", (cjx.FullMask(), cjx.CausalMask()), ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(
    ("d", "forms"), ((2, ("rotation", "general")), (3, ("rotation", "general")), (4, ("rotation",)))
)
def test_derivatives_are_those_of_dense(d, forms, mask, with_values):
    """Reverse and forward mode in beta, the form, tokens, masses and values agree with `Dense`."""

    def both(point, directions):
        out = []
        for summation in (cjx.Harmonic(1e-9), cjx.Dense()):
            loss = loss_of(summation, mask, with_values)
            gradients = jax.grad(loss, argnums=(0, 1, 2, 3, 4))(*point)
            out.append((*gradients, jax.jvp(loss, point, directions)[1]))
        return out

    both = jax.jit(both)
    for form in forms:
        point = point_of(d, form)
        directions = tuple(normal(5 + k, *a.shape) for k, a in enumerate(point))
        assert np.all(cjx.Harmonic(1e-9).certified(point[0] * point[2] @ point[1], point[2]))
        assert_same_derivatives(*both(point, directions))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mask", (cjx.FullMask(), cjx.CausalMask()), ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(
    ("d", "n", "forms"), ((2, N, ("rotation", "general")), (3, 600, ("rotation", "general")), (4, 1100, ("rotation",)))
)
def test_second_derivatives_are_those_of_dense(d, n, forms, mask):
    """Reverse over reverse mode agrees in all arguments, in the norms of the queries too.

    Causal sums have several chunks, in a loop, where jax may forget rules for derivatives. No token is at a pole of the
    sphere, where the series for queries of one norm has no second derivatives.
    """

    def curvature(point, directions):
        out = []
        for summation in (cjx.Harmonic(1e-9), cjx.Dense()):
            loss = loss_of(summation, mask, False)
            slope = jax.grad(loss, argnums=(0, 1, 2, 3))
            along = lambda *p, slope=slope: sum(jnp.vdot(g, v) for g, v in zip(slope(*p), directions, strict=False))
            out.append(jax.grad(along, argnums=(0, 1, 2, 3))(*point))
        return out

    curvature = jax.jit(curvature)
    for form in forms:
        point = point_of(d, form, n)
        point = (*point[:2], sphere_tokens(0, n, d), *point[3:])
        directions = tuple(normal(5 + k, *a.shape) for k, a in enumerate(point))
        assert_same_derivatives(*curvature(point, directions))


@pytest.mark.exhaustive
def test_third_derivatives_in_the_length_are_refused_not_wrong():
    """A series for queries of one norm has no third derivatives by this norm, and says so."""
    x = sphere_tokens(0, 5, 2)
    series = CircleSeries(10, True)
    known = series.coefficients(series.moments(x, jnp.ones(5)), jnp.asarray(2.0))
    of_length = lambda beta: series.evaluate(beta * x, known)[0][0]
    slope = jax.grad(jax.grad(of_length))
    # With the scale held fixed, the second derivative is sum_j <u, y_j>^2 e^{beta <u, y_j> - 2}.
    t = np.asarray(x @ x[0])
    np.testing.assert_allclose(slope(2.0), np.sum(t**2 * np.exp(2 * t - 2)), rtol=1e-5)
    with pytest.raises(ValueError, match=r"^Harmonic has no third derivatives"):
        jax.grad(slope)(2.0)
