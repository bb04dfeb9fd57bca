"""`Sharded`: attention sums of tokens split by rows over one axis of a mesh, in one process or in many.

**Algorithm.** Inside one `shard_map`, each device sums its own rows. With `Harmonic` as inner summation, the devices
add the moments of their tokens (`psum`, or an exclusive prefix sum for a causal mask) and evaluate one series; rows
that the certificate refuses are summed by pairs in the ring. With `Dense` and `Blocked`, all rows are summed in the
ring (Liu, Zaharia, Abbeel, *Ring attention*, 2310.01889): the blocks of tokens rotate around the devices, by one
`ppermute` per step, and each device sums its rows over the block that it holds.

**Invariants.** Device k holds the tokens k m to (k + 1) m - 1, and one block besides its own rows, in the forward and
backward passes. All devices take the same branch of every conditional with a collective. Sums of exponentials are
relative to a running maximum per row, so that nothing overflows. A block that the mask hides from all rows of a device
is passed on without computation. The results equal those of one device up to rounding.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from .._base.batching import map_blocks
from .._base.checks import check_instance, check_text, refusal, shown
from .._base.types import Masses, Scalar, Tokens, Values
from .._model.mask import AbstractMask, CausalMask, FullMask
from .._model.summation import (
    AbstractExponentialSum,
    AbstractNearestSearch,
    AbstractSummation,
    ExponentialSums,
    HardmaxSums,
    Support,
    check_summation,
    check_supported,
)
from .auto import Auto, resolved
from .blocked import Blocked, Columns, RowBlock, exponential_rows, hardmax_add, hardmax_top, lowest, make_columns
from .collectives import Collectives
from .dense import Dense
from .fused import Fused
from .harmonic.series import length_and_direction
from .harmonic.summation import Harmonic, expand
from .hull import Hull
from .ties import tie_slack


class TokenBlock(eqx.Module):
    """The m tokens of one device with their values, by default the tokens, and masses, by default one."""

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

    collectives: Collectives
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
    fn = lambda queries, numbers, *shift: exponential_rows(RowBlock(queries, numbers, ring.mask), columns, *shift)
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


def hardmax_ring(rows: Rows, block: TokenBlock, ring: Ring, tie_tolerance: Scalar) -> Float[Array, "rows k"]:
    """The sums of mass times [1, value], (rows, 1 + k), over the tokens of all devices that attain the row's maximum.

    The first rotation finds each row's maximum; the second sums over the tokens with scores within the tolerance.
    """
    m, fixed = block.tokens.shape[0], lax.stop_gradient(rows)
    no_score = jnp.full(rows.numbers.shape, -jnp.inf, rows.queries.dtype)
    no_length = jnp.zeros_like(no_score)

    def visit(carry, block, source):
        columns = ring.columns(block, source)
        fn = lambda queries, numbers: hardmax_top(RowBlock(queries, numbers, ring.mask), columns)
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
    fn = lambda queries, numbers, least: hardmax_add(RowBlock(queries, numbers, ring.mask), columns, least)
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


def _mesh(mesh: Mesh | AbstractMesh | None) -> Mesh | AbstractMesh | None:
    """Return `mesh`; raises a ValueError if it is neither a mesh nor None."""
    if mesh is None:
        return None
    return check_instance(mesh, "mesh", (Mesh, AbstractMesh), "a mesh of devices", "make it with jax.make_mesh")


class Sharded(AbstractExponentialSum, AbstractNearestSearch):
    """Sums of tokens split by rows over one axis of a mesh of devices, equal to the sums on one device up to rounding.

    With `Harmonic`, the devices exchange only moments, a few kB for any number of tokens: the sum over all devices or,
    with a causal mask, over the devices with earlier tokens. Rows that are not certified are summed by pairs in the
    ring; if one device has such a row, all devices take part in the ring.

    With `Dense` and `Blocked`, the columns rotate around the ring of devices, so that no device holds all columns in
    the forward or backward pass. With a causal mask, blocks of later tokens are skipped.

    Only reverse-mode derivatives are supported, since the ring has no forward mode.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> mesh = jax.sharding.Mesh(jax.devices()[:1], ("tokens",))  # one device; on several the call is the same
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=64, d=3)
        >>> sharded = cjx.SoftmaxAttention(2.0, summation=cjx.Sharded(cjx.Blocked(16, 16), "tokens", mesh))
        >>> dense = cjx.SoftmaxAttention(2.0, summation=cjx.Dense())
        >>> bool(jnp.allclose(sharded.average(x, None), dense.average(x, None), atol=1e-5))
        True
        ```

    **Arguments:**

    - `inner`: The summation on each device: `Harmonic`, `Dense` or `Blocked`; `Auto` chooses by the number of all
        tokens.
    - `axis`: The name of the axis of the mesh.
    - `mesh`: A `jax.sharding.Mesh`; None is the mesh set by `jax.set_mesh`. Other axes may hold copies of the tokens.

    **Raises:**

    - `ValueError` if `inner` is another summation, `axis` is not a name, or the mesh has no such axis; on use, if there
        is no mesh or the number of devices along the axis does not divide the number of tokens.

    ??? cite "Source"

        The ring: Liu, Zaharia, Abbeel, *Ring attention* (2310.01889).
    """

    inner: AbstractSummation
    axis: str
    mesh: Mesh | AbstractMesh | None = eqx.field(default=None, converter=_mesh, static=True)

    def __check_init__(self):
        if not isinstance(self.inner, Auto | Blocked | Dense | Harmonic):
            rule = "be Harmonic, Dense, Blocked or Auto"
            raise refusal("inner", rule, f"it is {shown(self.inner)}", "these sum the part of one device")
        check_text(self.axis, "axis")
        if self.mesh is not None:
            _check_axis(self.axis, self.mesh)

    @property
    def supports(self) -> Support:
        # The ring has no forward mode, and `Harmonic` uses the ring for rows that are not certified.
        return self.inner.supports._replace(forward_mode=False, positions=())

    @eqx.filter_jit
    def exponential(
        self, queries: Tokens, tokens: Tokens, values: Values | None, masses: Masses | None, mask: AbstractMask
    ) -> ExponentialSums:
        check_supported(self, mask, tokens.shape[1], tokens.dtype)
        inner = self.resolve(tokens, mask, False)

        def local(collectives, mask, queries, tokens, values, masses):
            if isinstance(inner, Harmonic):
                return _harmonic(inner, collectives, mask, queries, TokenBlock(tokens, values, masses))
            rows = Rows(queries, jnp.arange(queries.shape[0]))
            return exponential_ring((rows, TokenBlock(tokens, values, masses)), _ring(inner, collectives, mask, tokens))

        shift, sums = self._map(local, mask, queries, tokens, values, masses)
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
    ) -> HardmaxSums:
        check_summation(self.inner, "inner", AbstractNearestSearch)
        check_supported(self, mask, tokens.shape[1], tokens.dtype)
        inner = self.resolve(tokens, mask, True)

        def local(collectives, extra, queries, tokens, values, masses):
            mask, tie_tolerance = extra
            rows = Rows(queries, jnp.arange(queries.shape[0]))
            ring = _ring(inner, collectives, mask, tokens)
            return hardmax_ring(rows, TokenBlock(tokens, values, masses), ring, tie_tolerance)

        sums = self._map(local, (mask, tie_tolerance), queries, tokens, values, masses)
        return HardmaxSums(sums[:, 0], sums[:, 1:])

    def resolve(self, tokens: Tokens, mask: AbstractMask, hardmax: bool) -> AbstractSummation:
        """The summation that each device runs: `inner` or, if `inner` is `Auto`, its choice for all `tokens`.

        The ring has neither search trees nor kernels: `Blocked` replaces `Hull` and `Fused`.
        """
        inner = resolved(self.inner, tokens, tokens, mask, hardmax)
        return Blocked() if isinstance(inner, Hull | Fused) else inner

    def _map(self, local: Any, extra: Any, *arrays: Any) -> Any:
        """Call `local(collectives, extra, *arrays)` on each device with its rows of `arrays` and a copy of `extra`."""
        mesh, n = self._active_mesh(), arrays[0].shape[0]
        size = mesh.shape[self.axis]
        if n % size:
            devices = f"the {size} devices along the axis {self.axis!r}"
            remedy = f"take {n + size - n % size} tokens, some of mass zero, or another mesh"
            raise refusal(devices, "divide the number of tokens", f"it is {n}", remedy)
        # `shard_map` takes only arrays; the static part of `extra` enters by closure.
        dynamic, static = eqx.partition(extra, eqx.is_array)
        collectives = Collectives(self.axis, size)
        by_rows, replicated = PartitionSpec(self.axis), PartitionSpec()
        fn = lambda dynamic, *arrays: local(collectives, eqx.combine(dynamic, static), *arrays)
        return _shard_map(fn, mesh, (replicated, *(by_rows for _ in arrays)), by_rows)(dynamic, *arrays)

    def _active_mesh(self) -> Any:
        """The mesh of this summation, or the mesh set by `jax.set_mesh`."""
        if self.mesh is not None:
            return self.mesh
        mesh = jax.sharding.get_abstract_mesh()
        if mesh is None or mesh.empty:
            raise ValueError(
                f"Sharded over {self.axis!r} needs a mesh, but none is set; pass "
                f"mesh=jax.sharding.Mesh(jax.devices(), ({self.axis!r},)), or set one with jax.set_mesh."
            )
        _check_axis(self.axis, mesh)
        return mesh


def _check_axis(axis: str, mesh: Any) -> None:
    """Raise a ValueError if the mesh has no axis of this name."""
    if axis not in mesh.axis_names:
        raise refusal("axis", f"be one of the mesh, {tuple(mesh.axis_names)}", f"it is {axis!r}", "name one of them")


def _shard_map(fn: Any, mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    """`jax.shard_map` without its check of replication, in every supported version of JAX."""
    # Loops inside start from constants, which the check would require to be marked as varying over the devices.
    try:
        from jax import shard_map
    except ImportError:  # jax 0.6.0
        from jax.experimental.shard_map import shard_map as early

        return early(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False)
    return shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _ring(inner: AbstractSummation, collectives: Collectives, mask: AbstractMask, tokens: Tokens) -> Ring:
    """The ring with the blocks of `inner` for the m `tokens` of this device."""
    m = tokens.shape[0]
    if isinstance(inner, Dense):
        return Ring(collectives, mask, m, m)
    assert isinstance(inner, Blocked)
    return Ring(collectives, mask, *inner.block())


def _harmonic(
    inner: Harmonic, collectives: Collectives, mask: AbstractMask, queries: Tokens, block: TokenBlock
) -> tuple[Float[Array, " m"], Float[Array, "m k"]]:
    """The shift, (m,), and the sums, (m, 1 + k), of this device's rows: by series, or in the ring if not certified."""
    tolerance, m = inner.check(block.tokens), queries.shape[0]
    causal = isinstance(mask, CausalMask)
    sums, error = expand(queries, block.tokens, block.values, block.masses, causal, tolerance, collectives)
    certified = error <= tolerance
    shift = length_and_direction(lax.stop_gradient(queries))[0]
    ring = Ring(collectives, mask, min(256, m), 1024)

    def sum_uncertified_rows(queries, block, shift, sums):
        # The array has the static size m, since the number of uncertified rows is known only at run time.
        numbers = jnp.nonzero(~certified, size=m, fill_value=m)[0]
        rows = Rows(queries[jnp.minimum(numbers, m - 1)], numbers)
        new_shift, new_sums = exponential_ring((rows, block), ring)
        return shift.at[numbers].set(new_shift, mode="drop"), sums.at[numbers].set(new_sums, mode="drop")

    keep = lambda queries, block, shift, sums: (shift, sums)
    # The ring is a collective: devices without uncertified rows must enter it too.
    any_uncertified = collectives.any(jnp.any(~certified))
    return lax.cond(any_uncertified, jax.checkpoint(sum_uncertified_rows), keep, queries, block, shift, sums)
