r"""The sums of attention over a density: its mass and its mean token, weighted by $e^{\langle q(x), y\rangle}$.

**Algorithm.** With B = I the kernel $e^{\beta\langle x, y\rangle}$ is zonal, and the sum $Z$ of mass has the
coefficients $a_l(\beta)\,c_{lm}$ (Funk and Hecke). The sum of mass times token is $\int y\,e^{\beta\langle x,
y\rangle}d\mu = \nabla Z/\beta + x\,\partial_\beta Z$. Its coefficients are computed from $a_l/\beta = (a_{l-1} -
a_{l+1})/(2l + d - 2)$ and $a_l' = (l\,a_{l-1} + (l + d - 2)\,a_{l+1})/(2l + d - 2)$, which are also finite at beta = 0.
For another B the sums are products with the kernel at all pairs of grid points, in blocks of rows.

**Reference.** Funk-Hecke theorem; DLMF 10.29.1 for the two recurrences. **Invariants.** Sums are scaled by
$e^{-\text{shift}}$, where the shift is the largest score of unit vectors, so that nothing overflows.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._custom_types import Scalar, Tokens
from ..._misc import einsum, matmul
from ..._summation.harmonic.series.bessel import scaled_bessel
from .basis import Basis


# The number of additional degrees of the Bessel functions, after which the start of their recurrence has no influence.
_MARGIN = 16
# The number of values of the kernel that are in memory at once.
_HELD = 2**22


class Sums(NamedTuple):
    """The sums on the grid: mass, (M,), and mass times token, (M, d), both times e^-shift."""

    mass: Float[Array, " M"]
    tokens: Tokens
    shift: Scalar


class Coefficients(NamedTuple):
    """The coefficients of the kernel times e^-|beta|, by degree: a_l, a_l / beta and the derivative of a_l by beta."""

    plain: Float[Array, " degrees"]
    quotient: Float[Array, " degrees"]
    derivative: Float[Array, " degrees"]


def coefficients(beta: Scalar, degree: int, d: int) -> Coefficients:
    """The coefficients of the zonal kernel $e^{\\beta t}$ up to `degree`."""
    # a_l(-beta) = (-1)^l a_l(beta); the quotient and the derivative have the opposite sign.
    all_of = scaled_bessel(jnp.abs(beta), degree + _MARGIN, d)[: degree + 2]
    l = jnp.arange(degree + 1).astype(beta.dtype)
    odd = jnp.where((jnp.arange(degree + 1) % 2 == 1) & (beta < 0), -1, 1).astype(beta.dtype)
    even = jnp.where(beta < 0, -odd, odd)
    twice = jnp.where(l > 0, 2 * l + (d - 2), 1)
    before = jnp.concatenate([all_of[:1], all_of[:-2]])
    after = all_of[1:]
    quotient = jnp.where(l > 0, (before - after) / twice, 0)
    derivative = jnp.where(l > 0, (l * before + (l + (d - 2)) * after) / twice, after)
    return Coefficients(odd * all_of[:-1], even * quotient, even * derivative)


def zonal_sums(basis: Basis, degree: int, c: Array, beta: Scalar) -> Sums:
    """The sums for the queries beta x at all points x of the grid."""
    grid = basis.grid(degree)
    points, frame = jnp.asarray(grid.points, c.dtype), jnp.asarray(grid.frame, c.dtype)
    of = coefficients(beta, degree, points.shape[1])
    along = basis.values(degree, of.derivative[:, None] * c)
    gradients = basis.gradients(degree, of.quotient[:, None] * c)
    tokens = einsum("fm,fmd->md", gradients, frame) + along[:, None] * points
    return Sums(basis.values(degree, of.plain[:, None] * c), tokens, jnp.abs(beta))


def pair_sums(basis: Basis, degree: int, c: Array, queries: Tokens, shift: Scalar) -> Sums:
    """The sums for queries at all points of the grid, from the kernel at all pairs of points."""
    grid = basis.grid(degree)
    points = jnp.asarray(grid.points, c.dtype)
    masses = basis.values(degree, c) * jnp.asarray(grid.weights, c.dtype)
    columns = jnp.concatenate([masses[:, None], masses[:, None] * points], axis=1)
    count = points.shape[0]

    def of_rows(rows: Tokens) -> Array:
        return matmul(jnp.exp(matmul(rows, points.T) - shift), columns)

    if count * count <= _HELD:
        sums = of_rows(queries)
    else:
        sums = lax.map(lambda row: of_rows(row[None])[0], queries, batch_size=max(_HELD // count, 1))
    return Sums(sums[:, 0], sums[:, 1:], shift)
