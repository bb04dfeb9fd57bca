"""Applies the layers of a network by one `jax.lax.scan`, so that one layer is compiled whatever the depth.

The weights of distinct blocks are stacked along a new first axis, (blocks, ...), and step i of the scan takes block
order[i] from the stack; a single shared block (ALBERT) is closed over and not stacked. Shared layers: Lan et al.,
*ALBERT* (1909.11942), Section 3.1.

Invariants: padding is zero before every layer and after the last; wherever padding is, the words are processed as if it
were behind them; the scan holds the hidden states of one layer, and only the results of `measure` grow with the depth;
the compiled program depends on the blocks, not on the depth.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._check import check_integer, refusal
from ..._padding import arranged, words_first
from .block import AbstractBlock, Gains, at_places
from .layers import blank
from .sizes import MOST_LAYERS


if TYPE_CHECKING:
    from .network import AbstractNetwork


def check_depth(depth: Any) -> int:
    """Returns `depth` if it is a positive integer, and raises a ValueError otherwise."""
    return check_integer(depth, "depth", most=MOST_LAYERS, remedy="pass 1 or more, or None as trained")


def run_layers(
    network: "AbstractNetwork",
    mask: Bool[Array, "batch n"] | None,
    ids: Int[Array, "batch n"],
    *more: Int[Array, "batch n"] | None,
) -> Float[Array, "batch n d"]:
    """The last hidden states of a network; the ids and `more` are the arguments of its `embed`."""
    moved = words_first(mask)
    mask = jnp.ones(jnp.shape(ids), bool) if mask is None else mask
    return run_layers_measured(network, mask, (ids, *more), None, moved)[0]


def run_layers_measured(
    network: "AbstractNetwork",
    mask: Bool[Array, "batch n"],
    read: Sequence[Int[Array, "batch n"] | None],
    measure: Callable[[Array, Array, Array], Any] | None,
    moved: tuple[Int[Array | np.ndarray, "batch n"] | None, Int[Array | np.ndarray, "batch n"] | None] = (None, None),
) -> tuple[Float[Array, "batch n d"], Any]:
    """The last hidden states, and `measure(hidden, attention, allowed)` at each layer, stacked.

    `hidden` enters the layer, `attention` has the weights of the layer, and `allowed`, (batch, n, n), is True at the
    pairs of words between which its mask permits attention. The scan holds one layer at a time, so that only the
    results of `measure` grow with the depth.

    **Arguments:**

    - `network`, `mask`: The network, and True at words.
    - `read`: The arguments of `embed`.
    - `measure`: The function.
    - `moved`: The result of `words_first` for the mask; by default padding is behind the words.
    """
    order, back = moved
    if order is not None and back is not None:
        # At most as many rows as the network has positions; a row beyond takes the state of another, then is blanked.
        most = min(order.shape[1], network.max_positions or order.shape[1])
        order, back = order[:, :most], jnp.minimum(back, most - 1)
    words = _arranged(mask, order, 1)
    embedded = network.embed(*(_arranged(part, order, 1) for part in read))
    n = embedded.shape[1]
    # The context is the same for every layer, so it is computed once, outside the scan.
    context, places = network.shared_context(n), jnp.arange(n, dtype=jnp.int32)
    put_back = lambda hidden: hidden if back is None else blank(_arranged(hidden, back, 1), mask)
    pairs = mask[:, :, None] & mask[:, None, :]

    def between(weights: Array, axes: tuple[int, int]) -> Array:
        """The weights of pairs in the original order of tokens, from those in the order with words first."""
        if back is None:
            return weights
        weights, kept = _arranged(weights, back, *axes), pairs if weights.ndim == 3 else pairs[:, None]
        return jnp.where(kept, weights, jnp.zeros_like(weights))

    def step(block: AbstractBlock, hidden: Array, given: tuple[Gains, None]) -> tuple[Array, Any]:
        after, attention = block(hidden, words, context, given[0])
        if measure is None:
            return blank(after, words), None
        rule = block.allowed(places, places, context)
        allowed = words[:, :, None] & words[:, None, :] & (True if rule is None else rule[None])
        measured = measure(put_back(hidden), between(attention, (2, 3)), between(allowed, (1, 2)))
        return blank(after, words), measured

    # The embedding of padding is not zero.
    hidden, measured = scan_layers(network, step, blank(embedded, words), n)
    # Padding is blanked again, because a last norm with a bias would make it non-zero.
    return put_back(blank(network.finish(hidden), words)), measured


def _arranged(x: Any, order: Any, *axes: int) -> Any:
    """`arranged` for each text of a batch; `axes` count the batch axis."""
    if order is None or x is None:
        return x
    return jax.vmap(lambda x, order: arranged(x, order, *(axis - 1 for axis in axes)))(jnp.asarray(x), order)


def scan_layers(
    network: "AbstractNetwork",
    step: Callable[[AbstractBlock, Any, tuple[Gains, Any]], tuple[Any, Any]],
    carry: Any,
    n: int,
    each: Any = None,
    *,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Apply `step(block, carry, (gains, entry of each)) -> (carry, result)` to each layer in turn.

    **Arguments:**

    - `network`: The network whose layers are applied.
    - `step`: The function.
    - `carry`: The value passed from layer to layer, of a fixed shape.
    - `n`: The number of tokens of the texts.
    - `each`: Arrays whose first axis is that of the layers.
    - `reverse`: True if the last layer comes first.

    **Returns:**

    The last `carry`, and the results, stacked along a first axis in the order of the layers.
    """
    order, block_of = _blocks(network)
    given = (order, gains_of(network, n), each)
    # For a single block `order` is None, and `length` gives the number of its applications.
    # `unroll` is 1 except in training, where the derivative of an unrolled loop is faster.
    return lax.scan(
        lambda carry, given: step(block_of(given[0]), carry, given[1:]), carry, given, length=network.num_layers,
        unroll=network.unroll, reverse=reverse,
    )  # fmt: skip


def gains_of(network: "AbstractNetwork", n: int) -> Gains:
    """The gains of each layer at n positions."""
    if network.gains is None:
        return Gains()
    # The last entry of a gain holds for all further positions, so the last named position is the length minus two.
    last = max(gain.shape[-1] for gain in network.gains if gain is not None) - 2
    if last >= n:
        raise refusal("token", f"be one of each text, which have {n}", f"it is {last}", "name one that is there")
    return jtu.tree_map(lambda gain: at_places(gain, n), network.gains)


def _blocks(network: "AbstractNetwork") -> tuple[Int[Array, " layers"] | None, Callable[[Any], Any]]:
    """The values to scan over, and a function from each value to its block."""
    blocks = network.blocks()
    # A single block is closed over rather than stacked: a gather would copy its weights at each step.
    if len(blocks) == 1:
        return None, lambda index: blocks[0]
    form, stacked = stack_blocks(blocks)
    return jnp.asarray(network.order(), jnp.int32), lambda index: pick_block(form, stacked, index)


def stack_blocks(blocks: Sequence[AbstractBlock]) -> tuple[Any, Any]:
    """The structure of all blocks, and their weights, stacked along a first axis."""
    # Block 0 of T5 also holds the shared position bias, so the structure is taken from the last block.
    parts = [nnx.split(block, _is_bias, ...) for block in blocks]
    return parts[-1][0], jtu.tree_map(lambda *leaves: jnp.stack(leaves), *(rest for _, _, rest in parts))


def pick_block(form: Any, stacked: Any, index: Any) -> Any:
    """One of the blocks that `stack_blocks` stacked, by its index."""
    # A dynamic index keeps the program one layer long; with a static one each layer would be compiled.
    return nnx.merge(form, jtu.tree_map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), stacked))


def _is_bias(path: Any, value: Any) -> bool:
    return "relative_attention_bias" in path
