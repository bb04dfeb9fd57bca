"""What figure 4 measures: runs under Q = K = V = I at one beta for long, and at other betas to t = 15."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.experiment import (
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
    mean_and_error,
    run_ensemble,
    second_token_claim,
)
from ..shared.exact import pair_error
from ..shared.layout import figure_of_run
from ..shared.sources import particles, peat


TIMES = (3.0, 6.0, 12.0, 15.0)  # of the snapshots
EARLY = TIMES[-1]
OTHER_BETAS = (1.0, 4.0, 16.0)


@dataclass(frozen=True)
class Parameters:
    """What of figure 4 can be set."""

    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    d: int = parameter(3, "the dimension, that of a picture", least=2, most=3)
    beta: float = parameter(9.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    end: float = parameter(1000.0, "the end of the run", quick=100.0, least=30, most=10_000)

    @property
    def ts(self) -> np.ndarray:
        """The save times: evenly to 15, then ever more rarely."""
        # The same number of times whatever `end` is, so that one compiled program serves.
        return np.concatenate([np.linspace(0.0, EARLY, 31), np.geomspace(20.0, self.end, 30)])

    def place(self, t: float) -> int:
        """The number of the save time next to `t`."""
        return int(np.argmin(np.abs(self.ts - t)))


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 4 shows.

    **Attributes:**

    - `xs`: (starts, times, n, d), the tokens.
    - `clusters`: (starts, times), how many there are.
    - `distance`: (starts, times), the mean distance to the first token.
    - `by_beta`: The mean number of clusters at t = 15 and its standard error, by beta in rising order.
    - `moved`: How far the first token is from where it was, at most.
    - `defect`: How far token 2 is from the formula for two tokens, in radians.
    """

    p: Parameters
    seed: int
    starts: int
    xs: np.ndarray
    clusters: np.ndarray
    distance: np.ndarray
    by_beta: dict[float, tuple[np.ndarray, np.ndarray]]
    moved: float
    defect: float

    @property
    def count(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean number of clusters over the starts, (times,), and its standard error."""
        return mean_and_error(self.clusters)


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate every beta from the same starts, and measure."""
    ts, radius = p.ts, jnp.asarray(p.radius)
    say(f"simulating to t = {p.end:g}")
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    runs = run_ensemble(x0, ts, beta=p.beta)
    say(f"simulating other betas to t = {EARLY:g}")
    # As many save times as the long run has, so that one compiled program serves all.
    others = {beta: run_ensemble(x0, np.linspace(0.0, EARLY, len(ts)), beta=beta).xs for beta in OTHER_BETAS}
    say("measuring")
    xs, clusters = np.asarray(runs.xs), np.asarray(count_clusters(runs.xs, radius))
    by_beta = {beta: mean_and_error(count_clusters(run, radius)[:, -1]) for beta, run in others.items()}
    # The long run has its own beta, and was saved at t = 15.
    by_beta |= {p.beta: mean_and_error(clusters[:, p.place(EARLY)])}
    # With V = I exp(Vt) only stretches, so that the exact first token is where it started.
    moved = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
    return Results(
        p, settings.seed, settings.starts, xs, clusters, distance_to_first(runs), dict(sorted(by_beta.items())), moved,
        pair_error(ts, xs, p.beta, 1.0),
    )  # fmt: skip


# What figure 4 claims: several clusters last, for a while; the more, the larger beta is.


SIZE = {"tokens": 64, "d": 3}  # of the paper


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(
        f"{m.starts} starts", (_several(m), _metastable(m), _granularity(m), second_token_claim(m.defect), _first(m))
    )


def _several(m: Results) -> Claim:
    (count, error), early = m.count, m.p.place(EARLY)
    # A share of starts is a mean of zeros and ones.
    several, of_several = mean_and_error(m.clusters[:, early] > 1)
    at = {t: m.p.place(t) for t in (*TIMES, m.p.end)}
    counted = ", ".join(f"{plus_minus(count[i], error[i])} at t = {t:g}" for t, i in at.items())
    return Claim(
        says=f"At beta = {m.p.beta:g} distinct clusters persist and do not collapse to a single point.",
        measured=f"{percent(several, of_several)} of the starts have several clusters at t = 15; clusters: {counted}",
        criterion="more than 95 % of the starts have several clusters at t = 15",
        holds=bool(several > 0.95),
        kind="paper",
        value=float(count[early]),
        error=float(error[early]),
        source=peat("Figure 4", size=SIZE | {"beta": 9}, least={"t": 15}),
    )


def _metastable(m: Results) -> Claim:
    (count, error), early = m.count, m.p.place(EARLY)
    still = float((m.clusters[:, -1] > 1).mean())
    return Claim(
        says="The state at t = 15 is not final: the mean number of clusters goes on falling.",
        measured=f"from t = 15 to {m.p.end:g} the count falls from {plus_minus(count[early], error[early])} to "
        f"{plus_minus(count[-1], error[-1])}; {100 * still:.0f} % of the starts still have several",
        criterion="the mean count falls after t = 15 by more than four standard errors",
        # The same starts at both times: taken as independent the error is too large rather than too small.
        holds=bool(count[early] - count[-1] > 4 * np.hypot(error[-1], error[early])),
        kind="finding",
        value=float(count[-1]),
        error=float(error[-1]),
    )


def _granularity(m: Results) -> Claim:
    levels = [float(mean) for mean, _ in m.by_beta.values()]
    listed = ", ".join(f"{plus_minus(*pair)} at beta = {beta:g}" for beta, pair in m.by_beta.items())
    return Claim(
        says="beta controls the granularity: the larger, the more clusters at t = 15.",
        measured=f"clusters at t = 15: {listed}",
        criterion="increases from each beta to the next",
        holds=bool(np.all(np.diff(levels) > 0)),
        kind="paper",
        value=levels[-1],
        error=float(list(m.by_beta.values())[-1][1]),
        source=peat("Section 4.2.2", size=SIZE),
        on=particles(tokens=m.p.n, d=m.p.d, beta=tuple(m.by_beta), t=EARLY, starts=m.starts),
    )


def _first(m: Results) -> Claim:
    return Claim(
        says="With V = I the first token does not move (2411.04990).",
        measured=f"moved by {m.moved:.1e} at most",
        criterion="less than 1e-9",
        holds=m.moved < 1e-9,
        kind="identity",
        value=m.moved,
    )


def caption_of(m: Results, several: Claim) -> str:
    """What is seen, and what holds; `several` is the claim that clusters persist."""
    persist = "Several clusters persist at t = 15, as the paper says, but not for ever: the count falls to"
    gather = "Few starts have several clusters at t = 15; the count comes to"
    return (
        f"Tokens of one start (seed {m.seed}) under Q = K = V = I and inverse temperature beta = {m.p.beta:g}, and the "
        f"number of clusters (single linkage at radius {m.p.radius:g}) over {m.starts} starts with standard errors. "
        f"{persist if several.holds else gather} {m.count[0][-1]:.1f} by t = {m.p.end:g}, and theory sends almost "
        "every start to one cluster, at the first token, in a time exponential in beta. A large beta is a LOW "
        "temperature; the paper calls it high, and its threshold beta >= sqrt(d) = sqrt(64) takes the number of tokens "
        f"for the dimension, which is {m.p.d} here."
    )


# The picture of figure 4: one start; clusters and distances against time, and clusters against beta.


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    ts = m.p.ts

    def clusters(ax: Axes) -> None:
        time_series(ts, *m.count, ax, ylabel="number of clusters", colour=OKABE_ITO[0])
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_yscale("log")
        # One cluster: what theory sends all starts to in the end.
        ax.axhline(1.0, color="0.5", lw=0.8, ls="--")
        # The last time of the snapshots above.
        ax.axvline(EARLY, color="0.5", lw=0.8, ls=":")

    def distance(ax: Axes) -> None:
        label = "mean distance to the first token"
        time_series(ts, *mean_and_error(m.distance), ax, ylabel=label, colour=OKABE_ITO[2])
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_ylim(0.0, None)

    def betas(ax: Axes) -> None:
        # (betas, 2): mean and error at t = 15.
        means, errors = np.array(list(m.by_beta.values())).T
        ax.errorbar(list(m.by_beta), means, errors, fmt="o", color=OKABE_ITO[0], ms=4, lw=1.2, capsize=2)
        ax.set(xlabel="beta", ylabel="number of clusters at t = 15", ylim=(0.0, None), xticks=list(m.by_beta))

    return figure_of_run(ts, {"": m.xs[0]}, TIMES, (clusters, distance, betas))


# Figure 4 as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    # The film ends with the snapshots: later hardly anything moves.
    claims, early = claims_of(m), p.place(EARLY) + 1
    return Outcome(
        caption_of(m, claims[0]),
        claims,
        {"n": p.n, "d": p.d, "beta": p.beta, "value": "identity", "query_key": "identity", "mask": "causal",
         "radius": p.radius, "starts": m.starts, "times": list(TIMES), "end": p.end, "other_betas": list(OTHER_BETAS)},
        _series(m),
        partial(draw, m),
        Film(p.ts[:early], m.xs[0, :early]),
        on=particles(tokens=p.n, d=p.d, beta=p.beta, t=(EARLY, p.end), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    (count, error), (distance, of_distance) = m.count, mean_and_error(m.distance)
    by_beta = [[beta, float(mean), float(error)] for beta, (mean, error) in m.by_beta.items()]
    return {
        "t": m.p.ts, "clusters": count, "clusters_error": error, "distance_to_first": distance,
        "distance_to_first_error": of_distance, "clusters_at_15_by_beta": by_beta,
    }  # fmt: skip


FIGURE = declared("figure4", _run, parameters=Parameters)
