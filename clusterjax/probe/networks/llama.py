"""The decoder of Llama in flax.nnx, with the parameter tree of `LlamaForCausalLM`; also serves Mistral and Qwen2.

Pre-norm blocks, x + A(N(x)) and x + F(N(x)), with RMS norms, causal attention with rotated queries and keys, and a
gated feed-forward (Touvron et al., *LLaMA*, 2302.13971, Section 2.2).

Invariants: attribute names are those of the checkpoints, because `weights` matches tensors by name; no token depends on
a later one; all blocks have one structure, so that they can be stacked, and differences between them other than weights
are arrays.
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
    Precision,
    Projected,
    RMSNorm,
    activation,
    affine,
    check_depth,
    check_making,
    init_normal,
    maps_of_heads,
    project_heads,
    rotation,
    run_layers,
    signed,
)
from .sizes import LlamaSizes, check_sizes, check_weights
from .token_ids import check_ids, check_mask


@signed
class Llama(AbstractNetwork):
    r"""Llama, Mistral or Qwen2: $x \leftarrow x + A(N(x))$, then $x \leftarrow x + F(N(x))$, and a last N after all.

    A is multi-head attention of each token to itself and to earlier tokens, in some layers only within a window, with
    queries and keys rotated by their positions; several heads may share keys and values. F is the gated feed-forward, N
    an RMS norm without centring. Padding neither gives nor receives attention, and its output is zero. One `lax.scan`
    applies the blocks, over their stacked weights. Beyond the trained depth, the stack starts again from its first
    block, and the last norm follows the last block that is applied. Texts may be longer than `max_positions`.

    Norms, angles and weights are computed at least in the precision of the network, whereas PyTorch's Llama always uses
    float32: in float64 the two agree only to 1e-6.

    The parameter tree, with i a block, is

        embed_tokens/embedding
        layers/i/{input_layernorm,post_attention_layernorm}/weight
        layers/i/self_attn/{q_proj,k_proj,v_proj,o_proj}/{kernel,bias}
        layers/i/mlp/{gate_proj,up_proj,down_proj}/{kernel,bias}
        norm/weight
        lm_head/kernel                                                    (if `head`, and it is not tied)

    **Arguments:**

    - `sizes`: A `LlamaSizes`.
    - `rngs`: `nnx.Rngs` for the random weights.

    **Other arguments:**

    - `depth`: The number of blocks that are applied; None selects the trained `sizes.num_layers`.
    - `head`: True for a network with a head that scores words, which `logits` needs unless it is tied to the embedding.
    - `dtype`: The dtype of the parameters, and thus of all arrays.
    - `precision`: The precision of the matrix products.

    **Raises:**

    - `ValueError` if `depth` is not positive, or an option has a wrong type.

    ??? cite "Source"

        Touvron et al., *LLaMA: open and efficient foundation language models* (2302.13971), Section 2.2; the tree is
        that of `LlamaForCausalLM` of transformers, without its prefix.
    """

    def __init__(
        self,
        sizes: LlamaSizes,
        rngs: nnx.Rngs,
        *,
        depth: int | None = None,
        head: bool = False,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = lax.Precision.HIGHEST,
    ):
        check_sizes(sizes, LlamaSizes)
        dtype, precision = check_making(rngs, dtype, precision)
        check_weights(sizes, dtype)
        check_flag(head, "head")
        self.sizes, self.num_heads = sizes, sizes.num_heads
        self.depth = sizes.num_layers if depth is None else check_depth(depth)
        self.unroll, self.precision = 1, precision
        std = init_normal(sizes.spread)
        linear = functools.partial(
            nnx.Linear, kernel_init=std, param_dtype=dtype, dtype=dtype, precision=cast(Any, precision), rngs=rngs
        )
        self.embed_tokens = nnx.Embed(
            sizes.vocab_size, sizes.hidden_size, embedding_init=std, param_dtype=dtype, dtype=dtype, rngs=rngs
        )
        widths = sizes.widths
        self.layers = nnx.List(
            [
                _LlamaBlock(sizes, None if widths is None else widths[i], linear, dtype, precision)
                for i in range(sizes.num_layers)
            ]
        )
        self.norm = RMSNorm(sizes.hidden_size, sizes.eps, dtype)
        own = head and not sizes.tied
        self.lm_head = linear(sizes.hidden_size, sizes.vocab_size, use_bias=False) if own else None

    @property
    def num_layers(self) -> int:
        """The number of blocks that are applied."""
        return self.depth

    def __call__(
        self, token_ids: Int[Array, "batch n"], mask: Bool[Array, "batch n"] | None = None
    ) -> Float[Array, "batch n d"]:
        """The hidden states after the last norm; `trace` returns those of all blocks.

        **Raises:**

        - `ValueError` if the ids do not form a batch.
        """
        ids = jnp.asarray(check_ids(token_ids, "token_ids", self.sizes.vocab_size), jnp.int32)
        return run_layers(self, None if mask is None else check_mask(mask, ids.shape), ids)

    def embed(self, token_ids: Int[Array, "batch n"], token_types: None = None) -> Float[Array, "batch n d"]:
        """The hidden states before the first block; there are no token types."""
        return self.embed_tokens(token_ids)

    def context(self, n: int) -> Context:
        """The context of a causal network, with the rotation angles of the positions."""
        return Context(causal=True, rotation=rotation(n, self.sizes, self.norm.weight[...].dtype))

    def blocks(self) -> "list[_LlamaBlock]":
        """The blocks with their own weights."""
        return list(self.layers)

    def order(self) -> list[int]:
        """The index in `blocks` of each layer."""
        return [i % self.sizes.num_layers for i in range(self.depth)]

    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """Apply the last norm, after the last block."""
        return self.norm(hidden)

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of each word of the vocabulary as the next one, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no head that scores words, or `hidden` has another size.
        """
        if self.lm_head is None and not self.sizes.tied:
            raise ValueError(
                "model must have a head for logits, but this network has none and is not tied to its embedding; load "
                "one with a language-modelling head."
            )
        hidden = check_array(hidden, "hidden", shape=("batch", "n", self.sizes.hidden_size))
        if self.lm_head is not None:
            return self.lm_head(hidden)
        words = self.embed_tokens.embedding[...]
        return jnp.einsum("bnd,wd->bnw", hidden, words, precision=cast(Any, self.precision))

    def unembedding(self) -> Float[Array, "words d"]:
        """The vectors that score words: the embedding, or the weights of a separate head."""
        return self.embed_tokens.embedding[...] if self.lm_head is None else self.lm_head.kernel[...].T

    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of the heads of each of `blocks`, in double precision on the host."""
        parts = (block.self_attn for block in self.blocks())
        shared = self.sizes.num_shared
        return [
            maps_of_heads(part.q_proj, part.k_proj, part.v_proj, part.o_proj, self.num_heads, shared) for part in parts
        ]

    @property
    def score_scale(self) -> float:
        """The factor of the products of queries and keys: 1 / sqrt(k) for heads of dimension k."""
        return self.sizes.head_size**-0.5

    def word_factors(self) -> tuple[np.ndarray, None]:
        """The embedding of words, (words, d), in double precision; its rows are in the hidden space, hence None."""
        return np.asarray(self.embed_tokens.embedding[...], np.float64), None

    def norm_scales(self) -> list[np.ndarray]:
        """The scale of the norm that each block applies to the input of its attention, (d,)."""
        return [np.asarray(block.input_layernorm.weight[...], np.float64) for block in self.blocks()]

    def last_scale(self) -> np.ndarray:
        """The scale of the norm after the last block, (d,)."""
        return np.asarray(self.norm.weight[...])

    def drop_head(self) -> None:
        """Remove the head that scores words, in place; a tied head is the embedding, and stays."""
        self.lm_head = None


class _LlamaBlock(AbstractBlock):
    def __init__(self, sizes: LlamaSizes, width: int | None, linear: Any, dtype: Any, precision: Any):
        self.input_layernorm = RMSNorm(sizes.hidden_size, sizes.eps, dtype)
        self.self_attn = _LlamaAttention(sizes, linear)
        self.post_attention_layernorm = RMSNorm(sizes.hidden_size, sizes.eps, dtype)
        self.mlp = _GatedFeedForward(sizes, linear)
        # An array, because layers with different windows share one program; no `Param`, because no file contains it.
        self.width = None if width is None else nnx.Variable(jnp.asarray(width, jnp.int32))
        self.num_heads, self.activation, self.precision = sizes.num_heads, sizes.activation, precision

    @property
    def post_norm(self) -> bool:
        return False

    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        return self.input_layernorm, self.post_attention_layernorm

    def set_norms(self, norm: AbstractNorm) -> None:
        # `Any`, because the constructor declares RMS norms and `norm` may be any norm.
        whole: Any = self
        whole.input_layernorm, whole.post_attention_layernorm = norm, norm

    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        part = self.self_attn
        return project_heads(part.q_proj(read), part.k_proj(read), part.v_proj(read), self.num_heads)

    def head_outputs(self) -> Affine:
        return affine(self.self_attn.o_proj, self.num_heads)

    def activations(self, read: Float[Array, "batch n d"]) -> Array:
        return activation(self.activation)(self.mlp.gate_proj(read)) * self.mlp.up_proj(read)

    def neuron_values(self) -> Affine:
        return affine(self.mlp.down_proj)


class _LlamaAttention(nnx.Module):
    def __init__(self, sizes: LlamaSizes, linear: Any):
        d, k, bias = sizes.hidden_size, sizes.head_size, sizes.attention_bias
        self.q_proj = linear(d, sizes.num_heads * k, use_bias=bias)
        self.k_proj, self.v_proj = (linear(d, sizes.num_shared * k, use_bias=bias) for _ in range(2))
        self.o_proj = linear(sizes.num_heads * k, d, use_bias=sizes.output_bias)


class _GatedFeedForward(nnx.Module):
    def __init__(self, sizes: LlamaSizes, linear: Any):
        d, wide, bias = sizes.hidden_size, sizes.intermediate_size, sizes.feed_forward_bias
        self.gate_proj, self.up_proj = (linear(d, wide, use_bias=bias) for _ in range(2))
        self.down_proj = linear(wide, d, use_bias=bias)
