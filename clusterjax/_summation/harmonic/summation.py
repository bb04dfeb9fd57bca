"""`Harmonic`: sums of exponentials over tokens on the circle and on spheres of R^3 and R^4 in time O(n).

The kernel is expanded in harmonics of the sphere, and the sums need only their moments over the tokens: the fast
multipole idea with one global expansion (Jacobi-Anger; Gegenbauer's addition theorem, DLMF 10.35.2, 10.60.9). An error
bound certifies each row; rows that fail are gathered and summed by pairs.

The degree that the longest query needs is known only at run time, so that each degree of a short list is a branch of
`lax.switch`, compiled once. `series.py` has the interface of the expansions, `certificate.py` the bound of their error.

**Invariants.** The error of a certified row is at most `tolerance`; the algorithm of `Blocked` computes the others. All
devices and all systems of a batch take the same branch. A cloud that no branch serves (queries too long, tokens off the
sphere, numbers that are not finite) gets NaN sums and an infinite error: no row is certified.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._base.batching import batch_max
from ..._base.checks import check_array, check_number, check_tokens, refusal
from ..._base.types import Masses, Scalar, Tokens, Values
from ..._model.mask import AbstractMask, CausalMask, FullMask, check_mask
from ..._model.position import (
    AbstractLogWeights,
    AbstractPosition,
    ALiBi,
    Decay,
    LogWeights,
    Rotary,
    check_position,
)
from ..._model.summation import AbstractExponentialSum, ExponentialSums, Support, check_supported
from ..blocked import RowBlock, exponential_rows, make_columns
from ..collectives import Collectives
from .certificate import (
    Expansion,
    causal_sums,
    certified_error,
    chunk_size,
    decaying_sums,
    full_sums,
    make_rounding,
    relative_error,
    truncation_share,
    two_sided_sums,
)
from .circle import CircleSeries
from .series import AbstractSeries, largest_length, length_and_direction
from .sphere import SphereSeries
from .three_sphere import ThreeSphereSeries


SERIES: dict[int, Callable[[int, bool], AbstractSeries]] = {2: CircleSeries, 3: SphereSeries, 4: ThreeSphereSeries}

# The degrees by dimension and item size of the dtype, for queries of one common length and for queries of any lengths.
# Each degree costs compile time. In four dimensions, a higher degree would cost more than the sum over all pairs.
DEGREES = {
    (2, 4): ((23, 62), (62,)),
    (2, 8): ((28, 79), (79,)),
    (3, 4): ((20, 36, 58), (20, 58)),
    (3, 8): ((30, 50, 84), (30, 84)),
    (4, 4): ((12, 20), (20,)),
    (4, 8): ((16, 29), (29,)),
}


def expand(
    queries: Tokens,
    tokens: Tokens,
    values: Values | None,
    masses: Masses | None,
    causal: bool,
    tolerance: float,
    collectives: Collectives,
    slope: Scalar | None = None,
) -> tuple[Float[Array, "n sums"], Float[Array, " n"]]:
    """The sums of mass times [1, value], scaled by e^{-|q|}, and the least tolerance that certifies each row.

    **Arguments:**

    - `values`: (n, k); None for the tokens, whose sums are the gradient of the sum of masses.
    - `masses`: (n,), not negative; None if all masses are one.
    - `slope`: The slope of weights that decay, on one device; None if they do not.
    """
    (n, d), dtype, has_values = tokens.shape, tokens.dtype, values is not None
    weights, column_max = _weighted_columns(tokens, values, masses, collectives)
    share = truncation_share(dtype, tolerance)
    # The series for one length come first; within a kind, the degrees ascend, and so does the cost.
    kinds = DEGREES[d, dtype.itemsize]
    longest_served = [[largest_length(degree, d, share) for degree in degrees] for degrees in kinds]
    branch, length, deviations = _choose_branch(queries, tokens, longest_served, tolerance, collectives, slope)
    chunked = causal or slope is not None
    # `branch_of` fills this list below: the error of pairs depends on the size of a causal chunk.
    chunk_sizes = []

    def branch_of(series: AbstractSeries):
        size = chunk_size(series, n, dtype, chunked)
        chunk_sizes.append(size)
        equal = masses is None and not has_values
        fixed = lax.stop_gradient(slope)
        rounding = make_rounding(series, size, n, d, dtype, share, equal, collectives.size, fixed)
        expansion = Expansion(series, length, has_values, column_max, rounding)
        # Without the checkpoint, the switch would store the residuals of every branch.
        if slope is None:
            sum_up = causal_sums if causal else full_sums
            return jax.checkpoint(lambda q, y, w: sum_up(expansion, q, y, w, collectives))
        if causal:
            return jax.checkpoint(lambda q, y, w, slope: decaying_sums(expansion, q, y, w, slope, True))
        return jax.checkpoint(lambda q, y, w, slope: two_sided_sums(expansion, q, y, w, slope))

    columns = weights.shape[1] if has_values else 1 + d
    # NaN is never certified, so that the caller sums every row by pairs.
    unserved = lambda queries, *_: (jnp.full((n, columns), jnp.nan, dtype), jnp.full(n, jnp.nan, dtype))
    one_length, any_lengths = kinds
    served = [*((degree, True) for degree in one_length), *((degree, False) for degree in any_lengths)]
    branches = [*(branch_of(SERIES[d](*arguments)) for arguments in served), unserved]
    sums, error = lax.switch(branch, branches, queries, tokens, weights, *(() if slope is None else (slope,)))
    relative = relative_error(*deviations, d, max(chunk_sizes) if chunked else 0, lax.stop_gradient(slope))
    return sums, certified_error(sums, error, relative)


def _weighted_columns(
    tokens: Tokens, values: Values | None, masses: Masses | None, collectives: Collectives
) -> tuple[Float[Array, "n columns"], Float[Array, " columns"]]:
    """The masses and, if there are values, mass times each column, (n, 1 or 1 + k); and the maximum of each column.

    The maximum is of |value| over the tokens with mass of all devices, and one for the masses.
    """
    if masses is None:
        # The barrier keeps XLA from folding the sums of these constants at compile time.
        masses = jnp.asarray(lax.optimization_barrier(jnp.ones(tokens.shape[0], tokens.dtype)))
    mass_max = jnp.ones(1, tokens.dtype)
    if values is None:
        return masses[:, None], mass_max
    sizes = lax.stop_gradient(jnp.where((masses > 0)[:, None], jnp.abs(values), 0))
    column_max = collectives.pmax(jnp.max(sizes, axis=0))
    return jnp.concatenate([masses[:, None], masses[:, None] * values], axis=1), jnp.concatenate([mass_max, column_max])


def _choose_branch(
    queries: Tokens,
    tokens: Tokens,
    longest_served: list[list[float]],
    tolerance: float,
    collectives: Collectives,
    slope: Scalar | None,
) -> tuple[Int[Array, ""], Scalar, tuple[Float[Array, " n"], Float[Array, " n"], Scalar]]:
    """The number of the branch, the common query length, and the first three arguments of `relative_error`.

    The branches are the degrees for one length, the degrees for any lengths, and the branch that refuses.
    `longest_served` has the largest query length of each degree. The three arguments are the query lengths, (n,); their
    deviations from the common length, (n,), zero for a series of any lengths; and the largest | |y|^2 - 1 | of a token.
    """
    queries, tokens = lax.stop_gradient((queries, tokens))
    lengths = length_and_direction(queries)[0]
    longest = jnp.max(lengths)
    length, devices = collectives.psum((longest, jnp.ones_like(longest)))
    # The mean over devices of the longest query: if a query's length differs, the series for any lengths is chosen.
    length = length / devices
    norm_error = collectives.pmax(jnp.max(jnp.abs(jnp.sum(tokens * tokens, axis=1) - 1)))

    def anywhere(condition: Bool[Array, ""]) -> Int[Array, ""]:
        """1 if `condition` is true on any device and in any system of the batch, and 0 otherwise."""
        return batch_max(collectives.any(condition).astype(int))

    # The comparisons are negated, so that NaN counts as a deviation.
    differ = anywhere(~jnp.all(jnp.abs(lengths - length) <= 8 * float(jnp.finfo(lengths.dtype).eps) * length))
    # Tokens off the sphere change a score by |q| times the deviation: a quarter of the tolerance is left for this.
    refused = anywhere(~(norm_error * jnp.maximum(longest, 1) <= tolerance / 4))
    if slope is not None:
        # Factors that grow with the distance overflow in the moments.
        refused = refused + anywhere(~((slope >= 0) & (slope < jnp.inf)))
    # Each entry is 1 if the degree is too low; degrees ascend, so that the sum is the index of the first that serves.
    of_one_length, general = ([anywhere(~(longest <= most)) for most in kind] for kind in longest_served)
    of_any_length = len(of_one_length) + sum(general)
    branch = jnp.where((differ == 0) & (sum(of_one_length) < len(of_one_length)), sum(of_one_length), of_any_length)
    # If no degree serves, the sum over `general` is their number, which gives the index of the branch that refuses.
    branch = jnp.where(refused > 0, len(of_one_length) + len(general), branch)
    return branch, length, (lengths, jnp.where(branch < len(of_one_length), jnp.abs(lengths - length), 0), norm_error)


def _tolerance(value: float | None) -> float | None:
    if value is None:
        return None
    return check_number(value, "tolerance", above=0, below=1, remedy="pass 1e-6, for example, or None")


class Harmonic(AbstractExponentialSum):
    """The exact sums of tokens on the circle and on the spheres of three and four dimensions, in time O(n).

    The kernel exp(⟨q, y⟩) is a series in the harmonics of the sphere that converges faster than any power of 1 /
    degree, so that a few hundred moments suffice for the sums of a million tokens. `Harmonic` supports full and causal
    masks, any B, V, values and masses, and O(n) memory in the forward and backward passes.

    **Certificate.** Each row that the series sums is certified: a worst-case bound of its rounding and truncation
    errors, derived in `certificate.py`, is at most `tolerance`. The errors grow with the mass of a row over its sum Z,
    which is large for an isolated token among distant clusters. Rows that are not certified are summed by pairs, as in
    `Blocked`, and so are all rows where the series does not apply: tokens that are not of unit length, and queries
    longer than about 100 (in four dimensions 8). Sums of pairs have no certificate: their terms are positive, and their
    errors are those of `Blocked`. Masks other than full and causal are refused.

    **Positions.** `ALiBi` and `Decay` multiply the moments of earlier tokens by a factor from chunk to chunk, and the
    certificate covers the factors; a full mask takes two passes. Rows are summed by pairs where the slope is negative,
    and where all factors of tokens with mass underflow. `RelativeBias` is refused.

    **Derivatives** are tangential in the tokens, which are normalised first. Second derivatives are right too, except
    for tokens exactly at the poles of the spheres where the queries have one common length; a third derivative
    with respect to the length of such queries raises an error. `Dense` and `Blocked` have all derivatives.

    Under `jax.vmap`, all systems of a batch take the same branch: the highest degree that a system needs, and sums of
    pairs while any system has uncertified rows left.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=300, d=2)
        >>> series = cjx.SoftmaxAttention(4.0, summation=cjx.Harmonic(2e-3)).average(x, None)
        >>> pairs = cjx.SoftmaxAttention(4.0, summation=cjx.Dense()).average(x, None)
        >>> bool(jnp.abs(series - pairs).max() < 2e-3)  # the certified error
        True
        ```

    **Arguments:**

    - `tolerance`: The certified error of an average, column by column, relative to the largest absolute value in the
        column over tokens with mass (for tokens as values, to their norm 1). The error of the sums relative to Z, and
        so of their logarithm, has this bound too. A number between 256 times the machine epsilon of the dtype and 0.1.
        None is 1e-10 in float64, and in float32 2e-3, or 8e-3 in three dimensions: about the least tolerance at which
        all uniform tokens pass. The bound is a worst case: errors found by an adversarial search are twenty times
        smaller, and a thousand times for uniform tokens. Each new tolerance is compiled anew.

    **Raises:**

    - `ValueError` if `tolerance` is out of range for the dtype of the tokens, if their dimension is not 2, 3 or 4, or
        if the mask is neither full nor causal.

    ??? cite "Source"

        The expansions of Jacobi-Anger and Gegenbauer, DLMF 10.35.2 and 10.60.9.
    """

    tolerance: float | None = eqx.field(default=None, converter=_tolerance, static=True)

    @property
    def supports(self) -> Support:
        return Support(tuple(sorted(SERIES)), (FullMask, CausalMask), ("float32", "float64"), positions=(ALiBi, Decay))

    @eqx.filter_jit
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Values | None,
        masses: Masses | None,
        mask: AbstractMask,
        log_weights: LogWeights | None = None,
    ) -> ExponentialSums:
        check_supported(self, mask)
        tolerance = self.check(tokens)
        sums, error = _expand(queries, tokens, values, masses, mask, tolerance, log_weights)
        # NaN compares false and is not certified.
        certified = error <= tolerance
        shift = length_and_direction(lax.stop_gradient(queries))[0]
        shift, sums = _sum_uncertified_rows(shift, sums, certified, queries, tokens, values, masses, mask, log_weights)
        return ExponentialSums(shift, sums[:, 0], sums[:, 1:])

    def certified(
        self,
        queries: Tokens,
        tokens: Tokens,
        masses: Masses | None = None,
        mask: AbstractMask = FullMask(),
        position: AbstractPosition | None = None,
    ) -> Bool[Array, " n"]:
        """True for each row, (n,), that is certified with the tokens as values; other rows are summed by pairs.

        Schedules of the position are evaluated at t = 0.
        """
        queries, tokens = check_tokens(queries, "queries"), check_tokens(tokens, "tokens")
        tolerance = self.check(tokens)
        queries = check_array(queries, "queries", shape=tokens.shape)
        if masses is not None:
            masses = check_array(masses, "masses", shape=tokens.shape[:1], least=0)
        check_supported(self, check_mask(mask), position=check_position(position))
        # As in the sums, values are given only where they are other vectors than the keys.
        values, log_weights = None, None
        if isinstance(position, Rotary):
            position.check(tokens.shape[1])
            values = tokens
            queries, tokens = position.turn(queries, 0.0), position.turn(tokens, 0.0)
        elif isinstance(position, AbstractLogWeights):
            log_weights = position.log_weights(0.0, tokens.shape[0], tokens.dtype)
        return _certified(queries, tokens, values, masses, mask, tolerance, log_weights)

    def check(self, tokens: Tokens) -> float:
        """The tolerance for these tokens; raises a ValueError if their dimension or dtype is not supported."""
        d, dtype = tokens.shape[1], tokens.dtype
        check_supported(self, None, d, dtype)
        if self.tolerance is None:
            return _default_tolerance(d, dtype)
        low = 256 * float(jnp.finfo(dtype).eps)
        if not low <= self.tolerance <= 0.1:
            rule = f"be between {low:.1e} and 0.1 in {dtype}"
            remedy = "rounding allows no less: take float64, or leave it None"
            raise refusal("tolerance", rule, f"it is {self.tolerance}", remedy)
        return float(self.tolerance)


def _default_tolerance(d: int, dtype: Any) -> float:
    """The default tolerance: about the least at which all rows of uniform tokens are certified."""
    if jnp.dtype(dtype).itemsize == 8:
        return 1e-10
    return 8e-3 if d == 3 else 2e-3


def longest_query(d: int, dtype: Any) -> float:
    """The largest |q| that a series serves at the default tolerance."""
    degree = max(DEGREES[d, jnp.dtype(dtype).itemsize][0])
    return largest_length(degree, d, truncation_share(dtype, _default_tolerance(d, dtype)))


@eqx.filter_jit
def _certified(queries, tokens, values, masses, mask: AbstractMask, tolerance: float, log_weights=None) -> Array:
    """True for each row that is certified, (n,)."""
    return _expand(queries, tokens, values, masses, mask, tolerance, log_weights)[1] <= tolerance


def _expand(queries, tokens, values, masses, mask, tolerance, log_weights=None):
    """`expand` on one device: sums, (n, 1 + k), and the least tolerance that certifies each row, (n,)."""
    slope = None if log_weights is None else log_weights.slope
    return expand(queries, tokens, values, masses, isinstance(mask, CausalMask), tolerance, Collectives(), slope)


# The number of uncertified rows summed at once, and the number of columns in a block.
_ROWS, _COLUMNS = 256, 1024


def _sum_uncertified_rows(shift, sums, certified, queries, tokens, values, masses, mask, log_weights=None):
    """Replace `shift`, (n,), and `sums`, (n, 1 + k), of uncertified rows by sums over pairs.

    These rows are gathered to the front of a list of n, since their number is not known at compile time, and summed by
    blocks; blocks of padding are skipped at run time.
    """
    n = tokens.shape[0]
    size = min(_ROWS, n)
    blocks = -(-n // size)

    def replace(queries, tokens, values, masses, shift, sums):
        columns = make_columns(tokens, values, masses, _COLUMNS)
        # `jnp.nonzero(~certified, size=..., fill_value=n)` in 32 bits; the slots of certified rows are out of bounds.
        numbers = jnp.arange(n, dtype=jnp.int32)
        slots = jnp.where(certified, blocks * size, jnp.cumsum(~certified, dtype=jnp.int32) - 1)
        rows = jnp.full(blocks * size, n, jnp.int32).at[slots].set(numbers, mode="drop")

        # Without the checkpoint, the scan would store the residuals of the branch for every block.
        @jax.checkpoint
        def block(rows):
            # Padding is computed as the last row, and the scatter below drops its result.
            within = jnp.minimum(rows, n - 1).astype(int)
            compute = lambda: exponential_rows(RowBlock(queries[within], within, mask, log_weights), columns)
            skip = lambda: (jnp.zeros(size, sums.dtype), jnp.zeros((size, sums.shape[1]), sums.dtype))
            # `batch_max` keeps the predicate unbatched under vmap, so that `cond` stays a branch.
            return lax.cond(batch_max((rows[0] < n).astype(int)) == 1, compute, skip)

        new_shift, new_sums = lax.map(block, rows.reshape(blocks, size))
        shift = shift.at[rows].set(new_shift.ravel(), mode="drop")
        return shift, sums.at[rows].set(new_sums.reshape(rows.shape[0], -1), mode="drop")

    keep = lambda queries, tokens, values, masses, shift, sums: (shift, sums)
    any_uncertified = batch_max(jnp.any(~certified).astype(int)) == 1
    return lax.cond(any_uncertified, jax.checkpoint(replace), keep, queries, tokens, values, masses, shift, sums)
