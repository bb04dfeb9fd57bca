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

from .._check import check_flag, check_integer, check_scalar, check_tokens
from .._custom_types import RealScalarLike, Scalar, Tokens
from .._misc import is_concrete, normalise
from ._pairs import check_nonzero_rows, map_pair_rows, scaled_square_distances


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
    r"""$\frac{1 - (1-p)^n}{p}$: the mean number of strong centres among $n$ independent uniform tokens.

    $p = \frac12 I_{\sin^2\delta}(\frac{d-1}{2}, \frac12)$ is, for $\delta \le \pi/2$, the fraction of the sphere within
    the angle $\delta$ of a point. For infinite n the number is $1/p$: $\pi/\delta$ for d = 2 and $1/\sin^2(\delta/2)$
    for d = 3, where the paper prints a third of that.

    **Arguments:**

    - `separation`: The angle $\delta$ in radians, in (0, pi]. May be traced.
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
