"""The energy of the uniform measure, which is the smallest, in closed form."""

import numpy as np

from .._check import check_integer, check_number


# Far beyond this bound the square of beta overflows; the energy overflows long before it.
_LARGEST = 1e100


def uniform_energy(beta: float, d: int) -> float:
    r"""$\frac{1}{2\beta}\,{}_0F_1(\tfrac d2; \tfrac{\beta^2}{4})$, the energy of the uniform measure on the sphere.

    In terms of Bessel functions the energy is $\frac{1}{2\beta}\Gamma(\tfrac d2)(\tfrac 2\beta)^{d/2-1}
    I_{d/2-1}(\beta)$: $I_0(\beta)/(2\beta)$ for d = 2, $\sinh(\beta)/(2\beta^2)$ for d = 3 and $\cosh(\beta)/(2\beta)$
    for d = 1. No cloud of unit tokens has less `interaction_energy` if `beta` is positive. A host function, in double
    precision.

    **Arguments:**

    - `beta`: Inverse temperature, a number other than zero.
    - `d`: The dimension of the tokens.

    **Returns:**

    A float.

    **Raises:**

    - `ValueError` if `beta` is zero, not finite or so large that the energy overflows, or `d` is no positive integer.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Proposition 3.4 (the uniform
        measure is the minimiser). The closed form follows from the Funk-Hecke formula.
    """
    import scipy.special  # imported here, because the import takes as long as a small run

    d = check_integer(d, "d", remedy="pass the dimension of the tokens")
    beta = check_number(beta, "beta")
    if beta == 0:
        raise ValueError(f"beta must be finite and not zero, but it is {beta}; pass another number.")
    mean = float(scipy.special.hyp0f1(d / 2, beta**2 / 4)) if abs(beta) < _LARGEST else np.inf
    if not np.isfinite(mean):
        raise ValueError(
            f"beta must be small enough for an energy that double precision holds, but it is {beta}; pass 500 or less."
        )
    return mean / (2 * beta)
