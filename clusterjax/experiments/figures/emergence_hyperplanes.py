r"""What is measured of a V with a simple leading eigenvalue: the levels of $\varphi_1^*$ that the tokens come to.

2305.05465, Theorem 4.2: if the leading eigenvalue is real, positive and simple and $\langle Q\varphi_1, K\varphi_1
\rangle > 0$, rescaled tokens come to at most three parallel hyperplanes. V and Q^T K are drawn anew for each start; the
same runs with the sign of Q^T K turned show what that hypothesis does.
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


D = 2
TIMES = (0.0, 1.0, 3.0)
HALF = 2.0
# Which share of the first spread of phi_1* still counts as one level.
ONE_LEVEL = 0.01


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(20, "the number of tokens", least=3, most=200)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    end: float = parameter(16.0, "the time at which the shapes are judged", least=4, most=40)

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return save_times(self.end)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `run`: The starts with $\\langle Q\\varphi_1, K\\varphi_1\\rangle > 0$.
    - `turned`: The same with Q^T K of the other sign.
    - `left`: (starts,), what is left there of the spread of phi_1*.
    - `growth`: By how much the range of phi_1* grows over either, at most, in units of the longest token.
    """

    p: Parameters
    starts: int
    run: Emergence
    turned: Emergence
    left: np.ndarray
    growth: float

    @property
    def levels(self) -> np.ndarray:
        """On how many hyperplanes there are tokens, (starts,); those on none count as one more."""
        return np.array([len(set(shape.labels.tolist())) for shape in self.run.shapes])

    @property
    def at_zero(self) -> np.ndarray:
        """In which starts there is a token at the level zero, (starts,)."""
        zero = lambda shape: np.flatnonzero(shape.points[:, 0] == 0)
        return np.array([bool(np.isin(shape.labels, zero(shape)).any()) for shape in self.run.shapes])


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run and judge all starts, with Q^T K of either sign."""
    x0 = draw_box(settings.seed, settings.starts, p.n, D, HALF)
    pairs = [draw_matrices(settings.seed, k) for k in range(settings.starts)]
    values, forms = (np.stack(parts) for parts in zip(*pairs, strict=True))
    say("simulating")
    run = emerge(x0, p.ts, values, forms, p.beta)
    say("simulating with Q^T K turned")
    turned = emerge(x0, p.ts, values, -forms, p.beta)
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


def spread(run: Emergence, values: np.ndarray) -> np.ndarray:
    """The range of phi_1* over the tokens at the end, as a share of that at the start, (starts,)."""
    duals = [split(value).dual[0] for value in values]
    return np.array([np.ptp(x[-1] @ dual) / np.ptp(x[0] @ dual) for x, dual in zip(run.xs, duals, strict=True)])


def growth_of(run: Emergence, values: np.ndarray) -> float:
    """By how much the range of phi_1* grows between any two saved times, at most over the starts.

    In units of the longest token of each start, which is what phi_1* is rounded by: along the other eigenvector tokens
    become 1e5 times as long while those with a turned Q^T K gather.
    """
    most = 0.0
    for x, value in zip(run.xs, values, strict=True):
        along = x @ split(value).dual[0]
        reach = np.stack([along.max(axis=1), -along.min(axis=1)], axis=1)
        grown = reach - np.minimum.accumulate(reach, axis=0)
        most = max(most, float(grown.max() / np.linalg.norm(x, axis=2).max()))
    return most


# What is claimed of a simple leading eigenvalue: nested levels, at most three hyperplanes, and what the sign does.


THEOREM = Source("2305.05465, Theorem 4.2, of any tokens", ANY, ANY)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_nested(m), _hyperplanes(m), _two(m), _turned(m)))


def _share(flags: np.ndarray) -> tuple[float, float]:
    share = float(np.mean(flags))
    return share, float(np.sqrt(max(share * (1 - share), 1e-12) / len(flags)))


def _nested(m: Results) -> Claim:
    return Claim(
        says="The largest phi_1* of a token never rises and the smallest never falls, whatever Q and K are.",
        measured=f"the most that either does: {m.growth:.1e} of the longest token",
        criterion="less than 1e-12",
        holds=m.growth < 1e-12,
        kind="identity",
        value=m.growth,
    )


def _hyperplanes(m: Results) -> Claim:
    applies = sum(shape.applies for shape in m.run.shapes)
    share, error = _share(m.run.certified)
    return Claim(
        says="With a simple positive leading eigenvalue of V tokens come to at most three parallel hyperplanes.",
        measured=f"the hypotheses hold in {applies} of {m.starts} starts; {percent(share, error)} "
        f"are certified, the median of the farthest token is {np.median(m.run.residuals[:, -1]):.1e}",
        criterion=f"hypotheses in all, and at least 95 % certified at t = {m.p.end:g} within {TOLERANCE:g}",
        holds=applies == m.starts and share >= 0.95,
        kind="paper",
        value=share,
        error=error,
        source=THEOREM,
    )


def _two(m: Results) -> Claim:
    certified = m.run.certified
    counts = np.bincount(m.levels[certified], minlength=4)
    # Of no start nothing is known, and the claim does not hold.
    share, error, zero = None, None, "nothing is known of zero"
    if certified.any():
        share, error = _share(m.at_zero[certified])
        zero = f"at zero in {percent(share, error)}"
    return Claim(
        says="Random tokens come to two of the hyperplanes, or to one if they begin on one side; fewer than 2 % of "
        "the starts have a token at zero.",
        measured=f"of {certified.sum()} certified starts {counts[1]} have tokens on one, {counts[2]} on two and "
        f"{counts[3]} on three; {zero}",
        criterion="tokens at zero in less than 2 % of the starts, and on two hyperplanes in most",
        holds=bool(share is not None and share < 0.02 and counts[2] > certified.sum() / 2),
        kind="finding",
        value=share,
        error=error,
    )


def _turned(m: Results) -> Claim:
    share, error = _share(m.left < ONE_LEVEL)
    return Claim(
        says="With <Q phi_1, K phi_1> < 0 no theorem applies, and most starts gather on a single hyperplane.",
        measured=f"{percent(share, error)} keep less than {100 * ONE_LEVEL:g} % of the spread of "
        f"phi_1*; a theorem applies in {sum(shape.applies for shape in m.turned.shapes)} of {m.starts}",
        criterion="more than half, and the theorem in none",
        holds=bool(share > 0.5 and not any(shape.applies for shape in m.turned.shapes)),
        kind="finding",
        value=share,
        error=error,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, hyperplanes, _, turned = claims
    return (
        f"{m.p.n} tokens of R^{D}, uniform in a box, beta = {m.p.beta:g}; V with the eigenvalues 1 and one from -1/2 "
        "to 1/2 in a random basis and a normal Q^T K for each start, rescaled by exp(-tV). Above a start for which "
        "Theorem 4.2 of 2305.05465 applies, over the hyperplanes; below it the same with Q^T K of the other sign. Over "
        f"{m.starts} starts: (a) the distance of the farthest token from the hyperplanes, median and middle 80 %; "
        "dashed is the tolerance of the certificate; (b) what is left of the spread of phi_1* with the sign turned. "
        + ("The theorem holds here. " if hyperplanes.holds else "Not all starts are certified by then. ")
        + ("Where its hypothesis fails most starts end on a single hyperplane." if turned.holds else "")
    ).strip()


# The picture of a simple leading eigenvalue: a start with either sign of Q^T K, residuals, and what is left.


def draw(m: Results) -> Figure:
    """Tokens above, numbers below."""
    # The first start that shows two hyperplanes.
    two = m.run.certified & (m.levels == 2)
    shown = int(np.argmax(two)) if two.any() else 0
    rows = {
        r"$\langle Q\varphi_1, K\varphi_1\rangle > 0$": (m.run.xs[shown], m.run.shapes[shown]),
        "sign turned": (m.turned.xs[shown], m.turned.shapes[shown]),
    }

    def left(ax: Axes) -> None:
        ordered = np.sort(np.maximum(m.left, 1e-16))
        ax.semilogx(ordered, np.arange(1, m.starts + 1) / m.starts, color=OKABE_ITO[1], drawstyle="steps-post")
        ax.axvline(ONE_LEVEL, color="0.4", ls="--", lw=0.8)
        ax.set(xlabel=r"spread of $\varphi_1^*$ that is left", ylabel="share of the starts", ylim=(0, 1.02))

    return figure_of_shapes(
        m.p.ts, rows, (*TIMES, m.p.end), (residuals_panel({"theorem applies": m.run, "sign turned": m.turned}), left)
    )


# A simple leading eigenvalue as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": D, "beta": p.beta, "value": "eigenvalues 1 and one from -1/2 to 1/2, random basis",
         "query_key": "normal, <Q phi_1, K phi_1> = 1, and its negative", "box": HALF, "end": p.end,
         "starts": m.starts, "solver": f"Heun, steps of {STEP:g}", "tolerance": TOLERANCE},
        _series(m),
        partial(draw, m),
        film_of(m.run, 0),
        on=Measured(RESCALED, BOX, {"tokens": p.n, "d": D, "beta": p.beta, "t": p.end, "starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    runs = {"": m.run, ", sign turned": m.turned}
    return {"t": m.p.ts} | {f"median residual{name}": np.median(run.residuals, axis=0) for name, run in runs.items()}


FIGURE = declared("emergence-hyperplanes", _run, parameters=Parameters)
