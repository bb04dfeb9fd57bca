"""`Dense`: sums over all pairs of tokens at once, for up to about a thousand tokens.

**Algorithm.** The sums have two forms. Plain: a matrix product for the scores, exponentials, and a product with values.
Strips, on a CPU in few dimensions: an online softmax (Milakov, Gimelshein, 1805.02867) over narrow strips of columns,
with a separate array for each coordinate. A batch of systems under `jax.vmap` on a CPU is split into blocks of systems.

**Invariants.** All forms agree up to rounding; the shift of a row carries no derivative. On a CPU, derivatives use
another form, with matrix products: through the strips, a gradient of 64 tokens in three dimensions would take 2.5 times
as long.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._base.batching import call_with_rule, map_blocks
from .._base.numerics import below, matmul
from .._base.types import DTypeLike, Masses, Scalar, Tokens, Values
from .._model.mask import AbstractMask, FullMask
from .._model.position import LogWeights
from .._model.summation import AbstractExponentialSum, AbstractNearestSearch, ExponentialSums, HardmaxSums, Support
from .blocked import (
    FEW_NUMBERS,
    Columns,
    RowBlock,
    exponential_rows,
    hardmax_rows,
    last_shift,
    lowest,
    make_columns,
    next_shift,
)


# The largest dimension of tokens and of values for which a CPU sums in strips; beyond it, matrix products are faster.
# Systems of fewer than _LEAST_STRIPPED tokens are one strip.
_FEW_DIMENSIONS, _LEAST_STRIPPED = 4, 32
# The number of scores of a batch held at once on a CPU, in float64 and in other dtypes. More scores do not fit the
# caches. Fewer need a loop over blocks, which takes 1.2 times as long in float32 for 2,048 systems of 32 tokens.
_DOUBLES_AT_ONCE, _SCORES_AT_ONCE = 2**18, 2**20
# In float32, matrix products of systems with n <= _WIDE d hold this number of scores instead. The tokens of such
# systems are nearly as many numbers as the scores, and a loop over blocks, which copies the tokens, takes 1.5 times as
# long (32 to 128 tokens in 64 dimensions).
_WIDE_AT_ONCE, _WIDE = 2**24, 4


class Dense(AbstractExponentialSum, AbstractNearestSearch):
    """All pairs of tokens at once, with O(n^2) time, and O(n^2) memory in the backward pass.

    In few dimensions on a CPU, the forward pass scans over narrow strips of columns, which stay in the cache;
    otherwise, two matrix products are used. Under `jax.vmap` on a CPU, many systems are summed in blocks of systems.
    """

    @property
    def supports(self) -> Support:
        return Support(positions=None)

    @eqx.filter_jit
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Values | None,
        masses: Masses | None,
        mask: AbstractMask,
        log_weights: LogWeights | None = None,
    ) -> ExponentialSums:
        if log_weights is not None:
            return ExponentialSums(*_plain(queries, tokens, values, masses, mask, log_weights))
        # Functions with a batching rule must not close over traced arrays: the arrays of a mask are arguments.
        arrays, static = eqx.partition(mask, eqx.is_array)
        of_arrays = lambda sums: lambda *args: sums(*args[:-1], eqx.combine(args[-1], static))
        args, plain, single = (queries, tokens, values, masses, arrays), of_arrays(_plain), of_arrays(_single)
        # On other backends than a CPU, the plain form is the fastest for batches too.
        if jax.default_backend() != "cpu":
            return ExponentialSums(*plain(*args))
        batch = functools.partial(_blocks_of_systems, of_arrays(functools.partial(_single, in_batch=True)))
        return ExponentialSums(*call_with_rule(single, batch, *args, differentiated=of_arrays(_transposed)))

    @eqx.filter_jit
    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Values,
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Scalar,
        log_weights: LogWeights | None = None,
    ) -> HardmaxSums:
        n = tokens.shape[0]
        columns = make_columns(tokens, values, masses, n)
        sums = hardmax_rows(RowBlock(queries, jnp.arange(n), mask, log_weights), columns, tie_tolerance)
        return HardmaxSums(sums[:, 0], sums[:, 1:])


def _blocks_of_systems(single: Callable[..., Any], batched: Any, *args: Any) -> Any:
    """The batching rule of `call_with_rule`: `single` for each system of a batch, in blocks that fit the cache."""
    leaves, tree = jax.tree.flatten(args)
    flags = jax.tree.leaves(batched)
    # `block` has an argument for each array that differs between systems.
    of_systems = [leaf for leaf, is_batched in zip(leaves, flags, strict=True) if is_batched]

    def block(*of_systems):
        remaining = iter(of_systems)
        arrays = [next(remaining) if is_batched else leaf for leaf, is_batched in zip(leaves, flags, strict=True)]
        axes = [0 if is_batched else None for is_batched in flags]
        return jax.vmap(lambda *parts: single(*jax.tree.unflatten(tree, parts)), axes)(*arrays)

    (n, d), strips = args[1].shape[-2:], _in_strips(args[1], args[2])
    width = _strip_width(n, args[0].dtype)
    scores = n * (width if strips else n)
    # Systems of one strip are computed at once, since XLA does not vectorise them within a loop over blocks.
    most = _DOUBLES_AT_ONCE if args[0].dtype == jnp.float64 else _SCORES_AT_ONCE
    if not strips and n <= _WIDE * d and args[0].dtype != jnp.float64:
        most = _WIDE_AT_ONCE
    size = len(of_systems[0]) if width == n else max(1, most // scores)
    return map_blocks(block, size, *of_systems)


def _in_strips(tokens: Array, values: Array | None) -> bool:
    """True if a CPU sums in strips."""
    return max(a.shape[-1] for a in (tokens, values) if a is not None) <= _FEW_DIMENSIONS


def _single(queries, tokens, values, masses, mask: AbstractMask, in_batch: bool = False):
    """Shift, normaliser and total of one system, on a CPU."""
    n, d = tokens.shape
    if _in_strips(tokens, values):
        # XLA computes masked scores twice, for the maximum and for the weights, unless the mask is applied to these two
        # (`late`). Late masks are up to 2.5 times faster for a batch in float64 or of systems of one strip, but slower
        # for one system and for several strips in float32.
        width = _strip_width(n, queries.dtype)
        late = in_batch and (queries.dtype == jnp.float64 or width == n)
        return _strips(queries, make_columns(tokens, values, masses, width), mask, late)
    scores = matmul(queries, tokens.T)
    if not isinstance(mask, FullMask):
        scores = jnp.where(mask.matrix(n), scores, -jnp.inf)
    has_mass = None if masses is None else (masses > 0)[None, :]
    shift, _ = next_shift(lowest(n, queries.dtype), jnp.zeros(n, queries.dtype), scores, has_mass, 1, d)
    weights = jnp.exp(below(scores, shift[:, None], has_mass))
    weights = weights if masses is None else weights * masses[None, :]
    normaliser = jnp.sum(weights, axis=1)
    return last_shift(shift, normaliser, masses), normaliser, matmul(weights, tokens if values is None else values)


def _plain(queries, tokens, values, masses, mask: AbstractMask, log_weights: LogWeights | None = None):
    """Shift, normaliser and total by matrix products."""
    n = tokens.shape[0]
    columns = make_columns(tokens, values, masses, n)
    shift, sums = exponential_rows(RowBlock(queries, jnp.arange(n), mask, log_weights), columns)
    return shift, sums[:, 0], sums[:, 1:]


def _transposed(queries, tokens, values, masses, mask: AbstractMask):
    """The form to differentiate: scores have the shape (columns, rows), so that maxima run along the first axis."""
    n, d = tokens.shape
    block = jax.tree.map(lambda leaf: leaf[0], make_columns(tokens, values, masses, n))
    if d + block.width - 1 > FEW_NUMBERS:
        return _plain(queries, tokens, values, masses, mask)
    scores = _masked(matmul(tokens, queries.T), jnp.arange(n), block, mask)
    has_mass = None if block.has_mass is None else block.has_mass[:, None]
    shift, _ = next_shift(lowest(n, queries.dtype), jnp.zeros(n, queries.dtype), scores, has_mass, 0, d)
    sums = matmul(block.weighted().T, jnp.exp(below(scores, shift[None, :], has_mass)))
    return last_shift(shift, sums[0], masses), sums[0], sums[1:].T


def _masked(scores: Array, rows: Array, block: Columns, mask: AbstractMask, fill: float = -jnp.inf) -> Array:
    """Scores or weights, (columns, rows), set to `fill` where a row may not attend to a column."""
    if block.present is None and isinstance(mask, FullMask):
        return scores
    allowed = mask.allowed(rows[None, :], block.index[:, None])
    allowed = allowed if block.present is None else allowed & block.present[:, None]
    return jnp.where(allowed, scores, fill)


def _strip_width(n: int, dtype: DTypeLike) -> int:
    """The number of columns of a strip of a system of `n` tokens: strip and accumulators fit the first-level cache."""
    # Two strips of few tokens take up to three times as long as one, and a padded strip needs a mask.
    if n < _LEAST_STRIPPED:
        return n
    most = 8 if dtype == jnp.float64 else min(16, max(8, 2048 // n))
    return -(-n // -(-n // most))


def _strips(
    queries: Tokens, columns: Columns, mask: AbstractMask, late: bool
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, "n k"]]:
    """Shift, normaliser and total by a scan over strips of columns, with a separate array for each coordinate.

    If `late`, the mask is applied to the maximum and the weights of the scores, otherwise to the scores.

    The rows run along the last axis, so that every operation is elementwise over rows. No matrix product has an inner
    dimension of two or three, and no array is n x n.
    """
    n, d = queries.shape
    rows = jnp.arange(n)
    # All arrays are (columns, rows): a strip of scores has the shape (strip, n).
    query = [queries[:, k] for k in range(d)]

    def step(carry, block: Columns):
        shift, sums = carry
        scores: Any = sum(q[None, :] * block.tokens[:, k, None] for k, q in enumerate(query))
        has_mass = None if block.has_mass is None else block.has_mass[:, None]
        allowed = _masked(scores, rows, block, mask)
        # The online softmax rescales the sums so far to the new maximum.
        top, back = next_shift(shift, sums[0], allowed, has_mass, 0, d)
        weights = jnp.exp(below(scores if late else allowed, top[None, :], has_mass))
        weights = _masked(weights, rows, block, mask, 0.0) if late else weights
        weighted = block.weighted()
        added = [jnp.sum(weights * weighted[:, k, None], axis=0) for k in range(block.width)]
        return (top, [s * back + a for s, a in zip(sums, added, strict=True)]), None

    zero = jnp.zeros(n, queries.dtype)
    start = (lowest(n, queries.dtype), [zero] * columns.width)
    # Even a scan of one step would compile a loop.
    if columns.tokens.shape[0] == 1:
        (shift, sums), _ = step(start, jax.tree.map(lambda leaf: leaf[0], columns))
    else:
        (shift, sums), _ = lax.scan(step, start, columns)
    return last_shift(shift, sums[0], columns.masses), sums[0], jnp.stack(sums[1:], axis=1)
