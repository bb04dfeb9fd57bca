"""What is measured of many reviews: who leads, and how far words still move.

A word leads from the first layer at which it attends to itself alone (glossary: leader). Reviews differ in length, so
that they are sorted into buckets of like length: a bucket is padded to one width and shares a compiled program. Padding
has mass zero, is attended to by no word, and is taken out of every result. Invariant: no word gets farther from the
origin than the longest one was at the start, as layers move words towards other words.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._iterate import iterate
from ...hardmax import leaders
from ...sentiment import Encoded, HardmaxClassifier


BATCH = 64
FAR = 64  # layers, after which little moves: what layer 8 is held against


@dataclass(frozen=True, eq=False)
class Led:
    """The leaders of reviews.

    **Attributes:**

    - `first`: (reviews, width), the first layer at which a word attends to itself alone, up to the model's last; -1 if
        there is none, as for padding.
    - `lengths`: (reviews,), how many words each has.
    """

    first: np.ndarray
    lengths: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        return self.first >= 0

    @property
    def counts(self) -> np.ndarray:
        """Leaders in each review."""
        return self.mask.sum(axis=1)

    @property
    def per_word(self) -> float:
        """Leaders per word, over all reviews together."""
        return float(self.counts.sum() / max(self.lengths.sum(), 1))


def leaders_of(model: HardmaxClassifier, reviews: Encoded) -> Led:
    """The leaders of each review, in buckets of like length; those of a bucket share a compilation."""
    # -1: never, which is also what padding has.
    first = np.full(reviews.ids.shape, -1)
    for rows, part in _buckets(reviews):
        first[rows, : part.width] = np.where(part.counts > 0, np.asarray(_first(model, *_arrays(part))), -1)
    return Led(first, reviews.lengths)


def further_moves(model: HardmaxClassifier, reviews: Encoded) -> tuple[np.ndarray, float]:
    r"""For each review $\max_i |z_i^{64} - z_i^K| / \max_i |z_i^0|$: how far from settled its words are at the model's
    last layer K; and the largest $\max_i |z_i^{64}| / \max_i |z_i^0|$, which is at most 1."""
    moves, growths = np.zeros(len(reviews)), [0.0]
    for rows, part in _buckets(reviews):
        distances, growth = _moves(model, *_arrays(part))
        moves[rows] = np.asarray(distances)
        growths.append(float(jnp.max(growth)))
    return moves, max(growths)


def sample(reviews: Encoded, most: int) -> Encoded:
    """At most `most` reviews with words, evenly spread over all."""
    # A review of unknown words alone has none.
    rows = np.flatnonzero(reviews.lengths > 0)
    return reviews.take(rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)])


def _buckets(reviews: Encoded) -> list[tuple[np.ndarray, Encoded]]:
    # With their own numbers as rows, so that results find their way back.
    numbered = Encoded(reviews.ids, reviews.counts, reviews.labels, reviews.lengths, np.arange(len(reviews)))
    return [(part.rows, part) for part in numbered.buckets()]


def _arrays(part: Encoded) -> tuple[Array, Array]:
    return jnp.asarray(part.ids), jnp.asarray(part.counts, jnp.float32)


@eqx.filter_jit
def _first(model: HardmaxClassifier, ids: Array, counts: Array) -> Array:
    def leaders_of_review(review: tuple[Array, Array]) -> Array:
        ids, counts = review
        return leaders(model.embedding[ids, 0], model.layer(0, counts), model.depth).first

    # A batch at a time: all reviews at once would hold all pairs of words of all of them.
    return jax.lax.map(leaders_of_review, (ids, counts), batch_size=BATCH)


@eqx.filter_jit
def _moves(model: HardmaxClassifier, ids: Array, counts: Array) -> tuple[Array, Array]:
    def moves_of_review(review: tuple[Array, Array]) -> tuple[Array, Array]:
        ids, counts = review
        start, layer = model.embedding[ids, 0], model.layer(0, counts)
        settled = iterate(layer, start, model.depth).x1
        # On from the last layer, with the same weights, to layer FAR.
        end = iterate(layer, settled, FAR - model.depth).x1
        present = counts > 0
        # The longest word that is there.
        length = lambda x: jnp.max(jnp.where(present, jnp.sqrt(jnp.sum(x * x, axis=1)), 0))
        return length(end - settled) / length(start), length(end) / length(start)

    return jax.lax.map(moves_of_review, (ids, counts), batch_size=BATCH)
