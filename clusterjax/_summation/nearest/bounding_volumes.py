"""A bounding-volume hierarchy over tokens in the plane, the sums of weights of its nodes, and the Hilbert order.

**Algorithm.** The hierarchy is a complete binary tree over the tokens in Hilbert order. Its nodes form an array, as in
a binary heap: the root has index 1, the children of node k are 2k and 2k + 1, index 0 is unused, and the last half are
the leaves, each with `LEAF_SIZE` consecutive tokens. Each node has a bounding rectangle. The origin of the rectangle is
the node's first token, the first axis points to the node's last token, and the rectangle of a parent encloses those of
its two children. A row of `Hierarchy.nodes` is (origin x, y, axis x, y, low and high extent along the axis, low and
high extent across it).

**Reference.** Gottschalk, Lin, Manocha, *OBBTree* (1996), for hierarchies of oriented rectangles; here the axes follow
the space-filling curve instead of covariances.

**Invariants.**

- `build_hierarchy` and `build_sums` receive the same tokens in the same order and the same `present`, which is True for
  a prefix of the tokens and False for the rest.
- Each rectangle contains all tokens below its node, and is widened by a bound on the rounding errors of the rectangle
  and of a score. A rectangle of equal tokens is not widened: the bounds of its scores are exactly the score of that
  point.
- The rectangle of a node without present tokens is NaN, so that every comparison with its scores is False.
- Only present tokens contribute to the sums of a node.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


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
