r"""Exponential time rescaling, $z = e^{-tV}x$, which removes the growth by $e^{tV}$ from the dynamics on R^d.

**Algorithm.** $e^{tV} = e^s M$ with $|M| = 1$ is computed by scaling and squaring (Higham, *The scaling and squaring
method for the matrix exponential revisited*, 2005), where each squaring is followed by a normalisation. The attention
is that of the tokens $e^s M z$ with bounded s: beyond the bound the softmax equals a hardmax in the dtype, and a larger
s would only overflow.

**Invariants.** Nothing overflows for any t. A multiple of the identity gives exactly that multiple. `rescale` and
`unscale` are inverse to each other as far as the dtype represents the tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._attention import AbstractAttention
from .._attention.base import check_attention, check_dimension, check_masses, check_number_of_masses, check_square
from .._check import check_tokens, shown
from .._custom_types import Numbers, RealScalarLike, Tokens
from .._misc import as_float, matmul
from .._precision import at_least_single
from .._schedule import AbstractSchedule, as_parameter, at_time, check_time, constant
from .._space import AbstractSpace, Euclidean
from .base import AbstractField


class RescaledField(AbstractField):
    r"""$z = e^{-tV}x$: $\dot z_i = \sum_j P_{ij} V (z_j - z_i)$, with $P$ the attention of the tokens $x = e^{tV}z$.

    The field is stable for large t: $e^{tV}$ is computed as $e^s M$ with $|M| = 1$, so that nothing overflows, whatever
    the eigenvalues and Jordan blocks of V, and the factor $e^s$ stops growing where the dtype cannot distinguish the
    softmax from a hardmax. `unscale` returns x.

    **Arguments:**

    - `attention`: The attention; a `SoftmaxAttention` for the paper's dynamics.
    - `value`: V, (d, d), constant in time; None is the identity.
    - `masses`: (n,), as in `AttentionField`.

    **Raises:**

    - `ValueError` if `value` is a schedule, or not square, real and finite.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eqs. (1.2) and (1.3);
        the exponential time rescaling that is named in Peat, *Clustering in Transformers*, Section 3.2.
    """

    attention: AbstractAttention
    value: Array | None
    masses: Array | None

    def __init__(self, attention: AbstractAttention, value: Numbers | None = None, *, masses: Numbers | None = None):
        if isinstance(value, AbstractSchedule) or callable(value) and not isinstance(value, type):
            raise ValueError(
                f"value must be constant in time, but it is {shown(value)}: exp(-tV) is the flow of a "
                "constant V only; use AttentionField with space=Euclidean()."
            )
        self.attention = check_attention(attention)
        self.value = as_parameter(value, "value")
        self.masses = as_parameter(constant(masses, "masses"), "masses")
        check_square(self.value, "value")
        check_masses(self.masses)

    @property
    def space(self) -> AbstractSpace:
        """All of R^d, since the rescaled dynamics are not projected."""
        return Euclidean()

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        x = self.enter(x)
        factor, matrix = _exponential(self.value, jnp.asarray(t, x.dtype), x)
        # Scores are quadratic in the tokens: for tokens of this size a relative difference of one machine epsilon
        # determines every softmax.
        direction = matmul(x, matrix.T)
        size = jax.lax.stop_gradient(jnp.maximum(jnp.max(jnp.abs(direction)), 1))
        # With 0.4 the scores, products of two tokens, remain below the largest number to the power 0.8.
        grown = jnp.exp(jnp.minimum(factor, 0.4 * _log_largest(x) - jnp.log(size))) * direction
        average = self.attention.average(grown, x, t, at_time(self.masses, t, x.dtype))
        # Rows of the attention sum to one, so that sum_j P_ij (z_j - z_i) is the average minus z_i.
        drift = average - x
        return drift if self.value is None else matmul(drift, self.value.astype(x.dtype).T)

    def unscale(self, t: RealScalarLike, z: Tokens) -> Tokens:
        r"""The tokens $x = e^{tV}z$ of the original dynamics, which grow without bound, and finally become infinite."""
        check_time(t)
        z = check_tokens(z, "z")
        check_dimension(self.value, "value", z.shape[1])
        t = jnp.asarray(t, z.dtype)
        # The form that does not overflow is computed for every t.
        factor, matrix = _exponential(self.value, t, z)
        direction = matmul(z, matrix.T)
        # Zero times infinity would be NaN.
        beyond = jnp.where(direction == 0, 0, jnp.exp(factor) * direction)
        if self.value is None:
            return beyond
        # While e^{tV} is finite, its small entries count too, which underflow in M, where |M| = 1.
        finite = factor < 0.9 * _log_largest(z)
        # t = 0 is used in the branch that is not taken, where an overflow would make derivatives NaN.
        plain = _expm(jnp.where(finite, t, 0) * self.value.astype(z.dtype), 48)
        return jnp.where(finite, matmul(z, plain.T), beyond)

    def rescale(self, t: RealScalarLike, x: Tokens) -> Tokens:
        r"""The rescaled tokens $z = e^{-tV}x$."""
        check_time(t)
        return self.unscale(-as_float(t), check_tokens(x))

    def check(self, n: int, d: int) -> None:
        self.attention.check(n, d)
        check_dimension(self.value, "value", d)
        check_number_of_masses(self.masses, n)


def _log_largest(x: Array) -> float:
    """The logarithm of the largest number of the dtype."""
    return float(np.log(jnp.finfo(x.dtype).max))


# 48 squarings suffice for |t V| up to 2^47; a scan of fixed length allows a traced t and reverse mode.
_SQUARINGS = 48


@jax.jit
def _exponential(
    value: Float[Array, "d d"] | None, t: Array, x: Tokens
) -> tuple[Float[Array, ""], Float[Array, "d d"]]:
    r"""$s$ and $M$ with $e^{tV} = e^s M$ and $|M| = 1$ (Frobenius), by scaling and squaring of unit matrices.

    The mean of the eigenvalues is factored out first, so that a multiple of the identity is exact.
    """
    d = x.shape[1]
    eye = jnp.eye(d, dtype=x.dtype)
    if value is None:
        return t, eye
    value = value.astype(x.dtype)
    # The multiple of the identity commutes with every matrix: e^{tV} = e^{t mean} e^{t (V - mean)}.
    mean = jnp.trace(value) / d
    residual = t * (value - mean * eye)
    size = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(residual), axis=0)))
    # The 1-norm of the scaled matrix is at most a half.
    squarings = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(size, 0.5)) + 1), 0, _SQUARINGS)
    # `expm` may square once itself, if rounding puts the norm above a half. The pair is the logarithm of the norm and
    # the unit matrix: each squaring doubles the logarithm and squares the matrix.
    start = _unit(jnp.zeros((), x.dtype), _expm(residual / 2.0**squarings, 1))

    def square(carry, k):
        # `cond` replaces a loop of traced length, since reverse mode needs a fixed number of iterations.
        grown = jax.lax.cond(k < squarings, lambda s, m: _unit(2 * s, matmul(m, m)), lambda *same: same, *carry)
        return grown, None

    (log_norm, matrix), _ = jax.lax.scan(square, start, jnp.arange(_SQUARINGS, dtype=x.dtype))
    return t * mean + log_norm, matrix


def _expm(matrix: Float[Array, "d d"], squarings: int) -> Float[Array, "d d"]:
    # `expm` solves a linear system, which LAPACK does not support in half precision.
    single = matrix.astype(at_least_single(matrix.dtype))
    return jax.scipy.linalg.expm(single, max_squarings=squarings).astype(matrix.dtype)


def _unit(log_norm: Array, matrix: Array) -> tuple[Array, Array]:
    """The logarithm of the norm of `e^log_norm matrix`, and that matrix divided by its norm."""
    norm = jnp.sqrt(jnp.sum(matrix * matrix))
    return log_norm + jnp.log(norm), matrix / norm
