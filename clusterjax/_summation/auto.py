"""`Auto`: chooses a summation by number of tokens, dimension, dtype, mask and, where they are known, query lengths.

The thresholds are measured on a CPU (benchmarks/harmonic.py, benchmarks/hardmax_hull.py), some on a GPU. The choice is
made at trace time and is the same for all systems of a batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import check_array, check_float_dtype, check_integer
from .._custom_types import DTypeLike, Masses, Numbers, Tokens
from .._mask import AbstractMask, FullMask, check_mask
from .._misc import is_concrete
from .base import (
    AbstractExponentialSum,
    AbstractNearestSearch,
    AbstractSummation,
    ExponentialSums,
    HardmaxSums,
    Support,
    serves,
)
from .blocked import Blocked
from .dense import Dense
from .harmonic.summation import Harmonic, longest_query
from .nearest.hull import Hull


# The least number of tokens for which `Hull` is chosen: (full mask, any other). In float32 it is faster from half of
# that on (benchmarks/hardmax_hull.py).
_HULL = (8192, 32_768)

# The least number of tokens for which `Harmonic` is chosen, by dimension and item size of the dtype: (full mask, any
# other). It is faster from a quarter of that on (benchmarks/harmonic.py), but takes seconds to compile where the others
# take tenths.
_HARMONIC = {
    (2, 4): (2048, 4096),
    (2, 8): (2048, 4096),
    (3, 4): (4096, 8192),
    (3, 8): (8192, 16_384),
    (4, 4): (32_768, 65_536),
    (4, 8): (65_536, 131_072),
}
# By dimension, on a GPU, where pairs gain more than series do: measured in float32 for d = 2 and 3, full, on an NVIDIA
# H200; the others are guesses on the side of pairs.
_HARMONIC_ON_GPU = {2: (16_384, 65_536), 3: (131_072, 524_288), 4: (1_048_576, 4_194_304)}
# What is chosen, made once: `simulate` chooses at every call.
_BY_MATRIX, _BY_BLOCKS, _BY_SERIES, _BY_HULL = Dense(), Blocked(), Harmonic(), Hull()


class Auto(AbstractExponentialSum, AbstractNearestSearch):
    """`Dense` while every pair fits comfortably in memory, `Blocked` from 1,024 tokens on, `Harmonic` where it pays.

    `Harmonic` is chosen for many tokens of dimension 2, 3 or 4 (some thousands, and in dimension 4 some ten thousands;
    more on a GPU) under a full or a causal mask, unless the queries are known to be too long for it. Hardmax in the
    plane of many tokens is `Hull`.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> [type(cjx.Auto().choose(n, d=3)).__name__ for n in (100, 2_000, 100_000)]
        ['Dense', 'Blocked', 'Harmonic']
        >>> [type(cjx.Auto().choose(n, d=64)).__name__ for n in (100, 2_000, 100_000)]
        ['Dense', 'Blocked', 'Blocked']
        ```
    """

    @property
    def supports(self) -> Support:
        return Support()

    def choose(
        self,
        n: int,
        d: int,
        dtype: DTypeLike = jnp.float32,
        mask: AbstractMask = FullMask(),
        queries: Numbers | None = None,
    ) -> AbstractExponentialSum:
        """What sums the exponentials of `n` tokens of dimension `d`.

        `queries`, where they are numbers, may rule out `Harmonic`.
        """
        check_integer(n, "n", remedy="pass the number of tokens")
        check_integer(d, "d", remedy="pass their dimension")
        check_mask(mask)
        dtype = check_float_dtype(dtype) or jnp.float32
        if queries is not None:
            check_array(queries, "queries", shape=(None, d), finite=False)
        if serves(_BY_SERIES, mask, d, dtype):
            on_cpu = jax.default_backend() == "cpu"
            least = _least(_HARMONIC[d, jnp.dtype(dtype).itemsize] if on_cpu else _HARMONIC_ON_GPU[d], mask)
            if n >= least and not _too_long(queries, d, dtype):
                return _BY_SERIES
        # Up to here a matrix of all pairs is at most 8 MB in float64.
        return _BY_MATRIX if n < 1024 else _BY_BLOCKS

    def choose_hardmax(self, n: int, d: int, mask: AbstractMask) -> AbstractNearestSearch:
        """The search for the hardmax sums of `n` tokens of dimension `d`: `Hull` in the plane, where it is faster."""
        check_integer(n, "n", remedy="pass the number of tokens")
        check_integer(d, "d", remedy="pass their dimension")
        check_mask(mask)
        # `Hull` serves every floating dtype.
        if n >= _least(_HULL, mask) and serves(_BY_HULL, mask, d, jnp.float32):
            return _BY_HULL
        return _BY_MATRIX if n < 1024 else _BY_BLOCKS

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


def _least(thresholds: tuple[int, int], mask: AbstractMask) -> int:
    full, other = thresholds
    return full if isinstance(mask, FullMask) else other


def _too_long(queries: Any, d: int, dtype: Any) -> bool:
    """Whether the queries are numbers, and one of them is longer than `Harmonic` serves at its default tolerance."""
    # Traced queries are taken to be short: a series that does not serve them falls back to pairs at run time.
    if queries is None or not is_concrete(queries):
        return False
    # Negated, so that NaN counts as too long.
    return not bool(np.linalg.norm(np.asarray(queries), axis=1).max() <= longest_query(d, dtype))


def resolved(
    summation: AbstractSummation, queries: Tokens, tokens: Tokens, mask: AbstractMask, hardmax: bool
) -> AbstractSummation:
    """What sums such tokens: the summation itself, or what `Auto` chooses."""
    if not isinstance(summation, Auto):
        return summation
    n, d = tokens.shape
    return summation.choose_hardmax(n, d, mask) if hardmax else summation.choose(n, d, tokens.dtype, mask, queries)
