"""The kernels of `Fused` for an NVIDIA card, and their derivatives. This module imports Pallas, which takes seconds.

**Algorithm.** A program of the kernel holds a block of rows and loops over blocks of columns: an online softmax
(Milakov, Gimelshein, 1805.02867), as in FlashAttention (Dao et al., 2205.14135). In at most four dimensions a score is
d fused multiply-adds in place of a matrix product, whose inner dimension of three would leave most of a matrix unit
idle; systems of at most 64 tokens share a program. In more dimensions, scores and sums are matrix products in full
float32 precision. An exponential is one of base 2, the base of the hardware, of the difference to the shift: queries
that are multiplied by log2(e) would save a product for each pair, but ties of large scores would no longer be ties.

**Derivatives.** Reverse mode recomputes the weights from the stored shifts in two kernels: one over rows for the
queries, and one over columns for tokens, values and masses, so that no sum needs atomic operations. Forward mode is a
kernel over rows. Derivatives of these derivatives are computed by XLA, in blocks, with the same shifts.

**Log-weights.** Each pair of places i and j adds -slope |i - j| to its score, with one slope for each system.

**Invariants.** The kernels read each array in place: there are no copies, paddings or transposes before a launch. Loads
beyond the last token read the last token instead, and a mask drops the pair. The shift of a row carries no derivative;
a row without any mass has sums of zero, and its derivatives with respect to masses are relative to its largest score.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from .._base.batching import FEW_DIMENSIONS, map_blocks
from .._base.numerics import bounded
from .._base.types import Masses, Tokens, Values
from .._model.mask import AbstractMask, CausalMask, FullMask, MatrixMask, SinkMask, WindowMask
from .._model.position import LogWeights
from .._model.summation import ExponentialSums
from .blocked import RowBlock, exponential_rows, last_shift, make_columns, rounded_down


# The largest number of tokens for which several systems share a program, and the number of their pairs.
_SMALL, _PAIRS = 64, 4096
# The number of columns of a piece of a wide array, the largest width of one matrix product.
_PIECE = 128
_LOG2_E = 1 / math.log(2)
# The operands that may have a derivative.
_MOVING = ("queries", "tokens", "values", "masses", "slope")


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The static description of one call: its operands, and the sizes of its blocks.

    The mask is None if a matrix, the operand `permitted`, states which pairs are allowed.
    """

    mask: AbstractMask | None
    has_values: bool
    has_masses: bool
    has_slope: bool
    rows: int
    columns: int
    systems: int
    few: bool
    interpret: bool
    # For derivatives: the names of the operands that have one, in the order of `_MOVING`.
    linear: tuple[str, ...] = ()

    def named(self, operands: Any) -> dict[str, Any]:
        """The operands by name; absent ones are left out."""
        present = {"values": self.has_values, "masses": self.has_masses, "slope": self.has_slope,
                   "permitted": self.mask is None}  # fmt: skip
        names = [name for name in ("queries", "tokens", *present) if present.get(name, True)]
        return dict(zip(names, operands, strict=True))

    @property
    def count(self) -> int:
        """The number of operands."""
        return 2 + self.has_values + self.has_masses + self.has_slope + (self.mask is None)


# The kernels. A block of tokens is a tuple of pieces: its coordinates, each (systems, tokens), or, where products are
# matrix products, groups of at most 128 coordinates, each (tokens, group). Weights are (systems, rows, columns) or
# (rows, columns): rows are the last axis but one and columns the last in both.


class _Program:
    """What all kernels do: index, load and store blocks, multiply them, and evaluate the mask."""

    def __init__(self, plan: _Plan, refs: dict[str, Any], batch: int, n: int):
        self.plan, self.refs, self.batch, self.n = plan, refs, batch, n
        self.number = pl.program_id(0)
        if plan.few:
            systems = self.number * plan.systems + jnp.arange(plan.systems, dtype=jnp.int32)
            self.present = systems < batch
            self.systems, self.system = systems, jnp.minimum(systems, batch - 1)

    def index(self, block: Any, size: int) -> Array:
        """The numbers of the tokens of a block; numbers of n or more are padding."""
        return block * size + jnp.arange(size, dtype=jnp.int32)

    def load(self, name: str, index: Array) -> tuple[Array, ...]:
        """The pieces of a block of vectors."""
        ref, safe = self.refs[name], jnp.minimum(index, self.n - 1)
        width = ref.shape[2]
        if self.plan.few:
            at = self._at(safe)
            return tuple(ref[(*at, c)] for c in range(width))
        return tuple(self._piece(ref, safe, first, width) for first in range(0, width, _PIECE))

    def _at(self, index: Array, systems: Array | None = None) -> tuple[Array, Array]:
        systems, shape = self.system if systems is None else systems, (self.plan.systems, index.shape[0])
        return jnp.broadcast_to(systems[:, None], shape), jnp.broadcast_to(index[None, :], shape)

    def _coordinates(self, first: int, width: int) -> Array:
        """The numbers of the coordinates of a piece, whose width is a power of two of at least 16."""
        return first + jnp.arange(_piece_width(first, width), dtype=jnp.int32)

    def _piece(self, ref: Any, index: Array, first: int, width: int) -> Array:
        coordinates = self._coordinates(first, width)
        at = jnp.broadcast_arrays(index[:, None], jnp.minimum(coordinates, width - 1)[None, :])
        return jnp.where((coordinates < width)[None, :], ref[(self.number, *at)], 0)

    def load_numbers(self, name: str, index: Array) -> Array:
        """A block of numbers, one for each token."""
        ref, safe = self.refs[name], jnp.minimum(index, self.n - 1)
        return ref[self._at(safe)] if self.plan.few else ref[self.number, safe]

    # Stores keep indices beyond the end, and a mask drops them: clamped as in loads, they would store a token twice.

    def store(self, name: str, index: Array, pieces: tuple[Array, ...]) -> None:
        ref, inside = self.refs[name], index < self.n
        width = ref.shape[2]
        if self.plan.few:
            at, write = self._at(index, self.systems), self.present[:, None] & inside[None, :]
            for c, piece in enumerate(pieces):
                plgpu.store(ref.at[(*at, jnp.full_like(at[1], c))], piece, mask=write)
            return
        for first, piece in zip(range(0, width, _PIECE), pieces, strict=True):
            coordinates = self._coordinates(first, width)
            at = jnp.broadcast_arrays(index[:, None], coordinates[None, :])
            write = inside[:, None] & (coordinates < width)[None, :]
            plgpu.store(ref.at[(jnp.full_like(at[0], self.number), *at)], piece, mask=write)

    def store_numbers(self, name: str, index: Array, numbers: Array) -> None:
        ref, inside = self.refs[name], index < self.n
        if self.plan.few:
            write = self.present[:, None] & inside[None, :]
            plgpu.store(ref.at[self._at(index, self.systems)], numbers, mask=write)
        else:
            plgpu.store(ref.at[(jnp.full_like(index, self.number), index)], numbers, mask=inside)

    def products(self, rows: tuple[Array, ...], columns: tuple[Array, ...]) -> Array:
        """The inner products of rows with columns."""
        if self.plan.few:
            return sum((a[:, :, None] * b[:, None, :] for a, b in zip(rows[1:], columns[1:], strict=True)),
                       start=rows[0][:, :, None] * columns[0][:, None, :])  # fmt: skip
        return sum(
            (_dot(a, b.T) for a, b in zip(rows[1:], columns[1:], strict=True)), start=_dot(rows[0], columns[0].T)
        )

    def distances(self, rows: Array, columns: Array) -> Array:
        """The distances |i - j| of the pairs of two blocks."""
        distances = jnp.abs(rows[:, None] - columns[None, :]).astype(jnp.float32)
        return distances[None] if self.plan.few else distances

    def of_system(self, name: str) -> Array:
        """One number for each system, with axes of length one for rows and columns."""
        return self.refs[name][self.system][:, None, None] if self.plan.few else self.refs[name][self.number]

    def scores(self, rows: Array, columns: Array, queries: tuple[Array, ...], tokens: tuple[Array, ...]) -> Array:
        """The exponents of the pairs of two blocks."""
        products = self.products(queries, tokens)
        return products - self.of_system("slope") * self.distances(rows, columns) if self.plan.has_slope else products

    def over_columns(self, weights: Array, columns: tuple[Array, ...]) -> tuple[Array, ...]:
        """The sums over the columns of weights times vectors."""
        if self.plan.few:
            return tuple(jnp.sum(weights * piece[:, None, :], axis=-1) for piece in columns)
        return tuple(_dot(weights, piece) for piece in columns)

    def over_rows(self, weights: Array, rows: tuple[Array, ...]) -> tuple[Array, ...]:
        """The sums over the rows of weights times vectors."""
        if self.plan.few:
            return tuple(jnp.sum(weights * piece[:, :, None], axis=-2) for piece in rows)
        return tuple(_dot(weights.T, piece) for piece in rows)

    def zeros(self, name: str, size: int) -> tuple[Array, ...]:
        """The pieces of a block of vectors of zeros, with the width of an operand."""
        width = self.refs[name].shape[2]
        if self.plan.few:
            return tuple(jnp.zeros((self.plan.systems, size), jnp.float32) for _ in range(width))
        widths = [_piece_width(first, width) for first in range(0, width, _PIECE)]
        return tuple(jnp.zeros((size, wide), jnp.float32) for wide in widths)

    def numbers(self, size: int, fill: float) -> Array:
        """A block of equal numbers, one for each token."""
        return jnp.full((self.plan.systems, size) if self.plan.few else size, fill, jnp.float32)

    def allowed(self, rows: Array, columns: Array) -> Array:
        """True for pairs that exist and that the mask allows."""
        i, j = rows[:, None], columns[None, :]
        inside = (i < self.n) & (j < self.n)
        if self.plan.mask is not None:
            inside = inside & self.plan.mask.allowed(i, j)
            return inside[None] if self.plan.few else inside
        ref = self.refs["permitted"]
        shape = (rows.shape[0], columns.shape[0])
        at = jnp.broadcast_to(jnp.minimum(i, self.n - 1), shape), jnp.broadcast_to(jnp.minimum(j, self.n - 1), shape)
        if not self.plan.few:
            system = jnp.minimum(self.number, ref.shape[0] - 1)
            return inside & (ref[(system, *at)] != 0)
        system = jnp.minimum(self.system, ref.shape[0] - 1)
        shape = (self.plan.systems, *shape)
        at = jnp.broadcast_to(system[:, None, None], shape), *(jnp.broadcast_to(a[None], shape) for a in at)
        return inside[None] & (ref[at] != 0)

    def fold(self, blocks: list[tuple[Any, Any, bool]], step: Callable[[Any, Any, bool], Any], carry: Any) -> Any:
        """`carry` after `step(carry, block, masked)` for each block in ranges (start, stop, masked)."""
        for start, stop, masked in blocks:
            if isinstance(start, int) and isinstance(stop, int) and start >= stop:
                continue
            body = lambda block, carry, masked=masked: step(carry, block, masked)
            carry = lax.fori_loop(jnp.int32(start), jnp.int32(stop), body, carry)
        return carry

    def fold_columns(self, block: Any, step: Callable[[Any, Any, bool], Any], carry: Any) -> Any:
        """`carry` after `step` for each block of columns to which the rows of `block` attend."""
        rows = self.plan.rows
        return self.fold(_blocks_of_columns(self.plan, self.n, block * rows, (block + 1) * rows - 1), step, carry)

    def values(self, index: Array, tokens: tuple[Array, ...]) -> tuple[Array, ...]:
        return self.load("values", index) if self.plan.has_values else tokens

    def weights(
        self, rows: Array, columns: Array, queries: Any, tokens: Any, top: Array, masked: bool
    ) -> tuple[Array, Array]:
        """The weights e^{score - shift} of the pairs of two blocks, and these times the masses of the columns."""
        exponents = self.scores(rows, columns, queries, tokens) - top[..., :, None]
        masses = self.load_numbers("masses", columns) if self.plan.has_masses else None
        # A recomputed score may exceed its maximum by a rounding error.
        counted = jnp.minimum(exponents, 0)
        if masses is not None:
            counted = jnp.where((masses > 0)[..., None, :], counted, bounded(exponents))
        weights = _exp(counted)
        weights = jnp.where(self.allowed(rows, columns), weights, 0) if masked else weights
        return weights, weights if masses is None else weights * masses[..., None, :]


def _piece_width(first: int, width: int) -> int:
    return max(16, pl.next_power_of_2(min(_PIECE, width - first)))


def _dot(a: Array, b: Array) -> Array:
    return jnp.dot(a, b, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _exp(exponents: Array) -> Array:
    return jnp.exp2(exponents * _LOG2_E)


def _added(sums: Any, more: Any) -> Any:
    return jax.tree.map(jnp.add, sums, more)


def _ceil(a: Any, b: int) -> Any:
    # `pl.cdiv` does not accept traced numbers if `jax_enable_x64` is set.
    return (a + (b - 1)) // b


def _blocks_of_columns(plan: _Plan, n: int, first: Any, last: Any) -> list[tuple[Any, Any, bool]]:
    """The ranges (start, stop, masked) of blocks of columns to which the rows from `first` to `last` attend."""
    mask, size, blocks = plan.mask, plan.columns, _ceil(n, plan.columns)
    if isinstance(mask, FullMask):
        return [(0, n // size, False), (n // size, blocks, True)]
    if isinstance(mask, CausalMask):
        # A block whose last column is not after the first row needs no mask.
        free = jnp.minimum(first + 1, n) // size
        return [(0, free, False), (free, _ceil(jnp.minimum(last + 1, n), size), True)]
    if isinstance(mask, WindowMask):
        stop = _ceil(jnp.minimum(last + (1 if mask.causal else mask.width), n), size)
        return [(jnp.maximum(first - mask.width + 1, 0) // size, stop, True)]
    if isinstance(mask, SinkMask):
        stop = _ceil(jnp.minimum(last + 1, n), size)
        kept = jnp.minimum(_ceil(mask.kept, size), stop)
        return [(0, kept, True), (jnp.maximum(jnp.maximum(first - mask.width + 1, 0) // size, kept), stop, True)]
    return [(0, blocks, True)]


def _blocks_of_rows(plan: _Plan, n: int, first: Any, last: Any) -> list[tuple[Any, Any, bool]]:
    """The ranges (start, stop, masked) of blocks of rows that attend to the columns from `first` to `last`."""
    mask, size, blocks = plan.mask, plan.rows, _ceil(n, plan.rows)
    if isinstance(mask, FullMask):
        return [(0, n // size, False), (n // size, blocks, True)]
    if isinstance(mask, CausalMask):
        # A block whose first row is not before the last column needs no mask.
        free = jnp.minimum(_ceil(last, size), n // size)
        return [
            (first // size, free, True),
            (free, n // size, False),
            (jnp.maximum(n // size, first // size), blocks, True),
        ]
    if isinstance(mask, WindowMask):
        start = first if mask.causal else jnp.maximum(first - mask.width + 1, 0)
        return [(start // size, _ceil(jnp.minimum(last + mask.width, n), size), True)]
    if isinstance(mask, SinkMask):
        stop = jnp.where(first < mask.kept, n, jnp.minimum(last + mask.width, n))
        return [(first // size, _ceil(stop, size), True)]
    return [(0, blocks, True)]


def _forward(program: _Program) -> None:
    """Shifts, normalisers and totals of a block of rows."""
    plan, block = program.plan, pl.program_id(1)
    rows = program.index(block, plan.rows)
    queries = program.load("queries", rows)
    d = program.refs["queries"].shape[2]
    largest: Any = 0.0
    if plan.has_slope:
        slope = jnp.abs(program.of_system("slope")) * program.n
        largest = slope[..., 0] if plan.few else slope

    def step(carry, number, masked):
        top, other, normaliser, total = carry
        columns = program.index(number, plan.columns)
        tokens = program.load("tokens", columns)
        scores = program.scores(rows, columns, queries, tokens)
        if masked:
            scores = jnp.where(program.allowed(rows, columns), scores, -jnp.inf)
        counted = scores
        if plan.has_masses:
            masses = program.load_numbers("masses", columns)[..., None, :]
            other = jnp.maximum(other, jnp.max(scores, axis=-1))
            counted = jnp.where(masses > 0, scores, -jnp.inf)
        new = jnp.maximum(top, rounded_down(jnp.max(counted, axis=-1), d, largest))
        back = _exp(top - new)
        weights = _exp(jnp.minimum(counted - new[..., :, None], 0))
        if plan.has_masses:
            weights = weights * masses
        added = program.over_columns(weights, program.values(columns, tokens))
        back_of = (lambda piece: back) if plan.few else (lambda piece: back[:, None])
        total = tuple(piece * back_of(piece) + more for piece, more in zip(total, added, strict=True))
        return new, other, normaliser * back + jnp.sum(weights, axis=-1), total

    start = program.numbers(plan.rows, float(np.finfo(np.float32).min))
    width = "values" if plan.has_values else "tokens"
    carry = (start, start, program.numbers(plan.rows, 0.0), program.zeros(width, plan.rows))
    top, other, normaliser, total = program.fold_columns(block, step, carry)
    if plan.has_masses:
        top = jnp.where(normaliser == 0, other, top)
    program.store_numbers("top", rows, top)
    program.store_numbers("normaliser", rows, normaliser)
    program.store("total", rows, total)


def _tangents(program: _Program) -> None:
    """The derivatives of normalisers and totals of a block of rows along tangents of the operands."""
    plan, block = program.plan, pl.program_id(1)
    rows = program.index(block, plan.rows)
    queries, top = program.load("queries", rows), program.load_numbers("top", rows)
    moved = plan.linear
    dqueries = program.load("queries_dot", rows) if "queries" in moved else None

    def step(carry, number, masked):
        columns = program.index(number, plan.columns)
        tokens = program.load("tokens", columns)
        values = program.values(columns, tokens)
        weights, massive = program.weights(rows, columns, queries, tokens, top, masked)
        tilt: Any = 0
        if dqueries is not None:
            tilt = tilt + program.products(dqueries, tokens)
        if "tokens" in moved:
            dtokens = program.load("tokens_dot", columns)
            tilt = tilt + program.products(queries, dtokens)
        if "slope" in moved:
            tilt = tilt - program.of_system("slope_dot") * program.distances(rows, columns)
        change = massive * tilt
        if "masses" in moved:
            change = change + weights * program.load_numbers("masses_dot", columns)[..., None, :]
        added = program.over_columns(change, values)
        dvalues = None
        if "values" in moved:
            dvalues = program.load("values_dot", columns)
        elif "tokens" in moved and not plan.has_values:
            dvalues = dtokens
        if dvalues is not None:
            added = _added(added, program.over_columns(massive, dvalues))
        normaliser, total = carry
        return normaliser + jnp.sum(change, axis=-1), _added(total, added)

    width = "values" if plan.has_values else "tokens"
    carry = (program.numbers(plan.rows, 0.0), program.zeros(width, plan.rows))
    normaliser, total = program.fold_columns(block, step, carry)
    program.store_numbers("normaliser_dot", rows, normaliser)
    program.store("total_dot", rows, total)


def _pull_rows(program: _Program) -> None:
    """The cotangents of a block of queries, and the part of these rows in the cotangent of the slope."""
    plan, block = program.plan, pl.program_id(1)
    rows = program.index(block, plan.rows)
    queries, top = program.load("queries", rows), program.load_numbers("top", rows)
    of_normaliser, of_total = program.load_numbers("normaliser_bar", rows), program.load("total_bar", rows)
    of_queries, of_slope = "queries_bar" in program.refs, "slope_bar" in program.refs

    def step(carry, number, masked):
        columns = program.index(number, plan.columns)
        tokens = program.load("tokens", columns)
        values = program.values(columns, tokens)
        _, massive = program.weights(rows, columns, queries, tokens, top, masked)
        change = massive * (of_normaliser[..., :, None] + program.products(of_total, values))
        queries_bar, slope_bar = carry
        if of_queries:
            queries_bar = _added(queries_bar, program.over_columns(change, tokens))
        if of_slope:
            slope_bar = slope_bar - jnp.sum(change * program.distances(rows, columns), axis=-1)
        return queries_bar, slope_bar

    carry = (program.zeros("queries", plan.rows) if of_queries else (),
             program.numbers(plan.rows, 0.0) if of_slope else ())  # fmt: skip
    queries_bar, slope_bar = program.fold_columns(block, step, carry)
    if of_queries:
        program.store("queries_bar", rows, queries_bar)
    if of_slope:
        program.store_numbers("slope_bar", rows, slope_bar)


def _pull_columns(program: _Program) -> None:
    """The cotangents of a block of tokens, and of their values and masses."""
    plan, block = program.plan, pl.program_id(1)
    columns = program.index(block, plan.columns)
    tokens = program.load("tokens", columns)
    values = program.values(columns, tokens)
    of_tokens, of_values, of_masses = ("tokens_bar" in program.refs, "values_bar" in program.refs,
                                       "masses_bar" in program.refs)  # fmt: skip

    def step(carry, number, masked):
        rows = program.index(number, plan.rows)
        queries, top = program.load("queries", rows), program.load_numbers("top", rows)
        of_normaliser, of_total = program.load_numbers("normaliser_bar", rows), program.load("total_bar", rows)
        weights, massive = program.weights(rows, columns, queries, tokens, top, masked)
        slope = of_normaliser[..., :, None] + program.products(of_total, values)
        tokens_bar, values_bar, masses_bar = carry
        if of_tokens:
            tokens_bar = _added(tokens_bar, program.over_rows(massive * slope, queries))
        if of_values:
            values_bar = _added(values_bar, program.over_rows(massive, of_total))
        if of_masses:
            masses_bar = masses_bar + jnp.sum(weights * slope, axis=-2)
        return tokens_bar, values_bar, masses_bar

    width = "values" if plan.has_values else "tokens"
    carry = (program.zeros("tokens", plan.columns) if of_tokens else (),
             program.zeros(width, plan.columns) if of_values else (),
             program.numbers(plan.columns, 0.0) if of_masses else ())  # fmt: skip
    blocks = _blocks_of_rows(plan, program.n, block * plan.columns, (block + 1) * plan.columns - 1)
    tokens_bar, values_bar, masses_bar = program.fold(blocks, step, carry)
    if of_tokens:
        program.store("tokens_bar", columns, tokens_bar)
    if of_values:
        program.store("values_bar", columns, values_bar)
    if of_masses:
        program.store_numbers("masses_bar", columns, masses_bar)


def _launch(
    kernel: Callable[[_Program], None], plan: _Plan, size: int, inputs: dict[str, Any], shapes: dict[str, tuple]
) -> list[Any]:
    """Run a kernel over blocks of `size` tokens of each system; `shapes` are those of its outputs, by name."""
    batch, n = inputs["queries"].shape[:2]
    names = (*inputs, *shapes)

    def body(*refs):
        kernel(_Program(plan, dict(zip(names, refs, strict=True)), batch, n))

    call = pl.pallas_call(
        body,
        grid=(pl.cdiv(batch, plan.systems), pl.cdiv(n, size)),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes.values()],
        interpret=plan.interpret,
        compiler_params=None if plan.interpret else plgpu.CompilerParams(num_warps=4, num_stages=2),
        name=f"clusterjax{kernel.__name__}",
    )
    return list(call(*inputs.values()))


# The primitives: sums, their derivatives along tangents, and the pull-back of cotangents. Every operand has a leading
# axis of systems, and `jax.vmap` makes this axis longer, so that a batch is one launch.


def _sums(*operands: Array, plan: _Plan) -> list[Array]:
    named = plan.named(operands)
    vectors = named["values" if plan.has_values else "tokens"].shape
    shapes = {"top": vectors[:2], "normaliser": vectors[:2], "total": vectors}
    return _launch(_forward, plan, plan.rows, named, shapes)


def _sums_of_tangents(*arrays: Array, plan: _Plan) -> list[Array]:
    named = plan.named(arrays[: plan.count])
    dots = dict(zip([f"{name}_dot" for name in plan.linear], arrays[plan.count + 1 :], strict=True))
    vectors = named["values" if plan.has_values else "tokens"].shape
    shapes = {"normaliser_dot": vectors[:2], "total_dot": vectors}
    return _launch(_tangents, plan, plan.rows, named | {"top": arrays[plan.count]} | dots, shapes)


def _pulled_back(*arrays: Array, plan: _Plan) -> list[Array]:
    named = plan.named(arrays[: plan.count])
    top, of_normaliser, of_total = arrays[plan.count :]
    inputs = named | {"top": top, "normaliser_bar": of_normaliser, "total_bar": of_total}
    linear, shape = plan.linear, named["queries"].shape
    # The slope has one number for each row, whose sum is the cotangent.
    shapes = {f"{name}_bar": shape[:2] if name == "slope" else shape for name in ("queries", "slope") if name in linear}
    by_rows = _launch(_pull_rows, plan, plan.rows, inputs, shapes) if shapes else []
    pulled = {name.removesuffix("_bar"): array for name, array in zip(shapes, by_rows, strict=True)}
    if "slope" in linear:
        pulled["slope"] = jnp.sum(pulled["slope"], axis=1)
    # The values are the tokens where no values are given: the two cotangents are added.
    wanted = [name for name in linear if name not in ("queries", "slope")]
    if wanted:
        tokens_as_values = "tokens" in linear and not plan.has_values
        shapes = {f"{name}_bar": named[name].shape for name in wanted}
        shapes |= {"values_bar": named["tokens"].shape} if tokens_as_values else {}
        by_columns = dict(zip(shapes, _launch(_pull_columns, plan, plan.columns, inputs, shapes), strict=True))
        pulled |= {name: by_columns[f"{name}_bar"] for name in wanted}
        if tokens_as_values:
            pulled["tokens"] = by_columns["tokens_bar"] + by_columns["values_bar"]
    return [pulled[name] for name in linear]


def _primitive(name: str, compute: Callable[..., list[Array]]) -> Primitive:
    """A primitive with the operands of `compute`, each with a leading axis of systems, which `jax.vmap` extends."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(compute)

    @primitive.def_abstract_eval
    def _(*avals, plan):
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        outputs = jax.eval_shape(functools.partial(compute, plan=plan), *shapes)
        return [jax.core.ShapedArray(out.shape, out.dtype) for out in outputs]

    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=True))

    def batch(args, axes, *, plan):
        pairs = list(zip(args, axes, strict=True))
        size = next(arg.shape[axis] for arg, axis in pairs if axis is not None)
        permitted = plan.count - 1 if plan.mask is None else None

        def flat(number, arg, axis):
            # A mask that all systems share is not copied.
            if axis is None and number == permitted and arg.shape[0] == 1:
                return arg
            arg = jnp.broadcast_to(arg, (size, *arg.shape)) if axis is None else jnp.moveaxis(arg, axis, 0)
            if number == permitted and arg.shape[1] == 1:
                systems = args[0].shape[0 if axes[0] is None or axes[0] > 0 else 1]
                arg = jnp.broadcast_to(arg, (size, systems, *arg.shape[2:]))
            return arg.reshape(-1, *arg.shape[2:])

        outputs = primitive.bind(*(flat(number, *pair) for number, pair in enumerate(pairs)), plan=plan)
        return [out.reshape(size, -1, *out.shape[1:]) for out in outputs], [0] * len(outputs)

    batching.primitive_batchers[primitive] = batch
    return primitive


_sums_p = _primitive("fused_sums", _sums)
_tangents_p = _primitive("fused_tangents", _sums_of_tangents)
_pull_p = _primitive("fused_pull_back", _pulled_back)


def _no_tangent(array: Array) -> Any:
    return ad.Zero(jax.typeof(array).to_tangent_aval())


def _sums_derivative(primals, tangents, *, plan):
    results = _sums_p.bind(*primals, plan=plan)
    # A matrix of permitted pairs has no derivative.
    dots = {name: dot for name, dot in plan.named(tangents).items() if name in _MOVING and type(dot) is not ad.Zero}
    if not dots:
        return results, [_no_tangent(result) for result in results]
    moved = dataclasses.replace(plan, linear=tuple(dots))
    normaliser, total = _tangents_p.bind(*primals, results[0], *dots.values(), plan=moved)
    return results, [_no_tangent(results[0]), normaliser, total]


ad.primitive_jvps[_sums_p] = _sums_derivative


def _transpose(cotangents, *args, plan):
    residuals = args[: plan.count + 1]
    pulled = _pull_p.bind(*residuals, *map(ad.instantiate_zeros, cotangents), plan=plan)
    return [None] * len(residuals) + list(pulled)


ad.primitive_transposes[_tangents_p] = _transpose


def _plain_sums(plan: _Plan, top: Array, *operands: Array) -> tuple[Array, Array]:
    """Normalisers and totals of all systems by XLA, with shifts that belong to the kernel."""

    def of_system(top, *arrays):
        named = plan.named(arrays)
        mask = MatrixMask(named["permitted"] != 0) if plan.mask is None else plan.mask
        n = named["tokens"].shape[0]
        columns = make_columns(named["tokens"], named.get("values"), named.get("masses"), 512)
        log_weights = LogWeights(slope=named["slope"]) if plan.has_slope else None
        block = lambda numbers, queries: RowBlock(queries, numbers, mask, log_weights)
        sum_rows = lambda numbers, queries, shift: exponential_rows(block(numbers, queries), columns, shift)[1]
        sums = map_blocks(sum_rows, 512, jnp.arange(n), named["queries"], top, recompute=True)
        return sums[:, 0], sums[:, 1:]

    batch = top.shape[0]
    axes = [None if batch > 1 and operand.shape[0] == 1 else 0 for operand in operands]
    operands = tuple(operand[0] if axis is None else operand for operand, axis in zip(operands, axes, strict=True))
    return jax.vmap(of_system, (0, *axes))(top, *operands)


def _moving_sums(plan: _Plan, operands: tuple[Array, ...], top: Array) -> tuple[Callable[..., Any], list[Array]]:
    """The sums as a function of the operands that have a derivative, and these operands."""
    names = list(plan.named(operands))
    numbers = [names.index(name) for name in plan.linear]

    def function(*moving):
        arrays = list(operands)
        for number, operand in zip(numbers, moving, strict=True):
            arrays[number] = operand
        return _plain_sums(plan, lax.stop_gradient(top), *arrays)

    return function, [operands[number] for number in numbers]


def _plain_tangents(plan: _Plan, *arrays: Array) -> list[Array]:
    function, moving = _moving_sums(plan, arrays[: plan.count], arrays[plan.count])
    return list(jax.jvp(function, tuple(moving), tuple(arrays[plan.count + 1 :]))[1])


def _plain_pull_back(plan: _Plan, *arrays: Array) -> list[Array]:
    function, moving = _moving_sums(plan, arrays[: plan.count], arrays[plan.count])
    return list(jax.vjp(function, *moving)[1](tuple(arrays[plan.count + 1 :])))


def _by_xla(primitive: Primitive, plain: Callable[..., list[Array]]) -> None:
    """Derivatives of a primitive, of any order, by those of a plain function."""

    def derivative(primals, tangents, *, plan):
        moving = [number for number, dot in enumerate(tangents) if type(dot) is not ad.Zero]

        def function(*moved):
            arrays = list(primals)
            for number, array in zip(moving, moved, strict=True):
                arrays[number] = array
            return plain(plan, *arrays)

        primals_and_tangents = tuple(primals[number] for number in moving), tuple(tangents[number] for number in moving)
        return primitive.bind(*primals, plan=plan), jax.jvp(function, *primals_and_tangents)[1]

    ad.primitive_jvps[primitive] = derivative


_by_xla(_tangents_p, _plain_tangents)
_by_xla(_pull_p, _plain_pull_back)


def _plan(
    tokens: Tokens, values: Values | None, masses: Masses | None, mask: AbstractMask, sloped: bool, interpret: bool
) -> _Plan:
    n, width, systems = tokens.shape[-2], max(part.shape[-1] for part in (tokens, values) if part is not None), 1
    few = width <= FEW_DIMENSIONS
    if few and n <= _SMALL:
        rows = columns = pl.next_power_of_2(n)
        systems = max(1, _PAIRS // rows**2)
    elif few:
        rows, columns = 64, 128
    else:
        rows = columns = 64 if width <= 64 else 32 if width <= 256 else 16
    rule = None if isinstance(mask, MatrixMask) else mask
    return _Plan(rule, values is not None, masses is not None, sloped, rows, columns, systems, few, interpret)


@eqx.filter_jit
def exponential(queries, tokens, values, masses, mask: AbstractMask, slope, interpret: bool) -> ExponentialSums:
    plan = _plan(tokens, values, masses, mask, slope is not None, interpret)
    slope = None if slope is None else slope.astype(jnp.float32)
    # Memory is loaded in bytes, so that booleans are passed as bytes.
    permitted = mask.permitted.astype(jnp.int8) if isinstance(mask, MatrixMask) else None
    operands = [part for part in (queries, tokens, values, masses, slope, permitted) if part is not None]
    top, normaliser, total = _sums_p.bind(*(part[None] for part in operands), plan=plan)
    return ExponentialSums(last_shift(top[0], normaliser[0], masses), normaliser[0], total[0])
