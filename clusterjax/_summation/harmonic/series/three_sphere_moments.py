r"""Moments of tokens on the sphere in four dimensions, by waves in its three angles, and their harmonics.

**Algorithm.** As in `sphere_moments.py`, matrix products sum products of waves, a table converts waves to harmonics,
and shifts multiply by coordinates and differentiate. **Reference.** `three_sphere_tables.py`.

**Invariants.** Moments are (orders, 2, orders, 2, orders / 2): by m, cosine or sine of $m\phi$, p, cosine or sine of
$p\psi$, and k // 2, for cosines of $k\eta$ if p is even, and sines if p is odd; k has the parity of m + p.
Harmonics are (orders, 2, orders, 2, orders), by the degree in place of k.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...._misc import einsum, matmul
from .shifts import OrderShift, shift_order
from .sphere_tables import orders
from .three_sphere_tables import fourier_of_harmonics, gradient, jacobi_fourier
from .waves import Angle, azimuth, inclination, waves


def empty_moments(degree: int, dtype: Any) -> Array:
    """The moments of no tokens."""
    count = orders(degree)
    return jnp.zeros((count, 2, count, 2, count // 2), dtype)


def three_sphere_waves(vectors: Float[Array, "n 4"], degree: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    r"""Waves of even and of odd $m\phi$, and, for each parity, all products of waves in the other two angles.

    The products are (2 orders^2 / 2, n): for even p, then odd p, by p, cosine or sine, and k // 2.
    """
    (phi, psi), eta = _angles(vectors)
    (by_phi, by_psi), cosines, sines = waves([phi, psi], eta, orders(degree))

    def products(parity):
        # The parity of k is that of m + p: for even p the parity of m, for odd p the other parity.
        both = [by_psi[0][:, None] * cosines[parity::2][None], by_psi[1][:, None] * sines[1 - parity :: 2][None]]
        return jnp.concatenate(both).reshape(-1, vectors.shape[0])

    return by_phi, (products(0), products(1))


def _angles(vectors: Float[Array, "n 4"]) -> tuple[tuple[Angle, Angle], Angle]:
    """The angles phi and psi, and the angle eta."""
    phi, near = azimuth(vectors[:, 0], vectors[:, 1])
    psi, far = azimuth(vectors[:, 2], vectors[:, 3])
    return (phi, psi), inclination(near, far)


def azimuth_waves(vectors: Float[Array, "n 4"], degree: int) -> tuple[Array, Array, Angle]:
    r"""Cosine and sine of $m\phi$ and of $p\psi$, each (orders, 2, n), and $\eta$."""
    (phi, psi), eta = _angles(vectors)
    tables = waves([phi, psi], eta, orders(degree))[0]
    half, n = orders(degree) // 2, vectors.shape[0]
    # The tables of even and of odd orders, (half, 2, n) each, are interleaved.
    by_phi, by_psi = (jnp.stack([part.reshape(half, 2, n) for part in pair], axis=1) for pair in tables)
    return by_phi.reshape(2 * half, 2, n), by_psi.reshape(2 * half, 2, n), eta


def by_parity(parts: Array) -> Array:
    """Split each order of (..., orders, 2, orders, 2, last) into half and parity, and move the parities to the front.

    The result is (2, 2, ..., halves, 2, halves, 2, last): parity of m, parity of p, then the leading axes of `parts`.
    """
    *front, count, _, _, _, last = parts.shape
    split = parts.reshape(*front, count // 2, 2, 2, count // 2, 2, 2, last)
    k = len(front)
    return jnp.moveaxis(split, (k + 1, k + 4), (0, 1))


def _weighted_moments(degree: int, tokens: Float[Array, "n 4"], weights: Float[Array, "c n"]) -> Array:
    """The moments for several sets of masses."""
    by_phi, products = three_sphere_waves(tokens, degree)
    sets, n = weights.shape
    half = orders(degree) // 2
    sums = [
        # The product is (sets * 2 half, n) times (n, products of the other two waves).
        matmul((weights[:, None] * wave[None]).reshape(-1, n), product.T).reshape(sets, half, 2, 2, half, 2, half)
        for wave, product in zip(by_phi, products, strict=True)
    ]
    # The axes are set, m // 2, parity of m, cosine or sine, parity of p, p // 2, cosine or sine, k // 2.
    joined = jnp.moveaxis(jnp.stack(sums, axis=2), 4, 5)
    return joined.reshape(sets, 2 * half, 2, 2 * half, 2, half)


def _odd(count: int) -> np.ndarray:
    """True where m + p is odd, (count, 1, count, 1, 1)."""
    return (np.sum(np.indices((count, count)), axis=0) % 2 == 1)[:, None, :, None, None]


def harmonics(degree: int, moments: Array) -> Array:
    """The harmonics up to `degree` of moments with equally many orders."""
    table = jnp.asarray(jacobi_fourier(degree), moments.dtype)
    return by_degree(einsum("mcpdk,mplk->mcpdl", moments, table))


def by_degree(halves: Array) -> Array:
    """Expand an axis by l // 2 to the degree l; zero where the parity of l is not that of m + p."""
    odd = jnp.asarray(_odd(halves.shape[-5]))
    pairs = jnp.stack([jnp.where(odd, 0, halves), jnp.where(odd, halves, 0)], axis=-1)
    return pairs.reshape(*halves.shape[:-1], -1)


def by_half_degree(parts: Array) -> Array:
    """Reduce an axis by the degree l to l // 2."""
    return jnp.where(jnp.asarray(_odd(parts.shape[-5])), parts[..., 1::2], parts[..., 0::2])


def times_coordinates(parts: Array, tables: tuple[OrderShift, OrderShift]) -> Array:
    """The harmonics times each of the four coordinates or, with the tables of `gradient`, their derivatives."""
    # The last two coordinates act on psi: p and m are exchanged before and after the shift.
    swapped = shift_order(parts.transpose(2, 3, 0, 1, 4), tables[1])
    return jnp.stack([*shift_order(parts, tables[0]), *(part.transpose(2, 3, 0, 1, 4) for part in swapped)])


def _token_derivatives(degree: int, sets: Float[Array, "4 m 2 p 2 k"]) -> Array:
    """Moments whose harmonics are the sum of the derivatives in each coordinate of the harmonics of four sets.

    The sets are of one degree more, as in `sphere_moments.py`.
    """
    count = orders(degree)
    divergence = jnp.zeros_like(harmonics(degree + 1, sets[0]))
    for a, part in enumerate(sets):
        divergence = divergence + times_coordinates(harmonics(degree + 1, part), gradient(degree + 1))[a]
    # Terms beyond the degree are not derivatives of harmonics in the moments.
    divergence = jnp.where(jnp.arange(count) <= degree, divergence[:count, :, :count, :, :count], 0)
    table = jnp.asarray(fourier_of_harmonics(degree), sets.dtype)
    return einsum("mcpdl,mpkl->mcpdk", by_half_degree(divergence), table)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def three_sphere_moments(degree: int, tokens: Float[Array, "n 4"], masses: Float[Array, " n"]) -> Array:
    """The moments of tokens with these masses that have harmonics up to `degree`.

    Derivatives with respect to tokens are tangential sums of the same form. Angles are never differentiated, so that
    no point needs special treatment.
    """
    return _weighted_moments(degree, tokens, masses[None])[0]


@three_sphere_moments.defjvp
def _three_sphere_moments_jvp(degree, primals, tangents):
    tokens, masses = primals
    tokens_dot, masses_dot = tangents
    derivatives = _token_derivatives(degree, _weighted_moments(degree + 1, tokens, tokens_dot.T * masses[None]))
    return three_sphere_moments(degree, tokens, masses), three_sphere_moments(degree, tokens, masses_dot) + derivatives
