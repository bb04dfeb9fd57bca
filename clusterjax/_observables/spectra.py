"""Eigenvalues of V and of Q^T K. Host functions in NumPy: JAX has no general eigenvalues on accelerators."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Int

from .._base.checks import as_numbers, check_scalar, check_tokens, shown
from .._base.numerics import at_least_single, is_concrete, unless_finite
from .._base.types import RealScalarLike, Scalar, Tokens


def spectrum(matrix: Float[Array | np.ndarray, "d d"]) -> Complex[np.ndarray, " d"]:
    """The eigenvalues of a real square matrix, by decreasing real part, then by decreasing imaginary part.

    The long-time behaviour of tokens depends on the largest real part of an eigenvalue of V and on its multiplicity. An
    exactly symmetric matrix gives exactly real eigenvalues. Computed by NumPy in double precision, on the host.

    **Arguments:**

    - `matrix`: V or B, or any other square matrix; not traced.

    **Returns:**

    A complex NumPy array: complex64 for single precision, complex128 for double.

    **Raises:**

    - `ValueError` if `matrix` is not square, not real, not finite, or traced.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), whose theorems are
        classified by the spectrum of V.
    """
    return _sorted(_check_matrix(matrix, "matrix", square=True), _complex_dtype(matrix))


def product_spectrum(
    left: Float[Array | np.ndarray, "d k"], right: Float[Array | np.ndarray, "k d"]
) -> Complex[np.ndarray, " rank"]:
    """The eigenvalues of `left @ right` that need not be zero, from the smaller of the two products.

    `left @ right`, (d, d), and `right @ left`, (k, k), have equal non-zero eigenvalues, with multiplicities. The
    value-output operator of a head with d = 2048 and k = 128 takes milliseconds instead of many seconds.

    **Arguments:**

    - `left`, `right`: The two factors; not traced. For the symmetric part of $Q^T K$, with Q and K (k, d), pass
      `hstack([Q.T, K.T]) / 2` and `vstack([K, Q])`.

    **Returns:**

    min(k, d) eigenvalues, sorted and typed as in `spectrum`; the remaining d - k, if k < d, are zero.

    **Raises:**

    - `ValueError` if the factors do not fit together, are not real, not finite, or traced.

    ??? cite "Source"

        Sylvester's determinant identity.
    """
    factors = _check_matrix(left, "left"), _check_matrix(right, "right")
    if factors[0].shape != factors[1].shape[::-1]:
        raise ValueError(
            f"left and right must have the shapes (d, k) and (k, d), but they are {factors[0].shape} and "
            f"{factors[1].shape}; transpose one of them."
        )
    # The product of smaller size, d x d or k x k, is computed.
    first, second = factors if factors[0].shape[0] <= factors[0].shape[1] else factors[::-1]
    return _sorted(first @ second, np.result_type(_complex_dtype(left), _complex_dtype(right)))


def symmetric_part_spectrum(matrix: Float[Array | np.ndarray, "d d"]) -> Float[np.ndarray, " d"]:
    """The eigenvalues of $(B + B^T)/2$, in decreasing order.

    The quadratic form ⟨x, Bx⟩ of $B = Q^T K$ depends only on this symmetric part: all eigenvalues are positive if every
    token attends to itself more than to its opposite. Computed by NumPy in double precision, on the host.

    **Arguments:**

    - `matrix`: B; not traced.

    **Returns:**

    A real NumPy array in the precision of `matrix`.

    **Raises:**

    - `ValueError` if `matrix` is not square, not real, not finite, or traced.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), the code of its
        figures of the heads of ALBERT.
    """
    array = _check_matrix(matrix, "matrix", square=True)
    values = np.linalg.eigvalsh((array + array.T) / 2)[::-1]
    return values.astype(np.float32 if _complex_dtype(matrix) == np.complex64 else np.float64)


def effective_beta(query_key: Float[Array | np.ndarray, "d d"]) -> float:
    """$√d ‖½(B + B^T)‖_F$: the inverse temperature of a trained head.

    Tokens after layer normalisation have norm √d. In terms of unit tokens, and of B', which is B scaled to the
    Frobenius norm of the identity, the logits are this number times $⟨x_i, B' x_j⟩$; for B = βI/d the number is β.

    **Arguments:**

    - `query_key`: $B = Q^T K$ of one head, including its factor $1/√d_k$; not traced.

    **Returns:**

    A float, not negative.

    **Raises:**

    - `ValueError` if `query_key` is not square, not real, not finite, or traced.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), the code of its
        figures of the heads of ALBERT.
    """
    # The antisymmetric part of B does not contribute to <x, B x>.
    array = _check_matrix(query_key, "query_key", square=True)
    # The largest entry is factored out of the norm, because its square may overflow in float64.
    symmetric = array / 2 + array.T / 2
    largest = float(np.max(np.abs(symmetric)))
    return largest * (math.sqrt(array.shape[0]) * float(np.linalg.norm(symmetric / (largest or 1.0))))


def _check_matrix(matrix: Any, name: str, *, square: bool = False) -> np.ndarray:
    if not is_concrete(matrix):
        raise ValueError(f"{name} must not be traced, but it is; call this host function outside jax.jit.")
    array = as_numbers(matrix, name)
    if array is None:
        raise ValueError(f"{name} must be a matrix of real numbers, but it is {shown(matrix)}; pass an array.")
    array = np.asarray(array)
    kind = "a square matrix" if square else "a matrix"
    if array.ndim != 2 or array.size == 0 or (square and array.shape[0] != array.shape[1]):
        raise ValueError(f"{name} must be {kind}, but its shape is {array.shape}; pass one head at a time.")
    if np.iscomplexobj(array):
        raise ValueError(f"{name} must be real, but its dtype is {array.dtype}; pass its real part.")
    # LAPACK has no routines for bfloat16 and float16.
    array = array.astype(np.float64)
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite, but it holds a NaN or an infinity; mend that entry.")
    return array


def _complex_dtype(matrix: Any) -> np.dtype:
    return np.dtype(np.complex128 if np.asarray(matrix).dtype.itemsize >= 8 else np.complex64)


def _sorted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    # `eigvalsh` gives exactly real eigenvalues; `eigvals` leaves imaginary parts of the size of rounding errors.
    symmetric = np.array_equal(array, array.T)
    values = (np.linalg.eigvalsh(array) if symmetric else np.linalg.eigvals(array)).astype(np.complex128)
    # `lexsort` sorts by the last key first.
    return values[np.lexsort((-values.imag, -values.real))].astype(dtype)


# Rank and effective rank of a cloud of tokens.


def rank(x: Tokens, tolerance: RealScalarLike) -> Int[Array, ""]:
    r"""The number of singular values of the matrix of tokens above `tolerance` times the largest.

    The rank is invariant under a rotation or a rescaling of all tokens. Tokens that have merged into k clusters in
    general position have rank min(k, d).

    **Arguments:**

    - `x`: Tokens, one per row; their mean is not subtracted.
    - `tolerance`: The relative threshold, positive, which defines the rank and has no default. May be traced.

    **Returns:**

    An integer scalar; zero if all tokens are zero, and the smallest integer if a traced one is not finite.

    **Raises:**

    - `ValueError` if `x` is not a cloud of finite tokens, or `tolerance` is not a positive number.

    ??? cite "Source"

        Dong, Cordonnier and Loukas, *Attention is not all you need* (2103.03404), on the collapse of the rank.
    """
    x = check_tokens(x)
    tolerance = check_scalar(tolerance, "tolerance", x.dtype, above=0, remedy="pass a number above zero")
    # Singular values are in decreasing order; for a cloud of zeros none exceeds zero.
    singular = _singular_values(x)
    return unless_finite(singular, jnp.sum(singular > tolerance * singular[0]))


def effective_rank(x: Tokens) -> Scalar:
    """$exp(-∑_k p_k log p_k)$ with $p_k = σ_k/∑_l σ_l$ the normalised singular values.

    This rank needs no threshold: it is between 1 and `rank`, and equal to `rank` if the non-zero singular values are
    equal. It is invariant under a rotation or a rescaling of all tokens. Differentiable; singular values that are
    exactly zero get no gradient.

    **Arguments:**

    - `x`: Tokens, one per row; their mean is not subtracted.

    **Returns:**

    A scalar of the dtype of `x`; zero if all tokens are zero.

    **Raises:**

    - `ValueError` if `x` is not a cloud of finite tokens.

    ??? cite "Source"

        Roy and Vetterli, *The effective rank: a measure of effective dimensionality* (EUSIPCO 2007).
    """
    singular = _singular_values(check_tokens(x))
    # The substituted ones keep derivatives finite where a singular value, or all of them, are zero.
    total = jnp.sum(singular)
    shares = singular / jnp.where(total > 0, total, jnp.ones_like(total))
    # 0 log 0 = 0: zero is replaced by one, because its logarithm would be minus infinity.
    logs = jnp.log(jnp.where(shares == 0, jnp.ones_like(shares), shares))
    return jnp.where(total == 0, jnp.zeros_like(total), jnp.exp(-jnp.sum(shares * logs)))


def _singular_values(x: Tokens) -> Float[Array, " values"]:
    return jnp.linalg.svd(x.astype(at_least_single(x.dtype)), compute_uv=False).astype(x.dtype)
