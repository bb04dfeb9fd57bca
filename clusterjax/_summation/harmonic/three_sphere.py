"""The series of the sphere in four dimensions, for queries of one common length and of any lengths.

**Algorithm.** $exp(⟨q, y⟩) = ∑_l a_l(|q|) ∑_{mp} Y_{lmp}(q / |q|) Y_{lmp}(y)$ in Hopf coordinates. For one length, two
matrix products per chunk sum products of waves in the three angles. For any lengths, a scan over pairs of degrees 2j
and 2j + 1 uses the three-term recurrence of Jacobi polynomials for all orders (m, p) at once.

**Reference.** Gegenbauer's addition theorem, DLMF 10.23.9 and 18.18.8; Jacobi polynomials, 18.9.2. **Invariants.**
Moments are of degree + 2, as in three dimensions. $Y_{lmp}$ is zero unless l has the parity of m + p, and both parities
have separate arrays.
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
    Angle,
    DegreeShift,
    Derived,
    Harmonics,
    OrderShift,
    TokenRounding,
    add_up,
    azimuth,
    bessel_units,
    derived,
    gradient_shift,
    held_scale,
    inclination,
    length_and_direction,
    norm,
    order_shift,
    roots,
    scaled_bessel,
    shift_order,
    waves,
    with_any_lengths,
    with_neighbours,
    with_one_length,
    with_token_derivatives,
)
from .sphere import orders


# Constants of the harmonics of the sphere in four dimensions, in float64 NumPy, computed once for each degree.
#
# **Definition.** In Hopf coordinates, a point is $(cos η cos φ, cos η sin φ, sin η cos ψ, sin η sin ψ)$ with
# $0 ≤ η ≤ π/2$. The harmonics are real, $Y_{lmp} = h_{lmp}(η)$ times cosine or sine of mφ times cosine or sine of pψ,
# for m + p <= l with the parity of l. Their mean square is one, so that
# $∑_{mp} Y_{lmp}(s) Y_{lmp}(y) = (l + 1) U_l(⟨s, y⟩)$. As a function of η, $h_{lmp}$ is a sum of cosines of kη for even
# p, and of sines for odd p, where k has the parity of l.
#
# **Reference.** Orthonormal Jacobi polynomials $P_j^{(p, m)}(cos 2η)$, DLMF 18.3 and 18.9.2. **Invariant.** Tables have
# `orders(degree)` orders m and p, an even number; entries with orders beyond the degree are zero.


class Jacobi(NamedTuple):
    """$h_{lmp} = (a cos 2η - b) h_{l-2,mp} - c h_{l-4,mp}$, from $h_{m+p,mp} = s cos^m η sin^p η$."""

    # The constants s, in the shape of m and p.
    start: np.ndarray
    # a, b and c, by (l - m - p) / 2 and then m and p; zero for l above the degree.
    first: np.ndarray
    centre: np.ndarray
    second: np.ndarray


def jacobi(degree: int, m: np.ndarray, p: np.ndarray) -> Jacobi:
    """The constants of orthonormal Jacobi polynomials for some orders m and p."""
    m, p = m.astype(float), p.astype(float)
    inside = m + p <= degree
    from scipy.special import gammaln  # a late import, since it takes as long as a small run

    start = np.exp((gammaln(m + p + 2) - gammaln(m + 1) - gammaln(p + 1)) / 2)
    start = inside * start * np.where(m > 0, np.sqrt(2), 1) * np.where(p > 0, np.sqrt(2), 1)
    tables = np.zeros((3, orders(degree) // 2, *m.shape))
    # The root of `square` of the previous step is the last coefficient in a recurrence of orthonormal polynomials.
    last = np.ones_like(m)
    for j in range(1, orders(degree) // 2):
        total = 2 * j + m + p
        centre = (m * m - p * p) / np.maximum((total - 2) * total, 1)
        square = 4 * j * (j + m) * (j + p) * (j + m + p) / np.maximum(total * total * (total * total - 1), 1)
        if j == 1:
            # For j = 1, a factor of m + p, which may be zero, cancels.
            centre = (m - p) / total
            square = 4 * (1 + m) * (1 + p) / (total * total * (total + 1))
        root = np.sqrt(square)
        tables[:, j] = (total <= degree) / root * np.stack([np.ones_like(m), centre, last * (j > 1)])
        last = root
    return Jacobi(start, *tables)


def _polynomials(degree: int, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    """The functions $h_{lmp}$ at some η, (orders, orders, orders / 2, nodes), by m, p and (l - m - p) / 2."""
    count = orders(degree)
    m, p = (index[..., None] for index in np.indices((count, count)))
    at = cosines * cosines - sines * sines
    table = jacobi(degree, m, p)
    values = np.zeros((count, count, count // 2, at.size))
    values[:, :, 0] = table.start * cosines**m * sines**p
    for j in range(1, count // 2):
        values[:, :, j] = (table.first[j] * at - table.centre[j]) * values[:, :, j - 1]
        if j > 1:
            values[:, :, j] -= table.second[j] * values[:, :, j - 2]
    return values


class Pairs(NamedTuple):
    """The orders m and p with one parity of m + p up to the degree, and the recurrence of their harmonics by l // 2."""

    m: np.ndarray
    p: np.ndarray
    # (halves, pairs), True where l is m + p.
    begins: np.ndarray
    # The constants, with the shapes (pairs,) and (halves, pairs).
    table: Jacobi


@lru_cache
def pairs_of_orders(degree: int, parity: int) -> Pairs:
    """The pairs of orders for even l (`parity` 0) or odd l (1)."""
    m, p = np.indices((degree + 1, degree + 1)).reshape(2, -1)
    chosen = (m + p <= degree) & ((m + p) % 2 == parity)
    m, p = m[chosen], p[chosen]
    halves = np.arange(orders(degree) // 2)[:, None]
    table = jacobi(degree, m, p)
    # The index (l - m - p) / 2 is negative before the pair's lowest degree.
    index = halves - (m + p) // 2

    def by_half(part: np.ndarray) -> np.ndarray:
        return np.where(index > 0, np.take_along_axis(part, np.maximum(index, 0), axis=0), 0)

    return Pairs(m, p, index == 0, Jacobi(table.start, *map(by_half, table[1:])))


def _by_pairs(values: np.ndarray) -> np.ndarray:
    """Index `values` by half the degree, l // 2, in place of (l - m - p) / 2."""
    count = values.shape[0]
    out = np.zeros_like(values)
    for m in range(count):
        for p in range(count):
            start = (m + p) // 2
            if start < count // 2:
                out[m, p, start:] = values[m, p, : count // 2 - start]
    return out


@lru_cache
def jacobi_fourier(degree: int) -> np.ndarray:
    """The coefficients of cosine or sine of kη, (orders, orders, halves, halves), by m, p, l // 2 and k // 2.

    The parity of l and k is that of m + p.
    """
    count = orders(degree)
    # As in `legendre_fourier`, more than twice as many nodes as the degree prevent aliasing.
    nodes = 2 * count
    angles = 2 * np.pi * np.arange(nodes) / nodes
    values = _by_pairs(_polynomials(degree, np.cos(angles), np.sin(angles)))
    waves = np.fft.rfft(values, axis=3)[..., :count] * (2 / nodes)
    # The factor 2 above counts k and -k, which coincide for k = 0.
    waves[..., 0] /= 2
    m, p = np.indices((count, count))
    table = np.where((p % 2 == 1)[:, :, None, None], -waves.imag, waves.real)
    # Only k with the parity of m + p occur, so that half of the table is stored.
    even = ((m + p) % 2 == 0)[:, :, None, None]
    return np.where(even, table[..., 0::2], table[..., 1::2])


@lru_cache
def jacobi_fourier_sizes(degree: int) -> np.ndarray:
    r"""The sums over k of the absolute coefficients in `jacobi_fourier`, (orders, orders, orders), by m, p and l."""
    return _by_degree(np.sum(np.abs(jacobi_fourier(degree)), axis=3, keepdims=True))[..., 0]


def _by_degree(values: np.ndarray) -> np.ndarray:
    """Index by degree, (orders, orders, degrees, nodes); zero where the parity of l is not that of m + p."""
    count = values.shape[0]
    out = np.zeros((count, count, count, values.shape[3]))
    even = np.sum(np.indices((count, count)), axis=0) % 2 == 0
    out[:, :, 0::2] = np.where(even[:, :, None, None], values, 0)
    out[:, :, 1::2] = np.where(even[:, :, None, None], 0, values)
    return out


@lru_cache
def coordinates(degree: int) -> tuple[OrderShift, OrderShift]:
    """The shifts of multiplication by $cos η (cos φ, sin φ)$ and by $sin η (cos ψ, sin ψ)$.

    The first has the axes m, one, p, one and l; the second p, one, m, one and l. Gauss-Legendre quadrature computes the
    overlaps, exactly for these polynomials.
    """
    at, weights = np.polynomial.legendre.leggauss(degree + 2)
    cosines, sines = np.sqrt((1 + at) / 2), np.sqrt((1 - at) / 2)
    values = _by_degree(_by_pairs(_polynomials(degree, cosines, sines)))
    # The values for e^{im phi + ip psi} omit the factors of real harmonics, which `order_shift` adds.
    plain = np.where(np.arange(len(values)) > 0, np.sqrt(0.5), 1)
    values = values * plain[:, None, None, None] * plain[:, None, None]
    turns = []
    # For the second pair of coordinates, p has the role of m.
    for harmonics, factor in ((values, cosines), (values.swapaxes(0, 1), sines)):
        weighted = harmonics * (weights / 2 * factor)

        def overlap(bra, ket):
            return np.einsum("mpln,mpln->mpl", bra, ket)

        tables = [np.zeros(harmonics.shape[:3]) for _ in range(4)]
        up_higher, up_lower, down_higher, down_lower = tables
        up_higher[:-1, :, :-1] = overlap(weighted[:-1, :, :-1], harmonics[1:, :, 1:])
        up_lower[:-1, :, 1:] = overlap(weighted[:-1, :, 1:], harmonics[1:, :, :-1])
        down_higher[1:, :, :-1] = overlap(weighted[1:, :, :-1], harmonics[:-1, :, 1:])
        down_lower[1:, :, 1:] = overlap(weighted[1:, :, 1:], harmonics[:-1, :, :-1])
        up, down = DegreeShift(up_higher, up_lower), DegreeShift(down_higher, down_lower)
        turn = order_shift(up, down)
        turns.append(OrderShift(*(DegreeShift(*(table[:, :, :, None] for table in part)) for part in turn)))
    return turns[0], turns[1]


@lru_cache
def gradient(degree: int) -> tuple[OrderShift, OrderShift]:
    """The shifts of the derivatives along the sphere, with the axes of `coordinates`."""
    first, second = (OrderShift(*(gradient_shift(part, 4) for part in turn)) for turn in coordinates(degree))
    return first, second


@lru_cache
def fourier_of_harmonics(degree: int) -> np.ndarray:
    """The pseudo-inverse of `jacobi_fourier` for each m and p, (orders, orders, halves, halves)."""
    table = jacobi_fourier(degree)
    return np.stack([np.stack([np.linalg.pinv(part) for part in row]) for row in table])


# Moments of tokens on the sphere in four dimensions, by waves in its three angles, and their harmonics.
#
# **Algorithm.** As in `sphere.py`, matrix products sum products of waves, a table converts waves to harmonics, and
# shifts multiply by coordinates and differentiate.
#
# **Invariants.** Moments are (orders, 2, orders, 2, orders / 2): by m, cosine or sine of mφ, p, cosine or sine of pψ,
# and k // 2, for cosines of kη if p is even, and sines if p is odd; k has the parity of m + p. Harmonics are (orders,
# 2, orders, 2, orders), by the degree in place of k.


def empty_moments(degree: int, dtype: Any) -> Array:
    """The moments of no tokens."""
    count = orders(degree)
    return jnp.zeros((count, 2, count, 2, count // 2), dtype)


def three_sphere_waves(vectors: Float[Array, "n 4"], degree: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Waves of even and of odd mφ, and, for each parity, all products of waves in the other two angles.

    The products are (2 orders^2 / 2, n): for even p, then odd p, by p, cosine or sine, and k // 2.
    """
    (phi, psi), eta = _angles(vectors)
    (by_phi, by_psi), cosines, sines = waves([phi, psi], eta, orders(degree))

    def products(parity):
        # The parity of k is that of m + p: for even p the parity of m, for odd p the other parity.
        by_parity = [by_psi[0][:, None] * cosines[parity::2][None], by_psi[1][:, None] * sines[1 - parity :: 2][None]]
        return jnp.concatenate(by_parity).reshape(-1, vectors.shape[0])

    return by_phi, (products(0), products(1))


def _angles(vectors: Float[Array, "n 4"]) -> tuple[tuple[Angle, Angle], Angle]:
    """The angles phi and psi, and the angle eta."""
    phi, near = azimuth(vectors[:, 0], vectors[:, 1])
    psi, far = azimuth(vectors[:, 2], vectors[:, 3])
    return (phi, psi), inclination(near, far)


def azimuth_waves(vectors: Float[Array, "n 4"], degree: int) -> tuple[Array, Array, Angle]:
    """Cosine and sine of mφ and of pψ, each (orders, 2, n), and η."""
    (phi, psi), eta = _angles(vectors)
    tables = waves([phi, psi], eta, orders(degree))[0]
    half, n = orders(degree) // 2, vectors.shape[0]
    # The tables of even and of odd orders, (half, 2, n) each, are interleaved.
    by_phi, by_psi = (jnp.stack([part.reshape(half, 2, n) for part in pair], axis=1) for pair in tables)
    return by_phi.reshape(2 * half, 2, n), by_psi.reshape(2 * half, 2, n), eta


def by_parity(parts: Array) -> Array:
    """Split each order of (..., orders, 2, orders, 2, last) into half and parity, and move the parities to the front.

    The result is (2, 2, ..., halves, 2, halves, 2, last): parity of m, parity of p, then the leading axes of `parts`.
    """
    *front, count, _, _, _, last = parts.shape
    split = parts.reshape(*front, count // 2, 2, 2, count // 2, 2, 2, last)
    k = len(front)
    return jnp.moveaxis(split, (k + 1, k + 4), (0, 1))


def _weighted_moments(degree: int, tokens: Float[Array, "n 4"], weights: Float[Array, "c n"]) -> Array:
    """The moments for several sets of masses."""
    by_phi, products = three_sphere_waves(tokens, degree)
    sets, n = weights.shape
    half = orders(degree) // 2
    sums = [
        # The product is (sets * 2 half, n) times (n, products of the other two waves).
        matmul((weights[:, None] * wave[None]).reshape(-1, n), product.T).reshape(sets, half, 2, 2, half, 2, half)
        for wave, product in zip(by_phi, products, strict=True)
    ]
    # The axes are set, m // 2, parity of m, cosine or sine, parity of p, p // 2, cosine or sine, k // 2.
    joined = jnp.moveaxis(jnp.stack(sums, axis=2), 4, 5)
    return joined.reshape(sets, 2 * half, 2, 2 * half, 2, half)


def _odd(count: int) -> np.ndarray:
    """True where m + p is odd, (count, 1, count, 1, 1)."""
    return (np.sum(np.indices((count, count)), axis=0) % 2 == 1)[:, None, :, None, None]


def harmonics(degree: int, moments: Array) -> Array:
    """The harmonics up to `degree` of moments with equally many orders."""
    table = jnp.asarray(jacobi_fourier(degree), moments.dtype)
    return by_degree(einsum("mcpdk,mplk->mcpdl", moments, table))


def by_degree(halves: Array) -> Array:
    """Expand an axis by l // 2 to the degree l; zero where the parity of l is not that of m + p."""
    odd = jnp.asarray(_odd(halves.shape[-5]))
    pairs = jnp.stack([jnp.where(odd, 0, halves), jnp.where(odd, halves, 0)], axis=-1)
    return pairs.reshape(*halves.shape[:-1], -1)


def by_half_degree(parts: Array) -> Array:
    """Reduce an axis by the degree l to l // 2."""
    return jnp.where(jnp.asarray(_odd(parts.shape[-5])), parts[..., 1::2], parts[..., 0::2])


def times_coordinates(parts: Array, tables: tuple[OrderShift, OrderShift]) -> Array:
    """The harmonics times each of the four coordinates or, with the tables of `gradient`, their derivatives."""
    # The last two coordinates act on psi: p and m are exchanged before and after the shift.
    swapped = shift_order(parts.transpose(2, 3, 0, 1, 4), tables[1])
    return jnp.stack([*shift_order(parts, tables[0]), *(part.transpose(2, 3, 0, 1, 4) for part in swapped)])


def _token_derivatives(degree: int, sets: Float[Array, "4 m 2 p 2 k"]) -> Array:
    """Moments whose harmonics are the sum of the derivatives in each coordinate of the harmonics of four sets.

    The sets are of one degree more, as in `sphere.py`.
    """
    count = orders(degree)
    divergence = jnp.zeros_like(harmonics(degree + 1, sets[0]))
    for a, part in enumerate(sets):
        divergence = divergence + times_coordinates(harmonics(degree + 1, part), gradient(degree + 1))[a]
    # Terms beyond the degree are not derivatives of harmonics in the moments.
    divergence = jnp.where(jnp.arange(count) <= degree, divergence[:count, :, :count, :, :count], 0)
    table = jnp.asarray(fourier_of_harmonics(degree), sets.dtype)
    return einsum("mcpdl,mpkl->mcpdk", by_half_degree(divergence), table)


three_sphere_moments = with_token_derivatives(_weighted_moments, _token_derivatives)


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


def _error_terms(degree: int, moments: Array, gradients: bool, by_waves: bool) -> Array:
    """The contribution of each degree to the rounding errors of the sums, in units, (functions, degree + 1)."""
    table, count = jnp.asarray(np.abs(jacobi_fourier(degree + 2)), moments.dtype), orders(degree)
    # As in `sphere.py`, errors of the product with the table precede errors proportional to the harmonics.
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
    by_parity = [pairs_of_orders(degree, parity) for parity in (0, 1)]
    # The waves of phi and psi of each pair of orders, (pairs, 2, 2, n), are equal at all degrees.
    products = [(by_phi[pairs.m][:, :, None] * by_psi[pairs.p][:, None]).reshape(-1, 2, 2, n) for pairs in by_parity]

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
        for pairs in by_parity
    ]
    tables = [(pairs.begins, *(jnp.asarray(part, queries.dtype) for part in pairs.table[1:])) for pairs in by_parity]
    no_sums = jnp.zeros((coefficients[0].shape[1], n), queries.dtype)
    states = [(jnp.zeros_like(start), jnp.zeros_like(start), start) for start in starts]
    return lax.scan(step, (no_sums, states), (coefficients, bessel, tables))[0][0]


_sums_by_recurrence = with_any_lengths(_by_recurrence)


class ThreeSphereSeries(AbstractHarmonicSeries):
    """Harmonics for tokens in four dimensions."""

    dimension: ClassVar[int] = 4
    # The units at any degree are for three waves and a mass. For the units by degree, the multiples of the three angles
    # in e^{kappa (t - 1)} sum to 2.65 sqrt(kappa) on average (computed), 1.55 times lambda = sqrt(3 kappa) of
    # `certificate.py`.
    token_rounding: ClassVar[TokenRounding] = TokenRounding(3.0, 1.55 * POWER)
    harmonics: ClassVar[Harmonics] = Harmonics(
        chunk_size=_chunk_size,
        empty=empty_moments,
        moments=three_sphere_moments,
        wave_coefficients=_wave_coefficients,
        sums_by_waves=_sums_by_waves,
        recurrence_coefficients=_recurrence_coefficients,
        sums_by_recurrence=_sums_by_recurrence,
        error_terms=_error_terms,
    )
