"""Figure 8: the path of the first token."""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes

from .._attention import SoftmaxAttention
from .._mask import CausalMask
from .._observables import sink_mass, uniform_causal_sink
from ..plot import OKABE_ITO, time_series
from ._albert import TrainedValues, trained_values
from ._ensemble import distance_to_first, draw_starts, exact_first_token, mean_and_error, run_ensemble
from ._experiment import Claim, Experiment, Film, Outcome, Settings, plus_minus, within
from ._layout import figure_of_run
from ._sources import PEAT_FIGURE_8


N, D, BETA = 64, 3, 1.0
TIMES = (0.6, 3.0, 6.0, 9.0)
TS = np.linspace(0.0, 9.0, 61)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    source = trained_values(settings)
    value, top = source.value, source.leading
    gap = float(value[0, 0] - value[top, top])
    say("simulating")
    x0 = draw_starts(settings.seed, settings.starts, N, D)
    runs = run_ensemble(x0, TS, beta=BETA, value=value)
    say("simulating with V as it comes")
    raw = run_ensemble(x0, TS, beta=BETA, value=source.raw[source.head])
    say("simulating with the first token turned round")
    turned = run_ensemble(x0.at[:, 0].multiply(-1.0), TS, beta=BETA, value=value)
    say("measuring")
    xs, exact = np.asarray(runs.xs), exact_first_token(runs)
    raw_xs = np.asarray(raw.xs)
    error = max(float(np.abs(exact - xs[:, :, 0]).max()), float(np.abs(exact_first_token(raw) - raw_xs[:, :, 0]).max()))
    aligned = _when_aligned(np.asarray(x0[:, 0]), value, top)
    alignment, alignment_error = mean_and_error(np.linalg.norm(xs[:, :, 0, :top], axis=-1))
    everyone, everyone_error = mean_and_error(np.linalg.norm(xs[..., :top], axis=-1).mean(-1))
    distance, distance_error = mean_and_error(distance_to_first(runs))
    slow, slow_error = mean_and_error(np.linalg.norm(raw_xs[:, :, 0, :top], axis=-1))
    far, far_error = mean_and_error(distance_to_first(raw))
    rate, exact_rate = _rate(xs[:, :, 0], top), _rate(exact, top)
    start = int(np.argmin(np.abs(TS - TIMES[0])))
    shown = int(np.argmin(np.linalg.norm(xs[:16, 0, 0, :top], axis=-1)))
    claims = (
        Claim(
            "The first token moves on its own: x_1(t) = exp(Vt) x_1(0), normalised (2411.04990).",
            f"largest difference over {settings.starts} starts, as it comes and rescaled, {error:.1e}",
            "less than 1e-6",
            error < 1e-6,
            "identity",
            error,
        ),
        Claim(
            "The first token aligns with the eigenvectors of V.",
            f"mean |<x_1, v_1>|: {plus_minus(alignment[start], alignment_error[start], 3)} at t = 0.6, "
            f"{plus_minus(alignment[-1], alignment_error[-1], 3)} at t = 9; by exp(Vt) it passes 0.95 at t = "
            f"{aligned:.3g}; with V as it comes {plus_minus(slow[-1], slow_error[-1], 3)} at t = 9",
            "above 0.95 at t = 9, with time rescaled",
            bool(alignment[-1] > 0.95),
            "paper",
            float(alignment[-1]),
            float(alignment_error[-1]),
            source=PEAT_FIGURE_8,
        ),
        Claim(
            "It does so at the rate of exp(Vt), which tends to the spectral gap.",
            f"median rate over t = 6 to 9: {rate:.4f}; of exp(Vt) {exact_rate:.4f}; gap of the real parts {gap:.4f}",
            "that of exp(Vt) to within a thousandth of the gap",
            within(rate, exact_rate, 1e-3 * gap),
            "identity",
            rate,
        ),
        Claim(
            "The first token attracts the subsequent ones.",
            f"mean distance to it: {plus_minus(distance[start], distance_error[start])} at t = 0.6, "
            f"{plus_minus(distance[-1], distance_error[-1])} at t = 9; with V as it comes "
            f"{plus_minus(far[-1], far_error[-1])}",
            "falls below half, with time rescaled",
            bool(distance[-1] < distance[start] / 2),
            "paper",
            float(distance[-1]),
            float(distance_error[-1]),
            source=PEAT_FIGURE_8,
        ),
        _influence(xs[:, -1], np.asarray(turned.xs)[:, -1], top),
        _sink(np.asarray(_first_weight(runs.xs))),
    )
    words = {True: "", False: "not "}
    caption = (
        f"The first token (red, with its path) and the others of one start (seed {settings.seed}; of the "
        "first 16 the one whose first token has the longest way to go); Q = K = I, beta = 1, V with the eigenvalues "
        f"{source.words}: {source.origin}. Arrow: the top eigenvector v1. Below, over "
        f"{settings.starts} starts with standard errors: (a) |<x, v1>| of the first token, on the exact curve of "
        "exp(Vt) x_1(0), and of all tokens; (b) the mean distance to the first token. The paper says that the "
        "token aligns with the eigenvectors and attracts the others. Here, by t = 9, it has "
        f"{words[claims[1].holds]}aligned, and the others have {words[claims[3].holds]}come to it. Dashed: V as it "
        f"comes, {source.scale:.3g} times slower; by t = 9 the token is at {slow[-1]:.2f} and the others at a distance "
        f"of {far[-1]:.2f}. {_repelling(source)} V alone aligns it: "
        "the others have no part in that. That it draws them is seen by turning it round at the start: "
        f"{100 * (claims[4].value or 0.0):.0f} % of the others then end on the other side. "
        + (
            "It never receives more weight than a causal mask alone gives to the first token: these dynamics make no "
            "attention sink."
            if claims[5].holds
            else "At times it receives more weight than a causal mask alone gives to the first token."
        )
    )

    arrows = {"v₁": np.array([np.sign(xs[shown, -1, 0, 0]), 0.0, 0.0])} if top == 1 else None

    def alignment_panel(ax: Axes) -> None:
        mean_exact = np.linalg.norm(exact[..., :top], axis=-1).mean(0)
        time_series(TS, alignment, alignment_error, ax, label="first token", colour=OKABE_ITO[1])
        time_series(TS, everyone, everyone_error, ax, label="all tokens", colour=OKABE_ITO[0])
        time_series(TS, slow, slow_error, ax, label="first, as it comes", colour=OKABE_ITO[1], linestyle="--")
        ax.plot(TS, mean_exact, ls=":", color="0.1", lw=1.4, zorder=5, label=r"exact $e^{Vt}x_1(0)$")
        ax.set(ylabel=r"mean $|\langle x, v_1\rangle|$", ylim=(0.0, 1.02))
        ax.legend(loc="lower right")

    def distance_panel(ax: Axes) -> None:
        label = "mean distance to the first token"
        time_series(TS, distance, distance_error, ax, label="time rescaled", ylabel=label, colour=OKABE_ITO[2])
        time_series(TS, far, far_error, ax, label="as it comes", ylabel=label, colour=OKABE_ITO[2], linestyle="--")
        ax.set_ylim(0.0, None)

    return Outcome(
        caption,
        claims,
        {
            "n": N,
            "d": D,
            "beta": BETA,
            "value": value.tolist(),
            "head": source.head,
            "scale": source.scale,
            "source": source.provenance,
            "query_key": "identity",
            "mask": "causal",
            "starts": settings.starts,
            "times": list(TIMES),
        },
        {
            "t": TS,
            "alignment": alignment,
            "alignment_error": alignment_error,
            "distance_to_first": distance,
            "distance_to_first_error": distance_error,
            "alignment, as it comes": slow,
            "distance_to_first, as it comes": far,
        },
        lambda: figure_of_run(TS, {"": xs[shown]}, TIMES, (alignment_panel, distance_panel), trail=True, arrows=arrows),
        Film(TS, xs[shown], trail=True),
        on=source.measured(tokens=N, d=D, beta=BETA, t=TS[-1].item(), starts=settings.starts),
    )


def _repelling(source: TrainedValues) -> str:
    """Which heads would draw nothing, for a caption."""
    repel = [int(head) + 1 for head in np.flatnonzero(source.repelling)]
    return f"Head {source.head + 1} attracts; heads {repel} of {len(source.top)} repel, see figure 7." if repel else ""


def _influence(end: np.ndarray, turned: np.ndarray, top: int) -> Claim:
    """How many of tokens 2 to n, (starts, n, d), end elsewhere when the first token starts opposite."""
    moved = np.einsum("snd,snd->sn", end[:, 1:, :top], turned[:, 1:, :top]) < 0
    share, error = mean_and_error(moved.mean(-1))
    return Claim(
        "The first token decides where the others go: turned round at the start, it takes them to the other side.",
        f"{plus_minus(100 * share, 100 * error, 1)} % of the other tokens are on the other side at t = 9",
        "more than half; none if the first token had no influence",
        bool(share > 0.5),
        "finding",
        float(share),
        float(error),
    )


@eqx.filter_jit
def _first_weight(xs: Float[Array, "starts times n d"]) -> Float[Array, "starts times"]:
    """The mean weight that the other tokens give to the first."""
    attention = SoftmaxAttention(BETA, mask=CausalMask())
    return jax.lax.map(jax.vmap(lambda x: sink_mass(attention.weights(x))[0]), xs)


def _sink(mass: np.ndarray) -> Claim:
    """Whether the first token is an attention sink; of the weight (starts, times) that it receives."""
    mean, error = mean_and_error(mass)
    uniform, largest = float(uniform_causal_sink(N)[0]), int(np.argmax(mean))
    never = bool((mean - uniform <= 2 * error).all())
    return Claim(
        "The first token is no attention sink: it never has more weight than the causal mask alone gives it.",
        f"mean weight from the others {plus_minus(mean[0], error[0], 4)} at t = 0, {mean.max():.4f} at most "
        f"(t = {TS[largest]:.2f}), {plus_minus(mean[-1], error[-1], 4)} at t = 9; "
        f"uniform attention gives {uniform:.4f}",
        "at no time above uniform attention by more than two standard errors",
        never,
        "finding",
        float(mean[-1]),
        float(error[-1]),
    )


def _when_aligned(x: np.ndarray, value: np.ndarray, top: int) -> float:
    """The time at which the mean |<x_1, v_1>| by exp(Vt) passes 0.95, of starts (starts, d); V is block diagonal, so
    that only the real parts move the share of the first `top` coordinates."""
    parts = np.diag(value)
    times = np.linspace(0.0, 20 / max(parts[0] - parts[top], 1e-9), 2001)
    moved = x[None] * np.exp((parts[None, :] - parts[0]) * times[:, None])[:, None, :]
    share = np.linalg.norm(moved[..., :top], axis=-1) / np.linalg.norm(moved, axis=-1)
    return float(times[np.argmax(share.mean(axis=1) > 0.95)])


def _rate(first: np.ndarray, top: int) -> float:
    """The median over the starts of the slope of log of what is left beside the eigenspace, over the last third."""
    late = TS >= 6.0
    beside = np.linalg.norm(first[:, late, top:], axis=-1)
    return float(-np.median(np.polyfit(TS[late], np.log(beside).T, 1)[0]))


FIGURE8 = Experiment(
    "figure8",
    "first_token",
    "Figure 8: the path of the first token",
    "The first token (red, t = 0.6 to 9) aligns with the eigenvectors of V and attracts the subsequent tokens.",
    _run,
    reads_network=True,
)
