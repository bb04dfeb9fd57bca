import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._observables import cosine_histogram, pairwise_cosine, similarity as _pairs
from clusterjax.phase import ClosePairs
from tests.reference import observables as reference


cosines, histogram = jax.jit(pairwise_cosine), jax.jit(cosine_histogram, static_argnums=1)


def cloud(seed, n=7, d=3):
    return np.random.default_rng(seed).normal(size=(n, d))


def close_pairs(x, cosine):
    """The statistic of a phase diagram for one cloud."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return ClosePairs(cosine)(jnp.asarray(unit.T[:, :, None]))[0]


def test_cosines_are_those_of_the_definition():
    x = cloud(0)
    for scale in (np.ones(7), np.logspace(-3, 3, 7)):
        np.testing.assert_allclose(cosines(x * scale[:, None]), reference.cosines(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float64))
def test_cosines_of_special_clouds(dtype):
    """Cosines of equal and antipodal tokens are within [-1, 1], also in one dimension, for one token, at any scale."""
    x = np.array([[0.1, 0.7, 0.3], [0.1, 0.7, 0.3], [-0.1, -0.7, -0.3]], dtype)
    signs = np.asarray([[1.0, 1, -1], [1, 1, -1], [-1, -1, 1]])
    for scale in (1.0, 1e-30, 1e30):
        actual = cosines(x * np.asarray(scale, dtype))
        assert actual.dtype == dtype and np.abs(actual).max() <= 1
        np.testing.assert_allclose(actual, signs, rtol=0, atol=4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(cosines(x[:, :1]), signs)
    np.testing.assert_allclose(cosines(x[:1]), np.ones((1, 1)), rtol=0, atol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("bins", (8, np.array([-0.9, -0.1, 0.0, 0.6, 0.95])), ids=("number", "edges"))
def test_histogram_counts_pairs(bins):
    x = cloud(1)
    x[3] = 2 * x[5]  # one pair in the last bin
    density, edges = histogram(x, bins) if isinstance(bins, int) else jax.jit(cosine_histogram)(x, bins)
    expected_edges = np.linspace(-1, 1, 9) if isinstance(bins, int) else bins
    np.testing.assert_allclose(edges, expected_edges, rtol=0, atol=1e-15)
    np.testing.assert_allclose(density, reference.histogram(x, expected_edges), rtol=1e-12)
    np.testing.assert_allclose(np.sum(density * np.diff(edges)), 1, rtol=1e-12)


def test_histogram_at_the_ends():
    """Cosines of exactly 1 and -1 are counted, the diagonal is not, and no pair within the edges gives zeros."""
    x = np.array([[1.0, 0], [1, 0], [-1, 0]])
    np.testing.assert_allclose(histogram(x, 4)[0], [4 / 3, 0, 0, 2 / 3], rtol=1e-12)
    np.testing.assert_array_equal(jax.jit(cosine_histogram)(x, np.array([-0.5, 0.0, 0.5]))[0], [0, 0])


@pytest.mark.exhaustive_cases("100-float32")
@pytest.mark.parametrize(("bins", "dtype"), ((7, jnp.float64), (100, jnp.float32)))
def test_cosines_on_the_edges(bins, dtype):
    """Equal bins place each cosine as `numpy.histogram` does with the same edges, also within rounding of an edge."""
    edges = np.asarray(jnp.linspace(-1, 1, bins + 1, dtype=dtype))
    near = np.concatenate([edges, np.nextafter(edges, dtype(2)), np.nextafter(edges, dtype(-2))]).clip(-1, 1)
    near = near[(near == 0) | (np.abs(near) >= np.finfo(dtype).tiny)]  # smaller numbers may be taken for zero
    x = jnp.asarray(np.stack([near, np.sqrt(1 - near**2)], axis=1))
    density, returned = cosine_histogram(x, bins)
    np.testing.assert_array_equal(returned, edges)
    np.testing.assert_allclose(density, cosine_histogram(x, returned)[0], rtol=1e-6)
    placed = jax.jit(_pairs.among_equal)(returned, near[None])[0]
    expected = np.searchsorted(edges, near, side="right") - 1
    np.testing.assert_array_equal(np.minimum(placed, bins - 1), np.minimum(expected, bins - 1))


@pytest.mark.parametrize("cosine", (-0.3, 0.2, 0.999))
def test_close_pairs(cosine):
    x = cloud(3)
    x[3] = 2 * x[5]
    x[6] = -x[5]
    np.testing.assert_allclose(close_pairs(x, cosine), reference.close_pairs_fraction(x, cosine), rtol=1e-12)


def test_close_pairs_of_two_clusters():
    x = np.array([[0, 1], [0, 1], [0, 1], [1, 0], [1, 0]], np.float32)
    share = close_pairs(x, 0.999)
    assert share.dtype == jnp.float32
    np.testing.assert_allclose(share, 8 / 20, rtol=1e-6)
    np.testing.assert_allclose(close_pairs(x, -0.5), 1, rtol=1e-6)


def test_blocks_of_rows_change_nothing(monkeypatch):
    """The function is traced anew, since no other test here has eleven tokens."""
    monkeypatch.setattr(_pairs, "_BLOCK_ENTRIES", 33)
    x = cloud(4, 11)
    density, edges = histogram(x, 8)
    assert "[11,11]" not in str(jax.make_jaxpr(histogram, static_argnums=1)(x, 8))
    np.testing.assert_allclose(density, reference.histogram(x, np.asarray(edges)), rtol=1e-12)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    share = _pairs.close_fraction(jnp.asarray(unit, float), jnp.asarray(0.3))
    np.testing.assert_allclose(share, reference.close_pairs_fraction(x, 0.3), rtol=1e-12)


def test_jit_vmap_and_dtype():
    clouds = np.stack([cloud(5), cloud(6)]).astype(np.float32)
    density, edges = jax.jit(jax.vmap(lambda x: cosine_histogram(x, 8)))(clouds)
    assert density.dtype == edges.dtype == jnp.float32
    for x, row in zip(clouds, density, strict=True):
        np.testing.assert_allclose(row, reference.histogram(x, np.linspace(-1, 1, 9)), rtol=1e-6)
    # A traced zero token cannot raise: it shows as NaN, never as a number.
    assert np.all(np.isnan(cosines(clouds[0] * (np.arange(7) != 2)[:, None])[2]))


def test_gradient_of_cosines():
    """The gradient of <x, y> / (|x| |y|) with respect to x is (y/|y| - c x/|x|) / |x|, and finite at equal tokens."""
    x, gradients = cloud(7, 2), jax.jit(jax.jacrev(pairwise_cosine))
    a, b = (row / np.linalg.norm(row) for row in x)
    by_first = gradients(x)[0, 1, 0]
    np.testing.assert_allclose(by_first, (b - a @ b * a) / np.linalg.norm(x[0]), rtol=0, atol=1e-12)
    assert np.all(np.isfinite(gradients(np.ones((2, 3)))))


@pytest.mark.parametrize("bins", (0, -3, True, 2.5, [0.0], [0.0, 0.5, 0.5], [0.0, np.nan], [[0.0, 1.0]]))
def test_bad_bins(bins):
    with pytest.raises(ValueError, match="bins must be"):
        inspect.unwrap(cosine_histogram)(jnp.asarray(cloud(0), float), bins)
