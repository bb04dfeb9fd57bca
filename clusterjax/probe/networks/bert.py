"""BERT in flax.nnx, with the parameter tree of the published files.

Embeddings of words, positions and token types with a layer norm, then layers of attention and feed-forward, each with a
residual connection followed by a layer norm: post-norm (Devlin et al., *BERT*, 1810.04805, Section 3).

Invariants: attribute names are those of the checkpoints, because `weights` matches tensors by name; the number of heads
is not a parameter, so that the same matrices can be divided into another number; the output at padding is zero.
"""

import functools
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._base.checks import check_array, check_flag
from ..._base.types import DTypeLike
from .block import (
    AbstractBlock,
    AbstractNetwork,
    AbstractNorm,
    Affine,
    AttentionMaps,
    Context,
    LayerNorm,
    Precision,
    Projected,
    activation,
    affine,
    check_depth,
    check_making,
    first_word,
    init_normal,
    maps_of_heads,
    project_heads,
    run_layers,
    signed,
)
from .sizes import BertSizes, check_heads, check_sizes, check_weights
from .token_ids import check_ids, check_like, check_mask, check_places


@signed
class Bert(AbstractNetwork):
    r"""BERT: $x \leftarrow N(x + A(x))$, then $x \leftarrow N(x + F(x))$, in layers with their own weights.

    A is multi-head attention, F the feed-forward, N a layer norm. Padding neither gives nor receives attention, and its
    output is zero. One `lax.scan` applies the layers, over their stacked weights. Beyond the trained depth, the stack
    starts again from its first layer. There is no dropout.

    The parameter tree, with i a layer, is

        embeddings/{word_embeddings,position_embeddings,token_type_embeddings}/embedding
        embeddings/LayerNorm/{scale,bias}
        encoder/layer/i/attention/self/{query,key,value}/{kernel,bias}
        encoder/layer/i/attention/output/dense/{kernel,bias}
        encoder/layer/i/{intermediate,output}/dense/{kernel,bias}
        encoder/layer/i/{attention/output,output}/LayerNorm/{scale,bias}
        pooler/dense/{kernel,bias}                                                      (if `pooler`)
        cls/predictions/transform/dense/{kernel,bias}                                   (if `head`)
        cls/predictions/transform/LayerNorm/{scale,bias}                                (if `head`)
        cls/predictions/bias                                              (if `head`, and it is tied)
        cls/predictions/decoder/{kernel,bias}                             (if `head`, and it is not tied)

    **Arguments:**

    - `sizes`: A `BertSizes`.
    - `rngs`: `nnx.Rngs` for the random weights.

    **Other arguments:**

    - `depth`: The number of layers that are applied; None selects the trained `sizes.num_layers`.
    - `heads`: The number of heads into which the trained matrices are divided; None selects `sizes.num_heads`. Another
        number changes the network from layer 1 on.
    - `pooler`, `head`: True for a network with the pooler, and with the masked-LM head that `logits` requires.
    - `dtype`: The dtype of the parameters, and thus of all arrays.
    - `precision`: The precision of the matrix products.

    **Raises:**

    - `ValueError` if `depth` is not positive, `heads` does not divide the hidden size, or an option has a wrong type.

    ??? cite "Source"

        Devlin et al., *BERT: pre-training of deep bidirectional transformers for language understanding* (1810.04805),
        Section 3; the tree is that of `BertForMaskedLM` and `BertModel` of transformers.
    """

    def __init__(
        self,
        sizes: BertSizes,
        rngs: nnx.Rngs,
        *,
        depth: int | None = None,
        heads: int | None = None,
        pooler: bool = False,
        head: bool = False,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = lax.Precision.HIGHEST,
    ):
        check_sizes(sizes, BertSizes)
        heads = check_heads(sizes.hidden_size, sizes.num_heads if heads is None else heads, "heads")
        dtype, precision = check_making(rngs, dtype, precision)
        check_weights(sizes, dtype)
        check_flag(pooler, "pooler")
        check_flag(head, "head")
        self.sizes, self.num_heads = sizes, heads
        self.depth = sizes.num_layers if depth is None else check_depth(depth)
        self.unroll = 1
        std = init_normal(sizes.spread)
        linear = functools.partial(
            nnx.Linear, kernel_init=std, param_dtype=dtype, dtype=dtype, precision=cast(Any, precision), rngs=rngs
        )
        self.embeddings = _Embeddings(sizes, rngs, dtype)
        self.encoder = _Encoder(sizes, heads, linear, dtype, precision)
        # None if the checkpoint lacks the part, so that the parameter tree matches the file.
        self.pooler = _Dense(linear, sizes.hidden_size, sizes.hidden_size) if pooler else None
        self.cls = _Heads(sizes, linear, dtype) if head else None

    @property
    def num_layers(self) -> int:
        """The number of layers that are applied."""
        return self.depth

    def __call__(
        self,
        token_ids: Int[Array, "batch n"],
        mask: Bool[Array, "batch n"] | None = None,
        token_types: Int[Array, "batch n"] | None = None,
    ) -> Float[Array, "batch n d"]:
        """The hidden states after the last layer; `trace` returns those of all layers.

        **Raises:**

        - `ValueError` if the ids do not form a batch, or a text has more tokens than there are positions.
        """
        sizes = self.sizes
        ids = jnp.asarray(check_ids(token_ids, "token_ids", sizes.vocab_size), jnp.int32)
        mask = None if mask is None else check_mask(mask, ids.shape)
        if token_types is not None:
            token_types = check_like(token_types, "token_types", ids.shape, sizes.type_vocab_size, "the token types")
        check_places(ids, sizes.max_positions)
        return run_layers(self, mask, ids, token_types)

    def embed(
        self, token_ids: Int[Array, "batch n"], token_types: Int[Array, "batch n"] | None = None
    ) -> Float[Array, "batch n d"]:
        """The hidden states before the first layer."""
        return self.embeddings(token_ids, token_types)

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of all words of the vocabulary at each position, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no masked-LM head, or `hidden` has another size.
        """
        if self.cls is None:
            raise ValueError("head must be True for logits, but this network has no masked-LM head; load one that has.")
        hidden = check_array(hidden, "hidden", shape=("batch", "n", self.sizes.hidden_size))
        return self.cls.predictions(hidden, self.embeddings.word_embeddings.embedding[...])

    def pool(
        self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"] | None = None
    ) -> Float[Array, "batch d"]:
        """The pooled first word of each text, from the last hidden states; without a mask, the first row is pooled.

        **Raises:**

        - `ValueError` if the network has no pooler.
        """
        if self.pooler is None:
            raise ValueError("pooler must be True for pool, but this network has no pooler; load one that has.")
        return jnp.tanh(self.pooler.dense(first_word(hidden, mask)))

    def context(self, n: int) -> Context:
        """An empty context, because the positions of BERT are in its embedding."""
        return Context()

    def blocks(self) -> "list[_Layer]":
        """The layers with their own weights."""
        return list(self.encoder.layer)

    def order(self) -> list[int]:
        """The index in `blocks` of each layer."""
        return [i % self.sizes.num_layers for i in range(self.depth)]

    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """Returns the hidden states unchanged: BERT has no norm after its last layer."""
        return hidden

    def unembedding(self) -> Float[Array, "words d"]:
        """The embedding of each word; the masked-LM head itself is not linear."""
        return self.embeddings.word_embeddings.embedding[...]

    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of the heads of each of `blocks`, in double precision on the host."""
        parts = ((block.attention.self, block.attention.output.dense) for block in self.blocks())
        return [maps_of_heads(part.query, part.key, part.value, out, self.num_heads) for part, out in parts]

    @property
    def score_scale(self) -> float:
        """The factor of the products of queries and keys: 1 / sqrt(k) for heads of dimension k."""
        return (self.sizes.hidden_size // self.num_heads) ** -0.5

    def word_factors(self) -> tuple[np.ndarray, None]:
        """The embedding of words, (words, d), in double precision; its rows are in the hidden space, hence None."""
        return np.asarray(self.embeddings.word_embeddings.embedding[...], np.float64), None

    def norm_scales(self) -> None:
        """None, because the norms act on the residual stream itself."""
        return None

    def last_scale(self) -> None:
        """None, because there is no norm after the last layer."""
        return None

    def drop_head(self) -> None:
        """Remove the pooler and the masked-LM head, in place."""
        self.pooler = self.cls = None


class _Embeddings(nnx.Module):
    def __init__(self, sizes: BertSizes, rngs: nnx.Rngs, dtype: Any):
        def table(rows: int) -> nnx.Embed:
            init = init_normal(sizes.spread)
            return nnx.Embed(rows, sizes.hidden_size, embedding_init=init, param_dtype=dtype, dtype=dtype, rngs=rngs)

        self.word_embeddings = table(sizes.vocab_size)
        self.position_embeddings = table(sizes.max_positions)
        self.token_type_embeddings = table(sizes.type_vocab_size)
        self.LayerNorm = LayerNorm(sizes.hidden_size, sizes.eps, dtype)

    def __call__(self, token_ids: Int[Array, "batch n"], token_types: Int[Array, "batch n"] | None) -> Array:
        types = jnp.zeros_like(token_ids) if token_types is None else token_types
        # (1, n): the sum broadcasts it over the batch.
        positions = self.position_embeddings(jnp.arange(token_ids.shape[1])[None])
        return self.LayerNorm(self.word_embeddings(token_ids) + self.token_type_embeddings(types) + positions)


class _Encoder(nnx.Module):
    def __init__(self, sizes: BertSizes, heads: int, linear: Any, dtype: Any, precision: Any):
        layers = range(sizes.num_layers)
        self.layer = nnx.List([_Layer(sizes, heads, linear, dtype, precision) for _ in layers])


class _Layer(AbstractBlock):
    def __init__(self, sizes: BertSizes, heads: int, linear: Any, dtype: Any, precision: Any):
        d, wide = sizes.hidden_size, sizes.intermediate_size
        self.attention = _Attention(sizes, linear, dtype)
        self.intermediate = _Dense(linear, d, wide)
        self.output = _Output(linear, wide, sizes, dtype)
        self.activation, self.num_heads, self.precision = sizes.activation, heads, precision

    @property
    def post_norm(self) -> bool:
        return True

    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        return self.attention.output.LayerNorm, self.output.LayerNorm

    def set_norms(self, norm: AbstractNorm) -> None:
        # `Any`, because the constructor declares layer norms and `norm` may be any norm.
        whole: Any = self
        whole.attention.output.LayerNorm, whole.output.LayerNorm = norm, norm

    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        part = self.attention.self
        return project_heads(part.query(read), part.key(read), part.value(read), self.num_heads)

    def head_outputs(self) -> Affine:
        return affine(self.attention.output.dense, self.num_heads)

    def activations(self, read: Float[Array, "batch n d"]) -> Array:
        return activation(self.activation)(self.intermediate.dense(read))

    def neuron_values(self) -> Affine:
        return affine(self.output.dense)


class _Attention(nnx.Module):
    def __init__(self, sizes: BertSizes, linear: Any, dtype: Any):
        self.self = _SelfAttention(sizes.hidden_size, linear)
        self.output = _Output(linear, sizes.hidden_size, sizes, dtype)


class _SelfAttention(nnx.Module):
    def __init__(self, d: int, linear: Any):
        self.query, self.key, self.value = (linear(d, d) for _ in range(3))


class _Dense(nnx.Module):
    """A linear map under the name that the checkpoints use."""

    def __init__(self, linear: Any, size: int, out: int):
        self.dense = linear(size, out)


class _Output(nnx.Module):
    """The last linear map of a part, and its norm, under the names that the checkpoints use."""

    def __init__(self, linear: Any, size: int, sizes: BertSizes, dtype: Any):
        self.dense = linear(size, sizes.hidden_size)
        self.LayerNorm = LayerNorm(sizes.hidden_size, sizes.eps, dtype)


class _Heads(nnx.Module):
    def __init__(self, sizes: BertSizes, linear: Any, dtype: Any):
        self.predictions = _Predictions(sizes, linear, dtype)


class _Predictions(nnx.Module):
    def __init__(self, sizes: BertSizes, linear: Any, dtype: Any):
        self.transform = _Transform(sizes, linear, dtype)
        # With a tied decoder only its bias is a parameter; transformers stores another decoder's bias with its kernel.
        self.bias = nnx.Param(jnp.zeros(sizes.vocab_size, dtype)) if sizes.tied else None
        self.decoder = None if sizes.tied else linear(sizes.hidden_size, sizes.vocab_size)

    def __call__(self, hidden: Float[Array, "batch n d"], words: Float[Array, "words d"]) -> Array:
        hidden = self.transform(hidden)
        if self.decoder is not None:
            return self.decoder(hidden)
        scores = jnp.einsum("bnd,wd->bnw", hidden, words, precision=self.transform.dense.precision)
        return scores + cast(Any, self.bias)[...][None, None]


class _Transform(nnx.Module):
    def __init__(self, sizes: BertSizes, linear: Any, dtype: Any):
        self.dense = linear(sizes.hidden_size, sizes.hidden_size)
        self.LayerNorm = LayerNorm(sizes.hidden_size, sizes.eps, dtype)
        self.activation = sizes.activation

    def __call__(self, hidden: Float[Array, "batch n d"]) -> Array:
        return self.LayerNorm(activation(self.activation)(self.dense(hidden)))
