"""Tests whether the tokens lie in an open hemisphere; if so, every attention with V = I contracts them to one point."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .._check import check_tokens
from .._custom_types import Tokens
from .._misc import is_concrete
from ._pairs import check_nonzero_rows


# A bound, with a safety factor, on a margin of zero after rounding.
_SMALLEST_MARGIN = 1e-9

# The active set changes about once for each token or dimension, so that this factor is never needed in practice.
_MAX_ROUNDS = 30


class Hemisphere(NamedTuple):
    """The result of `hemisphere`: unpacks into three values.

    **Attributes:**

    - `is_open_hemisphere`: True if some w has <x_i, w> > 0 for every token.
    - `w`: (d,), the unit vector whose least cosine with a token is largest, or any unit vector if there is no open
        hemisphere.
    - `margin`: The least cosine of a token with w; not positive if there is no open hemisphere.
    """

    is_open_hemisphere: bool
    w: Float[np.ndarray, " d"]
    margin: float


def hemisphere(x: Tokens) -> Hemisphere:
    r"""Tests whether some $w$ has $\langle x_i, w\rangle > 0$ for all $i$, and finds the best such $w$.

    By Gordan's theorem $w$ exists unless 0 is a convex combination of the tokens. The point of their convex hull
    nearest to 0, found as the non-negative least squares problem $\sum_i\lambda_i (x_i, 1) \approx (0, 1)$, is a
    multiple of the $w$ with the largest $\min_i\langle x_i, w\rangle$. The margin is computed from `w`, and so
    certifies the result. Tokens no more numerous than dimensions lie in an open hemisphere almost surely; for n
    independent uniform tokens the probability is $2^{-(n-1)}\sum_{k<d}\binom{n-1}{k}$. Margins below 1e-9 count as
    zero. A host function.

    **Arguments:**

    - `x`: Tokens, one per row, none of them zero; only their directions count; not traced.

    **Returns:**

    A `Hemisphere`, the tuple `(is_open_hemisphere, w, margin)`, in double precision.

    **Raises:**

    - `ValueError` if `x` has a zero row, is not finite, or is traced.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Lemma 6.4 (tokens in an open
        hemisphere converge to one point) and Theorem 6.3; Wendel, *A problem in geometric probability* (1962), for the
        probability.
    """
    import scipy.optimize  # imported here, because the import takes as long as a small run

    if not is_concrete(x):
        raise ValueError("x must not be traced, but it is; call this host function outside jax.jit.")
    tokens = np.asarray(check_nonzero_rows(check_tokens(x)), dtype=np.float64)
    # Dividing by the largest coordinate first prevents overflow and underflow of squares.
    tokens = tokens / np.abs(tokens).max(axis=1, keepdims=True)
    tokens = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    n, d = tokens.shape
    # The appended row of ones requires weights that sum to one: a convex combination, up to a common factor.
    shares, _ = scipy.optimize.nnls(
        np.vstack([tokens.T, np.ones(n)]), np.append(np.zeros(d), 1.0), maxiter=_MAX_ROUNDS * (n + d)
    )
    nearest = tokens.T @ shares
    length = np.linalg.norm(nearest)
    # If zero is in the hull, no direction is correct, and any unit vector is returned.
    w = nearest / length if length > 0 else tokens[0]
    # The margin is computed from w itself, so that the result is correct whatever the accuracy of the solver.
    margin = float((tokens @ w).min())
    is_open = margin > _SMALLEST_MARGIN
    return Hemisphere(is_open, w, margin if is_open else min(margin, 0.0))
