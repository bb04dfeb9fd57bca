"""The angular power spectrum: at which angular scales a cloud of tokens is uneven.

**Algorithm.** On the circle and on the sphere of R^3 sums of mass times harmonic over the tokens, in O(n), by complex
powers and by the three-term recurrence of associated Legendre functions (DLMF 14.10.3); in other dimensions the
Gegenbauer polynomials of all pairs, by their recurrence (DLMF 18.9.1), in O(n^2). **Invariant.** One chunk of
harmonics, or one block of pairs, is alive at a time, forwards and backwards.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._blocks import cut
from .._check import check_tokens
from .._custom_types import Masses, Tokens
from .._misc import matmul, normalise
from ._pairs import check_masses, check_nonzero_rows, map_pair_rows
from .linear_phase import check_degree


# Tokens whose harmonics are alive at once.
_CHUNK = 2048


def angular_power(x: Tokens, max_degree: int, masses: Masses | None = None) -> Float[Array, " degrees"]:
    r"""$p_\ell = \sum_{i,j} m_i m_j P_\ell(\langle x_i, x_j\rangle)$, the angular power spectrum of the tokens.

    $P_\ell$ is the Gegenbauer polynomial of the sphere with $P_\ell(1) = 1$ ($\cos\ell\theta$ on the circle, Legendre's
    for d = 3), and $p_\ell$ the squared length of the tokens' mean harmonic of degree $\ell$. It is 1 if all tokens
    coincide, and $1/n$ on average for n independent uniform tokens; k clusters stand out at about degree k. While it is
    small it grows as $e^{2\lambda_\ell t}$, see `uniform_growth_rates`. In two and three dimensions it costs
    O(n max_degree) and O(n max_degree^2), in others O(n^2 max_degree); memory grows as n.

    **Arguments:**

    - `x`: Tokens of at least two dimensions, divided by their lengths here.
    - `max_degree`: The largest degree.
    - `masses`: Masses of the tokens, divided by their sum; None means equal ones.

    **Returns:**

    (max_degree + 1,), between 0 and 1; the first is 1.

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
    """The squared lengths of the `moments` (degrees, ...) of all tokens, over the `dimension` of each degree."""
    # Padding of mass zero adds nothing.
    size = min(x.shape[0], _CHUNK)
    x, masses = cut(x, size), cut(masses, size, 0.0)
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(moments, x[0], masses[0]))
    # Without the checkpoint the backward pass would keep the harmonics of all tokens.
    step = jax.checkpoint(lambda total, chunk: (total + moments(*chunk), None))
    total = lax.scan(step, start, (x, masses))[0].reshape(len(dimension), -1)
    return jnp.sum(total * total, axis=1) / jnp.asarray(dimension, x.dtype)


def _circle(max_degree: int, x: Tokens, masses: Masses) -> Float[Array, "degrees 2"]:
    """The sums of mass times cosine and sine of each multiple of the angle."""

    # Cosine and sine of k theta from those of (k - 1) theta: a product with e^{i theta}.
    def next_power(power, _):
        cosine, sine = power
        rotated = cosine * x[:, 0] - sine * x[:, 1], cosine * x[:, 1] + sine * x[:, 0]
        return rotated, matmul(jnp.stack(power), masses)

    return lax.scan(next_power, (jnp.ones_like(masses), jnp.zeros_like(masses)), None, length=max_degree + 1)[1]


def _sphere(max_degree: int, x: Tokens, masses: Masses) -> Float[Array, "degrees orders"]:
    """The sums of mass times spherical harmonic, each of mean square 1; those of order m in columns 2m and 2m + 1."""
    # `first` and `second` are the factors of the recurrence in l, (degrees, orders).
    first, second, sectoral = (jnp.asarray(table, x.dtype) for table in _recurrence(max_degree))
    # Y_mm of each order, (orders, 2, n): where the recurrence of that order starts.
    starts = _complex_powers(x[:, :2], max_degree) * sectoral[:, None, None]

    def next_degree(carry, inputs):
        degree, first, second = inputs
        # Harmonics of degrees l - 1 and l - 2, (orders, 2, n); zero for orders above the degree.
        last, second_last = carry
        harmonics = first[:, None, None] * x[None, None, :, 2] * last - second[:, None, None] * second_last
        harmonics = jnp.where((jnp.arange(max_degree + 1) == degree)[:, None, None], starts, harmonics)
        return (harmonics, last), matmul(harmonics, masses).reshape(-1)

    degrees = jnp.arange(max_degree + 1)
    return lax.scan(next_degree, (jnp.zeros_like(starts), jnp.zeros_like(starts)), (degrees, first, second))[1]


def _complex_powers(flat: Float[Array, "n 2"], max_degree: int) -> Float[Array, "orders 2 n"]:
    """Real and imaginary part of (x + iy)^m."""

    def next_power(power, _):
        real = power[0] * flat[:, 0] - power[1] * flat[:, 1]
        imaginary = power[0] * flat[:, 1] + power[1] * flat[:, 0]
        return jnp.stack([real, imaginary]), power

    unit = jnp.stack([jnp.ones_like(flat[:, 0]), jnp.zeros_like(flat[:, 0])])
    return lax.scan(next_power, unit, None, length=max_degree + 1)[1]


@functools.lru_cache
def _recurrence(max_degree: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Y_lm = first[l, m] z Y_(l-1)m - second[l, m] Y_(l-2)m, from Y_mm = sectoral[m] Re, Im (x + iy)^m."""
    l, m = np.mgrid[: max_degree + 1, : max_degree + 1].astype(float)
    # Ones where there is no harmonic, so that nothing is divided by zero.
    square = np.where(l > m, l**2 - m**2, 1)
    first = np.where(l > m, np.sqrt(np.abs(4 * l**2 - 1) / square), 0)
    inner = np.maximum((2 * l + 1) * ((l - 1) ** 2 - m**2), 0)
    second = np.where(l > m + 1, np.sqrt(inner / (np.abs(2 * l - 3) * square)), 0)
    # Squares of the normalisation, with mean square one; a factor of 2 for cosine and sine of m > 0.
    orders = np.arange(1, max_degree + 1)
    sectoral = np.sqrt(np.append(1, 2 * np.cumprod((2 * orders + 1) / (2 * orders))))
    return first, second, sectoral


def _of_pairs(x: Tokens, masses: Masses, max_degree: int) -> Float[Array, " degrees"]:
    """The sum over pairs, by the recurrence of the Gegenbauer polynomials."""
    d = x.shape[1]

    def of_rows(rows, _):
        cosines = matmul(rows, x.T)

        def next_degree(carry, degree):
            # P of degrees l - 1 and l, normalised to P(1) = 1; at l = 0 the lower one has the factor zero.
            last, current = carry
            following = ((2 * degree + d - 2) * cosines * current - degree * last) / (degree + d - 2)
            return (current, following), matmul(current, masses)

        degrees = jnp.arange(max_degree + 1, dtype=x.dtype)
        start = (jnp.zeros_like(cosines), jnp.ones_like(cosines))
        return lax.scan(next_degree, start, degrees)[1].T

    # Four arrays of pairs are alive in the scan: cosines, two polynomials, and their successor.
    return matmul(masses, map_pair_rows(of_rows, x, numbers_per_pair=4))
