"""Packet traversal of a bounding-volume hierarchy: largest scores, and sums over the scores above a threshold.

**Algorithm.** A packet of rows traverses the heap in depth-first order without a stack: from a node to its first child
if some row must descend, otherwise to the next node outside the subtree. A row that need not descend is inactive until
the packet leaves the subtree. A packet at a leaf pauses until half of the unfinished packets are at leaves; the leaves
of all paused packets are then processed in one batch.

**Reference.** Wald, Slusallek, Benthin, Wagner, *Interactive rendering with coherent ray tracing* (2001).

**Invariants.** A row is active at each node at most once, and never below a node that it accepted as a whole or
rejected: no token is counted twice, and no token above the threshold is missed. The path depends only on the hierarchy,
the queries and the threshold; `scatter_cotangents` follows the path of `gather_sums` and is its exact transpose.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .bounding_volumes import LEAF_SIZE, Hierarchy, NodeSums


# A score for each row of each packet, or for one representative row of each packet.
Scores = Float[Array, "packets _"]
# The x and y coordinates of queries.
Queries = tuple[Scores, Scores]

# The width of the beam search for a first lower bound of the largest scores.
_BEAM_WIDTH = 4


def _score_bounds(rectangle: Float[Array, "8 packets _"], query: Queries) -> tuple[Scores, Scores]:
    """The bounds of scores in a rectangle, (packets, rows) each; equal to the score if the rectangle is a point."""
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
    """The scores (packets, LEAF_SIZE, rows) of the tokens of each packet's leaf; NaN for absent tokens."""
    tokens = hierarchy.leaves[leaf][:, :, None]
    return query[0][:, None, :] * tokens[:, :LEAF_SIZE] + query[1][:, None, :] * tokens[:, LEAF_SIZE:]


def _next_outside(node: Int[Array, " packets"]) -> Int[Array, " packets"]:
    """The node (packets,) that follows the subtree of `node` in depth-first order."""
    # In a heap, this is the right sibling of the nearest ancestor-or-self that is a left child, by its trailing bits.
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
    """Fold `at_node` and `at_leaf` over the nodes below the `root` (packets,) of each packet to which its rows descend.

    `at_node(state, node, active, low, high)` returns the new state and the mask of the `active` rows that must descend,
    given the bounds of their scores; both masks are (packets, rows). `at_leaf(state, leaf, entered, scores)` returns
    the state after a comparison with the tokens of a leaf, for the rows in `entered`.
    """
    first_leaf, end = hierarchy.leaves.shape[0], _next_outside(root)

    def step(carry):
        node, unfinished, skipped, entered, state = carry
        paused = jnp.any(entered, axis=1)
        low, high = _score_bounds(_rectangles(hierarchy, node), query)
        # The number of leading zeros of a node's index measures its depth: deeper nodes have fewer. `skipped` is this
        # number for the node where the row stopped, and 0 while the row is active. A row that stopped is inactive at
        # deeper nodes, until the packet has left the subtree.
        zeros = lax.clz(node)[:, None]
        active = (unfinished & ~paused)[:, None] & (zeros >= skipped)
        state, descend = at_node(state, node, active, low, high)
        skipped = jnp.where(active, jnp.where(descend, 0, zeros), skipped)
        entered = entered | (descend & (node >= first_leaf)[:, None])
        return *advance(node, unfinished, ~paused, jnp.any(descend, axis=1)), skipped, entered, state

    def advance(node, unfinished, moving, descend):
        """The next node of the moving packets, below the present node or after it; at a leaf, packets stay."""
        after = _next_outside(node)
        is_leaf = node >= first_leaf
        following = jnp.where(descend, jnp.where(is_leaf, node, 2 * node), after)
        remains = descend | (after != end)
        return jnp.where(moving & unfinished & remains, following, node), unfinished & (remains | ~moving)

    # All packets take part in each step and in each batch of leaves, and the results of waiting packets are discarded.
    # With a limit of one half, at least half of the unfinished packets do useful work.
    def most_are_moving(carry):
        _, unfinished, _, entered, _ = carry
        return 2 * jnp.sum(unfinished & ~jnp.any(entered, axis=1)) > jnp.sum(unfinished)

    def process_leaves(carry):
        node, unfinished, skipped, entered, state = lax.while_loop(most_are_moving, step, carry)
        paused = jnp.any(entered, axis=1)
        # Packets elsewhere compare with leaf 0; none of their rows has entered, so that the result is discarded.
        leaf = jnp.where(paused, node - first_leaf, 0)
        state = at_leaf(state, leaf, entered, _leaf_scores(hierarchy, leaf, query))
        node, unfinished = advance(node, unfinished, paused, jnp.zeros_like(paused))
        return node, unfinished, skipped, jnp.zeros_like(entered), state

    shape = query[0].shape
    start = root, jnp.ones(root.shape, bool), jnp.zeros(shape, root.dtype), jnp.zeros(shape, bool), state
    return lax.while_loop(lambda carry: jnp.any(carry[1]), process_leaves, start)[4]


def largest_scores(hierarchy: Hierarchy, query: Queries, root: Int[Array, " packets"], maxima: Scores) -> Scores:
    """The largest score (packets, rows) below `root`, or `maxima` where `maxima` is larger."""
    first_leaf, middle = hierarchy.leaves.shape[0], maxima.shape[1] // 2
    middle_query = query[0][:, middle, None], query[1][:, middle, None]

    def next_level(nodes):
        """The best children (packets, beam) of `nodes` for the middle row; index 0 is an empty slot."""
        children = jnp.concatenate([2 * nodes, jnp.where(nodes == 0, 0, 2 * nodes + 1)], axis=1)
        high = _score_bounds(jnp.moveaxis(hierarchy.nodes[children], -1, 0), middle_query)[1]
        best = lax.top_k(jnp.where(jnp.isnan(high) | (children == 0), -jnp.inf, high), _BEAM_WIDTH)[1]
        return jnp.take_along_axis(children, best, axis=1)

    def at_leaf(maxima, leaf, entered, scores):
        # The comparison is False for NaN, the score of absent tokens.
        scores = jnp.where(scores > -jnp.inf, scores, -jnp.inf)
        return jnp.where(entered, jnp.maximum(maxima, jnp.max(scores, axis=1)), maxima)

    def at_node(maxima, node, active, low, high):
        return maxima, active & (high > maxima)

    # Large initial scores prune most nodes. The rows of a packet have similar query directions, so that a beam search
    # for the middle row finds leaves with large scores for all rows.
    nodes = jnp.pad(root[:, None], ((0, 0), (0, _BEAM_WIDTH - 1)))
    nodes = lax.while_loop(lambda nodes: jnp.max(nodes) < first_leaf, next_level, nodes)
    for node in nodes.T:
        scores = _leaf_scores(hierarchy, jnp.maximum(node - first_leaf, 0), query)
        maxima = at_leaf(maxima, node, jnp.broadcast_to((node > 0)[:, None], maxima.shape), scores)
    return traverse(hierarchy, query, root, at_node, at_leaf, maxima)


def gather_sums(
    hierarchy: Hierarchy, sums: NodeSums, query: Queries, root: Int[Array, " packets"], threshold: Scores
) -> Float[Array, "k packets rows"]:
    """The sum (k, packets, rows) of the weights of the tokens below `root` with scores of at least `threshold`."""
    k = sums.nodes.shape[1]

    def at_node(total, node, active, low, high):
        accepted, descend = _classify(active, low, high, threshold)
        weights = sums.nodes[node].T[:, :, None]
        return total + jnp.where(accepted[None], weights, 0), descend

    def at_leaf(total, leaf, entered, scores):
        attended = _attended(entered, scores, threshold)
        weights = sums.leaves[leaf].reshape(-1, k, LEAF_SIZE)
        # The sums are formed by columns, so that no (packets, LEAF_SIZE, rows, k) product is held.
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
    """Masks of the rows (packets, rows) that attend to every token of the node, and of the rows that must descend."""
    accepted = active & (low >= threshold)
    return accepted, active & ~accepted & (high >= threshold)


def _attended(entered: Bool[Array, "packets rows"], scores, threshold) -> Bool[Array, "packets leaf_size rows"]:
    """True for the tokens of its leaf that each row attends to, (packets, LEAF_SIZE, rows)."""
    # Both comparisons are False for NaN, the score of absent tokens.
    return entered[:, None, :] & (scores >= threshold[:, None, :]) & (scores > -jnp.inf)
