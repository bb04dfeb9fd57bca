import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from clusterjax._observables import (
    close_pairs_fraction,
    cosine_histogram,
    pairwise_cosine,
    similarity,
    similarity as _pairs,
)
from tests.reference import observables as reference


def cloud(seed, n=7, d=3):
    return np.random.default_rng(seed).normal(size=(n, d))


def test_cosines_are_those_of_the_definition():
    x = cloud(0)
    actual = pairwise_cosine(jnp.asarray(x))
    np.testing.assert_allclose(actual, reference.cosines(x), rtol=0, atol=1e-12)
    rescaled = jnp.asarray(x * np.logspace(-3, 3, 7)[:, None])
    np.testing.assert_allclose(pairwise_cosine(rescaled), actual, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float64))
def test_cosines_of_special_clouds(dtype):
    """Identical and antipodal tokens stay within [-1, 1]; one dimension; one token; huge and tiny tokens."""
    x = jnp.asarray([[0.1, 0.7, 0.3], [0.1, 0.7, 0.3], [-0.1, -0.7, -0.3]], dtype=dtype)
    signs = np.asarray([[1.0, 1, -1], [1, 1, -1], [-1, -1, 1]])
    for scale in (1.0, 1e-30, 1e30):
        actual = pairwise_cosine(x * jnp.asarray(scale, dtype))
        assert actual.dtype == dtype and np.abs(actual).max() <= 1
        np.testing.assert_allclose(actual, signs, rtol=0, atol=4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(pairwise_cosine(x[:, :1]), signs)
    np.testing.assert_allclose(pairwise_cosine(x[:1]), np.ones((1, 1)), rtol=0, atol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("bins", (8, np.array([-0.9, -0.1, 0.0, 0.6, 0.95])), ids=("number", "edges"))
def test_histogram_counts_pairs(bins):
    x = cloud(1)
    x[3] = 2 * x[5]  # one pair in the last bin
    density, edges = cosine_histogram(jnp.asarray(x), bins if isinstance(bins, int) else jnp.asarray(bins))
    expected_edges = np.linspace(-1, 1, 9) if isinstance(bins, int) else bins
    np.testing.assert_allclose(edges, expected_edges, rtol=0, atol=1e-15)
    np.testing.assert_allclose(density, reference.histogram(x, expected_edges), rtol=1e-12)
    np.testing.assert_allclose(jnp.sum(density * jnp.diff(edges)), 1, rtol=1e-12)


def test_histogram_at_the_ends():
    """Cosines of exactly 1 and -1 are counted, the diagonal is not, and no pair within the edges gives zeros."""
    x = jnp.asarray([[1.0, 0], [1, 0], [-1, 0]])
    density, _ = cosine_histogram(x, 4)
    np.testing.assert_allclose(density, [4 / 3, 0, 0, 2 / 3], rtol=1e-12)
    np.testing.assert_array_equal(cosine_histogram(x, jnp.asarray([-0.5, 0.0, 0.5]))[0], [0, 0])


@pytest.mark.exhaustive_cases("100-float32")
@pytest.mark.parametrize(("bins", "dtype"), ((7, jnp.float64), (100, jnp.float32)))
def test_cosines_on_the_edges(bins, dtype):
    """Equal bins place each cosine as `numpy.histogram` does with the same edges, also within rounding of an edge."""
    edges = np.asarray(jnp.linspace(-1, 1, bins + 1, dtype=dtype))
    near = np.concatenate([edges, np.nextafter(edges, dtype(2)), np.nextafter(edges, dtype(-2))]).clip(-1, 1)
    near = near[(near == 0) | (np.abs(near) >= np.finfo(dtype).tiny)]  # smaller numbers may be taken for zero
    x = jnp.stack([jnp.asarray(near), jnp.sqrt(1 - jnp.asarray(near) ** 2)], axis=1)
    density, returned = cosine_histogram(x, bins)
    np.testing.assert_array_equal(returned, edges)
    np.testing.assert_allclose(density, cosine_histogram(x, returned)[0], rtol=1e-6)
    placed = similarity.among_equal(returned, jnp.asarray(near)[None])[0]
    expected = np.searchsorted(edges, near, side="right") - 1
    np.testing.assert_array_equal(np.minimum(placed, bins - 1), np.minimum(expected, bins - 1))


@pytest.mark.parametrize("cosine", (-0.3, 0.2, 0.999))
def test_close_pairs(cosine):
    x = cloud(3)
    x[3] = 2 * x[5]
    x[6] = -x[5]
    actual = close_pairs_fraction(jnp.asarray(x), cosine)
    np.testing.assert_allclose(actual, reference.close_pairs_fraction(x, cosine), rtol=1e-12)


def test_close_pairs_of_two_clusters():
    x = jnp.asarray([[0.0, 1], [0, 1], [0, 1], [1, 0], [1, 0]], dtype=jnp.float32)
    fraction = close_pairs_fraction(x, 0.999)
    assert fraction.dtype == jnp.float32
    np.testing.assert_allclose(fraction, 8 / 20, rtol=1e-6)
    np.testing.assert_allclose(close_pairs_fraction(x, -0.5), 1, rtol=1e-6)


def test_blocks_of_rows_change_nothing(monkeypatch):
    """No other test here has eleven tokens."""
    monkeypatch.setattr(_pairs, "_BLOCK_ENTRIES", 33)
    x = cloud(4, 11)
    density, edges = cosine_histogram(jnp.asarray(x), 8)
    assert "[11,11]" not in str(jax.make_jaxpr(lambda y: cosine_histogram(y, 8))(jnp.asarray(x)))
    np.testing.assert_allclose(density, reference.histogram(x, np.asarray(edges)), rtol=1e-12)
    expected = reference.close_pairs_fraction(x, 0.3)
    np.testing.assert_allclose(close_pairs_fraction(jnp.asarray(x), 0.3), expected, rtol=1e-12)


def test_jit_vmap_and_dtype():
    clouds = jnp.asarray(np.stack([cloud(5), cloud(6)]), dtype=jnp.float32)
    density, edges = jax.jit(jax.vmap(lambda x: cosine_histogram(x, 8)))(clouds)
    assert density.dtype == edges.dtype == jnp.float32
    for x, row in zip(clouds, density, strict=True):
        np.testing.assert_allclose(row, cosine_histogram(x, 8)[0], rtol=1e-6)
    # A traced zero token cannot raise: it shows as NaN, never as a number.
    assert np.all(np.isnan(jax.jit(pairwise_cosine)(clouds[0].at[2].set(0))[2]))


def test_gradient_of_cosines():
    """Of <x, y> / (|x| |y|) by x: (y/|y| - c x/|x|) / |x|; and finite at identical tokens."""
    x = cloud(7, 2)
    a, b = (row / np.linalg.norm(row) for row in x)
    gradient = jax.grad(lambda y: pairwise_cosine(y)[0, 1])(jnp.asarray(x))
    np.testing.assert_allclose(gradient[0], (b - a @ b * a) / np.linalg.norm(x[0]), rtol=0, atol=1e-12)
    assert np.all(np.isfinite(jax.grad(lambda y: jnp.sum(pairwise_cosine(y)))(jnp.ones((2, 3)))))


@pytest.mark.parametrize("bins", (0, -3, True, 2.5, [0.0], [0.0, 0.5, 0.5], [0.0, np.nan], [[0.0, 1.0]]))
def test_bad_bins(bins):
    with pytest.raises(ValueError, match="bins must be"):
        inspect.unwrap(cosine_histogram)(jnp.asarray(cloud(0)), bins)


def test_histogram_of_uniform_tokens():
    """The density of a cosine in d = 5 is (1 - t^2) / B(1/2, 2), within 5 sigma in each bin."""
    x = cloud(2, 200, 5)
    density, edges = cosine_histogram(jnp.asarray(x), 10)
    primitive = lambda t: (t - t**3 / 3) / scipy.special.beta(0.5, 2)
    expected = np.diff(primitive(np.asarray(edges))) / 0.2
    # Cosines of two pairs are independent even where they share a token: the variance is that of independent pairs.
    sigma = np.sqrt(expected * 0.2 * (1 - expected * 0.2) / (200 * 199 / 2)) / 0.2
    assert np.all(np.abs(density - expected) < 5 * sigma)
