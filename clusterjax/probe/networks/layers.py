"""Parts that the networks share: attention among the words of a text, the norms, the activations.

Attention is softmax(q k^T + bias) v with padding masked on both sides (Vaswani et al., 1706.03762, Section 3.2.1). The
layer norm is from Ba et al. (1607.06450), the RMS norm, without centring, from Zhang and Sennrich (1910.07467).

Invariants: the weights of each word sum to 1 over the words; rows and columns of padding are exactly zero; a text
without words gives zeros, with derivatives that are zero and not NaN.
"""

import contextlib
import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._check import check_float_dtype, check_instance, refusal, shown


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
    seen = mask[:, None, None, :] if allowed is None else mask[:, None, None, :] & allowed[None, None]
    # A text without words has no maximum in its rows; its weights and their derivatives are zero.
    scores = jnp.where(seen, scores, -jnp.inf)
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
    return nnx.initializers.constant(jnp.nan) if spread is None else nnx.initializers.normal(spread)


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
