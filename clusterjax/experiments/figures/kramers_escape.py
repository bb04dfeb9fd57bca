"""Escape under noise: how long does a token stay in its cluster, and does Kramers' law give the time?

**Setting.** Unnormalised attention with `offset=beta` on the circle: a token moves in the potential
$U(θ) = -1/β ∫ exp(β(cos(θ - φ) - 1)) dμ(φ)$ with noise of temperature T. The potential of two clusters of half the mass
each, at 0 and π, is $-e^{-β} cosh(β cos θ)/β$: wells of curvature $e^{-β} sinh β$, barriers of height
$e^{-β} (cosh β - 1)/β$ and curvature $-β e^{-β}$ at ±π/2.

**Passage times.** The mean time from 0 to ±π is $τ = 1/T ∫_0^π exp(U(y)/T) ∫_0^y exp(-U(z)/T) dz dy$, because symmetry
makes 0 a reflecting end. Kramers' formula is the limit of τ as T tends to zero, $π exp(ΔU/T) / √(U''(0) |U''(π/2)|)$,
one half of the time over a single barrier.

**Clouds.** Noise gives clusters of many tokens a width: the density is exp(-U/T) in the potential U of the density
itself. Iteration from narrow clusters finds the solution with two equal wells.

**Unequal clouds.** Where passages are rare, each cloud is at rest in its own well, whatever its mass: at given masses
the density is exp(-U/T) times a factor for each well. The clouds also drift, each with the noise of its mean angle, and
move as rigid bodies, because one cloud hardly deforms the other. The passage time from the middle of one cloud to the
middle of the other, with both ends absorbing, then depends on the masses and on the distance. Where the smaller well is
shallow, only averages agree, because tokens reach the other middle some time after they left their cloud.

**Reference.** Gardiner, *Stochastic Methods*, 4th edition, sections 5.5 (passage times) and 5.5.3 (Kramers' formula).
**Invariants.** Integrals are scaled by the extremes of U, so that no exponential overflows. At equal masses and
distance π the two theories of clouds agree.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.axes import Axes
from scipy.integrate import cumulative_trapezoid
from scipy.special import ive

from ..._base.types import Scalar
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, plus_minus, unmet
from ..framework.verdict import Measured, Subject
from ..shared.layout import panels
from ..shared.sources import PARTICLES


BETAS = (4.0, 6.0, 9.0)
RATIOS = (1.5, 2.25, 3.0, 4.0)  # barrier over temperature
EACH = 4  # the number of tokens for each start of the settings
CLOUD_BETA, CLOUD_TEMPERATURES = 4.0, (0.018, 0.020, 0.022, 0.024)
SYSTEMS = 4  # the largest number of systems of clouds
PARTS = 25  # the number of parts of the window of clouds; clouds hardly change within a part
FRESH = 5  # the number of first parts, in which the clouds are still equal
COLD = 50_000.0  # barrier over temperature where Kramers' formula is compared with the quadrature
GRID = 20_000  # the number of intervals of the quadrature
MODES = 16  # the number of harmonics of the kernel: for beta up to 9 the rest is below 1e-6 of the kernel
STEP = 0.1  # the time step; the curvature of wells is at most one half
SIGMAS = 3.0


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(2048, "the number of tokens of each system of two clouds", quick=128, least=16, most=10**5)
    window: float = parameter(0.25, "the time of counting over the passage time", quick=0.05, above=0, most=10)


class Times(NamedTuple):
    """Mean times at several temperatures, and their theory; each attribute is (temperatures,)."""

    temperatures: np.ndarray
    # `means`, `errors`: the mean times and their standard errors
    means: np.ndarray
    errors: np.ndarray
    exact: np.ndarray  # the times by quadrature
    spread: np.ndarray  # the standard deviation of the times over their mean; NaN for clouds

    def slope(self) -> tuple[float, float, float]:
        """The slope of the logarithm of the time against 1 / T: measured, its standard error, and by quadrature."""
        x, weight = 1 / self.temperatures, (self.means / self.errors) ** 2
        centred = x - (weight @ x) / weight.sum()
        fitted = lambda y: float((weight * centred) @ y / ((weight * centred) @ centred))
        error = float(1 / np.sqrt((weight * centred) @ centred))
        return fitted(np.log(self.means)), error, fitted(np.log(self.exact))


class Passages(NamedTuple):
    """The passages between two clouds in equal parts of a window of time."""

    counts: np.ndarray  # the number of tokens that left the first and the second cloud, (parts, 2, systems)
    shares: np.ndarray  # the share of tokens in the first cloud between the parts, (parts + 1, systems)
    distances: np.ndarray  # the angle from the first to the second middle of the clouds, (parts + 1, systems)
    part: float  # the duration of each part


class Clouds(NamedTuple):
    """The passages between two clouds that are equal at first, at each temperature."""

    n: int  # the number of tokens of each system
    temperatures: np.ndarray
    exact: np.ndarray  # the mean time between passages of two equal clouds by quadrature, (temperatures,)
    passages: tuple[Passages, ...]  # the counts at each temperature
    # The number of tokens that leave each cloud by quadrature, at the masses and the distance of the clouds,
    # (temperatures, PARTS, 2, systems); NaN where the smaller cloud has no well
    expected: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        return np.stack([passages.counts for passages in self.passages])

    @property
    def smaller(self) -> np.ndarray:
        """True for the smaller cloud at the beginning of a part, (temperatures, PARTS, 2, systems)."""
        shares = np.stack([passages.shares[:-1] for passages in self.passages])
        return np.stack([shares < 0.5, shares > 0.5], axis=2)

    @property
    def _known(self) -> np.ndarray:
        return ~np.isnan(self.expected)

    def _times(self, counted: np.ndarray, spent: np.ndarray) -> Times:
        # The error of a count is that of Poisson's law.
        counted = np.maximum(counted, 1)
        none = np.full(len(counted), np.nan)
        return Times(self.temperatures, spent / counted, spent / counted**1.5, self.exact, none)

    def equal(self) -> Times:
        """The times between passages while the clouds are still equal."""
        spent = np.array([self.n * FRESH * passages.part * passages.counts.shape[2] for passages in self.passages])
        return self._times(self.counts[:, :FRESH].sum((1, 2, 3)), spent)

    def whole(self) -> tuple[Times, np.ndarray]:
        """The times between passages over the parts with a known expectation, and the expected times.

        `exact` is the time of equal clouds.
        """
        counted, expected = (np.where(self._known, part, 0).sum((1, 2, 3)) for part in (self.counts, self.expected))
        spent = self.n * np.array([passages.part for passages in self.passages]) * self._known[:, :, 0].sum((1, 2))
        return self._times(counted, spent), spent / expected

    def net(self) -> tuple[int, float, float]:
        """The excess of the tokens that left the smaller cloud over those that left the larger, its standard error, and
        the expected excess."""
        sign = np.where(self._known, self.smaller * 1 - self.smaller[:, :, ::-1], 0)
        return (
            int((sign * self.counts).sum()),
            float(np.sqrt((np.abs(sign) * self.counts).sum())),
            float(np.where(self._known, sign * self.expected, 0).sum()),
        )


class Results(NamedTuple):
    p: Parameters
    # `tokens`, `systems`: the number of tokens between clusters at rest, and the number of systems of clouds
    tokens: int
    systems: int
    held: dict[float, Times]  # the times between two clusters at rest, by beta
    coldest: dict[float, np.ndarray]  # all times at the lowest temperature in ascending order, by beta
    clouds: Clouds  # the passages of clouds
    limits: dict[float, float]  # the quadrature over Kramers' formula at the temperature of `COLD`, by beta


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    tokens, systems = EACH * settings.starts, max(2, min(settings.starts // 8, SYSTEMS))
    held, coldest, key = {}, {}, jr.key(settings.seed)
    for place, beta in enumerate(BETAS):
        say(f"simulating the escape of {tokens} tokens at beta = {beta:g}")
        run = lambda k, beta=beta, place=place: passage_times(
            jnp.asarray(beta), jnp.asarray(barrier(beta) / RATIOS[k]), jr.fold_in(key, 10 * place + k), tokens
        )  # fmt: skip
        times = [np.asarray(run(k)) for k in range(len(RATIOS))]
        held[beta], coldest[beta] = times_of(beta, times), np.sort(times[-1])
    say(f"simulating {systems} systems of two clouds")
    limits = {beta: passage(two_clusters(beta), barrier(beta) / COLD)[0] / kramers_prefactor(beta) for beta in BETAS}
    return Results(p, tokens, systems, held, coldest, _clouds(p, systems, key), limits)


def times_of(beta: float, times: list[np.ndarray]) -> Times:
    """Means and errors of the times of independent tokens at each of `RATIOS`."""
    temperatures = barrier(beta) / np.array(RATIOS)
    means, sizes = np.array([sample.mean() for sample in times]), np.array([sample.std(ddof=1) for sample in times])
    exact = np.array([passage_time(two_clusters(beta), t) for t in temperatures])
    return Times(temperatures, means, sizes / np.sqrt(len(times[0])), exact, sizes / means)


def _clouds(p: Parameters, systems: int, key: PRNGKeyArray) -> Clouds:
    exact, passages, expected = [], [], []
    for k, temperature in enumerate(CLOUD_TEMPERATURES):
        exact.append(passage_time(cloud(CLOUD_BETA, temperature)[0], temperature))
        passages.append(cloud_passages(
            CLOUD_BETA, temperature, jr.fold_in(key, 100 + k), systems=systems, tokens=p.n,
            window=p.window * exact[-1], parts=PARTS,
        ))  # fmt: skip
        expected.append(expected_passages(passages[-1], temperature, p.n))
    return Clouds(p.n, np.array(CLOUD_TEMPERATURES), np.array(exact), tuple(passages), np.stack(expected))


def expected_passages(passages: Passages, temperature: float, n: int) -> np.ndarray:
    """The expected counts by quadrature in the potential of the clouds at both ends of each part."""
    rates = np.full((passages.shares.shape[0], 2, passages.shares.shape[1]), np.nan)
    for part, system in np.ndindex(*passages.shares.shape):
        share, distance = passages.shares[part, system], passages.distances[part, system]
        # The error says that the smaller cloud has no well, or no token.
        with suppress(RuntimeError):
            times = exit_times(CLOUD_BETA, temperature, float(share), float(distance))
            rates[part, :, system] = share * n / times[0], (1 - share) * n / times[1]
    return (rates[1:] + rates[:-1]) / 2 * passages.part


# Theory: potentials and mean passage times.


Potential = Callable[[np.ndarray], np.ndarray]


def two_clusters(beta: float) -> Potential:
    """The potential of two opposite clusters, each of tokens that coincide."""
    return lambda theta: -(np.exp(beta * (np.cos(theta) - 1)) + np.exp(-beta * (np.cos(theta) + 1))) / (2 * beta)


def barrier(beta: float) -> float:
    """The height of the barrier of `two_clusters`."""
    return float(np.exp(-beta) * (np.cosh(beta) - 1) / beta)


def curvatures(beta: float) -> tuple[float, float]:
    """The absolute curvatures of `two_clusters` at a well and at a barrier."""
    return float(np.exp(-beta) * np.sinh(beta)), float(beta * np.exp(-beta))


def kramers_prefactor(beta: float) -> float:
    """Kramers' time between two clusters over exp(barrier / T)."""
    well, top = curvatures(beta)
    return float(np.pi / np.sqrt(well * top))


def passage(potential: Potential, temperature: float) -> tuple[float, float]:
    """The mean passage time from 0 to pi or -pi over the exponential of barrier / T, and barrier / T."""
    theta = np.linspace(0, np.pi, GRID + 1)
    u = potential(theta) / temperature
    low, high = u.min(), u.max()
    outer = np.exp(u - high) * cumulative_trapezoid(np.exp(low - u), theta, initial=0)
    return float(np.trapezoid(outer, theta) / temperature), float(high - low)


def passage_time(potential: Potential, temperature: float) -> float:
    """The mean passage time from 0 to pi or -pi."""
    scaled, exponent = passage(potential, temperature)
    return scaled * float(np.exp(exponent))


def exit_time(potential: Potential, temperature: float, left: float, right: float) -> float:
    """The mean time from 0 to the first passage of `left` < 0 or `right` > 0."""
    theta = np.linspace(left, right, GRID + 1)
    u = potential(theta) / temperature
    well, top = np.exp(u.min() - u), np.exp(u - u.max())
    along = partial(cumulative_trapezoid, x=theta, initial=0)
    # (e^{-U/T} T u')' = -e^{-U/T}: the flux is a constant less the mass so far, and u is zero at both ends.
    mass, rise = along(well), along(top)
    constant = along(top * mass)[-1] / rise[-1]
    times = along(top * (constant - mass))
    return float(np.interp(0.0, theta, times) / temperature * np.exp(u.max() - u.min()))


def kernel_modes(beta: float) -> np.ndarray:
    """c_m for m = 1, ..., MODES of $exp(β(cos θ - 1)) = c_0 + ∑_m c_m cos mθ$."""
    return 2 * ive(np.arange(1, MODES + 1), beta)


def _of_harmonics(strengths: np.ndarray, theta: np.ndarray) -> np.ndarray:
    return np.asarray(-np.cos(np.multiply.outer(theta, np.arange(1, MODES + 1))) @ strengths)


def cloud(beta: float, temperature: float) -> tuple[Potential, np.ndarray]:
    """The potential of two equal clouds that are stationary in it, and the means of cos(m theta) of their density."""
    m, c = np.arange(1, MODES + 1), kernel_modes(beta)
    theta = 2 * np.pi * np.arange(2048) / 2048
    waves = np.cos(np.outer(theta, m))
    # The clouds are narrow at first; the odd harmonics of two equal clouds vanish.
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
    """Two opposite clouds of masses `share` and 1 - `share`, each at rest in its well: the means of cos(m theta) of
    each cloud about its own middle, (2, MODES); raises a `RuntimeError` if the smaller cloud has no well."""
    m, c = np.arange(1, MODES + 1), kernel_modes(beta)
    theta = np.pi * (np.arange(2048) + 0.5) / 2048
    masses, signs = np.array([share, 1 - share])[:, None], np.stack([np.ones(MODES), (-1.0) ** m])
    waves = np.cos(np.outer(theta, m))
    q, edge = np.tile(np.exp(-0.01 * m**2), (2, 1)), 0
    for turn in range(10_000):
        u = -(waves @ (c * (masses * signs * q).sum(0))) / (beta * temperature)
        # The edge between the wells is the grid point of the largest U. After 50 iterations the edge is fixed, because
        # it could alternate between two neighbours; the density there is negligible.
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


def exit_times(beta: float, temperature: float, share: float, distance: float) -> tuple[float, float]:
    """The mean times of tokens of the first and of the second cloud to the middle of the other cloud, at the angle
    `distance`, between 0 and 2 pi, from the first middle to the second; `share` is the mass of the first cloud."""
    q, strengths = shapes(beta, temperature, share), kernel_modes(beta) / beta
    own = [partial(_of_harmonics, mass * strengths * shape) for mass, shape in zip((share, 1 - share), q, strict=True)]
    times = []
    # Each cloud is even about its middle, so that the view from the second is a mirror image with the same angle.
    for first, second in ((own[0], own[1]), (own[1], own[0])):
        potential = lambda theta, first=first, second=second: first(theta) + second(theta - distance)
        times.append(exit_time(potential, temperature, distance - 2 * np.pi, distance))
    return times[0], times[1]


# Simulations. Angles are unwrapped, and Heun's rule for additive noise, of weak order two, takes the steps. A token has
# escaped when it first reaches the middle of the other cluster, from which it escapes anew, so that passages are
# independent. The middles of two clouds are followed by half the phase of the mean of e^{2i theta}.


def _heun(
    theta: Array, key: PRNGKeyArray, k: Any, temperature: Scalar, force: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """The displacements by the force and by noise in step k, by Heun's rule."""
    noise = jnp.sqrt(2 * temperature * STEP) * jr.normal(jr.fold_in(key, k), theta.shape, theta.dtype)
    first = force(theta)
    return STEP * (first + force(theta + STEP * first + noise)) / 2, noise


def force(theta: Array, beta: Scalar) -> Array:
    """The force on a token between two clusters of half the mass each, at 0 and pi."""
    cosine = jnp.cos(theta)
    return -jnp.sin(theta) * (jnp.exp(beta * (cosine - 1)) - jnp.exp(-beta * (cosine + 1))) / 2


@eqx.filter_jit
def passage_times(beta: Scalar, temperature: Scalar, key: PRNGKeyArray, tokens: int) -> Float[Array, " tokens"]:
    def go(state):
        theta, times, k = state
        drift, noise = _heun(theta, key, k, temperature, lambda theta: force(theta, beta))
        theta = theta + drift + noise
        passed = (times == 0) & (jnp.abs(theta) >= jnp.pi)
        return theta, jnp.where(passed, (k + 1) * STEP, times), k + 1

    start = jnp.zeros(tokens), jnp.zeros(tokens), 0
    return lax.while_loop(lambda state: jnp.any(state[1] == 0), go, start)[1]


def mean_force(theta: Float[Array, "*systems n"], beta: Scalar, modes: Array) -> Array:
    """The force of all tokens of a system on each token, by the harmonics of the kernel."""
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
    """The share of tokens in the first cloud of each system, and the mean angles of both clouds."""
    part = lambda chosen, wave: jnp.sum(jnp.where(chosen, wave(theta), 0), axis=-1)
    angle = lambda chosen: jnp.arctan2(part(chosen, jnp.sin), part(chosen, jnp.cos))
    return jnp.mean(~second, axis=-1, dtype=theta.dtype), angle(~second), angle(second)


@eqx.filter_jit
def _passages(state, beta, modes, temperature, key, windows: int, steps) -> tuple[Array, Array]:
    """The counts in each of `windows` windows of `steps` steps, and share and distance of the clouds between them."""

    def go(k, state):
        theta, away, second, counts = state
        moved = sum(_heun(theta, key, k, temperature, lambda theta: mean_force(theta, beta, modes)))
        turn = middle(theta + moved) - middle(theta)
        turn = (turn - 2 * jnp.pi * jnp.round(turn / (2 * jnp.pi))) / 2
        away = away + moved - turn[:, None]
        over = jnp.abs(away) >= jnp.pi
        # After a passage the distance is measured from the other middle.
        away = jnp.where(over, away - jnp.pi * jnp.sign(away), away)
        passages = jnp.stack([jnp.sum(over & ~second, axis=1), jnp.sum(over & second, axis=1)])
        return theta + moved, away, second ^ over, counts + passages

    def clouds_of(state):
        share, first_centre, second_centre = centres(state[0], state[2])
        return jnp.stack([share, jnp.mod(second_centre - first_centre, 2 * jnp.pi)])

    def window(state, place):
        before = clouds_of(state)
        start = *state, jnp.zeros((2, before.shape[1]), int)
        *state, counts = lax.fori_loop(place * steps, (place + 1) * steps, go, start)
        return tuple(state), (counts, before)

    state, (counts, clouds) = lax.scan(window, state, jnp.arange(windows))
    return counts, jnp.concatenate([clouds, clouds_of(state)[None]])


def at_rest(potential: Potential, temperature: float, key: PRNGKeyArray, systems: int, tokens: int) -> Array:
    """The angles of tokens from the middle of their cloud, (systems, tokens), where passages are stationary.

    A token belongs to the cloud whose middle it reached last. Equilibrium is reversible in time, so that the
    probability of belonging to a cloud is that of reaching the middle of this cloud before that of the other.
    """
    x = np.linspace(0, np.pi, GRID + 1)
    u = potential(x) / temperature
    rise = np.cumsum(np.exp(u - u.max()))
    total = np.cumsum(np.exp(u.min() - u) * (1 - rise / rise[-1]))
    away, side = jr.split(key)
    drawn = jr.uniform(away, (systems, tokens))
    # At the middle of the other cloud a token would belong to the other cloud, hence the factor 1 - 1e-9.
    return jnp.interp(drawn, jnp.asarray(total / total[-1]), jnp.asarray(x * (1 - 1e-9))) * jr.rademacher(
        side, drawn.shape, drawn.dtype
    )


def cloud_passages(
    beta: float, temperature: float, key: PRNGKeyArray, *, systems: int, tokens: int, window: float, parts: int
) -> Passages:
    """Simulates two clouds of half the tokens each, and counts passages in `parts` parts of a window of time."""
    start, run = jr.split(key)
    away = at_rest(cloud(beta, temperature)[0], temperature, start, systems, tokens)
    second = jnp.broadcast_to(jnp.arange(tokens) % 2 == 1, away.shape)
    state = away + jnp.pi * second.astype(away.dtype), away, second
    modes, b, t = jnp.asarray(kernel_modes(beta)), jnp.asarray(beta), jnp.asarray(temperature)
    steps = max(round(window / STEP / parts), 1)
    counts, clouds = _passages(state, b, modes, t, run, parts, jnp.asarray(steps))
    return Passages(np.asarray(counts), np.asarray(clouds[:, 0]), np.asarray(clouds[:, 1]), steps * STEP)


@claim(f"each mean is within {SIGMAS:g} standard errors of the quadrature")
def first_passage(m: Results) -> Found:
    """Tokens pass from one of two clusters to the other in the mean first passage time of the quadrature."""
    off = np.concatenate([np.abs(times.means - times.exact) / times.errors for times in m.held.values()])
    share = max((times.errors / times.means).max() for times in m.held.values())
    return Found(
        f"the mean times of {m.tokens} tokens at each of {len(off)} temperatures differ from the quadrature by at most "
        f"{off.max():.2f} standard errors, which are at most {100 * share:.1f} % of the time",
        off.max() <= SIGMAS, off.max(),
    )  # fmt: skip


@claim("the slope is within 10 % of the barrier for each beta")
def arrhenius(m: Results) -> Found:
    """The logarithm of the mean time rises with 1 / T, at a slope that is the height of the barrier."""
    slopes = {beta: [part / barrier(beta) for part in times.slope()] for beta, times in m.held.items()}
    off = max(abs(slope - 1) for slope, _, _ in slopes.values())
    listed = ", ".join(
        f"{plus_minus(slope, error, 3)} at beta = {beta:g} (quadrature: {exact:.3f})"
        for beta, (slope, error, exact) in slopes.items()
    )
    return Found(f"the slope over the barrier is {listed}", off <= 0.1, off)


@claim("1 to within 0.03", kind="identity")
def limit(m: Results) -> Found:
    """Kramers' formula is the limit of the mean first passage time as T tends to zero."""
    off = max(abs(ratio - 1) for ratio in m.limits.values())
    listed = ", ".join(f"{ratio:.4f} (beta = {beta:g})" for beta, ratio in m.limits.items())
    return Found(f"the quadrature over the formula, where the barrier is {COLD:g} T, is {listed}", off <= 0.03, off)


@claim(
    "within 20 % for each beta",
    says=f"Kramers' formula predicts the mean time to within 20 % where the barrier is {RATIOS[-1]:g} T.",
)
def formula(m: Results) -> Found:
    words, off = [], []
    for beta, times in m.held.items():
        kramers = kramers_prefactor(beta) * np.exp(RATIOS[-1])
        ratio, error = times.means[-1] / kramers, times.errors[-1] / kramers
        width = np.sqrt(times.temperatures[-1] / curvatures(beta)[1])
        words.append(f"{plus_minus(ratio, error, 3)} at beta = {beta:g} ({width:.2f} radians)")
        off.append(abs(float(ratio) - 1))
    measured = "the time over the formula (and the width of the parabola that stands for the barrier) is "
    return Found(measured + "; ".join(words), max(off) <= 0.2, max(off))


@claim("1 to within three standard errors of exponential times")
def memory(m: Results) -> Found:
    """The standard deviation of the escape times equals their mean, as for escapes without memory."""
    off, most = max(abs(float(times.spread[-1]) - 1) for times in m.held.values()), SIGMAS / m.tokens**0.5
    listed = ", ".join(f"{times.spread[-1]:.3f} (beta = {beta:g})" for beta, times in m.held.items())
    return Found(
        f"the standard deviation over the mean, where the barrier is {RATIOS[-1]:g} T, is {listed}; three standard "
        f"errors of {m.tokens} exponential times are {most:.3f}",
        off <= most, off,
    )  # fmt: skip


POISSON = "(± over the passages, by Poisson's law)"
WITHIN = "within 20 % of 1 at each temperature"


def _over_theory(times: Times, theory: np.ndarray, words: str) -> Found:
    """The ratios of times to theory at each temperature, each of which must be within 20 % of 1."""
    ratios = times.means / theory
    rows = zip(times.temperatures, ratios, times.errors / theory, strict=True)
    listed = ", ".join(f"{plus_minus(ratio, error, 3)} (T = {t:g})" for t, ratio, error in rows)
    off = float(np.abs(ratios - 1).max())
    return Found(f"{words.format(listed)} {POISSON}", off <= 0.2, off)


@claim(WITHIN)
def equal_clouds(m: Results) -> Found:
    """Tokens pass between two equal clouds after the mean first passage time in the potential of the clouds."""
    times = m.clouds.equal()
    words = f"the time over the quadrature in the first {100 * FRESH // PARTS} % of the window is {{}}"
    return _over_theory(times, times.exact, words)


@claim(f"within {SIGMAS:g} standard errors of the quadrature")
def slope_of_clouds(m: Results) -> Found:
    """The logarithm of the time between passages of equal clouds rises with 1 / T at the slope that the potential of
    the clouds gives."""
    slope, error, exact = m.clouds.equal().slope()
    return Found(
        f"the slope of the logarithm of the time is {plus_minus(slope, error, 4)}, and {exact:.4f} by quadrature (the "
        f"barrier between clusters of tokens that coincide is {barrier(CLOUD_BETA):.4f}) {POISSON}",
        abs(slope - exact) <= SIGMAS * error, slope, error,
    )  # fmt: skip


@claim(WITHIN)
def unequal_clouds(m: Results) -> Found:
    """As clouds drift and grow unequal, the time between passages follows from the potential of clouds of these masses
    and this distance."""
    times, expected = m.clouds.whole()
    known = 100 * (1 - np.isnan(m.clouds.expected).mean())
    equal = ", ".join(f"{ratio:.2f}" for ratio in times.means / times.exact)
    words = (
        f"the time over the quadrature in the {known:.0f} % of the window in which both clouds have a well is {{}}; "
        f"the time over the time of equal clouds is {equal}"
    )
    return _over_theory(times, expected, words)


@claim(f"more than {SIGMAS:g} standard errors above zero")
def larger_grows(m: Results) -> Found:
    """Two equal clouds are not stable: more tokens leave the smaller cloud than the larger."""
    net, error, expected = m.clouds.net()
    ends = 100 * (0.5 + np.concatenate([np.abs(passages.shares[-1] - 0.5) for passages in m.clouds.passages]))
    return Found(
        f"{net} ± {error:.0f} more tokens left the smaller cloud than the larger, and {expected:.0f} by quadrature; "
        f"at the end the larger cloud has {ends.mean():.0f} % of the tokens on average, and at most {ends.max():.0f} "
        f"% {POISSON}",
        net > SIGMAS * error, net, error,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        "Tokens between two opposite clusters, under unnormalised attention on the circle with noise. (a) The "
        "potential of two clusters of tokens that coincide, over its barrier. (b) The mean time from one cluster to "
        f"the other against barrier over temperature, for {m.tokens} tokens each, with three standard errors; solid: "
        "quadrature; dashed: Kramers' formula, which takes the barrier for a parabola. (c) The share of tokens that "
        f"have not yet escaped, at the lowest temperature; dotted: exponential decay. (d) Clouds of {m.p.n} tokens at "
        f"beta = {CLOUD_BETA:g}: the time between passages against 1 / T, with three standard errors; dots: while the "
        "clouds are equal, with the quadrature in the potential of equal clouds (solid) and of tokens that coincide "
        "(dashed); diamonds: over the whole window, in which one cloud grows; rings: the quadrature at the masses and "
        f"distances of the clouds. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    table, (whole, expected) = {}, m.clouds.whole()
    by_beta = [(f"beta = {beta:g}", run, run.exact) for beta, run in m.held.items()]
    equal = m.clouds.equal()
    for name, run, exact in [
        *by_beta, ("equal clouds", equal, equal.exact), ("clouds as one grows", whole, expected)
    ]:  # fmt: skip
        table |= {f"T, {name}": run.temperatures, f"time, {name}": run.means, f"its error, {name}": run.errors}
        table[f"quadrature, {name}"] = exact
    for temperature, run in zip(m.clouds.temperatures, m.clouds.passages, strict=True):
        table[f"share_by_part of the larger cloud, T = {temperature:g}"] = (0.5 + np.abs(run.shares - 0.5)).mean(1)
        table[f"distance_by_part off pi, T = {temperature:g}"] = np.abs(run.distances - np.pi).mean(1)
    return table


COLOURS = dict(zip(BETAS, OKABE_ITO[:3], strict=True))
MARKERS = dict(zip(BETAS, "os^", strict=True))


def _potentials(ax: Axes, m: Results) -> None:
    theta = np.linspace(-np.pi, np.pi, 401)
    for beta, colour in COLOURS.items():
        u = two_clusters(beta)(theta)
        ax.plot(theta, (u - u.min()) / barrier(beta), color=colour, label=rf"$\beta$ = {beta:g}")
    ax.set(xlabel=r"angle $\theta$ (radians)", ylabel=r"$(U - U_{min}) / \Delta U$", ylim=(-0.05, 1.4))
    ax.set_xticks([-np.pi, 0, np.pi], [r"$-\pi$", "0", r"$\pi$"])
    ax.legend(loc="upper center", ncols=3)


def _with_errors(ax: Axes, x: np.ndarray, times: Times, marker: str, colour: str, label: str) -> None:
    ax.errorbar(x, times.means, 3 * times.errors, fmt=marker, ms=4, color=colour, capsize=2, label=label)


def _times(ax: Axes, m: Results) -> None:
    ratios = np.linspace(RATIOS[0] - 0.2, RATIOS[-1] + 0.2, 40)
    for beta, times in m.held.items():
        colour, height = COLOURS[beta], barrier(beta)
        ax.plot(ratios, [passage_time(two_clusters(beta), height / ratio) for ratio in ratios], color=colour, lw=1.1)
        ax.plot(ratios, kramers_prefactor(beta) * np.exp(ratios), color=colour, lw=0.9, ls="--")
        _with_errors(ax, height / times.temperatures, times, MARKERS[beta], colour, rf"$\beta$ = {beta:g}")
    ax.set(yscale="log", xlabel=r"$\Delta U / T$", ylabel="mean escape time")
    ax.legend(loc="upper left")


def _shares(ax: Axes, m: Results) -> None:
    for beta, times in m.coldest.items():
        remaining = np.maximum(1 - np.arange(1, len(times) + 1) / len(times), 0.5 / len(times))
        ax.step(
            times / times.mean(), remaining, where="post", color=COLOURS[beta], lw=1.1, label=rf"$\beta$ = {beta:g}"
        )
    x = np.linspace(0, 7, 50)
    ax.plot(x, np.exp(-x), color="0.2", lw=1.0, ls=":")
    ax.set(yscale="log", xlim=(0, 7), ylim=(5e-4, 1.3), xlabel="time over its mean", ylabel="share not yet escaped")
    ax.legend(loc="upper right")


def _cloud_times(ax: Axes, m: Results) -> None:
    t, (whole, expected) = m.clouds.temperatures, m.clouds.whole()
    inverse = np.linspace(1 / t.max() - 1, 1 / t.min() + 1, 25)
    for potential, how in (
        (lambda at: cloud(CLOUD_BETA, at)[0], {"color": OKABE_ITO[0], "lw": 1.1}),
        (lambda at: two_clusters(CLOUD_BETA), {"color": "0.4", "lw": 0.9, "ls": "--"}),
    ):
        ax.plot(inverse, [passage_time(potential(1 / at), 1 / at) for at in inverse], **how)
    _with_errors(ax, 1 / t, m.clouds.equal(), "o", OKABE_ITO[0], "equal clouds")
    _with_errors(ax, 1 / t, whole, "D", OKABE_ITO[1], "as one grows")
    ax.plot(1 / t, expected, "o", ms=9, mfc="none", mec="0.2", mew=0.9, label="quadrature, as one grows")
    ax.set(yscale="log", xlabel="1 / T", ylabel="mean time between passages")
    ax.legend(loc="upper left")


FIGURE = figure(
    __name__,
    draw=lambda m: panels(m, (_potentials, _times, _shares, _cloud_times), columns=2, height=5.4),
    over=lambda m: f"{m.tokens} tokens at each temperature",
    on=lambda m: Measured(
        PARTICLES,
        Subject("clusters", "two opposite clusters"),
        {"tokens": (m.p.n, m.tokens), "d": 2, "beta": BETAS, "systems": m.systems},
    ),
    recorded=lambda m: {
        "d": 2, "beta": list(BETAS), "value": "identity", "query_key": "identity", "mask": "full", "starts": m.tokens,
        "barrier over temperature": list(RATIOS), "coldest": COLD, "step": STEP, "beta of clouds": CLOUD_BETA,
        "temperatures of clouds": list(CLOUD_TEMPERATURES), "systems": m.systems, "harmonics": MODES, "grid": GRID,
    },
)  # fmt: skip
