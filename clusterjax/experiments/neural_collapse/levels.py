r"""The measures of neural collapse, and those of clusters, at each level of a network.

Features of classes are measured by `neural_collapse`, as many of each class, so that its definition is that of the
paper. Rows of the classifier are taken less their mean: this leaves the softmax over these classes, and the class that
is chosen, as they are, and it is what the limit has, whose rows sum to zero.

Means of m features each differ by chance alone: with labels in random order NC1 is not infinite but of the order of
m, times the smaller one of C / d and d / C for C classes in d directions. So labels in random order are shown beside
each measure, and a fall of NC1 counts only if theirs does not fall.

Source: Papyan, Han and Donoho (2008.08186), NC1 to NC4.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._misc import normalise
from ..._observables import effective_rank, neural_collapse, num_clusters


class Measures(NamedTuple):
    """The measures of neural collapse, (levels,) each; the more axes before it the more were measured.

    **Attributes:**

    - `variability`: NC1.
    - `equinorm`, `equiangular`: NC2 of the means.
    - `self_duality`: NC3.
    - `disagreement`: NC4.
    """

    variability: np.ndarray
    equinorm: np.ndarray
    equiangular: np.ndarray
    self_duality: np.ndarray
    disagreement: np.ndarray


class Clustering(NamedTuple):
    """How far the tokens of a text cluster, mean over texts, (levels,) each.

    **Attributes:**

    - `cosine`: The mean cosine of two tokens.
    - `rank`: The effective rank over the largest that it can be.
    - `clusters`: The number of clusters over that of tokens.
    """

    cosine: np.ndarray
    rank: np.ndarray
    clusters: np.ndarray


def measures_of(
    features: Float[np.ndarray, "levels m d"],
    labels: Int[np.ndarray, " m"],
    weights: Float[np.ndarray, "classes d"],
    bias: Float[np.ndarray, " classes"] | None = None,
) -> Measures:
    """The measures at each level."""
    rows = jnp.asarray(weights - weights.mean(axis=0))
    offset = None if bias is None else jnp.asarray(bias)
    found = [neural_collapse(jnp.asarray(level), labels, rows, offset) for level in features]
    columns = [
        (one.variability, one.equinorm_means, one.equiangular_means, one.self_duality, one.disagreement)
        for one in found
    ]
    return Measures(*np.asarray(columns, float).T)


def shuffled(
    features: Float[np.ndarray, "levels m d"],
    labels: Int[np.ndarray, " m"],
    weights: Float[np.ndarray, "classes d"],
    bias: Float[np.ndarray, " classes"] | None,
    rng: np.random.Generator,
    draws: int,
) -> Measures:
    """The mean of the measures over labels in random orders."""
    return mean_of([measures_of(features, rng.permutation(labels), weights, bias) for _ in range(draws)])


def mean_of(several: Sequence[Measures]) -> Measures:
    """Over all of them: of NC1 the geometric mean, which for two classes by chance has no mean."""
    mean = Measures(*np.mean(several, axis=0))
    return mean._replace(variability=np.exp(np.mean([np.log(one.variability) for one in several], axis=0)))


def clusters_of(
    tokens: Float[Array, "levels n d"], counts: Float[Array, " n"], radius: Float[Array, ""], *, unit: bool
) -> Float[Array, "levels 3"]:
    """The three of `Clustering` at each level of one text; a token of count 0 is not there.

    **Arguments:**

    - `tokens`, `counts`: The stream, and how often each token is there.
    - `radius`: That of clusters.
    - `unit`: Whether clusters are those of directions, on the sphere.
    """
    present = counts > 0
    many = jnp.sum(present).astype(tokens.dtype)

    def of_level(x: Array) -> Array:
        directions = normalise(x)
        cosines = directions @ directions.T
        pairs = present[:, None] & present[None] & ~jnp.eye(len(x), dtype=bool)
        mean = jnp.sum(jnp.where(pairs, cosines, 0)) / jnp.maximum(many * (many - 1), 1)
        # Absent tokens are rows of zeros, which add no singular value.
        rank = effective_rank(jnp.where(present[:, None], x, 0)) / jnp.minimum(many, x.shape[1])
        # They stand where the first one stands, which is always there.
        places = directions if unit else x
        found = num_clusters(jnp.where(present[:, None], places, places[:1]), radius)
        return jnp.stack([mean, rank, found.astype(tokens.dtype) / many])

    return jax.lax.map(of_level, tokens)


def frequent(labels: Int[np.ndarray, " places"], classes: int, each: int) -> Int[np.ndarray, " classes"]:
    """The most frequent labels; fewer of them where fewer are there `each` times."""
    values, counts = np.unique(labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:classes]
    return values[order][counts[order] >= each]


def balanced(
    labels: Int[np.ndarray, " places"], values: Int[np.ndarray, " classes"], each: int, rng: np.random.Generator
) -> Int[np.ndarray, " m"]:
    """Places of these labels, as many of each, drawn at random, class by class."""
    return np.concatenate([rng.choice(np.flatnonzero(labels == value), each, replace=False) for value in values])
