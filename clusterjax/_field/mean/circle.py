r"""The basis of the circle: $1, \sqrt 2 \cos k\theta, \sqrt 2 \sin k\theta$, a row (cosine, sine) for each k.

**Invariant.** The sine of k = 0 is zero, and its coefficient remains zero.
"""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._custom_types import Tokens
from ..._misc import matmul
from .basis import Basis, Grid


@lru_cache
def _grid(degree: int) -> Grid:
    theta = 2 * np.pi * np.arange(4 * (degree + 1)) / (4 * (degree + 1))
    cosine, sine = np.cos(theta), np.sin(theta)
    return Grid(np.stack([cosine, sine], 1), np.full(len(theta), 1 / len(theta)), np.stack([-sine, cosine], 1)[None])


@lru_cache
def _tables(degree: int) -> np.ndarray:
    """Cosines and sines on the grid, and their derivatives by the angle: (2, 2, M, degree + 1)."""
    points = _grid(degree).points
    k = np.arange(degree + 1)
    angles = np.arctan2(points[:, 1], points[:, 0])[:, None] * k
    cosine, sine = (np.where(k > 0, np.sqrt(2), 1) * part for part in (np.cos(angles), np.sin(angles)))
    return np.stack([[cosine, sine], [-k * sine, k * cosine]])


def _values(degree: int, c: Array) -> Float[Array, " M"]:
    cosine, sine = jnp.asarray(_tables(degree)[0], c.dtype)
    return matmul(cosine, c[:, 0]) + matmul(sine, c[:, 1])


def _gradients(degree: int, c: Array) -> Float[Array, "frame M"]:
    cosine, sine = jnp.asarray(_tables(degree)[1], c.dtype)
    return (matmul(cosine, c[:, 0]) + matmul(sine, c[:, 1]))[None]


def _against(degree: int, values: Float[Array, " M"], which: int) -> Array:
    """The integrals of values times harmonics, or times their derivatives."""
    weighted = values * jnp.asarray(_grid(degree).weights, values.dtype)
    return jnp.stack([matmul(weighted, jnp.asarray(part, values.dtype)) for part in _tables(degree)[which]], axis=1)


def _harmonics(degree: int, x: Tokens) -> Float[Array, "n rows columns"]:
    k = jnp.arange(degree + 1)
    angles = jnp.arctan2(x[:, 1], x[:, 0])[:, None] * k.astype(x.dtype)[None]
    scale = jnp.asarray(np.where(np.arange(degree + 1) > 0, np.sqrt(2), 1), x.dtype)
    return scale[None, :, None] * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=2)


CIRCLE = Basis(
    area=2 * np.pi,
    columns=lambda degree: 2,
    grid=_grid,
    values=_values,
    gradients=_gradients,
    divergence=lambda degree, flux: _against(degree, flux[0], 1),
    integrals=lambda degree, values: _against(degree, values, 0),
    harmonics=_harmonics,
)
