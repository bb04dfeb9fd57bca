"""`Sharded`: attention sums of tokens split by rows over one axis of a mesh, in one process or in many.

Inside one `shard_map`, each device sums its own rows. With `Harmonic` as inner summation, the devices add the moments
of their tokens (`psum`, or an exclusive prefix sum for a causal mask) and evaluate one series; rows that the
certificate refuses are summed by pairs in the ring. With `Dense` and `Blocked`, all rows are summed in the ring
(`ring.py`, after Liu, Zaharia, Abbeel, *Ring attention*, 2310.01889).

Invariants: device k holds the tokens k m to (k + 1) m - 1; all devices take the same branch of every conditional with
a collective; the results equal those of one device up to rounding.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float

from ..._check import check_instance, check_text, shown
from ..._custom_types import Masses, Tokens
from ..._mask import AbstractMask, CausalMask
from ..auto import Auto, resolved
from ..base import (
    AbstractExponentialSum,
    AbstractNearestSearch,
    AbstractSummation,
    ExponentialSums,
    HardmaxSums,
    Support,
    check_summation,
    check_supported,
)
from ..blocked import Blocked
from ..dense import Dense
from ..harmonic.expand import expand
from ..harmonic.series.bessel import length_and_direction
from ..harmonic.summation import Harmonic
from ..nearest.hull import Hull
from .collectives import MeshCollectives
from .ring import Ring, Rows, TokenBlock, exponential_ring, hardmax_ring


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
            raise ValueError(
                f"inner must be Harmonic, Dense, Blocked or Auto, but it is {shown(self.inner)}; "
                "these sum the part of one device."
            )
        check_text(self.axis, "axis")
        if self.mesh is not None:
            _check_axis(self.axis, self.mesh)

    @property
    def supports(self) -> Support:
        # The ring has no forward mode, and `Harmonic` uses the ring for rows that are not certified.
        return self.inner.supports._replace(forward_mode=False)

    @eqx.filter_jit
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
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
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
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

        The ring has no search trees: `Blocked` replaces `Hull`.
        """
        inner = resolved(self.inner, tokens, tokens, mask, hardmax)
        return Blocked() if isinstance(inner, Hull) else inner

    def _map(self, local: Any, extra: Any, *arrays: Any) -> Any:
        """Call `local(collectives, extra, *arrays)` on each device with its rows of `arrays` and a copy of `extra`."""
        mesh, n = self._active_mesh(), arrays[0].shape[0]
        size = mesh.shape[self.axis]
        if n % size:
            raise ValueError(
                f"the {size} devices along the axis {self.axis!r} must divide the number of tokens, but it is {n}; "
                f"take {n + size - n % size} tokens, some of mass zero, or another mesh."
            )
        # `shard_map` takes only arrays; the static part of `extra` enters by closure.
        dynamic, static = eqx.partition(extra, eqx.is_array)
        collectives = MeshCollectives(self.axis, size)  # pyright: ignore[reportArgumentType]
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
        raise ValueError(
            f"axis must be one of the mesh, {tuple(mesh.axis_names)}, but it is {axis!r}; name one of them."
        )


def _shard_map(fn: Any, mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    """`jax.shard_map` without its check of replication, in every supported version of JAX."""
    # Loops inside start from constants, which the check would require to be marked as varying over the devices.
    try:
        from jax import shard_map
    except ImportError:  # jax 0.6.0
        from jax.experimental.shard_map import shard_map as early

        return early(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False)
    return shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _ring(inner: AbstractSummation, collectives: MeshCollectives, mask: AbstractMask, tokens: Tokens) -> Ring:
    """The ring with the blocks of `inner` for the m `tokens` of this device."""
    m = tokens.shape[0]
    if isinstance(inner, Dense):
        return Ring(collectives, mask, m, m)
    assert isinstance(inner, Blocked)
    return Ring(collectives, mask, *inner.block())


def _harmonic(
    inner: Harmonic, collectives: MeshCollectives, mask: AbstractMask, queries: Tokens, block: TokenBlock
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
