"""One dimension: attention becomes a Boolean matrix (2305.05465, Theorem 2.1).

With V > 0 and QK > 0 every row of the attention matrix but perhaps one tends, doubly exponentially fast, to the first
or to the last unit vector, which stand for the smallest and the largest token. For the tokens (-u, 0, u) the middle row
stays (1/3, 1/3, 1/3), and u has an equation of its own.
"""

from dataclasses import dataclass
from typing import NamedTuple

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
from ..framework.figure import Claim, Found, Say, Settings, claim, parameter, plus_minus
from ..shared import emergence
from ..shared.ensemble import mean_and_error
from ..shared.layout import WIDTH, letter


HALF = 1.0  # half the width of the box
SHOWN = (0.0, 1.0, 2.0, 3.0)  # the times of the matrices, before the last time
THIRD, UNTIL = 0.3, 6.0  # u of the exceptional tokens at the start, and the end of the comparison with its equation
BOOLEAN = 1e-3
THEOREM = emergence.theorem("Theorem 2.1")


@dataclass(frozen=True)
class Parameters(emergence.RescaledParameters):
    n: int = parameter(40, "the number of tokens", least=3, most=200)
    end: float = parameter(10.0, "the time at which the matrices are judged", least=6, most=40)


class Results(NamedTuple):
    p: Parameters
    starts: int
    run: emergence.Emergence  # the starts and their shapes
    weights: np.ndarray  # the attention of one start, its tokens in order, (times, n, n)
    # The rank of attention: the number of singular values above a thousandth of the largest, (starts, times).
    ranks: np.ndarray
    # The rate at which log(1 / distance) grows while the distance falls from 1e-2 to 1e-12, (starts,).
    rates: np.ndarray
    # The largest distance of the exceptional tokens from their equation, and of their middle row from thirds.
    off: float


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    say("simulating")
    x0 = np.sort(emergence.draw_box(settings.seed, settings.starts, p.n, 1, HALF), axis=1)
    ones = np.ones((settings.starts, 1, 1))
    run = emergence.emerge(x0, p.ts, ones, ones, p.beta)
    say("measuring")
    every = np.ones(p.n, bool)
    weights = lambda x, t: boolean_distances(x[:, 0], 1.0, p.beta, every, t)[1]
    weights_of_runs = [np.stack([weights(x, t) for x, t in zip(xs, p.ts, strict=True)]) for xs in run.xs]
    ranks = np.array([[rank_of(matrix) for matrix in matrices] for matrices in weights_of_runs])
    # The residuals leave out the excepted row. A start whose other rows are Boolean from the beginning has no rate.
    rates = np.array([rate_of(p.ts, residuals) for residuals in run.residuals])
    return Results(p, settings.starts, run, weights_of_runs[0], ranks, rates, exceptional())


def rank_of(weights: np.ndarray) -> int:
    """The number of singular values above a thousandth of the largest."""
    values = np.linalg.svd(weights, compute_uv=False)
    return int(np.sum(values > BOOLEAN * values[0]))


def rate_of(ts: np.ndarray, distance: np.ndarray) -> float:
    """The slope of log log(1 / distance) against time, for distances of 1e-2 to 1e-12; NaN without two such times."""
    falling = (distance < 1e-2) & (distance > 1e-12)
    if falling.sum() < 2:
        return float("nan")
    return float(np.polyfit(ts[falling], np.log(-np.log(distance[falling])), 1)[0])


def exceptional() -> float:
    """The largest difference of (-u, 0, u) from u' = 2 u sinh(u^2) / (1 + 2 cosh(u^2)) in the rescaled tokens, and of
    the middle row from thirds."""
    ts = np.linspace(0.0, UNTIL, 13)
    attention = SoftmaxAttention(1.0)
    tight = dfx.PIDController(rtol=1e-10, atol=1e-12)
    x0 = jnp.asarray([[-THIRD], [0.0], [THIRD]])
    zs = np.asarray(simulate(RescaledField(attention), x0, jnp.asarray(ts), stepsize_controller=tight).xs)[:, :, 0]
    rate = lambda t, u: 2 * u * np.sinh(u * u) / (1 + 2 * np.cosh(u * u))
    exact = solve_ivp(rate, (0, UNTIL), [THIRD], t_eval=ts, method="DOP853", rtol=1e-12, atol=1e-14).y[0]
    expected = np.stack([-exact, 0 * exact, exact], axis=1) * np.exp(-ts)[:, None]
    middle = lambda t, z: np.asarray(attention.weights(jnp.asarray(np.exp(t) * z)[:, None]))[1]
    rows = np.stack([middle(t, z) for t, z in zip(ts, zs, strict=True)])
    return max(float(np.abs(zs - expected).max()), float(np.abs(rows - 1 / 3).max()))


@claim("less than 1e-7", kind="identity")
def excepted_row(m: Results) -> Found:
    """For the tokens (-u, 0, u) the middle row of attention stays (1/3, 1/3, 1/3), and u' = 2 u sinh(u^2) / (1 + 2
    cosh(u^2))."""
    return Found(f"the largest difference up to t = {UNTIL:g}: {m.off:.1e}", m.off < 1e-7, m.off)


@claim(f"within {BOOLEAN:g} in all starts at t = {{p.end:g}}, one row of each excepted", source=THEOREM)
def boolean(m: Results) -> Found:
    """Every row of the attention matrix but at most one comes to attend to the smallest or the largest token alone."""
    last = m.run.residuals[:, -1]
    near = last < BOOLEAN
    measured = f"in {near.sum()} of {m.starts} starts; the farthest row of all is {last.max():.1e} away"
    return Found(measured, near.all(), near.mean())


@claim("3 at most at the end: two Boolean rows and the excepted one", source=THEOREM)
def low_rank(m: Results) -> Found:
    """The attention matrix comes to have a low rank: 3 or less."""
    first, last = m.ranks[:, 0], m.ranks[:, -1]
    return Found(
        f"the rank of the matrix of {m.p.n} tokens is {first.mean():.2f} at the start, {last.mean():.2f} at the end, "
        f"and {last.max()} at most",
        last.max() <= 3, last.mean(),
    )  # fmt: skip


@claim("above 0.8; a merely exponential decay would have a rate that tends to zero")
def fast(m: Results) -> Found:
    """The attention matrix converges doubly exponentially: the logarithm of the distance grows exponentially."""
    known = m.rates[np.isfinite(m.rates)]
    mean, error = mean_and_error(known) if len(known) > 1 else (np.nan, np.nan)
    return Found(
        f"log log(1 / distance) grows at the rate {plus_minus(mean, error)} while the distance falls from 1e-2 to "
        f"1e-12, over {len(known)} starts",
        bool(mean > 0.8), float(mean), float(error),
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} tokens of the line, uniform in a box, V = Q = K = 1, beta = {m.p.beta:g}. The matrices above are the "
        f"attention of one start, with its tokens in order. Over {m.starts} starts: (a) the distance of the farthest "
        "row but one from the row that attends to the smallest or the largest token alone, median and middle 80 %; "
        "(b) the rank of the matrix."
    )


@style()
def draw(m: Results) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.55, 2.35))  # pyright: ignore
    times = (*SHOWN, m.p.end)
    attention_maps(m.weights, m.p.ts, times, top.subplots(1, len(times)))
    distance, ranks = bottom.subplots(1, 2)
    emergence.residuals_panel({"all starts": m.run})(distance)
    distance.set(ylabel="farthest row but one from Boolean")
    _ranks(ranks, m)
    letter((distance, ranks))
    return figure


def _ranks(ax: Axes, m: Results) -> None:
    low, middle, high = np.quantile(m.ranks, (0.0, 0.5, 1.0), axis=0)
    ax.step(m.p.ts, middle, where="mid", color=OKABE_ITO[0], label="median")
    ax.fill_between(m.p.ts, low, high, step="mid", color=OKABE_ITO[0], alpha=0.2, lw=0, label="all starts")
    ax.set(xlabel="t", ylabel="rank of attention", ylim=(0, high.max() + 0.5))
    ax.legend(loc="upper right")


FIGURE = emergence.rescaled_figure(
    __name__,
    series=lambda m: {"t": m.p.ts, "median distance": np.median(m.run.residuals, axis=0),
                      "mean rank": m.ranks.mean(axis=0)},
    d=1,
    recorded={"value": "1", "query_key": "1", "box": HALF},
)  # fmt: skip
