r"""The basis of the sphere: $\hat P_{lm}(\cos\theta) \cos m\phi$ and $\sin m\phi$, in row l and columns 2m, 2m + 1.

**Algorithm.** The grid is the product of Gauss-Legendre nodes in $z = \cos\theta$ and equally spaced angles $\phi$,
without a point at a pole. A transform has two stages: a product with $\hat P_{lm}(z)$ for each m, and a product with
the cosines and sines of $m\phi$. Derivatives with respect to $\theta$ follow from $\sin\theta\,\hat P_{lm}' = l z \hat
P_{lm} - \sqrt{(2l + 1)(l^2 - m^2)/(2l - 1)}\,\hat P_{l-1,m}$.

**Reference.** DLMF 14.10.3 and 14.10.5, in the normalisation of `sphere_tables.py`. **Invariant.** Entries with m > l,
and the sines of m = 0, are zero and remain zero.
"""

from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..._custom_types import Tokens
from ..._misc import einsum, matmul
from ..._summation.harmonic.series.sphere_tables import recurrence
from .basis import Basis, Grid


class _Tables(NamedTuple):
    """$\\hat P$, its derivative by theta, and m / sin theta times $\\hat P$, by (z, m, l); the waves, (2, m, phi)."""

    legendre: np.ndarray
    slope: np.ndarray
    turn: np.ndarray
    waves: np.ndarray


def _nodes(degree: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    z, weights = np.polynomial.legendre.leggauss(2 * (degree + 1))
    return z, weights / 2, 2 * np.pi * np.arange(4 * (degree + 1)) / (4 * (degree + 1))


@lru_cache
def _grid(degree: int) -> Grid:
    z, weights, phi = _nodes(degree)
    z, phi = (part.ravel() for part in np.meshgrid(z, phi, indexing="ij"))
    sine = np.sqrt(1 - z * z)
    points = np.stack([sine * np.cos(phi), sine * np.sin(phi), z], 1)
    down = np.stack([z * np.cos(phi), z * np.sin(phi), -sine], 1)
    east = np.stack([-np.sin(phi), np.cos(phi), 0 * phi], 1)
    count = 4 * (degree + 1)
    return Grid(points, np.repeat(weights / count, count), np.stack([down, east]))


@lru_cache
def _tables(degree: int) -> _Tables:
    z, _, phi = _nodes(degree)
    m, l = np.arange(degree + 1)[:, None], np.arange(degree + 1)[None]
    first, second, diagonal = (table[: degree + 1] for table in recurrence(degree))
    sine = np.sqrt(1 - z * z)
    legendre = np.zeros((len(z), degree + 1, degree + 1))
    for k in range(degree + 1):
        if k > 0:
            legendre[:, :, k] = first[:, k] * z[:, None] * legendre[:, :, k - 1]
        if k > 1:
            legendre[:, :, k] -= second[:, k] * legendre[:, :, k - 2]
        legendre[:, k, k] = diagonal[k] * sine**k
    lower = np.concatenate([np.zeros_like(legendre[:, :, :1]), legendre[:, :, :-1]], axis=2)
    factor = np.sqrt(np.maximum((2 * l + 1) * (l * l - m * m), 0) / np.maximum(2 * l - 1, 1))
    slope = (l * z[:, None, None] * legendre - factor * lower) / sine[:, None, None]
    angles = np.arange(degree + 1)[:, None] * phi
    turn = m * legendre / sine[:, None, None]
    return _Tables(legendre, slope, turn, np.stack([np.cos(angles), np.sin(angles)]))


def _pairs(c: Array) -> Float[Array, "l m two"]:
    return c.reshape(c.shape[0], c.shape[0], 2)


def _waves_of(table: np.ndarray, c: Array) -> Float[Array, "two z m"]:
    # For each m this is a product over l.
    return einsum("zml,lmc->czm", jnp.asarray(table, c.dtype), _pairs(c))


def _values(degree: int, c: Array) -> Float[Array, " M"]:
    tables = _tables(degree)
    waves = jnp.asarray(tables.waves, c.dtype)
    parts = _waves_of(tables.legendre, c)
    return (matmul(parts[0], waves[0]) + matmul(parts[1], waves[1])).ravel()


def _gradients(degree: int, c: Array) -> Float[Array, "frame M"]:
    tables = _tables(degree)
    cosine, sine = jnp.asarray(tables.waves, c.dtype)
    slope, turn = _waves_of(tables.slope, c), _waves_of(tables.turn, c)
    down = matmul(slope[0], cosine) + matmul(slope[1], sine)
    east = matmul(turn[1], cosine) - matmul(turn[0], sine)
    return jnp.stack([down.ravel(), east.ravel()])


def _against(table: np.ndarray, by_cosine: Array, by_sine: Array) -> Array:
    """The coefficients from integrals over phi times cosines and sines, each (z, m)."""
    parts = jnp.stack([by_cosine, by_sine])
    found = einsum("czm,zml->lmc", parts, jnp.asarray(table, parts.dtype))
    return found.reshape(found.shape[0], -1)


def _over_phi(degree: int, values: Float[Array, " M"]) -> tuple[Array, Array]:
    """The sums of weighted values times cosines and times sines, (z, m)."""
    weighted = values * jnp.asarray(_grid(degree).weights, values.dtype)
    waves = jnp.asarray(_tables(degree).waves, values.dtype)
    rows = weighted.reshape(2 * (degree + 1), -1)
    return matmul(rows, waves[0].T), matmul(rows, waves[1].T)


def _divergence(degree: int, flux: Float[Array, "frame M"]) -> Array:
    tables = _tables(degree)
    down, east = _over_phi(degree, flux[0]), _over_phi(degree, flux[1])
    # The derivative of cos m phi is -m sin m phi.
    return _against(tables.slope, *down) + _against(tables.turn, -east[1], east[0])


def _integrals(degree: int, values: Float[Array, " M"]) -> Array:
    return _against(_tables(degree).legendre, *_over_phi(degree, values))


def _harmonics(degree: int, x: Tokens) -> Float[Array, "n rows columns"]:
    first, second, diagonal = (jnp.asarray(table[: degree + 1], x.dtype) for table in recurrence(degree))
    count, n = degree + 1, x.shape[0]

    def power(carry, scale):
        c, s = carry
        return (c * x[:, 0] - s * x[:, 1], s * x[:, 0] + c * x[:, 1]), jnp.stack([c, s]) * scale

    # The harmonics with l = m are multiples of the powers of x + iy, (m, 2, n).
    sectoral = lax.scan(power, (jnp.ones_like(x[:, 0]), jnp.zeros_like(x[:, 0])), diagonal)[1]

    def step(carry, inputs):
        last, before = carry
        l, a, b = inputs
        found = a[:, None, None] * x[:, 2][None, None] * last - b[:, None, None] * before
        found = jnp.where((jnp.arange(count) == l)[:, None, None], sectoral, found)
        return (found, last), found

    zero = jnp.zeros_like(sectoral)
    found = lax.scan(step, (zero, zero), (jnp.arange(count), first.T, second.T))[1]
    return found.transpose(3, 0, 1, 2).reshape(n, count, 2 * count)


SPHERE = Basis(
    area=4 * np.pi,
    columns=lambda degree: 2 * (degree + 1),
    grid=_grid,
    values=_values,
    gradients=_gradients,
    divergence=_divergence,
    integrals=_integrals,
    harmonics=_harmonics,
)
