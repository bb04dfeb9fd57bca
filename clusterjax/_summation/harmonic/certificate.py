"""Error bounds of the sums of a series, row by row, and the rows for which the bounds are within the tolerance.

The bounds are a running error analysis in the standard model of floating-point arithmetic (Higham, *Accuracy and
stability of numerical algorithms*, sections 2.2, 3.1 and 4.2), for worst cases, without statistics. `make_rounding` has
the part known at compile time, `relative_error` the part from queries and tokens; `certified_error` combines both.

**What is certified.** Row i has the sum $Z = ∑_j m_j exp(⟨q, y_j⟩ - |q|)$ of masses and, for each column of the values
v, the sum $N = ∑_j m_j v_j exp(⟨q, y_j⟩ - |q|)$. A row is certified if, for each column,

- the error of the average N / Z is at most `tolerance` times the largest |v_j| of the column, over tokens with mass;
- the error of Z is at most `tolerance` Z, and the error of N is at most `tolerance` Z times this largest |v_j|.

The error of log Z, and the error of unnormalised sums relative to their kernel, are then at most the tolerance. If the
values are None, the tokens are the values, and the scale of each coordinate is 1, their norm. The reference is the sum
for the given queries and tokens in exact arithmetic.

**Algorithm.** The unit roundoff u is half the distance from 1 to the next number; bounds are in units of u. W is the
mass that a row attends to, and κ = |q|. There are two kinds of errors. Errors of the first kind are absolute: the terms
of a series are as large as W even where their sum Z is small. Their bound is E. These errors do not average out, since
equal tokens have equal rounding errors in any number. With `POWER` and the counts of `series.py`,

1. *Moments.* The error of a token's feature is f units at any degree, plus g for each degree. The mean degree of the
   kernel is at most $λ = √((d - 1)κ)$ (its Laplacian at its maximum is -(d - 1)κ). A feature then passes through at
   most s additions, which `make_rounding` counts: within a block, over the blocks in pairs, over the chunks and over
   the devices. The sum over chunks is compensated: its error is of second order, K^2 u for K chunks, plus one unit for
   adding the compensation. If the error of every feature is at most ε, the error of the sum of a row is at most εW
   times the sum of the absolute Fourier coefficients of $exp(κ(t - 1))$ in the angles of y. This sum is 1 on the
   circle, times √2 because cosine and sine both have errors; on the spheres it is below √2 (1.40 and 1.38 were
   computed). The bound is $u (√2 (f + s) + gλ) W$.
2. *Coefficients and evaluation.* Here the moments are known, and the error of each degree is proportional to the norm
   of its moments: close to zero for uniform tokens, whose moments of higher degree cancel, and $√N_l W$ for equal
   tokens. The bound is `AbstractSeries.rounding`.
3. *Truncation.* The degree is chosen such that the tail of the kernel is at most `truncation_share`; the error is at
   most this share times W.
4. *Underflow*, in the series and in the sums of pairs: the least normal number for each of n tokens and of the terms,
   times the mass if the mass exceeds one.

Errors of the second kind are relative to each term, and so to Z: `relative_error`.

5. *Angles.* Tokens are normalised, directions and lengths of queries are rounded, and angles are computed from them:
   `ANGLES` + 2 units, each of which changes a score by κu. Tokens off the unit sphere contribute their measured norm. A
   query length that differs from the length of the series contributes twice the difference: the series has
   $exp(ℓ(t - 1))$ in place of $exp(|q|(t - 1))$, and |t - 1| is at most 2.
6. *Pairs within a chunk* (causal): scores, exponentials, and a sum of positive terms in any order.

**Weights that decay.** A factor $e^{-a(i - j)}$, a ≥ 0, multiplies the term of j in the row i. All factors are at most
one, and W is the decayed mass. Two errors of the first kind are added, both in the moments:

7. *Factors.* A factor of a token in its chunk and of a row in its chunk has a relative error of x + 3 units for the
   exponent -x: rounding of the product, of the exponential and of the multiplication. The factor $e^{-s}$ of a whole
   chunk of K tokens, s = aK, multiplies moments of earlier chunks again and again, so that its error must be of the
   order of s. For s < log 2, $e^{-s} - 1$ times the moments is added with compensation, which has an error of
   s + 3 (1 - e^{-s}) units of the moments. Beyond, the moments are multiplied, with s + 3 units of the result. Both are
   below 8s units of the result. The bound is carried beside the moments: `drift` is the sum of mass times units, and
   decays with the moments.
8. *Underflow* of factors and moments: the least normal number once more, wherever a row attends to any mass, decayed or
   not. A row whose mass has decayed to zero has no sum that is positive, and is not certified.

In the sums of pairs, the addition of the exponent -x to a score adds errors of the second kind: 3x units for the
exponent, with x at most twice the number at which e^{-x} underflows, and 2|q| units for the score.

With the exact sums $N_*$ and $Z_*$, the error of an average is at most $|N - N_*| / Z + |N_* / Z_*| |Z - Z_*| / Z$,
with the computed Z in the denominators. Both kinds therefore count twice, the first kind once for the sum of masses and
once for the worst column: the row is certified if $E_Z + max_v E_v / max_j |v_j| + 2RZ$ ≤ `tolerance` Z.

**Invariants.** A row with a NaN is not certified, nor a row whose Z is not positive, or small against E. A row that
attends to no mass is exact: its sums are zero. W, the tokens' distance from the sphere and the largest values are
taken over all devices.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._base.batching import cut, join
from ..._base.numerics import matmul, normalise
from ..._base.types import Scalar, Tokens
from ..collectives import Collectives
from .series import AbstractSeries, length_and_direction, pairwise_depth


# The error, by dimension, of the computed angle between a query and a token, in units of u, minus the 2 that
# `relative_error` adds. Coordinates with errors of one unit each turn a vector by at most one unit, and a common factor
# of all coordinates does not turn it. The counted units, rounded up, for d = 2, 3, 4:
# - `normalise` rounds each coordinate of a token twice: 2, 2, 2; the direction of a query once: 1, 1, 1.
# - `azimuth` divides two coordinates: 1 for each azimuth, and over all of them at most 1 on the sphere. `inclination`
#   divides too: 1. Its arguments are distances with errors of 2 units, one of them (d = 3) or both (d = 4), which
#   change the angle by half of that each: 1 or 2. The roots of sums of squares, for tokens and queries: 0, 2.3, 3.2.
# - The length of a query, the root of a sum of d squares: d / 2 + 1, so 2, 2.5, 3.
# - The measured | |y|^2 - 1 |, of which half enters: d / 2, so 1, 1.5, 2.
# The sums 6, 11.6 and 14.4 are below 10, 18 and 18.
ANGLES = {2: 8.0, 3: 16.0, 4: 16.0}


def unit_of(dtype: Any) -> float:
    """The unit roundoff u of a dtype, half its machine epsilon: the largest relative error of one operation."""
    return float(jnp.finfo(dtype).eps) / 2


class Rounding(NamedTuple):
    """The part of the bound that is known at compile time, from the order of sums of moments and the truncation."""

    # The errors of the moments relative to W, in units of u: at every degree, and in addition per degree.
    units: float | Scalar
    growth: float
    # The truncation error of the kernel, and a bound of all underflow, for masses of at most one.
    tail: float
    underflow: float
    # The dimension.
    d: int

    def error(self, lengths: Float[Array, " n"], mass: Scalar, evaluation: Float[Array, " n"]) -> Float[Array, " n"]:
        """E of each row, (n,): `mass` is W, `evaluation` the rounding error after the moments, in units."""
        moments = (self.units + self.growth * jnp.sqrt((self.d - 1) * lengths)) * mass
        # One per cent is added for terms of second order and for the rounding of the bound.
        error = 1.01 * (unit_of(lengths.dtype) * (moments + evaluation) + self.tail * mass)
        return jnp.where(mass > 0, error + self.underflow * (1 + mass), error)


def make_rounding(
    series: AbstractSeries,
    size: int,
    n: int,
    d: int,
    dtype: Any,
    tail: float,
    equal: bool,
    devices: int,
    slope: Scalar | None = None,
) -> Rounding:
    """The `Rounding` for chunks of `size` of the n tokens of each device.

    `equal` is True if all masses are one and there are no values; `slope` is the slope of weights that decay.
    """
    chunks = -(-n // size)
    # The number s of additions that a term passes through. A block of b terms has at most b - 1, in any order. If all
    # masses are equal, the mean over the terms counts, at most (b + 1) / 2, the mean of sequential addition.
    depth = series.block / 2 + 1 if equal else series.block + 1
    if equal and slope is not None:
        # A mean over weights between 1 and the least factor in a block exceeds the mean over terms by this ratio.
        depth = jnp.minimum(depth * jnp.exp(_counted(slope * series.block)), series.block + 1)
    # Further additions: in pairs over the blocks of a chunk; over K chunks K^2 u and one addition of the compensation,
    # which causal sums make twice (over the chunks of earlier devices, and of this device); over the devices. Of the
    # 1 + 3, these additions need only 2; the other two, and the b + 1 in place of b - 1, are a margin.
    depth = depth + pairwise_depth(size // series.block) + 1 + 3 + chunks**2 * unit_of(dtype) + (devices - 1)
    features, growth = series.token_rounding
    # 10,000 exceeds the number of harmonics up to the highest degree of any series.
    underflow = 4 * (n * devices + 10_000) * float(jnp.finfo(dtype).tiny)
    return Rounding(math.sqrt(2) * (features + depth), growth, tail, underflow, d)


def relative_error(
    lengths: Float[Array, " n"],
    length_error: Float[Array, " n"],
    norm_error: Scalar,
    d: int,
    pairs: int,
    slope: Scalar | None = None,
) -> Float[Array, " n"]:
    """R of each row, (n,): a bound of the error of each term relative to the term.

    `length_error` is the difference between the norm of a query and the length of its series, `norm_error` the largest
    | |y|^2 - 1 | of a token, and `pairs` the number of tokens of a chunk, which are summed by pairs; zero for full
    sums. `slope` is the slope of weights that decay.
    """
    unit = unit_of(lengths.dtype)
    # A pair has a score of d products, the shift, an exponential, and the sum over the chunk.
    within = unit * ((d + 4) * lengths + pairs + 8) if pairs else 0.0
    if slope is not None:
        within = within + unit * (2 * lengths + 3 * _counted(slope * pairs) + 1)
    return 1.01 * (
        2 * length_error + lengths * (norm_error / 2 + (ANGLES[d] + 2) * unit) + within + norm_error / 2 + 4 * unit
    )


def certified_error(
    sums: Float[Array, "n k"], error: Float[Array, " n"], relative: Float[Array, " n"]
) -> Float[Array, " n"]:
    """The least tolerance at which each row is certified, (n,); infinite if no tolerance suffices.

    `sums` are scaled by exp(-|q|), and their first column is Z; `error` is the error of the first kind of an average,
    times Z, and `relative` is R.
    """
    sums, error, relative = lax.stop_gradient((sums, error, relative))
    normaliser = sums[:, 0]
    # Both kinds count twice, as derived above: `error` is already the sum of two bounds.
    bound = error / jnp.where(normaliser > 0, normaliser, 1) + 2 * relative
    no_mass = (normaliser == 0) & (error == 0)
    # NaN fails both comparisons.
    valid = jnp.all(jnp.isfinite(sums), axis=1) & (normaliser > 0) & (bound < jnp.inf)
    return jnp.where(no_mass, 0, jnp.where(valid, bound, jnp.inf))


def truncation_share(dtype: Any, tolerance: float) -> float:
    """The allowed truncation error of the kernel of a series, relative to e^|q|.

    The share is far below the tolerance, since relative to a small Z the truncation error grows by the factor W / Z.
    """
    # At the default tolerances, the share is at most the first part of E, about 100 u W: in float64, 1e-4 of 1e-10 is
    # 90 u, and in float32 the share is u up to a tolerance of 6e-3. A smaller share would need higher degrees, and
    # certify hardly any further row.
    share = 1e-5 if jnp.dtype(dtype).itemsize == 4 else 1e-4
    return max(unit_of(dtype), tolerance * share)


# The sums of a truncated series over chunks of tokens, full and causal, each with a bound of its rounding error.
#
# Full sums add the moments of all chunks, convert them to coefficients once, and evaluate the coefficients at every
# query. Causal sums scan over chunks: a row uses the moments of all earlier chunks and the pairs within its own chunk.
#
# Invariants: one chunk of features is held at a time, and the backward pass recomputes it (`jax.checkpoint`). Sums
# within a chunk are pairwise, and sums over chunks compensated (Neumaier, *Rundungsfehleranalyse einiger Verfahren zur
# Summation endlicher Summen*, 1974), as counted by `make_rounding`. Padding has mass zero.


class Expansion(eqx.Module):
    """A series with its data: masses and their gradient, or a column of weights for each sum.

    Without values, the sums of mass times token are the gradient of the sum of masses with respect to the query, and
    one set of moments gives both. With values, each column has its own moments: first the masses, then mass times
    value.
    """

    series: AbstractSeries
    # The norm of the queries, if the series is for queries of one length.
    length: Scalar
    has_values: bool
    # The largest absolute value of each column; one for the first column, the masses.
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

        def of_column(tokens, masses):
            # The second output is W of the notes above; a bound carries no derivative.
            return self.series.moments(tokens, masses), jnp.sum(jnp.abs(lax.stop_gradient(masses)))

        def of_block(tokens, weights):
            if self.has_values:
                return jax.vmap(of_column, in_axes=(None, 1))(tokens, weights)
            return of_column(tokens, weights[:, 0])

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

    def underflow(
        self, weights: Float[Array, "chunk k"], before: Float[Array, " k"] | None = None
    ) -> Float[Array, " chunk"]:
        """A bound of the underflow in the sums over the pairs of a chunk, in the measure of `sums`.

        `before` is the mass of earlier chunks, where their underflow is to be included.
        """
        mass = jnp.cumsum(jnp.abs(lax.stop_gradient(weights)), axis=0)
        mass = mass if before is None else mass + before[None]
        bound = self.in_average(self.rounding.underflow * (1 + mass))
        return jnp.where(mass[:, 0] > 0, bound, 0)

    def in_average(self, bounds: Float[Array, "chunk k"]) -> Float[Array, " chunk"]:
        """Error bounds of the sums of each column, as a bound of the error of an average times Z."""
        bounds = bounds / jnp.where(self.column_max > 0, self.column_max, 1)[None]
        return bounds[:, 0] + jnp.max(bounds[:, 1:], axis=1, initial=0.0) if self.has_values else 2 * bounds[:, 0]


def full_sums(
    expansion: Expansion, queries: Tokens, tokens: Tokens, weights: Float[Array, "n k"], collectives: Collectives
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
    expansion: Expansion, queries: Tokens, tokens: Tokens, weights: Float[Array, "n k"], collectives: Collectives
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


def decaying_sums(
    expansion: Expansion, queries: Tokens, tokens: Tokens, weights: Float[Array, "n k"], slope: Scalar, own: bool
) -> tuple[Float[Array, "n sums"], Float[Array, " n"]]:
    """The sums of row i over the tokens j <= i, or j < i unless `own`, with the factors $e^{-slope (i - j)}$, and their
    error bounds.

    The moments of earlier chunks are relative to the first row of a chunk: the sums of a row have one more factor, and
    the moments one factor for each chunk.
    """
    n, dtype = tokens.shape[0], tokens.dtype
    size, unit = chunk_size(expansion.series, n, dtype, True), math.sqrt(2) * 1.01 * unit_of(dtype)
    place = jnp.arange(size).astype(dtype)
    fall = _counted(lax.stop_gradient(slope) * place)
    since, until, across = jnp.exp(-slope * place), jnp.exp(-slope * (size - place)), slope * size
    distance = place[:, None] - place[None, :]
    log_factors = jnp.where(distance >= (0 if own else 1), -slope * distance, -jnp.inf)

    @jax.checkpoint
    def step(carry, chunk):
        moments, drift, before = carry
        queries, tokens, weights = chunk
        tokens = normalise(tokens)
        total = _compensated_total(moments)
        earlier, error = expansion.sums(queries, expansion.coefficients(total))
        mass = jnp.atleast_1d(lax.stop_gradient(total[1]))
        units = drift[None] + (fall[:, None] + 3) * mass[None]
        error = lax.stop_gradient(since) * (error + expansion.in_average(unit * units))
        within = _pair_sums(queries, tokens, weights, log_factors, expansion.has_values)
        sums = since[:, None] * earlier + within, error + 2 * expansion.underflow(weights, before)
        # The moments of the next chunk, relative to its first row.
        size_of = jnp.abs(lax.stop_gradient(weights))
        decay, added = lax.stop_gradient((jnp.exp(-across), until[:, None] * size_of))
        drift = decay * (drift + 8 * _counted(lax.stop_gradient(across)) * mass)
        drift = drift + jnp.sum(added * (fall[1] + fall[::-1, None] + 3), axis=0)
        moments = _compensated_decay(moments, across, expansion.moments(tokens, weights * until[:, None]))
        return (moments, drift, before + jnp.sum(size_of, axis=0)), sums

    chunks = (cut(queries, size), cut(tokens, size), cut(weights, size, 0.0))
    none = jnp.zeros(weights.shape[1], dtype)
    sums, errors = lax.scan(step, (_compensated_start(expansion.empty(weights)), none, none), chunks)[1]
    return join(sums, n), join(errors, n)


def two_sided_sums(
    expansion: Expansion, queries: Tokens, tokens: Tokens, weights: Float[Array, "n k"], slope: Scalar
) -> tuple[Float[Array, "n sums"], Float[Array, " n"]]:
    """The sums of row i over all tokens with the factors $e^{-slope |i - j|}$: those before it and itself, and those
    after it, in reversed order."""
    left = decaying_sums(expansion, queries, tokens, weights, slope, True)
    right = decaying_sums(expansion, queries[::-1], tokens[::-1], weights[::-1], slope, False)
    return left[0] + right[0][::-1], left[1] + right[1][::-1]


def _counted(exponent: Array) -> Array:
    """The exponent x of a factor e^{-x} in an error bound, at most twice the exponent at which factors underflow, since
    smaller factors do not contribute."""
    return jnp.minimum(exponent, -2 * math.log(float(jnp.finfo(exponent.dtype).tiny)))


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


def _compensated_decay(carried: Any, exponent: Scalar, tree: Any) -> Any:
    """The pair times $e^{-exponent}$, after the addition of `tree`."""
    factor, change = jnp.exp(-exponent), jnp.expm1(-exponent)
    # A product with a factor near one would round the whole sum each time: its change is added, with compensation.
    near = exponent < math.log(2)
    decayed = _compensated_add(carried, jax.tree.map(lambda leaf: jnp.where(near, change * leaf, 0), carried[0]))
    total = jax.tree.map(lambda leaf: leaf * jnp.where(near, 1, factor), decayed[0])
    # The compensation of the addition above belongs to the decayed sum.
    added = jax.tree.map(lambda old, new: factor * old + (new - old), carried[1], decayed[1])
    return _compensated_add((total, lax.stop_gradient(added)), tree)


def _compensated_total(carried: Any) -> Any:
    """The sum with its compensation."""
    return jax.tree.map(jnp.add, *carried)


def _pair_sums(queries, tokens, weights, allowed, has_values: bool) -> Float[Array, "chunk sums"]:
    """The sums over the `allowed` pairs of one chunk, (chunk, sums), divided by e^{|q|} as in the series.

    `allowed` has booleans, or the log-weights of the pairs, which are minus infinity for pairs that are not allowed.
    """
    columns = weights if has_values else weights * jnp.concatenate([jnp.ones_like(weights), tokens], axis=1)
    # The shift |q| carries no derivative, as `ExponentialSums` requires.
    shift = lax.stop_gradient(length_and_direction(queries)[0])
    # The score is minus infinity before the exponential, so that its derivative is zero, not NaN.
    scores = matmul(queries, tokens.T) - shift[:, None]
    scores = jnp.where(allowed, scores, -jnp.inf) if allowed.dtype == bool else scores + allowed
    return matmul(jnp.exp(scores), columns)
