"""What devices along one axis of a mesh tell each other."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from .exchange import AbstractExchange


class Across(AbstractExchange):
    """The devices along one axis of a mesh, in the order of their tokens; for use inside `shard_map`.

    **Arguments:**

    - `axis`: The name of the axis.
    - `size`: How many devices it has.

    Source: this library.
    """

    axis: str
    size: int

    def total(self, tree: Any) -> Any:
        return lax.psum(tree, self.axis)

    def before(self, tree: Any) -> Any:
        # Each round doubles how many devices are summed over; who is sent nothing has zeros.
        sums, distance = self._forward(tree, 1), 1
        while distance < self.size - 1:
            sums = jax.tree.map(jnp.add, sums, self._forward(sums, distance))
            distance *= 2
        return sums

    def largest(self, a: Array) -> Array:
        return lax.pmax(a, self.axis)

    @property
    def devices(self) -> int:
        return self.size

    def any(self, truth: Bool[Array, ""]) -> Bool[Array, ""]:
        return lax.psum(truth.astype(int), self.axis) > 0

    def around(self, tree: Any) -> Any:
        """What the device before has; the first has that of the last."""
        return lax.ppermute(tree, self.axis, [(k, (k + 1) % self.size) for k in range(self.size)])

    def _forward(self, tree: Any, distance: int) -> Any:
        return lax.ppermute(tree, self.axis, [(k, k + distance) for k in range(self.size - distance)])
