r"""Moments of tokens on the sphere: $M_{lm} = \sum_j m_j Y_{lm}(y_j)$, and what follows from them by shifts of indices.

An array of moments is (orders, 2, degree + 1): by m, cosine or sine, and l.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._misc import matmul
from .sphere_tables import ladder, legendre_fourier, orders, rotation


# Of cosine and sine, where one takes the place of the other.
_SIGN = np.array([[[1], [-1]]], np.int8)


def exact(spec: str, *operands: Array) -> Array:
    """An einsum in full precision, on accelerators too."""
    return jnp.einsum(spec, *operands, precision=lax.Precision.HIGHEST)


def polar(vectors: Float[Array, "n 3"]) -> tuple[Array, Array, Array, Array]:
    r"""$\cos\phi, \sin\phi, \cos\theta, \sin\theta$ of the directions of `vectors`; $\phi = 0$ at the poles."""
    x, y, z = vectors[:, 0], vectors[:, 1], vectors[:, 2]
    least = float(jnp.finfo(vectors.dtype).tiny) ** 0.5
    flat = x * x + y * y
    tilted = flat > least
    across = jnp.sqrt(jnp.where(tilted, flat, 1))
    cos_phi, sin_phi = jnp.where(tilted, x / across, 1), jnp.where(tilted, y / across, 0)
    across = jnp.where(tilted, across, 0)
    square = across * across + z * z
    length = jnp.sqrt(jnp.where(square > least, square, 1))
    return cos_phi, sin_phi, jnp.where(square > least, z / length, 1), across / length


def waves(vectors: Float[Array, "n 3"], degree: int) -> tuple[Array, Array, Array, Array]:
    r"""The factors of which harmonics are made, each (orders, n).

    Cosine and sine of $m\phi$ for m even, and for m odd, in turns; the cosines of $k\theta$, and the sines. They are
    built upwards, two multiples a step: no power loses more than a few roundings.
    """
    cos_phi, sin_phi, cos_theta, sin_theta = polar(vectors)

    def turn(wave, by):
        return wave[0] * by[0] - wave[1] * by[1], wave[1] * by[0] + wave[0] * by[1]

    once_phi, once_theta = (cos_phi, sin_phi), (cos_theta, sin_theta)
    twice_phi, twice_theta = turn(once_phi, once_phi), turn(once_theta, once_theta)

    def step(carry, _):
        phi, theta = carry
        phi_next, theta_next = turn(phi, once_phi), turn(theta, once_theta)
        out = (
            jnp.stack(phi),
            jnp.stack(phi_next),
            jnp.stack([theta[0], theta_next[0]]),
            jnp.stack([theta[1], theta_next[1]]),
        )
        return (turn(phi, twice_phi), turn(theta, twice_theta)), out

    start = (jnp.ones_like(cos_phi), jnp.zeros_like(cos_phi))
    count = orders(degree)
    out = lax.scan(step, (start, start), None, length=count // 2)[1]
    even, odd, cosines, sines = (part.reshape(count, -1) for part in out)
    return even, odd, cosines, sines


def constant(table: np.ndarray, dtype: Any) -> Array:
    return jnp.asarray(table, dtype)


def _weighted_moments(degree: int, tokens: Float[Array, "n 3"], weights: Float[Array, "c n"]) -> Array:
    """The moments for several sets of masses, (sets, orders, 2, degree + 1)."""
    even, odd, cosines, sines = waves(tokens, degree)
    sets, n = weights.shape
    half = orders(degree) // 2
    table = constant(legendre_fourier(degree), tokens.dtype)

    def project(phi, theta, constants):
        sums = matmul((weights[:, None] * phi[None]).reshape(-1, n), theta.T).reshape(sets, half, 2, -1)
        return exact("hmck,mlk->hmcl", sums, constants)

    parts = project(even, cosines, table[0::2]), project(odd, sines, table[1::2])
    return jnp.stack(parts, axis=2).reshape(sets, 2 * half, 2, degree + 1)


def rotated(moments: Array, degree: int) -> Array:
    """The derivatives of each moment as the tokens turn about each of the three axes, (3, ...) of (3, orders, 2, l)."""
    up, down, turn = (constant(table, moments.dtype) for table in rotation(degree))
    padded = jnp.pad(moments, ((0, 0), (1, 1), (0, 0), (0, 0)))
    after, before = padded[:, 2:], padded[:, :-2]
    sign = constant(_SIGN, moments.dtype)
    about_x = sign * (up * after[0, :, ::-1] + down * before[0, :, ::-1])
    about_y = down * before[1] - up * after[1]
    about_z = -sign * turn * moments[2, :, ::-1]
    return about_x + about_y + about_z


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def harmonic_moments(degree: int, tokens: Float[Array, "n 3"], masses: Float[Array, " n"]) -> Array:
    r"""$\sum_j m_j Y_{lm}(y_j)$ up to `degree`, (orders, 2, degree + 1).

    Derivatives with respect to tokens are tangential and made of the moments themselves, by rotations: angles never
    enter, so that the poles are points like any other.
    """
    return _weighted_moments(degree, tokens, masses[None])[0]


@harmonic_moments.defjvp
def _harmonic_moments_jvp(degree, primals, tangents):
    tokens, masses = primals
    tokens_dot, masses_dot = tangents
    turning = jnp.cross(tokens, tokens_dot).T * masses[None]
    sets = _weighted_moments(degree, tokens, jnp.concatenate([masses_dot[None], turning]))
    return harmonic_moments(degree, tokens, masses), sets[0] + rotated(sets[1:], degree)


def times_coordinates(moments: Array) -> Array:
    """The moments of x, y and z times the mass, (3, orders, 2, degree), of those of the mass up to `degree`."""
    degree = moments.shape[-1] - 1
    table = ladder(degree - 1)
    missing = moments.shape[0] - orders(degree - 1)

    def whole(part):
        return constant(np.pad(part, ((0, missing), (0, 0), (0, 0))), moments.dtype)

    higher_up, lower_up, higher_down, lower_down, higher, lower = map(whole, table)
    padded = jnp.pad(moments, ((1, 1), (0, 0), (1, 0)))
    after, before, same = padded[2:], padded[:-2], padded[1:-1]
    z = higher * same[:, :, 2:] + lower * same[:, :, :-2]

    def across(after, before):
        up = higher_up * after[:, :, 2:] + lower_up * after[:, :, :-2]
        return up, higher_down * before[:, :, 2:] + lower_down * before[:, :, :-2]

    up, down = across(after, before)
    up_other, down_other = across(after[:, ::-1], before[:, ::-1])
    return jnp.stack([up + down, constant(_SIGN, moments.dtype) * (up_other - down_other), z])
