"""A simple leading eigenvalue of V: the rescaled tokens come to hyperplanes (2305.05465, Theorem 4.2).

If the leading eigenvalue is real, positive and simple and $⟨Qφ_1, Kφ_1⟩ > 0$, rescaled tokens come to at most three
parallel hyperplanes, the levels of $φ_1^*$. Each start has its own V and Q^T K; the same starts with the other sign of
Q^T K show the role of that hypothesis.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._limits.hypotheses import split
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Found, Say, Settings, claim, parameter, percent
from ..shared import emergence
from ..shared.ensemble import share_and_error


D = 2
TIMES = (0.0, 1.0, 3.0)
HALF = 2.0  # half the width of the box
ONE_LEVEL = 0.01  # tokens are on one level if they keep less than this share of the first spread of phi_1*


@dataclass(frozen=True)
class Parameters(emergence.RescaledParameters):
    """The parameters of this figure, whose tokens come to their limits more slowly."""

    end: float = parameter(16.0, "the time at which the shapes are judged", least=4, most=40)


class Results(NamedTuple):
    p: Parameters
    starts: int
    run: emergence.Emergence  # the starts with $⟨Qφ_1, Kφ_1⟩ > 0$
    turned: emergence.Emergence  # the same starts with Q^T K of the other sign
    left: np.ndarray  # the share of the spread of phi_1* that is left in each of the turned runs, (starts,)
    growth: float  # the largest growth of the range of phi_1* over both, in units of the longest token

    @property
    def levels(self) -> np.ndarray:
        """The number of hyperplanes with tokens, (starts,); tokens on none of them count as one more."""
        return np.array([len(set(shape.labels.tolist())) for shape in self.run.shapes])

    @property
    def at_zero(self) -> np.ndarray:
        """True for the starts with a token at the level zero, (starts,)."""
        zero = lambda shape: np.flatnonzero(shape.points[:, 0] == 0)
        return np.array([bool(np.isin(shape.labels, zero(shape)).any()) for shape in self.run.shapes])


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    x0 = emergence.draw_box(settings.seed, settings.starts, p.n, D, HALF)
    values, forms = emergence.draw_pairs(draw_matrices, settings)
    say("simulating")
    run = emergence.emerge(x0, p.ts, values, forms, p.beta)
    say("simulating with the sign of Q^T K turned")
    turned = emergence.emerge(x0, p.ts, values, -forms, p.beta)
    growth = max(growth_of(run, values), growth_of(turned, values))
    return Results(p, settings.starts, run, turned, spread(turned, values), growth)


def draw_matrices(seed: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """V with the eigenvalues 1 and one from -1/2 to 1/2, in a random basis, and a normal Q^T K, neither symmetric nor
    definite, scaled so that <Q phi_1, K phi_1> = 1."""
    rng = np.random.default_rng([seed, start, 1])
    left, right = (np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(2))
    basis = left @ np.diag(4.0 ** -rng.uniform(0, 1, D)) @ right
    value = basis @ np.diag([1.0, rng.uniform(-0.5, 0.5)]) @ np.linalg.inv(basis)
    form, leading = rng.normal(size=(D, D)), basis[:, 0] / np.linalg.norm(basis[:, 0])
    return value, form / (leading @ form @ leading)


def spread(run: emergence.Emergence, values: np.ndarray) -> np.ndarray:
    """The range of phi_1* over the tokens at the end, as a share of the range at the start, (starts,)."""
    duals = [split(value).dual[0] for value in values]
    return np.array([np.ptp(x[-1] @ dual) / np.ptp(x[0] @ dual) for x, dual in zip(run.xs, duals, strict=True)])


def growth_of(run: emergence.Emergence, values: np.ndarray) -> float:
    """The largest growth of the range of phi_1* between any two saved times, over all starts.

    The unit is the norm of the longest token of each start, to which the rounding errors of phi_1* are proportional:
    under a turned Q^T K tokens become 1e5 times as long along the other eigenvector while they gather.
    """
    most = 0.0
    for x, value in zip(run.xs, values, strict=True):
        along = x @ split(value).dual[0]
        reach = np.stack([along.max(axis=1), -along.min(axis=1)], axis=1)
        grown = reach - np.minimum.accumulate(reach, axis=0)
        most = max(most, float(grown.max() / np.linalg.norm(x, axis=2).max()))
    return most


@claim("less than 1e-12", kind="identity")
def nested(m: Results) -> Found:
    """The largest phi_1* of a token never rises and the smallest never falls, whatever Q and K are."""
    return Found(
        f"the largest change in the other direction: {m.growth:.1e} of the longest token", m.growth < 1e-12, m.growth
    )


@claim(
    f"hypotheses in all, and at least 95 % certified at t = {{p.end:g}} within {emergence.TOLERANCE:g}",
    source=emergence.theorem("Theorem 4.2"),
)
def hyperplanes(m: Results) -> Found:
    """With a simple positive leading eigenvalue of V and <Q phi_1, K phi_1> > 0 the tokens come to at most three
    parallel hyperplanes."""
    share, error = share_and_error(m.run.certified)
    return Found(
        f"the hypotheses hold in {m.run.applies} of {m.starts} starts; {percent(share, error)} are certified, the "
        f"median distance of the farthest token is {np.median(m.run.residuals[:, -1]):.1e}",
        m.run.applies == m.starts and share >= 0.95, share, error,
    )  # fmt: skip


@claim("tokens at zero in less than 2 % of the starts, and on two hyperplanes in most")
def two(m: Results) -> Found:
    """In most starts tokens come to two of the hyperplanes, and fewer than 2 % of the starts have a token at zero."""
    certified = m.run.certified
    counts = np.bincount(m.levels[certified], minlength=4)
    measured = (
        f"of {certified.sum()} certified starts {counts[1]} have tokens on one, {counts[2]} on two and {counts[3]} on "
        "three; "
    )
    # The levels of a start that is not certified are unknown: without certified starts the claim does not hold.
    if not certified.any():
        return Found(f"{measured}nothing is known of zero", False)
    share, error = share_and_error(m.at_zero[certified])
    holds = share < 0.02 and counts[2] > certified.sum() / 2
    return Found(f"{measured}at zero in {percent(share, error)}", holds, share, error)


@claim("more than half, and the theorem in none")
def turned(m: Results) -> Found:
    """With <Q phi_1, K phi_1> < 0 no theorem applies, and in most starts all tokens gather on a single hyperplane."""
    share, error = share_and_error(m.left < ONE_LEVEL)
    measured = (
        f"{percent(share, error)} keep less than {100 * ONE_LEVEL:g} % of the spread of phi_1*; a theorem applies in "
        f"{m.turned.applies} of {m.starts}"
    )
    return Found(measured, share > 0.5 and m.turned.applies == 0, share, error)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} tokens of R^{D}, uniform in a box, beta = {m.p.beta:g}, rescaled by exp(-tV). Each start has a V "
        "with the eigenvalues 1 and one from -1/2 to 1/2 in a random basis, and a normal Q^T K. The first row shows a "
        "start that Theorem 4.2 of 2305.05465 applies to, over the hyperplanes, and the second row the same start with "
        f"the sign of Q^T K turned. Over {m.starts} starts: (a) the distance of the farthest token from the "
        "hyperplanes, median and middle 80 %; the dashed line is the tolerance of the certificate; (b) the share of "
        "the spread of phi_1* that is left with the sign turned."
    )


def series(m: Results) -> dict:
    runs = {"": m.run, ", sign turned": m.turned}
    return {"t": m.p.ts} | {f"median residual{name}": np.median(run.residuals, axis=0) for name, run in runs.items()}


def draw(m: Results) -> Figure:
    # The first start that shows two hyperplanes.
    shown = int(np.argmax(m.run.certified & (m.levels == 2)))
    rows = {
        r"$\langle Q\varphi_1, K\varphi_1\rangle > 0$": (m.run.xs[shown], m.run.shapes[shown]),
        "sign turned": (m.turned.xs[shown], m.turned.shapes[shown]),
    }

    def left(ax: Axes) -> None:
        ax.ecdf(np.maximum(m.left, 1e-16), color=OKABE_ITO[1])
        ax.axvline(ONE_LEVEL, color="0.4", ls="--", lw=0.8)
        ax.set(
            xscale="log", xlabel=r"spread of $\varphi_1^*$ that is left", ylabel="share of the starts", ylim=(0, 1.02)
        )

    residuals = emergence.residuals_panel({"theorem applies": m.run, "sign turned": m.turned})
    return emergence.figure_of_shapes(m.p.ts, rows, (*TIMES, m.p.end), (residuals, left))


FIGURE = emergence.rescaled_figure(
    __name__,
    film=lambda m: emergence.film_of(m.run),
    d=D,
    recorded={
        "value": "eigenvalues 1 and one from -1/2 to 1/2, random basis",
        "query_key": "normal, <Q phi_1, K phi_1> = 1, and its negative",
        "box": HALF,
    },
)
