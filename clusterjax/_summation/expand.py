"""Which series sums a cloud, and of what degree: decided by the queries, at run time, once for all devices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._custom_types import Scalar, Tokens
from ._series.bessel import length_and_direction
from ._series.circle import CircleSeries, GeneralCircleSeries
from ._series.degrees import largest_length
from ._series.series import AbstractSeries
from ._series.sphere_series import GeneralSphereSeries, IsotropicSphereSeries
from ._series.three_sphere_series import GeneralThreeSphereSeries, IsotropicThreeSphereSeries
from .certificate import certified, truncation_share
from .chunks import Expansion, causal_sums, full_sums
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
    masses: Float[Array, "n k"],
    several: bool,
    causal: bool,
    tolerance: float,
    exchange: AbstractExchange,
) -> tuple[Float[Array, "n sums"], Bool[Array, " n"]]:
    """The sums, scaled by e^{-|q|}, and of each row whether it is certified; if not, it holds anything.

    **Arguments:**

    - `masses`: (n, k), the first of them those of the certificate, not negative.
    - `several`: Whether the sums are those of k masses; otherwise of one mass, and of mass times token.
    """
    d, dtype = tokens.shape[1], tokens.dtype
    share = truncation_share(dtype, tolerance)
    kinds = list(zip(SERIES[d], DEGREES[d, dtype.itemsize], strict=True))
    reaches = [[largest_length(degree, d, share) for degree in degrees] for _, degrees in kinds]
    branch, length = _choose(queries, tokens, reaches, tolerance, exchange)
    sum_up = causal_sums if causal else full_sums

    def run(series: AbstractSeries):
        return jax.checkpoint(lambda q, y, m: sum_up(Expansion(series, length, several), q, y, m, exchange))

    columns = masses.shape[1] if several else 1 + d
    nothing = lambda queries, *_: jnp.full((queries.shape[0], columns), jnp.nan, dtype)
    branches = [*(run(make(degree)) for make, degrees in kinds for degree in degrees), nothing]
    sums = lax.switch(branch, branches, queries, tokens, masses)
    attended = _attended(lax.stop_gradient(masses[:, 0]), causal, exchange)
    return sums, certified(sums, attended, share, tolerance)


def _choose(
    queries: Tokens, tokens: Tokens, reaches: list[list[float]], tolerance: float, exchange: AbstractExchange
) -> tuple[Int[Array, ""], Scalar]:
    """The number of the series that serves, counted over both kinds, or the next one if none does; and the length."""
    queries, tokens = lax.stop_gradient((queries, tokens))
    lengths = length_and_direction(queries)[0]
    longest = jnp.max(lengths)
    length, devices = exchange.total((longest, jnp.ones_like(longest)))
    length = length / devices
    off = jnp.max(jnp.abs(jnp.sum(tokens * tokens, axis=1) - 1))

    def choose(truth: Bool[Array, ""]) -> Int[Array, ""]:
        return together(exchange.any(truth).astype(int))

    # Each is written so that what is not a number is refused.
    differ = choose(~jnp.all(jnp.abs(lengths - length) <= 8 * float(jnp.finfo(lengths.dtype).eps) * length))
    refused = choose(~(off * jnp.maximum(longest, 1) <= tolerance / 4))
    one, general = ([choose(~(longest <= reach)) for reach in kind] for kind in reaches)
    of_any_length = len(one) + sum(general)
    branch = jnp.where((differ == 0) & (sum(one) < len(one)), sum(one), of_any_length)
    return jnp.where(refused > 0, len(one) + len(general), branch), length


def _attended(masses: Float[Array, " n"], causal: bool, exchange: AbstractExchange) -> Float[Array, " n"]:
    """The mass that each row attends to."""
    if causal:
        return exchange.before(jnp.sum(masses)) + jnp.cumsum(masses)
    return jnp.broadcast_to(exchange.total(jnp.sum(masses)), masses.shape)
