r"""The series of the sphere in four dimensions, for queries of one common length and of any lengths.

**Algorithm.** $e^{\langle q, y\rangle} = \sum_l a_l(|q|) \sum_{mp} Y_{lmp}(q / |q|) Y_{lmp}(y)$ in Hopf coordinates.
For one length, two matrix products per chunk sum products of waves in the three angles. For any lengths, a scan over
pairs of degrees 2j and 2j + 1 uses the three-term recurrence of Jacobi polynomials for all orders (m, p) at once.

**Reference.** Gegenbauer's addition theorem, DLMF 10.23.9 and 18.18.8; Jacobi polynomials, 18.9.2. **Invariants.**
Moments are of degree + 2, as in three dimensions. $Y_{lmp}$ is zero unless l has the parity of m + p, and both parities
have separate arrays.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ...._custom_types import Scalar, Tokens
from ...._misc import einsum, matmul
from .bessel import held_scale, length_and_direction, scaled_bessel
from .derived import Derived, derived, with_derivatives, with_one_length
from .harmonics import AbstractGeneralSeries, AbstractIsotropicSeries, Harmonics
from .rounding import POWER, TokenRounding, bessel_units, norm, roots, with_neighbours
from .sphere_tables import orders
from .three_sphere_moments import (
    azimuth_waves,
    by_degree,
    by_half_degree,
    by_parity,
    empty_moments,
    harmonics,
    three_sphere_moments,
    three_sphere_waves,
    times_coordinates,
)
from .three_sphere_tables import coordinates, jacobi_fourier, jacobi_fourier_sizes, pairs_of_orders
from .waves import add_up


def _chunk_size(degree: int, dtype: Any, causal: bool) -> int:
    """A size for full sums that fits the cache; causal sums use more, since coefficients cost as much as sums."""
    if causal:
        return 1024
    return 1024 if degree < 12 else 512 if degree < 16 else 256


def _derived_harmonics(moments: Array, degree: int) -> Derived:
    """Both sets of harmonics up to `degree`, by functions, from moments of two degrees more."""
    complete = derived(harmonics(degree + 2, moments), lambda parts: times_coordinates(parts, coordinates(degree + 2)))
    rows = orders(degree)
    return Derived(*(part[:, :rows, :, :rows, :, :rows] for part in complete))


def _wave_coefficients(degree: int, moments: Array, length: Scalar) -> Derived:
    """Matrices for even m and for odd m, with a row for each function and m, and a column for each p and k."""
    count = orders(degree)
    bessel = jnp.pad(scaled_bessel(length, degree, 4), (0, count - degree - 1))
    table = jnp.asarray(jacobi_fourier(degree), moments.dtype)

    def transfer(part):
        halves = by_half_degree(part * bessel.reshape(1, 1, 1, 1, 1, count))
        out = by_parity(einsum("hmcpdl,mplk->hmcpdk", halves, table))
        rows, columns = part.shape[0] * count, count * count
        # For each parity of m, the parity of p moves in front of p // 2, which is the order of `three_sphere_waves`.
        return tuple(jnp.moveaxis(of_parity, 0, 3).reshape(rows, columns) for of_parity in out)

    return Derived(*(transfer(part) for part in _derived_harmonics(moments, degree)))


# The units at any degree are for three waves and a mass. For the units by degree, the multiples of the three angles in
# e^{kappa (t - 1)} sum to 2.65 sqrt(kappa) on average (computed), 1.55 times lambda = sqrt(3 kappa) in `certificate`.
_TOKEN_ROUNDING = TokenRounding(3.0, 1.55 * POWER)


def _error_terms(degree: int, moments: Array, gradients: bool, by_waves: bool) -> Array:
    """The contribution of each degree to the rounding errors of the sums, in units, (functions, degree + 1)."""
    table, count = jnp.asarray(np.abs(jacobi_fourier(degree + 2)), moments.dtype), orders(degree)
    # As in `sphere_series.py`, errors of the product with the table precede errors proportional to the harmonics.
    table_errors = norm(by_degree(einsum("mcpdk,mplk->mcpdl", jnp.abs(moments), table)), (0, 1, 2, 3))
    parts = _derived_harmonics(moments, degree).first if gradients else harmonics(degree + 2, moments)[None]
    parts = norm(parts[:, :count, :, :count, :, : degree + 1], (2, 4))
    l = np.arange(degree + 1)
    units = bessel_units(degree) + 8
    if not by_waves:
        # The units of a product with all harmonics of a degree, of the sum over degrees, and of the recurrence, which
        # has 10 + 10 l + 2 l^2 units. Its worst case of first order was computed as in `recurrence_units`, for l <= 29:
        # 5 at l = 0, and 1095 of 1982 at l = 29. A step rounds a t h three times, b h twice, c h' twice, and their
        # difference once. The errors are 8 units for t = cos 2 eta, `POWER` for each multiple of both azimuths, 4 for
        # each factor of the powers of cos eta and sin eta, and 5 for products and constants.
        units = units + (degree + 2) ** 2 + degree + 10 + 10 * l + 2 * l * l
    error_terms = with_neighbours(table_errors, degree, gradients)[None] * (orders(degree + 2) / 2 + 4)
    error_terms = error_terms + norm(parts, (1, 2)) * jnp.asarray(units, moments.dtype)[None]
    # By Cauchy-Schwarz, since the vector of harmonics of degree l has the norm l + 1 at any point.
    error_terms = error_terms * jnp.asarray(roots(degree, 4), moments.dtype)[None]
    if by_waves:
        # The sum over p and k is a matrix product, with up to count^2 terms; `add_up` sums over m.
        sizes = jnp.asarray(jacobi_fourier_sizes(degree)[:, :, : degree + 1], moments.dtype)
        units = jnp.asarray(degree / 2 + count * count + count + 10 + 2 * POWER * l, moments.dtype)[None]
        error_terms = error_terms + units * jnp.sum(parts * sizes[None], axis=(1, 2))
    return error_terms


def _by_waves(degree: int, directions: Tokens, coefficients: tuple[Array, Array]) -> Array:
    """The sums for queries of one length, (functions, n): a matrix product for even m, and one for odd m."""
    by_phi, products = three_sphere_waves(directions, degree)
    count, n = by_phi[0].shape
    parts = [
        matmul(table, product).reshape(-1, count, n) * wave[None]
        for wave, product, table in zip(by_phi, products, coefficients, strict=True)
    ]
    return add_up(parts[0] + parts[1])


_sums_by_waves = with_one_length(_wave_coefficients, _by_waves)


def _recurrence_coefficients(degree: int, moments: Array) -> Derived:
    """The coefficients for even l and for odd l, by l // 2, functions, pairs of orders, and cosine or sine of both."""
    halves = orders(degree) // 2

    def by_pairs(part, parity):
        pairs = pairs_of_orders(degree, parity)
        chosen = part[:, pairs.m, :, pairs.p][..., parity::2]
        return chosen.transpose(4, 1, 0, 2, 3).reshape(halves, part.shape[0], -1)

    return Derived(*((by_pairs(part, 0), by_pairs(part, 1)) for part in _derived_harmonics(moments, degree)))


def _powers(base: Float[Array, " n"], count: int) -> Float[Array, "count n"]:
    """The powers 0, ..., `count` - 1 of `base`, one product each."""
    return lax.scan(lambda power, _: (power * base, power), jnp.ones_like(base), None, length=count)[1]


def _by_recurrence(degree: int, queries: Tokens, coefficients: tuple[Array, Array]) -> Array:
    """The sums for queries of any length, (functions, n), by a scan over pairs of degrees."""
    length, direction = length_and_direction(queries)
    count, n = orders(degree), queries.shape[0]
    bessel = scaled_bessel(length, degree, 4) * held_scale(length)[None]
    bessel = jnp.pad(bessel, ((0, count - degree - 1), (0, 0))).reshape(count // 2, 2, n)
    by_phi, by_psi, (cosine, sine) = azimuth_waves(direction, degree)
    # cos 2 eta is the argument of the Jacobi polynomials.
    at = cosine * cosine - sine * sine
    powers = [_powers(part, count) for part in (cosine, sine)]
    both = [pairs_of_orders(degree, parity) for parity in (0, 1)]
    # The waves of phi and psi of each pair of orders, (pairs, 2, 2, n), are equal at all degrees.
    products = [(by_phi[pairs.m][:, :, None] * by_psi[pairs.p][:, None]).reshape(-1, 2, 2, n) for pairs in both]

    def step(carry, inputs):
        sums, states = carry
        coefficients, weights, tables = inputs
        new = []
        # `last` and `second_last` are h of degrees l - 2 and l - 4, (pairs, n).
        for parity, (last, second_last, start) in enumerate(states):
            begins, first, centre, second = (table[:, None] for table in tables[parity])
            # A pair of orders begins at its lowest degree, l = m + p; before this degree, its harmonic is zero.
            current = jnp.where(begins, start, (first * at[None] - centre) * last - second * second_last)
            terms = (products[parity] * current[:, None, None]).reshape(-1, n)
            sums = sums + weights[parity][None] * matmul(coefficients[parity], terms)
            new.append((current, last, start))
        return (sums, new), None

    starts = [
        jnp.asarray(pairs.table.start, queries.dtype)[:, None] * powers[0][pairs.m] * powers[1][pairs.p]
        for pairs in both
    ]
    tables = [(pairs.begins, *(jnp.asarray(part, queries.dtype) for part in pairs.table[1:])) for pairs in both]
    no_sums = jnp.zeros((coefficients[0].shape[1], n), queries.dtype)
    states = [(jnp.zeros_like(start), jnp.zeros_like(start), start) for start in starts]
    return lax.scan(step, (no_sums, states), (coefficients, bessel, tables))[0][0]


_sums_by_recurrence = with_derivatives(
    lambda degree, queries, coefficients: _by_recurrence(degree, queries, coefficients.first),
    lambda degree, queries, coefficients: _by_recurrence(degree, queries, coefficients.second),
)


_HARMONICS = Harmonics(
    dimension=4,
    chunk_size=_chunk_size,
    empty=empty_moments,
    moments=three_sphere_moments,
    wave_coefficients=_wave_coefficients,
    sums_by_waves=_sums_by_waves,
    recurrence_coefficients=_recurrence_coefficients,
    sums_by_recurrence=_sums_by_recurrence,
    error_terms=_error_terms,
    token_rounding=_TOKEN_ROUNDING,
)


class IsotropicThreeSphereSeries(AbstractIsotropicSeries):
    """Harmonics for tokens in four dimensions and queries of one length."""

    harmonics: ClassVar[Harmonics] = _HARMONICS


class GeneralThreeSphereSeries(AbstractGeneralSeries):
    """Harmonics for tokens in four dimensions and queries of any lengths."""

    harmonics: ClassVar[Harmonics] = _HARMONICS
