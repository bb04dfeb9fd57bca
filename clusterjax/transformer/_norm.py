"""Layer normalisation, and its position in a block.

LN(x) = gain (x - mean) / sqrt(variance + epsilon) + bias (Ba et al., *Layer normalization*, 1607.06450). For fixed mean
and variance of x, layer normalisation is linear in x, so `carry` can apply it to each part of a sum separately, as in
Elhage et al., *A mathematical framework for transformer circuits* (2021).

Invariants: the carried parts of a sum add up to the normalised sum minus the bias; mean and variance are computed in
float32 at least.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import check_flag, check_float_dtype, check_instance, check_number
from .._base.numerics import at_least_single
from .._base.types import AbstractPart, DTypeLike
from ._checks import check_features, check_sizes, weights


def lifted(array: Array, like: Array) -> Array:
    """`array` with leading axes of length 1 up to the rank of `like`, as strict rank promotion requires."""
    return jnp.expand_dims(array, tuple(range(like.ndim - array.ndim)))


def check_epsilon(value: float) -> float:
    """Return `value` if it is a finite number of 0 or more; raise a `ValueError` otherwise."""
    return check_number(value, "epsilon", least=0, remedy="1e-5 is usual")


class LayerNorm(AbstractPart):
    """The map $γ ⊙ (x - μ)/√(σ² + ε) + b$ of each token separately.

    μ and σ² are the mean and the variance of the d entries of the token; the variance divides by d.

    **Arguments:**

    - `gain`: γ, (d,).
    - `bias`: b, (d,); None is zero.
    - `epsilon`: The number ε, 0 or more, which avoids the division by zero for a constant token.

    **Raises:**

    - `ValueError` if the shapes do not match or `epsilon` is negative; on use, if the dimension of the tokens is not d.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Appendix A.1; Ba, Kiros, Hinton, *Layer normalization* (1607.06450).
    """

    gain: Float[Array, " d"] = eqx.field(converter=weights("gain", "(d,)"))
    bias: Float[Array, " d"] | None = eqx.field(default=None, converter=weights("bias", "(d,)", optional=True))
    epsilon: float = eqx.field(default=1e-5, static=True, converter=check_epsilon)

    def __check_init__(self):
        shapes = jnp.shape(self.gain), jnp.shape(self.gain if self.bias is None else self.bias)
        if len(shapes[0]) != 1 or shapes[0] != shapes[1] or shapes[0] == (0,):
            raise ValueError(
                f"gain and bias must be vectors of one length, but their shapes are {shapes[0]} and {shapes[1]}; pass "
                "(d,) for both."
            )

    @classmethod
    def identity(
        cls, d: int, *, bias: bool = True, epsilon: float = 1e-5, dtype: DTypeLike | None = None
    ) -> "LayerNorm":
        """The layer norm of gain one and, with `bias`, bias zero, with which training starts.

        Source: 1607.06450, Section 3.
        """
        dtype = check_float_dtype(dtype) or jnp.result_type(float)
        ones = jnp.ones(check_sizes(d=d), dtype)
        return cls(ones, jnp.zeros_like(ones) if check_flag(bias, "bias") else None, epsilon)

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """The normalised tokens."""
        return normalised(self, check_features(x, self.gain.shape[-1]))

    def carry(self, x: Float[Array, "*batch d"], part: Float[Array, "*parts d"]) -> Float[Array, "*parts d"]:
        """Normalise a `part` of the tokens `x` with the mean of the part and the variance of `x`, without the bias.

        The map is linear in `part`: the carried parts of a sum add up to the normalised sum minus the bias.

        **Arguments:**

        - `x`: The tokens that determine the variance, (..., d).
        - `part`: An array that broadcasts against `x`.

        Source: Elhage et al., *A mathematical framework for transformer circuits* (2021).
        """
        d = self.gain.shape[0]
        # Broadcasting of a gain of length 1 would hide a wrong dimension.
        if jnp.shape(x)[-1] != d:
            raise ValueError(f"x must be of dimension {d}, as gain is, but its shape is {jnp.shape(x)}; pass (n, {d}).")
        sum_dtype = at_least_single(x.dtype)  # a sum of d numbers in half precision has few correct digits
        # The variance is that of the tokens and not of the part, so that `carry` is linear in the part.
        variance = jnp.var(x.astype(sum_dtype), axis=-1, keepdims=True)
        part = part.astype(sum_dtype)
        centred = part - jnp.mean(part, axis=-1, keepdims=True)
        scale = lifted(jax.lax.rsqrt(variance + self.epsilon), part)
        # The product is computed in the wide dtype and rounded once.
        return (lifted(self.gain.astype(sum_dtype), part) * centred * scale).astype(x.dtype)


def normalised(norm: LayerNorm, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """`norm(x)` without checks, for callers that have checked the tokens."""
    # With the tokens themselves as the part, `carry` gives the layer norm without its bias.
    out = norm.carry(x, x)
    return out if norm.bias is None else out + lifted(norm.bias.astype(x.dtype), out)


class AbstractResidual(AbstractPart):
    """The position of the norm of a sub-layer, which determines the input of the sub-layer and the stream after it.

    `needs_norm` is True if each sub-layer has a norm.
    """

    needs_norm: eqx.AbstractClassVar[bool]

    @abstractmethod
    def read(self, norm: LayerNorm | None, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The input of the sub-layer, from the stream `x`."""

    @abstractmethod
    def write(self, norm: LayerNorm | None, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The stream after the sub-layer, from the sum `total` of the stream and the output of the sub-layer."""

    @abstractmethod
    def carry(
        self, norm: LayerNorm | None, total: Float[Array, "n d"], part: Float[Array, "*parts n d"]
    ) -> Float[Array, "*parts n d"]:
        """The image of a part of the sum `total` under `write`, without the bias of the norm."""


def check_norm(norm: Any, name: str = "norm") -> LayerNorm:
    """Return `norm` if it is a `LayerNorm`; raise a `ValueError` otherwise."""
    return check_instance(norm, name, LayerNorm, "a LayerNorm", "pass LayerNorm.identity(d), for example")


def check_residual(residual: Any) -> AbstractResidual:
    """Return `residual` if it is an `AbstractResidual`; raise a `ValueError` otherwise."""
    return check_instance(
        residual, "residual", AbstractResidual, "a place of the norms", "pass PostNorm(), PreNorm() or NoNorm()"
    )


class PostNorm(AbstractResidual):
    """Post-norm, $x ← LN(x + f(x))$: the stream itself is normalised after each sub-layer.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Appendix A.1; Vaswani et al., *Attention is all you need* (1706.03762).
    """

    needs_norm: ClassVar[bool] = True

    def read(self, norm: LayerNorm | None, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return x

    def write(self, norm: LayerNorm | None, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        assert norm is not None
        return normalised(norm, total)

    def carry(
        self, norm: LayerNorm | None, total: Float[Array, "n d"], part: Float[Array, "*parts n d"]
    ) -> Float[Array, "*parts n d"]:
        assert norm is not None
        return norm.carry(total, part)


class _AbstractAdding(AbstractResidual):
    """Sub-layers only add to the stream, so `write` and `carry` are identities."""

    def write(self, norm: LayerNorm | None, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return total

    def carry(
        self, norm: LayerNorm | None, total: Float[Array, "n d"], part: Float[Array, "*parts n d"]
    ) -> Float[Array, "*parts n d"]:
        return part


class PreNorm(_AbstractAdding):
    """Pre-norm, $x ← x + f(LN(x))$: the input of a sub-layer is normalised, but the stream is not.

    ??? cite "Source"

        Xiong et al., *On layer normalization in the transformer architecture* (2002.04745).
    """

    needs_norm: ClassVar[bool] = True

    def read(self, norm: LayerNorm | None, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        assert norm is not None
        return normalised(norm, x)


class NoNorm(_AbstractAdding):
    """No norm, $x ← x + f(x)$: nothing is normalised.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eq. (1.1).
    """

    needs_norm: ClassVar[bool] = False

    def read(self, norm: LayerNorm | None, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return x
