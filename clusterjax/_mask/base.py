"""Masks: which tokens each token may attend to.

A mask is a rule for index pairs, so that blocked sums evaluate it on one block at a time. `reaches` and `covers`
classify whole blocks: a block that no pair reaches is skipped, one that is covered needs no masking. Invariant: every
token may attend to itself, so that no softmax has an empty row.
"""

from abc import abstractmethod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._abstract import AbstractPart
from .._check import check_instance, check_integer, check_room
from .._custom_types import IntScalar


class AbstractMask(AbstractPart):
    """A rule that says of each pair (i, j) whether token i may attend to token j."""

    @abstractmethod
    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether token `i` may attend to token `j`, for index arrays that broadcast against each other."""

    @abstractmethod
    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        """Whether some i of [first_i, last_i] may attend to some j of [first_j, last_j]; True when in doubt.

        A blocked sum skips the blocks for which this is False. A plain `True` promises that no block is ever empty.
        """

    @abstractmethod
    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        """Whether every i of [first_i, last_i] may attend to every j of [first_j, last_j]; False when in doubt."""

    @abstractmethod
    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        """For each token, the mass of the tokens that it may attend to."""

    @abstractmethod
    def check(self, n: int) -> None:
        """Raise a ValueError unless the mask fits `n` tokens."""

    def matrix(self, n: int) -> Bool[Array, "n n"]:
        """The mask of `n` tokens as a matrix: row i, column j."""
        n = check_integer(n, "n", remedy="pass the number of tokens")
        self.check(n)
        # A rule compares twice and joins the two.
        check_room(n, "n", 3 * n * n, "the booleans of all n^2 pairs", longest=n, remedy="ask for fewer tokens")
        index = jnp.arange(n)
        # A rule may return less than the full shape, such as (n, 1).
        return jnp.broadcast_to(self.allowed(index[:, None], index[None, :]), (n, n))


def check_mask(mask: Any, name: str = "mask") -> AbstractMask:
    """`mask`, if it is one; raises a `ValueError` otherwise."""
    return check_instance(mask, name, AbstractMask, "a mask of clusterjax", "pass CausalMask(), for example")
