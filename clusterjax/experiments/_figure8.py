"""Figure 8: the path of the first token."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes

from ..plot import OKABE_ITO, time_series
from ._albert import trained_values
from ._ensemble import distance_to_first, draw_starts, exact_first_token, mean_and_error, run_ensemble
from ._experiment import Claim, Experiment, Film, Outcome, Settings, plus_minus, within
from ._layout import figure_of_run


N, D, BETA = 64, 3, 1.0
TIMES = (0.6, 3.0, 6.0, 9.0)
TS = np.linspace(0.0, 9.0, 61)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    source = trained_values(settings)
    value, top = source.value, _top_dimension(source.value)
    gap = float(value[0, 0] - value[top, top])
    say("simulating")
    runs = run_ensemble(draw_starts(settings.seed, settings.starts, N, D), TS, beta=BETA, value=value)
    say("measuring")
    xs, exact = np.asarray(runs.xs), exact_first_token(runs)
    error = float(np.abs(exact - xs[:, :, 0]).max())
    alignment, alignment_error = mean_and_error(np.linalg.norm(xs[:, :, 0, :top], axis=-1))
    everyone, everyone_error = mean_and_error(np.linalg.norm(xs[..., :top], axis=-1).mean(-1))
    distance, distance_error = mean_and_error(distance_to_first(runs))
    rate = _rate(xs[:, :, 0], top)
    start = int(np.argmin(np.abs(TS - TIMES[0])))
    shown = int(np.argmin(np.linalg.norm(xs[:16, 0, 0, :top], axis=-1)))
    claims = (
        Claim(
            "The first token moves on its own: x_1(t) = exp(Vt) x_1(0), normalised (2411.04990).",
            f"largest difference over {settings.starts} starts {error:.1e}",
            "less than 1e-6",
            error < 1e-6,
            "identity",
            error,
        ),
        Claim(
            "The first token aligns with the eigenvectors of V.",
            f"mean |<x_1, v_1>|: {plus_minus(alignment[start], alignment_error[start], 3)} at t = 0.6, "
            f"{plus_minus(alignment[-1], alignment_error[-1], 3)} at t = 9",
            "above 0.95 at t = 9",
            bool(alignment[-1] > 0.95),
            "paper",
            float(alignment[-1]),
            float(alignment_error[-1]),
        ),
        Claim(
            "It does so at the rate of the spectral gap.",
            f"median rate over t = 6 to 9: {rate:.4f}; gap of the real parts {gap:.4f}",
            "the gap to within 5 %",
            within(rate, gap, 0.05 * gap),
            "identity",
            rate,
        ),
        Claim(
            "The first token attracts the subsequent ones.",
            f"mean distance to it: {plus_minus(distance[start], distance_error[start])} at t = 0.6, "
            f"{plus_minus(distance[-1], distance_error[-1])} at t = 9",
            "falls below half",
            bool(distance[-1] < distance[start] / 2),
            "paper",
            float(distance[-1]),
            float(distance_error[-1]),
        ),
    )
    caption = (
        f"The first token (red, with its path) and the others of one start (seed {settings.seed}; of the "
        "first 16 the one whose first token has the longest way to go); Q = K = I, beta = 1, V with the eigenvalues "
        f"{source.words} of head {source.head + 1} of {source.provenance}. Arrow: the top eigenvector v1. Below, over "
        f"{settings.starts} starts with standard errors: |<x, v1>| of the first token, on the exact curve of "
        "exp(Vt) x_1(0), and of all tokens; and the mean distance to the first token. Both of the paper's claims hold "
        "here: the token aligns, at the rate of the spectral gap, and the others come. V alone aligns it; "
        "the others have no part in that. In some starts tokens end at -v1, opposite to it."
    )

    arrows = {"v₁": np.array([np.sign(xs[shown, -1, 0, 0]), 0.0, 0.0])} if top == 1 else None

    def alignment_panel(ax: Axes) -> None:
        mean_exact = np.linalg.norm(exact[..., :top], axis=-1).mean(0)
        time_series(TS, alignment, alignment_error, ax, label="first token", colour=OKABE_ITO[5])
        time_series(TS, everyone, everyone_error, ax, label="all tokens", colour=OKABE_ITO[0])
        ax.plot(TS, mean_exact, ls=":", color="0.1", lw=1.4, zorder=5, label=r"exact $e^{Vt}x_1(0)$")
        ax.set(ylabel=r"mean $|\langle x, v_1\rangle|$", ylim=(0.0, 1.02))
        ax.legend(frameon=False, fontsize=7, loc="lower right")

    def distance_panel(ax: Axes) -> None:
        time_series(TS, distance, distance_error, ax, ylabel="mean distance to token 1", colour=OKABE_ITO[0])
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
            "source": source.provenance,
            "sha256": source.sha256,
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
        },
        lambda: figure_of_run(TS, xs[shown], TIMES, (alignment_panel, distance_panel), trail=True, arrows=arrows),
        Film(TS, xs[shown], trail=True),
    )


def _top_dimension(value: np.ndarray) -> int:
    """1 if the eigenvalue of largest real part is real, 2 if it is a pair: V has its blocks in decreasing order."""
    return 1 if value[0, 1] == 0 else 2


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
)
