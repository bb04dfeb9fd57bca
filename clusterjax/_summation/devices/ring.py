"""Sums over all pairs of tokens on several devices, by ring attention (Liu, Zaharia, Abbeel, 2310.01889).

Each device keeps its queries. The blocks of tokens rotate around the ring of devices, by one `ppermute` per step. After
as many steps as devices, each device has summed its rows over every block, and each block is back on its own device.

Invariants: a device holds one block besides its own rows, in the forward and backward passes. Sums of exponentials are
relative to a running maximum per row, so that nothing overflows. A block that the mask hides from all rows of a device
is passed on without computation. The backward pass rotates the blocks again with their cotangents (`_rotate_vjp`).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from ..._blocks import map_blocks
from ..._custom_types import Masses, Tokens
from ..._mask import AbstractMask, FullMask
from ..rows import Columns, exponential_rows, hardmax_add, hardmax_top, lowest, make_columns, tie_slack
from .collectives import AbstractCollectives


class TokenBlock(eqx.Module):
    """The m tokens of one device with their values and masses, which rotate around the ring.

    **Arguments:**

    - `tokens`: (m, d).
    - `values`: (m, k); None if the tokens are the values.
    - `masses`: (m,); None if all masses are one.
    """

    tokens: Tokens
    values: Float[Array, "m k"] | None
    masses: Masses | None

    @property
    def summed(self) -> Float[Array, "m k"]:
        """The values, by default the tokens."""
        return self.tokens if self.values is None else self.values


class Rows(eqx.Module):
    """Queries of a device, (rows, d), and the numbers of their tokens on the device; m or more marks padding.

    Padding comes last, as in the result of `jnp.nonzero` with a fixed size.
    """

    queries: Tokens
    numbers: Int[Array, " rows"]


class Ring(eqx.Module):
    """The devices, the mask, and the numbers of rows and columns that a device sums at once."""

    collectives: AbstractCollectives
    mask: AbstractMask
    block_rows: int
    block_columns: int

    def columns(self, block: TokenBlock, source: Int[Array, ""]) -> Columns:
        """The columns of the device with the number `source`, numbered among the tokens of all devices."""
        columns = make_columns(block.tokens, block.values, block.masses, self.block_columns)
        return eqx.tree_at(lambda c: c.first, columns, columns.first + source * block.tokens.shape[0])

    def map_rows(self, fn: Callable[..., Any], rows: Rows, m: int, skip: Callable[[int], Any], *others: Array) -> Any:
        """Apply `fn(queries, numbers, *others)` to each block of rows, or `skip(size)` to a block of padding."""
        first = self.collectives.device_index * m

        def row_block(queries, numbers, *others):
            # Padding is computed as the last token, to be a valid row, and the caller drops the result.
            compute = lambda: fn(queries, first + jnp.minimum(numbers, m - 1), *others)
            return lax.cond(numbers[0] < m, compute, lambda: skip(numbers.shape[0]))

        return map_blocks(row_block, self.block_rows, rows.queries, rows.numbers, *others, recompute=True)

    def rotate(self, visit: Callable[[Any, Any, Int[Array, ""]], Any], state: Any, block: Any, m: int) -> Any:
        """Apply `state, block = visit(state, block, source)` to the blocks of m tokens of all devices in turn.

        A block is not visited if the mask forbids all rows of this device to attend to it.
        """
        index = self.collectives.device_index

        def step(carry, number):
            state, block = carry
            # After `number` shifts, this device holds the block that started on device `index - number`.
            source = (index - number) % self.collectives.size
            visited = lambda: visit(state, block, source)
            if isinstance(self.mask, FullMask):
                state, block = visited()
            else:
                # The corners are the first and last row and the first and last column.
                corners = (index * m, (index + 1) * m - 1, source * m, (source + 1) * m - 1)
                reaches = jnp.asarray(self.mask.reaches(*corners))
                state, block = lax.cond(reaches, visited, lambda: (state, block))
            return (state, self.collectives.ring_shift(block)), None

        return lax.scan(step, (state, block), jnp.arange(self.collectives.size))[0]


def _rotate_vjp(
    ring: Ring, rows: Rows, block: TokenBlock, contribution: Callable[..., Any], cotangent: Any
) -> tuple[Rows, TokenBlock]:
    """The cotangents of rows and block for the sum of `contribution(queries, block, source)` over all devices.

    The blocks rotate again, each with its cotangent, and every contribution is recomputed, since residuals of the
    forward pass would hold the tokens of all devices on each device.
    """

    def visit(of_queries, block_and_cotangent, source):
        block, of_block = block_and_cotangent
        _, vjp = jax.vjp(lambda queries, block: contribution(queries, block, source), rows.queries, block)
        more_of_queries, more_of_block = vjp(cotangent)
        return of_queries + more_of_queries, (block, jax.tree.map(jnp.add, of_block, more_of_block))

    zeros = jax.tree.map(jnp.zeros_like, (rows.queries, block))
    of_queries, (_, of_block) = ring.rotate(visit, zeros[0], (block, zeros[1]), block.tokens.shape[0])
    # Integers have no derivative.
    return eqx.tree_at(lambda r: (r.queries, r.numbers), rows, (of_queries, None)), of_block


# --- exponential sums


@eqx.filter_custom_vjp
def exponential_ring(
    arrays: tuple[Rows, TokenBlock], ring: Ring
) -> tuple[Float[Array, " rows"], Float[Array, "rows k"]]:
    """The shift, (rows,), and the scaled sums of mass times [1, value], (rows, 1 + k), over all devices' tokens."""
    rows, block = arrays

    def visit(carry, block, source):
        # The online softmax rescales both sums to the larger of the two shifts and adds them.
        (shift, sums), (block_shift, block_sums) = carry, _exponential(ring, rows, block, source)
        top = jnp.maximum(shift, block_shift)
        sums = sums * jnp.exp(shift - top)[:, None] + block_sums * jnp.exp(block_shift - top)[:, None]
        return (top, sums), block

    start = _empty_sums(rows.numbers.shape[0], 1 + block.summed.shape[1], block.summed.dtype)
    return ring.rotate(visit, start, block, block.tokens.shape[0])[0]


def _empty_sums(rows: int, width: int, dtype: Any) -> tuple[Array, Array]:
    """The shift, (rows,), and the sums, (rows, width), over no columns."""
    return lowest(rows, dtype), jnp.zeros((rows, width), dtype)


def _exponential(
    ring: Ring, rows: Rows, block: TokenBlock, source: Int[Array, ""], *shift: Array
) -> tuple[Array, Array]:
    """The shift, (rows,), and the sums, (rows, 1 + k), over the block of the device with the number `source`.

    A given `shift` is the shift over the blocks of all devices.
    """
    columns = ring.columns(block, source)
    fn = lambda queries, numbers, *shift: exponential_rows(queries, numbers, columns, ring.mask, *shift)
    skip = lambda size: _empty_sums(size, columns.width, columns.tokens.dtype)
    return ring.map_rows(fn, rows, block.tokens.shape[0], skip, *shift)


@exponential_ring.def_fwd
def _(perturbed, arrays, ring):
    shift, sums = exponential_ring(arrays, ring)
    return (shift, sums), shift


@exponential_ring.def_bwd
def _(shift, cotangent, perturbed, arrays, ring):
    rows, block = arrays

    # For a fixed final shift, the sums are linear in the contributions of the blocks and need no running maximum.
    def contribution(queries, block, source):
        return _exponential(ring, Rows(queries, rows.numbers), block, source, shift)[1]

    zeros = jnp.zeros((shift.shape[0], 1 + block.summed.shape[1]), shift.dtype)
    of_sums = zeros if cotangent[1] is None else cotangent[1]
    return _rotate_vjp(ring, rows, block, contribution, of_sums)


# --- hardmax sums


def hardmax_ring(rows: Rows, block: TokenBlock, ring: Ring, tie_tolerance: Float[Array, ""]) -> Float[Array, "rows k"]:
    """The sums of mass times [1, value], (rows, 1 + k), over the tokens of all devices that attain the row's maximum.

    The first rotation finds each row's maximum; the second sums over the tokens with scores within the tolerance.
    """
    m, fixed = block.tokens.shape[0], lax.stop_gradient(rows)
    no_score = jnp.full(rows.numbers.shape, -jnp.inf, rows.queries.dtype)
    no_length = jnp.zeros_like(no_score)

    def visit(carry, block, source):
        columns = ring.columns(block, source)
        fn = lambda queries, numbers: hardmax_top(queries, numbers, columns, ring.mask)
        of_block = ring.map_rows(fn, fixed, m, lambda size: (no_score[:size], no_length[:size]))
        return jax.tree.map(jnp.maximum, carry, of_block), block

    # The maximum needs no values: one column of the tokens replaces them, so that less data is sent.
    narrow = lax.stop_gradient(TokenBlock(block.tokens, block.tokens[:, :1], block.masses))
    top, longest = ring.rotate(visit, (no_score, no_length), narrow, m)[0]
    least = top - tie_slack(fixed.queries, longest, tie_tolerance)
    return _hardmax_sums((rows, block), ring, lax.stop_gradient(least))


@eqx.filter_custom_vjp
def _hardmax_sums(arrays: tuple[Rows, TokenBlock], ring: Ring, least: Float[Array, " rows"]) -> Float[Array, "rows k"]:
    """The sums, (rows, 1 + k), over the tokens of all devices with scores of at least `least`, (rows,)."""
    rows, block = arrays
    visit = lambda sums, block, source: (sums + _hardmax(ring, rows, block, source, least), block)
    start = jnp.zeros((rows.numbers.shape[0], 1 + block.summed.shape[1]), block.summed.dtype)
    return ring.rotate(visit, start, block, block.tokens.shape[0])[0]


def _hardmax(ring: Ring, rows: Rows, block: TokenBlock, source: Int[Array, ""], least: Array) -> Array:
    """The sums, (rows, 1 + k), over the tokens of device `source` with scores of at least `least`."""
    columns = ring.columns(block, source)
    fn = lambda queries, numbers, least: hardmax_add(queries, numbers, columns, ring.mask, least)
    skip = lambda size: jnp.zeros((size, columns.width), columns.tokens.dtype)
    return ring.map_rows(fn, rows, block.tokens.shape[0], skip, least)


@_hardmax_sums.def_fwd
def _(perturbed, arrays, ring, least):
    return _hardmax_sums(arrays, ring, least), None


@_hardmax_sums.def_bwd
def _(_, cotangent, perturbed, arrays, ring, least):
    rows, block = arrays
    contribution = lambda queries, block, source: _hardmax(ring, Rows(queries, rows.numbers), block, source, least)
    return _rotate_vjp(ring, rows, block, contribution, cotangent)
