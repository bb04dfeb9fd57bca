"""Figure 4 of Peat: at beta = 9 several clusters last for a while, and the number of clusters grows with beta."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.figure import Claim, Film, Found, Say, Settings, claim, figure, parameter, percent, plus_minus
from ..shared.ensemble import (
    MOST_TOKENS,
    Ensemble,
    Series,
    at,
    draw_starts,
    falls,
    mean_and_error,
    run_ensemble,
    second_token,
    with_errors,
)
from ..shared.exact import pair_error
from ..shared.layout import figure_of_run
from ..shared.sources import particles, peat


TIMES = (3.0, 6.0, 12.0, 15.0)  # the times of the snapshots
EARLY = TIMES[-1]
OTHER_BETAS = (1.0, 4.0, 16.0)
SIZE = {"tokens": 64, "d": 3}  # of the paper


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    d: int = parameter(3, "the dimension, 2 or 3 so that a picture can show it", least=2, most=3)
    beta: float = parameter(9.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    end: float = parameter(1000.0, "the end of the run", quick=100.0, least=30, most=10_000)

    @property
    def ts(self) -> np.ndarray:
        """The save times: evenly spaced to t = 15, then in geometric progression."""
        # The number of times does not depend on `end`, so that one compiled program serves all runs.
        return np.concatenate([np.linspace(0.0, EARLY, 31), np.geomspace(20.0, self.end, 30)])


class Results(NamedTuple):
    p: Parameters
    seed: int
    starts: int
    runs: Ensemble  # the runs at beta
    # The mean number of clusters at t = 15 and its standard error, for each beta in rising order.
    by_beta: dict[float, Series]
    defect: float  # the largest angle between token 2 and the closed formula for two tokens, in radians

    @property
    def early(self) -> int:
        """The index of the save time t = 15."""
        return self.runs.index(EARLY)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    say(f"simulating to t = {p.end:g}")
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    runs = run_ensemble(x0, p.ts, beta=p.beta, radius=p.radius)
    say(f"simulating other betas to t = {EARLY:g}")
    # These runs have as many save times as the long run, so that one compiled program serves all.
    ts = np.linspace(0.0, EARLY, len(p.ts))
    others = {beta: run_ensemble(x0, ts, beta=beta, radius=p.radius) for beta in OTHER_BETAS} | {p.beta: runs}
    at15 = {beta: mean_and_error(others[beta].clusters[:, others[beta].index(EARLY)]) for beta in sorted(others)}
    return Results(p, settings.seed, settings.starts, runs, at15, pair_error(p.ts, runs.xs, p.beta, 1.0))


@claim(
    "more than 95 % of the starts have several clusters at t = 15",
    source=peat("Figure 4", size=SIZE | {"beta": 9}, least={"t": 15}),
)
def several(m: Results) -> Found:
    """At beta = {p.beta:g} distinct clusters persist to t = 15 in almost all starts."""
    count, (share, error) = m.runs.count, mean_and_error(m.runs.clusters[:, m.early] > 1)
    counts = ", ".join(f"{at(count, m.runs.index(t))} at t = {t:g}" for t in (*TIMES, m.p.end))
    measured = f"{percent(share, error)} of the starts have several clusters at t = 15; clusters: {counts}"
    return Found(measured, share > 0.95, count[0][m.early], count[1][m.early])


@claim("the mean count falls after t = 15 by more than four standard errors")
def metastable(m: Results) -> Found:
    """The state at t = 15 is not final: the mean number of clusters falls further."""
    count, still = m.runs.count, float((m.runs.clusters[:, -1] > 1).mean())
    return Found(
        f"from t = 15 to {m.p.end:g} the count falls from {at(count, m.early)} to {at(count, -1)}; {100 * still:.0f} % "
        "of the starts still have several",
        falls(count, m.early), count[0][-1], count[1][-1],
    )  # fmt: skip


@claim("the mean count increases from each beta to the next", source=peat("Section 4.2.2", size=SIZE))
def granularity(m: Results) -> Found:
    """The larger beta is, the more clusters there are at t = 15."""
    means, errors = np.array(list(m.by_beta.values())).T
    counts = ", ".join(f"{plus_minus(*pair)} at beta = {beta:g}" for beta, pair in m.by_beta.items())
    on = particles(tokens=m.p.n, d=m.p.d, beta=tuple(m.by_beta), t=EARLY, starts=m.starts)
    return Found(f"clusters at t = 15: {counts}", bool(np.all(np.diff(means) > 0)), means[-1], errors[-1], on)


@claim("less than 1e-9", kind="identity")
def first_token_rests(m: Results) -> Found:
    """With V = I the first token does not move (2411.04990)."""
    # With V = I the exact first token stays where it started.
    return Found(f"the largest displacement is {m.runs.off:.1e}", m.runs.off < 1e-9, m.runs.off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Tokens of one start (seed {m.seed}) under Q = K = V = I and inverse temperature beta = {m.p.beta:g}, and the "
        f"number of clusters (single linkage at radius {m.p.radius:g}) over {m.starts} starts with standard errors. "
        "Theory sends almost every start to one cluster, at the first token, in a time exponential in beta. A large "
        "beta is a LOW temperature; the paper calls it high, and its threshold beta >= sqrt(d) = sqrt(64) takes the "
        f"number of tokens for the dimension, which is {m.p.d} here."
    )


def series(m: Results) -> dict:
    by_beta = [[beta, float(mean), float(error)] for beta, (mean, error) in m.by_beta.items()]
    runs = with_errors(clusters=m.runs.count, distance_to_first=m.runs.distance)
    return {"t": m.p.ts} | runs | {"clusters_at_15_by_beta": by_beta}


def draw(m: Results) -> Figure:

    def clusters(ax: Axes) -> None:
        time_series(m.p.ts, *m.runs.count, ax, ylabel="number of clusters", colour=OKABE_ITO[0])
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_yscale("log")
        ax.axhline(1.0, color="0.5", lw=0.8, ls="--")  # one cluster, where theory sends all starts
        ax.axvline(EARLY, color="0.5", lw=0.8, ls=":")  # the last snapshot

    def distance(ax: Axes) -> None:
        label = "mean distance to the first token"
        time_series(m.p.ts, *m.runs.distance, ax, ylabel=label, colour=OKABE_ITO[2])
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_ylim(0.0, None)

    def betas(ax: Axes) -> None:
        means, errors = np.array(list(m.by_beta.values())).T
        ax.errorbar(list(m.by_beta), means, errors, fmt="o", color=OKABE_ITO[0], ms=4, lw=1.2, capsize=2)
        ax.set(xlabel="beta", ylabel="number of clusters at t = 15", ylim=(0.0, None), xticks=list(m.by_beta))

    return figure_of_run(m.p.ts, {"": m.runs.xs[0]}, TIMES, (clusters, distance, betas))


def film(m: Results) -> Film:
    """The film ends with the snapshots, because tokens hardly move later."""
    return Film(m.p.ts[: m.early + 1], m.runs.xs[0, : m.early + 1])


FIGURE = figure(
    __name__,
    claims=(several, metastable, granularity, second_token(), first_token_rests),
    on=lambda m: particles(tokens=m.p.n, d=m.p.d, beta=m.p.beta, t=(EARLY, m.p.end), starts=m.starts),
    recorded=lambda m: {"value": "identity", "query_key": "identity", "mask": "causal", "starts": m.starts,
                        "times": list(TIMES), "other_betas": list(OTHER_BETAS)},
)  # fmt: skip
