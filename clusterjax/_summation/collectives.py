"""The collective operations for sums on several devices: `psum`, `pmax`, a prefix sum and a ring shift.

The summations call them through `AbstractCollectives`, so that the code runs both inside `shard_map` over one axis of a
mesh and on one device, where each operation is the identity or returns zeros.

Invariants: devices are numbered along the axis in the order of their tokens; every device calls every collective, in
the same order; `psum`, `pmax` and `any` return equal results on all devices. The exclusive prefix sum is the algorithm
of Hillis and Steele, *Data parallel algorithms* (1986), in about log2(size) rounds.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from .._base.types import AbstractPart


class AbstractCollectives(AbstractPart):
    """Collective operations over the devices that share the tokens.

    **Arguments:**

    - `size`: The number of devices.
    """

    size: eqx.AbstractVar[int]

    @property
    @abstractmethod
    def device_index(self) -> Int[Array, ""]:
        """The number of this device, from 0; with m tokens per device, its first token is `device_index` times m."""

    @abstractmethod
    def psum(self, tree: Any) -> Any:
        """The sum of `tree` over all devices, on each of them."""

    @abstractmethod
    def pmax(self, a: Array) -> Array:
        """The elementwise maximum of `a` over all devices, on each of them."""

    @abstractmethod
    def exclusive_prefix_sum(self, tree: Any) -> Any:
        """The sum of `tree` over the devices with smaller numbers; zeros on the first device."""

    @abstractmethod
    def ring_shift(self, tree: Any) -> Any:
        """The `tree` of the preceding device; the first device receives the `tree` of the last."""

    @abstractmethod
    def any(self, condition: Bool[Array, ""]) -> Bool[Array, ""]:
        """True if `condition` is True on at least one device; equal on all devices, so that all take one branch."""


class SingleDevice(AbstractCollectives):
    """The collectives of one device."""

    @property
    def size(self) -> int:
        return 1

    @property
    def device_index(self) -> Int[Array, ""]:
        return jnp.zeros((), int)

    def psum(self, tree: Any) -> Any:
        return tree

    def pmax(self, a: Array) -> Array:
        return a

    def exclusive_prefix_sum(self, tree: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, tree)

    def ring_shift(self, tree: Any) -> Any:
        return tree

    def any(self, condition: Bool[Array, ""]) -> Bool[Array, ""]:
        return condition


class MeshCollectives(AbstractCollectives):
    """The collectives of the devices along one axis of a mesh; for use inside `shard_map`.

    **Arguments:**

    - `axis`: The name of the axis.
    - `size`: The number of devices along it.
    """

    axis: str
    size: int

    @property
    def device_index(self) -> Int[Array, ""]:
        # `axis_index` is int32; tokens are numbered in the default integer dtype.
        return lax.axis_index(self.axis).astype(int)

    def psum(self, tree: Any) -> Any:
        return lax.psum(tree, self.axis)

    def pmax(self, a: Array) -> Array:
        return lax.pmax(a, self.axis)

    def exclusive_prefix_sum(self, tree: Any) -> Any:
        # The shift by one makes the sum exclusive. Each round doubles the number of preceding devices in the sum.
        sums, distance = self._shift_up(tree, 1), 1
        while distance < self.size - 1:
            sums = jax.tree.map(jnp.add, sums, self._shift_up(sums, distance))
            distance *= 2
        return sums

    def ring_shift(self, tree: Any) -> Any:
        return lax.ppermute(tree, self.axis, [(k, (k + 1) % self.size) for k in range(self.size)])

    def any(self, condition: Bool[Array, ""]) -> Bool[Array, ""]:
        return lax.psum(condition.astype(int), self.axis) > 0

    def _shift_up(self, tree: Any, distance: int) -> Any:
        """The `tree` of the device with a number smaller by `distance`; `ppermute` gives zeros without a sender."""
        return lax.ppermute(tree, self.axis, [(k, k + distance) for k in range(self.size - distance)])
