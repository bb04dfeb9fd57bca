"""Figure 3 of Peat: under V = I all tokens gather in a single cluster, with random Q and K and with Q = K = I.

Under V = I the first token of a causal model does not move and, whatever Q and K are, all other tokens converge to it
(Karagodin et al., 2411.04990, Theorem 4.1). Token 2 attends to itself and to token 1 only. Near token 1 both weights
are 1/2, so that its distance decreases like e^(-t/2). With Q = K = I its angle has a closed formula
(`exact.pair_time`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.figure import Claim, Film, Found, Say, Settings, claim, figure, parameter, percent, plus_minus, within
from ..shared.ensemble import MOST_TOKENS, Ensemble, Series, at, draw_starts, mean_and_error, run_ensemble, second_token
from ..shared.exact import pair_error
from ..shared.layout import figure_of_run
from ..shared.sources import particles, peat


SETTLED = 0.02  # beta times the distance of token 2, below which its rate is close to the limit
SALT = 1_000_003  # separates the keys of Q and K from the keys of the starts
SIZE = {"tokens": 64, "d": 3, "beta": 1, "t": 12}  # of the paper
# The scheme of the paper (Q = K = I, Euler steps of 0.1) over 128 starts: t, the mean of <x_k, x_1>, its standard
# error.
OWN_SCHEME = ((6.0, 0.5956, 0.035), (15.0, 0.9637, 0.015))


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    d: int = parameter(3, "the dimension, 2 or 3 so that a picture can show it", least=2, most=3)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    end: float = parameter(12.0, "the time at which clusters are counted", least=1, most=100)

    @property
    def times(self) -> tuple[float, ...]:
        return self.end / 4, self.end / 2, self.end

    @property
    def ts(self) -> np.ndarray:
        """The save times. The run goes beyond `end` by a quarter, in which the rate of token 2 is measured."""
        return np.linspace(0.0, 1.25 * self.end, 61)


class Results(NamedTuple):
    p: Parameters
    seed: int
    starts: int
    # `random`, `plain`: the runs with random Q and K, and with Q = K = I
    random: Ensemble
    plain: Ensemble
    # The median rate at which token 2 approaches token 1 at the end, with random Q and K; None if most tokens 2 are not
    # yet near their limit.
    rate: float | None
    defect: float  # the largest angle between token 2 and the formula for two tokens, Q = K = I, in radians


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    say("simulating random Q and K")
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    shape = (2, settings.starts, p.d, p.d)
    # Entries of variance 1/d keep the norm of x on average. Each start has its own Q and K.
    query, key = jr.normal(jr.fold_in(jr.key(settings.seed), SALT), shape) / np.sqrt(p.d)
    form = jnp.einsum("ski,skj->sij", query, key)
    random = run_ensemble(x0, p.ts, beta=p.beta, query_key=form, radius=p.radius)
    say("simulating Q = K = I")
    plain = run_ensemble(x0, p.ts, beta=p.beta, radius=p.radius)
    defect = pair_error(p.ts, plain.xs, p.beta, 1.0)
    return Results(p, settings.seed, settings.starts, random, plain, rate_of_second_token(p, random.xs), defect)


def rate_of_second_token(p: Parameters, xs: np.ndarray) -> float | None:
    """The median over the starts of the slope of -log |x_2 - x_1| over the last fifth of the run."""
    late = slice(4 * (len(p.ts) - 1) // 5, None)
    distance = np.linalg.norm(xs[:, late, 1] - xs[:, late, 0], axis=-1)
    # Both weights of token 2 are 1/2 up to beta |x_2 - x_1|. Below 1e-6 the difference of two vectors has lost its
    # digits.
    if p.beta * np.median(distance[:, 0]) > SETTLED or distance.min() < 1e-6:
        return None
    return float(-np.median(np.polyfit(p.ts[late], np.log(distance).T, 1)[0]))


def listed(m: Results, series: Series, times: Iterable[float], digits: int = 2) -> str:
    """The entries of a series at these times, as text."""
    return ", ".join(f"{at(series, m.plain.index(t), digits)} at t = {t:g}" for t in times)


HALF = "more than half of the starts are a single cluster at t = {p.end:g}"


@claim(HALF, source=peat("Figure 3", size=SIZE))
def single_with_random(m: Results) -> Found:
    """With V = I, random Q, K and beta = {p.beta:g} the tokens of most starts are in a single cluster by t =
    {p.end:g}."""
    return single_cluster(m, m.random, f"; clusters: {listed(m, m.random.count, m.p.times)}")


@claim("moved by less than 1e-9, and the mean distance falls", kind="identity")
def first_token_rests(m: Results) -> Found:
    """The first token does not move, and the other tokens come closer to it (2411.04990, Theorem 4.1)."""
    # With V = I the exact first token does not move.
    moved, distance, (first, _, last) = m.random.off, m.random.distance, m.p.times
    measured = (
        f"the first token moved by at most {moved:.1e}; the mean distance to it is {listed(m, distance, (first, last))}"
    )
    if m.p == Parameters():
        closer = distance[0][m.random.index(last)] < distance[0][m.random.index(first)]
        return Found(measured, moved < 1e-9 and closer, moved)
    # Convergence to the first token is a limit, which a run with other parameters may be too short to show.
    says = "The first token does not move (2411.04990, Theorem 4.1)."
    return Found(measured, moved < 1e-9, moved, says=says, criterion="moved by less than 1e-9")


@claim("0.5 to within 0.005", kind="identity")
def rate_of_second(m: Results) -> Found | None:
    """In the end the second token approaches the first at the rate 1/2, whatever Q, K and beta are."""
    if m.rate is None:
        return None
    measured = f"the median rate over t = {m.p.end:g} to {m.p.ts[-1]:g} is {m.rate:.5f}"
    return Found(measured, within(m.rate, 0.5, 0.005), m.rate)


@claim(HALF, source=peat("Section 4.2.1", size=SIZE))
def single_with_identity(m: Results) -> Found:
    """With Q = K = I, as in the paper's text, the tokens of most starts are in a single cluster by t = {p.end:g}."""
    return single_cluster(m, m.plain)


def single_cluster(m: Results, runs: Ensemble, counts: str = "") -> Found:
    share, error = mean_and_error(runs.clusters[:, runs.index(m.p.end)] == 1)
    measured = f"{percent(share, error)} of the starts are a single cluster at t = {m.p.end:g}{counts}"
    return Found(measured, share > 0.5, share, error)


@claim(
    "within four standard errors of the difference",
    says="With Q = K = I the mean of <x_k, x_1> agrees with the scheme of the paper, which gives "
    + " and ".join(f"{plus_minus(mean, error, 3)} at t = {t:g}" for t, mean, error in OWN_SCHEME)
    + ".",
)
def own_scheme(m: Results) -> Found | None:
    p = m.p
    # The numbers of the scheme were computed for these parameters only.
    if (p.n, p.d, p.beta, p.end) != (64, 3, 1.0, 12.0):
        return None
    xs = m.plain.xs
    # The mean over the tokens of a start comes first, because tokens of one start are not independent.
    cosine, error = mean_and_error(np.einsum("stnd,std->stn", xs, xs[:, :, 0]).mean(-1))
    times, means, errors = np.array(OWN_SCHEME).T
    i = [m.plain.index(t) for t in times]
    off = np.abs(cosine[i] - means) / np.hypot(error[i], errors)
    return Found(listed(m, (cosine, error), times, 3), off.max() < 4.0, cosine[i[0]], error[i[0]])


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    p = m.p
    return (
        f"Snapshots: the tokens of one start (seed {m.seed}) at t = {', '.join(f'{t:g}' for t in p.times)}. Panels: "
        f"the number of clusters (single linkage at radius {p.radius:g}) and the mean distance to the first token over "
        f"{m.starts} starts, each with its own Gaussian Q and K of entries of variance 1/d, with standard errors. The "
        "cluster forms at the first token, which does not move. The paper states Q = K = I in its text, but "
        "random Q and K in the caption of the figure."
    )


def series(m: Results) -> dict:
    (count, error), (plain, plain_error), (distance, distance_error) = m.random.count, m.plain.count, m.random.distance
    return {
        "t": m.p.ts, "clusters": count, "clusters_error": error, "distance_to_first": distance,
        "distance_to_first_error": distance_error, "clusters_identity": plain, "clusters_identity_error": plain_error,
    }  # fmt: skip


def draw(m: Results) -> Figure:
    ts, xs = m.p.ts, m.random.xs

    def clusters(ax: Axes) -> None:
        label = "number of clusters"
        time_series(ts, *m.random.count, ax, ylabel=label, colour=OKABE_ITO[0], label="random Q, K")
        time_series(ts, *m.plain.count, ax, colour=OKABE_ITO[1], label="Q = K = I", linestyle="--")
        ax.set_yscale("log")
        ax.axhline(1.0, color="0.5", lw=0.8, ls="--")

    def distance(ax: Axes) -> None:
        label, axis = "all tokens, mean", "distance to the first token"
        time_series(ts, *m.random.distance, ax, ylabel=axis, colour=OKABE_ITO[2], label=label)
        # A few starts that are late by many units of time would dominate the mean.
        second = np.median(np.linalg.norm(xs[:, :, 1] - xs[:, :, 0], axis=-1), axis=0)
        time_series(ts, second, None, ax, label="token 2, median", colour=OKABE_ITO[3])
        # The line of the law passes through the last point, because the law holds in the limit.
        ax.plot(ts, second[-1] * np.exp((ts[-1] - ts) / 2), color="0.2", ls=":", lw=1.0, label=r"$\propto e^{-t/2}$")
        ax.set_yscale("log")
        ax.legend(loc="lower left")

    return figure_of_run(ts, {"": xs[0]}, m.p.times, (clusters, distance))


FIGURE = figure(
    __name__,
    claims=(
        single_with_random, first_token_rests, rate_of_second, single_with_identity, own_scheme,
        second_token("With Q = K = I"),
    ),
    film=lambda m: Film(m.p.ts, m.random.xs[0]),
    on=lambda m: particles(tokens=m.p.n, d=m.p.d, beta=m.p.beta, t=m.p.times, starts=m.starts),
    recorded=lambda m: {"value": "identity", "query_key": "Gaussian Q and K, variance 1/d", "mask": "causal",
                        "starts": m.starts, "times": list(m.p.times)},
)  # fmt: skip
