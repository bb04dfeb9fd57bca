"""GPT-2 in flax.nnx, with the parameter tree of the published safetensors files.

Embeddings of words and positions, then pre-norm blocks, x + A(N(x)) and x + F(N(x)), in which no token attends to a
later one, and a last norm (Radford et al., *Language models are unsupervised multitask learners*, 2019, Section 2.3).

Invariants: attribute names are those of the checkpoints, because `weights` matches tensors by name; linear maps are
(in, out), as in the files, and hence named `weight`; the number of heads is no parameter; the output at padding is 0.
"""

import functools
from typing import Any, NamedTuple, cast

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
    check_depth,
    check_making,
    init_normal,
    maps_of_heads,
    project_heads,
    run_layers,
    signed,
)
from .sizes import check_heads, check_sizes, check_weights, checked
from .token_ids import check_ids, check_mask, check_places


@checked
class GPT2Sizes(NamedTuple):
    """The sizes of a GPT-2.

    **Arguments:**

    - `vocab_size`, `hidden_size`: Rows and columns of the word embedding.
    - `num_heads`, `intermediate_size`: The number of heads, which divides the hidden size, and the feed-forward width.
    - `num_layers`: The number of blocks, each with its own weights.
    - `activation`: As in `AlbertSizes`.
    - `max_positions`: Rows of the position embedding.
    - `scaled`: True if scores are divided by the square root of the dimension of a head.
    - `scaled_by_layer`: True if the scores of block i, from 1, are also divided by i.
    - `eps`: The epsilon of the layer norms.
    - `tied`: True if words are scored by the word embedding.
    - `spread`: The standard deviation of random weights.

    **Raises:**

    - `ValueError` if a number is not positive, the heads do not divide the hidden size, or the activation is unknown.

    ??? cite "Source"

        Radford et al., *Language models are unsupervised multitask learners* (2019), Section 2.3; the defaults are
        those of `transformers.GPT2Config`.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    num_layers: int
    activation: str = "gelu_new"
    max_positions: int = 1024
    scaled: bool = True
    scaled_by_layer: bool = False
    eps: float = 1e-5
    tied: bool = True
    spread: float = 0.02

    @property
    def num_blocks(self) -> int:
        """The number of layers with their own weights."""
        return self.num_layers

    def fit(self) -> None:
        """Raise a ValueError unless the numbers fit together."""
        check_heads(self.hidden_size, self.num_heads, "num_heads")


def gpt2_sizes(config: Any, place: str) -> dict[str, Any]:
    """The arguments of `GPT2Sizes` from a configuration of transformers; `place` names its source in messages."""
    if getattr(config, "add_cross_attention", False):
        raise ValueError(
            f"config must be of a network that reads one text, but in {place} add_cross_attention is true; name "
            "another checkpoint."
        )
    d, inner = config.n_embd, config.n_inner
    return dict(
        vocab_size=config.vocab_size,
        hidden_size=d,
        num_heads=config.n_head,
        # A value that is not an integer is refused later, under the name of the hidden size.
        intermediate_size=4 * d if inner is None and isinstance(d, int) else inner,
        num_layers=config.n_layer,
        activation=config.activation_function,
        max_positions=config.n_positions,
        scaled=bool(config.scale_attn_weights),
        scaled_by_layer=bool(config.scale_attn_by_inverse_layer_idx),
        eps=config.layer_norm_epsilon,
        # None means tied, as in transformers.
        tied=config.tie_word_embeddings is not False,
        spread=config.initializer_range,
    )


@signed
class GPT2(AbstractNetwork):
    r"""GPT-2: $x \leftarrow x + A(N(x))$, then $x \leftarrow x + F(N(x))$, and a last N after all blocks.

    A is multi-head attention in which no token attends to a later one, F the feed-forward, N a layer norm. Padding
    neither gives nor receives attention, and its output is zero. One `lax.scan` applies the blocks, over their stacked
    weights. Beyond the trained depth, the stack starts again from its first block, and the last norm follows the last
    block that is applied. There is no dropout.

    The parameter tree, with i a block, is

        wte/embedding, wpe/embedding
        h/i/{ln_1,ln_2}/{scale,bias}
        h/i/attn/{c_attn,c_proj}/{weight,bias}
        h/i/mlp/{c_fc,c_proj}/{weight,bias}
        ln_f/{scale,bias}
        lm_head/kernel                                                   (if `head`, and it is not tied)

    where each `weight` is (in, out), and c_attn computes queries, keys and values side by side.

    **Arguments:**

    - `sizes`: A `GPT2Sizes`.
    - `rngs`: `nnx.Rngs` for the random weights.

    **Other arguments:**

    - `depth`: The number of blocks that are applied; None selects the trained `sizes.num_layers`.
    - `heads`: The number of heads into which the trained matrices are divided; None selects `sizes.num_heads`. Another
        number changes the network from layer 1 on.
    - `head`: True for a network with the output map that `logits` requires, unless the word embedding serves as one.
    - `dtype`: The dtype of the parameters, and thus of all arrays.
    - `precision`: The precision of the matrix products.

    **Raises:**

    - `ValueError` if `depth` is not positive, `heads` does not divide the hidden size, or an option has a wrong type.

    ??? cite "Source"

        Radford et al., *Language models are unsupervised multitask learners* (2019), Section 2.3; the tree is that of
        `GPT2LMHeadModel` of transformers.
    """

    def __init__(
        self,
        sizes: GPT2Sizes,
        rngs: nnx.Rngs,
        *,
        depth: int | None = None,
        heads: int | None = None,
        head: bool = False,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = lax.Precision.HIGHEST,
    ):
        check_sizes(sizes, GPT2Sizes)
        heads = check_heads(sizes.hidden_size, sizes.num_heads if heads is None else heads, "heads")
        dtype, precision = check_making(rngs, dtype, precision)
        check_weights(sizes, dtype)
        check_flag(head, "head")
        self.sizes, self.num_heads, self.precision = sizes, heads, precision
        self.depth = sizes.num_layers if depth is None else check_depth(depth)
        self.unroll = 1
        std, d = init_normal(sizes.spread), sizes.hidden_size
        table = functools.partial(nnx.Embed, embedding_init=std, param_dtype=dtype, dtype=dtype, rngs=rngs)
        self.wte, self.wpe = table(sizes.vocab_size, d), table(sizes.max_positions, d)
        linear = functools.partial(_Conv1D, rngs, dtype, precision)
        self.h = nnx.List([_Block(sizes, i, heads, linear, dtype, precision) for i in range(sizes.num_layers)])
        self.ln_f = LayerNorm(d, sizes.eps, dtype)
        scores = functools.partial(
            nnx.Linear, use_bias=False, kernel_init=std, param_dtype=dtype, dtype=dtype, precision=cast(Any, precision)
        )
        self.lm_head = scores(d, sizes.vocab_size, rngs=rngs) if head and not sizes.tied else None

    @property
    def num_layers(self) -> int:
        """The number of blocks that are applied."""
        return self.depth

    def __call__(
        self, token_ids: Int[Array, "batch n"], mask: Bool[Array, "batch n"] | None = None
    ) -> Float[Array, "batch n d"]:
        """The hidden states after the last norm; `trace` returns those of all blocks.

        **Raises:**

        - `ValueError` if the ids do not form a batch, or a text has more tokens than there are positions.
        """
        ids = jnp.asarray(check_ids(token_ids, "token_ids", self.sizes.vocab_size), jnp.int32)
        mask = None if mask is None else check_mask(mask, ids.shape)
        check_places(ids, self.sizes.max_positions)
        return run_layers(self, mask, ids)

    def embed(self, token_ids: Int[Array, "batch n"], token_types: None = None) -> Float[Array, "batch n d"]:
        """The hidden states before the first block; GPT-2 has no token types."""
        return self.wte(token_ids) + self.wpe(jnp.arange(token_ids.shape[1])[None])

    def context(self, n: int) -> Context:
        """The context of a causal network: no token attends to a later one."""
        return Context(causal=True)

    def blocks(self) -> "list[_Block]":
        """The blocks with their own weights."""
        return list(self.h)

    def order(self) -> list[int]:
        """The index in `blocks` of each layer."""
        return [i % self.sizes.num_layers for i in range(self.depth)]

    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """Apply the last norm, after the last block."""
        return self.ln_f(hidden)

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of all words of the vocabulary as the next word at each position, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no map to the scores of words, or `hidden` has another size.
        """
        hidden = check_array(hidden, "hidden", shape=("batch", "n", self.sizes.hidden_size))
        if self.sizes.tied:
            words = self.wte.embedding[...]
            # In the dtype of the network, because linear maps of Flax accept any dtype.
            return jnp.einsum("bnd,wd->bnw", hidden.astype(words.dtype), words, precision=cast(Any, self.precision))
        if self.lm_head is None:
            raise ValueError("head must be True for logits, but this network has no head for words; load one that has.")
        return self.lm_head(hidden)

    def unembedding(self) -> Float[Array, "words d"]:
        """The vectors that score words: the embedding, or the weights of a separate head."""
        return self.wte.embedding[...] if self.lm_head is None else self.lm_head.kernel[...].T

    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of the heads of each of `blocks`, in double precision on the host.

        Where scores are divided by the index of the block, its queries are divided instead.
        """
        maps = []
        for block in self.blocks():
            query, key, value = np.split(np.asarray(block.attn.c_attn.weight[...], np.float64), 3, axis=1)
            query = query if block.attn.share is None else query * np.asarray(block.attn.share[...], np.float64)
            parts = (_Kernel(part) for part in (query, key, value, block.attn.c_proj.weight[...]))
            maps.append(maps_of_heads(*parts, heads=self.num_heads))
        return maps

    @property
    def score_scale(self) -> float:
        """The factor of the products of queries and keys: 1 / sqrt(k) for heads of dimension k, or 1 if the scores are
        not scaled."""
        return (self.sizes.hidden_size // self.num_heads) ** -0.5 if self.sizes.scaled else 1.0

    def word_factors(self) -> tuple[np.ndarray, None]:
        """The embedding of words, (words, d), in double precision; its rows are in the hidden space, hence None."""
        return np.asarray(self.wte.embedding[...], np.float64), None

    def norm_scales(self) -> list[np.ndarray]:
        """The scale of the norm that each block applies to the input of its attention, (d,).

        The centring and the bias of the norm are left out.
        """
        return [np.asarray(block.ln_1.scale[...], np.float64) for block in self.blocks()]

    def last_scale(self) -> np.ndarray:
        """The scale of the norm after the last block, (d,), without its centring and its bias."""
        return np.asarray(self.ln_f.scale[...])

    def drop_head(self) -> None:
        """Remove the map to the scores of words, in place."""
        self.lm_head = None


class _Kernel(NamedTuple):
    kernel: Any


class _Conv1D(nnx.Module):
    """A linear map whose matrix is (in, out), with the layout and the name of the files."""

    def __init__(self, rngs: nnx.Rngs, dtype: Any, precision: Any, size: int, out: int, spread: float):
        self.weight = nnx.Param(init_normal(spread)(rngs.params(), (size, out), dtype))
        self.bias = nnx.Param(jnp.zeros(out, dtype))
        self.precision = precision

    def __call__(self, x: Array) -> Array:
        return jnp.einsum("bni,io->bno", x, self.weight[...], precision=self.precision) + self.bias[...][None, None]


class _Block(AbstractBlock):
    def __init__(self, sizes: GPT2Sizes, index: int, heads: int, linear: Any, dtype: Any, precision: Any):
        self.ln_1, self.ln_2 = (LayerNorm(sizes.hidden_size, sizes.eps, dtype) for _ in range(2))
        self.attn = _Attention(sizes, index, linear, dtype)
        self.mlp = _FeedForward(sizes, linear)
        self.num_heads, self.scale = heads, None if sizes.scaled else 1.0
        self.activation, self.precision = sizes.activation, precision

    @property
    def post_norm(self) -> bool:
        return False

    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        return self.ln_1, self.ln_2

    def set_norms(self, norm: AbstractNorm) -> None:
        # `Any`, because the constructor declares layer norms and `norm` may be any norm.
        whole: Any = self
        whole.ln_1, whole.ln_2 = norm, norm

    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        query, attention_keys, value = jnp.split(self.attn.c_attn(read), 3, axis=-1)
        parts = project_heads(query, attention_keys, value, self.num_heads, self.scale)
        return parts if self.attn.share is None else parts._replace(query=parts.query * self.attn.share[...])

    def head_outputs(self) -> Affine:
        linear = self.attn.c_proj
        return Affine(linear.weight[...].reshape(self.num_heads, -1, linear.weight.shape[-1]), linear.bias[...])

    def activations(self, read: Float[Array, "batch n d"]) -> Array:
        return activation(self.activation)(self.mlp.c_fc(read))

    def neuron_values(self) -> Affine:
        return Affine(self.mlp.c_proj.weight[...], self.mlp.c_proj.bias[...])


class _Attention(nnx.Module):
    def __init__(self, sizes: GPT2Sizes, index: int, linear: Any, dtype: Any):
        d = sizes.hidden_size
        self.c_attn = linear(d, 3 * d, sizes.spread)
        # Matrices that add to the stream start smaller, by the square root of the number of additions.
        self.c_proj = linear(d, d, sizes.spread * (2 * sizes.num_layers) ** -0.5)
        # An array, because it differs between blocks of one program; no `Param`, because files do not contain it.
        self.share = nnx.Variable(jnp.asarray(1 / (index + 1), dtype)) if sizes.scaled_by_layer else None


class _FeedForward(nnx.Module):
    def __init__(self, sizes: GPT2Sizes, linear: Any):
        d, wide = sizes.hidden_size, sizes.intermediate_size
        self.c_fc = linear(d, wide, sizes.spread)
        self.c_proj = linear(wide, d, sizes.spread * (2 * sizes.num_layers) ** -0.5)
