"""The series of the sphere in four dimensions: waves in its three angles, or harmonics by recurrences."""

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
from .series import AbstractSeries
from .sphere_tables import orders
from .three_sphere_moments import (
    by_coordinates,
    by_degree,
    by_half_degree,
    by_parity,
    empty_moments,
    harmonics,
    round_waves,
    three_sphere_moments,
    three_sphere_waves,
)
from .three_sphere_tables import coordinates, jacobi_fourier, jacobi_fourier_sizes, pairs_of_orders
from .waves import add_up


def _chunk_size(degree: int, causal: bool) -> int:
    """Full sums: what fits the cache. Causal: more, since the coefficients of a chunk cost as much as its sums."""
    if causal:
        return 1024
    return 1024 if degree < 12 else 512 if degree < 16 else 256


def _derived_harmonics(moments: Array, degree: int) -> Derived:
    """Both sets of harmonics up to `degree`, function by function, of moments of two degrees more."""
    whole = derived(harmonics(degree + 2, moments), lambda parts: by_coordinates(parts, coordinates(degree + 2)))
    rows = orders(degree)
    return Derived(*(part[:, :rows, :, :rows, :, :rows] for part in whole))


def _made_for_waves(degree: int, moments: Array, length: Scalar) -> Derived:
    """By functions times m, and by p and k, for even m and for odd m."""
    count = orders(degree)
    bessel = jnp.pad(scaled_bessel(length, degree, 4), (0, count - degree - 1))
    table = jnp.asarray(jacobi_fourier(degree), moments.dtype)

    def transfer(part):
        halves = by_half_degree(part * bessel.reshape(1, 1, 1, 1, 1, count))
        out = by_parity(exact("hmcpdl,mplk->hmcpdk", halves, table))
        rows, columns = part.shape[0] * count, count * count
        return tuple(jnp.moveaxis(one, 0, 3).reshape(rows, columns) for one in out)

    return Derived(*(transfer(part) for part in _derived_harmonics(moments, degree)))


# Three waves and a mass; their multiples in e^{kappa (t - 1)} are together 2.65 sqrt(kappa) on average.
_TOKEN_ROUNDING = TokenRounding(3.0, 1.55 * POWER)


def _noise(degree: int, moments: Array, gradients: bool, by_waves: bool) -> Array:
    """What each degree adds to the rounding errors of the sums, in units, (functions, degree + 1)."""
    table, count = jnp.asarray(np.abs(jacobi_fourier(degree + 2)), moments.dtype), orders(degree)
    through = length_of(by_degree(exact("mcpdk,mplk->mcpdl", jnp.abs(moments), table)), (0, 1, 2, 3))
    parts = _derived_harmonics(moments, degree).first if gradients else harmonics(degree + 2, moments)[None]
    parts = length_of(parts[:, :count, :, :count, :, : degree + 1], (2, 4))
    l = np.arange(degree + 1)
    units = bessel_units(degree) + 8
    if not by_waves:
        # A product with all harmonics of a degree, the sum over degrees, and the recurrence of the harmonics.
        units = units + (degree + 2) ** 2 + degree + 10 + 10 * l + 2 * l * l
    noise = with_neighbours(through, degree, gradients)[None] * (orders(degree + 2) / 2 + 4)
    noise = noise + length_of(parts, (1, 2)) * jnp.asarray(units, moments.dtype)[None]
    noise = noise * jnp.asarray(roots(degree, 4), moments.dtype)[None]
    if by_waves:
        sizes = jnp.asarray(jacobi_fourier_sizes(degree)[:, :, : degree + 1], moments.dtype)
        units = jnp.asarray(degree / 2 + count * count + count + 10 + 2 * POWER * l, moments.dtype)[None]
        noise = noise + units * jnp.sum(parts * sizes[None], axis=(1, 2))
    return noise


def _by_waves(degree: int, directions: Tokens, made: tuple[Array, Array]) -> Array:
    """The sums for queries of one length, (functions, n): a matrix product for even m, and one for odd m."""
    by_phi, products = three_sphere_waves(directions, degree)
    count, n = by_phi[0].shape
    parts = [
        matmul(table, product).reshape(-1, count, n) * wave[None]
        for wave, product, table in zip(by_phi, products, made, strict=True)
    ]
    return add_up(parts[0] + parts[1])


_sums_by_waves = with_one_length(_made_for_waves, _by_waves)


def _made_for_recurrence(degree: int, moments: Array) -> Derived:
    """For l even, and for l odd: by l // 2, functions, and all pairs of orders with their cosines and sines."""
    halves = orders(degree) // 2

    def by_pairs(part, parity):
        pairs = pairs_of_orders(degree, parity)
        chosen = part[:, pairs.m, :, pairs.p][..., parity::2]
        return chosen.transpose(4, 1, 0, 2, 3).reshape(halves, part.shape[0], -1)

    return Derived(*((by_pairs(part, 0), by_pairs(part, 1)) for part in _derived_harmonics(moments, degree)))


def _powers(base: Float[Array, " n"], count: int) -> Float[Array, "count n"]:
    """The powers 0, ..., `count` - 1."""
    return lax.scan(lambda power, _: (power * base, power), jnp.ones_like(base), None, length=count)[1]


def _by_recurrence(degree: int, queries: Tokens, made: tuple[Array, Array]) -> Array:
    """The sums for queries of any length, (functions, n), two degrees at a time."""
    length, direction = length_and_direction(queries)
    count, n = orders(degree), queries.shape[0]
    bessel = scaled_bessel(length, degree, 4) * held_scale(length)[None]
    bessel = jnp.pad(bessel, ((0, count - degree - 1), (0, 0))).reshape(count // 2, 2, n)
    by_phi, by_psi, (cosine, sine) = round_waves(direction, degree)
    at = cosine * cosine - sine * sine
    powers = [_powers(part, count) for part in (cosine, sine)]
    both = [pairs_of_orders(degree, parity) for parity in (0, 1)]
    products = [(by_phi[pairs.m][:, :, None] * by_psi[pairs.p][:, None]).reshape(-1, 2, 2, n) for pairs in both]

    def step(carry, this):
        sums, states = carry
        made, weights, tables = this
        new = []
        for parity, (before, earlier, start) in enumerate(states):
            begins, first, centre, second = (table[:, None] for table in tables[parity])
            here = jnp.where(begins, start, (first * at[None] - centre) * before - second * earlier)
            terms = (products[parity] * here[:, None, None]).reshape(-1, n)
            sums = sums + weights[parity][None] * matmul(made[parity], terms)
            new.append((here, before, start))
        return (sums, new), None

    starts = [
        jnp.asarray(pairs.table.start, queries.dtype)[:, None] * powers[0][pairs.m] * powers[1][pairs.p]
        for pairs in both
    ]
    tables = [(pairs.begins, *(jnp.asarray(part, queries.dtype) for part in pairs.table[1:])) for pairs in both]
    none = jnp.zeros((made[0].shape[1], n), queries.dtype)
    states = [(jnp.zeros_like(start), jnp.zeros_like(start), start) for start in starts]
    return lax.scan(step, (none, states), (made, bessel, tables))[0][0]


_sums_by_recurrence = with_derivatives(
    lambda degree, queries, known: _by_recurrence(degree, queries, known.first),
    lambda degree, queries, known: _by_recurrence(degree, queries, known.second),
)


class IsotropicThreeSphereSeries(AbstractSeries):
    r"""Harmonics for tokens in four dimensions and queries of one length.

    A harmonic is a sum of products of a wave in each angle of $(\cos\eta\, e^{i\phi}, \sin\eta\, e^{i\psi})$, so that
    moments and sums of a chunk are two matrix products each.

    **Arguments:**

    - `degree`: The highest degree that is kept of the kernel.

    Source: this library.
    """

    degree: int = eqx.field(static=True)
    block: ClassVar[int] = 64

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return _chunk_size(self.degree, causal)

    def empty(self, dtype: Any) -> Array:
        return empty_moments(self.degree + 2, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return three_sphere_moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> OneLength:
        return make_one_length(partial(_made_for_waves, self.degree), moments, length)

    def evaluate(self, queries: Tokens, coefficients: OneLength) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        return split(_sums_by_waves(self.degree, queries, coefficients))

    def token_rounding(self) -> TokenRounding:
        return _TOKEN_ROUNDING

    def noise(self, moments: Array, length: Scalar, gradients: bool) -> Scalar:
        return at_one_length(_noise(self.degree, moments, gradients, True), length, 4)

    def rounding(self, noise: Scalar, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(noise, lengths.shape)


class GeneralThreeSphereSeries(AbstractSeries):
    """Harmonics for tokens in four dimensions and queries of any lengths.

    The moments are those of `IsotropicThreeSphereSeries`; the sums go through the harmonics degree by degree, with
    Bessel functions of each query's own length.

    **Arguments:**

    - `degree`: The highest degree that is kept of the kernel.

    Source: this library.
    """

    degree: int = eqx.field(static=True)
    block: ClassVar[int] = 64

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return _chunk_size(self.degree, causal)

    def empty(self, dtype: Any) -> Array:
        return empty_moments(self.degree + 2, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return three_sphere_moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> Derived:
        return _made_for_recurrence(self.degree, moments)

    def evaluate(self, queries: Tokens, coefficients: Derived) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        return split(_sums_by_recurrence(self.degree, queries, coefficients))

    def token_rounding(self) -> TokenRounding:
        return _TOKEN_ROUNDING

    def noise(self, moments: Array, length: Scalar, gradients: bool) -> Array:
        return _noise(self.degree, moments, gradients, False)

    def rounding(self, noise: Array, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        return at_lengths(noise, lengths, 4)
