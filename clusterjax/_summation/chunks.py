"""The sums of a series over chunks of tokens: full, and causal."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._custom_types import Scalar, Tokens
from .._misc import matmul, normalise
from ._series.bessel import length_and_direction
from ._series.series import AbstractSeries
from .certificate import Rounding
from .exchange import AbstractExchange


class Expansion(eqx.Module):
    """A series, and what it expands: one sum with its gradient, or one sum for each of several masses.

    **Arguments:**

    - `series`: Of what degree, on which sphere.
    - `length`: That of the queries, where the series is for queries of one length.
    - `several`: Whether there are several masses a token, and no gradients wanted.
    - `largest`: The largest absolute value of each column; the first, of the masses themselves, is one.
    - `rounding`: What the certificate knows of how the moments are summed.
    """

    series: AbstractSeries
    length: Scalar
    several: bool
    largest: Float[Array, " k"]
    rounding: Rounding

    def empty(self, masses: Float[Array, "chunk k"]) -> Any:
        none = self.series.empty(masses.dtype), jnp.zeros((), masses.dtype)
        repeated = lambda leaf: jnp.zeros((masses.shape[-1], *leaf.shape), leaf.dtype)
        return jax.tree.map(repeated, none) if self.several else none

    def moments(self, tokens: Tokens, masses: Float[Array, "chunk k"]) -> Any:
        """The moments of a chunk, and the sum of what its masses are without their sign.

        Blocks of it are summed each by itself and then in pairs: no rounding error is carried through more than a block
        and a few sums of blocks, in whatever order a device sums up a block.
        """
        one = lambda tokens, masses: (self.series.moments(tokens, masses), jnp.sum(jnp.abs(lax.stop_gradient(masses))))

        def block(tokens, masses):
            return jax.vmap(one, in_axes=(None, 1))(tokens, masses) if self.several else one(tokens, masses[:, 0])

        cut = lambda a: a.reshape(-1, self.series.block, a.shape[-1])
        return jax.tree.map(_sum_in_pairs, jax.vmap(block)(cut(tokens), cut(masses)))

    def coefficients(self, moments: Any) -> Any:
        """What the sums are made of: the coefficients of the series, those of their rounding errors, and the mass."""

        def make(moments):
            parts, mass = moments
            noise = self.series.noise(lax.stop_gradient(parts), self.length, not self.several)
            return self.series.coefficients(parts, self.length), noise, lax.stop_gradient(mass)

        return jax.vmap(make)(moments) if self.several else make(moments)

    def sums(self, queries: Tokens, known: Any) -> tuple[Float[Array, "chunk sums"], Float[Array, " chunk"]]:
        """The sum of masses and, unless there are several, those of mass times token; and the error of an average times
        the sum of masses, at most."""
        lengths = length_and_direction(lax.stop_gradient(queries))[0]

        def evaluate(known):
            coefficients, noise, mass = known
            error = self.rounding.error(lengths, mass, self.series.rounding(noise, lengths))
            return *self.series.evaluate(queries, coefficients), error

        if self.several:
            sums, _, errors = jax.vmap(evaluate)(known)
            relative = errors / jnp.where(self.largest > 0, self.largest, 1)[:, None]
            return sums.T, relative[0] + jnp.max(relative[1:], axis=0, initial=0.0)
        first, second, error = evaluate(known)
        return jnp.concatenate([first[:, None], second], axis=1), 2 * error

    def lost(self, masses: Float[Array, "chunk k"]) -> Float[Array, " chunk"]:
        """What the sums over the pairs of a chunk may lose in numbers too small for the dtype, in the same measure."""
        weight = jnp.cumsum(jnp.abs(lax.stop_gradient(masses)), axis=0)
        lost = self.rounding.lost * (1 + weight) / jnp.where(self.largest > 0, self.largest, 1)[None]
        both = lost[:, 0] + jnp.max(lost[:, 1:], axis=1, initial=0.0) if self.several else 2 * lost[:, 0]
        return jnp.where(weight[:, 0] > 0, both, 0)


def full_sums(
    expansion: Expansion, queries: Tokens, tokens: Tokens, masses: Float[Array, "n k"], exchange: AbstractExchange
) -> tuple[Float[Array, "n sums"], Float[Array, " n"]]:
    """Every token attends to all: moments of all chunks, and then the sums of each, with their errors."""
    n = tokens.shape[0]
    size = chunk_of(expansion.series, n, tokens.dtype, False)
    moments = exchange.total(_all_moments(expansion, tokens, masses, size))
    coefficients = expansion.coefficients(moments)
    sums = jax.checkpoint(lambda chunk: expansion.sums(chunk, coefficients))
    found, errors = lax.map(sums, _cut(queries, size))
    return _join(found, n), errors.ravel()[:n]


def causal_sums(
    expansion: Expansion, queries: Tokens, tokens: Tokens, masses: Float[Array, "n k"], exchange: AbstractExchange
) -> tuple[Float[Array, "n sums"], Float[Array, " n"]]:
    """A token attends to itself and what came before: all pairs within its chunk, moments of the earlier chunks."""
    n = tokens.shape[0]
    size = chunk_of(expansion.series, n, tokens.dtype, True)
    below = jnp.tril(jnp.ones((size, size), bool))

    @jax.checkpoint
    def step(moments, chunk):
        queries, tokens, masses = chunk
        tokens = normalise(tokens)
        before, error = expansion.sums(queries, expansion.coefficients(_total(moments)))
        within = _pairs(queries, tokens, masses, below, expansion.several)
        return _add(moments, expansion.moments(tokens, masses)), (before + within, error + expansion.lost(masses))

    chunks = (_cut(queries, size), _cut(tokens, size), _cut(masses, size, 0.0))
    start = exchange.before(_all_moments(expansion, tokens, masses, size))
    found, errors = lax.scan(step, _start(start), chunks)[1]
    return _join(found, n), errors.ravel()[:n]


def _all_moments(expansion: Expansion, tokens: Tokens, masses: Float[Array, "n k"], size: int) -> Any:
    @jax.checkpoint
    def add(moments, chunk):
        tokens, masses = chunk
        return _add(moments, expansion.moments(normalise(tokens), masses)), None

    start = _start(expansion.empty(masses))
    return _total(lax.scan(add, start, (_cut(tokens, size), _cut(masses, size, 0.0)))[0])


def chunk_of(series: AbstractSeries, n: int, dtype: Any, causal: bool) -> int:
    """How many tokens a chunk has: a multiple of the block, and hardly more than there are."""
    return min(series.chunk_size(dtype, causal), -(-n // series.block) * series.block)


def _sum_in_pairs(parts: Array) -> Array:
    """The sum over the first axis, of which each part meets log2 of their number of roundings."""
    while parts.shape[0] > 1:
        half = parts.shape[0] // 2
        parts = jnp.concatenate([parts[:half] + parts[half : 2 * half], parts[2 * half :]])
    return parts[0]


# A sum over many chunks carries what each addition rounds away (Neumaier), so that its error does not grow with them.


def _start(tree: Any) -> Any:
    return tree, jax.tree.map(jnp.zeros_like, tree)


def _add(carried: Any, tree: Any) -> Any:
    total = jax.tree.map(jnp.add, carried[0], tree)

    def lost(before, more, after):
        part = after - before
        return (before - (after - part)) + (more - part)

    # Known without derivatives: that of what is lost is zero.
    return total, jax.tree.map(jnp.add, carried[1], lax.stop_gradient(jax.tree.map(lost, carried[0], tree, total)))


def _total(carried: Any) -> Any:
    return jax.tree.map(jnp.add, *carried)


def _pairs(queries, tokens, masses, below, several: bool) -> Float[Array, "chunk sums"]:
    """The sums over the pairs of one chunk, scaled as those of the series are."""
    weighted = masses if several else masses * jnp.concatenate([jnp.ones_like(masses), tokens], axis=1)
    scale = lax.stop_gradient(length_and_direction(queries)[0])
    scores = jnp.where(below, matmul(queries, tokens.T) - scale[:, None], -jnp.inf)
    return matmul(jnp.exp(scores), weighted)


def _cut(a: Array, size: int, fill: float | None = None) -> Array:
    """Chunks of `size` rows; the last is filled up with copies of the last row, or with `fill`."""
    n = a.shape[0]
    chunks = -(-n // size)
    if chunks * size > n:
        last = a[-1:] if fill is None else jnp.full((1, a.shape[1]), fill, a.dtype)
        a = jnp.concatenate([a, jnp.broadcast_to(last, (chunks * size - n, a.shape[1]))])
    return a.reshape(chunks, size, a.shape[1])


def _join(a: Array, n: int) -> Array:
    return a.reshape(-1, a.shape[-1])[:n]
