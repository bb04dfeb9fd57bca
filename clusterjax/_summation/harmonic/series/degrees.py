"""The degree at which a series may be truncated: a bound of the tail of the kernel, and its inverse in the length.

The bound is the tail at t = 1, where every zonal harmonic is largest, so that it holds for all angles. `largest_length`
inverts it: which queries a series of given degree serves. Evaluated in float64 NumPy at trace time.
"""

import functools
import math

import numpy as np

from .bessel import number_of_harmonics


@functools.cache
def tail(kappa: float, degree: int, d: int) -> float:
    r"""What degrees above `degree` may add to $e^{\kappa(t - 1)}$ on the sphere of R^d, at most: at t = 1."""
    if kappa == 0:
        return 0.0
    from scipy.special import gammaln, ive  # here, since its import takes as long as a small run

    order = d / 2 - 1
    # Far enough that the rest is below the rounding of float64: terms fall like e^{-l^2 / (2 kappa)}.
    degrees = np.arange(degree + 1, degree + 20 + int(12 * math.sqrt(kappa + 1)))
    number = np.asarray([number_of_harmonics(int(k), d) for k in degrees], float)
    scale = math.exp(gammaln(d / 2) + order * math.log(2 / kappa))
    return float(scale * np.sum(number * ive(degrees + order, kappa)))


def truncation(kappa: float, d: int, tolerance: float) -> int:
    r"""The least degree after which the series of $e^{\kappa t}$ is right to `tolerance` times $e^\kappa$."""
    degree = 0
    while tail(float(kappa), degree, d) > tolerance:
        degree += 1
    return degree


@functools.cache
def largest_length(degree: int, d: int, tolerance: float) -> float:
    """The largest |q| that a series of this degree serves: `truncation` read the other way, to three digits."""
    # Lengths grow like degree^2 over the logarithm of the tolerance: the upper end is never served.
    low, high = 0.0, 10.0 * degree**2 + 1
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, degree, d) <= tolerance else (low, middle)
    return low
