"""Maps over pairs of tokens in blocks of rows, and the checks that the pairwise observables share.

Invariant: no n x n array is held if n^2 exceeds `_BLOCK_ENTRIES`, in the forward or the backward pass.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._blocks import map_blocks
from .._check import check_array
from .._custom_types import Tokens
from .._misc import is_concrete


# The number of entries in one block of rows: 8 MB in double precision.
_BLOCK_ENTRIES = 2**20


def fits_one_block(n: int) -> bool:
    """True if an (n, n) array is small enough to be held at once."""
    return n * n <= _BLOCK_ENTRIES


def map_pair_rows(
    fn: Callable[[Float[Array, "rows d"], Int[Array, " rows"]], Any], x: Tokens, *, numbers_per_pair: int = 1
) -> Any:
    """`fn(rows, index)` for each block of rows of `x`, with the indices of the rows; joined along axis 0.

    A block makes about a million numbers, `numbers_per_pair` for each pair, and the backward pass recomputes them, so
    that no (n, n) array is held in either pass.
    """
    n = x.shape[0]
    # A block has at least one row, whatever the number of tokens.
    block_rows = max(1, _BLOCK_ENTRIES // (n * numbers_per_pair))
    if block_rows >= n:
        return fn(x, jnp.arange(n))
    return map_blocks(fn, block_rows, x, jnp.arange(n), recompute=True)


def scaled_square_distances(
    rows: Float[Array, "rows d"], x: Float[Array, "n d"], scale: Float[Array, ""]
) -> Float[Array, "rows n"]:
    """(scale |x_i - x_j|)^2, computed from the differences.

    Expanding the square would lose every distance below the square root of the machine epsilon; scaling before squaring
    keeps far and near pairs on the correct side of 1. The result is bitwise symmetric. The intermediate array is
    (rows, n, d), so that the number of rows should be small.
    """
    # (a - b)^2 = (b - a)^2 bit by bit, and the sum over the coordinates has a fixed order: hence the symmetry.
    return jnp.sum(jnp.square((rows[:, None, :] - x[None, :, :]) * scale), axis=-1)


def check_masses(masses: Any, x: Tokens) -> Float[Array, " n"]:
    """`masses` divided by their sum, in the dtype of `x`, or uniform if None; raises a `ValueError` if invalid."""
    n = x.shape[0]
    if masses is None:
        return jnp.full((n,), 1 / n, dtype=x.dtype)
    remedy = "pass one mass per token, that is for each row of x"
    # The check precedes the cast, because a number that overflows in the dtype of x would become infinite.
    masses = check_array(masses, "masses", shape=(n,), least=0, remedy=remedy).astype(x.dtype)
    if is_concrete(masses) and not np.asarray(masses).any():
        raise ValueError("masses must not be all zero, but they are; pass a positive mass for at least one token.")
    return masses / jnp.sum(masses)


def check_square(matrix: Any, name: str) -> Float[Array, "d d"]:
    """`matrix` as an array; raises a `ValueError` unless it is square, real, and finite when concrete."""
    array = check_array(matrix, name, remedy="pass an array of shape (d, d)")
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise ValueError(
            f"{name} must be a square matrix, but its shape is {array.shape}; pass an array of shape (d, d)."
        )
    return array


def check_nonzero_rows(x: Tokens) -> Tokens:
    """`x`, if no row is the zero vector, which has no direction; checked only when concrete."""
    if is_concrete(x):
        zero = np.flatnonzero(~np.asarray(x).any(axis=1))
        if zero.size:
            raise ValueError(f"x must have no zero row, but row {int(zero[0])} is zero; remove that token.")
    return x
