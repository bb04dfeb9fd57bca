"""Fields and masks of a user's own, from functions: those of the package, written as functions, are the same."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.helpers import as_a_user, assert_close, assert_same, normal, sphere_tokens


N, D = 7, 3
X = sphere_tokens(1, N, D)
TS = jnp.asarray([0.0, 0.5, 1.0])


# --- fields


def softmax_velocity(t, x, beta):
    weights = jax.nn.softmax(beta * x @ x.T, axis=1)
    return weights @ x


@pytest.mark.exhaustive
def test_a_field_from_a_function_is_the_field():
    """On the sphere the function is projected; the run, the sum and its derivative are those of the package's field."""
    ours = cjx.FunctionField(softmax_velocity, cjx.Sphere())
    theirs = cjx.AttentionField(cjx.SoftmaxAttention(2.0))
    assert_close(ours(0.0, 1.5 * X, 2.0), theirs(0.0, 1.5 * X))
    found, wanted = cjx.simulate(ours, X, TS, 2.0), cjx.simulate(theirs, X, TS)
    np.testing.assert_allclose(found.xs, wanted.xs, atol=1e-9)
    assert "summation" not in found.stats
    summed = 0.5 * ours + 0.5 * theirs
    np.testing.assert_allclose(cjx.simulate(summed, X, TS, 2.0).xs, wanted.xs, atol=1e-9)
    last = jax.jit(lambda beta: jnp.sum(cjx.simulate(ours, X, TS, beta).xs[-1] * X[::-1]))
    step = 1e-5
    assert float(jax.jit(jax.grad(last))(jnp.asarray(2.0))) == pytest.approx(
        float(last(2.0 + step) - last(2.0 - step)) / 2 / step, rel=1e-6
    )


def test_in_the_plane_a_function_is_not_projected():
    field = cjx.FunctionField(lambda t, x, args: (1 + t) * x, cjx.Euclidean())
    assert_same(field(1.0, 3 * X), 6 * X)
    grown = cjx.simulate(field, X, jnp.asarray([0.0, 1.0])).xs[-1]
    np.testing.assert_allclose(grown, np.exp(1.5) * X, rtol=1e-5)


@pytest.mark.exhaustive
def test_a_module_as_function_has_parameters():
    class Pull(eqx.Module):
        strength: jax.Array

        def __call__(self, t, x, args):
            return self.strength * (jnp.mean(x, axis=0, keepdims=True) - x)

    @eqx.filter_jit
    @eqx.filter_grad
    def spread(field):
        return jnp.sum(jnp.var(cjx.simulate(field, X, TS).xs[-1], axis=0))

    gradient = spread(cjx.FunctionField(Pull(jnp.asarray(1.0))))
    assert float(gradient.fn.strength) < 0


# --- masks


PAIRS = {
    "causal": (lambda i, j: j <= i, cjx.CausalMask()),
    "window": (lambda i, j: jnp.abs(i - j) < 3, cjx.WindowMask(3)),
    "full": (lambda i, j: jnp.broadcast_to(jnp.asarray(True), jnp.broadcast_shapes(i.shape, j.shape)), cjx.FullMask()),
}


@pytest.mark.exhaustive_cases("blocked-window", "dense-causal", "dense-full", "dense-window")
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("summation", (cjx.Dense(), cjx.Blocked(3, 2)), ids=("dense", "blocked"))
def test_a_mask_from_a_function_is_the_mask(name, summation):
    """For every attention, with masses and without; a mass of zero among them."""
    rule, mask = PAIRS[name]
    ours = cjx.FunctionMask(rule)
    assert_same(ours.matrix(N), mask.matrix(N))
    masses = jnp.asarray([1.0, 0, 2, 3, 1, 0, 2])
    assert_close(ours.attended_mass(masses), mask.attended_mass(masses))
    for kind in (
        lambda mask: cjx.SoftmaxAttention(2.0, mask=mask, summation=summation),
        lambda mask: cjx.UnnormalisedAttention(2.0, mask=mask, summation=summation),
        lambda mask: cjx.HardmaxAttention(mask=mask, summation=summation),
    ):
        for weights in (None, masses):
            found, wanted = (kind(m).average(X, None, 0.0, weights) for m in (ours, mask))
            assert_close(found, wanted)
        assert_close(kind(ours).weights(X), kind(mask).weights(X))


def test_everybody_attends_to_itself():
    nobody = cjx.FunctionMask(lambda i, j: jnp.zeros(jnp.broadcast_shapes(i.shape, j.shape), bool))
    assert_same(nobody.matrix(4), jnp.eye(4, dtype=bool))
    assert_close(cjx.SoftmaxAttention(1.0, mask=nobody).average(X, None), X)


def test_many_tokens_have_no_matrix_of_pairs():
    """A mask of functions of the place alone, in blocks: the mass of 600 tokens."""
    mask = cjx.FunctionMask(lambda i, j: j % 2 == i % 2)
    masses = jnp.asarray(normal(1, 600) ** 2)
    found = np.asarray(mask.attended_mass(masses))
    np.testing.assert_allclose(found[0], np.asarray(masses)[::2].sum())
    np.testing.assert_allclose(found[599], np.asarray(masses)[1::2].sum())


def test_functions_that_are_no_masks_are_refused():
    for make, words in (
        (lambda: cjx.FunctionMask(True), "allowed must be a function of i and j, but it is True"),
        (lambda: cjx.FunctionMask(lambda i: i), "allowed must be a function of i and j, but the function"),
        (lambda: cjx.FunctionMask(lambda i, j: i - j).matrix(3), r"allowed\(i, j\) must be booleans of the shape"),
        (lambda: cjx.FunctionMask(lambda i, j: True).matrix(3), r"allowed\(i, j\) must be booleans of the shape"),
        (
            lambda: cjx.FunctionMask(lambda i, j: jnp.ones((2, 3, 3), bool)).matrix(3),
            r"allowed\(i, j\) must be booleans of the shape",
        ),
    ):
        with as_a_user(), pytest.raises(ValueError, match=f"^{words}"):
            make()
