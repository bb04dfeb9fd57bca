"""Depth as noise (2604.01978): layers whose value matrices are drawn anew, and the equation with common noise that they
tend to.

**Setting.** Two tokens on the circle, V = v I in the mean, and matrices G of independent standard normal entries:
$x_i ↦ retract(x_i + η P v a_i + √η σ G a_i)$, where a_i are the averages of softmax attention with Q = K = I.

**Without samples.** The cosine c of two tokens is a diffusion in one dimension, whose drift and noise follow from Ito's
formula. With the weights p of a token for itself and q = 1 - p, let $u = |a_1|² = p² + q² + 2pqc$ and
$w = ⟨a_1, a_2⟩ = 2pq + (p² + q²) c$. The drift is $2vq(1 - c²) - σ²(d-1)uc + σ²w(d - 2 + c²)$, and the squared noise is
$2σ²(1 - c²)(u - cw)$. The mean at time t is the exponential of the generator at Chebyshev points. The mean over one
layer is a Gauss-Hermite sum over the four entries of G, and the mean over many layers a power of that operator.

**Invariant.** The package's layers and runs enter as samples alone, which the two means without samples must meet.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import scipy.linalg
from jaxtyping import Array
from matplotlib.axes import Axes

from ..._dynamics.iterate import iterate
from ..._dynamics.noise import CommonNoise, RandomHeads
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ...plot import OKABE_ITO
from ..framework.figure import ANY, Claim, Found, Say, Settings, Source, claim, figure, parameter, unmet
from ..framework.verdict import Measured
from ..shared.ensemble import mean_and_error
from ..shared.layout import panels
from ..shared.sources import PARTICLES


STEPS = (0.1, 0.05, 0.025)
# beta, v and sigma: a mean head with noise, and noise alone.
ENSEMBLES = ((1.0, 1.0, 0.5), (4.0, 0.0, 0.7))
START = 0.2  # the cosine of the two tokens at first
POINTS, NODES = 32, 10  # the largest degree in the cosine, and the nodes in each entry of a matrix
SAMPLED = 2.0**-4  # the step of sampled runs of the equation
LATEST, TIMES = 4.0, 21  # the end of the curves, and the number of their points, each after whole layers


@dataclass(frozen=True)
class Parameters:
    samples: int = parameter(20_000, "the number of sampled runs", quick=4000, least=100, most=10_000_000)


class Results(NamedTuple):
    p: Parameters
    ts: np.ndarray
    limits: np.ndarray  # the mean cosine of the limit at `ts`, (ensembles, times)
    chains: np.ndarray  # the mean cosine after layers of the first step at the same times, (ensembles, times)
    errors: np.ndarray  # chain minus limit at t = 1, (ensembles, steps)
    # Mean and standard error of the samples at t = 1 minus the value without samples: layers, runs; (ensembles, 2, 2)
    samples: np.ndarray


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    ts = np.linspace(0, LATEST, TIMES)
    errors, limits, chains, samples = [], [], [], []
    for beta, v, s in ENSEMBLES:
        say(f"computing means for beta = {beta:g}, v = {v:g} and sigma = {s:g}")
        limits.append([limit(t, beta, v, s) for t in ts])
        chains.append([chain(round(t / STEPS[0]), STEPS[0], beta, v, s) for t in ts])
        errors.append([chain(round(1 / step), step, beta, v, s) - limit(1.0, beta, v, s) for step in STEPS])
        say(f"sampling {p.samples} runs")
        expected = chain(round(1 / STEPS[0]), STEPS[0], beta, v, s), limit(1.0, beta, v, s)
        keys = jr.split(jr.key(settings.seed), p.samples)
        cosines = [np.asarray(part) for part in sampled(keys, jnp.asarray(beta), jnp.asarray(v), jnp.asarray(s))]
        samples.append([mean_and_error(part - value) for part, value in zip(cosines, expected, strict=True)])
    return Results(p, ts, np.array(limits), np.array(chains), np.array(errors), np.array(samples))


@eqx.filter_jit
def sampled(keys: Array, beta: Array, v: Array, s: Array) -> tuple[Array, Array]:
    """The cosines at t = 1 after layers of the first step, and of runs of the equation, one for each key."""
    attention = SoftmaxAttention(beta)
    field, noise = AttentionField(attention, v * jnp.eye(2)), CommonNoise(attention, s)
    x0 = jnp.asarray([[1.0, 0.0], [START, np.sqrt(1 - START**2)]])

    def both(key):
        layers = iterate(RandomHeads(field, STEPS[0], noise=noise, key=key), x0, round(1 / STEPS[0])).x1
        run = simulate(field, x0, jnp.asarray([0.0, 1.0]), noise=noise, key=key, dt0=SAMPLED).x1
        return layers[0] @ layers[1], run[0] @ run[1]

    return jax.lax.map(both, keys, batch_size=1000)


def places() -> tuple[np.ndarray, np.ndarray]:
    """Chebyshev points of [-1, 1], and the matrix of derivatives at these points."""
    k = np.arange(POINTS + 1)
    c = np.cos(np.pi * k / POINTS)
    sign = np.where((k == 0) | (k == POINTS), 2.0, 1.0) * (-1.0) ** k
    slope = np.outer(sign, 1 / sign) / (c[:, None] - c[None, :] + np.eye(POINTS + 1))
    return c, slope - np.diag(slope.sum(axis=1))


def limit(t: float, beta: float, v: float, s: float, d: int = 2) -> float:
    """The mean cosine of the limit at time t."""
    c, slope = places()
    p = 1 / (1 + np.exp(-beta * (1 - c)))
    q = 1 - p
    u, w = p * p + q * q + 2 * p * q * c, 2 * p * q + (p * p + q * q) * c
    drift = 2 * v * q * (1 - c * c) - s * s * (d - 1) * u * c + s * s * w * (d - 2 + c * c)
    square = 2 * s * s * (1 - c * c) * (u - c * w)
    mean = scipy.linalg.expm(t * (drift[:, None] * slope + square[:, None] / 2 * (slope @ slope))) @ c
    return float(np.polynomial.chebyshev.chebval(START, np.polynomial.chebyshev.chebfit(c, mean, POINTS)))


def chain(layers: int, step: float, beta: float, v: float, s: float) -> float:
    """The mean cosine after some layers."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    matrices = np.stack(np.meshgrid(nodes, nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2, 2)
    shares = np.einsum("a,b,c,d->abcd", weights, weights, weights, weights).ravel()
    c, _ = places()
    operator = np.zeros((POINTS + 1, POINTS + 1))  # from Chebyshev coefficients to values after one layer
    for row, cosine in enumerate(c):
        x = np.array([[1.0, 0.0], [cosine, np.sqrt(max(1 - cosine * cosine, 0.0))]])
        p = 1 / (1 + np.exp(-beta * (1 - cosine)))
        average = np.array([[p, 1 - p], [1 - p, p]]) @ x
        pull = v * (average - np.sum(average * x, axis=1, keepdims=True) * x)
        y = x + step * pull + np.sqrt(step) * s * np.einsum("gab,ib->gia", matrices, average)
        y = y / np.linalg.norm(y, axis=2, keepdims=True)
        angle = np.arccos(np.clip(np.sum(y[:, 0] * y[:, 1], axis=1), -1, 1))
        operator[row] = shares @ np.cos(angle[:, None] * np.arange(POINTS + 1))
    coefficients = np.polynomial.chebyshev.chebfit(c, c, POINTS)
    for _ in range(layers):
        coefficients = np.polynomial.chebyshev.chebfit(c, operator @ coefficients, POINTS)
    return float(np.polynomial.chebyshev.chebval(START, coefficients))


@claim(
    "each slope is within 0.1 of 1",
    source=Source("2604.01978, of a limit of many layers of small steps", PARTICLES, ANY),
)
def first_order(m: Results) -> Found:
    """Layers with random heads tend to an equation with noise common to all tokens: the mean cosine of two tokens has
    an error of first order in the step."""
    slopes = np.log2(np.abs(m.errors[:, :-1] / m.errors[:, 1:]))
    listed = " and ".join(", ".join(f"{slope:.3f}" for slope in row) for row in slopes)
    measured = f"from eta = .1 to .05 to .025 the slope of the error at t = 1 is {listed}, for two ensembles"
    off = float(np.abs(slopes - 1).max())
    return Found(measured, off < 0.1, off)


@claim("all differences are less than four standard errors, for runs plus 0.003 for their step", kind="identity")
def samples(m: Results) -> Found:
    """Samples of `RandomHeads` have the mean of the chain, and samples of `simulate` with `CommonNoise` the mean of the
    limit."""
    off, error = m.samples[..., 0], m.samples[..., 1]
    room = 4 * error + np.array([0.0, 0.003])
    measured = (
        f"for {m.p.samples} samples the largest difference is {np.abs(off[:, 0]).max():.1e} for layers and "
        f"{np.abs(off[:, 1]).max():.1e} for runs, with standard errors of at most {error.max():.1e}"
    )
    return Found(measured, bool(np.all(np.abs(off) < room)), float(np.abs(off).max()))


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Two tokens on the circle with random heads, whose cosine is {START:g} at first; the ensembles are named by "
        "beta, the mean head v and the size sigma. (a) The mean cosine: the limit (curves) and layers of step "
        f"{STEPS[0]:g} (points). (b) The error of the mean cosine at t = 1 against the step; the grey line has the "
        f"slope one. All curves are computed without samples. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    table: dict = {"t": m.ts, "step_by_step": np.array(STEPS)}
    for name, limits, chains, errors in zip(_names(), m.limits, m.chains, m.errors, strict=True):
        table |= {f"limit, {name}": limits, f"layers, {name}": chains, f"error_by_step, {name}": errors}
    return table


def _names() -> list[str]:
    return [f"beta = {beta:g}, v = {v:g}, sigma = {s:g}" for beta, v, s in ENSEMBLES]


def _means(ax: Axes, m: Results) -> None:
    for name, colour, limits, chains in zip(_names(), OKABE_ITO, m.limits, m.chains, strict=False):
        ax.plot(m.ts, limits, color=colour, label=name)
        ax.plot(m.ts, chains, "o", ms=3, color=colour)
    ax.set(xlabel="t", ylabel="mean cosine")
    ax.legend(loc="best")


def _orders(ax: Axes, m: Results) -> None:
    for name, colour, errors in zip(_names(), OKABE_ITO, m.errors, strict=False):
        ax.plot(STEPS, np.abs(errors), "o-", ms=3, color=colour, label=name)
    largest = np.abs(m.errors).max()
    ax.plot(STEPS, 1.5 * largest * np.array(STEPS) / STEPS[0], color="0.6", lw=0.8)
    ax.set(xscale="log", yscale="log", xlabel="step", ylabel="error at t = 1")


FIGURE = figure(
    __name__,
    draw=lambda m: panels(m, (_means, _orders), columns=2, height=2.7),
    over=lambda m: f"{m.p.samples} samples",
    on=lambda m: Measured(PARTICLES, ANY, {"tokens": 2, "d": 2}),
    recorded=lambda m: {
        "starts": m.p.samples, "steps": STEPS, "ensembles": ENSEMBLES, "first cosine": START, "points": POINTS,
        "nodes": NODES, "step of sampled runs": SAMPLED,
    },
)  # fmt: skip
