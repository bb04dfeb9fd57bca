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
from .exchange import AbstractExchange


class Expansion(eqx.Module):
    """A series, and what it expands: one sum with its gradient, or one sum for each of several masses.

    **Arguments:**

    - `series`: Of what degree, on which sphere.
    - `length`: That of the queries, where the series is for queries of one length.
    - `several`: Whether there are several masses a token, and no gradients wanted.
    """

    series: AbstractSeries
    length: Scalar
    several: bool

    def empty(self, masses: Float[Array, "chunk k"]) -> Any:
        none = self.series.empty(masses.dtype)
        repeated = lambda leaf: jnp.zeros((masses.shape[-1], *leaf.shape), leaf.dtype)
        return jax.tree.map(repeated, none) if self.several else none

    def moments(self, tokens: Tokens, masses: Float[Array, "chunk k"]) -> Any:
        if self.several:
            return jax.vmap(self.series.moments, in_axes=(None, 1))(tokens, masses)
        return self.series.moments(tokens, masses[:, 0])

    def coefficients(self, moments: Any) -> Any:
        make = lambda moments: self.series.coefficients(moments, self.length)
        return jax.vmap(make)(moments) if self.several else make(moments)

    def sums(self, queries: Tokens, coefficients: Any) -> Float[Array, "chunk sums"]:
        """The sum of masses and, unless there are several, those of mass times token."""

        if self.several:
            return jax.vmap(self.series.evaluate, in_axes=(None, 0))(queries, coefficients)[0].T
        first, second = self.series.evaluate(queries, coefficients)
        return jnp.concatenate([first[:, None], second], axis=1)


def full_sums(
    expansion: Expansion, queries: Tokens, tokens: Tokens, masses: Float[Array, "n k"], exchange: AbstractExchange
) -> Float[Array, "n sums"]:
    """Every token attends to all: moments of all chunks, and then the sums of each."""
    n = tokens.shape[0]
    size = min(expansion.series.chunk_size(tokens.dtype, False), n)
    moments = exchange.total(_all_moments(expansion, tokens, masses, size))
    coefficients = expansion.coefficients(moments)
    sums = jax.checkpoint(lambda chunk: expansion.sums(chunk, coefficients))
    return _join(lax.map(sums, _cut(queries, size)), n)


def causal_sums(
    expansion: Expansion, queries: Tokens, tokens: Tokens, masses: Float[Array, "n k"], exchange: AbstractExchange
) -> Float[Array, "n sums"]:
    """A token attends to itself and what came before: all pairs within its chunk, moments of the earlier chunks."""
    n = tokens.shape[0]
    size = min(expansion.series.chunk_size(tokens.dtype, True), n)
    below = jnp.tril(jnp.ones((size, size), bool))

    @jax.checkpoint
    def step(moments, chunk):
        queries, tokens, masses = chunk
        tokens = normalise(tokens)
        before = expansion.sums(queries, expansion.coefficients(moments))
        within = _pairs(queries, tokens, masses, below, expansion.several)
        return jax.tree.map(jnp.add, moments, expansion.moments(tokens, masses)), before + within

    chunks = (_cut(queries, size), _cut(tokens, size), _cut(masses, size, 0.0))
    start = exchange.before(_all_moments(expansion, tokens, masses, size))
    return _join(lax.scan(step, start, chunks)[1], n)


def _all_moments(expansion: Expansion, tokens: Tokens, masses: Float[Array, "n k"], size: int) -> Any:
    @jax.checkpoint
    def add(moments, chunk):
        tokens, masses = chunk
        return jax.tree.map(jnp.add, moments, expansion.moments(normalise(tokens), masses)), None

    return lax.scan(add, expansion.empty(masses), (_cut(tokens, size), _cut(masses, size, 0.0)))[0]


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
