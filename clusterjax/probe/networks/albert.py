"""ALBERT in flax.nnx, with the parameter tree of the published `flax_model.msgpack` files.

Embeddings of words, positions and token types of size e, a linear map to d, then one group of layers applied `depth`
times (Lan et al., *ALBERT: a lite BERT*, 1909.11942, Section 3.1). Each layer has attention and feed-forward, each with
a residual connection followed by a layer norm: post-norm, as in BERT.

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

from ..._base.checks import check_array, check_flag, refusal
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
    product,
    project_heads,
    run_layers,
    signed,
)
from .sizes import AlbertSizes, check_heads, check_sizes, check_weights
from .token_ids import check_ids, check_like, check_mask


@signed
class Albert(AbstractNetwork):
    r"""ALBERT: one layer applied repeatedly; $x \leftarrow N(x + A(x))$, then $x \leftarrow N(x + F(x))$.

    A is multi-head attention, F the feed-forward, N a layer norm. Padding neither gives nor receives attention, and its
    output is zero. One `lax.scan` applies the layers, so that compilation does not grow with `depth`. Beyond the
    trained depth, the trained sequence of layers starts again from its first; with one group, the shared layer is
    applied further times. There is no dropout, as in the published second versions.

    The parameter tree, with i a group, j a layer in it, is

        embeddings/{word_embeddings,position_embeddings,token_type_embeddings}/embedding
        embeddings/LayerNorm/{scale,bias}
        encoder/embedding_hidden_mapping_in/{kernel,bias}
        encoder/albert_layer_groups/i/albert_layers/j/attention/{query,key,value,dense}/{kernel,bias}
        encoder/albert_layer_groups/i/albert_layers/j/attention/LayerNorm/{scale,bias}
        encoder/albert_layer_groups/i/albert_layers/j/{ffn,ffn_output}/{kernel,bias}
        encoder/albert_layer_groups/i/albert_layers/j/full_layer_layer_norm/{scale,bias}
        pooler/{kernel,bias}                                                            (if `pooler`)
        predictions/dense/{kernel,bias}, predictions/LayerNorm/{scale,bias}                     (if `head`)
        predictions/bias                                                  (if `head`, and it is tied)
        predictions/decoder/{kernel,bias}                                 (if `head`, and it is not tied)

    **Arguments:**

    - `sizes`: An `AlbertSizes`.
    - `rngs`: `nnx.Rngs` for the random weights.

    **Other arguments:**

    - `depth`: The number of applications of a group; None selects the trained `sizes.num_layers`.
    - `heads`: The number of heads into which the trained matrices are divided; None selects `sizes.num_heads`. Another
        number changes the network from layer 1 on.
    - `pooler`, `head`: True for a network with the pooler, and with the masked-LM head that `logits` requires.
    - `dtype`: The dtype of the parameters, and thus of all arrays.
    - `precision`: The precision of the matrix products.

    **Raises:**

    - `ValueError` if `depth` is not positive, `heads` does not divide the hidden size, or an option has a wrong type.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942), Section 3.1; the tree is that of `FlaxAlbertForMaskedLM` and
        `FlaxAlbertModel` in version 4 of transformers.
    """

    shares_layers: bool = True

    def __init__(
        self,
        sizes: AlbertSizes,
        rngs: nnx.Rngs,
        *,
        depth: int | None = None,
        heads: int | None = None,
        pooler: bool = False,
        head: bool = False,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = lax.Precision.HIGHEST,
    ):
        check_sizes(sizes, AlbertSizes)
        # The matrices are (d, d) for any number of heads, which only changes the division of their columns.
        heads = check_heads(sizes.hidden_size, sizes.num_heads if heads is None else heads, "heads")
        dtype, precision = check_making(rngs, dtype, precision)
        check_weights(sizes, dtype)
        check_flag(pooler, "pooler")
        check_flag(head, "head")
        self.sizes, self.num_heads = sizes, heads
        self.unroll = 1  # layers in a step of the scan; with all layers derivatives are faster, compilation slower
        self.depth = sizes.num_layers if depth is None else check_depth(depth)
        std = init_normal(sizes.spread)
        linear = functools.partial(
            nnx.Linear, kernel_init=std, param_dtype=dtype, dtype=dtype, precision=cast(Any, precision), rngs=rngs
        )
        self.embeddings = _Embeddings(sizes, rngs, dtype)
        self.encoder = _Encoder(sizes, heads, linear, dtype, precision)
        # None if the checkpoint lacks the part, so that the parameter tree matches the file.
        self.pooler = linear(sizes.hidden_size, sizes.hidden_size) if pooler else None
        self.predictions = _Predictions(sizes, linear, dtype) if head else None

    @property
    def num_layers(self) -> int:
        """The number of layers that are applied, each with its own attention."""
        return self.depth * self.sizes.inner_layers

    def __call__(
        self,
        token_ids: Int[Array, "batch n"],
        mask: Bool[Array, "batch n"] | None = None,
        token_types: Int[Array, "batch n"] | None = None,
        position_ids: Int[Array, "batch n"] | None = None,
    ) -> Float[Array, "batch n d"]:
        """The hidden states after the last layer; `trace` returns those of all layers.

        **Raises:**

        - `ValueError` if the ids do not form a batch, or a text has more tokens than there are positions.
        """
        sizes = self.sizes
        # Always int32, so that NumPy's int64 does not compile a second program.
        ids = jnp.asarray(check_ids(token_ids, "token_ids", sizes.vocab_size), jnp.int32)
        mask = None if mask is None else check_mask(mask, ids.shape)
        if token_types is not None:
            token_types = check_like(token_types, "token_types", ids.shape, sizes.type_vocab_size, "the token types")
        if position_ids is not None:
            position_ids = check_like(position_ids, "position_ids", ids.shape, sizes.max_positions, "the positions")
        # A lookup beyond the table gives NaN without an error, and a later message would blame the hidden states.
        elif ids.shape[1] > sizes.max_positions:
            raise refusal(
                "token_ids", f"hold at most {sizes.max_positions} tokens a text, the positions",
                f"their shape is {ids.shape}", "cut the texts, or pass position_ids",
            )  # fmt: skip
        return run_layers(self, mask, ids, token_types, position_ids)

    def embed(
        self,
        token_ids: Int[Array, "batch n"],
        token_types: Int[Array, "batch n"] | None = None,
        position_ids: Int[Array, "batch n"] | None = None,
    ) -> Float[Array, "batch n d"]:
        """The hidden states before the first layer; by default positions are the indices of the columns."""
        return self.encoder.embedding_hidden_mapping_in(self.embeddings(token_ids, token_types, position_ids))

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of all words of the vocabulary at each position, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no masked-LM head, or `hidden` has another size.
        """
        if self.predictions is None:
            raise ValueError("head must be True for logits, but this network has no masked-LM head; load one that has.")
        hidden = check_array(hidden, "hidden", shape=("batch", "n", self.sizes.hidden_size))
        return self.predictions(hidden, self.embeddings.word_embeddings.embedding[...])

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

    def position_bias(self, n: int) -> None:
        """None, because the positions of ALBERT are in its embedding."""
        return None

    def context(self, n: int) -> Context:
        """An empty context, because the positions of ALBERT are in its embedding."""
        return Context()

    def blocks(self) -> "list[_Layer]":
        """The layers with their own weights."""
        return [layer for group in self.encoder.albert_layer_groups for layer in group.albert_layers]

    def order(self) -> list[int]:
        """The index in `blocks` of each layer."""
        sizes, inner = self.sizes, range(self.sizes.inner_layers)
        # As in transformers, the groups divide the trained layers evenly, in order. Beyond `num_layers` the sequence
        # starts again, so that the first layers remain those of the trained network.
        trained = [i * sizes.num_groups // sizes.num_layers for i in range(sizes.num_layers)]
        groups = [trained[i % sizes.num_layers] for i in range(self.depth)]
        return [group * sizes.inner_layers + j for group in groups for j in inner]

    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """Returns the hidden states unchanged: ALBERT has no norm after its last layer."""
        return hidden

    def unembedding(self) -> Float[Array, "words d"]:
        """The embedding of each word, mapped to the hidden space; the masked-LM head itself is not linear."""
        map_ = self.encoder.embedding_hidden_mapping_in
        return product("we,ed->wd", self.embeddings.word_embeddings.embedding[...], map_.kernel[...], map_.precision)

    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of the heads of each of `blocks`, in double precision on the host."""
        parts = (block.attention for block in self.blocks())
        return [maps_of_heads(part.query, part.key, part.value, part.dense, self.num_heads) for part in parts]

    @property
    def score_scale(self) -> float:
        """The factor of the products of queries and keys: 1 / sqrt(k) for heads of dimension k."""
        return (self.sizes.hidden_size // self.num_heads) ** -0.5

    def word_factors(self) -> tuple[np.ndarray, np.ndarray]:
        """The embedding of words, (words, e), and the map from its rows to the hidden space, (e, d)."""
        table, map_ = self.embeddings.word_embeddings.embedding, self.encoder.embedding_hidden_mapping_in.kernel
        return np.asarray(table[...], np.float64), np.asarray(map_[...], np.float64)

    def norm_scales(self) -> None:
        """None, because the norms act on the residual stream itself."""
        return None

    def last_scale(self) -> None:
        """None, because there is no norm after the last layer."""
        return None

    def drop_head(self) -> None:
        """Remove the pooler and the masked-LM head, in place."""
        self.pooler = self.predictions = None


class _Embeddings(nnx.Module):
    def __init__(self, sizes: AlbertSizes, rngs: nnx.Rngs, dtype: Any):
        def table(rows: int) -> nnx.Embed:
            init = init_normal(sizes.spread)
            return nnx.Embed(rows, sizes.embedding_size, embedding_init=init, param_dtype=dtype, dtype=dtype, rngs=rngs)

        self.word_embeddings = table(sizes.vocab_size)
        self.position_embeddings = table(sizes.max_positions)
        self.token_type_embeddings = table(sizes.type_vocab_size)
        self.LayerNorm = LayerNorm(sizes.embedding_size, sizes.eps, dtype)

    def __call__(
        self,
        token_ids: Int[Array, "batch n"],
        token_types: Int[Array, "batch n"] | None,
        position_ids: Int[Array, "batch n"] | None,
    ) -> Array:
        types = jnp.zeros_like(token_ids) if token_types is None else token_types
        # (1, n): the lookup and the sum below broadcast it over the batch.
        places = jnp.arange(token_ids.shape[1])[None] if position_ids is None else position_ids
        positions = self.position_embeddings(places)
        return self.LayerNorm(self.word_embeddings(token_ids) + self.token_type_embeddings(types) + positions)


class _Encoder(nnx.Module):
    def __init__(self, sizes: AlbertSizes, heads: int, linear: Any, dtype: Any, precision: Any):
        self.embedding_hidden_mapping_in = linear(sizes.embedding_size, sizes.hidden_size)
        groups = range(sizes.num_groups)
        self.albert_layer_groups = nnx.List([_Group(sizes, heads, linear, dtype, precision) for _ in groups])


class _Group(nnx.Module):
    def __init__(self, sizes: AlbertSizes, heads: int, linear: Any, dtype: Any, precision: Any):
        inner = range(sizes.inner_layers)
        self.albert_layers = nnx.List([_Layer(sizes, heads, linear, dtype, precision) for _ in inner])


class _Layer(AbstractBlock):
    def __init__(self, sizes: AlbertSizes, heads: int, linear: Any, dtype: Any, precision: Any):
        self.attention = _Attention(sizes, linear, dtype)
        self.ffn = linear(sizes.hidden_size, sizes.intermediate_size)
        self.ffn_output = linear(sizes.intermediate_size, sizes.hidden_size)
        self.full_layer_layer_norm = LayerNorm(sizes.hidden_size, sizes.eps, dtype)
        self.activation, self.num_heads, self.precision = sizes.activation, heads, precision

    @property
    def post_norm(self) -> bool:
        return True

    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        return self.attention.LayerNorm, self.full_layer_layer_norm

    def set_norms(self, norm: AbstractNorm) -> None:
        # `Any`, because the constructor declares layer norms and `norm` may be any norm.
        whole: Any = self
        whole.attention.LayerNorm, whole.full_layer_layer_norm = norm, norm

    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        part = self.attention
        return project_heads(part.query(read), part.key(read), part.value(read), self.num_heads)

    def head_outputs(self) -> Affine:
        return affine(self.attention.dense, self.num_heads)

    def activations(self, read: Float[Array, "batch n d"]) -> Array:
        return activation(self.activation)(self.ffn(read))

    def neuron_values(self) -> Affine:
        return affine(self.ffn_output)


class _Attention(nnx.Module):
    def __init__(self, sizes: AlbertSizes, linear: Any, dtype: Any):
        d = sizes.hidden_size
        self.query, self.key, self.value, self.dense = (linear(d, d) for _ in range(4))
        self.LayerNorm = LayerNorm(d, sizes.eps, dtype)


class _Predictions(nnx.Module):
    def __init__(self, sizes: AlbertSizes, linear: Any, dtype: Any):
        # With a tied decoder only its bias is a parameter; transformers stores another decoder's bias with its kernel.
        self.bias = nnx.Param(jnp.zeros(sizes.vocab_size, dtype)) if sizes.tied else None
        self.dense = linear(sizes.hidden_size, sizes.embedding_size)
        self.LayerNorm = LayerNorm(sizes.embedding_size, sizes.eps, dtype)
        self.decoder = None if sizes.tied else linear(sizes.embedding_size, sizes.vocab_size)
        self.activation = sizes.activation

    def __call__(self, hidden: Float[Array, "batch n d"], words: Float[Array, "words e"]) -> Array:
        hidden = self.LayerNorm(activation(self.activation)(self.dense(hidden)))
        if self.decoder is not None:
            return self.decoder(hidden)
        # Tied: the embedding of words is the decoder, so the scores are inner products with each word in e dimensions.
        scores = jnp.einsum("bne,we->bnw", hidden, words, precision=self.dense.precision)
        return scores + cast(Any, self.bias)[...][None, None]
