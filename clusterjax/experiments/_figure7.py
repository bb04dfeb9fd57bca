"""Figure 7: V with the top three eigenvalues of a trained ALBERT head."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes

from ..plot import OKABE_ITO, spectrum, time_series
from ._albert import TrainedValues, trained_values
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
from ._sources import PEAT_FIGURE_7


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
            source=PEAT_FIGURE_7,
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
            source=PEAT_FIGURE_7,
        ),
        *_limits(xs[:, -1], source),
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
        f"Tokens of one start (seed {settings.seed}), Q = K = I, beta = 1, V with the eigenvalues {source.words}: "
        f"{source.origin}; a conjugate pair stands as a "
        f"2 x 2 block, and the basis, which eigenvalues leave open, is orthonormal. (a): clusters (radius {RADIUS}) "
        f"and mean distance to the first token over {settings.starts} starts, with standard errors. (b): all "
        "eigenvalues of that head, and the three. (c): the other heads. The paper sees a metastable state from t = 6 "
        f"on, with the first token apart. Here there are {count[i6]:.1f} clusters at t = 6 and {count[i15]:.1f} at "
        f"t = 15, and the first token is {'apart from' if alone > 0.5 else 'among'} the others"
        + _end(claims[2]) * (source.leading == 1)
        + _as_it_comes(source, count)
        + " The causal mask is the paper's: ALBERT itself attends in both directions."
    )

    def clusters_panel(ax: Axes) -> None:
        time_series(TS, count, count_error, ax, colour=OKABE_ITO[0], ylabel="number of clusters")
        ax.set_yscale("log")
        right = ax.twinx()
        time_series(TS, distance, distance_error, right, colour=OKABE_ITO[2], linestyle="--")
        right.set(ylabel="mean distance to the first token", ylim=(0.0, None))
        right.spines["right"].set_visible(True)
        lines = [ax.get_lines()[0], right.get_lines()[0]]
        ax.legend(lines, ["clusters", "distance"], loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)

    def spectrum_panel(ax: Axes) -> None:
        spectrum(source.spectra[source.head], ax, label="all", colour="#8C8C8C")
        spectrum(np.linalg.eigvals(source.value), ax, label="top three", colour=OKABE_ITO[0], size=26.0)

    def heads_panel(ax: Axes) -> None:
        heads = np.arange(1, len(by_head) + 1)
        shown = heads == source.head + 1
        ax.bar(heads[~shown], by_head[~shown, 0], color=OKABE_ITO[4], label="other heads")
        ax.bar(heads[shown], by_head[shown, 0], color=OKABE_ITO[0], label=f"head {source.head + 1}")
        ax.set(xlabel="head", ylabel="number of clusters at t = 15", xticks=heads[::2] if len(heads) > 6 else heads)
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)

    return Outcome(
        caption,
        claims,
        {
            "n": N,
            "d": D,
            "beta": BETA,
            "value": source.value.tolist(),
            "head": source.head,
            "scale": source.scale,
            "source": source.provenance,
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
        lambda: figure_of_run(TS, {"": xs[0]}, TIMES, (clusters_panel, spectrum_panel, heads_panel)),
        Film(TS, xs[0]),
        on=source.measured(tokens=N, d=D, beta=BETA, t=TS[-1].item(), starts=settings.starts),
    )


def _limits(x: np.ndarray, source: TrainedValues) -> tuple[Claim, ...]:
    """Where tokens (starts, n, d) are at the end, if the top eigenvalue is real and simple."""
    if source.leading != 1:
        return ()
    along = x[..., 0]
    at_ends, error = mean_and_error((np.abs(along) > 0.99).mean(-1))
    both, both_error = mean_and_error((along.max(-1) > 0.99) & (along.min(-1) < -0.99))
    return (
        Claim(
            "The run ends at the top eigenvector v, at v or at -v (conjectured in 2411.04990), and is not metastable.",
            f"{plus_minus(100 * at_ends, 100 * error, 1)} % of the tokens have |<x, v>| > 0.99 at t = 15; "
            f"{plus_minus(100 * both, 100 * both_error, 1)} % of the starts have tokens at both ends",
            "more than 95 % of the tokens",
            bool(at_ends > 0.95),
            "finding",
            float(at_ends),
            float(error),
        ),
    )


def _end(claim: Claim) -> str:
    """Whether the run has come to its end."""
    if claim.holds:
        return "; the run has reached its end, the top eigenvector and its opposite, and stays there for ever"
    return f"; only {100 * (claim.value or 0.0):.0f} % of the tokens have come to the top eigenvector or its opposite"


def _as_it_comes(source: TrainedValues, count: np.ndarray) -> str:
    """What of the run would be seen with the eigenvalues as they are, if that is less of it."""
    if source.scale <= 1:
        return "."
    reached = TS[-1] / source.scale
    return (
        f". With V as it comes the same run is {source.scale:.3g} times slower: at t = {TS[-1]:g} it stands where this "
        f"one does at t = {reached:.1f}, with {count[int(np.argmin(np.abs(TS - reached)))]:.1f} clusters."
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
    reads_network=True,
)
