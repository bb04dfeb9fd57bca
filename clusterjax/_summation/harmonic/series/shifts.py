r"""Multiplication of harmonics by a coordinate, as a shift of their indices.

**Algorithm.** A harmonic of degree l times a coordinate is a sum of harmonics of degrees l + 1 and l - 1. Their order
is m for the coordinate along the polar axis, and m + 1 and m - 1 for the two coordinates across it. The derivative
along the sphere has this form too: with $y_a Y_l = h_a + b_a$, of degrees l + 1 and l - 1, the gradient of $Y_l$ along
the sphere has the components $(l + d - 2)\, b_a - l\, h_a$ ($b_a$ is $\partial_a$ of the solid harmonic, divided by
2 l + d - 2).

**Reference.** The recurrences of Legendre functions, DLMF 14.10. **Invariant.** Results are correct up to one degree
less than the input: the tables drop the neighbour beyond the highest degree.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class DegreeShift(NamedTuple):
    """The factors of the harmonics of neighbouring degree, with the degree of the result in the last axis.

    **Arguments:**

    - `higher`: The factors for the neighbour of degree l + 1.
    - `lower`: The factors for the neighbour of degree l - 1.
    """

    higher: np.ndarray
    lower: np.ndarray


class OrderShift(NamedTuple):
    r"""The shifts of multiplication by $\rho\cos\phi$ and $\rho\sin\phi$, for functions of $m\phi$.

    Both products have equal factors: cos and sin of phi times a wave of m phi are half the sum and half the difference
    of waves of (m + 1) phi and (m - 1) phi.

    **Arguments:**

    - `up`: The shifts for the neighbours m + 1; m along the first axis, then cosine or sine.
    - `down`: The shifts for the neighbours m - 1.
    """

    up: DegreeShift
    down: DegreeShift


def order_shift(up: DegreeShift, down: DegreeShift) -> OrderShift:
    r"""An `OrderShift` from tables for $e^{im\phi}$ with m along the first axis, without an axis of cosine and sine.

    Cosine and sine are normalised, with a factor of $\sqrt 2$ for m > 0. A cosine with m = 0 has twice the neighbour
    m + 1 and no other; its sine is zero.
    """

    def parts(table: np.ndarray) -> np.ndarray:
        return np.repeat(table[:, None] / 2, 2, axis=1)

    ups, downs = DegreeShift(*map(parts, up)), DegreeShift(*map(parts, down))
    for table in ups:
        # The neighbour m = 1 counts twice, divided by the sqrt(2) of its normalisation.
        table[0, 0] *= np.sqrt(2)
        table[0, 1] = 0
    for table in downs:
        # Order -1 is order 1, which `ups` includes.
        table[0] = 0
        # The neighbour m = 0 is normalised without sqrt(2).
        table[1] *= np.sqrt(2)
    return OrderShift(ups, downs)


def gradient_shift(shift: DegreeShift, d: int) -> DegreeShift:
    """The shifts of the derivative along the sphere in R^d, from the shifts of multiplication."""
    degrees = np.arange(shift.higher.shape[-1])
    return DegreeShift(-degrees * shift.higher, (degrees + d - 2) * shift.lower)


def shift_degree(moments: Array, shift: DegreeShift) -> Array:
    """A multiplication that changes only the degree; contributions from beyond the highest degree are left out."""
    # With padding by one on either side, index l + 1 is degree l: [2:] are the higher neighbours, [:-2] the lower.
    padded = jnp.pad(moments, ((0, 0),) * (moments.ndim - 1) + ((1, 1),))
    higher, lower = (jnp.asarray(table, moments.dtype) for table in shift)
    return higher * padded[..., 2:] + lower * padded[..., :-2]


def shift_order(moments: Array, turn: OrderShift) -> tuple[Array, Array]:
    r"""Multiplication by $\rho\cos\phi$ and $\rho\sin\phi$; axes of `moments`: m, cosine or sine, any others, l."""
    padded = jnp.pad(moments, ((1, 1),) + ((0, 0),) * (moments.ndim - 1))
    after, before = padded[2:], padded[:-2]
    by_cosine = shift_degree(after, turn.up) + shift_degree(before, turn.down)
    # sin(phi) exchanges cosines and sines, hence the reversed second axis: sin a cos b and cos a sin b.
    by_sine = shift_degree(after[:, ::-1], turn.up) - shift_degree(before[:, ::-1], turn.down)
    sign = jnp.asarray([1, -1], moments.dtype).reshape((2,) + (1,) * (moments.ndim - 2))
    return by_cosine, sign[None] * by_sine
