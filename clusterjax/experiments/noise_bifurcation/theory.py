"""What the papers say of tokens under noise: when the uniform density is unstable, and when tokens gather at a jump."""

import numpy as np

from ..._observables import uniform_growth_rates


def critical_temperature(beta: float, d: int) -> float:
    """T_c of unnormalised attention, a_1 / beta."""
    return float(uniform_growth_rates(beta, d, 1, unnormalised=True)[1]) / (d - 1)


def tricritical_beta(d: int) -> float:
    r"""The beta up to which the transition is continuous: $I_{d/2+1}(\beta_*)/I_{d/2}(\beta_*) = 1/d$ (2606.05140)."""
    from scipy.optimize import brentq  # loaded when it is needed
    from scipy.special import ive

    root: float = brentq(lambda beta: ive(d / 2 + 1, beta) / ive(d / 2, beta) - 1 / d, 1e-3, 20.0, xtol=1e-13)  # pyright: ignore
    return float(root)


def expected_length(n: int, ratio: float) -> float:
    """The root mean square of the length of the mean of n tokens at T = `ratio` T_c > T_c, as n grows: the uniform
    density resists less and less as T falls to T_c."""
    return float(np.sqrt(ratio / (n * (ratio - 1))))
