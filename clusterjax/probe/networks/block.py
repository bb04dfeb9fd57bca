"""One block of a network: the input and the output of its attention and of its feed-forward.

All networks of `probe` consist of two additions to a residual stream x, attention A and feed-forward F, with a norm N
before each (x + A(N(x)); Xiong et al., 2002.04745) or after each (N(x + A(x)); Vaswani et al., 1706.03762). A subclass
defines its norms, heads and neurons; the forward pass is defined here, once.

Invariants: `__call__` is the only forward pass; the outputs of the parts, carried through the norms, sum to the stream;
a gain of 1 changes nothing, and a gain of 0 removes a part exactly, including its biases.
"""

import contextlib
import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._base.checks import check_float_dtype, check_instance, check_integer, refusal, shown
from ..._base.numerics import rotate_pairs
from ..._base.padding import arranged, words_first
from ..._model.mask import AbstractMask
from .sizes import MOST_LAYERS, LlamaSizes


# Parts that the networks share: attention among the words of a text, the norms, the activations.
#
# Attention is softmax(q k^T + bias) v with padding masked on both sides (Vaswani et al., 1706.03762, Section 3.2.1).
# The layer norm is from Ba et al. (1607.06450), the RMS norm, without centring, from Zhang and Sennrich (1910.07467).
#
# Invariants: the weights of each word sum to 1 over the words; rows and columns of padding are exactly zero; a text
# without words gives zeros, with derivatives that are zero and not NaN.


# The minimum number of rows per block of a causal matrix, and the maximum number of blocks: the blocks omit about half
# of the pairs, and the intermediate arrays of one block stay in the cache of the processor.
_ROWS, _MOST_BLOCKS = 64, 8


_Class = TypeVar("_Class", bound=type)


Precision: TypeAlias = str | lax.Precision | lax.DotAlgorithmPreset | None
"""How exactly matrices are multiplied, as `jax.lax` takes it."""


def signed(cls: _Class) -> _Class:
    """Returns the class with the signature of its constructor, which the metaclass of Flax hides from `help`."""
    # `inspect.signature` of the class itself would give the metaclass's `(*args, **kwargs)`.
    _, *parameters = inspect.signature(cls.__init__).parameters.values()
    cls.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return cls


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


class Distances(NamedTuple):
    """Learnt vectors for the distance between two tokens (Shaw et al., 1803.02155).

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
) -> tuple[Float[Array, "batch i heads k"], Float[Array, "batch heads i j"]]:
    """The attention outputs and the weights: the row of each word sums to 1 over the words, all else is zero.

    Token i attends to token j only where `allowed` is True, which includes i itself; None allows all pairs. Fewer keys
    and values than queries are each shared by equally many consecutive heads. `distances` are added to
    keys and values. `asking` is True at queries of words; None is `mask`, for queries and keys of the same tokens.
    `causal` promises the same tokens, none of which attends to a later one, so blocks of rows end at their last column.
    """
    asking = mask if asking is None else asking
    n = query.shape[1]
    size = max(_ROWS, -(-n // _MOST_BLOCKS))
    if not causal or n < 2 * size:
        return _attend_rows(query, attention_keys, value, mask, bias, precision, allowed, distances, asking)
    attended, weights = [], []
    for first in range(0, n, size):
        last = min(first + size, n)
        rows, until = slice(first, last), slice(0, last)
        near = distances if distances is None else distances._replace(rows=distances.rows[rows, until])
        part, of_part = _attend_rows(
            query[:, rows], attention_keys[:, until], value[:, until], mask[:, until],
            None if bias is None else bias[:, :, rows, until], precision,
            None if allowed is None else allowed[rows, until], near, asking[:, rows],
        )  # fmt: skip
        attended.append(part)
        # XLA omits this padding if only the attention outputs are used.
        weights.append(jnp.pad(of_part, ((0, 0), (0, 0), (0, 0), (0, n - last))))
    return jnp.concatenate(attended, axis=1), jnp.concatenate(weights, axis=2)


def _attend_rows(
    query: Array, attention_keys: Array, value: Array, mask: Array, bias: Array | None, precision: Any,
    allowed: Array | None, distances: Distances | None, asking: Array,
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


def activation(name: str) -> Callable[[Array], Array]:
    """The activation function with this name in `transformers`."""
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
    def carry(self, x: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]) -> Array:
        """The contribution of a share of `x` to the norm, without the bias: linear in `share`, given `x`."""

    @abstractmethod
    def offset(self) -> Float[Array, " d"] | None:
        """The bias that is added; None without a bias."""

    def __call__(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        # The norm of a row is the contribution of the whole row.
        out, offset = self.carry(x, x), self.offset()
        # The axes are explicit, because the tests run with strict rank promotion.
        return out if offset is None else out + offset[None, None]


def _lifted(array: Array, like: Array) -> Array:
    """`array` with as many axes as `like`, with new axes in front."""
    return jnp.expand_dims(array, tuple(range(like.ndim - array.ndim)))


class LayerNorm(AbstractNorm):
    """Rows shifted to mean zero and scaled to variance one, then scaled and shifted by learnt parameters."""

    def __init__(self, size: int, eps: float, dtype: Any):
        self.scale = nnx.Param(jnp.ones(size, dtype))
        self.bias = nnx.Param(jnp.zeros(size, dtype))
        self.eps = eps

    def carry(self, x: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]) -> Array:
        # The variance is computed from the centred entries, since mean(x^2) - mean(x)^2 cancels if the mean is large.
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        # XLA computes the centred entries only once if the share is `x` itself.
        share = share - jnp.mean(share, axis=-1, keepdims=True)
        return share * _lifted(lax.rsqrt(variance + self.eps), share) * _lifted(self.scale[...], share)

    def offset(self) -> Float[Array, " d"]:
        return self.bias[...]


class RMSNorm(AbstractNorm):
    """Rows scaled to mean square one, then by learnt parameters."""

    def __init__(self, size: int, eps: float, dtype: Any):
        self.weight = nnx.Param(jnp.ones(size, dtype))
        self.eps = eps

    def carry(self, x: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]) -> Array:
        # Computed in the dtype of the stream, whereas PyTorch's T5 always uses float32; see `T5Encoder`.
        square = jnp.mean(x * x, axis=-1, keepdims=True)
        return share * _lifted(lax.rsqrt(square + self.eps), share) * _lifted(self.weight[...], share)

    def offset(self) -> None:
        return None


# Rotary positions: queries and keys are rotated by angles that grow with position, so that scores depend on distances.
#
# Entries a and a + k/2 of a query form a pair, which is rotated by the angle p f_a at position p (Su et al.,
# *RoFormer*, 2104.09864, Section 3.2). "llama3" is the scaling of Llama 3.1, as computed by `transformers`.
#
# Invariants: scores depend only on differences of positions; angles are computed in double precision on the host,
# whatever the precision of the network.


def frequencies(sizes: LlamaSizes) -> np.ndarray:
    """The angle by which each pair of entries rotates from one position to the next, (head_size / 2,)."""
    angles = float(sizes.theta) ** (-np.arange(0, sizes.head_size, 2) / sizes.head_size)
    if sizes.scaling == "linear":
        return angles / sizes.factor
    if sizes.scaling == "llama3":
        # The number of turns of each pair over the texts of the first training; the share is linear between the bounds.
        turns = sizes.original_positions * angles / (2 * np.pi)
        share = (turns - sizes.low_frequency) / (sizes.high_frequency - sizes.low_frequency)
        share = np.clip(share, 0.0, 1.0)
        return (1 - share) * angles / sizes.factor + share * angles
    return angles


def rotation(n: int, sizes: LlamaSizes, dtype: Any) -> tuple[Float[Array, "n half"], Float[Array, "n half"]]:
    """Cosines and sines of the angles at n positions."""
    # In float32 an angle of 100,000 radians has an error of 0.004, as in transformers.
    angles = np.arange(n)[:, None] * frequencies(sizes)[None]
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)


def rotate(
    x: Float[Array, "batch n heads k"], turn: tuple[Float[Array, "n half"], Float[Array, "n half"]]
) -> Float[Array, "batch n heads k"]:
    """Rotates each query or key by the angles of its position."""
    cosines, sines = (part[None, :, None, :] for part in turn)
    # The axis of heads follows that of positions, so the angles need an axis for the heads.
    return rotate_pairs(x, cosines, sines)


class Context(NamedTuple):
    """The quantities that the layers of a network share for texts of n tokens.

    **Arguments:**

    - `bias`: The position bias added to the scores, (1, heads, n, n); None for a network without it.
    - `causal`: True if no token attends to a later one.
    - `rotation`: Cosines and sines of the angles that rotate queries and keys, both (n, k / 2); None without rotation.
    - `allowed`: The allowed pairs, (n, n), which replace the mask of the network; None for the mask of its training.
    """

    bias: Float[Array, "1 heads n n"] | None = None
    causal: bool = False
    rotation: tuple[Float[Array, "n half"], Float[Array, "n half"]] | None = None
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


class AbstractBlock(nnx.Module):
    """Attention, then feed-forward, each added to the residual stream, with a norm before or after each addition.

    **Attributes:**

    - `length`: A norm that rescales the stream to a fixed norm before the block; None leaves the stream unchanged.
    - `width`: The window of the attention, (); None for no window.
    - `precision`: The precision of the matrix products.
    """

    length: Any = None
    width: Any = None
    precision: Any

    @property
    @abstractmethod
    def post_norm(self) -> bool:
        """True if the norms act on the stream, after each addition; False if they act on the input of each part."""

    @abstractmethod
    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        """The norm of the attention and the norm of the feed-forward."""

    @abstractmethod
    def set_norms(self, norm: AbstractNorm) -> None:
        """Replace both norms by `norm`, in place."""

    @abstractmethod
    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        """The queries, keys and values of all heads."""

    @abstractmethod
    def head_outputs(self) -> Affine:
        """The map from the attention outputs of the heads into the stream, (heads, k, d), and its bias."""

    @abstractmethod
    def activations(self, read: Float[Array, "batch n d"]) -> Float[Array, "batch n m"]:
        """The activation of each neuron of the feed-forward: the coefficients of its values."""

    @abstractmethod
    def neuron_values(self) -> Affine:
        """The value vector of each neuron of the feed-forward, (m, d), and the bias of the output."""

    def __call__(
        self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"], context: Context, gains: Gains = Gains()
    ) -> tuple[Float[Array, "batch n d"], Float[Array, "batch heads n n"]]:
        """The stream after the block, and the attention weights."""
        middle, weights = self.after_attention(hidden, mask, context, gains)
        return self.after_feed_forward(middle, gains), weights

    def after_attention(
        self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"], context: Context, gains: Gains = Gains()
    ) -> tuple[Float[Array, "batch n d"], Float[Array, "batch heads n n"]]:
        """The stream between the two parts, and the attention weights."""
        hidden = self.enter(hidden)
        attended, weights = self.attend(self.read(0, hidden), mask, context)
        return self.add_heads(hidden, attended, gains), weights

    def add_heads(
        self, hidden: Float[Array, "batch n d"], attended: Float[Array, "batch n heads k"], gains: Gains = Gains()
    ) -> Float[Array, "batch n d"]:
        """The stream after the heads have added their outputs, given their attention outputs `attended`."""
        if gains.heads is not None:
            attended = attended * gains.heads.T[None, :, :, None]
        kernel, bias = self.head_outputs()
        # One product over heads and their entries: (b, n, h k) times (h k, d).
        flat = attended.reshape(*attended.shape[:2], -1)
        update = product("bni,id->bnd", flat, kernel.reshape(-1, kernel.shape[-1]), self.precision)
        return self.write(0, hidden + _gained(_biased(update, bias), gains.attention))

    def after_feed_forward(
        self, hidden: Float[Array, "batch n d"], gains: Gains = Gains()
    ) -> Float[Array, "batch n d"]:
        """The stream after the feed-forward, given the stream after the attention."""
        return self.write(1, hidden + self.feed_forward(self.read(1, hidden), gains))

    def feed_forward(self, read: Float[Array, "batch n d"], gains: Gains = Gains()) -> Float[Array, "batch n d"]:
        """The output of the feed-forward."""
        fired = self.activations(read)
        fired = fired if gains.neurons is None else fired * gains.neurons.T[None]
        kernel, bias = self.neuron_values()
        return _gained(_biased(product("bnm,md->bnd", fired, kernel, self.precision), bias), gains.feed_forward)

    def enter(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The stream at the entry of the block, rescaled if `length` is set."""
        return hidden if self.length is None else self.length(hidden)

    def read(self, part: int, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The input of the attention (0) or the feed-forward (1)."""
        return hidden if self.post_norm else self.norms()[part](hidden)

    def write(self, part: int, total: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The stream after the attention (0) or the feed-forward (1), given the sum of stream and update."""
        return self.norms()[part](total) if self.post_norm else total

    def carry(
        self, part: int, total: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]
    ) -> Float[Array, "*shares batch n d"]:
        """The contribution of a share of the sum `total` to `write`, linear in `share`: without the norm's bias."""
        return self.norms()[part].carry(total, share) if self.post_norm else share

    def attend(
        self, read: Float[Array, "batch n d"], mask: Bool[Array, "batch n"], context: Context
    ) -> tuple[Float[Array, "batch n heads k"], Float[Array, "batch heads n n"]]:
        """The attention output of each head, before its map into the stream, and the attention weights."""
        query, attention_keys, value, distances = self.turned(read, context)
        places = jnp.arange(read.shape[1], dtype=jnp.int32)
        allowed = self.allowed(places, places, context)
        causal = context.causal and context.allowed is None
        parts = query, attention_keys, value, mask, context.bias, self.precision, allowed, distances
        return attend(*parts, causal=causal)

    def turned(self, read: Float[Array, "batch n d"], context: Context) -> Projected:
        """The queries, keys and values of all heads, with queries and keys rotated."""
        parts = self.project(read)
        if context.rotation is None:
            return parts
        return parts._replace(query=rotate(parts.query, context.rotation), key=rotate(parts.key, context.rotation))

    def allowed(self, i: Int[Array, " i"], j: Int[Array, " j"], context: Context) -> Bool[Array, "i j"] | None:
        """True where position `i` may attend to `j`; None allows all pairs. `context` holds exactly these positions."""
        if context.allowed is not None or not context.causal:
            return context.allowed
        back = i[:, None] - j[None, :]
        allowed = back >= 0
        return allowed if self.width is None else allowed & (back < self.width[...])


def _biased(update: Array, bias: Array | None) -> Array:
    return update if bias is None else update + bias[None, None]


def _gained(update: Float[Array, "batch n d"], gain: Float[Array, " n"] | None) -> Array:
    return update if gain is None else update * gain[None, :, None]


def project_heads(
    query: Array, attention_keys: Array, value: Array, heads: int, scale: float | None = None
) -> Projected:
    """Divide queries, keys and values, (batch, n, heads k), into heads.

    The scale, by default 1 / sqrt(k), multiplies the queries, (n, d), rather than the scores, (n, n).
    """
    size = query.shape[-1] // heads
    # Column h k + i is entry i of head h, as in the published checkpoints; several heads may share keys and values.
    query, attention_keys, value = (part.reshape(*part.shape[:2], -1, size) for part in (query, attention_keys, value))
    return Projected(query * (size**-0.5 if scale is None else scale), attention_keys, value)


def affine(linear: Any, heads: int | None = None) -> Affine:
    """A linear map of Flax as an `Affine`; with `heads` its rows are divided among the heads, (heads, k, d)."""
    kernel = linear.kernel[...]
    kernel = kernel if heads is None else kernel.reshape(heads, -1, kernel.shape[-1])
    return Affine(kernel, None if linear.bias is None else linear.bias[...])


# Applies the layers of a network by one `jax.lax.scan`, so that one layer is compiled whatever the depth.
#
# The weights of distinct blocks are stacked along a new first axis, (blocks, ...), and step i of the scan takes block
# order[i] from the stack; a single shared block (ALBERT) is closed over and not stacked. Shared layers: Lan et al.,
# *ALBERT* (1909.11942), Section 3.1.
#
# Invariants: padding is zero before every layer and after the last; wherever padding is, the words are processed as if
# it were behind them; the scan holds the hidden states of one layer, and only the results of `measure` grow with the
# depth; the compiled program depends on the blocks, not on the depth.


def check_depth(depth: Any) -> int:
    """Returns `depth` if it is a positive integer, and raises a ValueError otherwise."""
    return check_integer(depth, "depth", most=MOST_LAYERS, remedy="pass 1 or more, or None as trained")


def run_layers(
    network: "AbstractNetwork",
    mask: Bool[Array, "batch n"] | None,
    ids: Int[Array, "batch n"],
    *more: Int[Array, "batch n"] | None,
) -> Float[Array, "batch n d"]:
    """The last hidden states of a network; the ids and `more` are the arguments of its `embed`."""
    moved = words_first(mask)
    mask = jnp.ones(jnp.shape(ids), bool) if mask is None else mask
    return run_layers_measured(network, mask, (ids, *more), None, moved)[0]


def run_layers_measured(
    network: "AbstractNetwork",
    mask: Bool[Array, "batch n"],
    read: Sequence[Int[Array, "batch n"] | None],
    measure: Callable[[Array, Array, Array], Any] | None,
    moved: tuple[Int[Array | np.ndarray, "batch n"] | None, Int[Array | np.ndarray, "batch n"] | None] = (None, None),
) -> tuple[Float[Array, "batch n d"], Any]:
    """The last hidden states, and `measure(hidden, attention, allowed)` at each layer, stacked.

    `hidden` enters the layer, `attention` has the weights of the layer, and `allowed`, (batch, n, n), is True at the
    pairs of words between which its mask permits attention. The scan holds one layer at a time, so that only the
    results of `measure` grow with the depth.

    **Arguments:**

    - `network`, `mask`: The network, and True at words.
    - `read`: The arguments of `embed`.
    - `measure`: The function.
    - `moved`: The result of `words_first` for the mask; by default padding is behind the words.
    """
    order, back = moved
    if order is not None and back is not None:
        # At most as many rows as the network has positions; a row beyond takes the state of another, then is blanked.
        most = min(order.shape[1], network.max_positions or order.shape[1])
        order, back = order[:, :most], jnp.minimum(back, most - 1)
    words = _arranged(mask, order, 1)
    embedded = network.embed(*(_arranged(part, order, 1) for part in read))
    n = embedded.shape[1]
    # The context is the same for every layer, so it is computed once, outside the scan.
    context, places = network.shared_context(n), jnp.arange(n, dtype=jnp.int32)
    put_back = lambda hidden: hidden if back is None else blank(_arranged(hidden, back, 1), mask)
    pairs = mask[:, :, None] & mask[:, None, :]

    def between(weights: Array, axes: tuple[int, int]) -> Array:
        """The weights of pairs in the original order of tokens, from those in the order with words first."""
        if back is None:
            return weights
        weights, kept = _arranged(weights, back, *axes), pairs if weights.ndim == 3 else pairs[:, None]
        return jnp.where(kept, weights, jnp.zeros_like(weights))

    def step(block: AbstractBlock, hidden: Array, given: tuple[Gains, None]) -> tuple[Array, Any]:
        after, attention = block(hidden, words, context, given[0])
        if measure is None:
            return blank(after, words), None
        rule = block.allowed(places, places, context)
        allowed = words[:, :, None] & words[:, None, :] & (True if rule is None else rule[None])
        measured = measure(put_back(hidden), between(attention, (2, 3)), between(allowed, (1, 2)))
        return blank(after, words), measured

    # The embedding of padding is not zero.
    hidden, measured = scan_layers(network, step, blank(embedded, words), n)
    # Padding is blanked again, because a last norm with a bias would make it non-zero.
    return put_back(blank(network.finish(hidden), words)), measured


def _arranged(x: Any, order: Any, *axes: int) -> Any:
    """`arranged` for each text of a batch; `axes` count the batch axis."""
    if order is None or x is None:
        return x
    return jax.vmap(lambda x, order: arranged(x, order, *(axis - 1 for axis in axes)))(jnp.asarray(x), order)


def scan_layers(
    network: "AbstractNetwork",
    step: Callable[[AbstractBlock, Any, tuple[Gains, Any]], tuple[Any, Any]],
    carry: Any,
    n: int,
    each: Any = None,
    *,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Apply `step(block, carry, (gains, entry of each)) -> (carry, result)` to each layer in turn.

    **Arguments:**

    - `network`: The network whose layers are applied.
    - `step`: The function.
    - `carry`: The value passed from layer to layer, of a fixed shape.
    - `n`: The number of tokens of the texts.
    - `each`: Arrays whose first axis is that of the layers.
    - `reverse`: True if the last layer comes first.

    **Returns:**

    The last `carry`, and the results, stacked along a first axis in the order of the layers.
    """
    order, block_of = _blocks(network)
    given = (order, gains_of(network, n), each)
    # For a single block `order` is None, and `length` gives the number of its applications.
    # `unroll` is 1 except in training, where the derivative of an unrolled loop is faster.
    return lax.scan(
        lambda carry, given: step(block_of(given[0]), carry, given[1:]), carry, given, length=network.num_layers,
        unroll=network.unroll, reverse=reverse,
    )  # fmt: skip


def gains_of(network: "AbstractNetwork", n: int) -> Gains:
    """The gains of each layer at n positions."""
    if network.gains is None:
        return Gains()
    # The last entry of a gain holds for all further positions, so the last named position is the length minus two.
    last = max(gain.shape[-1] for gain in network.gains if gain is not None) - 2
    if last >= n:
        raise refusal("token", f"be one of each text, which have {n}", f"it is {last}", "name one that is there")
    return jtu.tree_map(lambda gain: at_places(gain, n), network.gains)


def _blocks(network: "AbstractNetwork") -> tuple[Int[Array, " layers"] | None, Callable[[Any], Any]]:
    """The values to scan over, and a function from each value to its block."""
    blocks = network.blocks()
    # A single block is closed over rather than stacked: a gather would copy its weights at each step.
    if len(blocks) == 1:
        return None, lambda index: blocks[0]
    form, stacked = stack_blocks(blocks)
    return jnp.asarray(network.order(), jnp.int32), lambda index: pick_block(form, stacked, index)


def stack_blocks(blocks: Sequence[AbstractBlock]) -> tuple[Any, Any]:
    """The structure of all blocks, and their weights, stacked along a first axis."""
    # Block 0 of T5 also holds the shared position bias, so the structure is taken from the last block.
    parts = [nnx.split(block, _is_bias, ...) for block in blocks]
    return parts[-1][0], jtu.tree_map(lambda *leaves: jnp.stack(leaves), *(arrays for _, _, arrays in parts))


def pick_block(form: Any, stacked: Any, index: Any) -> Any:
    """One of the blocks that `stack_blocks` stacked, by its index."""
    # A dynamic index keeps the program one layer long; with a static one each layer would be compiled.
    return nnx.merge(form, jtu.tree_map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), stacked))


def _is_bias(path: Any, value: Any) -> bool:
    return "relative_attention_bias" in path


# The interface that every tool of `probe` requires of a network, whatever its architecture.
#
# A network embeds token ids, applies blocks one after another, finishes the residual stream, and scores words. Blocks
# with their own weights form a list, and each layer refers to one of them, so that one `lax.scan` runs a network of any
# depth (`layer_scan`). A `Context` holds the quantities that all layers share for texts of n tokens and no layer
# computes; `block.AbstractBlock` defines the parts of a block.
#
# Invariants: tools use this interface and never test the class of a network; a new architecture is one file, and an
# entry of `architectures.ARCHITECTURES`.


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


class AbstractNetwork(nnx.Module):
    """A Transformer in the form that `probe` requires.

    **Attributes:**

    - `sizes`: The sizes of the network, a named tuple.
    - `num_heads`: The number of heads of each layer.
    - `depth`: The number of applications of the trained sequence of layers, or the number of applied layers.
    - `unroll`: The number of layers in a step of the scan; with all layers derivatives are faster but compilation is
        slower.
    - `mask`: An attention mask that replaces the mask of the training; None keeps the mask of the training.
    - `gains`: The factors of the outputs of the parts of each layer; None is 1.
    - `shares_layers`: True if one layer is applied repeatedly, so that a depth beyond the trained one continues it.
    """

    sizes: Any
    num_heads: int
    depth: int
    unroll: int
    mask: AbstractMask | None = None
    gains: Gains | None = None
    shares_layers: bool = False

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """The number of layers that are applied, each with its own attention."""

    @abstractmethod
    def embed(
        self, token_ids: Int[Array, "batch n"], token_types: Int[Array, "batch n"] | None = None
    ) -> Float[Array, "batch n d"]:
        """The hidden states before the first layer."""

    @abstractmethod
    def context(self, n: int) -> Context:
        """The quantities that the layers share for texts of n tokens."""

    @abstractmethod
    def blocks(self) -> Sequence[AbstractBlock]:
        """The blocks with their own weights."""

    @abstractmethod
    def order(self) -> list[int]:
        """The index in `blocks` of each layer."""

    @abstractmethod
    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The final operation after the last layer, such as a last norm."""

    @abstractmethod
    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of all words of the vocabulary at each position, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no head that scores words.
        """

    @abstractmethod
    def unembedding(self) -> Float[Array, "words d"]:
        """The vectors in the hidden space that score the words, if the head is linear; otherwise, and without a head,
        the embedding of each word."""

    @abstractmethod
    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of the heads of each of `blocks`, in double precision on the host."""

    @property
    @abstractmethod
    def score_scale(self) -> float:
        """The factor of the products of queries and keys."""

    @abstractmethod
    def word_factors(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The embedding of words, (words, e), in double precision, and the map from its rows to the hidden space,
        (e, d); None if the rows are in the hidden space."""

    @abstractmethod
    def norm_scales(self) -> list[np.ndarray] | None:
        """The scale of the norm that each block applies to the input of its attention, (d,); None if norms act on the
        residual stream itself and keep its norm constant."""

    @abstractmethod
    def last_scale(self) -> np.ndarray | None:
        """The scale of the norm after the last layer, (d,); None without such a norm."""

    @abstractmethod
    def drop_head(self) -> None:
        """Remove the parts that the hidden states do not depend on, in place: a pooler, a head that scores words."""

    @property
    def num_token_types(self) -> int | None:
        """The number of token types; None if the network takes none."""
        return getattr(self.sizes, "type_vocab_size", None)

    @property
    def max_positions(self) -> int | None:
        """The maximum number of tokens of a text; None if there is no limit."""
        return getattr(self.sizes, "max_positions", None)

    def shared_context(self, n: int) -> Context:
        """`context`, with the mask of `with_mask` if there is one."""
        return self.context(n) if self.mask is None else self.context(n)._replace(allowed=self.mask.matrix(n))


def check_not_ahead(network: AbstractNetwork, name: str, n: int) -> None:
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


def maps_of_heads(
    query: Any, key: Any, value: Any, output: Any, heads: int, shared: int | None = None
) -> AttentionMaps:
    """Divide the maps of all heads side by side into those of each head, in double precision.

    **Arguments:**

    - `query`, `key`, `value`: Linear maps of (d, heads k); the last two of (d, shared k).
    - `output`: A linear map of (heads k, d).
    - `heads`: The number of heads.
    - `shared`: The number of heads of keys and values, each shared by equally many consecutive heads; None is `heads`.
    """
    # Float64 on the host: float32 products would lose the small eigenvalues of the spectra.
    kernels = [np.asarray(linear.kernel[...], np.float64) for linear in (query, key, value, output)]
    groups = heads if shared is None else shared
    divided = [
        np.moveaxis(kernel.reshape(kernel.shape[0], count, -1), 1, 0)
        for kernel, count in zip(kernels[:3], (heads, groups, groups), strict=True)
    ]
    divided[1:] = [np.repeat(part, heads // groups, axis=0) for part in divided[1:]]
    query, key, value = divided
    return AttentionMaps(query, key, value, kernels[3].reshape(heads, -1, kernels[3].shape[1]))


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
    """

    whole: tuple[Any, tuple[Array, ...]]
    blocks: list[tuple[Any, tuple[Array, ...]]]
    order: list[int]
    gains: list[Gains]
    shared: tuple[Any, Any, Any]


class Cache(NamedTuple):
    """The rotated keys and the values of the tokens that one layer has read, at the positions of the tokens.

    **Arguments:**

    - `keys`, `values`: (batch, size, shared, k).
    """

    keys: Float[Array, "batch size shared k"]
    values: Float[Array, "batch size shared k"]


def take_apart(network: AbstractNetwork, size: int) -> Parts:
    """Split a causal network for texts of `size` positions.

    **Raises:**

    - `ValueError` if under the mask of the network some token attends to a later one.
    """
    context, gains = network.shared_context(size), gains_of(network, size)
    check_not_ahead(network, "this network", size)
    layers = range(network.num_layers)
    return Parts(
        _flat(network), [_flat(block) for block in network.blocks()], network.order(),
        [jtu.tree_map(lambda leaf, at=layer: leaf[at], gains) for layer in layers],
        (context.bias, context.rotation, context.allowed),
    )  # fmt: skip


def empty(network: AbstractNetwork, batch: int, size: int) -> list[Cache]:
    """An empty cache for each layer, for `batch` texts of `size` positions."""
    parts = jax.eval_shape(lambda: network.blocks()[0].project(network.embed(jnp.zeros((batch, size), jnp.int32))))
    make = lambda part: jnp.zeros(part.shape, part.dtype)
    return [Cache(make(parts.key), make(parts.value)) for _ in range(network.num_layers)]


def read_on(
    parts: Parts, caches: list[Cache], ids: Int[Array, "batch size"], first: Int[Array, " batch"], count: int
) -> tuple[Float[Array, "batch count d"], list[Cache]]:
    """The hidden states after the last layer of `count` tokens of each text, from position `first` on.

    **Arguments:**

    - `parts`: The result of `take_apart`.
    - `caches`: The cache of each layer for the tokens before `first`; the arrays are donated.
    - `ids`: The texts, with as many positions as the caches; ids after the tokens that are read are arbitrary.
    - `first`: The position of the first token to read, for each text.
    - `count`: The number of tokens to read.

    **Returns:**

    The hidden states, before the last norm, and the caches including these tokens.
    """
    hidden, new_caches = _embed(*parts.whole, ids, first, count), []
    for which, gains, cache in zip(parts.order, parts.gains, caches, strict=True):
        hidden, cache = _layer(*parts.blocks[which], hidden, cache, gains, parts.shared, first)
        new_caches.append(cache)
    return hidden, new_caches


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


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def _layer(
    form: Any, leaves: Any, hidden: Array, cache: Cache, gains: Gains, shared: Any, first: Array
) -> tuple[Array, Cache]:
    block, (count, size) = whole(form, leaves), (hidden.shape[1], cache.keys.shape[1])
    among = jnp.arange(size, dtype=jnp.int32)

    def of_text(hidden: Array, cache: Cache, first: Array) -> tuple[Array, Cache]:

        def rows(x: Any, axis: int) -> Any:
            return None if x is None else lax.dynamic_slice_in_dim(x, first, count, axis)

        asking = first + jnp.arange(count, dtype=jnp.int32)
        bias, turn, allowed = shared
        turn = None if turn is None else (rows(turn[0], 0), rows(turn[1], 0))
        context = Context(rows(bias, 2), True, turn, rows(allowed, 0))
        gain = jtu.tree_map(lambda gain: rows(gain, gain.ndim - 1), gains)
        hidden = block.enter(hidden[None])
        query, keys, values, distances = block.turned(block.read(0, hidden), context)
        write = lambda cached, new: lax.dynamic_update_slice_in_dim(cached, new[0].astype(cached.dtype), first, 0)
        cache = Cache(write(cache.keys, keys), write(cache.values, values))
        if distances is not None:
            distances = distances._replace(rows=distance_rows(asking, among, distances.keys.shape[0]))
        attended, _ = attend(
            query, cache.keys[None], cache.values[None], jnp.ones((1, size), bool), context.bias, block.precision,
            block.allowed(asking, among, context), distances, jnp.ones((1, count), bool),
        )  # fmt: skip
        return block.after_feed_forward(block.add_heads(hidden, attended, gain), gain)[0], cache

    return jax.vmap(of_text)(hidden, cache, first)
