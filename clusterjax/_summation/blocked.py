"""`Blocked`: sums over blocks of rows and columns, without n x n arrays in the forward and backward passes.

**Algorithm.** Each block of rows is a scan over blocks of columns, and the backward pass recomputes each block (Rabe,
Staats, *Self-attention does not need O(n^2) memory*, 2112.05682). Sums of exponentials are an online softmax (Milakov,
Gimelshein, 1805.02867): the running maximum of a row is its shift, and one matrix product gives normaliser and total.
In few dimensions on an accelerator, where an inner dimension of three leaves most of a matrix unit idle, products are
elementwise. Hardmax has two passes: the first finds the largest score and the largest norm of a token for each row, the
second sums over the scores above the threshold.

**Invariants.** Beyond inputs and outputs, memory holds one block of scores and its derivatives. Shifts, maxima and
thresholds carry no derivative; masked scores are minus infinity; a row that attends to nothing has sums of zero. Blocks
that the mask forbids are not computed, and blocks that the mask allows completely are not masked.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._base.batching import cut, map_blocks
from .._base.checks import check_integer
from .._base.numerics import below, matmul
from .._base.types import Masses, Scalar, Tokens, Values
from .._model.mask import AbstractMask, FullMask
from .._model.position import LogWeights
from .._model.summation import AbstractExponentialSum, AbstractNearestSearch, ExponentialSums, HardmaxSums, Support
from .ties import norms, tie_slack


# The largest number of coordinates of a token and its value for which products are elementwise. Beyond it, matrix
# products are faster.
FEW_NUMBERS = 16
# The least and largest number of columns for which products are elementwise on an accelerator (an NVIDIA H200). Below,
# a matrix product is as fast. Above, XLA compiles the reduction slowly: in 0.5 s for blocks of 4,096 rows and columns,
# 5 s for 8,192, over 100 s for 16,384.
_ELEMENTWISE = (2048, 4096)


class Columns(eqx.Module):
    """The attended tokens in blocks; the last block is padded with copies of the last token."""

    tokens: Float[Array, "blocks columns d"]
    # None if the tokens are the values, and if all masses are one.
    values: Float[Array, "blocks columns k"] | None
    masses: Float[Array, "blocks columns"] | None
    # The index of the first token of each block; indices of n or more are padding.
    first: Int[Array, " blocks"]
    # False for padding; None without padding.
    present: Bool[Array, "blocks columns"] | None

    @property
    def width(self) -> int:
        """The number of sums for each row: 1 + k."""
        return 1 + (self.tokens if self.values is None else self.values).shape[-1]

    @property
    def has_mass(self) -> Bool[Array, "*blocks columns"] | None:
        """True for tokens with mass; None if all have. Other tokens are never attended to, but have derivatives."""
        return None if self.masses is None else self.masses > 0

    @property
    def index(self) -> Int[Array, " columns"]:
        """The index of each token of one block."""
        return self.first + jnp.arange(self.tokens.shape[-2])

    def weighted(self) -> Float[Array, "columns width"]:
        """Mass times [1, value] for one block, computed on demand, so that only one block is held at a time."""
        values = self.tokens if self.values is None else self.values
        weighted = jnp.concatenate([jnp.ones_like(values[..., :1]), values], axis=-1)
        return weighted if self.masses is None else weighted * self.masses[..., None]


def make_columns(tokens: Tokens, values: Values | None, masses: Masses | None, block_columns: int) -> Columns:
    """Split the tokens, their values and masses into blocks of `block_columns`."""
    n = tokens.shape[0]
    size = min(block_columns, n)
    blocks = -(-n // size)
    in_range = jnp.arange(blocks * size).reshape(blocks, size) < n
    # Without padding, `present` is None, so that the blocks need no mask.
    present = in_range if blocks * size > n else None
    values, masses = (None if part is None else cut(part, size) for part in (values, masses))
    return Columns(cut(tokens, size), values, masses, size * jnp.arange(blocks), present)


def _fold(step: Callable[[Any, Columns], Any], carry: Any, columns: Columns) -> Any:
    """`carry` after `step` with each block of columns in turn; the backward pass recomputes each block."""
    if columns.tokens.shape[0] == 1:
        return step(carry, jax.tree.map(lambda leaf: leaf[0], columns))
    # Without the checkpoint, the scan would store the scores of every block for the backward pass: (rows, n).
    step = jax.checkpoint(step)
    return lax.scan(lambda c, block: (step(c, block), None), carry, columns)[0]


class RowBlock(eqx.Module):
    """Some rows of a sum: their queries and numbers, and the mask and log-weights by which they attend to columns."""

    queries: Float[Array, "rows d"]
    numbers: Int[Array, " rows"]
    mask: AbstractMask
    log_weights: LogWeights | None = None

    def where_reached(self, block: Columns, attend: Callable[[bool], Any], skip: Any) -> Any:
        """Return `attend(masked)` for a block, or `skip` if no row may attend to any column of the block."""
        masked = block.present is not None
        if isinstance(self.mask, FullMask):
            return attend(masked)
        # `reaches` and `covers` are Python booleans where the mask knows them at trace time, otherwise arrays.
        corners = (self.numbers[0], self.numbers[-1], block.index[0], block.index[-1])
        reaches, covers = self.mask.reaches(*corners), self.mask.covers(*corners)

        def attend_some() -> Any:
            if covers is False:
                return attend(True)
            return lax.cond(covers, lambda: attend(masked), lambda: attend(True))

        return attend_some() if reaches is True else lax.cond(reaches, attend_some, lambda: skip)

    def scores(self, block: Columns, masked: bool) -> Float[Array, "rows columns"]:
        """The scores of one block; minus infinity where `masked` is True and a row may not attend to a column."""
        scores = matmul(self.queries, block.tokens.T)
        if self.log_weights is not None:
            scores = scores + self.log_weights(self.numbers[:, None], block.index[None, :], scores.dtype)
        return self.masked(scores, block, masked)

    def masked(self, scores: Array, block: Columns, masked: bool) -> Array:
        """The scores of one block, set to minus infinity as in `scores`."""
        if not masked:
            return scores
        allowed = self.mask.allowed(self.numbers[:, None], block.index[None, :])
        if block.present is not None:
            allowed = allowed & block.present[None, :]
        return jnp.where(allowed, scores, -jnp.inf)

    def attended_scores(self, block: Columns, masked: bool) -> Float[Array, "rows columns"]:
        """The scores of one block, without derivative; minus infinity also for tokens without mass."""
        scores = lax.stop_gradient(self.scores(block, masked))
        return scores if block.has_mass is None else jnp.where(block.has_mass[None, :], scores, -jnp.inf)


def exponential_rows(
    rows: RowBlock, columns: Columns, shift: Float[Array, " rows"] | None = None
) -> tuple[Float[Array, " rows"], Float[Array, "rows k"]]:
    """The shift and the scaled sums of mass times [1, value].

    A given `shift` belongs to a larger set of columns, of which these are a part.
    """
    queries, d = rows.queries, rows.queries.shape[1]
    elementwise = d + columns.width - 1 <= FEW_NUMBERS and _is_elementwise(queries.shape[0], columns.tokens.shape[1])
    # The bound of `rounded_down` is that of an inner product without log-weights.
    elementwise = elementwise and rows.log_weights is None

    def step(carry, block):
        before, sums = carry
        has_mass = None if block.has_mass is None else block.has_mass[None, :]

        def attend(masked):
            if elementwise:
                scores: Any = sum(queries[:, k, None] * block.tokens[None, :, k] for k in range(d))
                scores = rows.masked(scores, block, masked)
            else:
                scores = rows.scores(block, masked)
            # At least one exponent of a row is exactly zero; the sums so far are rescaled to the new maximum.
            if shift is None:
                top, back = next_shift(before, sums[:, 0], scores, has_mass, 1, d if elementwise else 0)
            else:
                top, back = shift, jnp.ones_like(shift)
            weights, weighted = jnp.exp(below(scores, top[:, None], has_mass)), block.weighted()
            if elementwise:
                added = jnp.stack([jnp.sum(weights * weighted[None, :, k], axis=1) for k in range(block.width)], axis=1)
            else:
                added = matmul(weights, weighted)
            return top, sums * back[:, None] + added

        return rows.where_reached(block, attend, carry)

    start = lowest(queries.shape[0], queries.dtype) if shift is None else shift
    last, sums = _fold(step, (start, jnp.zeros((queries.shape[0], columns.width), queries.dtype)), columns)
    return last_shift(last, sums[:, 0], columns.masses), sums


def next_shift(
    shift: Float[Array, " rows"], mass: Array, scores: Array, has_mass: Array | None, axis: int, d: int
) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
    """The running maximum of each row after more `scores`, columns along `axis`, and the factor of the sums so far.

    The maximum is `rounded_down` for scores that are elementwise sums over `d` coordinates. Only tokens with mass set
    the maximum. Until a row meets a token with mass, its sum so far, `mass`, is zero, but may have derivatives: the
    shift is then the maximum of all scores. The first token with mass resets the shift, and the factor may exceed one.
    """
    scores = lax.stop_gradient(scores)
    largest = lambda scores: rounded_down(jnp.max(scores, axis=axis), d) if d else jnp.max(scores, axis=axis)
    if has_mass is None:
        top = jnp.maximum(shift, largest(scores))
        return top, jnp.exp(shift - top)
    top, met = largest(jnp.where(has_mass, scores, -jnp.inf)), lax.stop_gradient(mass) != 0
    top = jnp.where(met | (top == -jnp.inf), jnp.maximum(shift, jnp.where(met, top, largest(scores))), top)
    return top, jnp.exp(below(shift, top, met))


def last_shift(shift: Float[Array, " rows"], mass: Array, masses: Array | None) -> Float[Array, " rows"]:
    """The shift after all columns; `lowest` in a row without any mass, so that its exponential is zero."""
    return shift if masses is None else jnp.where(lax.stop_gradient(mass) != 0, shift, lowest(mass.shape, mass.dtype))


def _is_elementwise(rows: int, columns: int) -> bool:
    least, most = _ELEMENTWISE
    return least <= columns <= most and rows <= most and jax.default_backend() != "cpu"


_SMALL_EXPONENT = 16  # e^-16 = 1e-7 is far above the underflow threshold of float32, 1e-38


def rounded_down(top: Array, d: int, log_weights: Array | float = 0.0) -> Array:
    """The largest score of each row as a shift, for kernels in which the compiler may compute each score twice.

    XLA may fuse the scores both into their maximum and into the weights, and round the two differently, by a relative
    error of up to d eps. If the largest weight might vanish by this error, the shift is lowered by the error, and all
    scores above the shift count as equal to it (`below`): their differences are rounding errors.

    Only scores that are elementwise sums over coordinates need this. XLA computes a matrix product once, for which
    `below` is enough. `log_weights` bounds the absolute values of log-weights that are added to the products.
    """
    off = d * jnp.finfo(top.dtype).eps * (jnp.abs(top) + log_weights)
    return jnp.where(off > _SMALL_EXPONENT, top - off, top)


def lowest(rows: int | tuple[int, ...], dtype: Any) -> Float[Array, "*rows"]:
    """The running maximum before any score: the lowest finite number.

    Minus infinity would make the first rescaling NaN; the factor e^{lowest - score} is zero instead.
    """
    return jnp.full(rows, jnp.finfo(dtype).min, dtype)


def hardmax_rows(rows: RowBlock, columns: Columns, tie_tolerance: Scalar) -> Float[Array, "rows k"]:
    """The sums of mass times [1, value] over the tokens that attain each row's maximum, up to rounding."""
    # The threshold is known after a first pass over the columns.
    top, longest = hardmax_top(rows, columns)
    slack = tie_slack(rows.queries, longest, tie_tolerance, None if rows.log_weights is None else top)
    return hardmax_add(rows, columns, top - slack)


def hardmax_top(rows: RowBlock, columns: Columns) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
    """The largest score of each row, and the largest norm of the tokens that the row attends to."""

    def largest(carry, block):
        top, longest = carry

        def attend(masked):
            scores = rows.attended_scores(block, masked)
            # The tolerance is relative to the largest norm among the tokens that the row may attend to.
            lengths = jnp.where(scores > -jnp.inf, norms(block.tokens)[None, :], 0)
            return jnp.maximum(top, scores.max(axis=1)), jnp.maximum(longest, lengths.max(axis=1))

        return rows.where_reached(block, attend, carry)

    # The maximum starts at minus infinity, not `lowest`: it rescales nothing, and stays in rows that attend to nothing.
    lowest = jnp.full(rows.numbers.shape, -jnp.inf, rows.queries.dtype)
    return _fold(largest, (lowest, jnp.zeros_like(lowest)), columns)


def hardmax_add(rows: RowBlock, columns: Columns, least: Float[Array, " rows"]) -> Float[Array, "rows k"]:
    """The sums of mass times [1, value] over the tokens with a score of `least` or more."""

    def add(sums, block):
        def attend(masked):
            scores = rows.attended_scores(block, masked)
            # A row without allowed tokens has a threshold of minus infinity, which masked scores attain.
            chosen = (scores >= least[:, None]) & (scores > -jnp.inf)
            return sums + matmul(chosen.astype(sums.dtype), block.weighted())

        return rows.where_reached(block, attend, sums)

    return _fold(add, jnp.zeros((rows.numbers.shape[0], columns.width), rows.queries.dtype), columns)


# The default number of rows and columns of a block: on a CPU, the scores fit the cache; on an accelerator, which has a
# cost per operation, fewer and larger blocks are faster (benchmarks/accelerator.py).
_ON_CPU, _ELSEWHERE = 512, 4096


def _size(name: str) -> Callable[[int | None], int | None]:
    def convert(value: int | None) -> int | None:
        return None if value is None else check_integer(value, name, remedy="512 is a good start")

    return convert


class Blocked(AbstractExponentialSum, AbstractNearestSearch):
    """Blocks of rows times blocks of columns, with O(n^2) time and O(n) memory in the forward and backward passes.

    The backward pass recomputes each block instead of storing it. Blocks that the mask forbids are skipped, which
    halves the time of causal attention.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=100, d=3)
        >>> blocked = cjx.SoftmaxAttention(2.0, summation=cjx.Blocked(32, 32)).average(x, None)
        >>> dense = cjx.SoftmaxAttention(2.0, summation=cjx.Dense()).average(x, None)
        >>> bool(jnp.allclose(blocked, dense, atol=1e-5))
        True
        ```

    **Arguments:**

    - `block_rows`: The number of rows summed at once; None is 512 on a CPU and 4,096 elsewhere, where each system of a
        `jax.vmap` then holds up to 16 million scores: pass a smaller number if memory runs out.
    - `block_columns`: The number of columns in a block, with equal defaults; a block has rows times columns scores.

    **Raises:**

    - `ValueError` if a number of rows or columns is not a positive integer.
    """

    block_rows: int | None = eqx.field(default=None, converter=_size("block_rows"))
    block_columns: int | None = eqx.field(default=None, converter=_size("block_columns"))

    @property
    def supports(self) -> Support:
        return Support(positions=None)

    def block(self) -> tuple[int, int]:
        """The numbers of rows and columns of a block on this machine."""
        usual = _ON_CPU if jax.default_backend() == "cpu" else _ELSEWHERE
        return self.block_rows or usual, self.block_columns or usual

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
        size, width = self.block()
        # The columns are split once, outside the loop over rows.
        columns = make_columns(tokens, values, masses, width)
        sum_rows = lambda numbers, block: exponential_rows(RowBlock(block, numbers, mask, log_weights), columns)
        # With `recompute`, the backward pass holds the scores of one block of rows at a time.
        shift, sums = map_blocks(sum_rows, size, jnp.arange(queries.shape[0]), queries, recompute=True)
        return ExponentialSums(shift, sums[:, 0], sums[:, 1:])

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
        size, width = self.block()
        columns = make_columns(tokens, values, masses, width)
        sum_rows = lambda numbers, block: hardmax_rows(
            RowBlock(block, numbers, mask, log_weights), columns, tie_tolerance
        )
        sums = map_blocks(sum_rows, size, jnp.arange(queries.shape[0]), queries, recompute=True)
        return HardmaxSums(sums[:, 0], sums[:, 1:])
