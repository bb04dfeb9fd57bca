"""Figure 7: V with the top three eigenvalues of a trained ALBERT head."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

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
I6 = int(np.argmin(np.abs(TS - 6.0)))


@dataclass(frozen=True, eq=False)
class Runs:
    """Clusters and distances to the first token over the starts.

    **Attributes:**

    - `xs`: (starts, times, n, d), the tokens.
    - `clusters`, `distances`: (starts, times).
    - `off`: How far the first token is from where it must be, at most.

    Source: this library.
    """

    xs: np.ndarray
    clusters: np.ndarray
    distances: np.ndarray
    off: float

    @classmethod
    def of(cls, x0: Array, value: np.ndarray) -> "Runs":
        """Those with this V, (d, d)."""
        runs = run_ensemble(x0, TS, beta=BETA, value=value)
        xs = np.asarray(runs.xs)
        off = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
        return cls(xs, np.asarray(count_clusters(runs.xs, jnp.asarray(RADIUS))), distance_to_first(runs), off)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    source = trained_values(settings)
    say(f"simulating head {source.head + 1} of {len(source.matrices)}, as it comes and with its time rescaled")
    x0 = draw_starts(settings.seed, settings.starts, N, D)
    raw, run = Runs.of(x0, source.raw[source.head]), Runs.of(x0, source.value)
    say("simulating all heads, likewise")
    heads = Heads.of(x0, source.raw), Heads.of(x0, source.matrices)
    claims = claims_of(source, raw, run, *heads)
    count = run.clusters.mean(axis=0)
    caption = (
        f"Tokens of one start (seed {settings.seed}), Q = K = I, beta = 1, V with the eigenvalues of largest real part "
        f"of head {source.head + 1} of {source.provenance}. First row: V as it comes. Second row: the same V times "
        f"{source.scale:.3g}, so that the largest real part is 1 ({source.words}), which changes nothing but the unit "
        f"of time: 1 stands for {source.scale:.3g} layers; a conjugate pair stands as a "
        f"2 x 2 block, and the basis, which eigenvalues leave open, is orthonormal. (a) Clusters (radius {RADIUS}) and "
        f"(b) mean distance to the first token, over {settings.starts} starts with standard errors. (c) All "
        "eigenvalues of that head as they come, and the three. (d) Clusters at t = 15 for each head, as it comes and "
        f"with the same factor, {heads[1].starts} starts each. {_repelling_words(source)} The paper sees a metastable "
        f"state from t = 6 on, with the first token apart. With head {source.head + 1} there are "
        f"{raw.clusters[:, I6].mean():.1f} clusters at t = 6 and {raw.clusters[:, -1].mean():.1f} at t = 15 as it "
        f"comes, {count[I6]:.1f} and {count[-1]:.1f} with its time rescaled, and the first token is "
        f"{'apart from' if claims[1].holds else 'among'} the others"
        + _end(claims[2]) * (source.leading == 1)
        + ". The causal mask is the paper's: ALBERT itself attends in both directions."
    )
    return Outcome(
        caption,
        claims,
        {
            "n": N,
            "d": D,
            "beta": BETA,
            "value": source.value.tolist(),
            "value as it comes": source.raw[source.head].tolist(),
            "head": source.head,
            "scale": source.scale,
            "source": source.provenance,
            "query_key": "identity",
            "mask": "causal",
            "radius": RADIUS,
            "starts": settings.starts,
            "times": list(TIMES),
        },
        {"t": TS}
        | {
            f"{what}{which}{error}": values
            for which, one in (("", run), (", as it comes", raw))
            for what, samples in (("clusters", one.clusters), ("distance_to_first", one.distances))
            for error, values in zip(("", "_error"), mean_and_error(samples), strict=True)
        }
        | {"largest_real_part_by_head": source.top}
        | {
            f"{what}_by_head{which}": numbers
            for which, one in (("", heads[1]), (", as it comes", heads[0]))
            for what, numbers in (
                ("clusters_at_15", one.mean[:, 1]), ("clusters_at_15_error", one.error[:, 1]),
                ("distance_at_15", one.mean[:, 2]),
            )
        },
        lambda: _draw(source, raw, run, heads),
        Film(TS, run.xs[0]),
        on=source.measured(tokens=N, d=D, beta=BETA, t=TS[-1].item(), starts=settings.starts),
    )  # fmt: skip


def claims_of(source: TrainedValues, raw: Runs, run: Runs, raw_heads: "Heads", heads: "Heads") -> tuple[Claim, ...]:
    """What becomes of the tokens, of one head and of all, with time rescaled, and beside it with V as it comes.

    Source: this library.
    """
    counts, slow = mean_and_error(run.clusters), mean_and_error(raw.clusters)
    change, change_error = mean_and_error(run.clusters[:, I6] - run.clusters[:, -1])
    distance, distance_error = mean_and_error(run.distances[:, -1])
    alone, alone_error = mean_and_error(run.distances[:, -1] > 0.5)
    of_raw = mean_and_error(raw.distances[:, -1])
    beyond = max(run.off, raw.off)
    return (
        Claim(
            "The system converges to a metastable state by t = 6 and keeps it through t = 15.",
            f"clusters: {_at(counts, I6)} at t = 6, {_at(counts, -1)} at t = 15; the count falls by "
            f"{plus_minus(change, change_error)} in between; with V as it comes {_at(slow, I6)} and {_at(slow, -1)}. "
            f"So it does at {_listed(heads.metastable)} of the {len(source.matrices)} heads, as they come at "
            f"{_listed(raw_heads.metastable)}",
            f"the count changes by less than 0.5 from t = 6 to 15, and is above 1.5 and at most {N // 2} at t = 15, "
            "with time rescaled",
            bool(abs(change) < 0.5 and 1.5 < counts[0][-1] <= N // 2),
            "paper",
            float(counts[0][-1]),
            float(counts[1][-1]),
            source=PEAT_FIGURE_7,
        ),
        Claim(
            "The initial token is segregated from the subsequent ones at t = 15.",
            f"mean distance to the first token {plus_minus(distance, distance_error, 3)} at t = 15; above "
            f"0.5 in {plus_minus(100 * alone, 100 * alone_error, 1)} % of the starts; with V as it comes, before the "
            f"tokens have gathered at all, {plus_minus(*of_raw, 3)}",
            "the mean distance exceeds 0.5 in more than half of the starts, with time rescaled",
            bool(alone > 0.5),
            "paper",
            float(distance),
            float(distance_error),
            source=PEAT_FIGURE_7,
        ),
        *_limits(run.xs[:, -1], source),
        _claim_of_repelling(source, raw_heads, heads),
        Claim(
            "What happens depends on the head.",
            f"clusters at t = 15 over the {len(heads.mean)} heads: {_range(heads.mean[:, 1], 1)}; mean distance to the "
            f"first token: {_range(heads.mean[:, 2], 2)} ({heads.starts} starts each); as they come "
            f"{_range(raw_heads.mean[:, 1], 1)} and {_range(raw_heads.mean[:, 2], 2)}",
            "the heads differ by more than one cluster, with time rescaled",
            bool(np.ptp(heads.mean[:, 1]) > 1.0),
            "finding",
            float(np.ptp(heads.mean[:, 1])),
        ),
        Claim(
            "The first token follows exp(Vt) x_1(0), normalised, exactly.",
            f"largest difference of both runs {beyond:.1e}",
            "less than 1e-6",
            beyond < 1e-6,
            "identity",
            beyond,
        ),
    )


def _at(series: tuple[np.ndarray, np.ndarray], time: int) -> str:
    return plus_minus(series[0][time], series[1][time])


def _range(values: np.ndarray, digits: int) -> str:
    return f"from {values.min():.{digits}f} to {values.max():.{digits}f}"


def _listed(which: np.ndarray) -> str:
    heads = [int(head) + 1 for head in np.flatnonzero(which)]
    return f"{len(heads)} {heads}" if heads else "none"


def _repelling_words(source: TrainedValues) -> str:
    """How many heads repel, for a caption."""
    many, of = int(source.repelling.sum()), len(source.repelling)
    if many == 0:
        return f"None of the {of} heads repels."
    return (
        f"{many} of the {of} heads repel (vermilion): the eigenvalue of largest real part lies left of zero, "
        f"{_range(source.top[source.repelling], 3)} as they come."
    )


def _claim_of_repelling(source: TrainedValues, raw: "Heads", heads: "Heads") -> Claim:
    """Whether tokens stay apart at just the heads whose V repels."""
    repels, apart = source.repelling, heads.mean[:, 1] > N / 2
    words = []
    for which, name in ((repels, "repel"), (~repels, "do not")):
        if which.any():
            words.append(
                f"heads {[int(h) + 1 for h in np.flatnonzero(which)]} {name}: largest real part "
                f"{_range(source.top[which], 3)}, clusters at t = 15 {_range(heads.mean[which, 1], 1)}, as they come "
                f"{_range(raw.mean[which, 1], 1)}"
            )
    return Claim(
        "Heads whose V has its top eigenvalue left of zero repel: tokens stay apart at just these.",
        f"{int(repels.sum())} of {len(repels)} heads; " + "; ".join(words),
        f"more than {N // 2} clusters of {N} tokens at t = 15 at just these heads, with time rescaled",
        bool((repels == apart).all()),
        "finding",
        float(repels.sum()),
    )


@dataclass(frozen=True, eq=False)
class Heads:
    """What becomes of the tokens at each head.

    **Attributes:**

    - `mean`, `error`: Clusters at t = 6, clusters at t = 15, mean distance to the first token at t = 15, (heads, 3).
    - `starts`: For each head.

    Source: this library.
    """

    mean: np.ndarray
    error: np.ndarray
    starts: int

    @classmethod
    def of(cls, x0: Array, matrices: np.ndarray) -> "Heads":
        """Those with these V. The starts are dealt out to the heads, so that the program that is compiled already
        serves."""
        x0 = x0[np.arange(max(len(x0), 2 * len(matrices))) % len(x0)]  # an error needs two starts
        which = np.arange(len(x0)) % len(matrices)
        runs = run_ensemble(x0, TS, beta=BETA, value=matrices[which])
        clusters = np.asarray(count_clusters(runs.xs[:, [I6, -1]], jnp.asarray(RADIUS)))
        ends = np.concatenate([clusters, distance_to_first(runs)[:, -1:]], axis=1)
        found = [mean_and_error(ends[which == head]) for head in range(len(matrices))]
        return cls(np.array([mean for mean, _ in found]), np.array([e for _, e in found]), len(x0) // len(matrices))

    @property
    def metastable(self) -> np.ndarray:
        """Where the tokens come to a few clusters that stay, (heads,)."""
        at6, at15 = self.mean[:, 0], self.mean[:, 1]
        return (np.abs(at6 - at15) < 0.5) & (at15 > 1.5) & (at15 <= N // 2)


def _draw(source: TrainedValues, raw: Runs, run: Runs, heads: tuple[Heads, Heads]) -> Figure:
    looks = ((run, "-", "time rescaled"), (raw, "--", "as it comes"))

    def lines(name: str, colour: str, label: str) -> Callable[[Axes], None]:
        def fill(ax: Axes) -> None:
            for one, line, word in looks:
                time_series(
                    TS, *mean_and_error(getattr(one, name)), ax, colour=colour, linestyle=line, label=word, ylabel=label
                )
            if name == "clusters":
                ax.set_yscale("log")
                ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
                ax.minorticks_off()
            else:
                ax.set_ylim(bottom=0.0)
            ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), handlelength=1.8)

        return fill

    def spectrum_panel(ax: Axes) -> None:
        spectrum(source.spectra[source.head] / source.scale, ax, label="all", colour="#8C8C8C")
        top = np.linalg.eigvals(source.raw[source.head])
        spectrum(top, ax, label="top three", colour=OKABE_ITO[0], size=26.0)
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), handlelength=1.0)

    def heads_panel(ax: Axes) -> None:
        numbers = np.arange(1, len(source.matrices) + 1)
        for one, shift, alpha in ((heads[1], -0.2, 1.0), (heads[0], 0.2, 0.45)):
            colours = [OKABE_ITO[5] if repels else OKABE_ITO[0] for repels in source.repelling]
            ax.bar(
                numbers + shift, one.mean[:, 1], 0.4, yerr=one.error[:, 1], color=colours, lw=0,
                alpha=alpha, error_kw={"elinewidth": 0.6, "ecolor": "0.2"},
            )  # fmt: skip
        ax.set(xlabel="head", ylabel="clusters at t = 15", xticks=numbers[::2] if len(numbers) > 8 else numbers)
        handles = [Patch(color=OKABE_ITO[5], label="repels"), Patch(color="0.4", alpha=0.45, label="as it comes")]
        ax.legend(
            handles=[*handles, Patch(color="0.4", label="rescaled")], loc="lower right", bbox_to_anchor=(1.08, 1.0),
            ncols=2, handlelength=0.8, columnspacing=0.8, fontsize=6,
        )  # fmt: skip

    rows = {"V as it comes": raw.xs[0], "time rescaled": run.xs[0]}
    panels = (
        lines("clusters", OKABE_ITO[0], "number of clusters"),
        lines("distances", OKABE_ITO[2], "mean distance to the first token"),
        spectrum_panel,
        heads_panel,
    )
    return figure_of_run(TS, rows, TIMES, panels)


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


FIGURE7 = Experiment(
    "figure7",
    "albert_eigenvalues",
    "Figure 7: the top three eigenvalues of an ALBERT head",
    "With ALBERT's top-3 eigenvalues the system is metastable from t = 6 to 15, the first token apart from the others.",
    _run,
    reads_network=True,
)
