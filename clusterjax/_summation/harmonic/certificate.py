r"""Error bounds of the sums of a series, row by row, and the rows for which they are within the tolerance.

A running error analysis in the standard model of floating-point arithmetic (Higham, *Accuracy and stability of
numerical algorithms*, sections 2.2, 3.1 and 4.2): worst cases, no statistics. `make_rounding` has what is known at
compile time, `relative_error` what depends on queries and tokens, `certified_error` puts them together.

**What is certified.** Row i has the sum $Z = \sum_j m_j e^{\langle q, y_j\rangle - |q|}$ of masses, and for each column
of the values v the sum $N = \sum_j m_j v_j e^{\langle q, y_j\rangle - |q|}$. A row is certified if, of each column,

- the average N / Z errs by at most `tolerance` times the largest |v_j| of that column, over all tokens that have mass;
- Z errs by at most `tolerance` Z and N by `tolerance` Z times that largest |v_j|.

So log Z errs by the tolerance, and the unnormalised sums by it relative to their kernel. Values of None are the tokens
themselves, each coordinate of which is measured against 1, their length. The reference are the sums of the queries and
tokens as they are given, in exact arithmetic.

**Algorithm.** u is half the distance from 1 to the next number, W the mass that a row attends to, and $\kappa = |q|$.
The errors are of two kinds. The first are absolute: those of the terms of a series, which are as large as W even where
their sum Z is small; their bound is E. They do not average out: equal tokens round in the same way, however many
there are. With `POWER` and the counts of `series/rounding.py`,

1. *Moments.* The features of a token are off by f units at any degree, and by g for each degree; so many degrees are
   $\lambda = \sqrt{(d - 1)\kappa}$ on average, by the coefficients of the kernel (its Laplacian at its maximum is
   $-(d - 1)\kappa$). A feature goes through at most s additions: those of its block (where all masses are equal, on
   average at most half of a block and one, in whatever order), those of blocks in pairs, one for each further device,
   and four for the compensated sum over chunks (one for the chunk, three for the carried correction), whose error over
   K chunks is of second order, $K^2 u$. A feature that is off by $\epsilon$ changes the sum by at most $\epsilon$
   times the absolute sum of the Fourier coefficients of $e^{\kappa(t - 1)}$ in the angles of y. That is 1 on the
   circle, times $\sqrt 2$ since a product has a cosine and a sine, and below $\sqrt 2$ on the spheres (1.40 and 1.38
   were computed). So $u\,(\sqrt 2\,(f + s) + g\lambda)\,W$.
2. *Coefficients and evaluation.* Here the moments are known, and each degree errs in proportion to the length of its
   moments: close to zero for uniform tokens, whose moments of higher degree cancel, and $\sqrt{N_l}\,W$ for equal ones.
   This is `AbstractSeries.rounding`.
3. *Truncation.* The degree is chosen such that the tail of the kernel is at most `truncation_share`: times W.
4. *Underflow*, in the series and in the sums of pairs: the least normal number for each of n tokens and of the terms,
   times the mass where that is more than one.

The second are relative to each term, and so to Z: `relative_error`.

5. *Angles.* Tokens are normalised, directions and lengths of queries rounded, and angles made of them: `ANGLES` units,
   each of which changes a score by $\kappa u$. Tokens off the unit sphere, lengths that differ from the one that a
   series is made for: by what they were measured to be.
6. *Pairs within a chunk* (causal): scores, exponentials, and a sum of positive terms in any order.

An average is off by $|N - N_*| / Z + |N_* / Z_*|\,|Z - Z_*| / Z$, with the computed Z in the denominators. So both
kinds count twice, the first once for the sum of masses and once for the column that is worst: the row is certified if
$E_Z + \max_v E_v / \max_j |v_j| + 2 R Z \le$ `tolerance` Z.

**Invariants.** A row with a NaN is not certified, nor one whose Z is not positive, or small against E. A row that
attends to no mass is exact: its sums are zero. W, the tokens' distance from the sphere and the largest values are taken
over all devices.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._custom_types import Scalar
from .series.base import AbstractSeries
from .series.rounding import pairwise_depth


# By dimension: the error of the computed angle between a query and a token, in units: normalising both, the sines and
# cosines of their angles, and products of these; rounded up to a power of two.
ANGLES = {2: 8.0, 3: 16.0, 4: 16.0}


def unit_of(dtype: Any) -> float:
    """The unit roundoff u of a dtype: the largest relative error of one operation."""
    return float(jnp.finfo(dtype).eps) / 2


class Rounding(NamedTuple):
    """The part of the bound that is known at compile time: how moments are summed, and where the series is truncated.

    **Arguments:**

    - `units`, `growth`: The errors of the moments relative to W, in units of the roundoff: at every degree, and in
        addition per degree.
    - `tail`: The truncation error of the kernel.
    - `underflow`: A bound of all that underflows, for masses of at most one.
    - `d`: The dimension.
    """

    units: float
    growth: float
    tail: float
    underflow: float
    d: int

    def error(self, lengths: Float[Array, " n"], mass: Scalar, evaluation: Float[Array, " n"]) -> Float[Array, " n"]:
        """E of each row, (n,): `mass` is W, `evaluation` the rounding error of what follows the moments, in units."""
        moments = (self.units + self.growth * jnp.sqrt((self.d - 1) * lengths)) * mass
        # One per cent more for terms of second order and for the rounding of this bound itself.
        error = 1.01 * (unit_of(lengths.dtype) * (moments + evaluation) + self.tail * mass)
        return jnp.where(mass > 0, error + self.underflow * (1 + mass), error)


def make_rounding(
    series: AbstractSeries, size: int, n: int, d: int, dtype: Any, tail: float, equal: bool, devices: int
) -> Rounding:
    """The `Rounding` for chunks of `size` of the n tokens of each device.

    `equal` says that all masses are one and there are no values.
    """
    chunks = -(-n // size)
    # The number of additions that a term goes through: within a block, over blocks, chunks and devices.
    depth = series.block / 2 + 1 if equal else series.block + 1
    depth = depth + pairwise_depth(size // series.block) + 1 + 3 + chunks**2 * unit_of(dtype) + (devices - 1)
    # That is: pairwise over the blocks of a chunk, their last addition, the compensated sum over chunks, the devices.
    features, growth = series.token_rounding()
    # 10,000 is more than the number of harmonics up to the highest degree of any series.
    underflow = 4 * (n * devices + 10_000) * float(jnp.finfo(dtype).tiny)
    return Rounding(math.sqrt(2) * (features + depth), growth, tail, underflow, d)


def relative_error(
    lengths: Float[Array, " n"], length_error: Float[Array, " n"], norm_error: Scalar, d: int, pairs: int
) -> Float[Array, " n"]:
    """R of each row, (n,): a bound of the error of each term relative to that term.

    **Arguments:**

    - `lengths`: (n,), of the queries.
    - `length_error`: (n,), the difference between the length of a query and the one that its series is made for.
    - `norm_error`: The largest | |y|^2 - 1 | of a token.
    - `pairs`: The number of tokens of a chunk, which are summed pair by pair; zero for full sums.
    """
    unit = unit_of(lengths.dtype)
    # Of a pair: a score of d products, the shift, an exponential, and the sum over the chunk.
    within = unit * ((d + 4) * lengths + pairs + 8) if pairs else 0.0
    return 1.01 * (
        length_error + lengths * (norm_error / 2 + (ANGLES[d] + 2) * unit) + within + norm_error / 2 + 4 * unit
    )


def certified_error(
    sums: Float[Array, "n k"], error: Float[Array, " n"], relative: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Of each row, (n,), the least tolerance at which it is certified; infinite if it is at none.

    **Arguments:**

    - `sums`: (n, k), scaled by $e^{-|q|}$; the first column is Z.
    - `error`: (n,), the error of the first kind of an average, times Z.
    - `relative`: (n,), R.
    """
    sums, error, relative = lax.stop_gradient((sums, error, relative))
    normaliser = sums[:, 0]
    # Both kinds twice, as derived above: `error` already is the sum of two.
    bound = error / jnp.where(normaliser > 0, normaliser, 1) + 2 * relative
    no_mass = (normaliser == 0) & (error == 0)
    # NaN fails both comparisons.
    valid = jnp.all(jnp.isfinite(sums), axis=1) & (normaliser > 0) & (bound < jnp.inf)
    return jnp.where(no_mass, 0, jnp.where(valid, bound, jnp.inf))


def truncation_share(dtype: Any, tolerance: float) -> float:
    """The truncation error of the kernel that a series is allowed, relative to e^|q|.

    It is far below the tolerance, since relative to a small Z it counts as W / Z times as much.
    """
    # In float32 a larger share would be no gain: the unit roundoff is the larger of the two there.
    share = 1e-5 if jnp.dtype(dtype).itemsize == 4 else 1e-4
    return max(unit_of(dtype), tolerance * share)
