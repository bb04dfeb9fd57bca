r"""Random problems of leading tokens to targets, and random search at them.

**Algorithm.** Uniform tokens of the sphere, and as many uniform targets. The field is softmax attention with a
perceptron of tanh beside it; V, B, beta and all weights of the perceptron are constant in each piece. *Random search*
draws the parameters of all pieces as `design.steer` draws its first ones, and keeps the schedule whose farthest token
is nearest. **Reference.** Geshkovski, Rigollet, Ruiz-Balet (2411.04551). **Invariants.** A problem is a function of its
key, and so is each draw.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key, PRNGKeyArray

from ..._attention import SoftmaxAttention
from ..._field import AttentionField, PerceptronField, SumField
from ..._random import draw_normal
from ..._schedule import PiecewiseConstant
from ..._simulate import simulate
from ..._space import Sphere


N, D, WIDTH = 8, 3, 32
TOLERANCE, BETA = 1e-2, 1.0
# The standard deviations of first values: of beta, B, V, and the weights and biases into and the weights out of tanh.
SPREAD = (0.5, 1.0, 0.1, 2.0, 2.0, 0.1)
CHUNK, STEP = 100, 0.25  # runs of random search at once, and their step


def field() -> SumField:
    """What the parameters are drawn around: attention that attends evenly, and no velocity."""
    number = lambda *shape: jnp.zeros(shape, jnp.float64)
    beta = jnp.asarray(BETA, jnp.float64)
    attention = AttentionField(SoftmaxAttention(beta, query_key=number(D, D)), number(D, D))
    return attention + PerceptronField(number(WIDTH, D), number(D, WIDTH), jnp.tanh, bias_in=number(WIDTH))


def pick(f: Any) -> tuple[Any, ...]:
    """All that is free."""
    attention, perceptron = f.fields
    inner = attention.attention
    return inner.beta, inner.query_key, attention.value, perceptron.w_in, perceptron.bias_in, perceptron.w_out


def draw_problem(key: PRNGKeyArray, n: int = N) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
    """Tokens and their targets."""
    of_start, of_targets = jr.split(key)
    return Sphere().sample(of_start, n=n, d=D), Sphere().sample(of_targets, n=n, d=D)


def simulations(runs: int, pieces: int) -> int:
    """Runs of all pieces that cost as much as so many runs of one piece, each with its derivatives by forward mode:
    one more run for every parameter of a piece."""
    numbers = sum(leaf.size for leaf in pick(field()))
    return -(-runs * (1 + numbers) // pieces)


def random_search(key: PRNGKeyArray, x0: Array, targets: Array, pieces: int, runs: int) -> float:
    """How far the farthest token ends in the best of at least so many runs of all pieces, in whole chunks."""
    many = -(-runs // CHUNK)
    return min(float(_tried(jr.split(jr.fold_in(key, k), CHUNK), x0, targets, pieces)) for k in range(many))


@eqx.filter_jit
def _tried(keys: Key[Array, " many"], x0: Array, targets: Array, pieces: int) -> Array:
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP}
    knots = jnp.arange(pieces).astype(x0.dtype)

    def one(key: PRNGKeyArray) -> Array:
        drawn = drawn_field(key, knots)
        ends = jnp.asarray([0.0, pieces], x0.dtype)
        end = simulate(drawn, x0, ends, max_steps=round(pieces / STEP) + 2, **steps).x1
        return jnp.max(jnp.linalg.norm(end - targets, axis=1))

    return jnp.min(jax.vmap(one)(keys))


def drawn_field(key: PRNGKeyArray, knots: Float[Array, " pieces"]) -> SumField:
    """The field with parameters drawn for each piece."""
    base, pieces = field(), knots.shape[0]

    def schedule(leaf: Array, spread: float, key: PRNGKeyArray) -> PiecewiseConstant:
        draw = draw_normal(key, (pieces * leaf.size, 1), leaf.dtype).reshape(pieces, *leaf.shape)
        return PiecewiseConstant(knots, leaf[None] + spread * draw)

    leaves = pick(base)
    schedules = [schedule(*each) for each in zip(leaves, SPREAD, jr.split(key, len(leaves)), strict=True)]
    return eqx.tree_at(pick, base, tuple(schedules))
