r"""What is measured of V = -I: polygons and simplices under full attention, and how long the last approach takes.

Under causal attention the first tokens halve the circle, see `figure5`. Under full attention there is no order: n
tokens of the circle come to a regular n-gon, and n tokens of $R^d$ with $d \ge n - 1$ to a regular simplex, whose Gram
matrix is $-1/(n-1)$ off the diagonal.

The last approach is slow. A token that is opposite to another feels it with the weight $1/(1 + e^{2\beta})$, so that
token 2 of causal attention comes to its place at that rate, and two tokens of full attention, which both move, at twice
that rate. The slowest rate of a polygon is an eigenvalue of the Jacobian there.
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
from ..._mask import CausalMask, FullMask
from ..._simulate import simulate
from ..framework.ensemble import draw_starts
from ..framework.experiment import Settings
from ..framework.parameters import parameter


SIMPLICES = ((3, 3), (4, 3), (5, 4))  # tokens and dimension
LARGE, FEW = 9.0, (2, 3, 4)  # the large beta, and the tokens that are run there
BETAS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)  # of the times of two tokens
MASKS = {"causal": CausalMask(), "full": FullMask()}
NEAR = 1.0  # degrees from the opposite point within which a pair has arrived
POINTS = 160  # save times of a pair


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(8, "the number of tokens of the largest polygon", least=4, most=12)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=2)
    end: float = parameter(500.0, "the end of the runs", least=100, most=10_000)

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return np.concatenate([[0.0], np.geomspace(0.5, self.end, 40)])


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `polygons`: By n and beta: how far the gaps are from 360 / n, at most, in degrees, (starts, times).
    - `simplices`: By n and d: how far cosines are from -1 / (n - 1), at most, (starts, times).
    - `slowest`: By n and beta: the slowest rate at the regular n-gon.
    - `times`: By mask and beta: when two tokens are within a degree of opposite, (starts,).
    - `rates`: By mask and beta: the rate at which they come nearer from there on, (starts,).
    - `shown`: By n, (times, n, 2), the tokens of the first start.
    """

    p: Parameters
    starts: int
    polygons: dict[tuple[int, float], np.ndarray]
    simplices: dict[tuple[int, int], np.ndarray]
    slowest: dict[tuple[int, float], float]
    times: dict[tuple[str, float], np.ndarray]
    rates: dict[tuple[str, float], np.ndarray]
    shown: dict[int, np.ndarray]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run all starts to polygons and simplices, and pairs to opposite points."""
    polygons, simplices, shown, slowest = {}, {}, {}, {}
    for n, beta in [(n, p.beta) for n in range(2, p.n + 1)] + [(n, LARGE) for n in FEW]:
        say(f"simulating {n} tokens of the circle at beta = {beta:g}")
        xs = repel(draw_starts(settings.seed, settings.starts, n, 2), p, beta)
        polygons[n, beta] = gap_error(xs)
        slowest[n, beta] = slowest_rate(n, beta)
        if beta == p.beta:
            shown[n] = xs[0]
    for n, d in SIMPLICES:
        say(f"simulating {n} tokens with d = {d}")
        simplices[n, d] = simplex_error(repel(draw_starts(settings.seed, settings.starts, n, d), p, p.beta))
    say("simulating pairs")
    times, rates = {}, {}
    for name in MASKS:
        for beta in BETAS:
            times[name, beta], rates[name, beta] = approach(
                draw_starts(settings.seed, settings.starts, 2, 2), name, beta
            )
    return Results(p, settings.starts, polygons, simplices, slowest, times, rates, shown)


def repel(x0: Array, p: Parameters, beta: float) -> np.ndarray:
    """The tokens of all starts under full attention, (starts, times, n, d)."""
    # Few tokens in more dimensions and more tokens of no mass are one program: a cloud of p.n tokens of R^4.
    starts, n, d = x0.shape
    rest = draw_starts(1, starts, p.n - n, 4) if p.n > n else jnp.zeros((starts, 0, 4))
    x = jnp.concatenate([jnp.pad(x0, ((0, 0), (0, 0), (0, 4 - d))), rest], axis=1)
    masses = jnp.asarray([1.0] * n + [0.0] * max(p.n - n, 0))
    return np.asarray(_run_all(x, jnp.asarray(p.ts), jnp.asarray(beta), masses))[:, :, :n, :d]


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, beta: Array, masses: Array) -> Float[Array, "starts times n d"]:
    def run(x: Array) -> Array:
        field = AttentionField(SoftmaxAttention(beta), -jnp.eye(x.shape[1]), masses=masses)
        controller = dfx.PIDController(rtol=1e-8, atol=1e-10)
        return simulate(field, x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000).xs

    return jax.vmap(run)(x0)


@eqx.filter_jit
def _run_pairs(x0: Array, ts: Array, beta: Array, mask: CausalMask | FullMask) -> Float[Array, "starts times n d"]:
    def run(x: Array) -> Array:
        field = AttentionField(SoftmaxAttention(beta, mask=mask), -jnp.eye(2))
        controller = dfx.PIDController(rtol=1e-9, atol=1e-12)
        return simulate(field, x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000).xs

    return jax.vmap(run)(x0)


def gap_error(xs: np.ndarray) -> np.ndarray:
    """How far the largest or smallest gap of tokens of the circle (..., n, 2) is from that of a polygon, in degrees."""
    n = xs.shape[-2]
    angles = np.sort(np.degrees(np.arctan2(xs[..., 1], xs[..., 0])), axis=-1)
    gaps = np.diff(angles, axis=-1, append=angles[..., :1] + 360)
    return np.asarray(np.abs(gaps - 360 / n).max(axis=-1))


def simplex_error(xs: np.ndarray) -> np.ndarray:
    """How far a cosine of two of the tokens (..., n, d) is from -1 / (n - 1), at most."""
    n = xs.shape[-2]
    off = np.einsum("...id,...jd->...ij", xs, xs)[..., ~np.eye(n, dtype=bool)]
    return np.asarray(np.abs(off + 1 / (n - 1)).max(axis=-1))


def slowest_rate(n: int, beta: float) -> float:
    """The smallest rate at which tokens of the circle come back to a regular n-gon, but for its rotation."""
    places = jnp.asarray(2 * np.pi * np.arange(n) / n)
    turned = np.asarray(jax.jacfwd(lambda angles: _angular(angles, beta))(places))
    rates = np.sort(-np.linalg.eigvals(turned).real)
    # One is that of the rotation: zero, to rounding the smallest.
    return float(rates[1])


def _angular(angles: Array, beta: float) -> Array:
    """The velocities of angles under V = -I and full attention."""
    apart = angles[:, None] - angles[None]
    weights = jax.nn.softmax(beta * jnp.cos(apart), axis=1)
    return jnp.sum(weights * jnp.sin(apart), axis=1)


def approach(x0: Array, mask: str, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """When each pair is within a degree of opposite, and the rate of its distance from a degree to a tenth of one."""
    scale = 1 + np.exp(2 * beta)
    ts = np.concatenate([[0.0], np.geomspace(0.1, 20 * scale, POINTS)])
    xs = np.asarray(_run_pairs(x0, jnp.asarray(ts), jnp.asarray(beta), MASKS[mask]))
    # |x_1 + x_2| of nearly opposite tokens is the angle that is missing.
    missing = np.degrees(2 * np.arcsin(np.minimum(np.linalg.norm(xs.sum(axis=2), axis=-1) / 2, 1)))
    times, rates = [], []
    for row in missing:
        inside = np.flatnonzero(row < NEAR)
        k = int(inside[0]) if len(inside) else -1
        if k == -1:
            times.append(np.inf)
        elif k == 0:
            times.append(0.0)
        else:
            part = np.log(row[k - 1] / NEAR) / np.log(row[k - 1] / row[k])
            times.append(ts[k - 1] + part * (ts[k] - ts[k - 1]))
        linear = (row < NEAR) & (row > NEAR / 100)
        rates.append(-np.polyfit(ts[linear], np.log(row[linear]), 1)[0] if linear.sum() > 1 else np.nan)
    return np.array(times), np.array(rates)


def exact_rate(mask: str, beta: float) -> float:
    """The rate at which two tokens come to opposite points."""
    return (1.0 if mask == "causal" else 2.0) / (1 + np.exp(2 * beta))
