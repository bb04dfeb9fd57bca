"""Ratios of modified Bessel functions of one size, in double precision on the host."""

import numpy as np
from numpy.typing import NDArray


def bessel_ratios(order: float, size: float, degrees: NDArray[np.integer]) -> NDArray[np.float64]:
    r"""$I_{\nu + \ell}(s) / I_\nu(s)$ of the order $\nu \ge 0$ and the size s > 0, for each $\ell$ of `degrees`."""
    import scipy.special  # here, since its import takes as long as a small run

    # `ive` is scaled by e^-s, which cancels in the ratio.
    least = scipy.special.ive(order, size)
    # NaN, of a size that SciPy does not take, passes too.
    if not least < np.finfo(float).tiny:
        return scipy.special.ive(order + degrees, size) / least
    # Of an order far above the size both underflow. There one over the ratio of neighbours, I_(nu - 1) / I_nu, is
    # 2 nu / s plus the ratio of the next two. This shrinks an error at the start by the square of the ratio.
    largest, count = size / (order + np.hypot(order, size)), int(np.max(degrees))
    ratio, ratios = largest, np.ones(count + 1)
    for degree in range(count + 20 + int(40 / (1 - largest**2)), 0, -1):
        ratio = 1 / (2 * (order + degree) / size + ratio)
        if degree <= count:
            ratios[degree] = ratio
    return np.cumprod(ratios, dtype=np.float64)[degrees]
