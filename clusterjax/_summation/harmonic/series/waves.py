r"""Waves: the cosines and sines of the multiples of an angle. Harmonics are sums of products of waves.

**Algorithm.** An angle is the pair of its cosine and sine, computed from coordinates without trigonometric functions.
Complex multiplication gives the multiples: each step of a loop makes an even and an odd multiple. **Reference.** The
addition theorems, DLMF 4.21.2 and 4.21.3; `rounding.py` for the growth of errors. **Invariants.** At most k complex
products make the k-th multiple; at the poles, where an angle is undefined, it is zero and its derivative finite.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ...._misc import matmul


Angle = tuple[Float[Array, " n"], Float[Array, " n"]]
"""The cosine and the sine of an angle."""


def azimuth(x: Float[Array, " n"], y: Float[Array, " n"]) -> tuple[Angle, Float[Array, " n"]]:
    """The angle of (x, y), or zero where it is undefined, and the distance of (x, y) from the axis."""
    # Below this square, the direction is not resolved; both branches of `where` have finite derivatives.
    least = float(jnp.finfo(x.dtype).tiny) ** 0.5
    square = x * x + y * y
    away = square > least
    distance = jnp.sqrt(jnp.where(away, square, 1))
    return (jnp.where(away, x / distance, 1), jnp.where(away, y / distance, 0)), jnp.where(away, distance, 0)


def inclination(x: Float[Array, " n"], y: Float[Array, " n"]) -> Angle:
    """The angle of (x, y) with y >= 0; zero for the zero vector."""
    return azimuth(x, y)[0]


def waves(azimuths: Sequence[Angle], polar: Angle, count: int) -> tuple[list[tuple[Array, Array]], Array, Array]:
    r"""The multiples below `count`, an even number, of some angles, in tables (count, n).

    For each angle in `azimuths`, the tables alternate cosine and sine, first of the even, then of the odd
    multiples; for `polar`, they are cosines and sines. Each step makes two multiples and adds a few rounding errors.
    """

    def rotate(wave: Angle, by: Angle) -> Angle:
        return wave[0] * by[0] - wave[1] * by[1], wave[1] * by[0] + wave[0] * by[1]

    angles = (*azimuths, polar)
    # Two multiples per step halve the number of sequential steps of the scan.
    twice = [rotate(angle, angle) for angle in angles]

    def step(carry: Any, _: None) -> tuple[Any, Any]:
        even, odd = carry, [rotate(*pair) for pair in zip(carry, angles, strict=True)]
        out = [*zip(even[:-1], odd[:-1], strict=True), *zip(even[-1], odd[-1], strict=True)]
        # For each azimuth, a pair (even, odd) of pairs (cosine, sine), each stacked to (2, n); for the polar angle,
        # pairs of (even, odd), one for the cosines and one for the sines.
        tables = [jnp.stack(wave) for pair in out[:-2] for wave in pair] + [jnp.stack(pair) for pair in out[-2:]]
        return [rotate(*pair) for pair in zip(carry, twice, strict=True)], tables

    start = [(jnp.ones_like(c), jnp.zeros_like(c)) for c, _ in angles]
    tables = lax.scan(step, start, None, length=count // 2)[1]
    # The reshape is from (count / 2, 2, n) to (count, n).
    tables = [table.reshape(count, -1) for table in tables]
    return list(zip(tables[:-2:2], tables[1:-2:2], strict=True)), tables[-2], tables[-1]


def add_up(terms: Float[Array, "functions waves n"]) -> Float[Array, "functions n"]:
    """The sum over waves; in float64, a product with ones, since a CPU sums slowly over an axis other than the last."""
    functions, count, n = terms.shape
    if terms.dtype.itemsize < 8:
        return jnp.sum(terms, axis=1)
    ones = jnp.asarray(np.kron(np.eye(functions), np.ones(count)), terms.dtype)
    return matmul(ones, terms.reshape(functions * count, n))
