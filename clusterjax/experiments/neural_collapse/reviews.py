"""The hardmax sentiment classifier: what it reads of a review at each layer, with two classes and its hyperplane.

A review is the mean of its words at that layer, which after the last one is what the classifier divides. The two rows
are w / 2 and -w / 2. Two classes have one centred mean and its opposite, so that NC2 holds whatever they are.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ..._iterate import iterate
from ..._random import draw_normal
from ...sentiment import Encoded, HardmaxClassifier, encode_reviews
from ..framework.experiment import Settings
from ..sentiment.model import Source, Trained, reviews
from .levels import Clustering, Measures, balanced, clusters_of, measures_of, shuffled


REACH = 0.1  # of clusters: of the length of the longest word before the first layer
BATCH = 64


class OfReviews(NamedTuple):
    """The classifier on the reviews that it was trained on.

    **Attributes:**

    - `trained`: The measures by layer.
    - `test`: Of reviews that it was not trained on.
    - `shuffled`: With labels in random order.
    - `random`: Of classifiers with random embeddings and hyperplanes.
    - `clustering`: Of the words of a review.
    - `each`: How many reviews of each label.
    """

    trained: Measures
    test: Measures
    shuffled: Measures
    random: tuple[Measures, ...]
    clustering: Clustering
    each: int


def measure_reviews(
    fit: Trained, settings: Settings, most: int, keys: list[PRNGKeyArray], rng: np.random.Generator, draws: int
) -> OfReviews:
    """Measure the classifier and its controls on at most `most` reviews of each label."""
    recipe, vocabulary = fit.fitted.recipe, fit.fitted.vocabulary
    seen = encode_reviews(reviews(Source.of(settings)).split.train, vocabulary, length=recipe.length)
    parts = [_some(part, most, rng) for part in (seen, fit.test)]
    model = fit.fitted.model
    (features, clustering), (of_test, _) = (run(model, part) for part in parts)
    labels = parts[0].labels.astype(int)
    rows = rows_of(model)
    random = [redrawn(model, key) for key in keys]
    return OfReviews(
        measures_of(features, labels, *rows),
        measures_of(of_test, parts[1].labels.astype(int), *rows),
        shuffled(features, labels, *rows, rng, draws),
        tuple(measures_of(run(one, parts[0])[0], labels, *rows_of(one)) for one in random),
        clustering,
        len(labels) // 2,
    )


def _some(part: Encoded, most: int, rng: np.random.Generator) -> Encoded:
    """As many reviews of each label that have words."""
    rows = np.flatnonzero(part.lengths > 0)
    each = min(most, *np.bincount(part.labels[rows], minlength=2))
    return part.take(rows[balanced(part.labels[rows].astype(int), np.arange(2), int(each), rng)])


def rows_of(model: HardmaxClassifier) -> tuple[np.ndarray, np.ndarray]:
    """The classifier of two classes whose logits differ by that of the model: rows, (2, d), and bias."""
    w, v = np.asarray(model.w[0]), np.asarray(model.v)
    return np.stack([-w / 2, w / 2]), np.stack([-v / 2, v / 2])


def redrawn(model: HardmaxClassifier, key: PRNGKeyArray) -> HardmaxClassifier:
    """The same layers with normal words, as long as those of the model, and a random hyperplane through the origin."""
    words, normal = jr.split(key)
    scale = jnp.sqrt(jnp.mean(model.embedding**2))
    embedding = scale * draw_normal(words, model.embedding.shape, model.embedding.dtype)
    w = draw_normal(normal, model.w.shape, model.w.dtype)
    return eqx.tree_at(lambda one: (one.embedding, one.w, one.v), model, (embedding, w, jnp.zeros_like(model.v)))


def run(model: HardmaxClassifier, part: Encoded) -> tuple[np.ndarray, Clustering]:
    """The mean of the words of each review at each layer, (layers + 1, reviews, d), and how far they cluster."""
    means, clustering = _run(model, jnp.asarray(part.ids), jnp.asarray(part.counts, model.embedding.dtype))
    return np.moveaxis(np.asarray(means), 1, 0), Clustering(*np.asarray(clustering).mean(axis=0).T)


@eqx.filter_jit
def _run(model: HardmaxClassifier, ids: Array, counts: Array) -> tuple[Array, Array]:
    def of_review(review: tuple[Array, Array]) -> tuple[Array, Array]:
        ids, counts = review
        words = iterate(model.layer(0, counts), model.embedding[ids, 0], model.depth).xs
        longest = jnp.max(jnp.where(counts > 0, jnp.linalg.norm(words[0], axis=1), 0))
        means = jnp.einsum("n,knd->kd", counts / jnp.sum(counts), words)
        return means, clusters_of(words, counts, REACH * longest, unit=False)

    return jax.lax.map(of_review, (ids, counts), batch_size=BATCH)
