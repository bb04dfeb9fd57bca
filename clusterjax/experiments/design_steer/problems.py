r"""Random problems of leading tokens to targets, and random search at them.

**Algorithm.** As many uniform tokens as targets, in one of three settings. *Sphere*: softmax attention with a
perceptron of tanh beside it. *Space*: the same in R^d, where tokens and targets are Gaussian. *Block*: that of a
Transformer, two heads and a perceptron with biases, on the sphere in R^4 on which its layer norm leaves the tokens, a
sphere of two dimensions as well. All weights are constant in each piece. *Random search* draws the parameters of all
pieces as `design.steer` draws its first ones, and keeps the schedule whose farthest token is nearest. **Reference.**
Geshkovski, Rigollet, Ruiz-Balet (2411.04551). **Invariants.** A problem is a function of its key, and so is each draw.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from ..._space import AbstractSpace, Euclidean, Sphere
from ...transformer import Block, as_field


N, D, WIDTH = 16, 3, 32
# Of the block: the numbers of a token, of which layer norm leaves two dimensions, its heads, its hidden units.
NUMBERS, HEADS, HIDDEN = 4, 2, 16
TOLERANCE, BETA = 1e-2, 1.0
CHUNK, STEP = 100, 0.25  # runs of random search at once, and their step


@dataclass(frozen=True)
class Setting:
    """A kind of problem: what the parameters are drawn around, which are free, and how far first values spread.

    **Attributes:**

    - `name`: As it is recorded.
    - `made`: The field around which parameters are drawn: attention that attends evenly, and no velocity.
    - `pick`: What of it is free, as `design.steer` takes it.
    - `spread`: The standard deviation of the first values of each.
    """

    name: str
    made: Callable[[], SumField]
    pick: Callable[[Any], tuple[Any, ...]]
    spread: tuple[float, ...]

    @property
    def numbers(self) -> int:
        """How many numbers are free in each piece."""
        return sum(leaf.size for leaf in self.pick(self.made()))

    def draw(self, key: PRNGKeyArray, n: int = N) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
        """Tokens and their targets."""
        space, of_start, of_targets = self.made().space, *jr.split(key)
        d = NUMBERS if self.name == "block" else D
        return space.sample(of_start, n=n, d=d), space.sample(of_targets, n=n, d=d)


def _attention_and_perceptron(space: AbstractSpace) -> SumField:
    number = lambda *shape: jnp.zeros(shape, jnp.float64)
    beta = jnp.asarray(BETA, jnp.float64)
    attention = AttentionField(SoftmaxAttention(beta, query_key=number(D, D)), number(D, D), space)
    perceptron = PerceptronField(number(WIDTH, D), number(D, WIDTH), jnp.tanh, bias_in=number(WIDTH), space=space)
    return attention + perceptron


def _block() -> SumField:
    block = Block.random(jr.key(0), NUMBERS, HEADS, HIDDEN, activation=jnp.tanh, bias=True, dtype=jnp.float64)
    field = as_field(block)
    assert isinstance(field, SumField)
    free = _of_block(field)
    return eqx.tree_at(_of_block, field, tuple(jnp.zeros_like(leaf) for leaf in free))


def _of_attention(field: Any) -> tuple[Any, ...]:
    attention, perceptron = field.fields
    inner = attention.attention
    return inner.beta, inner.query_key, attention.value, perceptron.w_in, perceptron.bias_in, perceptron.w_out


def _of_block(field: Any) -> tuple[Any, ...]:
    heads, perceptron = field.fields
    return (heads.query_key, heads.value, perceptron.w_in, perceptron.bias_in, perceptron.w_out,
            perceptron.bias_out)  # fmt: skip


# The standard deviations of first values: of beta, B, V, and the weights and biases into and the weights out of tanh;
# for a block without beta, which its B contain, and with the biases out.
_OF_ATTENTION = (0.5, 1.0, 0.1, 2.0, 2.0, 0.1)
SPHERE = Setting("sphere", lambda: _attention_and_perceptron(Sphere()), _of_attention, _OF_ATTENTION)
SPACE = Setting("space", lambda: _attention_and_perceptron(Euclidean()), _of_attention, _OF_ATTENTION)
BLOCK = Setting("block", _block, _of_block, (0.5, 0.2, 1.0, 1.0, 0.2, 0.2))
SETTINGS = (SPHERE, SPACE, BLOCK)


def simulations(runs: int, pieces: int, numbers: int) -> int:
    """Runs of all pieces that cost as much as so many runs of one piece, each with its derivatives by forward mode:
    one more run for every one of the `numbers` that are free in a piece."""
    return -(-runs * (1 + numbers) // pieces)


def random_search(setting: Setting, key: PRNGKeyArray, x0: Array, targets: Array, pieces: int, runs: int) -> float:
    """How far the farthest token ends in the best of at least so many runs of all pieces, in whole chunks."""
    many = -(-runs // CHUNK)
    chunks = (jr.split(jr.fold_in(key, k), CHUNK) for k in range(many))
    return min(float(_tried(setting, keys, x0, targets, pieces)) for keys in chunks)


@eqx.filter_jit
def _tried(setting: Setting, keys: Key[Array, " many"], x0: Array, targets: Array, pieces: int) -> Array:
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP}
    knots = jnp.arange(pieces).astype(x0.dtype)

    def one(key: PRNGKeyArray) -> Array:
        drawn = drawn_field(setting, key, knots)
        ends = jnp.asarray([0.0, pieces], x0.dtype)
        end = simulate(drawn, x0, ends, max_steps=round(pieces / STEP) + 2, **steps).x1
        return jnp.max(jnp.linalg.norm(end - targets, axis=1))

    return jnp.min(jax.vmap(one)(keys))


def drawn_field(setting: Setting, key: PRNGKeyArray, knots: Float[Array, " pieces"]) -> SumField:
    """The field with parameters drawn for each piece."""
    base, pieces = setting.made(), knots.shape[0]

    def schedule(leaf: Array, spread: float, key: PRNGKeyArray) -> PiecewiseConstant:
        draw = draw_normal(key, (pieces * leaf.size, 1), leaf.dtype).reshape(pieces, *leaf.shape)
        return PiecewiseConstant(knots, leaf[None] + spread * draw)

    leaves = setting.pick(base)
    schedules = [schedule(*each) for each in zip(leaves, setting.spread, jr.split(key, len(leaves)), strict=True)]
    return eqx.tree_at(setting.pick, base, tuple(schedules))
