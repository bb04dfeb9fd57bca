"""Masks: the tokens that each token may attend to.

A mask is a rule for pairs of indices, so that blocked sums evaluate the rule on one block at a time. `reaches` and
`covers` classify blocks: blocks without allowed pairs are skipped, and blocks of allowed pairs need no masking.
Invariant: every token may attend to itself, so that no softmax has an empty row.
"""

from abc import abstractmethod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._abstract import AbstractPart
from .._check import check_instance, check_integer, check_room
from .._custom_types import IntScalar


class AbstractMask(AbstractPart):
    """A rule that allows or forbids token i to attend to token j, for each pair (i, j)."""

    @abstractmethod
    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        """True where token `i` may attend to token `j`, for index arrays that broadcast against each other."""

    @abstractmethod
    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        """True if some i in [first_i, last_i] may attend to some j in [first_j, last_j], or if this is unknown.

        A blocked sum skips blocks with False. A constant `True` means that no block is ever skipped.
        """

    @abstractmethod
    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        """True if every i in [first_i, last_i] may attend to every j in [first_j, last_j]; False if this is unknown."""

    @abstractmethod
    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        """The mass of the tokens that each token may attend to."""

    @abstractmethod
    def check(self, n: int) -> None:
        """Raise a ValueError unless the mask fits `n` tokens."""

    def matrix(self, n: int) -> Bool[Array, "n n"]:
        """The mask of `n` tokens as a matrix: entry (i, j) is True if token i may attend to token j."""
        n = check_integer(n, "n", remedy="pass the number of tokens")
        self.check(n)
        # A rule may need three boolean matrices: two comparisons and their conjunction.
        check_room(n, "n", 3 * n * n, "the booleans of all n^2 pairs", longest=n, remedy="ask for fewer tokens")
        index = jnp.arange(n)
        # A rule may return a smaller shape that broadcasts, such as (n, 1).
        return jnp.broadcast_to(self.allowed(index[:, None], index[None, :]), (n, n))


def check_mask(mask: Any, name: str = "mask") -> AbstractMask:
    """Return `mask`; raises a `ValueError` if it is not a mask."""
    return check_instance(mask, name, AbstractMask, "a mask of clusterjax", "pass CausalMask(), for example")
