"""A tree of boxes around tokens in the plane: the largest score, and sums over what scores no less than a bound."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


# Of each row of each packet, or of one that stands for all.
Scores = Float[Array, "packets _"]
Queries = tuple[Scores, Scores]

# The smallest boxes hold this many tokens, which are looked at one by one; a power of two.
BLOCK = 32
# So many boxes of each level are followed in search of a good token.
_BEAM = 4

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


def make_sums(weighted: Float[Array, "m k"]) -> Sums:
    """The sum of the weights in each box."""
    blocks = weighted.reshape(-1, BLOCK, weighted.shape[1]).swapaxes(1, 2)
    boxes = _heap(jnp.sum(blocks, axis=2).T, lambda left, right: left + right).T
    return Sums(boxes, blocks.reshape(blocks.shape[0], -1))


def push_down(sums: Sums) -> Float[Array, "m k"]:
    """For each token what it holds and what the boxes around it do: the transpose of `make_sums`."""
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


def _score(box: Float[Array, "8 packets _"], query: Queries) -> tuple[Scores, Scores]:
    """The least and the largest score in each box; of a single point, its score."""
    x, y = query
    score = x * box[0] + y * box[1]
    low, high = score, score
    for part, least, most in ((x * box[2] + y * box[3], box[4], box[5]), (y * box[2] - x * box[3], box[6], box[7])):
        one, other = part * least, part * most
        low, high = low + jnp.minimum(one, other), high + jnp.maximum(one, other)
    return low, high


def _box(tree: Tree, node: Int[Array, " packets"]) -> Float[Array, "8 packets 1"]:
    return tree.boxes[node].T[:, :, None]


def _block_scores(tree: Tree, block: Int[Array, " packets"], query: Queries) -> Float[Array, "packets block rows"]:
    """The scores of the tokens of each block; not a number for whoever is not there."""
    tokens = tree.blocks[block][:, :, None]
    return query[0][:, None, :] * tokens[:, :BLOCK] + query[1][:, None, :] * tokens[:, BLOCK:]


def _next(node: Int[Array, " packets"]) -> Int[Array, " packets"]:
    """The node that comes after `node` and all below it."""
    after = node + 1
    return after >> lax.population_count((after & -after) - 1)


def walk(
    tree: Tree,
    query: Queries,
    root: Int[Array, " packets"],
    visit: Callable[..., tuple[Any, Bool[Array, "packets rows"]]],
    look: Callable[..., Any],
    state: Any,
) -> Any:
    """The rows of each packet walk together through the tree below its `root`, as rays do in packets.

    `visit(state, node, awake, low, high)` gives the new state and which rows want to look inside, of those that are
    `awake`: the others are past a box around this one. A packet goes where one of its rows wants to. What lies in the
    smallest boxes are blocks: `look(state, block, within, scores)` gives the state after it for the rows `within`.
    A packet at a block waits until every second is at one.
    """
    first, end = tree.blocks.shape[0], _next(root)

    def step(carry):
        node, going, past, within, state = carry
        waits = jnp.any(within, axis=1)
        low, high = _score(_box(tree, node), query)
        # The deeper the fewer leading zeros. A row is past a box until the packet is no deeper than that.
        height = lax.clz(node)[:, None]
        awake = (going & ~waits)[:, None] & (height >= past)
        state, inside = visit(state, node, awake, low, high)
        past = jnp.where(awake, jnp.where(inside, 0, height), past)
        within = within | (inside & (node >= first)[:, None])
        return *_onward(node, going, ~waits, jnp.any(inside, axis=1)), past, within, state

    def _onward(node, going, moves, deeper):
        """The next box of the packets that move, below theirs or after it; at a block they stay."""
        after = _next(node)
        last = node >= first
        on = jnp.where(deeper, jnp.where(last, node, 2 * node), after)
        still = deeper | (after != end)
        return jnp.where(moves & going & still, on, node), going & (still | ~moves)

    def most_move(carry):
        _, going, _, within, _ = carry
        return 2 * jnp.sum(going & ~jnp.any(within, axis=1)) > jnp.sum(going)

    def blocks(carry):
        node, going, past, within, state = lax.while_loop(most_move, step, carry)
        at = jnp.any(within, axis=1)
        block = jnp.where(at, node - first, 0)
        state = look(state, block, within, _block_scores(tree, block, query))
        node, going = _onward(node, going, at, jnp.zeros_like(at))
        return node, going, past, jnp.zeros_like(within), state

    rows = query[0].shape
    start = root, jnp.ones(root.shape, bool), jnp.zeros(rows, root.dtype), jnp.zeros(rows, bool), state
    return lax.while_loop(lambda carry: jnp.any(carry[1]), blocks, start)[4]


def largest(tree: Tree, query: Queries, root: Int[Array, " packets"], top: Scores) -> Scores:
    """The largest score below `root`, or `top` if that is larger."""
    first, middle = tree.blocks.shape[0], top.shape[1] // 2
    leader = query[0][:, middle, None], query[1][:, middle, None]

    def descend(nodes):
        below = jnp.concatenate([2 * nodes, jnp.where(nodes == 0, 0, 2 * nodes + 1)], axis=1)
        high = _score(jnp.moveaxis(tree.boxes[below], -1, 0), leader)[1]
        best = lax.top_k(jnp.where(jnp.isnan(high) | (below == 0), -jnp.inf, high), _BEAM)[1]
        return jnp.take_along_axis(below, best, axis=1)

    def look(top, block, within, scores):
        scores = jnp.where(scores > -jnp.inf, scores, -jnp.inf)
        return jnp.where(within, jnp.maximum(top, jnp.max(scores, axis=1)), top)

    def visit(top, node, awake, low, high):
        return top, awake & (high > top)

    # A good token first, so that most boxes need not be looked into: on each level the best few boxes, nil for none.
    nodes = jnp.pad(root[:, None], ((0, 0), (0, _BEAM - 1)))
    nodes = lax.while_loop(lambda nodes: jnp.max(nodes) < first, descend, nodes)
    for node in nodes.T:
        scores = _block_scores(tree, jnp.maximum(node - first, 0), query)
        top = look(top, node, jnp.broadcast_to((node > 0)[:, None], top.shape), scores)
    return walk(tree, query, root, visit, look, top)


def collect(
    tree: Tree, sums_of: Sums, query: Queries, root: Int[Array, " packets"], least: Scores
) -> Float[Array, "k packets rows"]:
    """The sum of the weights of the tokens below `root` that score `least` or more."""
    k = sums_of.boxes.shape[1]

    def visit(sums, node, awake, low, high):
        whole = awake & (low >= least)
        weights = sums_of.boxes[node].T[:, :, None]
        return sums + jnp.where(whole[None], weights, 0), awake & ~whole & (high >= least)

    def look(sums, block, within, scores):
        chosen = _attained(within, scores, least)
        weights = sums_of.blocks[block].reshape(-1, k, BLOCK)
        found = [jnp.sum(jnp.where(chosen, weights[:, c, :, None], 0), axis=1) for c in range(k)]
        return sums + jnp.stack(found)

    return walk(tree, query, root, visit, look, jnp.zeros((k, *least.shape), least.dtype))


def _attained(within: Bool[Array, "packets rows"], scores, least) -> Bool[Array, "packets block rows"]:
    return within[:, None, :] & (scores >= least[:, None, :]) & (scores > -jnp.inf)


def spread(
    tree: Tree,
    query: Queries,
    root: Int[Array, " packets"],
    least: Scores,
    cotangent: Float[Array, "k packets rows"],
    owed: Sums,
) -> Sums:
    """`owed` and the transpose of `collect`: what boxes and tokens owe to the rows that took them."""

    def visit(owed, node, awake, low, high):
        whole = awake & (low >= least)
        shares = jnp.sum(jnp.where(whole[None], cotangent, 0), axis=2).T
        return Sums(owed.boxes.at[node].add(shares), owed.blocks), awake & ~whole & (high >= least)

    def look(owed, block, within, scores):
        chosen = _attained(within, scores, least)
        shares = jnp.stack([jnp.sum(jnp.where(chosen, part[:, None, :], 0), axis=2) for part in cotangent], axis=1)
        return Sums(owed.boxes, owed.blocks.at[block].add(shares.reshape(shares.shape[0], -1)))

    return walk(tree, query, root, visit, look, owed)


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
