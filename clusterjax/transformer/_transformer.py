"""A stack of blocks, by scan: one compiled block, whatever the depth.

The arrays of separate blocks are stacked along a leading axis, (layers, ...), and scanned over; a shared block has
none and is closed over (Lan et al., *ALBERT*, 1909.11942). `scan` is the one loop over layers, used by everything that
reads a level: the residual stream, the logit lens, the depth profile.

Invariants: with `depth` the block's arrays have no leading axis, without it they have one; blocks of one stack have
the same shapes and static fields.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from .._abstract import AbstractPart
from .._check import check_flag, check_instance, check_integer, check_key, check_sequence
from .._custom_types import DTypeLike, Numbers
from .._mask import AbstractMask, CausalMask, FullMask
from ._block import Block, check_block
from ._checks import check_optional, check_sizes, check_stream
from ._norm import AbstractResidual, LayerNorm, PostNorm, PreNorm, check_residual, normalised


def _depth(value: int | None) -> int | None:
    return None if value is None else check_integer(value, "depth")


def _check_last(norm: Any) -> None:
    check_optional(norm, "norm", LayerNorm, "a LayerNorm", "pass LayerNorm.identity(d), for example")


class Transformer(AbstractPart):
    """Tokens through a stack of blocks, of separate weights or the same ones again and again.

    With `FullMask` it is an encoder, with `CausalMask` a decoder.

    **Arguments:**

    - `blocks`: One `Block` whose arrays have a leading axis of length layers; or, with `depth`, a single block.
    - `depth`: How often a single, shared block is applied; None for separate weights.
    - `norm`: What normalises the last level, as models with `PreNorm` need; None is nothing.

    **Raises:**

    - `ValueError` if `depth` is not a positive integer.

    ??? cite "Source"

        *Transformers, part 2*, slides 15 and 30; Vaswani et al., *Attention is all you need* (1706.03762), Section 3.1;
        shared weights: Lan et al., *ALBERT* (1909.11942).
    """

    blocks: Block
    depth: int | None = eqx.field(default=None, static=True, converter=_depth)
    norm: LayerNorm | None = None

    def __check_init__(self):
        check_block(self.blocks, "blocks")
        _check_last(self.norm)
        # (h, d, k) of one block, (layers, h, d, k) of a stack.
        rank = jnp.ndim(self.blocks.attention.query)
        if rank != (4 if self.depth is None else 3):
            raise ValueError(
                "blocks and depth must be one block whose arrays have a leading axis, or with depth a single one, but "
                f"the query of its attention has {rank} axes and depth is {self.depth}; make it with Transformer.of."
            )
        d = self.blocks.attention.query.shape[-2]
        if self.norm is not None and self.norm.gain.shape != (d,):
            raise ValueError(
                f"norm must be of the dimension of the blocks, {d}, but its gain is {self.norm.gain.shape}; make it "
                f"with LayerNorm.identity({d})."
            )

    @classmethod
    def of(cls, blocks: Sequence[Block], *, norm: LayerNorm | None = None) -> "Transformer":
        """A stack of separate blocks, first to last, which differ in their arrays only.

        **Raises:**

        - `ValueError` if there is none, or they differ in more.
        """
        blocks = check_sequence(blocks, "blocks", Block, "blocks")
        _check_last(norm)
        # The structure holds the static fields, such as activation and mask; shapes are compared beside it, since a
        # stack of arrays needs one.
        # What is no array, such as the width of a window, is one for all layers.
        kept = [eqx.partition(block, eqx.is_array) for block in blocks]
        shapes = [[jnp.shape(leaf) for leaf in jtu.tree_leaves(arrays)] for arrays, _ in kept]
        for k in range(1, len(blocks)):
            if not bool(eqx.tree_equal(kept[k][1], kept[0][1])) or shapes[k] != shapes[0]:
                raise ValueError(
                    f"blocks must be alike but for their numbers, but block {k} is not like block 0; give all the "
                    "same sizes and options."
                )
        stacked = jtu.tree_map(lambda *leaves: jnp.stack(leaves), *(arrays for arrays, _ in kept))
        return cls(eqx.combine(stacked, kept[0][1]), norm=norm)

    @classmethod
    def random(
        cls,
        key: PRNGKeyArray,
        d: int,
        heads: int,
        hidden: int,
        layers: int,
        *,
        shared: bool = False,
        residual: AbstractResidual = PostNorm(),  # noqa: B008
        causal: bool = False,
        dtype: DTypeLike | None = None,
        **options: Any,
    ) -> "Transformer":
        """Random weights: an encoder, or with `causal` a decoder; the rest is of `Block.random`.

        **Arguments:**

        - `layers`: How many.
        - `shared`: Whether they all have the weights of one.

        Source: *Transformers, part 2*, slide 30.
        """
        check_key(key)
        d, hidden, layers = check_sizes(d=d, hidden=hidden, layers=layers)
        check_residual(residual)
        mask: AbstractMask = CausalMask() if check_flag(causal, "causal") else FullMask()
        # Positional sizes are checked above; the rest is checked by `Block.random`.
        make = lambda key: Block.random(key, d, heads, hidden, residual=residual, mask=mask, dtype=dtype, **options)
        # With PreNorm the stream grows with depth, and what reads it needs it normalised.
        norm = LayerNorm.identity(d, dtype=dtype) if isinstance(residual, PreNorm) else None
        if check_flag(shared, "shared"):
            return cls(make(key), layers, norm)
        return cls.of([make(jr.fold_in(key, layer)) for layer in range(layers)], norm=norm)

    @property
    def num_layers(self) -> int:
        """How many times a block is applied."""
        return self.blocks.attention.query.shape[0] if self.depth is None else self.depth

    def block(self, layer: int) -> Block:
        """The block of one layer, counted from 0, or with a negative number from the end.

        **Raises:**

        - `ValueError` if there is no such layer.
        """
        layer = check_layer(layer, self.num_layers)
        if self.depth is not None:
            return self.blocks
        return jtu.tree_map(lambda leaf: leaf[layer] if eqx.is_array(leaf) else leaf, self.blocks)

    def scan(
        self,
        step: Callable[[Block, Any, Any], tuple[Any, Any]],
        x: PyTree,
        each: PyTree = None,
        *,
        reverse: bool = False,
        unroll: int = 1,
    ) -> tuple[Any, Any]:
        """`step(block, x, what the layer is given) -> (x, what to keep)` for each block in turn.

        **Arguments:**

        - `step`: The function.
        - `x`: What is handed from block to block, of one shape.
        - `each`: Arrays whose first axis is that of the layers.
        - `reverse`: Whether the last block comes first.
        - `unroll`: How many blocks the compiled program spells out, as in `jax.lax.scan`.

        **Returns:**

        The last `x`, and what was kept, stacked along a first axis in the order of the layers.
        """
        if self.depth is not None:
            of_one = lambda x, given: step(self.blocks, x, given)
            return lax.scan(of_one, x, each, length=self.depth, reverse=reverse, unroll=unroll)
        # `lax.scan` takes arrays only; the static part is the same for every layer.
        arrays, form = eqx.partition(self.blocks, eqx.is_array)
        step_of_arrays = lambda x, given: step(eqx.combine(given[0], form), x, given[1])
        return lax.scan(step_of_arrays, x, (arrays, each), reverse=reverse, unroll=unroll)

    def __call__(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n d"]:
        """The tokens after the last block, normalised if there is a last norm.

        **Arguments:**

        - `x`: (n, d).
        - `present`: Which tokens are present, (n,); None is all of them.
        """
        return self._through(*self.validated(x, present))

    def _through(self, x: Array, present: Array | None, unroll: int = 1) -> Array:
        x = self.scan(lambda block, x, _: (block(x, present), None), x, unroll=unroll)[0]
        return self._last(x)

    def levels(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "levels n d"]:
        """The tokens at every level, what enters first; (layers + 1, n, d). The last norm is not applied.

        **Arguments:**

        - `x`, `present`: As above.
        """

        return self._levels(*self.validated(x, present))

    def _levels(self, x: Array, present: Array | None) -> Array:
        def step(block: Block, x: Array, _: None) -> tuple[Array, Array]:
            x = block(x, present)
            return x, x

        # Level 0 is what enters.
        return jnp.concatenate([x[None], self.scan(step, x)[1]])

    def _last(self, x: Array) -> Array:
        return x if self.norm is None else normalised(self.norm, x)

    def validated(
        self, x: Numbers, present: Numbers | None = None
    ) -> tuple[Float[Array, "n d"], Bool[Array, " n"] | None]:
        """The tokens and which of them are present, as arrays; raises a `ValueError` if they do not fit."""
        return check_stream(x, present, self.blocks.attention.query.shape[-2])


def check_layer(layer: Any, layers: int) -> int:
    """The number of a layer, if there is one of this number."""
    return check_integer(layer, "layer", least=-layers, most=layers - 1, remedy=f"there are {layers}")


def check_stack(stack: Any, name: str = "stack") -> Transformer:
    """`stack`, if it is a Transformer; raises a `ValueError` otherwise."""
    return check_instance(stack, name, Transformer, "a Transformer", "make one with Transformer.random")
