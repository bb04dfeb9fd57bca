"""Runs the layers of a network by one `jax.lax.scan`: one compiled layer, whatever the depth.

The weights of blocks that differ are stacked along a new first axis, (blocks, ...), and step i of the scan picks block
order[i] from the stack; one shared block (ALBERT) is closed over and not stacked at all. Shared layers: Lan et al.,
*ALBERT* (1909.11942), Section 3.1.

Invariants: padding is zero before every layer and after the last; the scan holds the hidden states of one layer, and
only what `measure` returns grows with the depth; the compiled program depends on the blocks, not on the depth.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import jax.tree_util as jtu
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._check import check_integer, refusal
from .block import AbstractBlock, Gains, at_places
from .layers import blank


if TYPE_CHECKING:
    from .network import AbstractNetwork


def check_depth(depth: Any) -> int:
    """`depth` if it is a positive integer."""
    return check_integer(depth, "depth", remedy="pass 1 or more, or None as trained")


def run_layers(
    network: "AbstractNetwork",
    embedded: Float[Array, "batch n d"],
    mask: Bool[Array, "batch n"] | None,
) -> Float[Array, "batch n d"]:
    """The last hidden states of a network."""
    mask = jnp.ones(embedded.shape[:2], bool) if mask is None else mask
    return run_layers_measured(network, embedded, mask, None)[0]


def run_layers_measured(
    network: "AbstractNetwork",
    embedded: Float[Array, "batch n d"],
    mask: Bool[Array, "batch n"],
    measure: Callable[[Array, Array], Any] | None,
) -> tuple[Float[Array, "batch n d"], Any]:
    """The last hidden states, and `measure(hidden, attention)` at each layer, stacked.

    `hidden` is what enters the layer, `attention` the weights that the layer makes of it. The scan holds one layer at
    a time, so that nothing but what `measure` returns grows with the depth.
    """
    # The same for every layer, so it is computed once, outside the scan.
    context = network.shared_context(embedded.shape[1])

    def step(block: AbstractBlock, hidden: Array, given: tuple[Gains, None]) -> tuple[Array, Any]:
        after, attention = block(hidden, mask, context, given[0])
        return blank(after, mask), None if measure is None else measure(hidden, attention)

    # The embedding of padding is not zero.
    hidden, measured = scan_layers(network, step, blank(embedded, mask), embedded.shape[1])
    # Again: a last norm with a bias would move the zeros of padding.
    return blank(network.finish(hidden), mask), measured


def scan_layers(
    network: "AbstractNetwork",
    step: Callable[[AbstractBlock, Any, tuple[Gains, Any]], tuple[Any, Any]],
    carry: Any,
    n: int,
    each: Any = None,
    *,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`step(block, carry, (gains, what the layer is given)) -> (carry, what to keep)` for each layer in turn.

    **Arguments:**

    - `network`: Whose layers.
    - `step`: The function.
    - `carry`: What is handed from layer to layer, of one shape.
    - `n`: How many tokens the texts have.
    - `each`: Arrays whose first axis is that of the layers.
    - `reverse`: Whether the last layer comes first.

    **Returns:**

    The last `carry`, and what was kept, stacked along a first axis in the order of the layers.
    """
    order, block_of = _blocks(network)
    given = (order, gains_of(network, n), each)
    # `order` is None for a single block: then nothing is scanned over, and `length` says how often it is applied.
    # `unroll` is 1 but in training, where the derivative of an unrolled loop is faster.
    return lax.scan(
        lambda carry, given: step(block_of(given[0]), carry, given[1:]), carry, given, length=network.num_layers,
        unroll=network.unroll, reverse=reverse,
    )  # fmt: skip


def gains_of(network: "AbstractNetwork", n: int) -> Gains:
    """The gains of each layer at n places."""
    if network.gains is None:
        return Gains()
    # The place of the last token that was named is two before the length: the last entry is of all further places.
    last = max(gain.shape[-1] for gain in network.gains if gain is not None) - 2
    if last >= n:
        raise refusal("token", f"be one of each text, which have {n}", f"it is {last}", "name one that is there")
    return jtu.tree_map(lambda gain: at_places(gain, n), network.gains)


def _blocks(network: "AbstractNetwork") -> tuple[Int[Array, " layers"] | None, Callable[[Any], Any]]:
    """What to scan over, and the block that each entry means."""
    blocks = network.blocks()
    # Closed over rather than stacked: a gather of the only block would copy its weights at each step.
    if len(blocks) == 1:
        return None, lambda index: blocks[0]
    form, stacked = stack_blocks(blocks)
    return jnp.asarray(network.order(), jnp.int32), lambda index: pick_block(form, stacked, index)


def stack_blocks(blocks: Sequence[AbstractBlock]) -> tuple[Any, Any]:
    """The form of all blocks, and their weights, stacked along a first axis."""
    # Block 0 of T5 also holds the bias of positions, which is not of the block: the last one has the form of all.
    parts = [nnx.split(block, _is_bias, ...) for block in blocks]
    return parts[-1][0], jtu.tree_map(lambda *leaves: jnp.stack(leaves), *(rest for _, _, rest in parts))


def pick_block(form: Any, stacked: Any, index: Any) -> Any:
    """One of the blocks that `stack_blocks` stacked."""
    # A dynamic index, so that the program is one layer long; with a static one each layer would be compiled.
    return nnx.merge(form, jtu.tree_map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), stacked))


def _is_bias(path: Any, value: Any) -> bool:
    return "relative_attention_bias" in path
