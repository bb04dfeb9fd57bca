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

**Unequal clouds.** Where passages are rare each cloud is at rest in its own well, whatever its mass: with the masses
given, the density is $e^{-U/T}$ times a factor for each well. The clouds also drift, each with the noise of its mean
angle; they turn as rigid bodies, since each is hardly deformed by the other. The passage time from the middle of one
to the middle of the other, with both ends absorbing, then depends on the masses and on the distance. Where the smaller
well is shallow this holds of averages alone: tokens come to the other middle some time after the masses sent them.

**Reference.** Gardiner, *Stochastic Methods*, 4th edition, sections 5.5 (passage times) and 5.5.3 (Kramers' formula).
**Invariants.** Integrals are scaled by the extremes of U, so that no exponential overflows. At equal masses and
distance $\pi$ both theories of clouds are one.
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


def shapes(beta: float, temperature: float, share: float) -> np.ndarray:
    """Two opposite clouds with the given masses, each at rest in its well.

    **Arguments:**

    - `share`: The mass of the first cloud, between 0 and 1; that of the second is the rest.

    **Returns:**

    (2, MODES), the means of cos(m theta) of each cloud about its own middle.

    **Raises:**

    - `RuntimeError` if the smaller cloud has no well, however shallow, or the iteration does not end.
    """
    m, c = np.arange(1, MODES + 1), kernel_modes(beta)
    theta = np.pi * (np.arange(2048) + 0.5) / 2048
    masses, signs = np.array([share, 1 - share])[:, None], np.stack([np.ones(MODES), (-1.0) ** m])
    waves = np.cos(np.outer(theta, m))
    q, edge = np.tile(np.exp(-0.01 * m**2), (2, 1)), 0
    for turn in range(10_000):
        u = -(waves @ (c * (masses * signs * q).sum(0))) / (beta * temperature)
        # The edge between the wells is the place of the grid where U is highest. It rests after some turns, lest it
        # goes to and fro between two neighbours; there is next to no density there.
        edge = int(np.argmax(u)) if turn < 50 else edge
        if not 0 < edge < len(u) - 1:
            break
        new = []
        for well, sign in ((slice(None, edge), signs[0]), (slice(edge, None), signs[1])):
            density = np.exp(u[well].min() - u[well])
            new.append(sign * (density @ waves[well]) / density.sum())
        if np.abs(new - q).max() < 1e-12 and turn > 50:
            return np.array(new)
        q = np.array(new)
    raise RuntimeError(
        f"no two clouds of masses {share:.3g} and {1 - share:.3g} are at rest at beta = {beta:g}, T = {temperature:g}"
    )


def exit_time(potential: Potential, temperature: float, left: float, right: float) -> float:
    """The mean time from 0 to `left` < 0 or `right` > 0, whichever comes first."""
    theta = np.linspace(left, right, GRID + 1)
    u = potential(theta) / temperature
    step, well, top = theta[1] - theta[0], np.exp(u.min() - u), np.exp(u - u.max())
    along = lambda f: np.concatenate([[0], np.cumsum(f[1:] + f[:-1]) * step / 2])
    # (e^{-U/T} T u')' = -e^{-U/T}: the flux is a constant less the mass so far, and u is zero at both ends.
    mass, rise = along(well), along(top)
    constant = along(top * mass)[-1] / rise[-1]
    times = along(top * (constant - mass))
    return float(np.interp(0.0, theta, times) / temperature * np.exp(u.max() - u.min()))


def exit_times(beta: float, temperature: float, share: float, distance: float) -> tuple[float, float]:
    """Of a token of either of two clouds, the mean time to the middle of the other.

    **Arguments:**

    - `share`: The mass of the first cloud.
    - `distance`: The angle from the middle of the first cloud to that of the second, between 0 and 2 pi.

    **Raises:**

    - `RuntimeError` as `shapes` does.
    """
    q, strengths = shapes(beta, temperature, share), kernel_modes(beta) / beta
    own = [partial(_of_harmonics, mass * strengths * one) for mass, one in zip((share, 1 - share), q, strict=True)]
    times = []
    # Each cloud is even about its middle, so that from the second all looks as in a mirror: the angle is the same.
    for first, second in ((own[0], own[1]), (own[1], own[0])):
        both = lambda theta, first=first, second=second: first(theta) + second(theta - distance)
        times.append(exit_time(both, temperature, distance - 2 * np.pi, distance))
    return times[0], times[1]
