"""The leaders of many reviews at once, for each head.

A leader attends to itself alone at some layer (2407.01602). `hardmax.leaders` finds the leaders of one cloud and is
mapped over reviews here. The module also counts the clusters after the last layer and measures how far words move from
the last layer to a late layer.

Invariants: all batches have one shape; a review without words has no leaders and no clusters; distances are relative to
the largest norm of a word of the review at layer 0.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._observables import num_clusters
from ..hardmax import leaders
from ._encode import Encoded
from ._forward import layout_of, run_layers
from ._model import HardmaxClassifier


# Embeddings have no intrinsic scale, so the radius is relative to the largest norm of a word of the review at layer 0.
CLUSTER_RADIUS = 0.01


class ReviewLeaders(NamedTuple):
    """The leaders of each review and head, and the clustering of the words.

    **Attributes:**

    - `first`: (reviews, n, heads), the first layer at which the word attends to itself alone; -1 if the word is not a
        leader.
    - `points`: (reviews, n, heads, d), the position of the leader at its first layer.
    - `present`: (reviews, n), True for words and False for padding.
    - `clusters`: (reviews, heads), the number of connected components of the words after the last layer, at a distance
        of one hundredth of the largest norm at layer 0.
    - `further`: (reviews, heads), the largest displacement of a word between the last layer and `horizon`, divided by
        the largest norm at layer 0.
    """

    first: Int[np.ndarray, "reviews n heads"]
    points: Float[np.ndarray, "reviews n heads d"]
    present: Bool[np.ndarray, "reviews n"]
    clusters: Int[np.ndarray, "reviews heads"]
    further: Float[np.ndarray, "reviews heads"]


def lead(model: HardmaxClassifier, encoded: Encoded, *, horizon: int = 64, batch_size: int = 128) -> ReviewLeaders:
    """Find the leaders of each review, and measure the motion of words between the last layer and layer `horizon`.

    **Arguments:**

    - `model`: A classifier.
    - `encoded`: Encoded reviews, with each word once.
    - `horizon`: A layer at which the words have stopped moving.
    - `batch_size`: The number of reviews in memory at once.

    Source: 2407.01602, for the definition of leaders.
    """
    size, total = max(1, min(batch_size, len(encoded))), len(encoded)
    width = max(1, int(encoded.lengths.max(initial=0)))
    # The width is the length of the longest review, rounded up to a multiple of 32.
    width = min(encoded.width, -(-width // 32) * 32)
    parts = []
    for start in range(0, total, size):
        # Copies of the last review fill the last batch, so that all batches share one compilation.
        rows = np.minimum(np.arange(start, start + size), total - 1)
        ids, counts = jnp.asarray(encoded.ids[rows, :width]), jnp.asarray(encoded.counts[rows, :width])
        parts.append(jax.tree_util.tree_map(np.asarray, _lead(model, ids, counts, max(horizon, model.depth))))
    return ReviewLeaders(*(np.concatenate(column)[:total] for column in zip(*parts, strict=True)))


@eqx.filter_jit
def _lead(model: HardmaxClassifier, ids: Array, counts: Array, horizon: int) -> ReviewLeaders:
    counts = counts.astype(model.embedding.dtype)
    present = counts > 0
    start = jnp.transpose(model.embedding[ids], (2, 0, 1, 3))
    by_head = [
        # Each head has a different layer, so heads are handled in turn.
        jax.vmap(lambda z, c, head=head: leaders(z, model.layer(head, c), model.depth))(start[head], counts)
        for head in range(start.shape[0])
    ]
    first = jnp.stack([of_head.first for of_head in by_head], axis=-1)
    points = jnp.stack([of_head.points for of_head in by_head], axis=2)
    # `run_layers` always starts at the embedding, hence two runs.
    last, at_horizon = (_tokens_after(model, ids, counts, depth) for depth in (model.depth, horizon))
    longest = jnp.max(jnp.where(present, jnp.sqrt(jnp.sum(start**2, axis=-1)), 0), axis=2)
    # If all words of a review are at the origin, any scale is correct.
    longest = jnp.where(longest > 0, longest, 1)
    further = jnp.max(jnp.where(present, jnp.sqrt(jnp.sum((at_horizon - last) ** 2, axis=-1)), 0), axis=2) / longest
    gathered = jnp.where(present[:, :, None], last, last[:, :, :1])  # padding is moved to the first word
    clusters = jax.vmap(jax.vmap(num_clusters))(gathered, CLUSTER_RADIUS * longest)
    return ReviewLeaders(first, points, present, jnp.where(jnp.any(present, axis=1)[:, None], clusters.T, 0), further.T)  # pyright: ignore[reportArgumentType]


def _tokens_after(model: HardmaxClassifier, ids: Array, counts: Array, depth: int) -> Float[Array, "heads reviews n d"]:
    # Both layouts return tokens as (lanes, n, d), with the heads outermost among the lanes.
    layout, (_, heads, d) = layout_of(model.embedding), model.embedding.shape
    tokens = run_layers(depth, layout, model.embedding, model.w, model.alpha, model.A, ids, counts).tokens
    return layout.tokens(tokens).reshape(heads, *ids.shape, d)
