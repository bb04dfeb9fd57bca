"""What devices that share the tokens tell each other."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


class AbstractExchange(eqx.Module):
    """How what each device knows of its tokens becomes what all of them know.

    Source: this library.
    """

    @abstractmethod
    def total(self, tree: Any) -> Any:
        """The sum of `tree` over all devices, on each of them."""

    @abstractmethod
    def before(self, tree: Any) -> Any:
        """The sum of `tree` over the devices whose tokens come first; zeros on the first."""

    @abstractmethod
    def largest(self, a: Array) -> Array:
        """The largest of `a` over all devices, number by number."""

    @property
    @abstractmethod
    def devices(self) -> int:
        """How many there are."""

    @abstractmethod
    def any(self, truth: Bool[Array, ""]) -> Bool[Array, ""]:
        """Whether `truth` holds on any device, so that all of them go the same way."""


class Alone(AbstractExchange):
    """One device, which has nobody to ask.

    Source: this library.
    """

    def total(self, tree: Any) -> Any:
        return tree

    def before(self, tree: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, tree)

    def largest(self, a: Array) -> Array:
        return a

    @property
    def devices(self) -> int:
        return 1

    def any(self, truth: Bool[Array, ""]) -> Bool[Array, ""]:
        return truth
