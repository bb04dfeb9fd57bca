"""Which heads belong together, and how sure that is."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._check import check_array, check_concrete, check_integer, refusal


class HeadClusters(NamedTuple):
    """The heads of each layer in clusters, with what resampling the texts makes of them.

    **Attributes:**

    - `labels`: (layers, heads); a label is the first head of its cluster.
    - `linkage`: The trees, (layers, heads - 1, 4), in the form of `scipy.cluster.hierarchy`, for a dendrogram.
    - `stability`: (layers,): the adjusted Rand index of `labels` and the clusters of a resample, the mean over
        resamples: 1 if all agree, about 0 if they agree no more than chance has it.
    - `together`: (layers, heads, heads): in which fraction of the resamples two heads share a cluster.

    Source: this library.
    """

    labels: np.ndarray
    linkage: np.ndarray
    stability: np.ndarray
    together: np.ndarray

    def groups(self, layer: int) -> list[list[int]]:
        """The clusters of a layer as lists of heads, the largest first; -1 is the last layer.

        **Raises:**

        - `ValueError` if there is no such layer.
        """
        layers = len(self.labels)
        layer = check_integer(layer, "layer", least=-layers, most=layers - 1)
        labels = self.labels[layer]
        found = [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]
        return sorted(found, key=lambda heads: (-len(heads), heads))


def head_clusters(
    correlation: Float[np.ndarray, "layers heads heads"],
    resampled: Float[np.ndarray, "replicates layers heads heads"],
    clusters: int = 2,
) -> HeadClusters:
    """Average linkage of the heads at the distance 1 - r, cut into so many clusters, at each layer.

    A division into k clusters is found in any data; whether it is one of the network is what `stability` and
    `together` say, for which the texts are resampled.

    **Arguments:**

    - `correlation`: The mean correlation of each pair of heads.
    - `resampled`: The same for each resample of the texts.
    - `clusters`: Into how many clusters; the paper speaks of two.

    **Returns:**

    A `HeadClusters`.

    **Raises:**

    - `ValueError` if the arrays do not fit together, or `clusters` is not from 1 to the number of heads.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Figure 2. The tree: Sokal and Michener (1958). The adjusted Rand index:
        Hubert and Arabie, *Comparing partitions* (Journal of Classification, 1985). Resampling, and the matrix of heads
        together: Monti et al., *Consensus clustering* (Machine Learning, 2003).
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
    same, shared = (found[..., :, None] == found[..., None, :] for found in (labels, each))
    return HeadClusters(labels, trees, _agreement(same, shared).mean(axis=0), shared.mean(axis=0))


def adjusted_rand(first: Int[np.ndarray, " n"], second: Int[np.ndarray, " n"]) -> float:
    """How far two partitions agree on pairs, beyond chance; 1 if they are the same.

    **Arguments:**

    - `first`, `second`: The label of each element.

    **Returns:**

    A number of at most 1; its mean over random relabellings is 0.

    **Raises:**

    - `ValueError` unless they are vectors of integers of one length.

    ??? cite "Source"

        Hubert and Arabie, *Comparing partitions* (Journal of Classification, 1985), eq. (5).
    """
    for name, value in (("first", first), ("second", second)):
        check_concrete(value, name)
        check_array(value, name, shape=("n",), integers=True, remedy="pass one label an element")
    (one, n), (other, m) = ((np.unique(labels, return_inverse=True)[1], np.size(labels)) for labels in (first, second))
    if n != m:
        raise refusal("second", "have one label for each of first", f"they are {m} and {n}", "pass as many of both")
    # The parts by size: of n elements there are too many pairs to be looked at one by one.
    pairs = lambda labels: np.sum((sizes := np.unique(labels, return_counts=True)[1].astype(float)) * (sizes - 1)) / 2
    return float(_beyond_chance(pairs(one), pairs(other), pairs(one * (int(other.max()) + 1) + other), n))


def _agreement(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The adjusted Rand index of partitions, given which elements share a part, (..., n, n)."""
    n = first.shape[-1]
    pairs = lambda same: (np.sum(same, axis=(-2, -1)) - n) / 2
    return _beyond_chance(pairs(first), pairs(second), pairs(first & second), n)


def _beyond_chance(a: Any, b: Any, both: Any, n: int) -> np.ndarray:
    """The index from the numbers of pairs that share a part in the first, the second and both partitions."""
    expected, best = a * b / max(n * (n - 1) / 2, 1), (a + b) / 2
    alike = best == expected
    return np.where(alike, 1.0, (both - expected) / np.where(alike, 1.0, best - expected))


def _average_linkage(correlation: np.ndarray, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """The trees of many matrices, (many, heads - 1, 4), and their labels in so many clusters, all matrices at once."""
    many, heads = correlation.shape[:2]
    place, at = np.arange(heads), np.arange(many)
    apart = np.clip(1 - (correlation + correlation.swapaxes(1, 2)) / 2, 0, 2)
    apart[:, place, place] = np.inf
    labels, names = np.tile(place, (many, 1)), np.tile(place, (many, 1))
    sizes, trees = np.ones((many, heads)), np.zeros((many, heads - 1, 4))
    for merge in range(heads - 1):
        # The first of the smallest entries, so that i < j: a cluster stays where its first head is.
        i, j = np.divmod(apart.reshape(many, -1).argmin(axis=1), heads)
        size = sizes[at, i] + sizes[at, j]
        pair = np.sort([names[at, i], names[at, j]], axis=0)
        trees[:, merge] = np.stack([*pair, apart[at, i, j], size], axis=1)
        row = (sizes[at, i, None] * apart[at, i] + sizes[at, j, None] * apart[at, j]) / size[:, None]
        apart[at, i], apart[at, :, i] = row, row
        apart[at, j], apart[at, :, j], apart[at, i, i] = np.inf, np.inf, np.inf
        sizes[at, i], names[at, i] = size, heads + merge
        # By the number of merges, not by height, so that ties do not change how many clusters there are.
        if merge < heads - clusters:
            labels = np.where(labels == j[:, None], i[:, None], labels)
    return trees, labels
