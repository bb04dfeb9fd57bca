"""The summation that suits the size."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import check_array, check_float_dtype, check_integer
from .._custom_types import Masses, Tokens
from .._mask import AbstractMask, CausalMask, FullMask, check_mask
from .._misc import is_concrete
from .base import AbstractSummation, ExponentialSums, HardmaxSums
from .blocked import Blocked
from .dense import Dense
from .harmonic import Harmonic, longest_query
from .hull import Hull, serves


# From how many tokens on `Hull` is chosen: in float32 it is faster from half of that on (benchmarks/hardmax_hull.py).
_HULL_FULL, _HULL_CAUSAL = 8192, 32_768

# From how many tokens on `Harmonic` is chosen, by dimension and bytes of a number, full and causal. It is faster from a
# quarter of that on (benchmarks/harmonic.py), but takes seconds to compile where the others take tenths.
_HARMONIC = {
    (2, 4): (2048, 4096),
    (2, 8): (2048, 4096),
    (3, 4): (4096, 8192),
    (3, 8): (8192, 16_384),
    (4, 4): (32_768, 65_536),
    (4, 8): (65_536, 131_072),
}


class Auto(AbstractSummation):
    """`Dense` while every pair fits comfortably in memory, `Blocked` from 1,024 tokens on, `Harmonic` where it pays.

    `Harmonic` is chosen for many tokens of dimension 2, 3 or 4 (some thousands, and in dimension 4 some ten thousands)
    under a full or a causal mask, unless the queries are known to be too long for it. Hardmax in the plane of many
    tokens is `Hull`.

    Source: this library.
    """

    def choose(
        self, n: int, d: int, dtype: Any = jnp.float32, mask: AbstractMask = FullMask(), queries: Any = None
    ) -> AbstractSummation:
        """The summation for `n` tokens of dimension `d`; `queries`, where they are numbers, may rule out `Harmonic`."""
        check_integer(n, "n", remedy="pass the number of tokens")
        check_integer(d, "d", remedy="pass their dimension")
        check_mask(mask)
        dtype = check_float_dtype(dtype) or jnp.float32
        if queries is not None:
            check_array(queries, "queries", shape=(None, d), finite=False)
        full, causal = _HARMONIC.get((d, jnp.dtype(dtype).itemsize), (None, None))
        least = full if isinstance(mask, FullMask) else causal if isinstance(mask, CausalMask) else None
        if least is not None and n >= least and not _too_long(queries, d, dtype):
            return Harmonic()
        return Dense() if n < 1024 else Blocked()

    def choose_hardmax(self, n: int, d: int, mask: AbstractMask) -> AbstractSummation:
        """The summation for the hardmax sums of `n` tokens of dimension `d`: `Hull` in the plane, where it pays."""
        check_integer(n, "n", remedy="pass the number of tokens")
        check_integer(d, "d", remedy="pass their dimension")
        check_mask(mask)
        pays = n >= (_HULL_FULL if isinstance(mask, FullMask) else _HULL_CAUSAL)
        if pays and serves(d, mask):
            return Hull()
        return Dense() if n < 1024 else Blocked()

    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        n, d = tokens.shape
        chosen = self.choose(n, d, tokens.dtype, mask, queries)
        return chosen.exponential(queries, tokens, values, masses, mask)

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


def _too_long(queries: Any, d: int, dtype: Any) -> bool:
    if queries is None or not is_concrete(queries):
        return False
    return not bool(np.linalg.norm(np.asarray(queries), axis=1).max() <= longest_query(d, dtype))


def acting(
    summation: AbstractSummation, queries: Tokens, tokens: Tokens, mask: AbstractMask, hardmax: bool
) -> AbstractSummation:
    """What sums such tokens: what `Auto` chooses, and `Blocked` where `Harmonic` or `Hull` leave the sums to it."""
    n, d = tokens.shape
    if isinstance(summation, Auto):
        chosen = (
            summation.choose_hardmax(n, d, mask) if hardmax else summation.choose(n, d, tokens.dtype, mask, queries)
        )
        return acting(chosen, queries, tokens, mask, hardmax)
    if isinstance(summation, Harmonic) and (hardmax or not isinstance(mask, FullMask | CausalMask)):
        return Blocked()
    if isinstance(summation, Hull) and not (hardmax and serves(d, mask)):
        return Blocked()
    return summation
