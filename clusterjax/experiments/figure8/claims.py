"""What figure 8 claims: the first token moves on its own, aligns, draws the others, and is no attention sink."""

import numpy as np

from ..._observables import uniform_causal_sink
from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, percent, plus_minus, within
from ..framework.sources import PEAT_FIGURE_8
from ..framework.trained_values import TrainedValues
from .measure import START, TS, Results, Series


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(f"{m.starts} starts", (
        _alone(m), _aligns(m), _pace(m), _attracts(m), influence_claim(m.xs[:, -1], m.turned, m.top),
        sink_claim(m.weight, m.p.n),
    ))  # fmt: skip


def _at(series: Series, place: int, digits: int = 2) -> str:
    return plus_minus(series[0][place], series[1][place], digits)


def _alone(m: Results) -> Claim:
    return Claim(
        says="The first token moves on its own: x_1(t) = exp(Vt) x_1(0), normalised (2411.04990).",
        measured=f"largest difference over {m.starts} starts, as it comes and rescaled, {m.off:.1e}",
        criterion="less than 1e-6",
        holds=m.off < 1e-6,
        kind="identity",
        value=m.off,
    )


def _aligns(m: Results) -> Claim:
    alignment, error = m.alignment
    return Claim(
        says="The first token aligns with the eigenvectors of V.",
        measured=f"mean |<x_1, v_1>|: {_at(m.alignment, START, 3)} at t = 0.6, {_at(m.alignment, -1, 3)} at t = 9; by "
        f"exp(Vt) it passes 0.95 at t = {m.aligned:.3g}; with V as it comes {_at(m.slow, -1, 3)} at t = 9",
        criterion="above 0.95 at t = 9, with time rescaled",
        holds=bool(alignment[-1] > 0.95),
        kind="paper",
        value=float(alignment[-1]),
        error=float(error[-1]),
        source=PEAT_FIGURE_8,
    )


def _pace(m: Results) -> Claim:
    return Claim(
        says="The first token turns at the rate of exp(Vt), which tends to the spectral gap.",
        measured=f"median rate over t = 6 to 9: {m.rate:.4f}; of exp(Vt) {m.exact_rate:.4f}; gap of the real parts "
        f"{m.gap:.4f}",
        criterion="that of exp(Vt) to within a thousandth of the gap",
        holds=within(m.rate, m.exact_rate, 1e-3 * m.gap),
        kind="identity",
        value=m.rate,
    )


def _attracts(m: Results) -> Claim:
    distance, error = m.distance
    return Claim(
        says="The first token attracts the subsequent ones.",
        measured=f"mean distance to it: {_at(m.distance, START)} at t = 0.6, {_at(m.distance, -1)} at t = 9; with V as "
        f"it comes {_at(m.far, -1)}",
        criterion="falls below half, with time rescaled",
        holds=bool(distance[-1] < distance[START] / 2),
        kind="paper",
        value=float(distance[-1]),
        error=float(error[-1]),
        source=PEAT_FIGURE_8,
    )


def influence_claim(end: np.ndarray, turned: np.ndarray, top: int) -> Claim:
    """How many of tokens 2 to n, (starts, n, d), end elsewhere when the first token starts opposite."""
    # A negative inner product of the two ends, within the eigenspace.
    moved = np.einsum("snd,snd->sn", end[:, 1:, :top], turned[:, 1:, :top]) < 0
    share, error = mean_and_error(moved.mean(-1))
    return Claim(
        says="Turned round at the start, the first token takes more than half of the others to the other side.",
        measured=f"{percent(share, error)} of the other tokens are on the other side at t = 9",
        criterion="more than half; none if the first token had no influence",
        holds=bool(share > 0.5),
        kind="finding",
        value=float(share),
        error=float(error),
    )


def sink_claim(mass: np.ndarray, n: int) -> Claim:
    """Whether the first token is an attention sink; of the weight (starts, times) that it receives."""
    mean, error = mean_and_error(mass)
    # Uniform causal attention gives the first token H_n / n, which is not its doing.
    uniform, largest = float(uniform_causal_sink(n)[0]), int(np.argmax(mean))
    # At all times, so that no time may be chosen afterwards.
    never = bool((mean - uniform <= 2 * error).all())
    return Claim(
        says="The first token is no attention sink: it never has more weight than the causal mask alone gives it.",
        measured=f"mean weight from the others {plus_minus(mean[0], error[0], 4)} at t = 0, {mean.max():.4f} at most "
        f"(t = {TS[largest]:.2f}), {plus_minus(mean[-1], error[-1], 4)} at t = 9; uniform attention gives "
        f"{uniform:.4f}",
        criterion="at no time above uniform attention by more than two standard errors",
        holds=never,
        kind="finding",
        value=float(mean[-1]),
        error=float(error[-1]),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the figure."""
    _, aligns, _, attracts, influence, sink = claims
    # One sentence for both outcomes.
    words = {True: "", False: "not "}
    return (
        f"The first token (red, with its path) and the others of one start (seed {m.seed}; of the first 16 the one "
        f"whose first token has the longest way to go); Q = K = I, beta = {m.p.beta:g}, V with the eigenvalues "
        f"{m.source.words}: {m.source.origin}. Arrow: the top eigenvector v1. Below, over {m.starts} starts with "
        "standard errors: (a) |<x, v1>| of the first token, on the exact curve of exp(Vt) x_1(0), and of all tokens; "
        "(b) the mean distance to the first token. The paper says that the token aligns with the eigenvectors and "
        f"attracts the others. Here, by t = 9, it has {words[aligns.holds]}aligned, and the others have "
        f"{words[attracts.holds]}come to it. Dashed: V as it comes, {m.source.scale:.3g} times slower; by t = 9 the "
        f"token is at {m.slow[0][-1]:.2f} and the others at a distance of {m.far[0][-1]:.2f}. {_repelling(m.source)} V "
        "alone aligns it: the others have no part in that. That it draws them is seen by turning it round at the "
        f"start: {100 * (influence.value or 0.0):.0f} % of the others then end on the other side. "
        + (
            "It never receives more weight than a causal mask alone gives to the first token: these dynamics make no "
            "attention sink."
            if sink.holds
            else "At times it receives more weight than a causal mask alone gives to the first token."
        )
    )


def _repelling(source: TrainedValues) -> str:
    """Which heads would draw nothing, for a caption."""
    repel = [int(head) + 1 for head in np.flatnonzero(source.repelling)]
    does = "repels" if source.repelling[source.head] else "attracts"
    return f"Head {source.head + 1} {does}; heads {repel} of {len(source.top)} repel, see figure 7." if repel else ""
