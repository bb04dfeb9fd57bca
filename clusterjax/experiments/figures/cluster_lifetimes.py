"""The lifetimes of clusters: when do the clusters of figure 4 merge, and what does the law of the merging pair say?

Two clusters of masses $m_1, m_2$ at cosine c merge after about $exp(β(1 - c)) / (β(1 - c²)(m_1/m_2 + m_2/m_1))$ under
full attention. Under a causal mask the later cluster alone moves. Its first token weighs itself against the M tokens of
the earlier cluster that come before it, $ċ = (1 - c²) M e^{βc} / (M e^{βc} + e^β)$, so that the clusters merge after
about $exp(β(1 - c)) / (β(1 - c²) M)$. Once all earlier tokens are at the first, the time of a token is exactly an
integral along the arc, see `shared.exact`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from ..._coarsen import MergeTree, coarsen
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.mask import CausalMask, FullMask
from ...plot import OKABE_ITO
from ..framework.figure import Claim, ClaimOf, Found, Say, Settings, claim, figure, parameter, percent, plus_minus
from ..framework.verdict import ANY, Source
from ..shared import exact
from ..shared.ensemble import draw_starts, line_of, mean_and_error
from ..shared.layout import mosaic
from ..shared.sources import particles


METASTABILITY = Source("2410.06833, the times that clusters stay", ANY, ANY)
MASKS = {"full": FullMask(), "causal": CausalMask()}
COLOURS = dict(zip(MASKS, OKABE_ITO, strict=False))
FORMED = 15.0  # the end of figure 4: clusters have formed, and their lifetimes begin
END = 1e300  # the time that stands for infinity
REACH = 0.01  # the distance within which a token has arrived at the first token, for the integral


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(64, "the number of tokens", quick=32, least=4, most=128)
    d: int = parameter(3, "the dimension", least=2, most=8)
    beta: float = parameter(9.0, "the inverse temperature", least=4, most=80)
    radius: float = parameter(0.1, "the distance at which two clusters have merged", least=0.01, most=0.5)
    points: int = parameter(120, "the number of times at which clusters are counted", least=20, most=1000)


class Lives(NamedTuple):
    """The runs of all starts under one mask."""

    times: np.ndarray  # the merger times, infinite for a merger that does not happen, (starts, n - 1)
    waits: np.ndarray  # log10 of the time from each merger to the next merger, see `exact.pair_waits`
    laws: np.ndarray  # log10 of the time that the law gives for the pair that merges, (waits,)
    moved: float  # the largest displacement of a first token
    astray: float  # the largest distance of a token from the first token at the end
    wait_starts: np.ndarray  # the number of the start of each wait, (waits,)
    alone: tuple[exact.Wait, ...] = ()  # causal: the long waits of tokens that arrive at the first after all others

    @property
    def log_last(self) -> np.ndarray:
        return np.log10(self.times[:, -1])

    def counted(self, log_times: np.ndarray) -> np.ndarray:
        """The number of clusters of each start at times given as log10, (starts, times)."""
        n = self.times.shape[1] + 1
        return n - np.sum(self.times[:, None, :] <= 10.0 ** log_times[:, None], axis=2)


class Results(NamedTuple):
    p: Parameters
    starts: int
    lives: dict[str, Lives]

    @property
    def log_times(self) -> np.ndarray:
        """log10 of the times at which clusters are counted, from 1 to ten times the last merger of all starts."""
        last = max(float(np.max(run.times[np.isfinite(run.times)])) for run in self.lives.values())
        return np.linspace(0.0, max(np.log10(last) + 1, 2.0), self.p.points)

    @property
    def alone(self) -> np.ndarray:
        """log10 of the waits that have an integral, and log10 of the integrals, (2, waits)."""
        return np.array([(wait.waited, wait.law) for wait in self.lives["causal"].alone]).reshape(-1, 2).T


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    lives = {}
    for name, mask in MASKS.items():
        say(f"following {settings.starts} starts to their last merger, {name} attention")
        field = AttentionField(SoftmaxAttention(p.beta, mask=mask))
        lives[name] = live([coarsen(field, x, END, tolerance=p.radius) for x in x0], p.beta, causal=name == "causal")
    return Results(p, settings.starts, lives)


def live(trees: list[MergeTree], beta: float, *, causal: bool) -> Lives:
    times = np.full((len(trees), trees[0].num_tokens - 1), np.inf)
    pairs, alone, moved, astray = [], [], 0.0, 0.0
    for row, tree in zip(times, trees, strict=True):
        row[: len(tree)] = tree.times
        first, last = np.asarray(tree.at(0.0)), np.asarray(tree.at(END))
        moved = max(moved, float(np.linalg.norm(last[0] - first[0])))
        astray = max(astray, float(np.max(np.linalg.norm(last - last[0], axis=1))))
        pairs.append(exact.pair_waits(tree, beta, FORMED, causal=causal))
        if causal:
            scaled = beta * np.eye(first.shape[1])
            alone += exact.waits_of(tree, exact.arrivals_of(tree, REACH), scaled, REACH)
    wait_starts = np.repeat(np.arange(len(pairs)), [len(waits) for waits, _ in pairs])
    waits, laws = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return Lives(times, waits, laws, moved, astray, wait_starts, tuple(alone))


@claim("a displacement below 1e-9, and a distance below 1e-3", kind="identity")
def first_rests(m: Results) -> Found:
    """With a causal mask the first token does not move, and all other tokens come to it (2411.04990)."""
    causal = m.lives["causal"]
    measured = f"the largest displacement is {causal.moved:.1e}, and the others end within {causal.astray:.1e} of it"
    return Found(measured, causal.moved < 1e-9 and causal.astray < 1e-3, causal.moved)


@claim("all starts")
def one_cluster(m: Results) -> Found:
    """All starts come to one cluster in the end."""
    share = min(float(np.mean(np.isfinite(run.times[:, -1]))) for run in m.lives.values())
    last = ", ".join(
        f"median 1e{np.median(run.log_last):.1f} and maximum 1e{run.log_last.max():.1f} ({name})"
        for name, run in m.lives.items()
    )
    return Found(
        f"{100 * share:.1f} % of the starts or more; the times of the last merger: {last}", share == 1.0, share
    )


@claim("more than half of the starts under either mask")
def outlive(m: Results) -> Found:
    """More than half of the starts still have several clusters at ten times t = {FORMED:g}, the end of figure 4."""
    shares = {name: mean_and_error(run.times[:, -1] > 10 * FORMED) for name, run in m.lives.items()}
    listed = ", ".join(f"{percent(*share)} ({name})" for name, share in shares.items())
    least, error = min(shares.values(), key=lambda share: float(share[0]))
    return Found(f"starts with several clusters at t = {10 * FORMED:g}: {listed}", least > 0.5, least, error)


def law(name: str) -> ClaimOf:
    """The claim on the law of a pair under one mask; the paper is about full attention."""
    mass = "M), where the later cluster attends to M earlier tokens" if name == "causal" else "(m1/m2 + m2/m1))"

    @claim(
        "a slope within 0.1 of 1 and a median factor below 2, of laws whose exponent is above "
        f"{exact.LEAST_EXPONENT:g}",
        says=f"With a {name} mask the time from a merger to the next follows the law of the pair that merges next, "
        f"e^(beta (1 - c)) / (beta (1 - c^2) {mass}.",
        source=METASTABILITY if name == "full" else None,
    )
    def follows(m: Results) -> Found:
        lives = m.lives[name]
        slope, error, factor = line_of(lives.waits, lives.laws, lives.wait_starts)
        return Found(
            "the logarithms of the waits against the logarithms of the law have the slope "
            f"{plus_minus(slope, error, 3)}, with a median factor of {factor:.2f}, over {len(lives.waits)} waits",
            abs(slope - 1) < 0.1 and factor < 2.0, slope, error,
        )  # fmt: skip

    return follows


def integral(m: Results) -> Claim:
    return exact.integral_claim(m.lives["causal"].alone, "With a causal mask")


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    full, causal, arc = ("holds" if claim.holds else "does not hold" for claim in claims[-3:])
    return (
        f"{m.p.n} uniform tokens in R^{m.p.d} with V = Q = K = I and beta = {m.p.beta:g}, {m.starts} starts, followed "
        f"to their last merger (at a distance of {m.p.radius:g}). (a) The share of the starts that have more than 1, 2 "
        "and 4 clusters, over time. (b) The time from each merger to the next, against the law of the pair that "
        f"merges: the law {full} with a full mask, and the law {causal} with a causal mask; crosses: tokens that come "
        f"to the first after all earlier tokens, against the integral along the arc, which {arc}. (c) The last "
        "merger of each start."
    )


def series(m: Results) -> dict:
    series = {"log10 t": m.log_times}
    for name, lives in m.lives.items():
        count, error = mean_and_error(lives.counted(m.log_times))
        series |= {f"clusters, {name}": count, f"clusters, {name}, error": error,
                   f"log10 last merger_by_start, {name}": lives.log_last}  # fmt: skip
    waits, integrals = m.alone
    return series | {"log10 time_by_wait, causal": waits, "log10 integral_by_wait, causal": integrals}


def _survival(ax: Axes, m: Results) -> None:
    for name, lives in m.lives.items():
        count = lives.counted(m.log_times)
        for least, line in ((1, "-"), (2, "--"), (4, ":")):
            share = np.mean(count > least, axis=0)
            ax.plot(m.log_times, share, line, color=COLOURS[name], lw=1.3, label=f"{name}, more than {least}")
    ax.axvline(np.log10(FORMED), color="0.5", lw=0.8, ls="-.")  # the end of figure 4
    ax.set(xlabel="log10 of time", ylabel="share of the starts", ylim=(0, 1.02), xlim=(0, None))
    ax.legend(loc="upper right")


def _waits(ax: Axes, m: Results) -> None:
    for name, lives in m.lives.items():
        ax.plot(lives.laws, lives.waits, ".", ms=3, color=COLOURS[name], rasterized=True)
    laws = np.concatenate([[0.0, 1.0], *(lives.laws for lives in m.lives.values())])
    waits, integrals = m.alone
    ax.plot(integrals, waits, "x", ms=3, mew=0.7, color=OKABE_ITO[2], rasterized=True, label="causal, integral")
    ax.plot([laws.min(), laws.max()], [laws.min(), laws.max()], color="0.3", lw=0.8, ls="--")
    ax.legend(loc="upper left")
    ax.set(xlabel="log10 of the law of the pair", ylabel="log10 of the wait")


def _ends(ax: Axes, m: Results) -> None:
    for name, lives in m.lives.items():
        ax.ecdf(lives.log_last, color=COLOURS[name])
    ax.set(xlabel="log10 of the last merger", ylabel="share of the starts", ylim=(0, 1.02))


FIGURE = figure(
    __name__,
    draw=lambda m: mosaic(m, (_survival, _waits, _ends), "aa;bc", height=4.9),
    claims=(first_rests, one_cluster, outlive, law("full"), law("causal"), integral),
    on=lambda m: particles(tokens=m.p.n, d=m.p.d, beta=m.p.beta, starts=m.starts),
    recorded=lambda m: {"value": "identity", "query_key": "identity", "masks": list(m.lives), "starts": m.starts,
                        "solver": "coarsen", "tolerance": m.p.radius},
)  # fmt: skip
