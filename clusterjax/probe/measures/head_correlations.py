"""How alike the attention maps of the heads are, layer by layer, over many texts: figure 2, right.

Pearson's correlation of two maps as vectors of w^2 numbers: one product of the centred maps with themselves, (h, w^2)
by (w^2, h), for each text. On a CPU the product is taken a few rows of the maps at a time, which stay in the cache,
and centring is arithmetic on the result: the entries of a map of w words sum to w, so that it subtracts 1.

Invariants: padding is in no sum, since the zeros that all heads share would correlate them; a constant map has
correlation 0 with the others and 1 with itself; the mean over texts is of correlations, not of products.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..._check import check_concrete, check_integer, check_key
from ..._misc import einsum, matmul
from ..._summary import short, summary
from ..networks.batch import Encoded
from ..networks.load import Model
from .head_clusters import HeadClusters, head_clusters
from .stream import Measure
from .survey import bootstrap_counts, check_surveyed, encoded, survey
from .tally import Average


# Rows of the maps at a time, and floats in a vector register of most CPUs.
_ROWS, _LANES = 64, 8
# If the squared deviations of a map from its mean sum to p, 1 is subtracted from 1 + p, which enlarges rounding errors
# by (1 + p) / p. Above this p that is less than 5: at most one digit is lost.
_VARIED = 0.25


class HeadCorrelations(NamedTuple):
    """What `head_correlations` returns.

    **Attributes:**

    - `correlation`: Of each pair of heads, (layers, heads, heads): mean, spread and error over texts.
    - `resampled`: The mean over each resample of the texts, (replicates, layers, heads, heads).
    - `clusters`: The heads in clusters, with their stability.
    - `between_heads`: The mean correlation of two different heads, (layers,), of which the value of each text is kept,
        (texts, layers); NaN for one head. None if it was not measured.
    """

    correlation: Average
    resampled: np.ndarray
    clusters: HeadClusters
    between_heads: Average | None = None

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """Its numbers in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)

    def between(self) -> np.ndarray:
        """The mean correlation of two different heads, (layers,): what the paper says to grow with depth."""
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
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> HeadCorrelations:
    r"""Pearson's correlation of the attention maps of all heads of a layer, the mean over texts.

    For one text of w words the maps are vectors of $w^2$ numbers, and all correlations are one product of the centred
    maps with themselves. Rows and columns of padding are left out; as zeros that all heads share they would
    correlate them. The mean over texts is of the correlations, as in the paper. A map that is constant has no
    correlation; here it has 0 with all others, and 1 with itself.

    **Arguments:**

    - `model`: What `load` returned.
    - `texts`: The texts, or the `Encoded` of them. At least two tokens each.

    **Other arguments:**

    - `clusters`: Into how many clusters the heads are divided; see `head_clusters`.
    - `replicates`: How often the texts are resampled for the stability of the clusters.
    - `key`: PRNG key of the resampling; None is `jax.random.key(0)`.
    - `length`, `batch_size`, `store`, `say`: As in `survey`.

    **Returns:**

    A `HeadCorrelations`.

    **Raises:**

    - `ValueError` if `clusters` is not from 1 to the number of heads, `replicates` is not positive, and as in `survey`.

    **Warns:** if texts are longer than the positions and `length` does not say where to cut them, with how many.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Figure 2, right; its code correlates pair by pair, with the padding.
    """
    check_surveyed(model, batch_size, store, say)
    clusters = check_integer(clusters, "clusters", most=model.num_heads, remedy="pass 1, or up to the number of heads")
    check_integer(replicates, "replicates", remedy="pass 100, say")
    resampling_key = check_key(jr.key(0) if key is None else key)
    check_concrete(resampling_key, "key")
    data = encoded(model, texts, length)
    # Drawn before the survey, which sums each replicate as it goes.
    counts = bootstrap_counts(resampling_key, replicates, len(data.mask))
    surveyed = survey(
        model,
        data,
        _MEASURE,
        batch_size=batch_size,
        keep=("between",),
        resample=("correlation",),
        replicates=counts,
        settings={"measure": "head correlations"},
        store=store,
        say=say,
    )
    # Clusters of the mean correlation over texts, and of the mean over each resample of them.
    correlation, resampled = surveyed.layers["correlation"], surveyed.resampled["correlation"]
    groups = head_clusters(correlation.mean, resampled, clusters)
    return HeadCorrelations(correlation, resampled, groups, surveyed.layers["between"])


def correlate(
    attention: Float[Array, "batch heads n n"], mask: Bool[Array, "batch n"]
) -> Float[Array, "batch heads heads"]:
    """Pearson's correlation of the maps of each text, over pairs of words.

    Each row of a word sums to 1 and padding is zero, so that the mean of a map of w words is 1/w.
    """
    # Chosen when the program is lowered for a device, so that one traced program serves both.
    products = lax.platform_dependent(attention, mask, cpu=products_by_rows, default=products_at_once)
    size = jnp.sqrt(jnp.diagonal(products, axis1=1, axis2=2))
    # A map of w words has the mean 1 / w and w^2 entries, so that the length of its constant part is 1. Below this
    # length of the deviations it differs from a constant by rounding only.
    varies = size > 16 * jnp.finfo(attention.dtype).eps
    size = jnp.where(varies, size, jnp.ones_like(size))
    # (texts, heads, heads).
    both_vary = varies[:, :, None] & varies[:, None, :]
    correlation = jnp.where(both_vary, products / (size[:, :, None] * size[:, None, :]), jnp.zeros_like(products))
    same = jnp.eye(attention.shape[1], dtype=bool)[None]
    return jnp.where(same, jnp.ones_like(correlation), jnp.clip(correlation, -1, 1))


def products_at_once(
    attention: Float[Array, "batch heads n n"], mask: Bool[Array, "batch n"]
) -> Float[Array, "batch heads heads"]:
    """The inner products of the centred maps of each text."""
    words, mean = _words_and_mean(mask, attention.dtype)
    centred = attention - (mean[:, None, None] * words[:, :, None] * words[:, None, :])[:, None]
    return einsum("bhij,bgij->bhg", centred, centred)


def products_by_rows(
    attention: Float[Array, "batch heads n n"], mask: Bool[Array, "batch n"]
) -> Float[Array, "batch heads heads"]:
    """The same, for a CPU: the entries of a map sum to its words, so that centring subtracts 1 from each inner product.

    Of a map that hardly varies that would leave rounding; then all are centred entry by entry, which takes twice as
    long.
    """
    has_words = jnp.any(mask, axis=1)
    products = _products(attention, None) - has_words.astype(attention.dtype)[:, None, None]
    # Where a map is nearly constant its product is 1 plus little, and taking off 1 leaves few digits.
    varied = jnp.diagonal(products, axis1=1, axis2=2) > _VARIED
    return lax.cond(
        jnp.all(varied | ~has_words[:, None]),
        lambda *_: products,
        _products,
        attention,
        _words_and_mean(mask, products.dtype),
    )


def _products(
    attention: Float[Array, "batch heads n n"],
    words_and_mean: tuple[Float[Array, "batch n"], Float[Array, " batch"]] | None,
) -> Float[Array, "batch heads heads"]:
    """Inner products, text by text and a few rows of all heads at a time, which stay in the cache. With
    `words_and_mean`, which tokens are words and the mean of each text's maps, the maps are centred first."""
    texts, heads, n, _ = attention.shape
    # 12 heads are multiplied as 8 and 4.
    aligned = heads - heads % _LANES
    pieces = [(first, last) for first, last in ((0, aligned), (aligned, heads)) if first < last]

    # Step `index` of the scan: text index // blocks, rows from first + (index % blocks) * rows on.
    def add(products: Array, index: Array, first: int, rows: int, blocks: int) -> tuple[Array, None]:
        text, start = index // blocks, first + index % blocks * rows
        # (heads, rows, n): a few rows of all heads of one text.
        maps = lax.dynamic_slice(attention, (text, 0, start, 0), (1, heads, rows, n))[0]
        if words_and_mean is not None:
            words, mean = words_and_mean
            of_rows = lax.dynamic_slice(words, (text, start), (1, rows))[0] * mean[text]
            maps = maps - (of_rows[:, None] * words[text][None])[None]
        flat = maps.reshape(heads, -1)
        # XLA's product of 12 rows takes longer than those of 8 and of 4.
        columns = [matmul(flat, flat[first:last].T) for first, last in pieces]
        return products.at[text].add(jnp.concatenate(columns, axis=1)), None

    products, rows = jnp.zeros((texts, heads, heads), attention.dtype), min(_ROWS, n)
    # The rows that fill blocks of 64, then the rest: two loops of static shapes.
    for first, size in ((0, rows), (n - n % rows, n % rows)):
        blocks = (n - first) // size if size else 0
        step = functools.partial(add, first=first, rows=size, blocks=blocks)
        products, _ = lax.scan(step, products, jnp.arange(texts * blocks)) if blocks else (products, None)
    return products


def _words_and_mean(mask: Bool[Array, "batch n"], dtype: Any) -> tuple[Float[Array, "batch n"], Float[Array, " batch"]]:
    words = mask.astype(dtype)
    # The mean of a map is 1 / w: its w rows sum to 1 each, and it has w^2 entries.
    return words, 1 / jnp.maximum(jnp.sum(words, axis=1), 1)


def _of_layer(hidden: Array, attention: Float[Array, "batch heads n n"], mask: Bool[Array, "batch n"]):
    correlation, heads = correlate(attention, mask), attention.shape[1]
    others = jnp.sum(correlation, axis=(1, 2)) - heads  # each head has 1 with itself
    # Over the h (h - 1) ordered pairs.
    between = others / (heads * (heads - 1)) if heads > 1 else jnp.full_like(others, jnp.nan)
    return {"correlation": correlation, "between": between}


_MEASURE = Measure(layer=_of_layer)
