r"""Tokens under deep attention of one V and one B for all layers, which are trained to tell what tokens were.

A token's label is the side of a plane on which it begins, $y_i = \mathrm{sign}\langle x_i(0), w\rangle$; it is read
off where the token ends, by the loss $\log(1 + e^{-g\,y_i\langle x_i(end), w\rangle})$ averaged over the tokens of a
batch of prompts. With V = B = I all tokens end as one, and nothing can be read. Each task has its own plane w. Only V
and B are trained, by Adam from the identity, each step on new prompts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._attention import SoftmaxAttention
from ..._field import AttentionField
from ..._observables import num_clusters
from ..._simulate import simulate
from ..._space import Sphere


N, D, BETA, END, STEP = 16, 3, 1.0, 6.0, 0.25
GAIN, RATE, BATCH, HELD_OUT = 4.0, 0.05, 8, 16
RADIUS = 0.1


class Weights(NamedTuple):
    """V and B of all layers, (d, d) each."""

    value: Float[Array, "*tasks d d"]
    query_key: Float[Array, "*tasks d d"]


class Told(NamedTuple):
    """Along training, of each task, on prompts that it was not trained on.

    **Attributes:**

    - `loss`, `accuracy`: The loss, and the share of tokens that end on the side where they began, (times, tasks).
    - `clusters`: Of a prompt, how many there are in the end, the mean over prompts, (times, tasks).
    - `cosine`: The mean cosine of all pairs of tokens in the end, (times, tasks).
    """

    loss: Float[Array, "times tasks"]
    accuracy: Float[Array, "times tasks"]
    clusters: Float[Array, "times tasks"]
    cosine: Float[Array, "times tasks"]


def ends(weights: Weights, prompts: Float[Array, "prompts n d"]) -> Float[Array, "prompts n d"]:
    """Where the tokens of prompts end."""
    field = AttentionField(SoftmaxAttention(BETA, query_key=weights.query_key), weights.value)
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP}
    run = lambda x: simulate(field, x, jnp.array([0.0, END]), max_steps=round(END / STEP) + 2, **steps).x1
    return jax.vmap(run)(prompts)


def margins(prompts: Array, final: Array, plane: Float[Array, " d"]) -> Float[Array, "prompts n"]:
    """How far on its own side each token ends; negative on the other."""
    return jnp.sign(prompts @ plane) * (final @ plane)


def loss(weights: Weights, prompts: Array, plane: Array) -> Array:
    """What training minimises."""
    return jnp.mean(jax.nn.softplus(-GAIN * margins(prompts, ends(weights, prompts), plane)))


def train(
    key: PRNGKeyArray, tasks: int, steps: int, times: tuple[int, ...], say: Callable[[str], None] = lambda line: None
) -> tuple[Weights, Told]:
    """The weights of all tasks after training, and what is told at some of its steps."""
    keys = jr.split(key, 3)
    planes = Sphere().sample(keys[0], n=tasks, d=D)
    held_out = draw(keys[1], tasks, HELD_OUT)
    identity = jnp.broadcast_to(jnp.eye(D), (tasks, D, D))
    weights = Weights(identity, identity)
    state, told = _optimiser(steps).init(weights), []
    for step in range(steps + 1):
        if step % 50 == 0:
            say(f"training V and B of all layers: step {step} of {steps}")
        if step in times:
            told.append(_measure(weights, held_out, planes))
        if step < steps:
            prompts = draw(jr.fold_in(keys[2], step), tasks, BATCH)
            weights, state = _update(weights, state, prompts, planes, steps)
    return weights, jax.tree.map(lambda *found: jnp.stack(found), *told)


def draw(key: PRNGKeyArray, tasks: int, prompts: int) -> Float[Array, "tasks prompts n d"]:
    """Prompts of uniform tokens."""
    return Sphere().sample(key, n=tasks * prompts * N, d=D).reshape(tasks, prompts, N, D)


def _optimiser(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(RATE, steps))


@eqx.filter_jit
def _update(weights: Weights, state: Any, prompts: Array, planes: Array, steps: int) -> tuple[Weights, Any]:
    gradient = jax.vmap(jax.grad(loss))(weights, prompts, planes)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its counters with floats
        updates, state = _optimiser(steps).update(gradient, state)
    return optax.apply_updates(weights, updates), state  # pyright: ignore[reportReturnType]


@eqx.filter_jit
def _measure(weights: Weights, prompts: Array, planes: Array) -> Told:
    def one(weights: Weights, prompts: Array, plane: Array) -> Told:
        final = ends(weights, prompts)
        found = margins(prompts, final, plane)
        pairs = jnp.einsum("pid,pjd->pij", final, final)
        return Told(
            jnp.mean(jax.nn.softplus(-GAIN * found)),
            jnp.mean((found > 0).astype(final.dtype)),
            jnp.mean(jax.vmap(lambda x: num_clusters(x, RADIUS))(final).astype(final.dtype)),
            (jnp.sum(pairs) / len(pairs) - N) / (N * (N - 1)),
        )

    return jax.vmap(one)(weights, prompts, planes)
