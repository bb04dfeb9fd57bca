r"""Constants of the spherical harmonics, in float64 NumPy, computed once for each degree.

**Definition.** The harmonics are real and $Y_{lm} = \hat P_{lm}(\cos\theta) \cos m\phi$ or $\sin m\phi$, m = 0, ..., l,
with $\sum_m Y_{lm}(s) Y_{lm}(y) = (2l + 1) P_l(\langle s, y\rangle)$. As a function of $\theta$, $\hat P_{lm}$ is a sum
of cosines of multiples of $\theta$ for even m, and of sines for odd m.

**Reference.** Recurrences of associated Legendre functions, DLMF 14.10.3 and 14.10.5, in the normalisation above.
**Invariant.** Tables have a row for each m below `orders(degree)`, which is even; rows with m > l are zero.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .shifts import DegreeShift, OrderShift, gradient_shift, order_shift


def orders(degree: int) -> int:
    """The number of orders m in the tables: an even number, more than the degree."""
    return 2 * (degree // 2 + 1)


def _grid(degree: int) -> tuple[np.ndarray, np.ndarray]:
    """The orders m, (orders, 1), and the degrees l, (1, degree + 1)."""
    return np.arange(orders(degree))[:, None].astype(float), np.arange(degree + 1)[None].astype(float)


class Recurrence(NamedTuple):
    r"""$Y_{lm} = a_{lm} z Y_{l-1,m} - b_{lm} Y_{l-2,m}$ for l > m, and $Y_{mm} = c_m$ Re or Im $(x + iy)^m$.

    **Arguments:**

    - `first`, `second`: (orders, degree + 1), a and b; zero where l <= m.
    - `diagonal`: (orders,), c.
    """

    first: np.ndarray
    second: np.ndarray
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


@lru_cache
def legendre_fourier(degree: int) -> np.ndarray:
    r"""The coefficients of cos or sin $k\theta$ in $\hat P_{lm}$, (orders, degree + 1, orders), by m, l and k."""
    count, table = orders(degree), recurrence(degree)
    # More than twice as many nodes as the degree sample the Fourier coefficients without aliasing.
    nodes = 2 * count
    theta = 2 * np.pi * np.arange(nodes) / nodes
    values = np.zeros((count, degree + 1, nodes))
    for l in range(degree + 1):
        if l > 0:
            values[:, l] = table.first[:, l, None] * np.cos(theta) * values[:, l - 1]
        if l > 1:
            values[:, l] -= table.second[:, l, None] * values[:, l - 2]
        values[l, l] = table.diagonal[l] * np.sin(theta) ** l
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
