"""Which heads belong together, and how sure that is."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


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
        raise ValueError(
            f"clusters must be from 1 to {heads}, the number of heads, but it is {clusters!r}; pass 1, say."
        )
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

    ??? cite "Source"

        Hubert and Arabie, *Comparing partitions* (Journal of Classification, 1985), eq. (5).
    """
    first, second = np.asarray(first), np.asarray(second)
    return float(_agreement(first[:, None] == first[None, :], second[:, None] == second[None, :]))


def _agreement(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The adjusted Rand index of partitions, given which elements share a part, (..., n, n)."""
    n = first.shape[-1]
    pairs = lambda same: (np.sum(same, axis=(-2, -1)) - n) / 2
    a, b, both = pairs(first), pairs(second), pairs(first & second)
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
