"""V = I in R^d: the rescaled tokens come to a polytope (2305.05465, Theorem 3.1).

With a positive definite Q^T K every rescaled token converges to zero or to the boundary of a polytope. With Q = K = I a
token that attends to itself by hardmax at the start, <z_i, z_i> = max_j <z_i, z_j>, is a corner of the first hull, and
stays a corner as long as no other token passes it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._limits.result import corners
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Found, Say, Settings, claim, parameter, percent, plus_minus
from ..shared import emergence
from ..shared.ensemble import mean_and_error


DIMENSIONS = (2, 3)
TIMES = (0.0, 0.25, 1.0)
HALF = 5.0  # half the width of the box of the published pictures


@dataclass(frozen=True)
class Parameters(emergence.RescaledParameters):
    """The parameters of this figure, which may end earlier than the others."""

    end: float = parameter(12.0, "the time at which the shapes are judged", least=2, most=40)


class Results(NamedTuple):
    """The measurement, by dimension."""

    p: Parameters
    starts: int
    runs: dict[int, emergence.Emergence]  # the starts
    hulls: dict[int, np.ndarray]  # the number of corners of the first hull, (starts,)
    leaders: dict[int, np.ndarray]  # the number of tokens that attend to themselves at the start, by hardmax, (starts,)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    runs, hulls, leaders = {}, {}, {}
    for d in DIMENSIONS:
        say(f"simulating in R^{d}")
        x0 = emergence.draw_box(settings.seed, settings.starts, p.n, d, HALF)
        same = np.repeat(np.eye(d)[None], settings.starts, axis=0)
        runs[d] = emergence.emerge(x0, p.ts, same, same, p.beta)
        hulls[d] = np.array([len(corners(x, np.ones(p.n, bool), 1e-9)[0]) for x in x0])
        leaders[d] = np.array([leading(x).sum() for x in x0])
    return Results(p, settings.starts, runs, hulls, leaders)


def leading(x: np.ndarray) -> np.ndarray:
    """True for the tokens (n, d) that attend to themselves by hardmax with Q = K = I, (n,)."""
    scores = x @ x.T
    return np.diag(scores) >= scores.max(axis=1)


def _each(words: dict[int, str]) -> str:
    return "; ".join(f"d = {d}: {text}" for d, text in words.items())


@claim("less than 1e-12", kind="identity")
def nested(m: Results) -> Found:
    """The convex hull of the rescaled tokens never grows."""
    growth = max(run.growth for run in m.runs.values())
    return Found(f"the largest growth of a hull in any of 256 directions: {growth:.1e} of its size", growth < 1e-12,
                 growth)  # fmt: skip


@claim(
    f"all starts certified at t = {{p.end:g}} within {emergence.TOLERANCE:g} of the longest token",
    source=emergence.theorem("Theorem 3.1"),
)
def polytope(m: Results) -> Found:
    """With V = I every token comes to the boundary of a polytope, or to zero."""
    by_dimension = {
        d: f"{run.certified.sum()} of {m.starts} starts certified, the farthest token {run.residuals[:, -1].max():.1e} "
        "away" for d, run in m.runs.items()
    }  # fmt: skip
    least = min(float(run.certified.mean()) for run in m.runs.values())
    return Found(_each(by_dimension), least == 1.0, least)


@claim("more than 99 % in each dimension")
def at_corners(m: Results) -> Found:
    """More than 99 % of random tokens come to corners of the polytope, and not to other points of its boundary."""
    means = {d: mean_and_error(run.at_points) for d, run in m.runs.items()}
    measured = _each({d: f"{percent(mean, error, 2)} of the tokens" for d, (mean, error) in means.items()})
    least, error = min(means.values(), key=lambda pair: pair[0])
    return Found(measured, bool(least > 0.99), least, error)


@claim("corners are lost by more than four standard errors in each dimension")
def fewer(m: Results) -> Found:
    """The polytope has fewer corners than the first hull."""
    lost = {d: mean_and_error(m.hulls[d] - m.runs[d].counts) for d in DIMENSIONS}
    words = {
        d: f"{m.runs[d].counts.mean():.2f} corners, of {m.hulls[d].mean():.2f} of the first hull; "
        f"{m.leaders[d].mean():.2f} tokens attend to themselves at the start; lost {plus_minus(*lost[d])}"
        for d in DIMENSIONS
    }
    return Found(_each(words), all(mean > 4 * error for mean, error in lost.values()), *lost[2])


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} tokens, uniform in a box, under attention with V = Q = K = I and beta = {m.p.beta:g}, rescaled by "
        "exp(-t). The rows show one start in the plane and one in space over the polytope; the colour of a token is "
        f"the colour of its corner at the end. Over {m.starts} starts: (a) the distance of the farthest token from the "
        "set that Theorem 3.1 of 2305.05465 allows (zero, or the face that a token attends to), median and middle 80 "
        "%; the dashed line is the tolerance of the certificate; (b) the corners of the polytope against the corners "
        "of the first hull."
    )


def series(m: Results) -> dict:
    return {"t": m.p.ts} | {f"median residual, d = {d}": np.median(run.residuals, axis=0) for d, run in m.runs.items()}


def draw(m: Results) -> Figure:
    rows = {f"d = {d}": (run.xs[0], run.shapes[0]) for d, run in m.runs.items()}
    runs = {f"d = {d}": run for d, run in m.runs.items()}

    def corners(ax: Axes) -> None:
        most = max(int(hull.max()) for hull in m.hulls.values())
        ax.plot([0, most], [0, most], color="0.6", lw=0.8, ls="--")
        for (d, hull), colour in zip(m.hulls.items(), OKABE_ITO, strict=False):
            # Counts are integers: the area of a disc shows the number of starts with these counts.
            pairs, number = np.unique(np.stack([hull, m.runs[d].counts]), axis=1, return_counts=True)
            ax.scatter(*pairs, s=240 * number / m.starts, color=colour, alpha=0.7, lw=0, label=f"d = {d}")
        limits = (0, most + 1)
        ax.set(xlabel="corners of the first hull", ylabel="corners of the polytope", xlim=limits, ylim=limits)
        ax.legend(loc="upper left", markerscale=0.6)

    return emergence.figure_of_shapes(m.p.ts, rows, (*TIMES, m.p.end), (emergence.residuals_panel(runs), corners))


FIGURE = emergence.rescaled_figure(
    __name__,
    film=lambda m: emergence.film_of(m.runs[2]),
    d=DIMENSIONS,
    recorded={"value": "identity", "query_key": "identity", "box": HALF},
)
