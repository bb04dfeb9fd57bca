r"""Which small change of V keeps tokens apart longest: by gradient, by random directions, and by hand.

**Algorithm.** $V = I + dV$ with $|dV|_F$ given; all changes are judged by the mean cosine of all pairs of tokens at one
time. *By gradient*: `design.delay`. *Random directions*: as many as it simulated runs, a derivative counted as one. *By
hand*: less V along the mean token, less V in all directions, a rotation about the mean token. **Invariants.** Every dV
has the same Frobenius norm; all are judged by one run, that of `aim`, by which random ones are chosen too.
"""

from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._attention import SoftmaxAttention
from ..._field import AttentionField
from ..._random import draw_normal
from ..._simulate import simulate
from ..._space import Sphere
from ...design import delay


N, D, BETA, NORM = 16, 3, 1.0, 0.5
AIM, LAST, STEP = 5.0, 30.0, 0.25  # when the mean cosine is lowered, when runs end, the step of the solver
GATHERED = 0.9  # of the mean cosine: tokens have then collapsed
ATTEMPTS = 3  # of `design.delay`
CHUNK = 100  # random changes at once
BY_HAND = ("less V along the mean", "less V", "a rotation about the mean")
METHODS = ("gradient", "random directions", *BY_HAND)


class Apart(NamedTuple):
    """Of a problem, by each of `METHODS` and with V = I last, (methods + 1,)."""

    cosine: Float[np.ndarray, "*many methods"]  # the mean cosine at the time of the aim
    time: Float[np.ndarray, "*many methods"]  # when it passes `GATHERED`; the end of the run if it does not
    change: Float[np.ndarray, "*many methods d d"]  # dV
    runs: Int[np.ndarray, "*many"]  # that `design.delay` simulated, and random changes


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


def by_hand(x0: Float[Array, "n d"]) -> Float[Array, "3 d d"]:
    """The changes of `BY_HAND`."""
    mean = jnp.mean(x0, axis=0)
    mean = mean / jnp.linalg.norm(mean)
    turn = jnp.cross(mean[None, :], jnp.eye(D, dtype=x0.dtype))
    return jax.vmap(scaled)(jnp.stack([-jnp.outer(mean, mean), -jnp.eye(D, dtype=x0.dtype), turn]))


def solve(key: PRNGKeyArray) -> Apart:
    """One random problem, by each method."""
    of_start, of_first, of_random = jr.split(key, 3)
    x0 = Sphere().sample(of_start, n=N, d=D)
    field = AttentionField(SoftmaxAttention(BETA), jnp.eye(D, dtype=x0.dtype))
    found = delay(field, x0, until=AIM, norm=NORM, which=lambda field: field.value, key=of_first, attempts=ATTEMPTS)
    by_random = best_of_random(x0, found.runs, of_random)
    changes = jnp.concatenate([
        jnp.asarray(found.changes[0], x0.dtype)[None], by_random[None], by_hand(x0), jnp.zeros((1, D, D), x0.dtype),
    ])  # fmt: skip
    cosine, time = judged(changes, x0)
    return Apart(np.asarray(cosine), np.asarray(time), np.asarray(changes), np.asarray(found.runs))


def best_of_random(x0: Float[Array, "n d"], runs: int, key: PRNGKeyArray) -> Float[Array, "d d"]:
    """The best of so many random changes."""
    best, least = jnp.zeros((D, D), x0.dtype), np.inf
    for begin in range(0, runs, CHUNK):
        drawn = draw_normal(jr.fold_in(key, begin), (CHUNK * D, D), x0.dtype).reshape(CHUNK, D, D)
        changes, aims = aims_of(drawn, x0)
        # No more than the gradient took.
        at = int(np.argmin(aims[: runs - begin]))
        if aims[at] < least:
            best, least = changes[at], float(aims[at])
    return best


@eqx.filter_jit
def aims_of(drawn: Float[Array, "many d d"], x0: Float[Array, "n d"]) -> tuple[Array, Float[Array, " many"]]:
    """Directions, scaled to the norm, and the mean cosine with each."""
    changes = jax.vmap(scaled)(drawn)
    return changes, jax.vmap(lambda change: aim(change, x0))(changes)


@eqx.filter_jit
def judged(changes: Float[Array, "many d d"], x0: Float[Array, "n d"]) -> tuple[Array, Array]:
    """The mean cosine at the time of the aim, and the time of collapse, with each change."""
    ts = jnp.asarray(np.linspace(0, LAST, round(LAST / STEP) + 1), x0.dtype)
    cosines = jax.vmap(lambda change: jax.vmap(mean_cosine)(_run(change, x0, ts)))(changes)
    gathered = cosines >= GATHERED
    time = jnp.where(gathered.any(axis=1), ts[jnp.argmax(gathered, axis=1)], ts[-1])
    return jax.vmap(lambda change: aim(change, x0))(changes), time
