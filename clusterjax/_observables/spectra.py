"""Eigenvalues of V and of Q^T K, and departures from normality.

These are host functions in NumPy: JAX has no general eigenvalues on accelerators.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Int

from .._base.checks import as_numbers, check_flag, check_scalar, check_tokens, shown
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


def non_normality(matrix: Float[Array | np.ndarray, "d d"]) -> float:
    """$‖N‖_F/‖A‖_F$, with $A = U(Λ + N)U^*$ the Schur form: Henrici's departure from normality, relative.

    Zero if the eigenvectors are orthogonal, and one if all eigenvalues are zero and A is not. The number is invariant
    under a unitary change of basis and a multiple of A.

    !!! example

        ```python
        >>> import clusterjax as cjx, numpy as np
        >>> [round(cjx.non_normality(a), 3) for a in (np.eye(2), np.ones((2, 2)), np.array([[1, 1], [0, 1]]))]
        [0.0, 0.0, 0.577]
        ```

    **Arguments:**

    - `matrix`: Any square matrix, such as a Jacobian or a propagator; not traced.

    **Returns:**

    A float from 0 to 1; zero for a matrix of zeros.

    **Raises:**

    - `ValueError` if `matrix` is not square, not real, not finite, or traced.

    ??? cite "Source"

        Henrici, *Bounds for iterates, inverses, spectral variation and fields of values of non-normal matrices*
        (Numerische Mathematik 4, 1962); Trefethen and Embree, *Spectra and pseudospectra* (2005), Chapter 48.
    """
    import scipy.linalg  # imported here, since the import takes as long as a small run

    array = _check_matrix(matrix, "matrix", square=True)
    # The largest entry is factored out of both norms, because squares may overflow or underflow.
    array = array / (np.max(np.abs(array)) or 1.0)
    # The part above the diagonal is computed, and not a difference of norms, in which small departures would cancel.
    upper = np.triu(scipy.linalg.schur(array, output="complex")[0], 1)
    return float(np.linalg.norm(upper)) / (float(np.linalg.norm(array)) or 1.0)


def kreiss_constant(matrix: Float[Array | np.ndarray, "d d"], *, discrete: bool = False) -> float:
    """The supremum of $Re(z) ‖(z - A)^{-1}‖$ over Re z > 0: how far perturbations grow before they decay.

    For $u̇ = Au$ the largest $‖e^{tA}‖$ over all t lies between this constant K and e d K. With `discrete` A is one step
    of $u ↦ Au$, the supremum of $(|z| - 1)‖(z - A)^{-1}‖$ over |z| > 1, and the powers of A have these bounds. K is one
    if A is normal and stable, and infinite if a perturbation grows for ever.

    **Algorithm.** For each real part (or radius) of z the level sets of Boyd, Balakrishnan, Bruinsma and Steinbuch find
    the largest norm over the line (or the circle), and miss no maximum. A grid of the logarithm of the real part, and
    golden sections, find the supremum. A narrow peak between two points of the grid may be missed: K is then too small.

    !!! example

        ```python
        >>> import clusterjax as cjx, numpy as np
        >>> [round(cjx.kreiss_constant(np.array([[-1.0, b], [0.0, -2.0]])), 3) for b in (0.0, 10.0, 100.0)]
        [1.0, 1.865, 17.172]
        ```

    **Arguments:**

    - `matrix`: A, such as a Jacobian, or with `discrete` a propagator; not traced. The constant takes some hundred
        decompositions of twice the size of A.
    - `discrete`: Whether A is the step of a sequence.

    **Returns:**

    A float, at least 1.

    **Raises:**

    - `ValueError` if `matrix` is not square, not real, not finite, or traced.

    ??? cite "Source"

        Trefethen and Embree, *Spectra and pseudospectra* (2005), Chapter 14, and Chapter 18 for the theorem of
        Kreiss; the level sets: Bruinsma and Steinbuch (Systems and Control Letters 14, 1990).
    """
    from scipy.optimize import minimize_scalar

    array = _check_matrix(matrix, "matrix", square=True)
    discrete = check_flag(discrete, "discrete")
    values = np.linalg.eigvals(array)
    # A scale of A only changes the unit of time. A discrete step has no such unit, and its unit circle must be kept.
    scale = 1.0 if discrete else float(np.linalg.norm(array, 2)) or 1.0
    array, values = array / scale, values / scale
    depth = float(np.max(np.abs(values)) - 1 if discrete else np.max(values.real))
    if depth > _GROWS:
        return math.inf

    def negative(logarithm: float) -> float:
        distance = math.exp(logarithm)
        return -distance / _smallest_singular(array, distance, discrete)

    # Between these distances from the boundary the product has its supremum; beyond, it tends to one.
    grid = np.linspace(math.log(1e-8), math.log(1e2), 41)
    grid_values = np.array([negative(point) for point in grid])
    best = int(grid_values.argmin())
    if best == 0 and grid_values[0] < grid_values[1] * (1 + 1e-3):
        return math.inf
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    refined = minimize_scalar(negative, bounds=bounds, method="bounded", options={"xatol": 1e-8})
    return max(1.0, -float(grid_values.min()), -float(refined.fun))


# A real part, relative to the norm, above which a perturbation grows by more than rounding errors explain.
_GROWS = 1e-12


def _smallest_singular(array: np.ndarray, distance: float, discrete: bool) -> float:
    """The smallest singular value of z - A over the line Re z = distance, or the circle |z| = 1 + distance."""
    d = len(array)
    eye = np.eye(d)
    on_curve = (lambda s: (1 + distance) * np.exp(1j * s)) if discrete else (lambda s: distance + 1j * s)
    smallest = lambda s: float(np.linalg.svd(on_curve(s) * eye - array, compute_uv=False)[-1])
    # The maxima of the resolvent lie near eigenvalues.
    values = np.linalg.eigvals(array)
    level = min(map(smallest, np.angle(values) if discrete else values.imag))
    while True:
        below = level * (1 - 1e-10)
        places = _crossings(array, distance, below, discrete)
        # Between two neighbours the smallest singular value is on one side of the level.
        middles = (places + np.roll(places, -1)) / 2 if discrete else (places[:-1] + places[1:]) / 2
        if discrete and len(middles):
            middles[-1] += np.pi
        lower = min(map(smallest, middles), default=level)
        if lower >= below:
            return level
        level = lower


def _crossings(array: np.ndarray, distance: float, level: float, discrete: bool) -> np.ndarray:
    """Where on the curve a singular value of z - A equals `level`, in increasing order."""
    import scipy.linalg

    eye, zero = np.eye(len(array)), np.zeros(array.shape)
    if discrete:
        left = np.block([[array, level * eye], [zero, (1 + distance) * eye]])
        right = np.block([[(1 + distance) * eye, zero], [level * eye, array.T]])
        # SciPy has no types for what it returns.
        values: Any = scipy.linalg.eig(left, right, right=False)
        return np.sort(np.angle(values[np.abs(np.abs(values) - 1) < 1e-7]))
    shifted = distance * eye - array
    values = np.linalg.eigvals(np.block([[-shifted, level * eye], [-level * eye, shifted.T]]))
    return np.sort(values[np.abs(values.real) < 1e-7].imag)


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
    equal. The effective rank is invariant under a rotation or a rescaling of all tokens. Differentiable; singular
    values that are exactly zero get no gradient.

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
