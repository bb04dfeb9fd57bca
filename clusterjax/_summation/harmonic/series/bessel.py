r"""The coefficients of $e^{\kappa t}$ in zonal harmonics of the circle and the spheres, scaled by $e^{-\kappa}$.

**Algorithm.** On $S^{d-1}$, $e^{\kappa t} = \sum_l N_l\, a_l(\kappa)\, P_l(t)$ with $P_l(1) = 1$, $N_l$ harmonics of
degree l, and $a_l(\kappa) = \Gamma(d/2)\,(2/\kappa)^{d/2-1} I_{l+d/2-1}(\kappa)$: for d = 2 the Bessel function $I_l$,
for d = 3 the spherical $i_l$, for d = 4 $2 I_{l+1}/\kappa$. $a_0$ has a closed form. The others are products of ratios
$a_l / a_{l-1}$ from the backward three-term recurrence (Gautschi, *Computational aspects of three-term recurrence
relations*, 1967; bounds of a ratio: Amos, *Computation of modified Bessel functions and their ratios*, 1974).

**Invariants.** Forward recurrence is unstable and never used; nothing overflows for any kappa >= 0.
"""

import math

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import i0e, i1e
from jaxtyping import Array, Float

from ...._custom_types import Tokens


def length_and_direction(queries: Tokens) -> tuple[Float[Array, " n"], Tokens]:
    """|q| and q / |q| of each query; for a query of zero, a tiny length and the direction zero."""
    # The tiny number under the root keeps its derivative finite at zero, and vanishes by rounding elsewhere.
    length = jnp.sqrt(jnp.sum(queries * queries, axis=1) + float(jnp.finfo(queries.dtype).tiny) ** 0.5)
    return length, queries / length[:, None]


def bessel_ratios(kappa: Float[Array, "..."], degree: int, d: int) -> Float[Array, "degrees ..."]:
    r"""$a_l / a_{l-1}$ for l = 1, ..., `degree`, by the backward recurrence $r_l = \kappa / (2\nu + \kappa r_{l+1})$.

    Here $\nu = l + d/2 - 1$. The start lies between known bounds of a ratio, and each step reduces its error by the
    square of the ratio: only the last few degrees keep an error, which a sufficient degree makes negligible.
    """
    order = degree + d / 2
    start = kappa / (order - 0.5 + jnp.sqrt((order + 0.5) ** 2 + kappa * kappa))

    def step(ratio, twice_order):
        ratio = kappa / (twice_order + kappa * ratio)
        return ratio, ratio

    degrees = jnp.arange(1, degree + 1).astype(kappa.dtype)
    return lax.scan(step, start, 2 * degrees + (d - 2), reverse=True)[1]


def mean_kernel(kappa: Float[Array, "..."], d: int) -> Float[Array, "..."]:
    r"""$e^{-\kappa} a_0(\kappa)$, the mean over the sphere of $e^{\kappa(t - 1)}$, for d = 2, 3, 4."""
    if d == 2:
        return i0e(kappa)
    # Near zero, both closed forms are quotients of two numbers near zero.
    small = kappa < 0.1
    # The unused branch must not divide by zero, since its derivative would be NaN.
    far = jnp.where(small, 1, kappa)
    closed = -jnp.expm1(-2 * far) / (2 * far) if d == 3 else 2 * i1e(far) / far
    # The power series sum_j (kappa^2 / 4)^j / (j! (d/2)_j) replaces the closed form near zero.
    square = kappa * kappa / 4
    series = jnp.ones_like(kappa)
    # Horner's rule; for kappa below 0.1, the first omitted term is below 1e-17.
    for j in range(4, 0, -1):
        series = 1 + series * square / (j * (d / 2 + j - 1))
    return jnp.where(small, jnp.exp(-kappa) * series, closed)


def scaled_bessel(kappa: Float[Array, "..."], degree: int, d: int) -> Float[Array, "degrees ..."]:
    r"""$e^{-\kappa} a_l(\kappa)$ for l = 0, ..., `degree`, without overflow for any $\kappa \ge 0$."""
    mean = mean_kernel(kappa, d)[None]
    if degree == 0:
        return mean
    return jnp.concatenate([mean, mean * jnp.cumprod(bessel_ratios(kappa, degree, d), axis=0)])


def held_scale(kappa: Float[Array, " n"]) -> Float[Array, " n"]:
    r"""The value 1 with the derivative of $e^\kappa$, which cancels the derivative of the factor $e^{-\kappa}$."""
    return jnp.exp(kappa - lax.stop_gradient(kappa))


def number_of_harmonics(degree: int, d: int) -> int:
    """The number of harmonics of exactly this degree on the sphere of R^d, d >= 2."""
    if degree == 0:
        return 1
    return (2 * degree + d - 2) * math.comb(degree + d - 3, d - 2) // degree if d > 2 else 2
