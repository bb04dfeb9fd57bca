"""A Transformer of any family: an embedding, blocks one after another, a last norm and a head.

All tools of `probe` use this class and never test the family of a network, which decides only the sizes and the names
of the parameters in files. Blocks with their own weights form a list, and each layer refers to one of them. One
`jax.lax.scan` applies the layers: the weights of distinct blocks are stacked along a new first axis, and step i of the
scan takes block order[i] from the stack; a single shared block (ALBERT) is closed over and not stacked. A forward pass
that measures nothing unrolls the scan if each block serves one layer, so that no weight is copied.

Invariants: padding is zero before every layer and after the last; wherever padding is, the words are processed as if it
were behind them; the scan holds the hidden states of one layer, and only the results of `measure` grow with the depth;
the compiled program depends on the blocks, and not on the depth.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._base.checks import check_array, check_flag, check_float_dtype, check_instance, check_integer, refusal, shown
from ..._base.padding import arranged, words_first
from ..._base.types import DTypeLike
from ..._model.mask import AbstractMask, CausalMask, FullMask
from ...transformer._positions import sinusoidal_positions
from .block import (
    Block,
    Context,
    Gains,
    Norm,
    activation,
    at_places,
    attend,
    blank,
    capped,
    distance_rows,
    first_word,
    init_normal,
    product,
)
from .edits import LayerEdit, apply, of_layers
from .positions import linear_bias, relative_buckets, rotation
from .sizes import MOST_LAYERS, NetworkSizes, Patches, check_heads, check_sizes, check_weights
from .token_ids import check_ids, check_images, check_like, check_mask


Precision: TypeAlias = str | lax.Precision | lax.DotAlgorithmPreset | None
"""How exactly matrices are multiplied, as `jax.lax` takes it."""


def check_making(rngs: Any, dtype: Any, precision: Any) -> tuple[Any, Any]:
    """Returns dtype and precision, checked together with `rngs` for the construction of a network."""
    check_instance(rngs, "rngs", nnx.Rngs, "a nnx.Rngs", "pass nnx.Rngs(0), say")
    float_dtype = check_float_dtype(dtype)
    if float_dtype is None:
        raise refusal("dtype", "be a floating dtype", "it is None", "pass jax.numpy.float32, for example")
    if isinstance(precision, str):
        # Strings such as "highest" are values of `jax.lax.Precision`; an unknown string leads to the refusal below.
        with contextlib.suppress(ValueError):
            return float_dtype, lax.Precision(precision)
    if precision is not None and not isinstance(precision, lax.Precision | lax.DotAlgorithmPreset):
        raise refusal(
            "precision", "be a precision of jax", f"it is {shown(precision)}", "pass jax.lax.Precision.HIGHEST, say"
        )
    return float_dtype, precision


def check_depth(depth: Any) -> int:
    """Returns `depth` if it is a positive integer, and raises a ValueError otherwise."""
    return check_integer(depth, "depth", most=MOST_LAYERS, remedy="pass 1 or more, or None as trained")


class AttentionMaps(NamedTuple):
    """The linear maps of the attention of one block, without biases; tokens are rows, which multiply from the left.

    **Arguments:**

    - `query`, `key`, `value`: (heads, d, k). A shared key or value is copied for each of its heads.
    - `output`: (heads, k, d).
    """

    query: Float[Any, "heads d k"]
    key: Float[Any, "heads d k"]
    value: Float[Any, "heads d k"]
    output: Float[Any, "heads k d"]


class HeadMatrices(NamedTuple):
    """The maps of all heads of a network in double precision; tokens are rows, which multiply from the left.

    **Attributes:**

    - `query`, `key`, `value`: (blocks, heads, d, k); a block is a layer with its own weights.
    - `output`: (blocks, heads, k, d).
    - `scale`: The factor of the scores: 1/√k for ALBERT and Llama, 1 for T5.
    - `norm`: The scale of the norm that each block applies to the input of its attention (T5, GPT-2, Llama), (blocks,
        d); None if norms act on the residual stream itself (ALBERT, BERT).
    - `last_norm`: The scale of the norm after the last layer, (d,); None without one.
    - `order`: The index of the block of each layer, (layers,).
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    scale: float
    norm: np.ndarray | None
    last_norm: np.ndarray | None
    order: np.ndarray


class Head(nnx.Module):
    """The scores of words: products with the vectors of words; in a masked head a map, an activation and a norm precede
    the products."""

    def __init__(self, sizes: NetworkSizes, linear: Any, dtype: Any):
        d, e, masked = sizes.hidden_size, sizes.words_size, sizes.head == "masked"
        init = init_normal(sizes.spread)
        # With tied words only the bias is a parameter; transformers stores another decoder's bias with its kernel.
        self.bias = nnx.Param(jnp.zeros(sizes.vocab_size, dtype)) if masked and sizes.tied else None
        self.dense = linear(d, e, use_bias=sizes.head_map_bias, kernel_init=init) if masked else None
        self.norm = Norm(e, sizes, dtype) if masked else None
        # If the size of the word embedding differs from that of the stream, a linear head begins with a map (OPT).
        self.project = linear(d, e, use_bias=False, kernel_init=init) if not masked and e != d else None
        self.decoder = None if sizes.tied else linear(e, sizes.vocab_size, use_bias=masked, kernel_init=init)
        self.activation, self.cap = sizes.head_activation or sizes.activation, sizes.logit_cap

    def __call__(self, hidden: Float[Array, "batch n d"], words: Float[Array, "words e"], precision: Any) -> Array:
        if self.project is not None:
            hidden = self.project(hidden)
        if self.dense is not None:
            hidden = cast(Norm, self.norm)(activation(self.activation)(self.dense(hidden)))
        if self.decoder is not None:
            return capped(self.decoder(hidden), self.cap)
        # In the dtype of the network, because linear maps of Flax accept any dtype.
        scores = product("bne,we->bnw", hidden.astype(words.dtype), words, precision)
        return capped(scores if self.bias is None else scores + self.bias[...][None, None], self.cap)


class PatchEmbedding(nnx.Module):
    """The patches of an image as tokens behind a class token, with learned positions (2010.11929, Section 3.1)."""

    def __init__(self, patches: Patches, d: int, draw: Any, dtype: Any):
        self.kernel = draw(d, patches.channels, patches.patch_size, patches.patch_size)
        self.bias = nnx.Param(jnp.zeros(d, dtype))
        self.class_token, self.positions = draw(1, 1, d), draw(1, patches.num_tokens, d)

    def __call__(self, images: Float[Array, "batch channels height width"], precision: Any) -> Array:
        kernel = self.kernel[...]
        (batch, channels, height, width), size = images.shape, kernel.shape[-1]
        cut = images.reshape(batch, channels, height // size, size, width // size, size).astype(kernel.dtype)
        tokens = jnp.einsum("bcypxq,dcpq->byxd", cut, kernel, precision=precision).reshape(batch, -1, kernel.shape[0])
        first = jnp.broadcast_to(self.class_token[...], (batch, 1, kernel.shape[0]))
        return jnp.concatenate([first, tokens + self.bias[...][None, None]], axis=1) + self.positions[...]


class Network(nnx.Module):
    """A Transformer: $x ← x + A(N(x))$, then $x ← x + F(N(x))$, with the options of its sizes.

    A is multi-head attention, F the feed-forward, N a norm. Padding neither gives nor receives attention, and its
    output is zero. Compilation may grow with the number of blocks, but not with `depth`: beyond the trained depth the
    sequence of layers starts again from the first layer. A last norm, if there is one, acts after the last layer that
    is applied. There is no dropout.

    Norms, angles and weights are computed in the precision of the network, whereas PyTorch's RMS norms and rotations
    always use float32: in float64 the two agree only to 1e-6.

    **Arguments:**

    - `sizes`: A `NetworkSizes`.
    - `rngs`: `nnx.Rngs` for the random weights.

    **Other arguments:**

    - `depth`: The number of layers that are applied, or of groups in a network with groups of layers; None selects the
        trained number.
    - `heads`: The number of heads into which the trained matrices are divided; None selects `sizes.num_heads`. Another
        number changes the network from layer 1 on; networks whose heads have norms or positions refuse it.
    - `pooler`, `head`: True for a network with a pooler, and with a head that `logits` requires. A linear head that is
        tied to the embedding needs no parameters and is always there.
    - `dtype`: The dtype of the parameters, and thus of all arrays.
    - `precision`: The precision of the matrix products.

    The parts of the embedding are `words`, `positions`, `types`, `patches`, `embedding_norm` and `projection`; `layers`
    has the blocks with their own weights; `relative` the biases of distances; `norm`, `head` and `pooler` follow the
    last layer. Parts that a network does not have are None. `mask` replaces the mask of the training, `trained_mask`,
    if it is not None; `gains` are factors of the outputs of the parts of each layer, and `edits` are those of `patch`.

    **Raises:**

    - `ValueError` if `depth` is not positive, the matrices cannot be divided into `heads`, or an option has a wrong
        type.

    ??? cite "Source"

        Vaswani et al., *Attention is all you need* (1706.03762), Section 3; the families are named in `probe.load`.
    """

    mask: AbstractMask | None = None
    trained_mask: AbstractMask | None = None
    gains: Gains | None = None
    edits: tuple[LayerEdit, ...] = ()

    def __init__(
        self,
        sizes: NetworkSizes,
        rngs: nnx.Rngs,
        *,
        depth: int | None = None,
        heads: int | None = None,
        pooler: bool = False,
        head: bool = False,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = lax.Precision.HIGHEST,
    ):
        sizes = check_sizes(sizes)
        heads = check_heads(sizes, heads)
        dtype, precision = check_making(rngs, dtype, precision)
        check_weights(sizes, dtype)
        check_flag(pooler, "pooler")
        check_flag(head, "head")
        self.sizes, self.num_heads, self.precision = sizes, heads, precision
        self.unroll: int | None = None  # the number of layers in a step of the scan; None lets `scan_layers` choose
        self.depth = sizes.num_layers if depth is None else check_depth(depth)
        d, e, std = sizes.hidden_size, sizes.words_size, init_normal(sizes.spread)
        linear = functools.partial(
            nnx.Linear, param_dtype=dtype, dtype=dtype, precision=cast(Any, precision), rngs=rngs
        )
        draw = lambda *shape: nnx.Param(std(rngs.params(), shape, dtype))

        def table(rows: int | None, width: int, init: Any = std) -> nnx.Embed | None:
            if not rows:
                return None
            return nnx.Embed(rows, width, embedding_init=init, param_dtype=dtype, dtype=dtype, rngs=rngs)

        # The words of a T5 have the standard deviation 1, as in Mesh TensorFlow.
        self.words = table(sizes.vocab_size, e, std if sizes.factor is None else init_normal(sizes.factor))
        rows = sizes.max_positions if sizes.positions == "learned" else None
        self.positions = table(rows and rows + sizes.position_offset, d if sizes.project_first else e)
        self.types = table(sizes.type_vocab_size, e)
        self.patches = None if sizes.patches is None else PatchEmbedding(sizes.patches, d, draw, dtype)
        self.embedding_norm = Norm(e, sizes, dtype) if sizes.embedding_norm else None
        mapped = sizes.embedding_size is not None
        self.projection = linear(e, d, use_bias=sizes.projection_bias, kernel_init=std) if mapped else None
        self.layers = nnx.List(
            [Block(sizes, heads, i, linear, rngs, dtype, precision) for i in range(sizes.num_blocks)]
        )
        init = std if sizes.factor is None else init_normal(sizes.factor * d**-0.5)
        self.relative = table(sizes.num_buckets, heads, init)
        self.norm = Norm(d, sizes, dtype) if sizes.last_norm else None
        # None if the checkpoint lacks the part, so that no random weights remain.
        self.pooler = linear(d, d, kernel_init=std) if pooler else None
        free = sizes.head == "linear" and sizes.tied and e == d
        self.head = Head(sizes, linear, dtype) if free or (head and sizes.head != "none") else None

    @property
    def num_layers(self) -> int:
        """The number of layers that are applied, each with its own attention."""
        return self.depth * self.sizes.inner_layers

    @property
    def shares_layers(self) -> bool:
        """True if layers share their weights, so that a depth beyond the trained one continues the sequence."""
        return self.sizes.num_groups is not None

    @property
    def score_scale(self) -> float:
        """The factor of the products of queries and keys: by default 1 / sqrt(k) for heads of dimension k."""
        return self.layers[0].scale

    @property
    def num_token_types(self) -> int | None:
        """The number of token types; None if the network takes none."""
        return self.sizes.type_vocab_size

    @property
    def max_positions(self) -> int | None:
        """The maximum number of tokens of a text; None if there is no limit."""
        return self.sizes.max_positions

    def __call__(
        self,
        token_ids: Int[Array, "batch n"] | Float[Array, "batch channels height width"],
        mask: Bool[Array, "batch n"] | None = None,
        token_types: Int[Array, "batch n"] | None = None,
        position_ids: Int[Array, "batch n"] | None = None,
    ) -> Float[Array, "batch n d"]:
        """The hidden states after the last layer and its norm; `trace` returns those of all layers.

        **Raises:**

        - `ValueError` if the ids do not form a batch, or a text has more tokens than there are learned positions.
        """
        sizes = self.sizes
        if sizes.patches is not None:
            return run_layers(self, None, check_images(token_ids, sizes.patches))
        # Always int32, so that NumPy's int64 does not compile a second program.
        ids = jnp.asarray(check_ids(token_ids, "token_ids", sizes.vocab_size), jnp.int32)
        mask = None if mask is None else check_mask(mask, ids.shape)
        if token_types is not None:
            types = sizes.type_vocab_size
            if types is None:
                raise refusal("token_types", "be None for a network without types", "they are given", "leave them out")
            token_types = check_like(token_types, "token_types", ids.shape, types, "the token types")
        most = sizes.max_positions
        if position_ids is not None:
            if sizes.positions != "learned" or most is None:
                rule = "be None for a network without a table of positions"
                raise refusal("position_ids", rule, "they are given", "leave them out")
            position_ids = check_like(position_ids, "position_ids", ids.shape, most, "the positions")
        # A lookup beyond the table gives NaN without an error, and a later message would blame the hidden states.
        elif sizes.positions == "learned" and most is not None and ids.shape[1] > most:
            rule, problem = f"hold at most {most} tokens a text, the positions", f"their shape is {ids.shape}"
            raise refusal("token_ids", rule, problem, "cut the texts, or pass position_ids")
        return run_layers(self, mask, ids, token_types, position_ids)

    def embed(
        self,
        token_ids: Int[Array, "batch n"] | Float[Array, "batch channels height width"],
        token_types: Int[Array, "batch n"] | None = None,
        position_ids: Int[Array, "batch n"] | None = None,
    ) -> Float[Array, "batch n d"]:
        """The hidden states before the first layer; by default positions are the indices of the columns."""
        sizes = self.sizes
        if self.patches is not None:
            return self.patches(token_ids, self.precision)
        x = cast(nnx.Embed, self.words)(token_ids)
        x = x if sizes.embedding_scale is None else x * jnp.asarray(sizes.embedding_scale, x.dtype)
        if self.types is not None:
            x = x + self.types(jnp.zeros_like(token_ids) if token_types is None else token_types)
        if sizes.project_first and self.projection is not None:
            x = self.projection(x)
        # (1, n): the sum broadcasts it over the batch.
        places = jnp.arange(token_ids.shape[1])[None] if position_ids is None else position_ids
        if self.positions is not None:
            x = x + self.positions(places + sizes.position_offset)
        elif sizes.positions == "sinusoidal":
            n, width = token_ids.shape[1], x.shape[-1]
            x = x + sinusoidal_positions(n, width, base=sizes.position_base, dtype=x.dtype)[None]
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        return x if self.projection is None or sizes.project_first else self.projection(x)

    def context(self, n: int, lengths: Int[Array, " batch"] | None = None) -> Context:
        """The quantities that the layers share for texts of n tokens; `lengths` are the numbers of words of texts."""
        sizes, dtype = self.sizes, self.dtype
        bias = linear_bias(sizes, self.num_heads, n, dtype) if sizes.alibi else self.position_bias(n)
        turn = rotation(sizes, n, dtype, lengths) if sizes.rotary else None
        mask = self.trained_mask
        if mask is None or isinstance(mask, CausalMask):
            return Context(bias, sizes.causal, turn)
        return Context(bias, False, turn, None if isinstance(mask, FullMask) else mask.matrix(n))

    def shared_context(self, n: int, lengths: Int[Array, " batch"] | None = None) -> Context:
        """`context`, with the mask of `with_mask` if there is one."""
        context = self.context(n, lengths)
        return context if self.mask is None else context._replace(allowed=self.mask.matrix(n))

    @property
    def dtype(self) -> Any:
        """The dtype of the parameters."""
        return self.layers[0].attention.query.kernel[...].dtype

    def position_bias(self, n: int) -> Float[Array, "1 heads n n"] | None:
        """The learned bias added to the scores of n tokens, in every block; None for a network without it."""
        if self.relative is None:
            return None
        # Only the 2 n - 1 distances are looked up; the (n, n) matrix is gathered from them below.
        buckets = relative_buckets(np.arange(1 - n, n), self.sizes.num_buckets, self.sizes.max_distance)
        by_distance, places = self.relative(jnp.asarray(buckets)), jnp.arange(n)
        # Row i, column j has distance j - i, with the index j - i + n - 1; heads first, with an axis for the batch.
        return jnp.moveaxis(by_distance[places[None, :] - places[:, None] + n - 1], -1, 0)[None]

    def blocks(self) -> list[Block]:
        """The blocks with their own weights."""
        return list(self.layers)

    def order(self) -> list[int]:
        """The index in `blocks` of each layer."""
        sizes, inner = self.sizes, range(self.sizes.inner_layers)
        groups = sizes.num_layers if sizes.num_groups is None else sizes.num_groups
        # As in transformers, the groups divide the trained layers evenly, in order. Beyond `num_layers` the sequence
        # starts again, so that the first layers remain those of the trained network.
        trained = [i * groups // sizes.num_layers for i in range(sizes.num_layers)]
        return [trained[i % sizes.num_layers] * sizes.inner_layers + j for i in range(self.depth) for j in inner]

    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The final operation after the last layer: the last norm, if there is one."""
        return hidden if self.norm is None else self.norm(hidden)

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of all words of the vocabulary at each position, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no head that scores words, or `hidden` has another size.
        """
        if self.head is None:
            kind = "masked-LM head" if self.sizes.head == "masked" else "head for words"
            raise ValueError(f"model must have a head for logits, but this network has no {kind}; load one that has.")
        hidden = check_array(hidden, "hidden", shape=("batch", "n", self.sizes.hidden_size))
        return self.head(hidden, cast(nnx.Embed, self.words).embedding[...], self.precision)

    def pool(
        self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"] | None = None
    ) -> Float[Array, "batch d"]:
        """The pooled first word of each text, from the last hidden states; without a mask, the first row is pooled.

        **Raises:**

        - `ValueError` if the network has no pooler.
        """
        if self.pooler is None:
            raise ValueError("pooler must be True for pool, but this network has no pooler; load one that has.")
        return jnp.tanh(self.pooler(first_word(hidden, mask)))

    def unembedding(self) -> Float[Array, "words d"]:
        """The vectors in the hidden space that score the words, if the head is linear; otherwise, and without a head,
        the embedding of each word."""
        head = self.head
        if self.words is None:
            raise ValueError("model must read words, but this network reads images; load another.")
        words = self.words.embedding[...]
        if head is not None and head.dense is None:
            words = words if head.decoder is None else head.decoder.kernel[...].T
            return words if head.project is None else product("we,de->wd", words, head.project.kernel[...], "highest")
        if self.projection is None:
            return words
        return product("we,ed->wd", words, self.projection.kernel[...], self.precision)

    def word_factors(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The embedding of words, (words, e), in double precision, and the map from its rows to the hidden space,
        (e, d); None if the rows are in the hidden space."""
        if self.words is None:
            raise ValueError("model must read words, but this network reads images; load another.")
        words = np.asarray(self.words.embedding[...], np.float64)
        return words, None if self.projection is None else np.asarray(self.projection.kernel[...], np.float64)

    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of the heads of each of `blocks`, in double precision on the host; queries include the factor by
        which a layer or a head divides its scores."""
        heads, shared = self.num_heads, self.sizes.shared_heads
        groups = heads if self.sizes.num_shared is None else shared

        def divided(linear: Any, count: int) -> np.ndarray:
            # Float64 on the host: float32 products would lose the small eigenvalues of the spectra.
            kernel = np.asarray(linear.kernel[...], np.float64)
            parts = np.moveaxis(kernel.reshape(kernel.shape[0], count, -1), 1, 0)
            return np.repeat(parts, heads // count, axis=0)

        def of_block(block: Block) -> AttentionMaps:
            part, query = block.attention, divided(block.attention.query, heads)
            if part.temperature is not None:
                query = query * np.asarray(part.temperature[...], np.float64)[:, None, None]
            output = np.asarray(part.output.kernel[...], np.float64)
            maps = query, divided(part.key, groups), divided(part.value, groups)
            return AttentionMaps(*maps, output.reshape(heads, -1, output.shape[1]))

        return [of_block(block) for block in self.blocks()]

    def norm_scales(self) -> list[np.ndarray] | None:
        """The scale of the norm that each block applies to the input of its attention, (d,), without its centring and
        its bias; None if norms act on the residual stream itself, or there is none before the attention."""
        norms = [cast(Norm | None, block.attention_norms.read) for block in self.blocks()]
        if any(norm is None for norm in norms):
            return None
        return [np.asarray(cast(Norm, norm).gain, np.float64) for norm in norms]

    def last_scale(self) -> np.ndarray | None:
        """The scale of the norm after the last layer, (d,), without its centring and its bias; None without one."""
        return None if self.norm is None else np.asarray(self.norm.gain)

    def drop_head(self) -> None:
        """Remove the parts that the hidden states do not depend on, in place: a pooler, a head with parameters."""
        self.pooler = None
        self.head = self.head if self.head is not None and not jtu.tree_leaves(nnx.state(self.head)) else None


# Without this line, `help` would show the `(*args, **kwargs)` of the metaclass of Flax in place of these parameters.
Network.__signature__ = inspect.signature(functools.partial(Network.__init__, None))  # pyright: ignore


def check_not_ahead(network: Network, name: str, n: int) -> None:
    """Raise a ValueError if a token attends to a later one, under a mask of `with_mask` or that of the training."""
    context = network.shared_context(n)
    ahead = not context.causal if context.allowed is None else np.triu(np.asarray(context.allowed), 1).any()
    if ahead and network.mask is not None:
        rule = "have a mask under which no token attends to a later one"
        remedy = "give with_mask a causal one, CausalMask() or WindowMask(width, causal=True), say"
        raise refusal("model", rule, f"its mask is {network.mask}", remedy)
    if ahead:
        rule, remedy = "be causal, so that a place says what comes next", "load GPT-2, a Llama, or 'smollm2'"
        raise refusal("model", rule, f"{name!r} is not", remedy)


def run_layers(
    network: Network,
    mask: Bool[Array, "batch n"] | None,
    ids: Any,
    *more: Int[Array, "batch n"] | None,
) -> Float[Array, "batch n d"]:
    """The last hidden states of a network; the ids and `more` are the arguments of its `embed`."""
    moved = words_first(mask)
    shape = jnp.shape(ids) if network.patches is None else (len(ids), cast(Patches, network.sizes.patches).num_tokens)
    mask = jnp.ones(shape, bool) if mask is None else mask
    return run_layers_measured(network, mask, (ids, *more), None, moved)[0]


def run_layers_measured(
    network: Network,
    mask: Bool[Array, "batch n"],
    read: Sequence[Any],
    measure: Callable[[Array, Array, Array], Any] | None,
    moved: tuple[Int[Array | np.ndarray, "batch n"] | None, Int[Array | np.ndarray, "batch n"] | None] = (None, None),
) -> tuple[Float[Array, "batch n d"], Any]:
    """The last hidden states, and `measure(hidden, attention, allowed)` at each layer, stacked.

    `hidden` enters the layer, `attention` has the weights of the layer, and `allowed`, (batch, n, n), is True at the
    pairs of words between which its mask permits attention. The scan holds one layer at a time, so that only the
    results of `measure` grow with the depth. `read` are the arguments of `embed`, and `moved` is the result of
    `words_first` for the mask; by default padding is behind the words.
    """
    order, back = moved
    if order is not None and back is not None:
        # At most as many rows are read as the network has positions. The states of further rows are copies of another
        # row, and are set to zero below.
        most = min(order.shape[1], network.max_positions or order.shape[1])
        order, back = order[:, :most], jnp.minimum(back, most - 1)
    words = _arranged(mask, order, 1)
    embedded = network.embed(*(_arranged(part, order, 1) for part in read))
    n = embedded.shape[1]
    # The context is the same for every layer, so it is computed once, outside the scan.
    context, places = network.shared_context(n, jnp.sum(words, axis=1)), jnp.arange(n, dtype=jnp.int32)
    put_back = lambda hidden: hidden if back is None else blank(_arranged(hidden, back, 1), mask)
    pairs = mask[:, :, None] & mask[:, None, :]

    def between(weights: Array, axes: tuple[int, int]) -> Array:
        """The weights of pairs in the original order of tokens, from those in the order with words first."""
        if back is None:
            return weights
        weights, word_pairs = _arranged(weights, back, *axes), pairs if weights.ndim == 3 else pairs[:, None]
        return jnp.where(word_pairs, weights, jnp.zeros_like(weights))

    edits, layers = network.edits, network.num_layers

    def step(block: Block, hidden: Array, given: tuple[Gains, Any]) -> tuple[Array, Any]:
        hidden = blank(apply(given[1], "stream", hidden), words) if given[1] else hidden
        after, attention = block(hidden, words, context, given[0], given[1])
        if measure is None:
            return blank(after, words), None
        rule = block.allowed(places, places, context)
        allowed = words[:, :, None] & words[:, None, :] & (True if rule is None else rule[None])
        measured = measure(put_back(hidden), between(attention, (2, 3)), between(allowed, (1, 2)))
        return blank(after, words), measured

    # The embedding of padding is not zero.
    hidden, measured = scan_layers(
        network, step, blank(embedded, words), n, of_layers(edits, slice(layers)), edited=True, unroll=measure is None
    )
    if edits:
        hidden = apply(of_layers(tuple(edit for edit in edits if edit.place == "stream"), layers), "stream", hidden)
    # Padding is blanked again, because a last norm with a bias would make it non-zero.
    return put_back(blank(network.finish(hidden), words)), measured


def _arranged(x: Any, order: Any, *axes: int) -> Any:
    """`arranged` for each text of a batch; `axes` count the batch axis."""
    if order is None or x is None:
        return x
    return jax.vmap(lambda x, order: arranged(x, order, *(axis - 1 for axis in axes)))(jnp.asarray(x), order)


def scan_layers(
    network: Network,
    step: Callable[[Block, Any, tuple[Gains, Any]], tuple[Any, Any]],
    carry: Any,
    n: int,
    each: Any = None,
    *,
    reverse: bool = False,
    edited: bool = False,
    unroll: bool = False,
) -> tuple[Any, Any]:
    """Apply `step(block, carry, (gains, entry)) -> (carry, result)` to each layer of texts of `n` tokens, and return
    the last `carry` and the results, stacked along a first axis in the order of the layers.

    `entry` is the entry of the layer in `each`, arrays whose first axis is that of the layers. If `reverse` is True,
    the last layer comes first. `edited` is True if `step` applies the edits of the network. If `unroll` is True and
    each block serves one layer, the scan is unrolled, so that no weights are copied; the program then grows with the
    number of layers.
    """
    if not edited:
        check_unedited(network)
    order, block_of = _blocks(network)
    inputs, layers = (order, gains_of(network, n), each), network.num_layers
    # A loop copies the weights of all blocks into a stack: for SmolLM2 and 128 tokens this is a third of the time, and
    # as much memory as the weights. Unrolled, the program of a forward pass compiles in 2 s instead of 1 s.
    unrolled = layers if unroll and order is not None and len(network.blocks()) >= layers else 1
    # For a single block `order` is None, and `length` gives the number of its applications.
    return lax.scan(
        lambda carry, inputs: step(block_of(inputs[0]), carry, inputs[1:]), carry, inputs, length=layers,
        unroll=network.unroll or unrolled, reverse=reverse,
    )  # fmt: skip


def check_unedited(network: Network) -> None:
    """Raise a ValueError if the network has edits of `patch`, which not every tool applies."""
    if network.edits:
        rule, problem = "be without edits of patch for this tool", "it has some"
        raise refusal("model", rule, problem, "measure it by trace, survey, next_words or token_losses")


def gains_of(network: Network, n: int) -> Gains:
    """The gains of each layer at n positions."""
    if network.gains is None:
        return Gains()
    # The last entry of a gain holds for all further positions, so the last named position is the length minus two.
    last = max(gain.shape[-1] for gain in network.gains if gain is not None) - 2
    if last >= n:
        raise refusal("token", f"be one of each text, which have {n}", f"it is {last}", "name one that is there")
    return jtu.tree_map(lambda gain: at_places(gain, n), network.gains)


def _blocks(network: Network) -> tuple[Int[Array, " layers"] | None, Callable[[Any], Any]]:
    """The values to scan over, and a function from each value to its block."""
    blocks = network.blocks()
    # A single block is closed over rather than stacked: a gather would copy its weights at each step.
    if len(blocks) == 1:
        return None, lambda index: blocks[0]
    form, stacked = stack_blocks(blocks)
    return jnp.asarray(network.order(), jnp.int32), lambda index: pick_block(form, stacked, index)


def stack_blocks(blocks: Sequence[Block]) -> tuple[Any, Any]:
    """The structure of all blocks, and their weights, stacked along a first axis."""
    parts = [nnx.split(block) for block in blocks]
    return parts[-1][0], jtu.tree_map(lambda *leaves: jnp.stack(leaves), *(arrays for _, arrays in parts))


def pick_block(form: Any, stacked: Any, index: Any) -> Any:
    """One of the blocks that `stack_blocks` stacked, by its index."""
    # A dynamic index keeps the program one layer long; with a static one each layer would be compiled.
    return nnx.merge(form, jtu.tree_map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), stacked))


# Cached keys and values of a causal network, so that each new token costs one position instead of a whole pass.
#
# No token attends to a later one, so that the keys and values of a text do not change when it is continued (Vaswani et
# al., 1706.03762, Section 3.2.3; Shazeer, *Fast transformer decoding*, 1911.02150, Section 2.4). They are written to
# the positions of their tokens in arrays of a fixed size, and the queries of new tokens attend to positions up to their
# own. One layer is compiled and called for each layer in turn: a scan over stacked weights would copy the weights of
# each layer out of the stack, which for one token takes longer than the products, and a program of all layers takes
# long to compile.
#
# Invariants: reading in pieces equals reading at once, up to rounding, under every causal mask and with every kind of
# positions; entries after the last token that was read receive no attention and are overwritten.


class Parts(NamedTuple):
    """A network split into parts, so that its layers can be called one by one.

    **Arguments:**

    - `whole`: The network: its form, which is static, and its arrays.
    - `blocks`: The form and the arrays of each block.
    - `order`: The index of the block of each layer.
    - `gains`: The gains of each layer at all positions.
    - `shared`: The bias, the rotation and the allowed pairs of `Context` at all positions, which the layers share.
    - `edits`: The edits of each layer, and those of the stream after the last layer, at all positions.
    """

    whole: tuple[Any, tuple[Array, ...]]
    blocks: list[tuple[Any, tuple[Array, ...]]]
    order: list[int]
    gains: list[Gains]
    shared: tuple[Any, Any, Any]
    edits: list[tuple[LayerEdit, ...]]


class Cache(NamedTuple):
    """The rotated keys and the values of the tokens that one layer has read, at the positions of the tokens.

    **Arguments:**

    - `keys`, `values`: (batch, size, shared, k).
    """

    keys: Float[Array, "batch size shared k"]
    values: Float[Array, "batch size shared k"]


def take_apart(network: Network, size: int) -> Parts:
    """Split a causal network for texts of `size` positions.

    **Raises:**

    - `ValueError` if under the mask of the network some token attends to a later one, or an edit of `patch` has no
        value for a text that is continued.
    """
    context, gains = network.shared_context(size), gains_of(network, size)
    check_not_ahead(network, "this network", size)
    layers, edits = range(network.num_layers), tuple(edit.at_positions(size) for edit in network.edits)
    last = of_layers(tuple(edit for edit in edits if edit.place == "stream"), network.num_layers)
    return Parts(
        _flat(network), [_flat(block) for block in network.blocks()], network.order(),
        [jtu.tree_map(lambda leaf, at=layer: leaf[at], gains) for layer in layers],
        (context.bias, context.rotation, context.allowed), [*(of_layers(edits, layer) for layer in layers), last],
    )  # fmt: skip


def empty(network: Network, batch: int, size: int) -> list[Cache]:
    """An empty cache for each layer, for `batch` texts of `size` positions."""
    parts = jax.eval_shape(lambda: network.blocks()[0].project(network.embed(jnp.zeros((batch, size), jnp.int32))))
    make = lambda part: jnp.zeros(part.shape, part.dtype)
    return [Cache(make(parts.key), make(parts.value)) for _ in range(network.num_layers)]


def read_on(
    parts: Parts, caches: list[Cache], ids: Int[Array, "batch size"], first: Int[Array, " batch"], count: int
) -> tuple[Float[Array, "batch count d"], list[Cache]]:
    """The hidden states after the last layer, before the last norm, of `count` tokens of each text, from position
    `first` on, and the caches including these tokens.

    `parts` are those of `take_apart`, and `caches` have the tokens before `first`; their arrays are donated. `ids` have
    as many positions as the caches; ids after the tokens that are read are arbitrary.
    """
    hidden, new_caches = _embed(*parts.whole, ids, first, count), []
    for which, gains, cache, edits in zip(parts.order, parts.gains, caches, parts.edits[:-1], strict=True):
        hidden, cache = _layer(*parts.blocks[which], hidden, cache, gains, parts.shared, edits, first)
        new_caches.append(cache)
    return _edited(parts.edits[-1], hidden, first) if parts.edits[-1] else hidden, new_caches


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


@jax.jit
def _edited(edits: tuple[LayerEdit, ...], hidden: Array, first: Array) -> Array:
    of_text = lambda x, first: apply(tuple(edit.rows(first, len(x)) for edit in edits), "stream", x[None])[0]
    return jax.vmap(of_text)(hidden, first)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def _layer(
    form: Any, leaves: Any, hidden: Array, cache: Cache, gains: Gains, shared: Any, edits: Any, first: Array
) -> tuple[Array, Cache]:
    of_text = functools.partial(read_layer, whole(form, leaves), gains=gains, shared=shared, edits=edits)
    return jax.vmap(of_text)(hidden, cache, first)


def read_layer(
    block: Block, hidden: Float[Array, "count d"], cache: Cache, first: Array, gains: Gains, shared: Any, edits: Any
) -> tuple[Float[Array, "count d"], Cache]:
    """The stream of some tokens of one text, from position `first` on, after one layer, and the cache of the layer
    including these tokens; `gains`, `shared` and `edits` are those of `Parts` for this layer."""
    count, size = hidden.shape[0], cache.keys.shape[0]
    among, asking = jnp.arange(size, dtype=jnp.int32), first + jnp.arange(count, dtype=jnp.int32)

    def rows(x: Any, axis: int) -> Any:
        return None if x is None else lax.dynamic_slice_in_dim(x, first, count, axis)

    bias, turn, allowed = shared
    # The positions are the second axis, behind that of the kinds.
    turn = None if turn is None else (rows(turn[0], 1), rows(turn[1], 1))
    context = Context(rows(bias, 2), True, turn, rows(allowed, 0))
    gain = jtu.tree_map(lambda gain: rows(gain, gain.ndim - 1), gains)
    edit = tuple(edit.rows(first, count) for edit in edits)
    entered = block.enter(apply(edit, "stream", hidden[None]))
    query, keys, values, distances = block.turned(block.read(0, entered), context)
    write = lambda cached, new: lax.dynamic_update_slice_in_dim(cached, new[0].astype(cached.dtype), first, 0)
    cache = Cache(write(cache.keys, keys), write(cache.values, values))
    if distances is not None:
        distances = distances._replace(rows=distance_rows(asking, among, distances.keys.shape[0]))
    attended, _ = attend(
        query, cache.keys[None], cache.values[None], jnp.ones((1, size), bool), context.bias, block.precision,
        block.allowed(asking, among, context), distances, jnp.ones((1, count), bool), cap=block.cap,
    )  # fmt: skip
    middle = block.write(0, entered + block.added_by_heads(attended, gain, edit))
    return block.after_feed_forward(entered, middle, gain, edit)[0], cache
