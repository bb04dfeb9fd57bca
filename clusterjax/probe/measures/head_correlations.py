"""The correlation of the attention maps of the heads, layer by layer, over many texts: figure 2, right.

The maps of two heads are correlated over the pairs of words that the mask allows, after subtraction of the mean of each
row, which is the uniform map 1/m_i for the m_i words that word i may attend to. All correlations of a text follow from
one product of the centred maps with themselves. In an encoder this is Pearson's correlation of vectors with w^2
entries. Under a causal mask Pearson's correlation would measure the mask: the zeros and the rows of 1/i that all heads
share. On a CPU the product takes a few rows of the maps at a time, which stay in the cache, and centring is arithmetic
on the result: each row sums to 1, so that centring subtracts sum_i 1/m_i.

Invariants: padding and forbidden pairs enter no sum, since zeros that all heads share would correlate them; a uniform
map has correlation 0 with the others and 1 with itself; independent heads have correlation 0 under any mask; the mean
over texts is taken of correlations, not of products.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from ..._check import check_concrete, check_integer, check_key
from ..._misc import einsum, matmul
from ..._summary import short, summary
from ..networks.batch import Encoded
from ..networks.load import Model
from .head_clusters import HeadClusters, head_clusters
from .stream import AbstractToldPairs, Maps, Measure, Pairs, Words
from .survey import bootstrap_counts, check_surveyed, encoded, survey
from .tally import Average, units_of


# The number of rows per block of the maps, and the number of floats in a vector register of most CPUs.
_ROWS, _LANES = 64, 8
# Let c be the squared norm of the uniform map and p that of a map's deviation from it. Computing p as (c + p) - c
# enlarges rounding errors by (c + p) / p, which is below 5 for p / c above this bound: at most one digit is lost.
_VARIED = 0.25


class HeadCorrelations(NamedTuple):
    """The result of `head_correlations`.

    **Attributes:**

    - `correlation`: The correlation of each pair of heads, (layers, heads, heads), averaged over texts.
    - `resampled`: The mean correlation in each resample of the texts, (replicates, layers, heads, heads).
    - `clusters`: The clusters of the heads, with their stability.
    - `between_heads`: The mean correlation of two different heads, (layers,), with the value of each text,
        (texts, layers); NaN for one head. None if it was not measured.
    """

    correlation: Average
    resampled: np.ndarray
    clusters: HeadClusters
    between_heads: Average | None = None

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)

    def between(self) -> np.ndarray:
        """The mean correlation of two different heads, (layers,), which grows with depth according to the paper."""
        heads = self.correlation.mean.shape[-1]
        others = ~np.eye(heads, dtype=bool)
        return (
            self.correlation.mean[:, others].mean(axis=1) if heads > 1 else np.full(len(self.correlation.mean), np.nan)
        )


def head_correlations(
    model: Model,
    texts: Sequence[str] | Encoded,
    *,
    clusters: int = 2,
    replicates: int = 100,
    key: PRNGKeyArray | None = None,
    units: Int[ArrayLike, " texts"] | None = None,
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> HeadCorrelations:
    r"""The correlation of the attention maps of all heads of a layer beyond the shared mask, averaged over texts.

    Let $u_{ij} = w_{ij} - 1/m_i$ on the pairs of words that the mask of the layer allows, of which row i has $m_i$. The
    correlation of heads g and h is $\sum u^g_{ij} u^h_{ij} / (|u^g||u^h|)$. In an encoder, whose mask allows all pairs,
    this is Pearson's correlation. A causal mask gives all heads the same zeros, and rows of about 1/i, so that
    Pearson's correlation would be near 1 for heads that have nothing else in common. Rows and columns of padding are
    left out for the same reason. As in the paper, the mean over texts is taken of the correlations. The correlation of
    a uniform map is undefined; here it is 0 with all other maps, and 1 with itself.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens.

    **Other arguments:**

    - `clusters`: The number of clusters of heads; see `head_clusters`.
    - `replicates`: The number of resamples of the texts for the stability of the clusters.
    - `key`: PRNG key of the resampling; None selects `jax.random.key(0)`.
    - `units`: The independent unit of each text, such as its article: units are resampled, each with all its texts.
        None makes each text a unit.
    - `length`, `batch_size`, `store`, `say`: As in `survey`.

    **Returns:**

    A `HeadCorrelations`.

    **Raises:**

    - `ValueError` if `clusters` is not from 1 to the number of heads, `replicates` is not positive, `units` is not one
        integer for each text, and in the cases of `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Figure 2, right; its code correlates pairs of heads including the padding.
    """
    check_surveyed(model, batch_size, store, say)
    clusters = check_integer(clusters, "clusters", most=model.num_heads, remedy="pass 1, or up to the number of heads")
    check_integer(replicates, "replicates", remedy="pass 100, say")
    resampling_key = check_key(jr.key(0) if key is None else key)
    check_concrete(resampling_key, "key")
    check_concrete(units, "units")
    data = encoded(model, texts, length)
    # The resamples are drawn before the survey, which accumulates the sum of each replicate.
    of = units_of(units, len(data.mask))
    counts = bootstrap_counts(resampling_key, replicates, len(np.unique(of)))[:, of]
    surveyed = survey(
        model,
        data,
        _MEASURE,
        batch_size=batch_size,
        keep=("between",),
        resample=("correlation",),
        replicates=counts,
        settings={"measure": "head correlations beyond the mask"},
        store=store,
        say=say,
    )
    # Clusters are computed from the mean correlation over texts, and from the mean over each resample.
    correlation, resampled = surveyed.layers["correlation"], surveyed.resampled["correlation"]
    groups = head_clusters(correlation.mean, resampled, clusters)
    return HeadCorrelations(correlation, resampled, groups, surveyed.layers["between"])


def correlate(
    attention: Float[Array, "batch heads n n"], allowed: Bool[Array, "batch n n"]
) -> Float[Array, "batch heads heads"]:
    """The correlation of the maps of each text beyond uniform attention, over the allowed pairs of words.

    Each row of a word sums to 1 over its m allowed words and is zero elsewhere, so that its mean is 1/m.
    """
    # The branch is chosen when the program is lowered for a device, so that one traced program serves both.
    products = lax.platform_dependent(attention, allowed, cpu=products_by_rows, default=products_at_once)
    size = jnp.sqrt(jnp.diagonal(products, axis1=1, axis2=2))
    # A map whose deviation from the uniform map has a norm below this bound differs from it only by rounding.
    length = jnp.sqrt(_squares(uniform_map(allowed, attention.dtype)))[:, None]
    varies = size > 16 * jnp.finfo(attention.dtype).eps * length
    size = jnp.where(varies, size, jnp.ones_like(size))
    # (texts, heads, heads).
    both_vary = varies[:, :, None] & varies[:, None, :]
    correlation = jnp.where(both_vary, products / (size[:, :, None] * size[:, None, :]), jnp.zeros_like(products))
    same = jnp.eye(attention.shape[1], dtype=bool)[None]
    return jnp.where(same, jnp.ones_like(correlation), jnp.clip(correlation, -1, 1))


def products_at_once(
    attention: Float[Array, "batch heads n n"], allowed: Bool[Array, "batch n n"]
) -> Float[Array, "batch heads heads"]:
    """The inner products of the maps of each text, after subtraction of the uniform map."""
    centred = attention - uniform_map(allowed, attention.dtype)[:, None]
    return einsum("bhij,bgij->bhg", centred, centred)


def products_by_rows(
    attention: Float[Array, "batch heads n n"], allowed: Bool[Array, "batch n n"]
) -> Float[Array, "batch heads heads"]:
    """The inner products of the centred maps on a CPU: each row sums to 1, so that centring subtracts the squared norm
    of the uniform map from each inner product of the maps.

    For a nearly uniform map this difference would be rounding error; then all maps are centred entry by entry, which
    takes twice as long.
    """
    uniform = uniform_map(allowed, attention.dtype)
    squares = _squares(uniform)[:, None]
    products = _products(attention, None) - squares[:, :, None]
    # For a nearly uniform map the product barely exceeds `squares`, and the difference has few significant digits.
    varied = jnp.diagonal(products, axis1=1, axis2=2) > _VARIED * squares
    return lax.cond(jnp.all(varied | (squares == 0)), lambda *_: products, _products, attention, uniform)


def _products(
    attention: Float[Array, "batch heads n n"], uniform: Float[Array, "batch n n"] | None
) -> Float[Array, "batch heads heads"]:
    """The inner products of the maps, minus `uniform` if given, text by text and a few rows of all heads at a time, so
    that the rows stay in the cache."""
    texts, heads, n, _ = attention.shape
    # 12 heads are multiplied as 8 and 4, which is faster.
    aligned = heads - heads % _LANES
    pieces = [(first, last) for first, last in ((0, aligned), (aligned, heads)) if first < last]

    # Step `index` of the scan handles text index // blocks, in rows from first + (index % blocks) * rows.
    def add(products: Array, index: Array, first: int, rows: int, blocks: int) -> tuple[Array, None]:
        text, start = index // blocks, first + index % blocks * rows
        # (heads, rows, n): a few rows of all heads of one text.
        maps = lax.dynamic_slice(attention, (text, 0, start, 0), (1, heads, rows, n))[0]
        if uniform is not None:
            maps = maps - lax.dynamic_slice(uniform, (text, start, 0), (1, rows, n))
        flat = maps.reshape(heads, -1)
        # XLA's product of 12 rows takes longer than those of 8 and of 4.
        columns = [matmul(flat, flat[first:last].T) for first, last in pieces]
        return products.at[text].add(jnp.concatenate(columns, axis=1)), None

    products, rows = jnp.zeros((texts, heads, heads), attention.dtype), min(_ROWS, n)
    # The rows that fill blocks of `_ROWS`, then the remaining rows: two loops of static shapes.
    for first, size in ((0, rows), (n - n % rows, n % rows)):
        blocks = (n - first) // size if size else 0
        step = functools.partial(add, first=first, rows=size, blocks=blocks)
        products, _ = lax.scan(step, products, jnp.arange(texts * blocks)) if blocks else (products, None)
    return products


def uniform_map(allowed: Bool[Array, "batch n n"], dtype: Any) -> Float[Array, "batch n n"]:
    """The map of uniform attention: 1/m_i for each of the m_i words that word i may attend to."""
    pairs = allowed.astype(dtype)
    return pairs / jnp.maximum(jnp.sum(pairs, axis=2, keepdims=True), 1)


def _squares(uniform: Float[Array, "batch n n"]) -> Float[Array, " batch"]:
    # The squares of m entries 1/m sum to 1/m, so that n numbers are summed in place of n^2, with less rounding error.
    return jnp.sum(jnp.max(uniform, axis=2), axis=1)


class _OfLayer(AbstractToldPairs):
    """The correlations of each text, and their mean over pairs of different heads."""

    def __call__(self, hidden: Array, attention: Maps, mask: Words, allowed: Pairs) -> dict[str, Array]:
        correlation, heads = correlate(attention, allowed), attention.shape[1]
        others = jnp.sum(correlation, axis=(1, 2)) - heads  # each head has correlation 1 with itself
        # The sum runs over the h (h - 1) ordered pairs.
        between = others / (heads * (heads - 1)) if heads > 1 else jnp.full_like(others, jnp.nan)
        return {"correlation": correlation, "between": between}


_MEASURE = Measure(layer=_OfLayer())
