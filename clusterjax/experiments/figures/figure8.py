"""What figure 8 measures: the path of the first token, with time rescaled and as V comes, and with it turned round.

In a causal model the first token attends to itself alone, so that x_1(t) = exp(Vt) x_1(0), normalised, whatever the
others do (2411.04990, Section 3). It aligns with the eigenspace of the eigenvalue of largest real part, at the rate of
the gap of the real parts. What it does to the others is measured by starting it at the opposite point: tokens that end
on the other side went there because of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._model.attention import SoftmaxAttention
from ..._model.mask import CausalMask
from ..._observables import sink_mass, uniform_causal_sink
from ...plot import OKABE_ITO, time_series
from ..framework.experiment import (
    MOST_OF_NETWORK,
    Claim,
    Film,
    Outcome,
    Settings,
    over,
    parameter,
    percent,
    plus_minus,
    within,
)
from ..framework.figure import declared
from ..shared.ensemble import (
    MOST_TOKENS,
    distance_to_first,
    draw_starts,
    exact_first_token,
    mean_and_error,
    run_ensemble,
)
from ..shared.layout import figure_of_run
from ..shared.sources import PEAT_FIGURE_8
from ..shared.trained_values import TrainedValues, check_head, trained_values


D = 3
TIMES = (0.6, 3.0, 6.0, 9.0)  # of the snapshots
TS = np.linspace(0.0, 9.0, 61)
START = int(np.argmin(np.abs(TS - TIMES[0])))
CANDIDATES = 16  # starts among which the one that is shown is chosen

Series = tuple[np.ndarray, np.ndarray]  # the mean over the starts, and its standard error


@dataclass(frozen=True)
class Parameters:
    """What of figure 8 can be set."""

    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    layer: int = parameter(1, "the layer whose V is taken", least=1, most=MOST_OF_NETWORK)
    head: int = parameter(0, "the head that is shown, 0 being the one with the largest real part", least=0,
                          most=MOST_OF_NETWORK)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 8 shows. The eigenspace is that of the eigenvalue of V of largest real part, or of a pair.

    **Attributes:**

    - `source`: The V of the trained head.
    - `xs`: (starts, times, n, 3), the tokens, with time rescaled.
    - `exact`: (starts, times, 3), where the first token must be.
    - `off`: How far it is from there, at most, as it comes too.
    - `turned`: (starts, n, 3), the tokens at the end if the first starts opposite.
    - `alignment`, `everyone`: How long the part of the first token in the eigenspace is, and that of all tokens.
    - `slow`: The same of the first with V as it comes.
    - `distance`, `far`: The mean distance to the first token, with time rescaled and as it comes.
    - `weight`: (starts, times), the mean weight that the other tokens give to the first.
    - `aligned`: The time at which the alignment passes 0.95 by exp(Vt).
    - `rate`, `exact_rate`, `gap`: How fast the first token aligns, by exp(Vt), and in the end.
    """

    p: Parameters
    seed: int
    starts: int
    source: TrainedValues
    xs: np.ndarray
    exact: np.ndarray
    off: float
    turned: np.ndarray
    alignment: Series
    everyone: Series
    slow: Series
    distance: Series
    far: Series
    weight: np.ndarray
    aligned: float
    rate: float
    exact_rate: float
    gap: float

    @property
    def top(self) -> int:
        """The dimension of the eigenspace."""
        return self.source.leading

    @property
    def shown(self) -> int:
        """The start whose first token has the longest way to go."""
        # The least part in the eigenspace at the start.
        return int(np.argmin(np.linalg.norm(self.xs[:CANDIDATES, 0, 0, : self.top], axis=-1)))


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate with time rescaled, as V comes, and with the first token turned round, from the same starts."""
    source = trained_values(settings, p.layer, p.head)
    value, top = source.value, source.leading
    say("simulating")
    x0 = draw_starts(settings.seed, settings.starts, p.n, D)
    runs = run_ensemble(x0, TS, beta=p.beta, value=value)
    say("simulating with V as it comes")
    raw = run_ensemble(x0, TS, beta=p.beta, value=source.raw[source.head])
    say("simulating with the first token turned round")
    # Only the first token; the field is odd, so that turning all would turn the whole run.
    turned = run_ensemble(x0.at[:, 0].multiply(-1.0), TS, beta=p.beta, value=value)
    say("measuring")
    xs, raw_xs, exact = np.asarray(runs.xs), np.asarray(raw.xs), exact_first_token(runs)
    off = max(float(np.abs(exact - xs[:, :, 0]).max()), float(np.abs(exact_first_token(raw) - raw_xs[:, :, 0]).max()))
    # The eigenspace is spanned by the first one or two coordinates.
    within = lambda x: np.linalg.norm(x[..., :top], axis=-1)
    return Results(
        p, settings.seed, settings.starts, source, xs, exact, off, np.asarray(turned.xs)[:, -1],
        alignment=mean_and_error(within(xs[:, :, 0])), everyone=mean_and_error(within(xs).mean(-1)),
        slow=mean_and_error(within(raw_xs[:, :, 0])), distance=mean_and_error(distance_to_first(runs)),
        far=mean_and_error(distance_to_first(raw)), weight=np.asarray(_first_weight(runs.xs, jnp.asarray(p.beta))),
        aligned=when_aligned(np.asarray(x0[:, 0]), value, top), rate=rate_of(xs[:, :, 0], top),
        exact_rate=rate_of(exact, top), gap=float(value[0, 0] - value[top, top]),
    )  # fmt: skip


@eqx.filter_jit
def _first_weight(xs: Float[Array, "starts times n d"], beta: Float[Array, ""]) -> Float[Array, "starts times"]:
    attention = SoftmaxAttention(beta, mask=CausalMask())
    # `sink_mass` of each token; the first is that of token 1.
    return jax.lax.map(jax.vmap(lambda x: sink_mass(attention.weights(x))[0]), xs)


def when_aligned(x: np.ndarray, value: np.ndarray, top: int) -> float:
    """The time at which the mean |<x_1, v_1>| by exp(Vt) passes 0.95, of starts (starts, d); V is block diagonal, so
    that only the real parts move the share of the first `top` coordinates."""
    # The real parts of all three eigenvalues, in decreasing order; rotations within a block change no length.
    parts = np.diag(value)
    # e^-20 of what is beside the eigenspace is left at the end.
    times = np.linspace(0.0, 20 / max(parts[0] - parts[top], 1e-9), 2001)
    # exp(Vt) x less the common growth, (times, starts, 3).
    moved = x[None] * np.exp((parts[None, :] - parts[0]) * times[:, None])[:, None, :]
    share = np.linalg.norm(moved[..., :top], axis=-1) / np.linalg.norm(moved, axis=-1)
    return float(times[np.argmax(share.mean(axis=1) > 0.95)])


def rate_of(first: np.ndarray, top: int) -> float:
    """The median over the starts of the slope of log of what is left beside the eigenspace, over the last third."""
    # The rate is that of the gap only once what is left beside the eigenspace is small.
    late = TS >= 6.0
    beside = np.linalg.norm(first[:, late, top:], axis=-1)
    return float(-np.median(np.polyfit(TS[late], np.log(beside).T, 1)[0]))


# What figure 8 claims: the first token moves on its own, aligns, draws the others, and is no attention sink.


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


# The picture of figure 8: the path of the first token; how it aligns, and how far the others are from it.


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    x = m.xs[m.shown]
    # The eigenvector has two directions: that on the side where the first token ends.
    arrows = {"v₁": np.array([np.sign(x[-1, 0, 0]), 0.0, 0.0])} if m.top == 1 else None

    def alignment(ax: Axes) -> None:
        # The mean over starts of what exp(Vt) alone does.
        exact = np.linalg.norm(m.exact[..., : m.top], axis=-1).mean(0)
        time_series(TS, *m.alignment, ax, label="first token", colour=OKABE_ITO[1])
        time_series(TS, *m.everyone, ax, label="all tokens", colour=OKABE_ITO[0])
        time_series(TS, *m.slow, ax, label="first, as it comes", colour=OKABE_ITO[1], linestyle="--")
        ax.plot(TS, exact, ls=":", color="0.1", lw=1.4, zorder=5, label=r"exact $e^{Vt}x_1(0)$")
        ax.set(ylabel=r"mean $|\langle x, v_1\rangle|$", ylim=(0.0, 1.02))
        ax.legend(loc="lower right")

    def distance(ax: Axes) -> None:
        label = "mean distance to the first token"
        for (mean, error), line, word in ((m.distance, "-", "time rescaled"), (m.far, "--", "as it comes")):
            time_series(TS, mean, error, ax, label=word, ylabel=label, colour=OKABE_ITO[2], linestyle=line)
        ax.set_ylim(0.0, None)

    return figure_of_run(TS, {"": x}, TIMES, (alignment, distance), trail=True, arrows=arrows)


# Figure 8 as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims, source = claims_of(m), m.source
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": D, "beta": p.beta, "value": source.value.tolist(), "head": source.head, "layer": p.layer,
         "scale": source.scale, "source": source.provenance, "query_key": "identity", "mask": "causal",
         "starts": m.starts, "times": list(TIMES)},
        _series(m),
        partial(draw, m),
        Film(TS, m.xs[m.shown], trail=True),
        on=source.measured(tokens=p.n, d=D, beta=p.beta, t=TS[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return {
        "t": TS, "alignment": m.alignment[0], "alignment_error": m.alignment[1],
        "distance_to_first": m.distance[0], "distance_to_first_error": m.distance[1],
        "alignment, as it comes": m.slow[0], "distance_to_first, as it comes": m.far[0],
    }  # fmt: skip


def _check(settings: Settings) -> None:
    p = settings.read(Parameters)
    check_head(settings, p.layer, p.head)


FIGURE = declared("figure8", _run, parameters=Parameters, check=_check)
