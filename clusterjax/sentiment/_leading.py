"""Leaders of many reviews at once, by their definition, head by head.

A leader attends to itself alone at some layer (2407.01602); `hardmax.leaders` finds them for one cloud,
here mapped over reviews. Beside them: the clusters after the last layer, and how far words still go until a late
layer.

Invariants: all batches have one shape; a review without words has no leaders and no clusters; lengths are relative to
the longest word of the review at layer 0.
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


# A length relative to each review: embeddings have no scale of their own.
CLUSTER_RADIUS = 0.01  # of the longest word of the review: what counts as one cluster, and as settled


class ReviewLeaders(NamedTuple):
    """The leaders of each review and head, and how the words have clustered.

    **Attributes:**

    - `first`: (reviews, n, heads), the first layer at which the word attended to itself alone; -1 if it is no leader.
    - `points`: (reviews, n, heads, d), where the leader stood then.
    - `present`: (reviews, n), which of the places hold a word.
    - `clusters`: (reviews, heads), connected components of the words at the last layer, at a hundredth of the longest
        word of layer 0.
    - `further`: (reviews, heads), how far the farthest word goes after the last layer, over that length.
    """

    first: Int[np.ndarray, "reviews n heads"]
    points: Float[np.ndarray, "reviews n heads d"]
    present: Bool[np.ndarray, "reviews n"]
    clusters: Int[np.ndarray, "reviews heads"]
    further: Float[np.ndarray, "reviews heads"]


def lead(model: HardmaxClassifier, encoded: Encoded, *, horizon: int = 64, batch_size: int = 128) -> ReviewLeaders:
    """The leaders of each review, and what happens between the last layer and layer `horizon`.

    **Arguments:**

    - `model`: A classifier.
    - `encoded`: Reviews, each word once. Those without a word have no leaders.
    - `horizon`: A layer at which the words have come to rest.
    - `batch_size`: How many reviews are in memory at once.

    A leader as in 2407.01602.
    """
    size, total = max(1, min(batch_size, len(encoded))), len(encoded)
    width = max(1, int(encoded.lengths.max(initial=0)))
    # Only as wide as the longest of these reviews, in steps of 32.
    width = min(encoded.width, -(-width // 32) * 32)
    parts = []
    for start in range(0, total, size):
        # The last batch is filled up with copies of the last review, so that nothing compiles anew.
        rows = np.minimum(np.arange(start, start + size), total - 1)
        ids, counts = jnp.asarray(encoded.ids[rows, :width]), jnp.asarray(encoded.counts[rows, :width])
        parts.append(jax.tree_util.tree_map(np.asarray, _lead(model, ids, counts, max(horizon, model.depth))))
    return ReviewLeaders(*(np.concatenate(column)[:total] for column in zip(*parts, strict=True)))


@eqx.filter_jit
def _lead(model: HardmaxClassifier, ids: Array, counts: Array, horizon: int) -> ReviewLeaders:
    counts = counts.astype(model.embedding.dtype)
    present = counts > 0
    # (heads, reviews, n, d).
    start = jnp.transpose(model.embedding[ids], (2, 0, 1, 3))
    by_head = [
        # One head after the other: each has a layer of its own.
        jax.vmap(lambda z, c, head=head: leaders(z, model.layer(head, c), model.depth))(start[head], counts)
        for head in range(start.shape[0])
    ]
    first = jnp.stack([of_head.first for of_head in by_head], axis=-1)
    points = jnp.stack([of_head.points for of_head in by_head], axis=2)
    # Two runs, since `run_layers` always begins at the embedding.
    last, at_horizon = (_tokens_after(model, ids, counts, depth) for depth in (model.depth, horizon))
    longest = jnp.max(jnp.where(present, jnp.sqrt(jnp.sum(start**2, axis=-1)), 0), axis=2)
    # A review whose words are all at the origin: any scale serves.
    longest = jnp.where(longest > 0, longest, 1)
    further = jnp.max(jnp.where(present, jnp.sqrt(jnp.sum((at_horizon - last) ** 2, axis=-1)), 0), axis=2) / longest
    gathered = jnp.where(present[:, :, None], last, last[:, :, :1])  # padding is at the place of the first word
    clusters = jax.vmap(jax.vmap(num_clusters))(gathered, CLUSTER_RADIUS * longest)
    return ReviewLeaders(first, points, present, jnp.where(jnp.any(present, axis=1)[:, None], clusters.T, 0), further.T)  # pyright: ignore[reportArgumentType]


def _tokens_after(model: HardmaxClassifier, ids: Array, counts: Array, depth: int) -> Float[Array, "heads reviews n d"]:
    # The tokens come back from either layout as (lanes, n, d), with the heads outermost among the lanes.
    layout, (_, heads, d) = layout_of(model.embedding), model.embedding.shape
    tokens = run_layers(depth, layout, model.embedding, model.w, model.alpha, model.A, ids, counts).tokens
    return layout.tokens(tokens).reshape(heads, *ids.shape, d)
