"""Figure 5: repulsion on the circle, V with top eigenvalue -1."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from ..plot import OKABE_ITO, time_series
from ._ensemble import draw_starts, exact_first_token, mean_and_error, run_ensemble
from ._experiment import Claim, Experiment, Film, Outcome, Settings, plus_minus
from ._layout import figure_of_run


N, D, BETA = 64, 2, 1.0
TIMES = (0.1, 1.2, 5.0)
SECOND_EIGENVALUES = (-1.0, -4.0, -10.0)  # of V = diag(-1, .): the first is V = -I


def _angles(xs: np.ndarray) -> np.ndarray:
    return np.arctan2(xs[..., 1], xs[..., 0])


def _opposition(xs: np.ndarray) -> np.ndarray:
    """|mean of e^{2 i theta}|: one for two opposite clusters, n^{-1/2} sqrt(pi)/2 on average for uniform tokens."""
    return np.abs(np.exp(2j * _angles(xs)).mean(-1))


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    end = 100.0 if settings.quick else 400.0
    ts = np.concatenate([np.linspace(0.0, 5.0, 51), np.geomspace(10.0, end, 10)])
    x0 = draw_starts(settings.seed, settings.starts, N, D)
    runs = {}
    for second in SECOND_EIGENVALUES:
        say(f"simulating V = diag(-1, {second:g})")
        runs[second] = run_ensemble(x0, ts, beta=BETA, value=jnp.diag(jnp.asarray([-1.0, second])))
    say("measuring")
    xs = {second: np.asarray(run.xs) for second, run in runs.items()}
    error = max(float(np.abs(exact_first_token(runs[v]) - xs[v][:, :, 0]).max()) for v in runs)
    opposed = {v: mean_and_error(_opposition(xs[v])) for v in runs}
    i5 = int(np.argmin(np.abs(ts - 5.0)))
    plain, gapped = opposed[-1.0], opposed[-10.0]
    dyadic = _dyadic_defect(xs[-1.0][:, -1])
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
        ),
        Claim(
            "Two opposite groups need a second eigenvalue far below the top one: V = diag(-1, -10).",
            f"|mean e^(2i theta)| = {plus_minus(gapped[0][i5], gapped[1][i5], 3)} at t = 5, "
            f"{plus_minus(gapped[0][-1], gapped[1][-1], 3)} at t = {end:g}",
            "above 0.5 at both times",
            bool(gapped[0][i5] > 0.5 and gapped[0][-1] > 0.5),
            "finding",
            float(gapped[0][i5]),
            float(gapped[1][i5]),
        ),
        Claim(
            "With V = -I the first tokens halve the circle: token 2 goes opposite to token 1, 3 and 4 to the right "
            "angles between.",
            f"median distance of tokens 2, 3, 4 from 180, 90 or 270 degrees at t = {end:g}: "
            f"{np.median(dyadic):.4f} degrees",
            "median below 1 degree",
            bool(np.median(dyadic) < 1.0),
            "finding",
            float(np.median(dyadic)),
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
        f"Tokens of one start (seed {settings.seed}) on the circle under V = -I, Q = K = I and beta = 1, and two "
        f"numbers over {settings.starts} starts with standard errors. The paper sees clusters at opposite sides at "
        "t = 5; with V = -I they are not there: repulsion spreads the tokens evenly, each as far as it can get from "
        "its predecessors, and token 2 ends opposite to token 1, tokens 3 and 4 half-way between, and so on. Two "
        "opposite groups do appear, and stay, when V's second eigenvalue is far below its top one of -1: every token "
        "is then drawn towards the top eigenvector, on either side."
    )

    def opposition_panel(ax: Axes) -> None:
        colours = (OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2])
        for (second, (mean, err)), colour in zip(opposed.items(), colours, strict=True):
            name = "-I" if second == -1.0 else f"diag(-1, {second:g})"
            time_series(
                ts, mean, err, ax, label=f"V = {name}", colour=colour, ylabel=r"$|\langle e^{2i\theta}\rangle|$"
            )
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_ylim(0.0, 1.0)
        ax.axhline(np.sqrt(np.pi / N) / 2, color="0.5", lw=0.8, ls="--")

    def angle_panel(ax: Axes) -> None:
        relative = np.degrees(np.abs(np.angle(np.exp(1j * (_angles(xs[-1.0]) - _angles(xs[-1.0])[:, :, :1])))))
        for token, colour in ((1, OKABE_ITO[5]), (2, OKABE_ITO[4]), (3, OKABE_ITO[3])):
            time_series(
                ts, np.median(relative[:, :, token], axis=0), None, ax, label=f"token {token + 1}", colour=colour,
                ylabel="median angle to token 1 (degrees)",
            )  # fmt: skip
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_yticks([0, 45, 90, 135, 180])

    return Outcome(
        caption,
        claims,
        {
            "n": N,
            "d": D,
            "beta": BETA,
            "value": "diag(-1, v2), v2 in " + ", ".join(f"{v:g}" for v in SECOND_EIGENVALUES),
            "query_key": "identity",
            "mask": "causal",
            "starts": settings.starts,
            "times": list(TIMES),
        },
        {"t": ts}
        | {f"opposition_{v:g}": opposed[v][0] for v in runs}
        | {f"opposition_{v:g}_error": opposed[v][1] for v in runs},
        lambda: figure_of_run(ts, xs[-1.0][0], TIMES, (opposition_panel, angle_panel)),
        Film(ts[:51], xs[-1.0][0, :51]),
    )


def _dyadic_defect(x: np.ndarray) -> np.ndarray:
    """How far, in degrees, tokens 2, 3 and 4 are from where they must end; the largest of the three, (starts,)."""
    relative = np.degrees(np.abs(np.angle(np.exp(1j * (_angles(x) - _angles(x)[:, :1])))))
    return np.max(np.abs(relative[:, 1:4] - np.array([180.0, 90.0, 90.0])), axis=1)


FIGURE5 = Experiment(
    "figure5",
    "repulsion_circle",
    "Figure 5: repulsion on the circle",
    "With a negative top eigenvalue the clusters end at opposite sides of the circle (t = 0.1, 1.2, 5).",
    _run,
)
