"""Cosines of all pairs of tokens, their histogram, and the fraction of close pairs.

Pairs are processed in blocks of rows. Invariants: counts are exact and cover ordered pairs i != j, or pairs i < j, but
never the diagonal; a token that is not finite makes the result NaN.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Real

from .._base.batching import FEW_DIMENSIONS, PAIRS_AT_ONCE, call_with_rule, map_blocks, map_systems_last
from .._base.checks import as_numbers, check_array, check_integer, check_room, check_tokens, shown
from .._base.numerics import is_concrete, matmul, normalise
from .._base.types import Scalar, Tokens


# Maps over pairs of tokens in blocks of rows, and the checks that the pairwise observables share.
#
# Invariant: no n x n array is held if n^2 exceeds `_BLOCK_ENTRIES`, in the forward or the backward pass.


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


# Bins have int32 indices, and one additional bin is used internally.
_MOST_BINS = 2**31 - 2


def pairwise_cosine(x: Tokens) -> Float[Array, "n n"]:
    """$⟨x_i, x_j⟩ / (|x_i||x_j|)$ for every pair.

    Symmetric to rounding, never outside [-1, 1], and invariant under a rescaling of tokens or a rotation of all tokens.

    **Arguments:**

    - `x`: Tokens, one per row, none of them zero.

    **Returns:**

    The (n, n) array, of the dtype of `x`. Under `jax.jit` a zero token gives a row and a column of NaN.

    **Raises:**

    - `ValueError` if `x` is not a cloud of finite tokens, or has a zero row.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), whose histograms of the layers of
        ALBERT show these numbers.
    """
    unit = normalise(check_nonzero_rows(check_tokens(x)))
    return jnp.clip(matmul(unit, unit.T), -1, 1)


def cosine_histogram(
    x: Tokens, bins: int | Real[ArrayLike, " edges"]
) -> tuple[Float[Array, " bins"], Float[Array, " edges"]]:
    """The density of the cosines of the pairs i < j, and the edges of its bins.

    The density integrates to one over the edges. The diagonal is left out; the code of the papers includes it, which
    adds a spike of mass 1/n at similarity one in every layer. A bin contains its left edge, and the last bin also its
    right edge, as in `numpy.histogram`; pairs beyond the edges are not counted. Rows are processed in blocks.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> density, edges = cjx.cosine_histogram(jnp.eye(3), bins=4)
        >>> edges.tolist()
        [-1.0, -0.5, 0.0, 0.5, 1.0]
        >>> density.tolist()  # three orthogonal tokens: every cosine is 0, in a bin of width 0.5
        [0.0, 0.0, 2.0, 0.0]
        ```

    **Arguments:**

    - `x`: At least two tokens, one per row, none of them zero.
    - `bins`: The number of equal bins of [-1, 1], or the increasing edges of the bins.

    **Returns:**

    `(density, edges)`, of the dtype of `x`; the density is zero throughout if no pair lies within the edges.

    **Raises:**

    - `ValueError` if `x` has fewer than two tokens or a zero row, or `bins` is neither a positive integer nor
      increasing edges.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), and Peat, *Clustering in
        Transformers*, Figure 1. Here the diagonal is left out.
    """
    x = check_nonzero_rows(check_tokens(x, min_tokens=2))
    return _histogram(normalise(x), check_edges(bins, x.dtype), equal=np.ndim(bins) == 0)


def check_edges(bins: Any, dtype: Any) -> Float[Array, " edges"]:
    rule = "must be a positive integer or an array of edges"
    numbers = as_numbers(bins, "bins")
    if numbers is None or np.ndim(numbers) == 0:
        try:
            bins = check_integer(bins, "bins", most=_MOST_BINS)
        except ValueError:
            raise ValueError(f"bins {rule}, but it is {shown(bins)}; pass 100, say.") from None
        # The memory holds the edges, the density, and the counts of at least two rows of pairs.
        num_bytes = 2 * bins * (jnp.dtype(dtype).itemsize + 4)
        check_room(bins, "bins", num_bytes, "the bins and their counts", remedy="pass 100, say")
        return jnp.linspace(-1, 1, bins + 1, dtype=dtype)
    edges = check_array(numbers, "bins", shape=("edges",), remedy="pass 100, say, or increasing edges").astype(dtype)
    if edges.shape[0] < 2 or is_concrete(edges) and np.any(np.diff(np.asarray(edges)) <= 0):
        raise ValueError(f"bins must be at least two finite, increasing edges, but it is {shown(edges)}; sort them.")
    return edges


@partial(jax.jit, static_argnames="equal")
def _histogram(
    unit: Tokens, edges: Float[Array, " edges"], *, equal: bool
) -> tuple[Float[Array, " bins"], Float[Array, " edges"]]:
    n, num_bins = unit.shape[0], edges.shape[0] - 1

    # Cosines are clipped, so that rounding moves no pair out of [-1, 1] and out of the bins.
    def block(rows, index):
        cosines = jnp.clip(matmul(rows, unit.T), -1, 1)
        which = (among_equal if equal else among)(edges, cosines)
        # The last bin is closed on both sides.
        which = jnp.where(cosines == edges[-1], num_bins - 1, which)
        counted = (index[:, None] < jnp.arange(n)[None, :]) & (which >= 0) & (which < num_bins)
        # An additional bin takes the pairs that are not counted, and is dropped.
        which = jnp.where(counted, which, num_bins)
        counts = jnp.zeros((rows.shape[0], num_bins + 1), dtype=jnp.int32)
        # The scatter is separate for each row, so that no two rows of a block write to one entry.
        counts = counts.at[jnp.arange(rows.shape[0])[:, None], which].add(1)
        return counts[:, :-1].astype(unit.dtype)

    # The counts of a row are exact; their sum is in floats, because n^2 / 2 pairs may exceed an int32.
    counts = jnp.sum(map_pair_rows(block, unit), axis=0)
    total = jnp.maximum(jnp.sum(counts), 1)
    return jnp.where(jnp.all(jnp.isfinite(unit)), counts / total / jnp.diff(edges), jnp.nan), edges


def among(edges: Float[Array, " edges"], cosines: Float[Array, "rows n"]) -> Int[Array, "rows n"]:
    """The bin of each cosine, closed on the left."""
    return jnp.searchsorted(edges, cosines, side="right") - 1


def among_equal(edges: Float[Array, " edges"], cosines: Float[Array, "rows n"]) -> Int[Array, "rows n"]:
    """As `among`, for equal bins of [-1, 1] without a search: the computed bin may be off by one, and is corrected."""
    num_bins = edges.shape[0] - 1
    guess = jnp.clip(jnp.floor((cosines + 1) * (num_bins / 2)).astype(jnp.int32), 0, num_bins - 1)
    guess = jnp.where(cosines < edges[guess], guess - 1, guess)
    return jnp.where(cosines >= edges[guess + 1], guess + 1, guess)


@jax.jit
def close_fraction(unit: Tokens, cosine: Float[Array, ""]) -> Scalar:
    """The fraction of ordered pairs i != j of unit tokens with <x_i, x_j> above `cosine`."""
    # The batching rule serves small systems on a CPU: see `map_systems_last`.
    if jax.default_backend() != "cpu" or unit.shape[1] > FEW_DIMENSIONS:
        return _close_fraction_of_one(unit, cosine)
    return call_with_rule(_close_fraction_of_one, _close_fraction_of_batch, unit, cosine)


def _close_fraction_of_one(unit: Tokens, cosine: Float[Array, ""]) -> Scalar:
    n = unit.shape[0]

    def block(rows, index):
        cosines = matmul(rows, unit.T)
        close = (cosines > cosine) & (index[:, None] != jnp.arange(n)[None, :])
        # Comparisons with NaN are False, so that such a pair would count as not close.
        unknown = jnp.isnan(jnp.sum(cosines, axis=1))
        return jnp.where(unknown, jnp.nan, jnp.sum(close, axis=1).astype(unit.dtype))

    return jnp.sum(map_pair_rows(block, unit)) / (n * (n - 1))


def _close_fraction_of_batch(batched: Any, unit: Any, cosine: Any) -> Float[Array, " systems"]:
    # The kernel for batches takes a single threshold for all clouds.
    if not batched[0] or batched[1]:
        return jax.vmap(_close_fraction_of_one, [0 if is_batched else None for is_batched in batched])(unit, cosine)
    n, d = unit.shape[1:]

    def fractions(unit: Float[Array, "n d systems"]) -> Float[Array, "1 systems"]:
        token = [unit[:, k] for k in range(d)]

        def block(rows, index):
            # `cosines` is (rows, n, systems), a sum written out over the coordinates.
            cosines: Any = sum(rows[:, k, None] * token[k][None] for k in range(d))
            close = (cosines > cosine) & (index[:, None] != jnp.arange(n)[None, :])[:, :, None]
            return jnp.sum(close.astype(unit.dtype), axis=1)

        rows = max(1, PAIRS_AT_ONCE // (n * unit.shape[2]))
        count = jnp.sum(map_blocks(block, rows, unit, jnp.arange(n)), axis=0)
        known = jnp.all(jnp.isfinite(unit), axis=(0, 1))
        return jnp.where(known, count / (n * (n - 1)), jnp.nan)[None]

    return map_systems_last(fractions, unit, pairs=n * n)[:, 0]
