"""The summation that suits the size."""

from jaxtyping import Array, Float

from .._custom_types import Masses, Tokens
from .._mask import AbstractMask
from .base import AbstractSummation, ExponentialSums, HardmaxSums
from .blocked import Blocked
from .dense import Dense


class Auto(AbstractSummation):
    """`Dense` while every pair fits comfortably in memory, `Blocked` from 1,024 tokens on.

    Source: this library.
    """

    def choose(self, n: int, d: int) -> AbstractSummation:
        """The summation for `n` tokens of dimension `d`."""
        return Dense() if n < 1024 else Blocked()

    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        return self.choose(*tokens.shape).exponential(queries, tokens, values, masses, mask)

    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
    ) -> HardmaxSums:
        return self.choose(*tokens.shape).hardmax(queries, tokens, values, masses, mask, tie_tolerance)
