"""Harmonic: sums over tokens on the circle and on spheres of three and four dimensions in time O(n)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._check import check_array, check_number, check_tokens
from .._custom_types import Masses, Tokens
from .._mask import AbstractMask, CausalMask, FullMask, check_mask
from ._series.bessel import length_and_direction
from ._series.degrees import largest_length
from .base import AbstractSummation, ExponentialSums, HardmaxSums
from .blocked import Blocked
from .certificate import truncation_share
from .exchange import Alone
from .expand import DEGREES, SERIES, expand
from .rows import exponential_rows, make_columns
from .together import together


def _tolerance(value: Any) -> float | None:
    if value is None:
        return None
    return check_number(value, "tolerance", above=0, below=1, remedy="pass 1e-6, for example, or None")


class Harmonic(AbstractSummation):
    r"""The exact sums of tokens on the circle and on the spheres of three and four dimensions, in time O(n).

    The kernel $e^{\langle q, y\rangle}$ is a series in the harmonics of the sphere that converges faster than any power
    of 1 / degree, so that a few hundred moments say of a million tokens all that their sums need. Full and causal; for
    any B, V, values and masses; forwards and backwards in memory that grows as n.

    **Certificate.** What the series sums is certified, row by row: a bound of its rounding and truncation errors,
    derived in `certificate.py` for the worst case, is at most `tolerance`. The errors follow the mass of a row over its
    sum Z, which an isolated token among distant clusters makes large. Rows that fail are summed pair by pair, as by
    `Blocked`, and so is everything where the series does not serve: tokens that are not of unit length, queries longer
    than about 100 (in four dimensions 8), and masks other than full and causal. Sums of pairs have no certificate:
    their terms are positive, and they err as those of `Blocked` do.

    **Derivatives** are tangential in the tokens, which are normalised first. Those of second order are right too, but
    for tokens exactly at the poles of the spheres where the queries are of one length; a third derivative in the length
    of such queries raises an error. `Dense` and `Blocked` have all of them.

    Under `jax.vmap` a batch goes one way together: the highest degree that one of it needs, and pairs for the rows of
    all as long as one of the batch has rows left.

    **Arguments:**

    - `tolerance`: The certified error of an average, column by column, relative to the largest absolute value in that
        column of all tokens that have mass (of tokens as values, to their length 1); also that of the sums themselves,
        relative to Z, and so of their logarithm. A number between 256 times the machine epsilon of the dtype and 0.1.
        None is 1e-10 in float64, and in float32 2e-3, or 8e-3 in three dimensions: about the least at which uniform
        tokens all pass. A worst case: errors that were measured under attack are twenty times smaller, and a thousand
        times for uniform tokens. Static: each new tolerance compiles anew.

    **Raises:**

    - `ValueError` if `tolerance` is out of range for the dtype of the tokens, or their dimension is not 2, 3 or 4.

    ??? cite "Source"

        This library; the expansions are those of Jacobi-Anger and Gegenbauer, DLMF 10.35.2 and 10.60.9.
    """

    tolerance: float | None = eqx.field(default=None, converter=_tolerance, static=True)

    @eqx.filter_jit
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        tolerance = self.check(tokens)
        if not isinstance(mask, FullMask | CausalMask):
            return Blocked().exponential(queries, tokens, values, masses, mask)
        sums, error = _expand(queries, tokens, values, masses, mask, tolerance)
        good = error <= tolerance
        shift = length_and_direction(lax.stop_gradient(queries))[0]
        shift, sums = _mend(shift, sums, good, queries, tokens, values, masses, mask)
        return ExponentialSums(shift, sums[:, 0], sums[:, 1:])

    def certified(
        self, queries: Tokens, tokens: Tokens, masses: Masses | None = None, mask: AbstractMask = FullMask()
    ) -> Bool[Array, " n"]:
        """Of each row, whether the series serves it for the tokens themselves as values; the others are summed pair by
        pair."""
        queries, tokens = check_tokens(queries, "queries"), check_tokens(tokens, "tokens")
        tolerance = self.check(tokens)
        queries = check_array(queries, "queries", shape=tokens.shape)
        if masses is not None:
            masses = check_array(masses, "masses", shape=tokens.shape[:1], least=0)
        if not isinstance(check_mask(mask), FullMask | CausalMask):
            return jnp.zeros(tokens.shape[0], bool)
        return _certified(queries, tokens, masses, mask, tolerance)

    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
    ) -> HardmaxSums:
        """Pair by pair, as `Blocked`: a maximum has no series."""
        return Blocked().hardmax(queries, tokens, values, masses, mask, tie_tolerance)

    def check(self, tokens: Tokens) -> float:
        """The tolerance for these tokens, or a ValueError if they are not served."""
        d, dtype = tokens.shape[1], tokens.dtype
        if d not in SERIES:
            served = ", ".join(map(str, sorted(SERIES)))
            raise ValueError(
                f"Harmonic sums tokens of dimension {served}, but these are of dimension {d}; "
                "take summation=Blocked() or Auto()."
            )
        if self.tolerance is None:
            return _default(d, dtype)
        low = 256 * float(jnp.finfo(dtype).eps)
        if not low <= self.tolerance <= 0.1:
            raise ValueError(
                f"tolerance must be between {low:.1e} and 0.1 in {dtype}, but it is {self.tolerance}; "
                "rounding allows no less: take float64, or leave it None."
            )
        return float(self.tolerance)


def _default(d: int, dtype: Any) -> float:
    """Little enough to be of use, and enough for uniform tokens."""
    if jnp.dtype(dtype).itemsize == 8:
        return 1e-10
    return 8e-3 if d == 3 else 2e-3


def longest_query(d: int, dtype: Any) -> float:
    """Beyond this |q| nothing is summed by a series, at the default tolerance."""
    degree = max(DEGREES[d, jnp.dtype(dtype).itemsize][0])
    return largest_length(degree, d, truncation_share(dtype, _default(d, dtype)))


@eqx.filter_jit
def _certified(queries: Tokens, tokens: Tokens, masses: Masses | None, mask: AbstractMask, tolerance: float) -> Array:
    return _expand(queries, tokens, None, masses, mask, tolerance)[1] <= tolerance


def _expand(queries, tokens, values, masses, mask, tolerance):
    return expand(queries, tokens, values, masses, isinstance(mask, CausalMask), tolerance, Alone())


_ROWS, _COLUMNS = 256, 1024


def _mend(shift, sums, good, queries, tokens, values, masses, mask):
    """The rows that are not `good`, gathered and summed pair by pair; a block that holds none of them costs nothing."""
    n = tokens.shape[0]
    size = min(_ROWS, n)
    blocks = -(-n // size)

    def mend(queries, tokens, values, masses, shift, sums):
        columns = make_columns(tokens, values, masses, _COLUMNS)
        # As `jnp.nonzero`, but in 32 bits.
        numbers = jnp.arange(n, dtype=jnp.int32)
        place = jnp.where(good, blocks * size, jnp.cumsum(~good, dtype=jnp.int32) - 1)
        rows = jnp.full(blocks * size, n, jnp.int32).at[place].set(numbers, mode="drop")

        # Backwards a block is taken up again from its rows: what its branch keeps would be kept for every block.
        @jax.checkpoint
        def block(rows):
            within = jnp.minimum(rows, n - 1).astype(int)
            found = lambda: exponential_rows(queries[within], within, columns, mask)
            none = lambda: (jnp.zeros(size, sums.dtype), jnp.zeros((size, sums.shape[1]), sums.dtype))
            return lax.cond(together((rows[0] < n).astype(int)) == 1, found, none)

        new_shift, new_sums = lax.map(block, rows.reshape(blocks, size))
        shift = shift.at[rows].set(new_shift.ravel(), mode="drop")
        return shift, sums.at[rows].set(new_sums.reshape(rows.shape[0], -1), mode="drop")

    keep = lambda queries, tokens, values, masses, shift, sums: (shift, sums)
    some = together(jnp.any(~good).astype(int)) == 1
    return lax.cond(some, jax.checkpoint(mend), keep, queries, tokens, values, masses, shift, sums)
