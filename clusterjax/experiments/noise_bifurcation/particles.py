r"""Tokens under noise: many by the series where there is one, fewer by all pairs in other dimensions.

**Algorithm.** Attention is divided by $T_c$, so that temperatures are given relative to it and the uniform density
relaxes at the rate $(d - 1)(T - 1)$. A step of length s is one of the midpoint rule along the velocity and then one of
Brownian motion on the sphere (`NoisyLayer`). The mean token, of length r, is read in the middle of the noise, where the
error is of order $s^2$: noise alone shortens the cosine of two tokens at the rate $2(d - 1)T$, but a token stays at
cosine 1 with itself, so that there $r^2 - 1/n$ is that after the step times $e^{(d-1)Ts}$, in expectation. Tokens come
to rest in longer steps than those over which r is averaged, whose error has to be less than that of the average.
**Invariant.** Each number is taken of independent systems, whose spread is its error.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from ..._attention import UnnormalisedAttention
from ..._custom_types import RealScalarLike, Tokens
from ..._field import AttentionField
from ..._layer import AbstractLayer
from ..._noise import NoisyLayer
from ..._space import AbstractSpace, Sphere
from ..._summation import Dense, Harmonic
from .theory import critical_temperature


HELD = 2**20  # pairs of tokens at once
FEW = 400  # tokens, up to which all pairs are summed
SAVES = 64  # of a run
STEP = 0.05  # times d - 1, at most
STEEP = 0.3  # times the fastest rate of attention, at most
FINER = 4.0  # steps are so many times shorter where r is averaged


class Midpoint(AbstractLayer):
    """One step of the midpoint rule."""

    field: AttentionField
    step: Float[Array, ""]
    space: AbstractSpace = Sphere()

    def __call__(self, k: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        middle = self.space.retract(x + self.step / 2 * self.field(0.0, x, args))
        return self.space.retract(x + self.step * self.field(0.0, middle, args))

    def check(self, n: int, d: int) -> None:
        self.field.check(n, d)


class Stay(NamedTuple):
    """A time at one temperature: T / T_c, how long, and what its end is averaged for."""

    ratio: float
    time: float
    name: str


class Found(NamedTuple):
    """The mean length of the mean token at the end of a stay: of each system."""

    each: np.ndarray

    @property
    def mean(self) -> float:
        """Over systems."""
        return float(self.each.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return float(self.each.std(ddof=1) / np.sqrt(len(self.each)))

    def off(self, value: float) -> float:
        """How many standard errors lie between the mean and a value, as improbable as of many systems."""
        from scipy.stats import norm, t  # loaded when it is needed

        distance = abs(self.mean - value) / self.error
        # The same tail of the distribution of Student as of the normal one.
        return float(norm.isf(t.sf(distance, len(self.each) - 1)))


def field_of(beta: float, d: int, n: int) -> AttentionField:
    """Attention divided by T_c, among n tokens."""
    # At the default tolerance of float32 nearly all rows are certified; at 1e-4 most go to pairs, ten times slower.
    summation = Harmonic() if d <= 3 and n > FEW else Dense()
    offset = float(np.log(critical_temperature(beta, d)))
    return AttentionField(UnnormalisedAttention(beta, offset=offset, summation=summation))


def gathered(key: PRNGKeyArray, systems: int, n: int, d: int) -> Float[Array, "systems n d"]:
    """Systems whose tokens are near one point."""
    point = jnp.zeros((1, 1, d), jnp.float32).at[..., 0].set(1)
    return Sphere().retract(point + 0.3 * jr.normal(key, (systems, n, d), jnp.float32))


def spread(key: PRNGKeyArray, systems: int, n: int, d: int) -> Float[Array, "systems n d"]:
    """Systems of uniform tokens."""
    return Sphere().retract(jr.normal(key, (systems, n, d), jnp.float32))


@eqx.filter_jit
def _run(
    layer: AbstractLayer, xs: Array, keys: Key[Array, " systems"], temperature: Array, step: Array, every: Array
) -> tuple[Float[Array, "systems n d"], Float[Array, "systems saves"]]:
    """All systems: the tokens at the end, and the squared length of their mean at all saves, which may be negative.

    The number of layers between saves is traced, unlike that of `iterate`: every stay has another.
    """

    def one(start: tuple[Array, PRNGKeyArray]) -> tuple[Array, Array]:
        x, key = start
        noisy = NoisyLayer(layer, temperature, time=step, key=key)

        def save(x: Array, place: Array) -> tuple[Array, Array]:
            x = jax.lax.fori_loop(place * every, (place + 1) * every, lambda k, x: noisy(k, x), x)
            return x, jnp.sum(jnp.mean(x, axis=0) ** 2)

        return jax.lax.scan(save, x, jnp.arange(SAVES))

    # Many small systems at once, few large ones one after the other.
    _, n, d = xs.shape
    xs, squares = jax.lax.map(one, (xs, keys), batch_size=max(1, HELD // n**2))
    return xs, 1 / n + (squares - 1 / n) * jnp.exp((d - 1) * temperature * step)


def run(
    field: AttentionField,
    xs: Float[Array, "systems n d"],
    ratio: float,
    time: float,
    key: PRNGKeyArray,
    *,
    finer: float = 1.0,
) -> tuple[Array, np.ndarray]:
    """Tokens at the end of a time, and the squared length of their mean at `SAVES` times, (systems, saves)."""
    attention = field.attention
    assert isinstance(attention, UnnormalisedAttention)
    # Two tokens that are near approach each other at this rate.
    fastest = float(np.exp(np.asarray(attention.beta) - np.asarray(attention.offset)))
    longest = min(STEP / (xs.shape[2] - 1), STEEP / fastest) / finer
    # Whole numbers of steps between saves.
    every = int(np.ceil(time / longest / SAVES))
    step = jnp.float32(time / (SAVES * every))
    keys = jr.split(key, len(xs))
    xs, squares = _run(Midpoint(field=field, step=step), xs, keys, jnp.float32(ratio), step, jnp.asarray(every))
    return xs, np.asarray(squares, float)


def follow(
    field: AttentionField, xs: Float[Array, "systems n d"], stays: tuple[Stay, ...], key: PRNGKeyArray
) -> dict[str, Found]:
    """One stay after the other, each from where the last one ended: half of it to come to rest, then finer steps."""
    found = {}
    for place, stay in enumerate(stays):
        to_rest, at_rest = jr.split(jr.fold_in(key, place))
        xs, _ = run(field, xs, stay.ratio, stay.time / 2, to_rest)
        xs, squares = run(field, xs, stay.ratio, stay.time / 2, at_rest, finer=FINER)
        # The first quarter is for what the longer steps had wrong.
        found[stay.name] = Found(np.sqrt(np.maximum(squares[:, SAVES // 4 :], 0)).mean(axis=1))
    return found


def resisting(beta: float, d: int, n: int, systems: int, key: PRNGKeyArray, ratio: float, time: float) -> Found:
    r"""T_c of each system, relative to theory: $T(1 - 1/(n\langle r^2\rangle))$ at a temperature above it, where the
    uniform density is in equilibrium (the law of Curie and Weiss); `time` is that of the slowest rate."""
    field = field_of(beta, d, n)
    xs = spread(key, systems, n, d)
    rate = (d - 1) * (ratio - 1)
    xs, _ = run(field, xs, ratio, 4 / rate, jr.fold_in(key, 1))
    _, squares = run(field, xs, ratio, time / rate, jr.fold_in(key, 2))
    each = n * squares.mean(axis=1)
    mean = each.mean()
    # Linearised about the mean of all systems: 1 / x of each would be biased by the variance of x.
    return Found(ratio * (1 - 1 / mean + (each - mean) / mean**2))
