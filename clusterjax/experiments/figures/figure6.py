"""What figure 6 measures: tokens on the sphere under V = -I, under a V with a gap, and under a complex pair.

The net circulation of a run is |sum_i x_i cross dx_i| over sum_i |dx_i|, added up over steps: 1 for a rigid rotation of
tokens on their equator, n^(-1/2) for n tokens that move on their own. It tells a swirl from tokens that merely move.
The second measure is the mean distance to the nearest other token, which grows where tokens spread and falls where they
gather.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.experiment import Claim, Film, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..shared.ensemble import (
    MOST_TOKENS,
    count_clusters,
    draw_starts,
    exact_first_token,
    first_token_claim,
    mean_and_error,
    run_ensemble,
    second_token_claim,
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

Series = tuple[np.ndarray, np.ndarray]  # the mean over the starts, and its standard error


@dataclass(frozen=True)
class Parameters:
    """What of figure 6 can be set."""

    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    beta: float = parameter(9.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    end: float = parameter(15.0, "the end of the run", least=3, most=30)

    @property
    def times(self) -> tuple[float, ...]:
        """Those of the snapshots; the swirl is measured from the second on."""
        return 0.0, self.end / 10, self.end / 3, self.end

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return np.linspace(0.0, self.end, 61)


@dataclass(frozen=True, eq=False)
class Run:
    """The runs with one V.

    **Attributes:**

    - `xs`: (starts, times, n, 3), the tokens.
    - `nearest`: The mean distance of a token to the nearest other one, (times,).
    - `count`: The number of clusters, (times,).
    - `turning`: The net circulation.
    """

    xs: np.ndarray
    nearest: Series
    count: Series
    turning: Series


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 6 shows.

    **Attributes:**

    - `runs`: By the words for V.
    - `band`: The mean square distance from the plane of the complex pair at the end, and its standard error.
    - `off`: How far the first token is from where it must be, at most.
    - `defect`: How far token 2 is from the formula for two tokens, V = -I, in radians.
    """

    p: Parameters
    seed: int
    starts: int
    runs: dict[str, Run]
    band: Series
    off: float
    defect: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate each V from the same starts, and measure."""
    x0 = draw_starts(settings.seed, settings.starts, p.n, D)
    ensembles = {}
    for name, value in VALUES.items():
        say(f"simulating {name}")
        ensembles[name] = run_ensemble(x0, p.ts, beta=p.beta, value=value)
    say("measuring")
    runs, off = {}, 0.0
    for name, run in ensembles.items():
        xs = np.asarray(run.xs)
        count = mean_and_error(count_clusters(run.xs, jnp.asarray(p.radius)))
        # The first tenth is left out: tokens move there from their random start, swirl or not.
        late = p.ts >= p.times[1]
        runs[name] = Run(xs, mean_and_error(nearest(xs)), count, mean_and_error(circulation(xs[:, late])))
        off = max(off, float(np.abs(exact_first_token(run) - xs[:, :, 0]).max()))
    # The plane of the complex pair is that of the first two coordinates.
    band = mean_and_error(np.square(runs[TURNING].xs[:, -1, :, 2]).mean(-1))
    defect = pair_error(p.ts, runs[PLAIN].xs, p.beta, -1.0)
    return Results(p, settings.seed, settings.starts, runs, band, off, defect)


def nearest(xs: np.ndarray) -> np.ndarray:
    """The mean over tokens of the distance to the nearest other one, (starts, times)."""
    out, own = np.empty(xs.shape[:2]), np.arange(xs.shape[2])
    # One start at a time: the cosines of all pairs at all times of all starts would not fit.
    for i, run in enumerate(xs):
        cosines = np.einsum("tid,tjd->tij", run, run)
        # A token is not its own neighbour: below every other cosine.
        cosines[:, own, own] = -1.0
        # The chord of the largest cosine; rounding may take a cosine beyond 1.
        out[i] = np.sqrt(np.maximum(0.0, 2.0 - 2.0 * cosines.max(-1))).mean(-1)
    return out


def circulation(xs: np.ndarray) -> np.ndarray:
    """|sum_i x_i cross dx_i| / sum_i |dx_i|, added up over the saved times, (starts,)."""
    # Steps between save times stand for velocities.
    step = np.diff(xs, axis=1)
    # Angular momentum of the mean token, (starts, steps, 3).
    moment = np.cross(xs[:, :-1], step).mean(2)
    return np.linalg.norm(moment, axis=-1).sum(1) / np.linalg.norm(step, axis=-1).mean(2).sum(1)


# What figure 6 claims: whether repulsion makes dense clusters that swirl, and which V does.


PAPER = peat("Figure 6", size={"tokens": 64, "d": 3, "beta": 9})


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(f"{m.starts} starts", (
        _denser(m), _spread(m), _gapped(m), _swirl(m), _turning(m),
        second_token_claim(m.defect, "With V = -I"), first_token_claim(m.off),
    ))  # fmt: skip


def _ends(series: Series, digits: int = 2) -> tuple[str, str]:
    """The first and the last of a series, as text."""
    mean, error = series
    return plus_minus(mean[0], error[0], digits), plus_minus(mean[-1], error[-1], digits)


def _falls(series: Series) -> bool:
    """Whether the last is below the first by more than four standard errors."""
    mean, error = series
    # First and last are of the same starts; taken as independent, the error is on the safe side.
    return bool(mean[0] - mean[-1] > 4 * np.hypot(error[0], error[-1]))


def _denser(m: Results) -> Claim:
    run, end = m.runs[PLAIN], f"t = {m.p.end:g}"
    (first, last), (near, near_last) = _ends(run.count), _ends(run.nearest, 3)
    return Claim(
        says="Under negative eigenvalues multi-cluster arrangements form that grow denser (V = -I).",
        measured=f"clusters: {first} of {m.p.n} tokens at t = 0, {last} at {end}; mean distance to the nearest token "
        f"{near} at t = 0, {near_last} at {end}",
        criterion=f"fewer clusters at {end} than at t = 0, by more than four standard errors",
        holds=_falls(run.count),
        kind="paper",
        value=float(run.count[0][-1]),
        error=float(run.count[1][-1]),
        source=PAPER,
    )


def _spread(m: Results) -> Claim:
    mean, error = m.runs[PLAIN].nearest
    # Three digits: distances are of the order of 0.1.
    first, last = _ends((mean, error), 3)
    return Claim(
        says="With V = -I tokens spread: the distance to the nearest neighbour grows.",
        measured=f"{first} at t = 0, {last} at t = {m.p.end:g}",
        criterion="grows by more than four standard errors",
        # It grows if its negative falls.
        holds=_falls((-mean, error)),
        kind="finding",
        value=float(mean[-1]),
        error=float(error[-1]),
    )


def _gapped(m: Results) -> Claim:
    (count, error), end = m.runs[GAPPED].count, f"t = {m.p.end:g}"
    first, last = _ends((count, error))
    return Claim(
        says="Dense groups form with V = diag(-1, -10, -10), which has a gap below its top eigenvalue.",
        measured=f"clusters: {first} at t = 0, {last} at {end}",
        criterion=f"fewer at {end} than half of those at t = 0",
        holds=bool(count[-1] < count[0] / 2),
        kind="finding",
        value=float(count[-1]),
        error=float(error[-1]),
    )


def _swirl(m: Results) -> Claim:
    swirl, error = m.runs[PLAIN].turning
    return Claim(
        says="The tokens swirl around a geodesic.",
        measured=f"net circulation |mean x cross dx| / mean |dx| from t = {m.p.times[1]:g} to {m.p.end:g}: "
        f"{plus_minus(swirl, error, 3)}; 1 is a rigid rotation of tokens on its equator, {1 / np.sqrt(m.p.n):.3f} is "
        f"{m.p.n} independent ones",
        criterion="above 0.5",
        holds=bool(swirl > 0.5),
        kind="paper",
        value=float(swirl),
        error=float(error),
        source=PAPER,
    )


def _turning(m: Results) -> Claim:
    (turning, error), (band, of_band) = m.runs[TURNING].turning, m.band
    return Claim(
        says="Tokens swirl around a geodesic where the top eigenvalues of V are the complex pair -1 ± i, above -4.",
        measured=f"net circulation {plus_minus(turning, error, 3)}; mean square distance from the plane of the pair "
        f"{plus_minus(band, of_band, 3)} at t = {m.p.end:g}, where uniform tokens have 0.333",
        criterion="circulation above 0.9, and distance below 0.1",
        holds=bool(turning > 0.9 and band < 0.1),
        kind="finding",
        value=float(turning),
        error=float(error),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the figure."""
    denser, spread, gapped, swirl, turning = claims[:5]
    # What is said of V = -I follows from three claims at once.
    apart = (
        "With V = -I the tokens keep apart instead and come to rest spread over the sphere, without net rotation."
        if spread.holds and not (denser.holds or swirl.holds)
        else "With V = -I they do so in part, as the claims say."
    )
    dense = (
        "Dense groups need a V whose other eigenvalues lie far below the top one: diag(-1, -10, -10) draws the tokens "
        "to both ends of the top eigenvector."
    )
    return (
        f"Tokens of one start (seed {m.seed}) on the sphere, Q = K = I and beta = {m.p.beta:g}, under V = -I (above) "
        f"and under V with the eigenvalues -1 ± i and -4 (below), and two numbers over {m.starts} starts with standard "
        f"errors. The paper sees clusters that separate, grow denser and swirl. {apart}"
        + f" {dense}" * gapped.holds
        + " A swirl along a great circle needs a complex pair on top." * turning.holds
        + " None of these V does all that the words say." * (not (denser.holds and swirl.holds))
        + f" beta = {m.p.beta:g} is a low temperature." * (m.p.beta > 1)
    )


# The picture of figure 6: one start with each of two V; how near tokens are, and how many clusters there are.


COLOURS = dict(zip(VALUES, (OKABE_ITO[0], OKABE_ITO[2], OKABE_ITO[1]), strict=True))


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    ts = m.p.ts

    def nearest(ax: Axes) -> None:
        for name, run in m.runs.items():
            time_series(ts, *run.nearest, ax, label=name, colour=COLOURS[name], ylabel="distance to the nearest token")
        ax.set_ylim(0.0, None)

    def clusters(ax: Axes) -> None:
        for name, run in m.runs.items():
            time_series(ts, *run.count, ax, label=name, colour=COLOURS[name], ylabel="number of clusters")
        ax.set_ylim(0.0, m.p.n + 1)

    rows = {name: m.runs[name].xs[0] for name in (PLAIN, TURNING)}
    return figure_of_run(ts, rows, m.p.times, (nearest, clusters))


# Figure 6 as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": D, "beta": p.beta, "value": {name: value.tolist() for name, value in VALUES.items()},
         "query_key": "identity", "mask": "causal", "radius": p.radius, "starts": m.starts, "times": list(p.times)},
        _series(m),
        partial(draw, m),
        Film(p.ts, m.runs[PLAIN].xs[0]),
        on=particles(tokens=p.n, d=D, beta=p.beta, t=p.end, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    plain, gapped, turning = (m.runs[name] for name in (PLAIN, GAPPED, TURNING))
    return {
        "t": m.p.ts, "nearest": plain.nearest[0], "nearest_error": plain.nearest[1],
        "clusters": plain.count[0], "clusters_error": plain.count[1],
        "clusters_gapped": gapped.count[0], "clusters_gapped_error": gapped.count[1],
        "clusters_turning": turning.count[0], "clusters_turning_error": turning.count[1],
    }  # fmt: skip


FIGURE = declared("figure6", _run, parameters=Parameters)
