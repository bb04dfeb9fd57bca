"""What figure 4 measures: runs under Q = K = V = I at one beta for long, and at other betas to t = 15."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ..framework.ensemble import (
    count_clusters,
    distance_to_first,
    draw_starts,
    exact_first_token,
    mean_and_error,
    run_ensemble,
)
from ..framework.exact import pair_error
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.particles import MOST_TOKENS


TIMES = (3.0, 6.0, 12.0, 15.0)  # of the snapshots
EARLY = TIMES[-1]
OTHER_BETAS = (1.0, 4.0, 16.0)


@dataclass(frozen=True)
class Parameters:
    """What of figure 4 can be set."""

    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    d: int = parameter(3, "the dimension, that of a picture", least=2, most=3)
    beta: float = parameter(9.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    end: float = parameter(1000.0, "the end of the run", quick=100.0, least=30, most=10_000)

    @property
    def ts(self) -> np.ndarray:
        """The save times: evenly to 15, then ever more rarely."""
        # The same number of times whatever `end` is, so that one compiled program serves.
        return np.concatenate([np.linspace(0.0, EARLY, 31), np.geomspace(20.0, self.end, 30)])

    def place(self, t: float) -> int:
        """The number of the save time next to `t`."""
        return int(np.argmin(np.abs(self.ts - t)))


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 4 shows.

    **Attributes:**

    - `xs`: (starts, times, n, d), the tokens.
    - `clusters`: (starts, times), how many there are.
    - `distance`: (starts, times), the mean distance to the first token.
    - `by_beta`: The mean number of clusters at t = 15 and its standard error, by beta in rising order.
    - `moved`: How far the first token is from where it was, at most.
    - `defect`: How far token 2 is from the formula for two tokens, in radians.
    """

    p: Parameters
    seed: int
    starts: int
    xs: np.ndarray
    clusters: np.ndarray
    distance: np.ndarray
    by_beta: dict[float, tuple[np.ndarray, np.ndarray]]
    moved: float
    defect: float

    @property
    def count(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean number of clusters over the starts, (times,), and its standard error."""
        return mean_and_error(self.clusters)


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate every beta from the same starts, and measure."""
    ts, radius = p.ts, jnp.asarray(p.radius)
    say(f"simulating to t = {p.end:g}")
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    runs = run_ensemble(x0, ts, beta=p.beta)
    say(f"simulating other betas to t = {EARLY:g}")
    # As many save times as the long run has, so that one compiled program serves all.
    others = {beta: run_ensemble(x0, np.linspace(0.0, EARLY, len(ts)), beta=beta).xs for beta in OTHER_BETAS}
    say("measuring")
    xs, clusters = np.asarray(runs.xs), np.asarray(count_clusters(runs.xs, radius))
    by_beta = {beta: mean_and_error(count_clusters(run, radius)[:, -1]) for beta, run in others.items()}
    # The long run has its own beta, and was saved at t = 15.
    by_beta |= {p.beta: mean_and_error(clusters[:, p.place(EARLY)])}
    # With V = I exp(Vt) only stretches, so that the exact first token is where it started.
    moved = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
    return Results(
        p, settings.seed, settings.starts, xs, clusters, distance_to_first(runs), dict(sorted(by_beta.items())), moved,
        pair_error(ts, xs, p.beta, 1.0),
    )  # fmt: skip
