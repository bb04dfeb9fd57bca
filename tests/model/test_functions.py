"""Fields and masks built from functions equal those of the package."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.attention_cases import FORM, KINDS, MASSES, VALUES, N, X, outcome
from tests.helpers import as_a_user, assert_close, assert_same, normal, temporary_bytes
from tests.reference import attention as reference


TS = jnp.asarray(np.array([0.0, 0.5, 1.0]), float)


# --- fields


def softmax_velocity(t, x, beta):
    weights = jax.nn.softmax(beta * x @ x.T, axis=1)
    return weights @ x


@pytest.mark.exhaustive
def test_a_field_from_a_function_is_the_field():
    """On the sphere the function is projected; its run and its sum with the package's field are those of the field."""
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


# --- masks


RULES = {
    "causal": (lambda i, j: j <= i, reference.causal),
    "window": (lambda i, j: jnp.abs(i - j) < 3, reference.window(3)),
    "full": (lambda i, j: jnp.broadcast_to(jnp.asarray(True), jnp.broadcast_shapes(i.shape, j.shape)), reference.full),
}


@pytest.mark.exhaustive_cases("blocked-full", "blocked-window", "dense-causal", "dense-full", "dense-window")
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("summation", (cjx.Dense(), cjx.Blocked(3, 2)), ids=("dense", "blocked"))
def test_a_mask_from_a_function_is_the_double_loop(name, summation):
    """Weights, averages and attended masses equal the double loop, with masses some of which are zero."""
    rule, allowed = RULES[name]
    mask, masses = cjx.FunctionMask(rule), np.asarray(MASSES) + 0.1 * (np.arange(N) == 0)
    table = np.array([[allowed(i, j) for j in range(N)] for i in range(N)])
    assert_same(mask.matrix(N), table)
    assert_close(jax.jit(mask.attended_mass)(masses), table @ masses)
    for kind in ("softmax", "hardmax"):
        build, loop = KINDS[kind]
        weights, average, *_ = outcome(build(query_key=FORM, mask=mask, summation=summation), X, masses=masses)
        expected = loop(np.asarray(X), np.asarray(FORM), allowed, masses)
        assert_close(weights, expected)
        assert_close(average, reference.average(expected, np.asarray(VALUES)))


def test_everybody_attends_to_itself():
    nobody = cjx.FunctionMask(lambda i, j: jnp.zeros(jnp.broadcast_shapes(i.shape, j.shape), bool))
    assert_same(nobody.matrix(4), jnp.eye(4, dtype=bool))
    assert_close(cjx.SoftmaxAttention(1.0, mask=nobody).average(X, None), X)


def test_many_tokens_have_no_matrix_of_pairs():
    """The attended masses of 600 tokens under a mask of the parity of places need less memory than the pairs."""
    mask = cjx.FunctionMask(lambda i, j: j % 2 == i % 2)
    masses = np.asarray(normal(1, 600)) ** 2
    found = np.asarray(jax.jit(mask.attended_mass)(masses))
    np.testing.assert_allclose(found[0], masses[::2].sum())
    np.testing.assert_allclose(found[599], masses[1::2].sum())
    # A boolean of each pair would take n^2 bytes.
    n = 8192
    assert temporary_bytes(mask.attended_mass, jax.ShapeDtypeStruct((n,), jnp.float64)) < n**2


@pytest.mark.parametrize(
    ("allowed", "words"),
    (
        (True, "allowed must be a function of i and j, but it is True"),
        (lambda i: i, "allowed must be a function of i and j, but the function"),
        (lambda i, j: i - j, r"allowed\(i, j\) must be booleans of the shape"),
        (lambda i, j: True, r"allowed\(i, j\) must be booleans of the shape"),
        (lambda i, j: jnp.ones((2, 3, 3), bool), r"allowed\(i, j\) must be booleans of the shape"),
    ),
)
def test_functions_that_are_no_masks_are_refused(allowed, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}"):
        cjx.FunctionMask(allowed).matrix(3)
