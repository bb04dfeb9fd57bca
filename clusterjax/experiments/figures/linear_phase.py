"""The first phase of very many tokens (2410.23228): in how many clusters do uniform tokens gather, and when?

Around the uniform measure every spherical harmonic of degree l grows at its own rate l (l + d - 2) a_l / (beta a_0),
where a_l are the coefficients of the kernel; the degree that grows fastest decides the number of clusters. The angular
power is a squared amplitude: it begins near 1/n and grows at twice the rate lambda of the amplitude, so that the first
phase ends at about log(n) / (2 lambda). The runs are in single precision, and `Auto` chooses the series that computes
the sums over 10^5 tokens.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from matplotlib import colormaps
from matplotlib.axes import Axes

from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.space import Sphere
from ..._observables import angular_power, interaction_energy, num_clusters, uniform_growth_rates
from ...plot import OKABE_ITO
from ..framework.figure import Claim, ClaimOf, Found, Say, Settings, claim, figure, parameter, plus_minus, within
from ..framework.verdict import Source
from ..shared.ensemble import passage
from ..shared.layout import panels
from ..shared.sources import PARTICLES, UNIFORM, particles


PAPER = Source("2410.23228, of infinitely many tokens", PARTICLES, UNIFORM)
DEGREES, COMPARED = 12, range(1, 7)  # the number of degrees that are kept, and the degrees whose rates are compared
SAMPLE = 512  # the number of tokens whose clusters are counted
LEVEL = 0.05  # the power at the end of the first phase
# For each dimension the numbers of tokens and their largest numbers of starts; the last entry is for the most tokens.
FULL = {2: {512: 64, 10_000: 16, 100_000: 8}, 3: {512: 32, 10_000: 8, 100_000: 1}}
QUICK = {2: {4096: 8}, 3: {4096: 2}}
COLOURS, MARKERS = {2: OKABE_ITO[0], 3: OKABE_ITO[5]}, {2: "o", 3: "s"}


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(100_000, "the largest number of tokens", quick=4096, least=1024, most=1_000_000)
    beta: float = parameter(9.0, "the inverse temperature", least=0.5, most=16)
    end: float = parameter(15.0, "the end of the runs", least=8, most=100)

    @property
    def ts(self) -> np.ndarray:
        return np.linspace(0.0, self.end, 61)

    def sizes(self, quick: bool) -> dict[int, dict[int, int]]:
        """For each dimension the numbers of tokens, up to `n`, and their largest numbers of starts."""
        return {
            d: {n: starts for n, starts in sizes.items() if n < self.n and n != max(sizes)}
            | {self.n: sizes[max(sizes)]}
            for d, sizes in (QUICK if quick else FULL).items()
        }


class Run(NamedTuple):
    power: np.ndarray  # the angular power, (times, degrees)
    sample: np.ndarray  # the first tokens, which are a random sample, (times, tokens, d)
    clusters: int  # the number of clusters of the sample at the end, by single linkage at radius beta^(-1/2) / 2
    steps: int  # the number of steps of the solver
    summation: str  # how the sums were computed


class Results(NamedTuple):
    """The measurement, by dimension; `runs` and `escapes` also by the number of tokens.

    An escape is the mean time at which the power of the fastest degree exceeds `LEVEL`, and its standard error.
    """

    p: Parameters
    starts: int
    runs: dict[int, dict[int, list[Run]]]
    rates: dict[int, np.ndarray]  # the growth rate of each degree in theory
    until: dict[int, float]  # the end of the time over which the growth of the most tokens is measured
    measured: dict[int, np.ndarray]  # the growth rate of each degree over that time
    escapes: dict[int, dict[int, tuple[float, float]]]

    @property
    def largest(self) -> dict[int, int]:
        return {d: max(sizes) for d, sizes in self.runs.items()}

    @property
    def shown(self) -> Run:
        return self.runs[3][self.largest[3]][0]


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    runs: dict[int, dict[int, list[Run]]] = {}
    for d, sizes in p.sizes(settings.quick).items():
        for n, most in sizes.items():
            starts = min(most, settings.starts)
            say(f"simulating {n} tokens, d = {d}, {_starts(starts)}")
            runs.setdefault(d, {})[n] = [_run(settings.seed + k, n, d, p) for k in range(starts)]
    rates, until, measured, escapes = {}, {}, {}, {}
    for d, sizes in runs.items():
        rates[d] = uniform_growth_rates(p.beta, d, DEGREES)
        # The more tokens there are, the longer the perturbation stays small: to about a twentieth.
        until[d] = float(np.clip(np.log(LEVEL * np.sqrt(max(sizes))) / rates[d].max(), 0.5, 3.0))
        at = int(np.searchsorted(p.ts, until[d]))
        # The mean is taken before the logarithm: the power of a single run is exponentially distributed, and its
        # logarithm is biased.
        power = np.stack([run.power for run in sizes[max(sizes)]]).mean(axis=0)
        measured[d] = np.log(power[at] / power[0]) / (2 * p.ts[at])
        fastest = int(np.argmax(rates[d]))
        escapes[d] = {
            n: _escape([run.power[:, fastest] for run in runs_of_size], p.ts) for n, runs_of_size in sizes.items()
        }
    return Results(p, settings.starts, runs, rates, until, measured, escapes)


def _starts(starts: int) -> str:
    return f"{starts} start{'s' if starts > 1 else ''}"


def _run(seed: int, n: int, d: int, p: Parameters) -> Run:
    # Each run has its own key, so that the order of the runs does not matter.
    x0 = Sphere().sample(jax.random.key(seed), n, d, jnp.float32)
    traj = _simulate(x0, jnp.asarray(p.ts, jnp.float32), jnp.asarray(p.beta, jnp.float32))
    power, sample = (np.asarray(part, np.float64) for part in traj.xs)
    # Tokens have unit length in double precision again, because cosines near 1 are compared.
    sample /= np.linalg.norm(sample, axis=-1, keepdims=True)
    # The radius is half of the width of the kernel, beta^(-1/2).
    clusters = int(num_clusters(jnp.asarray(sample[-1]), radius=0.5 / np.sqrt(p.beta)))
    return Run(power, sample, clusters, int(traj.stats["num_steps"]), str(traj.stats["summation"]))


@eqx.filter_jit
def _simulate(x0: Any, ts: Any, beta: Any) -> Any:
    # `save` keeps a sample: 61 times of 10^5 tokens would need too much memory.
    keep = lambda t, x, args: (angular_power(x, DEGREES), x[:SAMPLE])
    return simulate(AttentionField(SoftmaxAttention(beta)), x0, ts, save=keep)


def _escape(powers: list[np.ndarray], ts: np.ndarray) -> tuple[float, float]:
    """The mean time at which the power exceeds `LEVEL`, over the runs in which it does, and its standard error."""
    # The power grows exponentially between save times.
    times = np.array([passage(ts, np.log(power), np.log(LEVEL)) for power in powers])
    times = times[np.isfinite(times)]
    if not len(times):
        return float("nan"), 0.0
    return float(times.mean()), float(times.std(ddof=1) / np.sqrt(len(times))) if len(times) > 1 else 0.0


def expected_escape(n: float | int, rate: float) -> float:
    """The mean time at which an exponential variable of mean 1/n that grows at twice the rate exceeds `LEVEL`.

    The power of one degree on the circle is nearly such a variable.
    """
    # The mean of -log of an exponential variable of mean 1 is Euler's constant.
    return float((np.log(LEVEL * n) + np.euler_gamma) / (2 * rate))


@claim("the relative difference is less than 1e-10", kind="identity")
def energy(m: Results) -> Found:
    """The interaction energy is the sum over degrees of the coefficient of the kernel times the number of harmonics
    times the power."""
    # The identity of Funk and Hecke, for tokens that have gathered.
    beta, degrees, d, x = m.p.beta, np.arange(60), 3, jnp.asarray(m.shown.sample[-1])
    # The growth rates of unnormalised attention are l (l + d - 2) a_l / beta, with a_l the coefficients of e^(beta t).
    rates = uniform_growth_rates(beta, d, 59, unnormalised=True)[1:]
    # Degree 0 has no rate; its coefficient is the mean of the kernel over the sphere.
    mean = scipy.special.hyp0f1(d / 2, beta**2 / 4)
    weights = np.append(mean, beta * rates / (degrees * (degrees + 1))[1:])
    # The sphere of R^3 has 2 l + 1 harmonics of degree l.
    by_degrees = np.sum(weights * (2 * degrees + 1) * np.asarray(angular_power(x, 59))) / (2 * beta)
    off = abs(by_degrees / float(interaction_energy(x, beta)) - 1)
    return Found(f"the relative difference is {off:.1e} for {SAMPLE} tokens at t = {m.p.end:g}", off < 1e-10, off)


def growth(d: int) -> ClaimOf:
    @claim(
        "no rate differs from theory by more than 0.05",
        says="Around uniform tokens the harmonics of degree l grow at the rates l (l + d - 2) a_l / (beta a_0), "
        f"d = {d} (2410.23228).",
        source=PAPER,
    )
    def grows(m: Results) -> Found:
        n, measured, rates = m.largest[d], m.measured[d], m.rates[d]
        off = max(abs(measured[k] - rates[k]) for k in COMPARED)
        listed = lambda values: ", ".join(f"{values[k]:.3f}" for k in COMPARED)
        return Found(
            f"for degree {COMPARED[0]} to {COMPARED[-1]} the rates are {listed(measured)}, and theory gives "
            f"{listed(rates)}; {n} tokens, {_starts(len(m.runs[d][n]))}, from t = 0 to {m.until[d]:.2g}",
            off < 0.05, off,
        )  # fmt: skip

    return grows


@claim("the mean number of clusters of the most tokens is within 1 of that degree", source=PAPER)
def clusters(m: Results) -> Found:
    """On the circle the number of clusters is about the degree that grows fastest (2410.23228)."""
    counts = {n: [run.clusters for run in runs] for n, runs in m.runs[2].items()}
    means = {n: (np.mean(c), np.std(c, ddof=1) / np.sqrt(len(c))) for n, c in counts.items()}
    # On the circle a harmonic of degree l has l maxima.
    (last, error), fastest = means[max(means)], int(np.argmax(m.rates[2]))
    return Found(
        "; ".join(f"{plus_minus(*mean)} clusters of {n} tokens" for n, mean in means.items())
        + f" at t = {m.p.end:g}, counted on {SAMPLE} of the tokens; the fastest degree is {fastest}",
        within(float(last), float(fastest), 1.0), last, error,
    )  # fmt: skip


@claim("each mean time is within 0.5 of the expected time of independent tokens")
def duration(m: Results) -> Found:
    """On the circle the first phase ends at the time expected of independent tokens, about log(n) / (2 lambda): more
    tokens are more even, and take longer."""
    # The expectation holds on the circle alone: there each degree has only one harmonic and its shift.
    expected = {n: expected_escape(n, m.rates[2].max()) for n in m.escapes[2]}
    off = max(abs(m.escapes[2][n][0] - time) for n, time in expected.items())
    times = (f"{plus_minus(*m.escapes[2][n])} (n = {n}, expected {time:.2f})" for n, time in expected.items())
    measured = f"on the circle the power of the fastest degree reaches {LEVEL:g} at t = {'; '.join(times)}"
    return Found(measured, off < 0.5, off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.largest[3]} independent uniform tokens on the sphere under softmax attention with V = Q = K = I and beta "
        f"= {m.p.beta:g}; every sum is over all tokens. (a) The power of each degree of the spherical harmonics and "
        "(dashed) its growth around the uniform measure: each degree grows at its own rate until the largest power is "
        "no longer small. (b) The rates against the degree, measured (marks) and in theory (lines). (c) Longitude and "
        f"latitude of {SAMPLE} of the tokens: the fastest degree sets the distance of the clusters. (d) The time at "
        f"which the power of the fastest degree reaches {LEVEL:g}: the more tokens, the later; the line is the theory "
        f"of independent tokens for d = 2, and bars are standard errors. The long run took {m.shown.steps} steps."
    )


def series(m: Results) -> dict:
    # Powers are numbers against time; rates are numbers against the degree.
    powers = {f"power of degree {k}, d = 3, n = {m.largest[3]}": m.shown.power[:, k] for k in range(1, DEGREES + 1)}
    return {"t": m.p.ts} | powers | {f"rate_by_degree, d = {d}": m.measured[d] for d in m.runs}


def _growth(ax: Axes, m: Results) -> None:
    n, until, degrees = m.largest[3], m.p.ts <= 5, range(1, 8)
    for k in degrees:
        colour = colormaps["viridis"]((k - 1) / (len(degrees) - 0.5))
        ax.plot(m.p.ts, m.shown.power[:, k], color=colour, label=f"l = {k}")
        # The power is a squared amplitude and grows at twice the rate.
        theory = m.shown.power[0, k] * np.exp(2 * m.rates[3][k] * m.p.ts[until])
        ax.plot(m.p.ts[until], theory, color=colour, ls="--", lw=0.9)
    ax.set(yscale="log", xlabel="t", ylabel=r"angular power $p_l$", xlim=(0, m.p.end), title=f"d = 3, n = {n}")
    # Powers of independent tokens are about 1 / n.
    ax.set_ylim(0.02 / n, 2)
    ax.legend(loc="lower right", ncols=2)


def _rates(ax: Axes, m: Results) -> None:
    degrees = np.arange(1, DEGREES + 1)
    for d, theory in m.rates.items():
        ax.plot(degrees, theory[1:], color=COLOURS[d], lw=1)
        label = f"d = {d}, n = {m.largest[d]}"
        ax.plot(degrees, m.measured[d][1:], color=COLOURS[d], marker=MARKERS[d], ms=4, ls="none", label=label)
    ax.axhline(0, color="0.7", lw=0.6)
    ax.set(xlabel="degree l", ylabel=r"growth rate $\lambda_l$", title=rf"$\beta$ = {m.p.beta:g}")
    ax.legend(loc="upper right")


def _map(ax: Axes, m: Results) -> None:
    for t, colour, size in ((0.0, "0.8", 3), (6.0, OKABE_ITO[0], 4), (m.p.end, OKABE_ITO[5], 14)):
        x = m.shown.sample[int(np.argmin(np.abs(m.p.ts - t)))]
        # A rounding error may take a coordinate beyond 1.
        longitude, latitude = np.degrees(np.arctan2(x[:, 1], x[:, 0])), np.degrees(np.arcsin(np.clip(x[:, 2], -1, 1)))
        ax.scatter(longitude, latitude, s=size, color=colour, lw=0, label=f"t = {t:g}")
    ax.set(xlabel="longitude (degrees)", ylabel="latitude (degrees)", xlim=(-180, 180), ylim=(-90, 90))
    ax.set_xticks(range(-180, 181, 90))
    ax.set_yticks(range(-90, 91, 45))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _escapes(ax: Axes, m: Results) -> None:
    at = np.geomspace(3e2, 2e5, 50)
    ax.plot(at, [expected_escape(n, m.rates[2].max()) for n in at], color=COLOURS[2], lw=1)
    for d, times in m.escapes.items():
        mean, error = np.array(list(times.values())).T
        look = {"color": COLOURS[d], "marker": MARKERS[d], "ms": 4, "capsize": 2, "ls": "none", "label": f"d = {d}"}
        ax.errorbar(list(times), mean, error, **look)
    ax.set(xscale="log", xlabel="number of tokens n", ylabel="end of the first phase t")
    ax.legend(loc="upper left")


FIGURE = figure(
    __name__,
    draw=lambda m: panels(m, (_growth, _rates, _map, _escapes), columns=2, height=5.2),
    claims=(energy, growth(2), growth(3), clusters, duration),
    over=lambda m: "the starts of each number of tokens",
    on=lambda m: particles(
        tokens=tuple(m.largest.values()), d=tuple(m.runs), beta=m.p.beta, t=m.p.end, starts=m.starts
    ),
    recorded=lambda m: {
        "n": {str(d): list(sizes) for d, sizes in m.runs.items()}, "d": list(m.runs), "starts": m.starts,
        "summation": m.shown.summation, "steps": m.shown.steps,
        "solver": "Tsit5, rtol 1e-6, atol 1e-8, single precision",
    },
)  # fmt: skip
