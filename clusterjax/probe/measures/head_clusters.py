"""Clusters of attention heads by average linkage, and the stability of the clusters when the texts are resampled.

Agglomerative clustering (Sokal and Michener, 1958): begin with single heads and repeatedly merge the two clusters with
the least mean distance 1 - r until one is left; NumPy handles all matrices of all resamples at once. Partitions are
compared by the adjusted Rand index (Hubert and Arabie, *Comparing partitions*, 1985, eq. (5)).

Invariants: the label of a cluster is its first head; the number of clusters is the requested one also in case of ties,
since merges are counted; the trees have the format of `scipy.cluster.hierarchy`.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..._check import check_array, check_concrete, check_integer, refusal
from ..._summary import short, summary


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

    def __repr__(self) -> str:
        return short(self)

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
        check_concrete(value, name)
        check_array(value, name, shape=axes, remedy=remedy)
    correlation, resampled = np.asarray(correlation, np.float64), np.asarray(resampled, np.float64)
    layers, heads = correlation.shape[:2]
    if correlation.shape[2] != heads:
        raise refusal("correlation", "be (layers, heads, heads)", f"its shape is {correlation.shape}", remedy)
    if resampled.shape[1:] != correlation.shape:
        rule = "be (replicates, layers, heads, heads) like correlation"
        raise refusal("resampled", rule, f"they are {resampled.shape} and {correlation.shape}", remedy)
    clusters = check_integer(clusters, "clusters", most=heads, remedy="pass 1, or up to the number of heads")
    trees, labels = _average_linkage(correlation, clusters)
    _, each = _average_linkage(resampled.reshape(-1, heads, heads), clusters)
    each = each.reshape(-1, layers, heads)
    # (..., heads, heads): True if two heads share a cluster, in the clusters of all texts and in those of each
    # resample.
    same, shared = (partition[..., :, None] == partition[..., None, :] for partition in (labels, each))
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
    """The trees of many matrices, (many, heads - 1, 4), and the labels of `clusters` clusters, for all at once."""
    many, heads = correlation.shape[:2]
    place, matrices = np.arange(heads), np.arange(many)
    # Symmetrised and clipped: rounding may leave r above 1, and a negative distance would be merged first.
    distance = np.clip(1 - (correlation + correlation.swapaxes(1, 2)) / 2, 0, 2)
    # The infinite diagonal prevents that a head is merged with itself.
    distance[:, place, place] = np.inf
    labels, names = np.tile(place, (many, 1)), np.tile(place, (many, 1))
    sizes, trees = np.ones((many, heads)), np.zeros((many, heads - 1, 4))
    for merge in range(heads - 1):
        # The first of the smallest entries has i < j, so a cluster keeps the index of its first head.
        i, j = np.divmod(distance.reshape(many, -1).argmin(axis=1), heads)
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
