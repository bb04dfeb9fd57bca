"""Rows that walk together through a tree of boxes: the largest score, and sums over what scores a bound or more.

**Algorithm.** A packet of rows goes through the heap in depth-first order without a stack: from a node to its first
child if some row wants to look inside, else to the node after all below it. A row that does not want to look inside is
past the box until the packet has left it. Packets wait at blocks of tokens until half of them have come to one, so that
blocks are compared for many packets at once.

**Reference.** Wald, Slusallek, Benthin, Wagner, *Interactive rendering with coherent ray tracing* (2001): packets.

**Invariants.** A row visits each node at most once, and no node below one that it took whole or left, so that no token
is counted twice; what it neither took nor left it follows down to the block. `spread` takes the branches of `collect`,
which depend on the tree, the queries and `least` alone: it is its transpose, term for term.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .boxes import BLOCK, Sums, Tree


# Of each row of each packet, or of one that stands for all.
Scores = Float[Array, "packets _"]
Queries = tuple[Scores, Scores]

# So many boxes of each level are followed in search of a good token.
_BEAM = 4


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
