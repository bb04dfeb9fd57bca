"""What is measured of V = I: the shape of each start in the plane and in space, its corners, who attends to itself.

2305.05465, Theorem 3.1: with Q^T K positive definite every rescaled token converges to zero or to the boundary of a
polytope. A token leads at the start if it attends to itself by hardmax, <z_i, z_i> = max_j <z_i, z_j>: with Q = K = I
it then is a corner of the first hull, and stays one as long as no other token passes it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..._limits.geometry import corners
from ..framework.emergence import Emergence, draw_box, emerge, save_times
from ..framework.experiment import Settings
from ..framework.parameters import parameter


DIMENSIONS = (2, 3)
TIMES = (0.0, 0.25, 1.0)
HALF = 5.0  # of the box: that of the published pictures


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(20, "the number of tokens", least=3, most=200)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    end: float = parameter(12.0, "the time at which the shapes are judged", least=2, most=40)

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return save_times(self.end)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `runs`: The starts of each dimension.
    - `hulls`: How many corners the first hull has, (starts,), by dimension.
    - `leaders`: How many tokens attend to themselves at the start, by hardmax.
    """

    p: Parameters
    starts: int
    runs: dict[int, Emergence]
    hulls: dict[int, np.ndarray]
    leaders: dict[int, np.ndarray]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run and judge all starts in the plane and in space."""
    runs, hulls, leaders = {}, {}, {}
    for d in DIMENSIONS:
        say(f"simulating in R^{d}")
        x0 = draw_box(settings.seed, settings.starts, p.n, d, HALF)
        same = np.repeat(np.eye(d)[None], settings.starts, axis=0)
        runs[d] = emerge(x0, p.ts, same, same, p.beta)
        hulls[d] = np.array([len(corners(x, np.ones(p.n, bool), 1e-9)[0]) for x in x0])
        leaders[d] = np.array([leading(x).sum() for x in x0])
    return Results(p, settings.starts, runs, hulls, leaders)


def leading(x: np.ndarray) -> np.ndarray:
    """Which tokens (n, d) attend to themselves by hardmax with Q = K = I, (n,)."""
    scores = x @ x.T
    return np.diag(scores) >= scores.max(axis=1)
