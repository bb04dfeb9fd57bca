"""Figure 5: repulsion on the circle, V with top eigenvalue -1."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes

from ..plot import OKABE_ITO, time_series
from ._ensemble import Ensemble, count_clusters, draw_starts, exact_first_token, mean_and_error, run_ensemble
from ._exact import dyadic_distance, pair_error
from ._experiment import Claim, Experiment, Film, Outcome, Settings, plus_minus
from ._layout import figure_of_run
from ._sources import particles, peat


N, D, BETA, RADIUS = 64, 2, 1.0, 0.1
TIMES = (0.1, 1.2, 5.0)
# The second eigenvalue of V = diag(-1, .), which is V = -I first, and the end of its runs: by 400 tokens 2 to 8 have
# found their places, and with a gap nothing moves long before 20.
ENDS = {-1.0: 400.0, -4.0: 20.0, -10.0: 20.0}
END = ENDS[-1.0]


def _angles(xs: np.ndarray) -> np.ndarray:
    return np.arctan2(xs[..., 1], xs[..., 0])


def _opposition(xs: np.ndarray) -> np.ndarray:
    """|mean of e^{2 i theta}|: one for two opposite clusters, n^{-1/2} sqrt(pi)/2 on average for uniform tokens."""
    return np.abs(np.exp(2j * _angles(xs)).mean(-1))


def _simulate(x0: Array, say: Callable[[str], None]) -> dict[float, Ensemble]:
    """The runs, by the second eigenvalue of V."""
    runs = {}
    for second, end in ENDS.items():
        say("simulating V = " + _name(second))
        ts = np.concatenate([np.linspace(0.0, 5.0, 51), np.geomspace(10.0, end, 10)])
        runs[second] = run_ensemble(x0, ts, beta=BETA, value=jnp.diag(jnp.asarray([-1.0, second])))
    return runs


def _name(second: float) -> str:
    return "-I" if second == -1.0 else f"diag(-1, {second:g})"


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    runs = _simulate(draw_starts(settings.seed, settings.starts, N, D), say)
    say("measuring")
    ts = np.asarray(runs[-1.0].ts)
    xs = {second: np.asarray(run.xs) for second, run in runs.items()}
    error = max(float(np.abs(exact_first_token(runs[v]) - xs[v][:, :, 0]).max()) for v in runs)
    opposed = {v: mean_and_error(_opposition(xs[v])) for v in runs}
    i5 = int(np.argmin(np.abs(ts - 5.0)))
    plain, gapped = opposed[-1.0], opposed[-10.0]
    count, count_error = mean_and_error(count_clusters(runs[-1.0].xs, jnp.asarray(RADIUS)))
    dyadic = dyadic_distance(xs[-1.0])
    claims = (
        Claim(
            "At t = 5 the clusters sit at opposite sides of the circle (V = -I).",
            f"|mean e^(2i theta)| = {plus_minus(plain[0][i5], plain[1][i5], 3)} at t = 5; it is 1 for two opposite "
            f"clusters and {np.sqrt(np.pi / N) / 2:.3f} for independent uniform tokens",
            "above 0.5",
            bool(plain[0][i5] > 0.5),
            "paper",
            float(plain[0][i5]),
            float(plain[1][i5]),
            source=peat("Figure 5", size={"tokens": 64, "d": 2, "beta": 1, "t": 5}),
        ),
        Claim(
            "Repulsion by V = -I forms no clusters at all.",
            f"clusters at radius {RADIUS}: {plus_minus(count[0], count_error[0])} at t = 0, "
            f"{plus_minus(count[i5], count_error[i5])} at t = 5, {plus_minus(count[-1], count_error[-1])} at "
            f"t = {END:g}; independent uniform tokens have {_uniform_clusters():.2f}",
            "not fewer at t = 5 than at t = 0, by four standard errors",
            bool(count[0] - count[i5] < 4 * np.hypot(count_error[0], count_error[i5])),
            "finding",
            float(count[i5]),
            float(count_error[i5]),
        ),
        Claim(
            "Two opposite groups need a second eigenvalue far below the top one: V = diag(-1, -10).",
            f"|mean e^(2i theta)| = {plus_minus(gapped[0][i5], gapped[1][i5], 3)} at t = 5, "
            f"{plus_minus(gapped[0][-1], gapped[1][-1], 3)} at t = {ENDS[-10.0]:g}",
            "above 0.5 at both times",
            bool(gapped[0][i5] > 0.5 and gapped[0][-1] > 0.5),
            "finding",
            float(gapped[0][i5]),
            float(gapped[1][i5]),
        ),
        _halving(dyadic[:, i5], dyadic[:, -1]),
        Claim(
            "With V = -I the second token is where the closed formula for two tokens has it.",
            f"largest error of its angle, over all starts and times: "
            f"{(defect := pair_error(ts, xs[-1.0], BETA, -1.0)):.1e} radians",
            "less than 1e-6",
            defect < 1e-6,
            "identity",
            defect,
        ),
        Claim(
            "The first token follows exp(Vt) x_1(0), normalised, exactly.",
            f"largest difference {error:.1e}",
            "less than 1e-6",
            error < 1e-6,
            "identity",
            error,
        ),
    )
    caption = (
        f"Tokens of one start (seed {settings.seed}) on the circle, Q = K = I and beta = 1, under V = -I (above) and "
        f"V = diag(-1, -10) (below), and two numbers over {settings.starts} starts with standard errors. The paper "
        "sees clusters at opposite sides at t = 5. With V = -I they are not there: repulsion spreads the tokens "
        "evenly, each as far as it can get from its predecessors. (b): token 2 ends opposite to token 1, tokens 3 and "
        "4 half-way between, tokens 5 to 8 half-way between those, and so on; two opposite clusters are only what the "
        "first two tokens do. Two opposite groups do appear, and stay, when V's second eigenvalue is far below its top "
        "one of -1: every token is then drawn towards the top eigenvector, on either side."
    )

    def opposition_panel(ax: Axes) -> None:
        colours = (OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2])
        for (second, (mean, err)), colour in zip(opposed.items(), colours, strict=True):
            label = f"V = {_name(second)}"
            time_series(np.asarray(runs[second].ts), mean, err, ax, label=label, colour=colour)
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set(ylabel=r"opposition $|\langle e^{2i\theta}\rangle|$", ylim=(0.0, 1.0))
        ax.axhline(np.sqrt(np.pi / N) / 2, color="0.5", lw=0.8, ls="--")

    def halving_panel(ax: Axes) -> None:
        generations = (("token 2", slice(0, 1)), ("3, 4", slice(1, 3)), ("5 to 8", slice(3, 7)))
        for (name, tokens), colour in zip(generations, OKABE_ITO[3:], strict=False):
            time_series(
                ts, np.median(dyadic[:, :, tokens], axis=(0, 2)), None, ax, label=name, colour=colour,
                ylabel="degrees from final place",
            )  # fmt: skip
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_ylim(0.0, None)

    return Outcome(
        caption,
        claims,
        {
            "n": N,
            "d": D,
            "beta": BETA,
            "value": "diag(-1, v2), v2 in " + ", ".join(f"{v:g}" for v in ENDS),
            "query_key": "identity",
            "mask": "causal",
            "radius": RADIUS,
            "starts": settings.starts,
            "times": list(TIMES),
        },
        {"t": ts, "t_gapped": runs[-10.0].ts, "clusters": count, "clusters_error": count_error}
        | {f"opposition_{v:g}": opposed[v][0] for v in runs}
        | {f"opposition_{v:g}_error": opposed[v][1] for v in runs},
        lambda: figure_of_run(
            ts, {f"V = {_name(v)}": xs[v][0] for v in (-1.0, -10.0)}, TIMES, (opposition_panel, halving_panel)
        ),
        Film(ts[:51], xs[-1.0][0, :51]),
        on=particles(tokens=N, d=D, beta=BETA, t=(5.0, END), starts=settings.starts),
    )


def _halving(early: np.ndarray, late: np.ndarray) -> Claim:
    """Tokens 2 to 8 halve the gaps; of their distances (starts, 7) at t = 5 and at the end."""
    arrived, error = mean_and_error(late.max(-1) < 1.0)
    return Claim(
        "With V = -I the first tokens halve the circle: token 2 goes opposite to token 1, tokens 3 and 4 to the right "
        "angles between, tokens 5 to 8 to the odd multiples of 45 degrees.",
        f"all of tokens 2 to 8 are within 1 degree of such places in {plus_minus(100 * arrived, 100 * error, 1)} % of "
        f"the starts at t = {END:g}; their median distance is {np.median(early):.1f} degrees at t = 5 and "
        f"{np.median(late):.1e} at t = {END:g}",
        "in more than 95 % of the starts",
        bool(arrived > 0.95),
        "finding",
        float(arrived),
        float(error),
    )


def _uniform_clusters() -> float:
    """How many clusters n independent uniform tokens on the circle have on average: as many as gaps above `RADIUS`."""
    arc = 2 * np.arcsin(RADIUS / 2) / (2 * np.pi)
    return float(N * (1 - arc) ** (N - 1))


FIGURE5 = Experiment(
    "figure5",
    "repulsion_circle",
    "Figure 5: repulsion on the circle",
    "With a negative top eigenvalue the clusters end at opposite sides of the circle (t = 0.1, 1.2, 5).",
    _run,
)
