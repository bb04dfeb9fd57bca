"""What figure 7 measures: runs with the V of one trained head, as it comes and with time rescaled, and of all heads.

Dividing V by a positive number s only rescales time (with Q = K = I the field is linear in V), so that a run of V / s
to time t is one of V to time t / s. The eigenvalues of a trained head are small, and by t = 15 hardly anything moves as
they come; with the largest real part scaled to 1 the time of the paper is long. Both are shown. Eigenvalues leave the
basis open; it is orthonormal here, a conjugate pair a 2 x 2 block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...plot import OKABE_ITO, spectrum, time_series
from ..framework.experiment import (
    MOST_OF_NETWORK,
    Claim,
    Film,
    Outcome,
    Settings,
    over,
    parameter,
    percent,
    plus_minus,
)
from ..framework.figure import declared
from ..shared.ensemble import (
    MOST_TOKENS,
    count_clusters,
    distance_to_first,
    draw_starts,
    exact_first_token,
    first_token_claim,
    mean_and_error,
    run_ensemble,
)
from ..shared.layout import figure_of_run
from ..shared.sources import PEAT_FIGURE_7
from ..shared.trained_values import TrainedValues, check_head, trained_values


D = 3
TIMES = (0.0, 3.0, 6.0, 15.0)
TS = np.linspace(0.0, 15.0, 61)
I6 = int(np.argmin(np.abs(TS - 6.0)))


@dataclass(frozen=True)
class Parameters:
    """What of figure 7 can be set."""

    n: int = parameter(64, "the number of tokens", least=4, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    layer: int = parameter(1, "the layer whose V is taken", least=1, most=MOST_OF_NETWORK)
    head: int = parameter(0, "the head that is shown, 0 being the one with the largest real part", least=0,
                          most=MOST_OF_NETWORK)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Runs:
    """Clusters and distances to the first token over the starts.

    **Attributes:**

    - `xs`: (starts, times, n, d), the tokens.
    - `clusters`, `distances`: (starts, times).
    - `off`: How far the first token is from where it must be, at most.
    """

    xs: np.ndarray
    clusters: np.ndarray
    distances: np.ndarray
    off: float

    @classmethod
    def of(cls, x0: Array, value: np.ndarray, p: Parameters = Parameters()) -> "Runs":
        """Those with this V, (d, d)."""
        runs = run_ensemble(x0, TS, beta=p.beta, value=value)
        xs = np.asarray(runs.xs)
        off = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
        return cls(xs, np.asarray(count_clusters(runs.xs, jnp.asarray(p.radius))), distance_to_first(runs), off)


@dataclass(frozen=True, eq=False)
class HeadRuns:
    """What becomes of the tokens at each head.

    **Attributes:**

    - `mean`, `error`: Clusters at t = 6, clusters at t = 15, mean distance to the first token at t = 15, (heads, 3).
    - `starts`: For each head.
    """

    mean: np.ndarray
    error: np.ndarray
    starts: int

    @classmethod
    def of(cls, x0: Array, matrices: np.ndarray, p: Parameters = Parameters()) -> "HeadRuns":
        """Those with these V. The starts are dealt out to the heads, so that the program that is compiled already
        serves."""
        # Starts are repeated where there are fewer than two for each head.
        x0 = x0[np.arange(max(len(x0), 2 * len(matrices))) % len(x0)]  # an error needs two starts
        # Start k goes to head k mod heads.
        which = np.arange(len(x0)) % len(matrices)
        runs = run_ensemble(x0, TS, beta=p.beta, value=matrices[which])
        clusters = np.asarray(count_clusters(runs.xs[:, [I6, -1]], jnp.asarray(p.radius)))
        # (starts, 3): two counts and a distance.
        ends = np.concatenate([clusters, distance_to_first(runs)[:, -1:]], axis=1)
        pairs = [mean_and_error(ends[which == head]) for head in range(len(matrices))]
        return cls(np.array([mean for mean, _ in pairs]), np.array([e for _, e in pairs]), len(x0) // len(matrices))

    def metastable(self, n: int) -> np.ndarray:
        """Where n tokens come to a few clusters that stay, (heads,)."""
        at6, at15 = self.mean[:, 0], self.mean[:, 1]
        # A few clusters that stay: neither one, nor as many as half of the tokens.
        return (np.abs(at6 - at15) < 0.5) & (at15 > 1.5) & (at15 <= n // 2)


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 7 shows.

    **Attributes:**

    - `source`: The V of the trained heads.
    - `raw`, `run`: Of the head that is shown, with V as it comes and with time rescaled.
    - `raw_heads`, `heads`: Of all heads, likewise.
    """

    p: Parameters
    seed: int
    starts: int
    source: TrainedValues
    raw: Runs
    run: Runs
    raw_heads: HeadRuns
    heads: HeadRuns


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate the head that is shown and all heads, from the same starts."""
    source = trained_values(settings, p.layer, p.head)
    say(f"simulating head {source.head + 1} of {len(source.matrices)}, as it comes and with its time rescaled")
    x0 = draw_starts(settings.seed, settings.starts, p.n, D)
    raw, run = Runs.of(x0, source.raw[source.head], p), Runs.of(x0, source.value, p)
    say("simulating all heads, likewise")
    heads = HeadRuns.of(x0, source.raw, p), HeadRuns.of(x0, source.matrices, p)
    return Results(p, settings.seed, settings.starts, source, raw, run, *heads)


# What figure 7 claims: whether the state lasts, whether the first token stays apart, and at which heads.


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(f"{m.starts} starts", _claims(m))


def _claims(m: Results) -> tuple[Claim, ...]:
    """What becomes of the tokens, of one head and of all, with time rescaled, and beside it with V as it comes."""
    source, run, raw, heads, raw_heads, n = m.source, m.run, m.raw, m.heads, m.raw_heads, m.p.n
    counts, slow = mean_and_error(run.clusters), mean_and_error(raw.clusters)
    change, change_error = mean_and_error(run.clusters[:, I6] - run.clusters[:, -1])
    distance, distance_error = mean_and_error(run.distances[:, -1])
    alone, alone_error = mean_and_error(run.distances[:, -1] > 0.5)
    of_raw = mean_and_error(raw.distances[:, -1])
    return (
        Claim(
            says="The system converges to a metastable state by t = 6 and keeps it through t = 15.",
            measured=f"clusters: {_at(counts, I6)} at t = 6, {_at(counts, -1)} at t = 15; the count falls by "
            f"{plus_minus(change, change_error)} in between; with V as it comes {_at(slow, I6)} and {_at(slow, -1)}. "
            f"So it does at {_listed(heads.metastable(n))} of the {len(source.matrices)} heads, as they come at "
            f"{_listed(raw_heads.metastable(n))}",
            criterion=f"the count changes by less than 0.5 from t = 6 to 15, and is above 1.5 and at most {n // 2} at "
            "t = 15, with time rescaled",
            holds=bool(abs(change) < 0.5 and 1.5 < counts[0][-1] <= n // 2),
            kind="paper",
            value=float(counts[0][-1]),
            error=float(counts[1][-1]),
            source=PEAT_FIGURE_7,
        ),
        Claim(
            says="The initial token is segregated from the subsequent ones at t = 15.",
            measured=f"mean distance to the first token {plus_minus(distance, distance_error, 3)} at t = 15; above "
            f"0.5 in {percent(alone, alone_error)} of the starts; with V as it comes, before the "
            f"tokens have gathered at all, {plus_minus(*of_raw, 3)}",
            criterion="the mean distance exceeds 0.5 in more than half of the starts, with time rescaled",
            holds=bool(alone > 0.5),
            kind="paper",
            value=float(distance),
            error=float(distance_error),
            source=PEAT_FIGURE_7,
        ),
        *_limits(run.xs[:, -1], source),
        _claim_of_repelling(m),
        Claim(
            says="The mean number of clusters at t = 15 differs by more than one between heads.",
            measured=f"clusters at t = 15 over the {len(heads.mean)} heads: {_range(heads.mean[:, 1], 1)}; mean "
            f"distance to the first token: {_range(heads.mean[:, 2], 2)} ({heads.starts} starts each); as they come "
            f"{_range(raw_heads.mean[:, 1], 1)} and {_range(raw_heads.mean[:, 2], 2)}",
            criterion="the heads differ by more than one cluster, with time rescaled",
            holds=bool(np.ptp(heads.mean[:, 1]) > 1.0),
            kind="finding",
            value=float(np.ptp(heads.mean[:, 1])),
        ),
        first_token_claim(max(run.off, raw.off), "of both runs "),
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


def _cases_words(source: TrainedValues) -> str:
    """Which of the heads that do not repel attract, and which turn tokens, by their leading eigenvalue."""
    listed = lambda case: [int(head) + 1 for head in np.flatnonzero(source.cases == case)]
    return f"heads {listed('attractive')} attract (real), heads {listed('rotating')} turn (a complex pair)"


def _claim_of_repelling(m: Results) -> Claim:
    """Whether tokens stay apart at just the heads whose V repels."""
    source, heads, raw, n = m.source, m.heads, m.raw_heads, m.p.n
    # Apart: more clusters than half of the tokens.
    repels, apart = source.repelling, heads.mean[:, 1] > n / 2
    words = []
    for which, name in ((repels, "repel"), (~repels, "do not")):
        if which.any():
            words.append(
                f"heads {[int(h) + 1 for h in np.flatnonzero(which)]} {name}: largest real part "
                f"{_range(source.top[which], 3)}, clusters at t = 15 {_range(heads.mean[which, 1], 1)}, as they come "
                f"{_range(raw.mean[which, 1], 1)}"
            )
    return Claim(
        says="Heads whose V has its top eigenvalue left of zero repel: tokens stay apart at just these.",
        measured=f"{int(repels.sum())} of {len(repels)} heads; "
        + "; ".join(words)
        + f"; of the others {_cases_words(source)}",
        criterion=f"more than {n // 2} clusters of {n} tokens at t = 15 at just these heads, with time rescaled",
        holds=bool((repels == apart).all()),
        kind="finding",
        value=float(repels.sum()),
    )


def _limits(x: np.ndarray, source: TrainedValues) -> tuple[Claim, ...]:
    """Where tokens (starts, n, d) are at the end, if the top eigenvalue is real and simple."""
    # A pair has no eigenvector to end at.
    if source.leading != 1:
        return ()
    # The block of the top eigenvalue stands first in V.
    along = x[..., 0]
    at_ends, error = mean_and_error((np.abs(along) > 0.99).mean(-1))
    both, both_error = mean_and_error((along.max(-1) > 0.99) & (along.min(-1) < -0.99))
    return (
        Claim(
            says="The run ends at the top eigenvector v, at v or at -v (conjectured in 2411.04990), and is not "
            "metastable.",
            measured=f"{percent(at_ends, error)} of the tokens have |<x, v>| > 0.99 at t = 15; "
            f"{percent(both, both_error)} of the starts have tokens at both ends",
            criterion="more than 95 % of the tokens",
            holds=bool(at_ends > 0.95),
            kind="finding",
            value=float(at_ends),
            error=float(error),
        ),
    )


def _end(claim: Claim) -> str:
    """Whether the run has come to its end."""
    if claim.holds:
        return "; the run has reached its end, the top eigenvector and its opposite, and stays there for ever"
    return f"; only {100 * (claim.value or 0.0):.0f} % of the tokens have come to the top eigenvector or its opposite"


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the figure."""
    source, raw, count = m.source, m.raw, m.run.clusters.mean(axis=0)
    return (
        f"Tokens of one start (seed {m.seed}), Q = K = I, beta = {m.p.beta:g}, V with the eigenvalues of largest real "
        f"part of head {source.head + 1} of {source.provenance}. First row: V as it comes. Second row: the same V "
        f"times {source.scale:.3g}, so that the largest real part is {source.value[0, 0]:.0f} ({source.words}), which "
        f"changes nothing but the unit of time: 1 stands for {source.scale:.3g} layers; a conjugate pair stands as a "
        "2 x 2 block, and the "
        f"basis, which eigenvalues leave open, is orthonormal. (a) Clusters (radius {m.p.radius:g}) and (b) mean "
        f"distance to the first token, over {m.starts} starts with standard errors. (c) All eigenvalues of that head "
        "as they come, and the three. (d) Clusters at t = 15 for each head, as it comes and with the same factor, "
        f"{m.heads.starts} starts each. {_repelling_words(source)} The paper sees a metastable state from t = 6 on, "
        f"with the first token apart. With head {source.head + 1} there are {raw.clusters[:, I6].mean():.1f} clusters "
        f"at t = 6 and {raw.clusters[:, -1].mean():.1f} at t = 15 as it comes, {count[I6]:.1f} and {count[-1]:.1f} "
        f"with its time rescaled, and the first token is {'apart from' if claims[1].holds else 'among'} the others"
        + _end(claims[2]) * (source.leading == 1)
        + ". The causal mask is the paper's: ALBERT itself attends in both directions."
    )


# The picture of figure 7: two runs, their numbers, the eigenvalues, and all heads.


def draw(m: Results) -> Figure:
    """Snapshots of both runs above; clusters, distances, eigenvalues and all heads below."""
    source, raw, run = m.source, m.raw, m.run
    styles = ((run, "-", "time rescaled"), (raw, "--", "as it comes"))

    def lines(name: str, colour: str, label: str) -> Callable[[Axes], None]:
        def fill(ax: Axes) -> None:
            for one, line, word in styles:
                time_series(
                    TS, *mean_and_error(getattr(one, name)), ax, colour=colour, linestyle=line, label=word, ylabel=label
                )
            if name == "clusters":
                ax.set_yscale("log")
                # Labelled as numbers: a logarithmic axis from 1 to 64 would have two labels.
                ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
                ax.minorticks_off()
            else:
                ax.set_ylim(bottom=0.0)
            ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), handlelength=1.8)

        return fill

    def spectrum_panel(ax: Axes) -> None:
        # All eigenvalues of the head, as they come; the three of V on top of them.
        spectrum(source.spectra[source.head] / source.scale, ax, label="all", colour="#8C8C8C")
        top = np.linalg.eigvals(source.raw[source.head])
        spectrum(top, ax, label="top three", colour=OKABE_ITO[0], size=26.0)
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), handlelength=1.0)

    def heads_panel(ax: Axes) -> None:
        numbers = np.arange(1, len(source.matrices) + 1)
        # Two bars for each head: rescaled on the left, as it comes on the right and paler.
        for one, shift, alpha in ((m.heads, -0.2, 1.0), (m.raw_heads, 0.2, 0.45)):
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


# Figure 7 as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims, source = claims_of(m), m.source
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": D, "beta": p.beta, "value": source.value.tolist(),
         "value as it comes": source.raw[source.head].tolist(), "head": source.head, "layer": p.layer,
         "scale": source.scale, "source": source.provenance, "query_key": "identity", "mask": "causal",
         "radius": p.radius, "starts": m.starts, "times": list(TIMES)},
        _series(m),
        partial(draw, m),
        Film(TS, m.run.xs[0]),
        on=source.measured(tokens=p.n, d=D, beta=p.beta, t=TS[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    of_runs = {
        f"{what}{which}{error}": values
        for which, one in (("", m.run), (", as it comes", m.raw))
        for what, samples in (("clusters", one.clusters), ("distance_to_first", one.distances))
        for error, values in zip(("", "_error"), mean_and_error(samples), strict=True)
    }
    # One number for each head: clusters at t = 15 with its error, and the distance to the first token.
    of_heads = {
        f"{what}_by_head{which}": numbers
        for which, one in (("", m.heads), (", as it comes", m.raw_heads))
        for what, numbers in (
            ("clusters_at_15", one.mean[:, 1]),
            ("clusters_at_15_error", one.error[:, 1]),
            ("distance_at_15", one.mean[:, 2]),
        )
    }
    return {"t": TS} | of_runs | {"largest_real_part_by_head": m.source.top} | of_heads


def _check(settings: Settings) -> None:
    p = settings.read(Parameters)
    check_head(settings, p.layer, p.head)


FIGURE = declared("figure7", _run, parameters=Parameters, check=_check)
