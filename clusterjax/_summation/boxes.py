"""Trees of boxes around tokens in the plane, and what the boxes hold.

**Algorithm.** A box is a rectangle along the chord from its first to its last token on the Hilbert curve, given by that
token, the direction and four extents; that of a parent is around those of its two children. All levels lie in one array
as a heap does: root 1, children 2k and 2k + 1, down to boxes of `BLOCK` tokens, whose tokens are looked at one by one.

**Reference.** Oriented boxes as in Gottschalk, Lin, Manocha, *OBBTree* (1996), from chords of a space-filling curve and
not from covariances.

**Invariants.** `make_tree` and `make_sums` are given the same tokens in the same order, with the same `present`, true
first and then false. Each box holds all tokens below it, widened by what rounding may do to it and to a score; a box of
which all tokens are one point is not widened, so that its least and its largest score are that point's. Boxes without
anybody present are not a number, and no comparison with them holds. The sums of boxes count whoever is present only.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


# The smallest boxes hold this many tokens, which are looked at one by one; a power of two.
BLOCK = 32
# From this many nodes on the levels that are left are made in one loop; above it, four levels to a loop.
_FEW = 4096


class Tree(eqx.Module):
    """Boxes around boxes: root, its children and so on down to those that hold a block of tokens each."""

    boxes: Float[Array, "nodes 8"]
    blocks: Float[Array, "blocks both"]  # The tokens of a block, all x and then all y; not a number where nobody is.


class Sums(eqx.Module):
    """What the boxes of a tree hold, and what each token of its blocks does."""

    boxes: Float[Array, "nodes k"]
    blocks: Float[Array, "blocks each"]


def make_tree(tokens: Float[Array, "m 2"], present: Bool[Array, " m"]) -> Tree:
    """The tree over `tokens`, as many as a power of two; who is not present comes last, as a copy of one who is."""
    m, dtype = tokens.shape[0], tokens.dtype
    # Ten rows, so that each is contiguous: first token, direction, four extents, last token.
    points = jnp.concatenate([tokens.T, jnp.ones((1, m), dtype), jnp.zeros((5, m), dtype), tokens.T])
    heap = _heap(points, _parents)[:, : 2 * m // BLOCK]
    wide = jnp.any(heap[5:8:2] > heap[4:8:2], axis=0)
    longest = jnp.max(jnp.where(present, jnp.sqrt(tokens[:, 0] ** 2 + tokens[:, 1] ** 2), 0))
    # A score is rounded as its size is; of tokens that are one point all scores are one number, and so is their bound.
    slack = jnp.where(wide, 4 * jnp.finfo(dtype).eps * longest, 0)
    sides = jnp.asarray([-1.0, 1.0, -1.0, 1.0], dtype)
    boxes = jnp.concatenate([heap[:4], heap[4:8] + slack[None] * sides[:, None]])
    boxes = jnp.where(_somebody(present.reshape(-1, BLOCK)[:, 0])[None], boxes, jnp.nan).T
    blocks = jnp.where(present[:, None], tokens, jnp.nan).reshape(-1, BLOCK, 2).swapaxes(1, 2)
    return Tree(boxes, blocks.reshape(-1, 2 * BLOCK))


def make_sums(weighted: Float[Array, "m k"], present: Bool[Array, " m"]) -> Sums:
    """The sum of the weights in each box, of the tokens that are present: a box that is taken whole holds no others."""
    weighted = jnp.where(present[:, None], weighted, 0)
    blocks = weighted.reshape(-1, BLOCK, weighted.shape[1]).swapaxes(1, 2)
    boxes = _heap(jnp.sum(blocks, axis=2).T, lambda left, right: left + right).T
    return Sums(boxes, blocks.reshape(blocks.shape[0], -1))


def push_down(sums: Sums) -> Float[Array, "m k"]:
    """For each token what it holds and what the boxes around it do: the transpose of `make_sums` if all are present."""
    (nodes, k), out, size = sums.boxes.shape, sums.boxes[1:2], 2
    while size < nodes:
        out = jnp.repeat(out, 2, axis=0) + sums.boxes[size : 2 * size]
        size *= 2
    return (sums.blocks.reshape(-1, k, BLOCK) + out[:, :, None]).swapaxes(1, 2).reshape(-1, k)


def _heap(leaves: Float[Array, "rows m"], join: Callable[[Array, Array], Array]) -> Float[Array, "rows nodes"]:
    """Root, its children and so on down to `leaves`, of which each is the `join` of its two children."""
    levels, size = [leaves], leaves.shape[1]

    def halve(level, _):
        # Every step has one shape, so that it is compiled once; what a level does not need is left lying.
        parents = join(level[:, 0::2], level[:, 1::2])
        return jnp.concatenate([parents, parents], axis=1), parents

    while size > 1:
        steps = size.bit_length() - 1 if size <= _FEW else 4
        _, made = lax.scan(halve, levels[-1], length=steps)
        levels += [made[k, :, : size >> (k + 1)] for k in range(steps)]
        size = size >> steps
    return jnp.concatenate([levels[-1], *levels[::-1]], axis=1)


def _somebody(present: Bool[Array, " m"]) -> Bool[Array, " nodes"]:
    """Whether each box of the heap holds anybody present: whoever is present comes first, so its first token."""
    node = jnp.maximum(jnp.arange(2 * present.shape[0]), 1)
    depth = lax.clz(jnp.ones_like(node)) - lax.clz(node)
    height = present.shape[0].bit_length() - 1 - depth
    return present[(node << height) - present.shape[0]]


def _parents(left: Float[Array, "10 nodes"], right: Float[Array, "10 nodes"]) -> Float[Array, "10 nodes"]:
    x, y = right[8] - left[0], right[9] - left[1]
    length = jnp.sqrt(x * x + y * y)
    flat = length == 0
    length = jnp.where(flat, 1, length)
    x, y = jnp.where(flat, 1, x / length), jnp.where(flat, 0, y / length)
    sides = []
    for ax, ay in ((x, y), (-y, x)):
        low, high = [], []
        for child in (left, right):
            a, b = child[2], child[3]
            least = most = (child[0] - left[0]) * ax + (child[1] - left[1]) * ay
            for part, k in ((a * ax + b * ay, 4), (a * ay - b * ax, 6)):
                one, other = part * child[k], part * child[k + 1]
                least, most = least + jnp.minimum(one, other), most + jnp.maximum(one, other)
            low.append(least)
            high.append(most)
        sides += [jnp.minimum(*low), jnp.maximum(*high)]
    rounding = 16 * jnp.finfo(x.dtype).eps * (sides[1] - sides[0] + sides[3] - sides[2])
    sides = [sides[0] - rounding, sides[1] + rounding, sides[2] - rounding, sides[3] + rounding]
    return jnp.stack([left[0], left[1], x, y, *sides, right[8], right[9]])


def nearness(tokens: Float[Array, "m 2"], present: Bool[Array, " m"]) -> Int[Array, " m"]:
    """The numbers of the tokens in the order in which a Hilbert curve meets them, who is not present last."""
    bits, kind = (31, jnp.uint64) if tokens.dtype == jnp.float64 else (15, jnp.uint32)
    low = jnp.min(jnp.where(present[:, None], tokens, jnp.inf), axis=0)
    high = jnp.max(jnp.where(present[:, None], tokens, -jnp.inf), axis=0)
    width = jnp.where(high > low, high - low, 1)
    place = jnp.where(present[:, None], (tokens - low[None]) / width[None], 0)
    x, y = (jnp.round(place[:, axis] * (2**bits - 1)).astype(kind) for axis in (0, 1))
    full, one = jnp.asarray(2**bits - 1, kind), jnp.asarray(1, kind)

    def finer(level, carry):
        x, y, curve = carry
        shift = jnp.asarray(bits - 1 - level, kind)
        right, above = (x >> shift) & one, (y >> shift) & one
        curve = (curve << one << one) | ((right << one) | right) ^ above
        turned = above == 0
        flip = turned & (right == 1)
        x, y = jnp.where(flip, full - x, x), jnp.where(flip, full - y, y)
        return jnp.where(turned, y, x), jnp.where(turned, x, y), curve

    curve = lax.fori_loop(0, bits, finer, (x, y, jnp.zeros_like(x)))[2]
    curve = jnp.where(present, curve, jnp.asarray(jnp.iinfo(kind).max, kind))
    return lax.sort((curve, tokens[:, 0], tokens[:, 1], jnp.arange(tokens.shape[0], dtype=jnp.int32)), num_keys=3)[3]
