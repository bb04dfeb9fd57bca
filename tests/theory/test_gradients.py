"""Derivatives, symmetries and orders of convergence: oracle 7, and the sensitivities of oracle 1.2."""

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import AttentionField, CausalMask, Euclidean, Retract, SoftmaxAttention, UnnormalisedAttention, simulate
from tests import oracles
from tests.solving import angular_jacobian, solve_tightly


PRINTED = {(2, 1.0, 1.0): -0.2537765843, (64, 4.0, 6.0): -0.0076223092, (128, 9.0, 15.0): -0.0059506236}


def cosine_of(n, t, **options):
    def cosine(beta):
        x = solve_tightly(AttentionField(SoftmaxAttention(beta)), jnp.eye(n), [0.0, t], **options).xs[-1]
        return x[0] @ x[1]

    return cosine


def test_printed_sensitivities():
    """1.2: d gamma / d beta equals its printed values and differences of the exact cosine."""
    for (n, beta, t), printed in PRINTED.items():
        exact, h = oracles.equiangular_sensitivity(t, n, beta), 1e-4
        np.testing.assert_allclose(exact, printed, rtol=0, atol=6e-11)
        ends = [oracles.equiangular_cosine(t, n, beta + sign * h) for sign in (1, -1)]
        np.testing.assert_allclose(exact, (ends[0] - ends[1]) / (2 * h), rtol=0, atol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    "adjoint, tolerance",
    [
        (dfx.ForwardMode(), 1e-8),
        pytest.param(dfx.DirectAdjoint(), 1e-8, marks=pytest.mark.exhaustive),
        (dfx.RecursiveCheckpointAdjoint(), 1e-8),
        pytest.param(dfx.BacksolveAdjoint(), 1e-5, marks=pytest.mark.exhaustive),
    ],
    ids=lambda option: type(option).__name__ if isinstance(option, dfx.AbstractAdjoint) else "",
)
def test_sensitivity_through_every_adjoint(adjoint, tolerance):
    """7.2: at n = 2 d gamma / d beta is exact to 1e-8 in forward, reverse, checkpointed mode, to 1e-5 by backsolve."""
    n, beta, t = 2, 1.0, 1.0
    cosine = cosine_of(n, t, adjoint=adjoint, max_steps=256)
    if isinstance(adjoint, dfx.ForwardMode):
        derivative = jax.jvp(cosine, (jnp.asarray(beta),), (jnp.asarray(1.0),))[1]
    else:
        derivative = jax.grad(cosine)(jnp.asarray(beta))
    np.testing.assert_allclose(derivative, oracles.equiangular_sensitivity(t, n, beta), rtol=0, atol=tolerance)


FIELDS = {
    "SA": lambda form, value: AttentionField(SoftmaxAttention(2.0, query_key=form), value),
    "USA": lambda form, value: AttentionField(UnnormalisedAttention(2.0, query_key=form), value),
    "causal": lambda form, value: AttentionField(SoftmaxAttention(2.0, query_key=form, mask=CausalMask()), value),
}


@pytest.mark.exhaustive_cases("SA")
@pytest.mark.parametrize("name", FIELDS)
def test_forward_and_reverse_derivatives_are_adjoint(name):
    """7.3: <u, J v> = <J^T u, v>, to 1e-12."""
    rng = np.random.default_rng(5)
    form, value, u, v = (jnp.asarray(rng.normal(size=shape)) for shape in ((4, 4), (4, 4), (8, 4), (8, 4)))
    x = jnp.asarray(oracles.unit_tokens(6, 8, 4))
    velocity = lambda y: FIELDS[name](form, value)(0.0, y)
    forward = jax.jit(lambda x: jnp.sum(u * jax.jvp(velocity, (x,), (v,))[1]))(x)
    reverse = jax.jit(lambda x: jnp.sum(jax.vjp(velocity, x)[1](u)[0] * v))(x)
    assert abs(forward) > 1e-2
    np.testing.assert_allclose(forward, reverse, rtol=1e-12)


def test_symmetry_of_the_jacobian_on_the_circle():
    """7.6: the Jacobian of USA is symmetric everywhere, diag(Z) times the Jacobian of SA only at critical points."""
    beta, n = 2.0, 7
    usa, sa = AttentionField(UnnormalisedAttention(beta)), AttentionField(SoftmaxAttention(beta))
    random = np.random.default_rng(9).uniform(-np.pi, np.pi, n)
    consensus_and_opposite = np.array([0.3] * 4 + [0.3 + np.pi] * 3)
    for theta, critical in ((random, False), (2 * np.pi * np.arange(n) / n, True), (consensus_and_opposite, True)):
        x = oracles.circle_tokens(theta)
        partition = np.exp(beta * x @ x.T).sum(axis=1)
        velocity, jacobian = (np.asarray(out) for out in angular_jacobian(usa, jnp.asarray(theta)))
        assert bool(np.abs(velocity).max() < 1e-13) is critical
        np.testing.assert_allclose(jacobian, jacobian.T, rtol=0, atol=1e-12)
        weighted = partition[:, None] * np.asarray(angular_jacobian(sa, jnp.asarray(theta))[1])
        asymmetry = np.abs(weighted - weighted.T).max()
        assert asymmetry < 1e-11 if critical else asymmetry > 0.1


@pytest.mark.exhaustive
def test_normalised_euler_is_of_first_order():
    """7.9: the error of the authors' scheme x <- normalise(x + dt v(x)) against the flow halves with dt."""
    x0, ts = jnp.asarray(oracles.unit_tokens(12, 8, 3)), jnp.asarray([0.0, 2.0])
    attention = SoftmaxAttention(1.0)
    flow = solve_tightly(AttentionField(attention), x0, ts).xs[-1]

    def error(dt):
        options = {"solver": Retract(dfx.Euler()), "stepsize_controller": dfx.ConstantStepSize(), "dt0": dt}
        return jnp.abs(simulate(AttentionField(attention, space=Euclidean()), x0, ts, **options).xs[-1] - flow).max()

    errors = np.array([error(jnp.asarray(dt)) for dt in (0.1, 0.05, 0.025, 0.0125)])
    slopes = np.log2(errors[:-1] / errors[1:])
    np.testing.assert_allclose(slopes, 1.0, rtol=0, atol=0.05)


@pytest.mark.exhaustive
def test_sensitivity_of_many_tokens():
    """7.2: d gamma / d beta is exact to 1e-8, forward for (n, beta, t) = (64, 4, 6), checkpointed for (128, 9, 15)."""
    forward = cosine_of(64, 6.0, adjoint=dfx.ForwardMode())
    derivative = jax.jvp(forward, (jnp.asarray(4.0),), (jnp.asarray(1.0),))[1]
    np.testing.assert_allclose(derivative, oracles.equiangular_sensitivity(6.0, 64, 4.0), rtol=0, atol=1e-8)
    derivative = jax.grad(cosine_of(128, 15.0))(jnp.asarray(9.0))
    np.testing.assert_allclose(derivative, oracles.equiangular_sensitivity(15.0, 128, 9.0), rtol=0, atol=1e-8)
