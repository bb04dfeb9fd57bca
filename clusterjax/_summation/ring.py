"""Sums over pairs of tokens that lie on several devices: the columns travel in a ring, and nobody ever holds all."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from .._custom_types import Masses, Tokens
from .._mask import AbstractMask, FullMask
from .across import Across
from .blocked import over_rows
from .rows import Columns, exponential_rows, hardmax_add, hardmax_top, lowest, make_columns, tie_slack


class Block(eqx.Module):
    """What a device knows of its tokens, and what travels.

    **Arguments:**

    - `tokens`: (m, d).
    - `values`: (m, k); None for the tokens themselves.
    - `masses`: (m,); None for one each.
    """

    tokens: Tokens
    values: Float[Array, "m k"] | None
    masses: Masses | None

    @property
    def summed(self) -> Float[Array, "m k"]:
        """The values, or the tokens in their place."""
        return self.tokens if self.values is None else self.values


class Rows(eqx.Module):
    """The queries of a device, and the numbers of their tokens on it; from m on they stand for nothing."""

    queries: Tokens
    numbers: Int[Array, " rows"]


class Ring(eqx.Module):
    """The devices, who may attend to whom, and how many rows and columns a device sums at once."""

    across: Across
    mask: AbstractMask
    block_rows: int
    block_columns: int

    def here(self) -> Int[Array, ""]:
        """The number of this device, in integers such as tokens are numbered by."""
        return lax.axis_index(self.across.axis).astype(int)

    def columns(self, block: Block, source: Int[Array, ""]) -> Columns:
        """The columns of the device numbered `source`, under the numbers that they have among all tokens."""
        columns = make_columns(block.tokens, block.values, block.masses, self.block_columns)
        return eqx.tree_at(lambda c: c.first, columns, columns.first + source * block.tokens.shape[0])

    def over_rows(self, fn: Callable[..., Any], rows: Rows, m: int, skip: Callable[[int], Any], *others: Array) -> Any:
        """`fn(queries, numbers, *others)` of each block of rows, `skip(rows)` of one that stands for nothing."""
        first = self.here() * m

        def block(_, queries, numbers, *others):
            found = lambda: fn(queries, first + jnp.minimum(numbers, m - 1), *others)
            return lax.cond(numbers[0] < m, found, lambda: skip(numbers.shape[0]))

        return over_rows(block, self.block_rows, rows.queries, rows.numbers, *others)

    def travel(self, visit: Callable[[Any, Any, Int[Array, ""]], Any], state: Any, block: Any, size: int) -> Any:
        """`state` and `block` after `visit(state, block, source)` on each device, which gives both.

        A block of `size` tokens that no row here may attend to is passed on unseen.
        """
        here = self.here()

        def step(carry, number):
            state, block = carry
            source = (here - number) % self.across.size
            seen = lambda: visit(state, block, source)
            if isinstance(self.mask, FullMask):
                state, block = seen()
            else:
                corners = (here * size, (here + 1) * size - 1, source * size, (source + 1) * size - 1)
                reaches = jnp.asarray(self.mask.reaches(*corners))
                state, block = lax.cond(reaches, seen, lambda: (state, block))
            return (state, self.across.around(block)), None

        return lax.scan(step, (state, block), jnp.arange(self.across.size))[0]


def _pull(ring: Ring, rows: Rows, block: Block, contribution: Callable[..., Any], cotangent: Any) -> tuple[Rows, Block]:
    """The derivatives of the sum of `contribution(queries, block, source)` over the devices.

    The blocks travel once more, each with its derivative; kept from the way forward they would fill the memory.
    """

    def visit(back, loaded, source):
        block, owed = loaded
        _, pull = jax.vjp(lambda queries, block: contribution(queries, block, source), rows.queries, block)
        of_queries, of_block = pull(cotangent)
        return back + of_queries, (block, jax.tree.map(jnp.add, owed, of_block))

    start = jax.tree.map(jnp.zeros_like, (rows.queries, block))
    back, (_, owed) = ring.travel(visit, start[0], (block, start[1]), block.tokens.shape[0])
    # Integers have no derivative.
    return eqx.tree_at(lambda r: (r.queries, r.numbers), rows, (back, None)), owed


# --- exponential sums


@eqx.filter_custom_vjp
def exponential_ring(arrays: tuple[Rows, Block], ring: Ring) -> tuple[Float[Array, " rows"], Float[Array, "rows k"]]:
    """The shift and the scaled sums of mass times [1, value], over the tokens of all devices."""
    rows, block = arrays

    def visit(carry, block, source):
        (shift, sums), (other, added) = carry, _exponential(ring, rows, block, source)
        top = jnp.maximum(shift, other)
        sums = sums * jnp.exp(shift - top)[:, None] + added * jnp.exp(other - top)[:, None]
        return (top, sums), block

    start = _nothing(rows.numbers.shape[0], 1 + block.summed.shape[1], block.summed.dtype)
    return ring.travel(visit, start, block, block.tokens.shape[0])[0]


def _nothing(rows: int, k: int, dtype: Any) -> tuple[Array, Array]:
    return lowest(rows, dtype), jnp.zeros((rows, k), dtype)


def _exponential(ring: Ring, rows: Rows, block: Block, source: Int[Array, ""]) -> tuple[Array, Array]:
    columns = ring.columns(block, source)
    fn = lambda queries, numbers: exponential_rows(queries, numbers, columns, ring.mask)
    skip = lambda size: _nothing(size, columns.width, columns.tokens.dtype)
    return ring.over_rows(fn, rows, block.tokens.shape[0], skip)


@exponential_ring.def_fwd
def _(perturbed, arrays, ring):
    shift, sums = exponential_ring(arrays, ring)
    return (shift, sums), shift


@exponential_ring.def_bwd
def _(shift, cotangent, perturbed, arrays, ring):
    rows, block = arrays

    def contribution(queries, block, source):
        other, sums = _exponential(ring, Rows(queries, rows.numbers), block, source)
        return sums * jnp.exp(lax.stop_gradient(other) - shift)[:, None]

    none = jnp.zeros((shift.shape[0], 1 + block.summed.shape[1]), shift.dtype)
    of_sums = none if cotangent[1] is None else cotangent[1]
    return _pull(ring, rows, block, contribution, of_sums)


# --- hardmax sums


def hardmax_ring(rows: Rows, block: Block, ring: Ring, tie_tolerance: Float[Array, ""]) -> Float[Array, "rows k"]:
    """The sums of mass times [1, value] over the tokens, of all devices, that attain each row's maximum."""
    m, fixed = block.tokens.shape[0], lax.stop_gradient(rows)
    bottom = jnp.full(rows.numbers.shape, -jnp.inf, rows.queries.dtype)
    none = jnp.zeros_like(bottom)

    def visit(carry, block, source):
        columns = ring.columns(block, source)
        fn = lambda queries, numbers: hardmax_top(queries, numbers, columns, ring.mask)
        found = ring.over_rows(fn, fixed, m, lambda size: (bottom[:size], none[:size]))
        return jax.tree.map(jnp.maximum, carry, found), block

    narrow = lax.stop_gradient(Block(block.tokens, block.tokens[:, :1], block.masses))
    top, longest = ring.travel(visit, (bottom, none), narrow, m)[0]
    least = top - tie_slack(fixed.queries, longest, tie_tolerance)
    return _add_ring((rows, block), ring, lax.stop_gradient(least))


@eqx.filter_custom_vjp
def _add_ring(arrays: tuple[Rows, Block], ring: Ring, least: Float[Array, " rows"]) -> Float[Array, "rows k"]:
    rows, block = arrays
    visit = lambda sums, block, source: (sums + _added(ring, rows, block, source, least), block)
    start = jnp.zeros((rows.numbers.shape[0], 1 + block.summed.shape[1]), block.summed.dtype)
    return ring.travel(visit, start, block, block.tokens.shape[0])[0]


def _added(ring: Ring, rows: Rows, block: Block, source: Int[Array, ""], least: Array) -> Array:
    columns = ring.columns(block, source)
    fn = lambda queries, numbers, least: hardmax_add(queries, numbers, columns, ring.mask, least)
    skip = lambda size: jnp.zeros((size, columns.width), columns.tokens.dtype)
    return ring.over_rows(fn, rows, block.tokens.shape[0], skip, least)


@_add_ring.def_fwd
def _(perturbed, arrays, ring, least):
    return _add_ring(arrays, ring, least), None


@_add_ring.def_bwd
def _(_, cotangent, perturbed, arrays, ring, least):
    rows, block = arrays
    contribution = lambda queries, block, source: _added(ring, Rows(queries, rows.numbers), block, source, least)
    return _pull(ring, rows, block, contribution, cotangent)
