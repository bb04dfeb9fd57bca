import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.attention_cases import (
    BETA,
    FORM,
    KERNEL,
    KINDS,
    MASKS,
    MASSES,
    VALUES,
    D,
    N,
    X,
    hardmax,
    kinds,
    outcome,
    softmax,
)
from tests.helpers import DTYPES, assert_close, assert_same, name_of, sphere_tokens


# --- hardmax


def test_hardmax_shares_a_tie_equally():
    """The poster's example: (0, 1/2) attends to both upper corners, which attend to themselves."""
    x = np.array([[1.0, 1.0], [-1.0, 1.0], [0.0, 0.5]])
    weights, average = map(np.asarray, outcome(cjx.HardmaxAttention(), x, x))
    assert_same(weights, [[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0]])
    assert_same(average[2], [0.0, 1.0])


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_ties_are_not_accidents_of_rounding(dtype):
    """Scores that differ by rounding are a tie, whatever the scale; scores that differ by more are none."""
    angles = np.array([0.3, 2.3, 4.9])
    turns = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for size in (1e-6, 1.0, 1e6):
        for turn in turns:
            side = np.array([turn[1], -turn[0]])
            x = np.array([turn + side, turn - side, turn / 4])
            weights, _ = outcome(cjx.HardmaxAttention(), jnp.asarray(size * x, dtype), jnp.asarray(x, dtype))
            assert_same(weights[2], [0.5, 0.5, 0.0])
            x[0] *= 1 + 1e3 * float(jnp.finfo(dtype).eps)
            weights, _ = outcome(cjx.HardmaxAttention(), jnp.asarray(size * x, dtype), jnp.asarray(x, dtype))
            assert_same(weights[2], [1.0, 0.0, 0.0])


def test_the_tolerance_of_ties_is_the_users():
    """The tolerance is relative to |B^T x_i| max |x_j|: here |x_i| = 1, the largest norm is 1.1 and scores differ by
    0.1."""
    x = np.array([[1.1, 0.0], [1.0, 0.0], [1.0, 0.0]])
    gap = 0.1 / 1.1
    for factor, chosen in ((0.99, [1.0, 0.0, 0.0]), (1.01, [1 / 3, 1 / 3, 1 / 3])):
        weights, average = map(np.asarray, outcome(cjx.HardmaxAttention(tie_tolerance=factor * gap), x, x))
        assert_close(weights[2], np.array(chosen))
        assert_close(average[2], np.array(chosen) @ x)


def test_a_token_that_is_not_attended_to_makes_no_tie():
    """A token of mass zero, or a later one under the causal mask, makes no tie, however large its norm."""
    x = np.array([[0.9, 0.1], [1.0, 0.0], [1e14, 0.0]])
    alone = np.asarray(outcome(cjx.HardmaxAttention(), x[:2], x[:2])[0])
    causal = np.asarray(outcome(cjx.HardmaxAttention(mask=cjx.CausalMask()), x, x)[0])
    masses = np.asarray(outcome(cjx.HardmaxAttention(), x, x, masses=np.array([1.0, 1.0, 0.0]))[0])
    assert_same(causal[1, :2], alone[1])
    assert_same(masses[:2, :2], alone)


# --- limits


def test_at_beta_zero_attention_is_the_mean():
    for mask, allowed in MASKS.values():
        table = np.array([[float(allowed(i, j)) for j in range(N)] for i in range(N)])
        table /= table.sum(axis=1, keepdims=True)
        for kind in (cjx.SoftmaxAttention, cjx.UnnormalisedAttention):
            attention = kind(0.0, query_key=FORM, mask=mask)
            weights, average, *_ = outcome(attention)
            assert_close(weights, table, "exact")
            assert_close(average, table @ np.asarray(VALUES), "exact")


def test_as_beta_grows_softmax_becomes_hardmax():
    """1 - w_max <= (n - 1) e^{-beta gap} in each row, where the gap is the difference of the two largest scores."""
    scores = np.sort(np.asarray(X @ FORM @ X.T), axis=1)
    gap = scores[:, -1] - scores[:, -2]
    limit, average = outcome(cjx.HardmaxAttention(query_key=FORM))
    betas = jnp.asarray(np.array([1.0, 10.0, 100.0, 1000.0, 1e5]), float)
    many = eqx.filter_jit(eqx.filter_vmap(lambda beta: outcome(cjx.SoftmaxAttention(beta, query_key=FORM))))
    weights, averages, _ = many(betas)
    for beta, found in zip(np.asarray(betas), np.asarray(weights), strict=True):
        bound = (N - 1) * np.exp(-beta * gap)
        assert np.all(1 - found.max(axis=1) <= bound + 1e-15)
        assert np.all(np.abs(found - limit).max(axis=1) <= bound + 1e-15)
    assert (N - 1) * np.exp(-1e5 * gap.min()) < 1e-15
    assert_close(np.asarray(averages)[-1], average)
    least = outcome(cjx.HardmaxAttention(query_key=-FORM))
    assert_close(outcome(cjx.SoftmaxAttention(-1e5, query_key=FORM))[1], least[1])


# The weight of a single token, in kinds whose rows do not sum to one.
OF_ITSELF = {"unnormalised": np.exp(BETA - 0.4), "kernel, not normalised": KERNEL(1.0)}


@kinds
@pytest.mark.parametrize("d", (1, 3))
def test_one_token_attends_to_itself(kind, d):
    x, values = sphere_tokens(1, 1, d), jnp.asarray([[2.0, -3.0]])
    size = OF_ITSELF.get(kind, 1.0)
    weights, average, *log_partition = outcome(KINDS[kind][0](), x, values)
    assert_close(weights, np.array([[size]]))
    assert_close(average, size * np.asarray(values))
    for found in log_partition:
        assert_close(found, np.array([BETA]))


@kinds
def test_identical_tokens_share_equally(kind):
    x = np.repeat(np.asarray(X)[:1], N, axis=0)
    size = OF_ITSELF.get(kind, 1.0)
    weights, average, *_ = outcome(KINDS[kind][0](), x)
    assert_close(weights, np.full((N, N), size / N))
    assert_close(average, np.broadcast_to(size * np.mean(VALUES, axis=0), (N, 2)))


@pytest.mark.parametrize("d", (1, 3))
def test_antipodal_tokens(d):
    """The weights are e^{+-beta} over their sum: a sigmoid of 2 beta."""
    point = np.asarray(sphere_tokens(1, 1, d))
    x = np.concatenate([point, -point])
    near = 1 / (1 + np.exp(-2 * BETA))
    assert_close(outcome(softmax(), x, x)[0], np.array([[near, 1 - near], [1 - near, near]]))
    assert_same(outcome(hardmax(), x, x)[0], np.eye(2))


@pytest.mark.exhaustive_cases("FullMask-float32", "FullMask-float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("mask", (cjx.FullMask(), cjx.CausalMask()), ids=name_of)
def test_nothing_overflows(dtype, mask):
    """beta = +-1e4 and a form of norm 1e4: weights, averages, partition functions and derivatives are finite."""
    x, masses = X.astype(dtype), MASSES.astype(dtype)
    indefinite = np.diag(np.asarray([1e4, -1e4, 3e3], dtype))

    @eqx.filter_jit
    def everything(attention, x):
        plain, heavy = outcome(attention, x, x), outcome(attention, x, x, masses)[:2]
        gradient = jax.grad(lambda x: jnp.sum(attention.average(x, x) ** 2))(x)
        return plain, heavy, gradient

    for beta in (1e4, -1e4, 0.0):
        for form in (np.eye(D, dtype=dtype), indefinite / 1e4, indefinite):
            for leaf in jax.tree.leaves(everything(cjx.SoftmaxAttention(beta, query_key=form, mask=mask), x)):
                assert leaf.dtype == dtype
                assert np.all(np.isfinite(leaf))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_an_offset_keeps_the_unnormalised_weights_finite(dtype):
    x = X.astype(dtype)
    weights, average = outcome(cjx.UnnormalisedAttention(1e4, offset=1e4), x, x)
    rounding = 1e4 * 2 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.diagonal(weights), np.full(N, 1 / N), rtol=rounding)
    assert np.all(np.isfinite(average)) and np.max(np.abs(average)) <= 1 + rounding
    assert np.all(np.isfinite(outcome(cjx.UnnormalisedAttention(-1e4, offset=1e4), x, x)[1]))
