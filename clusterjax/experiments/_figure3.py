"""Figure 3: with V = I and beta = 1 the tokens gather in a single cluster."""

from collections.abc import Callable

import jax.numpy as jnp
import jax.random as jr
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
from ._experiment import Claim, Experiment, Film, Outcome, Settings, plus_minus, within
from ._layout import figure_of_run
from ._sources import particles, peat


SIZE = {"tokens": 64, "d": 3, "beta": 1, "t": 12}  # of the paper
N, D, BETA, RADIUS = 64, 3, 1.0, 0.1
TIMES = (3.0, 6.0, 12.0)
TS = np.linspace(0.0, 15.0, 61)
# The paper's own scheme (Q = K = I, Euler steps of 0.1) over 128 starts: t, the mean of <x_k, x_1>, its standard error.
OWN_SCHEME = ((6.0, 0.5956, 0.035), (15.0, 0.9637, 0.015))


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    say("simulating")
    x0 = draw_starts(settings.seed, settings.starts, N, D)
    query, key = jr.normal(jr.fold_in(jr.key(settings.seed), 1_000_003), (2, settings.starts, D, D)) / np.sqrt(D)
    runs = run_ensemble(x0, TS, beta=BETA, query_key=jnp.einsum("ski,skj->sij", query, key))
    say("simulating Q = K = I")
    plain = run_ensemble(x0, TS, beta=BETA)
    say("measuring")
    xs, plain_xs = np.asarray(runs.xs), np.asarray(plain.xs)
    plain_clusters = np.asarray(count_clusters(plain.xs, jnp.asarray(RADIUS)))
    plain_count, plain_error = mean_and_error(plain_clusters)
    clusters = np.asarray(count_clusters(runs.xs, jnp.asarray(RADIUS)))
    count, count_error = mean_and_error(clusters)
    distance, distance_error = mean_and_error(distance_to_first(runs))
    at = [int(np.argmin(np.abs(TS - t))) for t in TIMES]
    single, single_error = mean_and_error(clusters[:, at[-1]] == 1)
    moved = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
    rate = _rate_of_second_token(xs)
    counted = ", ".join(f"{plus_minus(count[i], count_error[i])} at t = {TS[i]:g}" for i in at)
    claims = (
        Claim(
            "With V = I, random Q and K and beta = 1 all tokens are in a single cluster by t = 12.",
            f"{plus_minus(100 * single, 100 * single_error, 1)} % of the starts are one cluster at t = 12; "
            f"clusters: {counted}",
            "more than half of the starts are a single cluster at t = 12",
            bool(single > 0.5),
            "paper",
            float(single),
            float(single_error),
            source=peat("Figure 3", size=SIZE),
        ),
        Claim(
            "The cluster forms at the first token, which does not move (2411.04990, Theorem 4.1).",
            f"the first token moved by {moved:.1e} at most; mean distance to it "
            f"{plus_minus(distance[at[0]], distance_error[at[0]])} at t = 3, "
            f"{plus_minus(distance[at[-1]], distance_error[at[-1]])} at t = 12",
            "moved by less than 1e-9, and the mean distance falls",
            moved < 1e-9 and bool(distance[at[-1]] < distance[at[0]]),
            "identity",
            moved,
        ),
        Claim(
            "The second token approaches the first at the rate 1/2 exactly, whatever Q, K and beta.",
            f"median rate over t = 12 to 15: {rate:.5f}",
            "0.5 to within 0.005",
            within(rate, 0.5, 0.005),
            "identity",
            rate,
        ),
        *_plain_claims(plain_xs, plain_clusters, at[-1]),
    )
    caption = (
        f"Tokens of one start (seed {settings.seed}) at t = 3, 6 and 12, and the number of clusters (single linkage at "
        f"radius {RADIUS}) and the mean distance to the first token over {settings.starts} starts, each with its own "
        "Gaussian Q and K, with standard errors. The paper's single cluster is there by t = 12 in "
        f"{100 * single:.0f} % of the starts; the rest are still gathering. It forms where the first token is, which "
        "stays put. The paper states Q = K = I in its text and random Q, K in its caption: the picture has random "
        f"ones, of variance 1/d; with the identity {100 * (plain_clusters[:, at[-1]] == 1).mean():.0f} % of the starts "
        "are one cluster at t = 12."
    )

    def clusters_panel(ax: Axes) -> None:
        time_series(TS, count, count_error, ax, ylabel="number of clusters", colour=OKABE_ITO[0], label="random Q, K")
        time_series(TS, plain_count, plain_error, ax, colour=OKABE_ITO[1], label="Q = K = I", linestyle="--")
        ax.set_yscale("log")
        ax.axhline(1.0, color="0.5", lw=0.8, ls="--")

    def distance_panel(ax: Axes) -> None:
        time_series(
            TS,
            distance,
            distance_error,
            ax,
            ylabel="distance to the first token",
            colour=OKABE_ITO[2],
            label="all tokens, mean",
        )
        second = np.median(np.linalg.norm(xs[:, :, 1] - xs[:, :, 0], axis=-1), axis=0)
        time_series(TS, second, None, ax, label="token 2, median", colour=OKABE_ITO[3])
        ax.plot(TS, second[-1] * np.exp((TS[-1] - TS) / 2), color="0.2", ls=":", lw=1.0, label=r"$\propto e^{-t/2}$")
        ax.set_yscale("log")
        ax.legend(loc="lower left")

    return Outcome(
        caption,
        claims,
        {"n": N, "d": D, "beta": BETA, "value": "identity", "query_key": "Gaussian Q and K, variance 1/d",
         "mask": "causal", "radius": RADIUS, "starts": settings.starts, "times": list(TIMES)},
        {"t": TS, "clusters": count, "clusters_error": count_error, "distance_to_first": distance,
         "distance_to_first_error": distance_error, "clusters_identity": plain_count,
         "clusters_identity_error": plain_error},
        lambda: figure_of_run(TS, {"": xs[0]}, TIMES, (clusters_panel, distance_panel)),
        Film(TS, xs[0]),
        on=particles(tokens=N, d=D, beta=BETA, t=TIMES, starts=settings.starts),
    )  # fmt: skip


def _plain_claims(xs: np.ndarray, clusters: np.ndarray, last: int) -> tuple[Claim, ...]:
    """What is to be said of Q = K = I."""
    single, single_error = mean_and_error(clusters[:, last] == 1)
    cosine, cosine_error = mean_and_error(np.einsum("stnd,std->stn", xs, xs[:, :, 0]).mean(-1))
    at = [int(np.argmin(np.abs(TS - t))) for t, _, _ in OWN_SCHEME]
    off = [
        abs(cosine[i] - value) / np.hypot(cosine_error[i], error)
        for i, (_, value, error) in zip(at, OWN_SCHEME, strict=True)
    ]
    defect = pair_error(TS, xs, BETA, 1.0)
    return (
        Claim(
            "With Q = K = I, as the paper's text has it, all tokens are in a single cluster by t = 12.",
            f"{plus_minus(100 * single, 100 * single_error, 1)} % of the starts are one cluster at t = 12",
            "more than half of the starts are a single cluster at t = 12",
            bool(single > 0.5),
            "paper",
            float(single),
            float(single_error),
            source=peat("Section 4.2.1", size=SIZE),
        ),
        Claim(
            "With Q = K = I the mean of <x_k, x_1> is what the paper's own scheme gives: "
            + " and ".join(f"{plus_minus(value, error, 3)} at t = {t:g}" for t, value, error in OWN_SCHEME)
            + ".",
            ", ".join(f"{plus_minus(cosine[i], cosine_error[i], 3)} at t = {TS[i]:g}" for i in at),
            "within four standard errors of the difference",
            bool(max(off) < 4.0),
            "finding",
            float(cosine[at[0]]),
            float(cosine_error[at[0]]),
        ),
        Claim(
            "With Q = K = I the second token is where the closed formula for two tokens has it.",
            f"largest error of its angle to the first token, over all starts and times: {defect:.1e} radians",
            "less than 1e-6",
            defect < 1e-6,
            "identity",
            defect,
        ),
    )


def _rate_of_second_token(xs: np.ndarray) -> float:
    """The median over the starts of the slope of -log |x_2 - x_1| over the last fifth of the run."""
    late = slice(4 * (len(TS) - 1) // 5, None)
    logs = np.log(np.linalg.norm(xs[:, late, 1] - xs[:, late, 0], axis=-1))
    return float(-np.median(np.polyfit(TS[late], logs.T, 1)[0]))


FIGURE3 = Experiment(
    "figure3",
    "single_cluster",
    "Figure 3: a single cluster",
    "With V = I and beta = 1 the system converges to a single cluster (snapshots at t = 3, 6, 12).",
    _run,
)
