r"""Bounds of the rounding errors of a series, in units of the unit roundoff u = eps / 2; see ../certificate.py.

**Reference.** Higham, *Accuracy and stability of numerical algorithms*, sections 3.1, 3.6 and 4.2. **Invariant.**
Bounds are for the worst case, of first order in u. The error of a sum of k numbers in any order is at most k u times
the sum of their absolute values; a product and an entry of a table have errors of one unit each. The counts below are
those of the operations in the series, rounded up.

- **Features.** Powers of a complex number, built of products in any order, have errors of `POWER` units for each
  multiple: sqrt(5) for a product of complex numbers, and 3 since the modulus of the number is one only up to rounding.
- **Bessel functions.** One step of the recurrence of ratios rounds three times. An error of $r_{j}$ enters $r_{j-1}$
  with the opposite sign and reduced, so that the product $r_1 \cdots r_l$ changes by at most this error, for j > l
  reduced by $r_{l+1} \cdots r_j$ squared, whose sum over j is below $\sqrt{\pi\kappa} / 2$. With the products, and 8
  units for $a_0$, the error of $a_l$ is $8 + 4 l + 2.7 \sqrt\kappa$ units. A degree that serves lengths up to kappa is
  more than $\sqrt{18 \kappa}$, which gives `bessel_units`.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...._misc import matmul
from .bessel import number_of_harmonics, scaled_bessel


# The units of u per power of e^{i theta}: sqrt(5) + 3, as derived above.
POWER = 5.25


class TokenRounding(NamedTuple):
    """The errors of the features of one token, in units.

    **Arguments:**

    - `features`: The error at any degree.
    - `growth`: The additional error for each degree.
    """

    features: float
    growth: float


def bessel_units(degree: int) -> np.ndarray:
    """The relative error of the coefficients of all degrees up to `degree`, in units."""
    return 8 + 4.0 * np.arange(degree + 1) + 0.65 * degree


def roots(degree: int, d: int) -> np.ndarray:
    r"""The norm $\sqrt{N_l}$ of the vector of all harmonics of degree l at any point."""
    return np.sqrt([number_of_harmonics(l, d) for l in range(degree + 1)])


def norm(parts: Array, axis: int | tuple[int, ...]) -> Array:
    """The Euclidean norm over some axes."""
    return jnp.sqrt(jnp.sum(parts * parts, axis=axis))


def with_neighbours(sizes: Float[Array, " degrees"], degree: int, gradients: bool) -> Float[Array, " fewer"]:
    """`sizes` up to `degree`; with `gradients`, plus the sizes of the degrees l + 1 and l - 1."""
    # Multiplication by a coordinate, with factors of at most one, moves the errors of a degree to both its neighbours.
    if not gradients:
        return sizes[: degree + 1]
    return sizes[: degree + 1] + sizes[1 : degree + 2] + jnp.pad(sizes[:degree], (1, 0))


def at_one_length(error_terms: Float[Array, "functions degrees"], length: Float[Array, ""], d: int) -> Float[Array, ""]:
    """The largest of the errors of several sums, from the contributions of each degree, for one query length."""
    return jnp.max(jnp.sum(error_terms * scaled_bessel(length, error_terms.shape[1] - 1, d)[None], axis=1))


def at_lengths(
    error_terms: Float[Array, "functions degrees"], lengths: Float[Array, " n"], d: int
) -> Float[Array, " n"]:
    """The largest of the errors of several sums, from the contributions of each degree, for queries of any lengths."""
    return jnp.max(matmul(error_terms, scaled_bessel(lengths, error_terms.shape[1] - 1, d)), axis=0)


def pairwise_depth(count: int) -> int:
    """The depth of the tree in which pairwise summation adds `count` numbers."""
    return math.ceil(math.log2(max(count, 1)))
