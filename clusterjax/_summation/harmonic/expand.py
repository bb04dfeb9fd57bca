"""The choice of a series for a cloud, by dimension, query lengths and degree, and its certified sums.

The kernel e^{<q, y>} is expanded in the harmonics of the sphere: Jacobi-Anger on the circle, Gegenbauer's addition
theorem on the spheres (DLMF 10.35.2, 10.60.9). The degree that the longest query needs is known only at run time, so
that each degree of a short list is a branch of `lax.switch`, compiled once.

Invariants: all devices and all systems of a batch take the same branch. A cloud that no branch serves (queries too
long, tokens off the sphere, numbers that are not finite) gets NaN sums and an infinite error: no row is certified.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._custom_types import Masses, Scalar, Tokens
from ..batch_max import batch_max
from ..devices.collectives import AbstractCollectives
from .certificate import certified_error, make_rounding, relative_error, truncation_share
from .chunks import Expansion, causal_sums, chunk_size, full_sums
from .series.base import AbstractSeries
from .series.bessel import length_and_direction
from .series.circle import CircleSeries, GeneralCircleSeries
from .series.degrees import largest_length
from .series.sphere_series import GeneralSphereSeries, IsotropicSphereSeries
from .series.three_sphere_series import GeneralThreeSphereSeries, IsotropicThreeSphereSeries


# The series by dimension, for queries of one common length and for queries of any lengths.
SERIES: dict[int, tuple[Callable[[int], AbstractSeries], Callable[[int], AbstractSeries]]] = {
    2: (CircleSeries, GeneralCircleSeries),
    3: (IsotropicSphereSeries, GeneralSphereSeries),
    4: (IsotropicThreeSphereSeries, GeneralThreeSphereSeries),
}

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
    values: Float[Array, "n k"] | None,
    masses: Masses | None,
    causal: bool,
    tolerance: float,
    collectives: AbstractCollectives,
) -> tuple[Float[Array, "n sums"], Float[Array, " n"]]:
    """The sums of mass times [1, value], scaled by e^{-|q|}, and the least tolerance that certifies each row.

    **Arguments:**

    - `values`: (n, k); None for the tokens, whose sums are the gradient of the sum of masses.
    - `masses`: (n,), not negative; None if all masses are one.
    """
    (n, d), dtype, has_values = tokens.shape, tokens.dtype, values is not None
    weights, column_max = _weighted_columns(tokens, values, masses, collectives)
    share = truncation_share(dtype, tolerance)
    # The series for one length come first; within a kind, the degrees ascend, and so does the cost.
    kinds = list(zip(SERIES[d], DEGREES[d, dtype.itemsize], strict=True))
    longest_served = [[largest_length(degree, d, share) for degree in degrees] for _, degrees in kinds]
    branch, length, deviations = _choose_branch(queries, tokens, longest_served, tolerance, collectives)
    sum_up = causal_sums if causal else full_sums
    # `branch_of` fills this list below: the error of pairs depends on the size of a causal chunk.
    chunk_sizes = []

    def branch_of(series: AbstractSeries):
        size = chunk_size(series, n, dtype, causal)
        chunk_sizes.append(size)
        equal = masses is None and not has_values
        rounding = make_rounding(series, size, n, d, dtype, share, equal, collectives.size)
        expansion = Expansion(series, length, has_values, column_max, rounding)
        # Without the checkpoint, the switch would store the residuals of every branch.
        return jax.checkpoint(lambda q, y, w: sum_up(expansion, q, y, w, collectives))

    columns = weights.shape[1] if has_values else 1 + d
    # NaN is never certified, so that the caller sums every row by pairs.
    unserved = lambda queries, *_: (jnp.full((n, columns), jnp.nan, dtype), jnp.full(n, jnp.nan, dtype))
    branches = [*(branch_of(make(degree)) for make, degrees in kinds for degree in degrees), unserved]
    sums, error = lax.switch(branch, branches, queries, tokens, weights)
    relative = relative_error(*deviations, d, max(chunk_sizes) if causal else 0)
    return sums, certified_error(sums, error, relative)


def _weighted_columns(
    tokens: Tokens, values: Float[Array, "n k"] | None, masses: Masses | None, collectives: AbstractCollectives
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
    collectives: AbstractCollectives,
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
    # Each entry is 1 if the degree is too low; degrees ascend, so that the sum is the index of the first that serves.
    of_one_length, general = ([anywhere(~(longest <= most)) for most in kind] for kind in longest_served)
    of_any_length = len(of_one_length) + sum(general)
    branch = jnp.where((differ == 0) & (sum(of_one_length) < len(of_one_length)), sum(of_one_length), of_any_length)
    # If no degree serves, the sum over `general` is their number, which gives the index of the branch that refuses.
    branch = jnp.where(refused > 0, len(of_one_length) + len(general), branch)
    return branch, length, (lengths, jnp.where(branch < len(of_one_length), jnp.abs(lengths - length), 0), norm_error)
