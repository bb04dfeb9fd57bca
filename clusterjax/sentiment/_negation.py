"""Embeddings of negated words that are composed of those of the words.

In each head the negation `not_word` starts at M E + b + D, where E is the embedding of the word, M and b are an affine
map that all words share, and D is a residual of its own for each negation of the training part. M starts as the
reflection across the dividing hyperplane, shortened to half along its normal, and is trained like all other parameters.
Weight decay pulls the residuals towards zero, so that a rare negation stays near the image of its word.

Invariants: the composed classifier is an ordinary `HardmaxClassifier`; a negation that the training part lacks is at
the image of its word; before training, a frequent negation is where it would be without composition.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, Int

from .._base.numerics import einsum
from ._model import HardmaxClassifier, Recipe
from ._vocabulary import Vocabulary


# "not good" is weaker than "bad": the part of the embedding along the normal starts reversed and halved.
_STRENGTH = 0.5


class NegatedClassifier(eqx.Module):
    """A classifier in training whose embeddings of negations are composed.

    **Attributes:**

    - `model`: The classifier; its rows of negations are not used.
    - `affine`: (heads, d, d + 1), the matrix M and the offset b of each head, side by side.
    - `residual`: (seen, heads, d), the residuals D of the negations of the training part, which are the first ones.
    - `words`, `negations`: The ids of the words and of their negations.
    """

    model: HardmaxClassifier
    affine: Float[Array, "heads d columns"]
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
        normal = model.w / jnp.linalg.norm(model.w, axis=1, keepdims=True)
        unit = jnp.eye(model.w.shape[1], dtype=normal.dtype)[None]
        matrix = unit - (1 + _STRENGTH) * einsum("hd,he->hde", normal, normal)
        affine = jnp.concatenate([matrix, jnp.zeros_like(normal)[:, :, None]], axis=2)
        images = _images(affine, model.embedding[words[: len(counts)]])
        # The smoothed log ratio of a negation shrinks to zero if the negation is rare; this fraction of the image is
        # taken away again, so that the sum shrinks to the image of the word instead.
        residual = model.embedding[negations[: len(counts)]] - counts / (counts + 2 * recipe.smoothing) * images
        return cls(model, affine, residual, words, negations)

    def composed(self) -> HardmaxClassifier:
        """The classifier with all of its embeddings."""
        images = _images(self.affine, self.model.embedding[self.words]).at[: len(self.residual)].add(self.residual)
        embedding = self.model.embedding.at[self.negations].set(images)
        return eqx.tree_at(lambda tree: tree.embedding, self.model, embedding)


def _images(affine: Float[Array, "heads d columns"], embedding: Float[Array, "n heads d"]) -> Float[Array, "n heads d"]:
    return einsum("hde,nhe->nhd", affine[:, :, :-1], embedding) + affine[None, :, :, -1]


def composed(model: HardmaxClassifier | NegatedClassifier) -> HardmaxClassifier:
    """The classifier of a model in training."""
    return model.composed() if isinstance(model, NegatedClassifier) else model


def is_residual(model: Any) -> Any:
    """A tree of booleans like `model`, True for the residuals."""
    nothing = jtu.tree_map(lambda _: False, model)
    return eqx.tree_at(lambda tree: tree.residual, nothing, True) if isinstance(model, NegatedClassifier) else nothing
