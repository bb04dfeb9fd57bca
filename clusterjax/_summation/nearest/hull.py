"""Hardmax attention in the plane by a bounding-volume hierarchy: the summation `Hull`.

**Algorithm.**

1. Each query separately, and all tokens together, are scaled by powers of two to entries of order one, which changes no
   comparison of scores (`_scale_to_unit`).
2. For the full mask, tokens of mass zero, and tokens too far inside the convex hull to tie with any maximum
   (`convex_hull.py`), are marked as not *present*.
3. The tokens are sorted along a Hilbert curve, absent tokens last, and a binary hierarchy of bounding rectangles is
   built over the tokens (`bounding_volumes.py`).
4. Rows are sorted by the direction of their query and grouped into packets, which traverse the hierarchy twice
   (`traversal.py`). The first traversal finds the largest score of each row, the second sums the weights of the tokens
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

from ..._custom_types import Masses, Tokens
from ..._mask import AbstractMask, CausalMask, FullMask
from ..._misc import matmul
from ..base import AbstractNearestSearch, HardmaxSums, Support, check_supported
from ..rows import tie_slack
from . import traversal
from .bounding_volumes import Hierarchy, build_hierarchy, build_sums, hilbert_order, push_down
from .convex_hull import interior_mask


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
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
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
    queries: Tokens, tokens: Tokens, present: Bool[Array, " n"], tie_tolerance: Float[Array, ""]
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
            return traversal.largest_scores(hierarchy, _queries(cloud, rows), roots, maxima[rows])

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
            gathered = traversal.gather_sums(hierarchy, sums, _queries(cloud, rows), roots, threshold[rows])
            return jnp.moveaxis(gathered, 0, -1)

        gathered = lax.map(call, packets).reshape(-1, total.shape[1])
        return total.at[packets[0].ravel()].add(gathered, unique_indices=True)

    total = jnp.zeros_like(weights)
    if causal:
        diagonal = lambda block: matmul(_diagonal_attended(block), block[4])
        total = lax.map(diagonal, _diagonal_blocks(cloud, threshold, weights)).reshape(total.shape)
    return _fold_hierarchies(cloud, causal, fold, total)


def _gather_sums_forward(weights, cloud, threshold, causal):
    return _gather_sums(weights, cloud, threshold, causal), (cloud, threshold)


def _gather_sums_backward(causal, residuals, cotangents):
    return _scatter_cotangents(cotangents, *residuals, causal), None, None


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
            return traversal.scatter_cotangents(hierarchy, query, roots, threshold[rows], of_rows, scattered), None

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


def _scatter_cotangents_forward(cotangents, cloud, threshold, causal):
    return _scatter_cotangents(cotangents, cloud, threshold, causal), (cloud, threshold)


def _scatter_cotangents_backward(causal, residuals, cotangents):
    cloud, threshold = residuals
    return _gather_sums(jnp.where(cloud.present[:, None], cotangents, 0), cloud, threshold, causal), None, None


# Both functions are linear, and each is the transpose of the other, so that derivatives of every order exist.
_gather_sums.defvjp(_gather_sums_forward, _gather_sums_backward)
_scatter_cotangents.defvjp(_scatter_cotangents_forward, _scatter_cotangents_backward)
