"""The encoder of T5 in flax.nnx, with the parameter tree of the published `flax_model.msgpack` files.

Pre-norm blocks, x + A(N(x)) and x + F(N(x)), with RMS norms, unscaled scores and a learnt bias for each head and each
bucket of the distance j - i (Raffel et al., 1910.10683, Section 2.1).

Invariants: attribute names are those of the checkpoints, because `weights` matches tensors by name; the bias is stored
in block 0 and is the same in every block; bucket bounds are computed in integers and thus exact.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

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
    run_layers,
    signed,
)
from .sizes import T5Sizes, check_sizes, check_weights
from .token_ids import check_ids, check_mask


@signed
class T5Encoder(AbstractNetwork):
    r"""The encoder of T5: $x \leftarrow x + A(N(x))$, then $x \leftarrow x + F(N(x))$, and a last N after all blocks.

    A is multi-head attention whose scores are not scaled and have a bias that depends on the head and on the bucket of
    the distance, F the feed-forward, N an RMS norm without centring. The bias is stored in block 0 and shared by all.
    Padding neither gives nor receives attention, and its output is zero. One `lax.scan` applies the blocks, over their
    stacked weights. Beyond the trained depth, the stack starts again from its first block, and the last norm follows
    the last block that is applied.

    The mean square of N is computed in the precision of the network, whereas PyTorch's T5 always uses float32, so that
    in float64 the two agree only to 1e-6.

    The parameter tree, with i a block, is

        shared/embedding
        encoder/block/0/layer/0/SelfAttention/relative_attention_bias/embedding
        encoder/block/i/layer/0/SelfAttention/{q,k,v,o}/kernel
        encoder/block/i/layer/{0,1}/layer_norm/weight
        encoder/block/i/layer/1/DenseReluDense/{wi,wo}/kernel           (gated: wi_0, wi_1 and wo)
        encoder/final_layer_norm/weight

    **Arguments:**

    - `sizes`: A `T5Sizes`.
    - `rngs`: `nnx.Rngs` for the random weights.

    **Other arguments:**

    - `depth`: The number of blocks that are applied; None selects the trained `sizes.num_layers`.
    - `dtype`: The dtype of the parameters, and thus of all arrays.
    - `precision`: The precision of the matrix products.

    **Raises:**

    - `ValueError` if `depth` is not positive, or an option has a wrong type.

    ??? cite "Source"

        Raffel et al., *Exploring the limits of transfer learning with a unified text-to-text transformer*
        (1910.10683), Section 2.1; the tree is that of `FlaxT5EncoderModel` in version 4 of transformers, and the
        random weights have the standard deviations of that library.
    """

    def __init__(
        self,
        sizes: T5Sizes,
        rngs: nnx.Rngs,
        *,
        depth: int | None = None,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = lax.Precision.HIGHEST,
    ):
        check_sizes(sizes, T5Sizes)
        dtype, precision = check_making(rngs, dtype, precision)
        check_weights(sizes, dtype)
        self.sizes, self.num_heads = sizes, sizes.num_heads
        self.depth = sizes.num_layers if depth is None else check_depth(depth)
        self.unroll = 1
        table = functools.partial(nnx.Embed, param_dtype=dtype, dtype=dtype, rngs=rngs)
        linear = functools.partial(
            nnx.Linear, use_bias=False, param_dtype=dtype, dtype=dtype, precision=cast(Any, precision), rngs=rngs
        )
        # The standard deviation is 1, as in Mesh TensorFlow.
        self.shared = table(sizes.vocab_size, sizes.hidden_size, embedding_init=init_normal(1.0))
        self.encoder = _Stack(sizes, table, linear, dtype, precision)
        # Multiplying normal weights by the factor multiplies their deviation; transformers also scales norms by it.
        nnx.update(self, jax.tree.map(lambda weights: sizes.factor * weights, nnx.state(self, nnx.Param)))

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
        """The hidden states before the first block; T5 has no token types."""
        return self.shared(token_ids)

    def context(self, n: int) -> Context:
        """The context with the position bias."""
        return Context(bias=self.position_bias(n))

    def position_bias(self, n: int) -> Float[Array, "1 heads n n"]:
        """The bias added to the scores of n tokens, in every block."""
        first: Any = self.encoder.block[0].layer[0]
        # Only the 2 n - 1 distances are looked up; the (n, n) matrix is gathered from them below.
        buckets = relative_buckets(np.arange(1 - n, n), self.sizes)
        by_distance = first.SelfAttention.relative_attention_bias(jnp.asarray(buckets))
        places = jnp.arange(n)
        # Row i, column j has distance j - i, with the index j - i + n - 1; heads first, with an axis for the batch.
        return jnp.moveaxis(by_distance[places[None, :] - places[:, None] + n - 1], -1, 0)[None]

    def blocks(self) -> "list[_T5Block]":
        """The blocks with their own weights."""
        return list(self.encoder.block)

    def order(self) -> list[int]:
        """The index in `blocks` of each layer."""
        return [i % self.sizes.num_layers for i in range(self.depth)]

    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """Apply the last norm, after the last block."""
        return self.encoder.final_layer_norm(hidden)

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """Raises a ValueError, because an encoder has no head that scores words."""
        raise ValueError(
            "model must have a head for logits, but it is a T5 encoder; load a network with a language-modelling head."
        )

    def unembedding(self) -> Float[Array, "words d"]:
        """The embedding of each word, because an encoder has no head."""
        return self.shared.embedding[...]

    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of the heads of each of `blocks`, in double precision on the host."""
        parts = (cast(Any, block.layer[0]).SelfAttention for block in self.blocks())
        return [maps_of_heads(part.q, part.k, part.v, part.o, self.num_heads) for part in parts]

    @property
    def score_scale(self) -> float:
        """The factor of the products of queries and keys, 1."""
        return 1.0

    def word_factors(self) -> tuple[np.ndarray, None]:
        """The embedding of words, (words, d), in double precision; its rows are in the hidden space, hence None."""
        return np.asarray(self.shared.embedding[...], np.float64), None

    def norm_scales(self) -> list[np.ndarray]:
        """The scale of the norm that each block applies to the input of its attention, (d,)."""
        return [np.asarray(block.layer[0].layer_norm.weight[...], np.float64) for block in self.blocks()]

    def last_scale(self) -> np.ndarray:
        """The scale of the norm after the last block, (d,)."""
        return np.asarray(self.encoder.final_layer_norm.weight[...])

    def drop_head(self) -> None:
        """Does nothing, because the encoder has no head."""


def relative_buckets(distances: np.ndarray, sizes: T5Sizes) -> np.ndarray:
    r"""The bucket of each distance j - i, from the attending token i to token j.

    Half of the buckets are for j > i. In each half, the first half is for the smallest distances r, one each; the k-th
    of the remaining m contains those with $(r / e)^m \ge (D / e)^k$, where e is the first distance that shares a bucket
    and D = `max_distance`. The bounds are computed in integers, so that none depends on the rounding of a logarithm.
    """
    # The encoder attends in both directions, so half of the buckets encode the sign of the distance.
    half = sizes.num_buckets // 2
    e, D = half // 2, sizes.max_distance
    m = half - e
    # The published rule rounds e + m log(r / e) / log(D / e) down. Raised to the m-th power it is a comparison of
    # Python integers, which are exact at any size.
    bounds = [_first(lambda r, k=k: r**m * e**k >= D**k * e**m, e, D) for k in range(1, m)]
    r = np.abs(distances)
    large = e + np.searchsorted(np.asarray(bounds, dtype=np.int64), r, side="right")
    return np.where(distances > 0, half, 0) + np.where(r < e, r, large)


def _first(holds: Any, low: int, high: int) -> int:
    """The first integer above `low` where `holds`, a predicate that is monotone and true at `high`, is true."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class _Stack(nnx.Module):
    def __init__(self, sizes: T5Sizes, table: Any, linear: Any, dtype: Any, precision: Any):
        blocks = range(sizes.num_layers)
        # The bias is a parameter of block 0 only, as in the checkpoints.
        self.block = nnx.List([_T5Block(sizes, table if i == 0 else None, linear, dtype, precision) for i in blocks])
        self.final_layer_norm = RMSNorm(sizes.hidden_size, sizes.eps, dtype)


class _T5Block(AbstractBlock):
    def __init__(self, sizes: T5Sizes, table: Any, linear: Any, dtype: Any, precision: Any):
        self.layer = nnx.List(
            [_AttentionSublayer(sizes, table, linear, dtype), _FeedForwardSublayer(sizes, linear, dtype)]
        )
        self.num_heads, self.gated = sizes.num_heads, sizes.gated
        self.activation, self.precision = sizes.activation, precision

    @property
    def post_norm(self) -> bool:
        return False

    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        return cast(Any, self.layer[0]).layer_norm, cast(Any, self.layer[1]).layer_norm

    def set_norms(self, norm: AbstractNorm) -> None:
        for part in cast(Any, self.layer):
            part.layer_norm = norm

    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        part = cast(Any, self.layer[0]).SelfAttention
        return project_heads(part.q(read), part.k(read), part.v(read), self.num_heads, 1.0)

    def head_outputs(self) -> Affine:
        return affine(cast(Any, self.layer[0]).SelfAttention.o, self.num_heads)

    def activations(self, read: Float[Array, "batch n d"]) -> Array:
        part, act = cast(Any, self.layer[1]).DenseReluDense, activation(self.activation)
        # The gated form of T5 1.1: the activation of one map multiplies the other (1910.10683 and 2002.05202).
        return act(part.wi_0(read)) * part.wi_1(read) if self.gated else act(part.wi(read))

    def neuron_values(self) -> Affine:
        return affine(cast(Any, self.layer[1]).DenseReluDense.wo)


class _AttentionSublayer(nnx.Module):
    def __init__(self, sizes: T5Sizes, table: Any, linear: Any, dtype: Any):
        self.SelfAttention = _SelfAttention(sizes, table, linear)
        self.layer_norm = RMSNorm(sizes.hidden_size, sizes.eps, dtype)


class _SelfAttention(nnx.Module):
    def __init__(self, sizes: T5Sizes, table: Any, linear: Any):
        d, inner = sizes.hidden_size, sizes.num_heads * sizes.head_size
        # Queries start smaller by the square root of the head size, instead of the factor 1 / sqrt(k) of the scores in
        # other networks.
        self.q = linear(d, inner, kernel_init=init_normal((d * sizes.head_size) ** -0.5))
        self.k, self.v = (linear(d, inner, kernel_init=init_normal(d**-0.5)) for _ in range(2))
        self.o = linear(inner, d, kernel_init=init_normal(inner**-0.5))
        if table is not None:
            init = init_normal(d**-0.5)
            self.relative_attention_bias = table(sizes.num_buckets, sizes.num_heads, embedding_init=init)


class _FeedForwardSublayer(nnx.Module):
    def __init__(self, sizes: T5Sizes, linear: Any, dtype: Any):
        self.DenseReluDense = _Dense(sizes, linear)
        self.layer_norm = RMSNorm(sizes.hidden_size, sizes.eps, dtype)


class _Dense(nnx.Module):
    def __init__(self, sizes: T5Sizes, linear: Any):
        d, wide = sizes.hidden_size, sizes.intermediate_size
        into = functools.partial(linear, d, wide, kernel_init=init_normal(d**-0.5))
        if sizes.gated:
            self.wi_0, self.wi_1 = into(), into()
        else:
            self.wi = into()
        self.wo = linear(wide, d, kernel_init=init_normal(wide**-0.5))
