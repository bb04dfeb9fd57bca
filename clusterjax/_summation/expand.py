"""Which series sums a cloud, and of what degree: decided by the queries, at run time, once for all devices."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._custom_types import Scalar, Tokens
from .._misc import normalise
from .bessel import length_and_direction
from .certificate import certified, truncation_share
from .chunks import Expansion, causal_sums, full_sums
from .circle import CircleSeries, GeneralCircleSeries
from .degrees import largest_length
from .exchange import AbstractExchange
from .series import AbstractSeries
from .together import together


# By dimension: the series for queries of one length, the one for any lengths.
SERIES: dict[int, tuple[type[AbstractSeries], type[AbstractSeries]]] = {2: (CircleSeries, GeneralCircleSeries)}

# By dimension and bytes of a number: the degrees among which the run chooses. Each is one more program to compile, and
# each next one serves queries about three times as long.
DEGREES = {
    (2, 4): (20, 36, 60),
    (2, 8): (28, 50, 84),
    (3, 4): (12, 20, 34, 58),
    (3, 8): (16, 30, 50, 84),
    (4, 4): (12, 20),
    (4, 8): (16, 29),
}


def expand(
    queries: Tokens,
    tokens: Tokens,
    masses: Float[Array, "n k"],
    several: bool,
    causal: bool,
    tolerance: float,
    exchange: AbstractExchange,
) -> tuple[Float[Array, "n k"], Bool[Array, " n"]]:
    """The sums, scaled by e^{-|q|}, and of each row whether it is certified; if not, it holds anything.

    **Arguments:**

    - `masses`: (n, k), the first of them those of the certificate, not negative.
    - `several`: Whether the sums are those of k masses; otherwise of one mass, and of mass times token.
    """
    d, dtype = tokens.shape[1], tokens.dtype
    share = truncation_share(dtype, tolerance)
    degrees = DEGREES[d, dtype.itemsize]
    one, general = SERIES[d]
    # Queries of any lengths get the series of the second degree or a higher one: fewer programs to compile.
    plans = [one(degree) for degree in degrees] + (
        [] if general is one else [general(degree) for degree in degrees[1:]]
    )
    length, bucket, differ = _choose(queries, [largest_length(degree, d, share) for degree in degrees], exchange)
    off = together(_off_the_sphere(tokens, length, tolerance, exchange).astype(int))
    branch = jnp.where(differ == 1, len(degrees) + jnp.maximum(bucket - 1, 0), bucket)
    branch = jnp.where((off == 1) | (bucket == len(degrees)), len(plans), jnp.minimum(branch, len(plans)))
    sum_up = causal_sums if causal else full_sums

    def run(number: int, series: AbstractSeries):
        def branch(queries, tokens, masses):
            expansion = Expansion(series, length if number < len(degrees) else None, several)
            return sum_up(expansion, queries, tokens, masses, exchange)

        return jax.checkpoint(branch)

    columns = masses.shape[1] if several else 1 + d
    nothing = lambda queries, *_: jnp.full((queries.shape[0], columns), jnp.nan, dtype)
    branches = [*(run(*plan) for plan in enumerate(plans)), nothing]
    sums = lax.switch(branch, branches, queries, normalise(tokens), masses)
    attended = _attended(lax.stop_gradient(masses[:, 0]), causal, exchange)
    return sums, certified(sums, attended, share, tolerance)


def _choose(
    queries: Tokens, reaches: list[float], exchange: AbstractExchange
) -> tuple[Scalar, Int[Array, ""], Int[Array, ""]]:
    """The length of the queries, how many of the degrees are too low for them, and 1 if their lengths differ."""
    lengths = length_and_direction(lax.stop_gradient(queries))[0]
    longest = jnp.max(lengths)
    length, devices = exchange.total((longest, jnp.ones_like(longest)))
    length = length / devices
    slack = 8 * float(jnp.finfo(lengths.dtype).eps) * length
    differ = exchange.any(~jnp.all(jnp.abs(lengths - length) <= slack))
    # Written so that a length which is not a number is too long for every degree.
    beyond = [exchange.any(~(longest <= reach)).astype(int) for reach in reaches]
    return length, together(sum(beyond)), together(differ.astype(int))


def _off_the_sphere(tokens: Tokens, length: Scalar, tolerance: float, exchange: AbstractExchange) -> Bool[Array, ""]:
    """Whether tokens are so far from unit length that to normalise them would show."""
    tokens = lax.stop_gradient(tokens)
    off = jnp.max(jnp.abs(jnp.sum(tokens * tokens, axis=1) - 1))
    return exchange.any(~(off * jnp.maximum(length, 1) <= tolerance / 4))


def _attended(masses: Float[Array, " n"], causal: bool, exchange: AbstractExchange) -> Float[Array, " n"]:
    """The mass that each row attends to."""
    if causal:
        return exchange.before(jnp.sum(masses)) + jnp.cumsum(masses)
    return jnp.broadcast_to(exchange.total(jnp.sum(masses)), masses.shape)
