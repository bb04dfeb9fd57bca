"""Figure 7: V with the top three eigenvalues of a trained ALBERT head."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes

from ..plot import OKABE_ITO, time_series
from ._albert import trained_values
from ._ensemble import (
    count_clusters,
    distance_to_first,
    draw_starts,
    exact_first_token,
    mean_and_error,
    run_ensemble,
)
from ._experiment import Claim, Experiment, Film, Outcome, Settings, plus_minus
from ._layout import figure_of_run


N, D, BETA, RADIUS = 64, 3, 1.0, 0.1
TIMES = (0.0, 3.0, 6.0, 15.0)
TS = np.linspace(0.0, 15.0, 61)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    source = trained_values(settings)
    say(f"simulating head {source.head + 1} of {len(source.matrices)}")
    x0 = draw_starts(settings.seed, settings.starts, N, D)
    runs = run_ensemble(x0, TS, beta=BETA, value=source.value)
    xs = np.asarray(runs.xs)
    clusters = np.asarray(count_clusters(runs.xs, jnp.asarray(RADIUS)))
    count, count_error = mean_and_error(clusters)
    distances = distance_to_first(runs)
    distance, distance_error = mean_and_error(distances)
    i6, i15 = int(np.argmin(np.abs(TS - 6.0))), len(TS) - 1
    change, change_error = mean_and_error(clusters[:, i6] - clusters[:, i15])
    alone, alone_error = mean_and_error(distances[:, i15] > 0.5)
    error = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
    say("simulating the other heads")
    by_head, each = _ends_of_heads(x0, source.matrices)
    claims = (
        Claim(
            "The system converges to a metastable state by t = 6 and keeps it through t = 15.",
            f"clusters: {plus_minus(count[i6], count_error[i6])} at t = 6, {plus_minus(count[i15], count_error[i15])} "
            f"at t = 15; the count falls by {plus_minus(change, change_error)} in between",
            "the count changes by less than 0.5 from t = 6 to 15, and is above 1.5 at t = 15",
            bool(abs(change) < 0.5 and count[i15] > 1.5),
            "paper",
            float(count[i15]),
            float(count_error[i15]),
        ),
        Claim(
            "The initial token is segregated from the subsequent ones at t = 15.",
            f"mean distance to the first token {plus_minus(distance[i15], distance_error[i15], 3)} at t = 15; above "
            f"0.5 in {plus_minus(100 * alone, 100 * alone_error, 1)} % of the starts",
            "the mean distance exceeds 0.5 in more than half of the starts",
            bool(alone > 0.5),
            "paper",
            float(distance[i15]),
            float(distance_error[i15]),
        ),
        Claim(
            "What happens depends on the head.",
            f"clusters at t = 15 over the {len(by_head)} heads: from {by_head[:, 0].min():.1f} to "
            f"{by_head[:, 0].max():.1f}; mean distance to the first token: from {by_head[:, 1].min():.2f} to "
            f"{by_head[:, 1].max():.2f} ({each} starts each)",
            "the heads differ by more than one cluster",
            bool(np.ptp(by_head[:, 0]) > 1.0),
            "finding",
            float(np.ptp(by_head[:, 0])),
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
        f"Tokens of one start (seed {settings.seed}), Q = K = I, beta = 1, V with the eigenvalues {source.words}: the "
        f"three of largest real part of head {source.head + 1} of {source.provenance}; a conjugate pair stands as a "
        f"2 x 2 block. Clusters (radius {RADIUS}) and mean distance to the first token over {settings.starts} starts, "
        f"with standard errors. By t = 6 the run is near its end, as the paper says; but in most starts that end is "
        "one cluster with the first token in it, not a metastable state with the first token apart. Other heads differ "
        "(right). The causal mask is the paper's: ALBERT itself attends in both directions."
    )

    def clusters_panel(ax: Axes) -> None:
        time_series(TS, count, count_error, ax, label="clusters", colour=OKABE_ITO[0], ylabel="clusters")
        ax.set_yscale("log")
        ax.axhline(1.0, color="0.5", lw=0.8, ls="--")
        right = ax.twinx()
        time_series(TS, distance, distance_error, right, colour=OKABE_ITO[5])
        right.set_ylabel("mean distance to token 1")
        right.set_ylim(0.0, None)
        right.spines["right"].set_visible(True)
        ax.legend(
            [ax.get_lines()[0], right.get_lines()[0]], ["clusters", "distance"], frameon=False, fontsize=7,
            loc="upper right", bbox_to_anchor=(1.0, 1.0),
        )  # fmt: skip

    def heads_panel(ax: Axes) -> None:
        heads = np.arange(1, len(by_head) + 1)
        shown = heads == source.head + 1
        ax.bar(heads[~shown], by_head[~shown, 0], color=OKABE_ITO[4], label="other heads")
        ax.bar(heads[shown], by_head[shown, 0], color=OKABE_ITO[0], label="the head above")
        ax.set(xlabel="head", ylabel="clusters at t = 15", xticks=heads)
        ax.legend(frameon=False, fontsize=7)

    return Outcome(
        caption,
        claims,
        {
            "n": N,
            "d": D,
            "beta": BETA,
            "value": source.value.tolist(),
            "head": source.head,
            "source": source.provenance,
            "sha256": source.sha256,
            "query_key": "identity",
            "mask": "causal",
            "radius": RADIUS,
            "starts": settings.starts,
            "times": list(TIMES),
        },
        {
            "t": TS,
            "clusters": count,
            "clusters_error": count_error,
            "distance_to_first": distance,
            "distance_to_first_error": distance_error,
            "clusters_at_15_by_head": by_head[:, 0],
            "distance_at_15_by_head": by_head[:, 1],
        },
        lambda: figure_of_run(TS, xs[0], TIMES, (clusters_panel, heads_panel)),
        Film(TS, xs[0]),
    )


def _ends_of_heads(x0: Array, matrices: np.ndarray) -> tuple[np.ndarray, int]:
    """Mean number of clusters and mean distance to the first token at t = 15, (heads, 2), and the starts for each head.

    The starts are dealt out to the heads, so that the program that is compiled already serves.
    """
    heads = np.arange(len(x0)) % len(matrices)
    runs = run_ensemble(x0, TS, beta=BETA, value=matrices[heads])
    clusters = np.asarray(count_clusters(runs.xs[:, -1:], jnp.asarray(RADIUS)))[:, 0]
    distances = distance_to_first(runs)[:, -1]
    ends = [(clusters[heads == head].mean(), distances[heads == head].mean()) for head in range(len(matrices))]
    return np.array(ends), len(x0) // len(matrices)


FIGURE7 = Experiment(
    "figure7",
    "albert_eigenvalues",
    "Figure 7: the top three eigenvalues of an ALBERT head",
    "With ALBERT's top-3 eigenvalues the system is metastable from t = 6 to 15, the first token apart from the others.",
    _run,
)
