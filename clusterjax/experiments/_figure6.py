"""Figure 6: repulsion on the sphere at beta = 9."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from ..plot import OKABE_ITO, time_series
from ._ensemble import count_clusters, draw_starts, exact_first_token, mean_and_error, run_ensemble
from ._experiment import Claim, Experiment, Film, Outcome, Settings, plus_minus
from ._layout import figure_of_run


N, D, BETA, RADIUS = 64, 3, 9.0, 0.1
TIMES = (0.0, 1.5, 5.0, 15.0)
TS = np.linspace(0.0, 15.0, 61)
GAPPED = (-1.0, -10.0, -10.0)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    x0 = draw_starts(settings.seed, settings.starts, N, D)
    say("simulating V = -I")
    plain = run_ensemble(x0, TS, beta=BETA, value=-jnp.eye(D))
    say("simulating V = diag(-1, -10, -10)")
    gapped = run_ensemble(x0, TS, beta=BETA, value=jnp.diag(jnp.asarray(GAPPED)))
    say("measuring")
    xs = np.asarray(plain.xs)
    nearest = {"V = -I": _nearest(xs), "V = diag(-1, -10, -10)": _nearest(np.asarray(gapped.xs))}
    gap = {name: mean_and_error(value) for name, value in nearest.items()}
    counts = {
        "V = -I": mean_and_error(count_clusters(plain.xs, jnp.asarray(RADIUS))),
        "V = diag(-1, -10, -10)": mean_and_error(count_clusters(gapped.xs, jnp.asarray(RADIUS))),
    }
    swirl, swirl_error = mean_and_error(_circulation(xs))
    error = max(float(np.abs(exact_first_token(run) - np.asarray(run.xs[:, :, 0])).max()) for run in (plain, gapped))
    (near, near_error), (count, count_error) = gap["V = -I"], counts["V = -I"]
    other_count, other_error = counts["V = diag(-1, -10, -10)"]
    claims = (
        Claim(
            "Under negative eigenvalues multi-cluster arrangements form that grow denser (V = -I).",
            f"clusters: {plus_minus(count[0], count_error[0])} of 64 tokens at t = 0, "
            f"{plus_minus(count[-1], count_error[-1])} at t = 15; mean distance to the nearest token "
            f"{plus_minus(near[0], near_error[0], 3)} at t = 0, {plus_minus(near[-1], near_error[-1], 3)} at t = 15",
            "fewer clusters at t = 15 than at t = 0, by more than four standard errors",
            bool(count[0] - count[-1] > 4 * np.hypot(count_error[0], count_error[-1])),
            "paper",
            float(count[-1]),
            float(count_error[-1]),
        ),
        Claim(
            "With V = -I tokens spread: the distance to the nearest neighbour grows.",
            f"{plus_minus(near[0], near_error[0], 3)} at t = 0, {plus_minus(near[-1], near_error[-1], 3)} at t = 15",
            "grows by more than four standard errors",
            bool(near[-1] - near[0] > 4 * np.hypot(near_error[0], near_error[-1])),
            "finding",
            float(near[-1]),
            float(near_error[-1]),
        ),
        Claim(
            "Dense groups form where V has a gap below its top eigenvalue: V = diag(-1, -10, -10).",
            f"clusters: {plus_minus(other_count[0], other_error[0])} at t = 0, "
            f"{plus_minus(other_count[-1], other_error[-1])} at t = 15",
            "fewer at t = 15 than half of those at t = 0",
            bool(other_count[-1] < other_count[0] / 2),
            "finding",
            float(other_count[-1]),
            float(other_error[-1]),
        ),
        Claim(
            "The tokens swirl around a geodesic.",
            f"net circulation |mean x cross dx| / mean |dx| from t = 1.5 to 15: {plus_minus(swirl, swirl_error, 3)}; "
            f"1 is a rigid rotation of tokens on its equator, {1 / np.sqrt(N):.3f} is 64 independent ones",
            "above 0.5",
            bool(swirl > 0.5),
            "paper",
            float(swirl),
            float(swirl_error),
        ),
        Claim(
            "The first token follows exp(Vt) x_1(0), normalised, exactly.",
            f"largest difference {error:.1e}",
            "less than 1e-6",
            error < 1e-6,
            "identity",
            error,
        ),
    )
    caption = (
        f"Tokens of one start (seed {settings.seed}) on the sphere under V = -I, Q = K = I and beta = 9, and two "
        f"numbers over {settings.starts} starts with standard errors. The paper sees clusters that separate, grow "
        "denser and swirl. With V = -I the tokens keep apart instead and come to rest spread over the sphere, without "
        "net rotation. Dense groups need a V whose other eigenvalues lie far below the top one: V = diag(-1, -10, -10) "
        "draws the tokens to both ends of the top eigenvector. beta = 9 is a low temperature."
    )

    def nearest_panel(ax: Axes) -> None:
        for (name, (mean, err)), colour in zip(gap.items(), (OKABE_ITO[0], OKABE_ITO[2]), strict=True):
            time_series(TS, mean, err, ax, label=name, colour=colour, ylabel="distance to the nearest token")
        ax.set_ylim(0.0, None)

    def clusters_panel(ax: Axes) -> None:
        for (name, (mean, err)), colour in zip(counts.items(), (OKABE_ITO[0], OKABE_ITO[2]), strict=True):
            time_series(TS, mean, err, ax, label=name, colour=colour, ylabel="clusters")
        ax.set_ylim(0.0, N + 1)

    return Outcome(
        caption,
        claims,
        {
            "n": N,
            "d": D,
            "beta": BETA,
            "value": "-I and diag(-1, -10, -10)",
            "query_key": "identity",
            "mask": "causal",
            "radius": RADIUS,
            "starts": settings.starts,
            "times": list(TIMES),
        },
        {
            "t": TS,
            "nearest": near,
            "nearest_error": near_error,
            "clusters": count,
            "clusters_error": count_error,
            "clusters_gapped": other_count,
            "clusters_gapped_error": other_error,
        },
        lambda: figure_of_run(TS, xs[0], TIMES, (nearest_panel, clusters_panel)),
        Film(TS, xs[0]),
    )


def _nearest(xs: np.ndarray) -> np.ndarray:
    """The mean over tokens of the distance to the nearest other one, (starts, times)."""
    out = np.empty(xs.shape[:2])
    for i, run in enumerate(xs):
        cosines = np.einsum("tid,tjd->tij", run, run)
        cosines[:, np.arange(N), np.arange(N)] = -1.0
        out[i] = np.sqrt(np.maximum(0.0, 2.0 - 2.0 * cosines.max(-1))).mean(-1)
    return out


def _circulation(xs: np.ndarray) -> np.ndarray:
    """|sum_i x_i cross dx_i| / sum_i |dx_i| between t = 1.5 and the end, added up over the saved times, (starts,)."""
    run = xs[:, TS >= 1.5]
    step = np.diff(run, axis=1)
    moment = np.cross(run[:, :-1], step).mean(2)
    return np.linalg.norm(moment, axis=-1).sum(1) / np.linalg.norm(step, axis=-1).mean(2).sum(1)


FIGURE6 = Experiment(
    "figure6",
    "repulsion_sphere",
    "Figure 6: repulsion on the sphere",
    "Under negative eigenvalues at beta = 9 the tokens form separating, ever denser clusters that swirl.",
    _run,
)
