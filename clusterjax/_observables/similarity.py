"""Cosines of all pairs of tokens, and their distribution."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Real

from .._check import as_numbers, check_array, check_integer, check_scalar, check_tokens, shown
from .._custom_types import RealScalarLike, Scalar, Tokens
from .._misc import is_concrete, matmul, normalise
from ._pairs import check_nonzero_rows, map_pair_rows


# More bins than this hold no pair of any cloud whose pairs can be counted.
_MOST_BINS = 2**31 - 2


def pairwise_cosine(x: Tokens) -> Float[Array, "n n"]:
    r"""$\langle x_i, x_j\rangle / (|x_i||x_j|)$ for every pair.

    Symmetric to rounding, never outside [-1, 1], and unchanged if tokens are rescaled or all rotated.

    **Arguments:**

    - `x`: Tokens, one a row, none of them zero.

    **Returns:**

    The (n, n) array, of the dtype of `x`. Under `jax.jit` a zero token gives a row and a column of NaN.

    **Raises:**

    - `ValueError` if `x` is not a cloud of finite tokens, or has a zero row.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), whose histograms of ALBERT's
        layers are of these numbers.
    """
    unit = normalise(check_nonzero_rows(check_tokens(x)))
    return jnp.clip(matmul(unit, unit.T), -1, 1)


def cosine_histogram(
    x: Tokens, bins: int | Real[ArrayLike, " edges"]
) -> tuple[Float[Array, " bins"], Float[Array, " edges"]]:
    """The density of the cosines of the pairs i < j, and the edges of its bins.

    It integrates to one over the edges. The diagonal is left out: the papers' code counts it, which puts a spike of
    mass 1/n at similarity one in every layer. Bins hold their left edge, and the last one its right edge too, as in
    `numpy.histogram`; pairs beyond the edges are not counted. Rows are taken in blocks.

    **Arguments:**

    - `x`: At least two tokens, one a row, none of them zero.
    - `bins`: The number of equal bins of [-1, 1], or the increasing edges of the bins.

    **Returns:**

    `(density, edges)`, of the dtype of `x`; the density is zero throughout if no pair lies within the edges.

    **Raises:**

    - `ValueError` if `x` has fewer than two tokens or a zero row, or `bins` is neither a positive integer nor
      increasing edges.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), and Peat, *Clustering in
        Transformers*, Figure 1. Without the diagonal here.
    """
    x = check_nonzero_rows(check_tokens(x, min_tokens=2))
    return _histogram(normalise(x), check_edges(bins, x.dtype), equal=np.ndim(bins) == 0)


def close_pairs_fraction(x: Tokens, cosine: RealScalarLike) -> Scalar:
    r"""The fraction of ordered pairs $i \ne j$ with $\langle x_i, x_j\rangle > $ `cosine`, tokens normalised.

    One when all tokens point the same way, zero when no two do. The phase diagrams of the papers are maps of it, with
    the threshold 0.999.

    **Arguments:**

    - `x`: At least two tokens, one a row, none of them zero.
    - `cosine`: The threshold; it has no default, since the fraction is a property of it. May be traced.

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
    return _close_fraction(normalise(x), cosine)


def check_edges(bins: Any, dtype: Any) -> Float[Array, " edges"]:
    rule = "must be a positive integer or an array of edges"
    numbers = as_numbers(bins)
    if numbers is None or np.ndim(numbers) == 0:
        try:
            bins = check_integer(bins, "bins", most=_MOST_BINS)
        except ValueError:
            raise ValueError(f"bins {rule}, but it is {shown(bins)}; pass 100, say.") from None
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

    def block(rows, index):
        cosines = jnp.clip(matmul(rows, unit.T), -1, 1)
        which = (among_equal if equal else among)(edges, cosines)
        which = jnp.where(cosines == edges[-1], num_bins - 1, which)
        counted = (index[:, None] < jnp.arange(n)[None, :]) & (which >= 0) & (which < num_bins)
        # One bin more takes what is not counted, and is cut off.
        which = jnp.where(counted, which, num_bins)
        counts = jnp.zeros((rows.shape[0], num_bins + 1), dtype=jnp.int32)
        counts = counts.at[jnp.arange(rows.shape[0])[:, None], which].add(1)
        return counts[:, :-1].astype(unit.dtype)

    # A row's counts are exact; their sum is taken as floats, since n^2 / 2 pairs may exceed an int32.
    counts = jnp.sum(map_pair_rows(block, unit), axis=0)
    total = jnp.maximum(jnp.sum(counts), 1)
    return jnp.where(jnp.all(jnp.isfinite(unit)), counts / total / jnp.diff(edges), jnp.nan), edges


def among(edges: Float[Array, " edges"], cosines: Float[Array, "rows n"]) -> Int[Array, "rows n"]:
    """The bin of each cosine, closed on the left."""
    return jnp.searchsorted(edges, cosines, side="right") - 1


def among_equal(edges: Float[Array, " edges"], cosines: Float[Array, "rows n"]) -> Int[Array, "rows n"]:
    """The same for equal bins of [-1, 1], twenty times faster: rounding may be off by one bin, which is mended."""
    num_bins = edges.shape[0] - 1
    guess = jnp.clip(jnp.floor((cosines + 1) * (num_bins / 2)).astype(jnp.int32), 0, num_bins - 1)
    guess = jnp.where(cosines < edges[guess], guess - 1, guess)
    return jnp.where(cosines >= edges[guess + 1], guess + 1, guess)


@jax.jit
def _close_fraction(unit: Tokens, cosine: Float[Array, ""]) -> Scalar:
    n = unit.shape[0]

    def block(rows, index):
        cosines = matmul(rows, unit.T)
        close = (cosines > cosine) & (index[:, None] != jnp.arange(n)[None, :])
        # No comparison with NaN is true, so that it would count as far.
        unknown = jnp.isnan(jnp.sum(cosines, axis=1))
        return jnp.where(unknown, jnp.nan, jnp.sum(close, axis=1).astype(unit.dtype))

    return jnp.sum(map_pair_rows(block, unit)) / (n * (n - 1))
