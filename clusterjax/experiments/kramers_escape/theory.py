r"""The potential of two opposite clusters, and how long a token takes from one to the other.

**Setting.** Unnormalised attention with `offset=beta` on the circle: a token moves in the potential $U(\theta) =
-\frac1\beta\int e^{\beta(\cos(\theta - \phi) - 1)}d\mu(\phi)$ with noise of temperature T. Of two clusters of half the
mass each, at 0 and $\pi$, it is $-e^{-\beta}\cosh(\beta\cos\theta)/\beta$: wells of curvature $e^{-\beta}\sinh\beta$,
barriers of height $e^{-\beta}(\cosh\beta - 1)/\beta$ and curvature $-\beta e^{-\beta}$ at $\pm\pi/2$.

**Passage times.** From 0 to $\pm\pi$, by the symmetry with a reflecting end at 0: $\tau = \frac1T\int_0^\pi
e^{U(y)/T}\int_0^y e^{-U(z)/T}dz\,dy$. Kramers' formula is its limit as T tends to zero, $\pi e^{\Delta U/T} /
\sqrt{U''(0) |U''(\pi/2)|}$, half of that over one barrier.

**Clouds.** Clusters of many tokens are as wide as noise makes them: the density is $e^{-U/T}$ with U the potential of
itself. Its solution with two equal wells is found by iteration from narrow clusters.

**Reference.** Gardiner, *Stochastic Methods*, 4th edition, sections 5.5 (passage times) and 5.5.3 (Kramers' formula).
**Invariant.** Integrals are scaled by the extremes of U, so that no exponential overflows.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.special import ive


Potential = Callable[[np.ndarray], np.ndarray]
GRID = 20_000  # intervals of the quadrature
MODES = 16  # harmonics of the kernel: for beta up to 9 the rest is below 1e-6 of it


def two_clusters(beta: float) -> Potential:
    """The potential of two opposite clusters of tokens that coincide."""
    return lambda theta: -(np.exp(beta * (np.cos(theta) - 1)) + np.exp(-beta * (np.cos(theta) + 1))) / (2 * beta)


def barrier(beta: float) -> float:
    """The height of the barrier between two clusters of tokens that coincide."""
    return float(np.exp(-beta) * (np.cosh(beta) - 1) / beta)


def curvatures(beta: float) -> tuple[float, float]:
    """Of the potential of two clusters, at a well and, without its sign, at a barrier."""
    return float(np.exp(-beta) * np.sinh(beta)), float(beta * np.exp(-beta))


def passage(potential: Potential, temperature: float) -> tuple[float, float]:
    """The mean passage time from 0 to pi or -pi over the exponential of the barrier, and that exponent."""
    theta = np.linspace(0, np.pi, GRID + 1)
    u = potential(theta) / temperature
    low, high = u.min(), u.max()
    well, top = np.exp(low - u), np.exp(u - high)
    step = theta[1]
    inner = np.concatenate([[0], np.cumsum(well[1:] + well[:-1]) * step / 2])
    outer = top * inner
    return float((outer.sum() - (outer[0] + outer[-1]) / 2) * step / temperature), float(high - low)


def passage_time(potential: Potential, temperature: float) -> float:
    """The mean passage time from 0 to pi or -pi."""
    scaled, exponent = passage(potential, temperature)
    return scaled * float(np.exp(exponent))


def kramers_prefactor(beta: float) -> float:
    """Kramers' time between two clusters, over the exponential of barrier and temperature."""
    well, top = curvatures(beta)
    return float(np.pi / np.sqrt(well * top))


def kernel_modes(beta: float) -> np.ndarray:
    """c_m for m = 1, ..., MODES of $e^{\\beta(\\cos\\theta - 1)} = c_0 + \\sum_m c_m \\cos m\\theta$."""
    return 2 * ive(np.arange(1, MODES + 1), beta)


def _of_harmonics(strengths: np.ndarray, theta: np.ndarray) -> np.ndarray:
    return np.asarray(-np.cos(np.multiply.outer(theta, np.arange(1, MODES + 1))) @ strengths)


def cloud(beta: float, temperature: float) -> tuple[Potential, np.ndarray]:
    """The potential of two equal clouds that are stationary in it, and the means of cos(m theta) of their density.

    **Raises:**

    - `RuntimeError` if the iteration finds none.
    """
    m, c = np.arange(1, MODES + 1), kernel_modes(beta)
    theta = 2 * np.pi * np.arange(2048) / 2048
    waves = np.cos(np.outer(theta, m))
    # Narrow at first; of two equal clouds odd harmonics vanish.
    q = np.where(m % 2 == 0, np.exp(-0.02 * m**2), 0)
    for _ in range(10_000):
        u = -(waves @ (c * q)) / (beta * temperature)
        density = np.exp(u.min() - u)
        new = np.where(m % 2 == 0, density @ waves / density.sum(), 0)
        if np.abs(new - q).max() < 1e-13:
            return partial(_of_harmonics, c * new / beta), new
        q = new
    raise RuntimeError(f"no two clouds were found that are stationary at beta = {beta:g} and T = {temperature:g}")
