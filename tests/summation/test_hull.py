import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.clouds import CLOUDS, MASSES, cloud, masses as masses_of
from tests.helpers import assert_close, assert_same, tolerance as tolerance_of
from tests.reference import attention as reference, sums as by_rows


MASKS = {"full": (cjx.FullMask(), reference.full), "causal": (cjx.CausalMask(), reference.causal)}
masks = pytest.mark.parametrize("name", MASKS)
N = 300  # three chunks of causal rows, and far from a power of two


def quarters(seed, n):
    """Tokens whose coordinates are quarters: scores are exact, ties are ties, and many tokens are equal."""
    return np.round(4 * np.random.default_rng(seed).normal(size=(n, 2))) / 4


def data_of(name, n=N):
    """Queries, tokens, values and masses; some masses are zero, the first ones among them."""
    tokens = {"heap": quarters(1, n), "origin": np.zeros((n, 2))}.get(name)
    tokens = cloud(name, n) if tokens is None else tokens
    queries = tokens if name == "ring" else quarters(2, n)
    masses = np.where((np.arange(n) % 5 == 2) | (np.arange(n) < min(4, n - 1)), 0, 0.25 * (1 + np.arange(n) % 4))
    values = np.random.default_rng(4).normal(size=(n, 3))
    return queries, tokens, values, masses


@functools.cache
def program(name, method):
    """Compiles one function for all clouds: sums, and the derivatives of a loss by all arguments."""

    def both(queries, tokens, values, masses, tolerance):
        def loss(queries, tokens, values, masses):
            found = method.hardmax(queries, tokens, values, masses, MASKS[name][0], tolerance)
            return jnp.sum(jnp.sin(found.total)) + jnp.sum(jnp.cos(found.normaliser)), found

        gradients, found = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(queries, tokens, values, masses)
        return found, gradients

    return jax.jit(both)


# --- definition


@pytest.mark.exhaustive_cases(
    "origin-0.0-causal", "heap-0.0-full", "heap-0.7-full", "origin-0.0-full", "heap-0.0-causal", "heap-0.7-causal"
)
@masks
@pytest.mark.parametrize(("shape", "tolerance"), (("heap", 0.0), ("origin", 0.0), ("heap", 0.7), ("heap", 3.0)))
def test_any_tolerance_takes_what_dense_takes(name, shape, tolerance):
    """Many tokens tie: nodes with scores on both sides of the threshold are descended to, and none twice."""
    data = (*data_of(shape), np.asarray(tolerance))
    found, wanted = (program(name, method)(*data)[0] for method in (cjx.Hull(), cjx.Dense()))
    assert_close(found.normaliser, wanted.normaliser, "identity")
    assert_close(found.total, wanted.total, "identity")
    assert tolerance == 0 or np.mean(wanted.normaliser) > 5


@masks
def test_tokens_that_differ_by_rounding_are_one(name):
    """In two heaps of tokens that differ by rounding, all tokens of a heap tie, as they do for Dense."""
    heaps = np.where(np.arange(N)[:, None] % 3 == 0, [[1.0, 0.5]], [[-0.5, 1.0]])
    x = heaps * (1 + 2 * np.finfo(float).eps * np.random.default_rng(5).integers(-1, 2, (N, 2)))
    queries, _, values, _ = data_of("heap")
    data = (queries, x, values, np.ones(N), np.asarray(64 * np.finfo(float).eps))
    found, wanted = (program(name, method)(*data)[0] for method in (cjx.Hull(), cjx.Dense()))
    assert_same(found.normaliser, wanted.normaliser)
    assert np.sum(np.asarray(wanted.normaliser) >= 90) > N / 3


@pytest.mark.exhaustive
@masks
@pytest.mark.parametrize("shape", ("heap", "ring"))
def test_deep_hierarchies_and_many_packets_are_those_of_every_pair(name, shape, monkeypatch):
    """A packet spans several nodes, and there are more packets than one call takes."""
    monkeypatch.setattr("clusterjax._summation.hull._PACKETS_PER_CALL", 8)
    data = (*data_of(shape, 2500), np.asarray(64 * np.finfo(float).eps))
    (found, gradients), (wanted, pairs) = (program(name, method)(*data) for method in (cjx.Hull(), cjx.Blocked()))
    assert_close(found.normaliser, wanted.normaliser, "identity")
    assert_close(found.total, wanted.total, "identity")
    for one, two in zip(gradients[2:], pairs[2:], strict=True):
        assert_close(one, two, "identity")


def seen_by(name, n):
    return (lambda i: np.arange(n) <= i) if name == "causal" else (lambda i: np.ones(n, bool))


def check_degenerate(name, shape, seed, dtype, n=N):
    """Checks that sure ties are taken and no other token, with right derivatives; returns the number of unsure rows.

    The derivative of the sine of a sum of hundreds errs with the sum, in float32 as much as with all pairs.
    """
    eps = float(np.finfo(dtype).eps)
    tokens = cloud(shape, n, seed=seed).astype(dtype)
    queries = tokens if seed % 3 else cloud("generic", n, seed=seed).astype(dtype)
    masses = masses_of(MASSES[seed % len(MASSES)], n, seed=seed).astype(dtype)
    values = np.random.default_rng(seed).normal(size=(n, 3)).astype(dtype)
    data = (queries, tokens, values, masses, np.asarray(64 * eps, dtype))
    (found, gradients), (_, pairs) = (program(name, method)(*data) for method in (cjx.Hull(), cjx.Dense()))
    wide = tuple(a.astype(np.float64) for a in (queries, tokens, values, masses))
    mean, unsure, _ = by_rows.hardmax(*wide, seen_by(name, n), np.zeros_like(wide[2]), 64 * eps, 8 * eps)
    total = np.where(unsure[:, None], 0, found.total / np.where(found.normaliser > 0, found.normaliser, 1)[:, None])
    assert_close(total.astype(dtype), np.where(unsure[:, None], 0, mean), "identity")
    if not unsure.any():
        _, exact = program(name, cjx.Dense())(*wide, np.asarray(64 * eps))
        for one, two, three in zip(gradients, pairs, exact, strict=True):
            error, of_pairs = (np.abs(np.asarray(found, np.float64) - three).max() for found in (one, two))
            scale = np.abs(three).max()
            assert error <= max(tolerance_of(dtype, "identity") * scale, 8 * of_pairs), (shape, seed, error, of_pairs)
    return int(unsure.sum())


@pytest.mark.exhaustive_cases("generic-full", "repeats-causal")
@masks
@pytest.mark.parametrize("shape", CLOUDS)
def test_degenerate_clouds_are_those_of_the_loop(name, shape):
    """Some clouds have heaps on the hull, and tokens within that are dropped as interior: no node may count these."""
    assert sum(check_degenerate(name, shape, seed, np.float64) for seed in range(5)) < 0.1 * 5 * N


@pytest.mark.exhaustive
@masks
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_no_degenerate_cloud_breaks_a_tie(name, dtype):
    """Averages are right on 100 clouds of each shape, for each mask and dtype."""
    unsure = [check_degenerate(name, shape, seed, dtype) for shape in CLOUDS for seed in range(100)]
    assert sum(unsure) < 0.1 * N * len(unsure)


# --- contract


@pytest.mark.exhaustive
@masks
def test_second_derivatives_are_those_of_every_pair(name):
    """Reverse over reverse mode agrees, through the loops over hierarchies."""
    queries, tokens, values, masses = map(jnp.asarray, data_of("heap"))
    away = jnp.asarray(np.random.default_rng(5).normal(size=values.shape))

    def curvature(method):
        def loss(t):
            found = method.hardmax(queries, tokens, values + t * away, masses, MASKS[name][0], jnp.zeros(()))
            return jnp.sum(jnp.sin(found.total))

        return jax.jit(jax.grad(jax.grad(loss)))(0.3)

    found, wanted = curvature(cjx.Hull()), curvature(cjx.Blocked())
    assert abs(wanted) > 1
    assert abs(found - wanted) < 1e-11 * abs(wanted)


@pytest.mark.exhaustive
def test_mapping_over_a_batch_equals_a_loop():
    """The batch is traversed at once; each element has a hierarchy of its own."""
    fn = jax.jit(lambda q, y, v, tolerance: cjx.Hull().hardmax(q, y, v, None, cjx.FullMask(), tolerance).total)
    batch = [data_of(shape)[:3] for shape in ("heap", "lattice")]
    together = jax.vmap(lambda *data: fn(*data, jnp.asarray(0.0, float)))(
        *(np.stack(pair) for pair in zip(*batch, strict=True))
    )
    for b, (queries, tokens, values) in enumerate(batch):
        alone = cjx.Dense().hardmax(
            *map(jnp.asarray, (queries, tokens, values)), None, cjx.FullMask(), jnp.asarray(0.0, float)
        )
        assert_close(together[b], alone.total)


def test_what_it_does_not_serve_is_refused():
    x, zero = jnp.ones((4, 3)), jnp.asarray(0.0, float)
    assert not hasattr(cjx.Hull(), "exponential")
    with pytest.raises(ValueError, match=r"^tokens of Hull must be of dimension 2, but theirs is 3; take summation=Bl"):
        cjx.Hull().hardmax(x, x, x, None, cjx.FullMask(), zero)
    with pytest.raises(ValueError, match="^mask of Hull must be FullMask or CausalMask, but it is a WindowMask; take"):
        cjx.Hull().hardmax(x[:, :2], x[:, :2], x, None, cjx.WindowMask(3), zero)


def test_auto_takes_it_in_the_plane_for_many():
    auto, full, causal = cjx.Auto(), cjx.FullMask(), cjx.CausalMask()
    assert isinstance(auto.choose_hardmax(100_000, 2, full), cjx.Hull)
    assert isinstance(auto.choose_hardmax(100_000, 2, causal), cjx.Hull)
    for n, d, mask in ((1000, 2, full), (5000, 2, causal), (100_000, 3, full), (100_000, 2, cjx.WindowMask(9))):
        assert not isinstance(auto.choose_hardmax(n, d, mask), cjx.Hull)
