"""The sums of a truncated series over chunks of tokens, full and causal, each with a bound of its rounding error.

Full sums add the moments of all chunks, convert them to coefficients once, and evaluate the coefficients at every
query. Causal sums scan over chunks: a row uses the moments of all earlier chunks and the pairs within its own chunk.

Invariants: one chunk of features is held at a time, and the backward pass recomputes it (`jax.checkpoint`). Sums
within a chunk are pairwise, and sums over chunks compensated (Neumaier, *Rundungsfehleranalyse einiger Verfahren zur
Summation endlicher Summen*, 1974), as counted by `make_rounding`. Padding has mass zero.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._blocks import cut, join
from ..._custom_types import Scalar, Tokens
from ..._misc import matmul, normalise
from ..devices.collectives import AbstractCollectives
from .certificate import Rounding
from .series.base import AbstractSeries
from .series.bessel import length_and_direction


class Expansion(eqx.Module):
    """A series with its data: masses and their gradient, or a column of weights for each sum.

    Without values, the sums of mass times token are the gradient by the query of the sum of masses, and one set of
    moments gives both. With values, each column has its own moments: first the masses, then mass times value.

    **Arguments:**

    - `series`: The series, with its degree and its sphere.
    - `length`: The norm of the queries, if the series is for queries of one length.
    - `has_values`: True if there are columns of values.
    - `column_max`: The largest absolute value of each column; one for the first column, the masses.
    - `rounding`: The part of the error bound that is known at compile time.
    """

    series: AbstractSeries
    length: Scalar
    has_values: bool
    column_max: Float[Array, " k"]
    rounding: Rounding

    def empty(self, weights: Float[Array, "chunk k"]) -> Any:
        """The moments of no tokens and a total mass of zero, with a leading axis of k if there are values."""
        zeros = self.series.empty(weights.dtype), jnp.zeros((), weights.dtype)
        repeated = lambda leaf: jnp.zeros((weights.shape[-1], *leaf.shape), leaf.dtype)
        return jax.tree.map(repeated, zeros) if self.has_values else zeros

    def moments(self, tokens: Tokens, weights: Float[Array, "chunk k"]) -> Any:
        """The moments of a chunk and the sum of its absolute weights, for each column if there are values.

        One matrix product sums each block of the chunk, in an order that the device chooses; blocks are added pairwise,
        so that the rounding error grows only with the size of a block and the logarithm of the number of blocks.
        """
        # The second output is W of `certificate.py`; a bound carries no derivative.
        of_column = lambda tokens, masses: (
            self.series.moments(tokens, masses),
            jnp.sum(jnp.abs(lax.stop_gradient(masses))),
        )

        def of_block(tokens, weights):
            return (
                jax.vmap(of_column, in_axes=(None, 1))(tokens, weights)
                if self.has_values
                else of_column(tokens, weights[:, 0])
            )

        in_blocks = lambda a: a.reshape(-1, self.series.block, a.shape[-1])
        return jax.tree.map(_pairwise_sum, jax.vmap(of_block)(in_blocks(tokens), in_blocks(weights)))

    def coefficients(self, moments: Any) -> Any:
        """The coefficients of the series and of its rounding error, and the total mass, for each column."""

        def make(moments):
            moments, mass = moments
            error_terms = self.series.error_terms(lax.stop_gradient(moments), self.length, not self.has_values)
            return self.series.coefficients(moments, self.length), error_terms, lax.stop_gradient(mass)

        return jax.vmap(make)(moments) if self.has_values else make(moments)

    def sums(self, queries: Tokens, coefficients: Any) -> tuple[Float[Array, "chunk sums"], Float[Array, " chunk"]]:
        """The sums of each query, (chunk, 1 + d) or (chunk, k), and a bound of the error of an average times Z.

        `coefficients` is the result of the method `coefficients`.
        """
        lengths = length_and_direction(lax.stop_gradient(queries))[0]

        # For one column: the sum of weights, the sum of weight times token, and the error bound E.
        def evaluate(coefficients):
            of_series, error_terms, mass = coefficients
            error = self.rounding.error(lengths, mass, self.series.rounding(error_terms, lengths))
            return *self.series.evaluate(queries, of_series), error

        # The error of an average includes the errors of the normaliser Z and of the worst column: see `certificate.py`.
        if self.has_values:
            sums, _, errors = jax.vmap(evaluate)(coefficients)
            relative = errors / jnp.where(self.column_max > 0, self.column_max, 1)[:, None]
            return sums.T, relative[0] + jnp.max(relative[1:], axis=0, initial=0.0)
        first, second, error = evaluate(coefficients)
        return jnp.concatenate([first[:, None], second], axis=1), 2 * error

    def underflow(self, weights: Float[Array, "chunk k"]) -> Float[Array, " chunk"]:
        """A bound of the underflow in the sums over the pairs of a chunk, in the measure of `sums`."""
        mass = jnp.cumsum(jnp.abs(lax.stop_gradient(weights)), axis=0)
        bound = self.rounding.underflow * (1 + mass) / jnp.where(self.column_max > 0, self.column_max, 1)[None]
        both = bound[:, 0] + jnp.max(bound[:, 1:], axis=1, initial=0.0) if self.has_values else 2 * bound[:, 0]
        return jnp.where(mass[:, 0] > 0, both, 0)


def full_sums(
    expansion: Expansion,
    queries: Tokens,
    tokens: Tokens,
    weights: Float[Array, "n k"],
    collectives: AbstractCollectives,
) -> tuple[Float[Array, "n sums"], Float[Array, " n"]]:
    """The sums of every row over all tokens of all devices, (n, sums), and their error bounds, (n,)."""
    n = tokens.shape[0]
    size = chunk_size(expansion.series, n, tokens.dtype, False)
    moments = collectives.psum(_total_moments(expansion, tokens, weights, size))
    coefficients = expansion.coefficients(moments)
    # Without the checkpoint, the backward pass would store the features of all queries.
    of_chunk = jax.checkpoint(lambda queries: expansion.sums(queries, coefficients))
    sums, errors = lax.map(of_chunk, cut(queries, size))
    return join(sums, n), join(errors, n)


def causal_sums(
    expansion: Expansion,
    queries: Tokens,
    tokens: Tokens,
    weights: Float[Array, "n k"],
    collectives: AbstractCollectives,
) -> tuple[Float[Array, "n sums"], Float[Array, " n"]]:
    """The sums of row i over the tokens j <= i of all devices, (n, sums), and their error bounds, (n,)."""
    n = tokens.shape[0]
    size = chunk_size(expansion.series, n, tokens.dtype, True)
    causal = jnp.tril(jnp.ones((size, size), bool))

    @jax.checkpoint
    def step(moments, chunk):
        queries, tokens, weights = chunk
        # Series need unit tokens; the pairs use these too, so that derivatives are tangential in both parts.
        tokens = normalise(tokens)
        earlier, error = expansion.sums(queries, expansion.coefficients(_compensated_total(moments)))
        within = _pair_sums(queries, tokens, weights, causal, expansion.has_values)
        # The moments are updated after the sums, since the pairs count this chunk's own tokens.
        moments = _compensated_add(moments, expansion.moments(tokens, weights))
        return moments, (earlier + within, error + expansion.underflow(weights))

    chunks = (cut(queries, size), cut(tokens, size), cut(weights, size, 0.0))
    # The first chunk of a device sees the tokens of all devices before it.
    preceding = collectives.exclusive_prefix_sum(_total_moments(expansion, tokens, weights, size))
    sums, errors = lax.scan(step, _compensated_start(preceding), chunks)[1]
    return join(sums, n), join(errors, n)


def _total_moments(expansion: Expansion, tokens: Tokens, weights: Float[Array, "n k"], size: int) -> Any:
    """The moments of all n tokens of this device, summed by chunks."""

    @jax.checkpoint
    def add(moments, chunk):
        tokens, weights = chunk
        return _compensated_add(moments, expansion.moments(normalise(tokens), weights)), None

    start = _compensated_start(expansion.empty(weights))
    return _compensated_total(lax.scan(add, start, (cut(tokens, size), cut(weights, size, 0.0)))[0])


def chunk_size(series: AbstractSeries, n: int, dtype: Any, causal: bool) -> int:
    """The number of tokens in a chunk of the series, or n rounded up to a multiple of the block if this is less."""
    return min(series.chunk_size(dtype, causal), -(-n // series.block) * series.block)


def _pairwise_sum(parts: Array) -> Array:
    """The sum over the first axis, whose rounding error grows with the logarithm of its size."""
    while parts.shape[0] > 1:
        # For an odd number, the last part waits for the next round.
        half = parts.shape[0] // 2
        parts = jnp.concatenate([parts[:half] + parts[half : 2 * half], parts[2 * half :]])
    return parts[0]


# Compensated summation of trees: the pair (sum, compensation) carries the rounding error of every addition besides the
# sum, so that the error of the total does not grow with the number of chunks.


def _compensated_start(tree: Any) -> Any:
    """The pair of `tree` and a compensation of zero."""
    return tree, jax.tree.map(jnp.zeros_like, tree)


def _compensated_add(carried: Any, tree: Any) -> Any:
    """The pair after the addition of `tree`."""
    total = jax.tree.map(jnp.add, carried[0], tree)

    def rounding_error(before, added, after):
        # Knuth's two-sum is exact, whichever of the two numbers is larger.
        rounded = after - before
        return (before - (after - rounded)) + (added - rounded)

    # In exact arithmetic, the error and its derivative are identically zero.
    errors = lax.stop_gradient(jax.tree.map(rounding_error, carried[0], tree, total))
    return total, jax.tree.map(jnp.add, carried[1], errors)


def _compensated_total(carried: Any) -> Any:
    """The sum with its compensation."""
    return jax.tree.map(jnp.add, *carried)


def _pair_sums(queries, tokens, weights, allowed, has_values: bool) -> Float[Array, "chunk sums"]:
    """The sums over the `allowed` pairs of one chunk, (chunk, sums), divided by e^{|q|} as in the series."""
    columns = weights if has_values else weights * jnp.concatenate([jnp.ones_like(weights), tokens], axis=1)
    # The shift |q| carries no derivative, as `ExponentialSums` requires.
    shift = lax.stop_gradient(length_and_direction(queries)[0])
    # The score is minus infinity before the exponential, so that its derivative is zero, not NaN.
    scores = jnp.where(allowed, matmul(queries, tokens.T) - shift[:, None], -jnp.inf)
    return matmul(jnp.exp(scores), columns)
