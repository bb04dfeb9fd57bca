"""The angular power spectrum: the unevenness of a cloud of tokens at each angular scale.

**Algorithm.** On the circle and on the sphere of R^3, sums of mass times harmonic over the tokens are computed in O(n),
by complex powers and by the three-term recurrence of associated Legendre functions (DLMF 14.10.3). In other dimensions
the Gegenbauer polynomials of all pairs follow from their recurrence (DLMF 18.9.1), in O(n^2). **Invariant.** Only one
chunk of harmonics, or one block of pairs, is held at a time, in the forward and the backward pass.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import NDArray

from .._base.batching import cut
from .._base.checks import check_flag, check_integer, check_number, check_tokens
from .._base.numerics import bessel_ratios, matmul, normalise
from .._base.types import Masses, Tokens
from .._summation.harmonic.sphere import recurrence
from .energy import uniform_mean
from .similarity import check_masses, check_nonzero_rows, map_pair_rows


def uniform_growth_rates(beta: float, d: int, max_degree: int, *, unnormalised: bool = False) -> NDArray[np.float64]:
    """$λ_ℓ = ℓ(ℓ+d-2) a_ℓ/(β a_0)$: the growth rate of harmonics of degree ℓ.

    By symmetry a uniform density of tokens does not move, but a small perturbation of degree ℓ grows as $e^{λ_ℓ t}$.
    The degree of fastest growth, about $√(2β)$ on the circle, is the number of clusters that form first. Here
    $a_ℓ = Γ(d/2) (2/β)^{d/2-1} I_{ℓ+d/2-1}(β)$; the unnormalised flow has the rate $ℓ(ℓ+d-2) a_ℓ/β$, without $a_0$. A
    host function, in double precision.

    **Arguments:**

    - `beta`: Inverse temperature, a finite number; zero gives the limit.
    - `d`: The dimension of the tokens, at least 2.
    - `max_degree`: The largest degree.
    - `unnormalised`: True for unnormalised attention.

    **Returns:**

    (max_degree + 1,), the rates of degree 0 to `max_degree`, per unit of time, for V = I and $Q^T K = I$. The amplitude
    of a harmonic grows at this rate, its square (see `angular_power`) at twice the rate.

    **Raises:**

    - `ValueError` if `beta` is not finite or too large, `d` not an integer >= 2, or `max_degree` not an integer >= 0.

    ??? cite "Source"

        Bruno, Pasqualotto and Agazzi (2410.23228), linearisation at the uniform measure; the rates are derived anew.
    """
    max_degree = check_degree(max_degree)
    d = check_integer(d, "d", least=2, remedy="pass the dimension of the tokens")
    beta, unnormalised = check_number(beta, "beta"), check_flag(unnormalised, "unnormalised")
    degrees = np.arange(max_degree + 1)
    # In the limit only the first degree has a rate, because a_l / beta tends to zero for l > 1.
    if beta == 0:
        return np.where(degrees == 1, (d - 1) / d, 0.0)
    order, size = d / 2 - 1, abs(beta)
    ratios = bessel_ratios(order, size, degrees)
    # I_{l + order}(-beta) (-beta)^-order has the sign (-1)^l.
    ratios = np.where((beta < 0) & (degrees % 2 == 1), -ratios, ratios)
    rates, mean = degrees * (degrees + d - 2) * ratios / beta, uniform_mean(beta, d) if unnormalised else 1.0
    if not np.isfinite(mean) or not np.all(np.isfinite(rates * mean)):
        raise ValueError(
            f"beta must be small enough for rates that double precision holds, but it is {beta}; pass 500 or less."
        )
    return rates * mean


def check_degree(max_degree: int) -> int:
    """Raise a ValueError unless `max_degree` is an integer of at least 0."""
    return check_integer(max_degree, "max_degree", least=0, remedy="pass, say, 12")


# The number of tokens whose harmonics are held at once.
_CHUNK = 2048


def angular_power(x: Tokens, max_degree: int, masses: Masses | None = None) -> Float[Array, " degrees"]:
    """$p_ℓ = ∑_{i,j} m_i m_j P_ℓ(⟨x_i, x_j⟩)$, the angular power spectrum of the tokens.

    $P_ℓ$ is the Gegenbauer polynomial of the sphere with $P_ℓ(1) = 1$ (cos ℓθ on the circle, the Legendre polynomial
    for d = 3), and $p_ℓ$ is the squared norm of the mean harmonic of degree ℓ over the tokens. $p_ℓ$ is 1 if all tokens
    coincide, and 1/n on average for n independent uniform tokens; k clusters give a peak at about degree k. A small
    $p_ℓ$ grows as $e^{2λ_ℓ t}$, see `uniform_growth_rates`. The cost is O(n max_degree) for d = 2, O(n max_degree^2)
    for d = 3, and O(n^2 max_degree) otherwise; memory grows as n.

    **Arguments:**

    - `x`: Tokens of at least two dimensions, which are divided by their norms.
    - `max_degree`: The largest degree.
    - `masses`: Masses of the tokens, divided by their sum; None means equal masses.

    **Returns:**

    An array (max_degree + 1,) with entries between 0 and 1; the first is 1.

    **Raises:**

    - `ValueError` if `x` is not a cloud of finite tokens of at least two dimensions, none of them zero, `max_degree`
        not an integer of at least 0, or `masses` do not fit.

    ??? cite "Source"

        Addition theorem of the spherical harmonics; the perturbations of Bruno, Pasqualotto and Agazzi (2410.23228).
    """
    x = check_nonzero_rows(check_tokens(x))
    max_degree = check_degree(max_degree)
    if x.shape[1] < 2:
        raise ValueError(f"x must have at least two dimensions, but its shape is {x.shape}; a line has no angles.")
    return _power(x, check_masses(masses, x), max_degree)


@functools.partial(jax.jit, static_argnums=2)
def _power(x: Tokens, masses: Masses, max_degree: int) -> Float[Array, " degrees"]:
    x = normalise(x)
    if x.shape[1] == 2:
        return _in_chunks(functools.partial(_circle, max_degree), x, masses, np.ones(max_degree + 1))
    if x.shape[1] == 3:
        return _in_chunks(functools.partial(_sphere, max_degree), x, masses, 2 * np.arange(max_degree + 1) + 1)
    return _of_pairs(x, masses, max_degree)


def _in_chunks(moments: Any, x: Tokens, masses: Masses, dimension: np.ndarray) -> Float[Array, " degrees"]:
    """The squared norms of the `moments` (degrees, ...) of all tokens, over the `dimension` of each degree."""
    # Padding with mass zero contributes nothing.
    size = min(x.shape[0], _CHUNK)
    x, masses = cut(x, size), cut(masses, size, 0.0)
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(moments, x[0], masses[0]))
    # Without the checkpoint the backward pass would keep the harmonics of all tokens.
    step = jax.checkpoint(lambda total, chunk: (total + moments(*chunk), None))
    total = lax.scan(step, start, (x, masses))[0].reshape(len(dimension), -1)
    return jnp.sum(total * total, axis=1) / jnp.asarray(dimension, x.dtype)


def _circle(max_degree: int, x: Tokens, masses: Masses) -> Float[Array, "degrees 2"]:
    """The sums of mass times cosine and sine of each multiple of the angle."""
    step = lambda power, _: (_rotated(power[0], power[1], x), matmul(jnp.stack(power), masses))
    return lax.scan(step, (jnp.ones_like(masses), jnp.zeros_like(masses)), None, length=max_degree + 1)[1]


def _sphere(max_degree: int, x: Tokens, masses: Masses) -> Float[Array, "degrees orders"]:
    """The sums of mass times spherical harmonic, each of mean square 1; order m is in columns 2m and 2m + 1."""
    # `first` and `second` are the factors of the recurrence in l, (degrees, orders).
    tables = (np.transpose(table)[..., : max_degree + 1] for table in recurrence(max_degree))
    first, second, sectoral = (jnp.asarray(table, x.dtype) for table in tables)
    # Y_mm of each order, (orders, 2, n), starts the recurrence of that order.
    starts = _complex_powers(x[:, :2], max_degree) * sectoral[:, None, None]

    def next_degree(carry, inputs):
        degree, first, second = inputs
        # `carry` holds harmonics of degrees l - 1 and l - 2, (orders, 2, n), zero for orders above the degree.
        last, second_last = carry
        harmonics = first[:, None, None] * x[None, None, :, 2] * last - second[:, None, None] * second_last
        harmonics = jnp.where((jnp.arange(max_degree + 1) == degree)[:, None, None], starts, harmonics)
        return (harmonics, last), matmul(harmonics, masses).reshape(-1)

    degrees = jnp.arange(max_degree + 1)
    return lax.scan(next_degree, (jnp.zeros_like(starts), jnp.zeros_like(starts)), (degrees, first, second))[1]


def _complex_powers(flat: Float[Array, "n 2"], max_degree: int) -> Float[Array, "orders 2 n"]:
    """Real and imaginary parts of (x + iy)^m."""
    unit = jnp.stack([jnp.ones_like(flat[:, 0]), jnp.zeros_like(flat[:, 0])])
    step = lambda power, _: (jnp.stack(_rotated(power[0], power[1], flat)), power)
    return lax.scan(step, unit, None, length=max_degree + 1)[1]


def _rotated(cosine: Array, sine: Array, by: Float[Array, "n 2"]) -> tuple[Array, Array]:
    """A product with x + iy, which gives cosine and sine of k theta from those of (k - 1) theta."""
    return cosine * by[:, 0] - sine * by[:, 1], cosine * by[:, 1] + sine * by[:, 0]


def _of_pairs(x: Tokens, masses: Masses, max_degree: int) -> Float[Array, " degrees"]:
    """The sums over pairs, by the recurrence of the Gegenbauer polynomials."""
    d = x.shape[1]

    def of_rows(rows, _):
        cosines = matmul(rows, x.T)

        def next_degree(carry, degree):
            # P of degrees l - 1 and l, normalised to P(1) = 1; at l = 0 the factor of the lower polynomial is zero.
            last, current = carry
            following = ((2 * degree + d - 2) * cosines * current - degree * last) / (degree + d - 2)
            return (current, following), matmul(current, masses)

        degrees = jnp.arange(max_degree + 1, dtype=x.dtype)
        start = (jnp.zeros_like(cosines), jnp.ones_like(cosines))
        return lax.scan(next_degree, start, degrees)[1].T

    # The scan holds four arrays of pairs: the cosines, two polynomials, and the next polynomial.
    return matmul(masses, map_pair_rows(of_rows, x, numbers_per_pair=4))
