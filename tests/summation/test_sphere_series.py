"""The series of the sphere in three dimensions, against a double loop over pairs, and its tables against identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_legendre

from clusterjax._summation.harmonic import sphere as moments_of
from clusterjax._summation.harmonic.sphere import GeneralSphereSeries, IsotropicSphereSeries, legendre_fourier, orders
from tests.reference.kernel_sums import kernel_sums, kernel_sums_gradient


N = 48
BETA = 5.0
FORMS = {IsotropicSphereSeries: np.eye(3), GeneralSphereSeries: np.diag([1.0, 0.3, -0.8])}
BOTH = pytest.mark.parametrize("family", tuple(FORMS))


def cloud(seed=0):
    """Tokens, the poles and a neighbour of one among them, and masses of either sign."""
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(N, 3))
    tokens[:3] = [[0, 0, 1], [0, 0, -1], [1e-9, 0, 1]]
    return tokens / np.linalg.norm(tokens, axis=1)[:, None], rng.normal(size=N)


def sums(series, queries, tokens, masses):
    length = jnp.asarray(BETA, tokens.dtype)
    return series.evaluate(queries, series.coefficients(series.moments(tokens, masses), length))


@BOTH
@pytest.mark.parametrize(("degree", "dtype", "bound"), ((24, jnp.float64, 2e-13), (14, jnp.float32, 2e-6)))
def test_sums_are_those_of_a_double_loop(family, degree, dtype, bound):
    tokens, masses = cloud()
    queries = BETA * tokens @ FORMS[family]
    got = jax.jit(sums)(family(degree), *(jnp.asarray(a, dtype) for a in (queries, tokens, masses)))
    for part, expected in zip(got, kernel_sums(queries, tokens, masses), strict=True):
        assert part.dtype == dtype
        np.testing.assert_allclose(part, expected, atol=bound, rtol=0)


@pytest.mark.exhaustive_cases("GeneralSphereSeries")
@BOTH
def test_derivatives_are_those_of_the_sums_of_pairs_at_the_poles_too(family):
    """With the scale held fixed; with respect to tokens along the sphere."""
    tokens, masses = cloud()
    queries = BETA * tokens @ FORMS[family]
    rng = np.random.default_rng(1)
    paid = rng.normal(size=N), rng.normal(size=(N, 3))

    def loss(queries, tokens, masses):
        normaliser, total = sums(family(22), queries, tokens, masses)
        return paid[0] @ normaliser + jnp.sum(paid[1] * total)

    got = jax.jit(jax.grad(loss, (0, 1, 2)))(queries, tokens, masses)
    expected = kernel_sums_gradient(queries, tokens, masses, *paid)
    along = lambda a: np.asarray(a) - np.sum(a * tokens, axis=1)[:, None] * tokens
    np.testing.assert_allclose(got[0], expected[0], atol=1e-11, rtol=0)
    np.testing.assert_allclose(along(got[1]), along(expected[1]), atol=1e-11, rtol=0)
    np.testing.assert_allclose(got[2], expected[2], atol=1e-11, rtol=0)


@BOTH
def test_moments_add(family):
    tokens, masses = cloud()
    series = family(6)
    make = jax.jit(series.moments)
    half = N // 2
    parts = make(tokens[:half], masses[:half]) + make(tokens[half:], masses[half:])
    whole = make(tokens, masses)
    np.testing.assert_allclose(parts, whole, atol=1e-13)
    assert jax.eval_shape(lambda: series.empty(jnp.float64)) == jax.eval_shape(lambda: whole)


def all_harmonics(degree, theta, phi):
    """All real harmonics of some points from the table, (points, orders, 2, degree + 1)."""
    m = np.arange(orders(degree))
    angles = m * theta[:, None]
    table = legendre_fourier(degree)
    by_theta = np.einsum("mlk,pk->pml", table, np.cos(angles))
    by_theta[:, 1::2] = np.einsum("mlk,pk->pml", table[1::2], np.sin(angles))
    waves = np.stack([np.cos(m * phi[:, None]), np.sin(m * phi[:, None])], axis=2)
    return waves[..., None] * by_theta[:, :, None]


@pytest.mark.parametrize("degree", (1, 8, 84))
def test_harmonics_satisfy_the_addition_theorem(degree):
    rng = np.random.default_rng(2)
    theta, phi = np.arccos(rng.uniform(-1, 1, 6)), rng.uniform(0, 2 * np.pi, 6)
    points = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=1)
    found = all_harmonics(degree, theta, phi)
    products = np.einsum("pmcl,qmcl->pql", found, found)
    l = np.arange(degree + 1)
    expected = (2 * l + 1) * eval_legendre(l, (points @ points.T)[:, :, None])
    np.testing.assert_allclose(products / (2 * l + 1), expected / (2 * l + 1), atol=3e-13)


def test_the_moments_of_one_token_are_its_harmonics():
    theta, phi = np.array([0.3]), np.array([-2.0])
    token = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=1)
    moments = moments_of.sphere_moments(8, jnp.asarray(token), jnp.ones(1))
    np.testing.assert_allclose(moments_of.harmonics(8, moments), all_harmonics(8, theta, phi)[0], atol=1e-14)


def test_a_query_of_zero_takes_the_plain_sum():
    """Of masses, without a direction to speak of, and with finite derivatives."""
    tokens, masses = (jnp.asarray(a) for a in cloud())
    series = GeneralSphereSeries(3)

    @jax.jit
    def both(query):
        return jax.jvp(lambda q: sums(series, q, tokens, masses), (query,), (jnp.ones((1, 3)),))

    (normaliser, total), (slope, _) = both(jnp.zeros((1, 3)))
    np.testing.assert_allclose(normaliser[0], jnp.sum(masses), rtol=1e-12)
    np.testing.assert_allclose(total[0], masses @ tokens, rtol=1e-12)
    np.testing.assert_allclose(slope[0], jnp.sum(masses @ tokens), rtol=1e-12)


def test_a_chunk_fits_the_cache():
    for degree in (1, 8, 19, 51, 84):
        for dtype in (jnp.float32, jnp.float64):
            size = IsotropicSphereSeries(degree).chunk_size(dtype, True)
            assert size in (256, 512)
            assert size <= IsotropicSphereSeries(degree).chunk_size(dtype, False) <= 2048
    assert GeneralSphereSeries(19).chunk_size(jnp.float32, True) == 512
    assert GeneralSphereSeries(8).chunk_size(jnp.float32, False) == 1024
