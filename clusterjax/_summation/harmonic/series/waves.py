r"""Waves: the cosines and sines of the multiples of an angle. Harmonics are sums of products of waves.

**Algorithm.** An angle is the pair of its cosine and sine, taken from coordinates without trigonometric functions.
Multiples come from complex multiplication: one loop makes an even and an odd multiple per step. **Reference.** The
addition theorems, DLMF 4.21.2 and 4.21.3; error growth as `rounding.py` counts it. **Invariants.** The k-th multiple is
made by at most k complex products; at the poles, where an angle is undefined, it is zero and its derivative finite.
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
    """The angle of (x, y), zero where there is none, and its distance from the axis."""
    # Below this square the direction is not resolved; both branches of `where` have finite derivatives.
    least = float(jnp.finfo(x.dtype).tiny) ** 0.5
    square = x * x + y * y
    away = square > least
    distance = jnp.sqrt(jnp.where(away, square, 1))
    return (jnp.where(away, x / distance, 1), jnp.where(away, y / distance, 0)), jnp.where(away, distance, 0)


def inclination(x: Float[Array, " n"], y: Float[Array, " n"]) -> Angle:
    """The angle of (x, y) with y >= 0; zero for the zero vector."""
    return azimuth(x, y)[0]


def waves(azimuths: Sequence[Angle], polar: Angle, count: int) -> tuple[list[tuple[Array, Array]], Array, Array]:
    r"""Multiples below `count`, an even number, of some angles, each table (count, n).

    Of each angle in `azimuths` cosine and sine in turns, first of the even multiples, then of the odd ones; of `polar`
    the cosines, and the sines. They are built upwards, two multiples per step: none loses more than a few roundings.
    """

    def rotate(wave: Angle, by: Angle) -> Angle:
        return wave[0] * by[0] - wave[1] * by[1], wave[1] * by[0] + wave[0] * by[1]

    angles = (*azimuths, polar)
    # Two multiples per step halve the number of sequential steps of the scan.
    twice = [rotate(angle, angle) for angle in angles]

    def step(carry: Any, _: None) -> tuple[Any, Any]:
        even, odd = carry, [rotate(*pair) for pair in zip(carry, angles, strict=True)]
        out = [*zip(even[:-1], odd[:-1], strict=True), *zip(even[-1], odd[-1], strict=True)]
        # Of each azimuth a pair (even, odd) of pairs (cosine, sine), each stacked to (2, n); of the polar angle pairs
        # of (even, odd), one for the cosines and one for the sines.
        tables = [jnp.stack(wave) for pair in out[:-2] for wave in pair] + [jnp.stack(pair) for pair in out[-2:]]
        return [rotate(*pair) for pair in zip(carry, twice, strict=True)], tables

    start = [(jnp.ones_like(c), jnp.zeros_like(c)) for c, _ in angles]
    tables = lax.scan(step, start, None, length=count // 2)[1]
    # (count / 2, 2, n) to (count, n).
    tables = [table.reshape(count, -1) for table in tables]
    return list(zip(tables[:-2:2], tables[1:-2:2], strict=True)), tables[-2], tables[-1]


def add_up(terms: Float[Array, "functions waves n"]) -> Float[Array, "functions n"]:
    """The sum over waves. In float64 a product with ones: a CPU sums over an axis that is not the last much slower."""
    functions, count, n = terms.shape
    if terms.dtype.itemsize < 8:
        return jnp.sum(terms, axis=1)
    ones = jnp.asarray(np.kron(np.eye(functions), np.ones(count)), terms.dtype)
    return matmul(ones, terms.reshape(functions * count, n))
