r"""Constants of the harmonics of the sphere in four dimensions, in float64 NumPy, computed once for each degree.

**Definition.** In Hopf coordinates, a point is $(\cos\eta\cos\phi, \cos\eta\sin\phi, \sin\eta\cos\psi,
\sin\eta\sin\psi)$ with $0 \le \eta \le \pi/2$. The harmonics are real, $Y_{lmp} = h_{lmp}(\eta)$ times cosine or sine
of $m\phi$ times cosine or sine of $p\psi$, for m + p <= l with the parity of l. Their mean square is one, so that
$\sum_{mp} Y_{lmp}(s) Y_{lmp}(y) = (l + 1) U_l(\langle s, y\rangle)$. As a function of $\eta$, $h_{lmp}$ is a sum of
cosines of $k\eta$ for even p, and of sines for odd p, where k has the parity of l.

**Reference.** Orthonormal Jacobi polynomials $P_j^{(p, m)}(\cos 2\eta)$, DLMF 18.3 and 18.9.2. **Invariant.** Tables
have `orders(degree)` orders m and p, an even number; entries with orders beyond the degree are zero.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .shifts import DegreeShift, OrderShift, gradient_shift, order_shift
from .sphere_tables import orders


class Jacobi(NamedTuple):
    r"""$h_{lmp} = (a \cos 2\eta - b)\, h_{l-2,mp} - c\, h_{l-4,mp}$, from $h_{m+p,mp} = s \cos^m\eta\,\sin^p\eta$.

    **Arguments:**

    - `start`: The constants s, in the shape of m and p.
    - `first`, `centre`, `second`: a, b and c, by (l - m - p) / 2 and then m and p; zero for l above the degree.
    """

    start: np.ndarray
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
    r"""The functions $h_{lmp}$ at some $\eta$, (orders, orders, orders / 2, nodes), by m, p and (l - m - p) / 2."""
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
    """The orders m and p with one parity of m + p up to the degree, and the recurrence of their harmonics by l // 2.

    **Arguments:**

    - `m`, `p`: The orders, (pairs,).
    - `begins`: (halves, pairs), True where l is m + p.
    - `table`: The constants, with the shapes (pairs,) and (halves, pairs).
    """

    m: np.ndarray
    p: np.ndarray
    begins: np.ndarray
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
    r"""The coefficients of cosine or sine of $k\eta$, (orders, orders, halves, halves), by m, p, l // 2 and k // 2.

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
    r"""The shifts of multiplication by $\cos\eta\,(\cos\phi, \sin\phi)$ and by $\sin\eta\,(\cos\psi, \sin\psi)$.

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
