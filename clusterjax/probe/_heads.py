"""How alike the attention maps of the heads are, layer by layer, over many texts: figure 2, right."""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ._batch import Encoded
from ._head_clusters import HeadClusters, head_clusters
from ._load import Model
from ._stream import Measure
from ._survey import bootstrap_counts, encoded, survey
from ._tally import Average


# Of the attention of a dozen heads over 512 words, a third of a megabyte: what a core has at hand.
_ROWS = 16


class HeadCorrelations(NamedTuple):
    """What `head_correlations` returns.

    **Attributes:**

    - `correlation`: Of each pair of heads, (layers, heads, heads): mean, spread and error over texts.
    - `resampled`: The mean over each resample of the texts, (replicates, layers, heads, heads).
    - `clusters`: The heads in clusters, with their stability.

    Source: this library.
    """

    correlation: Average
    resampled: np.ndarray
    clusters: HeadClusters

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

    **Warns:** if texts are cut, with how many.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Figure 2, right; its code correlates pair by pair, with the padding.
    """
    if isinstance(clusters, bool) or not isinstance(clusters, int) or not 1 <= clusters <= model.num_heads:
        raise ValueError(
            f"clusters must be from 1 to {model.num_heads}, the number of heads, but it is {clusters!r}; pass 2, say."
        )
    data = encoded(model, texts, length)
    counts = bootstrap_counts(jr.key(0) if key is None else key, replicates, len(data.mask))
    found = survey(
        model,
        data,
        _MEASURE,
        batch_size=batch_size,
        resample=("correlation",),
        replicates=counts,
        settings={"measure": "head correlations"},
        store=store,
        say=say,
    )
    correlation, resampled = found.layers["correlation"], found.resampled["correlation"]
    return HeadCorrelations(correlation, resampled, head_clusters(correlation.mean, resampled, clusters))


def correlate(
    attention: Float[Array, "batch heads n n"], mask: Bool[Array, "batch n"]
) -> Float[Array, "batch heads heads"]:
    """Pearson's correlation of the maps of each text, over pairs of words; each row of a word sums to 1.

    So the mean of a map of w words is 1/w, and one pass is enough. It goes through a few rows of all heads at a time.
    """
    texts, heads, n, _ = attention.shape
    mean = 1 / jnp.maximum(jnp.sum(mask, axis=1), 1).astype(attention.dtype)[:, None, None, None]
    rows = min(_ROWS, n)

    def add(products: Array, block: Array) -> tuple[Array, None]:
        # The last rows may reach back into those before them, which are not counted again.
        start = jnp.minimum(block * rows, n - rows)
        new = start + jnp.arange(rows) >= block * rows
        counted = lax.dynamic_slice_in_dim(mask, start, rows, axis=1) & new[None]
        maps = lax.dynamic_slice_in_dim(attention, start, rows, axis=2)
        centred = jnp.where(counted[:, None, :, None] & mask[:, None, None, :], maps - mean, jnp.zeros_like(maps))
        flat = centred.reshape(texts, heads, -1)
        return products + jnp.einsum("bhp,bgp->bhg", flat, flat, precision=lax.Precision.HIGHEST), None

    products = jnp.zeros((texts, heads, heads), attention.dtype)
    products, _ = lax.scan(add, products, jnp.arange(-(-n // rows)))
    size = jnp.sqrt(jnp.diagonal(products, axis1=1, axis2=2))
    # Below this a map, whose mean times the root of its entries is 1, differs from a constant by rounding only.
    varies = size > 16 * jnp.finfo(attention.dtype).eps
    size = jnp.where(varies, size, jnp.ones_like(size))
    both = varies[:, :, None] & varies[:, None, :]
    found = jnp.where(both, products / (size[:, :, None] * size[:, None, :]), jnp.zeros_like(products))
    return jnp.where(jnp.eye(heads, dtype=bool)[None], jnp.ones_like(found), jnp.clip(found, -1, 1))


_MEASURE = Measure(layer=lambda hidden, attention, mask: {"correlation": correlate(attention, mask)})
