"""The series of the sphere in four dimensions: waves in its three angles, or harmonics by recurrences."""

from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._custom_types import Masses, Scalar, Tokens
from .._misc import matmul
from .bessel import scaled_bessel
from .derived import Derived, derived, exact, split, with_one_length
from .lengths import OneLength, make_one_length
from .series import AbstractSeries, cached_chunk
from .sphere_tables import orders
from .three_sphere_moments import (
    by_coordinates,
    by_half_degree,
    by_parity,
    empty_moments,
    harmonics,
    three_sphere_moments,
    three_sphere_waves,
)
from .three_sphere_tables import coordinates, jacobi_fourier


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


def _by_waves(degree: int, directions: Tokens, made: tuple[Array, Array]) -> Array:
    """The sums for queries of one length, (functions, n): a matrix product for even m, and one for odd m."""
    by_phi, products = three_sphere_waves(directions, degree)
    count, n = by_phi[0].shape
    parts = [
        matmul(table, product).reshape(-1, count, n) * wave[None]
        for wave, product, table in zip(by_phi, products, made, strict=True)
    ]
    return jnp.sum(parts[0] + parts[1], axis=1)


_sums_by_waves = with_one_length(_made_for_waves, _by_waves)


class IsotropicThreeSphereSeries(AbstractSeries):
    r"""Harmonics for tokens in four dimensions and queries of one length.

    A harmonic is a sum of products of a wave in each angle of $(\cos\eta\, e^{i\phi}, \sin\eta\, e^{i\psi})$, so that
    moments and sums of a chunk are two matrix products each.

    **Arguments:**

    - `degree`: The highest degree that is kept of the kernel.

    Source: this library.
    """

    degree: int = eqx.field(static=True)

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return cached_chunk(self.degree, dtype)

    def empty(self, dtype: Any) -> Array:
        return empty_moments(self.degree + 2, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return three_sphere_moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> OneLength:
        return make_one_length(partial(_made_for_waves, self.degree), moments, length)

    def evaluate(self, queries: Tokens, coefficients: OneLength) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        return split(_sums_by_waves(self.degree, queries, coefficients))
