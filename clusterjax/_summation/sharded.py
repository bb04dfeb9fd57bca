"""Tokens on several devices, of one process or of many."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float

from .._check import check_instance, check_text, shown
from .._custom_types import Masses, Tokens
from .._mask import AbstractMask, CausalMask, FullMask
from ._series.bessel import length_and_direction
from .across import Across
from .auto import Auto
from .base import AbstractSummation, ExponentialSums, HardmaxSums
from .blocked import Blocked
from .dense import Dense
from .expand import expand
from .harmonic import Harmonic
from .ring import Block, Ring, Rows, exponential_ring, hardmax_ring


def _mesh(mesh: Any) -> Any:
    if mesh is None:
        return None
    return check_instance(mesh, "mesh", (Mesh, AbstractMesh), "a mesh of devices", "make it with jax.make_mesh")


class Sharded(AbstractSummation):
    """Tokens cut by rows over one axis of a mesh of devices; the sums are those of one device, to rounding.

    With `Harmonic` the devices exchange moments alone, a few kB whatever the number of tokens: their sum over all
    devices, and causally the sum over those whose tokens come first. Rows that are not certified on any device are
    summed in the ring, by all devices together.

    With `Dense` and `Blocked`, and for all hardmax sums, the columns travel around the devices in a ring, so that no
    device ever holds all of them, forwards or backwards; of a causal mask the later ones are not looked at. Derivatives
    through the ring are those of reverse mode.

    **Arguments:**

    - `inner`: How each device sums: `Harmonic`, `Dense`, `Blocked`; `Auto` chooses by the number of all tokens.
    - `axis`: The name of the axis of the mesh.
    - `mesh`: A `jax.sharding.Mesh`; None is the one that `jax.set_mesh` has set. Its other axes may hold copies of the
        tokens.

    **Raises:**

    - `ValueError` if `inner` is not one of these or `axis` not a name, if the mesh has no such axis; on use, if there
        is no mesh or if the devices along the axis do not divide the number of tokens.

    Source: this library; the ring is that of Liu, Zaharia, Abbeel, *Ring attention* (2310.01889).
    """

    inner: AbstractSummation
    axis: str
    mesh: Any = eqx.field(default=None, converter=_mesh, static=True)

    def __check_init__(self):
        if not isinstance(self.inner, Auto | Blocked | Dense | Harmonic):
            raise ValueError(
                f"inner must be Harmonic, Dense, Blocked or Auto, but it is {shown(self.inner)}; "
                "these sum the part of one device."
            )
        check_text(self.axis, "axis")
        if self.mesh is not None:
            _check_axis(self.axis, self.mesh)

    @eqx.filter_jit
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        inner = self.acting(tokens, mask, False)

        def local(across, mask, queries, tokens, values, masses):
            if isinstance(inner, Harmonic):
                return _harmonic(inner, across, mask, queries, Block(tokens, values, masses))
            rows = Rows(queries, jnp.arange(queries.shape[0]))
            return exponential_ring((rows, Block(tokens, values, masses)), _ring(inner, across, mask, tokens))

        shift, sums = self._map(local, mask, queries, tokens, values, masses)
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
        inner = self.acting(tokens, mask, True)

        def local(across, extra, queries, tokens, values, masses):
            mask, tie_tolerance = extra
            rows = Rows(queries, jnp.arange(queries.shape[0]))
            ring = _ring(inner, across, mask, tokens)
            return hardmax_ring(rows, Block(tokens, values, masses), ring, tie_tolerance)

        sums = self._map(local, (mask, tie_tolerance), queries, tokens, values, masses)
        return HardmaxSums(sums[:, 0], sums[:, 1:])

    def acting(self, tokens: Tokens, mask: AbstractMask, hardmax: bool) -> AbstractSummation:
        """How each device sums its part of all `tokens`: by moments, or in the ring, which has no boxes of `Hull`."""
        n, d = tokens.shape
        inner = self.inner
        if isinstance(inner, Auto):
            inner = inner.choose_hardmax(n, d, mask) if hardmax else inner.choose(n, d, tokens.dtype, mask)
        series = isinstance(inner, Harmonic) and not hardmax and isinstance(mask, FullMask | CausalMask)
        return inner if series or isinstance(inner, Dense | Blocked) else Blocked()

    def _map(self, local: Any, extra: Any, *arrays: Any) -> Any:
        """`local(across, extra, *arrays)` on each device with its rows of `arrays`, and all of `extra`."""
        mesh, n = self._mesh(), arrays[0].shape[0]
        size = mesh.shape[self.axis]
        if n % size:
            raise ValueError(
                f"the {size} devices along the axis {self.axis!r} must divide the number of tokens, but it is {n}; "
                f"take {n + size - n % size} tokens, some of mass zero, or another mesh."
            )
        moving, still = eqx.partition(extra, eqx.is_array)
        across, rows, whole = Across(self.axis, size), PartitionSpec(self.axis), PartitionSpec()
        fn = lambda moving, *arrays: local(across, eqx.combine(moving, still), *arrays)
        return _shard_map(fn, mesh, (whole, *(rows for _ in arrays)), rows)(moving, *arrays)

    def _mesh(self) -> Any:
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
    if axis not in mesh.axis_names:
        raise ValueError(
            f"axis must be one of the mesh, {tuple(mesh.axis_names)}, but it is {axis!r}; name one of them."
        )


def _shard_map(fn: Any, mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    # Unchecked: loops inside start from constants, which a check of what varies over devices would not let pass.
    try:
        from jax import shard_map
    except ImportError:  # jax 0.6.0
        from jax.experimental.shard_map import shard_map as early

        return early(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False)
    return shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _ring(inner: AbstractSummation, across: Across, mask: AbstractMask, tokens: Tokens) -> Ring:
    m = tokens.shape[0]
    if isinstance(inner, Dense):
        return Ring(across, mask, m, m)
    assert isinstance(inner, Blocked)
    return Ring(across, mask, inner.block_rows, inner.block_columns)


def _harmonic(
    inner: Harmonic, across: Across, mask: AbstractMask, queries: Tokens, block: Block
) -> tuple[Float[Array, " m"], Float[Array, "m k"]]:
    """Moments of all devices, and the ring for the rows of all that are not certified."""
    tolerance, m = inner.check(block.tokens), queries.shape[0]
    causal = isinstance(mask, CausalMask)
    sums, error = expand(queries, block.tokens, block.values, block.masses, causal, tolerance, across)
    good = error <= tolerance
    shift = length_and_direction(lax.stop_gradient(queries))[0]
    ring = Ring(across, mask, min(256, m), 1024)

    def mend(queries, block, shift, sums):
        numbers = jnp.nonzero(~good, size=m, fill_value=m)[0]
        rows = Rows(queries[jnp.minimum(numbers, m - 1)], numbers)
        new_shift, new_sums = exponential_ring((rows, block), ring)
        return shift.at[numbers].set(new_shift, mode="drop"), sums.at[numbers].set(new_sums, mode="drop")

    keep = lambda queries, block, shift, sums: (shift, sums)
    some = across.any(jnp.any(~good))
    return lax.cond(some, jax.checkpoint(mend), keep, queries, block, shift, sums)
