"""What is measured of escapes: times at twelve temperatures between two clusters that stay, and passages of clouds."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ive

from ..._base.types import Scalar
from ...plot import OKABE_ITO, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.layout import WIDTH
from ..shared.sources import PARTICLES


# The potential of two opposite clusters, and how long a token takes from one to the other.
#
# **Setting.** Unnormalised attention with `offset=beta` on the circle: a token moves in the potential $U(\theta) =
# -\frac1\beta\int e^{\beta(\cos(\theta - \phi) - 1)}d\mu(\phi)$ with noise of temperature T. Of two clusters of half
# the mass each, at 0 and $\pi$, it is $-e^{-\beta}\cosh(\beta\cos\theta)/\beta$: wells of curvature
# $e^{-\beta}\sinh\beta$, barriers of height $e^{-\beta}(\cosh\beta - 1)/\beta$ and curvature $-\beta e^{-\beta}$ at
# $\pm\pi/2$.
#
# **Passage times.** From 0 to $\pm\pi$, by the symmetry with a reflecting end at 0: $\tau = \frac1T\int_0^\pi
# e^{U(y)/T}\int_0^y e^{-U(z)/T}dz\,dy$. Kramers' formula is its limit as T tends to zero, $\pi e^{\Delta U/T} /
# \sqrt{U''(0) |U''(\pi/2)|}$, half of that over one barrier.
#
# **Clouds.** Clusters of many tokens are as wide as noise makes them: the density is $e^{-U/T}$ with U the potential of
# itself. Its solution with two equal wells is found by iteration from narrow clusters.
#
# **Unequal clouds.** Where passages are rare each cloud is at rest in its own well, whatever its mass: with the masses
# given, the density is $e^{-U/T}$ times a factor for each well. The clouds also drift, each with the noise of its mean
# angle; they turn as rigid bodies, since each is hardly deformed by the other. The passage time from the middle of one
# to the middle of the other, with both ends absorbing, then depends on the masses and on the distance. Where the
# smaller well is shallow this holds of averages alone: tokens come to the other middle some time after the masses sent
# them.
#
# **Reference.** Gardiner, *Stochastic Methods*, 4th edition, sections 5.5 (passage times) and 5.5.3 (Kramers' formula).
# **Invariants.** Integrals are scaled by the extremes of U, so that no exponential overflows. At equal masses and
# distance $\pi$ both theories of clouds are one.


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


# Tokens under noise: one between two clusters that stay, and clouds of many tokens.
#
# Angles are unwrapped, and Heun's rule for additive noise, of weak order two, steps both. A token has escaped when it
# first reaches the middle of the other cluster, from where it escapes anew: passages from middle to middle are
# independent. Of clouds the two middles are followed by the phase of the mean of $e^{2i\\theta}$, half of it.


STEP = 0.1  # wells have a curvature of one half at most


class Passages(NamedTuple):
    """What passes between two clouds in equal parts of a window of time.

    **Attributes:**

    - `counts`: (parts, 2, systems), how many tokens left the first and the second cloud.
    - `shares`: (parts + 1, systems), of tokens in the first cloud, between the parts.
    - `distances`: (parts + 1, systems), the angle from the middle of the first cloud to that of the second.
    - `part`: How long each part is.
    """

    counts: np.ndarray
    shares: np.ndarray
    distances: np.ndarray
    part: float


def force(theta: Array, beta: Scalar) -> Array:
    """On a token between two clusters of half the mass each, at 0 and pi."""
    cosine = jnp.cos(theta)
    return -jnp.sin(theta) * (jnp.exp(beta * (cosine - 1)) - jnp.exp(-beta * (cosine + 1))) / 2


@eqx.filter_jit
def passage_times(beta: Scalar, temperature: Scalar, key: PRNGKeyArray, tokens: int) -> Float[Array, " tokens"]:
    """How long each of many tokens takes from one cluster to the other."""
    size = jnp.sqrt(2 * temperature * STEP)

    def go(state):
        theta, times, k = state
        noise = size * jr.normal(jr.fold_in(key, k), theta.shape, theta.dtype)
        first = force(theta, beta)
        second = force(theta + STEP * first + noise, beta)
        theta = theta + STEP * (first + second) / 2 + noise
        passed = (times == 0) & (jnp.abs(theta) >= jnp.pi)
        return theta, jnp.where(passed, (k + 1) * STEP, times), k + 1

    start = jnp.zeros(tokens), jnp.zeros(tokens), 0
    return lax.while_loop(lambda state: jnp.any(state[1] == 0), go, start)[1]


def mean_force(theta: Float[Array, "*systems n"], beta: Scalar, modes: Array) -> Array:
    """On each token by all tokens of its system, by the harmonics of the kernel."""
    cosine, sine = jnp.cos(theta), jnp.sin(theta)
    c, s, total = cosine, sine, jnp.zeros_like(theta)
    for m in range(1, MODES + 1):
        mean = lambda part: jnp.mean(part, axis=-1, keepdims=True)
        total = total + m * modes[m - 1] * (c * mean(s) - s * mean(c))
        c, s = c * cosine - s * sine, s * cosine + c * sine
    return total / beta


def middle(theta: Float[Array, "systems n"]) -> Float[Array, " systems"]:
    """Twice the angle of the middle of one of two opposite clusters."""
    return jnp.arctan2(jnp.mean(jnp.sin(2 * theta), axis=-1), jnp.mean(jnp.cos(2 * theta), axis=-1))


def centres(theta: Array, second: Array) -> tuple[Array, Array, Array]:
    """Of each system: the share of tokens in the first cloud, and the mean angles of both clouds."""
    part = lambda chosen, wave: jnp.sum(jnp.where(chosen, wave(theta), 0), axis=-1)
    angle = lambda chosen: jnp.arctan2(part(chosen, jnp.sin), part(chosen, jnp.cos))
    return jnp.mean(~second, axis=-1, dtype=theta.dtype), angle(~second), angle(second)


@eqx.filter_jit
def _passages(state, beta, modes, temperature, key, windows: int, steps) -> tuple[Array, Array]:
    """Windows of `steps` steps each: how many tokens left each cloud in each, and the clouds before, between, after."""
    size = jnp.sqrt(2 * temperature * STEP)

    def go(k, state):
        theta, away, second, counts = state
        noise = size * jr.normal(jr.fold_in(key, k), theta.shape, theta.dtype)
        first = mean_force(theta, beta, modes)
        after = mean_force(theta + STEP * first + noise, beta, modes)
        moved = STEP * (first + after) / 2 + noise
        turn = middle(theta + moved) - middle(theta)
        turn = (turn - 2 * jnp.pi * jnp.round(turn / (2 * jnp.pi))) / 2
        away = away + moved - turn[:, None]
        over = jnp.abs(away) >= jnp.pi
        # Once there it is away from the other middle.
        away = jnp.where(over, away - jnp.pi * jnp.sign(away), away)
        left = jnp.stack([jnp.sum(over & ~second, axis=1), jnp.sum(over & second, axis=1)])
        return theta + moved, away, second ^ over, counts + left

    def seen(state):
        share, one, two = centres(state[0], state[2])
        return jnp.stack([share, jnp.mod(two - one, 2 * jnp.pi)])

    def window(state, place):
        before = seen(state)
        *state, counts = lax.fori_loop(
            place * steps, (place + 1) * steps, go, (*state, jnp.zeros((2, before.shape[1]), int))
        )
        return tuple(state), (counts, before)

    state, (counts, clouds) = lax.scan(window, state, jnp.arange(windows))
    return counts, jnp.concatenate([clouds, seen(state)[None]])


def at_rest(potential: Potential, temperature: float, key: PRNGKeyArray, systems: int, tokens: int) -> Array:
    """(systems, tokens), how far tokens are from the middle of their cloud, where passages are stationary.

    A token belongs to the cloud whose middle it was at last. In equilibrium, which looks the same backwards in time,
    that is at an angle x the chance of coming to the own middle before that of the other.
    """
    x = np.linspace(0, np.pi, GRID + 1)
    u = potential(x) / temperature
    rise = np.cumsum(np.exp(u - u.max()))
    total = np.cumsum(np.exp(u.min() - u) * (1 - rise / rise[-1]))
    away, side = jr.split(key)
    drawn = jr.uniform(away, (systems, tokens))
    # Not at the middle of the other, where it would belong to that.
    return jnp.interp(drawn, jnp.asarray(total / total[-1]), jnp.asarray(x * (1 - 1e-9))) * jr.rademacher(
        side, drawn.shape, drawn.dtype
    )


def cloud_passages(
    beta: float, temperature: float, key: PRNGKeyArray, *, systems: int, tokens: int, window: float, parts: int
) -> Passages:
    """What passes between two clouds of half the tokens each, in `parts` parts of a window of time."""
    start, run = jr.split(key)
    away = at_rest(cloud(beta, temperature)[0], temperature, start, systems, tokens)
    second = jnp.broadcast_to(jnp.arange(tokens) % 2 == 1, away.shape)
    state = away + jnp.pi * second.astype(away.dtype), away, second
    modes, b, t = jnp.asarray(kernel_modes(beta)), jnp.asarray(beta), jnp.asarray(temperature)
    steps = max(round(window / STEP / parts), 1)
    counts, clouds = _passages(state, b, modes, t, run, parts, jnp.asarray(steps))
    return Passages(np.asarray(counts), np.asarray(clouds[:, 0]), np.asarray(clouds[:, 1]), steps * STEP)


BETAS = (4.0, 6.0, 9.0)
RATIOS = (1.5, 2.25, 3.0, 4.0)  # barrier over temperature
EACH = 4  # tokens for each start of the settings
CLOUD_BETA, CLOUD_TEMPERATURES = 4.0, (0.018, 0.020, 0.022, 0.024)
SYSTEMS = 4  # of clouds, at most
PARTS = 25  # of the window of clouds; they keep still in one
FRESH = 5  # the first of them, in which the clouds are still equal
COLD = 50_000.0  # barrier over temperature where Kramers' formula is held to the quadrature


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(2048, "the tokens of each system of two clouds", quick=128, least=16, most=10**5)
    window: float = parameter(
        0.25, "for how long their passages are counted, over the time of one", quick=0.05, above=0, most=10
    )


@dataclass(frozen=True, eq=False)
class Times:
    """Mean times at several temperatures, and what theory says of them.

    **Attributes:**

    - `temperatures`, `means`, `errors`: (temperatures,), errors being standard errors.
    - `exact`: (temperatures,), by quadrature.
    - `spread`: (temperatures,), the standard deviation of the times over their mean; of clouds NaN.
    """

    temperatures: np.ndarray
    means: np.ndarray
    errors: np.ndarray
    exact: np.ndarray
    spread: np.ndarray

    @property
    def off(self) -> np.ndarray:
        """By how many standard errors each is off."""
        return (self.means - self.exact) / self.errors

    def slope(self) -> tuple[float, float, float]:
        """Of the logarithm of the time by 1 / T: measured, its standard error, and by the quadrature."""
        x, weight = 1 / self.temperatures, (self.means / self.errors) ** 2
        centred = x - (weight @ x) / weight.sum()
        fitted = lambda y: float((weight * centred) @ y / ((weight * centred) @ centred))
        error = float(1 / np.sqrt((weight * centred) @ centred))
        return fitted(np.log(self.means)), error, fitted(np.log(self.exact))


@dataclass(frozen=True, eq=False)
class Clouds:
    """Passages between two clouds that begin equal, at each temperature.

    **Attributes:**

    - `n`: The tokens of each system.
    - `temperatures`, `exact`: (temperatures,), and the mean time between passages of two equal clouds by quadrature.
    - `passages`: Of each temperature, what was counted in `PARTS` parts of the window.
    - `expected`: (temperatures, PARTS, 2, systems), how many tokens leave each cloud by quadrature in the potential of
      the clouds with their masses and distance; NaN where the smaller has no well.
    """

    n: int
    temperatures: np.ndarray
    exact: np.ndarray
    passages: tuple[Passages, ...]
    expected: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """(temperatures, PARTS, 2, systems)."""
        return np.stack([one.counts for one in self.passages])

    @property
    def smaller(self) -> np.ndarray:
        """(temperatures, PARTS, 2, systems): is this the smaller cloud where the part begins?"""
        shares = np.stack([one.shares[:-1] for one in self.passages])
        return np.stack([shares < 0.5, shares > 0.5], axis=2)

    def equal(self) -> Times:
        """The times between passages while the clouds are still equal; errors are those of Poisson's law."""
        counts = np.maximum(self.counts[:, :FRESH].sum((1, 2, 3)), 1)
        spent = np.array([self.n * FRESH * one.part * one.counts.shape[2] for one in self.passages])
        none = np.full(len(spent), np.nan)
        return Times(self.temperatures, spent / counts, spent / counts**1.5, self.exact, none)

    @property
    def _known(self) -> np.ndarray:
        return ~np.isnan(self.expected)

    def whole(self) -> tuple[Times, np.ndarray]:
        """The times between passages in the parts of which it is known what to expect, and the times to expect.

        `exact` of the former is that of equal clouds.
        """
        counted, expected = (np.where(self._known, part, 0).sum((1, 2, 3)) for part in (self.counts, self.expected))
        part = np.array([one.part for one in self.passages])
        spent = self.n * part * self._known[:, :, 0].sum((1, 2))
        counted, none = np.maximum(counted, 1), np.full(len(part), np.nan)
        return Times(self.temperatures, spent / counted, spent / counted**1.5, self.exact, none), spent / expected

    def net(self) -> tuple[int, float, float]:
        """By how many more tokens left the smaller cloud than the larger, its standard error, and how many should."""
        sign = np.where(self._known, self.smaller * 1 - self.smaller[:, :, ::-1], 0)
        return (
            int((sign * self.counts).sum()),
            float(np.sqrt((np.abs(sign) * self.counts).sum())),
            float(np.where(self._known, sign * self.expected, 0).sum()),
        )


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `tokens`, `systems`: How many tokens pass between clusters that stay, and how many systems of clouds there are.
    - `held`: By beta, the times between two clusters that stay.
    - `coldest`: By beta, all times at the lowest temperature, rising.
    - `clouds`: The passages of clouds.
    - `limits`: By beta, the quadrature over Kramers' formula where it is very cold.
    """

    p: Parameters
    tokens: int
    systems: int
    held: dict[float, Times]
    coldest: dict[float, np.ndarray]
    clouds: Clouds
    limits: dict[float, float]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """One token between two clusters at twelve temperatures, then clouds."""
    tokens, systems = EACH * settings.starts, max(2, min(settings.starts // 8, SYSTEMS))
    held, coldest = {}, {}
    for place, beta in enumerate(BETAS):
        say(f"{tokens} tokens escape at beta = {beta:g}")
        times = [
            np.asarray(passage_times(
                jnp.asarray(beta), jnp.asarray(barrier(beta) / ratio),
                jr.fold_in(jr.key(settings.seed), 10 * place + k), tokens,
            ))
            for k, ratio in enumerate(RATIOS)
        ]  # fmt: skip
        held[beta], coldest[beta] = times_of(beta, times), np.sort(times[-1])
    say(f"following {systems} systems of two clouds")
    clouds = _clouds(p, systems, settings.seed)
    limits = {beta: passage(two_clusters(beta), barrier(beta) / COLD)[0] / kramers_prefactor(beta) for beta in BETAS}
    return Results(p, tokens, systems, held, coldest, clouds, limits)


def times_of(beta: float, times: list[np.ndarray]) -> Times:
    """Means and errors of the times of independent tokens at each of `RATIOS`."""
    temperatures = barrier(beta) / np.array(RATIOS)
    means, sizes = np.array([one.mean() for one in times]), np.array([one.std(ddof=1) for one in times])
    exact = np.array([passage_time(two_clusters(beta), t) for t in temperatures])
    return Times(temperatures, means, sizes / np.sqrt(len(times[0])), exact, sizes / means)


def _clouds(p: Parameters, systems: int, seed: int) -> Clouds:
    exact, passages, expected = [], [], []
    for k, temperature in enumerate(CLOUD_TEMPERATURES):
        potential, _ = cloud(CLOUD_BETA, temperature)
        exact.append(passage_time(potential, temperature))
        passages.append(cloud_passages(
            CLOUD_BETA, temperature, jr.fold_in(jr.key(seed), 100 + k), systems=systems, tokens=p.n,
            window=p.window * exact[-1], parts=PARTS,
        ))  # fmt: skip
        expected.append(expected_passages(passages[-1], temperature, p.n))
    return Clouds(p.n, np.array(CLOUD_TEMPERATURES), np.array(exact), tuple(passages), np.stack(expected))


def expected_passages(passages: Passages, temperature: float, n: int) -> np.ndarray:
    """(parts, 2, systems), by quadrature in the potential of the clouds at the two ends of each part."""
    rates = np.full((passages.shares.shape[0], 2, passages.shares.shape[1]), np.nan)
    for part, system in np.ndindex(*passages.shares.shape):
        share, distance = passages.shares[part, system], passages.distances[part, system]
        # The smaller has no well, or the last of its tokens is gone.
        with suppress(RuntimeError):
            times = exit_times(CLOUD_BETA, temperature, float(share), float(distance))
            rates[part, :, system] = share * n / times[0], (1 - share) * n / times[1]
    return (rates[1:] + rates[:-1]) / 2 * passages.part


# What is claimed of escape times: the quadrature, Arrhenius' slope, Kramers' formula, and clouds.


SIGMAS = 3.0
ARRHENIUS, FORMULA, LIMIT, CLOUDS = 0.1, 0.2, 0.03, 0.2


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    alone = over(
        f"{m.tokens} tokens at each temperature", (_exact(m), _arrhenius(m), _limit(m), _formula(m), _memory(m))
    )
    return *alone, *over("the passages, by Poisson's law", (_claims_clouds(m), _slope(m), _unequal(m), _larger(m)))


def _exact(m: Results) -> Claim:
    off = np.concatenate([one.off for one in m.held.values()])
    share = max((one.errors / one.means).max() for one in m.held.values())
    return Claim(
        says="A token leaves one of two clusters for the other after the mean first passage time.",
        measured=f"{m.tokens} tokens at each of {len(off)} temperatures: off the quadrature by at most "
        f"{np.abs(off).max():.2f} standard errors, {100 * share:.1f} % of "
        "the time or less each",
        criterion=f"each within {SIGMAS:g} standard errors",
        holds=float(np.abs(off).max()) <= SIGMAS,
        kind="finding",
        value=float(np.abs(off).max()),
    )


def _arrhenius(m: Results) -> Claim:
    slopes = {beta: tuple(part / barrier(beta) for part in one.slope()) for beta, one in m.held.items()}
    off = max(abs(found - 1) for found, _, _ in slopes.values())
    return Claim(
        says="The logarithm of the time rises with 1 / T by the height of the barrier.",
        measured="slope over barrier: "
        + ", ".join(
            f"{plus_minus(found, error, 3)} at beta = {beta:g} (quadrature {exact:.3f})"
            for beta, (found, error, exact) in slopes.items()
        ),
        criterion=f"within {100 * ARRHENIUS:g} % for each beta",
        holds=off <= ARRHENIUS,
        kind="finding",
        value=off,
    )


def _limit(m: Results) -> Claim:
    off = max(abs(one - 1) for one in m.limits.values())
    return Claim(
        says="Kramers' formula is the limit of the mean first passage time as T tends to zero.",
        measured=f"quadrature over formula where the barrier is {COLD:g} T: "
        + ", ".join(f"{one:.4f} (beta = {beta:g})" for beta, one in m.limits.items()),
        criterion=f"1 within {LIMIT:g}",
        holds=off <= LIMIT,
        kind="identity",
        value=off,
    )


def _formula(m: Results) -> Claim:
    words, off = [], []
    for beta, one in m.held.items():
        formula = kramers_prefactor(beta) * np.exp(RATIOS[-1])
        width = np.sqrt(one.temperatures[-1] / curvatures(beta)[1])
        off.append(abs(float(one.means[-1] / formula) - 1))
        words.append(
            f"{plus_minus(one.means[-1] / formula, one.errors[-1] / formula, 3)} at beta = {beta:g}, where the barrier "
            f"is taken for a parabola {width:.2f} radians wide"
        )
    return Claim(
        says=f"Kramers' formula gives the time where the barrier is {RATIOS[-1]:g} T.",
        measured="time over formula: " + "; ".join(words),
        criterion=f"within {100 * FORMULA:g} % for each beta",
        holds=max(off) <= FORMULA,
        kind="finding",
        value=max(off),
    )


def _memory(m: Results) -> Claim:
    off = max(abs(float(one.spread[-1]) - 1) for one in m.held.values())
    most = SIGMAS / m.tokens**0.5
    return Claim(
        says="Escapes have no memory: times are exponentially distributed.",
        measured=f"standard deviation over mean where the barrier is {RATIOS[-1]:g} T: "
        + ", ".join(f"{one.spread[-1]:.3f} (beta = {beta:g})" for beta, one in m.held.items()),
        criterion=f"1 within three standard errors of {m.tokens} exponential times, {most:.3f}",
        holds=off <= most,
        kind="finding",
        value=off,
    )


def _claims_clouds(m: Results) -> Claim:
    one = m.clouds.equal()
    ratios = one.means / one.exact
    return Claim(
        says="Tokens pass between two equal clouds after the mean first passage time in the potential of the clouds.",
        measured=f"time over quadrature in the first {100 * FRESH // PARTS} % of the window: "
        + _by_temperature(one.temperatures, ratios, one.errors / one.exact),
        criterion=f"within {100 * CLOUDS:g} % at each temperature",
        holds=float(np.abs(ratios - 1).max()) <= CLOUDS,
        kind="finding",
        value=float(np.abs(ratios - 1).max()),
    )


def _by_temperature(temperatures: np.ndarray, ratios: np.ndarray, errors: np.ndarray) -> str:
    rows = zip(temperatures, ratios, errors, strict=True)
    return ", ".join(f"{plus_minus(ratio, error, 3)} (T = {t:g})" for t, ratio, error in rows)


def _unequal(m: Results) -> Claim:
    one, expected = m.clouds.whole()
    ratios = one.means / expected
    known = 100 * (1 - np.isnan(m.clouds.expected).mean())
    return Claim(
        says="As clouds drift and grow unequal, tokens pass as in the potential of the clouds at their masses and "
        "distance.",
        measured="time over quadrature in the whole window: "
        + _by_temperature(one.temperatures, ratios, one.errors / expected)
        + f", of the {known:.0f} % of it in which both have a well; over that of equal clouds it is "
        + ", ".join(f"{ratio:.2f}" for ratio in one.means / one.exact),
        criterion=f"within {100 * CLOUDS:g} % at each temperature",
        holds=float(np.abs(ratios - 1).max()) <= CLOUDS,
        kind="finding",
        value=float(np.abs(ratios - 1).max()),
    )


def _larger(m: Results) -> Claim:
    net, error, expected = m.clouds.net()
    ends = np.concatenate([np.abs(one.shares[-1] - 0.5) for one in m.clouds.passages])
    return Claim(
        says="Two equal clouds are not stable: tokens leave the smaller sooner, and the larger grows.",
        measured=f"{net} ± {error:.0f} more tokens left the smaller cloud than the larger, {expected:.0f} by "
        f"quadrature; at the end the larger has {100 * (0.5 + ends.mean()):.0f} % of the tokens on average, "
        f"{100 * (0.5 + ends.max()):.0f} % at most",
        criterion=f"more than {SIGMAS:g} standard errors above none",
        holds=net > SIGMAS * error,
        kind="finding",
        value=float(net),
        error=error,
    )


def _slope(m: Results) -> Claim:
    found, error, exact = m.clouds.equal().slope()
    return Claim(
        says="The time between equal clouds rises with 1 / T as in the potential of the clouds.",
        measured=f"slope of its logarithm {plus_minus(found, error, 4)} where the quadrature has {exact:.4f} (barrier "
        f"between clusters of tokens that coincide: {barrier(CLOUD_BETA):.4f})",
        criterion=f"within {SIGMAS:g} standard errors",
        holds=abs(found - exact) <= SIGMAS * error,
        kind="finding",
        value=found,
        error=error,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    exact, arrhenius, _, formula, memory, clouds, slope, unequal, larger = claims
    told = (
        "times are those of the quadrature" if exact.holds else "some times are off the quadrature",
        "they rise with the barrier over T as Arrhenius has it"
        if arrhenius.holds
        else "they do not rise with the barrier over T as Arrhenius has it",
        "Kramers' formula is right at these temperatures"
        if formula.holds
        else "Kramers' formula is not right at these temperatures for each beta, since the barrier is flat",
        "times are exponentially distributed" if memory.holds else "times are not exponentially distributed",
        "equal clouds agree with the quadrature in their own potential"
        if clouds.holds and slope.holds
        else "equal clouds do not agree with the quadrature in their own potential at each temperature",
        "the larger of two clouds grows" if larger.holds else "the larger of two clouds was not seen to grow",
        "passages follow the masses" if unequal.holds else "passages do not follow the masses at each temperature",
    )
    return (
        "Unnormalised attention on the circle with noise: tokens between two opposite clusters. (a) The potential of "
        "two clusters of tokens that coincide, over its barrier. (b) The mean time from one to the other against "
        f"barrier over temperature, {m.tokens} tokens each, with three standard errors; solid: quadrature; dashed: "
        "Kramers' formula. (c) The share of tokens that are still there, at the lowest temperature; dotted: "
        f"exponential. (d) Clouds of {m.p.n} tokens at beta = {CLOUD_BETA:g}: the time between passages against 1 / T, "
        "with three standard errors; dots: while the clouds are equal, with the quadrature in the potential of equal "
        "clouds (solid) and of tokens that coincide (dashed); diamonds: over the whole window, in which one cloud "
        f"grows; rings: the quadrature at the masses and distances of the clouds then. What holds: {'; '.join(told)}."
    )


# The picture of escapes: potentials, times against temperature, their distribution, and clouds.


COLOURS = dict(zip(BETAS, OKABE_ITO[:3], strict=True))
MARKERS = dict(zip(BETAS, "os^", strict=True))


@style()
def draw(m: Results) -> Figure:
    """Four panels."""
    figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
    axes = figure.subplots(2, 2)
    for letter, ax, fill in zip("abcd", axes.ravel(), (_potentials, _times, _shares, _panels_clouds), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _potentials(ax: Axes, m: Results) -> None:
    theta = np.linspace(-np.pi, np.pi, 401)
    for beta, colour in COLOURS.items():
        u = two_clusters(beta)(theta)
        ax.plot(theta, (u - u.min()) / barrier(beta), color=colour, label=rf"$\beta$ = {beta:g}")
    ax.set(xlabel=r"angle $\theta$ (radians)", ylabel=r"$(U - U_{min}) / \Delta U$", ylim=(-0.05, 1.4))
    ax.set_xticks([-np.pi, 0, np.pi], [r"$-\pi$", "0", r"$\pi$"])
    ax.legend(loc="upper center", ncols=3)


def _times(ax: Axes, m: Results) -> None:
    ratios = np.linspace(RATIOS[0] - 0.2, RATIOS[-1] + 0.2, 40)
    for beta, one in m.held.items():
        colour, height = COLOURS[beta], barrier(beta)
        ax.plot(ratios, [passage_time(two_clusters(beta), height / ratio) for ratio in ratios], color=colour, lw=1.1)
        ax.plot(ratios, kramers_prefactor(beta) * np.exp(ratios), color=colour, lw=0.9, ls="--")
        ax.errorbar(
            height / one.temperatures, one.means, 3 * one.errors, fmt=MARKERS[beta], ms=4, color=colour, capsize=2,
            label=rf"$\beta$ = {beta:g}",
        )  # fmt: skip
    ax.set(yscale="log", xlabel=r"$\Delta U / T$", ylabel="mean escape time")
    ax.legend(loc="upper left")


def _shares(ax: Axes, m: Results) -> None:
    for beta, times in m.coldest.items():
        left = 1 - np.arange(1, len(times) + 1) / len(times)
        ax.step(times / times.mean(), np.maximum(left, 0.5 / len(times)), where="post", color=COLOURS[beta], lw=1.1,
                label=rf"$\beta$ = {beta:g}")  # fmt: skip
    x = np.linspace(0, 7, 50)
    ax.plot(x, np.exp(-x), color="0.2", lw=1.0, ls=":")
    ax.set(yscale="log", xlim=(0, 7), ylim=(5e-4, 1.3), xlabel="time over its mean", ylabel="share still there")
    ax.legend(loc="upper right")


def _panels_clouds(ax: Axes, m: Results) -> None:
    equal, (whole, expected) = m.clouds.equal(), m.clouds.whole()
    t = m.clouds.temperatures
    inverse = np.linspace(1 / t.max() - 1, 1 / t.min() + 1, 25)
    ax.plot(inverse, [passage_time(cloud(CLOUD_BETA, 1 / at)[0], 1 / at) for at in inverse], color=OKABE_ITO[0], lw=1.1)
    held = [passage_time(two_clusters(CLOUD_BETA), 1 / at) for at in inverse]
    ax.plot(inverse, held, color="0.4", lw=0.9, ls="--")
    shown = (("o", OKABE_ITO[0], equal, "equal clouds"), ("D", OKABE_ITO[1], whole, "as one grows"))
    for marker, colour, one, label in shown:
        ax.errorbar(
            1 / t, one.means, 3 * one.errors, fmt=marker, ms=4, color=colour, capsize=2, label=label
        )  # fmt: skip
    ax.plot(1 / t, expected, "o", ms=9, mfc="none", mec="0.2", mew=0.9, label="quadrature then")
    ax.set(yscale="log", xlabel="1 / T", ylabel="mean time between passages")
    ax.legend(loc="upper left")


# Escapes as an experiment: what is measured, claimed, recorded and drawn.


EXPLORED = (
    "the quadrature at these temperatures, before any run: it had told that Kramers' formula is off by a third at "
    "beta = 6 and by three quarters at beta = 9; the criterion for it is the same for each beta all the same; and the "
    "limit of the formula where the barrier is 2,000 T, where that of beta = 9 is still too flat: 50,000 T was taken; "
    "the numbers of tokens and of systems were halved before the full run, for its length; a full run, in which clouds "
    "were followed for the whole window alone: their times were .5, .56, .77 and .98 of the quadrature for equal "
    "clouds, and trials told why: the clouds drift and one of them grows, and they had begun without tokens on the "
    "way; they now begin at rest, the time of equal clouds is that of the first fifth of the window with the criterion "
    "of before, and the two last claims were written after these trials; then a full run of 8 systems of 512 tokens, "
    "in which the three claims of clouds failed for T = .018 alone, where few tokens drift far in a window that is "
    "long: now 4 systems of 2,048, with the same criteria"
)
CLUSTERS = Subject("clusters", "two opposite clusters")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": m.p.n, "d": 2, "beta": list(BETAS), "value": "identity", "query_key": "identity", "mask": "full",
         "starts": m.tokens, "barrier over temperature": list(RATIOS), "coldest": COLD, "step": STEP,
         "beta of clouds": CLOUD_BETA, "temperatures of clouds": list(CLOUD_TEMPERATURES), "systems": m.systems,
         "window": m.p.window, "harmonics": MODES, "grid": GRID, "explored": EXPLORED},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(PARTICLES, CLUSTERS, {"tokens": (m.p.n, m.tokens), "d": 2, "beta": BETAS, "systems": m.systems}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {}
    whole, expected = m.clouds.whole()
    named = [("equal clouds", m.clouds.equal()), ("clouds as one grows", whole)]
    for name, one in [*((f"beta = {beta:g}", one) for beta, one in m.held.items()), *named]:
        series |= {f"T, {name}": one.temperatures, f"time, {name}": one.means, f"its error, {name}": one.errors}
        series[f"quadrature, {name}"] = one.exact if one is not whole else expected
    for temperature, one in zip(m.clouds.temperatures, m.clouds.passages, strict=True):
        series[f"share_by_part of the larger cloud, T = {temperature:g}"] = (0.5 + np.abs(one.shares - 0.5)).mean(1)
        series[f"distance_by_part off pi, T = {temperature:g}"] = np.abs(one.distances - np.pi).mean(1)
    return series


FIGURE = declared("kramers-escape", _run, parameters=Parameters)
