"""The collective operations for sums on several devices, which are the identity, or zeros, on one device.

**Algorithm.** The exclusive prefix sum takes about log2(size) rounds (Hillis and Steele, *Data parallel algorithms*,
1986). **Invariants.** Devices are numbered along the axis in the order of their tokens; every device calls every
collective, in the same order; `psum`, `pmax` and `any` return equal results on all devices.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int


class Collectives(eqx.Module):
    """The operations over the `size` devices along an axis of a mesh, inside `shard_map`; axis None is one device."""

    axis: str | None = None
    size: int = 1

    @property
    def device_index(self) -> Int[Array, ""]:
        """The number of this device, from 0; with m tokens per device, its first token is `device_index` times m."""
        # `axis_index` is int32; tokens are numbered in the default integer dtype.
        return jnp.zeros((), int) if self.axis is None else lax.axis_index(self.axis).astype(int)

    def psum(self, tree: Any) -> Any:
        """The sum of `tree` over all devices."""
        return tree if self.axis is None else lax.psum(tree, self.axis)

    def pmax(self, a: Array) -> Array:
        """The elementwise maximum of `a` over all devices."""
        return a if self.axis is None else lax.pmax(a, self.axis)

    def exclusive_prefix_sum(self, tree: Any) -> Any:
        """The sum of `tree` over the devices with smaller numbers; zeros on the first device."""
        if self.axis is None:
            return jax.tree.map(jnp.zeros_like, tree)
        # The shift by one makes the sum exclusive. Each round doubles the number of preceding devices in the sum.
        sums, distance = self._shift_up(tree, 1), 1
        while distance < self.size - 1:
            sums = jax.tree.map(jnp.add, sums, self._shift_up(sums, distance))
            distance *= 2
        return sums

    def ring_shift(self, tree: Any) -> Any:
        """The `tree` of the preceding device; the first device receives the `tree` of the last."""
        return lax.ppermute(tree, self.axis, [(k, (k + 1) % self.size) for k in range(self.size)])

    def any(self, condition: Bool[Array, ""]) -> Bool[Array, ""]:
        """True if `condition` is True on at least one device; equal on all devices, so that all take one branch."""
        return condition if self.axis is None else lax.psum(condition.astype(int), self.axis) > 0

    def _shift_up(self, tree: Any, distance: int) -> Any:
        """The `tree` of the device with a number smaller by `distance`; `ppermute` gives zeros without a sender."""
        return lax.ppermute(tree, self.axis, [(k, k + distance) for k in range(self.size - distance)])
