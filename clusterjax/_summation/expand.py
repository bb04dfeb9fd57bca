"""Which series sums a cloud, and of what degree: decided by the queries, at run time, once for all devices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._custom_types import Masses, Scalar, Tokens
from ._series.bessel import length_and_direction
from ._series.circle import CircleSeries, GeneralCircleSeries
from ._series.degrees import largest_length
from ._series.series import AbstractSeries
from ._series.sphere_series import GeneralSphereSeries, IsotropicSphereSeries
from ._series.three_sphere_series import GeneralThreeSphereSeries, IsotropicThreeSphereSeries
from .certificate import certified_error, make_rounding, relative_error, truncation_share
from .chunks import Expansion, causal_sums, chunk_of, full_sums
from .exchange import AbstractExchange
from .together import together


# By dimension: the series for queries of one length, and the one for queries of any.
SERIES: dict[int, tuple[Callable[[int], AbstractSeries], Callable[[int], AbstractSeries]]] = {
    2: (CircleSeries, GeneralCircleSeries),
    3: (IsotropicSphereSeries, GeneralSphereSeries),
    4: (IsotropicThreeSphereSeries, GeneralThreeSphereSeries),
}

# By dimension and bytes of a number: the degrees among which a run chooses, for queries of one length and for any. Each
# is one more program to compile. In four dimensions those that come next would be dearer than all pairs.
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
    exchange: AbstractExchange,
) -> tuple[Float[Array, "n sums"], Float[Array, " n"]]:
    """The sums, scaled by e^{-|q|}, and of each row the least tolerance that certifies it.

    **Arguments:**

    - `values`: None are the tokens themselves, whose sums are had for less than any others.
    - `masses`: Not negative; None are one each.
    """
    (n, d), dtype, several = tokens.shape, tokens.dtype, values is not None
    weighted, largest = _columns(tokens, values, masses, exchange)
    share = truncation_share(dtype, tolerance)
    kinds = list(zip(SERIES[d], DEGREES[d, dtype.itemsize], strict=True))
    reaches = [[largest_length(degree, d, share) for degree in degrees] for _, degrees in kinds]
    branch, length, relative = _choose(queries, tokens, reaches, tolerance, exchange)
    sum_up = causal_sums if causal else full_sums
    chunks = []

    def run(series: AbstractSeries):
        size = chunk_of(series, n, dtype, causal)
        chunks.append(size)
        equal = masses is None and not several
        rounding = make_rounding(series, size, n, d, dtype, share, equal, exchange.devices)
        expansion = Expansion(series, length, several, largest, rounding)
        return jax.checkpoint(lambda q, y, m: sum_up(expansion, q, y, m, exchange))

    columns = weighted.shape[1] if several else 1 + d
    nothing = lambda queries, *_: (jnp.full((n, columns), jnp.nan, dtype), jnp.full(n, jnp.nan, dtype))
    branches = [*(run(make(degree)) for make, degrees in kinds for degree in degrees), nothing]
    sums, error = lax.switch(branch, branches, queries, tokens, weighted)
    relative = relative_error(*relative, d, max(chunks) if causal else 0)
    return sums, certified_error(sums, error, relative)


def _columns(
    tokens: Tokens, values: Float[Array, "n k"] | None, masses: Masses | None, exchange: AbstractExchange
) -> tuple[Float[Array, "n columns"], Float[Array, " columns"]]:
    """The masses, and unless there are no values, mass times each of them; and the largest size of each column."""
    if masses is None:
        # Behind a barrier: XLA would sum up a million ones while it compiles.
        masses = jnp.asarray(lax.optimization_barrier(jnp.ones(tokens.shape[0], tokens.dtype)))
    one = jnp.ones(1, tokens.dtype)
    if values is None:
        return masses[:, None], one
    there = lax.stop_gradient(jnp.where((masses > 0)[:, None], jnp.abs(values), 0))
    largest = exchange.largest(jnp.max(there, axis=0))
    return jnp.concatenate([masses[:, None], masses[:, None] * values], axis=1), jnp.concatenate([one, largest])


def _choose(
    queries: Tokens, tokens: Tokens, reaches: list[list[float]], tolerance: float, exchange: AbstractExchange
) -> tuple[Int[Array, ""], Scalar, tuple[Float[Array, " n"], Float[Array, " n"], Scalar]]:
    """The number of the series that serves, counted over both kinds, or the next one if none does; the one length; and
    what `relative_error` asks for: lengths, how they differ from the one length where that is used, and how far the
    squares of the tokens are from one."""
    queries, tokens = lax.stop_gradient((queries, tokens))
    lengths = length_and_direction(queries)[0]
    longest = jnp.max(lengths)
    length, devices = exchange.total((longest, jnp.ones_like(longest)))
    length = length / devices
    off = exchange.largest(jnp.max(jnp.abs(jnp.sum(tokens * tokens, axis=1) - 1)))

    def choose(truth: Bool[Array, ""]) -> Int[Array, ""]:
        return together(exchange.any(truth).astype(int))

    # Each is written so that what is not a number is refused.
    differ = choose(~jnp.all(jnp.abs(lengths - length) <= 8 * float(jnp.finfo(lengths.dtype).eps) * length))
    refused = choose(~(off * jnp.maximum(longest, 1) <= tolerance / 4))
    one, general = ([choose(~(longest <= reach)) for reach in kind] for kind in reaches)
    of_any_length = len(one) + sum(general)
    branch = jnp.where((differ == 0) & (sum(one) < len(one)), sum(one), of_any_length)
    branch = jnp.where(refused > 0, len(one) + len(general), branch)
    return branch, length, (lengths, jnp.where(branch < len(one), jnp.abs(lengths - length), 0), off)
