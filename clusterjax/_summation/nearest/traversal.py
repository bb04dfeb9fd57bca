"""Packet traversal of a bounding-volume hierarchy: largest scores, and sums over the scores above a threshold.

**Algorithm.** A packet of rows traverses the heap in depth-first order without a stack: from a node to its first child
if some row has to descend, else to the next node outside the subtree. A row that need not descend is inactive until the
packet has left that subtree. A packet that reaches a leaf pauses until half of the unfinished packets have, and the
leaves of all paused packets are then processed in one batch.

**Reference.** Wald, Slusallek, Benthin, Wagner, *Interactive rendering with coherent ray tracing* (2001).

**Invariants.** A row is active at each node at most once, and at no node below one that it accepted as a whole or
rejected; so no token is counted twice, and none above the threshold is missed. The path depends on the hierarchy, the
queries and the threshold only, and `scatter_cotangents` takes that of `gather_sums`: it is the exact transpose.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .bounding_volumes import LEAF_SIZE, Hierarchy, NodeSums


# One number for each row of each packet, or for one representative row.
Scores = Float[Array, "packets _"]
# The x and the y coordinates.
Queries = tuple[Scores, Scores]

# Width of the beam search for a first lower bound on the largest scores.
_BEAM_WIDTH = 4


def _score_bounds(rectangle: Float[Array, "8 packets _"], query: Queries) -> tuple[Scores, Scores]:
    """The least and the largest score, (packets, rows) each, in a rectangle; both are its score for one point."""
    x, y = query
    score = x * rectangle[0] + y * rectangle[1]
    low, high = score, score
    along, across = x * rectangle[2] + y * rectangle[3], y * rectangle[2] - x * rectangle[3]
    for derivative, start, stop in ((along, rectangle[4], rectangle[5]), (across, rectangle[6], rectangle[7])):
        end, other_end = derivative * start, derivative * stop
        low, high = low + jnp.minimum(end, other_end), high + jnp.maximum(end, other_end)
    return low, high


def _rectangles(hierarchy: Hierarchy, node: Int[Array, " packets"]) -> Float[Array, "8 packets 1"]:
    """The rectangle (8, packets, 1) of the node of each packet."""
    return hierarchy.nodes[node].T[:, :, None]


def _leaf_scores(
    hierarchy: Hierarchy, leaf: Int[Array, " packets"], query: Queries
) -> Float[Array, "packets leaf_size rows"]:
    """The scores (packets, LEAF_SIZE, rows) of the tokens of each packet's leaf; NaN for tokens not present."""
    tokens = hierarchy.leaves[leaf][:, :, None]
    return query[0][:, None, :] * tokens[:, :LEAF_SIZE] + query[1][:, None, :] * tokens[:, LEAF_SIZE:]


def _next_outside(node: Int[Array, " packets"]) -> Int[Array, " packets"]:
    """The node (packets,) that follows the subtree of `node` in depth-first order."""
    # In a heap: the right sibling of the nearest ancestor-or-self that is a left child, found by its trailing bits.
    sibling = node + 1
    return sibling >> lax.population_count((sibling & -sibling) - 1)


def traverse(
    hierarchy: Hierarchy,
    query: Queries,
    root: Int[Array, " packets"],
    at_node: Callable[..., tuple[Any, Bool[Array, "packets rows"]]],
    at_leaf: Callable[..., Any],
    state: Any,
) -> Any:
    """Fold `at_node` and `at_leaf` over the nodes below the `root` (packets,) of each packet that its rows descend to.

    `at_node(state, node, active, low, high)` returns the new state and which of the `active` rows have to descend,
    given the bounds of their scores; both masks are (packets, rows). `at_leaf(state, leaf, entered, scores)` returns
    the state with the tokens of a leaf compared, for the rows in `entered`.
    """
    first_leaf, end = hierarchy.leaves.shape[0], _next_outside(root)

    def step(carry):
        node, unfinished, skipped, entered, state = carry
        paused = jnp.any(entered, axis=1)
        low, high = _score_bounds(_rectangles(hierarchy, node), query)
        # The depth of a node as the number of leading zeros of its index: fewer for deeper nodes. `skipped` is this
        # number for the node where the row stopped, and 0 while the row is active. A row that stopped is inactive at
        # deeper nodes, until the packet has left the subtree.
        zeros = lax.clz(node)[:, None]
        active = (unfinished & ~paused)[:, None] & (zeros >= skipped)
        state, descend = at_node(state, node, active, low, high)
        skipped = jnp.where(active, jnp.where(descend, 0, zeros), skipped)
        entered = entered | (descend & (node >= first_leaf)[:, None])
        return *advance(node, unfinished, ~paused, jnp.any(descend, axis=1)), skipped, entered, state

    def advance(node, unfinished, moving, descend):
        """The next node of the packets that move, below the present one or after it; at a leaf they stay."""
        after = _next_outside(node)
        is_leaf = node >= first_leaf
        following = jnp.where(descend, jnp.where(is_leaf, node, 2 * node), after)
        remains = descend | (after != end)
        return jnp.where(moving & unfinished & remains, following, node), unfinished & (remains | ~moving)

    # All packets take part in a step and in a batch of leaves, and the results of those that wait are discarded. With
    # half as the limit, at least half of the unfinished packets do useful work in either.
    def most_are_moving(carry):
        _, unfinished, _, entered, _ = carry
        return 2 * jnp.sum(unfinished & ~jnp.any(entered, axis=1)) > jnp.sum(unfinished)

    def process_leaves(carry):
        node, unfinished, skipped, entered, state = lax.while_loop(most_are_moving, step, carry)
        paused = jnp.any(entered, axis=1)
        # Packets elsewhere compare with leaf 0; no row of theirs has entered, so that the result is discarded.
        leaf = jnp.where(paused, node - first_leaf, 0)
        state = at_leaf(state, leaf, entered, _leaf_scores(hierarchy, leaf, query))
        node, unfinished = advance(node, unfinished, paused, jnp.zeros_like(paused))
        return node, unfinished, skipped, jnp.zeros_like(entered), state

    shape = query[0].shape
    start = root, jnp.ones(root.shape, bool), jnp.zeros(shape, root.dtype), jnp.zeros(shape, bool), state
    return lax.while_loop(lambda carry: jnp.any(carry[1]), process_leaves, start)[4]


def largest_scores(hierarchy: Hierarchy, query: Queries, root: Int[Array, " packets"], maxima: Scores) -> Scores:
    """The largest score (packets, rows) below `root`, or `maxima` where that is larger."""
    first_leaf, middle = hierarchy.leaves.shape[0], maxima.shape[1] // 2
    middle_query = query[0][:, middle, None], query[1][:, middle, None]

    def next_level(nodes):
        """The best children (packets, beam) of `nodes` for the middle row; index 0 is an empty place."""
        children = jnp.concatenate([2 * nodes, jnp.where(nodes == 0, 0, 2 * nodes + 1)], axis=1)
        high = _score_bounds(jnp.moveaxis(hierarchy.nodes[children], -1, 0), middle_query)[1]
        best = lax.top_k(jnp.where(jnp.isnan(high) | (children == 0), -jnp.inf, high), _BEAM_WIDTH)[1]
        return jnp.take_along_axis(children, best, axis=1)

    def at_leaf(maxima, leaf, entered, scores):
        # The comparison is False for NaN, the score of tokens that are not present.
        scores = jnp.where(scores > -jnp.inf, scores, -jnp.inf)
        return jnp.where(entered, jnp.maximum(maxima, jnp.max(scores, axis=1)), maxima)

    def at_node(maxima, node, active, low, high):
        return maxima, active & (high > maxima)

    # Start from large scores, which prune most nodes: rows of a packet have queries of similar direction, so that the
    # leaves of a beam search for the middle row hold tokens that are good for all.
    nodes = jnp.pad(root[:, None], ((0, 0), (0, _BEAM_WIDTH - 1)))
    nodes = lax.while_loop(lambda nodes: jnp.max(nodes) < first_leaf, next_level, nodes)
    for node in nodes.T:
        scores = _leaf_scores(hierarchy, jnp.maximum(node - first_leaf, 0), query)
        maxima = at_leaf(maxima, node, jnp.broadcast_to((node > 0)[:, None], maxima.shape), scores)
    return traverse(hierarchy, query, root, at_node, at_leaf, maxima)


def gather_sums(
    hierarchy: Hierarchy, sums: NodeSums, query: Queries, root: Int[Array, " packets"], threshold: Scores
) -> Float[Array, "k packets rows"]:
    """The sum (k, packets, rows) of the weights of the tokens below `root` that score `threshold` or more."""
    k = sums.nodes.shape[1]

    def at_node(total, node, active, low, high):
        accepted, descend = _classify(active, low, high, threshold)
        weights = sums.nodes[node].T[:, :, None]
        return total + jnp.where(accepted[None], weights, 0), descend

    def at_leaf(total, leaf, entered, scores):
        attended = _attended(entered, scores, threshold)
        weights = sums.leaves[leaf].reshape(-1, k, LEAF_SIZE)
        # One column at a time: a (packets, LEAF_SIZE, rows, k) product is never held.
        columns = [jnp.sum(jnp.where(attended, weights[:, c, :, None], 0), axis=1) for c in range(k)]
        return total + jnp.stack(columns)

    return traverse(hierarchy, query, root, at_node, at_leaf, jnp.zeros((k, *threshold.shape), threshold.dtype))


def scatter_cotangents(
    hierarchy: Hierarchy,
    query: Queries,
    root: Int[Array, " packets"],
    threshold: Scores,
    row_cotangents: Float[Array, "k packets rows"],
    cotangents: NodeSums,
) -> NodeSums:
    """`cotangents` plus the transpose of `gather_sums` (in `sums`) of `row_cotangents` (k, packets, rows)."""

    def at_node(cotangents, node, active, low, high):
        accepted, descend = _classify(active, low, high, threshold)
        added = jnp.sum(jnp.where(accepted[None], row_cotangents, 0), axis=2).T
        return NodeSums(cotangents.nodes.at[node].add(added), cotangents.leaves), descend

    def at_leaf(cotangents, leaf, entered, scores):
        attended = _attended(entered, scores, threshold)
        columns = [jnp.sum(jnp.where(attended, column[:, None, :], 0), axis=2) for column in row_cotangents]
        added = jnp.stack(columns, axis=1)
        return NodeSums(cotangents.nodes, cotangents.leaves.at[leaf].add(added.reshape(added.shape[0], -1)))

    return traverse(hierarchy, query, root, at_node, at_leaf, cotangents)


def _classify(active: Bool[Array, "packets rows"], low, high, threshold) -> tuple[Array, Array]:
    """Which rows (packets, rows) attend to every token of the node, and which have to descend; the others to none."""
    accepted = active & (low >= threshold)
    return accepted, active & ~accepted & (high >= threshold)


def _attended(entered: Bool[Array, "packets rows"], scores, threshold) -> Bool[Array, "packets leaf_size rows"]:
    """Which tokens of its leaf each row attends to, (packets, LEAF_SIZE, rows)."""
    # Both comparisons are False for NaN, the score of tokens that are not present.
    return entered[:, None, :] & (scores >= threshold[:, None, :]) & (scores > -jnp.inf)
