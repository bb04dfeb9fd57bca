"""Figure 6: repulsion on the sphere at beta = 9."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from ..plot import OKABE_ITO, time_series
from ._ensemble import count_clusters, draw_starts, exact_first_token, mean_and_error, run_ensemble
from ._exact import pair_error
from ._experiment import Claim, Experiment, Film, Outcome, Settings, plus_minus
from ._layout import figure_of_run
from ._sources import particles, peat


PAPER = peat("Figure 6", size={"tokens": 64, "d": 3, "beta": 9})
N, D, BETA, RADIUS = 64, 3, 9.0, 0.1
TIMES = (0.0, 1.5, 5.0, 15.0)
TS = np.linspace(0.0, 15.0, 61)
GAPPED, TURNING = "V = diag(-1, -10, -10)", "V: -1 ± i, -4"
VALUES = {
    "V = -I": -np.eye(3),
    GAPPED: np.diag([-1.0, -10.0, -10.0]),
    TURNING: np.array([[-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, -4.0]]),
}
COLOURS = dict(zip(VALUES, (OKABE_ITO[0], OKABE_ITO[2], OKABE_ITO[1]), strict=True))


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    x0 = draw_starts(settings.seed, settings.starts, N, D)
    runs = {}
    for name, value in VALUES.items():
        say(f"simulating {name}")
        runs[name] = run_ensemble(x0, TS, beta=BETA, value=value)
    say("measuring")
    xs = {name: np.asarray(run.xs) for name, run in runs.items()}
    gap = {name: mean_and_error(_nearest(run)) for name, run in xs.items()}
    counts = {name: mean_and_error(count_clusters(run.xs, jnp.asarray(RADIUS))) for name, run in runs.items()}
    turning = {name: mean_and_error(_circulation(run)) for name, run in xs.items()}
    error = max(float(np.abs(exact_first_token(run) - xs[name][:, :, 0]).max()) for name, run in runs.items())
    defect = pair_error(TS, xs["V = -I"], BETA, -1.0)
    swirl, swirl_error = turning["V = -I"]
    (near, near_error), (count, count_error) = gap["V = -I"], counts["V = -I"]
    other_count, other_error = counts[GAPPED]
    band, band_error = mean_and_error(np.square(xs[TURNING][:, -1, :, 2]).mean(-1))
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
            source=PAPER,
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
            source=PAPER,
        ),
        Claim(
            "They do swirl around a geodesic where the top eigenvalues of V are a complex pair: -1 ± i, and -4.",
            f"net circulation {plus_minus(*turning[TURNING], 3)}; mean square distance from the plane of the pair "
            f"{plus_minus(band, band_error, 3)} at t = 15, where uniform tokens have 0.333",
            "circulation above 0.9, and distance below 0.1",
            bool(turning[TURNING][0] > 0.9 and band < 0.1),
            "finding",
            float(turning[TURNING][0]),
            float(turning[TURNING][1]),
        ),
        Claim(
            "With V = -I the second token is where the closed formula for two tokens has it.",
            f"largest error of its angle to the first token, over all starts and times: {defect:.1e} radians",
            "less than 1e-6",
            defect < 1e-6,
            "identity",
            defect,
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
        f"Tokens of one start (seed {settings.seed}) on the sphere, Q = K = I and beta = 9, under V = -I (above) and "
        f"under V with the eigenvalues -1 ± i and -4 (below), and two numbers over {settings.starts} starts with "
        "standard errors. The paper sees clusters that separate, grow denser and swirl. With V = -I the tokens keep "
        "apart instead and come to rest spread over the sphere, without net rotation. Dense groups need a V whose "
        "other eigenvalues lie far below the top one: diag(-1, -10, -10) draws the tokens to both ends of the top "
        "eigenvector. A swirl along a great circle needs a complex pair on top. None of these V does all that the "
        "words say. beta = 9 is a low temperature."
    )

    def nearest_panel(ax: Axes) -> None:
        for name, (mean, err) in gap.items():
            time_series(TS, mean, err, ax, label=name, colour=COLOURS[name], ylabel="distance to the nearest token")
        ax.set_ylim(0.0, None)

    def clusters_panel(ax: Axes) -> None:
        for name, (mean, err) in counts.items():
            time_series(TS, mean, err, ax, label=name, colour=COLOURS[name], ylabel="number of clusters")
        ax.set_ylim(0.0, N + 1)

    return Outcome(
        caption,
        claims,
        {
            "n": N,
            "d": D,
            "beta": BETA,
            "value": {name: value.tolist() for name, value in VALUES.items()},
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
            "clusters_turning": counts[TURNING][0],
            "clusters_turning_error": counts[TURNING][1],
        },
        lambda: figure_of_run(
            TS, {name: xs[name][0] for name in ("V = -I", TURNING)}, TIMES, (nearest_panel, clusters_panel)
        ),
        Film(TS, xs["V = -I"][0]),
        on=particles(tokens=N, d=D, beta=BETA, t=TS[-1].item(), starts=settings.starts),
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
