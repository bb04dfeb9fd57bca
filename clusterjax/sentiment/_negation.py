"""Embeddings of negations such as `not_good` that are composed from the embeddings of the negated words.

In each head the negation `not_word` has the embedding R E + D. E is the embedding of the word. R reflects E across the
dividing hyperplane and halves its component along the normal, so that "not good" is weaker than "bad"; R changes with
the normal during training. D is a trained residual, separate for each negation of the training part, with which the
embedding of a frequent negation can differ from the reflection: "not perfect" is said of good films.

Invariants: the composed classifier is an ordinary `HardmaxClassifier`; a negation that the training part lacks is at
the reflection R E of its word; before training, a frequent negation has nearly its embedding without composition.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._base.numerics import einsum
from ._model import HardmaxClassifier, Recipe
from ._vocabulary import Vocabulary


_STRENGTH = 0.5  # the part of an embedding along the normal is multiplied by the negative of this number


class NegatedClassifier(eqx.Module):
    """A classifier in training in which the embeddings of negations are composed, as described above.

    **Attributes:**

    - `model`: The classifier; the rows of its embedding that belong to negations are not used.
    - `residual`: (seen, heads, d), the residuals D of the negations of the training part, which come first in
        `negations`.
    - `words`, `negations`: The ids of the words and of their negations.
    """

    model: HardmaxClassifier
    residual: Float[Array, "seen heads d"]
    words: Int[Array, " pairs"]
    negations: Int[Array, " pairs"]

    @classmethod
    def of(cls, model: HardmaxClassifier, vocabulary: Vocabulary, recipe: Recipe) -> "NegatedClassifier":
        """The composition of an untrained classifier, as from `start`, for the negations of its vocabulary."""
        pairs = vocabulary.negations
        counts = np.array((0, 0, *vocabulary.counts))[pairs[:, 1]]
        order = np.argsort(counts == 0, kind="stable")
        words, negations = (jnp.asarray(column[order]) for column in pairs.T)
        counts = jnp.asarray(counts[counts > 0], model.w.dtype)[:, None, None]
        images = _reflected(model.embedding[words[: len(counts)]], model.w)
        # If a negation is rare, its smoothed log ratio and this factor of the image are near zero, so that R E + D is
        # near R E. If the negation is frequent, R E + D is near its embedding in the untrained classifier.
        residual = model.embedding[negations[: len(counts)]] - counts / (counts + 2 * recipe.smoothing) * images
        return cls(model, residual, words, negations)

    def composed(self) -> HardmaxClassifier:
        """The classifier with the composed embeddings of all negations."""
        embedding = self.model.embedding
        images = _reflected(embedding[self.words], self.model.w).at[: len(self.residual)].add(self.residual)
        return eqx.tree_at(lambda tree: tree.embedding, self.model, embedding.at[self.negations].set(images))


def _reflected(embedding: Float[Array, "n heads d"], w: Float[Array, "heads d"]) -> Float[Array, "n heads d"]:
    normal = w / jnp.linalg.norm(w, axis=1, keepdims=True)
    along = einsum("nhd,hd->nh", embedding, normal)
    return embedding - (1 + _STRENGTH) * einsum("nh,hd->nhd", along, normal)


def composed(model: HardmaxClassifier | NegatedClassifier) -> HardmaxClassifier:
    """`model` as a `HardmaxClassifier`, with composed embeddings of negations if `model` is a `NegatedClassifier`."""
    return model.composed() if isinstance(model, NegatedClassifier) else model
