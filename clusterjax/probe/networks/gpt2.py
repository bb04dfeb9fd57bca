"""GPT-2 in flax.nnx, with the parameter tree of the published safetensors files.

Embedding of words and positions, then pre-norm blocks, x + A(N(x)) and x + F(N(x)), whose tokens attend to none that
come later, and a last norm (Radford et al., *Language models are unsupervised multitask learners*, 2019, Section 2.3).

Invariants: attribute names are those of the checkpoints, since `weights` matches tensors by them; linear maps are
(in, out), in the files as well, and so called `weight`; the number of heads is no parameter; padding comes out as zero.
"""

import functools
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._check import check_array, check_flag
from ..._custom_types import DTypeLike
from .block import AbstractBlock, Affine, Context, Projected, project_heads
from .layer_scan import check_depth, run_layers
from .layers import AbstractNorm, LayerNorm, Precision, activation, check_making, init_normal, signed
from .network import AbstractNetwork, AttentionMaps, maps_of_heads
from .sizes import check_heads, check_sizes, check_weights, checked
from .token_ids import check_ids, check_mask, check_places


@checked
class GPT2Sizes(NamedTuple):
    """The numbers that make a GPT-2.

    **Arguments:**

    - `vocab_size`, `hidden_size`: Rows and columns of the word embedding.
    - `num_heads`, `intermediate_size`: The heads, which divide the hidden size, and the width of the feed-forward.
    - `num_layers`: The blocks, each with weights of its own.
    - `activation`: As in `AlbertSizes`.
    - `max_positions`: Rows of the embedding of positions.
    - `scaled`: Whether scores are divided by the root of the dimension of a head.
    - `scaled_by_layer`: Whether those of block i, from 1, are also divided by i.
    - `eps`: Of the layer norms.
    - `tied`: Whether words are scored by the word embedding.
    - `spread`: Standard deviation of random weights.

    **Raises:**

    - `ValueError` if a number is not positive, the heads do not divide the hidden size, or the activation is another.

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
        """How many layers have weights of their own."""
        return self.num_layers

    def fit(self) -> None:
        """Raise a ValueError unless the numbers fit together."""
        check_heads(self.hidden_size, self.num_heads, "num_heads")


def gpt2_sizes(config: Any, place: str) -> dict[str, Any]:
    """The arguments of `GPT2Sizes` from a configuration of transformers; `place` is where it is, for messages."""
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
        # What is no integer is refused by the name of the hidden size.
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
    neither attends nor is attended to, and is zero in what comes out. The blocks are applied by one `lax.scan` over
    their stacked weights. Deeper than trained means the stack again from its first block, as often as needed; the last
    norm is then applied after the last of them. No dropout.

    The parameter tree, with i a block, is

        wte/embedding, wpe/embedding
        h/i/{ln_1,ln_2}/{scale,bias}
        h/i/attn/{c_attn,c_proj}/{weight,bias}
        h/i/mlp/{c_fc,c_proj}/{weight,bias}
        ln_f/{scale,bias}
        lm_head/kernel                                                   (if `head`, and it is not tied)

    where each `weight` is (in, out), and c_attn makes queries, keys and values side by side.

    **Arguments:**

    - `sizes`: A `GPT2Sizes`.
    - `rngs`: `nnx.Rngs` of the random weights.

    **Other arguments:**

    - `depth`: How many blocks are applied; None is the trained `sizes.num_layers`.
    - `heads`: Heads into which the trained matrices are divided; None is `sizes.num_heads`. Any other number is another
        network from layer 1 on.
    - `head`: Whether to have the map to the scores of words that `logits` needs, where the word embedding is not it.
    - `dtype`: Of the parameters, and so of everything.
    - `precision`: Of the matrix products.

    **Raises:**

    - `ValueError` if `depth` is not positive, `heads` does not divide the hidden size, or an option is of another kind.

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
        """How many blocks are applied."""
        return self.depth

    def __call__(
        self, token_ids: Int[Array, "batch n"], mask: Bool[Array, "batch n"] | None = None
    ) -> Float[Array, "batch n d"]:
        """The hidden states after the last norm; for those of all blocks see `trace`.

        **Raises:**

        - `ValueError` if the ids are not those of a batch, or there are more of them than positions.
        """
        ids = jnp.asarray(check_ids(token_ids, "token_ids", self.sizes.vocab_size), jnp.int32)
        mask = None if mask is None else check_mask(mask, ids.shape)
        check_places(ids, self.sizes.max_positions)
        return run_layers(self, mask, ids)

    def embed(self, token_ids: Int[Array, "batch n"], token_types: None = None) -> Float[Array, "batch n d"]:
        """The hidden states before the first block; GPT-2 has no token types."""
        return self.wte(token_ids) + self.wpe(jnp.arange(token_ids.shape[1])[None])

    def context(self, n: int) -> Context:
        """That no token attends to a later one."""
        return Context(causal=True)

    def blocks(self) -> "list[_Block]":
        """The blocks that have weights of their own."""
        return list(self.h)

    def order(self) -> list[int]:
        """Which of `blocks` each layer is."""
        return [i % self.sizes.num_layers for i in range(self.depth)]

    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """What is done after the last block: the last norm."""
        return self.ln_f(hidden)

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of each next word of the vocabulary at each place, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no map to the scores of words, or `hidden` is not of its size.
        """
        hidden = check_array(hidden, "hidden", shape=("batch", "n", self.sizes.hidden_size))
        if self.sizes.tied:
            words = self.wte.embedding[...]
            # In the dtype of the network, as linear maps of Flax take what comes.
            return jnp.einsum("bnd,wd->bnw", hidden.astype(words.dtype), words, precision=cast(Any, self.precision))
        if self.lm_head is None:
            raise ValueError("head must be True for logits, but this network has no head for words; load one that has.")
        return self.lm_head(hidden)

    def unembedding(self) -> Float[Array, "words d"]:
        """The vector that each word is scored by: its embedding, or that of the head where it has its own."""
        return self.wte.embedding[...] if self.lm_head is None else self.lm_head.kernel[...].T

    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of each of `blocks`, in double precision on the host.

        Where scores are divided by the number of the block, its queries are.
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
        """What the products of queries and keys are multiplied by: the root of the dimension of a head, inverted, or 1
        if the scores are not scaled."""
        return (self.sizes.hidden_size // self.num_heads) ** -0.5 if self.sizes.scaled else 1.0

    def word_factors(self) -> tuple[np.ndarray, None]:
        """The table of words, (words, d), in double precision; its rows are in the hidden space."""
        return np.asarray(self.wte.embedding[...], np.float64), None

    def norm_scales(self) -> list[np.ndarray]:
        """The scales of the norm that each block applies to what its attention reads, (d,).

        That this norm subtracts the mean first, and adds a bias after, is left out.
        """
        return [np.asarray(block.ln_1.scale[...], np.float64) for block in self.blocks()]

    def last_scale(self) -> np.ndarray:
        """The scale of the norm after the last block, (d,); its centring and its bias are left out."""
        return np.asarray(self.ln_f.scale[...])

    def drop_head(self) -> None:
        """Take away the map to the scores of words, in place."""
        self.lm_head = None


class _Kernel(NamedTuple):
    kernel: Any


class _Conv1D(nnx.Module):
    """A linear map whose matrix is (in, out) in the files as well, under the name that it has there."""

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
        # Of any norm, where the constructor has layer norms.
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
        # What is added to the stream begins smaller, by the root of how often something is added.
        self.c_proj = linear(d, d, sizes.spread * (2 * sizes.num_layers) ** -0.5)
        # An array, for it differs between blocks that share one program; no `Param`, for it is in no file.
        self.share = nnx.Variable(jnp.asarray(1 / (index + 1), dtype)) if sizes.scaled_by_layer else None


class _FeedForward(nnx.Module):
    def __init__(self, sizes: GPT2Sizes, linear: Any):
        d, wide = sizes.hidden_size, sizes.intermediate_size
        self.c_fc = linear(d, wide, sizes.spread)
        self.c_proj = linear(wide, d, sizes.spread * (2 * sizes.num_layers) ** -0.5)
