"""The series of the sphere in three dimensions: spherical harmonics, by waves in both angles or by recurrences."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._custom_types import Masses, Scalar, Tokens
from .._misc import matmul
from .bessel import length_and_direction, scaled_bessel
from .series import AbstractSeries, cached_chunk
from .sphere_moments import constant, exact, harmonic_moments, times_coordinates, waves
from .sphere_tables import legendre_fourier, orders, recurrence


class Derived(NamedTuple):
    """Two sets of one thing: for the mass and mass times token, and for mass times the products of two coordinates.

    **Arguments:**

    - `first`: For 1, x, y, z.
    - `second`: For xx, xy, xz, yy, yz, zz, which only derivatives need.
    """

    first: Any
    second: Any


def _derived_moments(moments: Array, degree: int) -> Derived:
    """Both sets of moments up to `degree`, of the scalar ones up to two degrees more."""
    rows = orders(degree)
    by = times_coordinates(moments)
    by_x, by_y, by_z = (times_coordinates(part) for part in by)
    first = jnp.concatenate([moments[None, ..., : degree + 1], by[..., : degree + 1]])
    second = jnp.concatenate([by_x, by_y[1:], by_z[2:]])
    return Derived(first[:, :rows], second[:, :rows, :, : degree + 1])


def _products(second: Float[Array, "6 n"], vectors: Tokens) -> Float[Array, "3 n"]:
    """The symmetric matrix of each token, given by its upper half, times the vector of that token."""
    xx, xy, xz, yy, yz, zz = second
    x, y, z = vectors.T
    return jnp.stack([xx * x + xy * y + xz * z, xy * x + yy * y + yz * z, xz * x + yz * y + zz * z])


def _differentiable(evaluate: Any) -> Any:
    """`evaluate(degree, queries, coefficients)`, with derivatives that are such sums too, the scale held fixed."""

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def sums(degree, queries, coefficients):
        return evaluate(degree, queries, coefficients.first)

    @sums.defjvp
    def _(degree, primals, tangents):
        queries, coefficients = primals
        queries_dot, coefficients_dot = tangents
        out = sums(degree, queries, coefficients)
        second = evaluate(degree, queries, coefficients.second)
        moved = jnp.concatenate([jnp.sum(out[1:] * queries_dot.T, axis=0)[None], _products(second, queries_dot)])
        return out, moved + evaluate(degree, queries, coefficients_dot.first)

    return sums


def _by_waves(degree: int, queries: Tokens, coefficients: tuple[Array, Array]) -> Array:
    """The sums for queries of one length, (channels, n): a matrix product for even m, and one for odd m."""
    even, odd, cosines, sines = waves(queries, degree)
    count, n = cosines.shape
    by_cosine = matmul(coefficients[0], even).reshape(-1, count, n)
    by_sine = matmul(coefficients[1], odd).reshape(-1, count, n)
    return jnp.sum(by_cosine * cosines[None] + by_sine * sines[None], axis=1)


_sums_by_waves = _differentiable(_by_waves)


def _by_recurrence(degree: int, queries: Tokens, coefficients: Array) -> Array:
    """The sums for queries of any length, (channels, n), degree by degree."""
    length, direction = length_and_direction(queries)
    bessel = scaled_bessel(length, degree, 3)
    first, second, diagonal = (constant(table, queries.dtype) for table in recurrence(degree))
    x, y, z = direction.T
    count, n = orders(degree), queries.shape[0]

    def power(carry, scale):
        c, s = carry
        return (c * x - s * y, s * x + c * y), jnp.stack([c, s]) * scale

    sectoral = lax.scan(power, (jnp.ones_like(x), jnp.zeros_like(x)), diagonal)[1]

    def step(carry, this):
        before, earlier, sums = carry
        l, a, b, constants, weight = this
        harmonics = a[:, None, None] * z[None, None] * before - b[:, None, None] * earlier
        start = jnp.arange(count) == l
        harmonics = jnp.where(start[:, None, None], sectoral, harmonics)
        sums = sums + weight[None] * matmul(constants, harmonics.reshape(2 * count, n))
        return (harmonics, before, sums), None

    zero = jnp.zeros_like(sectoral)
    none = jnp.zeros((coefficients.shape[1], n), queries.dtype)
    degrees = (jnp.arange(degree + 1), first.T, second.T, coefficients, bessel)
    return lax.scan(step, (zero, zero, none), degrees)[0][2]


_sums_by_recurrence = _differentiable(_by_recurrence)


def _split(sums: Float[Array, "4 n"]) -> tuple[Float[Array, " n"], Float[Array, "n 3"]]:
    return sums[0], sums[1:].T


class IsotropicSphereSeries(AbstractSeries):
    r"""Spherical harmonics for tokens in three dimensions and queries of one length.

    A harmonic is a sum of products of a wave in $\phi$ and a wave in $\theta$, so that moments and sums of a chunk are
    two matrix products each.

    **Arguments:**

    - `degree`: The highest degree that is kept of the kernel.

    Source: this library.
    """

    degree: int = eqx.field(static=True)

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return cached_chunk(self.degree, dtype)

    def empty(self, dtype: Any) -> Array:
        return jnp.zeros((orders(self.degree + 2), 2, self.degree + 3), dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return harmonic_moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> Derived:
        bessel = scaled_bessel(lax.stop_gradient(length), self.degree, 3)
        table = constant(legendre_fourier(self.degree), moments.dtype)

        def transfer(part, constants):
            out = exact("hmcl,mlk->hkmc", part * bessel[None, None, None], constants)
            return out.reshape(out.shape[0] * out.shape[1], -1)

        derived = _derived_moments(moments, self.degree)
        return Derived(
            *((transfer(part[:, 0::2], table[0::2]), transfer(part[:, 1::2], table[1::2])) for part in derived)
        )

    def evaluate(self, queries: Tokens, coefficients: Derived) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        return _split(_sums_by_waves(self.degree, queries, coefficients))


class GeneralSphereSeries(AbstractSeries):
    """Spherical harmonics for tokens in three dimensions and queries of any lengths.

    The moments are those of `IsotropicSphereSeries`; the sums go through the harmonics degree by degree, with Bessel
    functions of each query's own length.

    **Arguments:**

    - `degree`: The highest degree that is kept of the kernel.

    Source: this library.
    """

    degree: int = eqx.field(static=True)

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return cached_chunk(self.degree, dtype)

    def empty(self, dtype: Any) -> Array:
        return jnp.zeros((orders(self.degree + 2), 2, self.degree + 3), dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return harmonic_moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> Derived:
        def by_degree(part):
            return jnp.transpose(part, (3, 0, 1, 2)).reshape(self.degree + 1, part.shape[0], -1)

        return Derived(*(by_degree(part) for part in _derived_moments(moments, self.degree)))

    def evaluate(self, queries: Tokens, coefficients: Derived) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        return _split(_sums_by_recurrence(self.degree, queries, coefficients))
