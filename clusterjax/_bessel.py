"""Ratios of modified Bessel functions of equal argument, in double precision on the host."""

import numpy as np
from numpy.typing import NDArray


def bessel_ratios(order: float, size: float, degrees: NDArray[np.integer]) -> NDArray[np.float64]:
    r"""$I_{\nu + \ell}(s) / I_\nu(s)$ for the order $\nu \ge 0$, the argument s > 0 and each $\ell$ of `degrees`."""
    import scipy.special  # imported here, since the import takes as long as a small run

    # `ive` includes the factor e^-s, which cancels in the ratio.
    least = scipy.special.ive(order, size)
    # The comparison lets NaN pass, the value of `ive` for an argument that SciPy does not support.
    if not least < np.finfo(float).tiny:
        return scipy.special.ive(order + degrees, size) / least
    # If the order is far above the argument, both functions underflow. The inverse ratio of neighbours,
    # I_(nu - 1) / I_nu, is then 2 nu / s plus the ratio of the next two, which damps an error by the squared ratio.
    largest, count = size / (order + np.hypot(order, size)), int(np.max(degrees))
    ratio, ratios = largest, np.ones(count + 1)
    for degree in range(count + 20 + int(40 / (1 - largest**2)), 0, -1):
        ratio = 1 / (2 * (order + degree) / size + ratio)
        if degree <= count:
            ratios[degree] = ratio
    return np.cumprod(ratios, dtype=np.float64)[degrees]
