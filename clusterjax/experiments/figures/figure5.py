"""What figure 5 measures: tokens on the circle under V = -I, and under V = diag(-1, v) with a gap.

Opposition, |mean of e^(2 i theta)|, is 1 where all tokens lie at two opposite points and of the order of n^(-1/2) where
they are independent. Under V = -I tokens repel those before them: token k comes to the middle of a gap between older
ones, which for the first eight gives dyadic angles (`framework.exact.dyadic_distance`). With V = diag(-1, v), v far
below -1, every token is drawn to the eigenvector of the larger eigenvalue, on either side.
"""

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
    draw_starts,
    exact_first_token,
    first_token_claim,
    mean_and_error,
    run_ensemble,
    second_token_claim,
)
from ..shared.exact import dyadic_distance, pair_error
from ..shared.layout import figure_of_run
from ..shared.sources import particles, peat


TIMES = (0.1, 1.2, 5.0)  # of the snapshots
EARLY = TIMES[-1]
# V by its second eigenvalue: the first is -I, the last has the widest gap.
VALUES = {second: np.diag([-1.0, second]) for second in (-1.0, -4.0, -10.0)}
PLAIN, GAPPED = -1.0, -10.0
GAPPED_END = 20.0  # with a gap nothing moves long before


@dataclass(frozen=True)
class Parameters:
    """What of figure 5 can be set."""

    n: int = parameter(64, "the number of tokens, the first eight of which are looked at", least=8, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=1.9)
    # By 400 tokens 2 to 8 have found their places.
    end: float = parameter(400.0, "the end of the run with V = -I", least=20, most=10_000)


@dataclass(frozen=True, eq=False)
class Run:
    """The runs with one V.

    **Attributes:**

    - `ts`: (times,), the save times.
    - `xs`: (starts, times, n, 2), the tokens.
    - `opposition`, `error`: (times,), |mean of e^{2 i theta}| over the starts, and its standard error.
    """

    ts: np.ndarray
    xs: np.ndarray
    opposition: np.ndarray
    error: np.ndarray

    @property
    def early(self) -> int:
        """The number of the save time next to t = 5."""
        return int(np.argmin(np.abs(self.ts - EARLY)))


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 5 shows.

    **Attributes:**

    - `runs`: By the second eigenvalue of V.
    - `count`: The mean number of clusters under V = -I, (times,), and its standard error.
    - `dyadic`: (starts, times, 7), how far tokens 2 to 8 are from where they halve the gaps, in degrees, V = -I.
    - `off`: How far the first token is from where it must be, at most.
    - `defect`: How far token 2 is from the formula for two tokens, V = -I, in radians.
    """

    p: Parameters
    seed: int
    starts: int
    runs: dict[float, Run]
    count: tuple[np.ndarray, np.ndarray]
    dyadic: np.ndarray
    off: float
    defect: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate each V from the same starts, and measure."""
    x0 = draw_starts(settings.seed, settings.starts, p.n, 2)
    ensembles = {}
    for second, value in VALUES.items():
        say("simulating V = " + name_of(second))
        end = p.end if second == PLAIN else GAPPED_END
        # 51 times to t = 5 for the pictures, ten more in a geometric series to the end.
        ts = np.concatenate([np.linspace(0.0, EARLY, 51), np.geomspace(10.0, end, 10)])
        ensembles[second] = run_ensemble(x0, ts, beta=p.beta, value=value)
    say("measuring")
    runs = {}
    for second, run in ensembles.items():
        xs = np.asarray(run.xs)
        runs[second] = Run(np.asarray(run.ts), xs, *mean_and_error(opposition(xs)))
    # Under every V the first token moves on its own; the largest error counts.
    off = max(float(np.abs(exact_first_token(run) - runs[v].xs[:, :, 0]).max()) for v, run in ensembles.items())
    plain = runs[PLAIN]
    return Results(
        p, settings.seed, settings.starts, runs,
        mean_and_error(count_clusters(ensembles[PLAIN].xs, jnp.asarray(p.radius))), dyadic_distance(plain.xs), off,
        pair_error(plain.ts, plain.xs, p.beta, -1.0),
    )  # fmt: skip


def name_of(second: float) -> str:
    """V with this second eigenvalue, for a reader."""
    return "-I" if second == PLAIN else f"diag(-1, {second:g})"


def opposition(xs: np.ndarray) -> np.ndarray:
    """|mean of e^{2 i theta}|: one for two opposite clusters, n^{-1/2} sqrt(pi)/2 on average for uniform tokens."""
    # Doubled angles take opposite points to one.
    return np.abs(np.exp(2j * np.arctan2(xs[..., 1], xs[..., 0])).mean(-1))


def uniform_opposition(n: int) -> float:
    """The opposition of n independent uniform tokens, on average."""
    # The mean length of the average of n random unit vectors in the plane: that of a Rayleigh variable of scale
    # (2n)^(-1/2).
    return float(np.sqrt(np.pi / n) / 2)


def uniform_clusters(n: int, radius: float) -> float:
    """How many clusters n independent uniform tokens on the circle have on average: as many as gaps above `radius`."""
    # The chord `radius` as a share of the circle.
    arc = 2 * np.arcsin(radius / 2) / (2 * np.pi)
    # Each of the n gaps exceeds the arc with probability (1 - arc)^(n-1), and each such gap ends a cluster.
    return float(n * (1 - arc) ** (n - 1))


# What figure 5 claims: whether clusters sit at opposite sides, and what tokens do in their place.


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(
        f"{m.starts} starts",
        (
            _opposite(m),
            _no_clusters(m),
            _gapped(m),
            _halving(m),
            second_token_claim(m.defect, "With V = -I", "its angle"),
            first_token_claim(m.off),
        ),
    )


def _opposite(m: Results) -> Claim:
    run = m.runs[PLAIN]
    opposition, error = run.opposition[run.early], run.error[run.early]
    return Claim(
        says="At t = 5 the clusters sit at opposite sides of the circle (V = -I).",
        measured=f"|mean e^(2i theta)| = {plus_minus(opposition, error, 3)} at t = 5; it is 1 for two opposite "
        f"clusters and {uniform_opposition(m.p.n):.3f} for independent uniform tokens",
        criterion="above 0.5",
        holds=bool(opposition > 0.5),
        kind="paper",
        value=float(opposition),
        error=float(error),
        source=peat("Figure 5", size={"tokens": 64, "d": 2, "beta": 1, "t": 5}),
    )


def _no_clusters(m: Results) -> Claim:
    # Clusters under V = -I alone.
    (count, error), early = m.count, m.runs[PLAIN].early
    return Claim(
        says="Repulsion by V = -I forms no clusters: their number does not fall from t = 0 to 5.",
        measured=f"clusters at radius {m.p.radius:g}: {plus_minus(count[0], error[0])} at t = 0, "
        f"{plus_minus(count[early], error[early])} at t = 5, {plus_minus(count[-1], error[-1])} at "
        f"t = {m.p.end:g}; independent uniform tokens have {uniform_clusters(m.p.n, m.p.radius):.2f}",
        criterion="not fewer at t = 5 than at t = 0, by four standard errors",
        holds=bool(count[0] - count[early] < 4 * np.hypot(error[0], error[early])),
        kind="finding",
        value=float(count[early]),
        error=float(error[early]),
    )


def _gapped(m: Results) -> Claim:
    run = m.runs[GAPPED]
    at = [plus_minus(run.opposition[i], run.error[i], 3) for i in (run.early, -1)]
    return Claim(
        says="With V = diag(-1, -10), whose second eigenvalue is far below the top one, tokens form two opposite "
        "groups.",
        measured=f"|mean e^(2i theta)| = {at[0]} at t = 5, {at[1]} at t = {GAPPED_END:g}",
        criterion="above 0.5 at both times",
        holds=bool(run.opposition[run.early] > 0.5 and run.opposition[-1] > 0.5),
        kind="finding",
        value=float(run.opposition[run.early]),
        error=float(run.error[run.early]),
    )


def _halving(m: Results) -> Claim:
    """Tokens 2 to 8 halve the gaps."""
    # (starts, 7) each, in degrees.
    early, late = m.dyadic[:, m.runs[PLAIN].early], m.dyadic[:, -1]
    # All seven tokens of a start must have arrived.
    arrived, error = mean_and_error(late.max(-1) < 1.0)
    return Claim(
        says="With V = -I the first tokens halve the circle: token 2 goes opposite to token 1, tokens 3 and 4 to the "
        "right angles between, tokens 5 to 8 to the odd multiples of 45 degrees.",
        measured="all of tokens 2 to 8 are within 1 degree of such places in "
        f"{percent(arrived, error)} of the starts at t = {m.p.end:g}; their median distance is "
        f"{np.median(early):.1f} degrees at t = 5 and {np.median(late):.1e} at t = {m.p.end:g}",
        criterion="in more than 95 % of the starts",
        holds=bool(arrived > 0.95),
        kind="finding",
        value=float(arrived),
        error=float(error),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the figure."""
    opposite, _, gapped, halving = claims[:4]
    spread = (
        "With V = -I they are not there: repulsion spreads the tokens evenly, each as far as it can get from its "
        "predecessors."
    )
    halved = (
        "token 2 ends opposite to token 1, tokens 3 and 4 half-way between, tokens 5 to 8 half-way between those, and "
        "so on; two opposite clusters are only what the first two tokens do."
    )
    drawn = (
        "Two opposite groups do appear, and stay, when V's second eigenvalue is far below its top one of -1: every "
        "token is then drawn towards the top eigenvector, on either side."
    )
    return (
        f"Tokens of one start (seed {m.seed}) on the circle, Q = K = I and beta = {m.p.beta:g}, under V = -I (above) "
        f"and V = diag(-1, -10) (below), and two numbers over {m.starts} starts with standard errors. The paper sees "
        f"clusters at opposite sides at t = 5. {'They are there with V = -I.' if opposite.holds else spread} (b): "
        + (halved if halving.holds else "how far tokens 2 to 8 are from where each of them would halve a gap.")
        + (f" {drawn}" if gapped.holds else " With V = diag(-1, -10) there are no two opposite groups either.")
    )


# The picture of figure 5: one start with each of two V; opposition, and how the first tokens halve the circle.


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    plain = m.runs[PLAIN]

    def opposition(ax: Axes) -> None:
        # One line for each second eigenvalue.
        for (second, run), colour in zip(m.runs.items(), OKABE_ITO, strict=False):
            time_series(run.ts, run.opposition, run.error, ax, label=f"V = {name_of(second)}", colour=colour)
        # Linear to t = 1, so that the start has a place on the axis.
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set(ylabel=r"opposition $|\langle e^{2i\theta}\rangle|$", ylim=(0.0, 1.0))
        ax.axhline(uniform_opposition(m.p.n), color="0.5", lw=0.8, ls="--")

    def halving(ax: Axes) -> None:
        # Tokens of one generation halve gaps of the same length.
        generations = (("token 2", slice(0, 1)), ("3, 4", slice(1, 3)), ("5 to 8", slice(3, 7)))
        for (name, tokens), colour in zip(generations, OKABE_ITO[3:], strict=False):
            time_series(
                plain.ts, np.median(m.dyadic[:, :, tokens], axis=(0, 2)), None, ax, label=name, colour=colour,
                ylabel="degrees from final place",
            )  # fmt: skip
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_ylim(0.0, None)

    # The V without a gap above, the one with the widest below.
    rows = {f"V = {name_of(second)}": m.runs[second].xs[0] for second in (PLAIN, GAPPED)}
    return figure_of_run(plain.ts, rows, TIMES, (opposition, halving))


# Figure 5 as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims, plain = claims_of(m), m.runs[PLAIN]
    early = plain.early + 1
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": 2, "beta": p.beta, "value": "diag(-1, v2), v2 in " + ", ".join(f"{v:g}" for v in VALUES),
         "query_key": "identity", "mask": "causal", "radius": p.radius, "starts": m.starts, "times": list(TIMES)},
        _series(m),
        partial(draw, m),
        Film(plain.ts[:early], plain.xs[0, :early]),
        on=particles(tokens=p.n, d=2, beta=p.beta, t=(EARLY, p.end), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    count, error = m.count
    plain, gapped = m.runs[PLAIN], m.runs[GAPPED]
    return (
        {"t": plain.ts, "t_gapped": gapped.ts, "clusters": count, "clusters_error": error}
        | {f"opposition_{v:g}": run.opposition for v, run in m.runs.items()}
        | {f"opposition_{v:g}_error": run.error for v, run in m.runs.items()}
    )


FIGURE = declared("figure5", _run, parameters=Parameters)
