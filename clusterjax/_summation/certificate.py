r"""How far the sums of a series may be off, and for which rows that is little enough.

**What is certified.** Row i has the sum $Z = \sum_j m_j e^{\langle q, y_j\rangle - |q|}$ of masses, and for each column
of the values v the sum $N = \sum_j m_j v_j e^{\langle q, y_j\rangle - |q|}$. A row is certified if, of each column,

- the average N / Z errs by at most `tolerance` times the largest |v_j| of that column, over all tokens that have mass;
- Z errs by at most `tolerance` Z and N by `tolerance` Z times that largest |v_j|.

So log Z errs by the tolerance, and the unnormalised sums by it relative to their kernel. Values of None are the tokens
themselves, each coordinate of which is measured against 1, their length. The reference are the sums of the queries and
tokens as they are given, in exact arithmetic.

**Algorithm.** u is half the distance from 1 to the next number, W the mass that a row attends to, and $\kappa = |q|$.
The errors are of two kinds. The first are those of the terms of a series, which are as large as W, whatever their
sum: E, relative to no Z. They are worst cases: tokens of a heap all round in the same way, and nothing is gained from
how many there are. With `POWER` and the counts of `_series/rounding.py`,

1. *Moments.* The features of a token are off by f units at any degree, and by g for each degree; so many degrees are
   $\lambda = \sqrt{(d - 1)\kappa}$ on average, by the coefficients of the kernel (its Laplacian at its maximum is
   $-(d - 1)\kappa$). Their sum goes through no more than s sums: those of a block (half a block and one, where
   all masses are equal: no order of summing has a larger mean depth), sums of blocks in pairs, one addition for each
   further device, and three more for what carries the chunks: there what is rounded away is added up beside the sum,
   and only that sum of K small numbers rounds, by K^2 u. An error of each feature, relative to 1, becomes one of the
   sum through the absolute sum of the Fourier coefficients of $e^{\kappa(t - 1)}$ in the angles of y. It is 1 on the
   circle, with cosine and sine of it a factor of $\sqrt 2$ in the products, and below $\sqrt 2$ on the spheres (1.40
   and 1.38 were computed). So $u\,(\sqrt 2\,(f + s) + g\lambda)\,W$.
2. *Coefficients and evaluation.* Here the moments are known, and each degree errs in proportion to the length of its
   moments: next to nothing for uniform tokens, whose moments of higher degree cancel, and $\sqrt{N_l}\,W$ for a heap.
   This is `AbstractSeries.rounding`.
3. *Truncation.* The degree is chosen such that the tail of the kernel is at most `truncation_share`: times W.
4. *Numbers too small for the dtype* are lost, in the series and in the sums of pairs: the least normal number for each
   of n tokens and of the terms, times the mass where that is more than one.

The second are relative to each term, and so to Z: `relative_error`.

5. *Angles.* Tokens are normalised, directions and lengths of queries rounded, and angles made of them: `ANGLES` units,
   each of which changes a score by $\kappa u$. Tokens off the unit sphere, lengths that differ from the one that a
   series is made for: by what they were measured to be.
6. *Pairs within a chunk* (causal): scores, exponentials, and a sum of positive terms in any order.

An average is off by $|N - N_*| / Z + |N_* / Z_*|\,|Z - Z_*| / Z$, with the computed Z in the denominators. So both
kinds count twice, the first once for the sum of masses and once for the column that is worst: the row is certified if
$E_Z + \max_v E_v / \max_j |v_j| + 2 R Z \le$ `tolerance` Z.

**Invariants.** Whatever is not a number is refused, and so is a sum that is negative or lost in E. A row that attends
to no mass is right as it is. W, the tokens' distance from the sphere, the largest values are those of all devices.

Source: this library; the rules for sums and products are those of Higham, *Accuracy and stability of numerical
algorithms*, sections 3.1 and 4.2.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._custom_types import Scalar
from ._series.rounding import steps
from ._series.series import AbstractSeries


# How far the angle between a query and a token may be off, in units: by dimension.
ANGLES = {2: 8.0, 3: 16.0, 4: 16.0}


def unit_of(dtype: Any) -> float:
    """The rounding unit: no operation errs by more, relative to its result."""
    return float(jnp.finfo(dtype).eps) / 2


class Rounding(NamedTuple):
    """What is known before any number is: how the moments are summed, and where the series is cut.

    **Arguments:**

    - `units`, `growth`: The errors of the moments relative to W, in units: at any degree, and for each degree.
    - `tail`: What of the kernel is cut off.
    - `lost`: What the smallest numbers of the dtype may add up to.
    - `d`: The dimension.
    """

    units: float
    growth: float
    tail: float
    lost: float
    d: int

    def error(self, lengths: Float[Array, " n"], mass: Scalar, evaluation: Float[Array, " n"]) -> Float[Array, " n"]:
        """E of each row: `mass` is W, and `evaluation` what rounds after the moments, in units."""
        moments = (self.units + self.growth * jnp.sqrt((self.d - 1) * lengths)) * mass
        # One part in a hundred more: for what is of second order, and for the rounding of this bound.
        error = 1.01 * (unit_of(lengths.dtype) * (moments + evaluation) + self.tail * mass)
        return jnp.where(mass > 0, error + self.lost * (1 + mass), error)


def make_rounding(
    series: AbstractSeries, size: int, n: int, d: int, dtype: Any, tail: float, equal: bool, devices: int
) -> Rounding:
    """For chunks of `size` of the n tokens of each device; `equal`: all masses are one, and no values multiply them."""
    chunks = -(-n // size)
    depth = series.block / 2 + 1 if equal else series.block + 1
    depth = depth + steps(size // series.block) + 1 + 3 + chunks**2 * unit_of(dtype) + (devices - 1)
    features, growth = series.token_rounding()
    lost = 4 * (n * devices + 10_000) * float(jnp.finfo(dtype).tiny)
    return Rounding(math.sqrt(2) * (features + depth), growth, tail, lost, d)


def relative_error(lengths: Float[Array, " n"], differ: Float[Array, " n"], off: Scalar, d: int, pairs: int):
    """R of each row: what its terms err by, relative to themselves.

    **Arguments:**

    - `differ`: By how much the length of a query differs from that which its series is made for.
    - `off`: How far the square of the length of a token is from one, at most.
    - `pairs`: How many tokens of a chunk are summed pair by pair; zero for full sums.
    """
    unit = unit_of(lengths.dtype)
    within = unit * ((d + 4) * lengths + pairs + 8) if pairs else 0.0
    return 1.01 * (differ + lengths * (off / 2 + (ANGLES[d] + 2) * unit) + within + off / 2 + 4 * unit)


def certified_error(
    sums: Float[Array, "n k"], error: Float[Array, " n"], relative: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Of each row, the least tolerance at which it is certified; infinite if it never is.

    **Arguments:**

    - `sums`: (n, k), scaled by $e^{-|q|}$; the first column is Z.
    - `error`: (n,), what an average errs by times Z: of the first kind.
    - `relative`: (n,), R.
    """
    sums, error, relative = lax.stop_gradient((sums, error, relative))
    whole = sums[:, 0]
    found = error / jnp.where(whole > 0, whole, 1) + 2 * relative
    nothing = (whole == 0) & (error == 0)
    served = jnp.all(jnp.isfinite(sums), axis=1) & (whole > 0) & (found < jnp.inf)
    return jnp.where(nothing, 0, jnp.where(served, found, jnp.inf))


def truncation_share(dtype: Any, tolerance: float) -> float:
    """How much of the kernel a series may cut off: far less than the tolerance, which sums that are small use up."""
    share = 1e-5 if jnp.dtype(dtype).itemsize == 4 else 1e-4
    return max(unit_of(dtype), tolerance * share)
