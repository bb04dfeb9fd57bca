"""Tokens under noise: one between two clusters that stay, and clouds of many tokens.

Angles are unwrapped, and Heun's rule for additive noise, of weak order two, steps both. A token has escaped when it
first reaches the middle of the other cluster, from where it escapes anew: passages from middle to middle are
independent. Of clouds the two middles are followed by the phase of the mean of $e^{2i\\theta}$, half of it.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._custom_types import Scalar
from .theory import MODES, kernel_modes


STEP = 0.1  # wells have a curvature of one half at most
WARM = 30.0  # for how long clouds come to rest before passages are counted


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


@eqx.filter_jit
def _passages(theta, away, beta, modes, temperature, key, steps) -> tuple[Array, Array, Array]:
    size = jnp.sqrt(2 * temperature * STEP)

    def go(k, state):
        theta, away, count = state
        noise = size * jr.normal(jr.fold_in(key, k), theta.shape, theta.dtype)
        first = mean_force(theta, beta, modes)
        second = mean_force(theta + STEP * first + noise, beta, modes)
        moved = STEP * (first + second) / 2 + noise
        turn = middle(theta + moved) - middle(theta)
        turn = (turn - 2 * jnp.pi * jnp.round(turn / (2 * jnp.pi))) / 2
        away = away + moved - turn[:, None]
        over = jnp.abs(away) >= jnp.pi
        # Once there it is away from the other middle.
        away = jnp.where(over, away - jnp.pi * jnp.sign(away), away)
        return theta + moved, away, count + jnp.sum(over, axis=1)

    return lax.fori_loop(0, steps, go, (theta, away, jnp.zeros(theta.shape[0], int)))


def cloud_times(
    beta: float, temperature: float, key: PRNGKeyArray, *, systems: int, tokens: int, width: float, window: float
) -> np.ndarray:
    """(systems,), the mean time between passages: the time of all tokens over the number of their passages."""
    own, early, late = jr.split(key, 3)
    away = width * jr.normal(own, (systems, tokens))
    theta = away + jnp.pi * (jnp.arange(tokens) % 2).astype(away.dtype)[None]
    modes, b, t = jnp.asarray(kernel_modes(beta)), jnp.asarray(beta), jnp.asarray(temperature)
    theta, away, _ = _passages(theta, away, b, modes, t, early, jnp.asarray(round(WARM / STEP)))
    steps = max(round(window / STEP), 1)
    *_, count = _passages(theta, away, b, modes, t, late, jnp.asarray(steps))
    return tokens * steps * STEP / np.maximum(np.asarray(count), 1)
