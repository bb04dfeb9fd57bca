"""One Transformer block: attention, feed-forward, residual connections, layer normalisation.

The two sub-layers add to a stream. The position of the norms is a separate object (`AbstractResidual` in `_norm`),
which computes the input of a sub-layer and the stream after it. Post-norm: Vaswani et al. (1706.03762); pre-norm: Xiong
et al., *On layer normalization in the transformer architecture* (2002.04745).

Invariants: all parts have the same dimension d; the block has one norm for each normalised sub-layer, and no other
norm.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from .._base.checks import check_flag, check_instance, check_integer, check_key, check_sequence, refusal, shown
from .._base.types import AbstractPart, DTypeLike, Numbers
from .._model.mask import AbstractMask, CausalMask, FullMask
from ._attention import MultiHeadAttention, check_heads
from ._checks import check_optional, check_sizes, check_stream
from ._feed_forward import FeedForward, check_activation
from ._norm import AbstractResidual, LayerNorm, PostNorm, PreNorm, check_epsilon, check_norm, check_residual, normalised
from ._positions import RelativePositions, RotaryPositions


class Block(AbstractPart):
    """The map $u = LN_1(x + attention(x))$, $z = LN_2(u + ff(u))$.

    This is the block with `PostNorm`; with `PreNorm` the inputs of the two sub-layers are normalised instead, and with
    `NoNorm` nothing is normalised.

    **Arguments:**

    - `attention`: `MultiHeadAttention`.
    - `feed_forward`: `FeedForward`; None omits the feed-forward layer.
    - `norms`: The norms of the two sub-layers; `(None, None)` with `NoNorm`.
    - `residual`: The position of the norms: `PostNorm()` as in A.1, `PreNorm()` or `NoNorm()`.

    **Raises:**

    - `ValueError` if the parts differ in dimension, or a norm is missing or superfluous.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Appendix A.1; *Transformers, part 2*, slides 2 to 5.
    """

    attention: MultiHeadAttention
    feed_forward: FeedForward | None
    norms: tuple[LayerNorm | None, LayerNorm | None] = (None, None)
    residual: AbstractResidual = PostNorm()

    def __check_init__(self):
        check_heads(self.attention)
        check_optional(
            self.feed_forward, "feed_forward", FeedForward, "a FeedForward", "make one with FeedForward.random"
        )
        check_residual(self.residual)
        if not isinstance(self.norms, tuple | list) or len(self.norms) != 2:
            raise refusal("norms", "be two norms, or None in their places", f"it is {shown(self.norms)}", "pass a pair")
        for k, norm in enumerate(self.norms):
            if norm is not None:
                check_norm(norm, f"norms[{k}]")
        widths = {"attention": self.attention.d}
        if self.feed_forward is not None:
            widths["feed_forward"] = self.feed_forward.w_in.shape[0]
        widths |= {f"norms[{k}]": norm.gain.shape[0] for k, norm in enumerate(self.norms) if norm is not None}
        if len(set(widths.values())) != 1:
            raise ValueError(
                f"attention, feed_forward and norms must be of one dimension, but they are {widths}; make them agree."
            )
        layers = (self.attention, self.feed_forward)
        # An omitted sub-layer needs no norm.
        needed = [self.residual.needs_norm and layer is not None for layer in layers]
        given = [norm is not None for norm in self.norms]
        if needed != given:
            raise ValueError(
                f"norms of attention and feed_forward must be {needed.count(True)} with "
                f"{type(self.residual).__name__} and {sum(layer is not None for layer in layers)} layers, but "
                f"{given.count(True)} are there; pass one for each layer that is normalised, and None elsewhere."
            )

    @classmethod
    def random(
        cls,
        key: PRNGKeyArray,
        d: int,
        heads: int,
        hidden: int,
        *,
        residual: AbstractResidual = PostNorm(),  # noqa: B008
        activation: Callable[[Array], Array] = jax.nn.relu,
        mask: AbstractMask = FullMask(),  # noqa: B008
        relative: RelativePositions | RotaryPositions | None = None,
        bias: bool = False,
        epsilon: float = 1e-5,
        scale: float | None = None,
        dtype: DTypeLike | None = None,
    ) -> "Block":
        """A block with random weights and norms of gain one and bias zero; the options are those of its parts.

        **Raises:**

        - `ValueError` if `heads` does not divide `d`.
        """
        attention_key, feed_forward_key = jr.split(check_key(key))
        check_sizes(d=d, hidden=hidden)
        check_residual(residual)
        check_activation(activation)
        check_flag(bias, "bias")
        check_epsilon(epsilon)
        attention = MultiHeadAttention.random(
            attention_key, d, heads, scale=scale, mask=mask, relative=relative, dtype=dtype
        )
        feed_forward = FeedForward.random(
            feed_forward_key, d, hidden, activation=activation, bias=bias, scale=scale, dtype=dtype
        )
        # One object may stand for both norms: both start as the identity, and training updates each leaf separately.
        norm = LayerNorm.identity(d, epsilon=epsilon, dtype=dtype) if residual.needs_norm else None
        return cls(attention, feed_forward, (norm, norm), residual)

    def __call__(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n d"]:
        """The tokens after the block.

        **Arguments:**

        - `x`: The tokens before the block, (n, d).
        - `present`: The tokens that are present, (n,); no present token attends to padding. None is all of them.
        """
        # The tokens are checked once here, so the calls below skip the checks.
        x, present = self.attention.validated(x, present)
        first, second = self.norms
        # `read` applies the norm with PreNorm, and `write` applies the norm with PostNorm; otherwise both are
        # identities.
        x = self.residual.write(first, x + self.attention._added(self.residual.read(first, x), present))
        if self.feed_forward is None:
            return x
        return self.residual.write(second, x + self.feed_forward._added(self.residual.read(second, x)))


def check_block(block: Any, name: str = "block") -> Block:
    """Return `block` if it is a `Block`; raise a `ValueError` otherwise."""
    return check_instance(block, name, Block, "a Block", "make one with Block.random")


def _depth(value: int | None) -> int | None:
    return None if value is None else check_integer(value, "depth")


@jax.jit
def _stacked(*trees: Any) -> Any:
    return jtu.tree_map(lambda *leaves: jnp.stack(leaves), *trees)


@eqx.filter_jit
def _layer_of(blocks: Block, layer: Any) -> Block:
    """The block of one layer of a stack, by one compiled program for all of its arrays and all layers."""
    return jtu.tree_map(lambda leaf: leaf[layer] if eqx.is_array(leaf) else leaf, blocks)


def _check_last(norm: Any) -> None:
    check_optional(norm, "norm", LayerNorm, "a LayerNorm", "pass LayerNorm.identity(d), for example")


class Transformer(AbstractPart):
    """A stack of blocks with separate weights, or of one block that is applied repeatedly.

    The stack is an encoder with `FullMask` and a decoder with `CausalMask`. A scan runs the blocks, so that one block
    is compiled for any depth.

    **Arguments:**

    - `blocks`: One `Block` whose arrays have a leading axis of length layers; or, with `depth`, a single block.
    - `depth`: The number of applications of a single, shared block; None for separate weights.
    - `norm`: The `LayerNorm` of the last level, which models with `PreNorm` need; None applies no norm.

    **Raises:**

    - `ValueError` if `depth` is not a positive integer, or the shapes of the parts do not match.

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
        # The queries are (h, d, k) in a single block and (layers, h, d, k) in a stack.
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
        """Stack separate blocks, first to last, which may differ only in the numbers of their arrays.

        **Raises:**

        - `ValueError` if there is no block, or the blocks differ in shapes or static fields.
        """
        blocks = check_sequence(blocks, "blocks", Block, "blocks")
        _check_last(norm)
        # The part without arrays holds the static fields, such as activation and mask, and is shared by all layers.
        # Shapes are compared separately, since stacked arrays need one shape.
        partitions = [eqx.partition(block, eqx.is_array) for block in blocks]
        shapes = [[jnp.shape(leaf) for leaf in jtu.tree_leaves(arrays)] for arrays, _ in partitions]
        for k in range(1, len(blocks)):
            if not bool(eqx.tree_equal(partitions[k][1], partitions[0][1])) or shapes[k] != shapes[0]:
                raise ValueError(
                    f"blocks must be alike but for their numbers, but block {k} is not like block 0; give all the "
                    "same sizes and options."
                )
        return cls(eqx.combine(_stacked(*(arrays for arrays, _ in partitions)), partitions[0][1]), norm=norm)

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
        """A stack with random weights: a decoder if `causal` is True, and an encoder otherwise. The other arguments are
        those of `Block.random`.

        **Arguments:**

        - `layers`: The number of layers.
        - `shared`: True if all layers share the weights of one block.

        Source: *Transformers, part 2*, slide 30.
        """
        check_key(key)
        d, hidden, layers = check_sizes(d=d, hidden=hidden, layers=layers)
        check_residual(residual)
        mask: AbstractMask = CausalMask() if check_flag(causal, "causal") else FullMask()
        make = lambda key: Block.random(key, d, heads, hidden, residual=residual, mask=mask, dtype=dtype, **options)
        # With PreNorm the stream grows with depth, so its reader needs a last norm.
        norm = LayerNorm.identity(d, dtype=dtype) if isinstance(residual, PreNorm) else None
        if check_flag(shared, "shared"):
            return cls(make(key), layers, norm)
        return cls.of([make(jr.fold_in(key, layer)) for layer in range(layers)], norm=norm)

    @property
    def num_layers(self) -> int:
        """The number of layers, that is, of applications of a block."""
        return self.blocks.attention.query.shape[0] if self.depth is None else self.depth

    def block(self, layer: int) -> Block:
        """The block of one layer, counted from 0, or with a negative number from the end.

        **Raises:**

        - `ValueError` if there is no such layer.
        """
        layer = check_layer(layer, self.num_layers)
        if self.depth is not None:
            return self.blocks
        return _layer_of(self.blocks, np.asarray(layer, np.int32))

    def scan(
        self,
        step: Callable[[Block, Any, Any], tuple[Any, Any]],
        x: PyTree,
        each: PyTree = None,
        *,
        reverse: bool = False,
        unroll: int = 1,
    ) -> tuple[Any, Any]:
        """Apply `step(block, x, entry) -> (x, output)` for each block in turn; `entry` is the entry of `each`.

        **Arguments:**

        - `step`: The function that handles one block.
        - `x`: The carry that is passed from block to block, of constant shape.
        - `each`: Arrays whose first axis is the axis of layers.
        - `reverse`: True if the last block comes first.
        - `unroll`: The number of blocks that the compiled program unrolls, as in `jax.lax.scan`.

        **Returns:**

        The last `x`, and the outputs, stacked along a first axis in the order of the layers.
        """
        if self.depth is not None:
            of_one = lambda x, inputs: step(self.blocks, x, inputs)
            return lax.scan(of_one, x, each, length=self.depth, reverse=reverse, unroll=unroll)
        # `lax.scan` takes arrays only; all layers share the static part.
        arrays, form = eqx.partition(self.blocks, eqx.is_array)
        step_of_arrays = lambda x, inputs: step(eqx.combine(inputs[0], form), x, inputs[1])
        return lax.scan(step_of_arrays, x, (arrays, each), reverse=reverse, unroll=unroll)

    def __call__(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n d"]:
        """The tokens after the last block and the last norm, if there is one.

        **Arguments:**

        - `x`: The tokens, (n, d).
        - `present`: The tokens that are present, (n,); None is all of them.
        """
        return self._through(*self.validated(x, present))

    def _through(self, x: Array, present: Array | None, unroll: int = 1) -> Array:
        x = self.scan(lambda block, x, _: (block(x, present), None), x, unroll=unroll)[0]
        return self._last(x)

    def levels(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "levels n d"]:
        """The tokens at every level, from the input on, (layers + 1, n, d), without the last norm.

        **Arguments:**

        - `x`, `present`: As in `__call__`.
        """

        return self._levels(*self.validated(x, present))

    def _levels(self, x: Array, present: Array | None) -> Array:
        def step(block: Block, x: Array, _: None) -> tuple[Array, Array]:
            x = block(x, present)
            return x, x

        return jnp.concatenate([x[None], self.scan(step, x)[1]])

    def _last(self, x: Array) -> Array:
        return x if self.norm is None else normalised(self.norm, x)

    def validated(
        self, x: Numbers, present: Numbers | None = None
    ) -> tuple[Float[Array, "n d"], Bool[Array, " n"] | None]:
        """The tokens and the flags of presence as arrays; raises a `ValueError` if they do not fit the stack."""
        return check_stream(x, present, self.blocks.attention.query.shape[-2])


def check_layer(layer: Any, layers: int) -> int:
    """Return `layer` if the stack has a layer of this number; raise a `ValueError` otherwise."""
    return check_integer(layer, "layer", least=-layers, most=layers - 1, remedy=f"there are {layers}")


def check_stack(stack: Any, name: str = "stack") -> Transformer:
    """Return `stack` if it is a `Transformer`; raise a `ValueError` otherwise."""
    return check_instance(stack, name, Transformer, "a Transformer", "make one with Transformer.random")
