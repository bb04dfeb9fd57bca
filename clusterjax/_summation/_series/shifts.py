r"""Multiplication with a coordinate, as a shift of the indices of harmonics.

A harmonic times a coordinate is a sum of harmonics of one degree more and one degree less, and so are its derivatives
along the sphere: with $y_a Y_l = h_a + b_a$, of degrees l + 1 and l - 1, the gradient of $Y_l$ along the sphere has the
components $(l + d - 2)\, b_a - l\, h_a$ (Source: this library; $b_a$ is $\partial_a$ of the solid harmonic, divided
by 2 l + d - 2).
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class Shift(NamedTuple):
    """What multiplies the neighbours of a harmonic, by degree in the last axis.

    **Arguments:**

    - `higher`: For the neighbour of one degree more.
    - `lower`: For the neighbour of one degree less.
    """

    higher: np.ndarray
    lower: np.ndarray


class Turn(NamedTuple):
    r"""The shifts of multiplication with $\rho\cos\phi$ and $\rho\sin\phi$, for functions of $m\phi$.

    **Arguments:**

    - `up`: For the neighbours m + 1; m along the first axis, then cosine or sine.
    - `down`: For the neighbours m - 1.
    """

    up: Shift
    down: Shift


def as_turn(up: Shift, down: Shift) -> Turn:
    r"""A `Turn` of what holds for $e^{im\phi}$: tables with m along the first axis, and no axis of cosine and sine.

    Cosine and sine are normalised, with a factor of $\sqrt 2$ for m > 0. A cosine with m = 0 has twice the neighbour
    m + 1 and no other; its sine is zero.
    """

    def parts(table: np.ndarray) -> np.ndarray:
        return np.repeat(table[:, None] / 2, 2, axis=1)

    ups, downs = Shift(*map(parts, up)), Shift(*map(parts, down))
    for table in ups:
        table[0, 0] *= np.sqrt(2)
        table[0, 1] = 0
    for table in downs:
        table[0] = 0
        table[1] *= np.sqrt(2)
    return Turn(ups, downs)


def as_gradient(shift: Shift, d: int) -> Shift:
    """The shifts of the derivative along the sphere in R^d, of those of multiplication."""
    degrees = np.arange(shift.higher.shape[-1])
    return Shift(-degrees * shift.higher, (degrees + d - 2) * shift.lower)


def shifted(moments: Array, shift: Shift) -> Array:
    """Multiplication that changes the degree alone; what would come from beyond the highest degree is left out."""
    padded = jnp.pad(moments, ((0, 0),) * (moments.ndim - 1) + ((1, 1),))
    higher, lower = (jnp.asarray(table, moments.dtype) for table in shift)
    return higher * padded[..., 2:] + lower * padded[..., :-2]


def turned(moments: Array, turn: Turn) -> tuple[Array, Array]:
    r"""Multiplication with $\rho\cos\phi$ and $\rho\sin\phi$; `moments` by m, then cosine or sine, then whatever."""
    padded = jnp.pad(moments, ((1, 1),) + ((0, 0),) * (moments.ndim - 1))
    after, before = padded[2:], padded[:-2]
    by_cosine = shifted(after, turn.up) + shifted(before, turn.down)
    by_sine = shifted(after[:, ::-1], turn.up) - shifted(before[:, ::-1], turn.down)
    sign = jnp.asarray([1, -1], moments.dtype).reshape((2,) + (1,) * (moments.ndim - 2))
    return by_cosine, sign[None] * by_sine
