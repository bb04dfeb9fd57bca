"""Embeddings of negated words that are composed of those of the words.

In each head the negation `not_word` starts at R E + D. E is the embedding of the word, and R is the reflection across
the dividing hyperplane, shortened to half along its normal, so that "not good" is weaker than "bad". R follows the
normal as it is trained. D is a residual of its own for each negation of the training part, by which a frequent negation
follows its reviews: "not perfect" is said of good films.

Invariants: the composed classifier is an ordinary `HardmaxClassifier`; a negation that the training part lacks is at
the reflection of its word; before training, a frequent negation is where it would be without composition.
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
    """A classifier in training whose embeddings of negations are composed.

    **Attributes:**

    - `model`: The classifier; its rows of negations are not used.
    - `residual`: (seen, heads, d), the residuals D of the negations of the training part, which are the first ones.
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
        # The smoothed log ratio of a negation shrinks to zero if the negation is rare; this fraction of the image is
        # taken away again, so that the sum shrinks to the image of the word instead.
        residual = model.embedding[negations[: len(counts)]] - counts / (counts + 2 * recipe.smoothing) * images
        return cls(model, residual, words, negations)

    def composed(self) -> HardmaxClassifier:
        """The classifier with all of its embeddings."""
        embedding = self.model.embedding
        images = _reflected(embedding[self.words], self.model.w).at[: len(self.residual)].add(self.residual)
        return eqx.tree_at(lambda tree: tree.embedding, self.model, embedding.at[self.negations].set(images))


def _reflected(embedding: Float[Array, "n heads d"], w: Float[Array, "heads d"]) -> Float[Array, "n heads d"]:
    normal = w / jnp.linalg.norm(w, axis=1, keepdims=True)
    along = einsum("nhd,hd->nh", embedding, normal)
    return embedding - (1 + _STRENGTH) * einsum("nh,hd->nhd", along, normal)


def composed(model: HardmaxClassifier | NegatedClassifier) -> HardmaxClassifier:
    """The classifier of a model in training."""
    return model.composed() if isinstance(model, NegatedClassifier) else model
