"""A language model of `transformer` as a network of `probe`: the same parameters and the same function.

A `LanguageModel` is an Equinox module for a single text; the tools of `probe` run Flax networks on batches. This
network contains the arrays of a model and the other parts that define its function (activation, norms, mask).

Invariants: the outputs equal those of the model up to rounding, for all options; blocks have one structure, so that
they can be stacked; arrays are leaves of the module, and everything else is static.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._base.checks import check_array, check_instance, refusal
from ..._model.mask import CausalMask, FullMask
from ...transformer._language_model import LanguageModel
from ...transformer._norm import LayerNorm as ModuleNorm, NoNorm, PostNorm
from ...transformer._positions import LearnedPositions, RelativePositions, SinusoidalPositions, sinusoidal_positions
from .block import (
    AbstractBlock,
    AbstractNetwork,
    AbstractNorm,
    Affine,
    AttentionMaps,
    Context,
    Distances,
    Projected,
    distance_rows,
    init_normal,
    product,
    run_layers,
    signed,
)
from .token_ids import check_ids, check_mask, check_places


class LanguageSizes(NamedTuple):
    """The properties of a `LanguageModel` that its training does not change.

    **Arguments:**

    - `vocab_size`, `hidden_size`, `num_heads`, `head_size`, `intermediate_size`, `num_layers`: The sizes;
        `intermediate_size` is 0 without a feed-forward.
    - `shared`: True if all layers are one block.
    - `max_positions`: The number of learned positions; None for no limit.
    - `sinusoidal`, `rotary`: The base of sinusoidal or rotary positions; None without them.
    - `distances`: The number of vectors of distances, 2 m + 1; 0 without them.
    - `distance_values`: True if vectors of distances are added to the values as well.
    - `post_norm`: True if norms act on the residual stream, False if on the inputs; None without norms.
    - `norm_bias`, `bias_in`, `bias_out`: True if the norms, and the two maps of the feed-forward, have a bias.
    - `last_norm`, `last_bias`: True if there is a norm after the last layer, and if it has a bias.
    - `eps`: The epsilon of the norms.
    - `tied`: True if words are scored by their embedding.
    - `spread`: The standard deviation of random weights; None if unknown, as for a trained model.
    - `activation`: The activation of the feed-forward.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    head_size: int
    intermediate_size: int
    num_layers: int
    shared: bool
    max_positions: int | None
    sinusoidal: float | None
    rotary: float | None
    distances: int
    distance_values: bool
    post_norm: bool | None
    norm_bias: bool
    bias_in: bool
    bias_out: bool
    last_norm: bool
    last_bias: bool
    eps: float
    tied: bool
    activation: Callable[[Any], Any]
    spread: float | None = None


@signed
class LanguageNetwork(AbstractNetwork):
    """A `LanguageModel` of `transformer` as a network, made by `probe.from_language_model`.

    **Arguments:**

    - `sizes`: A `LanguageSizes`.
    - `rngs`: `nnx.Rngs` for the random weights.

    **Other arguments:**

    - `dtype`: The dtype of the parameters, and thus of all arrays.

    Source: Radford et al., *Language models are unsupervised multitask learners* (2019), Section 2.3.
    """

    def __init__(self, sizes: LanguageSizes, rngs: nnx.Rngs, *, dtype: Any = jnp.float32):
        check_instance(sizes, "sizes", LanguageSizes, "a LanguageSizes", "make it with from_language_model")
        self.sizes, self.num_heads, self.depth, self.unroll = sizes, sizes.num_heads, sizes.num_layers, 1
        self.shares_layers = sizes.shared
        # `nnx.data`, because a mask may hold arrays, which are not parameters.
        self.trained_mask = nnx.data(CausalMask())
        draw = lambda *shape: nnx.Param(init_normal(sizes.spread)(rngs.params(), shape, dtype))
        self.embedding = draw(sizes.vocab_size, sizes.hidden_size)
        self.position_table = None if sizes.max_positions is None else draw(sizes.max_positions, sizes.hidden_size)
        self.layers = nnx.List([_Block(sizes, draw, dtype) for _ in range(1 if sizes.shared else sizes.num_layers)])
        self.norm = _Norm(sizes.hidden_size, sizes.eps, dtype, sizes.last_bias) if sizes.last_norm else None
        self.head = None if sizes.tied else draw(sizes.vocab_size, sizes.hidden_size)

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
        if self.sizes.max_positions is not None:
            check_places(ids, self.sizes.max_positions)
        return run_layers(self, None if mask is None else check_mask(mask, ids.shape), ids)

    def embed(self, token_ids: Int[Array, "batch n"], token_types: None = None) -> Float[Array, "batch n d"]:
        """The hidden states before the first block; there are no token types."""
        words, n = self.embedding[...][token_ids], token_ids.shape[1]
        if self.position_table is not None:
            return words + self.position_table[...][None, :n]
        if self.sizes.sinusoidal is None:
            return words
        d, base = self.sizes.hidden_size, self.sizes.sinusoidal
        return words + sinusoidal_positions(n, d, base=base, dtype=words.dtype)[None]

    def context(self, n: int) -> Context:
        """The mask of the model, and the angles of its rotary positions."""
        mask, rotation = self.trained_mask, None
        causal = isinstance(mask, CausalMask)
        if self.sizes.rotary is not None:
            k = self.sizes.head_size
            # The angles are computed in double precision on the host, as in `transformer`.
            angles = np.arange(n)[:, None] * self.sizes.rotary ** (-np.arange(0, k, 2) / k)
            rotation = (
                jnp.asarray(np.cos(angles), self.embedding.dtype), jnp.asarray(np.sin(angles), self.embedding.dtype)
            )  # fmt: skip
        allowed = None if causal or isinstance(mask, FullMask) else mask.matrix(n)
        return Context(causal=causal, allowed=allowed, rotation=rotation)

    def blocks(self) -> "list[_Block]":
        """The blocks with their own weights."""
        return list(self.layers)

    def order(self) -> list[int]:
        """The index in `blocks` of each layer."""
        return [i % len(self.layers) for i in range(self.depth)]

    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """Apply the last norm, if there is one."""
        return hidden if self.norm is None else self.norm(hidden)

    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of each word of the vocabulary as the next one, from the last hidden states.

        **Raises:**

        - `ValueError` if `hidden` does not have the size of the model.
        """
        hidden = check_array(hidden, "hidden", shape=("batch", "n", self.sizes.hidden_size))
        return product("bnd,wd->bnw", hidden, self.unembedding(), lax.Precision.HIGHEST)

    def unembedding(self) -> Float[Array, "words d"]:
        """The vectors that score words: the embedding, or the weights of a separate head."""
        return self.embedding[...] if self.head is None else self.head[...]

    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of each of `blocks`, in double precision on the host; queries include the `beta` of each head."""
        double = lambda parameter: np.asarray(parameter[...], np.float64)
        return [
            AttentionMaps(
                double(block.query) * double(block.beta)[:, None, None], double(block.key), double(block.value),
                double(block.output),
            )
            for block in self.blocks()
        ]  # fmt: skip

    @property
    def score_scale(self) -> float:
        """1, because the queries of `attention_maps` include the inverse temperature of each head."""
        return 1.0

    def word_factors(self) -> tuple[np.ndarray, None]:
        """The embedding of words, (words, d), in double precision; its rows are in the hidden space, hence None."""
        return np.asarray(self.embedding[...], np.float64), None

    def norm_scales(self) -> list[np.ndarray] | None:
        """The scale of the norm that each block applies to the input of its attention, (d,); None if norms act on the
        stream, or without norms."""
        if self.sizes.post_norm is not False:
            return None
        return [np.asarray(cast(_Norm, block.first).gain[...], np.float64) for block in self.blocks()]

    def last_scale(self) -> np.ndarray | None:
        """The scale of the norm after the last block, (d,); None without such a norm."""
        return None if self.norm is None else np.asarray(self.norm.gain[...])

    def drop_head(self) -> None:
        """Does nothing: a separate head is small compared with the network, and stays."""


def network_of(model: LanguageModel) -> LanguageNetwork:
    """Build the network with the arrays of a language model.

    **Raises:**

    - `ValueError` if the stream of the model has another dtype than its parameters, or its positions are custom.
    """
    dtype = model.embedding.dtype
    if model.stream_dtype is not None and np.dtype(model.stream_dtype) != dtype:
        raise refusal(
            "model", f"compute in the dtype of its parameters, {dtype}",
            f"its stream is {np.dtype(model.stream_dtype)}", "replace its stream_dtype by None",
        )  # fmt: skip
    network: Any = LanguageNetwork(_sizes_of(model), nnx.Rngs(0), dtype=dtype)
    stack, attention = model.stack, model.stack.blocks.attention
    network.trained_mask = nnx.data(attention.mask)
    network.embedding[...] = model.embedding
    if isinstance(model.positions, LearnedPositions):
        network.position_table[...] = model.positions.table
    if model.head.unembedding is not None:
        network.head[...] = model.head.unembedding
    if stack.norm is not None:
        _fill_norm(network.norm, stack.norm)
    for layer, ours in enumerate(network.layers):
        block = stack.block(layer)
        part, forward = block.attention, block.feed_forward
        for name in ("query", "key", "value", "output"):
            getattr(ours, name)[...] = getattr(part, name)
        ours.beta[...] = jnp.broadcast_to(part.beta, ours.beta.shape)
        if isinstance(part.relative, RelativePositions):
            ours.distance_keys[...] = part.relative.keys
            if part.relative.values is not None:
                ours.distance_values[...] = part.relative.values
        for name in ("w_in", "w_out", "bias_in", "bias_out") if forward is not None else ():
            if getattr(forward, name) is not None:
                getattr(ours, name)[...] = getattr(forward, name)
        for norm, theirs in zip((ours.first, ours.second), block.norms, strict=True):
            if theirs is not None:
                _fill_norm(norm, theirs)
    return network


def _fill_norm(norm: Any, theirs: ModuleNorm) -> None:
    norm.gain[...] = theirs.gain
    if theirs.bias is not None:
        norm.bias[...] = theirs.bias


def _sizes_of(model: LanguageModel) -> LanguageSizes:
    stack, block, positions = model.stack, model.stack.block(0), model.positions
    part, forward, relative, norm = block.attention, block.feed_forward, block.attention.relative, block.norms[0]
    if not isinstance(positions, LearnedPositions | SinusoidalPositions | None):
        raise refusal(
            "model", "have learned, sinusoidal, relative or rotary positions", f"they are {type(positions).__name__}",
            "read it with the tools of clusterjax.transformer",
        )  # fmt: skip
    last = stack.norm
    # Within a model only the bias could differ between norms, and no tool creates such a model.
    return LanguageSizes(
        vocab_size=model.num_words,
        hidden_size=part.d,
        num_heads=part.num_heads,
        head_size=part.query.shape[2],
        intermediate_size=0 if forward is None else forward.num_neurons,
        num_layers=stack.num_layers,
        shared=stack.depth is not None,
        max_positions=positions.table.shape[0] if isinstance(positions, LearnedPositions) else None,
        sinusoidal=positions.base if isinstance(positions, SinusoidalPositions) else None,
        rotary=None if relative is None or isinstance(relative, RelativePositions) else relative.base,
        distances=relative.keys.shape[0] if isinstance(relative, RelativePositions) else 0,
        distance_values=isinstance(relative, RelativePositions) and relative.values is not None,
        post_norm=None if isinstance(block.residual, NoNorm) else isinstance(block.residual, PostNorm),
        norm_bias=norm is not None and norm.bias is not None,
        bias_in=forward is not None and forward.bias_in is not None,
        bias_out=forward is not None and forward.bias_out is not None,
        last_norm=last is not None,
        last_bias=last is not None and last.bias is not None,
        # All norms of a model are created alike, so that one epsilon is enough.
        eps=float(norm.epsilon if norm is not None else last.epsilon if last is not None else 0.0),
        tied=model.head.unembedding is None,
        activation=jnp.asarray if forward is None else forward.activation,
    )


class _Norm(AbstractNorm):
    """The layer norm of `transformer`, whose bias is optional."""

    def __init__(self, size: int, eps: float, dtype: Any, bias: bool):
        self.gain = nnx.Param(jnp.ones(size, dtype))
        self.bias = nnx.Param(jnp.zeros(size, dtype)) if bias else None
        self.eps = eps

    def carry(self, x: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]) -> Array:
        return ModuleNorm(self.gain[...], None, self.eps).carry(x, share)

    def offset(self) -> Float[Array, " d"] | None:
        return None if self.bias is None else self.bias[...]


class _Identity(AbstractNorm):
    def carry(self, x: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]) -> Array:
        return share

    def offset(self) -> None:
        return None


class _Block(AbstractBlock):
    def __init__(self, sizes: LanguageSizes, draw: Callable[..., Any], dtype: Any):
        h, d, k, m = sizes.num_heads, sizes.hidden_size, sizes.head_size, sizes.intermediate_size
        self.query, self.key, self.value, self.output = draw(h, d, k), draw(h, d, k), draw(h, d, k), draw(h, k, d)
        # No `Param`, because `randomise` must not redraw inverse temperatures.
        self.beta = nnx.Variable(jnp.full(h, k**-0.5, dtype))
        self.distance_keys = draw(sizes.distances, k) if sizes.distances else None
        self.distance_values = draw(sizes.distances, k) if sizes.distances and sizes.distance_values else None
        self.w_in, self.w_out = draw(d, m), draw(m, d)
        self.bias_in = nnx.Param(jnp.zeros(m, dtype)) if sizes.bias_in else None
        self.bias_out = nnx.Param(jnp.zeros(d, dtype)) if sizes.bias_out else None
        norm = lambda: _Identity() if sizes.post_norm is None else _Norm(d, sizes.eps, dtype, sizes.norm_bias)
        self.first, self.second = norm(), norm() if m else _Identity()
        self.activation, self.after, self.precision = sizes.activation, bool(sizes.post_norm), lax.Precision.HIGHEST

    @property
    def post_norm(self) -> bool:
        return self.after

    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        return self.first, self.second

    def set_norms(self, norm: AbstractNorm) -> None:
        # `Any`, because the constructor declares its own norms and `norm` may be any norm.
        whole: Any = self
        whole.first, whole.second = norm, norm

    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        # (batch, n, h, k) each.
        maps = (self.query, self.key, self.value)
        query, attention_keys, value = (product("bnd,hdk->bnhk", read, map_[...], self.precision) for map_ in maps)
        query = query * self.beta[...][None, None, :, None]
        if self.distance_keys is None:
            return Projected(query, attention_keys, value)
        places = np.arange(read.shape[1])
        rows = distance_rows(places, places, self.distance_keys.shape[0])
        of_values = None if self.distance_values is None else self.distance_values[...]
        return Projected(query, attention_keys, value, Distances(self.distance_keys[...], of_values, rows))

    def head_outputs(self) -> Affine:
        return Affine(self.output[...], None)

    def activations(self, read: Float[Array, "batch n d"]) -> Float[Array, "batch n m"]:
        scores = product("bnd,dm->bnm", read, self.w_in[...], self.precision)
        return self.activation(scores if self.bias_in is None else scores + self.bias_in[...][None, None])

    def neuron_values(self) -> Affine:
        return Affine(self.w_out[...], None if self.bias_out is None else self.bias_out[...])
