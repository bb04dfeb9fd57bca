"""Every pair at once, or nearly: the sum for up to a few thousand tokens."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._custom_types import Masses, Tokens
from .._mask import AbstractMask, FullMask
from .._misc import below
from .base import AbstractSummation, ExponentialSums, HardmaxSums
from .rows import Columns, exponential_rows, hardmax_rows, lowest, make_columns


class Dense(AbstractSummation):
    """Every pair of tokens, O(n^2) time, and memory in the backward pass.

    In few dimensions on a CPU the forward pass walks over narrow strips of columns, which stay in the cache and keep
    their layout when a batch is mapped over; elsewhere it is two matrix products.

    Source: this library.
    """

    @eqx.filter_jit
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        n, d = tokens.shape
        width = d if values is None else values.shape[1]
        if d + width <= _STRIP_MAX_NUMBERS and jax.default_backend() == "cpu":
            columns = make_columns(tokens, values, masses, _strip_width(n))
            shift, normaliser, total = _strips(queries, columns, mask)
            return ExponentialSums(shift, normaliser, total)
        shift, sums = exponential_rows(queries, jnp.arange(n), make_columns(tokens, values, masses, n), mask)
        return ExponentialSums(shift, sums[:, 0], sums[:, 1:])

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
        n = tokens.shape[0]
        columns = make_columns(tokens, values, masses, n)
        sums = hardmax_rows(queries, jnp.arange(n), columns, mask, tie_tolerance)
        return HardmaxSums(sums[:, 0], sums[:, 1:])


_STRIP_MAX_NUMBERS = 16
_SMALL_EXPONENT = 16  # e^-16 is far from the end of float32


def _strip_width(n: int) -> int:
    """How many columns a strip has: as many as keep strip and accumulators in the first-level cache."""
    return min(n, 16, max(8, 2048 // n))


def _strips(
    queries: Tokens, columns: Columns, mask: AbstractMask
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, "n k"]]:
    """Shift, normaliser and total by a scan over strips of columns, each number of a token an array of its own.

    The rows run along the last axis, so that every operation is elementwise over rows: no matrix product with an inner
    dimension of two or three, and nothing of size n x n.

    A compiler makes the scores twice, for their maximum and for the weights, and may round the two differently, by a
    share `rounding` of them. Where that is so much that the largest weight might vanish, the shift is lower by it, and
    the scores above count as equal: they are so large that rounding has made them what they are.
    """
    n, d = queries.shape
    rows = jnp.arange(n)
    query = [queries[:, k] for k in range(d)]
    rounding = d * jnp.finfo(queries.dtype).eps

    def step(carry, block: Columns):
        shift, sums = carry
        scores: Any = sum(q[None, :] * block.tokens[:, k, None] for k, q in enumerate(query))
        if block.present is not None or not isinstance(mask, FullMask):
            allowed = mask.allowed(rows[None, :], block.index[:, None])
            allowed = allowed if block.present is None else allowed & block.present[:, None]
            scores = jnp.where(allowed, scores, -jnp.inf)
        top = jnp.max(lax.stop_gradient(scores), axis=0)
        off = rounding * jnp.abs(top)
        top = jnp.maximum(shift, jnp.where(off > _SMALL_EXPONENT, top - off, top))
        weights, back = jnp.exp(below(scores, top[None, :])), jnp.exp(shift - top)
        weighted = block.weighted()
        added = [jnp.sum(weights * weighted[:, k, None], axis=0) for k in range(block.width)]
        return (top, [s * back + a for s, a in zip(sums, added, strict=True)]), None

    zero = jnp.zeros(n, queries.dtype)
    start = (lowest(n, queries.dtype), [zero] * columns.width)
    if columns.tokens.shape[0] == 1:
        (shift, sums), _ = step(start, jax.tree.map(lambda leaf: leaf[0], columns))
    else:
        (shift, sums), _ = lax.scan(step, start, columns)
    return shift, sums[0], jnp.stack(sums[1:], axis=1)
