"""Layer normalisation, and where in a block it stands.

LN(x) = gain (x - mean) / sqrt(variance + epsilon) + bias (Ba et al., *Layer normalization*, 1607.06450). Once mean and
variance of x are known it is linear in x, so a part of a sum can be carried through it by itself (`carry`), as in
Elhage et al., *A mathematical framework for transformer circuits* (2021).

Invariants: the parts of a sum, each carried, add up to the normalised sum less the bias; mean and variance are taken
in float32 at least.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._abstract import AbstractPart
from .._check import check_flag, check_float_dtype, check_instance, check_number
from .._custom_types import DTypeLike
from .._precision import at_least_single
from ._checks import check_features, check_sizes, weights, weights_or_none


def lifted(array: Array, like: Array) -> Array:
    """`array` with as many axes as `like`, new ones first, as strict rank promotion requires."""
    return jnp.expand_dims(array, tuple(range(like.ndim - array.ndim)))


def check_epsilon(value: float) -> float:
    """`value`, if it may be added to a variance; raises a `ValueError` otherwise."""
    return check_number(value, "epsilon", least=0, remedy="1e-5 is usual")


class LayerNorm(AbstractPart):
    r"""$\gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b$, for each token alone.

    $\mu$ and $\sigma^2$ are the mean and the variance of the d entries of the token; the variance divides by d.

    **Arguments:**

    - `gain`: $\gamma$, (d,).
    - `bias`: b, (d,); None is zero.
    - `epsilon`: What keeps a constant token from a division by zero; 0 or more.

    **Raises:**

    - `ValueError` if the shapes do not match or `epsilon` is negative; on use, if the tokens are of another dimension.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Appendix A.1; Ba, Kiros, Hinton, *Layer normalization* (1607.06450).
    """

    gain: Float[Array, " d"] = eqx.field(converter=weights("gain", "(d,)"))
    bias: Float[Array, " d"] | None = eqx.field(default=None, converter=weights_or_none("bias", "(d,)"))
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
        """With gain one and, if wanted, bias zero: as training starts.

        Source: 1607.06450, Section 3.
        """
        dtype = check_float_dtype(dtype) or jnp.result_type(float)
        # Gain 1 and bias 0.
        ones = jnp.ones(check_sizes(d=d), dtype)
        return cls(ones, jnp.zeros_like(ones) if check_flag(bias, "bias") else None, epsilon)

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """The normalised tokens."""
        return normalised(self, check_features(x, self.gain.shape[-1]))

    def carry(self, x: Float[Array, "*batch d"], part: Float[Array, "*parts d"]) -> Float[Array, "*parts d"]:
        """What becomes of a `part` of the tokens `x` where they are normalised, without the bias.

        Linear in `part`: the parts of a sum, each carried along, add up to the normalised sum.

        **Arguments:**

        - `x`: The tokens whose mean and variance are divided out, (..., d).
        - `part`: Anything that broadcasts against them.

        Elhage et al., *A mathematical framework for transformer circuits* (2021), fold layer
        norm into what reads it likewise.
        """
        d = self.gain.shape[0]
        # Broadcasting a gain of length 1 would hide the mistake.
        if jnp.shape(x)[-1] != d:
            raise ValueError(f"x must be of dimension {d}, as gain is, but its shape is {jnp.shape(x)}; pass (n, {d}).")
        sum_dtype = at_least_single(x.dtype)  # a sum of d numbers in half precision has few correct digits
        # Of the tokens and not of the part: this is what makes `carry` linear in the part.
        variance = jnp.var(x.astype(sum_dtype), axis=-1, keepdims=True)
        part = part.astype(sum_dtype)
        centred = part - jnp.mean(part, axis=-1, keepdims=True)
        # 1 / sqrt(variance + epsilon), (..., 1), with the axes of the part.
        scale = lifted(jax.lax.rsqrt(variance + self.epsilon), part)
        # Multiplied in the wide dtype and rounded once at the end.
        return (lifted(self.gain.astype(sum_dtype), part) * centred * scale).astype(x.dtype)


def normalised(norm: LayerNorm, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """`norm(x)` without checks, for callers that have checked the tokens."""
    # The tokens are the part of themselves that is all of them.
    out = norm.carry(x, x)
    return out if norm.bias is None else out + lifted(norm.bias.astype(x.dtype), out)


class AbstractResidual(AbstractPart):
    """The place of the normalisation of a sub-layer: what the sub-layer reads, and what the stream becomes."""

    @abstractmethod
    def read(self, norm: LayerNorm | None, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """What the sub-layer reads of the stream `x`."""

    @abstractmethod
    def write(self, norm: LayerNorm | None, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The stream after the sub-layer, whose output has been added: `total` is their sum."""

    @abstractmethod
    def carry(
        self, norm: LayerNorm | None, total: Float[Array, "n d"], part: Float[Array, "*parts n d"]
    ) -> Float[Array, "*parts n d"]:
        """What becomes of a part of the sum, without the bias of the norm."""

    @property
    @abstractmethod
    def needs_norm(self) -> bool:
        """Whether there is a norm."""


def check_norm(norm: Any, name: str = "norm") -> LayerNorm:
    """`norm`, if it is one; raises a `ValueError` otherwise."""
    return check_instance(norm, name, LayerNorm, "a LayerNorm", "pass LayerNorm.identity(d), for example")


def check_residual(residual: Any) -> AbstractResidual:
    """`residual`, if it is one; raises a `ValueError` otherwise."""
    return check_instance(
        residual, "residual", AbstractResidual, "a place of the norms", "pass PostNorm(), PreNorm() or NoNorm()"
    )


class PostNorm(AbstractResidual):
    r"""$x \leftarrow \mathrm{LN}(x + f(x))$: the stream itself is normalised after each sub-layer.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Appendix A.1; Vaswani et al., *Attention is all you need* (1706.03762).
    """

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

    @property
    def needs_norm(self) -> bool:
        return True


# With PreNorm the stream is only added to: `write` and `carry` return their argument.
class PreNorm(AbstractResidual):
    r"""$x \leftarrow x + f(\mathrm{LN}(x))$: what a sub-layer reads is normalised, and the stream only added to.

    ??? cite "Source"

        Xiong et al., *On layer normalization in the transformer architecture* (2002.04745).
    """

    def read(self, norm: LayerNorm | None, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        assert norm is not None
        return normalised(norm, x)

    def write(self, norm: LayerNorm | None, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return total

    def carry(
        self, norm: LayerNorm | None, total: Float[Array, "n d"], part: Float[Array, "*parts n d"]
    ) -> Float[Array, "*parts n d"]:
        return part

    @property
    def needs_norm(self) -> bool:
        return True


class NoNorm(AbstractResidual):
    r"""$x \leftarrow x + f(x)$: nothing is normalised.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eq. (1.1).
    """

    def read(self, norm: LayerNorm | None, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return x

    def write(self, norm: LayerNorm | None, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return total

    def carry(
        self, norm: LayerNorm | None, total: Float[Array, "n d"], part: Float[Array, "*parts n d"]
    ) -> Float[Array, "*parts n d"]:
        return part

    @property
    def needs_norm(self) -> bool:
        return False
