r"""What is measured at beta = 0: cross ratios, the length of the mean against its exact curve, and where tokens end.

With beta = 0 and V = I each token moves by $P_{x_i} m$, with m the mean of all: on the circle the Kuramoto model of
equal oscillators, which moves all tokens by one Moebius map of the sphere. Chordal cross ratios $|x_1x_2||x_3x_4| /
(|x_1x_3||x_2x_4|)$ are then conserved, and on the circle the images of evenly spaced tokens follow the equation of Ott
and Antonsen, $r(t) = (1 + (r_0^{-2} - 1) e^{-t})^{-1/2}$.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
from ..framework.experiment import Claim, Film, Outcome, Settings, parameter
from ..framework.figure import declared
from ..framework.verdict import ANY, Source
from ..shared.ensemble import draw_starts
from ..shared.layout import figure_of_run
from ..shared.sources import PARTICLES, particles


DIMENSIONS = (2, 3)
TS = np.linspace(0.0, 6.0, 25)
TIMES = (0.0, 2.0, 4.0, 6.0)
LATE = 24.0  # when all tokens are to be at one point
# A token that began near the opposite point leaves it like e^t only: starts that have one need longer.
LATER = 48.0
EVEN, R0 = 256, 0.2  # tokens of the exact curve, and the length of their mean at the start


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens", least=4, most=256)
    beta: float = parameter(0.5, "the inverse temperature that is compared with zero", above=0, most=10)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `drift`: By dimension and beta: |log(cross ratio / that at the start)| of four tokens, (starts, times).
    - `shown`: (times, n, 2), the tokens of one start at beta = 0.
    - `mean`, `exact`: (times,), the length of the mean of evenly spaced tokens that a Moebius map has moved, and the
        formula.
    - `gathered`, `later`: By dimension, how many starts are certified at one point at t = 24, and at t = 48.
    """

    p: Parameters
    starts: int
    drift: dict[tuple[int, float], np.ndarray]
    shown: np.ndarray
    mean: np.ndarray
    exact: np.ndarray
    gathered: dict[int, int]
    later: dict[int, int]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run all starts with beta = 0 and with another, in two dimensions."""
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
    even = moved_evenly(EVEN, R0)
    xs = np.asarray(_run_all(jnp.asarray(even[None]), jnp.asarray(TS), jnp.asarray(0.0)))[0]
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
    """How many starts of (starts, n, d) are certified to be at one point, and at rest."""
    field = AttentionField(SoftmaxAttention(0.0))
    ends = [limit_shape(jnp.asarray(x), field, t=t) for x in xs]
    return sum(end.certified and end.kind == "one point" for end in ends)


def drift_of(xs: np.ndarray) -> np.ndarray:
    """How far the cross ratio of the first four tokens (starts, times, n, d) is from that at the start."""
    chord = lambda i, j: np.linalg.norm(xs[:, :, i] - xs[:, :, j], axis=-1)
    logs = np.log(chord(0, 1)) + np.log(chord(2, 3)) - np.log(chord(0, 2)) - np.log(chord(1, 3))
    return np.abs(logs - logs[:, :1])


def moved_evenly(n: int, r: float) -> np.ndarray:
    """Evenly spaced tokens of the circle after the Moebius map of the disc that takes 0 to r, (n, 2): their mean is r,
    but for r^n."""
    z = np.exp(2j * np.pi * np.arange(n) / n)
    w = (z + r) / (1 + r * z)
    return np.stack([w.real, w.imag], axis=1)


# What is claimed at beta = 0: conserved cross ratios, the exact mean, one point in the end, and that beta matters.


THEOREM = Source("2312.10794, Theorem 4.1, of almost every start", PARTICLES, ANY, {"beta": 0})


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return _conserved(m), _mean(m), _one_point(m), _broken(m)


def _conserved(m: Results) -> Claim:
    worst = {d: float(drift.max()) for (d, beta), drift in m.drift.items() if beta == 0}
    return Claim(
        says="At beta = 0 the cross ratios of the tokens are conserved.",
        measured="largest change of a logarithm of one, over all starts and times: "
        + ", ".join(f"{value:.1e} (d = {d})" for d, value in worst.items()),
        criterion="less than 1e-5",
        holds=max(worst.values()) < 1e-5,
        kind="identity",
        value=max(worst.values()),
    )


def _mean(m: Results) -> Claim:
    off = float(np.abs(m.mean - m.exact).max())
    return Claim(
        says="On the circle the mean of tokens that a Moebius map has moved from even ones has the length of Ott and "
        "Antonsen.",
        measured=f"largest difference up to t = {TS[-1]:g}: {off:.1e}",
        criterion="less than 1e-3, which is what 256 tokens leave of infinitely many",
        holds=off < 1e-3,
        kind="identity",
        value=off,
    )


def _one_point(m: Results) -> Claim:
    shares = [count / m.starts for count in m.gathered.values()]
    return Claim(
        says="At beta = 0 all tokens come to one point.",
        measured=f"certified there, of {m.starts} starts: " + ", ".join(
            f"{count} at t = {LATE:g} and {m.later[d]} at t = {LATER:g} (d = {d})" for d, count in m.gathered.items()
        ),
        criterion=f"all of them at t = {LATE:g}",
        holds=min(shares) == 1.0,
        kind="paper",
        value=min(shares),
        source=THEOREM,
    )  # fmt: skip


def _broken(m: Results) -> Claim:
    median = {d: float(np.median(drift[:, -1])) for (d, beta), drift in m.drift.items() if beta != 0}
    return Claim(
        says="At another beta the cross ratios are not conserved.",
        measured=f"beta = {m.p.beta:g}: median change of the logarithm by t = {TS[-1]:g}: "
        + ", ".join(f"{value:.2g} (d = {d})" for d, value in median.items()),
        criterion="more than 0.01 in each dimension",
        holds=min(median.values()) > 0.01,
        kind="finding",
        value=min(median.values()),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    conserved, _, one_point, broken = claims
    return (
        f"{m.p.n} uniform tokens under full attention with V = I and beta = 0, where the mean of all draws each. Above "
        f"one start on the circle. Over {m.starts} starts: (a) how far the logarithm of a cross ratio of four "
        f"tokens is from that at the start, for beta = 0 and beta = {m.p.beta:g}, median and middle 80 %; (b) the "
        "length of the mean of even tokens that a Moebius map has moved (dots) on the curve of Ott and Antonsen. "
        + ("Cross ratios are conserved" if conserved.holds else "Cross ratios change")
        + (", and only at beta = 0. " if broken.holds else ". ")
        + (f"All starts are at one point by t = {LATE:g}." if one_point.holds else _late(m))
    )


def _late(m: Results) -> str:
    """Why not all starts are at one point by then."""
    missing, still = (m.starts * len(found) - sum(found.values()) for found in (m.gathered, m.later))
    return (
        f"By t = {LATE:g} {missing} of the starts {'is' if missing == 1 else 'are'} not at one point: a token that is "
        "nearly opposite to the others leaves that place like e^t, and the theorem sets no time. "
        + (f"By t = {LATER:g} all are." if not still else f"By t = {LATER:g} {still} are still not.")
    )


# The picture of beta = 0: one start on the circle, the drift of cross ratios, the exact mean.


def draw(m: Results) -> Figure:
    """Snapshots above, numbers below."""

    def drift(ax: Axes) -> None:
        for ((d, beta), values), colour in zip(m.drift.items(), OKABE_ITO, strict=False):
            low, middle, high = np.quantile(np.maximum(values[:, 1:], 1e-17), (0.1, 0.5, 0.9), axis=0)
            ax.semilogy(TS[1:], middle, color=colour, label=f"d = {d}, beta = {beta:g}")
            ax.fill_between(TS[1:], low, high, color=colour, alpha=0.2, lw=0)
        ax.set(xlabel="t", ylabel="change of log cross ratio", ylim=(1e-17, 10))
        ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.63))

    def mean(ax: Axes) -> None:
        ax.plot(TS, m.exact, color="0.2", lw=1, label="exact")
        ax.plot(TS, m.mean, ls="none", marker="o", ms=3, color=OKABE_ITO[1], label="256 tokens")
        ax.set(xlabel="t", ylabel="length of the mean", ylim=(0, 1.02))
        ax.legend(loc="lower right")

    return figure_of_run(TS, {"": m.shown}, TIMES, (drift, mean), highlight=None)


# beta = 0 as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": list(DIMENSIONS), "beta": [0.0, p.beta], "value": "identity", "query_key": "identity",
         "mask": "full", "starts": m.starts, "even tokens": EVEN, "r0": R0, "end": [LATE, LATER]},
        {"t": TS, "mean": m.mean, "exact mean": m.exact}
        | {f"median drift, d = {d}, beta = {beta:g}": np.median(drift, axis=0) for (d, beta), drift in m.drift.items()},
        partial(draw, m),
        Film(TS, m.shown, highlight=None),
        on=particles(tokens=p.n, d=DIMENSIONS, beta=(0.0, p.beta), t=(LATE, LATER), starts=m.starts),
    )  # fmt: skip


FIGURE = declared("moebius", _run, parameters=Parameters)
