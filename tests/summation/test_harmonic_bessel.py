import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_gegenbauer, gamma, ive

from clusterjax._summation.harmonic.series import length_and_direction, number_of_harmonics, scaled_bessel


DEGREE = 50
KAPPA = np.concatenate([[0.0, 1e-6, 0.01, 0.0999, 0.1001], np.geomspace(0.5, 40, 20)])


def expected(d):
    """SciPy's scaled Bessel functions, and at zero the limit."""
    order = d / 2 - 1
    kappa = np.where(KAPPA > 0, KAPPA, 1)
    values = gamma(d / 2) * (2 / kappa) ** order * ive(np.arange(DEGREE + 1)[:, None] + order, kappa)
    return np.where(KAPPA > 0, values, np.eye(DEGREE + 1)[:, :1])


@pytest.mark.exhaustive_cases("4")
@pytest.mark.parametrize("d", (2, 3, 4))
def test_scaled_bessel_functions_are_those_of_scipy(d):
    """Values in float64 and float32 are right to rounding, and the derivative is that of the recurrences."""

    @jax.jit
    def both(kappa):
        return jax.jvp(lambda k: scaled_bessel(k, DEGREE, d), (kappa,), (jnp.ones_like(kappa),))

    wanted = expected(d)
    for dtype, allowed in ((np.float64, 4e-14), (np.float32, 2e-6)):
        found, slope = both(jnp.asarray(KAPPA, dtype))
        assert found.dtype == dtype
        assert np.all(np.abs(np.asarray(found) - wanted) <= allowed * wanted + np.finfo(dtype).eps * wanted[0])
        assert np.all(np.isfinite(slope))
    # a_l' = (l a_{l-1} + (l + d - 2) a_{l+1}) / (2 l + d - 2), and the factor e^{-kappa} subtracts a_l.
    degrees = np.arange(1, DEGREE)[:, None]
    weighted = (degrees * wanted[:-2] + (degrees + d - 2) * wanted[2:]) / (2 * degrees + d - 2)
    slope = both(jnp.asarray(KAPPA))[1]
    np.testing.assert_allclose(np.asarray(slope)[1:-1], weighted - wanted[1:-1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", (2, 3, 4))
def test_the_harmonics_sum_to_the_kernel(d):
    """sum_l N_l a_l P_l(t) = e^{kappa (t - 1)} for the scaled a_l, at kappa = 0.5, where 50 degrees are plenty."""
    t = np.linspace(-1, 1, 7)
    row = expected(d)[:, np.argmin(np.abs(KAPPA - 0.5))]
    kappa = KAPPA[np.argmin(np.abs(KAPPA - 0.5))]
    total = 0.0
    for degree in range(DEGREE + 1):
        if d == 2:
            zonal = np.cos(degree * np.arccos(t))
        else:
            zonal = eval_gegenbauer(degree, d / 2 - 1, t) / eval_gegenbauer(degree, d / 2 - 1, 1.0)
        total = total + number_of_harmonics(degree, d) * row[degree] * zonal
    np.testing.assert_allclose(total, np.exp(kappa * (t - 1)), rtol=0, atol=1e-13)


def test_length_and_direction_of_nothing_have_finite_derivatives():
    queries = jnp.asarray([[0.0, 0.0], [3.0, 4.0]])
    length, direction = length_and_direction(queries)
    np.testing.assert_allclose(length, [0, 5], atol=1e-70)
    np.testing.assert_allclose(direction, [[0, 0], [0.6, 0.8]], atol=1e-15)
    slope = jax.grad(lambda q: jnp.sum(length_and_direction(q)[0]))(queries)
    np.testing.assert_allclose(slope, [[0, 0], [0.6, 0.8]], atol=1e-15)
