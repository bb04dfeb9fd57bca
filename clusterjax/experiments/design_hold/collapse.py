r"""Which small change of V keeps tokens apart longest: by gradient, by random directions, and by hand.

**Algorithm.** $V = I + dV$ with $|dV|_F$ given. The mean cosine of all pairs of tokens at a time is lowered by steps
along its gradient, each followed by a rescaling to the norm; the best of all steps is kept. *Random directions*: as
many as the gradients cost runs, of which each takes one and nine derivatives. *By hand*: less V along the mean token,
less V in all directions, a rotation about the mean token. **Invariants.** Every dV has the same Frobenius norm.
"""

from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..._attention import SoftmaxAttention
from ..._field import AttentionField
from ..._random import draw_normal
from ..._simulate import simulate
from ..._space import Sphere


N, D, BETA, NORM = 16, 3, 1.0, 0.5
AIM, LAST, STEP = 5.0, 30.0, 0.25  # when the mean cosine is lowered, when runs end, the step of the solver
GATHERED = 0.9  # of the mean cosine: tokens have then collapsed
ASCENT, RATE = 30, 0.2  # steps along the gradient, and their length over the norm
RUNS = (ASCENT + 1) * (D * D + 1)
BY_HAND = ("less V along the mean", "less V", "a rotation about the mean")
METHODS = ("gradient", "random directions", *BY_HAND)


class Apart(NamedTuple):
    """Of a problem, by each of `METHODS` and with V = I last, (methods + 1,)."""

    cosine: Float[np.ndarray, "*many methods"]  # the mean cosine at the time of the aim
    time: Float[np.ndarray, "*many methods"]  # when it passes `GATHERED`; the end of the run if it does not
    change: Float[np.ndarray, "*many methods d d"]  # dV


def mean_cosine(x: Float[Array, "n d"]) -> Float[Array, ""]:
    """Over all pairs of different tokens."""
    n = x.shape[0]
    return (jnp.sum(jnp.sum(x, axis=0) ** 2) - n) / (n * (n - 1))


def aim(change: Float[Array, "d d"], x0: Float[Array, "n d"]) -> Float[Array, ""]:
    """What is lowered."""
    return mean_cosine(_run(change, x0, jnp.array([0.0, AIM], x0.dtype))[-1])


def _run(change: Array, x0: Array, ts: Array) -> Array:
    field = AttentionField(SoftmaxAttention(BETA), jnp.eye(D, dtype=x0.dtype) + change)
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP}
    return simulate(field, x0, ts, max_steps=round(LAST / STEP) + 2, adjoint=dfx.ForwardMode(), **steps).xs


def scaled(change: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """With the norm that all have."""
    return NORM * change / jnp.linalg.norm(change)


def descend(start: Array, x0: Array) -> Array:
    """The best dV along the gradient from a direction."""

    def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        change, best, least = carry
        value, slope = aim(change, x0), jax.jacfwd(aim)(change, x0)
        better = value < least
        best, least = jnp.where(better, change, best), jnp.minimum(value, least)
        # The part along dV itself is taken back by the rescaling.
        slope = slope - jnp.sum(slope * change) * change / NORM**2
        length = jnp.linalg.norm(slope)
        move = RATE * NORM * slope / jnp.where(length > 0, length, 1)
        return (scaled(change - move), best, least), None

    carry = scaled(start), scaled(start), jnp.asarray(jnp.inf, x0.dtype)
    (_, best, _), _ = jax.lax.scan(step, carry, None, ASCENT + 1)
    return best


def by_hand(x0: Float[Array, "n d"]) -> Float[Array, "3 d d"]:
    """The changes of `BY_HAND`."""
    mean = jnp.mean(x0, axis=0)
    mean = mean / jnp.linalg.norm(mean)
    turn = jnp.cross(mean[None, :], jnp.eye(D, dtype=x0.dtype))
    return jax.vmap(scaled)(jnp.stack([-jnp.outer(mean, mean), -jnp.eye(D, dtype=x0.dtype), turn]))


def solve(key: PRNGKeyArray) -> Apart:
    """One random problem, by each method."""
    return Apart(*map(np.asarray, _solved(key)))


@eqx.filter_jit
def _solved(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
    of_start, of_first, of_random = jr.split(key, 3)
    x0 = Sphere().sample(of_start, n=N, d=D)
    best = descend(draw_normal(of_first, (D, D), x0.dtype), x0)
    drawn = jax.vmap(scaled)(draw_normal(of_random, (RUNS * D, D), x0.dtype).reshape(RUNS, D, D))
    found = drawn[jnp.argmin(jax.lax.map(lambda change: aim(change, x0), drawn, batch_size=50))]
    changes = jnp.concatenate([jnp.stack([best, found]), by_hand(x0), jnp.zeros((1, D, D), x0.dtype)])
    ts = jnp.asarray(np.linspace(0, LAST, round(LAST / STEP) + 1), x0.dtype)
    cosines = jax.vmap(lambda change: jax.vmap(mean_cosine)(_run(change, x0, ts)))(changes)
    gathered = cosines >= GATHERED
    time = jnp.where(gathered.any(axis=1), ts[jnp.argmax(gathered, axis=1)], ts[-1])
    return jax.vmap(lambda change: aim(change, x0))(changes), time, changes
