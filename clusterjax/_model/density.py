"""`MeanField`: attention among infinitely many tokens, as an equation for the coefficients of their density.

**Algorithm.** The equation $∂_t μ + ∇·(μ v[μ]) = T Δμ$ is tested with the harmonics:
$ċ_k = ∫ ⟨∇Y_k, v⟩ dμ - T l (l + d - 2) c_k$, with the integral computed on a grid (a Galerkin method with quadrature,
also called pseudo-spectral). The velocity v is that of attention, with the sums of `zonal_sums` and `pair_sums` in
place of sums over tokens.

**Reference.** Geshkovski, Letrouit, Polyanskiy, Rigollet (2312.10794), eq. (3.1) for the equation without noise;
2604.16288 and 2606.05140 with noise. **Invariants.** The mass is conserved exactly, since the harmonic of degree zero
is constant. If the coefficients decay before the last degree, their error is about the last of them: spectral accuracy.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._base.checks import (
    call_traced,
    check_array,
    check_callable,
    check_integer,
    check_key,
    check_number,
    check_room,
    check_tokens,
    refusal,
    shown,
)
from .._base.defaults import TAIL_TOLERANCE
from .._base.numerics import bessel_ratios, einsum, is_concrete, matmul
from .._base.types import Masses, Numbers, RealScalarLike, Scalar, Tokens
from .._summation import Dense
from .._summation.harmonic.series import scaled_bessel
from .._summation.harmonic.sphere import legendre, recurrence
from .attention import (
    AbstractAttention,
    SoftmaxAttention,
    UnnormalisedAttention,
    check_dimension,
    check_masses,
    check_number_of_masses,
    check_square,
)
from .field import AbstractField
from .mask import FullMask
from .position import refuse_position
from .schedule import (
    AbstractSchedule,
    Parameter,
    StoredParameter,
    as_parameter,
    at_time,
    check_temperature,
    check_time,
)
from .space import Euclidean, Sphere


# The common interface of the circle and the sphere: harmonics, a grid, transforms between coefficients and values.
#
# **Definition.** Harmonics Y are real and orthonormal with respect to the uniform probability measure σ. The
# coefficients of a measure μ are $c = ∫ Y dμ$, so that $dμ = ∑_k c_k Y_k dσ$, and those of n tokens are means of
# harmonics. The coefficients form a matrix: row l has degree l, in pairs (cosine, sine) by order.
#
# **Invariants.** The first coefficient is the mass. Grids integrate products of four functions of the degree exactly.


Coefficients = Float[Array, "rows columns"]
"""The coefficients of a density, with a row for each degree."""


class Grid(NamedTuple):
    """Points, (M, d); their weights, (M,), with sum one; and unit tangent vectors at each point, (d - 1, M, d)."""

    points: np.ndarray
    weights: np.ndarray
    frame: np.ndarray


class Basis(NamedTuple):
    """The functions for one dimension; each takes the degree first.

    **Arguments:**

    - `area`: The area of the sphere, or the length of the circle.
    - `columns`: The number of coefficients in a row.
    - `grid`: The grid of a degree.
    - `values`: Coefficients to values of the density with respect to the uniform measure, on the grid, (M,).
    - `gradients`: Coefficients to components of the gradient of the density along the frame, (d - 1, M).
    - `divergence`: Components of a flux f to coefficients of minus its divergence, the integrals of ⟨f, ∇Y⟩.
    - `integrals`: Values on the grid to coefficients, the integrals of the values times Y.
    - `harmonics`: All harmonics at points, (n, rows, columns).
    """

    area: float
    columns: Callable[[int], int]
    grid: Callable[[int], Grid]
    values: Callable[[int, Array], Float[Array, " M"]]
    gradients: Callable[[int, Array], Float[Array, "frame M"]]
    divergence: Callable[[int, Float[Array, "frame M"]], Array]
    integrals: Callable[[int, Float[Array, " M"]], Array]
    harmonics: Callable[[int, Tokens], Float[Array, "n rows columns"]]


# The basis of the circle: $1, √2 cos kθ, √2 sin kθ$, a row (cosine, sine) for each k.
#
# **Invariant.** The sine of k = 0 is zero, and its coefficient remains zero.


@lru_cache
def _grid(degree: int) -> Grid:
    theta = 2 * np.pi * np.arange(4 * (degree + 1)) / (4 * (degree + 1))
    cosine, sine = np.cos(theta), np.sin(theta)
    return Grid(np.stack([cosine, sine], 1), np.full(len(theta), 1 / len(theta)), np.stack([-sine, cosine], 1)[None])


@lru_cache
def _tables(degree: int) -> np.ndarray:
    """Cosines and sines on the grid, and their derivatives with respect to the angle: (2, 2, M, degree + 1)."""
    points = _grid(degree).points
    k = np.arange(degree + 1)
    angles = np.arctan2(points[:, 1], points[:, 0])[:, None] * k
    cosine, sine = (np.where(k > 0, np.sqrt(2), 1) * part for part in (np.cos(angles), np.sin(angles)))
    return np.stack([[cosine, sine], [-k * sine, k * cosine]])


def _on_grid(degree: int, c: Array, which: int) -> Float[Array, " M"]:
    """The sum of coefficients times harmonics, or times their derivatives."""
    cosine, sine = jnp.asarray(_tables(degree)[which], c.dtype)
    return matmul(cosine, c[:, 0]) + matmul(sine, c[:, 1])


def _against(degree: int, values: Float[Array, " M"], which: int) -> Array:
    """The integrals of values times harmonics, or times their derivatives."""
    weighted = values * jnp.asarray(_grid(degree).weights, values.dtype)
    return jnp.stack([matmul(weighted, jnp.asarray(part, values.dtype)) for part in _tables(degree)[which]], axis=1)


def _harmonics(degree: int, x: Tokens) -> Float[Array, "n rows columns"]:
    k = jnp.arange(degree + 1)
    angles = jnp.arctan2(x[:, 1], x[:, 0])[:, None] * k.astype(x.dtype)[None]
    scale = jnp.asarray(np.where(np.arange(degree + 1) > 0, np.sqrt(2), 1), x.dtype)
    return scale[None, :, None] * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=2)


CIRCLE = Basis(
    area=2 * np.pi,
    columns=lambda degree: 2,
    grid=_grid,
    values=lambda degree, c: _on_grid(degree, c, 0),
    gradients=lambda degree, c: _on_grid(degree, c, 1)[None],
    divergence=lambda degree, flux: _against(degree, flux[0], 1),
    integrals=lambda degree, values: _against(degree, values, 0),
    harmonics=_harmonics,
)


# The basis of the sphere: $p_{lm}(cos θ) cos mφ$ and sin mφ, in row l and columns 2m, 2m + 1.
#
# **Algorithm.** The grid is the product of Gauss-Legendre nodes in z = cos θ and equally spaced angles φ, without a
# point at a pole. A transform has two stages: a product with $p_{lm}(z)$ for each m, and a product with the cosines and
# sines of mφ. Derivatives with respect to θ follow from
# $sin θ p_{lm}' = l z p_{lm} - √((2l + 1)(l² - m²)/(2l - 1)) p_{l-1,m}$.
#
# **Reference.** DLMF 14.10.3 and 14.10.5, in the normalisation of `_summation/harmonic/sphere.py`.
#
# **Invariant.** Entries with m > l, and the sines of m = 0, are zero and remain zero.


class _Tables(NamedTuple):
    """p, its derivative with respect to theta, and m / sin theta times p, by (z, m, l); the waves, (2, m, phi)."""

    legendre: np.ndarray
    slope: np.ndarray
    turn: np.ndarray
    waves: np.ndarray


def _nodes(degree: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    z, weights = np.polynomial.legendre.leggauss(2 * (degree + 1))
    return z, weights / 2, 2 * np.pi * np.arange(4 * (degree + 1)) / (4 * (degree + 1))


@lru_cache
def _sphere_grid(degree: int) -> Grid:
    z, weights, phi = _nodes(degree)
    z, phi = (part.ravel() for part in np.meshgrid(z, phi, indexing="ij"))
    sine = np.sqrt(1 - z * z)
    points = np.stack([sine * np.cos(phi), sine * np.sin(phi), z], 1)
    down = np.stack([z * np.cos(phi), z * np.sin(phi), -sine], 1)
    east = np.stack([-np.sin(phi), np.cos(phi), 0 * phi], 1)
    count = 4 * (degree + 1)
    return Grid(points, np.repeat(weights / count, count), np.stack([down, east]))


@lru_cache
def _sphere_tables(degree: int) -> _Tables:
    z, _, phi = _nodes(degree)
    m, l = np.arange(degree + 1)[:, None], np.arange(degree + 1)[None]
    sine = np.sqrt(1 - z * z)
    values = legendre(degree, z, sine)[: degree + 1].transpose(2, 0, 1)
    lower = np.concatenate([np.zeros_like(values[:, :, :1]), values[:, :, :-1]], axis=2)
    factor = np.sqrt(np.maximum((2 * l + 1) * (l * l - m * m), 0) / np.maximum(2 * l - 1, 1))
    slope = (l * z[:, None, None] * values - factor * lower) / sine[:, None, None]
    angles = np.arange(degree + 1)[:, None] * phi
    turn = m * values / sine[:, None, None]
    return _Tables(values, slope, turn, np.stack([np.cos(angles), np.sin(angles)]))


def _waves_of(table: np.ndarray, c: Array) -> Float[Array, "two z m"]:
    # For each m this is a product over l.
    return einsum("zml,lmc->czm", jnp.asarray(table, c.dtype), c.reshape(c.shape[0], c.shape[0], 2))


def _sphere_values(degree: int, c: Array) -> Float[Array, " M"]:
    tables = _sphere_tables(degree)
    waves = jnp.asarray(tables.waves, c.dtype)
    parts = _waves_of(tables.legendre, c)
    return (matmul(parts[0], waves[0]) + matmul(parts[1], waves[1])).ravel()


def _sphere_gradients(degree: int, c: Array) -> Float[Array, "frame M"]:
    tables = _sphere_tables(degree)
    cosine, sine = jnp.asarray(tables.waves, c.dtype)
    slope, turn = _waves_of(tables.slope, c), _waves_of(tables.turn, c)
    down = matmul(slope[0], cosine) + matmul(slope[1], sine)
    east = matmul(turn[1], cosine) - matmul(turn[0], sine)
    return jnp.stack([down.ravel(), east.ravel()])


def _sphere_against(table: np.ndarray, by_cosine: Array, by_sine: Array) -> Array:
    """The coefficients from integrals over phi times cosines and sines, each (z, m)."""
    parts = jnp.stack([by_cosine, by_sine])
    coefficients = einsum("czm,zml->lmc", parts, jnp.asarray(table, parts.dtype))
    return coefficients.reshape(coefficients.shape[0], -1)


def _over_phi(degree: int, values: Float[Array, " M"]) -> tuple[Array, Array]:
    """The sums of weighted values times cosines and times sines, (z, m)."""
    weighted = values * jnp.asarray(_sphere_grid(degree).weights, values.dtype)
    waves = jnp.asarray(_sphere_tables(degree).waves, values.dtype)
    rows = weighted.reshape(2 * (degree + 1), -1)
    return matmul(rows, waves[0].T), matmul(rows, waves[1].T)


def _divergence(degree: int, flux: Float[Array, "frame M"]) -> Array:
    tables = _sphere_tables(degree)
    down, east = _over_phi(degree, flux[0]), _over_phi(degree, flux[1])
    # The derivative of cos m phi is -m sin m phi.
    return _sphere_against(tables.slope, *down) + _sphere_against(tables.turn, -east[1], east[0])


def _integrals(degree: int, values: Float[Array, " M"]) -> Array:
    return _sphere_against(_sphere_tables(degree).legendre, *_over_phi(degree, values))


def _sphere_harmonics(degree: int, x: Tokens) -> Float[Array, "n rows columns"]:
    first, second, diagonal = (jnp.asarray(table[: degree + 1], x.dtype) for table in recurrence(degree))
    count, n = degree + 1, x.shape[0]

    def power(carry, scale):
        c, s = carry
        return (c * x[:, 0] - s * x[:, 1], s * x[:, 0] + c * x[:, 1]), jnp.stack([c, s]) * scale

    # The harmonics with l = m are multiples of the powers of x + iy, (m, 2, n).
    sectoral = lax.scan(power, (jnp.ones_like(x[:, 0]), jnp.zeros_like(x[:, 0])), diagonal)[1]

    def step(carry, inputs):
        last, before = carry
        l, a, b = inputs
        harmonics = a[:, None, None] * x[:, 2][None, None] * last - b[:, None, None] * before
        harmonics = jnp.where((jnp.arange(count) == l)[:, None, None], sectoral, harmonics)
        return (harmonics, last), harmonics

    zero = jnp.zeros_like(sectoral)
    harmonics = lax.scan(step, (zero, zero), (jnp.arange(count), first.T, second.T))[1]
    return harmonics.transpose(3, 0, 1, 2).reshape(n, count, 2 * count)


SPHERE = Basis(
    area=4 * np.pi,
    columns=lambda degree: 2 * (degree + 1),
    grid=_sphere_grid,
    values=_sphere_values,
    gradients=_sphere_gradients,
    divergence=_divergence,
    integrals=_integrals,
    harmonics=_sphere_harmonics,
)


# The sums of attention over a density: its mass and its mean token, weighted by $exp(⟨q(x), y⟩)$.
#
# **Algorithm.** With B = I the kernel $exp(β⟨x, y⟩)$ is zonal, and the sum Z of mass has the coefficients
# $a_l(β) c_{lm}$ (Funk and Hecke). The sum of mass times token is $∫ y exp(β⟨x, y⟩) dμ = ∇Z/β + x ∂_β Z$. Its
# coefficients are computed from $a_l/β = (a_{l-1} - a_{l+1})/(2l + d - 2)$ and
# $a_l' = (l a_{l-1} + (l + d - 2) a_{l+1})/(2l + d - 2)$, which are also finite at beta = 0. For another B the sums are
# products with the kernel at all pairs of grid points, in blocks of rows.
#
# **Reference.** Funk-Hecke theorem; DLMF 10.29.1 for the two recurrences. **Invariants.** Sums are scaled by
# $exp(-shift)$, where the shift is the largest score of unit vectors, so that nothing overflows.


# The number of additional degrees of the Bessel functions, after which the start of their recurrence has no influence.
_MARGIN = 16
# The number of values of the kernel that are in memory at once.
_HELD = 2**22


class Sums(NamedTuple):
    """The sums on the grid: mass, (M,), and mass times token, (M, d), both times e^-shift."""

    mass: Float[Array, " M"]
    tokens: Tokens
    shift: Scalar


class KernelCoefficients(NamedTuple):
    """The coefficients of the kernel times e^-|beta|, by degree: a_l, a_l / beta and the derivative of a_l by beta."""

    plain: Float[Array, " degrees"]
    quotient: Float[Array, " degrees"]
    derivative: Float[Array, " degrees"]


def coefficients(beta: Scalar, degree: int, d: int) -> KernelCoefficients:
    """The coefficients of the zonal kernel exp(βt) up to `degree`."""
    # a_l(-beta) = (-1)^l a_l(beta); the quotient and the derivative have the opposite sign.
    all_of = scaled_bessel(jnp.abs(beta), degree + _MARGIN, d)[: degree + 2]
    l = jnp.arange(degree + 1).astype(beta.dtype)
    odd = jnp.where((jnp.arange(degree + 1) % 2 == 1) & (beta < 0), -1, 1).astype(beta.dtype)
    even = jnp.where(beta < 0, -odd, odd)
    twice = jnp.where(l > 0, 2 * l + (d - 2), 1)
    before = jnp.concatenate([all_of[:1], all_of[:-2]])
    after = all_of[1:]
    quotient = jnp.where(l > 0, (before - after) / twice, 0)
    derivative = jnp.where(l > 0, (l * before + (l + (d - 2)) * after) / twice, after)
    return KernelCoefficients(odd * all_of[:-1], even * quotient, even * derivative)


def zonal_sums(basis: Basis, degree: int, c: Array, beta: Scalar) -> Sums:
    """The sums for the queries beta x at all points x of the grid."""
    grid = basis.grid(degree)
    points, frame = jnp.asarray(grid.points, c.dtype), jnp.asarray(grid.frame, c.dtype)
    kernel = coefficients(beta, degree, points.shape[1])
    along = basis.values(degree, kernel.derivative[:, None] * c)
    gradients = basis.gradients(degree, kernel.quotient[:, None] * c)
    tokens = einsum("fm,fmd->md", gradients, frame) + along[:, None] * points
    return Sums(basis.values(degree, kernel.plain[:, None] * c), tokens, jnp.abs(beta))


def pair_sums(basis: Basis, degree: int, c: Array, queries: Tokens, shift: Scalar) -> Sums:
    """The sums for queries at all points of the grid, from the kernel at all pairs of points."""
    grid = basis.grid(degree)
    points = jnp.asarray(grid.points, c.dtype)
    masses = basis.values(degree, c) * jnp.asarray(grid.weights, c.dtype)
    columns = jnp.concatenate([masses[:, None], masses[:, None] * points], axis=1)
    count = points.shape[0]

    def of_rows(rows: Tokens) -> Array:
        return matmul(jnp.exp(matmul(rows, points.T) - shift), columns)

    if count * count <= _HELD:
        sums = of_rows(queries)
    else:
        sums = lax.map(lambda row: of_rows(row[None])[0], queries, batch_size=max(_HELD // count, 1))
    return Sums(sums[:, 0], sums[:, 1:], shift)


# Sums of harmonics over points, in chunks that fit in memory.


# The largest number of harmonics, over all points of a chunk, that are in memory at once.
_POINTS_AT_ONCE = 2**22


@eqx.filter_jit
def values_at(basis: Basis, degree: int, c: Coefficients, points: Tokens) -> Float[Array, " n"]:
    """The density with respect to the uniform measure, at points."""
    value_at = lambda point: jnp.sum(basis.harmonics(degree, point[None])[0] * c)
    return lax.map(value_at, points, batch_size=max(1, _POINTS_AT_ONCE // c.size))


@eqx.filter_jit
def means(basis: Basis, degree: int, x: Tokens, shares: Masses) -> Coefficients:
    """The sums of shares times harmonics, computed over chunks of tokens."""
    size = max(1, _POINTS_AT_ONCE // ((degree + 1) * basis.columns(degree)))
    if len(x) <= size:
        return einsum("n,nrc->rc", shares, basis.harmonics(degree, x))
    count = -(-len(x) // size)
    # Padding points have no mass.
    rows = jnp.concatenate([x, jnp.broadcast_to(x[:1], (count * size - len(x), x.shape[1]))])
    parts = jnp.pad(shares, (0, count * size - len(x))).reshape(count, size)

    def add(total, chunk):
        return total + means(basis, degree, *chunk), None

    return lax.scan(
        add, jnp.zeros((degree + 1, basis.columns(degree)), x.dtype), (rows.reshape(count, size, -1), parts)
    )[0]


# Independent tokens from a density: each coordinate is drawn by bisection of its distribution function.
#
# **Algorithm.** On the sphere z = cos θ is drawn first. Its density is the sum over l of the coefficients of m = 0
# times Legendre polynomials, with integrals $∫ P_l = (P_{l+1} - P_{l-1})/(2l + 1)$. The angle is drawn next; its
# density for given z is a Fourier series, as on the circle. **Invariant.** Where a truncated density is negative the
# distribution function decreases, and bisection finds one of the angles with the given value: few tokens are drawn
# there.


# The largest number of numbers in memory for the tokens that are drawn at once.
_SAMPLES_AT_ONCE = 2**22
_HALVINGS = 60


@eqx.filter_jit
def draw(basis: Basis, degree: int, c: Array, key: PRNGKeyArray, n: int) -> Tokens:
    """`n` independent tokens of the density with coefficients `c`."""
    on_circle = basis.columns(degree) == 2
    shares = jr.uniform(key, (n, 1 if on_circle else 2), c.dtype)
    token_at = (lambda u: _on_circle(c, u[0])) if on_circle else (lambda u: _on_sphere(basis, degree, c, u))
    return lax.map(token_at, shares, batch_size=max(1, _SAMPLES_AT_ONCE // (degree + 1) ** (1 if on_circle else 2)))


def _bisect(function, value: Array, low: Array, high: Array) -> Array:
    """The argument at which an increasing function has the given value."""

    def halve(_, ends):
        middle = (ends[0] + ends[1]) / 2
        below = function(middle) < value
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    low, high = lax.fori_loop(0, _HALVINGS, halve, (low, high))
    return (low + high) / 2


def _on_circle(pairs: Float[Array, "k two"], share: Array) -> Array:
    """A point of the circle, (2,), from coefficients of cosines and sines: `share` of the mass precedes it."""
    k = jnp.arange(1, pairs.shape[0]).astype(pairs.dtype)
    scaled = jnp.sqrt(jnp.asarray(2, pairs.dtype)) * pairs[1:] / k[:, None]
    turn = jnp.asarray(2 * jnp.pi, pairs.dtype)

    def before(angle):
        waves = scaled[:, 0] * jnp.sin(k * angle) + scaled[:, 1] * (1 - jnp.cos(k * angle))
        return (pairs[0, 0] * angle + jnp.sum(waves)) / turn

    angle = _bisect(before, share * pairs[0, 0], jnp.zeros_like(turn), turn)
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def _on_sphere(basis: Basis, degree: int, c: Array, shares: Float[Array, " two"]) -> Array:
    zonal = c[:, 0] * jnp.sqrt(2 * jnp.arange(degree + 1) + 1).astype(c.dtype)

    def below(z):
        """The mass south of z: half the sum of the integrals of Legendre polynomials."""

        def step(carry, l):
            last, before = carry
            current = ((2 * l + 1) * z * last - l * before) / (l + 1)
            return (current, last), current

        degrees = jnp.arange(degree + 1).astype(c.dtype)
        above = lax.scan(step, (jnp.ones_like(z), jnp.zeros_like(z)), degrees)[1]
        all_of = jnp.concatenate([jnp.ones_like(z)[None], above])
        integrals = (all_of[2:] - all_of[:-2]) / (2 * degrees[1:] + 1)
        return (zonal[0] * (z + 1) + jnp.sum(zonal[1:] * integrals)) / 2

    pole = jnp.ones_like(shares[0])
    z = _bisect(below, shares[0] * c[0, 0], -pole, pole)
    sine = jnp.sqrt(jnp.maximum(1 - z * z, 0))
    # At azimuth zero all cosines are one, so that the harmonics are the Legendre functions of each order.
    legendre = basis.harmonics(degree, jnp.stack([sine, 0 * z, z])[None])[0].reshape(degree + 1, degree + 1, 2)[..., 0]
    pairs = jnp.sum(legendre[..., None] * c.reshape(degree + 1, degree + 1, 2), axis=0)
    # The series of cosines and sines omits the factor sqrt(2) of the harmonics of the circle.
    pairs = jnp.concatenate([pairs[:1], pairs[1:] / jnp.sqrt(jnp.asarray(2, c.dtype))])
    cosine, sine_of = _on_circle(pairs, shares[1])
    return jnp.stack([sine * cosine, sine * sine_of, z])


# Checks of the arguments of a `MeanField`: the degree that the kernel needs, temperatures, tokens and their masses.


# The largest part of the kernel, relative to its mean, that the degree may truncate.
_LEFT_OUT = 1e-6


def check_dimension_of(x: Tokens, d: int, name: str = "x") -> None:
    """Raise a ValueError unless the tokens have the dimension `d`."""
    if x.shape[1] != d:
        raise ValueError(f"{name} must be of dimension {d}, but its shape is {x.shape}; build the field with that d.")


def check_size(d: int, degree: int) -> None:
    """Raise a ValueError if the grid and the tables of this degree do not fit in memory."""
    num_degrees = degree + 1
    # Tables of cosines and sines with their derivatives, or of the Legendre functions of each order with theirs.
    numbers, longest = (16 * num_degrees**2, 4 * num_degrees) if d == 2 else (6 * num_degrees**3, 8 * num_degrees**2)
    remedy = "pass a smaller one, such as 32"
    check_room(degree, "degree", 8 * numbers, "the harmonics on their grid", longest=longest, remedy=remedy)


def check_degree(attention: Any, d: int, degree: int) -> None:
    """Raise a ValueError that names a sufficient degree, if the kernel has parts of a degree above `degree`."""
    beta, form = attention.beta, attention.query_key
    if isinstance(beta, AbstractSchedule) or isinstance(form, AbstractSchedule) or not is_concrete((beta, form)):
        return
    longest = abs(float(beta)) * (1.0 if form is None else float(np.linalg.norm(np.asarray(form, float), 2)))
    least = degree_for(longest, d)
    if degree < least:
        rule = f"be at least {least} for queries of length {longest:.4g}"
        problem = f"it is {degree}: the kernel would lose {_left_out(longest, d, degree):.1g} of itself"
        raise refusal("degree", rule, problem, f"pass {least} or more")


def _left_out(kappa: float, d: int, degree: int) -> float:
    """The first coefficient of the kernel that is truncated, relative to its mean."""
    order = d / 2 - 1
    # For longer queries SciPy returns NaN; the first term of the logarithm in 1 / kappa is exact up to rounding.
    if kappa > 1e8:
        return math.exp(-(degree + 1) / kappa * (degree + 1 + 2 * order) / 2)
    return float(bessel_ratios(order, kappa, np.array([degree + 1]))[0]) if kappa else 0.0


def degree_for(kappa: float, d: int) -> int:
    """The least degree that truncates no more of the kernel than `_LEFT_OUT`, for queries of norm kappa."""
    enough = lambda degree: _left_out(kappa, d, degree) <= _LEFT_OUT
    least, most = 0, 1
    while not enough(most):
        least, most = most, 2 * most
    # The search is a bisection, since long queries need degrees in the millions.
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if enough(middle) else (middle, most)
    return most


_BASES = {2: CIRCLE, 3: SPHERE}


class AbstractMeanField(AbstractField):
    """A field that moves coefficients of a density, whose highest degrees tell whether the density is resolved."""

    degree: eqx.AbstractVar[int]
    tolerance: eqx.AbstractVar[float]
    temperature: eqx.AbstractVar[StoredParameter]

    @abstractmethod
    def tail(self, c: Coefficients) -> Scalar:
        """The size of the coefficients of the highest degrees, relative to a single token."""


class MeanField(AbstractMeanField):
    """Attention among infinitely many tokens: the field moves the density of the tokens, and not each token.

    The state is a matrix of coefficients, one row for each degree, which `simulate` accepts in place of tokens, as do
    derivatives, `jax.vmap` and sweeps. Coefficients are means of harmonics Y that are orthonormal with respect to the
    uniform probability measure: those of n tokens are means over the tokens, and the first coefficient is 1. With a
    temperature T the tokens also undergo Brownian motion: T Δμ.

    Without noise densities steepen until no degree resolves them. `simulate` watches the coefficients of the highest
    degrees, and ends the run when they exceed both `tolerance` and four times their values at the start: with a
    `RuntimeError` that reports this, or with `throw=False` at that time.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> field = cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=32, temperature=0.3)
        >>> c0 = field.from_density(lambda x: 1 + 0.1 * x[:, 0])
        >>> traj = cjx.simulate(field, c0, jnp.array([0.0, 400.0]), solver=cjx.Rodas5P())
        >>> print(f"{field.order_parameter(traj.xs[-1]):.2f}")  # below T_c = I_1(1) = .565 the tokens gather
        0.89
        ```

    **Arguments:**

    - `attention`: `SoftmaxAttention` or `UnnormalisedAttention` with a full mask; its summation is not used.
    - `value`: V, (d, d), or a schedule; None is the identity.
    - `d`: The dimension of the tokens: 2, the circle, or 3, the sphere.
    - `degree`: The highest degree of the harmonics. The state has the shape (degree + 1, 2) on the circle, and
        (degree + 1, 2 (degree + 1)) on the sphere, where half of its entries are zero.
    - `temperature`: T >= 0, or a schedule.
    - `tolerance`: The largest size of the coefficients of the highest degrees, relative to those of a single token,
        by default 1e-5.

    **Raises:**

    - `ValueError` for another attention or mask; for a degree that the kernel exceeds, with a degree that suffices; for
        a negative temperature.

    ??? cite "Source"

        Geshkovski, Letrouit, Polyanskiy, Rigollet, *A mathematical perspective on transformers* (2312.10794), Section
        3; with noise 2604.16288 and 2606.05140.
    """

    attention: AbstractAttention
    value: StoredParameter | None
    temperature: StoredParameter
    tolerance: float = eqx.field(static=True)
    d: int = eqx.field(static=True)
    degree: int = eqx.field(static=True)

    def __init__(
        self,
        attention: AbstractAttention,
        value: Parameter | None = None,
        *,
        d: int,
        degree: int,
        temperature: Parameter = 0.0,
        tolerance: RealScalarLike = TAIL_TOLERANCE,
    ):
        if not isinstance(attention, SoftmaxAttention | UnnormalisedAttention):
            rule = "be SoftmaxAttention or UnnormalisedAttention, whose kernel is an exponential"
            raise refusal("attention", rule, f"it is {shown(attention)}", "pass one of these")
        if not isinstance(attention.mask, FullMask):
            problem = f"it is {shown(attention.mask)}: a density has no order of tokens"
            raise refusal("attention.mask", "be FullMask()", problem, "leave it out")
        refuse_position(attention, "attention.position", "a density has no order of tokens")
        self.d = check_integer(d, "d", least=2, most=3, remedy="pass 2, the circle, or 3, the sphere")
        self.degree = check_integer(degree, "degree", remedy="pass the highest degree of harmonics, such as 32")
        check_size(self.d, self.degree)
        self.tolerance = check_number(tolerance, "tolerance", above=0, below=1, remedy="pass a number such as 1e-5")
        # `Dense` replaces `Auto`, whose choice in `simulate` would be made for tokens, and not for coefficients.
        self.attention = eqx.tree_at(lambda node: node.summation, attention, Dense())
        self.value = as_parameter(value, "value")
        self.temperature = as_parameter(temperature, "temperature")
        check_square(self.value, "value")
        check_dimension(self.value, "value", self.d)
        check_dimension(attention.query_key, "query_key", self.d)
        check_temperature(self.temperature)
        check_degree(attention, self.d, self.degree)

    @property
    def space(self) -> Euclidean:
        """All of R^d: the only constraint on coefficients is the mass, which the field conserves."""
        return Euclidean()

    @property
    def basis(self) -> Basis:
        """The harmonics, the grid and the transforms."""
        return _BASES[self.d]

    def check(self, n: int, d: int, name: str = "x0") -> None:
        expected = (self.degree + 1, self.basis.columns(self.degree))
        if (n, d) != expected:
            rule = f"hold the coefficients of a density up to degree {self.degree}, {expected}"
            remedy = "make it of tokens by to_coefficients, or of a density by from_density"
            raise refusal(name, rule, f"its shape is {(n, d)}", remedy)

    def _state(self, c: Coefficients, name: str = "c") -> Coefficients:
        """`c` as an array, or a ValueError unless it has the shape of the coefficients."""
        c = check_tokens(c, name)
        n, width = c.shape
        self.check(n, width, name)
        return c

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        c = self.enter(self._state(x, "x"))
        flux = self.basis.values(self.degree, c)[None] * self._velocity(c, t)
        moved = self.basis.divergence(self.degree, flux)
        temperature = at_time(self.temperature, t, c.dtype)
        return moved - temperature * jnp.asarray(self._laplacian(), c.dtype)[:, None] * c

    def to_coefficients(self, x: Tokens, masses: Masses | Numbers | None = None) -> Coefficients:
        """The coefficients of tokens: the means of the harmonics over them.

        **Arguments:**

        - `x`: Tokens, (n, d), which are normalised.
        - `masses`: (n,), not negative and not all zero; None gives each token the mass one.

        **Returns:**

        The coefficients, up to the degree of this field, in the dtype of `x`.

        **Raises:**

        - `ValueError` if `x` is not (n, d), or `masses` not (n,).
        """
        x = check_tokens(x)
        check_dimension_of(x, self.d)
        x = Sphere().retract(x)
        masses = check_masses(masses)
        check_number_of_masses(masses, len(x))
        masses = jnp.ones(len(x), x.dtype) if masses is None else jnp.asarray(masses, x.dtype)
        shares = masses / jnp.sum(masses)
        return means(self.basis, self.degree, x, shares)

    def from_density(self, density: Callable[[Tokens], Array]) -> Coefficients:
        """The coefficients of a density, normalised to mass one.

        **Arguments:**

        - `density`: A function of points, (n, d), that returns the density up to a constant factor, (n,).

        **Returns:**

        The coefficients, up to the degree of this field.

        **Raises:**

        - `ValueError` if `density` is not such a function, or its integral is not positive.
        """
        signature = "a function of points (n, d)"
        check_callable(density, "density", signature, takes=1)
        points = jnp.asarray(self.basis.grid(self.degree).points)
        values = call_traced(density, "density", signature, points)
        values = check_array(values, "density(points)", shape=(len(points),), remedy="return a number a point")
        c = self.basis.integrals(self.degree, values.astype(points.dtype))
        if is_concrete(c) and not float(c[0, 0]) > 0:
            problem = f"its mean is {float(c[0, 0]):.3g}"
            raise refusal("density", "have a positive integral", problem, "pass one that has mass")
        return c / c[0, 0]

    def density(self, c: Coefficients, points: Tokens) -> Float[Array, " n"]:
        """The density of mass one with respect to arc length, or area.

        **Arguments:**

        - `c`: Coefficients.
        - `points`: (n, d), which are normalised.

        **Returns:**

        The values of the density, (n,); a truncated series may be negative where the density is small.

        **Raises:**

        - `ValueError` if the shapes do not fit.
        """
        c, points = self._state(c), check_tokens(points, "points")
        check_dimension_of(points, self.d, "points")
        unit = Sphere().retract(points).astype(c.dtype)
        return values_at(self.basis, self.degree, c, unit) / self.basis.area

    def sample(self, c: Coefficients, key: PRNGKeyArray, n: int) -> Tokens:
        """`n` independent tokens of the density, (n, d).

        **Arguments:**

        - `c`: Coefficients of a density; no tokens are drawn where it is negative.
        - `key`: PRNG key.
        - `n`: The number of tokens.

        **Raises:**

        - `ValueError` if the shapes do not fit, or `n` is not a positive integer.
        """
        return draw(self.basis, self.degree, self._state(c), check_key(key), check_integer(n, "n"))

    def smoothed(self, c: Coefficients, time: RealScalarLike) -> Coefficients:
        """The coefficients after a heat flow, which smooths the density of a few tokens.

        **Arguments:**

        - `c`: Coefficients.
        - `time`: The time of the heat flow at unit temperature, not negative; the width of the kernel is sqrt(2 time).
        """
        time = check_number(time, "time", least=0, remedy="pass how long to smooth, such as 0.01")
        c = self._state(c)
        return jnp.asarray(np.exp(-time * self._laplacian()), c.dtype)[:, None] * c

    def mean_token(self, c: Coefficients) -> Float[Array, " d"]:
        """The mean of the tokens, (d,)."""
        first = self._state(c)[1] / self.d**0.5
        # On the sphere the harmonics of degree one are z, x, y.
        return first if self.d == 2 else jnp.stack([first[2], first[3], first[0]])

    def order_parameter(self, c: Coefficients) -> Scalar:
        """The norm of the mean of the tokens: 0 for the uniform density, 1 for a single cluster."""
        return jnp.linalg.norm(self.mean_token(c))

    def lowest(self, c: Coefficients) -> Scalar:
        """The minimum of the density on the grid, with respect to the uniform measure: not negative if resolved."""
        return jnp.min(self.basis.values(self.degree, self._state(c)))

    def tail(self, c: Coefficients) -> Scalar:
        """The resolution of the density: the largest root mean square of the coefficients of a degree, over the highest
        eighth of the degrees, relative to a single token."""
        c = self._state(c)
        highest = max(1, (self.degree + 1) // 8)
        harmonics = 2 if self.d == 2 else 2 * np.arange(self.degree + 1)[-highest:] + 1
        sizes = jnp.sum(jnp.square(c[-highest:]), axis=1) / jnp.asarray(harmonics, c.dtype)
        return jnp.sqrt(jnp.max(sizes))

    def energy(self, c: Coefficients, t: RealScalarLike = 0.0) -> Scalar:
        """The interaction energy $1/(2β) ∬ exp(β⟨x, By⟩) dμ dμ$.

        The offset of `UnnormalisedAttention` is subtracted from the exponent.

        **Arguments:**

        - `c`: Coefficients.
        - `t`: The time, for parameters that depend on it.
        """
        c = self._state(c)
        check_time(t)
        sums, beta = self._sums(c, t), self._parameters(t, c)[0]
        weights = jnp.asarray(self.basis.grid(self.degree).weights, c.dtype)
        mean = jnp.sum(weights * self.basis.values(self.degree, c) * sums.mass)
        return jnp.exp(sums.shift - self._offset(t, c)) * mean / (2 * beta)

    def entropy(self, c: Coefficients) -> Scalar:
        """$-∫ log(dμ/dσ) dμ$ with the uniform σ: 0 for the uniform density, negative for others.

        **Arguments:**

        - `c`: Coefficients of a density that is positive.
        """
        values = self.basis.values(self.degree, self._state(c))
        weights = jnp.asarray(self.basis.grid(self.degree).weights, values.dtype)
        return -jnp.sum(weights * jnp.where(values > 0, values * jnp.log(jnp.where(values > 0, values, 1)), 0))

    def free_energy(self, c: Coefficients, t: RealScalarLike = 0.0) -> Scalar:
        """The free energy: minus the temperature times the entropy, minus the interaction energy. Along unnormalised
        attention with V = B = I the free energy decreases at the rate `dissipation`.

        **Arguments:**

        - `c`: Coefficients of a density that is positive.
        - `t`: The time, for parameters that depend on it.
        """
        c = self._state(c)
        check_time(t)
        return -at_time(self.temperature, t, c.dtype) * self.entropy(c) - self.energy(c, t)

    def dissipation(self, c: Coefficients, t: RealScalarLike = 0.0) -> Scalar:
        """$∫ |v - T ∇log μ|² dμ$: the rate at which the free energy of unnormalised attention decreases.

        **Arguments:**

        - `c`: Coefficients of a density that is positive.
        - `t`: The time, for parameters that depend on it.

        **Raises:**

        - `ValueError` for softmax attention, and for V or B other than the identity: these flows are not gradient flows
            of the free energy.
        """
        if not isinstance(self.attention, UnnormalisedAttention) or self.value is not None:
            rule = "be UnnormalisedAttention and value None, for only that flow follows a gradient of the free energy"
            value = "None" if self.value is None else "a matrix"
            problem = f"they are {type(self.attention).__name__} and {value}"
            raise refusal("attention", rule, problem, "build such a field")
        c = self._state(c)
        check_time(t)
        values = self.basis.values(self.degree, c)
        slope = self.basis.gradients(self.degree, c) / values[None]
        speed = self._velocity(c, t) - at_time(self.temperature, t, c.dtype) * slope
        weights = jnp.asarray(self.basis.grid(self.degree).weights, c.dtype)
        return jnp.sum(weights * values * jnp.sum(speed * speed, axis=0))

    def _laplacian(self) -> np.ndarray:
        """Minus the eigenvalues of the Laplacian, by degree."""
        l = np.arange(self.degree + 1)
        return l * (l + self.d - 2.0)

    def _parameters(self, t: RealScalarLike, c: Coefficients) -> tuple[Scalar, Array | None]:
        attention = self.attention
        assert isinstance(attention, SoftmaxAttention | UnnormalisedAttention)
        return at_time(attention.beta, t, c.dtype), at_time(attention.query_key, t, c.dtype)

    def _offset(self, t: RealScalarLike, c: Coefficients) -> Scalar:
        """The number that is subtracted from the exponents of unnormalised attention."""
        offset = self.attention.offset if isinstance(self.attention, UnnormalisedAttention) else 0.0
        return at_time(offset, t, c.dtype)

    def _sums(self, c: Coefficients, t: RealScalarLike) -> Sums:
        beta, form = self._parameters(t, c)
        if form is None:
            return zonal_sums(self.basis, self.degree, c, beta)
        points = jnp.asarray(self.basis.grid(self.degree).points, c.dtype)
        # Rows are points: row i of x B is the query B^T x_i.
        queries = beta * matmul(points, form)
        shift = lax.stop_gradient(jnp.sqrt(jnp.max(jnp.sum(queries * queries, axis=1))))
        return pair_sums(self.basis, self.degree, c, queries, shift)

    def _velocity(self, c: Coefficients, t: RealScalarLike) -> Float[Array, "frame M"]:
        """The components of the velocity along the frame, on the grid."""
        sums = self._sums(c, t)
        if isinstance(self.attention, SoftmaxAttention):
            average = sums.tokens / sums.mass[:, None]
        else:
            average = jnp.exp(sums.shift - self._offset(t, c)) * sums.tokens
        value = at_time(self.value, t, c.dtype)
        moved = average if value is None else matmul(average, value.T)
        return einsum("md,fmd->fm", moved, jnp.asarray(self.basis.grid(self.degree).frame, c.dtype))


# Watches the coefficients of the highest degrees, and ends a run when they no longer resolve the density.
#
# **Invariant.** No run of a `MeanField` continues beyond the time at which its highest coefficients exceed the limit.


# A start whose highest coefficients are larger is the density of a few tokens, which no degree resolves.
_ROUGH = 0.05
# The largest growth of the highest coefficients since the start, if they exceed the tolerance.
_GROWTH = 4.0


class Unresolved(eqx.Module):
    """The condition of an event of diffrax: the highest coefficients exceed the limit."""

    field: AbstractMeanField
    limit: Scalar

    def __call__(self, t, y, args, **kwargs) -> Bool[Array, ""]:
        # NaN counts as not resolved.
        return ~(self.field.tail(y) <= self.limit)


def unresolved(field: Any, c0: Array) -> Unresolved | None:
    """The condition that ends a run of `field` from `c0`, by the first mean field within `field`; None without one.

    **Raises:**

    - `ValueError` if no degree resolves `c0`, and no noise smooths the density.
    """
    parts = [part for part in jtu.tree_leaves(field, is_leaf=_is_mean) if _is_mean(part)]
    if not parts:
        return None
    mean = parts[0]
    tail = mean.tail(c0)
    if is_concrete((tail, mean.temperature)) and float(tail) > _ROUGH and not np.any(np.asarray(mean.temperature)):
        rule = f"be the coefficients of a density that degree {mean.degree} resolves"
        problem = f"those of its highest degrees are {float(tail):.2g} of what a single token has"
        remedy = "take more tokens, smooth them with MeanField.smoothed, or give the field a temperature"
        raise refusal("x0", rule, problem, remedy)
    return Unresolved(mean, jax.lax.stop_gradient(jnp.maximum(mean.tolerance, _GROWTH * tail)).astype(c0.dtype))


def _is_mean(part: Any) -> bool:
    return isinstance(part, AbstractMeanField)
