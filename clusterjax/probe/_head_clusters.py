"""Which heads belong together, and how sure that is."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster import hierarchy
from scipy.spatial import distance


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
        """The clusters of a layer as lists of heads, the largest first."""
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
    correlation, resampled = np.asarray(correlation, np.float64), np.asarray(resampled, np.float64)
    if (
        correlation.ndim != 3
        or correlation.shape[1] != correlation.shape[2]
        or resampled.shape[1:] != correlation.shape
    ):
        raise ValueError(
            f"resampled must be (replicates, layers, heads, heads) like correlation, (layers, heads, heads), but they "
            f"are {resampled.shape} and {correlation.shape}; pass those of one run."
        )
    layers, heads = correlation.shape[:2]
    if isinstance(clusters, bool) or not isinstance(clusters, int) or not 1 <= clusters <= heads:
        raise ValueError(f"clusters must be from 1 to {heads}, the number of heads, but it is {clusters!r}.")
    trees = [_tree(matrix) for matrix in correlation]
    labels = np.stack([_cut(tree, heads, clusters) for tree in trees])
    each = np.stack([[_cut(_tree(matrix), heads, clusters) for matrix in replicate] for replicate in resampled])
    stability = np.array([np.mean([adjusted_rand(labels[k], row[k]) for row in each]) for k in range(layers)])
    together = np.mean(each[:, :, :, None] == each[:, :, None, :], axis=0)
    return HeadClusters(labels, np.stack(trees), stability, together)


def adjusted_rand(first: Int[np.ndarray, " n"], second: Int[np.ndarray, " n"]) -> float:
    """How far two partitions agree on pairs, beyond chance; 1 if they are the same.

    **Arguments:**

    - `first`, `second`: The label of each element.

    **Returns:**

    A number of at most 1; its mean over random relabellings is 0.

    ??? cite "Source"

        Hubert and Arabie, *Comparing partitions* (Journal of Classification, 1985), eq. (5).
    """
    pairs = lambda counts: float(np.sum(counts * (counts - 1) / 2))
    rows, columns = (np.unique(labels, return_inverse=True)[1].ravel() for labels in (first, second))
    table = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(table, (rows, columns), 1.0)
    a, b, both = pairs(table.sum(axis=1)), pairs(table.sum(axis=0)), pairs(table)
    expected = a * b / max(pairs(np.array([float(len(rows))])), 1.0)
    best = (a + b) / 2
    return 1.0 if best == expected else (both - expected) / (best - expected)


def _tree(correlation: np.ndarray) -> np.ndarray:
    if len(correlation) == 1:
        return np.zeros((0, 4))
    apart = np.clip(1 - (correlation + correlation.T) / 2, 0, 2)
    np.fill_diagonal(apart, 0.0)
    return hierarchy.linkage(distance.squareform(apart, checks=False), method="average")


def _cut(tree: np.ndarray, heads: int, clusters: int) -> np.ndarray:
    """The label of each head, the first head of its cluster."""
    if heads == 1:
        return np.zeros(1, np.int64)
    # By the number of merges, not by height, so that ties do not change how many clusters there are.
    found: Any = hierarchy.cut_tree(tree, n_clusters=clusters).ravel()
    return np.array([np.flatnonzero(found == label)[0] for label in found])
