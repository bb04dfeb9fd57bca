"""Runs of very many uniform tokens: the power of each harmonic along the way, and the clusters at the end.

Around the uniform measure every spherical harmonic of degree l grows at a rate of its own, l (l + d - 2) a_l / (beta
a_0) with a_l the coefficients of the kernel (2410.23228); the fastest degree decides how many clusters there will be.
Angular power is a squared length: it starts near 1/n and grows at twice the rate, so that the first phase ends at about
log(n) / (2 lambda). Sums over 10^5 tokens are taken by the series that `Auto` chooses, in single precision.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.space import Sphere
from ..._observables import angular_power, interaction_energy, num_clusters, uniform_growth_rates
from ...plot import OKABE_ITO, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus, within
from ..framework.figure import declared
from ..framework.verdict import Source
from ..shared.layout import WIDTH
from ..shared.sources import PARTICLES, UNIFORM, particles


DEGREES, COMPARED = 12, 6  # of the powers that are kept, and of those whose rate is compared
SAMPLE = 512  # tokens whose clusters are counted
LEVEL = 0.05  # of the power: the end of the first phase
# Of each dimension: how many tokens, and from how many starts at most; the last row is for the most tokens.
FULL = {2: {512: 64, 10_000: 16, 100_000: 8}, 3: {512: 32, 10_000: 8, 100_000: 1}}
QUICK = {2: {4096: 8}, 3: {4096: 2}}


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(100_000, "the most tokens", quick=4096, least=1024, most=1_000_000)
    beta: float = parameter(9.0, "the inverse temperature", least=0.5, most=16)
    end: float = parameter(15.0, "the end of the runs", least=8, most=100)

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return np.linspace(0.0, self.end, 61)

    def sizes(self, quick: bool) -> dict[int, dict[int, int]]:
        """How many tokens in each dimension, and from how many starts at most."""
        # The last row of the table is for the most tokens, of which there may be other than in the table.
        table = QUICK if quick else FULL
        return {
            d: {n: starts for n, starts in sizes.items() if n < self.n and n != max(sizes)}
            | {self.n: sizes[max(sizes)]}
            for d, sizes in table.items()
        }


class Run(NamedTuple):
    """What is kept of one run.

    **Attributes:**

    - `power`: (times, degrees), the angular power.
    - `sample`: (times, tokens, d), the first of the tokens, which is as good as a random choice of them.
    - `clusters`: How many clusters these are at the end, by single linkage at half of beta^(-1/2).
    - `steps`: Of the solver.
    - `summation`: How the sums were computed.
    """

    power: np.ndarray
    sample: np.ndarray
    clusters: int
    steps: int
    summation: str


def run(seed: int, n: int, d: int, p: Parameters) -> Run:
    """`n` independent uniform tokens under softmax attention, in single precision."""
    # One key for each run, so that runs are the same in whatever order.
    x0 = Sphere().sample(jax.random.key(seed), n, d, jnp.float32)
    traj = _simulate(x0, jnp.asarray(p.ts, jnp.float32), jnp.asarray(p.beta, jnp.float32))
    power, sample = (np.asarray(part, np.float64) for part in traj.xs)
    # Of unit length in double precision again, as cosines near 1 are compared.
    sample /= np.linalg.norm(sample, axis=-1, keepdims=True)
    # Half of the width of the kernel, beta^(-1/2).
    clusters = int(num_clusters(jnp.asarray(sample[-1]), radius=0.5 / np.sqrt(p.beta)))
    return Run(power, sample, clusters, int(traj.stats["num_steps"]), str(traj.stats["summation"]))


@eqx.filter_jit
def _simulate(x0: Any, ts: Any, beta: Any) -> Any:
    # A run of 61 times and 10^5 tokens would be kept whole otherwise.
    keep = lambda t, x, args: (angular_power(x, DEGREES), x[:SAMPLE])
    return simulate(AttentionField(SoftmaxAttention(beta)), x0, ts, save=keep)


def measured_rates(powers: np.ndarray, until: float, ts: np.ndarray) -> np.ndarray:
    """(degrees,), half of the rate at which the power has grown from the start to `until`, over (runs, times, ...)."""
    at = int(np.searchsorted(ts, until))
    # The mean over runs before the logarithm: the power of a single run is exponentially distributed, and its logarithm
    # biased.
    mean = powers.mean(axis=0)
    return np.log(mean[at] / mean[0]) / (2 * ts[at])


def first_above(power: np.ndarray, level: float, ts: np.ndarray) -> float:
    """When the power first exceeds `level`, between the save times by the exponential through both."""
    at = int(np.argmax(power > level))
    if at == 0:
        return float(ts[0]) if power[0] > level else float("nan")
    # The power grows exponentially between save times.
    low, high = np.log(power[at - 1 : at + 1])
    return float(ts[at - 1] + (np.log(level) - low) / (high - low) * (ts[at] - ts[at - 1]))


def expected_escape(n: float | int, rate: float) -> float:
    """The mean time at which an exponential variable of mean 1/n, growing at twice the rate, exceeds the level.

    The squared length of one harmonic's mean is nearly such a variable on the circle.
    """
    # The mean of -log of an exponential variable of mean 1 is Euler's gamma.
    return float((np.log(LEVEL * n) + np.euler_gamma) / (2 * rate))


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows; by dimension, and then by the number of tokens.

    **Attributes:**

    - `runs`: From each start.
    - `rates`, `measured`: Growth rates by degree in theory, and as measured of the most tokens, from the start to
        `until`.
    - `escapes`: When the power of the fastest degree exceeds the level, mean and standard error.
    """

    p: Parameters
    starts: int
    runs: dict[int, dict[int, list[Run]]]
    rates: dict[int, np.ndarray]
    until: dict[int, float]
    measured: dict[int, np.ndarray]
    escapes: dict[int, dict[int, tuple[float, float]]]

    @property
    def largest(self) -> dict[int, int]:
        """The most tokens in each dimension."""
        return {d: max(of) for d, of in self.runs.items()}

    @property
    def shown(self) -> Run:
        """The run that the picture shows."""
        return self.runs[3][self.largest[3]][0]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run every number of tokens in every dimension."""
    runs: dict[int, dict[int, list[Run]]] = {}
    for d, sizes in p.sizes(settings.quick).items():
        for n, most in sizes.items():
            starts = min(most, settings.starts)
            say(f"{n} tokens, d = {d}, {starts} start{'s' if starts > 1 else ''}")
            runs.setdefault(d, {})[n] = [run(settings.seed + k, n, d, p) for k in range(starts)]
    # (degrees,) by dimension, from the coefficients of the kernel.
    rates = {d: uniform_growth_rates(p.beta, d, DEGREES) for d in runs}
    largest = {d: max(of) for d, of in runs.items()}
    # The more tokens, the longer the perturbation stays small: until it is about a twentieth.
    until = {d: float(np.clip(np.log(LEVEL * np.sqrt(n)) / rates[d].max(), 0.5, 3.0)) for d, n in largest.items()}
    powers = {d: np.stack([each.power for each in runs[d][n]]) for d, n in largest.items()}
    measured = {d: measured_rates(powers[d], until[d], p.ts) for d in runs}
    escapes = {
        d: {n: _escape(of_n, int(np.argmax(rates[d])), p.ts) for n, of_n in of.items()} for d, of in runs.items()
    }
    return Results(p, settings.starts, runs, rates, until, measured, escapes)


def _escape(runs: list[Run], degree: int, ts: np.ndarray) -> tuple[float, float]:
    """When the power of `degree` exceeds the level: mean and standard error over those runs where it does."""
    times = np.array([first_above(each.power[:, degree], LEVEL, ts) for each in runs])
    # Runs that have not come to the level by the end are left out.
    times = times[np.isfinite(times)]
    if not len(times):
        return float("nan"), 0.0
    return float(times.mean()), float(times.std(ddof=1) / np.sqrt(len(times))) if len(times) > 1 else 0.0


# The first phase: which clusters very many uniform tokens choose, and when.


PAPER = Source("2410.23228, of infinitely many tokens", PARTICLES, UNIFORM)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(
        "as many starts as are said, of each number of tokens",
        (_energy(m), *(_growth(m, d) for d in m.runs), _clusters(m), _duration(m)),
    )


def _energy(m: Results) -> Claim:
    """Funk and Hecke, on tokens that have gathered: the energy is made of the powers."""
    shown, beta, end = m.shown, m.p.beta, m.p.end
    x, degrees, d = jnp.asarray(shown.sample[-1]), np.arange(60), 3
    # Coefficients of the kernel e^(beta t) in harmonics, by the growth rates of unnormalised attention, l (l + d - 2)
    # a_l / beta.
    weights = np.append(
        1.0, beta * uniform_growth_rates(beta, d, 59, unnormalised=True)[1:] / (degrees * (degrees + 1))[1:]
    )
    # Degree 0 has no rate; its coefficient is the mean of the kernel over the sphere.
    weights[0] = scipy.special.hyp0f1(d / 2, beta**2 / 4)
    # 2 l + 1 harmonics of degree l on the sphere of dimension 2.
    energy = np.sum(weights * (2 * degrees + 1) * np.asarray(angular_power(x, 59))) / (2 * beta)
    off = abs(energy / float(interaction_energy(x, beta)) - 1)
    return Claim(
        says="The interaction energy is the sum over degrees of coefficient of the kernel, number of harmonics and "
        "power.",
        measured=f"relative difference {off:.1e} for {SAMPLE} tokens at t = {end:g}",
        criterion="less than 1e-10",
        holds=bool(off < 1e-10),
        kind="identity",
        value=float(off),
    )


def _growth(m: Results, d: int) -> Claim:
    n, measured, rates, until = m.largest[d], m.measured[d], m.rates[d], m.until[d]
    starts = len(m.runs[d][n])
    degrees = range(1, COMPARED + 1)
    off = max(abs(measured[k] - rates[k]) for k in degrees)
    return Claim(
        says="Around uniform tokens the harmonics of degree l grow at the rates l (l + d - 2) a_l / (beta a_0), d = "
        f"{d} (2410.23228).",
        measured=f"{', '.join(f'{measured[k]:.3f}' for k in degrees)} for degree 1 to {COMPARED}, where the theory has "
        f"{', '.join(f'{rates[k]:.3f}' for k in degrees)}; {n} tokens, {starts} start{'s' if starts > 1 else ''}, from "
        f"t = 0 to {until:.2g}",
        criterion="none is off by more than 0.05",
        holds=bool(off < 0.05),
        kind="paper",
        value=float(off),
        source=PAPER,
    )


def _clusters(m: Results) -> Claim:
    circle, rates, end = m.runs[2], m.rates[2], m.p.end
    counts = {n: [each.clusters for each in of] for n, of in circle.items()}
    means = {n: (np.mean(c), np.std(c, ddof=1) / np.sqrt(len(c))) for n, c in counts.items()}
    # On the circle degree l has l maxima.
    last, wanted = means[max(means)], int(np.argmax(rates))
    return Claim(
        says="On the circle the tokens gather in about as many clusters as the degree that grows fastest (2410.23228).",
        measured="; ".join(f"{plus_minus(*means[n])} clusters of {n} tokens" for n in means)
        + f" at t = {end:g}, counted on {SAMPLE} of them; the fastest degree is {wanted}",
        criterion="within one of it, for the most tokens",
        holds=within(float(last[0]), float(wanted), 1.0),
        kind="paper",
        value=float(last[0]),
        error=float(last[1]),
        source=PAPER,
    )


def _duration(m: Results) -> Claim:
    escapes, rates = m.escapes, m.rates
    # Only on the circle, where one harmonic and its shift are alone at each degree.
    expected = {n: expected_escape(n, rates[2].max()) for n in escapes[2]}
    off = max(abs(escapes[2][n][0] - expected[n]) for n in expected)
    return Claim(
        says="The first phase takes log(n) / (2 lambda): more tokens are more even, and choose later.",
        measured=f"on the circle the power of the fastest degree comes to {LEVEL:g} at t = "
        + "; ".join(f"{plus_minus(*escapes[2][n])} (n = {n}, expected {expected[n]:.2f})" for n in expected),
        criterion="within 0.5 of what is expected of independent tokens",
        holds=bool(off < 0.5),
        kind="finding",
        value=float(off),
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    largest, steps, beta = m.largest, m.shown.steps, m.p.beta
    return (
        f"{largest[3]} independent uniform tokens on the sphere, softmax attention, V = Q = K = I, beta = {beta:g}, "
        f"every sum taken over all tokens. (a) Power of each degree of the spherical harmonics, and (dashed) its "
        "growth around the uniform measure: each harmonic grows at a rate of its own until the largest is no longer "
        "small. (b) The rates against the degree, measured (marks) and in theory (lines). (c) Longitude and latitude "
        f"of {SAMPLE} of the tokens: clusters, at the distance that the fastest degree sets. (d) When the power of the "
        f"fastest degree comes to {LEVEL:g}: later, the more tokens there are; lines for d = 2 from the theory of "
        f"independent tokens. Bars are standard errors. The long run took {steps} steps."
    )


# The panels of the experiment on the first phase.


SHOWN = range(1, 8)
COLOURS = {2: OKABE_ITO[0], 3: OKABE_ITO[5]}
MARKERS = {2: "o", 3: "s"}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.subplots(2, 2)
    _panels_growth(axes[0, 0], m)
    _rates(axes[0, 1], m)
    _map(axes[1, 0], m)
    _escapes(axes[1, 1], m)
    for letter, ax in zip("abcd", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _panels_growth(ax: Axes, m: Results) -> None:
    ts, shown, theory, n = m.p.ts, m.shown, m.rates[3], m.largest[3]
    until = ts <= 5
    for k in SHOWN:
        colour = colormaps["viridis"]((k - 1) / (len(SHOWN) - 0.5))
        ax.plot(ts, shown.power[:, k], color=colour, label=f"l = {k}")
        # Theory from the power at the start: twice the rate, as power is a squared length.
        ax.plot(ts[until], shown.power[0, k] * np.exp(2 * theory[k] * ts[until]), color=colour, ls="--", lw=0.9)
    ax.set(yscale="log", xlabel="t", ylabel=r"angular power $p_l$", xlim=(0, m.p.end), title=f"d = 3, n = {n}")
    # Powers of independent tokens lie about 1 / n.
    ax.set_ylim(0.02 / n, 2)
    ax.legend(loc="lower right", ncols=2)


def _rates(ax: Axes, m: Results) -> None:
    degrees = np.arange(1, DEGREES + 1)
    for d, theory in m.rates.items():
        measured = m.measured[d]
        ax.plot(degrees, theory[1:], color=COLOURS[d], lw=1)
        ax.plot(
            degrees,
            measured[1:],
            color=COLOURS[d],
            marker=MARKERS[d],
            ms=4,
            ls="none",
            label=f"d = {d}, n = {m.largest[d]}",
        )
    ax.axhline(0, color="0.7", lw=0.6)
    ax.set(xlabel="degree l", ylabel=r"growth rate $\lambda_l$", title=rf"$\beta$ = {m.p.beta:g}")
    ax.legend(loc="upper right")


def _map(ax: Axes, m: Results) -> None:
    for t, colour, size in ((0.0, "0.8", 3), (6.0, OKABE_ITO[0], 4), (m.p.end, OKABE_ITO[5], 14)):
        x = m.shown.sample[int(np.argmin(np.abs(m.p.ts - t)))]
        # Rounding may take a coordinate beyond 1.
        longitude, latitude = np.degrees(np.arctan2(x[:, 1], x[:, 0])), np.degrees(np.arcsin(np.clip(x[:, 2], -1, 1)))
        ax.scatter(longitude, latitude, s=size, color=colour, lw=0, label=f"t = {t:g}")
    ax.set(xlabel="longitude (degrees)", ylabel="latitude (degrees)", xlim=(-180, 180), ylim=(-90, 90))
    ax.set_xticks(range(-180, 181, 90))
    ax.set_yticks(range(-90, 91, 45))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _escapes(ax: Axes, m: Results) -> None:
    # The line of theory covers all numbers of tokens that may be run.
    at = np.geomspace(3e2, 2e5, 50)
    for d, times in m.escapes.items():
        if d == 2:
            ax.plot(at, [expected_escape(n, m.rates[d].max()) for n in at], color=COLOURS[d], lw=1)
        mean, error = np.array(list(times.values())).T
        ax.errorbar(
            list(times), mean, error, color=COLOURS[d], marker=MARKERS[d], ms=4, capsize=2, ls="none", label=f"d = {d}"
        )
    ax.set(xscale="log", xlabel="number of tokens n", ylabel="end of the first phase t")
    ax.legend(loc="upper left")


# The first phase as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"beta": p.beta, "n": {str(d): list(of) for d, of in m.runs.items()}, "d": list(m.runs), "starts": m.starts,
         "end": p.end, "summation": m.shown.summation, "steps": m.shown.steps,
         "solver": "Tsit5, rtol 1e-6, atol 1e-8, single precision"},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=tuple(m.largest.values()), d=tuple(m.runs), beta=p.beta, t=p.end, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    powers = {
        f"power of degree {k}, d = 3, n = {m.largest[3]}": m.shown.power[:, k] for k in range(1, DEGREES + 1)
    }  # fmt: skip
    # Powers against time, rates against the degree.
    return {"t": m.p.ts} | powers | {f"rate_by_degree, d = {d}": m.measured[d] for d in m.runs}


FIGURE = declared("linear-phase", _run, parameters=Parameters)
