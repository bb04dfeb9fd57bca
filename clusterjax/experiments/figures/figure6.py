"""Figure 6 of Peat: tokens on the sphere at beta = 9 under V = -I, under a V with a gap, and under a complex pair.

The net circulation of a run is the sum over steps of |sum_i x_i cross dx_i| over the sum over steps of sum_i |dx_i|. It
is 1 for a rigid rotation of tokens on their equator and of order n^(-1/2) for n independent tokens, so that it
distinguishes a swirl from mere motion. The mean distance to the nearest token grows where tokens spread and falls where
they gather.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.figure import Claim, Film, Found, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.ensemble import (
    MOST_TOKENS,
    Ensemble,
    Series,
    at,
    draw_starts,
    falls,
    first_token,
    mean_and_error,
    run_ensemble,
    second_token,
    with_errors,
)
from ..shared.exact import pair_error
from ..shared.layout import figure_of_run
from ..shared.sources import particles, peat


D = 3
PLAIN, GAPPED, TURNING = "V = -I", "V = diag(-1, -10, -10)", "V: -1 ± i, -4"
VALUES = {
    PLAIN: -np.eye(3),
    GAPPED: np.diag([-1.0, -10.0, -10.0]),
    TURNING: np.array([[-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, -4.0]]),
}
COLOURS = dict(zip(VALUES, (OKABE_ITO[0], OKABE_ITO[2], OKABE_ITO[1]), strict=True))
PAPER = peat("Figure 6", size={"tokens": 64, "d": 3, "beta": 9})


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    beta: float = parameter(9.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    end: float = parameter(15.0, "the end of the run", least=3, most=30)

    @property
    def times(self) -> tuple[float, ...]:
        """The times of the snapshots; circulation is measured from the second on."""
        return 0.0, self.end / 10, self.end / 3, self.end

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return np.linspace(0.0, self.end, 61)


class Results(NamedTuple):
    p: Parameters
    seed: int
    starts: int
    runs: dict[str, Ensemble]  # the runs by the name of V
    nearest: dict[str, Series]  # the mean distance of a token to the nearest other token, (times,), by the name of V
    turning: dict[str, Series]  # the net circulation, by the name of V
    band: Series  # the mean square distance from the plane of the complex pair at the end, and its standard error
    defect: float  # the largest angle between token 2 and the formula for two tokens, V = -I, in radians

    @property
    def off(self) -> float:
        """The largest error of the first token, over all V."""
        return max(run.off for run in self.runs.values())


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    x0, runs = draw_starts(settings.seed, settings.starts, p.n, D), {}
    for name, value in VALUES.items():
        say(f"simulating {name}")
        runs[name] = run_ensemble(x0, p.ts, beta=p.beta, value=value, radius=p.radius)
    say("measuring")
    near = {name: mean_and_error(nearest(run.xs)) for name, run in runs.items()}
    # The first tenth is omitted, because tokens move there from their random start with any V.
    late = p.ts >= p.times[1]
    turning = {name: mean_and_error(circulation(run.xs[:, late])) for name, run in runs.items()}
    # The complex pair belongs to the plane of the first two coordinates.
    band = mean_and_error(np.square(runs[TURNING].xs[:, -1, :, 2]).mean(-1))
    defect = pair_error(p.ts, runs[PLAIN].xs, p.beta, -1.0)
    return Results(p, settings.seed, settings.starts, runs, near, turning, band, defect)


def nearest(xs: np.ndarray) -> np.ndarray:
    """The mean over tokens of the distance to the nearest other token, (starts, times)."""
    out, own = np.empty(xs.shape[:2]), np.arange(xs.shape[2])
    # The starts are done one after another, because the cosines of all pairs would not fit into memory.
    for i, run in enumerate(xs):
        cosines = np.einsum("tid,tjd->tij", run, run)
        cosines[:, own, own] = -1.0  # a token is not its own neighbour
        # Rounding errors may give a cosine above 1.
        out[i] = np.sqrt(np.maximum(0.0, 2.0 - 2.0 * cosines.max(-1))).mean(-1)
    return out


def circulation(xs: np.ndarray) -> np.ndarray:
    """The net circulation over the saved times, (starts,)."""
    step = np.diff(xs, axis=1)
    moment = np.cross(xs[:, :-1], step).mean(2)
    return np.linalg.norm(moment, axis=-1).sum(1) / np.linalg.norm(step, axis=-1).mean(2).sum(1)


@claim("fewer clusters at t = {p.end:g} than at t = 0, by more than four standard errors", source=PAPER)
def denser(m: Results) -> Found:
    """With V = -I the tokens form clusters that grow denser, so that the number of clusters falls."""
    count, near, end = m.runs[PLAIN].count, m.nearest[PLAIN], f"t = {m.p.end:g}"
    return Found(
        f"there are {at(count, 0)} clusters of {m.p.n} tokens at t = 0, {at(count, -1)} at {end}; the mean distance to "
        f"the nearest token is {at(near, 0, 3)} at t = 0, {at(near, -1, 3)} at {end}",
        falls(count), count[0][-1], count[1][-1],
    )  # fmt: skip


@claim("grows by more than four standard errors")
def spreads(m: Results) -> Found:
    """With V = -I the tokens spread: the mean distance to the nearest token grows."""
    near = mean, error = m.nearest[PLAIN]
    measured = f"{at(near, 0, 3)} at t = 0, {at(near, -1, 3)} at t = {m.p.end:g}"
    return Found(measured, falls((-mean, error)), mean[-1], error[-1])


@claim("fewer at t = {p.end:g} than half of those at t = 0")
def dense_groups(m: Results) -> Found:
    """With V = diag(-1, -10, -10), whose top eigenvalue is far above the others, dense groups form: the number of
    clusters falls to less than half."""
    count = mean, error = m.runs[GAPPED].count
    measured = f"clusters: {at(count, 0)} at t = 0, {at(count, -1)} at t = {m.p.end:g}"
    return Found(measured, mean[-1] < mean[0] / 2, mean[-1], error[-1])


@claim("above 0.5", source=PAPER)
def swirls(m: Results) -> Found:
    """With V = -I the tokens swirl around a geodesic."""
    swirl, error = m.turning[PLAIN]
    return Found(
        f"the net circulation |mean x cross dx| / mean |dx| from t = {m.p.times[1]:g} to {m.p.end:g} is "
        f"{plus_minus(swirl, error, 3)}; it is 1 for a rigid rotation of tokens on their equator and of the order of "
        f"{1 / np.sqrt(m.p.n):.3f} for {m.p.n} independent tokens",
        swirl > 0.5, swirl, error,
    )  # fmt: skip


@claim("circulation above 0.9, and distance below 0.1")
def turns(m: Results) -> Found:
    """With V of eigenvalues -1 ± i and -4 the tokens swirl around a geodesic, in the plane of the complex pair."""
    (turning, error), (band, band_error) = m.turning[TURNING], m.band
    return Found(
        f"the net circulation is {plus_minus(turning, error, 3)}; the mean square distance from the plane of the pair "
        f"is {plus_minus(band, band_error, 3)} at t = {m.p.end:g}, and 0.333 for uniform tokens",
        turning > 0.9 and band < 0.1, turning, error,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Snapshots: the tokens of one start (seed {m.seed}) on the sphere, with Q = K = I and beta = {m.p.beta:g}, "
        f"under V = -I (above) and under V with the eigenvalues -1 ± i and -4 (below). Panels, over {m.starts} starts "
        "with standard errors: (a) the mean distance to the nearest token; (b) the number of clusters. The paper sees "
        "clusters that separate, grow denser and swirl. Dense groups need a V whose other eigenvalues lie far below "
        "the top eigenvalue, and a swirl a complex pair as top eigenvalues."
        + f" beta = {m.p.beta:g} is a low temperature."
        * (m.p.beta > 1)
    )


def series(m: Results) -> dict:
    names = {"clusters": PLAIN, "clusters_gapped": GAPPED, "clusters_turning": TURNING}
    counts = {key: m.runs[name].count for key, name in names.items()}
    return {"t": m.p.ts} | with_errors(nearest=m.nearest[PLAIN], **counts)


def draw(m: Results) -> Figure:

    def near(ax: Axes) -> None:
        for name, values in m.nearest.items():
            time_series(m.p.ts, *values, ax, label=name, colour=COLOURS[name], ylabel="distance to the nearest token")
        ax.set_ylim(0.0, None)

    def clusters(ax: Axes) -> None:
        for name, run in m.runs.items():
            time_series(m.p.ts, *run.count, ax, label=name, colour=COLOURS[name], ylabel="number of clusters")
        ax.set_ylim(0.0, m.p.n + 1)

    rows = {name: m.runs[name].xs[0] for name in (PLAIN, TURNING)}
    return figure_of_run(m.p.ts, rows, m.p.times, (near, clusters))


FIGURE = figure(
    __name__,
    claims=(denser, spreads, dense_groups, swirls, turns, second_token("With V = -I"), first_token),
    film=lambda m: Film(m.p.ts, m.runs[PLAIN].xs[0]),
    on=lambda m: particles(tokens=m.p.n, d=D, beta=m.p.beta, t=m.p.end, starts=m.starts),
    recorded=lambda m: {"d": D, "value": {name: value.tolist() for name, value in VALUES.items()},
                        "query_key": "identity", "mask": "causal", "starts": m.starts, "times": list(m.p.times)},
)  # fmt: skip
