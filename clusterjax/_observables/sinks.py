"""Attention sinks: tokens that receive more attention than under uniform causal attention."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import check_flag, check_float_dtype, check_integer, check_room
from .._custom_types import DTypeLike
from .._misc import is_concrete
from ._pairs import check_square


def sink_mass(weights: Float[Array, "n n"], *, include_self: bool = False) -> Float[Array, " n"]:
    r"""$\frac{1}{n-1}\sum_{i\ne j} w_{ij}$: the mean weight that the other tokens give to token $j$.

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
    r"""$\frac{H_n - H_j}{n-1}$, the `sink_mass` of token $j = 1, \dots, n$ when causal attention is uniform.

    Row i then has the weight 1/i on its first i tokens, as at consensus. $H_j$ are the harmonic numbers. With
    `include_self` the mass is $\frac{H_n - H_{j-1}}{n}$, for the first token $H_n/n$: 0.0741 at n = 64. Only mass above
    this value indicates a sink.

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
