"""What is measured in one dimension: how far the attention matrix is from Boolean, its rank, and the row in between.

2305.05465, Theorem 2.1: with V > 0 and QK > 0 every row of the attention matrix tends to the first or to the last unit
vector, the smallest and the largest token, all rows but perhaps one, and doubly exponentially fast. For the tokens
(-u, 0, u) the middle row stays (1/3, 1/3, 1/3), and u has an equation of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import diffrax as dfx
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from ..._attention import SoftmaxAttention
from ..._field import RescaledField
from ..._limits.flat import boolean_distances
from ..._simulate import simulate
from ..framework.emergence import Emergence, draw_box, emerge, save_times
from ..framework.experiment import Settings
from ..framework.parameters import parameter


HALF = 1.0
SHOWN = (0.0, 1.0, 2.0, 3.0)  # of the matrices, and the last time
THIRD, UNTIL = 0.3, 6.0  # of the exceptional tokens: u at the start, and to when their equation is compared
BOOLEAN = 1e-3


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(40, "the number of tokens", least=3, most=200)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    end: float = parameter(10.0, "the time at which the matrices are judged", least=6, most=40)

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return save_times(self.end)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `run`: The starts and their shapes.
    - `weights`: (times, n, n), the attention of one start, its tokens in order.
    - `ranks`: (starts, times), the rank of attention: singular values above a thousandth of the largest.
    - `rates`: (starts,), how fast log(1 / distance) itself grows, from 1e-2 to 1e-12.
    - `off`: How far the exceptional tokens are from their equation, and their middle row from thirds.
    """

    p: Parameters
    starts: int
    run: Emergence
    weights: np.ndarray
    ranks: np.ndarray
    rates: np.ndarray
    off: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run and judge all starts, and the three exceptional tokens."""
    say("simulating")
    x0 = np.sort(draw_box(settings.seed, settings.starts, p.n, 1, HALF), axis=1)
    ones = np.ones((settings.starts, 1, 1))
    run = emerge(x0, p.ts, ones, ones, p.beta)
    say("measuring")
    everyone = np.ones(p.n, bool)
    matrices = lambda xs: np.stack([boolean_distances(x[:, 0], 1.0, p.beta, everyone, t)[1] for x, t in
                                    zip(xs, p.ts, strict=True)])  # fmt: skip
    each = [matrices(xs) for xs in run.xs]
    ranks = np.array([[rank_of(weights) for weights in one] for one in each])
    # Of the rows that are not excepted: a start whose rows are at a corner from the first has no rate.
    rates = np.array([rate_of(p.ts, one) for one in run.residuals])
    return Results(p, settings.starts, run, each[0], ranks, rates, exceptional())


def rank_of(weights: np.ndarray) -> int:
    """The number of singular values above a thousandth of the largest."""
    values = np.linalg.svd(weights, compute_uv=False)
    return int(np.sum(values > BOOLEAN * values[0]))


def rate_of(ts: np.ndarray, distance: np.ndarray) -> float:
    """The slope of log log(1 / distance) against time while the distance falls from 1e-2 to 1e-12; NaN without two."""
    falling = (distance < 1e-2) & (distance > 1e-12)
    if falling.sum() < 2:
        return float("nan")
    return float(np.polyfit(ts[falling], np.log(-np.log(distance[falling])), 1)[0])


def exceptional() -> float:
    """The largest difference of (-u, 0, u) from u' = 2 u sinh(u^2) / (1 + 2 cosh(u^2)) in the rescaled tokens, and of
    the middle row from thirds."""
    ts = np.linspace(0.0, UNTIL, 13)
    attention = SoftmaxAttention(1.0)
    field = RescaledField(attention)
    tight = dfx.PIDController(rtol=1e-10, atol=1e-12)
    traj = simulate(field, jnp.asarray([[-THIRD], [0.0], [THIRD]]), jnp.asarray(ts), stepsize_controller=tight)
    rate = lambda t, u: 2 * u * np.sinh(u * u) / (1 + 2 * np.cosh(u * u))
    exact = solve_ivp(rate, (0, UNTIL), [THIRD], t_eval=ts, method="DOP853", rtol=1e-12, atol=1e-14).y[0]
    zs = np.asarray(traj.xs)[:, :, 0]
    expected = np.stack([-exact, 0 * exact, exact], axis=1) * np.exp(-ts)[:, None]
    rows = np.stack([np.asarray(attention.weights(jnp.asarray(np.exp(t) * z)[:, None]))[1] for t, z in
                     zip(ts, zs, strict=True)])  # fmt: skip
    return max(float(np.abs(zs - expected).max()), float(np.abs(rows - 1 / 3).max()))
