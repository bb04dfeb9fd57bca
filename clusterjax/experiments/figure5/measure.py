"""What figure 5 measures: tokens on the circle under V = -I, and under V = diag(-1, v) with a gap.

Opposition, |mean of e^(2 i theta)|, is 1 where all tokens lie at two opposite points and of the order of n^(-1/2) where
they are independent. Under V = -I tokens repel those before them: token k comes to the middle of a gap between older
ones, which for the first eight gives dyadic angles (`framework.exact.dyadic_distance`). With V = diag(-1, v), v far
below -1, every token is drawn to the eigenvector of the larger eigenvalue, on either side.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ..framework.ensemble import count_clusters, draw_starts, exact_first_token, mean_and_error, run_ensemble
from ..framework.exact import dyadic_distance, pair_error
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.particles import MOST_TOKENS


TIMES = (0.1, 1.2, 5.0)  # of the snapshots
EARLY = TIMES[-1]
# V by its second eigenvalue: the first is -I, the last has the widest gap.
VALUES = {second: np.diag([-1.0, second]) for second in (-1.0, -4.0, -10.0)}
PLAIN, GAPPED = -1.0, -10.0
GAPPED_END = 20.0  # with a gap nothing moves long before


@dataclass(frozen=True)
class Parameters:
    """What of figure 5 can be set."""

    n: int = parameter(64, "the number of tokens, the first eight of which are looked at", least=8, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=1.9)
    # By 400 tokens 2 to 8 have found their places.
    end: float = parameter(400.0, "the end of the run with V = -I", least=20, most=10_000)


@dataclass(frozen=True, eq=False)
class Run:
    """The runs with one V.

    **Attributes:**

    - `ts`: (times,), the save times.
    - `xs`: (starts, times, n, 2), the tokens.
    - `opposition`, `error`: (times,), |mean of e^{2 i theta}| over the starts, and its standard error.
    """

    ts: np.ndarray
    xs: np.ndarray
    opposition: np.ndarray
    error: np.ndarray

    @property
    def early(self) -> int:
        """The number of the save time next to t = 5."""
        return int(np.argmin(np.abs(self.ts - EARLY)))


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 5 shows.

    **Attributes:**

    - `runs`: By the second eigenvalue of V.
    - `count`: The mean number of clusters under V = -I, (times,), and its standard error.
    - `dyadic`: (starts, times, 7), how far tokens 2 to 8 are from where they halve the gaps, in degrees, V = -I.
    - `off`: How far the first token is from where it must be, at most.
    - `defect`: How far token 2 is from the formula for two tokens, V = -I, in radians.
    """

    p: Parameters
    seed: int
    starts: int
    runs: dict[float, Run]
    count: tuple[np.ndarray, np.ndarray]
    dyadic: np.ndarray
    off: float
    defect: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate each V from the same starts, and measure."""
    x0 = draw_starts(settings.seed, settings.starts, p.n, 2)
    ensembles = {}
    for second, value in VALUES.items():
        say("simulating V = " + name_of(second))
        end = p.end if second == PLAIN else GAPPED_END
        # 51 times to t = 5 for the pictures, ten more in a geometric series to the end.
        ts = np.concatenate([np.linspace(0.0, EARLY, 51), np.geomspace(10.0, end, 10)])
        ensembles[second] = run_ensemble(x0, ts, beta=p.beta, value=value)
    say("measuring")
    runs = {}
    for second, run in ensembles.items():
        xs = np.asarray(run.xs)
        runs[second] = Run(np.asarray(run.ts), xs, *mean_and_error(opposition(xs)))
    # Under every V the first token moves on its own; the largest error counts.
    off = max(float(np.abs(exact_first_token(run) - runs[v].xs[:, :, 0]).max()) for v, run in ensembles.items())
    plain = runs[PLAIN]
    return Results(
        p, settings.seed, settings.starts, runs,
        mean_and_error(count_clusters(ensembles[PLAIN].xs, jnp.asarray(p.radius))), dyadic_distance(plain.xs), off,
        pair_error(plain.ts, plain.xs, p.beta, -1.0),
    )  # fmt: skip


def name_of(second: float) -> str:
    """V with this second eigenvalue, for a reader."""
    return "-I" if second == PLAIN else f"diag(-1, {second:g})"


def opposition(xs: np.ndarray) -> np.ndarray:
    """|mean of e^{2 i theta}|: one for two opposite clusters, n^{-1/2} sqrt(pi)/2 on average for uniform tokens."""
    # Doubled angles take opposite points to one.
    return np.abs(np.exp(2j * np.arctan2(xs[..., 1], xs[..., 0])).mean(-1))


def uniform_opposition(n: int) -> float:
    """The opposition of n independent uniform tokens, on average."""
    # The mean length of the average of n random unit vectors in the plane: that of a Rayleigh variable of scale
    # (2n)^(-1/2).
    return float(np.sqrt(np.pi / n) / 2)


def uniform_clusters(n: int, radius: float) -> float:
    """How many clusters n independent uniform tokens on the circle have on average: as many as gaps above `radius`."""
    # The chord `radius` as a share of the circle.
    arc = 2 * np.arcsin(radius / 2) / (2 * np.pi)
    # Each of the n gaps exceeds the arc with probability (1 - arc)^(n-1), and each such gap ends a cluster.
    return float(n * (1 - arc) ** (n - 1))
