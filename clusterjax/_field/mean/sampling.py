r"""Independent tokens from a density: each coordinate is drawn by bisection of its distribution function.

**Algorithm.** On the sphere $z = \cos\theta$ is drawn first. Its density is the sum over l of the coefficients of m = 0
times Legendre polynomials, with integrals $\int P_l = (P_{l+1} - P_{l-1})/(2l + 1)$. The angle is drawn next; its
density for given z is a Fourier series, as on the circle. **Invariant.** Where a truncated density is negative the
distribution function decreases, and bisection finds one of the angles with the given value: few tokens are drawn there.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._custom_types import Tokens
from .basis import Basis


# The largest number of numbers in memory for the tokens that are drawn at once.
_HELD = 2**22
_HALVINGS = 60


@eqx.filter_jit
def draw(basis: Basis, degree: int, c: Array, key: PRNGKeyArray, n: int) -> Tokens:
    """`n` independent tokens of the density with coefficients `c`."""
    on_circle = basis.columns(degree) == 2
    shares = jr.uniform(key, (n, 1 if on_circle else 2), c.dtype)
    one = (lambda u: _on_circle(c, u[0])) if on_circle else (lambda u: _on_sphere(basis, degree, c, u))
    return lax.map(one, shares, batch_size=max(1, _HELD // (degree + 1) ** (1 if on_circle else 2)))


def _bisect(function, value: Array, low: Array, high: Array) -> Array:
    """The argument at which an increasing function has the given value."""

    def halve(_, ends):
        middle = (ends[0] + ends[1]) / 2
        below = function(middle) < value
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    low, high = lax.fori_loop(0, _HALVINGS, halve, (low, high))
    return (low + high) / 2


def _on_circle(pairs: Float[Array, "k two"], share: Array) -> Array:
    """A point of the circle, (2,), from coefficients of cosines and sines: `share` of the mass precedes it."""
    k = jnp.arange(1, pairs.shape[0]).astype(pairs.dtype)
    scaled = jnp.sqrt(jnp.asarray(2, pairs.dtype)) * pairs[1:] / k[:, None]
    turn = jnp.asarray(2 * jnp.pi, pairs.dtype)

    def before(angle):
        waves = scaled[:, 0] * jnp.sin(k * angle) + scaled[:, 1] * (1 - jnp.cos(k * angle))
        return (pairs[0, 0] * angle + jnp.sum(waves)) / turn

    angle = _bisect(before, share * pairs[0, 0], jnp.zeros_like(turn), turn)
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def _on_sphere(basis: Basis, degree: int, c: Array, shares: Float[Array, " two"]) -> Array:
    zonal = c[:, 0] * jnp.sqrt(2 * jnp.arange(degree + 1) + 1).astype(c.dtype)

    def below(z):
        """The mass south of z: half the sum of the integrals of Legendre polynomials."""

        def step(carry, l):
            last, before = carry
            found = ((2 * l + 1) * z * last - l * before) / (l + 1)
            return (found, last), found

        degrees = jnp.arange(degree + 1).astype(c.dtype)
        above = lax.scan(step, (jnp.ones_like(z), jnp.zeros_like(z)), degrees)[1]
        all_of = jnp.concatenate([jnp.ones_like(z)[None], above])
        integrals = (all_of[2:] - all_of[:-2]) / (2 * degrees[1:] + 1)
        return (zonal[0] * (z + 1) + jnp.sum(zonal[1:] * integrals)) / 2

    one = jnp.ones_like(shares[0])
    z = _bisect(below, shares[0] * c[0, 0], -one, one)
    sine = jnp.sqrt(jnp.maximum(1 - z * z, 0))
    # At azimuth zero all cosines are one, so that the harmonics are the Legendre functions of each order.
    legendre = basis.harmonics(degree, jnp.stack([sine, 0 * z, z])[None])[0].reshape(degree + 1, degree + 1, 2)[..., 0]
    pairs = jnp.sum(legendre[..., None] * c.reshape(degree + 1, degree + 1, 2), axis=0)
    # The series of cosines and sines omits the factor sqrt(2) of the harmonics of the circle.
    pairs = jnp.concatenate([pairs[:1], pairs[1:] / jnp.sqrt(jnp.asarray(2, c.dtype))])
    cosine, sine_of = _on_circle(pairs, shares[1])
    return jnp.stack([sine * cosine, sine * sine_of, z])
