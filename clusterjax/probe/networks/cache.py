"""Cached keys and values of a causal network, so that each new token costs one position instead of a whole pass.

No token attends to a later one, so that the keys and values of a text do not change when it is continued (Vaswani et
al., 1706.03762, Section 3.2.3; Shazeer, *Fast transformer decoding*, 1911.02150, Section 2.4). They are written to the
positions of their tokens in arrays of a fixed size, and the queries of new tokens attend to positions up to their own.
One layer is compiled and called for each layer in turn: a scan over stacked weights would copy the weights of each
layer out of the stack, which for one token takes longer than the products, and a program of all layers takes long to
compile.

Invariants: reading in pieces equals reading at once, up to rounding, under every causal mask and with every kind of
positions; entries after the last token that was read receive no attention and are overwritten.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from .block import Context, Gains
from .layer_scan import gains_of
from .layers import attend, distance_rows
from .network import AbstractNetwork, check_not_ahead


class Parts(NamedTuple):
    """A network split into parts, so that its layers can be called one by one.

    **Arguments:**

    - `whole`: The network: its form, which is static, and its arrays.
    - `blocks`: The form and the arrays of each block.
    - `order`: The index of the block of each layer.
    - `gains`: The gains of each layer at all positions.
    - `shared`: The bias, the rotation and the allowed pairs of `Context` at all positions, which the layers share.
    """

    whole: tuple[Any, tuple[Array, ...]]
    blocks: list[tuple[Any, tuple[Array, ...]]]
    order: list[int]
    gains: list[Gains]
    shared: tuple[Any, Any, Any]


class Cache(NamedTuple):
    """The rotated keys and the values of the tokens that one layer has read, at the positions of the tokens.

    **Arguments:**

    - `keys`, `values`: (batch, size, shared, k).
    """

    keys: Float[Array, "batch size shared k"]
    values: Float[Array, "batch size shared k"]


def take_apart(network: AbstractNetwork, size: int) -> Parts:
    """Split a causal network for texts of `size` positions.

    **Raises:**

    - `ValueError` if under the mask of the network some token attends to a later one.
    """
    context, gains = network.shared_context(size), gains_of(network, size)
    check_not_ahead(network, "this network", size)
    layers = range(network.num_layers)
    return Parts(
        _flat(network), [_flat(block) for block in network.blocks()], network.order(),
        [jtu.tree_map(lambda leaf, at=layer: leaf[at], gains) for layer in layers],
        (context.bias, context.rotation, context.allowed),
    )  # fmt: skip


def empty(network: AbstractNetwork, batch: int, size: int) -> list[Cache]:
    """An empty cache for each layer, for `batch` texts of `size` positions."""
    parts = jax.eval_shape(lambda: network.blocks()[0].project(network.embed(jnp.zeros((batch, size), jnp.int32))))
    make = lambda part: jnp.zeros(part.shape, part.dtype)
    return [Cache(make(parts.key), make(parts.value)) for _ in range(network.num_layers)]


def read_on(
    parts: Parts, caches: list[Cache], ids: Int[Array, "batch size"], first: Int[Array, " batch"], count: int
) -> tuple[Float[Array, "batch count d"], list[Cache]]:
    """The hidden states after the last layer of `count` tokens of each text, from position `first` on.

    **Arguments:**

    - `parts`: The result of `take_apart`.
    - `caches`: The cache of each layer for the tokens before `first`; the arrays are donated.
    - `ids`: The texts, with as many positions as the caches; ids after the tokens that are read are arbitrary.
    - `first`: The position of the first token to read, for each text.
    - `count`: The number of tokens to read.

    **Returns:**

    The hidden states, before the last norm, and the caches including these tokens.
    """
    hidden, kept = _embed(*parts.whole, ids, first, count), []
    for which, gains, cache in zip(parts.order, parts.gains, caches, strict=True):
        hidden, cache = _layer(*parts.blocks[which], hidden, cache, gains, parts.shared, first)
        kept.append(cache)
    return hidden, kept


def _flat(module: nnx.Module) -> tuple[Any, tuple[Array, ...]]:
    form, state = nnx.split(module)
    leaves, tree = jtu.tree_flatten(state)
    # Calling a compiled function is faster with a tuple of arrays than with a tree of Flax.
    return (form, tree), tuple(leaves)


def whole(form: Any, leaves: tuple[Array, ...]) -> Any:
    """Rebuild the module that `_flat` split."""
    return nnx.merge(form[0], jtu.tree_unflatten(form[1], leaves))


@functools.partial(jax.jit, static_argnums=(0, 4))
def _embed(form: Any, leaves: Any, ids: Array, first: Array, count: int) -> Array:
    # XLA looks up only the positions that are taken.
    take = lambda row, first: lax.dynamic_slice_in_dim(row, first, count, 0)
    return jax.vmap(take)(whole(form, leaves).embed(ids), first)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def _layer(
    form: Any, leaves: Any, hidden: Array, cache: Cache, gains: Gains, shared: Any, first: Array
) -> tuple[Array, Cache]:
    block, (count, size) = whole(form, leaves), (hidden.shape[1], cache.keys.shape[1])
    among = jnp.arange(size, dtype=jnp.int32)

    def of_text(hidden: Array, cache: Cache, first: Array) -> tuple[Array, Cache]:

        def rows(x: Any, axis: int) -> Any:
            return None if x is None else lax.dynamic_slice_in_dim(x, first, count, axis)

        asking = first + jnp.arange(count, dtype=jnp.int32)
        bias, turn, allowed = shared
        turn = None if turn is None else (rows(turn[0], 0), rows(turn[1], 0))
        context = Context(rows(bias, 2), True, turn, rows(allowed, 0))
        gain = jtu.tree_map(lambda gain: rows(gain, gain.ndim - 1), gains)
        hidden = block.enter(hidden[None])
        query, keys, values, distances = block.turned(block.read(0, hidden), context)
        write = lambda kept, new: lax.dynamic_update_slice_in_dim(kept, new[0].astype(kept.dtype), first, 0)
        cache = Cache(write(cache.keys, keys), write(cache.values, values))
        if distances is not None:
            distances = distances._replace(rows=distance_rows(asking, among, distances.keys.shape[0]))
        attended, _ = attend(
            query, cache.keys[None], cache.values[None], jnp.ones((1, size), bool), context.bias, block.precision,
            block.allowed(asking, among, context), distances, jnp.ones((1, count), bool),
        )  # fmt: skip
        return block.after_feed_forward(block.add_heads(hidden, attended, gain), gain)[0], cache

    return jax.vmap(of_text)(hidden, cache, first)
