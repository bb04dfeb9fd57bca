"""Blocks of rows: split arrays, map over the blocks one at a time, join the results.

If the number of rows is no multiple of the block size, the last block is padded with copies of the last row, which is a
valid row for every function, or with a number; `join` drops the results of the padding. `map_systems_last` maps over a
batch of small systems in the same way, with the systems along the last axis.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array


def cut(a: Array, size: int, fill: float | None = None) -> Array:
    """The n rows of `a` as (blocks, size, ...), the last block padded with copies of the last row, or with `fill`."""
    n = a.shape[0]
    blocks = -(-n // size)
    missing = blocks * size - n
    if missing:
        last = a[-1:] if fill is None else jnp.full((1, *a.shape[1:]), fill, a.dtype)
        a = jnp.concatenate([a, jnp.broadcast_to(last, (missing, *a.shape[1:]))])
    return a.reshape(blocks, size, *a.shape[1:])


def join(a: Array, n: int) -> Array:
    """The first `n` rows of the blocks, one after another."""
    return a.reshape(-1, *a.shape[2:])[:n]


def map_blocks(fn: Callable[..., Any], size: int, *arrays: Any, recompute: bool = False) -> Any:
    """Apply `fn` to each block of at most `size` rows of the arrays, and join the results along their first axis.

    Only one block is in memory at a time, so that a function that builds (rows, n) never builds (n, n). With
    `recompute` the backward pass computes each block again instead of keeping its intermediate arrays.
    """
    n = jtu.tree_leaves(arrays)[0].shape[0]
    size = min(size, n)
    fn = jax.checkpoint(fn) if recompute else fn
    # A single block needs no loop.
    if size == n:
        return fn(*arrays)
    blocks = jtu.tree_map(lambda a: cut(a, size), arrays)
    return jtu.tree_map(lambda leaf: join(leaf, n), lax.map(lambda block: fn(*block), blocks))


# Sizes for the kernels of many small systems, with the systems along the last axis, on a CPU. Up to FEW_DIMENSIONS
# these kernels write out the coordinates; beyond, matrix products are faster. PAIRS_AT_ONCE numbers of each kind are
# processed at once, for at least LEAST_SYSTEMS systems: XLA reduces arrays of this size by vector instructions and
# smaller ones by scalar instructions, and larger ones exceed the cache of a core.
FEW_DIMENSIONS, PAIRS_AT_ONCE, LEAST_SYSTEMS = 4, 2**14, 32


def systems_at_once(pairs: int) -> int:
    """The number of systems, of `pairs` numbers each, that `map_systems_last` processes at once."""
    return LEAST_SYSTEMS * max(1, PAIRS_AT_ONCE // (LEAST_SYSTEMS * pairs))


def map_systems_last(fn: Callable[..., Any], *arrays: Any, pairs: int) -> Any:
    """Apply `fn` to blocks of systems, whose axis is the first one of `arrays` and of the results, but the last one of
    the arguments and results of `fn`.

    Operations then run along the systems, and not along a short axis. Each system takes `pairs` numbers in `fn`.
    """
    systems = jtu.tree_leaves(arrays)[0].shape[0]
    size = min(systems_at_once(pairs), systems)
    # The transpose precedes the loop: within it XLA would read with strides wherever a number is used.
    blocks = jtu.tree_map(lambda a: jnp.moveaxis(cut(a, size), 1, -1), arrays)
    results = lax.map(lambda block: fn(*block), blocks)
    return jtu.tree_map(lambda a: join(jnp.moveaxis(a, -1, 1), systems), results)
