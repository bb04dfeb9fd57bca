"""The summation that suits the size."""

from jaxtyping import Array, Float

from .._custom_types import Masses, Tokens
from .._mask import AbstractMask, FullMask
from .base import AbstractSummation, ExponentialSums, HardmaxSums
from .blocked import Blocked
from .dense import Dense
from .hull import Hull, serves


# From how many tokens on `Hull` is faster than `Blocked`: benchmarks/hardmax_hull.py.
_HULL_FULL, _HULL_CAUSAL = 8192, 32_768


class Auto(AbstractSummation):
    """`Dense` while every pair fits comfortably in memory, `Blocked` from 1,024 tokens on.

    Hardmax in the plane of many tokens is `Hull`.

    Source: this library.
    """

    def choose(self, n: int, d: int) -> AbstractSummation:
        """The summation for `n` tokens of dimension `d`."""
        return Dense() if n < 1024 else Blocked()

    def choose_hardmax(self, n: int, d: int, mask: AbstractMask) -> AbstractSummation:
        """The summation for the hardmax sums of `n` tokens of dimension `d`: `Hull` in the plane, where it pays."""
        pays = n >= (_HULL_FULL if isinstance(mask, FullMask) else _HULL_CAUSAL)
        return Hull() if pays and serves(d, mask) else self.choose(n, d)

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
        n, d = tokens.shape
        return self.choose_hardmax(n, d, mask).hardmax(queries, tokens, values, masses, mask, tie_tolerance)
