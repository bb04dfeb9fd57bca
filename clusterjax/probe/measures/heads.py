"""The correlation of the attention maps of the heads, layer by layer, over many texts: figure 2, right.

All correlations of a text follow from one product of the maps, centred by the uniform map, with themselves. On a CPU
the product takes a few rows of the maps at a time, which stay in the cache, and centring is arithmetic on the result:
each row sums to 1, so that centring subtracts sum_i 1/m_i for the m_i words that word i may attend to.

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

from ..._base.checks import (
    check_array,
    check_choice,
    check_concrete,
    check_host_array,
    check_integer,
    check_key,
    refusal,
)
from ..._base.numerics import einsum, matmul
from ..._base.summary import short, summary
from ..._observables import product_spectrum
from ..networks.batch import Encoded
from ..networks.directions import head_matrices
from ..networks.load import Model
from ..networks.recorded import Recorded
from .survey import (
    AbstractToldPairs,
    Average,
    Maps,
    Measure,
    Pairs,
    Words,
    bootstrap_counts,
    check_surveyed,
    encoded,
    survey,
    units_of,
)
from .table import tabled


@tabled("layer head", labels="layer head", linkage="layer merge *", stability="layer", together="layer head head_2")
class HeadClusters(NamedTuple):
    """The clusters of the heads of each layer, with their stability when the texts are resampled.

    **Attributes:**

    - `labels`: (layers, heads); the label of a cluster is its first head.
    - `linkage`: The trees, (layers, heads - 1, 4), in the format of `scipy.cluster.hierarchy`, for a dendrogram.
    - `stability`: (layers,): the adjusted Rand index between `labels` and the clusters of a resample, the mean over
        resamples: 1 if all agree, about 0 for agreement by chance.
    - `together`: (layers, heads, heads): the fraction of the resamples in which two heads share a cluster.
    """

    labels: np.ndarray
    linkage: np.ndarray
    stability: np.ndarray
    together: np.ndarray

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: the mean and the range of each array."""
        return summary(self)

    def groups(self, layer: int) -> list[list[int]]:
        """The clusters of a layer as lists of heads, in decreasing order of size; -1 is the last layer.

        **Raises:**

        - `ValueError` if there is no such layer.
        """
        layers = len(self.labels)
        layer = check_integer(layer, "layer", least=-layers, most=layers - 1)
        labels = self.labels[layer]
        members = [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]
        return sorted(members, key=lambda heads: (-len(heads), heads))


def head_clusters(
    correlation: Float[np.ndarray, "layers heads heads"],
    resampled: Float[np.ndarray, "replicates layers heads heads"],
    clusters: int = 2,
) -> HeadClusters:
    """Divide the heads of each layer into `clusters` clusters by average linkage at the distance 1 - r.

    Any data can be divided into k clusters; `stability` and `together`, from resampled texts, show if the network
    itself has them.

    **Arguments:**

    - `correlation`: The mean correlation of each pair of heads.
    - `resampled`: The mean correlations in each resample of the texts.
    - `clusters`: The number of clusters; the paper speaks of two.

    **Returns:**

    A `HeadClusters`.

    **Raises:**

    - `ValueError` if the arrays do not fit together, or `clusters` is not from 1 to the number of heads.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Figure 2. The tree: Sokal and Michener (1958). The adjusted Rand index:
        Hubert and Arabie, *Comparing partitions* (Journal of Classification, 1985). Resampling, and `together`: Monti
        et al., *Consensus clustering* (Machine Learning, 2003).
    """
    remedy = "pass those of one run of head_correlations"
    for name, value, axes in (
        ("correlation", correlation, ("layers", "heads", "heads")),
        ("resampled", resampled, ("replicates", "layers", "heads", "heads")),
    ):
        check_host_array(value, name, shape=axes, remedy=remedy)
    correlation, resampled = np.asarray(correlation, np.float64), np.asarray(resampled, np.float64)
    layers, heads = correlation.shape[:2]
    if correlation.shape[2] != heads:
        raise refusal("correlation", "be (layers, heads, heads)", f"its shape is {correlation.shape}", remedy)
    if resampled.shape[1:] != correlation.shape:
        rule = "be (replicates, layers, heads, heads) like correlation"
        raise refusal("resampled", rule, f"they are {resampled.shape} and {correlation.shape}", remedy)
    clusters = check_integer(clusters, "clusters", most=heads, remedy="pass 1, or up to the number of heads")
    trees, labels = _average_linkage(correlation, clusters)
    _, resampled_labels = _average_linkage(resampled.reshape(-1, heads, heads), clusters)
    resampled_labels = resampled_labels.reshape(-1, layers, heads)
    # (..., heads, heads): True if two heads share a cluster, in the clusters of all texts and in those of each
    # resample.
    same, shared = (partition[..., :, None] == partition[..., None, :] for partition in (labels, resampled_labels))
    return HeadClusters(labels, trees, _agreement(same, shared).mean(axis=0), shared.mean(axis=0))


def adjusted_rand(first: Int[np.ndarray, " n"], second: Int[np.ndarray, " n"]) -> float:
    """The adjusted Rand index of two partitions: their agreement on pairs beyond chance; 1 if they are equal.

    **Arguments:**

    - `first`, `second`: The label of each element.

    **Returns:**

    A number of at most 1; its mean over random relabellings is 0.

    **Raises:**

    - `ValueError` unless both are vectors of integers of the same length.

    ??? cite "Source"

        Hubert and Arabie, *Comparing partitions* (Journal of Classification, 1985), eq. (5).
    """
    for name, value in (("first", first), ("second", second)):
        check_concrete(value, name)
        check_array(value, name, shape=("n",), integers=True, remedy="pass one label an element")
    # Labels are renumbered from 0, so that a pair of labels can be one integer below.
    first_labels, second_labels = (np.unique(labels, return_inverse=True)[1] for labels in (first, second))
    n, m = np.size(first), np.size(second)
    if n != m:
        raise refusal("second", "have one label for each of first", f"they are {m} and {n}", "pass as many of both")
    # Pairs are counted from the sizes of the parts: an n x n matrix of pairs would not fit into memory for large n.
    pairs = lambda labels: np.sum((sizes := np.unique(labels, return_counts=True)[1].astype(float)) * (sizes - 1)) / 2
    # The common refinement: one integer for each pair of labels.
    refinement = first_labels * (int(second_labels.max()) + 1) + second_labels
    return float(_beyond_chance(pairs(first_labels), pairs(second_labels), pairs(refinement), n))


def _agreement(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The adjusted Rand index of two partitions, each given as the relation "share a part", (..., n, n)."""
    n = first.shape[-1]
    pairs = lambda same: (np.sum(same, axis=(-2, -1)) - n) / 2
    return _beyond_chance(pairs(first), pairs(second), pairs(first & second), n)


def _beyond_chance(a: Any, b: Any, shared: Any, n: int) -> np.ndarray:
    """The index from the numbers of pairs that share a part in the first, the second and both partitions."""
    expected, best = a * b / max(n * (n - 1) / 2, 1), (a + b) / 2
    # If both partitions have only one part, or only single elements, they are equal, but the index would be 0 / 0.
    alike = best == expected
    return np.where(alike, 1.0, (shared - expected) / np.where(alike, 1.0, best - expected))


def _average_linkage(correlation: np.ndarray, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """The trees of many matrices, (matrices, heads - 1, 4), and the labels of `clusters` clusters, for all at once."""
    num_matrices, heads = correlation.shape[:2]
    place, matrices = np.arange(heads), np.arange(num_matrices)
    # Clipping is needed since rounding may leave r above 1, and heads at a negative distance would be merged first.
    distance = np.clip(1 - (correlation + correlation.swapaxes(1, 2)) / 2, 0, 2)
    # With an infinite diagonal no head is merged with itself.
    distance[:, place, place] = np.inf
    labels, names = np.tile(place, (num_matrices, 1)), np.tile(place, (num_matrices, 1))
    sizes, trees = np.ones((num_matrices, heads)), np.zeros((num_matrices, heads - 1, 4))
    for merge in range(heads - 1):
        # The first of the smallest entries has i < j, so a cluster keeps the index of its first head.
        i, j = np.divmod(distance.reshape(num_matrices, -1).argmin(axis=1), heads)
        size = sizes[matrices, i] + sizes[matrices, j]
        pair = np.sort([names[matrices, i], names[matrices, j]], axis=0)
        trees[:, merge] = np.stack([*pair, distance[matrices, i, j], size], axis=1)
        # The mean distance to the merged cluster is the mean of the two, weighted by their sizes.
        weighted = [sizes[matrices, head, None] * distance[matrices, head] for head in (i, j)]
        row = (weighted[0] + weighted[1]) / size[:, None]
        distance[matrices, i], distance[matrices, :, i] = row, row
        distance[matrices, j], distance[matrices, :, j], distance[matrices, i, i] = np.inf, np.inf, np.inf
        sizes[matrices, i], names[matrices, i] = size, heads + merge
        # Merges are counted rather than heights compared, so that ties do not change the number of clusters.
        if merge < heads - clusters:
            labels = np.where(labels == j[:, None], i[:, None], labels)
    return trees, labels


# The number of rows per block of the maps, and the number of floats in a vector register of most CPUs.
_ROWS, _LANES = 64, 8
# Let c be the squared norm of the uniform map and p that of a map's deviation from it. Computing p as (c + p) - c
# enlarges rounding errors by (c + p) / p, which is below 5 for p / c above this bound: at most one digit is lost.
_VARIED = 0.25


@tabled("layer", correlation="layer head head_2", resampled="replicate layer head head_2", between_heads="layer")
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

    __repr__ = short

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
    model: Model | Recorded,
    texts: Sequence[str] | Encoded | None = None,
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
    """The correlation of the attention maps of all heads of a layer beyond the shared mask, averaged over texts.

    Let $u_{ij} = w_{ij} - 1/m_i$ on the pairs of words that the mask of the layer allows, of which row i has $m_i$. The
    correlation of heads g and h is $∑ u^g_{ij} u^h_{ij} / (|u^g||u^h|)$. In an encoder, whose mask allows all pairs,
    this is Pearson's correlation. A causal mask gives all heads the same zeros, and rows of about 1/i, so that
    Pearson's correlation would be near 1 for heads that have nothing else in common. Rows and columns of padding are
    left out for the same reason. As in the paper, the mean over texts is taken of the correlations. The correlation of
    a uniform map is undefined; here it is 0 with all other maps, and 1 with itself.

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned.
    - `texts`: The texts, or their `Encoded` form; None for what `from_arrays` returned. Each has at least two tokens.

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
    unit_of_text = units_of(units, len(data.mask))
    counts = bootstrap_counts(resampling_key, replicates, len(np.unique(unit_of_text)))[:, unit_of_text]
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


CASES = ("attractive", "repulsive", "rotating", "neutral")

# Eigenvalues of products of float64 matrices have errors of about 1e-13 of the largest; weights are float32 or coarser.
_ROUNDING = 1e-9


@tabled("block head", values="block head *", case="block head", order="layer")
class HeadSigns(NamedTuple):
    """The result of `head_signs`; a block is a layer with its own weights.

    **Attributes:**

    - `values`: The eigenvalues of V of each head that need not be zero, (blocks, heads, k), complex, in decreasing
        order of the real part; of a conjugate pair, the eigenvalue with positive imaginary part comes first.
    - `case`: "attractive", "repulsive", "rotating" or "neutral" for each head, (blocks, heads).
    - `order`: The index of the block of each layer of the network, (layers,).
    """

    values: np.ndarray
    case: np.ndarray
    order: np.ndarray

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines, one for each array."""
        return summary(self)

    @property
    def leading(self) -> np.ndarray:
        """The eigenvalue with the largest real part of each head, (blocks, heads)."""
        return self.values[..., 0]

    def count(self, case: str) -> int:
        """The number of heads of the blocks with the given case.

        **Raises:**

        - `ValueError` if there is no such case.
        """
        return int(np.sum(self.case == check_choice(case, "case", CASES)))


def head_signs(model: Model | Recorded) -> HeadSigns:
    """Classify each head as attracting, repelling or rotating tokens, by the leading eigenvalue of its V.

    A head is *repulsive* if all its eigenvalues have negative real parts. Otherwise it is *rotating* if the leading
    eigenvalues are a complex pair, and *attractive* if the leading eigenvalue is real and positive. It is *neutral* if
    the leading eigenvalue is zero up to rounding. The other d - k eigenvalues of V are zero: the head moves nothing
    along their directions. Where norms act on the input of attention (T5, GPT-2, Llama), V includes the scale s of the
    norm, $V_h = (diag(s) W_V W_O)^T$, unlike in `value_spectra`; both leave biases out.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> signs = probe.head_signs(probe.load())
        >>> [int(head) + 1 for head in (signs.case[0] == "repulsive").nonzero()[0]]
        [2, 4, 5, 7, 8]
        >>> signs.count("attractive"), signs.count("rotating")
        (2, 1)
        ```

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned with `weights`.

    **Returns:**

    A `HeadSigns`.

    **Raises:**

    - `ValueError` if `model` is neither, or its weights were not recorded.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Theorems 3.1 to 5.1;
        Karagodin et al., *Clustering in causal attention masking* (2411.04990), Theorem 4.1 and the conjectures after
        it.
    """
    matrices = head_matrices(model)
    blocks, heads = matrices.value.shape[:2]
    read = np.ones((blocks, 1)) if matrices.norm is None else matrices.norm
    spectrum = lambda b, h: product_spectrum(read[b][:, None] * matrices.value[b, h], matrices.output[b, h])
    values = np.stack([np.stack([spectrum(b, h) for h in range(heads)]) for b in range(blocks)])
    return HeadSigns(values, cases_of(values), matrices.order)


def cases_of(values: np.ndarray) -> np.ndarray:
    """The case of each head from its eigenvalues, of which the leading one comes first."""
    leading, size = values[..., 0], _ROUNDING * np.abs(values).max(axis=-1)
    # Where all eigenvalues are zero, `size` is zero too, and the comparisons must still give "neutral".
    zero, real = np.abs(leading) <= size, np.abs(np.imag(leading)) <= size
    return np.select(
        [zero, np.real(leading) < -size, ~real], ["neutral", "repulsive", "rotating"], default="attractive"
    )  # fmt: skip
