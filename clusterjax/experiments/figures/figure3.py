"""What figure 3 measures: runs under V = I, with random Q and K and with the identity.

Under V = I the first token of a causal model stays where it is and, whatever Q and K are, all others come to it in the
end (Karagodin et al., 2411.04990, Theorem 4.1). Token 2 sees itself and token 1 alone: near its end both weights are
1/2, so that its distance falls like e^(-t/2). With Q = K = I its angle has a closed formula
(`framework.exact.pair_time`), against which every run is checked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import jax.random as jr
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
    within,
)
from ..framework.figure import declared
from ..shared.ensemble import (
    MOST_TOKENS,
    Ensemble,
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


SETTLED = 0.02  # beta times the distance of token 2, below which its rate is that of its end
_SALT = 1_000_003  # of the keys for Q and K, beside those of the starts


@dataclass(frozen=True)
class Parameters:
    """What of figure 3 can be set."""

    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    d: int = parameter(3, "the dimension, that of a picture", least=2, most=3)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    end: float = parameter(12.0, "the time at which clusters are counted", least=1, most=100)

    @property
    def times(self) -> tuple[float, ...]:
        """Those of the snapshots."""
        return self.end / 4, self.end / 2, self.end

    @property
    def ts(self) -> np.ndarray:
        """The save times; the run goes on for a quarter, so that rates at the end are seen."""
        return np.linspace(0.0, 1.25 * self.end, 61)

    def place(self, t: float) -> int:
        """The number of the save time next to `t`."""
        return int(np.argmin(np.abs(self.ts - t)))


@dataclass(frozen=True, eq=False)
class Kind:
    """The runs of one kind of Q and K.

    **Attributes:**

    - `xs`: (starts, times, n, d), the tokens.
    - `clusters`: (starts, times), how many there are.
    - `distance`: (starts, times), the mean distance to the first token.
    - `moved`: How far the first token is from where it was, at most.
    """

    xs: np.ndarray
    clusters: np.ndarray
    distance: np.ndarray
    moved: float

    def single(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """The share of starts that are one cluster at a save time, and its standard error."""
        return mean_and_error(self.clusters[:, place] == 1)

    @property
    def count(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean number of clusters over the starts, (times,), and its standard error."""
        return mean_and_error(self.clusters)


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 3 shows.

    **Attributes:**

    - `random`, `plain`: With random Q and K, and with Q = K = I.
    - `rate`: The median rate at which token 2 comes to token 1 at the end, with random Q and K; None before it has
        nearly come there.
    - `defect`: How far token 2 is from the formula for two tokens, Q = K = I, in radians.
    """

    p: Parameters
    seed: int
    starts: int
    random: Kind
    plain: Kind
    rate: float | None
    defect: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate both kinds from the same starts, and measure."""
    say("simulating")
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    shape = (2, settings.starts, p.d, p.d)
    # Entries of variance 1 / d, so that Qx has the length of x on average; Q and K of a start are draws of its own.
    query, key = jr.normal(jr.fold_in(jr.key(settings.seed), _SALT), shape) / np.sqrt(p.d)
    # B = Q^T K of each start.
    random = run_ensemble(x0, p.ts, beta=p.beta, query_key=jnp.einsum("ski,skj->sij", query, key))
    say("simulating Q = K = I")
    plain = run_ensemble(x0, p.ts, beta=p.beta)
    say("measuring")
    kinds = _kind(random, p), _kind(plain, p)
    rate = rate_of_second_token(p, kinds[0].xs)
    return Results(p, settings.seed, settings.starts, *kinds, rate, pair_error(p.ts, kinds[1].xs, p.beta, 1.0))


def _kind(runs: Ensemble, p: Parameters) -> Kind:
    xs = np.asarray(runs.xs)
    moved = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
    return Kind(xs, np.asarray(count_clusters(runs.xs, jnp.asarray(p.radius))), distance_to_first(runs), moved)


def rate_of_second_token(p: Parameters, xs: np.ndarray) -> float | None:
    """The median over the starts of the slope of -log |x_2 - x_1| over the last fifth of the run.

    The rate is 1/2 only in the limit of a small angle; None where most starts are not near that limit yet, or are
    within rounding of it.
    """
    late = slice(4 * (len(p.ts) - 1) // 5, None)
    apart = np.linalg.norm(xs[:, late, 1] - xs[:, late, 0], axis=-1)
    # With a small beta |x_2 - x_1| the two weights are 1/2 up to that; below 1e-6 the difference of two vectors has
    # lost its digits.
    if p.beta * np.median(apart[:, 0]) > SETTLED or apart.min() < 1e-6:
        return None
    # polyfit takes many columns at once: times in rows, starts in columns.
    return float(-np.median(np.polyfit(p.ts[late], np.log(apart).T, 1)[0]))


# What figure 3 claims: one cluster, at the first token, at the rate of theory.


SIZE = {"tokens": 64, "d": 3, "beta": 1, "t": 12}  # of the paper
# The paper's own scheme (Q = K = I, Euler steps of 0.1) over 128 starts: t, the mean of <x_k, x_1>, its standard error.
OWN_SCHEME = ((6.0, 0.5956, 0.035), (15.0, 0.9637, 0.015))


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(
        f"{m.starts} starts",
        (
            _single(m, m.random, "With V = I, random Q and K and beta = {beta:g}", "Figure 3", listed=True),
            _first(m),
            *_rate(m),
            _single(m, m.plain, "With Q = K = I, as the paper's text has it,", "Section 4.2.1"),
            *_own_scheme(m),
            second_token_claim(m.defect, "With Q = K = I"),
        ),
    )


def _single(m: Results, kind: Kind, lead: str, place: str, *, listed: bool = False) -> Claim:
    """That all tokens are one cluster in the end; with the counts until then if they are to be listed."""
    single, error = kind.single(m.p.place(m.p.end))
    count, of_count = kind.count
    # Counts are taken at save times, which these are.
    at = [m.p.place(t) for t in m.p.times]
    counted = ", ".join(f"{plus_minus(count[i], of_count[i])} at t = {m.p.ts[i]:g}" for i in at)
    return Claim(
        says=f"{lead.format(beta=m.p.beta)} all tokens are in a single cluster by t = {m.p.end:g}.",
        measured=f"{percent(single, error)} of the starts are one cluster at t = {m.p.end:g}"
        + (f"; clusters: {counted}" if listed else ""),
        criterion=f"more than half of the starts are a single cluster at t = {m.p.end:g}",
        holds=bool(single > 0.5),
        kind="paper",
        value=float(single),
        error=float(error),
        source=peat(place, size=SIZE),
    )


def _first(m: Results) -> Claim:
    """That the first token stays. That the others come to it is a theorem on the limit of large times: it is
    tested at the parameters of the paper, where the run is long enough to show it."""
    distance, error = mean_and_error(m.random.distance)
    start, end = m.p.place(m.p.times[0]), m.p.place(m.p.end)
    # The first is tested on every run, the second where the run is long enough.
    stays, falls = m.random.moved < 1e-9, bool(distance[end] < distance[start])
    asked = m.p == Parameters()
    subject = "The cluster forms at the first token, which does not move" if asked else "The first token does not move"
    return Claim(
        says=f"{subject} (2411.04990, Theorem 4.1).",
        measured=f"the first token moved by {m.random.moved:.1e} at most; mean distance to it "
        f"{plus_minus(distance[start], error[start])} at t = {m.p.times[0]:g}, {plus_minus(distance[end], error[end])} "
        f"at t = {m.p.end:g}",
        criterion="moved by less than 1e-9" + ", and the mean distance falls" * asked,
        holds=stays and (falls or not asked),
        kind="identity",
        value=m.random.moved,
    )


def _rate(m: Results) -> tuple[Claim, ...]:
    if m.rate is None:
        return ()
    return (
        Claim(
            says="The second token approaches the first at the rate 1/2 exactly, whatever Q, K and beta.",
            measured=f"median rate over t = {m.p.end:g} to {m.p.ts[-1]:g}: {m.rate:.5f}",
            criterion="0.5 to within 0.005",
            holds=within(m.rate, 0.5, 0.005),
            kind="identity",
            value=m.rate,
        ),
    )


def _own_scheme(m: Results) -> tuple[Claim, ...]:
    """Against runs of the paper's scheme, which were made at the paper's parameters alone."""
    # OWN_SCHEME was computed once, for these parameters.
    if (m.p.n, m.p.d, m.p.beta, m.p.end) != (64, 3, 1.0, 12.0):
        return ()
    xs = m.plain.xs
    # The mean over tokens of each start first: tokens of a start are not independent.
    cosine, error = mean_and_error(np.einsum("stnd,std->stn", xs, xs[:, :, 0]).mean(-1))
    at = [m.p.place(t) for t, _, _ in OWN_SCHEME]
    off = [
        # Both numbers are means over starts and have errors.
        abs(cosine[i] - value) / np.hypot(error[i], sigma)
        for i, (_, value, sigma) in zip(at, OWN_SCHEME, strict=True)
    ]
    printed = " and ".join(f"{plus_minus(value, sigma, 3)} at t = {t:g}" for t, value, sigma in OWN_SCHEME)
    return (
        Claim(
            says=f"With Q = K = I the mean of <x_k, x_1> is what the paper's own scheme gives: {printed}.",
            measured=", ".join(f"{plus_minus(cosine[i], error[i], 3)} at t = {m.p.ts[i]:g}" for i in at),
            criterion="within four standard errors of the difference",
            holds=bool(max(off) < 4.0),
            kind="finding",
            value=float(cosine[at[0]]),
            error=float(error[at[0]]),
        ),
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    last, times = m.p.place(m.p.end), m.p.times
    return (
        f"Tokens of one start (seed {m.seed}) at t = {times[0]:g}, {times[1]:g} and {times[2]:g}, and the number of "
        f"clusters (single linkage at radius {m.p.radius:g}) and the mean distance to the first token over {m.starts} "
        "starts, each with its own Gaussian Q and K, with standard errors. The paper's single cluster is there by t = "
        f"{m.p.end:g} in {100 * m.random.single(last)[0]:.0f} % of the starts; the rest are still gathering. It forms "
        "where the first token is, which stays put. The paper states Q = K = I in its text and random Q, K in its "
        f"caption: the picture has random ones, of variance 1/d; with the identity {100 * m.plain.single(last)[0]:.0f} "
        f"% of the starts are one cluster at t = {m.p.end:g}."
    )


# The picture of figure 3: one start, and clusters and distances over all.


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    ts = m.p.ts

    def clusters(ax: Axes) -> None:
        time_series(
            ts, *m.random.count, ax, ylabel="number of clusters", colour=OKABE_ITO[0], label="random Q, K"
        )  # fmt: skip
        time_series(ts, *m.plain.count, ax, colour=OKABE_ITO[1], label="Q = K = I", linestyle="--")
        ax.set_yscale("log")
        ax.axhline(1.0, color="0.5", lw=0.8, ls="--")

    def distance(ax: Axes) -> None:
        label, axis = "all tokens, mean", "distance to the first token"
        time_series(ts, *mean_and_error(m.random.distance), ax, ylabel=axis, colour=OKABE_ITO[2], label=label)
        xs = m.random.xs
        # The median, as a few starts are late by many units of time and would make the mean.
        second = np.median(np.linalg.norm(xs[:, :, 1] - xs[:, :, 0], axis=-1), axis=0)
        time_series(ts, second, None, ax, label="token 2, median", colour=OKABE_ITO[3])
        # Through the last point: the law holds at the end.
        ax.plot(ts, second[-1] * np.exp((ts[-1] - ts) / 2), color="0.2", ls=":", lw=1.0, label=r"$\propto e^{-t/2}$")
        ax.set_yscale("log")
        ax.legend(loc="lower left")

    return figure_of_run(ts, {"": m.random.xs[0]}, m.p.times, (clusters, distance))


# Figure 3 as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": p.n, "d": p.d, "beta": p.beta, "value": "identity", "query_key": "Gaussian Q and K, variance 1/d",
         "mask": "causal", "radius": p.radius, "starts": m.starts, "times": list(p.times)},
        _series(m),
        partial(draw, m),
        Film(p.ts, m.random.xs[0]),
        on=particles(tokens=p.n, d=p.d, beta=p.beta, t=p.times, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    (count, error), (plain, of_plain) = m.random.count, m.plain.count
    distance, of_distance = mean_and_error(m.random.distance)
    return {
        "t": m.p.ts, "clusters": count, "clusters_error": error, "distance_to_first": distance,
        "distance_to_first_error": of_distance, "clusters_identity": plain, "clusters_identity_error": of_plain,
    }  # fmt: skip


FIGURE = declared("figure3", _run, parameters=Parameters)
