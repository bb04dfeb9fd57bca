"""The interaction energy, which increases along the flow of attention, and its rate of increase.

The module has energies of tokens, of attention and of a gradient perceptron. Invariants: logarithms are computed first,
so that `log_interaction_energy` is finite for every finite beta; `energy_dissipation` is dE/dt.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import (
    call_traced,
    check_array,
    check_callable,
    check_integer,
    check_number,
    check_scalar,
    check_tokens,
)
from .._base.numerics import as_float, below, is_concrete, matmul
from .._base.types import Masses, RealScalarLike, Scalar, Tokens
from .._model.space import Sphere
from .similarity import check_masses, check_square, map_pair_rows


# Logarithms of sums of exponentials over tokens, for blocks of rows, from which the energies are computed.
#
# The shift of log-sum-exp is the largest exponent with mass, and carries no derivative. Invariant: the result is finite
# for every finite beta; each row is shifted, and then the sum over rows, so that no intermediate sum overflows.


def log_weighted_sum(exponents: Float[Array, "*rows n"], masses: Masses) -> Float[Array, "*rows"]:
    """log sum_j m_j e^{a_j} along the last axis, shifted by the largest exponent with mass."""
    present = jnp.broadcast_to(masses > 0, exponents.shape)
    shift = jnp.max(jnp.where(present, exponents, -jnp.inf), axis=-1, keepdims=True)
    shift = jax.lax.stop_gradient(shift)
    terms = jnp.exp(below(exponents, shift, present))
    return jnp.log(matmul(terms, masses)) + shift[..., 0]


@jax.jit
def row_log_means(
    x: Tokens, beta: Float[Array, ""], query_key: Float[Array, "d d"] | None, masses: Masses
) -> Float[Array, " n"]:
    """log sum_j m_j e^{beta <x_i, B x_j>} for each i, in blocks of rows."""

    def block(rows, index):
        del index
        queries = rows if query_key is None else matmul(rows, query_key)
        return log_weighted_sum(beta * matmul(queries, x.T), masses)

    return map_pair_rows(block, x)


def interaction_energy(
    x: Tokens,
    beta: RealScalarLike,
    query_key: Float[Array, "d d"] | None = None,
    masses: Masses | None = None,
) -> Scalar:
    """$E_β = 1/(2βn²) ∑_{i,j} exp(β⟨x_i, B x_j⟩)$.

    The energy never decreases along the softmax and the unnormalised flow if $V = B = B^T$, and never increases if
    V = -B. Among unit vectors with B = I and β > 0 it is largest, $e^β/(2β)$, if all tokens coincide, and smallest for
    the uniform measure, see `uniform_energy`. A negative `beta` gives a negative energy. With masses, divided by their
    sum, the mean over pairs becomes $∑_{i,j} m_i m_j$. Rows are processed in blocks. The energy is of the order of
    $e^β$, and infinite beyond the range of the dtype: see `log_interaction_energy`.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> equal, opposite = jnp.array([[1.0, 0.0], [1.0, 0.0]]), jnp.array([[1.0, 0.0], [-1.0, 0.0]])
        >>> round(float(cjx.interaction_energy(equal, 1.0)), 3)  # e / 2, the largest
        1.359
        >>> round(float(cjx.interaction_energy(opposite, 1.0)), 3)  # cosh(1) / 2
        0.772
        ```

    **Arguments:**

    - `x`: Tokens, one per row.
    - `beta`: Inverse temperature, not zero; may be traced, so that sweeping it does not recompile.
    - `query_key`: $B = Q^T K$; None means the identity.
    - `masses`: Masses of the tokens, not negative; None means equal masses.

    **Returns:**

    A scalar of the dtype of `x`.

    **Raises:**

    - `ValueError` if `beta` is zero, or an argument has the wrong shape, is not finite, or a mass is negative.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 3.3, with B = I and equal
        masses.
    """
    # The sum over pairs is positive, so that the energy has the sign of beta.
    log_energy = log_interaction_energy(x, beta, query_key, masses)
    return jnp.sign(as_float(beta, log_energy.dtype)) * jnp.exp(log_energy)


def log_interaction_energy(
    x: Tokens,
    beta: RealScalarLike,
    query_key: Float[Array, "d d"] | None = None,
    masses: Masses | None = None,
) -> Scalar:
    """$log|E_β|$, finite for every finite non-zero `beta`, such as 1e4 in single precision.

    The largest exponent of a row shifts all exponents of the row, and the largest sum shifts the sums of all rows.

    **Arguments:**

    - `x`, `beta`, `query_key`, `masses`: As for `interaction_energy`.

    **Returns:**

    A scalar of the dtype of `x`. The sign of the energy is that of `beta`.

    **Raises:**

    - `ValueError` as for `interaction_energy`.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 3.3. The logarithm is this
        library's addition.
    """
    x = check_tokens(x)
    beta = check_scalar(beta, "beta", x.dtype)
    if query_key is not None:
        query_key = check_square(query_key, "query_key").astype(x.dtype)
        if query_key.shape[0] != x.shape[1]:
            raise ValueError(
                f"query_key must have the shape ({x.shape[1]}, {x.shape[1]}), as tokens have {x.shape[1]} dimensions, "
                f"but its shape is {query_key.shape}; pass Q^T K."
            )
    masses = check_masses(masses, x)
    if is_concrete(beta) and float(np.asarray(beta)) == 0:
        raise ValueError(
            "beta must not be zero, where the energy 1 / (2 beta) of every cloud is infinite, but it is 0.0; "
            "take a small beta, or the limit of E - 1 / (2 beta), which is <m, B m> / 2 with m the mean token."
        )
    # Both sums, within rows and over the logarithms of rows, are shifted by their largest exponent.
    pairs = log_weighted_sum(row_log_means(x, beta, query_key, masses), masses)
    return pairs - jnp.log(2 * jnp.abs(beta))


def energy_dissipation(
    x: Tokens,
    velocity: Float[Array, "n d"],
    *,
    log_partition: Float[Array, " n"] | None = None,
    masses: Masses | None = None,
) -> Scalar:
    """$1/n ∑_i (Z_i/n) |P_{x_i} ẋ_i|²$: the rate of the interaction energy on the sphere.

    The rate equals $dE_β/dt$ along the softmax flow with $V = B = B^T$ if `log_partition` is
    `SoftmaxAttention(beta, query_key=B).log_partition(x)`, and along the unnormalised flow, whose factor $Z_i/n$ is 1,
    if `log_partition` is None. With V = -B the rate is $-dE_β/dt$; for other V, and for B that is not symmetric,
    neither holds. Several unnormalised heads with $V_h = B_h = B_h^T$ increase the sum of their energies at this rate.
    With masses and $M = ∑_i m_i$ the rate is $∑_i (m_i/M) (Z_i/M) |P_{x_i} ẋ_i|²$ with
    $Z_i = ∑_j m_j exp(β⟨x_i, B x_j⟩)$, and `log_partition` must use these masses. Only the tangent part of the velocity
    counts.

    **Arguments:**

    - `x`: Tokens on the sphere.
    - `velocity`: ẋ, one row for each token.
    - `log_partition`: $log Z_i$ for the softmax flow; None for the unnormalised flow.
    - `masses`: Masses of the tokens, not negative; None means mass one for each token.

    **Returns:**

    A scalar of the dtype of `x`, not negative.

    **Raises:**

    - `ValueError` if an argument has the wrong shape, is not finite, or a mass is negative.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 3.3 (the unnormalised flow
        is a Wasserstein gradient flow) and 3.4 (the softmax flow is a gradient flow for a metric weighted by Z).
    """
    x = check_tokens(x)
    velocity = check_tokens(velocity, "velocity").astype(x.dtype)
    if velocity.shape != x.shape:
        raise ValueError(
            f"velocity must have the shape of x, {x.shape}, but its shape is {velocity.shape}; pass field(t, x, args)."
        )
    # `check_masses` divides by the sum M, but Z / M needs M itself, because Z contains the original masses.
    shares = check_masses(masses, x)
    total = (
        jnp.asarray(x.shape[0], x.dtype)
        if masses is None
        else jnp.sum(as_float(check_array(masses, "masses"), x.dtype))
    )
    masses = shares
    speeds = jnp.sum(jnp.square(Sphere().tangent(x, velocity)), axis=-1)
    if log_partition is None:
        return jnp.sum(masses * speeds)
    remedy = "pass SoftmaxAttention(...).log_partition(x), one number per token"
    log_partition = check_array(log_partition, "log_partition", shape=(x.shape[0],), remedy=remedy)
    # The product of Z and the squared speed is one exponential, because Z alone may overflow where the product does
    # not. A token at rest gives 0, and not infinity times 0.
    moving = speeds > 0
    logs = as_float(log_partition, x.dtype) - jnp.log(total)
    terms = jnp.exp(logs + jnp.log(jnp.where(moving, speeds, jnp.ones_like(speeds))))
    return jnp.sum(masses * jnp.where(moving, terms, jnp.zeros_like(terms)))


def perceptron_energy(
    x: Tokens,
    features: Float[Array, "m d"],
    amplitudes: Float[Array, " m"],
    primitive: Callable[[Array], Array],
    masses: Masses | None = None,
) -> Scalar:
    """$1/n ∑_i ∑_j ω_j Φ(⟨a_j, x_i⟩)$, the energy of a gradient perceptron.

    The field $ẋ_i = P_{x_i} ∑_j ω_j σ(⟨a_j, x_i⟩) a_j$ with σ = Φ' increases this energy. Added to the unnormalised
    attention field, it increases the sum of the two energies, at the rate of `energy_dissipation`.

    **Arguments:**

    - `x`: Tokens, one per row.
    - `features`: The rows $a_j$: inner weights, and outer weights up to the amplitudes.
    - `amplitudes`: The numbers $ω_j$.
    - `primitive`: Φ, elementwise, a primitive of the activation: `lambda s: jax.nn.relu(s)**2 / 2` for a ReLU.
    - `masses`: Masses of the tokens, divided by their sum; None means equal masses.

    **Returns:**

    A scalar of the dtype of `x`.

    **Raises:**

    - `ValueError` if an argument has the wrong shape, or a mass is negative.

    ??? cite "Source"

        2601.21366, Section 2, where the energy is $1/(2n) ∑_i ∑_j ω_j φ$ with φ' = 2σ; here Φ = φ/2.
    """
    x = check_tokens(x)
    remedy = "pass vectors of the tokens' dimension, one feature per row"
    features = check_array(features, "features", shape=("m", x.shape[1]), remedy=remedy).astype(x.dtype)
    remedy = "pass one number for each row of features"
    amplitudes = check_array(amplitudes, "amplitudes", shape=features.shape[:1], remedy=remedy).astype(x.dtype)
    signature = "a function of an array"
    check_callable(primitive, "primitive", signature, takes=1)
    # `values`, (n, m), are summed with the amplitudes over the features, and with the masses over the tokens.
    values = call_traced(primitive, "primitive", signature, matmul(x, features.T))
    return jnp.sum(check_masses(masses, x) * matmul(values, amplitudes))


# The energy of the uniform measure, which is the smallest, in closed form.


def uniform_mean(beta: float, d: int) -> float:
    """The mean of e^{beta t} over the sphere; infinite if it overflows."""
    import scipy.special  # imported here, because the import takes as long as a small run

    # Far beyond this bound the square of beta overflows; the mean overflows long before it.
    return float(scipy.special.hyp0f1(d / 2, beta**2 / 4)) if abs(beta) < 1e100 else math.inf


def uniform_energy(beta: float, d: int) -> float:
    """$₀F₁(d/2; β²/4) / (2β)$, the energy of the uniform measure on the sphere.

    In terms of Bessel functions the energy is $Γ(d/2) (2/β)^{d/2-1} I_{d/2-1}(β) / (2β)$: $I_0(β)/(2β)$ for d = 2,
    $sinh(β)/(2β²)$ for d = 3 and $cosh(β)/(2β)$ for d = 1. No cloud of unit tokens has less `interaction_energy` if
    `beta` is positive. A host function, in double precision.

    **Arguments:**

    - `beta`: Inverse temperature, a number other than zero.
    - `d`: The dimension of the tokens.

    **Returns:**

    A float.

    **Raises:**

    - `ValueError` if `beta` is zero, not finite or so large that the energy overflows, or `d` not a positive integer.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Proposition 3.4 (the uniform
        measure is the minimiser). The closed form follows from the Funk-Hecke formula.
    """
    d = check_integer(d, "d", remedy="pass the dimension of the tokens")
    beta = check_number(beta, "beta")
    if beta == 0:
        raise ValueError(f"beta must be finite and not zero, but it is {beta}; pass another number.")
    mean = uniform_mean(beta, d)
    if not np.isfinite(mean):
        raise ValueError(
            f"beta must be small enough for an energy that double precision holds, but it is {beta}; pass 500 or less."
        )
    return mean / (2 * beta)
