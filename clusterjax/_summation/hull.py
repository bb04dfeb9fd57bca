"""Hardmax in the plane: only what lies at the rim of the cloud is looked at.

**Algorithm.** (1) Queries, each by itself, and tokens, all together, are scaled by powers of two to a size near one,
which changes no choice. (2) Full mask: tokens of mass zero, and those so deep inside the cloud that no tie reaches
them (`rim.py`), are not *present*. (3) The tokens are ordered along a Hilbert curve, who is not present last, and a
binary tree of boxes is built over them (`boxes.py`). (4) Rows, sorted by the direction of their query, walk through
the tree in packets (`packets.py`) twice: for the largest score of each row, and for the sums of the weights of the
tokens that score `least` or more, the largest score less the slack of a tie. (5) Causal: for each power of two the
tokens are cut into blocks of that size, each with a tree of its own, and the rows of each second block walk through
the block before; rows and tokens of one chunk of 128 are compared pair by pair.

**Reference.** A bounding-volume hierarchy whose rays are queries: Wald, Slusallek, Benthin, Wagner, *Interactive
rendering with coherent ray tracing* (2001), for packets; Akl and Toussaint, *A fast convex hull algorithm* (1978), for
what is left out at the start. Put together: this library.

**Invariants.**

- A token that is not present is never counted: its place in a tree is taken by a copy of one that is present, so that
  no box grows by it; in a block its score is not a number, which is never `>= least`; and in the sums of boxes, which
  may be taken whole, its weight is zero (`make_sums`). The derivative of its weight is zero likewise.
- The score of every present token lies between `low` and `high` of every box around it, as rounded; a box is taken
  whole only if `low >= least`, and left only if `high < least`. So what is summed is what a loop over all pairs sums.
- Every present token that a row attends to is below exactly one root that the row walks from, or in its chunk.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._custom_types import Masses, Tokens
from .._mask import AbstractMask, CausalMask, FullMask
from .._misc import matmul
from .base import AbstractSummation, ExponentialSums, HardmaxSums
from .blocked import Blocked
from .boxes import Tree, make_sums, make_tree, nearness, push_down
from .packets import collect, largest, spread
from .rim import deep
from .rows import tie_slack


class Hull(AbstractSummation):
    """Hardmax in the plane in about n log n steps: no token inside the convex hull is ever attended to.

    Tokens deeper inside the cloud than a tie reaches are left out where every row sees all. The others are ordered
    along a Hilbert curve, and a tree of boxes is built over them. Rows walk through it in packets, those of like
    direction together. A row looks only into boxes that reach its maximum, and takes boxes whole in which every token
    attains it, so that ties by the thousand cost no more than a few. A causal row looks into the trees of the blocks
    of tokens before it, of sizes that are powers of two, log n of them. What is summed is what `Dense` sums, tie for
    tie: boxes are widened by what rounding may do. In float32 the scores of neighbours on the circle differ by less
    than that, so that of a million tokens some hundreds are looked at in each row.

    Only the hardmax sums of tokens in the plane under a full or a causal mask are made in this way; exponential sums
    and other masks are left to `Blocked`. Derivatives are those of reverse mode.

    **Raises:**

    - `ValueError` on use, if the tokens are not of dimension two.

    Source: this library.
    """

    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        return Blocked().exponential(queries, tokens, values, masses, mask)

    @eqx.filter_jit
    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
    ) -> HardmaxSums:
        n, d = tokens.shape
        if d != 2:
            raise ValueError(f"Hull serves tokens of dimension 2, but theirs is {d}; use Blocked() or Auto().")
        if not serves(d, mask):
            return Blocked().hardmax(queries, tokens, values, masses, mask, tie_tolerance)
        causal = isinstance(mask, CausalMask)
        # So no square overflows or underflows that a score does not; the tokens all by one power, so that ties remain.
        queries, tokens = _near_one(queries, 1), _near_one(tokens, None)
        weighted = jnp.concatenate([jnp.ones((n, 1), values.dtype), values], axis=1)
        weighted = weighted if masses is None else weighted * masses[:, None]
        here = jnp.ones(n, bool) if masses is None else masses > 0
        # A causal row does not see the tokens that would make others too deep for it.
        if not causal:
            here = here & ~_too_deep(queries, tokens, here, tie_tolerance)
        cloud = _enter(queries, tokens, here)
        tops, longest = lax.stop_gradient(_largest(cloud, causal))
        least = tops - tie_slack(cloud.queries, longest, tie_tolerance)
        weighted = jnp.pad(weighted, ((0, cloud.here.shape[0] - n), (0, 0)))
        sums: Any = _collect(weighted, lax.stop_gradient(cloud), lax.stop_gradient(least), causal)
        return HardmaxSums(sums[:n, 0], sums[:n, 1:])


def serves(d: int, mask: AbstractMask) -> bool:
    """Whether the hardmax sums of tokens of dimension `d` under `mask` can be made from boxes."""
    return d == 2 and isinstance(mask, FullMask | CausalMask)


class _Cloud(eqx.Module):
    """Queries and tokens, filled up to a power of two; tokens by nearness, and rows by the direction of the query."""

    queries: Float[Array, "m 2"]
    tokens: Float[Array, "m 2"]
    here: Bool[Array, " m"]
    order: Int[Array, " m"]
    rows: Int[Array, " m"]


# A causal row is compared with its own chunk token by token. So many rows of near directions walk together, which are
# a packet, and so many packets at once: enough to be worth a call.
_CHUNK, _TOGETHER, _PACKETS = 128, 64, 256


def _too_deep(
    queries: Tokens, tokens: Tokens, here: Bool[Array, " n"], tie_tolerance: Float[Array, ""]
) -> Bool[Array, " n"]:
    queries, tokens, tie_tolerance = lax.stop_gradient((queries, tokens, tie_tolerance))
    longest = jnp.max(jnp.where(here, jnp.sqrt(tokens[:, 0] ** 2 + tokens[:, 1] ** 2), 0))
    shortest = jnp.min(jnp.max(jnp.abs(queries), axis=1))
    # To a query of length zero all tokens are equal; any other is of a size near one.
    depth = (tie_tolerance + 32 * float(jnp.finfo(tokens.dtype).eps)) * longest
    return (shortest > 0) & deep(tokens, here, depth)


def _near_one(a: Tokens, axis: int | None) -> Tokens:
    """Along `axis`, or as a whole, scaled by the power of two that brings the largest entry near one; zero stays."""
    a = lax.stop_gradient(a)
    exponent = jnp.frexp(jnp.max(jnp.abs(a), axis=axis, keepdims=True))[1]
    # The power itself must be a normal number.
    most = jnp.finfo(a.dtype).maxexp - 3
    return a * jnp.ldexp(jnp.ones_like(a[:1, :1]), -jnp.clip(exponent, -most, most))


def _enter(queries: Tokens, tokens: Tokens, here: Bool[Array, " n"]) -> _Cloud:
    n = tokens.shape[0]
    m = max(_CHUNK, 1 << (n - 1).bit_length())
    queries, tokens = (lax.stop_gradient(jnp.pad(a, ((0, m - n), (0, 0)))) for a in (queries, tokens))
    here = jnp.pad(here, (0, m - n))
    angle = jnp.where(jnp.arange(m) < n, jnp.arctan2(queries[:, 1], queries[:, 0]), jnp.inf)
    return _Cloud(queries, tokens, here, nearness(tokens, here), jnp.argsort(angle).astype(jnp.int32))


def _tree(cloud: _Cloud, order: Int[Array, " m"]) -> Tree:
    here = cloud.here[order]
    # Who is not here takes the place of the last one before who is, so that no box grows by him.
    last = lax.cummax(jnp.where(here, jnp.arange(order.shape[0], dtype=jnp.int32), 0))
    return make_tree(cloud.tokens[order[last]], here)


def _walks(rows: Int[Array, " rows"], roots: Int[Array, " packets"]) -> tuple[Array, Array]:
    """The rows and roots of packets, some packets at a time."""
    packets = min(_PACKETS, roots.shape[0])
    return rows.reshape(-1, packets, _TOGETHER), roots.reshape(-1, packets)


def _over_trees(cloud: _Cloud, causal: bool, visit: Callable[..., Any], state: Any) -> Any:
    """`state` after `visit(state, order, walks)` with each order of the tokens in which trees stand side by side.

    Full: one tree, and every row walks through it. Causal: for each power of two the tokens are cut into blocks of
    that size, each with a tree, and the rows of every second block walk through the block before.
    """
    m = cloud.here.shape[0]
    if not causal:
        return visit(state, cloud.order, _walks(cloud.rows, jnp.ones(m // _TOGETHER, jnp.int32)))

    def finer(carry, level):
        order, rows, state = carry
        order, rows = _halve(order, level), _halve(rows, level)
        k = jnp.arange(m // 2, dtype=jnp.int32)
        place = ((k >> level) << (level + 1)) + (1 << level) + (k & ((1 << level) - 1))
        roots = (m >> level) + (place[::_TOGETHER] >> level) - 1
        return (order, rows, visit(state, order, _walks(rows[place], roots))), None

    levels = jnp.arange(m.bit_length() - 2, _CHUNK.bit_length() - 2, -1, dtype=jnp.int32)
    return lax.scan(finer, (cloud.order, cloud.rows, state), levels)[0][2] if levels.size else state


def _queries(cloud: _Cloud, rows: Int[Array, "packets rows"]) -> tuple[Array, Array]:
    return cloud.queries[rows, 0], cloud.queries[rows, 1]


def _halve(order: Int[Array, " m"], level: Int[Array, ""]) -> Int[Array, " m"]:
    """The order in which each block of 2^(level + 1) token numbers is cut in two, near tokens still neighbours."""
    block, late = order >> (level + 1), (order >> level) & 1
    rank = jnp.where(late == 1, jnp.cumsum(late, dtype=jnp.int32), jnp.cumsum(1 - late, dtype=jnp.int32)) - 1
    place = (((block << 1) + late) << level) + rank - (block << level)
    return jnp.zeros_like(order).at[place].set(order, unique_indices=True)


def _chunks(cloud: _Cloud, *others: Array) -> tuple:
    parts = (cloud.queries, cloud.tokens, cloud.here, *others)
    return tuple(a.reshape(-1, _CHUNK, *a.shape[1:]) for a in parts)


def _chunk_scores(queries: Tokens, tokens: Tokens, here: Bool[Array, " n"]) -> Float[Array, "n n"]:
    index = jnp.arange(queries.shape[0])
    allowed = (index[None, :] <= index[:, None]) & here[None, :]
    scores = queries[:, 0, None] * tokens[None, :, 0] + queries[:, 1, None] * tokens[None, :, 1]
    return jnp.where(allowed, scores, -jnp.inf)


def _largest(cloud: _Cloud, causal: bool) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """The largest score of each row, and the length of the longest token that it attends to."""
    m = cloud.here.shape[0]

    def visit(tops, order, walks):
        tree = _tree(cloud, order)

        def some(walk):
            rows, roots = walk
            return largest(tree, _queries(cloud, rows), roots, tops[rows])

        return tops.at[walks[0].ravel()].set(lax.map(some, walks).ravel(), unique_indices=True)

    lengths = jnp.where(cloud.here, jnp.sqrt(jnp.sum(cloud.tokens * cloud.tokens, axis=1)), 0)
    tops = jnp.full(m, -jnp.inf, cloud.tokens.dtype)
    if causal:
        tops = lax.map(lambda chunk: _chunk_scores(*chunk).max(axis=1), _chunks(cloud)).reshape(m)
        return _over_trees(cloud, True, visit, tops), lax.cummax(lengths)
    return _over_trees(cloud, False, visit, tops), jnp.broadcast_to(jnp.max(lengths), (m,))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _collect(
    weighted: Float[Array, "m k"], cloud: _Cloud, least: Float[Array, " m"], causal: bool
) -> Float[Array, "m k"]:
    """For each row the sum of the weights of the tokens that score `least` or more."""

    def visit(sums, order, walks):
        tree, sums_of = _tree(cloud, order), make_sums(weighted[order], cloud.here[order])

        def some(walk):
            rows, roots = walk
            return jnp.moveaxis(collect(tree, sums_of, _queries(cloud, rows), roots, least[rows]), 0, -1)

        found = lax.map(some, walks).reshape(-1, sums.shape[1])
        return sums.at[walks[0].ravel()].add(found, unique_indices=True)

    sums = jnp.zeros_like(weighted)
    if causal:
        own = lambda chunk: matmul(_chosen(chunk), chunk[4])
        sums = lax.map(own, _chunks(cloud, least, weighted)).reshape(sums.shape)
    return _over_trees(cloud, causal, visit, sums)


def _chosen(chunk: tuple[Array, ...]) -> Float[Array, "n n"]:
    queries, tokens, here, least, weighted = chunk
    scores = _chunk_scores(queries, tokens, here)
    return ((scores >= least[:, None]) & (scores > -jnp.inf)).astype(weighted.dtype)


def _collect_forward(weighted, cloud, least, causal):
    return _collect(weighted, cloud, least, causal), (cloud, least)


def _collect_backward(causal, kept, cotangent):
    return _spread(cotangent, *kept, causal), None, None


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _spread(
    cotangent: Float[Array, "m k"], cloud: _Cloud, least: Float[Array, " m"], causal: bool
) -> Float[Array, "m k"]:
    """The transpose of `_collect`: for each token the sum of the cotangents of the rows that chose it."""
    none = jnp.zeros_like(cotangent)

    def visit(back, order, walks):
        tree = _tree(cloud, order)

        def some(owed, walk):
            rows, roots = walk
            received = jnp.moveaxis(cotangent[rows], -1, 0)
            return spread(tree, _queries(cloud, rows), roots, least[rows], received, owed), None

        nothing = jax.tree.map(jnp.zeros_like, make_sums(back, cloud.here))
        return back.at[order].add(push_down(lax.scan(some, nothing, walks)[0]))

    back = none
    if causal:
        own = lambda chunk: matmul(_chosen(chunk).T, chunk[4])
        back = lax.map(own, _chunks(cloud, least, cotangent)).reshape(none.shape)
    back = _over_trees(cloud, causal, visit, back)
    return jnp.where(cloud.here[:, None], back, 0)


def _spread_forward(cotangent, cloud, least, causal):
    return _spread(cotangent, cloud, least, causal), (cloud, least)


def _spread_backward(causal, kept, cotangent):
    cloud, least = kept
    return _collect(jnp.where(cloud.here[:, None], cotangent, 0), cloud, least, causal), None, None


# Each is the transpose of the other, so that there are derivatives of every order.
_collect.defvjp(_collect_forward, _collect_backward)
_spread.defvjp(_spread_forward, _spread_backward)
