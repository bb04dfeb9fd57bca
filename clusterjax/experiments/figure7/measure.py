"""What figure 7 measures: runs with the V of one trained head, as it comes and with time rescaled, and of all heads.

Dividing V by a positive number s only rescales time (with Q = K = I the field is linear in V), so that a run of V / s
to time t is one of V to time t / s. The eigenvalues of a trained head are small, and by t = 15 hardly anything moves as
they come; with the largest real part scaled to 1 the time of the paper is long. Both are shown. Eigenvalues leave the
basis open; it is orthonormal here, a conjugate pair a 2 x 2 block.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..framework.ensemble import (
    count_clusters,
    distance_to_first,
    draw_starts,
    exact_first_token,
    mean_and_error,
    run_ensemble,
)
from ..framework.experiment import MOST_OF_NETWORK, Settings
from ..framework.parameters import parameter
from ..framework.particles import MOST_TOKENS
from ..framework.trained_values import TrainedValues, trained_values


D = 3
TIMES = (0.0, 3.0, 6.0, 15.0)
TS = np.linspace(0.0, 15.0, 61)
I6 = int(np.argmin(np.abs(TS - 6.0)))


@dataclass(frozen=True)
class Parameters:
    """What of figure 7 can be set."""

    n: int = parameter(64, "the number of tokens", least=4, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    layer: int = parameter(1, "the layer whose V is taken", least=1, most=MOST_OF_NETWORK)
    head: int = parameter(0, "the head that is shown, 0 being the one with the largest real part", least=0,
                          most=MOST_OF_NETWORK)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Runs:
    """Clusters and distances to the first token over the starts.

    **Attributes:**

    - `xs`: (starts, times, n, d), the tokens.
    - `clusters`, `distances`: (starts, times).
    - `off`: How far the first token is from where it must be, at most.
    """

    xs: np.ndarray
    clusters: np.ndarray
    distances: np.ndarray
    off: float

    @classmethod
    def of(cls, x0: Array, value: np.ndarray, p: Parameters = Parameters()) -> "Runs":
        """Those with this V, (d, d)."""
        runs = run_ensemble(x0, TS, beta=p.beta, value=value)
        xs = np.asarray(runs.xs)
        off = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
        return cls(xs, np.asarray(count_clusters(runs.xs, jnp.asarray(p.radius))), distance_to_first(runs), off)


@dataclass(frozen=True, eq=False)
class HeadRuns:
    """What becomes of the tokens at each head.

    **Attributes:**

    - `mean`, `error`: Clusters at t = 6, clusters at t = 15, mean distance to the first token at t = 15, (heads, 3).
    - `starts`: For each head.
    """

    mean: np.ndarray
    error: np.ndarray
    starts: int

    @classmethod
    def of(cls, x0: Array, matrices: np.ndarray, p: Parameters = Parameters()) -> "HeadRuns":
        """Those with these V. The starts are dealt out to the heads, so that the program that is compiled already
        serves."""
        # Starts are repeated where there are fewer than two for each head.
        x0 = x0[np.arange(max(len(x0), 2 * len(matrices))) % len(x0)]  # an error needs two starts
        # Start k goes to head k mod heads.
        which = np.arange(len(x0)) % len(matrices)
        runs = run_ensemble(x0, TS, beta=p.beta, value=matrices[which])
        clusters = np.asarray(count_clusters(runs.xs[:, [I6, -1]], jnp.asarray(p.radius)))
        # (starts, 3): two counts and a distance.
        ends = np.concatenate([clusters, distance_to_first(runs)[:, -1:]], axis=1)
        pairs = [mean_and_error(ends[which == head]) for head in range(len(matrices))]
        return cls(np.array([mean for mean, _ in pairs]), np.array([e for _, e in pairs]), len(x0) // len(matrices))

    def metastable(self, n: int) -> np.ndarray:
        """Where n tokens come to a few clusters that stay, (heads,)."""
        at6, at15 = self.mean[:, 0], self.mean[:, 1]
        # A few clusters that stay: neither one, nor as many as half of the tokens.
        return (np.abs(at6 - at15) < 0.5) & (at15 > 1.5) & (at15 <= n // 2)


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 7 shows.

    **Attributes:**

    - `source`: The V of the trained heads.
    - `raw`, `run`: Of the head that is shown, with V as it comes and with time rescaled.
    - `raw_heads`, `heads`: Of all heads, likewise.
    """

    p: Parameters
    seed: int
    starts: int
    source: TrainedValues
    raw: Runs
    run: Runs
    raw_heads: HeadRuns
    heads: HeadRuns


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate the head that is shown and all heads, from the same starts."""
    source = trained_values(settings, p.layer, p.head)
    say(f"simulating head {source.head + 1} of {len(source.matrices)}, as it comes and with its time rescaled")
    x0 = draw_starts(settings.seed, settings.starts, p.n, D)
    raw, run = Runs.of(x0, source.raw[source.head], p), Runs.of(x0, source.value, p)
    say("simulating all heads, likewise")
    heads = HeadRuns.of(x0, source.raw, p), HeadRuns.of(x0, source.matrices, p)
    return Results(p, settings.seed, settings.starts, source, raw, run, *heads)
