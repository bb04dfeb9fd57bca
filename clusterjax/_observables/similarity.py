"""Cosines of all pairs of tokens, their histogram, and the fraction of close pairs.

Pairs are processed in blocks of rows. Invariants: counts are exact and cover ordered pairs i != j, or pairs i < j, but
never the diagonal; a token that is not finite makes the result NaN.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Real

from .._batching import call_with_rule
from .._blocks import FEW_DIMENSIONS, PAIRS_AT_ONCE, map_blocks, map_systems_last
from .._check import as_numbers, check_array, check_integer, check_room, check_scalar, check_tokens, shown
from .._custom_types import RealScalarLike, Scalar, Tokens
from .._misc import is_concrete, matmul, normalise
from ._pairs import check_nonzero_rows, map_pair_rows


# Bins have int32 indices, and one additional bin is used internally.
_MOST_BINS = 2**31 - 2


def pairwise_cosine(x: Tokens) -> Float[Array, "n n"]:
    r"""$\langle x_i, x_j\rangle / (|x_i||x_j|)$ for every pair.

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


def close_pairs_fraction(x: Tokens, cosine: RealScalarLike) -> Scalar:
    r"""The fraction of ordered pairs $i \ne j$ with $\langle x_i, x_j\rangle > $ `cosine`, for normalised tokens.

    The fraction is one if all tokens have one direction, and zero if no two are close. The phase diagrams of the papers
    show this fraction with the threshold 0.999.

    **Arguments:**

    - `x`: At least two tokens, one per row, none of them zero.
    - `cosine`: The threshold, which defines the fraction and has no default. May be traced.

    **Returns:**

    A scalar of the dtype of `x`.

    **Raises:**

    - `ValueError` if `x` has fewer than two tokens or a zero row, or `cosine` is not in [-1, 1].

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), the code of its phase
        diagrams.
    """
    x = check_nonzero_rows(check_tokens(x, min_tokens=2))
    cosine = check_scalar(cosine, "cosine", x.dtype)
    if is_concrete(cosine) and not -1 <= float(np.asarray(cosine)) <= 1:
        raise ValueError(f"cosine must lie in [-1, 1], but it is {cosine}; pass the cosine of an angle.")
    return close_fraction(normalise(x), cosine)


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
    """`close_pairs_fraction` of unit tokens."""
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
