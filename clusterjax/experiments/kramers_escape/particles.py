"""Tokens under noise: one between two clusters that stay, and clouds of many tokens.

Angles are unwrapped, and Heun's rule for additive noise, of weak order two, steps both. A token has escaped when it
first reaches the middle of the other cluster, from where it escapes anew: passages from middle to middle are
independent. Of clouds the two middles are followed by the phase of the mean of $e^{2i\\theta}$, half of it.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._custom_types import Scalar
from .theory import GRID, MODES, Potential, cloud, kernel_modes


STEP = 0.1  # wells have a curvature of one half at most


class Passages(NamedTuple):
    """What passes between two clouds in equal parts of a window of time.

    **Attributes:**

    - `counts`: (parts, 2, systems), how many tokens left the first and the second cloud.
    - `shares`: (parts + 1, systems), of tokens in the first cloud, between the parts.
    - `distances`: (parts + 1, systems), the angle from the middle of the first cloud to that of the second.
    - `part`: How long each part is.
    """

    counts: np.ndarray
    shares: np.ndarray
    distances: np.ndarray
    part: float


def force(theta: Array, beta: Scalar) -> Array:
    """On a token between two clusters of half the mass each, at 0 and pi."""
    cosine = jnp.cos(theta)
    return -jnp.sin(theta) * (jnp.exp(beta * (cosine - 1)) - jnp.exp(-beta * (cosine + 1))) / 2


@eqx.filter_jit
def passage_times(beta: Scalar, temperature: Scalar, key: PRNGKeyArray, tokens: int) -> Float[Array, " tokens"]:
    """How long each of many tokens takes from one cluster to the other."""
    size = jnp.sqrt(2 * temperature * STEP)

    def go(state):
        theta, times, k = state
        noise = size * jr.normal(jr.fold_in(key, k), theta.shape, theta.dtype)
        first = force(theta, beta)
        second = force(theta + STEP * first + noise, beta)
        theta = theta + STEP * (first + second) / 2 + noise
        passed = (times == 0) & (jnp.abs(theta) >= jnp.pi)
        return theta, jnp.where(passed, (k + 1) * STEP, times), k + 1

    start = jnp.zeros(tokens), jnp.zeros(tokens), 0
    return lax.while_loop(lambda state: jnp.any(state[1] == 0), go, start)[1]


def mean_force(theta: Float[Array, "*systems n"], beta: Scalar, modes: Array) -> Array:
    """On each token by all tokens of its system, by the harmonics of the kernel."""
    cosine, sine = jnp.cos(theta), jnp.sin(theta)
    c, s, total = cosine, sine, jnp.zeros_like(theta)
    for m in range(1, MODES + 1):
        mean = lambda part: jnp.mean(part, axis=-1, keepdims=True)
        total = total + m * modes[m - 1] * (c * mean(s) - s * mean(c))
        c, s = c * cosine - s * sine, s * cosine + c * sine
    return total / beta


def middle(theta: Float[Array, "systems n"]) -> Float[Array, " systems"]:
    """Twice the angle of the middle of one of two opposite clusters."""
    return jnp.arctan2(jnp.mean(jnp.sin(2 * theta), axis=-1), jnp.mean(jnp.cos(2 * theta), axis=-1))


def centres(theta: Array, second: Array) -> tuple[Array, Array, Array]:
    """Of each system: the share of tokens in the first cloud, and the mean angles of both clouds."""
    part = lambda chosen, wave: jnp.sum(jnp.where(chosen, wave(theta), 0), axis=-1)
    angle = lambda chosen: jnp.arctan2(part(chosen, jnp.sin), part(chosen, jnp.cos))
    return jnp.mean(~second, axis=-1, dtype=theta.dtype), angle(~second), angle(second)


@eqx.filter_jit
def _passages(state, beta, modes, temperature, key, windows: int, steps) -> tuple[Array, Array]:
    """Windows of `steps` steps each: how many tokens left each cloud in each, and the clouds before, between, after."""
    size = jnp.sqrt(2 * temperature * STEP)

    def go(k, state):
        theta, away, second, counts = state
        noise = size * jr.normal(jr.fold_in(key, k), theta.shape, theta.dtype)
        first = mean_force(theta, beta, modes)
        after = mean_force(theta + STEP * first + noise, beta, modes)
        moved = STEP * (first + after) / 2 + noise
        turn = middle(theta + moved) - middle(theta)
        turn = (turn - 2 * jnp.pi * jnp.round(turn / (2 * jnp.pi))) / 2
        away = away + moved - turn[:, None]
        over = jnp.abs(away) >= jnp.pi
        # Once there it is away from the other middle.
        away = jnp.where(over, away - jnp.pi * jnp.sign(away), away)
        left = jnp.stack([jnp.sum(over & ~second, axis=1), jnp.sum(over & second, axis=1)])
        return theta + moved, away, second ^ over, counts + left

    def seen(state):
        share, one, two = centres(state[0], state[2])
        return jnp.stack([share, jnp.mod(two - one, 2 * jnp.pi)])

    def window(state, place):
        before = seen(state)
        *state, counts = lax.fori_loop(
            place * steps, (place + 1) * steps, go, (*state, jnp.zeros((2, before.shape[1]), int))
        )
        return tuple(state), (counts, before)

    state, (counts, clouds) = lax.scan(window, state, jnp.arange(windows))
    return counts, jnp.concatenate([clouds, seen(state)[None]])


def at_rest(potential: Potential, temperature: float, key: PRNGKeyArray, systems: int, tokens: int) -> Array:
    """(systems, tokens), how far tokens are from the middle of their cloud, where passages are stationary.

    A token belongs to the cloud whose middle it was at last. In equilibrium, which looks the same backwards in time,
    that is at an angle x the chance of coming to the own middle before that of the other.
    """
    x = np.linspace(0, np.pi, GRID + 1)
    u = potential(x) / temperature
    rise = np.cumsum(np.exp(u - u.max()))
    total = np.cumsum(np.exp(u.min() - u) * (1 - rise / rise[-1]))
    away, side = jr.split(key)
    drawn = jr.uniform(away, (systems, tokens))
    # Not at the middle of the other, where it would belong to that.
    return jnp.interp(drawn, jnp.asarray(total / total[-1]), jnp.asarray(x * (1 - 1e-9))) * jr.rademacher(
        side, drawn.shape, drawn.dtype
    )


def cloud_passages(
    beta: float, temperature: float, key: PRNGKeyArray, *, systems: int, tokens: int, window: float, parts: int
) -> Passages:
    """What passes between two clouds of half the tokens each, in `parts` parts of a window of time."""
    start, run = jr.split(key)
    away = at_rest(cloud(beta, temperature)[0], temperature, start, systems, tokens)
    second = jnp.broadcast_to(jnp.arange(tokens) % 2 == 1, away.shape)
    state = away + jnp.pi * second.astype(away.dtype), away, second
    modes, b, t = jnp.asarray(kernel_modes(beta)), jnp.asarray(beta), jnp.asarray(temperature)
    steps = max(round(window / STEP / parts), 1)
    counts, clouds = _passages(state, b, modes, t, run, parts, jnp.asarray(steps))
    return Passages(np.asarray(counts), np.asarray(clouds[:, 0]), np.asarray(clouds[:, 1]), steps * STEP)
