"""Figure 8 of Peat: the path of the first token under a V with the top three eigenvalues of a trained head.

In a causal model the first token attends only to itself, so that x_1(t) = exp(Vt) x_1(0), normalised, whatever the
other tokens do (2411.04990, Section 3). It aligns with the eigenspace of the eigenvalue of largest real part, at the
rate of the gap of the real parts. Its influence on the other tokens is measured by starting it at the opposite point:
tokens that then end on the other side went there because of the first token.
"""

from dataclasses import dataclass
from typing import NamedTuple

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
from ..framework.experiment import MOST_OF_NETWORK, Claim, Film, Say, Settings, parameter, percent, within
from ..framework.figure import Found, claim, figure
from ..shared.ensemble import (
    MOST_TOKENS,
    Ensemble,
    Series,
    at,
    draw_starts,
    exact_first_token,
    mean_and_error,
    run_ensemble,
    with_errors,
)
from ..shared.layout import figure_of_run
from ..shared.sources import PEAT_FIGURE_8
from ..shared.trained_values import TrainedValues, check_head, trained_values


D = 3
TIMES = (0.6, 3.0, 6.0, 9.0)  # the times of the snapshots
TS = np.linspace(0.0, 9.0, 61)
START = int(np.argmin(np.abs(TS - TIMES[0])))
CANDIDATES = 16  # the number of starts from which the start that is shown is chosen


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    layer: int = parameter(1, "the layer whose V is taken", least=1, most=MOST_OF_NETWORK)
    head: int = parameter(0, "the head that is shown; 0 is the head with the largest real part", least=0,
                          most=MOST_OF_NETWORK)  # fmt: skip


class Results(NamedTuple):
    """The measurement. The eigenspace belongs to the eigenvalue of V of largest real part, or to a conjugate pair."""

    p: Parameters
    seed: int
    starts: int
    source: TrainedValues  # the V of the trained head
    # `run`, `raw`: the runs with scaled and with unscaled V
    run: Ensemble
    raw: Ensemble
    exact: np.ndarray  # the exact position of the first token, with scaled V, (starts, times, 3)
    turned: np.ndarray  # the tokens at the end if the first token starts at the opposite point, (starts, n, 3)
    weight: np.ndarray  # the mean weight that the other tokens give to the first token, (starts, times)
    aligned: float  # the time at which the mean alignment exceeds 0.95, by exp(Vt)

    @property
    def top(self) -> int:
        """The dimension of the eigenspace, which the first coordinates span."""
        return self.source.leading

    def share(self, x: np.ndarray) -> np.ndarray:
        """The norm of the projection onto the eigenspace."""
        return np.linalg.norm(x[..., : self.top], axis=-1)

    @property
    def alignment(self) -> Series:
        """The mean projection of the first token onto the eigenspace, with scaled V."""
        return mean_and_error(self.share(self.run.xs[:, :, 0]))

    @property
    def slow(self) -> Series:
        """The mean projection of the first token onto the eigenspace, with unscaled V."""
        return mean_and_error(self.share(self.raw.xs[:, :, 0]))


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    source = trained_values(settings, p.layer, p.head)
    x0 = draw_starts(settings.seed, settings.starts, p.n, D)
    say("simulating scaled V")
    run = run_ensemble(x0, TS, beta=p.beta, value=source.value)
    say("simulating unscaled V")
    raw = run_ensemble(x0, TS, beta=p.beta, value=source.raw[source.head])
    say("simulating the opposite first token")
    # Only the first token is reversed: the field is odd, so that reversing all tokens would reverse the whole run.
    turned = run_ensemble(x0.at[:, 0].multiply(-1.0), TS, beta=p.beta, value=source.value).xs[:, -1]
    say("measuring")
    weight = np.asarray(_first_weight(jnp.asarray(run.xs), jnp.asarray(p.beta)))
    aligned = when_aligned(np.asarray(x0[:, 0]), source.value, source.leading)
    return Results(
        p, settings.seed, settings.starts, source, run, raw, exact_first_token(run), turned, weight, aligned
    )  # fmt: skip


@eqx.filter_jit
def _first_weight(xs: Float[Array, "starts times n d"], beta: Float[Array, ""]) -> Float[Array, "starts times"]:
    attention = SoftmaxAttention(beta, mask=CausalMask())
    return jax.lax.map(jax.vmap(lambda x: sink_mass(attention.weights(x))[0]), xs)


def when_aligned(x: np.ndarray, value: np.ndarray, top: int) -> float:
    """The time at which the mean |<x_1, v_1>| by exp(Vt) exceeds 0.95, from the starts x, (starts, d)."""
    # Only the real parts matter: V is block diagonal, and a rotation within a block changes no norm.
    parts = np.diag(value)
    # The components beside the eigenspace have decreased by e^-20 at the end.
    times = np.linspace(0.0, 20 / max(parts[0] - parts[top], 1e-9), 2001)
    moved = x[None] * np.exp((parts[None, :] - parts[0]) * times[:, None])[:, None, :]
    share = np.linalg.norm(moved[..., :top], axis=-1) / np.linalg.norm(moved, axis=-1)
    return float(times[np.argmax(share.mean(axis=1) > 0.95)])


def rate_of(first: np.ndarray, top: int) -> float:
    """The median over the starts of the slope of -log of the distance from the eigenspace, over the last third."""
    late = TS >= 6.0  # the rate tends to the gap only as the distance tends to zero
    beside = np.linalg.norm(first[:, late, top:], axis=-1)
    return float(-np.median(np.polyfit(TS[late], np.log(beside).T, 1)[0]))


@claim("less than 1e-6", kind="identity")
def alone(m: Results) -> Found:
    """The first token moves independently of the others: x_1(t) = exp(Vt) x_1(0), normalised (2411.04990)."""
    off = max(m.run.off, m.raw.off)
    measured = f"the largest difference over {m.starts} starts, with scaled and unscaled V, is {off:.1e}"
    return Found(measured, off < 1e-6, off)


@claim("above 0.95 at t = 9, with scaled V", source=PEAT_FIGURE_8)
def aligns(m: Results) -> Found:
    """By t = 9 the first token is aligned with the leading eigenvectors of V."""
    mean, error = m.alignment
    return Found(
        f"the mean |<x_1, v_1>| is {at(m.alignment, START, 3)} at t = 0.6 and {at(m.alignment, -1, 3)} at t = 9; by "
        f"exp(Vt) it exceeds 0.95 at t = {m.aligned:.3g}; with unscaled V it is {at(m.slow, -1, 3)} at t = 9",
        mean[-1] > 0.95, mean[-1], error[-1],
    )  # fmt: skip


@claim("the rate of exp(Vt) to within a thousandth of the gap", kind="identity")
def pace(m: Results) -> Found:
    """The first token approaches the leading eigenspace at the rate of exp(Vt), which tends to the spectral gap."""
    rate, exact = (rate_of(first, m.top) for first in (m.run.xs[:, :, 0], m.exact))
    gap = float(m.source.value[0, 0] - m.source.value[m.top, m.top])
    return Found(
        f"the median rate over t = 6 to 9 is {rate:.4f}, by exp(Vt) {exact:.4f}; the gap of the real parts is "
        f"{gap:.4f}",
        within(rate, exact, 1e-3 * gap), rate,
    )  # fmt: skip


@claim("falls below half, with scaled V", source=PEAT_FIGURE_8)
def attracts(m: Results) -> Found:
    """The mean distance of the subsequent tokens to the first token halves from t = 0.6 to t = 9."""
    distance, error = m.run.distance
    return Found(
        f"the mean distance to the first token is {at(m.run.distance, START)} at t = 0.6 and {at(m.run.distance, -1)} "
        f"at t = 9; with unscaled V it is {at(m.raw.distance, -1)}",
        distance[-1] < distance[START] / 2, distance[-1], error[-1],
    )  # fmt: skip


@claim("more than half; none if the first token had no influence")
def influence(m: Results) -> Found:
    """If the first token starts at the opposite point, more than half of the other tokens end on the other side."""
    ends, turned = m.run.xs[:, -1, 1:, : m.top], m.turned[:, 1:, : m.top]
    # A token is on the other side if its two ends have a negative inner product within the eigenspace.
    share, error = mean_and_error((np.einsum("snd,snd->sn", ends, turned) < 0).mean(-1))
    measured = f"{percent(share, error)} of the other tokens are on the other side at t = 9"
    return Found(measured, share > 0.5, share, error)


@claim("at no time above uniform attention by more than two standard errors")
def no_sink(m: Results) -> Found:
    """The first token is no attention sink: its weight never exceeds the weight of uniform causal attention."""
    weight = mean, error = mean_and_error(m.weight)
    # Uniform causal attention gives the first token the mean weight H_n / n.
    uniform, largest = float(uniform_causal_sink(m.p.n)[0]), int(np.argmax(mean))
    return Found(
        f"the mean weight from the other tokens is {at(weight, 0, 4)} at t = 0, at most {mean.max():.4f} (t = "
        f"{TS[largest]:.2f}), and {at(weight, -1, 4)} at t = 9; uniform attention gives {uniform:.4f}",
        (mean - uniform <= 2 * error).all(), mean[-1], error[-1],
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    repel = [int(head) + 1 for head in np.flatnonzero(m.source.repelling)]
    return (
        f"Snapshots: the first token (red, with its path) and the other tokens of one start (seed {m.seed}; of the "
        f"first {CANDIDATES} starts, the one whose first token has the longest way to go), with Q = K = I and beta = "
        f"{m.p.beta:g}. V has the eigenvalues {m.source.words}. {m.source.origin} "
        + f"Heads {repel} of {len(m.source.top)} repel, see figure 7. "
        * bool(repel)
        + f"The arrow is the top eigenvector v1. Panels, over {m.starts} starts with standard errors: (a) |<x, v>| of "
        "the first token, with the exact curve of exp(Vt) x_1(0), and of all tokens; (b) the mean distance to the "
        f"first token. Dashed: the unscaled V, which is {m.source.scale:.3g} times slower. The paper says that the "
        "first token aligns with the eigenvectors and attracts the other tokens. The alignment is due to V alone; the "
        "influence of the first token is seen by turning it round at the start."
    )


def series(m: Results) -> dict:
    scaled = with_errors(alignment=m.alignment, distance_to_first=m.run.distance)
    unscaled = {"alignment, unscaled": m.slow[0], "distance_to_first, unscaled": m.raw.distance[0]}
    return {"t": TS} | scaled | unscaled


def shown(m: Results) -> np.ndarray:
    """The run whose first token has the smallest projection onto the eigenspace at the start, (times, n, 3)."""
    return m.run.xs[np.argmin(m.share(m.run.xs[:CANDIDATES, 0, 0]))]


def draw(m: Results) -> Figure:
    x = shown(m)
    # Of the two directions of the eigenvector, the arrow has the direction to which the first token comes.
    arrows = {"v₁": np.array([np.sign(x[-1, 0, 0]), 0.0, 0.0])} if m.top == 1 else None

    def alignment(ax: Axes) -> None:
        time_series(TS, *m.alignment, ax, label="first token", colour=OKABE_ITO[1])
        every = mean_and_error(m.share(m.run.xs).mean(-1))
        time_series(TS, *every, ax, label="all tokens", colour=OKABE_ITO[0])
        time_series(TS, *m.slow, ax, label="first token, unscaled V", colour=OKABE_ITO[1], linestyle="--")
        ax.plot(TS, m.share(m.exact).mean(0), ls=":", color="0.1", lw=1.4, zorder=5, label=r"exact $e^{Vt}x_1(0)$")
        ax.set(ylabel=r"mean $|\langle x, v_1\rangle|$", ylim=(0.0, 1.02))
        ax.legend(loc="lower right")

    def distance(ax: Axes) -> None:
        label = "mean distance to the first token"
        for run, line, word in ((m.run, "-", "scaled V"), (m.raw, "--", "unscaled V")):
            time_series(TS, *run.distance, ax, label=word, ylabel=label, colour=OKABE_ITO[2], linestyle=line)
        ax.set_ylim(0.0, None)

    return figure_of_run(TS, {"": x}, TIMES, (alignment, distance), trail=True, arrows=arrows)


FIGURE = figure(
    __name__,
    check=lambda settings: check_head(settings, (p := settings.read(Parameters)).layer, p.head),
    film=lambda m: Film(TS, shown(m), trail=True),
    on=lambda m: m.source.measured(tokens=m.p.n, d=D, beta=m.p.beta, t=TS[-1].item(), starts=m.starts),
    recorded=lambda m: {"d": D, "value": m.source.value.tolist(), "head": m.source.head, "scale": m.source.scale,
                        "source": m.source.provenance, "query_key": "identity", "mask": "causal", "starts": m.starts,
                        "times": list(TIMES)},
)  # fmt: skip
