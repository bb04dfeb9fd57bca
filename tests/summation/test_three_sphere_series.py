"""The series of the sphere in four dimensions, against a double loop over pairs, and its tables against identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_chebyu

from clusterjax._summation.harmonic import three_sphere as moments_of
from clusterjax._summation.harmonic.sphere import orders
from clusterjax._summation.harmonic.three_sphere import (
    GeneralThreeSphereSeries,
    IsotropicThreeSphereSeries,
    coordinates,
    jacobi_fourier,
)
from tests.reference.kernel_sums import kernel_sums, kernel_sums_gradient


N = 40
BETA = 2.0
FORMS = {IsotropicThreeSphereSeries: np.eye(4), GeneralThreeSphereSeries: np.diag([1.0, 0.3, -0.8, 0.6])}


def cloud(seed=0):
    """Tokens, some where an angle is lost among them, and masses of either sign."""
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(N, 4))
    tokens[:4] = [[1, 0, 0, 0], [0, 0, 0, -1], [1e-9, 0, 0, 1], [0.6, 0.8, 0, 1e-9]]
    return tokens / np.linalg.norm(tokens, axis=1)[:, None], rng.normal(size=N)


def sums(series, queries, tokens, masses):
    length = jnp.asarray(BETA, tokens.dtype)
    return series.evaluate(queries, series.coefficients(series.moments(tokens, masses), length))


@pytest.mark.parametrize(
    "family", (IsotropicThreeSphereSeries, pytest.param(GeneralThreeSphereSeries, marks=pytest.mark.exhaustive))
)
def test_sums_and_derivatives_are_those_of_a_double_loop(family):
    """In float64, with the scale held fixed; with respect to tokens along the sphere."""
    tokens, masses = cloud()
    queries = BETA * tokens @ FORMS[family]
    rng = np.random.default_rng(1)
    paid = rng.normal(size=N), rng.normal(size=(N, 4))

    def loss(queries, tokens, masses):
        found = sums(family(17), queries, tokens, masses)
        return paid[0] @ found[0] + jnp.sum(paid[1] * found[1]), found

    (_, found), got = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(queries, tokens, masses)
    for part, wanted in zip(found, kernel_sums(queries, tokens, masses), strict=True):
        np.testing.assert_allclose(part, wanted, atol=1e-12, rtol=0)
    expected = kernel_sums_gradient(queries, tokens, masses, *paid)
    along = lambda a: np.asarray(a) - np.sum(a * tokens, axis=1)[:, None] * tokens
    np.testing.assert_allclose(got[0], expected[0], atol=1e-11, rtol=0)
    np.testing.assert_allclose(along(got[1]), along(expected[1]), atol=1e-11, rtol=0)
    np.testing.assert_allclose(got[2], expected[2], atol=1e-11, rtol=0)


@pytest.mark.exhaustive_cases("GeneralThreeSphereSeries")
@pytest.mark.parametrize("family", tuple(FORMS))
def test_sums_in_float32(family):
    tokens, masses = cloud()
    queries = BETA * tokens @ FORMS[family]
    arrays = (jnp.asarray(a, jnp.float32) for a in (queries, tokens, masses))
    got = jax.jit(sums)(family(10), *arrays)
    for part, expected in zip(got, kernel_sums(queries, tokens, masses), strict=True):
        assert part.dtype == jnp.float32
        np.testing.assert_allclose(part, expected, atol=2e-6, rtol=0)


def test_moments_add():
    tokens, masses = (jnp.asarray(a) for a in cloud())
    series = IsotropicThreeSphereSeries(3)
    make = jax.jit(series.moments)
    half = N // 2
    whole = make(tokens, masses)
    np.testing.assert_allclose(
        make(tokens[:half], masses[:half]) + make(tokens[half:], masses[half:]), whole, atol=1e-13
    )
    assert jax.eval_shape(lambda: series.empty(jnp.float64)) == jax.eval_shape(lambda: whole)


def all_harmonics(degree, points):
    """All real harmonics of some points from the table, (points, orders, 2, orders, 2, orders)."""
    count = orders(degree)
    m = np.arange(count)
    phi, psi = np.arctan2(points[:, 1], points[:, 0]), np.arctan2(points[:, 3], points[:, 2])
    eta = np.arctan2(np.hypot(points[:, 2], points[:, 3]), np.hypot(points[:, 0], points[:, 1]))
    out = np.zeros((len(points), count, 2, count, 2, count))
    for p in range(count):
        for parity in range(2):
            # By m of the parity of p or not, so that k and l are even or odd.
            rows, k = m[(m + p) % 2 == parity], 2 * np.arange(count // 2) + parity
            waves = (np.sin if p % 2 else np.cos)(k * eta[:, None])
            by_eta = np.einsum("mlk,nk->nml", jacobi_fourier(degree)[rows, p], waves)
            for c, about in enumerate((np.cos, np.sin)):
                for d, other in enumerate((np.cos, np.sin)):
                    factor = about(rows * phi[:, None]) * other(p * psi)[:, None]
                    out[:, rows, c, p, d, parity::2] = factor[..., None] * by_eta
    return out


POINTS = cloud(2)[0][:6]


@pytest.mark.parametrize("degree", (1, 8, 21))
def test_harmonics_satisfy_the_addition_theorem(degree):
    found = all_harmonics(degree, POINTS)
    products = np.einsum("nmcpdl,hmcpdl->nhl", found, found)[..., : degree + 1]
    l = np.arange(degree + 1)
    expected = (l + 1) * eval_chebyu(l, (POINTS @ POINTS.T)[:, :, None])
    np.testing.assert_allclose(products / (l + 1) ** 2, expected / (l + 1) ** 2, atol=2e-13)


def test_harmonics_times_coordinates_are_shifted_harmonics():
    """And the moments of one token are its harmonics."""
    degree = 5
    expected = all_harmonics(degree, POINTS[4:5])[0]
    moments = jax.jit(moments_of.three_sphere_moments, static_argnums=0)(degree, POINTS[4:5], np.ones(1))
    found = moments_of.harmonics(degree, moments)
    np.testing.assert_allclose(found, expected, atol=1e-13)
    shifted = moments_of.times_coordinates(found, coordinates(degree))
    for a, part in enumerate(shifted):
        np.testing.assert_allclose(part[..., :degree], POINTS[4, a] * expected[..., :degree], atol=1e-13)
