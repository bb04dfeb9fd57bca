"""The decoder of Llama in flax.nnx, with the parameter tree of `LlamaForCausalLM`; Mistral and Qwen2 are such as well.

Pre-norm blocks, x + A(N(x)) and x + F(N(x)), with RMS norms, causal attention of rotated queries and keys, and a gated
feed-forward (Touvron et al., *LLaMA*, 2302.13971, Section 2.2).

Invariants: attribute names are those of the checkpoints, since `weights` matches tensors by them; no token depends on a
later one; all blocks have one form, so that they can be stacked, and what differs between them besides weights is an
array.
"""

import functools
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._check import check_array, check_flag
from ..._custom_types import DTypeLike
from .block import AbstractBlock, Affine, Context, Projected, affine, project_heads
from .layer_scan import check_depth, run_layers
from .layers import AbstractNorm, Precision, RMSNorm, activation, check_making, init_normal, signed
from .llama_sizes import LlamaSizes
from .network import AbstractNetwork, AttentionMaps, maps_of_heads
from .rotation import rotation
from .sizes import check_sizes, check_weights
from .token_ids import check_ids, check_mask


@signed
class Llama(AbstractNetwork):
    r"""Llama, Mistral or Qwen2: $x \leftarrow x + A(N(x))$, then $x \leftarrow x + F(N(x))$, and a last N after all.

    A is multi-head attention of each token to itself and those before it, in some layers only to a window of them, with
    queries and keys rotated by their places; some heads may share keys and values. F is the gated feed-forward, N an
    RMS norm without mean. Padding neither attends nor is attended to, and is zero in what comes out. The blocks are
    applied by one `lax.scan` over their stacked weights. Deeper than trained means the stack again from its first
    block; the last norm is then applied after the last of them. A text longer than `max_positions` is rotated further.

    Norms, angles and weights are computed in the precision of the network or a higher one, where PyTorch's Llama takes
    float32 whatever the precision: in float64 the two agree to 1e-6 only.

    The parameter tree, with i a block, is

        embed_tokens/embedding
        layers/i/{input_layernorm,post_attention_layernorm}/weight
        layers/i/self_attn/{q_proj,k_proj,v_proj,o_proj}/{kernel,bias}
        layers/i/mlp/{gate_proj,up_proj,down_proj}/{kernel,bias}
        norm/weight
        lm_head/kernel                                                    (if `head`, and it is not tied)

    **Arguments:**

    - `sizes`: A `LlamaSizes`.
    - `rngs`: `nnx.Rngs` of the random weights.

    **Other arguments:**

    - `depth`: How many blocks are applied; None is the trained `sizes.num_layers`.
    - `head`: Whether to have the head that scores words, which `logits` needs where it is not tied to the embedding.
    - `dtype`: Of the parameters, and so of everything.
    - `precision`: Of the matrix products.

    **Raises:**

    - `ValueError` if `depth` is not positive, or an option is of another kind.

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
        """How many blocks are applied."""
        return self.depth

    def __call__(
        self, token_ids: Int[Array, "batch n"], mask: Bool[Array, "batch n"] | None = None
    ) -> Float[Array, "batch n d"]:
        """The hidden states after the last norm; for those of all blocks see `trace`.

        **Raises:**

        - `ValueError` if the ids are not those of a batch.
        """
        ids = jnp.asarray(check_ids(token_ids, "token_ids", self.sizes.vocab_size), jnp.int32)
        return run_layers(self, None if mask is None else check_mask(mask, ids.shape), ids)

    def embed(self, token_ids: Int[Array, "batch n"], token_types: None = None) -> Float[Array, "batch n d"]:
        """The hidden states before the first block; there are no token types."""
        return self.embed_tokens(token_ids)

    def context(self, n: int) -> Context:
        """That no token attends to later ones, and the angles of the places."""
        return Context(causal=True, rotation=rotation(n, self.sizes, self.norm.weight[...].dtype))

    def blocks(self) -> "list[_LlamaBlock]":
        """The blocks that have weights of their own."""
        return list(self.layers)

    def order(self) -> list[int]:
        """Which of `blocks` each layer is."""
        return [i % self.sizes.num_layers for i in range(self.depth)]

    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """What is done after the last block: the last norm."""
        return self.norm(hidden)

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of each word of the vocabulary as the next one, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no head that scores words, or `hidden` is not of its size.
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
        """The vector that each word is scored by: its embedding, or that of the head where it has its own."""
        return self.embed_tokens.embedding[...] if self.lm_head is None else self.lm_head.kernel[...].T

    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of each of `blocks`, in double precision on the host."""
        parts = (block.self_attn for block in self.blocks())
        shared = self.sizes.num_shared
        return [
            maps_of_heads(part.q_proj, part.k_proj, part.v_proj, part.o_proj, self.num_heads, shared) for part in parts
        ]

    @property
    def score_scale(self) -> float:
        """What the products of queries and keys are multiplied by: the root of the dimension of a head, inverted."""
        return self.sizes.head_size**-0.5

    def word_factors(self) -> tuple[np.ndarray, None]:
        """The table of words, (words, d), in double precision; its rows are in the hidden space."""
        return np.asarray(self.embed_tokens.embedding[...], np.float64), None

    def norm_scales(self) -> list[np.ndarray]:
        """The scales of the norm that each block applies to what its attention reads, (d,)."""
        return [np.asarray(block.input_layernorm.weight[...], np.float64) for block in self.blocks()]

    def last_scale(self) -> np.ndarray:
        """The scale of the norm after the last block, (d,)."""
        return np.asarray(self.norm.weight[...])

    def drop_head(self) -> None:
        """Take away the head that scores words, in place; one that is tied is the embedding, and stays."""
        self.lm_head = None


class _LlamaBlock(AbstractBlock):
    def __init__(self, sizes: LlamaSizes, width: int | None, linear: Any, dtype: Any, precision: Any):
        self.input_layernorm = RMSNorm(sizes.hidden_size, sizes.eps, dtype)
        self.self_attn = _LlamaAttention(sizes, linear)
        self.post_attention_layernorm = RMSNorm(sizes.hidden_size, sizes.eps, dtype)
        self.mlp = _GatedFeedForward(sizes, linear)
        # An array, since layers of different windows are one program; no `Param`, since no file holds it.
        self.width = None if width is None else nnx.Variable(jnp.asarray(width, jnp.int32))
        self.num_heads, self.activation, self.precision = sizes.num_heads, sizes.activation, precision

    @property
    def post_norm(self) -> bool:
        return False

    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        return self.input_layernorm, self.post_attention_layernorm

    def set_norms(self, norm: AbstractNorm) -> None:
        # Of any norm, where the constructor has RMS norms.
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
