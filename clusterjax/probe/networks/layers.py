"""What the networks share: attention among the words of a text, the norms, the activations.

Attention is softmax(q k^T + bias) v with padding masked on both sides (Vaswani et al., 1706.03762, Section 3.2.1); the
layer norm is that of Ba et al. (1607.06450), the RMS norm that of Zhang and Sennrich (1910.07467), without a mean.

Invariants: a row of weights of a word sums to 1 over the words; rows and columns of padding are exactly zero; a text
without words gives zeros, with derivatives that are zero and not NaN.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float

from ..._check import check_float_dtype, check_instance, refusal, shown


_Class = TypeVar("_Class", bound=type)


Precision: TypeAlias = str | lax.Precision | lax.DotAlgorithmPreset | None
"""How exactly matrices are multiplied, as `jax.lax` takes it."""


def signed(cls: _Class) -> _Class:
    """The class with the signature of its constructor, which the metaclass of Flax hides from `help`."""
    # `inspect.signature` of the class itself would give the metaclass's `(*args, **kwargs)`.
    _, *parameters = inspect.signature(cls.__init__).parameters.values()
    cls.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return cls


def check_making(rngs: Any, dtype: Any, precision: Any) -> tuple[Any, Any]:
    """The dtype and the precision, if networks can be made with them and with `rngs`."""
    check_instance(rngs, "rngs", nnx.Rngs, "a nnx.Rngs", "pass nnx.Rngs(0), say")
    float_dtype = check_float_dtype(dtype)
    if float_dtype is None:
        raise refusal("dtype", "be a floating dtype", "it is None", "pass jax.numpy.float32, for example")
    if isinstance(precision, str):
        # A string such as "highest" is what `jax.lax.Precision` calls its members; one it does not know falls through
        # to the refusal below.
        with contextlib.suppress(ValueError):
            return float_dtype, lax.Precision(precision)
    if precision is not None and not isinstance(precision, lax.Precision | lax.DotAlgorithmPreset):
        raise refusal(
            "precision", "be a precision of jax", f"it is {shown(precision)}", "pass jax.lax.Precision.HIGHEST, say"
        )
    return float_dtype, precision


def attend(
    query: Float[Array, "batch n heads k"],
    attention_keys: Float[Array, "batch n shared k"],
    value: Float[Array, "batch n shared k"],
    mask: Bool[Array, "batch n"],
    bias: Float[Array, "1 heads n n"] | None = None,
    precision: Any = lax.Precision.HIGHEST,
    allowed: Bool[Array, "n n"] | None = None,
) -> tuple[Float[Array, "batch n heads k"], Float[Array, "batch heads n n"]]:
    """The attended values and the weights: each row of a word sums to 1 over the words, all else is zero.

    Token i attends to token j only where `allowed` is true, to itself at least; None allows all pairs. Where there are
    fewer keys and values than queries, each serves as many heads in a row.
    """
    (batch, n, heads, k), shared = query.shape, value.shape[2]
    # (batch, heads, n, n): all pairs at once, for the weights themselves are among what is measured.
    if heads == shared:
        scores = jnp.einsum("bihk,bjhk->bhij", query, attention_keys, precision=precision)
    else:
        # The queries of heads that share a key lie side by side, (batch, shared, heads / shared, n, k): no key is
        # copied.
        queries = jnp.moveaxis(query.reshape(batch, n, shared, heads // shared, k), 1, 3)
        scores = jnp.einsum("bgqik,bjgk->bgqij", queries, attention_keys, precision=precision)
        scores = scores.reshape(batch, heads, n, n)
    scores = scores if bias is None else scores + bias
    seen = mask[:, None, None, :] if allowed is None else mask[:, None, None, :] & allowed[None, None]
    # A text without words has a row without a maximum; its weights are zero, and so is their derivative.
    scores = jnp.where(seen, scores, -jnp.inf)
    top = lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    # The maximum is taken off so that no exponential overflows. It carries no derivative: the weights do not depend on
    # it.
    exponentials = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top)))
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    weights = exponentials / jnp.where(total > 0, total, jnp.ones_like(total))
    # Rows of padding would attend to the words; as zeros they drop out of every later sum over rows.
    weights = jnp.where(mask[:, None, :, None], weights, jnp.zeros_like(weights))
    # Heads first: for "bhij,bjhk" XLA's product on a CPU takes twice as long.
    values = jnp.swapaxes(value, 1, 2)
    if heads == shared:
        attended = jnp.einsum("bhij,bhjk->bhik", weights, values, precision=precision)
    else:
        grouped = weights.reshape(batch, shared, heads // shared, n, n)
        attended = jnp.einsum("bgqij,bgjk->bgqik", grouped, values, precision=precision).reshape(batch, heads, n, k)
    return jnp.swapaxes(attended, 1, 2), weights


def blank(hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> Float[Array, "batch n d"]:
    """The hidden states with zeros in place of padding."""
    return jnp.where(mask[:, :, None], hidden, jnp.zeros_like(hidden))


def activation(name: str) -> Callable[[Array], Array]:
    """The function that `transformers` calls by this name; its gelu_new is the tanh approximation of gelu."""
    # `gelu_new` of transformers is the approximation by tanh; `gelu` is the exact function with erf.
    return {
        "gelu": functools.partial(jax.nn.gelu, approximate=False),
        "gelu_new": functools.partial(jax.nn.gelu, approximate=True),
        "relu": jax.nn.relu,
        "silu": jax.nn.silu,
    }[name]


def init_normal(spread: float) -> Any:
    """Random weights of this standard deviation."""
    return nnx.initializers.normal(spread)


def set_zero(linear: Any) -> None:
    """Set a linear map to zero, in place."""
    linear.kernel[...] = jnp.zeros_like(linear.kernel[...])
    if linear.bias is not None:
        linear.bias[...] = jnp.zeros_like(linear.bias[...])


class LayerNorm(nnx.Module):
    """Rows shifted to mean zero and scaled to variance one, then scaled and shifted by what was learnt."""

    def __init__(self, size: int, eps: float, dtype: Any):
        self.scale = nnx.Param(jnp.ones(size, dtype))
        self.bias = nnx.Param(jnp.zeros(size, dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        # Two passes: the variance from the centred entries, since mean(x^2) - mean(x)^2 cancels where the mean is
        # large.
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        # Broadcast by hand: the tests run with strict rank promotion.
        scale, bias = self.scale[...][None, None], self.bias[...][None, None]
        return centred * lax.rsqrt(variance + self.eps) * scale + bias


class RMSNorm(nnx.Module):
    """Rows scaled to mean square one, then by what was learnt."""

    def __init__(self, size: int, eps: float, dtype: Any):
        self.weight = nnx.Param(jnp.ones(size, dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        # In the dtype of the stream, where PyTorch's T5 takes float32 whatever the dtype; see `T5Encoder`.
        square = jnp.mean(x * x, axis=-1, keepdims=True)
        return x * lax.rsqrt(square + self.eps) * self.weight[...][None, None]
