"""`Dense`: every pair of tokens at once, for up to about a thousand tokens.

**Algorithm.** Three forms of the same sums. Plain: one matrix product of scores, exponentials, one product with values.
Strips, on a CPU in few dimensions: an online softmax (Milakov, Gimelshein, 1805.02867) over narrow strips of columns,
each coordinate an array of its own. A batch of small systems under `jax.vmap`: `systems_last.py`.

**Invariants.** All forms agree but for rounding; the shift of a row carries no derivative. On a CPU another form is
differentiated in the place of the strips, by products of matrices: a gradient of 64 tokens in three dimensions would
take 2.5 times as long through them, in eight dimensions 5 times.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._batching import call_with_rule
from .._custom_types import Masses, Tokens
from .._mask import AbstractMask, FullMask
from .._misc import below, matmul
from .base import AbstractExponentialSum, AbstractNearestSearch, ExponentialSums, HardmaxSums, Support
from .rows import FEW_NUMBERS, Columns, exponential_rows, hardmax_rows, last_shift, lowest, make_columns, next_shift
from .systems_last import batch_rule


class Dense(AbstractExponentialSum, AbstractNearestSearch):
    """Every pair of tokens, O(n^2) time, and memory in the backward pass.

    In few dimensions on a CPU the forward pass scans over narrow strips of columns, which stay in the cache. Where
    `jax.vmap` maps over many small systems there, it takes blocks of them with the systems in the last axis. Elsewhere
    it is two matrix products.
    """

    @property
    def supports(self) -> Support:
        return Support()

    @eqx.filter_jit
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        # Functions with a rule close over no traced array: those of a mask are arguments.
        arrays, static = eqx.partition(mask, eqx.is_array)
        of_arrays = lambda sums: lambda *args: sums(*args[:-1], eqx.combine(args[-1], static))
        args, plain, single = (queries, tokens, values, masses, arrays), of_arrays(_plain), of_arrays(_single)
        # Elsewhere than on a CPU the plain form is the fast one for a batch too.
        if jax.default_backend() != "cpu":
            return ExponentialSums(*plain(*args))
        batch = functools.partial(batch_rule, single, static)
        return ExponentialSums(*call_with_rule(single, batch, *args, differentiated=of_arrays(_transposed)))

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


def _single(queries, tokens, values, masses, mask: AbstractMask):
    """Shift, normaliser and total of one system, on a CPU."""
    n, d = tokens.shape
    width = d if values is None else values.shape[1]
    if d + width <= FEW_NUMBERS:
        return _strips(queries, make_columns(tokens, values, masses, _strip_width(n)), mask)
    return _plain(queries, tokens, values, masses, mask)


def _plain(queries, tokens, values, masses, mask: AbstractMask):
    """The same by products of matrices."""
    n = tokens.shape[0]
    shift, sums = exponential_rows(queries, jnp.arange(n), make_columns(tokens, values, masses, n), mask)
    return shift, sums[:, 0], sums[:, 1:]


def _transposed(queries, tokens, values, masses, mask: AbstractMask):
    """The same, made to be differentiated: scores are (columns, rows), so that maxima run along the first axis."""
    n, d = tokens.shape
    block = jax.tree.map(lambda leaf: leaf[0], make_columns(tokens, values, masses, n))
    if d + block.width - 1 > FEW_NUMBERS:
        return _plain(queries, tokens, values, masses, mask)
    scores = _masked(matmul(tokens, queries.T), jnp.arange(n), block, mask)
    has_mass = None if block.has_mass is None else block.has_mass[:, None]
    shift, _ = next_shift(lowest(n, queries.dtype), jnp.zeros(n, queries.dtype), scores, has_mass, 0, d)
    sums = matmul(block.weighted().T, jnp.exp(below(scores, shift[None, :], has_mass)))
    return last_shift(shift, sums[0], masses), sums[0], sums[1:].T


def _masked(scores: Array, rows: Array, block: Columns, mask: AbstractMask) -> Array:
    """Scores, (columns, rows), that are minus infinity where a row may not attend to a column."""
    if block.present is None and isinstance(mask, FullMask):
        return scores
    allowed = mask.allowed(rows[None, :], block.index[:, None])
    allowed = allowed if block.present is None else allowed & block.present[:, None]
    return jnp.where(allowed, scores, -jnp.inf)


def _strip_width(n: int) -> int:
    """How many columns a strip has: as many as keep strip and accumulators in the first-level cache."""
    # 2048 scores of a strip: 8 or 16 KB.
    return min(n, 16, max(8, 2048 // n))


def _strips(
    queries: Tokens, columns: Columns, mask: AbstractMask
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, "n k"]]:
    """Shift, normaliser and total by a scan over strips of columns, each number of a token an array of its own.

    The rows run along the last axis, so that every operation is elementwise over rows: no matrix product with an inner
    dimension of two or three, and nothing of size n x n.
    """
    n, d = queries.shape
    rows = jnp.arange(n)
    # (columns, rows) throughout: a strip of scores has shape (strip, n).
    query = [queries[:, k] for k in range(d)]

    def step(carry, block: Columns):
        shift, sums = carry
        scores: Any = sum(q[None, :] * block.tokens[:, k, None] for k, q in enumerate(query))
        scores = _masked(scores, rows, block, mask)
        has_mass = None if block.has_mass is None else block.has_mass[:, None]
        # Online softmax: the sums so far are rescaled to the new maximum.
        top, back = next_shift(shift, sums[0], scores, has_mass, 0, d)
        weights = jnp.exp(below(scores, top[None, :], has_mass))
        weighted = block.weighted()
        added = [jnp.sum(weights * weighted[:, k, None], axis=0) for k in range(block.width)]
        return (top, [s * back + a for s, a in zip(sums, added, strict=True)]), None

    zero = jnp.zeros(n, queries.dtype)
    start = (lowest(n, queries.dtype), [zero] * columns.width)
    # A scan of one step would still compile a loop.
    if columns.tokens.shape[0] == 1:
        (shift, sums), _ = step(start, jax.tree.map(lambda leaf: leaf[0], columns))
    else:
        (shift, sums), _ = lax.scan(step, start, columns)
    return last_shift(shift, sums[0], columns.masses), sums[0], jnp.stack(sums[1:], axis=1)
