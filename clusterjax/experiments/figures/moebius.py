"""Attention at beta = 0: what is conserved, how does the mean of the tokens grow, and where do the tokens end?

With beta = 0 and V = I each token moves by $P_{x_i} m$, where m is the mean of all tokens; on the circle this is the
Kuramoto model of equal oscillators. One Moebius map of the sphere then moves all tokens, so that the chordal cross
ratios $|x_1x_2||x_3x_4| / (|x_1x_3||x_2x_4|)$ are conserved. On the circle the norm r of the mean of the images of
evenly spaced tokens follows the equation of Ott and Antonsen, $r(t) = (1 + (r_0^{-2} - 1) e^{-t})^{-1/2}$.
"""

from dataclasses import dataclass
from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._dynamics.simulate import simulate
from ..._limits import limit_shape
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ...plot import OKABE_ITO
from ..framework.figure import ANY, Claim, Film, Found, Say, Settings, Source, claim, figure, parameter
from ..shared.ensemble import draw_starts
from ..shared.layout import figure_of_run
from ..shared.sources import PARTICLES, particles


DIMENSIONS = (2, 3)
TS = np.linspace(0.0, 6.0, 25)
TIMES = (0.0, 2.0, 4.0, 6.0)  # the times of the snapshots
# A token leaves the point opposite to the others like e^t, so that starts with such a token need longer than LATE.
LATE, LATER = 24.0, 48.0
EVEN, R0 = 256, 0.2  # the number of tokens of the exact curve, and the first norm of their mean


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(32, "the number of tokens", least=4, most=256)
    beta: float = parameter(0.5, "the inverse temperature that is compared with zero", above=0, most=10)


class Results(NamedTuple):
    """The measurement; `drift` is by dimension and beta, `gathered` and `later` are by dimension."""

    p: Parameters
    starts: int
    drift: dict[tuple[int, float], np.ndarray]  # the change of the logarithm of a cross ratio, (starts, times)
    shown: np.ndarray  # the tokens of one start at beta = 0, (times, n, 2)
    mean: np.ndarray  # the norm of the mean of the images of evenly spaced tokens under a Moebius map, (times,)
    exact: np.ndarray  # the formula for this norm, (times,)
    gathered: dict[int, int]  # the number of starts that are certified to be at one point at t = 24
    later: dict[int, int]  # the number at t = 48


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    drift, gathered, later, shown = {}, {}, {}, None
    for d in DIMENSIONS:
        say(f"simulating with d = {d}")
        x0 = draw_starts(settings.seed, settings.starts, p.n, d)
        for beta in (0.0, p.beta):
            xs = np.asarray(_run_all(x0, jnp.asarray([*TS, LATE, LATER]), jnp.asarray(beta)))
            drift[d, beta] = drift_of(xs[:, :-2])
            if beta == 0:
                gathered[d], later[d] = at_one_point(xs[:, -2], LATE), at_one_point(xs[:, -1], LATER)
                shown = xs[0, :-2] if d == 2 else shown
    xs = np.asarray(_run_all(jnp.asarray(moved_evenly(EVEN, R0)[None]), jnp.asarray(TS), jnp.asarray(0.0)))[0]
    exact = (1 + (R0**-2 - 1) * np.exp(-TS)) ** -0.5
    assert shown is not None  # the circle is one of the dimensions
    return Results(p, settings.starts, drift, shown, np.linalg.norm(xs.mean(axis=1), axis=1), exact, gathered, later)


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, beta: Array) -> Float[Array, "starts times n d"]:
    def run(x: Array) -> Array:
        controller = dfx.PIDController(rtol=1e-10, atol=1e-12)
        field = AttentionField(SoftmaxAttention(beta))
        return simulate(field, x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000).xs

    return jax.vmap(run)(x0)


def at_one_point(xs: np.ndarray, t: float) -> int:
    """The number of starts of (starts, n, d) that are certified to be at rest at one point."""
    field = AttentionField(SoftmaxAttention(0.0))
    ends = [limit_shape(jnp.asarray(x), field, t=t) for x in xs]
    return sum(end.certified and end.kind == "one point" for end in ends)


def drift_of(xs: np.ndarray) -> np.ndarray:
    """The change of the logarithm of the cross ratio of the first four tokens of (starts, times, n, d)."""
    chord = lambda i, j: np.linalg.norm(xs[:, :, i] - xs[:, :, j], axis=-1)
    logs = np.log(chord(0, 1)) + np.log(chord(2, 3)) - np.log(chord(0, 2)) - np.log(chord(1, 3))
    return np.abs(logs - logs[:, :1])


def moved_evenly(n: int, r: float) -> np.ndarray:
    """Evenly spaced tokens of the circle after the Moebius map of the disc that maps 0 to r, (n, 2).

    Their mean has the norm r, up to r^n.
    """
    z = np.exp(2j * np.pi * np.arange(n) / n)
    w = (z + r) / (1 + r * z)
    return np.stack([w.real, w.imag], axis=1)


@claim("less than 1e-5", kind="identity")
def conserved(m: Results) -> Found:
    """At beta = 0 the cross ratios of the tokens are conserved."""
    worst = {d: float(drift.max()) for (d, beta), drift in m.drift.items() if beta == 0}
    listed = ", ".join(f"{value:.1e} (d = {d})" for d, value in worst.items())
    measured = f"the largest change of the logarithm of a cross ratio, over all starts and times, is {listed}"
    return Found(measured, max(worst.values()) < 1e-5, max(worst.values()))


@claim(f"less than 1e-3, as {EVEN} tokens are not infinitely many", kind="identity")
def mean_is_exact(m: Results) -> Found:
    """On the circle the mean of the images of evenly spaced tokens under a Moebius map has the norm of the formula of
    Ott and Antonsen."""
    off = float(np.abs(m.mean - m.exact).max())
    return Found(f"the largest difference up to t = {TS[-1]:g} is {off:.1e}", off < 1e-3, off)


@claim(
    f"all starts are there at t = {LATE:g}",
    source=Source("2312.10794, Theorem 4.1, of almost every start", PARTICLES, ANY, {"beta": 0}),
)
def one_point(m: Results) -> Found:
    """At beta = 0 all tokens come to one point."""
    share = min(m.gathered.values()) / m.starts
    counts = (f"{k} at t = {LATE:g} and {m.later[d]} at t = {LATER:g} (d = {d})" for d, k in m.gathered.items())
    return Found(f"of {m.starts} starts these are certified to be there: {', '.join(counts)}", share == 1.0, share)


@claim("more than 0.01 in each dimension")
def broken(m: Results) -> Found:
    """At another beta the cross ratios are not conserved."""
    median = {d: float(np.median(drift[:, -1])) for (d, beta), drift in m.drift.items() if beta != 0}
    listed = ", ".join(f"{value:.2g} (d = {d})" for d, value in median.items())
    measured = f"at beta = {m.p.beta:g} the median change of the logarithm by t = {TS[-1]:g} is {listed}"
    return Found(measured, min(median.values()) > 0.01, min(median.values()))


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} uniform tokens under full attention with V = I and beta = 0, where the mean of all tokens pulls each "
        f"token. Above: one start on the circle. Over {m.starts} starts: (a) the change of the logarithm of a cross "
        f"ratio of four tokens since the start, for beta = 0 and beta = {m.p.beta:g}, median and middle 80 %; (b) the "
        "norm of the mean of the images of evenly spaced tokens under a Moebius map (dots), on the curve of Ott and "
        "Antonsen. A token that is nearly opposite to the others leaves that point like e^t, so that some starts may "
        f"not be at one point by t = {LATE:g}."
    )


def series(m: Results) -> dict:
    drift = {f"median drift, d = {d}, beta = {beta:g}": np.median(row, axis=0) for (d, beta), row in m.drift.items()}
    return {"t": TS, "mean": m.mean, "exact mean": m.exact} | drift


def draw(m: Results) -> Figure:

    def drift(ax: Axes) -> None:
        for ((d, beta), values), colour in zip(m.drift.items(), OKABE_ITO, strict=False):
            low, middle, high = np.quantile(np.maximum(values[:, 1:], 1e-17), (0.1, 0.5, 0.9), axis=0)
            ax.semilogy(TS[1:], middle, color=colour, label=f"d = {d}, beta = {beta:g}")
            ax.fill_between(TS[1:], low, high, color=colour, alpha=0.2, lw=0)
        ax.set(xlabel="t", ylabel="change of log cross ratio", ylim=(1e-17, 10))
        ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.63))

    def mean(ax: Axes) -> None:
        ax.plot(TS, m.exact, color="0.2", lw=1, label="exact")
        ax.plot(TS, m.mean, ls="none", marker="o", ms=3, color=OKABE_ITO[1], label=f"{EVEN} tokens")
        ax.set(xlabel="t", ylabel="norm of the mean", ylim=(0, 1.02))
        ax.legend(loc="lower right")

    return figure_of_run(TS, {"": m.shown}, TIMES, (drift, mean), highlight=None)


FIGURE = figure(
    __name__,
    film=lambda m: Film(TS, m.shown, highlight=None),
    on=lambda m: particles(tokens=m.p.n, d=DIMENSIONS, beta=(0.0, m.p.beta), t=(LATE, LATER), starts=m.starts),
    recorded=lambda m: {"d": list(DIMENSIONS), "beta": [0.0, m.p.beta], "value": "identity", "query_key": "identity",
                        "mask": "full", "starts": m.starts, "even tokens": EVEN, "r0": R0, "end": [LATE, LATER]},
)  # fmt: skip
