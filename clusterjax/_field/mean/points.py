"""Sums of harmonics over points, in chunks that fit in memory."""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._custom_types import Masses, Tokens
from ..._misc import einsum
from .basis import Basis, Coefficients


# The largest number of harmonics, over all points of a chunk, that are in memory at once.
_HELD = 2**22


@eqx.filter_jit
def values_at(basis: Basis, degree: int, c: Coefficients, points: Tokens) -> Float[Array, " n"]:
    """The density with respect to the uniform measure, at points."""
    one = lambda point: jnp.sum(basis.harmonics(degree, point[None])[0] * c)
    return lax.map(one, points, batch_size=max(1, _HELD // c.size))


@eqx.filter_jit
def means(basis: Basis, degree: int, x: Tokens, shares: Masses) -> Coefficients:
    """The sums of shares times harmonics, computed over chunks of tokens."""
    size = max(1, _HELD // ((degree + 1) * basis.columns(degree)))
    if len(x) <= size:
        return einsum("n,nrc->rc", shares, basis.harmonics(degree, x))
    count = -(-len(x) // size)
    # Padding points have no mass.
    rows = jnp.concatenate([x, jnp.broadcast_to(x[:1], (count * size - len(x), x.shape[1]))])
    parts = jnp.pad(shares, (0, count * size - len(x))).reshape(count, size)

    def add(total, chunk):
        return total + means(basis, degree, *chunk), None

    return lax.scan(
        add, jnp.zeros((degree + 1, basis.columns(degree)), x.dtype), (rows.reshape(count, size, -1), parts)
    )[0]
