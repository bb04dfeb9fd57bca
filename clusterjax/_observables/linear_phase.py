"""Growth rates of the harmonics of a nearly uniform cloud: the linearisation of attention at the uniform measure."""

import numpy as np
from numpy.typing import NDArray

from .._bessel import bessel_ratios
from .._check import check_flag, check_integer, check_number


# Far beyond this bound the square of beta overflows; the unnormalised rates overflow long before it.
_LARGEST = 1e100


def uniform_growth_rates(beta: float, d: int, max_degree: int, *, unnormalised: bool = False) -> NDArray[np.float64]:
    r"""$\lambda_\ell = \ell(\ell+d-2)\, a_\ell/(\beta a_0)$: the growth rate of harmonics of degree $\ell$.

    By symmetry a uniform density of tokens does not move, but a small perturbation of degree $\ell$ grows as
    $e^{\lambda_\ell t}$. The degree of fastest growth, about $\sqrt{2\beta}$ on the circle, is the number of clusters
    that form first. Here $a_\ell = \Gamma(\tfrac d2) (2/\beta)^{d/2-1} I_{\ell+d/2-1}(\beta)$; the unnormalised flow
    has the rate $\ell(\ell+d-2)\,a_\ell/\beta$, without $a_0$. A host function, in double precision.

    **Arguments:**

    - `beta`: Inverse temperature, a finite number; zero gives the limit.
    - `d`: The dimension of the tokens, at least 2.
    - `max_degree`: The largest degree.
    - `unnormalised`: True for unnormalised attention.

    **Returns:**

    (max_degree + 1,), the rates of degree 0 to `max_degree`, per unit of time, for $V = I$ and $Q^\top K = I$. The
    amplitude of a harmonic grows at this rate, its square (see `angular_power`) at twice the rate.

    **Raises:**

    - `ValueError` if `beta` is not finite or too large, `d` is no integer >= 2, or `max_degree` is no integer >= 0.

    ??? cite "Source"

        Bruno, Pasqualotto and Agazzi (2410.23228), linearisation at the uniform measure; the rates are derived anew.
    """
    import scipy.special  # imported here, because the import takes as long as a small run

    max_degree = check_degree(max_degree)
    d = check_integer(d, "d", least=2, remedy="pass the dimension of the tokens")
    beta, unnormalised = check_number(beta, "beta"), check_flag(unnormalised, "unnormalised")
    degrees = np.arange(max_degree + 1)
    # In the limit only the first degree has a rate, because a_l / beta tends to zero for l > 1.
    if beta == 0:
        rates = np.where(degrees == 1, (d - 1) / d, 0.0)
        return rates
    order, size = d / 2 - 1, abs(beta)
    ratios = bessel_ratios(order, size, degrees)
    # I_{l + order}(-beta) (-beta)^-order has the sign (-1)^l.
    ratios = np.where((beta < 0) & (degrees % 2 == 1), -ratios, ratios)
    mean = float(scipy.special.hyp0f1(d / 2, beta**2 / 4)) if unnormalised and size < _LARGEST else 1.0
    rates = degrees * (degrees + d - 2) * ratios / beta * mean
    if not np.all(np.isfinite(rates)) or unnormalised and size >= _LARGEST:
        raise ValueError(
            f"beta must be small enough for rates that double precision holds, but it is {beta}; pass 500 or less."
        )
    return rates


def check_degree(max_degree: int) -> int:
    """Raise a ValueError unless `max_degree` is an integer of at least 0."""
    return check_integer(max_degree, "max_degree", least=0, remedy="pass, say, 12")
