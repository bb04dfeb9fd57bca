r"""Constants of the harmonics of the sphere in four dimensions, in float64 NumPy, made once for each degree.

**Definition.** In Hopf coordinates a point is $(\cos\eta\cos\phi, \cos\eta\sin\phi, \sin\eta\cos\psi,
\sin\eta\sin\psi)$ with $0 \le \eta \le \pi/2$. The harmonics are real, $Y_{lmp} = h_{lmp}(\eta)$ times cosine or sine
of $m\phi$ times cosine or sine of $p\psi$, for m + p <= l of the parity of l, with squares of mean one, so that
$\sum_{mp} Y_{lmp}(s) Y_{lmp}(y) = (l + 1) U_l(\langle s, y\rangle)$. As a function of $\eta$, $h_{lmp}$ is a sum of
cosines of $k\eta$ where p is even, and of sines where it is odd, with k of the parity of l.

**Reference.** Orthonormal Jacobi polynomials $P_j^{(p, m)}(\cos 2\eta)$, DLMF 18.3 and 18.9.2. **Invariant.** Tables
have as many orders m and p, an even number, as `orders(degree)`; those beyond the degree are zero.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .shifts import DegreeShift, OrderShift, gradient_shift, order_shift
from .sphere_tables import orders


class Jacobi(NamedTuple):
    r"""$h_{lmp} = (a \cos 2\eta - b)\, h_{l-2,mp} - c\, h_{l-4,mp}$, from $h_{m+p,mp} = s \cos^m\eta\,\sin^p\eta$.

    **Arguments:**

    - `start`: s, in the shape of m and p.
    - `first`, `centre`, `second`: a, b and c, by (l - m - p) / 2 and then m and p; zero for l above the degree.
    """

    start: np.ndarray
    first: np.ndarray
    centre: np.ndarray
    second: np.ndarray


def jacobi(degree: int, m: np.ndarray, p: np.ndarray) -> Jacobi:
    """The constants for some orders m and p: those of orthonormal Jacobi polynomials."""
    m, p = m.astype(float), p.astype(float)
    inside = m + p <= degree
    from scipy.special import gammaln  # here, since its import takes as long as a small run

    start = np.exp((gammaln(m + p + 2) - gammaln(m + 1) - gammaln(p + 1)) / 2)
    start = inside * start * np.where(m > 0, np.sqrt(2), 1) * np.where(p > 0, np.sqrt(2), 1)
    tables = np.zeros((3, orders(degree) // 2, *m.shape))
    # The root of the square of the step before: the last coefficient of a recurrence of orthonormal polynomials.
    last = np.ones_like(m)
    for j in range(1, orders(degree) // 2):
        total = 2 * j + m + p
        centre = (m * m - p * p) / np.maximum((total - 2) * total, 1)
        square = 4 * j * (j + m) * (j + p) * (j + m + p) / np.maximum(total * total * (total * total - 1), 1)
        if j == 1:
            # Here a factor of m + p, which may be zero, cancels.
            centre = (m - p) / total
            square = 4 * (1 + m) * (1 + p) / (total * total * (total + 1))
        root = np.sqrt(square)
        tables[:, j] = (total <= degree) / root * np.stack([np.ones_like(m), centre, last * (j > 1)])
        last = root
    return Jacobi(start, *tables)


def _polynomials(degree: int, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    r"""$h_{lmp}$ at some $\eta$, (orders, orders, orders / 2, nodes), by m, p and (l - m - p) / 2."""
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
    """The orders m and p of one parity of m + p, at most the degree, and the recurrence of their harmonics by l // 2.

    **Arguments:**

    - `m`, `p`: (pairs,).
    - `begins`: (halves, pairs), whether l is m + p.
    - `table`: `Jacobi`, (pairs,) and (halves, pairs).
    """

    m: np.ndarray
    p: np.ndarray
    begins: np.ndarray
    table: Jacobi


@lru_cache
def pairs_of_orders(degree: int, parity: int) -> Pairs:
    """Those for l even (`parity` 0) or odd (1)."""
    m, p = np.indices((degree + 1, degree + 1)).reshape(2, -1)
    chosen = (m + p <= degree) & ((m + p) % 2 == parity)
    m, p = m[chosen], p[chosen]
    halves = np.arange(orders(degree) // 2)[:, None]
    table = jacobi(degree, m, p)
    # From l // 2 to (l - m - p) / 2, which is negative before the pair's lowest degree.
    index = halves - (m + p) // 2

    def by_half(part: np.ndarray) -> np.ndarray:
        return np.where(index > 0, np.take_along_axis(part, np.maximum(index, 0), axis=0), 0)

    return Pairs(m, p, index == 0, Jacobi(table.start, *map(by_half, table[1:])))


def _by_pairs(values: np.ndarray) -> np.ndarray:
    """The same by half the degree, l // 2, in place of (l - m - p) / 2."""
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
    r"""(orders, orders, halves, halves): the coefficient of cosine or sine of $k\eta$, by m, p, l // 2 and k // 2.

    The parity of l and k is that of m + p.
    """
    count = orders(degree)
    # As in `legendre_fourier`: sampled at more than twice as many nodes as the degree, so that nothing is aliased.
    nodes = 2 * count
    angles = 2 * np.pi * np.arange(nodes) / nodes
    values = _by_pairs(_polynomials(degree, np.cos(angles), np.sin(angles)))
    waves = np.fft.rfft(values, axis=3)[..., :count] * (2 / nodes)
    # The factor 2 above counts k and -k, which are the same for k = 0.
    waves[..., 0] /= 2
    m, p = np.indices((count, count))
    table = np.where((p % 2 == 1)[:, :, None, None], -waves.imag, waves.real)
    # Only k of the parity of m + p occur: half of them are stored.
    even = ((m + p) % 2 == 0)[:, :, None, None]
    return np.where(even, table[..., 0::2], table[..., 1::2])


@lru_cache
def jacobi_fourier_sizes(degree: int) -> np.ndarray:
    r"""(orders, orders, orders), by m, p and l: the sum over k of the sizes of the coefficients in `jacobi_fourier`."""
    return _by_degree(np.sum(np.abs(jacobi_fourier(degree)), axis=3, keepdims=True))[..., 0]


def _by_degree(values: np.ndarray) -> np.ndarray:
    """(orders, orders, degrees, nodes): zero where l has not the parity of m + p."""
    count = values.shape[0]
    out = np.zeros((count, count, count, values.shape[3]))
    even = np.sum(np.indices((count, count)), axis=0) % 2 == 0
    out[:, :, 0::2] = np.where(even[:, :, None, None], values, 0)
    out[:, :, 1::2] = np.where(even[:, :, None, None], 0, values)
    return out


@lru_cache
def coordinates(degree: int) -> tuple[OrderShift, OrderShift]:
    r"""Multiplication by $\cos\eta\,(\cos\phi, \sin\phi)$ and by $\sin\eta\,(\cos\psi, \sin\psi)$.

    The first is by m, one, p, one and l; the second by p, one, m, one and l. By Gauss-Legendre quadrature of the
    overlaps, which is exact for these polynomials.
    """
    at, weights = np.polynomial.legendre.leggauss(degree + 2)
    cosines, sines = np.sqrt((1 + at) / 2), np.sqrt((1 - at) / 2)
    values = _by_degree(_by_pairs(_polynomials(degree, cosines, sines)))
    # Of e^{im phi + ip psi}, without the factors of the real ones, which `order_shift` gives.
    plain = np.where(np.arange(len(values)) > 0, np.sqrt(0.5), 1)
    values = values * plain[:, None, None, None] * plain[:, None, None]
    turns = []
    # The second pair of coordinates has p in the role of m.
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
    """The derivatives along the sphere in place of the products."""
    first, second = (OrderShift(*(gradient_shift(part, 4) for part in turn)) for turn in coordinates(degree))
    return first, second


@lru_cache
def fourier_of_harmonics(degree: int) -> np.ndarray:
    """(orders, orders, halves, halves): the pseudo-inverse of `jacobi_fourier` for each m and p."""
    table = jacobi_fourier(degree)
    return np.stack([np.stack([np.linalg.pinv(part) for part in row]) for row in table])
