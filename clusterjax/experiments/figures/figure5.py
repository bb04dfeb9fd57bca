"""Figure 5 of Peat: tokens on the circle under V = -I, and under V = diag(-1, v) with v far below -1.

Opposition, |mean of e^(2 i theta)|, is 1 where all tokens are at two opposite points and of order n^(-1/2) where the
tokens are independent. Under V = -I each token repels the later tokens: token k comes to the middle of a gap between
earlier tokens, and the angles of tokens 2 to 8 are dyadic (`exact.dyadic_distance`). Under V = diag(-1, v) every token
comes to the eigenvector of the larger eigenvalue, on either side.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.figure import Claim, Film, Found, Say, Settings, claim, figure, parameter, percent
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
from ..shared.exact import dyadic_distance, pair_error
from ..shared.layout import figure_of_run
from ..shared.sources import particles, peat


TIMES = (0.1, 1.2, 5.0)  # the times of the snapshots
EARLY = TIMES[-1]
# The names of V: the second eigenvalue of V is -1, -4 or -10, and the first is -1.
PLAIN, GAPPED = "-I", "diag(-1, -10)"
SECOND = {PLAIN: -1.0, "diag(-1, -4)": -4.0, GAPPED: -10.0}
GAPPED_END = 20.0  # with a gap the tokens are at rest long before


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(64, "the number of tokens, of which the first eight are compared with theory", least=8,
                       most=MOST_TOKENS)  # fmt: skip
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=1.9)
    # Tokens 2 to 8 are at their limits by t = 400.
    end: float = parameter(400.0, "the end of the run with V = -I", least=20, most=10_000)


class Results(NamedTuple):
    p: Parameters
    seed: int
    starts: int
    # `runs`, `opposition`: the runs and their opposition, by the name of V
    runs: dict[str, Ensemble]
    opposition: dict[str, Series]
    # The distance of tokens 2 to 8 from the points that halve the gaps, in degrees, V = -I, (starts, times, 7).
    dyadic: np.ndarray
    defect: float  # the largest angle between token 2 and the formula for two tokens, V = -I, in radians

    @property
    def off(self) -> float:
        """The largest error of the first token, over all V."""
        return max(run.off for run in self.runs.values())


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    x0, runs = draw_starts(settings.seed, settings.starts, p.n, 2), {}
    for name, second in SECOND.items():
        say(f"simulating V = {name}")
        # The pictures need 51 times to t = 5; ten more times in geometric progression lead to the end.
        late = np.geomspace(10.0, p.end if name == PLAIN else GAPPED_END, 10)
        ts, value = np.concatenate([np.linspace(0.0, EARLY, 51), late]), np.diag([-1.0, second])
        runs[name] = run_ensemble(x0, ts, beta=p.beta, value=value, radius=p.radius)
    opposed, plain = {name: mean_and_error(opposition(run.xs)) for name, run in runs.items()}, runs[PLAIN]
    defect = pair_error(plain.ts, plain.xs, p.beta, -1.0)
    return Results(p, settings.seed, settings.starts, runs, opposed, dyadic_distance(plain.xs), defect)


def opposition(xs: np.ndarray) -> np.ndarray:
    """|mean of e^{2 i theta}| over the tokens; doubling the angle maps opposite points to one point."""
    return np.abs(np.exp(2j * np.arctan2(xs[..., 1], xs[..., 0])).mean(-1))


def uniform_opposition(n: int) -> float:
    """The mean opposition of n independent uniform tokens, sqrt(pi / n) / 2."""
    # The mean of n random unit vectors of the plane has a norm of Rayleigh distribution with scale (2n)^(-1/2).
    return float(np.sqrt(np.pi / n) / 2)


def uniform_clusters(n: int, radius: float) -> float:
    """The mean number of clusters of n independent uniform tokens on the circle: the mean number of gaps above
    `radius`."""
    arc = 2 * np.arcsin(radius / 2) / (2 * np.pi)  # the chord `radius` as a share of the circle
    # Each of the n gaps exceeds the arc with probability (1 - arc)^(n-1).
    return float(n * (1 - arc) ** (n - 1))


@claim("above 0.5", source=peat("Figure 5", size={"tokens": 64, "d": 2, "beta": 1, "t": 5}))
def opposite(m: Results) -> Found:
    """With V = -I the tokens are at two opposite sides of the circle at t = 5."""
    order, early = m.opposition[PLAIN], m.runs[PLAIN].index(EARLY)
    return Found(
        f"|mean e^(2i theta)| is {at(order, early, 3)} at t = 5; it is 1 for two opposite clusters and "
        f"{uniform_opposition(m.p.n):.3f} for independent uniform tokens",
        order[0][early] > 0.5, order[0][early], order[1][early],
    )  # fmt: skip


@claim("not fewer at t = 5 than at t = 0, by four standard errors")
def no_clusters(m: Results) -> Found:
    """With V = -I no clusters form: the number of clusters does not fall from t = 0 to t = 5."""
    count, early = m.runs[PLAIN].count, m.runs[PLAIN].index(EARLY)
    return Found(
        f"clusters at radius {m.p.radius:g}: {at(count, 0)} at t = 0, {at(count, early)} at t = 5, {at(count, -1)} at "
        f"t = {m.p.end:g}; independent uniform tokens have {uniform_clusters(m.p.n, m.p.radius):.2f}",
        not falls(count, 0, early), count[0][early], count[1][early],
    )  # fmt: skip


@claim("above 0.5 at both times")
def two_groups(m: Results) -> Found:
    """With V = diag(-1, -10), whose second eigenvalue is far below the first, the tokens form two opposite groups."""
    order, early = m.opposition[GAPPED], m.runs[GAPPED].index(EARLY)
    measured = f"|mean e^(2i theta)| is {at(order, early, 3)} at t = 5, {at(order, -1, 3)} at t = {GAPPED_END:g}"
    return Found(measured, min(order[0][early], order[0][-1]) > 0.5, order[0][early], order[1][early])


@claim("in more than 95 % of the starts")
def halving(m: Results) -> Found:
    """With V = -I the first tokens halve the gaps of the circle: token 2 comes opposite to token 1, tokens 3 and 4 come
    to 90 degrees from both, and tokens 5 to 8 to the odd multiples of 45 degrees."""
    early, late = m.dyadic[:, m.runs[PLAIN].index(EARLY)], m.dyadic[:, -1]
    arrived, error = mean_and_error(late.max(-1) < 1.0)
    return Found(
        f"all of tokens 2 to 8 are within 1 degree of such angles in {percent(arrived, error)} of the starts at t = "
        f"{m.p.end:g}; their median distance is {np.median(early):.1f} degrees at t = 5 and {np.median(late):.1e} at t "
        f"= {m.p.end:g}",
        arrived > 0.95, arrived, error,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Snapshots: the tokens of one start (seed {m.seed}) on the circle, with Q = K = I and beta = {m.p.beta:g}, "
        f"under V = -I (above) and V = diag(-1, -10) (below). Panels, over {m.starts} starts with standard errors: (a) "
        "opposition, |mean of e^(2 i theta)|; (b) the distance of tokens 2 to 8 from the points that halve the gaps. "
        "Under V = -I the tokens spread: token 2 comes opposite to token 1, tokens 3 and 4 half-way between, and so "
        "on. The paper sees clusters at opposite sides at t = 5; such clusters need a second eigenvalue far below -1."
    )


def series(m: Results) -> dict:
    opposed = {f"opposition_{SECOND[name]:g}": order for name, order in m.opposition.items()}
    times = {"t": m.runs[PLAIN].ts, "t_gapped": m.runs[GAPPED].ts}
    return times | with_errors(clusters=m.runs[PLAIN].count, **opposed)


def draw(m: Results) -> Figure:
    plain = m.runs[PLAIN]

    def opposed(ax: Axes) -> None:
        for (name, order), colour in zip(m.opposition.items(), OKABE_ITO, strict=False):
            time_series(m.runs[name].ts, *order, ax, label=f"V = {name}", colour=colour)
        # The axis is linear to t = 1, so that it shows t = 0.
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set(ylabel=r"opposition $|\langle e^{2i\theta}\rangle|$", ylim=(0.0, 1.0))
        ax.axhline(uniform_opposition(m.p.n), color="0.5", lw=0.8, ls="--")

    def halved(ax: Axes) -> None:
        # The tokens of one generation halve gaps of equal length.
        generations = {"token 2": slice(0, 1), "3, 4": slice(1, 3), "5 to 8": slice(3, 7)}
        for (name, tokens), colour in zip(generations.items(), OKABE_ITO[3:], strict=False):
            median = np.median(m.dyadic[:, :, tokens], axis=(0, 2))
            time_series(plain.ts, median, None, ax, label=name, colour=colour, ylabel="degrees from the limit")
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_ylim(0.0, None)

    rows = {f"V = {name}": m.runs[name].xs[0] for name in (PLAIN, GAPPED)}
    return figure_of_run(plain.ts, rows, TIMES, (opposed, halved))


def film(m: Results) -> Film:
    plain, end = m.runs[PLAIN], m.runs[PLAIN].index(EARLY) + 1
    return Film(plain.ts[:end], plain.xs[0, :end])


FIGURE = figure(
    __name__,
    claims=(opposite, no_clusters, two_groups, halving, second_token("With V = -I"), first_token),
    on=lambda m: particles(tokens=m.p.n, d=2, beta=m.p.beta, t=(EARLY, m.p.end), starts=m.starts),
    recorded=lambda m: {"d": 2, "value": "diag(-1, v2), v2 in -1, -4, -10", "query_key": "identity", "mask": "causal",
                        "starts": m.starts, "times": list(TIMES)},
)  # fmt: skip
