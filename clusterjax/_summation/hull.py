"""Hardmax attention in the plane by a bounding-volume hierarchy: the summation `Hull`.

**Algorithm.**

1. Each query separately, and all tokens together, are scaled by powers of two to entries of order one, which changes no
   comparison of scores (`_scale_to_unit`).
2. For the full mask, tokens of mass zero, and tokens too far inside the convex hull to tie with any maximum
   (`interior_mask`), are marked as not *present*.
3. The tokens are sorted along a Hilbert curve, absent tokens last, and a binary hierarchy of bounding rectangles is
   built over the tokens (`build_hierarchy`).
4. Rows are sorted by the direction of their query and grouped into packets, which traverse the hierarchy twice
   (`traverse`). The first traversal finds the largest score of each row, the second sums the weights of the tokens
   with scores of at least `threshold`, the largest score minus the tie tolerance.
5. For the causal mask, the lower triangle of the attention matrix is divided recursively. For each power of two, the
   tokens are cut into blocks of this size with a hierarchy each, and the rows of every second block traverse the
   hierarchy of the preceding block. The remaining diagonal blocks, of 128 rows, are computed by pairs.

**Reference.** Wald, Slusallek, Benthin, Wagner, *Interactive rendering with coherent ray tracing* (2001), for packets
of rays, here of queries; Akl and Toussaint, *A fast convex hull algorithm* (1978), for step 2.

**Invariants.**

- An absent token is never counted. In the rectangles, a copy of a present token replaces it, so that no rectangle
  grows. In a leaf, its score is NaN, which is never `>= threshold`. Its weight in the sums of nodes is zero, since
  nodes may be accepted as a whole, and so is the cotangent of its weight.
- The rounded score of every present token lies between the bounds `low` and `high` of each node above it. A node is
  accepted as a whole only if `low >= threshold` and rejected only if `high < threshold`, so that the sums are over
  exactly the tokens that a loop over all pairs would find.
- Every present token that a row may attend to is below exactly one root from which the row traverses, or in its
  diagonal block.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._base.numerics import matmul
from .._base.types import Masses, Scalar, Tokens, Values
from .._model.mask import AbstractMask, CausalMask, FullMask
from .._model.summation import AbstractNearestSearch, HardmaxSums, Support, check_supported
from .ties import tie_slack


# A bounding-volume hierarchy over tokens in the plane, the sums of weights of its nodes, and the Hilbert order.
#
# **Algorithm.** The hierarchy is a complete binary tree over the tokens in Hilbert order. Its nodes form an array, as
# in a binary heap: the root has index 1, the children of node k are 2k and 2k + 1, index 0 is unused, and the last half
# are the leaves, each with `LEAF_SIZE` consecutive tokens. The origin of a node's rectangle is its first token, the
# first axis points to its last token (Gottschalk, Lin, Manocha, *OBBTree*, 1996, take the axes from covariances), and
# the rectangle of a parent encloses those of its two children. A row of `Hierarchy.nodes` is (origin x, y, axis x, y,
# low and high extent along the axis, low and high extent across it).
#
# **Invariants.** `build_hierarchy` and `build_sums` receive the same tokens in the same order and the same `present`,
# which is True for a prefix of the tokens. Each rectangle contains all tokens below its node, and is widened by a bound
# on the rounding errors of the rectangle and of a score; a rectangle of equal tokens is not widened, so that the bounds
# of its scores are exactly the score of that point. The rectangle of a node without present tokens is NaN, so that
# every comparison with its scores is False. Only present tokens contribute to the sums of a node.


# The number of tokens in a leaf, a power of two. In a leaf, every row is compared with every token.
LEAF_SIZE = 32
# Levels with at most this number of nodes are built in one loop of fixed shape. Larger levels are built in loops of
# four levels each, which limits the wasted work of the fixed shape.
_ONE_LOOP_NODES = 4096


class Hierarchy(eqx.Module):
    """Bounding rectangles of all nodes in heap order, and the tokens of each leaf: all x, then all y; NaN if absent."""

    nodes: Float[Array, "nodes 8"]
    leaves: Float[Array, "leaves coordinates"]


class NodeSums(eqx.Module):
    """k sums of weights for each node in heap order, and the k weights of each leaf's tokens, (k, LEAF_SIZE) ravelled.

    For cotangents in place of weights, the contributions of rows to all tokens of a node, and to single tokens.
    """

    nodes: Float[Array, "nodes k"]
    leaves: Float[Array, "leaves weights"]


def build_hierarchy(tokens: Float[Array, "m 2"], present: Bool[Array, " m"]) -> Hierarchy:
    """The hierarchy over `tokens` (m, 2), m a power of two; absent tokens come last and repeat a present token."""
    m, dtype = tokens.shape[0], tokens.dtype
    # Each token has a rectangle of extent zero. The rows, contiguous in memory, are origin, axis, extents, last token.
    points = jnp.concatenate([tokens.T, jnp.ones((1, m), dtype), jnp.zeros((5, m), dtype), tokens.T])
    # The levels below the leaves were needed only to build the rectangles.
    heap = _reduce_to_root(points, _parent_rectangles)[:, : 2 * m // LEAF_SIZE]
    extended = jnp.any(heap[5:8:2] > heap[4:8:2], axis=0)
    longest = jnp.max(jnp.where(present, jnp.sqrt(tokens[:, 0] ** 2 + tokens[:, 1] ** 2), 0))
    # The rounding error of a score scales with |query| |token|. Equal tokens have equal scores and need no margin.
    margin = jnp.where(extended, 4 * jnp.finfo(dtype).eps * longest, 0)
    signs = jnp.asarray([-1.0, 1.0, -1.0, 1.0], dtype)
    nodes = jnp.concatenate([heap[:4], heap[4:8] + margin[None] * signs[:, None]])
    nodes = jnp.where(_any_present(present.reshape(-1, LEAF_SIZE)[:, 0])[None], nodes, jnp.nan).T
    leaves = jnp.where(present[:, None], tokens, jnp.nan).reshape(-1, LEAF_SIZE, 2).swapaxes(1, 2)
    return Hierarchy(nodes, leaves.reshape(-1, 2 * LEAF_SIZE))


def build_sums(weights: Float[Array, "m k"], present: Bool[Array, " m"]) -> NodeSums:
    """The sum of `weights` (m, k) over the present tokens of each node."""
    weights = jnp.where(present[:, None], weights, 0)
    leaves = weights.reshape(-1, LEAF_SIZE, weights.shape[1]).swapaxes(1, 2)
    nodes = _reduce_to_root(jnp.sum(leaves, axis=2).T, lambda left, right: left + right).T
    return NodeSums(nodes, leaves.reshape(leaves.shape[0], -1))


def push_down(sums: NodeSums) -> Float[Array, "m k"]:
    """The sums of each token's entry and of all nodes above it, (m, k): the transpose of `build_sums`, all present."""
    (nodes, k), total, size = sums.nodes.shape, sums.nodes[1:2], 2
    while size < nodes:
        total = jnp.repeat(total, 2, axis=0) + sums.nodes[size : 2 * size]
        size *= 2
    return (sums.leaves.reshape(-1, k, LEAF_SIZE) + total[:, :, None]).swapaxes(1, 2).reshape(-1, k)


def _reduce_to_root(
    lowest: Float[Array, "rows m"], join: Callable[[Array, Array], Array]
) -> Float[Array, "rows nodes"]:
    """The heap (rows, 2m) with the last m columns `lowest`, in which a node is the `join` of its two children."""
    levels, size = [lowest], lowest.shape[1]

    def halve(level, _):
        # The scan needs one shape for all levels: copies fill up the parents, and are dropped below.
        parents = join(level[:, 0::2], level[:, 1::2])
        return jnp.concatenate([parents, parents], axis=1), parents

    while size > 1:
        steps = size.bit_length() - 1 if size <= _ONE_LOOP_NODES else 4
        _, stacked = lax.scan(halve, levels[-1], length=steps)
        levels += [stacked[k, :, : size >> (k + 1)] for k in range(steps)]
        size = size >> steps
    # Column 0, which is unused, repeats the root.
    return jnp.concatenate([levels[-1], *levels[::-1]], axis=1)


def _any_present(first_present: Bool[Array, " leaves"]) -> Bool[Array, " nodes"]:
    """True for nodes with a present token, from the presence of the first token of each leaf, (leaves,)."""
    # Present tokens are a prefix: a node has a present token if and only if its leftmost leaf begins with one.
    leaves = first_present.shape[0]
    node = jnp.maximum(jnp.arange(2 * leaves), 1)
    depth = lax.clz(jnp.ones_like(node)) - lax.clz(node)
    height = leaves.bit_length() - 1 - depth
    return first_present[(node << height) - leaves]


def _parent_rectangles(left: Float[Array, "10 nodes"], right: Float[Array, "10 nodes"]) -> Float[Array, "10 nodes"]:
    """The rectangles (10, nodes) along the chord from the first to the last token, around those of two children."""
    x, y = right[8] - left[0], right[9] - left[1]
    length = jnp.sqrt(x * x + y * y)
    # If the first and last token coincide, any axis is valid.
    degenerate = length == 0
    length = jnp.where(degenerate, 1, length)
    x, y = jnp.where(degenerate, 1, x / length), jnp.where(degenerate, 0, y / length)
    extents = []
    for axis_x, axis_y in ((x, y), (-y, x)):
        lows, highs = [], []
        for child in (left, right):
            a, b = child[2], child[3]
            # The child's origin, then its extents along (a, b) and across it, (-b, a), projected on the parent's axis.
            low = high = (child[0] - left[0]) * axis_x + (child[1] - left[1]) * axis_y
            for cosine, k in ((a * axis_x + b * axis_y, 4), (a * axis_y - b * axis_x, 6)):
                end, other_end = cosine * child[k], cosine * child[k + 1]
                low, high = low + jnp.minimum(end, other_end), high + jnp.maximum(end, other_end)
            lows.append(low)
            highs.append(high)
        extents += [jnp.minimum(*lows), jnp.maximum(*highs)]
    # The margin is zero for equal tokens, which keeps their extents zero.
    rounding = 16 * jnp.finfo(x.dtype).eps * (extents[1] - extents[0] + extents[3] - extents[2])
    extents = [extents[0] - rounding, extents[1] + rounding, extents[2] - rounding, extents[3] + rounding]
    return jnp.stack([left[0], left[1], x, y, *extents, right[8], right[9]])


def hilbert_order(tokens: Float[Array, "m 2"], present: Bool[Array, " m"]) -> Int[Array, " m"]:
    """The indices (m,) that sort `tokens` (m, 2) along a Hilbert curve, with absent tokens last."""
    # Two coordinates of `bits` bits give a curve position below the largest integer, which marks absent tokens.
    bits, dtype = (31, jnp.uint64) if tokens.dtype == jnp.float64 else (15, jnp.uint32)
    low = jnp.min(jnp.where(present[:, None], tokens, jnp.inf), axis=0)
    high = jnp.max(jnp.where(present[:, None], tokens, -jnp.inf), axis=0)
    width = jnp.where(high > low, high - low, 1)
    unit = jnp.where(present[:, None], (tokens - low[None]) / width[None], 0)
    x, y = (jnp.round(unit[:, axis] * (2**bits - 1)).astype(dtype) for axis in (0, 1))
    full, one = jnp.asarray(2**bits - 1, dtype), jnp.asarray(1, dtype)

    def next_bit(level, carry):
        x, y, position = carry
        shift = jnp.asarray(bits - 1 - level, dtype)
        right, upper = (x >> shift) & one, (y >> shift) & one
        # The order of the quadrants on the curve is lower left (0), upper left, upper right, lower right.
        position = (position << one << one) | ((right << one) | right) ^ upper
        # In the two lower quadrants, the curve is reflected, so that it ends where the next quadrant starts.
        lower = upper == 0
        reverse = lower & (right == 1)
        x, y = jnp.where(reverse, full - x, x), jnp.where(reverse, full - y, y)
        return jnp.where(lower, y, x), jnp.where(lower, x, y), position

    position = lax.fori_loop(0, bits, next_bit, (x, y, jnp.zeros_like(x)))[2]
    position = jnp.where(present, position, jnp.asarray(jnp.iinfo(dtype).max, dtype))
    # Coordinates break ties, so that equal tokens are adjacent and share nodes that are one point.
    index = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    return lax.sort((position, tokens[:, 0], tokens[:, 1], index), num_keys=3)[3]


# Packet traversal of a bounding-volume hierarchy: largest scores, and sums over the scores above a threshold.
#
# **Algorithm.** A packet of rows traverses the heap in depth-first order without a stack: from a node to its first
# child if some row must descend, otherwise to the next node outside the subtree. A row that need not descend is
# inactive until the packet leaves the subtree. A packet at a leaf pauses until half of the unfinished packets are at
# leaves; the leaves of all paused packets are then processed in one batch.
#
# **Reference.** Wald, Slusallek, Benthin, Wagner, *Interactive rendering with coherent ray tracing* (2001).
#
# **Invariants.** A row is active at each node at most once, and never below a node that it accepted as a whole or
# rejected: no token is counted twice, and no token above the threshold is missed. The path depends only on the
# hierarchy, the queries and the threshold; `scatter_cotangents` follows the path of `gather_sums` and is its exact
# transpose.


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
        low, high = _score_bounds(hierarchy.nodes[node].T[:, :, None], query)
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


# Tokens in the plane so far inside the convex hull of all tokens that hardmax never attends to them.
#
# **Algorithm.** The farthest present token in each of 64 directions is a corner of a convex polygon. A token is
# interior if its distance to the left of each edge of the polygon, in anticlockwise order, is at least `depth`.
#
# **Reference.** Akl and Toussaint, *A fast convex hull algorithm* (1978), with eight directions.
#
# **Invariant.** For an interior token and every direction, some present token is at least `depth` farther out in that
# direction. If all corners coincide, no token is interior.


# More directions find more interior tokens, and each direction costs one pass over the tokens.
_DIRECTIONS = 64


def interior_mask(
    tokens: Float[Array, "m 2"], present: Bool[Array, " m"], depth: Float[Array, ""]
) -> Bool[Array, " m"]:
    """True if the disc of radius `depth` around a token lies in a polygon of present tokens, for `tokens` (m, 2).

    A token to the left of every edge of a closed chain of tokens is inside their convex hull, also if rounding changes
    the choice of corners. Distances to an edge have rounding errors below 16 eps times the largest norm of a token.
    """
    angle = jnp.linspace(0, 2 * jnp.pi, _DIRECTIONS, endpoint=False, dtype=tokens.dtype)

    def farthest(direction):
        projection = tokens[:, 0] * direction[0] + tokens[:, 1] * direction[1]
        return tokens[jnp.argmax(jnp.where(present, projection, -jnp.inf))]

    corners = lax.map(farthest, jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1))
    edges = jnp.roll(corners, -1, axis=0) - corners
    lengths = jnp.sqrt(edges[:, 0] ** 2 + edges[:, 1] ** 2)

    def left_of_edge(inside, corner_edge_length):
        corner, edge, length = corner_edge_length
        # The cross product is the distance to the edge times its length. Edges of length zero impose no constraint.
        cross = (tokens[:, 1] - corner[1]) * edge[0] - (tokens[:, 0] - corner[0]) * edge[1]
        return inside & ((cross >= depth * length) | (length == 0)), None

    # Without edges, the polygon is a point, and no token is interior.
    has_edges = jnp.broadcast_to(jnp.any(lengths > 0), present.shape)
    return lax.scan(left_of_edge, has_edges, (corners, edges, lengths))[0]


class Hull(AbstractNearestSearch):
    """Hardmax in the plane in about n log n steps, since no token inside the convex hull is ever attended to.

    With a full mask, tokens deeper inside the hull than the tie tolerance are left out. The other tokens are sorted
    along a Hilbert curve, and a bounding-volume hierarchy is built over them. Rows traverse the hierarchy in packets of
    similar query direction. A row descends only to nodes whose bound reaches its maximum, and accepts a node as a whole
    if all its tokens attain the maximum, so that many ties cost no more than a few. With a causal mask, a row traverses
    one hierarchy for each of about log n blocks of earlier tokens, whose sizes are powers of two.

    The sums are over the same tokens as in `Dense`, ties included, since the bounds allow for rounding. In float32, the
    scores of neighbours on the circle differ by less than this allowance, so that each row is compared with some
    hundreds of a million tokens.

    `Hull` supports hardmax attention of tokens in the plane with a full or a causal mask, and reverse-mode derivatives.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x = cjx.Euclidean().sample(jax.random.key(0), n=200, d=2)
        >>> hull = cjx.HardmaxAttention(summation=cjx.Hull()).average(x, None)
        >>> dense = cjx.HardmaxAttention(summation=cjx.Dense()).average(x, None)
        >>> bool(jnp.allclose(hull, dense, atol=1e-5))
        True
        ```

    **Raises:**

    - `ValueError` on use, if the dimension of the tokens is not two, or for another mask.
    """

    @property
    def supports(self) -> Support:
        return Support((2,), (FullMask, CausalMask), forward_mode=False)

    @eqx.filter_jit
    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Values,
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Scalar,
    ) -> HardmaxSums:
        n, d = tokens.shape
        check_supported(self, mask, d)
        causal = isinstance(mask, CausalMask)
        # Squares and products of scaled entries neither overflow nor underflow. A common factor of all tokens keeps the
        # order of their scores.
        queries, tokens = _scale_to_unit(queries, 1), _scale_to_unit(tokens, None)
        weights = jnp.concatenate([jnp.ones((n, 1), values.dtype), values], axis=1)
        weights = weights if masses is None else weights * masses[:, None]
        present = jnp.ones(n, bool) if masses is None else masses > 0
        # A causal row may precede the tokens that make another token interior.
        if not causal:
            present = present & ~_never_attended(queries, tokens, present, tie_tolerance)
        cloud = _make_cloud(queries, tokens, present)
        # The set of attended tokens is piecewise constant: only the weights carry derivatives.
        maxima, longest = lax.stop_gradient(_largest_scores(cloud, causal))
        threshold = maxima - tie_slack(cloud.queries, longest, tie_tolerance)
        weights = jnp.pad(weights, ((0, cloud.present.shape[0] - n), (0, 0)))
        sums: Any = _gather_sums(weights, lax.stop_gradient(cloud), lax.stop_gradient(threshold), causal)
        return HardmaxSums(sums[:n, 0], sums[:n, 1:])


class _Cloud(eqx.Module):
    """Queries (m, 2) and tokens (m, 2), padded to a power of two, and their sorting orders (m,).

    `token_order` sorts the tokens along a Hilbert curve, `row_order` sorts the rows by the direction of their query.
    """

    queries: Float[Array, "m 2"]
    tokens: Float[Array, "m 2"]
    present: Bool[Array, " m"]
    token_order: Int[Array, " m"]
    row_order: Int[Array, " m"]


# The number of rows of a causal diagonal block: a power of two, no less than a packet or a leaf.
_DIAGONAL_BLOCK = 128
# The number of rows of similar query direction that traverse together.
_PACKET_SIZE = 64
# The number of packets in a call of a traversal. A call takes as long as its longest path, while finished packets wait:
# more packets wait longer, and fewer packets pay the fixed cost of a call more often.
_PACKETS_PER_CALL = 256


def _never_attended(
    queries: Tokens, tokens: Tokens, present: Bool[Array, " n"], tie_tolerance: Scalar
) -> Bool[Array, " n"]:
    """True for scaled `tokens` (n, 2) that are too far inside the hull to tie with the maximum of any query, (n,)."""
    queries, tokens, tie_tolerance = lax.stop_gradient((queries, tokens, tie_tolerance))
    longest = jnp.max(jnp.where(present, jnp.sqrt(tokens[:, 0] ** 2 + tokens[:, 1] ** 2), 0))
    shortest = jnp.min(jnp.max(jnp.abs(queries), axis=1))
    # The tie tolerance is relative to |query| |token|; the multiple of eps bounds the rounding of scores and distances.
    depth = (tie_tolerance + 32 * float(jnp.finfo(tokens.dtype).eps)) * longest
    # For a query of zero, all tokens tie and none may be left out. Scaled queries are zero or of order one.
    return (shortest > 0) & interior_mask(tokens, present, depth)


def _scale_to_unit(a: Tokens, axis: int | None) -> Tokens:
    """`a` (n, 2) times the power of two that scales its largest entry, along `axis` or of all, to order one."""
    a = lax.stop_gradient(a)
    exponent = jnp.frexp(jnp.max(jnp.abs(a), axis=axis, keepdims=True))[1]
    # The factor must be a normal number.
    largest_exponent = jnp.finfo(a.dtype).maxexp - 3
    return a * jnp.ldexp(jnp.ones_like(a[:1, :1]), -jnp.clip(exponent, -largest_exponent, largest_exponent))


def _make_cloud(queries: Tokens, tokens: Tokens, present: Bool[Array, " n"]) -> _Cloud:
    """The cloud of `queries` (n, 2) and `tokens` (n, 2), padded to m, a power of two, at least a diagonal block."""
    n = tokens.shape[0]
    m = max(_DIAGONAL_BLOCK, 1 << (n - 1).bit_length())
    queries, tokens = (lax.stop_gradient(jnp.pad(a, ((0, m - n), (0, 0)))) for a in (queries, tokens))
    present = jnp.pad(present, (0, m - n))
    # Padding rows come last, so that they share packets with few other rows.
    angle = jnp.where(jnp.arange(m) < n, jnp.arctan2(queries[:, 1], queries[:, 0]), jnp.inf)
    return _Cloud(queries, tokens, present, hilbert_order(tokens, present), jnp.argsort(angle).astype(jnp.int32))


def _hierarchy(cloud: _Cloud, order: Int[Array, " m"]) -> Hierarchy:
    """The hierarchy over the tokens of `cloud` in `order` (m,)."""
    present = cloud.present[order]
    # The last present token before an absent token replaces it, so that no rectangle grows.
    last_present = lax.cummax(jnp.where(present, jnp.arange(order.shape[0], dtype=jnp.int32), 0))
    return build_hierarchy(cloud.tokens[order[last_present]], present)


def _batch_packets(rows: Int[Array, " rows"], roots: Int[Array, " packets"]) -> tuple[Array, Array]:
    """Row indices (calls, packets, rows) and roots (calls, packets) of packets, grouped by calls."""
    packets = min(_PACKETS_PER_CALL, roots.shape[0])
    return rows.reshape(-1, packets, _PACKET_SIZE), roots.reshape(-1, packets)


def _fold_hierarchies(cloud: _Cloud, causal: bool, fold: Callable[..., Any], state: Any) -> Any:
    """Apply `state = fold(state, order, packets)` for each order (m,) of tokens, which defines hierarchies.

    The full mask has one hierarchy, which every row traverses from its root. The causal mask has an array for each
    block size, with the hierarchies of all blocks as subtrees of one heap; rows start at the root of an earlier block.
    """
    m = cloud.present.shape[0]
    if not causal:
        return fold(state, cloud.token_order, _batch_packets(cloud.row_order, jnp.ones(m // _PACKET_SIZE, jnp.int32)))

    def halve_blocks(carry, level):
        token_order, row_order, state = carry
        token_order, row_order = _split_blocks(token_order, level), _split_blocks(row_order, level)
        k = jnp.arange(m // 2, dtype=jnp.int32)
        # The positions in the second block of each pair, and for each packet the node of the first block.
        position = ((k >> level) << (level + 1)) + (1 << level) + (k & ((1 << level) - 1))
        roots = (m >> level) + (position[::_PACKET_SIZE] >> level) - 1
        packets = _batch_packets(row_order[position], roots)
        return (token_order, row_order, fold(state, token_order, packets)), None

    # The blocks shrink from half of the tokens to the size of a diagonal block.
    levels = jnp.arange(m.bit_length() - 2, _DIAGONAL_BLOCK.bit_length() - 2, -1, dtype=jnp.int32)
    carry = cloud.token_order, cloud.row_order, state
    return lax.scan(halve_blocks, carry, levels)[0][2] if levels.size else state


def _queries(cloud: _Cloud, rows: Int[Array, "packets rows"]) -> tuple[Array, Array]:
    """The x and the y coordinates (packets, rows) of the queries of `rows`."""
    return cloud.queries[rows, 0], cloud.queries[rows, 1]


def _split_blocks(order: Int[Array, " m"], level: Int[Array, ""]) -> Int[Array, " m"]:
    """`order` (m,) with each block of 2^(level + 1) indices divided into its lower and its upper half."""
    # The division is stable, so that tokens within each half keep their Hilbert order.
    block, upper = order >> (level + 1), (order >> level) & 1
    rank = jnp.where(upper == 1, jnp.cumsum(upper, dtype=jnp.int32), jnp.cumsum(1 - upper, dtype=jnp.int32)) - 1
    position = (((block << 1) + upper) << level) + rank - (block << level)
    return jnp.zeros_like(order).at[position].set(order, unique_indices=True)


def _diagonal_blocks(cloud: _Cloud, *others: Array) -> tuple:
    """Queries, tokens, `present` and `others`, (m, ...) each, cut into diagonal blocks, (blocks, rows, ...)."""
    arrays = (cloud.queries, cloud.tokens, cloud.present, *others)
    return tuple(a.reshape(-1, _DIAGONAL_BLOCK, *a.shape[1:]) for a in arrays)


def _diagonal_scores(queries: Tokens, tokens: Tokens, present: Bool[Array, " n"]) -> Float[Array, "n n"]:
    """The scores (n, n) of one diagonal block; -inf for tokens that are later than the row, or absent."""
    index = jnp.arange(queries.shape[0])
    allowed = (index[None, :] <= index[:, None]) & present[None, :]
    # The traversal computes a score by the same operations; a matrix product might round differently.
    scores = queries[:, 0, None] * tokens[None, :, 0] + queries[:, 1, None] * tokens[None, :, 1]
    return jnp.where(allowed, scores, -jnp.inf)


def _diagonal_attended(block: tuple[Array, ...]) -> Float[Array, "n n"]:
    """One where a row of a diagonal block attends to a token of the block, and zero otherwise, (n, n)."""
    queries, tokens, present, threshold, weights = block
    scores = _diagonal_scores(queries, tokens, present)
    # A row without present tokens has a threshold of -inf, and attends to none.
    return ((scores >= threshold[:, None]) & (scores > -jnp.inf)).astype(weights.dtype)


def _largest_scores(cloud: _Cloud, causal: bool) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """The largest score (m,) of each row, and the largest norm (m,) of the tokens that it may attend to."""
    m = cloud.present.shape[0]

    def fold(maxima, order, packets):
        hierarchy = _hierarchy(cloud, order)

        def call(batch):
            rows, roots = batch
            return largest_scores(hierarchy, _queries(cloud, rows), roots, maxima[rows])

        return maxima.at[packets[0].ravel()].set(lax.map(call, packets).ravel(), unique_indices=True)

    lengths = jnp.where(cloud.present, jnp.sqrt(jnp.sum(cloud.tokens * cloud.tokens, axis=1)), 0)
    maxima = jnp.full(m, -jnp.inf, cloud.tokens.dtype)
    if causal:
        maxima = lax.map(lambda block: _diagonal_scores(*block).max(axis=1), _diagonal_blocks(cloud)).reshape(m)
        return _fold_hierarchies(cloud, True, fold, maxima), lax.cummax(lengths)
    return _fold_hierarchies(cloud, False, fold, maxima), jnp.broadcast_to(jnp.max(lengths), (m,))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _gather_sums(
    weights: Float[Array, "m k"], cloud: _Cloud, threshold: Float[Array, " m"], causal: bool
) -> Float[Array, "m k"]:
    """The sum (m, k) of the weights of the tokens with scores of at least the row's `threshold` (m,)."""

    def fold(total, order, packets):
        hierarchy, sums = _hierarchy(cloud, order), build_sums(weights[order], cloud.present[order])

        def call(batch):
            rows, roots = batch
            gathered = gather_sums(hierarchy, sums, _queries(cloud, rows), roots, threshold[rows])
            return jnp.moveaxis(gathered, 0, -1)

        gathered = lax.map(call, packets).reshape(-1, total.shape[1])
        return total.at[packets[0].ravel()].add(gathered, unique_indices=True)

    total = jnp.zeros_like(weights)
    if causal:
        diagonal = lambda block: matmul(_diagonal_attended(block), block[4])
        total = lax.map(diagonal, _diagonal_blocks(cloud, threshold, weights)).reshape(total.shape)
    return _fold_hierarchies(cloud, causal, fold, total)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _scatter_cotangents(
    cotangents: Float[Array, "m k"], cloud: _Cloud, threshold: Float[Array, " m"], causal: bool
) -> Float[Array, "m k"]:
    """The transpose of `_gather_sums`: for each token, the sum (m, k) of the cotangents of rows that attend to it."""
    zeros = jnp.zeros_like(cotangents)

    def fold(total, order, packets):
        hierarchy = _hierarchy(cloud, order)

        def call(scattered, batch):
            rows, roots = batch
            of_rows = jnp.moveaxis(cotangents[rows], -1, 0)
            query = _queries(cloud, rows)
            return scatter_cotangents(hierarchy, query, roots, threshold[rows], of_rows, scattered), None

        empty = jax.tree.map(jnp.zeros_like, build_sums(total, cloud.present))
        # A scan replaces a map, since all calls add to the same nodes.
        return total.at[order].add(push_down(lax.scan(call, empty, packets)[0]))

    total = zeros
    if causal:
        diagonal = lambda block: matmul(_diagonal_attended(block).T, block[4])
        total = lax.map(diagonal, _diagonal_blocks(cloud, threshold, cotangents)).reshape(zeros.shape)
    total = _fold_hierarchies(cloud, causal, fold, total)
    # Nodes accepted as a whole also pass cotangents to their absent tokens.
    return jnp.where(cloud.present[:, None], total, 0)


def _residuals(function):
    """The forward pass of `function`, whose residuals are the cloud and the thresholds."""
    return lambda numbers, cloud, threshold, causal: (function(numbers, cloud, threshold, causal), (cloud, threshold))


def _gather_sums_backward(causal, residuals, cotangents):
    return _scatter_cotangents(cotangents, *residuals, causal), None, None


def _scatter_cotangents_backward(causal, residuals, cotangents):
    cloud, threshold = residuals
    return _gather_sums(jnp.where(cloud.present[:, None], cotangents, 0), cloud, threshold, causal), None, None


# Both functions are linear, and each is the transpose of the other, so that derivatives of every order exist.
_gather_sums.defvjp(_residuals(_gather_sums), _gather_sums_backward)
_scatter_cotangents.defvjp(_residuals(_scatter_cotangents), _scatter_cotangents_backward)
