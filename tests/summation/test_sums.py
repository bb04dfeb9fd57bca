import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._summation import ratio
from tests.attention_cases import masks_of
from tests.helpers import assert_close, assert_same, normal, sphere_tokens, temporary_bytes
from tests.model.derivatives_and_maps import assert_maps, assert_slopes
from tests.reference import attention as reference


# Dense has two kernels: strips where token and value together have at most 16 numbers, matrix products above.
FEW, MANY = (3, 2), (12, 5)
KERNELS = {
    "strips": (cjx.Dense(), FEW),
    "products": (cjx.Dense(), MANY),
    "blocks that divide": (cjx.Blocked(11, 11), FEW),
    "blocks that do not": (cjx.Blocked(7, 10), FEW),
    "blocks of many": (cjx.Blocked(11, 7), MANY),
}
THREE = ("strips", "products", "blocks that do not")
three_kernels = pytest.mark.parametrize("kernel", THREE)

# The kind of sum, the mask, and whether there are masses.
CASES = (
    ("exponential", "full", False),
    ("exponential", "full", True),
    ("exponential", "causal", False),
    ("exponential", "causal", True),
    ("exponential", "window", True),
    ("exponential", "causal window", False),
    ("exponential", "matrix", True),
    ("hardmax", "full", False),
    ("hardmax", "causal", True),
    ("hardmax", "window", False),
    ("hardmax", "causal window", True),
    ("hardmax", "matrix", False),
)
FEW_CASES = (CASES[0], CASES[3], CASES[8])


def data_of(n, d, k, dtype=np.float64):
    """Queries, tokens, values and masses; the numbers are quarters, so that scores are exact and ties are ties."""
    queries, tokens = (jnp.asarray(np.round(4 * np.asarray(normal(seed, n, d))) / 4, dtype) for seed in (1, 2))
    index = np.arange(n)
    masses = np.where((index % 3 == 0) & (n > 1), 0, 0.25 * (1 + index % 4))
    return queries, tokens, normal(3, n, k, dtype=dtype), jnp.asarray(masses, dtype)


def one_sum(summation, kind, mask, queries, tokens, values, masses):
    if kind == "exponential":
        return summation.exponential(queries, tokens, values, masses, mask)
    return summation.hardmax(queries, tokens, values, masses, mask, jnp.zeros((), queries.dtype))


def compiled(summation, cases, n):
    """Compiles a function of the data that computes all of the cases."""
    masks = masks_of(n)

    def compute(*data):
        return {
            (kind, name, heavy): one_sum(summation, kind, masks[name][0], *data[:3], data[3] if heavy else None)
            for kind, name, heavy in cases
        }

    return jax.jit(compute)


@functools.cache
def computed(kernel, n, dtype=np.float64):
    summation, (d, k) = KERNELS[kernel]
    cases = CASES if kernel in THREE and n == 33 and dtype == np.float64 else FEW_CASES
    return jax.tree.map(np.asarray, compiled(summation, cases, n)(*data_of(n, d, k, dtype)))


@functools.cache
def expected(kind, name, heavy, n, d, k):
    queries, tokens, values, masses = (np.asarray(a) for a in data_of(n, d, k))
    double_loop = reference.exponential_sums if kind == "exponential" else reference.hardmax_sums
    return double_loop(queries, tokens, values, masses if heavy else None, masks_of(n)[name][1])


@jax.jit
def shiftless(found):
    """Returns the logarithm of the normaliser and the average, which do not depend on the shift."""
    return found.shift + jnp.log(found.normaliser), ratio(found.total, found.normaliser)


# --- definition


DEAR = pytest.mark.exhaustive


@pytest.mark.exhaustive_cases("blocks that divide-33-float64", "blocks that do not-1-float64", "strips-2-float64")
@pytest.mark.parametrize(
    ("kernel", "n", "dtype"),
    [
        ("blocks that divide", 33, np.float64),
        ("blocks that do not", 1, np.float64),
        ("products", 1, np.float64),
        ("strips", 2, np.float64),
        *(pytest.param(kernel, 33, np.float64, marks=DEAR) for kernel in KERNELS if kernel != "blocks that divide"),
        *(pytest.param(kernel, 65, np.float64, marks=DEAR) for kernel in THREE),
        *(pytest.param(kernel, 33, np.float32, marks=DEAR) for kernel in THREE),
    ],
)
def test_sums_are_the_double_loop(kernel, n, dtype):
    """Every mask equals the loop, with and without masses; a third are zero, so that some rows attend to nothing."""
    for (kind, name, heavy), found in computed(kernel, n, dtype).items():
        first, second = expected(kind, name, heavy, n, *KERNELS[kernel][1])
        empty = np.isinf(first) | (first == 0)
        log_sum, mean = map(np.asarray, shiftless(found)) if kind == "exponential" else (found.normaliser, found.total)
        assert log_sum.dtype == mean.dtype == dtype
        assert_close(log_sum[~empty], first[~empty])
        assert_close(mean, second)
        # The shift is near the largest exponent of each row, so that the normaliser is of the size of a mass.
        masses = np.asarray(data_of(n, *KERNELS[kernel][1])[3]) if heavy else np.ones(n)
        assert np.all(np.asarray(found.normaliser)[~empty] >= 0.999 * masses[masses > 0].min())
        assert np.all(np.asarray(found.normaliser) <= 1.001 * masses.sum())
        assert_same(found.normaliser[empty], np.zeros(empty.sum()))
        assert_same(found.total[empty], np.zeros((empty.sum(), mean.shape[1])))


def test_some_rows_of_the_data_have_nothing_and_some_have_ties():
    """The comparison above needs empty rows and rows with ties."""
    log_sum, _ = expected("exponential", "causal", True, 33, *FEW)
    assert 0 < np.sum(np.isinf(log_sum)) < 33
    attained, _ = expected("hardmax", "full", False, 33, *FEW)
    assert np.any(attained > 1)


# --- invariance


@pytest.mark.exhaustive
@three_kernels
def test_sums_move_with_a_permutation_of_the_tokens(kernel):
    """Sums are permuted with the tokens under the full mask, and are not under the causal mask."""
    summation, (d, k) = KERNELS[kernel]
    order = np.random.default_rng(0).permutation(33)
    data, full, causal, hard = data_of(33, d, k), CASES[1], CASES[2], CASES[7]
    compute = compiled(summation, (full, causal, hard), 33)
    plain, moved = compute(*data), compute(*(np.asarray(a)[order] for a in data))
    assert_close(shiftless(moved[full])[1], shiftless(plain[full])[1][order], "identity")
    assert_close(moved[hard].total, plain[hard].total[order], "identity")
    assert not np.allclose(shiftless(moved[causal])[1], shiftless(plain[causal])[1][order], atol=0.1)


@pytest.mark.exhaustive_cases("blocks that do not", "strips")
@three_kernels
def test_causal_sums_do_not_see_what_comes_later(kernel):
    """Rows before token 20 are equal bit for bit, whatever the tokens from 20 on are."""
    summation, (d, k) = KERNELS[kernel]
    first = data_of(33, d, k)
    other = [np.where(np.arange(33) < 20, a.T, 3 - a.T).T for a in map(np.asarray, first)]
    compute = compiled(summation, (CASES[3], CASES[5], CASES[10]), 33)
    before, after = (jax.tree.map(np.asarray, compute(*data)) for data in (first, other))
    for case in before:
        for one, two in zip(jax.tree.leaves(before[case]), jax.tree.leaves(after[case]), strict=True):
            assert_same(one[:20], two[:20])
        assert not np.any(before[case].total[20:] == after[case].total[20:])


def test_blocks_that_nobody_sees_are_not_looked_at():
    """The tokens of a skipped block may be NaN: rows 0 to 21 never meet the columns of the last block."""
    data = data_of(33, *FEW)
    spoilt = [np.where(np.arange(33)[:, None] < 22, a, np.nan) for a in data[:3]]
    compute = compiled(cjx.Blocked(11, 11), (CASES[3], CASES[5]), 33)
    whole, part = (map(np.asarray, jax.tree.leaves(compute(*some, data[3]))) for some in (data[:3], spoilt))
    for one, two in zip(whole, part, strict=True):
        assert_same(two[:22], one[:22])
        assert np.all(np.isnan(two[22:]))


# --- limits


@pytest.mark.exhaustive_cases("products", "strips")
@three_kernels
def test_large_exponents_stay_finite(kernel):
    """In float32 scores of size 1e5 give the sums of the maximum, and scores of zero the mean."""
    summation, (d, k) = KERNELS[kernel]
    queries, tokens, values, _ = data_of(33, d, k, np.float32)
    queries = np.where(np.arange(33)[:, None] == 5, 0, queries)
    compute = jax.jit(
        lambda q: (
            shiftless(summation.exponential(q, tokens, values, None, cjx.FullMask())),
            summation.hardmax(q, tokens, values, None, cjx.FullMask(), jnp.float32(0)),
        )
    )
    for size in (1e5, -1e5):
        (log_sum, mean), hard = jax.tree.map(np.asarray, compute(np.float32(size) * queries))
        assert_close(log_sum, np.max(size * queries @ np.asarray(tokens).T, axis=1), "composed")
        assert_close(mean, hard.total / hard.normaliser[:, None], "identity")
        assert_close(mean[5], np.asarray(values).mean(axis=0), "identity")


def test_ratio_of_nothing_is_zero_and_flat():
    total, normaliser = jnp.asarray([[1.0, 2.0], [0.0, 0.0]]), jnp.asarray([2.0, 0.0])
    assert_same(ratio(total, normaliser), [[0.5, 1.0], [0.0, 0.0]])
    for gradient in jax.jit(jax.grad(lambda *sums: jnp.sum(ratio(*sums)), argnums=(0, 1)))(total, normaliser):
        assert np.all(np.isfinite(gradient))


# --- derivatives


def loss_of(summation, cases):
    """Returns a loss that depends on every sum of the cases, and on no shift."""
    masks = masks_of(33)

    def loss(*data):
        total = 0.0
        for kind, name, heavy in cases:
            found = one_sum(summation, kind, masks[name][0], *data[:3], data[3] if heavy else None)
            mean = ratio(found.total, found.normaliser)
            total += jnp.sum(jnp.cos(mean)) + (jnp.sum(jnp.sin(shiftless(found)[0])) if kind == "exponential" else 0)
        return total

    return loss


@functools.cache
def derivatives(kernel):
    """The gradient of the loss in all four arguments, and its derivative in a direction by forward mode."""
    summation, (d, k) = KERNELS[kernel]
    queries, tokens, values, masses = data_of(33, d, k)
    data = (queries, tokens, values, masses + 0.25)
    loss = loss_of(summation, (CASES[0], CASES[3], CASES[6]))

    @jax.jit
    def both(data, directions):
        return jax.grad(loss, argnums=(0, 1, 2, 3))(*data), jax.jvp(loss, data, directions)[1]

    directions = tuple(normal(7 + seed, *a.shape) for seed, a in enumerate(data))
    return both(data, directions)


@pytest.mark.exhaustive_cases("blocks of many-products", "blocks that do not-strips")
@pytest.mark.parametrize(("blocked", "dense"), (("blocks that do not", "strips"), ("blocks of many", "products")))
def test_derivatives_through_blocks_are_those_of_dense(blocked, dense):
    """Reverse and forward mode agree, over several masks at once."""
    (gradients, along), (dense_gradients, dense_along) = derivatives(blocked), derivatives(dense)
    for found, wanted in zip(gradients, dense_gradients, strict=True):
        assert np.all(np.any(np.asarray(wanted) != 0, axis=0))
        assert_close(found, wanted, "identity")
    assert_close(along, dense_along, "identity")


@pytest.mark.exhaustive_cases("strips")
@pytest.mark.parametrize("kernel", ("strips", "products"))
def test_derivatives_are_those_of_finite_differences(kernel):
    """The exponential sums are differentiated in queries, tokens, values and masses at once."""
    summation, (d, k) = KERNELS[kernel]
    *parts, masses = data_of(33, d, k)
    assert_slopes(
        lambda *data: shiftless(summation.exponential(*data, cjx.CausalMask())), *parts, masses + 1, step=1e-3
    )


@pytest.mark.exhaustive_cases("Blocked(block_rows=7, block_columns=10)")
@pytest.mark.parametrize("summation", (cjx.Dense(), cjx.Blocked(7, 10), cjx.Blocked(33, 33)), ids=repr)
def test_second_derivatives_are_those_of_differences(summation):
    """Reverse over reverse mode is right through loops and checkpoints, which may forget rules for derivatives."""
    queries, tokens, values, masses = data_of(33, *FEW)
    away = 0.1 * jnp.asarray(np.random.default_rng(8).normal(size=queries.shape))

    def loss(t):
        found = summation.exponential(queries + t * away, tokens - t * away, values, masses, cjx.FullMask())
        log_sum, mean = shiftless(found)
        return jnp.sum(jnp.sin(mean)) + jnp.sum(jnp.cos(log_sum))

    slopes, step = jax.jit(jax.value_and_grad(jax.grad(loss))), 1e-5
    (above, _), (_, curvature), (below, _) = (slopes(0.3 + k * step) for k in (1, 0, -1))
    assert abs(curvature - (above - below) / (2 * step)) < 1e-6 * max(1.0, abs(curvature))


def test_hardmax_is_flat_in_the_scores():
    """The set of maximisers does not move: derivatives come through values and masses only."""
    data, found = data_of(33, *FEW), []
    for summation in (cjx.Dense(), cjx.Blocked(7, 10)):
        loss = loss_of(summation, (CASES[8],))
        *flat, in_values, in_masses = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*data)
        assert_same(np.concatenate(flat), np.zeros((66, 3)))
        assert np.any(np.asarray(in_values) != 0) and np.any(np.asarray(in_masses) != 0)
        found.append((in_values, in_masses))
    for dense, blocked in zip(*found, strict=True):
        assert_close(blocked, dense, "identity")


# --- contract


@pytest.mark.exhaustive_cases("blocks that do not-grad", "products-<lambda>", "strips-<lambda>")
@pytest.mark.parametrize(
    ("kernel", "wrap"), (*((kernel, lambda loss: loss) for kernel in THREE), ("blocks that do not", jax.grad))
)
def test_mapping_over_a_batch_equals_a_loop(kernel, wrap):
    """Queries, tokens, values and masses are all mapped over; also the gradient through blocks."""
    summation, (d, k) = KERNELS[kernel]
    queries, tokens, values, masses = map(np.asarray, data_of(33, d, k))
    batch = tuple(np.stack([a, a[::-1], 0.5 * a]) for a in (queries, tokens, values, masses + 0.25))
    assert_maps(wrap(loss_of(summation, (CASES[3],))), *batch, kind="identity")


# --- memory, by what the compiler allots; nothing is run


def shapes(n, dtype):
    return jax.ShapeDtypeStruct((n, 3), dtype)


WORKSPACE = "XLA counts the 32 MB in which cuBLAS works, whatever the size"


def average(summation, mask):
    return lambda x: ratio(*(lambda s: (s.total, s.normaliser))(summation.exponential(x, x, x, None, mask)))


def gradient(summation, mask):
    return jax.grad(lambda x: jnp.sum(average(summation, mask)(x) ** 2))


MASKS = (cjx.FullMask(), cjx.CausalMask())


@pytest.mark.exhaustive_cases("backwards-CausalMask")
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: type(mask).__name__)
@pytest.mark.parametrize("which", (average, gradient), ids=("forwards", "backwards"))
def test_a_hundred_thousand_tokens_fit_into_200_megabytes(mask, which):
    assert temporary_bytes(which(cjx.Blocked(), mask), shapes(100_000, jnp.float32)) < 200e6


@pytest.mark.exhaustive_cases("CausalMask")
@pytest.mark.skipif(jax.default_backend() == "gpu", reason=WORKSPACE)
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: type(mask).__name__)
def test_blocked_never_holds_every_pair(mask):
    """Memory forwards and backwards is far below n x n numbers: a few blocks, and arrays that grow as n."""
    n, blocked = 4096, cjx.Blocked(128, 256)
    for fn in (average(blocked, mask), gradient(blocked, mask)):
        used = temporary_bytes(fn, shapes(n, jnp.float64))
        assert used < n * n * 8 / 32
        assert used < 8 * (16 * 128 * 256 + 64 * n)


def test_the_measure_sees_every_pair():
    """The assertions above can fail: the backward pass of Dense does hold n x n."""
    n = 2048
    assert temporary_bytes(gradient(cjx.Dense(), cjx.FullMask()), shapes(n, jnp.float64)) > n * n * 8


@pytest.mark.exhaustive
@pytest.mark.skipif(jax.default_backend() == "gpu", reason=WORKSPACE)
def test_mapping_blocked_over_a_batch_holds_no_pairs_either():
    n, batch = 2048, 4
    mapped = jax.vmap(gradient(cjx.Blocked(64, 64), cjx.CausalMask()))
    used = temporary_bytes(mapped, jax.ShapeDtypeStruct((batch, n, 3), jnp.float64))
    assert used < batch * n * n * 8 / 16


def test_values_of_none_are_the_tokens():
    kinds = cjx.SoftmaxAttention, cjx.UnnormalisedAttention, lambda beta, **options: cjx.HardmaxAttention(**options)
    each = [kind(3.0, summation=s) for kind in kinds for s in (cjx.Dense(), cjx.Blocked(8, 4), cjx.Auto())]
    both = jax.jit(lambda x: ([a.average(x, None) for a in each], [a.average(x, x) for a in each]))
    for found, wanted in zip(*both(sphere_tokens(5, 20, 3)), strict=True):
        assert_same(found, wanted)
