"""`Auto`: chooses a summation by number of tokens, dimension, dtype, mask and, where they are known, query norms.

The thresholds are measured on a CPU (benchmarks/harmonic.py, benchmarks/hardmax_hull.py), some on a GPU. The choice is
made at trace time and applies to all systems of a batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._base.checks import check_array, check_float_dtype, check_instance, check_integer
from .._base.numerics import is_concrete
from .._base.types import DTypeLike, Masses, Numbers, Scalar, Tokens, Values
from .._model.mask import AbstractMask, FullMask, check_mask
from .._model.position import LogWeights
from .._model.summation import (
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
from .fused import Fused, in_use, is_few, on_nvidia, usable
from .harmonic.summation import Harmonic, longest_query
from .hull import Hull


# The least number of tokens for `Hull`: (full mask, other masks). In float32, `Hull` is faster from half of this number
# (benchmarks/hardmax_hull.py).
_HULL = (8192, 32_768)

# The least number of tokens for `Harmonic`, by dimension and item size of the dtype: (full mask, other masks). The
# series is faster from a quarter of this number on (benchmarks/harmonic.py), but compiles in seconds, where other
# summations take tenths.
_HARMONIC = {
    (2, 4): (2048, 4096),
    (2, 8): (2048, 4096),
    (3, 4): (4096, 8192),
    (3, 8): (8192, 16_384),
    (4, 4): (32_768, 65_536),
    (4, 8): (65_536, 131_072),
}
# On a GPU, by dimension, where sums over pairs gain more than series do: measured in float32 for d = 2 and 3 with the
# full mask on an NVIDIA H200; the other entries are guesses in favour of pairs.
_HARMONIC_ON_GPU = {2: (16_384, 65_536), 3: (131_072, 524_288), 4: (1_048_576, 4_194_304)}
# The summations are made once, since `simulate` chooses at every call.
_BY_MATRIX, _BY_BLOCKS, _BY_KERNEL, _BY_SERIES, _BY_HULL = Dense(), Blocked(), Fused(), Harmonic(), Hull()
# The largest dimension for which a block of rows and its sums fit the registers of the kernel.
_MOST_FUSED = 256


class Auto(AbstractExponentialSum, AbstractNearestSearch):
    """`Dense` for few tokens, `Blocked` from 1,024 tokens on, and `Harmonic` where it is faster; on an NVIDIA card
    `Fused` for float32 in place of the first two.

    `Harmonic` is chosen for many tokens of dimension 2, 3 or 4 (some thousands, in dimension 4 some ten thousands, more
    on a GPU) with a full or a causal mask, unless the queries are known to be too long for it. For hardmax of many
    tokens in the plane, `Hull` is chosen. All but `Hull` serve weights with `ALiBi` or `Decay`; for those with
    `RelativeBias` the choice is between `Dense` and `Blocked`.

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
        return Support(positions=None)

    def choose(
        self,
        n: int,
        d: int,
        dtype: DTypeLike = jnp.float32,
        mask: AbstractMask = FullMask(),
        queries: Numbers | None = None,
        log_weights: LogWeights | None = None,
    ) -> AbstractExponentialSum:
        """The summation of exponentials for `n` tokens of dimension `d`.

        `queries` with concrete values may rule out `Harmonic`.
        """
        check_integer(n, "n", remedy="pass the number of tokens")
        check_integer(d, "d", remedy="pass their dimension")
        check_mask(mask)
        dtype = check_float_dtype(dtype) or jnp.float32
        if queries is not None:
            check_array(queries, "queries", shape=(None, d), finite=False)
        _check_log_weights(log_weights)
        if serves(_BY_SERIES, mask, d, dtype, log_weights):
            on_cpu = jax.default_backend() == "cpu"
            least = _least(_HARMONIC[d, jnp.dtype(dtype).itemsize] if on_cpu else _HARMONIC_ON_GPU[d], mask)
            if n >= least and not _too_long(queries, d, dtype):
                return _BY_SERIES
        served = on_nvidia() and d <= _MOST_FUSED and serves(_BY_KERNEL, mask, d, dtype, log_weights)
        if served and usable(is_few(d), log_weights is not None):
            return _BY_KERNEL
        # Below 1,024 tokens, a matrix of all pairs is at most 8 MB in float64.
        return _BY_MATRIX if n < 1024 else _BY_BLOCKS

    def choose_hardmax(
        self, n: int, d: int, mask: AbstractMask, log_weights: LogWeights | None = None
    ) -> AbstractNearestSearch:
        """The search for the hardmax sums of `n` tokens of dimension `d`: `Hull` in the plane where it is faster."""
        check_integer(n, "n", remedy="pass the number of tokens")
        check_integer(d, "d", remedy="pass their dimension")
        check_mask(mask)
        _check_log_weights(log_weights)
        # `Hull` supports every floating dtype.
        if n >= _least(_HULL, mask) and serves(_BY_HULL, mask, d, jnp.float32, log_weights):
            return _BY_HULL
        return _BY_MATRIX if n < 1024 else _BY_BLOCKS

    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Values | None,
        masses: Masses | None,
        mask: AbstractMask,
        log_weights: LogWeights | None = None,
    ) -> ExponentialSums:
        n, d = tokens.shape
        chosen = self.choose(n, d, tokens.dtype, mask, queries, log_weights)
        extra = () if log_weights is None else (log_weights,)
        return chosen.exponential(queries, tokens, values, masses, mask, *extra)

    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Values,
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Scalar,
        log_weights: LogWeights | None = None,
    ) -> HardmaxSums:
        n, d = tokens.shape
        chosen = self.choose_hardmax(n, d, mask, log_weights)
        extra = () if log_weights is None else (log_weights,)
        return chosen.hardmax(queries, tokens, values, masses, mask, tie_tolerance, *extra)


def _least(thresholds: tuple[int, int], mask: AbstractMask) -> int:
    full, other = thresholds
    return full if isinstance(mask, FullMask) else other


def _check_log_weights(log_weights: Any) -> None:
    if log_weights is not None:
        remedy = "pass those of a position, or leave them out"
        check_instance(log_weights, "log_weights", LogWeights, "log-weights of a position", remedy)


def _too_long(queries: Any, d: int, dtype: Any) -> bool:
    """True if the queries are concrete and one of them is too long for `Harmonic` at its default tolerance."""
    # Traced queries count as short: where the series does not serve them, `Harmonic` sums pairs at run time.
    if queries is None or not is_concrete(queries):
        return False
    # The comparison is negated, so that NaN counts as too long.
    return not bool(np.linalg.norm(np.asarray(queries), axis=1).max() <= longest_query(d, dtype))


def resolved(
    summation: AbstractSummation,
    queries: Tokens,
    tokens: Tokens,
    mask: AbstractMask,
    hardmax: bool,
    log_weights: LogWeights | None = None,
) -> AbstractSummation:
    """Return `summation`, or the summation that sums in its place: the choice of `Auto` for these tokens, or `Blocked`
    where the kernel of `Fused` cannot run.
    """
    if isinstance(summation, Fused):
        return in_use(summation, is_few(tokens.shape[1]), log_weights is not None)
    if not isinstance(summation, Auto):
        return summation
    n, d = tokens.shape
    if hardmax:
        return summation.choose_hardmax(n, d, mask, log_weights)
    return summation.choose(n, d, tokens.dtype, mask, queries, log_weights)
