r"""Densities on the sphere of any dimension that depend only on one coordinate $z = \langle x, e\rangle$.

**Algorithm.** Harmonics of degree l that rotate about the axis with order m are $Y_l(z)\,S_m(\omega)$ with $Y_l = (1 -
z^2)^{m/2} p_{l-m}(z)$, where p are orthonormal Gegenbauer polynomials of index $d/2 - 1 + m$, from their three-term
recurrence. Integrals over the sphere become Gauss-Gegenbauer quadratures over z with the weight
$(1 - z^2)^{(d-3)/2}$. Order 0 holds the densities, the other orders the perturbations that break their symmetry; the
circle has only the orders 0 (even functions of the angle) and 1 (odd functions).

**Reference.** DLMF 18.9.1 (recurrence), 3.5(v) (quadrature). **Invariant.** Each table is orthonormal with respect to
the uniform probability measure; order 0 equals the first column of a `MeanField` for d = 2 and 3.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Table(NamedTuple):
    """Values and derivatives along and across the meridian at the nodes, for degrees from m, each (nodes, l)."""

    values: np.ndarray
    along: np.ndarray
    across: np.ndarray


@lru_cache
def nodes(count: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes z, and the weights with sum one."""
    from scipy.special import roots_gegenbauer  # imported only when needed

    z, weights = roots_gegenbauer(count, d / 2 - 1)
    return z, weights / weights.sum()


@lru_cache
def table(count: int, degree: int, d: int, order: int) -> Table:
    """The harmonics of one order at `count` nodes."""
    z, weights = nodes(count, d)
    index = d / 2 - 1 + order
    n = np.arange(1.0, degree - order + 1)
    square = n * (n + 2 * index - 1) / (4 * (n + index) * np.where(n + index > 1, n + index - 1, 1))
    if index == 0 and len(n):
        square[0] = 0.5  # the limit for Chebyshev polynomials
    b = np.sqrt(square)
    sine = np.sqrt(1 - z * z)
    p, slope = np.zeros((2, len(z), degree - order + 1))
    p[:, 0] = 1 / np.sqrt(np.sum(weights * sine ** (2 * order)))
    for k in range(degree - order):
        before = (b[k - 1] * p[:, k - 1], b[k - 1] * slope[:, k - 1]) if k else (0, 0)
        p[:, k + 1] = (z * p[:, k] - before[0]) / b[k]
        slope[:, k + 1] = (p[:, k] + z * slope[:, k] - before[1]) / b[k]
    z, sine = z[:, None], sine[:, None]
    lower = sine ** (order - 1) * p if order else 0 * p
    across = np.sqrt(max(order * (order + d - 3.0), 0)) * lower
    return Table(sine**order * p, sine ** (order + 1) * slope - order * z * lower, across)
