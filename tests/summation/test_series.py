"""The series of the spheres of three and four dimensions, against a double loop, and tables against identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_chebyu, eval_legendre

from clusterjax._summation.harmonic import sphere, three_sphere
from tests.reference.kernel_sums import kernel_sums, kernel_sums_gradient


N = 48
KINDS = {3: (sphere.SphereSeries, 22, 5.0), 4: (three_sphere.ThreeSphereSeries, 17, 2.0)}
BOTH = pytest.mark.parametrize("one_length", (True, False), ids=("one length", "any lengths"))


def cloud(d, seed=0):
    """Tokens, among them the poles and tokens where an angle is undefined or nearly so, and masses of either sign."""
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(N, d))
    special = [[0, 0, 1], [0, 0, -1], [1e-9, 0, 1]] if d == 3 else [[1, 0, 0, 0], [1e-9, 0, 0, 1], [0.6, 0.8, 0, 1e-9]]
    tokens[:3] = special
    return tokens / np.linalg.norm(tokens, axis=1)[:, None], rng.normal(size=N)


def case(d, one_length):
    """Queries, tokens and masses."""
    tokens, masses = cloud(d)
    form = np.eye(d) if one_length else np.diag([1.0, 0.3, -0.8, 0.6][:d])
    return KINDS[d][2] * tokens @ form, tokens, masses


def sums(series, queries, tokens, masses):
    length = jnp.asarray(KINDS[series.dimension][2], tokens.dtype)
    return series.evaluate(queries, series.coefficients(series.moments(tokens, masses), length))


@pytest.mark.parametrize("dtype", (jnp.float64, jnp.float32))
@pytest.mark.parametrize("d", KINDS)
@BOTH
def test_sums_are_those_of_a_double_loop(one_length, d, dtype):
    family, degree, _ = KINDS[d]
    data = case(d, one_length)
    found = jax.jit(sums)(family(degree, one_length), *(jnp.asarray(a, dtype) for a in data))
    for part, expected in zip(found, kernel_sums(*data), strict=True):
        assert part.dtype == dtype
        np.testing.assert_allclose(part, expected, atol=2e-12 if dtype == jnp.float64 else 2e-6, rtol=0)


@pytest.mark.exhaustive_cases("any lengths-3", "any lengths-4", "one length-4")
@pytest.mark.parametrize("d", KINDS)
@BOTH
def test_derivatives_are_those_of_a_double_loop(one_length, d):
    """Derivatives by queries, at a fixed scale, by tokens along the sphere, and by masses agree."""
    family, degree, _ = KINDS[d]
    queries, tokens, masses = case(d, one_length)
    rng = np.random.default_rng(1)
    cotangent = rng.normal(size=N), rng.normal(size=(N, d))

    def loss(queries, tokens, masses):
        normaliser, total = sums(family(degree, one_length), queries, tokens, masses)
        return cotangent[0] @ normaliser + jnp.sum(cotangent[1] * total)

    gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(queries, tokens, masses)
    expected = kernel_sums_gradient(queries, tokens, masses, *cotangent)
    along = lambda a: np.asarray(a) - np.sum(a * tokens, axis=1)[:, None] * tokens
    np.testing.assert_allclose(gradients[0], expected[0], atol=1e-11, rtol=0)
    np.testing.assert_allclose(along(gradients[1]), along(expected[1]), atol=1e-11, rtol=0)
    np.testing.assert_allclose(gradients[2], expected[2], atol=1e-11, rtol=0)


@pytest.mark.exhaustive_cases("4")
@pytest.mark.parametrize("d", KINDS)
def test_moments_add(d):
    tokens, masses = cloud(d)
    series = KINDS[d][0](3, True)
    make = jax.jit(series.moments)
    parts, whole = (
        make(tokens[: N // 2], masses[: N // 2]) + make(tokens[N // 2 :], masses[N // 2 :]),
        make(tokens, masses),
    )
    np.testing.assert_allclose(parts, whole, atol=1e-13)
    assert jax.eval_shape(lambda: series.empty(jnp.float64)) == jax.eval_shape(lambda: whole)


def sphere_harmonics(degree, points):
    """All real harmonics of some points from the table, (points, orders, 2, degree + 1)."""
    m = np.arange(sphere.orders(degree))
    theta, phi = np.arccos(points[:, 2]), np.arctan2(points[:, 1], points[:, 0])
    table = sphere.legendre_fourier(degree)
    by_theta = np.einsum("mlk,pk->pml", table, np.cos(m * theta[:, None]))
    by_theta[:, 1::2] = np.einsum("mlk,pk->pml", table[1::2], np.sin(m * theta[:, None]))
    waves = np.stack([np.cos(m * phi[:, None]), np.sin(m * phi[:, None])], axis=2)
    return waves[..., None] * by_theta[:, :, None]


def three_sphere_harmonics(degree, points):
    """All real harmonics of some points from the table, (points, orders, 2, orders, 2, orders)."""
    count = sphere.orders(degree)
    m = np.arange(count)
    phi, psi = np.arctan2(points[:, 1], points[:, 0]), np.arctan2(points[:, 3], points[:, 2])
    eta = np.arctan2(np.hypot(points[:, 2], points[:, 3]), np.hypot(points[:, 0], points[:, 1]))
    out = np.zeros((len(points), count, 2, count, 2, count))
    for p in range(count):
        for parity in range(2):
            # Rows are split by the parity of m + p, which is that of k and l.
            rows, k = m[(m + p) % 2 == parity], 2 * np.arange(count // 2) + parity
            waves = (np.sin if p % 2 else np.cos)(k * eta[:, None])
            by_eta = np.einsum("mlk,nk->nml", three_sphere.jacobi_fourier(degree)[rows, p], waves)
            for c, about in enumerate((np.cos, np.sin)):
                for d, other in enumerate((np.cos, np.sin)):
                    factor = about(rows * phi[:, None]) * other(p * psi)[:, None]
                    out[:, rows, c, p, d, parity::2] = factor[..., None] * by_eta
    return out


HARMONICS = {3: sphere_harmonics, 4: three_sphere_harmonics}


@pytest.mark.parametrize(("d", "degree"), ((3, 1), (3, 8), (3, 84), (4, 1), (4, 8), (4, 21)))
def test_harmonics_satisfy_the_addition_theorem(d, degree):
    points, l = cloud(d, 2)[0][3:9], np.arange(degree + 1)
    harmonics = HARMONICS[d](degree, points)[..., : degree + 1]
    products = np.einsum("nml,hml->nhl", *[harmonics.reshape(6, -1, degree + 1)] * 2)
    cosines = (points @ points.T)[:, :, None]
    expected = (2 * l + 1) * eval_legendre(l, cosines) if d == 3 else (l + 1) * eval_chebyu(l, cosines)
    number = (l + 1) ** (d - 2) if d == 4 else 2 * l + 1
    np.testing.assert_allclose(products / number, expected / number, atol=3e-13)


@pytest.mark.exhaustive_cases("4")
@pytest.mark.parametrize("d", KINDS)
def test_the_moments_of_one_token_are_its_harmonics_and_shifts_multiply_them_by_coordinates(d):
    module, degree, point = (sphere, three_sphere)[d - 3], 5, cloud(d, 2)[0][4:5]
    moments = jax.jit(KINDS[d][0].harmonics.moments, static_argnums=0)(degree, point, np.ones(1))
    harmonics, expected = module.harmonics(degree, moments), HARMONICS[d](degree, point)[0]
    np.testing.assert_allclose(harmonics, expected, atol=1e-13)
    for a, part in enumerate(module.times_coordinates(harmonics, module.coordinates(degree))):
        np.testing.assert_allclose(part[..., :degree], point[0, a] * expected[..., :degree], atol=1e-13)


def test_a_query_of_zero_has_the_plain_sum_of_masses_and_finite_derivatives():
    tokens, masses = (jnp.asarray(a) for a in cloud(3))
    both = jax.jit(
        lambda query: jax.jvp(lambda q: sums(sphere.SphereSeries(3, False), q, tokens, masses), (query,), (1 + query,))
    )
    (normaliser, total), (slope, _) = both(jnp.zeros((1, 3)))
    np.testing.assert_allclose(normaliser[0], jnp.sum(masses), rtol=1e-12)
    np.testing.assert_allclose(total[0], masses @ tokens, rtol=1e-12)
    np.testing.assert_allclose(slope[0], jnp.sum(masses @ tokens), rtol=1e-12)


def test_a_chunk_fits_the_cache():
    for degree in (1, 8, 19, 51, 84):
        for dtype in (jnp.float32, jnp.float64):
            size = sphere.cached_chunk(degree, dtype, True)
            assert size in (256, 512) and size <= sphere.cached_chunk(degree, dtype, False) <= 2048
    assert sphere.cached_chunk(19, jnp.float32, True) == 512 and sphere.cached_chunk(8, jnp.float32, False) == 1024
