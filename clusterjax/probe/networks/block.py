"""One block of a network: attention and feed-forward, each of which adds its output to the residual stream x.

A norm N acts before each part (x + A(N(x)); Xiong et al., 2002.04745), after each addition (N(x + A(x)); Vaswani et
al., 1706.03762), before each part and on its update (x + M(A(N(x))); Gemma 2, 2408.00118), or on the update only. One
class serves all families; the options are those of `NetworkSizes`.

Invariants: the weights of each word sum to 1 over the words, and rows and columns of padding are exactly zero; a text
without words gives zeros, with derivatives that are zero and not NaN; the outputs of the parts, carried through the
norms, sum to the stream; a gain of 1 changes nothing, and a gain of 0 removes a part exactly, including its biases.
"""

import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .edits import LayerEdit, apply
from .positions import rotate
from .sizes import NetworkSizes


# The minimum number of rows per block of a causal matrix, and the maximum number of blocks: the blocks omit about half
# of the pairs, and the intermediate arrays of one block stay in the cache of the processor.
_ROWS, _MOST_BLOCKS = 64, 8


class Distances(NamedTuple):
    """Learned vectors for the distance between two tokens (Shaw et al., 1803.02155).

    **Arguments:**

    - `keys`: The vectors added to the keys, (distances, k).
    - `values`: The vectors added to the values, (distances, k); None adds nothing.
    - `rows`: The index of the vectors for token j as seen from token i, (i, j).
    """

    keys: Float[Array, "distances k"]
    values: Float[Array, "distances k"] | None
    rows: Int[Array, "i j"]


def distance_rows(i: Any, j: Any, distances: int) -> Int[Array, "i j"]:
    """The index of the distance from each position in `i` to each in `j`, (i, j), clipped to the first and the last."""
    farthest = distances // 2
    return jnp.clip(j[None, :] - i[:, None], -farthest, farthest) + farthest


def product(equation: str, first: Array, second: Array, precision: Any) -> Array:
    """`einsum` of two arrays in the dtype of the first."""
    return jnp.einsum(equation, first, second.astype(first.dtype), precision=precision)


def capped(scores: Array, cap: float | None) -> Array:
    """The scores s as c tanh(s / c), which are nearly s below the cap c; None leaves them as they are."""
    return scores if cap is None else cap * jnp.tanh(scores / cap)


def attend(
    query: Float[Array, "batch i heads k"],
    attention_keys: Float[Array, "batch j shared k"],
    value: Float[Array, "batch j shared k"],
    mask: Bool[Array, "batch j"],
    bias: Float[Array, "1 heads i j"] | None = None,
    precision: Any = lax.Precision.HIGHEST,
    allowed: Bool[Array, "i j"] | None = None,
    distances: Distances | None = None,
    asking: Bool[Array, "batch i"] | None = None,
    causal: bool = False,
    cap: float | None = None,
) -> tuple[Float[Array, "batch i heads k"], Float[Array, "batch heads i j"]]:
    """The attention outputs and the weights: the row of each word sums to 1 over the words, all else is zero.

    Token i attends to token j only where `allowed` is True, which includes i itself; None allows all pairs. If there
    are fewer keys and values than queries, equally many consecutive heads share each of them. `distances` are added to
    keys and values. `asking` is True at queries of words; None is `mask`, for queries and keys of the same tokens.
    `causal` states that queries and keys are of the same tokens and that no token attends to a later one, so that the
    columns after a block of rows need not be computed.
    """
    asking = mask if asking is None else asking
    n = query.shape[1]
    size = max(_ROWS, -(-n // _MOST_BLOCKS))
    if not causal or n < 2 * size:
        return _attend_rows(query, attention_keys, value, mask, bias, precision, allowed, distances, asking, cap)
    attended, weights = [], []
    for first in range(0, n, size):
        last = min(first + size, n)
        rows, until = slice(first, last), slice(0, last)
        near = distances if distances is None else distances._replace(rows=distances.rows[rows, until])
        part, of_part = _attend_rows(
            query[:, rows], attention_keys[:, until], value[:, until], mask[:, until],
            None if bias is None else bias[:, :, rows, until], precision,
            None if allowed is None else allowed[rows, until], near, asking[:, rows], cap,
        )  # fmt: skip
        attended.append(part)
        # XLA omits this padding if only the attention outputs are used.
        weights.append(jnp.pad(of_part, ((0, 0), (0, 0), (0, 0), (0, n - last))))
    return jnp.concatenate(attended, axis=1), jnp.concatenate(weights, axis=2)


def _attend_rows(
    query: Array, attention_keys: Array, value: Array, mask: Array, bias: Array | None, precision: Any,
    allowed: Array | None, distances: Distances | None, asking: Array, cap: float | None,
) -> tuple[Float[Array, "batch i heads k"], Float[Array, "batch heads i j"]]:  # fmt: skip
    """`attend` for all pairs of the given rows and columns at once."""
    (batch, n, heads, k), (among, shared) = query.shape, value.shape[1:3]
    # (batch, heads, i, j): all pairs at once, because the weights themselves are measured.
    if heads == shared:
        scores = jnp.einsum("bihk,bjhk->bhij", query, attention_keys, precision=precision)
    else:
        # The queries of heads that share a key are grouped, (batch, shared, heads / shared, n, k), so that no key is
        # copied.
        queries = jnp.moveaxis(query.reshape(batch, n, shared, heads // shared, k), 1, 3)
        scores = jnp.einsum("bgqik,bjgk->bgqij", queries, attention_keys, precision=precision)
        scores = scores.reshape(batch, heads, n, among)
    scores = capped(scores, cap)
    scores = scores if bias is None else scores + bias
    if distances is not None:
        # <q_i, k_j + a_r> = <q_i, k_j> + <q_i, a_r>: one product for each distance, and a gather.
        of_distances = jnp.einsum("bihk,rk->bhir", query, distances.keys, precision=precision)
        rows = jnp.broadcast_to(distances.rows[None, None], scores.shape)
        scores = scores + jnp.take_along_axis(of_distances, rows, axis=3)
    visible = mask[:, None, None, :] if allowed is None else mask[:, None, None, :] & allowed[None, None]
    # A text without words has no maximum in its rows; its weights and their derivatives are zero.
    scores = jnp.where(visible, scores, -jnp.inf)
    top = lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    # The maximum is subtracted so that no exponential overflows. The weights do not depend on it, so it carries no
    # derivative.
    exponentials = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top)))
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    weights = exponentials / jnp.where(total > 0, total, jnp.ones_like(total))
    # Rows of padding would attend to the words; as zeros they vanish from every later sum over rows.
    weights = jnp.where(asking[:, None, :, None], weights, jnp.zeros_like(weights))
    # Heads first, because XLA's product for "bhij,bjhk" takes twice as long on a CPU.
    values = jnp.swapaxes(value, 1, 2)
    if heads == shared:
        attended = jnp.einsum("bhij,bhjk->bhik", weights, values, precision=precision)
    else:
        grouped = weights.reshape(batch, shared, heads // shared, n, among)
        attended = jnp.einsum("bgqij,bgjk->bgqik", grouped, values, precision=precision).reshape(batch, heads, n, k)
    attended = jnp.swapaxes(attended, 1, 2)
    if distances is not None and distances.values is not None:
        # The weights of token i are summed by distance before they multiply the distance vectors.
        number, places = distances.keys.shape[0], jnp.arange(n)[:, None]
        summed = jnp.zeros((batch, heads, n, number), weights.dtype).at[:, :, places, distances.rows].add(weights)
        attended = attended + jnp.einsum("bhir,rk->bihk", summed, distances.values, precision=precision)
    return attended, weights


def blank(hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> Float[Array, "batch n d"]:
    """The hidden states, with zeros at padding."""
    return jnp.where(mask[:, :, None], hidden, jnp.zeros_like(hidden))


def first_word(hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"] | None) -> Float[Array, "batch d"]:
    """The hidden state of the first word of each text; a mask of None means no padding."""
    if mask is None:
        return hidden[:, 0]
    return jnp.take_along_axis(hidden, jnp.argmax(mask, axis=1)[:, None, None], axis=1)[:, 0]


def activation(name: str | Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The activation function with this name in `transformers`; a function is returned as it is."""
    if callable(name):
        return name
    # `gelu` is exact, with erf; two names denote its approximation by tanh, and two denote x / (1 + exp(-x)).
    by_tanh = functools.partial(jax.nn.gelu, approximate=True)
    return {
        "gelu": functools.partial(jax.nn.gelu, approximate=False),
        "gelu_new": by_tanh,
        "gelu_pytorch_tanh": by_tanh,
        "relu": jax.nn.relu,
        "silu": jax.nn.silu,
        "swish": jax.nn.silu,
    }[name]


def init_normal(spread: float | None) -> Any:
    """An initialiser with this standard deviation; for None, unknown, the weights are NaN and thus unusable."""
    if spread is not None:
        return nnx.initializers.normal(spread)
    # An array of NumPy, for which jax compiles no program.
    return lambda key, shape, dtype: jnp.asarray(np.full(shape, np.nan, dtype), dtype)


class AbstractNorm(nnx.Module):
    """A norm of rows, which is linear in a row once its statistics are known, plus a bias."""

    @abstractmethod
    def factor(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n 1"]:
        """The factor by which each row is multiplied."""

    @abstractmethod
    def linear(self, share: Float[Array, "*shares batch n d"]) -> Float[Array, "*shares batch n d"]:
        """The part of the norm that does not depend on the row: its centring and its scale."""

    @abstractmethod
    def offset(self) -> Float[Array, " d"] | None:
        """The bias that is added; None without a bias."""

    def carry(self, x: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]) -> Array:
        """The contribution of a share of `x` to the norm, without the bias: linear in `share`, given `x`."""
        return self.linear(share) * _lifted(self.factor(x), share)

    def __call__(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        # The norm of a row is the contribution of the whole row.
        out, offset = self.carry(x, x), self.offset()
        # The axes are explicit, because the tests run with strict rank promotion.
        return out if offset is None else out + offset[None, None]


def _lifted(array: Array, like: Array) -> Array:
    """`array` with as many axes as `like`, with new axes in front."""
    return jnp.expand_dims(array, tuple(range(like.ndim - array.ndim)))


class Norm(AbstractNorm):
    """Scale rows to mean square one, multiply by learned parameters, and add a bias; a layer norm first centres rows.

    The layer norm is from Ba et al. (1607.06450), the RMS norm, without centring, from Zhang and Sennrich (1910.07467).
    """

    def __init__(self, size: int, sizes: NetworkSizes, dtype: Any):
        # The initial scale is 1, also if it is 1 plus the parameter; T5 multiplies all initial parameters by a factor.
        first = 0 if sizes.unit_offset else 1 if sizes.factor is None else sizes.factor
        self.scale = nnx.Param(jnp.full(size, first, dtype))
        self.bias = nnx.Param(jnp.zeros(size, dtype)) if sizes.norm_bias and sizes.norm == "layer" else None
        self.eps, self.centred, self.unit_offset = sizes.eps, sizes.norm == "layer", sizes.unit_offset

    @property
    def gain(self) -> Float[Array, " d"]:
        """The factor of each coordinate."""
        return 1 + self.scale[...] if self.unit_offset else self.scale[...]

    def factor(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n 1"]:
        # The variance is computed from the centred entries, since mean(x^2) - mean(x)^2 cancels if the mean is large.
        # The dtype is that of the stream, whereas PyTorch's RMS norms always use float32.
        x = self._centred(x)
        return lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)

    def linear(self, share: Float[Array, "*shares batch n d"]) -> Float[Array, "*shares batch n d"]:
        return self._centred(share) * _lifted(self.gain, share)

    def offset(self) -> Float[Array, " d"] | None:
        return None if self.bias is None else self.bias[...]

    def _centred(self, x: Float[Array, "*shares batch n d"]) -> Float[Array, "*shares batch n d"]:
        return x - jnp.mean(x, axis=-1, keepdims=True) if self.centred else x


class Context(NamedTuple):
    """The quantities that the layers of a network share for texts of n tokens.

    **Arguments:**

    - `bias`: The position bias added to the scores, (1, heads, n, n); None for a network without it.
    - `causal`: True if no token attends to a later one.
    - `rotation`: Cosines and sines of the angles that rotate queries and keys, both (kinds, n, half), or (kinds, batch,
        n, half); None without rotation.
    - `allowed`: The allowed pairs, (n, n), which replace the mask of the network; None for the mask of its training.
    """

    bias: Float[Array, "1 heads n n"] | None = None
    causal: bool = False
    rotation: tuple[Float[Array, "kinds *batch n half"], Float[Array, "kinds *batch n half"]] | None = None
    allowed: Bool[Array, "n n"] | None = None


class Gains(NamedTuple):
    """Factors of the outputs of the parts of a layer; None is 1. Stacked gains have the layers as their first axis.

    A network stores gains with an axis of any length p in place of n, whose last entry holds for all further positions.

    **Arguments:**

    - `attention`, `feed_forward`: (n,), for all heads and all neurons, each including the bias.
    - `heads`: (h, n), for each head, without the bias of the output.
    - `neurons`: (m, n), for each neuron.
    """

    attention: Float[Array, "... n"] | None = None
    heads: Float[Array, "... h n"] | None = None
    feed_forward: Float[Array, "... n"] | None = None
    neurons: Float[Array, "... m n"] | None = None


def at_places(gain: Any, n: int) -> Any:
    """The gain at each of n positions, from a gain whose last entry holds for all further positions."""
    return gain[..., np.minimum(np.arange(n), gain.shape[-1] - 1)]


class Projected(NamedTuple):
    """The queries, keys and values of all heads.

    **Arguments:**

    - `query`: (batch, n, heads, k), scaled, before the rotation.
    - `key`, `value`: (batch, n, shared, k), each shared by equally many consecutive heads; keys before the rotation.
    - `distances`: Vectors of the distances; None for a network without them.
    """

    query: Float[Array, "batch n heads k"]
    key: Float[Array, "batch n shared k"]
    value: Float[Array, "batch n shared k"]
    distances: Distances | None = None


class Affine(NamedTuple):
    """A linear map, which acts on rows, and the bias that is added after it."""

    kernel: Float[Array, "... d"]
    bias: Float[Array, " d"] | None


class Norms(nnx.Module):
    """The norms of one part of a block, each None where there is none.

    **Attributes:**

    - `read`: The norm of the input of the part.
    - `update`: The norm of the output of the part.
    - `stream`: The norm of the stream after the output is added.
    - `scale`: The vector by which the output is multiplied, (d,).
    - `skipped`: True if the block has no norm of the input, although other blocks have one, (); None for all blocks.
    """

    def __init__(self, sizes: NetworkSizes, dtype: Any, skipped: bool = False):
        norm = lambda *places: Norm(sizes.hidden_size, sizes, dtype) if sizes.norm_place in places else None
        self.read: AbstractNorm | None = norm("before", "both")
        self.update: AbstractNorm | None = norm("update", "both")
        self.stream: AbstractNorm | None = norm("after")
        self.scale = nnx.Param(jnp.ones(sizes.hidden_size, dtype)) if sizes.update_scale else None
        # An array, so that all blocks share one program.
        self.skipped = nnx.Variable(jnp.asarray(skipped)) if sizes.first_unnormed else None


class Attention(nnx.Module):
    """The maps of all heads, side by side: column h k + i of a map is entry i of head h."""

    def __init__(self, sizes: NetworkSizes, heads: int, index: int, linear: Any, rngs: nnx.Rngs, dtype: Any):
        d, k, shared = sizes.hidden_size, sizes.width_of_head, sizes.shared_heads
        inner, deviations = sizes.num_heads * k, _deviations(sizes)
        part = lambda name, *size, bias: linear(*size, use_bias=bias, kernel_init=init_normal(deviations[name]))
        self.query = part("query", d, inner, bias=sizes.attention_bias)
        self.key, self.value = (part("key", d, shared * k, bias=sizes.attention_bias) for _ in range(2))
        self.output = part("output", inner, d, bias=sizes.output_bias)
        vectors = lambda: nnx.Param(init_normal(sizes.spread)(rngs.params(), (sizes.distances, k), dtype))
        self.distance_keys = vectors() if sizes.distances else None
        self.distance_values = vectors() if sizes.distances and sizes.distance_values else None
        width = {"head": (k, k), "whole": (inner, shared * k)}.get(sizes.head_norm)
        self.query_norm, self.key_norm = (None, None) if width is None else (Norm(m, sizes, dtype) for m in width)
        # An array, because it differs between blocks of one program; no `Param`, because files do not contain it, and
        # `randomise` must not redraw it.
        shares = jnp.full(heads, 1 / (index + 1) if sizes.scaled_by_layer else 1, dtype)
        self.temperature = nnx.Variable(shares) if sizes.scaled_by_layer or sizes.temperatures else None


class FeedForward(nnx.Module):
    """The maps of the neurons; with a gate, the activation of the gate multiplies the output of the other map."""

    def __init__(self, sizes: NetworkSizes, linear: Any):
        d, wide, deviations = sizes.hidden_size, sizes.intermediate_size, _deviations(sizes)
        into = functools.partial(linear, d, wide, use_bias=sizes.bias_in, kernel_init=init_normal(deviations["into"]))
        self.gate = into() if sizes.gated else None
        self.into = into()
        self.out = linear(wide, d, use_bias=sizes.bias_out, kernel_init=init_normal(deviations["out"]))


def _deviations(sizes: NetworkSizes) -> dict[str, float | None]:
    """The standard deviation of each random map."""
    d, k, spread = sizes.hidden_size, sizes.width_of_head, sizes.spread
    if sizes.factor is not None:
        # The deviations are those of Mesh TensorFlow. Initial queries are smaller by the square root of the head size,
        # instead of the factor 1 / sqrt(k) of the scores in other networks.
        inner = sizes.num_heads * k
        deviations = {"query": (d * k) ** -0.5, "key": d**-0.5, "output": inner**-0.5, "into": d**-0.5}
        return {
            name: sizes.factor * deviation
            for name, deviation in (deviations | {"out": sizes.intermediate_size**-0.5}).items()
        }
    writes = spread if spread is None or not sizes.scaled_outputs else spread * (2 * sizes.num_layers) ** -0.5
    return {"query": spread, "key": spread, "output": writes, "into": spread, "out": writes}


class Block(nnx.Module):
    """Attention, then feed-forward, each added to the residual stream.

    **Attributes:**

    - `attention`, `feed_forward`: The maps of the two parts; the latter is None for attention alone.
    - `attention_norms`, `feed_forward_norms`: The norms of the two parts.
    - `length`: A norm that rescales the stream to a fixed norm before the block; None leaves the stream unchanged.
    - `width`: The window of the attention, (); None for no window.
    - `kind`: The kind of the rotation, (); None for the first.
    - `precision`: The precision of the matrix products.
    """

    length: Any = None

    def __init__(
        self, sizes: NetworkSizes, heads: int, index: int, linear: Any, rngs: nnx.Rngs, dtype: Any, precision: Any
    ):
        self.attention = Attention(sizes, heads, index, linear, rngs, dtype)
        self.attention_norms = Norms(sizes, dtype, skipped=index == 0)
        self.feed_forward = FeedForward(sizes, linear) if sizes.intermediate_size else None
        self.feed_forward_norms = Norms(sizes, dtype)
        # Arrays, because layers that differ in them share one program; no `Param`, because no file contains them.
        number = lambda value: nnx.Variable(jnp.asarray(value, jnp.int32))
        slides = sizes.sliding is None or sizes.sliding[index]
        self.width = None if sizes.window is None else number(sizes.window if slides else _FAR)
        kinds = sizes.rotary_kinds
        self.kind = None if kinds is None else number(kinds[index] % (len(sizes.rotary) + (-1 in kinds)))
        self.num_heads, self.activation, self.precision = heads, sizes.activation, precision
        self.scale = (sizes.hidden_size // heads if sizes.head_size is None else sizes.head_size) ** -0.5
        self.scale = self.scale if sizes.scale is None else sizes.scale
        self.cap, self.parallel, self.post_norm = sizes.score_cap, sizes.parallel, sizes.norm_place == "after"

    def norms(self, part: int) -> Norms:
        """The norms of the attention (0) or the feed-forward (1)."""
        return (self.attention_norms, self.feed_forward_norms)[part]

    def __call__(
        self,
        hidden: Float[Array, "batch n d"],
        mask: Bool[Array, "batch n"],
        context: Context,
        gains: Gains = Gains(),
        edits: tuple[LayerEdit, ...] = (),
    ) -> tuple[Float[Array, "batch n d"], Float[Array, "batch heads n n"]]:
        """The stream after the block, and the attention weights."""
        hidden = self.enter(hidden)
        middle, weights = self.after_attention(hidden, mask, context, gains, edits)
        return self.after_feed_forward(hidden, middle, gains, edits), weights

    def enter(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The stream at the entry of the block, rescaled if `length` is set."""
        return hidden if self.length is None else self.length(hidden)

    def after_attention(
        self,
        entered: Float[Array, "batch n d"],
        mask: Bool[Array, "batch n"],
        context: Context,
        gains: Gains = Gains(),
        edits: tuple[LayerEdit, ...] = (),
    ) -> tuple[Float[Array, "batch n d"], Float[Array, "batch heads n n"]]:
        """The stream between the two parts, and the attention weights, from the stream `enter` returned."""
        attended, weights = self.attend(self.read(0, entered), mask, context)
        return self.write(0, entered + self.added_by_heads(attended, gains, edits)), weights

    def added_by_heads(
        self,
        attended: Float[Array, "batch n heads k"],
        gains: Gains = Gains(),
        edits: tuple[LayerEdit, ...] = (),
    ) -> Float[Array, "batch n d"]:
        """The update of the stream by the heads, from their attention outputs."""
        if gains.heads is not None:
            attended = attended * gains.heads.T[None, :, :, None]
        attended = apply(edits, "head", attended)
        kernel, bias = self.head_outputs()
        # One product over heads and their entries: (b, n, h k) times (h k, d).
        flat = attended.reshape(*attended.shape[:2], -1)
        update = product("bni,id->bnd", flat, kernel.reshape(-1, kernel.shape[-1]), self.precision)
        return apply(edits, "attention", _gained(self.update(0, _biased(update, bias)), gains.attention))

    def after_feed_forward(
        self,
        entered: Float[Array, "batch n d"],
        middle: Float[Array, "batch n d"],
        gains: Gains = Gains(),
        edits: tuple[LayerEdit, ...] = (),
    ) -> Float[Array, "batch n d"]:
        """The stream after the feed-forward, from the streams before the attention and after it."""
        if self.feed_forward is None:
            return middle
        return self.write(1, middle + self.added(self.read(1, middle, entered), gains, edits))

    def added(
        self, read: Float[Array, "batch n d"], gains: Gains = Gains(), edits: tuple[LayerEdit, ...] = ()
    ) -> Float[Array, "batch n d"]:
        """The update of the stream by the feed-forward, from its input."""
        fired = self.activations(read)
        fired = apply(edits, "neuron", fired if gains.neurons is None else fired * gains.neurons.T[None])
        kernel, bias = self.neuron_values()
        update = _biased(product("bnm,md->bnd", fired, kernel, self.precision), bias)
        return apply(edits, "feed_forward", _gained(self.update(1, update), gains.feed_forward))

    def read(
        self, part: int, hidden: Float[Array, "batch n d"], entered: Float[Array, "batch n d"] | None = None
    ) -> Float[Array, "batch n d"]:
        """The input of the attention (0) or the feed-forward (1), from the stream before the part; `entered` is the
        stream before the block, which a parallel feed-forward reads."""
        stream, norms = cast(Array, entered if self.parallel and part == 1 else hidden), self.norms(part)
        if norms.read is None:
            return stream
        normed = norms.read(stream)
        return normed if norms.skipped is None else jnp.where(norms.skipped[...], stream, normed)

    def update(self, part: int, output: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The update of the stream, from the output of the attention (0) or the feed-forward (1)."""
        norms = self.norms(part)
        output = output if norms.update is None else norms.update(output)
        return output if norms.scale is None else output * _lifted(norms.scale[...], output)

    def carry_update(
        self, part: int, output: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]
    ) -> Float[Array, "*shares batch n d"]:
        """The contribution of a share of the output to `update`, linear in `share`: without the norm's bias."""
        norms = self.norms(part)
        share = share if norms.update is None else norms.update.carry(output, share)
        return share if norms.scale is None else share * _lifted(norms.scale[...], share)

    def write(self, part: int, total: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The stream after the attention (0) or the feed-forward (1), given the sum of stream and update."""
        norm = self.norms(part).stream
        return total if norm is None else norm(total)

    def carry(
        self, part: int, total: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]
    ) -> Float[Array, "*shares batch n d"]:
        """The contribution of a share of the sum `total` to `write`, linear in `share`: without the norm's bias."""
        norm = self.norms(part).stream
        return share if norm is None else norm.carry(total, share)

    def attend(
        self, read: Float[Array, "batch n d"], mask: Bool[Array, "batch n"], context: Context
    ) -> tuple[Float[Array, "batch n heads k"], Float[Array, "batch heads n n"]]:
        """The attention output of each head, before its map into the stream, and the attention weights."""
        query, attention_keys, value, distances = self.turned(read, context)
        places = jnp.arange(read.shape[1], dtype=jnp.int32)
        allowed = self.allowed(places, places, context)
        causal = context.causal and context.allowed is None
        parts = query, attention_keys, value, mask, context.bias, self.precision, allowed, distances
        return attend(*parts, causal=causal, cap=self.cap)

    def turned(self, read: Float[Array, "batch n d"], context: Context) -> Projected:
        """The queries, keys and values of all heads, with queries and keys rotated."""
        parts, turn = self.project(read), self.turn(context)
        return parts if turn is None else parts._replace(query=rotate(parts.query, turn), key=rotate(parts.key, turn))

    def turn(self, context: Context) -> tuple[Array, Array] | None:
        """The cosines and sines of the rotation in this block, both (n, half), or (batch, n, half)."""
        if context.rotation is None:
            return None
        kind = 0 if self.kind is None else self.kind[...]
        return context.rotation[0][kind], context.rotation[1][kind]

    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        """The queries, keys and values of all heads."""
        part = self.attention
        projected = part.query(read), part.key(read), part.value(read)
        k = projected[0].shape[-1] // self.num_heads
        # Several heads may share keys and values.
        query, attention_keys, value = (projection.reshape(*projection.shape[:2], -1, k) for projection in projected)
        if part.query_norm is not None:
            query, attention_keys = _normed(part.query_norm, query), _normed(cast(Norm, part.key_norm), attention_keys)
        # The scale multiplies the queries, (n, d), rather than the scores, (n, n).
        query = query * self.scale
        query = query if part.temperature is None else query * part.temperature[...][None, None, :, None]
        if part.distance_keys is None:
            return Projected(query, attention_keys, value)
        places = np.arange(read.shape[1])
        rows = distance_rows(places, places, part.distance_keys.shape[0])
        of_values = None if part.distance_values is None else part.distance_values[...]
        return Projected(query, attention_keys, value, Distances(part.distance_keys[...], of_values, rows))

    def head_outputs(self) -> Affine:
        """The map from the attention outputs of the heads into the stream, (heads, k, d), and its bias."""
        return affine(self.attention.output, self.num_heads)

    def activations(self, read: Float[Array, "batch n d"]) -> Float[Array, "batch n m"]:
        """The activation of each neuron of the feed-forward: the coefficients of its values."""
        part, act = cast(FeedForward, self.feed_forward), activation(self.activation)
        # The gated form of T5 1.1: the activation of one map multiplies the other (1910.10683 and 2002.05202).
        return act(part.into(read)) if part.gate is None else act(part.gate(read)) * part.into(read)

    def neuron_values(self) -> Affine:
        """The value vector of each neuron of the feed-forward, (m, d), and the bias of the output."""
        if self.feed_forward is None:
            raise ValueError("layer must have a feed-forward, but the layers of this network have none; load another.")
        return affine(self.feed_forward.out)

    def allowed(self, i: Int[Array, " i"], j: Int[Array, " j"], context: Context) -> Bool[Array, "i j"] | None:
        """True where position `i` may attend to `j`; None allows all pairs. `context` holds exactly these positions."""
        if context.allowed is not None or not (context.causal or self.width is not None):
            return context.allowed
        back = i[:, None] - j[None, :]
        if self.width is None:
            return back >= 0
        near = jnp.abs(back) < self.width[...]
        return (back >= 0) & near if context.causal else near


# The window of a layer that has none, in a network whose other layers have one.
_FAR = 2**31 - 1


def _normed(norm: Norm, x: Float[Array, "batch n heads k"]) -> Float[Array, "batch n heads k"]:
    """Apply the norm to each head, or to all heads together, depending on the size of the norm."""
    return norm(x.reshape(*x.shape[:1], -1, norm.scale.shape[0])).reshape(x.shape)


def _biased(update: Array, bias: Array | None) -> Array:
    return update if bias is None else update + bias[None, None]


def _gained(update: Float[Array, "batch n d"], gain: Float[Array, " n"] | None) -> Array:
    return update if gain is None else update * gain[None, :, None]


def affine(linear: Any, heads: int | None = None) -> Affine:
    """A linear map of Flax as an `Affine`; with `heads` its rows are divided among the heads, (heads, k, d)."""
    kernel = linear.kernel[...]
    kernel = kernel if heads is None else kernel.reshape(heads, -1, kernel.shape[-1])
    return Affine(kernel, None if linear.bias is None else linear.bias[...])
