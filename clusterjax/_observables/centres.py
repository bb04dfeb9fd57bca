"""Rényi centres: tokens far from all earlier centres, around which causal attention forms clusters.

Angles are compared as chords, |x - y| = 2 sin(angle / 2), which is accurate for small angles. The greedy algorithm
takes one round per centre: the first token that no centre covers becomes the next centre.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._base.checks import check_flag, check_float_dtype, check_integer, check_room, check_scalar, check_tokens
from .._base.numerics import is_concrete, normalise
from .._base.types import DTypeLike, RealScalarLike, Scalar, Tokens
from .similarity import check_nonzero_rows, check_square, map_pair_rows, scaled_square_distances


def renyi_centres(x: Tokens, separation: RealScalarLike, *, strong: bool = False) -> Bool[Array, " n"]:
    """Marks tokens that lie at an angle of more than `separation` from every earlier centre.

    The first token is always a centre. Any two centres are more than `separation` apart, and every other token is
    within `separation` of an earlier centre. A strong centre is that far from every earlier token, so that strong
    centres are centres. The order of the tokens matters; the distance is the geodesic distance of the sphere. The cost
    is n d operations for each centre, and n^2 d in blocks of rows if `strong`; works under `jax.jit` and `jax.vmap`.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> angles = jnp.array([0.0, 0.3, 0.6, 1.4])
        >>> x = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        >>> cjx.renyi_centres(x, 0.5).tolist()
        [True, False, True, True]
        >>> cjx.renyi_centres(x, 0.5, strong=True).tolist()  # 0.6 is within 0.5 of 0.3, which is no centre
        [True, False, False, True]
        ```

    **Arguments:**

    - `x`: Tokens, one per row, none of them zero; only their directions count.
    - `separation`: An angle in radians, in (0, pi]; the papers take a multiple of `beta ** -0.5`. May be traced.
    - `strong`: True to return strong centres.

    **Returns:**

    One boolean for each token; False for a traced token that is not finite.

    **Raises:**

    - `ValueError` if `x` has a zero row or is not finite, or `separation` is not in (0, pi].

    ??? cite "Source"

        Karagodin, Polyanskiy and Rigollet, *Clustering in causal attention masking* (2411.04990), Section 5.
    """
    x = check_nonzero_rows(check_tokens(x))
    separation = _check_separation(separation, x.dtype)
    # A token that is not finite is near no token, and would therefore count as a centre.
    finite = jnp.all(jnp.isfinite(x), axis=1)
    return (_strong if check_flag(strong, "strong") else _greedy)(normalise(x), 0.5 / jnp.sin(separation / 2)) & finite


def expected_strong_centres(separation: RealScalarLike, n: int | float, d: int) -> Scalar:
    """$(1 - (1-p)^n)/p$: the mean number of strong centres among n independent uniform tokens.

    $p = ½ I_s((d-1)/2, ½)$ with s = sin²δ is, for δ ≤ π/2, the fraction of the sphere within the angle δ of a point.
    For infinite n the number is 1/p: π/δ for d = 2 and $1/sin²(δ/2)$ for d = 3, where the paper prints a third of that.

    **Arguments:**

    - `separation`: The angle δ in radians, in (0, pi]. May be traced.
    - `n`: The number of tokens, or `math.inf`.
    - `d`: The dimension of the tokens.

    **Returns:**

    A scalar of the dtype of `separation`.

    **Raises:**

    - `ValueError` if `separation` is not in (0, pi], or `n` or `d` is not a positive number.

    ??? cite "Source"

        Karagodin, Polyanskiy and Rigollet, *Clustering in causal attention masking* (2411.04990), Lemma C.1, extended
        here to finite n, and corrected for d = 3.
    """
    d = check_integer(d, "d", remedy="pass the dimension of the tokens")
    if not (isinstance(n, float) and n == math.inf):
        n = check_integer(n, "n", remedy="pass the number of tokens, or math.inf")
    separation = _check_separation(separation, None)
    if d == 1:
        # The sphere consists of two points, and only the angle pi reaches the other point.
        share = jnp.where(separation < math.pi, 0.5, 1.0).astype(separation.dtype)
    else:
        a = jnp.asarray((d - 1) / 2, separation.dtype)
        # The fraction of the cap within min(angle, pi - angle); beyond pi / 2 its complement is taken.
        half = jax.scipy.special.betainc(a, jnp.asarray(0.5, separation.dtype), jnp.square(jnp.sin(separation))) / 2
        share = jnp.where(separation <= math.pi / 2, half, 1 - half)
    if n == math.inf:
        return 1 / share
    # This form of 1 - (1 - p)^n avoids cancellation for small p.
    return -jnp.expm1(n * jnp.log1p(-share)) / share


def _check_separation(separation: Any, dtype: Any) -> Float[Array, ""]:
    array = check_scalar(separation, "separation", dtype, above=0, remedy="pass a number above zero")
    # The bound has a tolerance, because pi rounds up in single precision.
    if is_concrete(array) and float(np.asarray(array)) > np.pi * (1 + 1e-6):
        raise ValueError(f"separation must be an angle of at most pi, but it is {array}; give it in radians.")
    return array


@jax.jit
def _strong(unit: Tokens, scale: Float[Array, ""]) -> Bool[Array, " n"]:
    n, d = unit.shape

    # A strong centre is near no earlier token, whether that token is a centre or not.
    def block(rows, index):
        near = scaled_square_distances(rows, unit, scale) <= 1
        return ~jnp.any(near & (jnp.arange(n)[None, :] < index[:, None]), axis=1)

    return map_pair_rows(block, unit, numbers_per_pair=d)


@jax.jit
def _greedy(unit: Tokens, scale: Float[Array, ""]) -> Bool[Array, " n"]:
    # The first token that no centre covers is the next centre, so that a round is spent per centre, not per token.
    def add(state):
        centres, covered = state
        # `argmin` of booleans finds the first False.
        first = jnp.argmin(covered)
        near = scaled_square_distances(unit[first][None], unit, scale)[0] <= 1
        # A centre covers itself whatever rounding, or NaN, does to its distance to itself, so that the loop ends.
        return centres.at[first].set(True), (covered | near).at[first].set(True)

    start = jnp.zeros(unit.shape[0], dtype=bool)
    centres, _ = jax.lax.while_loop(lambda state: ~jnp.all(state[1]), add, (start, start))
    return centres


# Attention sinks: tokens that receive more attention than under uniform causal attention.


def sink_mass(weights: Float[Array, "n n"], *, include_self: bool = False) -> Float[Array, " n"]:
    """$1/(n-1) ∑_{i ≠ j} w_{ij}$: the mean weight that the other tokens give to token j.

    The mass is between 0 and 1 if the rows are probabilities. Under a causal mask early tokens receive more even
    without any preference: compare with `uniform_causal_sink`. A single token has mass 0, because there are no others.

    **Arguments:**

    - `weights`: The attention matrix; row i attends to column j.
    - `include_self`: True to include the diagonal, and divide by n.

    **Returns:**

    One number for each token, of the dtype of `weights`.

    **Raises:**

    - `ValueError` if `weights` is not square, not finite, or has a negative entry.

    ??? cite "Source"

        Xiao et al., *Efficient streaming language models with attention sinks* (2309.17453), name the effect.
    """
    weights, include_self = check_square(weights, "weights"), check_flag(include_self, "include_self")
    if is_concrete(weights) and np.asarray(weights).min() < 0:
        raise ValueError(
            f"weights must not be negative, but the smallest is {np.asarray(weights).min()}; pass the matrix after the "
            "softmax."
        )
    n = weights.shape[0]
    if include_self:
        return jnp.mean(weights, axis=0)
    # The diagonal is set to zero, because subtracting it from the column sums would cancel.
    others = jnp.where(jnp.eye(n, dtype=bool), jnp.zeros_like(weights), weights)
    return jnp.sum(others, axis=0) / max(n - 1, 1)


def uniform_causal_sink(n: int, *, include_self: bool = False, dtype: DTypeLike | None = None) -> Float[Array, " n"]:
    """$(H_n - H_j)/(n-1)$, the `sink_mass` of token j = 1, ..., n when causal attention is uniform.

    Row i then has the weight 1/i on its first i tokens, as at consensus. $H_j$ are the harmonic numbers. With
    `include_self` the mass is $(H_n - H_{j-1})/n$, for the first token $H_n/n$: 0.0741 at n = 64. Only mass above this
    value indicates a sink.

    **Arguments:**

    - `n`: The number of tokens.
    - `include_self`: As for `sink_mass`; a comparison requires equal values.
    - `dtype`: The dtype of the result; None means JAX's default float.

    **Returns:**

    One number for each token, decreasing.

    **Raises:**

    - `ValueError` if `n` is not a positive integer.
    """
    n = check_integer(n, "n", remedy="pass the number of tokens")
    include_self, dtype = check_flag(include_self, "include_self"), check_float_dtype(dtype)
    check_room(n, "n", 40 * n, "the sums for n tokens", longest=n, remedy="ask for fewer tokens")
    # Sums start with the smallest terms, in double precision, on the host: tails[j] = 1/(j+1) + ... + 1/n.
    tails = np.cumsum(1 / np.arange(n, 0, -1))[::-1]
    mass = tails / n if include_self else np.append(tails[1:], 0.0) / max(n - 1, 1)
    return jnp.asarray(mass, dtype=dtype or jnp.result_type(float))
