"""Figure 4: at beta = 9 several clusters last."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from ..plot import OKABE_ITO, time_series
from ._ensemble import (
    count_clusters,
    distance_to_first,
    draw_starts,
    exact_first_token,
    mean_and_error,
    run_ensemble,
)
from ._exact import pair_error
from ._experiment import Claim, Experiment, Film, Outcome, Settings, plus_minus
from ._layout import figure_of_run
from ._sources import particles, peat


SIZE = {"tokens": 64, "d": 3}  # of the paper
N, D, BETA, RADIUS = 64, 3, 9.0, 0.1
TIMES = (3.0, 6.0, 12.0, 15.0)
OTHER_BETAS = (1.0, 4.0, 16.0)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    end = 100.0 if settings.quick else 1000.0
    ts = np.concatenate([np.linspace(0.0, 15.0, 31), np.geomspace(20.0, end, 30)])
    say(f"simulating to t = {end:g}")
    x0 = draw_starts(settings.seed, settings.starts, N, D)
    runs = run_ensemble(x0, ts, beta=BETA)
    say("simulating other betas to t = 15")
    others = {beta: run_ensemble(x0, np.linspace(0.0, 15.0, len(ts)), beta=beta).xs for beta in OTHER_BETAS}
    say("measuring")
    xs = np.asarray(runs.xs)
    clusters = np.asarray(count_clusters(runs.xs, jnp.asarray(RADIUS)))
    count, count_error = mean_and_error(clusters)
    distance, distance_error = mean_and_error(distance_to_first(runs))
    at = {t: int(np.argmin(np.abs(ts - t))) for t in (3.0, 6.0, 12.0, 15.0, end)}
    several, several_error = mean_and_error(clusters[:, at[15.0]] > 1)
    still = float((clusters[:, -1] > 1).mean())
    at_15 = {beta: mean_and_error(count_clusters(run, jnp.asarray(RADIUS))[:, -1]) for beta, run in others.items()}
    at_15 = dict(sorted((at_15 | {BETA: (count[at[15.0]], count_error[at[15.0]])}).items()))
    levels = [float(mean) for mean, _ in at_15.values()]
    defect = pair_error(ts, xs, BETA, 1.0)
    moved = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
    counted = ", ".join(f"{plus_minus(count[i], count_error[i])} at t = {t:g}" for t, i in at.items())
    claims = (
        Claim(
            "At beta = 9 distinct clusters persist and do not collapse to a single point.",
            f"{plus_minus(100 * several, 100 * several_error, 1)} % of the starts have several clusters at t = 15; "
            f"clusters: {counted}",
            "more than 95 % of the starts have several clusters at t = 15",
            bool(several > 0.95),
            "paper",
            float(count[at[15.0]]),
            float(count_error[at[15.0]]),
            source=peat("Figure 4", size=SIZE | {"beta": 9}, least={"t": 15}),
        ),
        Claim(
            "The state is metastable, not final: clusters go on merging, ever more slowly.",
            f"from t = 15 to {end:g} the count falls from {plus_minus(count[at[15.0]], count_error[at[15.0]])} to "
            f"{plus_minus(count[-1], count_error[-1])}; {100 * still:.0f} % of the starts still have several",
            "the mean count falls after t = 15 by more than four standard errors",
            bool(count[at[15.0]] - count[-1] > 4 * np.hypot(count_error[-1], count_error[at[15.0]])),
            "finding",
            float(count[-1]),
            float(count_error[-1]),
        ),
        Claim(
            "beta controls the granularity: the larger, the more clusters at t = 15.",
            "clusters at t = 15: " + ", ".join(f"{plus_minus(*pair)} at beta = {b:g}" for b, pair in at_15.items()),
            "increases from each beta to the next",
            bool(np.all(np.diff(levels) > 0)),
            "paper",
            levels[-1],
            float(list(at_15.values())[-1][1]),
            source=peat("Section 4.2.2", size=SIZE),
            on=particles(tokens=N, d=D, beta=tuple(at_15), t=15.0, starts=settings.starts),
        ),
        Claim(
            "The second token is where the closed formula for two tokens has it.",
            f"largest error of its angle to the first token, over all starts and times: {defect:.1e} radians",
            "less than 1e-6",
            defect < 1e-6,
            "identity",
            defect,
        ),
        Claim(
            "With V = I the first token does not move (2411.04990).",
            f"moved by {moved:.1e} at most",
            "less than 1e-9",
            moved < 1e-9,
            "identity",
            moved,
        ),
    )
    caption = (
        f"Tokens of one start (seed {settings.seed}) under Q = K = V = I and inverse temperature beta = 9, and the "
        f"number of clusters (single linkage at radius {RADIUS}) over {settings.starts} starts with standard errors. "
        "Several clusters persist at t = 15, as the paper says, but not for ever: the count falls to "
        f"{count[-1]:.1f} by t = {end:g}, and theory sends almost every start to one cluster, at the first token, in a "
        "time exponential in beta. A large beta is a LOW temperature; the paper calls it high, and its "
        "threshold beta >= sqrt(d) = sqrt(64) takes the number of tokens for the dimension, which is 3 here."
    )

    def clusters_panel(ax: Axes) -> None:
        time_series(ts, count, count_error, ax, ylabel="number of clusters", colour=OKABE_ITO[0])
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_yscale("log")
        ax.axhline(1.0, color="0.5", lw=0.8, ls="--")
        ax.axvline(15.0, color="0.5", lw=0.8, ls=":")

    def distance_panel(ax: Axes) -> None:
        time_series(ts, distance, distance_error, ax, ylabel="mean distance to the first token", colour=OKABE_ITO[2])
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_ylim(0.0, None)

    def betas_panel(ax: Axes) -> None:
        means, errors = np.array(list(at_15.values())).T
        ax.errorbar(list(at_15), means, errors, fmt="o", color=OKABE_ITO[0], ms=4, lw=1.2, capsize=2)
        ax.set(xlabel="beta", ylabel="number of clusters at t = 15", ylim=(0.0, None), xticks=list(at_15))

    return Outcome(
        caption,
        claims,
        {
            "n": N,
            "d": D,
            "beta": BETA,
            "value": "identity",
            "query_key": "identity",
            "mask": "causal",
            "radius": RADIUS,
            "starts": settings.starts,
            "times": list(TIMES),
            "end": end,
            "other_betas": list(OTHER_BETAS),
        },
        {
            "t": ts,
            "clusters": count,
            "clusters_error": count_error,
            "distance_to_first": distance,
            "distance_to_first_error": distance_error,
            "clusters_at_15_by_beta": [[beta, float(mean), float(error)] for beta, (mean, error) in at_15.items()],
        },
        lambda: figure_of_run(ts, {"": xs[0]}, TIMES, (clusters_panel, distance_panel, betas_panel)),
        Film(ts[:31], xs[0, :31]),
        on=particles(tokens=N, d=D, beta=BETA, t=(15.0, end), starts=settings.starts),
    )


FIGURE4 = Experiment(
    "figure4",
    "metastable_states",
    "Figure 4: metastable states",
    "At beta = 9 distinct clusters persist in a metastable state and do not collapse to a single point.",
    _run,
)
