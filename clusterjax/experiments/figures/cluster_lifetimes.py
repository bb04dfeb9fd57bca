r"""What is measured of the lifetimes of clusters: when they merge, and what the law of the pair that merges says.

Two clusters of masses $m_1, m_2$ at cosine c merge after some
$e^{\beta(1 - c)} / (\beta(1 - c^2)(m_1/m_2 + m_2/m_1))$. Causal: only the later moves. Its first token has the
weight of itself alone against that of the mass $M$ which the earlier has before it, $\dot c = (1 - c^2) M e^{\beta c} /
(M e^{\beta c} + e^\beta)$, so that it takes some $e^{\beta(1 - c)} / (\beta(1 - c^2) M)$. Where all tokens before
one are at the first, its time is exactly an integral along the arc, see `framework.arrivals`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._coarsen import MergeTree, coarsen
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.mask import CausalMask, FullMask
from ...plot import OKABE_ITO, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, percent, plus_minus
from ..framework.figure import declared
from ..framework.verdict import ANY, Source
from ..shared import exact as arrivals
from ..shared.ensemble import LEAST_WAITS, draw_starts, line_of, mean_and_error
from ..shared.exact import LEAST_WAIT, MOST, OFF, Wait
from ..shared.layout import WIDTH
from ..shared.sources import particles


# The picture of figure 4: clusters have formed by then, and lifetimes are counted from it.
FORMED = 15.0
# Waits are compared with the law where its exponent is at least this: it is of large exponents.
LEAST_EXPONENT = 5.0
# As good as never.
END = 1e300
# The distance from the first token at which one has come to it, of the integral.
REACH = 0.01
MASKS = {"full": FullMask(), "causal": CausalMask()}


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(64, "the number of tokens", quick=32, least=4, most=128)
    d: int = parameter(3, "the dimension", least=2, most=8)
    beta: float = parameter(9.0, "the inverse temperature", least=4, most=80)
    radius: float = parameter(0.1, "the distance at which two clusters have merged", least=0.01, most=0.5)
    points: int = parameter(120, "the times at which clusters are counted", least=20, most=1000)


class Lives(NamedTuple):
    """The runs of all starts under one mask.

    **Attributes:**

    - `times`: Merger times, (starts, n - 1); infinite where there was none.
    - `waits`, `laws`: log10 of the time from each merger after `FORMED` to the next, and of the law's for the pair that
        merged, of all starts, (waits,).
    - `moved`: How far the first token of any start moved.
    - `astray`: How far a token of any start ends from the first.
    - `of_start`: The number of the start of each of these, (waits,).
    - `alone`: Of a causal mask the long waits of tokens that come to the first after all before them.
    """

    times: np.ndarray
    waits: np.ndarray
    laws: np.ndarray
    moved: float
    astray: float
    of_start: np.ndarray
    alone: tuple[Wait, ...] = ()

    def counted(self, log_times: np.ndarray) -> np.ndarray:
        """The number of clusters of each start, (starts, times), at times given as log10."""
        n = self.times.shape[1] + 1
        return n - np.sum(self.times[:, None, :] <= 10.0 ** log_times[:, None], axis=2)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows: the runs by mask."""

    p: Parameters
    starts: int
    lives: dict[str, Lives]

    @property
    def log_times(self) -> np.ndarray:
        """log10 of the times at which clusters are counted: from 1 to ten times the last merger of all."""
        last = max(float(np.max(one.times[np.isfinite(one.times)])) for one in self.lives.values())
        return np.linspace(0.0, max(np.log10(last) + 1, 2.0), self.p.points)


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Follow all starts to their last merger under each mask."""
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    lives = {}
    for name, mask in MASKS.items():
        say(f"following {settings.starts} starts to their last merger, {name} attention")
        field = AttentionField(SoftmaxAttention(p.beta, mask=mask))
        lives[name] = live([coarsen(field, x, END, tolerance=p.radius) for x in x0], p.beta, causal=name == "causal")
    return Results(p, settings.starts, lives)


def live(trees: list[MergeTree], beta: float, *, causal: bool) -> Lives:
    """What is read from the runs of all starts."""
    times = np.full((len(trees), trees[0].num_tokens - 1), np.inf)
    waits, laws, alone, moved, astray = [], [], [], 0.0, 0.0
    for row, tree in zip(times, trees, strict=True):
        row[: len(tree)] = tree.times
        first, last = np.asarray(tree.at(0.0)), np.asarray(tree.at(END))
        moved = max(moved, float(np.linalg.norm(last[0] - first[0])))
        astray = max(astray, float(np.max(np.linalg.norm(last - last[0], axis=1))))
        waited, by_law = waits_of(tree, beta, causal=causal)
        waits.append(waited)
        laws.append(by_law)
        if causal:
            # beta Q^T K is beta I.
            scaled = beta * np.eye(first.shape[1])
            alone += arrivals.waits_of(tree, arrivals.arrivals_of(tree, REACH), scaled, REACH)
    of_start = np.repeat(np.arange(len(waits)), [len(one) for one in waits])
    return Lives(times, np.concatenate(waits), np.concatenate(laws), moved, astray, of_start, tuple(alone))


def waits_of(tree: MergeTree, beta: float, *, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """log10 of the time from each merger to the next, and of the law's for the pair that merges next, at its cosine
    after the first of the two; no earlier than `FORMED`."""
    found = []
    for k, at in enumerate(tree.times):
        since = max(FORMED, tree.times[k - 1] if k else 0.0)
        if at <= since:
            continue
        x, labels = np.asarray(tree.at(since)), np.asarray(tree.clusters(since))
        one, two = (np.flatnonzero(labels == label) for label in tree.pairs[k])
        if causal:
            # The first token of each moves it; what the later one sees of the earlier is what comes before it.
            a, b, mass = x[one[0]], x[two[0]], float(np.sum(one < two[0]))
        else:
            a, b = (x[of].mean(axis=0) / np.linalg.norm(x[of].mean(axis=0)) for of in (one, two))
            mass = len(one) / len(two) + len(two) / len(one)
        law = log_law(a, b, beta, mass)
        if law is not None:
            found.append((np.log10(at - since), law))
    waits, laws = np.array(found).reshape(-1, 2).T
    return waits, laws


def log_law(a: np.ndarray, b: np.ndarray, beta: float, mass: float) -> float | None:
    r"""log10 of $e^{\beta(1 - c)} / (\beta (1 - c^2) \text{mass})$; None where the exponent is small."""
    apart = float(np.sum(np.square(a - b))) / 2  # 1 - c, from the difference
    if beta * apart < LEAST_EXPONENT:
        return None
    return float(beta * apart / np.log(10) - np.log10(beta * apart * (2 - apart) * mass))


# What is claimed of the lifetimes of clusters; criteria were set before the first run.


METASTABILITY = Source("2410.06833, the times that clusters stay", ANY, ANY)
# Of the line through the logarithms of waits over laws, and of the median ratio of the two.
SLOPE, FACTOR = 0.1, 2.0
# Figure 4 ends at t = 15: clusters outlive it by this factor in more than half of the starts.
LATER = 10.0


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(
        f"{m.starts} starts",
        (_first(m), _ends(m), _outlive(m), *(_law(name, one) for name, one in m.lives.items()), _integral(m)),
    )


def _first(m: Results) -> Claim:
    causal = m.lives["causal"]
    return Claim(
        says="With a causal mask the first token of a start does not move, and all others come to it (2411.04990).",
        measured=f"it moved by {causal.moved:.1e} at most, and the others end within {causal.astray:.1e} of it",
        criterion="less than 1e-9, and less than 1e-3",
        holds=causal.moved < 1e-9 and causal.astray < 1e-3,
        kind="identity",
        value=causal.moved,
    )


def _ends(m: Results) -> Claim:
    done = {name: float(np.mean(np.isfinite(one.times[:, -1]))) for name, one in m.lives.items()}
    last = ", ".join(
        f"median 1e{np.median(np.log10(one.times[:, -1])):.1f} and latest 1e{np.log10(one.times[:, -1].max()):.1f} "
        f"({name})"
        for name, one in m.lives.items()
    )
    return Claim(
        says="All starts come to one cluster in the end.",
        measured=f"{100 * min(done.values()):.1f} % of the starts or more; times of the last merger: {last}",
        criterion="all starts",
        holds=min(done.values()) == 1.0,
        kind="finding",
        value=min(done.values()),
    )


def _outlive(m: Results) -> Claim:
    shares = {name: mean_and_error(one.times[:, -1] > LATER * FORMED) for name, one in m.lives.items()}
    listed = ", ".join(f"{percent(s, e)} ({name})" for name, (s, e) in shares.items())
    least, error = min(shares.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says=f"The clusters that figure 4 shows at t = {FORMED:g} outlive it tenfold.",
        measured=f"starts with several clusters at t = {LATER * FORMED:g}: {listed}",
        criterion="more than half of the starts under either mask",
        holds=bool(least > 0.5),
        kind="finding",
        value=float(least),
        error=float(error),
    )


def _law(name: str, lives: Lives) -> Claim:
    slope, error, factor = line_of(lives.waits, lives.laws, lives.of_start)
    law = "M), M the mass before it that it sees" if name == "causal" else "(m1/m2 + m2/m1))"
    says = (
        f"With a {name} mask clusters wait as long as the law of the pair that merges next says, "
        f"e^(beta (1 - c)) / (beta (1 - c^2) {law}."
    )
    measured = (
        f"logarithms of waits over those of the law: slope {plus_minus(slope, error, 3)}, median factor {factor:.2f} "
        f"over {len(lives.waits)} waits"
    )
    criterion = (
        f"a slope within {SLOPE:g} of 1 and a median factor below {FACTOR:g}, of laws whose exponent is above "
        f"{LEAST_EXPONENT:g}"
    )
    holds = bool(abs(slope - 1) < SLOPE and factor < FACTOR)
    # The paper is about attention to all tokens.
    if name == "full":
        return Claim(
            says=says, measured=measured, criterion=criterion, holds=holds, kind="paper", value=slope,
            error=error, source=METASTABILITY,
        )  # fmt: skip
    return Claim(
        says=says, measured=measured, criterion=criterion, holds=holds, kind="finding", value=slope, error=error
    )


def _integral(m: Results) -> Claim:
    alone = m.lives["causal"].alone
    off = np.abs([one.waited - one.law for one in alone])
    near = float(np.mean(off < OFF)) if len(off) >= LEAST_WAITS else np.nan
    return Claim(
        says="With a causal mask a token that comes to the first after all before it takes the time of an integral "
        "along the arc between them.",
        measured=f"log10 of the time within {OFF:g} of the integral's in {100 * near:.1f} % of {len(off)} waits longer "
        f"than {LEAST_WAIT:g}; largest difference {off.max(initial=0.0):.2g}",
        criterion=f"more than {100 * MOST:g} % of the waits",
        holds=near > MOST,
        kind="finding",
        value=near,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    verdicts = [f"the law {'holds' if claim.holds else 'does not hold'} with a {name} mask"
                for name, claim in zip(m.lives, claims[-len(m.lives) - 1 : -1], strict=True)]  # fmt: skip
    exact = "holds" if claims[-1].holds else "does not hold"
    return (
        f"{m.p.n} uniform tokens in R^{m.p.d}, V = Q = K = I and beta = {m.p.beta:g}, followed to their last merger "
        f"(at a distance of {m.p.radius:g}), {m.starts} starts. (a) The share of the starts that have more than 1, 2 "
        "and 4 clusters, over time. (b) The time from each merger to the next beside the law of the pair that merges: "
        f"{', and '.join(verdicts)}; crosses: tokens that come to the first after all before them, beside the integral "
        f"along the arc, which {exact}. (c) The last merger of each start."
    )


# The picture of lifetimes: survival of clusters over time, waits beside the law, and last mergers.


MORE_THAN = (1, 2, 4)
LINES = ("-", "--", ":")


@style()
def draw(m: Results) -> Figure:
    """Survival above, the law and the last mergers below."""
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    axes = figure.subplot_mosaic([["survival", "survival"], ["law", "ends"]])
    _survival(axes["survival"], m)
    _panels_law(axes["law"], m)
    _panels_ends(axes["ends"], m)
    for letter, ax in zip("abc", axes.values(), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _survival(ax: Axes, m: Results) -> None:
    for (name, lives), colour in zip(m.lives.items(), OKABE_ITO, strict=False):
        count = lives.counted(m.log_times)
        for least, line in zip(MORE_THAN, LINES, strict=True):
            label = f"{name}, more than {least}"
            ax.plot(m.log_times, np.mean(count > least, axis=0), line, color=colour, lw=1.3, label=label)
    # Where figure 4 ends.
    ax.axvline(np.log10(FORMED), color="0.5", lw=0.8, ls="-.")
    ax.set(xlabel="log10 of time", ylabel="share of the starts", ylim=(0, 1.02), xlim=(0, None))
    ax.legend(loc="upper right")


def _panels_law(ax: Axes, m: Results) -> None:
    low, high = 0.0, 1.0
    for (_, lives), colour in zip(m.lives.items(), OKABE_ITO, strict=False):
        ax.plot(lives.laws, lives.waits, ".", ms=3, color=colour, rasterized=True)
        if len(lives.laws):
            low, high = min(low, float(lives.laws.min())), max(high, float(lives.laws.max()))
    alone = np.array([(one.law, one.waited) for one in m.lives["causal"].alone]).reshape(-1, 2).T
    ax.plot(*alone, "x", ms=3, mew=0.7, color=OKABE_ITO[2], rasterized=True, label="causal, integral")
    ax.plot([low, high], [low, high], color="0.3", lw=0.8, ls="--")
    ax.legend(loc="upper left")
    ax.set(xlabel="log10 of the law of the pair", ylabel="log10 of the wait")


def _panels_ends(ax: Axes, m: Results) -> None:
    share = np.arange(1, m.starts + 1) / m.starts
    for (_, lives), colour in zip(m.lives.items(), OKABE_ITO, strict=False):
        ax.plot(np.sort(np.log10(lives.times[:, -1])), share, color=colour, drawstyle="steps-post")
    ax.set(xlabel="log10 of the last merger", ylabel="share of the starts", ylim=(0, 1.02))


# The lifetimes of clusters as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": p.d, "beta": p.beta, "value": "identity", "query_key": "identity", "masks": list(m.lives),
         "starts": m.starts, "solver": "coarsen", "tolerance": p.radius},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=p.d, beta=p.beta, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"log10 t": m.log_times}
    for name, lives in m.lives.items():
        count, error = mean_and_error(lives.counted(m.log_times))
        series |= {f"clusters, {name}": count, f"clusters, {name}, error": error,
                   f"log10 last merger_by_start, {name}": np.log10(lives.times[:, -1])}  # fmt: skip
    alone = np.array([(one.waited, one.law) for one in m.lives["causal"].alone]).reshape(-1, 2).T
    return series | {"log10 time_by_wait, causal": alone[0], "log10 integral_by_wait, causal": alone[1]}


FIGURE = declared("cluster-lifetimes", _run, parameters=Parameters)
