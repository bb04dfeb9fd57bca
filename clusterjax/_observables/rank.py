"""Rank and effective rank of a cloud of tokens."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._check import check_scalar, check_tokens
from .._custom_types import RealScalarLike, Scalar, Tokens
from .._misc import unless_finite
from .._precision import at_least_single


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
    r"""$\exp\big(-\sum_k p_k\log p_k\big)$ with $p_k = \sigma_k/\sum_l\sigma_l$ the normalised singular values.

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
