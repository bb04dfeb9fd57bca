"""What is measured of V = I: the shape of each start in the plane and in space, its corners, who attends to itself.

2305.05465, Theorem 3.1: with Q^T K positive definite every rescaled token converges to zero or to the boundary of a
polytope. A token leads at the start if it attends to itself by hardmax, <z_i, z_i> = max_j <z_i, z_j>: with Q = K = I
it then is a corner of the first hull, and stays one as long as no other token passes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._limits.result import corners
from ...plot import OKABE_ITO
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, percent, plus_minus
from ..framework.figure import declared
from ..framework.verdict import ANY, Measured, Source
from ..shared.emergence import (
    BOX,
    RESCALED,
    STEP,
    TOLERANCE,
    Emergence,
    draw_box,
    emerge,
    figure_of_shapes,
    film_of,
    residuals_panel,
    save_times,
)
from ..shared.ensemble import mean_and_error


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


# What is claimed of V = I: nested hulls, a polytope, tokens at its corners, fewer corners than the first hull has.


THEOREM = Source("2305.05465, Theorem 3.1, of any tokens", ANY, ANY)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_nested(m), _polytope(m), _at_corners(m), _fewer(m)))


def _each(words: dict[int, str]) -> str:
    return "; ".join(f"d = {d}: {said}" for d, said in words.items())


def _nested(m: Results) -> Claim:
    growth = max(run.growth for run in m.runs.values())
    return Claim(
        says="The convex hull of the rescaled tokens never grows.",
        measured=f"the most that a hull grows in any of 256 directions: {growth:.1e} of its size",
        criterion="less than 1e-12",
        holds=growth < 1e-12,
        kind="identity",
        value=growth,
    )


def _polytope(m: Results) -> Claim:
    shares = {d: float(run.certified.mean()) for d, run in m.runs.items()}
    worst = {d: float(run.residuals[:, -1].max()) for d, run in m.runs.items()}
    found = {d: f"{run.certified.sum()} of {m.starts} starts certified, the farthest token {worst[d]:.1e} away"
             for d, run in m.runs.items()}  # fmt: skip
    return Claim(
        says="With V = I every token comes to the boundary of a polytope, or to zero.",
        measured=_each(found),
        criterion=f"all starts certified at t = {m.p.end:g} within {TOLERANCE:g} of the longest token",
        holds=min(shares.values()) == 1.0,
        kind="paper",
        value=min(shares.values()),
        source=THEOREM,
    )


def _at_corners(m: Results) -> Claim:
    means = {d: mean_and_error(run.at_points) for d, run in m.runs.items()}
    worst = min(means, key=lambda d: means[d][0])
    return Claim(
        says="More than 99 % of random tokens come to corners of the polytope, and not to another point of its "
        "boundary.",
        measured=_each({d: f"{percent(mean, error, 2)} of the tokens" for d, (mean, error) in
                        means.items()}),
        criterion="more than 99 % in each dimension",
        holds=all(mean > 0.99 for mean, _ in means.values()),
        kind="finding",
        value=float(means[worst][0]),
        error=float(means[worst][1]),
    )  # fmt: skip


def _fewer(m: Results) -> Claim:
    lost = {d: mean_and_error(m.hulls[d] - m.runs[d].counts) for d in DIMENSIONS}
    words = {
        d: f"{m.runs[d].counts.mean():.2f} corners, of {m.hulls[d].mean():.2f} of the first hull; "
        f"{m.leaders[d].mean():.2f} tokens attend to themselves at first; lost {plus_minus(*lost[d])}"
        for d in DIMENSIONS
    }
    return Claim(
        says="The polytope has fewer corners than the first hull.",
        measured=_each(words),
        criterion="corners are lost by more than four standard errors in each dimension",
        holds=all(mean > 4 * error for mean, error in lost.values()),
        kind="finding",
        value=float(lost[2][0]),
        error=float(lost[2][1]),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, polytope, at_corners, _ = claims
    return (
        f"{m.p.n} tokens, uniform in a box, under attention with V = Q = K = I and beta = {m.p.beta:g}, rescaled by "
        "exp(-t); one start in the plane and one in space, coloured by the corner that they are at in the end, over "
        f"the polytope. Over {m.starts} starts: (a) the distance of the farthest token from the set that Theorem 3.1 "
        "of 2305.05465 allows (zero, or the face that a token attends to), median and middle 80 %; dashed is the "
        "tolerance of the certificate; (b) the corners of the polytope against those of the first hull. "
        + ("Every start is certified. " if polytope.holds else "Not every start is certified by then. ")
        + (
            "Of random tokens practically none ends beside a corner."
            if at_corners.holds
            else "Some tokens end beside the corners."
        )
    )


# The picture of V = I: a start in the plane and one in space, residuals and corners of all.


def draw(m: Results) -> Figure:
    """Tokens above, numbers below."""
    rows = {f"d = {d}": (run.xs[0], run.shapes[0]) for d, run in m.runs.items()}
    runs = {f"d = {d}": run for d, run in m.runs.items()}

    def corners(ax: Axes) -> None:
        most = max(int(hull.max()) for hull in m.hulls.values())
        ax.plot([0, most], [0, most], color="0.6", lw=0.8, ls="--")
        for (d, hull), colour in zip(m.hulls.items(), OKABE_ITO, strict=False):
            # Counts are integers: the area of a disc says how many starts have them.
            pairs, number = np.unique(np.stack([hull, m.runs[d].counts]), axis=1, return_counts=True)
            ax.scatter(*pairs, s=240 * number / m.starts, color=colour, alpha=0.7, lw=0, label=f"d = {d}")
        ax.set(xlabel="corners of the first hull", ylabel="corners of the polytope", xlim=(0, most + 1),
               ylim=(0, most + 1))  # fmt: skip
        ax.legend(loc="upper left", markerscale=0.6)

    return figure_of_shapes(m.p.ts, rows, (*TIMES, m.p.end), (residuals_panel(runs), corners))


# V = I in R^d as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": list(DIMENSIONS), "beta": p.beta, "value": "identity", "query_key": "identity", "box": HALF,
         "end": p.end, "starts": m.starts, "solver": f"Heun, steps of {STEP:g}", "tolerance": TOLERANCE},
        _series(m),
        partial(draw, m),
        film_of(m.runs[2], 0),
        on=Measured(RESCALED, BOX, {"tokens": p.n, "d": DIMENSIONS, "beta": p.beta, "t": p.end, "starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return {"t": m.p.ts} | {f"median residual, d = {d}": np.median(run.residuals, axis=0) for d, run in m.runs.items()}


FIGURE = declared("emergence-polytope", _run, parameters=Parameters)
