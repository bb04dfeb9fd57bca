r"""The series of the sphere in three dimensions, for queries of one common length and of any lengths.

**Algorithm.** $e^{\langle q, y\rangle} = \sum_l a_l(|q|) \sum_m Y_{lm}(q / |q|) Y_{lm}(y)$. For one length, harmonics
are sums of products of a wave in $\phi$ and a wave in $\theta$, so that the sums of a chunk are two matrix products and
one weighted sum. For any lengths, a scan over the degrees l uses the three-term recurrence of the associated Legendre
functions and the Bessel functions of each query.

**Reference.** Addition theorem, DLMF 14.30.9; plane-wave expansion, 10.60.9; recurrence, 14.10.3. **Invariant.**
Moments are of degree + 2, since two multiplications by coordinates lose two degrees.
"""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from ...._custom_types import Scalar, Tokens
from ...._misc import einsum, matmul
from .base import cached_chunk
from .bessel import held_scale, length_and_direction, scaled_bessel
from .derived import Derived, derived, with_derivatives, with_one_length
from .harmonics import AbstractGeneralSeries, AbstractIsotropicSeries, Harmonics
from .rounding import POWER, TokenRounding, bessel_units, norm, roots, with_neighbours
from .sphere_moments import empty_moments, harmonics, sphere_moments, sphere_waves, times_coordinates
from .sphere_tables import coordinates, legendre_fourier, legendre_fourier_sizes, orders, recurrence
from .waves import add_up


def _derived_harmonics(moments: Array, degree: int) -> Derived:
    """Both sets of harmonics up to `degree`, (functions, orders, 2, degree + 1), from moments of two degrees more."""
    complete = derived(harmonics(degree + 2, moments), lambda parts: times_coordinates(parts, coordinates(degree + 2)))
    return Derived(*(part[:, : orders(degree), :, : degree + 1] for part in complete))


# The units at any degree are for two waves and a mass. For the units by degree, the multiples of both angles in
# e^{kappa (t - 1)} sum to 2.05 sqrt(kappa) on average (computed), 1.45 times lambda = sqrt(2 kappa) in `certificate`.
_TOKEN_ROUNDING = TokenRounding(2.0, 1.45 * POWER)


def recurrence_units(degrees: np.ndarray) -> np.ndarray:
    """The errors of the harmonics of `_by_recurrence` at each degree l, in units, relative to their norm sqrt(2 l + 1).

    The worst case of first order, for every direction and l <= 84, was computed from the following counts. This
    worst case occurs at the pole, and is at most 2 + 4 l + 4 l^2.

    - A step rounds a z Y_{l-1} three times and b Y_{l-2} twice, their constants included, and their difference once.
      The recurrence propagates the error of a step, and all errors add up to 2 + 2 l + 2.25 l^2.
    - The length of the computed direction has an error of 3.5 units: 2.5 of |q| and 1 of the division. The recurrence
      assumes length one, which adds 3.5 l (l + 1) / 2, by the derivative of the Legendre polynomial at 1.
    - The error of the power (x + iy)^m is sqrt(5) units per factor, and of its scale two units.
    """
    return 2 + 4.0 * degrees + 4.0 * degrees**2


def _error_terms(degree: int, moments: Array, gradients: bool, by_waves: bool) -> Array:
    """The contribution of each degree to the rounding errors of the sums, in units, (functions, degree + 1)."""
    table = np.abs(legendre_fourier(degree + 2))
    # The errors of `harmonics` come from products with the table, whose terms may exceed their sum.
    table_errors = norm(einsum("mck,mlk->mcl", jnp.abs(moments), jnp.asarray(table, moments.dtype)), (0, 1))
    parts = _derived_harmonics(moments, degree).first if gradients else harmonics(degree + 2, moments)[None]
    parts = norm(parts[:, : orders(degree), :, : degree + 1], 2)
    l = np.arange(degree + 1)
    # The units of the coefficients, and of the products with the coefficients.
    units = bessel_units(degree) + 8
    if not by_waves:
        # The units of a product with all harmonics of a degree, of the sum over degrees, and of the recurrence.
        units = units + 2 * orders(degree) + degree + 8 + recurrence_units(l)
    error_terms = with_neighbours(table_errors, degree, gradients)[None] * (orders(degree + 2) / 2 + 4)
    # The errors added here are proportional to the harmonics; `parts` is (functions, orders, degree + 1) here.
    error_terms = error_terms + norm(parts, 1) * jnp.asarray(units, moments.dtype)[None]
    # By Cauchy-Schwarz, since the vector of harmonics of degree l has the norm sqrt(2 l + 1) at any point.
    error_terms = error_terms * jnp.asarray(roots(degree, 3), moments.dtype)[None]
    if by_waves:
        # The units of three sums over degrees and waves, and of waves of at most 2 l multiples.
        units = degree / 2 + 2 * orders(degree) + 8 + 2 * POWER * l
        sizes = jnp.asarray(legendre_fourier_sizes(degree), moments.dtype)
        error_terms = error_terms + jnp.asarray(units, moments.dtype)[None] * jnp.sum(parts * sizes[None], axis=1)
    return error_terms


def _by_waves(degree: int, queries: Tokens, coefficients: tuple[Array, Array]) -> Array:
    """The sums for queries of one length, (functions, n): a matrix product for even m, and one for odd m."""
    # Even m go with cosines of k theta and odd m with sines, hence two products.
    (even, odd), cosines, sines = sphere_waves(queries, degree)
    count, n = cosines.shape
    by_cosine = matmul(coefficients[0], even).reshape(-1, count, n)
    by_sine = matmul(coefficients[1], odd).reshape(-1, count, n)
    return add_up(by_cosine * cosines[None] + by_sine * sines[None])


def _wave_coefficients(degree: int, moments: Array, length: Scalar) -> Derived:
    """Matrices with a row for each function and k, and a column for each wave of even m, and of odd m."""
    bessel = scaled_bessel(length, degree, 3)
    table = jnp.asarray(legendre_fourier(degree), moments.dtype)

    def transfer(part, parity):
        weighted = part[:, parity::2] * bessel[None, None, None]
        out = einsum("hmcl,mlk->hkmc", weighted, table[parity::2])
        # The order (functions, k, m, cosine or sine) is the order of rows and columns in `_by_waves`.
        return out.reshape(out.shape[0] * out.shape[1], -1)

    return Derived(*((transfer(part, 0), transfer(part, 1)) for part in _derived_harmonics(moments, degree)))


_sums_by_waves = with_one_length(_wave_coefficients, _by_waves)


def _recurrence_coefficients(degree: int, moments: Array) -> Derived:
    """The coefficients by degree, functions, and all orders with their cosines and sines."""

    def by_degree(part):
        return jnp.transpose(part, (3, 0, 1, 2)).reshape(degree + 1, part.shape[0], -1)

    return Derived(*(by_degree(part) for part in _derived_harmonics(moments, degree)))


def _by_recurrence(degree: int, queries: Tokens, coefficients: Array) -> Array:
    """The sums for queries of any length, (functions, n), by a scan over the degrees."""
    length, direction = length_and_direction(queries)
    bessel = scaled_bessel(length, degree, 3) * held_scale(length)[None]
    first, second, diagonal = (jnp.asarray(table, queries.dtype) for table in recurrence(degree))
    x, y, z = direction.T
    count, n = orders(degree), queries.shape[0]

    # Y_mm, the start of the recurrence of each order m, is a normalised power of x + iy, (orders, 2, n).
    def power(carry, scale):
        c, s = carry
        return (c * x - s * y, s * x + c * y), jnp.stack([c, s]) * scale

    sectoral = lax.scan(power, (jnp.ones_like(x), jnp.zeros_like(x)), diagonal)[1]

    def step(carry, inputs):
        # `last` and `second_last` hold Y of degrees l - 1 and l - 2, all orders: (orders, 2, n).
        last, second_last, sums = carry
        l, a, b, constants, weight = inputs
        parts = a[:, None, None] * z[None, None] * last - b[:, None, None] * second_last
        # Order m begins at degree l = m; before this degree, its row is zero.
        start = jnp.arange(count) == l
        parts = jnp.where(start[:, None, None], sectoral, parts)
        sums = sums + weight[None] * matmul(constants, parts.reshape(2 * count, n))
        return (parts, last, sums), None

    zero = jnp.zeros_like(sectoral)
    no_sums = jnp.zeros((coefficients.shape[1], n), queries.dtype)
    degrees = (jnp.arange(degree + 1), first.T, second.T, coefficients, bessel)
    return lax.scan(step, (zero, zero, no_sums), degrees)[0][2]


_sums_by_recurrence = with_derivatives(
    lambda degree, queries, coefficients: _by_recurrence(degree, queries, coefficients.first),
    lambda degree, queries, coefficients: _by_recurrence(degree, queries, coefficients.second),
)


_HARMONICS = Harmonics(
    dimension=3,
    chunk_size=cached_chunk,
    empty=empty_moments,
    moments=sphere_moments,
    wave_coefficients=_wave_coefficients,
    sums_by_waves=_sums_by_waves,
    recurrence_coefficients=_recurrence_coefficients,
    sums_by_recurrence=_sums_by_recurrence,
    error_terms=_error_terms,
    token_rounding=_TOKEN_ROUNDING,
)


class IsotropicSphereSeries(AbstractIsotropicSeries):
    """Spherical harmonics for tokens in three dimensions and queries of one length."""

    harmonics: ClassVar[Harmonics] = _HARMONICS


class GeneralSphereSeries(AbstractGeneralSeries):
    """Spherical harmonics for tokens in three dimensions and queries of any lengths."""

    harmonics: ClassVar[Harmonics] = _HARMONICS
