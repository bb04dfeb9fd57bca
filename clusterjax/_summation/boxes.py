"""A tree of boxes around tokens in the plane: the largest score, and sums over what scores no less than a bound."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


# From this many nodes on the levels that are left are made in one loop; above it, four levels to a loop.
_FEW = 4096


def make_bounds(tokens: Float[Array, "m 2"], present: Bool[Array, " m"]) -> Float[Array, "nodes 8"]:
    """The boxes over `tokens`, as many as a power of two; who is not present comes last, as a copy of one who is."""
    m, dtype = tokens.shape[0], tokens.dtype
    # Ten rows, so that each is contiguous: first token, direction, four extents, last token.
    points = jnp.concatenate([tokens.T, jnp.ones((1, m), dtype), jnp.zeros((5, m), dtype), tokens.T])
    heap = _heap(points, _parents)
    wide = jnp.any(heap[5:8:2] > heap[4:8:2], axis=0)
    longest = jnp.max(jnp.where(present, jnp.sqrt(tokens[:, 0] ** 2 + tokens[:, 1] ** 2), 0))
    # A score is rounded as its size is; of a single point all scores are one number, and so is its bound.
    slack = jnp.where(wide, 4 * jnp.finfo(dtype).eps * longest, 0)
    sides = jnp.asarray([-1.0, 1.0, -1.0, 1.0], dtype)
    bounds = jnp.concatenate([heap[:4], heap[4:8] + slack[None] * sides[:, None]])
    return jnp.where(_somebody(present)[None], bounds, jnp.nan).T


def make_sums(weighted: Float[Array, "m k"]) -> Float[Array, "nodes k"]:
    """The sum of the weights in each box."""
    return _heap(weighted.T, lambda left, right: left + right).T


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


def push_down(nodes: Float[Array, "nodes k"]) -> Float[Array, "m k"]:
    """For each token the sum over the boxes that hold it: the transpose of `make_sums`."""
    out, size = nodes[1:2], 2
    while size < nodes.shape[0]:
        out = jnp.repeat(out, 2, axis=0) + nodes[size : 2 * size]
        size *= 2
    return out


def _score(box: Float[Array, "lanes 8"], query: Float[Array, "lanes 2"]) -> tuple[Array, Array]:
    """The least and the largest score in each box; of a single point, its score."""
    x, y = query[:, 0], query[:, 1]
    score = x * box[:, 0] + y * box[:, 1]
    low, high = score, score
    for part, least, most in (
        (x * box[:, 2] + y * box[:, 3], box[:, 4], box[:, 5]),
        (y * box[:, 2] - x * box[:, 3], box[:, 6], box[:, 7]),
    ):
        low = low + jnp.minimum(part * least, part * most)
        high = high + jnp.maximum(part * least, part * most)
    return low, high


def _next(node: Int[Array, " lanes"]) -> Int[Array, " lanes"]:
    """The node that comes after `node` and all below it."""
    after = node + 1
    return after >> lax.population_count((after & -after) - 1)


def walk(
    bounds: Float[Array, "nodes 8"], query: Float[Array, "lanes 2"], root: Int[Array, " lanes"], active, visit, state
):
    """Each lane walks through the tree below its `root`.

    `visit(state, node, low, high)` gives the new state and whether to look inside; a single token is not looked into.
    """
    m = bounds.shape[0] // 2
    end = _next(root)

    def step(carry):
        node, active, state = carry
        low, high = _score(bounds[node], query)
        state, deeper = visit(state, jnp.where(active, node, 0), low, high, active)
        deeper = deeper & (node < m)
        after = _next(node)
        left = ~deeper & (after == end)
        return jnp.where(active, jnp.where(deeper, 2 * node, after), node), active & ~left, state

    return lax.while_loop(lambda carry: jnp.any(carry[1]), step, (root, active, state))[2]


def largest(
    bounds: Float[Array, "nodes 8"], query, root, active, top: Float[Array, " lanes"]
) -> Float[Array, " lanes"]:
    """The largest score below `root`, or `top` if that is larger."""
    m = bounds.shape[0] // 2

    def descend(carry):
        node, _ = carry
        left, right = (_score(bounds[jnp.minimum(child, 2 * m - 1)], query)[1] for child in (2 * node, 2 * node + 1))
        inner = node < m
        return jnp.where(inner, 2 * node + (right > left).astype(node.dtype), node), jnp.any(2 * node < m)

    # A good token first, so that most boxes need not be looked into.
    node, _ = lax.while_loop(lambda carry: carry[1], descend, (root, jnp.any(root < m)))
    score = _score(bounds[node], query)[1]
    top = jnp.where(active & (score > top), score, top)

    def visit(top, node, low, high, active):
        higher = active & (high > top)
        return jnp.where(higher & (node >= m), high, top), higher

    return walk(bounds, query, root, active, visit, top)


def collect(
    bounds: Float[Array, "nodes 8"],
    sums_of: Float[Array, "nodes k"],
    query,
    root,
    active,
    least: Float[Array, " lanes"],
) -> Float[Array, "lanes k"]:
    """The sum of the weights of the tokens below `root` that score `least` or more."""

    def visit(sums, node, low, high, active):
        whole = active & (low >= least)
        sums = sums + jnp.where(whole[:, None], sums_of[node], 0)
        return sums, active & ~whole & (high >= least)

    return walk(bounds, query, root, active, visit, jnp.zeros((query.shape[0], sums_of.shape[1]), query.dtype))


def spread(bounds: Float[Array, "nodes 8"], query, root, active, least, cotangent: Float[Array, "lanes k"], nodes):
    """`nodes` with the transpose of `collect` added: what each box owes to the lanes that took it whole."""

    def visit(nodes, node, low, high, active):
        whole = active & (low >= least)
        nodes = nodes.at[node].add(jnp.where(whole[:, None], cotangent, 0))
        return nodes, active & ~whole & (high >= least)

    return walk(bounds, query, root, active, visit, nodes)


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
    return lax.sort((curve, tokens[:, 0], tokens[:, 1], jnp.arange(tokens.shape[0])), num_keys=3)[3]
