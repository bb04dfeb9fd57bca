"""Runs of very many uniform tokens: the power of each harmonic along the way, and the clusters at the end.

Around the uniform measure every spherical harmonic of degree l grows at a rate of its own, l (l + d - 2) a_l / (beta
a_0) with a_l the coefficients of the kernel (2410.23228); the fastest degree decides how many clusters there will be.
Angular power is a squared length: it starts near 1/n and grows at twice the rate, so that the first phase ends at about
log(n) / (2 lambda). Sums over 10^5 tokens are taken by the series that `Auto` chooses, in single precision.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._attention import SoftmaxAttention
from ..._field import AttentionField
from ..._observables import angular_power, num_clusters, uniform_growth_rates
from ..._simulate import simulate
from ..._space import Sphere
from ..framework.experiment import Settings
from ..framework.parameters import parameter


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
