"""The tie rule of hardmax: which scores count as equal to the largest one.

Rounding separates scores that are equal in exact arithmetic. A score ties with the maximum of its row if the gap is at
most the tie tolerance times $|A z_i| max_j |z_j|$, the scale of the rounding error of an inner product, where j runs
over the attended tokens. Log-weights add numbers that may be larger: the scale is then at least the absolute value of
the maximum. Both scales together bound the log-weight of any score that ties; they are equal where all log-weights are
zero. No quantity of this rule carries a derivative.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._base.types import Scalar, Tokens


def norms(tokens: Tokens) -> Float[Array, " n"]:
    """The norms of tokens, which neither overflow nor underflow where the squares would."""
    tokens = lax.stop_gradient(tokens)
    # Tokens are divided by their largest coordinate before squaring.
    largest = jnp.max(jnp.abs(tokens), axis=-1)
    scale = jnp.where(largest > 0, largest, 1)
    return scale * jnp.sqrt(jnp.sum((tokens / scale[..., None]) ** 2, axis=-1))


def longest_attended(tokens: Tokens, attended: Bool[Array, "rows n"]) -> Float[Array, " rows"]:
    """The largest norm of the tokens that each row attends to; zero if a row attends to none."""
    return jnp.max(jnp.where(attended, norms(tokens)[None, :], 0), axis=1)


def tie_slack(
    queries: Tokens, longest: Float[Array, " n"], tie_tolerance: Scalar, top: Float[Array, " n"] | None = None
) -> Float[Array, " n"]:
    """The gap to the maximum below which a score ties with it; `longest` is the largest norm of an attended token.

    `top` is the maximum of each row, given for scores with log-weights.
    """
    if top is None:
        return lax.stop_gradient(tie_tolerance * norms(queries) * longest)
    return lax.stop_gradient(tie_tolerance * jnp.maximum(norms(queries) * longest, jnp.abs(top)))
