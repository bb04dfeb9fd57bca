"""What is measured in one dimension: how far the attention matrix is from Boolean, its rank, and the row in between.

2305.05465, Theorem 2.1: with V > 0 and QK > 0 every row of the attention matrix tends to the first or to the last unit
vector, the smallest and the largest token, all rows but perhaps one, and doubly exponentially fast. For the tokens
(-u, 0, u) the middle row stays (1/3, 1/3, 1/3), and u has an equation of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import diffrax as dfx
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp

from ..._dynamics.simulate import simulate
from ..._limits.flat import boolean_distances
from ..._model.attention import SoftmaxAttention
from ..._model.field import RescaledField
from ...plot import OKABE_ITO, attention_maps, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import ANY, Measured, Source
from ..shared.emergence import BOX, RESCALED, STEP, Emergence, draw_box, emerge, residuals_panel, save_times
from ..shared.ensemble import mean_and_error
from ..shared.layout import WIDTH


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


# What is claimed in one dimension: Boolean rows, low rank, how fast, and the row that is excepted.


THEOREM = Source("2305.05465, Theorem 2.1, of any tokens", ANY, ANY)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_exceptional(m), _boolean(m), _rank(m), _fast(m)))


def _exceptional(m: Results) -> Claim:
    return Claim(
        says="For the tokens (-u, 0, u) the middle row of attention stays (1/3, 1/3, 1/3), and u has its own equation.",
        measured=f"largest difference up to t = {UNTIL:g}: {m.off:.1e}",
        criterion="less than 1e-7",
        holds=m.off < 1e-7,
        kind="identity",
        value=m.off,
    )


def _boolean(m: Results) -> Claim:
    last = m.run.residuals[:, -1]
    share = float(np.mean(last < BOOLEAN))
    return Claim(
        says="Every row of the attention matrix but at most one becomes that of the smallest or the largest token.",
        measured=f"in {int((last < BOOLEAN).sum())} of {m.starts} starts; the farthest row of all is {last.max():.1e} "
        "away",
        criterion=f"within {BOOLEAN:g} in all starts at t = {m.p.end:g}, one row of each excepted",
        holds=share == 1.0,
        kind="paper",
        value=share,
        source=THEOREM,
    )


def _rank(m: Results) -> Claim:
    first, last = m.ranks[:, 0], m.ranks[:, -1]
    return Claim(
        says="The attention matrix comes to have a low rank.",
        measured=f"rank {first.mean():.2f} at first, {last.mean():.2f} at the end, {last.max()} at most; of {m.p.n} "
        "tokens",
        criterion="3 at most at the end: two Boolean rows and the excepted one",
        holds=bool(last.max() <= 3),
        kind="paper",
        value=float(last.mean()),
        source=THEOREM,
    )


def _fast(m: Results) -> Claim:
    known = m.rates[np.isfinite(m.rates)]
    mean, error = mean_and_error(known) if len(known) > 1 else (np.nan, np.nan)
    return Claim(
        says="The attention matrix comes to its limit doubly exponentially: the logarithm of the distance grows "
        "exponentially itself.",
        measured=f"log log(1 / distance) grows at the rate {plus_minus(mean, error)} while it falls from 1e-2 to "
        f"1e-12, over {len(known)} starts",
        criterion="above 0.8; a merely exponential decay would have a rate that tends to zero",
        holds=bool(mean > 0.8),
        kind="finding",
        value=float(mean),
        error=float(error),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, boolean, rank, _ = claims
    return (
        f"{m.p.n} tokens of the line, uniform in a box, V = Q = K = 1, beta = {m.p.beta:g}. Above the attention matrix "
        f"of one start, tokens in order. Over {m.starts} starts: (a) the distance of the farthest row but one from "
        "attending to the smallest or the largest token alone, median and middle 80 %; (b) the rank of the matrix. "
        + ("All matrices become Boolean" if boolean.holds else "Not all matrices are Boolean by then")
        + (", of rank three at most." if rank.holds else ".")
    )


# The picture of one dimension: attention matrices along time, their distance from Boolean and their rank.


@style()
def draw(m: Results) -> Figure:
    """Matrices above, numbers below."""
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.55, 2.35))  # pyright: ignore
    times = (*SHOWN, m.p.end)
    attention_maps(m.weights, m.p.ts, times, top.subplots(1, len(times)))
    distance, ranks = bottom.subplots(1, 2)
    residuals_panel({"all starts": m.run})(distance)
    distance.set(ylabel="farthest row but one from Boolean")
    _ranks(ranks, m)
    for letter, ax in zip("ab", (distance, ranks), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _ranks(ax: Axes, m: Results) -> None:
    low, middle, high = np.quantile(m.ranks, (0.0, 0.5, 1.0), axis=0)
    ax.step(m.p.ts, middle, where="mid", color=OKABE_ITO[0], label="median")
    ax.fill_between(m.p.ts, low, high, step="mid", color=OKABE_ITO[0], alpha=0.2, lw=0, label="all starts")
    ax.set(xlabel="t", ylabel="rank of attention", ylim=(0, high.max() + 0.5))
    ax.legend(loc="upper right")


# Boolean attention as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": 1, "beta": p.beta, "value": "1", "query_key": "1", "box": HALF, "end": p.end,
         "starts": m.starts, "solver": f"Heun, steps of {STEP:g}"},
        {"t": p.ts, "median distance": np.median(m.run.residuals, axis=0), "mean rank": m.ranks.mean(axis=0)},
        partial(draw, m),
        None,
        on=Measured(RESCALED, BOX, {"tokens": p.n, "d": 1, "beta": p.beta, "t": p.end, "starts": m.starts}),
    )  # fmt: skip


FIGURE = declared("boolean-attention", _run, parameters=Parameters)
