"""Runs of very many uniform tokens: the power of each harmonic along the way, and the clusters at the end."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._attention import SoftmaxAttention
from .._field import AttentionField
from .._observables import angular_power, num_clusters
from .._simulate import simulate
from .._space import Sphere


BETA, DEGREES, END = 9.0, 12, 15.0
TS = np.linspace(0.0, END, 61)
SAMPLE = 512  # tokens whose clusters are counted
LEVEL = 0.05  # of the power: the end of the first phase


class Run(NamedTuple):
    """What is kept of one run.

    **Attributes:**

    - `power`: (times, degrees), the angular power.
    - `sample`: (times, tokens, d), the first of the tokens, which is as good as a random choice of them.
    - `clusters`: How many clusters these are at the end, by single linkage at half of beta^(-1/2).
    - `steps`: Of the solver.
    - `summation`: How the sums were computed.

    Source: this library.
    """

    power: np.ndarray
    sample: np.ndarray
    clusters: int
    steps: int
    summation: str


def run(seed: int, n: int, d: int, beta: float = BETA) -> Run:
    """`n` independent uniform tokens under softmax attention, in single precision.

    Source: this library.
    """
    x0 = Sphere().sample(jax.random.key(seed), n, d, jnp.float32)
    traj = _simulate(x0, jnp.asarray(TS, jnp.float32), jnp.asarray(beta, jnp.float32))
    power, sample = (np.asarray(part, np.float64) for part in traj.xs)
    sample /= np.linalg.norm(sample, axis=-1, keepdims=True)
    clusters = int(num_clusters(jnp.asarray(sample[-1]), radius=0.5 / np.sqrt(beta)))
    return Run(power, sample, clusters, int(traj.stats["num_steps"]), str(traj.stats["summation"]))


@eqx.filter_jit
def _simulate(x0: Any, ts: Any, beta: Any) -> Any:
    keep = lambda t, x, args: (angular_power(x, DEGREES), x[:SAMPLE])
    return simulate(AttentionField(SoftmaxAttention(beta)), x0, ts, save=keep)


def measured_rates(powers: np.ndarray, until: float) -> np.ndarray:
    """(degrees,), half of the rate at which the power has grown from the start to `until`, over (runs, times, ...).

    Source: this library.
    """
    at = int(np.searchsorted(TS, until))
    mean = powers.mean(axis=0)
    return np.log(mean[at] / mean[0]) / (2 * TS[at])


def first_above(power: np.ndarray, level: float) -> float:
    """When the power first exceeds `level`, between the save times by the exponential through both.

    Source: this library.
    """
    at = int(np.argmax(power > level))
    if at == 0:
        return float(TS[0]) if power[0] > level else float("nan")
    low, high = np.log(power[at - 1 : at + 1])
    return float(TS[at - 1] + (np.log(level) - low) / (high - low) * (TS[at] - TS[at - 1]))


def expected_escape(n: float | int, rate: float) -> float:
    """The mean time at which an exponential variable of mean 1/n, growing at twice the rate, exceeds the level.

    Source: this library; the squared length of one harmonic's mean is nearly such a variable on the circle.
    """
    return float((np.log(LEVEL * n) + np.euler_gamma) / (2 * rate))
