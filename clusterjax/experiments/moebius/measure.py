r"""What is measured at beta = 0: cross ratios, the length of the mean against its exact curve, and where tokens end.

With beta = 0 and V = I each token moves by $P_{x_i} m$, with m the mean of all: on the circle the Kuramoto model of
equal oscillators, which moves all tokens by one Moebius map of the sphere. Chordal cross ratios $|x_1x_2||x_3x_4| /
(|x_1x_3||x_2x_4|)$ are then conserved, and on the circle the images of evenly spaced tokens follow the equation of Ott
and Antonsen, $r(t) = (1 + (r_0^{-2} - 1) e^{-t})^{-1/2}$.
"""

from collections.abc import Callable
from dataclasses import dataclass

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._attention import SoftmaxAttention
from ..._field import AttentionField
from ..._limits import limit_shape
from ..._simulate import simulate
from ..framework.ensemble import draw_starts
from ..framework.experiment import Settings
from ..framework.parameters import parameter


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
