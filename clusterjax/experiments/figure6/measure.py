"""What figure 6 measures: tokens on the sphere under V = -I, under a V with a gap, and under a complex pair.

The net circulation of a run is |sum_i x_i cross dx_i| over sum_i |dx_i|, added up over steps: 1 for a rigid rotation of
tokens on their equator, n^(-1/2) for n tokens that move on their own. It tells a swirl from tokens that merely move.
The second measure is the mean distance to the nearest other token, which grows where tokens spread and falls where they
gather.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ..framework.ensemble import count_clusters, draw_starts, exact_first_token, mean_and_error, run_ensemble
from ..framework.exact import pair_error
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.particles import MOST_TOKENS


D = 3
PLAIN, GAPPED, TURNING = "V = -I", "V = diag(-1, -10, -10)", "V: -1 ± i, -4"
VALUES = {
    PLAIN: -np.eye(3),
    GAPPED: np.diag([-1.0, -10.0, -10.0]),
    TURNING: np.array([[-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, -4.0]]),
}

Series = tuple[np.ndarray, np.ndarray]  # the mean over the starts, and its standard error


@dataclass(frozen=True)
class Parameters:
    """What of figure 6 can be set."""

    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    beta: float = parameter(9.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    end: float = parameter(15.0, "the end of the run", least=3, most=30)

    @property
    def times(self) -> tuple[float, ...]:
        """Those of the snapshots; the swirl is measured from the second on."""
        return 0.0, self.end / 10, self.end / 3, self.end

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return np.linspace(0.0, self.end, 61)


@dataclass(frozen=True, eq=False)
class Run:
    """The runs with one V.

    **Attributes:**

    - `xs`: (starts, times, n, 3), the tokens.
    - `nearest`: The mean distance of a token to the nearest other one, (times,).
    - `count`: The number of clusters, (times,).
    - `turning`: The net circulation.
    """

    xs: np.ndarray
    nearest: Series
    count: Series
    turning: Series


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 6 shows.

    **Attributes:**

    - `runs`: By the words for V.
    - `band`: The mean square distance from the plane of the complex pair at the end, and its standard error.
    - `off`: How far the first token is from where it must be, at most.
    - `defect`: How far token 2 is from the formula for two tokens, V = -I, in radians.
    """

    p: Parameters
    seed: int
    starts: int
    runs: dict[str, Run]
    band: Series
    off: float
    defect: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate each V from the same starts, and measure."""
    x0 = draw_starts(settings.seed, settings.starts, p.n, D)
    ensembles = {}
    for name, value in VALUES.items():
        say(f"simulating {name}")
        ensembles[name] = run_ensemble(x0, p.ts, beta=p.beta, value=value)
    say("measuring")
    runs, off = {}, 0.0
    for name, run in ensembles.items():
        xs = np.asarray(run.xs)
        count = mean_and_error(count_clusters(run.xs, jnp.asarray(p.radius)))
        # The first tenth is left out: tokens move there from their random start, swirl or not.
        late = p.ts >= p.times[1]
        runs[name] = Run(xs, mean_and_error(nearest(xs)), count, mean_and_error(circulation(xs[:, late])))
        off = max(off, float(np.abs(exact_first_token(run) - xs[:, :, 0]).max()))
    # The plane of the complex pair is that of the first two coordinates.
    band = mean_and_error(np.square(runs[TURNING].xs[:, -1, :, 2]).mean(-1))
    defect = pair_error(p.ts, runs[PLAIN].xs, p.beta, -1.0)
    return Results(p, settings.seed, settings.starts, runs, band, off, defect)


def nearest(xs: np.ndarray) -> np.ndarray:
    """The mean over tokens of the distance to the nearest other one, (starts, times)."""
    out, own = np.empty(xs.shape[:2]), np.arange(xs.shape[2])
    # One start at a time: the cosines of all pairs at all times of all starts would not fit.
    for i, run in enumerate(xs):
        cosines = np.einsum("tid,tjd->tij", run, run)
        # A token is not its own neighbour: below every other cosine.
        cosines[:, own, own] = -1.0
        # The chord of the largest cosine; rounding may take a cosine beyond 1.
        out[i] = np.sqrt(np.maximum(0.0, 2.0 - 2.0 * cosines.max(-1))).mean(-1)
    return out


def circulation(xs: np.ndarray) -> np.ndarray:
    """|sum_i x_i cross dx_i| / sum_i |dx_i|, added up over the saved times, (starts,)."""
    # Steps between save times stand for velocities.
    step = np.diff(xs, axis=1)
    # Angular momentum of the mean token, (starts, steps, 3).
    moment = np.cross(xs[:, :-1], step).mean(2)
    return np.linalg.norm(moment, axis=-1).sum(1) / np.linalg.norm(step, axis=-1).mean(2).sum(1)
