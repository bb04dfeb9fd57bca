"""Tokens under noise (2604.16288, 2606.05140): below which temperature do tokens gather, and do they gather by a jump?

Stationary densities are the branches of `clusterjax.phase.branch`, for beta = 1, ..., 9 on the circle and on the
sphere. A loop raises and lowers the temperature of a `MeanField` about one axis in steps, long enough at each to come
to rest. Many tokens, by the series of the kernel, are compared with the branches; in further dimensions the critical
temperature follows from the fluctuations of the mean of uniform tokens above it.

**Algorithm for tokens.** Attention is divided by $T_c$, so that temperatures are relative to $T_c$ and the uniform
density relaxes at the rate $(d - 1)(T - 1)$. A step of length s is one step of the midpoint rule along the velocity,
then one of Brownian motion on the sphere (`NoisyLayer`). The norm r of the mean token is estimated for the middle of
the noise, where the error is of order s². Noise alone multiplies the cosine of two different tokens by
$exp(-2(d-1)Ts)$ in a step, whereas the cosine of a token with itself stays 1: the value of r² - 1/n in the middle is
therefore, in expectation, the value after the step times $exp((d-1)Ts)$. The steps in which tokens come to rest are
longer than the steps over which r is averaged, because the error of the latter must be smaller than the error of the
average. **Invariant.** Each number is computed for independent systems, whose spread gives its error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import ive
from scipy.stats import norm, t as student

from ..._base.types import RealScalarLike, Tokens
from ..._dynamics.noise import NoisyLayer
from ..._dynamics.rodas5p import Rodas5P
from ..._dynamics.simulate import simulate
from ..._model.attention import UnnormalisedAttention
from ..._model.density import MeanField
from ..._model.field import AttentionField, FunctionField
from ..._model.layer import AbstractLayer
from ..._model.space import AbstractSpace, Euclidean, Sphere
from ..._observables import uniform_growth_rates
from ..._summation import Dense, Harmonic
from ...phase import Branch, branch
from ...plot import OKABE_ITO
from ..framework.figure import ANY, Claim, Found, Say, Settings, Source, claim, figure, parameter, plus_minus, unmet
from ..shared.layout import panels
from ..shared.sources import PARTICLES, particles


BETAS = tuple(float(beta) for beta in range(1, 10))
CONTINUOUS = 1.0  # a beta below beta_*
LOOP = {2: 5.0, 3: 3.0}  # the beta of the loops, by dimension
DEGREE = 24  # the degree of the harmonics of the loops
REST = 15_000.0  # the time of the loop at each temperature: at NEAR below T_c modes grow like e^(15 (d - 1))
NEAR = 1e-3  # the relative distance of the temperatures of the loop from T_c and from the fold
DIMENSIONS = (2, 3, 4, 8, 16)
RATIO = 2.0  # T / T_c where fluctuations are measured
COLD = 0.8  # T / T_c where spread tokens gather
SYSTEMS = 8  # the largest number of systems of tokens
PAIRS_AT_ONCE = 2**20  # the number of pairs of tokens at once
FEW = 400  # the largest number of tokens for which all pairs are summed
SAVES = 64  # the number of saves of a run
STEP = 0.05  # the largest step, multiplied by d - 1
STEEP = 0.3  # the largest step, multiplied by the fastest rate of attention
FINER = 4.0  # the factor by which steps are shorter where r is averaged
SIGMAS = 3.0


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(12_500, "the number of tokens of each of up to 8 systems", quick=500, least=100, most=10**6)
    small: int = parameter(256, "the number of tokens of a small system", quick=64, least=16, most=10**4)
    time: float = parameter(40.0, "the time of fluctuations, times the slowest rate", quick=10.0, least=4, most=1000)


class Sample(NamedTuple):
    """A number of each independent system, such as the mean norm of the mean token at the end of a stay."""

    each: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.each.mean())

    @property
    def error(self) -> float:
        return float(self.each.std(ddof=1) / np.sqrt(len(self.each)))

    def off(self, value: float) -> float:
        """The number of standard errors between mean and value that is as improbable for a normal distribution as the
        measured number is for Student's distribution of these few systems."""
        distance = abs(self.mean - value) / self.error
        return float(norm.isf(student.sf(distance, len(self.each) - 1)))


class Stay(NamedTuple):
    ratio: float  # T / T_c
    time: float  # the duration
    name: str  # the name of the average over the end of the stay


class Loop(NamedTuple):
    """The order parameter along a loop in temperature."""

    ratios: np.ndarray  # T / T_c, in ascending order
    # `rising`, `falling`: the order parameter as the temperature rises, and as it falls again
    rising: np.ndarray
    falling: np.ndarray
    # The ends of the runs that begin just below and just above the unstable density, at one temperature
    beside: tuple[float, float]


class Bracket(NamedTuple):
    """r of gathered tokens after a while at one temperature above T_c, for beta below and above beta_*."""

    left: tuple[Sample, Sample]  # r for both beta
    branch: float  # r of the branch for the larger beta


class Results(NamedTuple):
    p: Parameters
    starts: int
    branches: dict[tuple[int, float], Branch]  # by dimension and beta
    loops: dict[int, Loop]  # by dimension, for the beta of `LOOP`
    # The averages of tokens by dimension and beta, and by the names of `stays_of`
    tokens: dict[tuple[int, float], dict[str, Sample]]
    critical: dict[int, Sample]  # the critical temperature of tokens over the theory, by dimension
    brackets: dict[int, Bracket]  # by dimension


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    branches, loops, tokens, critical, brackets = {}, {}, {}, {}, {}
    for d in (2, 3):
        say(f"following branches with d = {d}")
        branches |= {(d, beta): branch(UnnormalisedAttention(beta), d) for beta in BETAS}
    for d, beta in LOOP.items():
        say(f"raising and lowering the temperature with d = {d}")
        loops[d] = loop(branches[d, beta], beta, d)
    systems = min(settings.starts, SYSTEMS)
    for d in (2, 3):
        for beta in (CONTINUOUS, LOOP[d]):
            say(f"simulating {systems} systems of {p.n} tokens with d = {d} and beta = {beta:g}")
            key = jr.fold_in(jr.key(settings.seed), 10 * d + int(beta))
            start = gathered(key, systems, p.n, d)
            tokens[d, beta] = follow(field_of(beta, d, p.n), start, stays_of(d, beta), key)
    for d in DIMENSIONS:
        say(f"simulating with d = {d}")
        key = jr.fold_in(jr.key(settings.seed), 100 + d)
        num_systems = max(4, min(settings.starts, 32))
        critical[d] = resisting(CONTINUOUS, d, p.small, num_systems, key, RATIO, p.time)
        brackets[d] = bracket(d, 4 * p.small, min(systems, 4), key)
    return Results(p, systems, branches, loops, tokens, critical, brackets)


def critical_temperature(beta: float, d: int) -> float:
    """T_c of unnormalised attention, a_1 / beta."""
    return float(uniform_growth_rates(beta, d, 1, unnormalised=True)[1]) / (d - 1)


def tricritical_beta(d: int) -> float:
    """The largest beta of a continuous transition: $I_{d/2+1}(β_*)/I_{d/2}(β_*) = 1/d$ (2606.05140)."""
    return float(brentq(lambda beta: ive(d / 2 + 1, beta) / ive(d / 2, beta) - 1 / d, 1e-3, 20.0, xtol=1e-13))  # pyright: ignore


class Midpoint(AbstractLayer):
    field: AttentionField
    step: Float[Array, ""]
    space: AbstractSpace = Sphere()

    def __call__(self, k: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        middle = self.space.retract(x + self.step / 2 * self.field(0.0, x, args))
        return self.space.retract(x + self.step * self.field(0.0, middle, args))

    def check(self, n: int, d: int) -> None:
        self.field.check(n, d)


def field_of(beta: float, d: int, n: int) -> AttentionField:
    """Attention divided by T_c, among n tokens."""
    # The default tolerance of float32 certifies nearly all rows; at 1e-4 most rows need all pairs, ten times slower.
    summation = Harmonic() if d <= 3 and n > FEW else Dense()
    offset = float(np.log(critical_temperature(beta, d)))
    return AttentionField(UnnormalisedAttention(beta, offset=offset, summation=summation))


def gathered(key: PRNGKeyArray, systems: int, n: int, d: int) -> Float[Array, "systems n d"]:
    """Systems of tokens near one point."""
    point = jnp.zeros((1, 1, d), jnp.float32).at[..., 0].set(1)
    return Sphere().retract(point + 0.3 * jr.normal(key, (systems, n, d), jnp.float32))


def spread(key: PRNGKeyArray, systems: int, n: int, d: int) -> Float[Array, "systems n d"]:
    return Sphere().retract(jr.normal(key, (systems, n, d), jnp.float32))


@eqx.filter_jit
def _run(
    layer: AbstractLayer, xs: Array, keys: Key[Array, " systems"], temperature: Array, step: Array, every: Array
) -> tuple[Float[Array, "systems n d"], Float[Array, "systems saves"]]:
    """The tokens of all systems at the end, and the squared norm of the mean token at all saves, which may be negative.

    The number of layers between saves is traced, unlike that of `iterate`, because it differs between stays.
    """

    def run_system(start: tuple[Array, PRNGKeyArray]) -> tuple[Array, Array]:
        x, key = start
        noisy = NoisyLayer(layer, temperature, time=step, key=key)

        def save(x: Array, place: Array) -> tuple[Array, Array]:
            x = jax.lax.fori_loop(place * every, (place + 1) * every, lambda k, x: noisy(k, x), x)
            return x, jnp.sum(jnp.mean(x, axis=0) ** 2)

        return jax.lax.scan(save, x, jnp.arange(SAVES))

    # Many small systems run at once, few large systems one after the other.
    _, n, d = xs.shape
    xs, squares = jax.lax.map(run_system, (xs, keys), batch_size=max(1, PAIRS_AT_ONCE // n**2))
    return xs, 1 / n + (squares - 1 / n) * jnp.exp((d - 1) * temperature * step)


def run(
    field: AttentionField,
    xs: Float[Array, "systems n d"],
    ratio: float,
    time: float,
    key: PRNGKeyArray,
    *,
    finer: float = 1.0,
) -> tuple[Array, np.ndarray]:
    """The tokens after a time at T / T_c = `ratio`, and the squared norm of the mean token, (systems, SAVES)."""
    attention = field.attention
    assert isinstance(attention, UnnormalisedAttention)
    # The rate at which two near tokens approach each other.
    fastest = float(np.exp(np.asarray(attention.beta) - np.asarray(attention.offset)))
    longest = min(STEP / (xs.shape[2] - 1), STEEP / fastest) / finer
    every = int(np.ceil(time / longest / SAVES))
    step = jnp.float32(time / (SAVES * every))
    keys = jr.split(key, len(xs))
    xs, squares = _run(Midpoint(field=field, step=step), xs, keys, jnp.float32(ratio), step, jnp.asarray(every))
    return xs, np.asarray(squares, float)


def follow(
    field: AttentionField, xs: Float[Array, "systems n d"], stays: tuple[Stay, ...], key: PRNGKeyArray
) -> dict[str, Sample]:
    """Runs one stay after the other: the first half of each to come to rest, the second half in finer steps."""
    samples = {}
    for place, stay in enumerate(stays):
        to_rest, at_rest = jr.split(jr.fold_in(key, place))
        xs, _ = run(field, xs, stay.ratio, stay.time / 2, to_rest)
        xs, squares = run(field, xs, stay.ratio, stay.time / 2, at_rest, finer=FINER)
        # In the first quarter the error of the longer steps decays.
        samples[stay.name] = Sample(np.sqrt(np.maximum(squares[:, SAVES // 4 :], 0)).mean(axis=1))
    return samples


def resisting(beta: float, d: int, n: int, systems: int, key: PRNGKeyArray, ratio: float, time: float) -> Sample:
    """T_c of each system over theory: $T(1 - 1/(n⟨r²⟩))$ at a temperature above T_c, where the uniform density is in
    equilibrium (the law of Curie and Weiss); `time` is in units of the slowest relaxation time."""
    field = field_of(beta, d, n)
    xs = spread(key, systems, n, d)
    rate = (d - 1) * (ratio - 1)
    xs, _ = run(field, xs, ratio, 4 / rate, jr.fold_in(key, 1))
    _, squares = run(field, xs, ratio, time / rate, jr.fold_in(key, 2))
    by_system = n * squares.mean(axis=1)
    mean = by_system.mean()
    # The formula is linearised about the mean of all systems: 1 / x of each system has a bias from the variance of x.
    return Sample(ratio * (1 - 1 / mean + (by_system - mean) / mean**2))


def stays_of(d: int, beta: float) -> tuple[Stay, ...]:
    """The stays of tokens that are gathered at first; durations are in units of the slowest relaxation time."""
    rate = d - 1
    if beta == CONTINUOUS:
        return Stay(0.5, 8 / rate, "half"), Stay(0.9, 40 / rate, "near")
    return (
        # Tokens come to rest slowly near the fold.
        Stay(1.05, 24 / rate, "from below"),
        Stay(1.4, 10 / rate, "hot"),
        Stay(1.05, 6 / rate, "from above"),
        # At 0.6 T_c, where the harmonics of degree 2 grow too, some systems stay in two clusters.
        Stay(COLD, 60 / rate, "cold"),
    )


def _middle_temperature(curve: Branch) -> float:
    assert curve.fold is not None
    return (1 + curve.fold.temperature / curve.critical_temperature) / 2


def at_temperature(curve: Branch, ratio: float, *, stable: bool = True) -> float:
    """The order parameter at T / T_c on the stable or the unstable part of the branch; zero where there is none."""
    part = curve.order_parameters > (curve.fold.order_parameter if curve.fold else 0)
    part = part if stable else ~part
    ratios, rs = curve.temperatures[part] / curve.critical_temperature, curve.order_parameters[part]
    order = np.argsort(ratios)
    if not len(rs) or not ratios.min() <= ratio <= ratios.max():
        return 0.0
    # Each part is monotone; the interpolant has no square root at the fold.
    return float(PchipInterpolator(ratios[order], rs[order])(ratio))


def loop(curve: Branch, beta: float, d: int) -> Loop:
    """Raises and lowers the temperature of the mean field; T_c and the fold have a temperature on either side."""
    critical = curve.critical_temperature
    assert curve.fold is not None
    top = curve.fold.temperature / critical
    inner = np.linspace(1, top, 6)[1:-1]
    ratios = np.array([0.9, 0.95, 1 - NEAR, 1 + NEAR, *inner, top * (1 - NEAR), top * (1 + NEAR), top + 0.05])
    attention = UnnormalisedAttention(beta, offset=float(np.log(critical)))

    def velocity(t, a, temperature):
        field = MeanField(attention, d=d, degree=DEGREE, temperature=temperature)
        c = jnp.zeros((DEGREE + 1, field.basis.columns(DEGREE)), a.dtype).at[:, 0].set(a[:, 0])
        return field(t, c)[:, :1]

    zonal = FunctionField(velocity, Euclidean())

    def rest(a, ratio):
        # Without this perturbation a density that is uniform up to rounding errors would stay uniform.
        a = a.at[1, 0].add(1e-4)
        ts = jnp.asarray([0.0, REST])
        return simulate(zonal, a, ts, jnp.asarray(ratio), solver=Rodas5P(), max_steps=100_000).x1

    r = lambda a: abs(float(a[1, 0])) / np.sqrt(d)
    state, path = jnp.zeros((DEGREE + 1, 1)).at[0, 0].set(1).at[1, 0].set(0.3), []
    for ratio in (*ratios, *ratios[::-1]):
        state = rest(state, ratio)
        path.append(r(state))
    half, beside = _middle_temperature(curve), []
    unstable = at_temperature(curve, half, stable=False)
    for factor in (0.95, 1.05):
        index = int(np.argmin(np.abs(curve.order_parameters - factor * unstable)))
        beside.append(r(rest(jnp.asarray(curve.coefficients(index)[: DEGREE + 1, :1]), half)))
    return Loop(ratios, np.array(path[: len(ratios)]), np.array(path[len(ratios) :])[::-1], (beside[0], beside[1]))


def bracket(d: int, n: int, systems: int, key: PRNGKeyArray) -> Bracket:
    """Simulates gathered tokens at one temperature above T_c, for beta below and above beta_*."""
    betas = (0.7 * tricritical_beta(d), 1.6 * tricritical_beta(d))
    above = branch(UnnormalisedAttention(betas[1]), d)
    ratio, left = _middle_temperature(above), []
    for place, beta in enumerate(betas):
        start = gathered(jr.fold_in(key, place), systems, n, d)
        stays = (Stay(ratio, 40 / (d - 1), "left"),)
        left.append(follow(field_of(beta, d, n), start, stays, jr.fold_in(key, 10 + place))["left"])
    return Bracket((left[0], left[1]), at_temperature(above, ratio))


def _even(rs: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """The coefficients of 1, r^2 and r^4 of the even polynomial through three points."""
    return np.linalg.solve(np.stack([rs ** (2 * k) for k in range(3)], 1), ratios)


def curvature(beta: float, d: int) -> float:
    """The derivative of T / T_c by r^2 at r = 0 along the branch; negative where the transition is continuous."""
    curve = branch(UnnormalisedAttention(beta), d, order_parameters=[0.01, 0.02, 0.03])
    return float(_even(curve.order_parameters, curve.temperatures / critical_temperature(beta, d))[1])


ONSET = Source("2604.16288 and 2606.05140, T_c = a_1(beta) / beta", (PARTICLES, ANY), ANY)
JUMP = Source("2604.16288 (circle) and 2606.05140, beta_*", (PARTICLES, ANY), ANY)


def _share_held(measured: str, held: list) -> Found:
    """All conditions must hold; the value is the share of the conditions that hold."""
    return Found(measured, all(held), float(np.mean(held)))


@claim("less than 1e-8", kind="identity")
def onset(m: Results) -> Found:
    """The branch of gathered densities begins at the uniform density where T = T_c = a_1 / beta."""
    start = lambda curve: _even(curve.order_parameters[:3], curve.temperatures[:3] / curve.critical_temperature)[0]
    off = max(abs(float(start(curve)) - 1) for curve in m.branches.values())
    where = f"beta = {BETAS[0]:g} to {BETAS[-1]:g} on the circle and on the sphere"
    return Found(f"as r tends to zero T / T_c differs from 1 by at most {off:.1e} for {where}", off < 1e-8, off)


@claim("no branch is of the other kind, and the error of beta_* is less than 1e-4", source=JUMP)
def jump(m: Results) -> Found:
    """As T falls, the density gathers continuously for beta up to beta_*, and by a jump for larger beta."""
    wrong = [key for key, curve in m.branches.items() if curve.continuous != (key[1] <= tricritical_beta(key[0]))]
    specials, roots = {d: tricritical_beta(d) for d in (2, 3)}, []
    for d, special in specials.items():
        low, high = (curvature(special + shift, d) for shift in (-0.01, 0.01))
        roots.append(abs(-0.01 + 0.02 * low / (low - high)))
    return Found(
        f"beta_* is {', '.join(f'{special:.4f} (d = {d})' for d, special in specials.items())}; the curvature of the "
        f"branch at r = 0 changes its sign there, with an error of at most {max(roots):.1e}; {len(wrong)} of "
        f"{len(m.branches)} branches are of the other kind",
        not wrong and max(roots) < 1e-4, max(roots),
    )  # fmt: skip


@claim(f"each jump is within {NEAR:g} of T_c or of the fold, and r within 0.001 of the branch")
def mean_field_loop(m: Results) -> Found:
    """The mean field has a hysteresis loop from T_c to the fold of the branch, and follows the branch."""
    held, words = [], []
    for d, loop in m.loops.items():
        curve = m.branches[d, LOOP[d]]
        assert curve.fold is not None
        top, up = curve.fold.temperature / curve.critical_temperature, loop.rising > 0.1
        left_at, joined = loop.ratios[up].max(), loop.ratios[loop.falling > 0.1].max()
        above = [at_temperature(curve, ratio) for ratio in loop.ratios[up]]
        held += [abs(left_at - top) <= 2 * NEAR * top, abs(joined - 1) <= 2 * NEAR]
        held.append(float(np.abs(loop.rising[up] - above).max()) < 1e-3)
        words.append(
            f"d = {d}, beta = {LOOP[d]:g}: the density is gathered up to {left_at:.4f} T_c as T rises (fold: {top:.4f} "
            f"T_c), and from {joined:.4f} T_c on as T falls"
        )
    return _share_held("; ".join(words), held)


@claim("below 0.01 and above 0.5")
def separatrix(m: Results) -> Found:
    """The unstable density separates densities that spread from densities that gather."""
    ends = {d: loop.beside for d, loop in m.loops.items()}
    listed = "; ".join(f"r = {below:.3f} and {above:.3f} (d = {d})" for d, (below, above) in ends.items())
    held = [below < 0.01 and above > 0.5 for below, above in ends.values()]
    return _share_held(f"runs that begin 5 % below and above its order parameter end at {listed}", held)


def gathered_stays(m: Results) -> Iterator[tuple[int, float, Stay, Sample, float]]:
    """Dimension, beta, stay, average and r of the branch, for each stay at which tokens are gathered."""
    for (d, beta), samples in m.tokens.items():
        for stay in stays_of(d, beta):
            if stay.name not in ("hot", "from above"):
                yield d, beta, stay, samples[stay.name], at_temperature(m.branches[d, beta], stay.ratio)


@claim(f"each is within {SIGMAS:g} standard errors, corrected for the number of systems")
def tokens_on_branch(m: Results) -> Found:
    """Many tokens have the order parameter of the stable part of the branch."""
    off = max(order.off(branch) for *_, order, branch in gathered_stays(m))
    listed = ", ".join(
        f"{plus_minus(order.mean, order.error, 4)} for {branch:.4f} (d = {d}, beta = {beta:g}, T = {stay.ratio:g} T_c)"
        for d, beta, stay, order, branch in gathered_stays(m)
    )
    return Found(f"{m.starts} systems of {m.p.n} tokens have r = {listed}", off <= SIGMAS, off)


@claim("above 0.5 and below 0.2")
def hysteresis(m: Results) -> Found:
    """At 1.05 T_c, between T_c and the fold, gathered tokens stay gathered, and spread tokens stay spread."""
    pairs = {d: (m.tokens[d, beta]["from below"], m.tokens[d, beta]["from above"]) for d, beta in LOOP.items()}
    listed = "; ".join(
        f"{plus_minus(below.mean, below.error, 3)} from below and {plus_minus(above.mean, above.error, 3)} from above "
        f"(d = {d}, beta = {LOOP[d]:g})"
        for d, (below, above) in pairs.items()
    )
    return _share_held(f"r at 1.05 T_c is {listed}", [up.mean > 0.5 and down.mean < 0.2 for up, down in pairs.values()])


@claim(f"1 within {SIGMAS:g} standard errors for d = {', '.join(map(str, DIMENSIONS))}", source=ONSET)
def critical(m: Results) -> Found:
    """The critical temperature of tokens is T_c = a_1 / beta in each of the dimensions 2, 3, 4, 8 and 16."""
    off = max(sample.off(1.0) for sample in m.critical.values())
    listed = ", ".join(f"{plus_minus(sample.mean, sample.error, 3)} (d = {d})" for d, sample in m.critical.items())
    return Found(
        f"T (1 - 1 / (n <r^2>)) at {RATIO:g} T_c, over T_c, of {m.p.small} tokens with beta = {CONTINUOUS:g} is "
        f"{listed} (± over {len(m.critical[2].each)} systems)",
        off <= SIGMAS, off,
    )  # fmt: skip


@claim(
    "below and above half of r of the branch, in the middle between T_c and the fold of the larger beta", source=JUMP
)
def brackets(m: Results) -> Found:
    """In each of five dimensions gathered tokens spread just above T_c for beta = 0.7 beta_*, and stay gathered for
    beta = 1.6 beta_*."""
    means = {d: [sample.mean for sample in bracket.left] for d, bracket in m.brackets.items()}
    held = [means[d][0] < bracket.branch / 2 < means[d][1] for d, bracket in m.brackets.items()]
    listed = ", ".join(f"{below:.2f} and {above:.2f} (d = {d})" for d, (below, above) in means.items())
    return _share_held(f"r of {4 * m.p.small} tokens at the end is {listed}", held)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        "Unnormalised attention with V = I and noise of temperature T: the norm r of the mean token against T / T_c, "
        "(a) on the circle and (b) on the sphere, for beta = 1 to 9. Solid lines: stable densities; dashed lines: "
        "unstable densities; dots: folds; crosses: equal free energies; squares: tokens, with three standard errors. "
        "(c) The temperature is raised and lowered: mean field (triangles) and tokens (squares). (d) The critical "
        f"temperature of tokens over the theory, in five dimensions. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    table = {}
    for (d, beta), curve in m.branches.items():
        name = f"d = {d}, beta = {beta:g}"
        table |= {f"r, {name}": curve.order_parameters, f"T, {name}": curve.temperatures}
        table[f"growth rate, {name}"] = curve.growth_rates
        table[f"r and T of the fold and of equal free energies, {name}"] = [
            number for point in (curve.fold, curve.coexistence) if point for number in point
        ]
    for d, loop in m.loops.items():
        table |= {f"T / T_c of the loop, d = {d}": loop.ratios, f"rising, d = {d}": loop.rising}
        table[f"falling, d = {d}"] = loop.falling
    return table


SPACES = {2: "circle", 3: "sphere"}


def draw(m: Results) -> Figure:
    diagrams = (lambda ax, m: _diagram(ax, m, 2)), (lambda ax, m: _diagram(ax, m, 3))
    return panels(m, (*diagrams, _loops, _dimensions), columns=2, height=5.6)


def _branch(ax: Axes, curve: Branch, colour: Any, label: str | None = None) -> None:
    ratios, rs = curve.temperatures / curve.critical_temperature, curve.order_parameters
    split = curve.fold.order_parameter if curve.fold else 0.0
    ax.plot(ratios[rs >= split], rs[rs >= split], ls="-", lw=1.1, color=colour, label=label)
    if split:
        ax.plot(ratios[rs <= split], rs[rs <= split], ls="--", lw=0.9, color=colour)


def _diagram(ax: Axes, m: Results, d: int) -> None:
    ax.plot([1, 3], [0, 0], color="0.2", lw=1.1)
    ax.plot([0, 1], [0, 0], color="0.2", lw=0.9, ls="--")
    for beta in BETAS:
        # The colours also differ in brightness.
        curve, colour = m.branches[d, beta], matplotlib.colormaps["viridis"](0.9 * (beta - 1) / (BETAS[-1] - 1))
        _branch(ax, curve, colour, f"{beta:g}")
        for point, marker, size in ((curve.fold, "o", 3), (curve.coexistence, "x", 4)):
            if point is not None:
                ratio = point.temperature / curve.critical_temperature
                ax.plot(ratio, point.order_parameter, marker=marker, ms=size, color=colour, ls="none")
    how = {"fmt": "s", "ms": 3.5, "mfc": "none", "color": OKABE_ITO[1], "capsize": 2}
    for at, _, stay, sample, _ in gathered_stays(m):
        if at == d:
            ax.errorbar(stay.ratio, sample.mean, 3 * sample.error, **how)
    ax.set(xlim=(0.4, 1.42 if d == 2 else 2.3), ylim=(-0.03, 1.03), xlabel="$T / T_c$", ylabel=f"r, {SPACES[d]}")
    if d == 2:
        ax.legend(title=r"$\beta$", ncols=2, loc="lower left", fontsize=7, title_fontsize=8, borderaxespad=1.0)


def _loops(ax: Axes, m: Results) -> None:
    for (d, loop), colour in zip(m.loops.items(), (OKABE_ITO[0], OKABE_ITO[2]), strict=True):
        beta = LOOP[d]
        _branch(ax, m.branches[d, beta], "0.7")
        label = rf"{SPACES[d]}, $\beta$ = {beta:g}, T up"
        ax.plot(loop.ratios, loop.rising, marker=">", ms=4, ls="none", mfc="none", color=colour, label=label)
        ax.plot(loop.ratios, loop.falling, marker="<", ms=4, ls="none", color=colour, label="T down")
        for stay in stays_of(d, beta):
            sample = m.tokens[d, beta][stay.name]
            ax.errorbar(stay.ratio, sample.mean, 3 * sample.error, fmt="s", ms=5, mfc="none", color=colour, capsize=2)
    ax.set(xlim=(0.88, 1.2), ylim=(-0.03, 1.03), xlabel="$T / T_c$", ylabel="r")
    ax.legend(loc="center left", fontsize=7)


def _dimensions(ax: Axes, m: Results) -> None:
    means, errors = np.array([(sample.mean, 3 * sample.error) for sample in m.critical.values()]).T
    label = f"from fluctuations at {RATIO:g} $T_c$"
    ax.axhline(1.0, color="0.6", lw=0.8, ls=":")
    ax.errorbar(list(m.critical), means, errors, fmt="o", ms=4, color=OKABE_ITO[0], capsize=2, label=label)
    ax.set(xscale="log", xlabel="dimension d", ylabel="$T_c$ of tokens over theory")
    ax.set_xticks(list(m.critical), [str(d) for d in m.critical])
    ax.minorticks_off()
    low, high = ax.get_ylim()
    low, high = min(low, 0.9), max(high, 1.1)
    # The legend needs room above the points.
    ax.set_ylim(low, high + 0.15 * (high - low))
    ax.legend(loc="upper right")


FIGURE = figure(
    __name__,
    over=lambda m: f"{m.starts} systems",
    on=lambda m: particles(
        tokens=(m.p.n, m.p.small), d=DIMENSIONS, beta=(*BETAS, CONTINUOUS), ratio=RATIO, starts=m.starts
    ),
    recorded=lambda m: {
        "d": list(DIMENSIONS), "beta": list(BETAS), "value": "identity", "query_key": "identity", "mask": "full",
        "starts": m.starts, "tokens in other dimensions": m.p.small, "loops": list(LOOP.values()), "degree": DEGREE,
        "rest": REST, "step": STEP, "step over the fastest rate": STEEP, "steps over those of the average": FINER,
    },
)  # fmt: skip
