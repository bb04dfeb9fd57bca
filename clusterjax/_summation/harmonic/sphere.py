"""The series of the sphere in three dimensions, for queries of one common length and of any lengths.

**Algorithm.** $exp(⟨q, y⟩) = ∑_l a_l(|q|) ∑_m Y_{lm}(q / |q|) Y_{lm}(y)$. For one length, harmonics are sums of
products of a wave in φ and a wave in θ, so that the sums of a chunk are two matrix products and one weighted sum. For
any lengths, a scan over the degrees l uses the three-term recurrence of the associated Legendre functions and the
Bessel functions of each query.

**Reference.** Addition theorem, DLMF 14.30.9; plane-wave expansion, 10.60.9; recurrence, 14.10.3. **Invariant.**
Moments are of degree + 2, since two multiplications by coordinates lose two degrees.
"""

from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..._base.numerics import einsum, matmul
from ..._base.types import Scalar, Tokens
from .series import (
    POWER,
    AbstractHarmonicSeries,
    DegreeShift,
    Derived,
    Harmonics,
    OrderShift,
    TokenRounding,
    add_up,
    azimuth,
    bessel_units,
    cached_chunk,
    derived,
    gradient_shift,
    held_scale,
    inclination,
    length_and_direction,
    norm,
    order_shift,
    roots,
    scaled_bessel,
    shift_degree,
    shift_order,
    waves,
    with_any_lengths,
    with_neighbours,
    with_one_length,
    with_token_derivatives,
)


# Constants of the spherical harmonics, in float64 NumPy, computed once for each degree.
#
# **Definition.** The harmonics are real and $Y_{lm} = p_{lm}(cos θ) cos mφ$ or sin mφ, m = 0, ..., l, with
# $∑_m Y_{lm}(s) Y_{lm}(y) = (2l + 1) P_l(⟨s, y⟩)$. As a function of θ, $p_{lm}$ is a sum of cosines of multiples of θ
# for even m, and of sines for odd m.
#
# **Reference.** Recurrences of associated Legendre functions, DLMF 14.10.3 and 14.10.5, in the normalisation above.
# **Invariant.** Tables have a row for each m below `orders(degree)`, which is even; rows with m > l are zero.


def orders(degree: int) -> int:
    """The number of orders m in the tables: an even number, more than the degree."""
    return 2 * (degree // 2 + 1)


def _grid(degree: int) -> tuple[np.ndarray, np.ndarray]:
    """The orders m, (orders, 1), and the degrees l, (1, degree + 1)."""
    return np.arange(orders(degree))[:, None].astype(float), np.arange(degree + 1)[None].astype(float)


class Recurrence(NamedTuple):
    """$Y_{lm} = a_{lm} z Y_{l-1,m} - b_{lm} Y_{l-2,m}$ for l > m, and $Y_{mm} = c_m$ Re or Im $(x + iy)^m$."""

    # (orders, degree + 1), a and b; zero where l <= m.
    first: np.ndarray
    second: np.ndarray
    # (orders,), c.
    diagonal: np.ndarray


@lru_cache
def recurrence(degree: int) -> Recurrence:
    """The constants of the three-term recurrence in l."""
    m, l = _grid(degree)
    # Unused entries are one, so that nothing is divided by zero.
    below = np.where(l > m, l * l - m * m, 1)
    first = np.where(l > m, np.sqrt(np.maximum(4 * l * l - 1, 0) / below), 0)
    earlier = np.maximum((2 * l + 1) * ((l - 1) ** 2 - m * m), 0) / (below * np.maximum(2 * l - 3, 1))
    second = np.where(l > m + 1, np.sqrt(earlier), 0)
    steps = np.arange(1, orders(degree))
    growth = np.sqrt((2 * steps + 1) / (2 * steps))
    # Cosines with m > 0 have the mean square 1/2, which gives their normalisation a further factor of sqrt(2).
    growth[0] *= np.sqrt(2)
    return Recurrence(first, second, np.concatenate([[1.0], np.cumprod(growth)]))


def legendre(degree: int, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    """The functions $p_{lm}$ at some θ, (orders, degree + 1, nodes), by m and l."""
    table, values = recurrence(degree), np.zeros((orders(degree), degree + 1, cosines.size))
    for l in range(degree + 1):
        if l > 0:
            values[:, l] = table.first[:, l, None] * cosines * values[:, l - 1]
        if l > 1:
            values[:, l] -= table.second[:, l, None] * values[:, l - 2]
        values[l, l] = table.diagonal[l] * sines**l
    return values


@lru_cache
def legendre_fourier(degree: int) -> np.ndarray:
    """The coefficients of cos or sin kθ in $p_{lm}$, (orders, degree + 1, orders), by m, l and k."""
    count = orders(degree)
    # More than twice as many nodes as the degree sample the Fourier coefficients without aliasing.
    nodes = 2 * count
    theta = 2 * np.pi * np.arange(nodes) / nodes
    values = legendre(degree, np.cos(theta), np.sin(theta))
    waves = np.fft.rfft(values, axis=2)[:, :, :count] * (2 / nodes)
    # The waves of rfft are e^{-ik theta}: cosines are the real part, sines minus the imaginary part.
    odd = (np.arange(count) % 2 == 1)[:, None, None]
    table = np.where(odd, -waves.imag, waves.real)
    # The factor 2 above counts k and -k, which coincide for k = 0.
    table[:, :, 0] /= 2
    # Only k <= l with the parity of l occur; elsewhere, the transform leaves rounding errors.
    l, k = np.arange(degree + 1)[:, None], np.arange(count)[None]
    return np.where((k <= l) & ((l - k) % 2 == 0), table, 0)


@lru_cache
def legendre_fourier_sizes(degree: int) -> np.ndarray:
    r"""The sums over k of the absolute coefficients in `legendre_fourier`, (orders, degree + 1)."""
    return np.sum(np.abs(legendre_fourier(degree)), axis=2)


def _root(numerator: np.ndarray, denominator: np.ndarray | float = 1.0) -> np.ndarray:
    """The square root of a quotient; zero where the numerator is not positive."""
    return np.sqrt(np.maximum(numerator, 0) / np.where(numerator > 0, denominator, 1))


@lru_cache
def coordinates(degree: int) -> tuple[OrderShift, DegreeShift]:
    """The shifts of multiplication by x and y, and by z, of harmonics up to `degree`."""
    m, l = _grid(degree)
    # The signs are for harmonics without the Condon-Shortley phase; `inside` is False where no harmonic exists.
    inside = m <= l
    above, beneath = (2 * l + 1) * (2 * l + 3), (2 * l + 1) * (2 * l - 1)
    up = DegreeShift(
        _root(inside * (l + m + 1) * (l + m + 2), above),
        -_root(inside * (l - m) * (l - m - 1), beneath),
    )
    down = DegreeShift(
        -_root(inside * (l - m + 1) * (l - m + 2), above),
        _root(inside * (l + m) * (l + m - 1), beneath),
    )
    same = DegreeShift(_root(inside * ((l + 1) ** 2 - m * m), above), _root(inside * (l * l - m * m), beneath))
    return order_shift(up, down), DegreeShift(*(table[:, None] for table in same))


@lru_cache
def gradient(degree: int) -> tuple[OrderShift, DegreeShift]:
    """The shifts of the derivatives along the sphere in x and y, and in z, of harmonics up to `degree`."""
    turn, shift = coordinates(degree)
    return OrderShift(*(gradient_shift(part, 3) for part in turn)), gradient_shift(shift, 3)


@lru_cache
def fourier_of_harmonics(degree: int) -> np.ndarray:
    """The pseudo-inverse of `legendre_fourier` for each m, from harmonics to waves, (orders, orders, degree + 1)."""
    table = legendre_fourier(degree)
    return np.stack([np.linalg.pinv(part) for part in table])


# Moments of tokens on the sphere, by waves in both angles, and their harmonics $∑_j m_j Y_{lm}(y_j)$.
#
# **Algorithm.** Moments are sums of products of waves, computed by two matrix products per chunk. After all chunks are
# added, a table converts them to harmonics once.
#
# **Invariants.** Moments are (orders, 2, orders): by m, cosine or sine of mφ, and k; cosines of kθ for even m, and
# sines for odd m. Harmonics are (orders, 2, degree + 1): by m, cosine or sine, and l. Derivatives in the tokens are
# tangential, and moments of the same form.


def empty_moments(degree: int, dtype: Any) -> Array:
    """The moments of no tokens."""
    return jnp.zeros((orders(degree), 2, orders(degree)), dtype)


def sphere_waves(vectors: Float[Array, "n 3"], degree: int) -> tuple[tuple[Array, Array], Array, Array]:
    """Waves of even and odd mφ, and cosines and sines of kθ, of the directions of `vectors`."""
    x, y, z = vectors.T
    phi, across = azimuth(x, y)
    (by_phi,), cosines, sines = waves([phi], inclination(z, across), orders(degree))
    return by_phi, cosines, sines


def _weighted_moments(degree: int, tokens: Float[Array, "n 3"], weights: Float[Array, "c n"]) -> Array:
    """The moments for several sets of masses, (sets, orders, 2, orders)."""
    (even, odd), cosines, sines = sphere_waves(tokens, degree)
    sets, n = weights.shape
    count = orders(degree)

    # (sets * waves in phi, n) times (n, waves in theta) has the axes set, m // 2, cosine or sine, and k.
    def project(phi, theta):
        return matmul((weights[:, None] * phi[None]).reshape(-1, n), theta.T).reshape(sets, count // 2, 2, count)

    # Even and odd m alternate along the new axis, so that the reshape orders them by m.
    return jnp.stack([project(even, cosines), project(odd, sines)], axis=2).reshape(sets, count, 2, count)


def harmonics(degree: int, moments: Array) -> Array:
    """The harmonics up to `degree` of moments with equally many orders."""
    return einsum("mck,mlk->mcl", moments, jnp.asarray(legendre_fourier(degree), moments.dtype))


def times_coordinates(parts: Array, tables: tuple[OrderShift, DegreeShift]) -> Array:
    """The harmonics times x, y and z or, with the tables of `gradient`, their derivatives; valid to degree - 1."""
    across, along = tables
    return jnp.stack([*shift_order(parts, across), shift_degree(parts, along)])


def _token_derivatives(degree: int, sets: Float[Array, "3 m 2 k"]) -> Array:
    """Moments whose harmonics are the sum of the derivatives in x, y and z of the harmonics of three sets.

    The result is the tangent of moments when tokens move, for sets weighted by the coordinates of the motion. The sets
    are of one degree more, which the shift loses.
    """
    # The derivative goes through harmonics, since a single wave in theta is not smooth at the poles.
    derivatives = [times_coordinates(harmonics(degree + 1, part), gradient(degree + 1)) for part in sets]
    divergence = (derivatives[0][0] + derivatives[1][1] + derivatives[2][2])[: orders(degree), :, : degree + 1]
    return einsum("mcl,mkl->mck", divergence, jnp.asarray(fourier_of_harmonics(degree), sets.dtype))


sphere_moments = with_token_derivatives(_weighted_moments, _token_derivatives)


def _derived_harmonics(moments: Array, degree: int) -> Derived:
    """Both sets of harmonics up to `degree`, (functions, orders, 2, degree + 1), from moments of two degrees more."""
    complete = derived(harmonics(degree + 2, moments), lambda parts: times_coordinates(parts, coordinates(degree + 2)))
    return Derived(*(part[:, : orders(degree), :, : degree + 1] for part in complete))


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


_sums_by_recurrence = with_any_lengths(_by_recurrence)


class SphereSeries(AbstractHarmonicSeries):
    """Spherical harmonics for tokens in three dimensions."""

    dimension: ClassVar[int] = 3
    # The units at any degree are for two waves and a mass. For the units by degree, the multiples of both angles in
    # e^{kappa (t - 1)} sum to 2.05 sqrt(kappa) on average (computed), 1.45 times lambda = sqrt(2 kappa) of
    # `certificate.py`.
    token_rounding: ClassVar[TokenRounding] = TokenRounding(2.0, 1.45 * POWER)
    harmonics: ClassVar[Harmonics] = Harmonics(
        chunk_size=cached_chunk,
        empty=empty_moments,
        moments=sphere_moments,
        wave_coefficients=_wave_coefficients,
        sums_by_waves=_sums_by_waves,
        recurrence_coefficients=_recurrence_coefficients,
        sums_by_recurrence=_sums_by_recurrence,
        error_terms=_error_terms,
    )
