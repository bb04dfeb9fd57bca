"""What the experiment on rank collapse measures: layers with and without skips, feed-forward and norms, of one program.

The residual is the distance from equal tokens, ||X - 1 x^T|| / ||X||. Dong, Cordonnier, Loukas (2103.03404): attention
alone cubes it, layer by layer, so that after L layers it is raised to the power 3^L. Seven variants differ by four
flags and run in one compiled program with the same weights, fresh in each layer; a start has weights of its own. From
orthogonal tokens under attention alone one distance describes everything, and an exact recursion continues where
float64 ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._observables import effective_rank
from ...transformer import Block, FeedForward, LayerNorm, MultiHeadAttention, NoNorm, PostNorm, PreNorm
from ..framework.ensemble import mean_and_error
from ..framework.experiment import Settings
from ..framework.parameters import parameter


# Whether there are skip connections, a feed-forward layer, a norm after each sub-layer, a norm before it.
PARTS = {
    "attention alone": (0, 0, 0, 0),
    "+ feed-forward": (0, 1, 0, 0),
    "+ layer norm": (0, 0, 1, 0),
    "+ skip": (1, 0, 0, 0),
    "block, no norm": (1, 1, 0, 0),
    "block, PostNorm": (1, 1, 1, 0),
    "block, PreNorm": (1, 1, 0, 1),
}
FEW, BETAS, PURE_LAYERS = 6, (1.5, 4.0, 6.0), 12  # orthogonal tokens, for the exact recursion
SPREADS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
LEAST = 1e-300  # in place of a residual that is zero, so that it has a logarithm
GONE = 1e-12  # a residual below it is none; rounding leaves 4e-16
RANKED = 32  # starts of which the rank is taken, at most


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens", least=4, most=512)
    d: int = parameter(32, "the width of the layers, a multiple of heads", least=8, most=512)
    heads: int = parameter(4, "the number of heads", least=1, most=64)
    hidden: int = parameter(128, "the neurons of a feed-forward layer", least=1, most=4096)
    layers: int = parameter(24, "the number of layers", quick=12, least=12, most=200)

    def __post_init__(self):
        if self.d % self.heads:
            raise ValueError(f"heads must divide d, {self.d}, but it is {self.heads}; set another of the two.")


class Depths(NamedTuple):
    """What is left after each layer.

    **Attributes:**

    - `residual`: (variants, starts, layers + 1), $\\|X - 1\\bar x^\\top\\|_F / \\|X\\|_F$.
    - `rank`: (variants, few starts, layers + 1), the effective rank.
    - `first`: (variants, n, d), the tokens of the first start after the first layer.
    """

    residual: np.ndarray
    rank: np.ndarray
    first: np.ndarray


def _numbers(p: Parameters, seed: int, layer: int, starts: int) -> Float[Array, "starts numbers"]:
    """The weights of one layer, of each start; those of the first starts do not depend on how many there are."""
    # A generator for each layer: more layers or starts leave the earlier numbers as they are.
    rng = np.random.default_rng((seed, layer))
    return jnp.asarray(rng.normal(size=(starts, 4 * p.d * p.d + 2 * p.d * p.hidden)))


def _parts(p: Parameters, numbers: Float[Array, " numbers"]) -> tuple[MultiHeadAttention, FeedForward, LayerNorm]:
    """Normal weights of standard deviation 1 / sqrt(inputs), as `Block.random` has them."""
    d, size = p.d, 4 * p.d * p.d
    # One row of numbers is cut into query, key, value, output and both matrices of the feed-forward.
    heads, neurons = numbers[:size] / np.sqrt(d), numbers[size:].reshape(2, d, p.hidden)
    query, key, value, output = heads.reshape(4, p.heads, d, d // p.heads)
    attention = MultiHeadAttention(query, key, value, output.transpose(0, 2, 1))
    feed_forward = FeedForward(neurons[0] / np.sqrt(d), neurons[1].T / np.sqrt(p.hidden))
    return attention, feed_forward, LayerNorm.identity(d)


@eqx.filter_jit
def _one_layer(
    p: Parameters,
    parts: Float[Array, "variants 4"],
    numbers: Float[Array, "starts numbers"],
    x: Float[Array, "variants starts n d"],
) -> tuple[Float[Array, "variants starts n d"], Float[Array, "variants starts"]]:
    def apply(parts: Array, numbers: Array, x: Array) -> tuple[Array, Array]:
        # 0 or 1 each, as floats: traced, so that variants share a program.
        skip, with_neurons, after, before = parts
        attention, feed_forward, norm = _parts(p, numbers)
        read = lambda x: jnp.where(before > 0, norm(x), x)
        write = lambda x: jnp.where(after > 0, norm(x), x)
        middle = write(skip * x + attention(read(x)))
        # Computed for every variant and taken for some: where under vmap is a selection.
        y = jnp.where(with_neurons > 0, write(skip * middle + feed_forward(read(middle))), middle)
        return y, _residual(y)

    return jax.vmap(jax.vmap(apply, (None, 0, 0)), (0, None, 0))(parts, numbers, x)


def _residual(x: Float[Array, "n d"]) -> Float[Array, ""]:
    return jnp.linalg.norm(x - jnp.mean(x, axis=0)[None]) / jnp.linalg.norm(x)


@eqx.filter_jit
def _blocks(p: Parameters, numbers: Float[Array, " numbers"], x: Float[Array, "n d"]) -> Float[Array, "blocks n d"]:
    attention, feed_forward, norm = _parts(p, numbers)
    norms = lambda residual: (norm, norm) if residual.needs_norm else (None, None)
    return jnp.stack(
        [Block(attention, feed_forward, norms(kind), kind)(x) for kind in (NoNorm(), PostNorm(), PreNorm())]
    )


def difference_from_blocks(
    p: Parameters, seed: int, x: Float[np.ndarray, "n d"], first: Float[np.ndarray, "variants n d"]
) -> float:
    """How far the layers with everything, after the first layer from x, are from blocks, in units of the latter."""
    numbers = _numbers(p, seed, 0, 1)[0]
    expected = np.asarray(_blocks(p, numbers, jnp.asarray(x)))
    # The last three variants are those that are blocks, in the order of `_blocks`.
    return float(np.abs(first[-3:] - expected).max() / np.abs(expected).max())


def run_depths(p: Parameters, seed: int, x0: Float[np.ndarray, "starts n d"]) -> Depths:
    """Every variant from the same starts, through the same random weights, fresh ones in each layer."""
    parts, starts = jnp.asarray(np.array(list(PARTS.values()), float)), len(x0)
    x = jnp.asarray(np.broadcast_to(x0, (len(parts), *x0.shape)))
    residuals = [np.broadcast_to([_residual_of(one) for one in x0], (len(parts), starts))]
    ranks, first = [_ranks(x)], np.empty(0)
    for layer in range(p.layers):
        x, residual = _one_layer(p, parts, _numbers(p, seed, layer, starts), x)
        first = np.asarray(x)[:, 0] if layer == 0 else first
        # A residual of zero has no logarithm.
        residuals.append(np.maximum(np.asarray(residual), LEAST))
        ranks.append(_ranks(x))
    return Depths(np.stack(residuals, axis=-1), np.stack(ranks, axis=-1), first)


def through_one_layer(
    p: Parameters, seed: int, x0: Float[np.ndarray, "spreads starts n d"]
) -> tuple[Float[np.ndarray, "spreads starts"], Float[np.ndarray, "spreads variants starts"]]:
    """The residuals before and after the first layer, from tokens of several spreads."""
    parts = jnp.asarray(np.array(list(PARTS.values()), float))
    numbers = _numbers(p, seed, 0, x0.shape[1])
    each = lambda x: jnp.asarray(np.broadcast_to(x, (len(parts), *x.shape)))
    after = np.stack([np.asarray(_one_layer(p, parts, numbers, each(x))[1]) for x in x0])
    return np.array([[_residual_of(x) for x in cloud] for cloud in x0]), np.maximum(after, LEAST)


def _residual_of(x: np.ndarray) -> float:
    return float(np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x))


_ranks_of = eqx.filter_jit(jax.vmap(jax.vmap(effective_rank)))


def _ranks(x: Float[Array, "variants starts n d"]) -> np.ndarray:
    return np.asarray(_ranks_of(jnp.asarray(np.asarray(x)[:, :RANKED])))


@eqx.filter_jit
def _pure(beta: Float[Array, " betas"], x: Float[Array, "betas n d"]) -> Float[Array, "betas n d"]:
    def attend(beta: Array, x: Array) -> Array:
        # One head, Q = K = V = I.
        eye = jnp.eye(x.shape[1], dtype=x.dtype)[None]
        return MultiHeadAttention(eye, eye, eye, eye, beta)(x)

    return jax.vmap(attend)(beta, x)


def pure_distances(n: int, betas: tuple[float, ...], layers: int) -> Float[np.ndarray, "betas depths"]:
    """The distance of two tokens after each layer of attention with Q = K = V = I, from n orthogonal tokens."""
    beta, x = jnp.asarray(betas), np.broadcast_to(np.eye(n), (len(betas), n, n))
    distances = []
    for _ in range(layers + 1):
        distances.append(np.linalg.norm(x[:, 0] - x[:, 1], axis=-1))
        x = np.asarray(_pure(beta, jnp.asarray(x)))
    return np.stack(distances, axis=-1)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `depths`: What is left after each layer.
    - `before`, `after`: The residuals before and after one layer, from several spreads.
    - `powers`: p in "residual after = C (residual before)^p", mean and standard error, by variant.
    - `gone`: After how many layers the residual is gone, mean and standard error, by variant.
    - `pure`, `exact`: (betas, layers + 1), the distance of orthogonal tokens under attention alone, and the recursion.
    - `off`: How far the layers with skips are from blocks of the package, relatively.
    """

    p: Parameters
    starts: int
    depths: Depths
    before: np.ndarray
    after: np.ndarray
    powers: dict[str, tuple[float, float]]
    gone: dict[str, tuple[float, float]]
    pure: np.ndarray
    exact: np.ndarray
    off: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Iterate all variants through the layers, and measure one layer and attention alone."""
    say("iterating")
    rng = np.random.default_rng(settings.seed)
    x0 = _on_sphere(rng.normal(size=(settings.starts, p.n, p.d)))
    depths = run_depths(p, settings.seed, x0)
    say("measuring one layer")
    middle = _on_sphere(rng.normal(size=(settings.starts, 1, p.d)))
    # Tokens about one direction, at several distances from it: a small residual to begin with.
    spreads = _on_sphere(middle + np.multiply.outer(np.array(SPREADS), x0))
    before, after = through_one_layer(p, settings.seed, spreads)
    powers = dict(zip(PARTS, (_power(before, one) for one in after.transpose(1, 0, 2)), strict=True))
    gone = dict(zip(PARTS, (layers_until_gone(one) for one in depths.residual), strict=True))
    exact = np.stack([recursion(FEW, beta, PURE_LAYERS) for beta in BETAS])
    pure = pure_distances(FEW, BETAS, PURE_LAYERS)
    off = difference_from_blocks(p, settings.seed, x0[0], depths.first)
    return Results(p, settings.starts, depths, before, after, powers, gone, pure, exact, off)


def recursion(n: int, beta: float, layers: int) -> np.ndarray:
    r"""$\delta \mapsto \delta\,(e^{\beta\delta^2/2} - 1) / (e^{\beta\delta^2/2} + n - 1)$ from $\sqrt2$, after each
    layer: the distance of tokens that are all equally far apart.

    The exponent $3^L$ is that of 2103.03404; the recursion follows from the symmetry of the tokens.
    """
    distances = [np.sqrt(2.0)]
    for _ in range(layers):
        # expm1: for a small distance e^x - 1 would be zero.
        lift = np.expm1(beta * distances[-1] ** 2 / 2)
        distances.append(distances[-1] * lift / (lift + n))
    return np.array(distances)


def _on_sphere(x: np.ndarray) -> np.ndarray:
    """Tokens of length sqrt(d), as a layer norm leaves them."""
    return np.sqrt(x.shape[-1]) * x / np.linalg.norm(x, axis=-1, keepdims=True)


def _power(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """p in "residual after = C (residual before)^p", from the two smallest spreads: mean over the starts and error."""
    # The two smallest spreads, where higher orders are least.
    powers = np.log(after[-2] / after[-1]) / np.log(before[-2] / before[-1])
    mean, error = mean_and_error(powers)
    return float(mean), float(error)


def layers_until_gone(residual: np.ndarray) -> tuple[float, float]:
    """After how many layers a residual (starts, layers + 1) is gone; the depth + 1 for those that are not."""
    below = residual < GONE
    mean, error = mean_and_error(np.where(below.any(1), below.argmax(1), residual.shape[1]))
    return float(mean), float(error)
