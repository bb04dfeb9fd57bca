r"""What is measured of a paranormal V: the part of the tokens in F, the eigenspace of dimension two, and that in G.

2305.05465, Section 5: if $R^d = F \oplus G$, both invariant, V = $\lambda$ I on F and of spectral radius below
$\lambda$ on G, and Q^T K is positive definite, rescaled tokens come to $(\partial K \cup \{0\}) \times G$ with a
polytope K of F. V is drawn in a basis that is not orthonormal, and Q^T K couples F and G.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._limits.hypotheses import split
from ...plot import OKABE_ITO
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, percent
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


D, MULTIPLICITY = 3, 2
TIMES = (0.0, 0.5, 2.0)
HALF = 2.0
SMALLER = (-0.1, 0.1)  # the eigenvalue on G: near zero, so that tokens neither gather nor fly apart along it


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(20, "the number of tokens", least=3, most=200)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    end: float = parameter(12.0, "the time at which the shapes are judged", least=4, most=40)

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return save_times(self.end)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `run`: The starts and their shapes.
    - `within`: (starts,), how far apart tokens at one corner are in F, at most, relative to the longest part in F.
    - `across`: (starts,), the same in the direction of G.
    """

    p: Parameters
    starts: int
    run: Emergence
    within: np.ndarray
    across: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run and judge all starts."""
    x0 = draw_box(settings.seed, settings.starts, p.n, D, HALF)
    pairs = [draw_matrices(settings.seed, k) for k in range(settings.starts)]
    values, forms = (np.stack(parts) for parts in zip(*pairs, strict=True))
    say("simulating")
    run = emerge(x0, p.ts, values, forms, p.beta)
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


def widths(x: np.ndarray, shape, value: np.ndarray) -> tuple[float, float]:
    """How wide the groups of tokens at the corners are in F and in G, at most, over the longest part in F."""
    parts, labels = split(value), shape.labels
    inside = x @ parts.dual.T
    # What is left of a token without its part in F, along the unit vector of G.
    beside = (x - inside @ parts.frame.T) @ parts.rest[:, 0]
    scale = np.linalg.norm(inside, axis=1).max()
    groups = [labels == k for k in set(labels[labels >= 0].tolist())]
    wide = lambda c: max((float(np.linalg.norm(c[g] - c[g][0], axis=1).max()) for g in groups), default=np.inf) / scale
    return wide(inside), wide(beside[:, None])


# What is claimed of a paranormal V: nested hulls in F, the shape of the theorem, and that G is free.


THEOREM = Source("2305.05465, Section 5, of any tokens", ANY, ANY)
WIDE = 0.05


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_nested(m), _shape(m), _corners(m), _free(m)))


def _nested(m: Results) -> Claim:
    growth = m.run.growth
    return Claim(
        says="The convex hull of the parts in F never grows.",
        measured=f"the most that a hull grows in any of 256 directions: {growth:.1e} of its size",
        criterion="less than 1e-12",
        holds=growth < 1e-12,
        kind="identity",
        value=growth,
    )


def _shape(m: Results) -> Claim:
    applies, share = sum(shape.applies for shape in m.run.shapes), float(m.run.certified.mean())
    return Claim(
        says="With a paranormal V tokens come to the boundary of a polytope of F, or to zero, times G.",
        measured=f"the hypotheses hold in {applies} of {m.starts} starts, {m.run.certified.sum()} are certified; the "
        f"farthest token of all is {m.run.residuals[:, -1].max():.1e} away",
        criterion=f"hypotheses in all, and at least 95 % certified at t = {m.p.end:g} within {TOLERANCE:g}",
        holds=applies == m.starts and share >= 0.95,
        kind="paper",
        value=share,
        source=THEOREM,
    )


def _corners(m: Results) -> Claim:
    mean, error = mean_and_error(m.run.at_points)
    return Claim(
        says="The parts in F of more than 99 % of random tokens come to corners of that polytope.",
        measured=f"{percent(mean, error, 2)} of the tokens; {m.run.counts.mean():.2f} corners on average",
        criterion="more than 99 %",
        holds=bool(mean > 0.99),
        kind="finding",
        value=float(mean),
        error=float(error),
    )


def _free(m: Results) -> Claim:
    within, across = float(np.median(m.within)), float(np.median(m.across))
    return Claim(
        says="Tokens at one corner of F need not be together in G.",
        measured=f"tokens of one corner are apart by {within:.1e} in F and by {across:.2f} along G, median over the "
        "starts, relative to the longest part in F",
        criterion=f"less than {2 * TOLERANCE:g} in F, more than {WIDE:g} along G",
        holds=within < 2 * TOLERANCE and across > WIDE,
        kind="finding",
        value=across,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, shape, _, free = claims
    return (
        f"{m.p.n} tokens of R^3, uniform in a box, beta = {m.p.beta:g}; V with the eigenvalues 1, 1 and one near zero "
        "in a random basis, a random positive definite Q^T K that couples the two subspaces, rescaled by exp(-tV). One "
        "start, over lines in the direction of G through the corners of the polytope in the plane F. Over "
        f"{m.starts} starts: (a) the distance of the farthest token from the shape that Section 5 of "
        "2305.05465 has, median and middle 80 %; dashed is the tolerance of the certificate; (b) how far apart the "
        "tokens of one corner are in F and along G. "
        + ("All but a few starts are certified. " if shape.holds else "Not enough starts are certified by then. ")
        + ("G keeps tokens apart that are one in F." if free.holds else "Along G tokens come together too.")
    )


# The picture of a paranormal V: one start from two sides, residuals, and how wide the groups are.


def draw(m: Results) -> Figure:
    """Tokens above, numbers below."""
    shape = m.run.shapes[0]
    rows = {"from the side": (m.run.xs[0], shape)}

    def wide(ax: Axes) -> None:
        share = np.arange(1, m.starts + 1) / m.starts
        for values, name, colour in ((m.within, "in F", OKABE_ITO[0]), (m.across, "along G", OKABE_ITO[1])):
            ax.semilogx(np.sort(np.maximum(values, 1e-16)), share, color=colour, drawstyle="steps-post", label=name)
        ax.set(xlabel="width of the tokens of one corner", ylabel="share of the starts", ylim=(0, 1.02))
        ax.legend(loc="lower right")

    return figure_of_shapes(
        m.p.ts, rows, (*TIMES, m.p.end), (residuals_panel({"all starts": m.run}), wide), view=_beside(shape.rest[:, 0])
    )


def _beside(direction: np.ndarray) -> tuple[float, float]:
    """Elevation and azimuth of an eye that sees G at an angle of 60 degrees."""
    x, y, z = direction * (1 if direction[2] >= 0 else -1)
    elevation = np.degrees(np.arcsin(np.clip(z, -1, 1)))
    return float(np.clip(60 - elevation, -60, 60)), float(np.degrees(np.arctan2(y, x)) + 180)


# A paranormal V as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": D, "beta": p.beta, "value": f"eigenvalues 1, 1 and one from {SMALLER[0]:g} to {SMALLER[1]:g}, "
         "random basis", "query_key": "random, positive definite", "box": HALF, "end": p.end, "starts": m.starts,
         "solver": f"Heun, steps of {STEP:g}", "tolerance": TOLERANCE},
        {"t": p.ts, "median residual": np.median(m.run.residuals, axis=0)},
        partial(draw, m),
        film_of(m.run, 0),
        on=Measured(RESCALED, BOX, {"tokens": p.n, "d": D, "beta": p.beta, "t": p.end, "starts": m.starts}),
    )  # fmt: skip


FIGURE = declared("emergence-mixed", _run, parameters=Parameters)
