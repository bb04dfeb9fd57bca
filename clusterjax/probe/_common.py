"""What both networks share: attention among the words of a text, the norms, the activations."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float

from .._check import check_float_dtype, check_instance, refusal, shown


_Class = TypeVar("_Class", bound=type)


def signed(cls: _Class) -> _Class:
    """The class with the signature of its constructor, which the metaclass of Flax hides from `help`."""
    _, *parameters = inspect.signature(cls.__init__).parameters.values()
    cls.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return cls


def check_making(rngs: Any, dtype: Any, precision: Any) -> tuple[Any, Any]:
    """The dtype and the precision, if networks can be made with them and with `rngs`."""
    check_instance(rngs, "rngs", nnx.Rngs, "a nnx.Rngs", "pass nnx.Rngs(0), say")
    found = check_float_dtype(dtype)
    if found is None:
        raise refusal("dtype", "be a floating dtype", "it is None", "pass jax.numpy.float32, for example")
    if isinstance(precision, str):
        with contextlib.suppress(ValueError):
            return found, lax.Precision(precision)
    if precision is not None and not isinstance(precision, lax.Precision | lax.DotAlgorithmPreset):
        raise refusal(
            "precision", "be a precision of jax", f"it is {shown(precision)}", "pass jax.lax.Precision.HIGHEST, say"
        )
    return found, precision


def attend(
    query: Float[Array, "batch n heads k"],
    key: Float[Array, "batch n heads k"],
    value: Float[Array, "batch n heads k"],
    mask: Bool[Array, "batch n"],
    bias: Float[Array, "1 heads n n"] | None = None,
    precision: Any = lax.Precision.HIGHEST,
) -> tuple[Float[Array, "batch n heads k"], Float[Array, "batch heads n n"]]:
    """The attended values and the weights: each row of a word sums to 1 over the words, all else is zero."""
    scores = jnp.einsum("bihk,bjhk->bhij", query, key, precision=precision)
    scores = scores if bias is None else scores + bias
    # A text without words has a row without a maximum; its weights are zero, and so is their derivative.
    scores = jnp.where(mask[:, None, None, :], scores, -jnp.inf)
    top = lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    powers = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top)))
    total = jnp.sum(powers, axis=-1, keepdims=True)
    weights = powers / jnp.where(total > 0, total, jnp.ones_like(total))
    weights = jnp.where(mask[:, None, :, None], weights, jnp.zeros_like(weights))
    # Heads first: for "bhij,bjhk" XLA's product on a CPU takes twice as long.
    attended = jnp.einsum("bhij,bhjk->bhik", weights, jnp.swapaxes(value, 1, 2), precision=precision)
    return jnp.swapaxes(attended, 1, 2), weights


def blank(hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> Float[Array, "batch n d"]:
    """The hidden states with zeros in place of padding."""
    return jnp.where(mask[:, :, None], hidden, jnp.zeros_like(hidden))


def activation(name: str) -> Callable[[Array], Array]:
    """The function that `transformers` calls by this name; its gelu_new is the tanh approximation of gelu."""
    gelu = {"gelu": False, "gelu_new": True}
    return jax.nn.relu if name == "relu" else functools.partial(jax.nn.gelu, approximate=gelu[name])


def init_normal(spread: float) -> Any:
    """Random weights of this standard deviation."""
    return nnx.initializers.normal(spread)


class LayerNorm(nnx.Module):
    """Rows shifted to mean zero and scaled to variance one, then scaled and shifted by what was learnt."""

    def __init__(self, size: int, eps: float, dtype: Any):
        self.scale = nnx.Param(jnp.ones(size, dtype))
        self.bias = nnx.Param(jnp.zeros(size, dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        scale, bias = self.scale[...][None, None], self.bias[...][None, None]
        return centred * lax.rsqrt(variance + self.eps) * scale + bias


class RMSNorm(nnx.Module):
    """Rows scaled to mean square one, then by what was learnt."""

    def __init__(self, size: int, eps: float, dtype: Any):
        self.weight = nnx.Param(jnp.ones(size, dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        square = jnp.mean(x * x, axis=-1, keepdims=True)
        return x * lax.rsqrt(square + self.eps) * self.weight[...][None, None]
