"""The degree at which a series may be truncated: a bound of the tail of the kernel, and its inverse in the length.

The bound is the tail at t = 1, where every zonal harmonic is largest, so that it holds for all angles. `largest_length`
inverts the bound: the largest query that a series of given degree serves. Both use float64 NumPy at trace time.
"""

import functools
import math

import numpy as np

from .bessel import number_of_harmonics


@functools.cache
def tail(kappa: float, degree: int, d: int) -> float:
    r"""The largest contribution of degrees above `degree` to $e^{\kappa(t - 1)}$ on the sphere of R^d, at t = 1."""
    if kappa == 0:
        return 0.0
    from scipy.special import gammaln, ive  # a late import, since it takes as long as a small run

    order = d / 2 - 1
    # Terms fall like e^{-l^2 / (2 kappa)}: the remaining degrees are below the rounding of float64.
    degrees = np.arange(degree + 1, degree + 20 + int(12 * math.sqrt(kappa + 1)))
    number = np.asarray([number_of_harmonics(int(k), d) for k in degrees], float)
    scale = math.exp(gammaln(d / 2) + order * math.log(2 / kappa))
    return float(scale * np.sum(number * ive(degrees + order, kappa)))


def truncation(kappa: float, d: int, tolerance: float) -> int:
    r"""The least degree whose truncated series of $e^{\kappa t}$ errs by at most `tolerance` times $e^\kappa$."""
    degree = 0
    while tail(float(kappa), degree, d) > tolerance:
        degree += 1
    return degree


@functools.cache
def largest_length(degree: int, d: int, tolerance: float) -> float:
    """The largest |q| that a series of this degree serves, the inverse of `truncation`, to three digits."""
    # Lengths grow like degree^2 over the logarithm of the tolerance: no degree serves the upper end.
    low, high = 0.0, 10.0 * degree**2 + 1
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, degree, d) <= tolerance else (low, middle)
    return low
