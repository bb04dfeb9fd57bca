r"""Moments of tokens on the sphere, by waves in both angles, and their harmonics $\sum_j m_j Y_{lm}(y_j)$.

**Algorithm.** Moments are sums of products of waves, computed by two matrix products per chunk. After all chunks are
added, a table converts them to harmonics once. **Reference.** `sphere_tables.py`.

**Invariants.** Moments are (orders, 2, orders): by m, cosine or sine of $m\phi$, and k; cosines of $k\theta$ for even
m, and sines for odd m. Harmonics are (orders, 2, degree + 1): by m, cosine or sine, and l. Derivatives in the tokens
are tangential, and moments of the same form.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...._misc import einsum, matmul
from .shifts import DegreeShift, OrderShift, shift_degree, shift_order
from .sphere_tables import fourier_of_harmonics, gradient, legendre_fourier, orders
from .waves import azimuth, inclination, waves


def empty_moments(degree: int, dtype: Any) -> Array:
    """The moments of no tokens."""
    return jnp.zeros((orders(degree), 2, orders(degree)), dtype)


def sphere_waves(vectors: Float[Array, "n 3"], degree: int) -> tuple[tuple[Array, Array], Array, Array]:
    r"""Waves of even and odd $m\phi$, and cosines and sines of $k\theta$, of the directions of `vectors`."""
    x, y, z = vectors.T
    phi, across = azimuth(x, y)
    (by_phi,), cosines, sines = waves([phi], inclination(z, across), orders(degree))
    return by_phi, cosines, sines


def _weighted_moments(degree: int, tokens: Float[Array, "n 3"], weights: Float[Array, "c n"]) -> Array:
    """The moments for several sets of masses, (sets, orders, 2, orders)."""
    (even, odd), cosines, sines = sphere_waves(tokens, degree)
    sets, n = weights.shape
    count = orders(degree)

    # (sets * waves in phi, n) times (n, waves in theta) has the axes set, m // 2, cosine or sine, and k.
    def project(phi, theta):
        return matmul((weights[:, None] * phi[None]).reshape(-1, n), theta.T).reshape(sets, count // 2, 2, count)

    # Even and odd m alternate along the new axis, so that the reshape orders them by m.
    return jnp.stack([project(even, cosines), project(odd, sines)], axis=2).reshape(sets, count, 2, count)


def harmonics(degree: int, moments: Array) -> Array:
    """The harmonics up to `degree` of moments with equally many orders."""
    return einsum("mck,mlk->mcl", moments, jnp.asarray(legendre_fourier(degree), moments.dtype))


def times_coordinates(parts: Array, tables: tuple[OrderShift, DegreeShift]) -> Array:
    """The harmonics times x, y and z or, with the tables of `gradient`, their derivatives; valid to degree - 1."""
    across, along = tables
    return jnp.stack([*shift_order(parts, across), shift_degree(parts, along)])


def _token_derivatives(degree: int, sets: Float[Array, "3 m 2 k"]) -> Array:
    """Moments whose harmonics are the sum of the derivatives in x, y and z of the harmonics of three sets.

    The result is the tangent of moments when tokens move, for sets weighted by the coordinates of the motion. The sets
    are of one degree more, which the shift loses.
    """
    # The derivative goes through harmonics, since a single wave in theta is not smooth at the poles.
    derivatives = [times_coordinates(harmonics(degree + 1, part), gradient(degree + 1)) for part in sets]
    divergence = (derivatives[0][0] + derivatives[1][1] + derivatives[2][2])[: orders(degree), :, : degree + 1]
    return einsum("mcl,mkl->mck", divergence, jnp.asarray(fourier_of_harmonics(degree), sets.dtype))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def sphere_moments(degree: int, tokens: Float[Array, "n 3"], masses: Float[Array, " n"]) -> Array:
    """The moments of tokens with these masses that have harmonics up to `degree`, (orders, 2, orders).

    Derivatives with respect to tokens are tangential sums of the same form. Angles are never differentiated, so that
    the poles need no special treatment.
    """
    return _weighted_moments(degree, tokens, masses[None])[0]


@sphere_moments.defjvp
def _sphere_moments_jvp(degree, primals, tangents):
    tokens, masses = primals
    tokens_dot, masses_dot = tangents
    # The weight of each coordinate's set is mass times the motion of the token along the coordinate.
    derivatives = _token_derivatives(degree, _weighted_moments(degree + 1, tokens, tokens_dot.T * masses[None]))
    return sphere_moments(degree, tokens, masses), sphere_moments(degree, tokens, masses_dot) + derivatives
