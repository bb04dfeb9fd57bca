r"""Constants of the spherical harmonics, in float64, made once for each degree.

The harmonics are real and $Y_{lm} = \hat P_{lm}(\cos\theta) \cos m\phi$ or $\sin m\phi$, m = 0, ..., l, with
$\sum_m Y_{lm}(s) Y_{lm}(y) = (2l + 1) P_l(\langle s, y\rangle)$. As a function of $\theta$, $\hat P_{lm}$ is a sum of
cosines of multiples of $\theta$ where m is even, and of sines where m is odd.

Tables have a row for each m below `orders(degree)`, which is even; those with m > l are zero.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np


def orders(degree: int) -> int:
    """How many orders m the tables hold: an even number, more than the degree."""
    return 2 * (degree // 2 + 1)


def _grid(degree: int) -> tuple[np.ndarray, np.ndarray]:
    """m, (orders, 1), and l, (1, degree + 1)."""
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
    below = np.where(l > m, l * l - m * m, 1)
    first = np.where(l > m, np.sqrt(np.maximum(4 * l * l - 1, 0) / below), 0)
    earlier = np.maximum((2 * l + 1) * ((l - 1) ** 2 - m * m), 0) / (below * np.maximum(2 * l - 3, 1))
    second = np.where(l > m + 1, np.sqrt(earlier), 0)
    steps = np.arange(1, orders(degree))
    growth = np.sqrt((2 * steps + 1) / (2 * steps))
    growth[0] *= np.sqrt(2)
    return Recurrence(first, second, np.concatenate([[1.0], np.cumprod(growth)]))


@lru_cache
def legendre_fourier(degree: int) -> np.ndarray:
    r"""(orders, degree + 1, orders): the coefficient of cos or sin $k\theta$ in $\hat P_{lm}$, by m, l and k."""
    count, table = orders(degree), recurrence(degree)
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
    odd = (np.arange(count) % 2 == 1)[:, None, None]
    table = np.where(odd, -waves.imag, waves.real)
    table[:, :, 0] /= 2
    # Only k of the parity of l occur, and none above it.
    l, k = np.arange(degree + 1)[:, None], np.arange(count)[None]
    return np.where((k <= l) & ((l - k) % 2 == 0), table, 0)


def _root(numerator: np.ndarray, denominator: np.ndarray | float = 1.0) -> np.ndarray:
    """The square root of a quotient; zero where the numerator is not positive."""
    return np.sqrt(np.maximum(numerator, 0) / np.where(numerator > 0, denominator, 1))


def _by_function(up: np.ndarray, down: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Constants of the neighbours m + 1 and m - 1 for cosine and sine, (orders, 2, degrees), normalised for real ones.

    A cosine with m = 0 has twice the neighbour m + 1 and no other; its sine is zero.
    """
    up, down = (np.repeat(part[:, None] / 2, 2, axis=1) for part in (up, down))
    up[0] *= [[np.sqrt(2)], [0]]
    down[0] = 0
    down[1] *= np.sqrt(2)
    return up, down


class Ladder(NamedTuple):
    r"""What multiplies the neighbours (l ± 1, m ± 1) in $x Y_{lm}$ and $y Y_{lm}$, and (l ± 1, m) in $z Y_{lm}$.

    **Arguments:**

    - `higher_up`, `lower_up`: (orders, 2, degree + 1), for (l + 1, m + 1) and (l - 1, m + 1).
    - `higher_down`, `lower_down`: The same for m - 1.
    - `higher`, `lower`: (orders, 1, degree + 1), for (l + 1, m) and (l - 1, m).
    """

    higher_up: np.ndarray
    lower_up: np.ndarray
    higher_down: np.ndarray
    lower_down: np.ndarray
    higher: np.ndarray
    lower: np.ndarray


@lru_cache
def ladder(degree: int) -> Ladder:
    """The constants of multiplication with a coordinate, for harmonics up to `degree`."""
    m, l = _grid(degree)
    inside = m <= l
    above, beneath = (2 * l + 1) * (2 * l + 3), (2 * l + 1) * (2 * l - 1)
    higher_up, higher_down = _by_function(
        _root(inside * (l + m + 1) * (l + m + 2), above), -_root(inside * (l - m + 1) * (l - m + 2), above)
    )
    lower_up, lower_down = _by_function(
        -_root(inside * (l - m) * (l - m - 1), beneath), _root(inside * (l + m) * (l + m - 1), beneath)
    )
    higher = _root(inside * ((l + 1) ** 2 - m * m), above)[:, None]
    lower = _root(inside * (l * l - m * m), beneath)[:, None]
    return Ladder(higher_up, lower_up, higher_down, lower_down, higher, lower)


class Rotation(NamedTuple):
    """What multiplies the neighbours m + 1, m - 1 and m itself in the derivative of a harmonic along a rotation.

    **Arguments:**

    - `up`, `down`: (orders, 2, degree + 1), for rotations about the first two axes.
    - `turn`: (orders, 1, 1), m, for those about the third.
    """

    up: np.ndarray
    down: np.ndarray
    turn: np.ndarray


@lru_cache
def rotation(degree: int) -> Rotation:
    """The constants of the three infinitesimal rotations, for harmonics up to `degree`."""
    m, l = _grid(degree)
    inside = m <= l
    up, down = _by_function(_root(inside * (l - m) * (l + m + 1)), _root(inside * (l + m) * (l - m + 1)))
    return Rotation(up, down, m[:, :, None])
