"""What the experiment on rank collapse measures: layers with and without skips, feed-forward and norms, of one
program."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._observables import effective_rank
from ..transformer import Block, FeedForward, LayerNorm, MultiHeadAttention, NoNorm, PostNorm, PreNorm


N, D, HEADS, HIDDEN = 32, 32, 4, 128
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
RANKED = 32  # starts of which the rank is taken, at most


class Depths(NamedTuple):
    """What is left after each layer.

    **Attributes:**

    - `residual`: (variants, starts, layers + 1), $\\|X - 1\\bar x^\\top\\|_F / \\|X\\|_F$.
    - `rank`: (variants, few starts, layers + 1), the effective rank.
    - `first`: (variants, n, d), the tokens of the first start after the first layer.

    Source: this library.
    """

    residual: np.ndarray
    rank: np.ndarray
    first: np.ndarray


def _numbers(seed: int, layer: int, starts: int) -> Float[Array, "starts numbers"]:
    """The weights of one layer, of each start; those of the first starts do not depend on how many there are."""
    rng = np.random.default_rng((seed, layer))
    return jnp.asarray(rng.normal(size=(starts, 4 * D * D + 2 * D * HIDDEN)))


def _parts(numbers: Float[Array, " numbers"]) -> tuple[MultiHeadAttention, FeedForward, LayerNorm]:
    """Normal weights of standard deviation 1 / sqrt(inputs), as `Block.random` has them."""
    heads, neurons = numbers[: 4 * D * D] / np.sqrt(D), numbers[4 * D * D :].reshape(2, D, HIDDEN)
    query, key, value, output = heads.reshape(4, HEADS, D, D // HEADS)
    attention = MultiHeadAttention(query, key, value, output.transpose(0, 2, 1))
    feed_forward = FeedForward(neurons[0] / np.sqrt(D), neurons[1].T / np.sqrt(HIDDEN))
    return attention, feed_forward, LayerNorm.identity(D)


@eqx.filter_jit
def _one_layer(
    parts: Float[Array, "variants 4"], numbers: Float[Array, "starts numbers"], x: Float[Array, "variants starts n d"]
) -> tuple[Float[Array, "variants starts n d"], Float[Array, "variants starts"]]:
    def one(parts: Array, numbers: Array, x: Array) -> tuple[Array, Array]:
        skip, with_neurons, after, before = parts
        attention, feed_forward, norm = _parts(numbers)
        read = lambda x: jnp.where(before > 0, norm(x), x)
        write = lambda x: jnp.where(after > 0, norm(x), x)
        middle = write(skip * x + attention(read(x)))
        y = jnp.where(with_neurons > 0, write(skip * middle + feed_forward(read(middle))), middle)
        return y, _residual(y)

    return jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, 0))(parts, numbers, x)


def _residual(x: Float[Array, "n d"]) -> Float[Array, ""]:
    return jnp.linalg.norm(x - jnp.mean(x, axis=0)[None]) / jnp.linalg.norm(x)


@eqx.filter_jit
def _blocks(numbers: Float[Array, " numbers"], x: Float[Array, "n d"]) -> Float[Array, "blocks n d"]:
    attention, feed_forward, norm = _parts(numbers)
    norms = lambda residual: (norm, norm) if residual.needs_norm else (None, None)
    return jnp.stack(
        [Block(attention, feed_forward, norms(kind), kind)(x) for kind in (NoNorm(), PostNorm(), PreNorm())]
    )


def difference_from_blocks(seed: int, x: Float[np.ndarray, "n d"], first: Float[np.ndarray, "variants n d"]) -> float:
    """How far the layers with everything, after the first layer from x, are from blocks, in units of the latter.

    Source: this library.
    """
    numbers = _numbers(seed, 0, 1)[0]
    expected = np.asarray(_blocks(numbers, jnp.asarray(x)))
    return float(np.abs(first[-3:] - expected).max() / np.abs(expected).max())


def run_depths(seed: int, x0: Float[np.ndarray, "starts n d"], layers: int) -> Depths:
    """Every variant from the same starts, through the same random weights, fresh ones in each layer.

    Source: this library.
    """
    parts, starts = jnp.asarray(np.array(list(PARTS.values()), float)), len(x0)
    x = jnp.asarray(np.broadcast_to(x0, (len(parts), *x0.shape)))
    residuals = [np.broadcast_to([_residual_of(one) for one in x0], (len(parts), starts))]
    ranks, first = [_ranks(x)], np.empty(0)
    for layer in range(layers):
        x, residual = _one_layer(parts, _numbers(seed, layer, starts), x)
        first = np.asarray(x)[:, 0] if layer == 0 else first
        residuals.append(np.asarray(residual))
        ranks.append(_ranks(x))
    return Depths(np.stack(residuals, axis=-1), np.stack(ranks, axis=-1), first)


def through_one_layer(
    seed: int, x0: Float[np.ndarray, "spreads starts n d"]
) -> tuple[Float[np.ndarray, "spreads starts"], Float[np.ndarray, "spreads variants starts"]]:
    """The residuals before and after the first layer, from tokens of several spreads.

    Source: this library.
    """
    parts = jnp.asarray(np.array(list(PARTS.values()), float))
    numbers = _numbers(seed, 0, x0.shape[1])
    after = [
        np.asarray(_one_layer(parts, numbers, jnp.asarray(np.broadcast_to(x, (len(parts), *x.shape))))[1]) for x in x0
    ]
    return np.array([[_residual_of(x) for x in cloud] for cloud in x0]), np.stack(after)


def _residual_of(x: np.ndarray) -> float:
    return float(np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x))


_ranks_of = eqx.filter_jit(jax.vmap(jax.vmap(effective_rank)))


def _ranks(x: Float[Array, "variants starts n d"]) -> np.ndarray:
    return np.asarray(_ranks_of(jnp.asarray(np.asarray(x)[:, :RANKED])))


@eqx.filter_jit
def _pure(beta: Float[Array, " betas"], x: Float[Array, "betas n d"]) -> Float[Array, "betas n d"]:
    def one(beta: Array, x: Array) -> Array:
        eye = jnp.eye(x.shape[1], dtype=x.dtype)[None]
        return MultiHeadAttention(eye, eye, eye, eye, beta)(x)

    return jax.vmap(one)(beta, x)


def pure_distances(n: int, betas: tuple[float, ...], layers: int) -> Float[np.ndarray, "betas depths"]:
    """The distance of two tokens after each layer of attention with Q = K = V = I, from n orthogonal tokens.

    Source: this library.
    """
    beta, x = jnp.asarray(betas), np.broadcast_to(np.eye(n), (len(betas), n, n))
    distances = []
    for _ in range(layers + 1):
        distances.append(np.linalg.norm(x[:, 0] - x[:, 1], axis=-1))
        x = np.asarray(_pure(beta, jnp.asarray(x)))
    return np.stack(distances, axis=-1)
