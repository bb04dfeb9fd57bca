"""Figure 7 of Peat: tokens under V with the top three eigenvalues of each head of a trained network, unscaled and
scaled.

Division of V by a positive number s only rescales time, because with Q = K = I the field is linear in V: a run of V / s
to time t is a run of V to time t / s. The eigenvalues of a trained head are small, and by t = 15 tokens hardly move
under the unscaled V. They come to rest by then under the V whose largest real part is scaled to 1. Eigenvalues do not
determine a basis; the basis is orthonormal here, and a conjugate pair is a 2 x 2 block.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...plot import OKABE_ITO, spectrum, time_series
from ..framework.experiment import MOST_OF_NETWORK, Claim, Film, Say, Settings, parameter, percent, plus_minus
from ..framework.figure import Found, claim, figure
from ..shared.ensemble import (
    MOST_TOKENS,
    Ensemble,
    Series,
    at,
    distance_to_first,
    draw_starts,
    first_token,
    mean_and_error,
    run_ensemble,
    with_errors,
)
from ..shared.layout import figure_of_run
from ..shared.sources import PEAT_FIGURE_7
from ..shared.trained_values import TrainedValues, check_head, trained_values


D = 3
TIMES = (0.0, 3.0, 6.0, 15.0)  # the times of the snapshots
TS = np.linspace(0.0, 15.0, 61)
I6 = int(np.argmin(np.abs(TS - 6.0)))


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(64, "the number of tokens", least=4, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    layer: int = parameter(1, "the layer whose V is taken", least=1, most=MOST_OF_NETWORK)
    head: int = parameter(0, "the head that is shown; 0 is the head with the largest real part", least=0,
                          most=MOST_OF_NETWORK)  # fmt: skip

    @property
    def half(self) -> int:
        """The number of clusters above which the tokens count as apart."""
        return self.n // 2


class HeadRuns(NamedTuple):
    """The runs of every head, from `starts` starts each: the numbers of clusters at t = 6 and 15, and the distance to
    the first token at t = 15, (heads,) each with a standard error."""

    at6: Series
    at15: Series
    distance: Series
    starts: int

    def metastable(self, n: int) -> np.ndarray:
        """True for each head that has a few clusters at t = 15, and about as many at t = 6, (heads,)."""
        at6, at15 = self.at6[0], self.at15[0]
        return (np.abs(at6 - at15) < 0.5) & (at15 > 1.5) & (at15 <= n // 2)


class Results(NamedTuple):
    p: Parameters
    seed: int
    starts: int
    source: TrainedValues  # the V of the trained heads
    # `raw`, `run`: the runs of the head that is shown, with unscaled and with scaled V
    raw: Ensemble
    run: Ensemble
    # `raw_heads`, `heads`: the runs of every head, with unscaled and with scaled V
    raw_heads: HeadRuns
    heads: HeadRuns

    @property
    def off(self) -> float:
        return max(self.run.off, self.raw.off)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    source = trained_values(settings, p.layer, p.head)
    say(f"simulating head {source.head + 1} of {len(source.matrices)}, with unscaled and with scaled V")
    x0 = draw_starts(settings.seed, settings.starts, p.n, D)
    run = lambda value: run_ensemble(x0, TS, beta=p.beta, value=value, radius=p.radius)
    shown = run(source.raw[source.head]), run(source.value)
    say("simulating every head, with unscaled and with scaled V")
    heads = runs_of_heads(x0, source.raw, p), runs_of_heads(x0, source.matrices, p)
    return Results(p, settings.seed, settings.starts, source, *shown, *heads)


def runs_of_heads(x0: Array, matrices: np.ndarray, p: Parameters) -> HeadRuns:
    """The runs of every head. The heads share the starts, so that the program of `Results.run` is used again."""
    heads = len(matrices)
    # An error needs two starts of each head: starts are repeated where there are too few.
    x0 = x0[np.arange(max(len(x0), 2 * heads)) % len(x0)]
    which = np.arange(len(x0)) % heads
    runs = run_ensemble(x0, TS, beta=p.beta, value=matrices[which], radius=p.radius)
    late = replace(runs, xs=runs.xs[:, [I6, -1]])
    numbers = (*late.clusters.T, distance_to_first(late)[:, -1])
    means_and_errors = [[mean_and_error(values[which == head]) for head in range(heads)] for values in numbers]
    at6, at15, distance = (tuple(np.array(pairs).T) for pairs in means_and_errors)
    return HeadRuns(at6, at15, distance, len(x0) // heads)


def heads_words(which: np.ndarray) -> str:
    """The heads, from 1, for which `which` is True, in words."""
    numbers = [int(head) + 1 for head in np.flatnonzero(which)]
    return "no head" if not numbers else f"head {numbers[0]}" if len(numbers) == 1 else f"heads {numbers}"


def range_words(values: np.ndarray, digits: int) -> str:
    return f"from {values.min():.{digits}f} to {values.max():.{digits}f}"


@claim(
    "the count changes by less than 0.5 from t = 6 to 15, and is above 1.5 and at most {p.half} at t = 15, with "
    "scaled V",
    source=PEAT_FIGURE_7,
)
def metastable(m: Results) -> Found:
    """By t = 6 the system is in a metastable state: its mean number of clusters hardly changes until t = 15."""
    count, slow, n = m.run.count, m.raw.count, m.p.n
    change, change_error = mean_and_error(m.run.clusters[:, I6] - m.run.clusters[:, -1])
    return Found(
        f"the mean count of clusters is {at(count, I6)} at t = 6 and {at(count, -1)} at t = 15, and falls by "
        f"{plus_minus(change, change_error)} in between; with unscaled V it is {at(slow, I6)} and {at(slow, -1)}. Of "
        f"{len(m.source.matrices)} heads, the criterion holds for {heads_words(m.heads.metastable(n))} with scaled V "
        f"and for {heads_words(m.raw_heads.metastable(n))} with unscaled V",
        abs(change) < 0.5 and 1.5 < count[0][-1] <= m.p.half, count[0][-1], count[1][-1],
    )  # fmt: skip


@claim("the mean distance exceeds 0.5 in more than half of the starts, with scaled V", source=PEAT_FIGURE_7)
def segregated(m: Results) -> Found:
    """At t = 15 the first token is segregated from the others in most starts."""
    distance, error = m.run.distance
    share, share_error = mean_and_error(distance_to_first(m.run)[:, -1] > 0.5)
    return Found(
        f"the mean distance to the first token is {at(m.run.distance, -1, 3)} at t = 15 and above 0.5 in "
        f"{percent(share, share_error)} of the starts; with unscaled V it is {at(m.raw.distance, -1, 3)}",
        share > 0.5, distance[-1], error[-1],
    )  # fmt: skip


@claim("more than 95 % of the tokens")
def limits(m: Results) -> Found | None:
    """By t = 15 almost all tokens are at v or -v, where v is the top eigenvector of V (conjectured in 2411.04990)."""
    # A conjugate pair has no real eigenvector.
    if m.source.leading != 1:
        return None
    # The top eigenvector is the first coordinate axis.
    along = m.run.xs[:, -1, :, 0]
    share, error = mean_and_error((np.abs(along) > 0.99).mean(-1))
    at_both_ends, of_both = mean_and_error((along.max(-1) > 0.99) & (along.min(-1) < -0.99))
    return Found(
        f"{percent(share, error)} of the tokens have |<x, v>| > 0.99 at t = 15; {percent(at_both_ends, of_both)} of "
        "the starts have tokens at both ends",
        share > 0.95, share, error,
    )  # fmt: skip


@claim("more than {p.half} clusters of {p.n} tokens at t = 15 at just these heads, with scaled V")
def repelling(m: Results) -> Found:
    """The tokens stay apart at exactly those heads whose eigenvalues of V all have negative real parts."""
    source, late = m.source, m.heads.at15[0]
    repels = source.repelling
    groups = [
        f"for the {name} {heads_words(which)} the largest real part is {range_words(source.top[which], 3)}, and the "
        f"number of clusters at t = 15 is {range_words(late[which], 1)} with scaled V and "
        f"{range_words(m.raw_heads.at15[0][which], 1)} with unscaled V"
        for which, name in ((repels, "repelling"), (~repels, "other"))
        if which.any()
    ]
    attractive, rotating = (heads_words(source.cases == case) for case in ("attractive", "rotating"))
    return Found(
        f"{repels.sum()} of {len(repels)} heads repel; {'; '.join(groups)}; the top eigenvalue is real and positive "
        f"for {attractive}, a complex pair with a positive real part for {rotating}",
        (repels == (late > m.p.n / 2)).all(), repels.sum(),
    )  # fmt: skip


@claim("the heads differ by more than one cluster, with scaled V")
def heads_differ(m: Results) -> Found:
    """The mean number of clusters at t = 15 differs by more than one between two heads."""
    numbers = lambda heads: f"{range_words(heads.at15[0], 1)} and {range_words(heads.distance[0], 2)}"
    return Found(
        f"over {len(m.source.matrices)} heads ({m.heads.starts} starts each), clusters at t = 15 and the mean distance "
        f"to the first token are {numbers(m.heads)} with scaled V, {numbers(m.raw_heads)} with unscaled V",
        np.ptp(m.heads.at15[0]) > 1.0, np.ptp(m.heads.at15[0]),
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    source = m.source
    return (
        f"Snapshots: the tokens of one start (seed {m.seed}) with Q = K = I, beta = {m.p.beta:g} and a V with the "
        f"eigenvalues of largest real part of head {source.head + 1} of {source.provenance}. The first row has the "
        f"unscaled V; the second row has V times {source.scale:.3g}, so that the largest real part is "
        f"{source.value[0, 0]:.0f} ({source.words}). The factor changes only the unit of time, which corresponds to "
        f"{source.scale:.3g} layers. A conjugate pair is a 2 x 2 block; the basis, which eigenvalues do not determine, "
        f"is orthonormal. (a) The number of clusters (radius {m.p.radius:g}) and (b) the mean distance to the first "
        f"token, over {m.starts} starts with standard errors; (c) all unscaled eigenvalues of the head, and the three "
        f"of V; (d) the number of clusters at t = 15 for each head, over {m.heads.starts} starts each; vermilion: "
        "heads that repel, whose unscaled eigenvalues lie left of zero. The paper sees a metastable state from t = 6 "
        "on, with the first token apart. The paper has the causal mask; ALBERT itself attends in both directions."
    )


def series(m: Results) -> dict:
    runs, heads = {"": m.run, ", unscaled": m.raw}, {"": m.heads, ", unscaled": m.raw_heads}
    return (
        {"t": TS, "largest_real_part_by_head": m.source.top}
        | with_errors(**{f"clusters{which}": run.count for which, run in runs.items()})
        | with_errors(**{f"distance_to_first{which}": run.distance for which, run in runs.items()})
        | {f"clusters_at_15_by_head{which}": result.at15[0] for which, result in heads.items()}
        | {f"clusters_at_15_error_by_head{which}": result.at15[1] for which, result in heads.items()}
        | {f"distance_at_15_by_head{which}": result.distance[0] for which, result in heads.items()}
    )  # fmt: skip


def draw(m: Results) -> Figure:
    source, above = m.source, {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}

    def lines(ax: Axes, name: str, colour: str, label: str) -> None:
        for run, line, word in ((m.run, "-", "scaled V"), (m.raw, "--", "unscaled V")):
            mean, error = getattr(run, name)
            time_series(TS, mean, error, ax, colour=colour, linestyle=line, label=word, ylabel=label)
        ax.legend(**above, handlelength=1.8)

    def clusters(ax: Axes) -> None:
        lines(ax, "count", OKABE_ITO[0], "number of clusters")
        ax.set_yscale("log")
        # A logarithmic axis from 1 to 64 would have two labels.
        ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        ax.minorticks_off()

    def distance(ax: Axes) -> None:
        lines(ax, "distance", OKABE_ITO[2], "mean distance to the first token")
        ax.set_ylim(bottom=0.0)

    def eigenvalues(ax: Axes) -> None:
        spectrum(source.spectra[source.head] / source.scale, ax, label="all", colour="#8C8C8C")
        spectrum(np.linalg.eigvals(source.raw[source.head]), ax, label="top three", colour=OKABE_ITO[0], size=26.0)
        ax.legend(**above, handlelength=1.0)

    def heads(ax: Axes) -> None:
        numbers = np.arange(1, len(source.matrices) + 1)
        colours = [OKABE_ITO[5] if repels else OKABE_ITO[0] for repels in source.repelling]
        for result, shift, alpha in ((m.heads, -0.2, 1.0), (m.raw_heads, 0.2, 0.45)):
            ax.bar(
                numbers + shift, result.at15[0], 0.4, yerr=result.at15[1], color=colours, lw=0, alpha=alpha,
                error_kw={"elinewidth": 0.6, "ecolor": "0.2"},
            )  # fmt: skip
        ax.set(xlabel="head", ylabel="clusters at t = 15", xticks=numbers[::2] if len(numbers) > 8 else numbers)
        handles = [Patch(color=OKABE_ITO[5], label="repels"), Patch(color="0.4", alpha=0.45, label="unscaled V"),
                   Patch(color="0.4", label="scaled V")]  # fmt: skip
        ax.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.08, 1.0), ncols=2, handlelength=0.8,
                  columnspacing=0.8, fontsize=6)  # fmt: skip

    rows = {"unscaled V": m.raw.xs[0], "scaled V": m.run.xs[0]}
    return figure_of_run(TS, rows, TIMES, (clusters, distance, eigenvalues, heads))


FIGURE = figure(
    __name__,
    claims=(metastable, segregated, limits, repelling, heads_differ, first_token),
    check=lambda settings: check_head(settings, (p := settings.read(Parameters)).layer, p.head),
    film=lambda m: Film(TS, m.run.xs[0]),
    on=lambda m: m.source.measured(tokens=m.p.n, d=D, beta=m.p.beta, t=TS[-1].item(), starts=m.starts),
    recorded=lambda m: {"d": D, "value": m.source.value.tolist(), "head": m.source.head, "scale": m.source.scale,
                        "unscaled value": m.source.raw[m.source.head].tolist(), "source": m.source.provenance,
                        "query_key": "identity", "mask": "causal", "starts": m.starts, "times": list(TIMES)},
)  # fmt: skip
