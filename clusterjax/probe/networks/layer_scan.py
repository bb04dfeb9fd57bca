"""Runs the layers of a network by one `jax.lax.scan`: one compiled layer, whatever the depth.

The weights of blocks that differ are stacked along a new first axis, (blocks, ...), and step i of the scan picks block
order[i] from the stack; one shared block (ALBERT) is closed over and not stacked at all. Shared layers: Lan et al.,
*ALBERT* (1909.11942), Section 3.1.

Invariants: padding is zero before every layer and after the last; the scan holds the hidden states of one layer, and
only what `measure` returns grows with the depth; the compiled program depends on the blocks, not on the depth.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._check import check_integer
from .layers import blank


def check_depth(depth: Any) -> int:
    """`depth` if it is a positive integer."""
    return check_integer(depth, "depth", remedy="pass 1 or more, or None as trained")


def run_layers(
    network: Any,
    embedded: Float[Array, "batch n d"],
    mask: Bool[Array, "batch n"] | None,
) -> Float[Array, "batch n d"]:
    """The last hidden states of a network."""
    mask = jnp.ones(embedded.shape[:2], bool) if mask is None else mask
    return run_layers_measured(network, embedded, mask, None)[0]


def run_layers_measured(
    network: Any,
    embedded: Float[Array, "batch n d"],
    mask: Bool[Array, "batch n"],
    measure: Callable[[Array, Array], Any] | None,
) -> tuple[Float[Array, "batch n d"], Any]:
    """The last hidden states, and `measure(hidden, attention)` at each layer, stacked.

    `hidden` is what enters the layer, `attention` the weights that the layer makes of it. The scan holds one layer at
    a time, so that nothing but what `measure` returns grows with the depth.
    """
    # The embedding of padding is not zero.
    hidden = blank(embedded, mask)
    # The same for every layer, so it is computed once, outside the scan.
    context = network.context(embedded.shape[1])
    order, block_of = _blocks(network)

    def step(hidden, index):
        after, attention = block_of(index)(hidden, mask, context)
        return blank(after, mask), None if measure is None else measure(hidden, attention)

    # `order` is None for a single block: then nothing is scanned over, and `length` says how often it is applied.
    # `unroll` is 1 but in training, where the derivative of an unrolled loop is faster.
    hidden, measured = lax.scan(step, hidden, order, length=network.num_layers, unroll=network.unroll)
    # Again: a last norm with a bias would move the zeros of padding.
    return blank(network.finish(hidden), mask), measured


def _blocks(network: Any) -> tuple[Int[Array, " layers"] | None, Callable[[Any], Any]]:
    """What to scan over, and the block that each entry means."""
    blocks = network.blocks()
    # Closed over rather than stacked: a gather of the only block would copy its weights at each step.
    if len(blocks) == 1:
        return None, lambda index: blocks[0]
    # Block 0 of T5 also holds the bias of positions, which is not of the block: the last one has the form of all.
    parts = [nnx.split(block, _is_bias, ...) for block in blocks]
    form = parts[-1][0]
    stacked = jtu.tree_map(lambda *leaves: jnp.stack(leaves), *(rest for _, _, rest in parts))

    def block_of(index):
        # A dynamic index, so that the program is one layer long; with a static one each layer would be compiled.
        pick = lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False)
        return nnx.merge(form, jtu.tree_map(pick, stacked))

    return jnp.asarray(network.order(), jnp.int32), block_of


def _is_bias(path: Any, value: Any) -> bool:
    return "relative_attention_bias" in path
