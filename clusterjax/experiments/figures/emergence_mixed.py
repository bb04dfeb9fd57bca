"""A paranormal V: a polytope in some directions, and free tokens in the others (2305.05465, Section 5).

If $ℝ^d = F ⊕ G$, both invariant, V = λ I on F and of spectral radius below λ on G, and Q^T K is positive definite,
rescaled tokens come to $(∂K ∪ {0}) × G$ with a polytope K of F. Here F has dimension two, V is drawn in a basis that is
not orthonormal, and Q^T K couples F and G.
"""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._limits import LimitShape
from ..._limits.hypotheses import split
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Found, Say, Settings, claim, percent
from ..shared import emergence
from ..shared.ensemble import mean_and_error


D, MULTIPLICITY = 3, 2
TIMES = (0.0, 0.5, 2.0)
HALF = 2.0  # half the width of the box
SMALLER = (-0.1, 0.1)  # the range of the eigenvalue on G: near zero, tokens neither gather nor separate along G
WIDE = 0.05


class Results(NamedTuple):
    p: emergence.RescaledParameters
    starts: int
    run: emergence.Emergence  # the starts and their shapes
    # The largest distance in F of two tokens at one corner, relative to the longest part in F, (starts,).
    within: np.ndarray
    across: np.ndarray  # this distance in the direction of G, (starts,)


def measure(p: emergence.RescaledParameters, settings: Settings, say: Say) -> Results:
    x0 = emergence.draw_box(settings.seed, settings.starts, p.n, D, HALF)
    values, forms = emergence.draw_pairs(draw_matrices, settings)
    say("simulating")
    run = emergence.emerge(x0, p.ts, values, forms, p.beta)
    say("measuring")
    wide = np.array([widths(x[-1], shape, value) for x, shape, value in zip(run.xs, run.shapes, values, strict=True)])
    return Results(p, settings.starts, run, *wide.T)


def draw_matrices(seed: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """V with the eigenvalues 1, 1 and a smaller one in a random basis, and a random positive definite Q^T K."""
    rng = np.random.default_rng([seed, start, 2])
    left, right = (np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(2))
    basis = left @ np.diag(2.0 ** -rng.uniform(0, 1, D)) @ right
    value = basis @ np.diag([1.0] * MULTIPLICITY + [rng.uniform(*SMALLER)]) @ np.linalg.inv(basis)
    root = rng.normal(size=(D, D))
    return value, root.T @ root / D + 0.1 * np.eye(D)


def widths(x: np.ndarray, shape: LimitShape, value: np.ndarray) -> tuple[float, float]:
    """The largest width in F, and along G, of the tokens at one corner, over the longest part in F."""
    parts, labels = split(value), shape.labels
    inside = x @ parts.dual.T
    # The coordinate along the unit vector of G of each token without its part in F.
    beside = (x - inside @ parts.frame.T) @ parts.rest[:, 0]
    scale = np.linalg.norm(inside, axis=1).max()
    groups = [labels == k for k in set(labels[labels >= 0].tolist())]
    wide = lambda c: max((float(np.linalg.norm(c[g] - c[g][0], axis=1).max()) for g in groups), default=np.inf) / scale
    return wide(inside), wide(beside[:, None])


@claim("less than 1e-12", kind="identity")
def nested(m: Results) -> Found:
    """The convex hull of the parts in F never grows."""
    growth = m.run.growth
    return Found(f"the largest growth of a hull in any of 256 directions: {growth:.1e} of its size", growth < 1e-12,
                 growth)  # fmt: skip


@claim(
    f"hypotheses in all, and at least 95 % certified at t = {{p.end:g}} within {emergence.TOLERANCE:g}",
    source=emergence.theorem("Section 5"),
)
def comes_to_shape(m: Results) -> Found:
    """With a paranormal V the tokens come to the product of G and of the boundary of a polytope in F, or zero."""
    run, share = m.run, float(m.run.certified.mean())
    return Found(
        f"the hypotheses hold in {run.applies} of {m.starts} starts, {run.certified.sum()} are certified; the farthest "
        f"token of all is {run.residuals[:, -1].max():.1e} away",
        run.applies == m.starts and share >= 0.95, share,
    )  # fmt: skip


@claim("more than 99 %")
def at_corners(m: Results) -> Found:
    """The parts in F of more than 99 % of random tokens come to corners of the polytope."""
    mean, error = mean_and_error(m.run.at_points)
    measured = f"{percent(mean, error, 2)} of the tokens; {m.run.counts.mean():.2f} corners on average"
    return Found(measured, bool(mean > 0.99), mean, error)


@claim(f"less than {2 * emergence.TOLERANCE:g} in F, more than {WIDE:g} along G")
def free(m: Results) -> Found:
    """Tokens at one corner in F need not be close along G."""
    within, across = float(np.median(m.within)), float(np.median(m.across))
    return Found(
        f"the tokens of one corner have a width of {within:.1e} in F and of {across:.2f} along G, median over the "
        "starts, relative to the longest part in F",
        within < 2 * emergence.TOLERANCE and across > WIDE, across,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} tokens of R^3, uniform in a box, beta = {m.p.beta:g}, rescaled by exp(-tV); V has the eigenvalues 1, "
        "1 and one near zero in a random basis, and a random positive definite Q^T K couples the two subspaces. The "
        "row shows one start, over lines in the direction of G through the corners of the polytope in the plane F. "
        f"Over {m.starts} starts: (a) the distance of the farthest token from the shape of Section 5 of 2305.05465, "
        "median and middle 80 %; the dashed line is the tolerance of the certificate; (b) the width of the tokens of "
        "one corner in F and along G."
    )


def draw(m: Results) -> Figure:

    def wide(ax: Axes) -> None:
        for values, name, colour in ((m.within, "in F", OKABE_ITO[0]), (m.across, "along G", OKABE_ITO[1])):
            ax.ecdf(np.maximum(values, 1e-16), color=colour, label=name)
        ax.set(xscale="log", xlabel="width of the tokens of one corner", ylabel="share of the starts", ylim=(0, 1.02))
        ax.legend(loc="center")

    shape = m.run.shapes[0]
    return emergence.figure_of_shapes(
        m.p.ts, {"from the side": (m.run.xs[0], shape)}, (*TIMES, m.p.end),
        (emergence.residuals_panel({"all starts": m.run}), wide), view=_beside(shape.rest[:, 0]),
    )  # fmt: skip


def _beside(direction: np.ndarray) -> tuple[float, float]:
    """Elevation and azimuth of an eye that sees G at an angle of 60 degrees."""
    x, y, z = direction * (1 if direction[2] >= 0 else -1)
    elevation = np.degrees(np.arcsin(np.clip(z, -1, 1)))
    return float(np.clip(60 - elevation, -60, 60)), float(np.degrees(np.arctan2(y, x)) + 180)


FIGURE = emergence.rescaled_figure(
    __name__,
    parameters=emergence.RescaledParameters,
    series=lambda m: {"t": m.p.ts, "median residual": np.median(m.run.residuals, axis=0)},
    film=lambda m: emergence.film_of(m.run),
    d=D,
    recorded={
        "value": f"eigenvalues 1, 1 and one from {SMALLER[0]:g} to {SMALLER[1]:g}, random basis",
        "query_key": "random, positive definite",
        "box": HALF,
    },
)
