"""The series of the sphere in three dimensions: spherical harmonics, by waves in both angles or by recurrences."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..._custom_types import Masses, Scalar, Tokens
from ..._misc import matmul
from .bessel import held_scale, length_and_direction, scaled_bessel
from .derived import Derived, derived, exact, split, with_derivatives, with_one_length
from .lengths import OneLength, make_one_length
from .rounding import POWER, TokenRounding, at_lengths, at_one_length, bessel_units, length_of, roots, with_neighbours
from .series import AbstractSeries, cached_chunk
from .sphere_moments import by_coordinates, empty_moments, harmonics, sphere_moments, sphere_waves
from .sphere_tables import coordinates, legendre_fourier, legendre_fourier_sizes, orders, recurrence
from .waves import add_up


def _derived_harmonics(moments: Array, degree: int) -> Derived:
    """Both sets of harmonics up to `degree`, (functions, orders, 2, degree + 1), of moments of two degrees more."""
    whole = derived(harmonics(degree + 2, moments), lambda parts: by_coordinates(parts, coordinates(degree + 2)))
    return Derived(*(part[:, : orders(degree), :, : degree + 1] for part in whole))


# Two waves and a mass; their multiples in e^{kappa (t - 1)} are together 2.05 sqrt(kappa) on average.
_TOKEN_ROUNDING = TokenRounding(2.0, 1.45 * POWER)


def _noise(degree: int, moments: Array, gradients: bool, by_waves: bool) -> Array:
    """What each degree adds to the rounding errors of the sums, in units, (functions, degree + 1)."""
    table = np.abs(legendre_fourier(degree + 2))
    through = length_of(exact("mck,mlk->mcl", jnp.abs(moments), jnp.asarray(table, moments.dtype)), (0, 1))
    parts = _derived_harmonics(moments, degree).first if gradients else harmonics(degree + 2, moments)[None]
    parts = length_of(parts[:, : orders(degree), :, : degree + 1], 2)
    l = np.arange(degree + 1)
    units = bessel_units(degree) + 8
    if not by_waves:
        # A product with all harmonics of a degree, the sum over degrees, and the recurrence of the harmonics.
        units = units + 2 * orders(degree) + degree + 8 + 5 * l + 2 * l * l
    noise = with_neighbours(through, degree, gradients)[None] * (orders(degree + 2) / 2 + 4)
    noise = noise + length_of(parts, 1) * jnp.asarray(units, moments.dtype)[None]
    noise = noise * jnp.asarray(roots(degree, 3), moments.dtype)[None]
    if by_waves:
        # Three sums over degrees and waves, and waves of at most 2 l multiples.
        units = degree / 2 + 2 * orders(degree) + 8 + 2 * POWER * l
        sizes = jnp.asarray(legendre_fourier_sizes(degree), moments.dtype)
        noise = noise + jnp.asarray(units, moments.dtype)[None] * jnp.sum(parts * sizes[None], axis=1)
    return noise


def _by_waves(degree: int, queries: Tokens, coefficients: tuple[Array, Array]) -> Array:
    """The sums for queries of one length, (channels, n): a matrix product for even m, and one for odd m."""
    (even, odd), cosines, sines = sphere_waves(queries, degree)
    count, n = cosines.shape
    by_cosine = matmul(coefficients[0], even).reshape(-1, count, n)
    by_sine = matmul(coefficients[1], odd).reshape(-1, count, n)
    return add_up(by_cosine * cosines[None] + by_sine * sines[None])


def _made_for_waves(degree: int, moments: Array, length: Scalar) -> Derived:
    """By functions times k, and by the waves of even m, or of odd m."""
    bessel = scaled_bessel(length, degree, 3)
    table = jnp.asarray(legendre_fourier(degree), moments.dtype)

    def transfer(part, parity):
        weighted = part[:, parity::2] * bessel[None, None, None]
        out = exact("hmcl,mlk->hkmc", weighted, table[parity::2])
        return out.reshape(out.shape[0] * out.shape[1], -1)

    return Derived(*((transfer(part, 0), transfer(part, 1)) for part in _derived_harmonics(moments, degree)))


_sums_by_waves = with_one_length(_made_for_waves, _by_waves)


def _by_recurrence(degree: int, queries: Tokens, coefficients: Array) -> Array:
    """The sums for queries of any length, (channels, n), degree by degree."""
    length, direction = length_and_direction(queries)
    bessel = scaled_bessel(length, degree, 3) * held_scale(length)[None]
    first, second, diagonal = (jnp.asarray(table, queries.dtype) for table in recurrence(degree))
    x, y, z = direction.T
    count, n = orders(degree), queries.shape[0]

    def power(carry, scale):
        c, s = carry
        return (c * x - s * y, s * x + c * y), jnp.stack([c, s]) * scale

    sectoral = lax.scan(power, (jnp.ones_like(x), jnp.zeros_like(x)), diagonal)[1]

    def step(carry, this):
        before, earlier, sums = carry
        l, a, b, constants, weight = this
        parts = a[:, None, None] * z[None, None] * before - b[:, None, None] * earlier
        start = jnp.arange(count) == l
        parts = jnp.where(start[:, None, None], sectoral, parts)
        sums = sums + weight[None] * matmul(constants, parts.reshape(2 * count, n))
        return (parts, before, sums), None

    zero = jnp.zeros_like(sectoral)
    none = jnp.zeros((coefficients.shape[1], n), queries.dtype)
    degrees = (jnp.arange(degree + 1), first.T, second.T, coefficients, bessel)
    return lax.scan(step, (zero, zero, none), degrees)[0][2]


_sums_by_recurrence = with_derivatives(
    lambda degree, queries, known: _by_recurrence(degree, queries, known.first),
    lambda degree, queries, known: _by_recurrence(degree, queries, known.second),
)


class IsotropicSphereSeries(AbstractSeries):
    r"""Spherical harmonics for tokens in three dimensions and queries of one length.

    A harmonic is a sum of products of a wave in $\phi$ and a wave in $\theta$, so that moments and sums of a chunk are
    two matrix products each.

    **Arguments:**

    - `degree`: The highest degree that is kept of the kernel.

    Source: this library.
    """

    degree: int = eqx.field(static=True)
    block: ClassVar[int] = 64

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return cached_chunk(self.degree, dtype, causal)

    def empty(self, dtype: Any) -> Array:
        return empty_moments(self.degree + 2, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return sphere_moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> OneLength:
        return make_one_length(partial(_made_for_waves, self.degree), moments, length)

    def evaluate(self, queries: Tokens, coefficients: OneLength) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        return split(_sums_by_waves(self.degree, queries, coefficients))

    def token_rounding(self) -> TokenRounding:
        return _TOKEN_ROUNDING

    def noise(self, moments: Array, length: Scalar, gradients: bool) -> Scalar:
        return at_one_length(_noise(self.degree, moments, gradients, True), length, 3)

    def rounding(self, noise: Scalar, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(noise, lengths.shape)


class GeneralSphereSeries(AbstractSeries):
    """Spherical harmonics for tokens in three dimensions and queries of any lengths.

    The moments are those of `IsotropicSphereSeries`; the sums go through the harmonics degree by degree, with Bessel
    functions of each query's own length.

    **Arguments:**

    - `degree`: The highest degree that is kept of the kernel.

    Source: this library.
    """

    degree: int = eqx.field(static=True)
    block: ClassVar[int] = 64

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return cached_chunk(self.degree, dtype, causal)

    def empty(self, dtype: Any) -> Array:
        return empty_moments(self.degree + 2, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return sphere_moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> Derived:
        def by_degree(part):
            return jnp.transpose(part, (3, 0, 1, 2)).reshape(self.degree + 1, part.shape[0], -1)

        return Derived(*(by_degree(part) for part in _derived_harmonics(moments, self.degree)))

    def evaluate(self, queries: Tokens, coefficients: Derived) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        return split(_sums_by_recurrence(self.degree, queries, coefficients))

    def token_rounding(self) -> TokenRounding:
        return _TOKEN_ROUNDING

    def noise(self, moments: Array, length: Scalar, gradients: bool) -> Array:
        return _noise(self.degree, moments, gradients, False)

    def rounding(self, noise: Array, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        return at_lengths(noise, lengths, 3)
