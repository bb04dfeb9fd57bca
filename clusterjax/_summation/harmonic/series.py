"""The interface of a kernel expansion: additive moments of the tokens, and sums that are evaluated from the moments.

A series of degree L approximates $exp(⟨q, y⟩) ≈ ∑_{l ≤ L} a_l(|q|) ∑_m Y_{lm}(q / |q|) Y_{lm}(y)$ (addition theorem,
DLMF 14.30.9) by products of functions of the query and of the token, so that n tokens and n queries each cost O(n).
Each dimension has a series for queries of one common length and a series for any lengths.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import i0e, i1e
from jaxtyping import Array, Float

from ..._base.numerics import matmul
from ..._base.types import AbstractPart, Masses, Scalar, Tokens


# The coefficients of exp(κt) in zonal harmonics of the circle and the spheres, scaled by $e^{-κ}$.
#
# **Algorithm.** On $S^{d-1}$, $exp(κt) = ∑_l N_l a_l(κ) P_l(t)$ with $P_l(1) = 1$, $N_l$ harmonics of degree l, and
# $a_l(κ) = Γ(d/2) (2/κ)^{d/2-1} I_{l+d/2-1}(κ)$: for d = 2 the Bessel function $I_l$, for d = 3 the spherical $i_l$,
# for d = 4 $2 I_{l+1}/κ$. $a_0$ has a closed form. The others are products of ratios $a_l / a_{l-1}$ from the backward
# three-term recurrence (Gautschi, *Computational aspects of three-term recurrence relations*, 1967; bounds of a ratio:
# Amos, *Computation of modified Bessel functions and their ratios*, 1974).
#
# **Invariants.** Forward recurrence is unstable and never used; nothing overflows for any kappa >= 0.


def length_and_direction(queries: Tokens) -> tuple[Float[Array, " n"], Tokens]:
    """|q| and q / |q| of each query; for a query of zero, a tiny length and the direction zero."""
    # The tiny number under the root keeps its derivative finite at zero, and vanishes by rounding elsewhere.
    length = jnp.sqrt(jnp.sum(queries * queries, axis=1) + float(jnp.finfo(queries.dtype).tiny) ** 0.5)
    return length, queries / length[:, None]


def bessel_ratios(kappa: Float[Array, "..."], degree: int, d: int) -> Float[Array, "degrees ..."]:
    """$a_l / a_{l-1}$ for l = 1, ..., `degree`, by the backward recurrence $r_l = κ / (2ν + κ r_{l+1})$.

    Here $ν = l + d/2 - 1$. The start lies between known bounds of a ratio, and each step reduces its error by the
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
    """$e^{-κ} a_0(κ)$, the mean over the sphere of $exp(κ(t - 1))$, for d = 2, 3, 4."""
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
    """$e^{-κ} a_l(κ)$ for l = 0, ..., `degree`, without overflow for any κ ≥ 0."""
    mean = mean_kernel(kappa, d)[None]
    if degree == 0:
        return mean
    return jnp.concatenate([mean, mean * jnp.cumprod(bessel_ratios(kappa, degree, d), axis=0)])


def held_scale(kappa: Float[Array, " n"]) -> Float[Array, " n"]:
    """The value 1 with the derivative of $e^κ$, which cancels the derivative of the factor $e^{-κ}$."""
    return jnp.exp(kappa - lax.stop_gradient(kappa))


def number_of_harmonics(degree: int, d: int) -> int:
    """The number of harmonics of exactly this degree on the sphere of R^d, d >= 2."""
    if degree == 0:
        return 1
    return (2 * degree + d - 2) * math.comb(degree + d - 3, d - 2) // degree if d > 2 else 2


# Bounds of the rounding errors of a series, in units of the unit roundoff u = eps / 2; see `certificate.py`.
#
# **Reference.** Higham, *Accuracy and stability of numerical algorithms*, sections 3.1, 3.6 and 4.2. **Invariant.**
# Bounds are for the worst case, of first order in u. The error of a sum of k numbers in any order is at most k u times
# the sum of their absolute values; a product and an entry of a table have errors of one unit each. The counts below are
# those of the operations in the series, rounded up.
#
# - **Features.** Powers of a complex number, built of products in any order, have errors of `POWER` units for each
#   multiple: sqrt(5) for a product of complex numbers, and 3 since the modulus of the number has a rounding error.
# - **Bessel functions.** One step of the recurrence of ratios rounds three times. An error of $r_j$ enters $r_{j-1}$
#   with the opposite sign and reduced, so that the product $r_1 ⋯ r_l$ changes by at most this error, for j > l reduced
#   by $r_{l+1} ⋯ r_j$ squared, whose sum over j is below $√(πκ) / 2$. With the products, and 8 units for $a_0$, the
#   error of $a_l$ is $8 + 4l + 2.7√κ$ units. A degree that serves lengths up to kappa is more than $√(18κ)$, which
#   gives `bessel_units`.


# The units of u per power of e^{i theta}: sqrt(5) + 3, as derived above.
POWER = 5.25


class TokenRounding(NamedTuple):
    """The errors of the features of one token, in units: at any degree, and in addition for each degree."""

    features: float
    growth: float


def bessel_units(degree: int) -> np.ndarray:
    """The relative error of the coefficients of all degrees up to `degree`, in units."""
    return 8 + 4.0 * np.arange(degree + 1) + 0.65 * degree


def roots(degree: int, d: int) -> np.ndarray:
    """The norm $√N_l$ of the vector of all harmonics of degree l at any point."""
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


def pairwise_depth(count: int) -> int:
    """The depth of the tree in which pairwise summation adds `count` numbers."""
    return math.ceil(math.log2(max(count, 1)))


class AbstractSeries(AbstractPart):
    """An expansion of $exp(⟨q, y⟩)$ for unit tokens y, truncated at a fixed degree, without data.

    The sums depend on the tokens only through their scalar moments, of one degree more than the series:
    $∇_q exp(⟨q, y⟩) = y exp(⟨q, y⟩)$. Moments are a tree of arrays of the tokens' dtype, and they are additive over
    chunks of tokens and over devices.

    Derivatives are of the sums with a fixed scale $exp(-|q_i|)$, as in `ExponentialSums`: the `length` given to
    `coefficients` carries no derivative. Derivatives with respect to tokens are tangential.
    """

    # The highest degree of the truncated series, and True for queries of one length, False for queries of any lengths.
    degree: int = eqx.field(static=True)
    one_length: bool = eqx.field(static=True)
    dimension: eqx.AbstractClassVar[int]
    token_rounding: eqx.AbstractClassVar[TokenRounding]
    # The number of tokens summed in an order that the device chooses, a divisor of the size of a chunk.
    block: ClassVar[int] = 64

    @abstractmethod
    def chunk_size(self, dtype: Any, causal: bool) -> int:
        """The number of tokens to sum at once, such that their features fit the cache of a core."""

    @abstractmethod
    def empty(self, dtype: Any) -> Any:
        """The moments of no tokens."""

    @abstractmethod
    def moments(self, tokens: Tokens, masses: Masses) -> Any:
        """The moments of a chunk of unit tokens with these masses, of either sign."""

    @abstractmethod
    def coefficients(self, moments: Any, length: Scalar) -> Any:
        """The input of `evaluate`, made once from the moments; `length` is the common length of queries, if any."""

    @abstractmethod
    def evaluate(self, queries: Tokens, coefficients: Any) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        """The sums $∑_j m_j exp(⟨q_i, y_j⟩ - |q_i|)$ of masses and of mass times token."""

    @abstractmethod
    def error_terms(self, moments: Any, length: Scalar, gradients: bool) -> Any:
        """The input of `rounding`, made once from the moments; without `gradients` for the sum of masses alone."""

    @abstractmethod
    def rounding(self, error_terms: Any, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        """A bound of the errors of `coefficients` and `evaluate` in the largest of the sums of each query, in units of
        the unit roundoff, for exact moments; `lengths` are the norms of the queries."""


def cached_chunk(degree: int, dtype: Any, causal: bool, size: int = 36_000) -> int:
    """A power of two, at least 256, for which `degree` numbers for each token are about `size` bytes.

    Causal sums use at most 512, since they sum the pairs of a chunk.
    """
    # With fewer than 256 tokens, the fixed work for each chunk would dominate.
    fitting = size / (max(degree, 1) * jnp.dtype(dtype).itemsize)
    return 2 ** min(max(round(math.log2(fitting)), 8), 9 if causal else 11)


# The degree at which a series may be truncated: a bound of the tail of the kernel, and its inverse in the length.
#
# The bound is the tail at t = 1, where every zonal harmonic is largest, so that it holds for all angles.
# `largest_length` inverts the bound: the largest query that a series of given degree serves. Both use float64 NumPy at
# trace time.


@functools.cache
def tail(kappa: float, degree: int, d: int) -> float:
    """The largest contribution of degrees above `degree` to $exp(κ(t - 1))$ on the sphere of R^d, at t = 1."""
    if kappa == 0:
        return 0.0
    from scipy.special import gammaln, ive  # a late import, since it takes as long as a small run

    order = d / 2 - 1
    # Terms fall like e^{-l^2 / (2 kappa)}: the remaining degrees are below the rounding of float64.
    degrees = np.arange(degree + 1, degree + 20 + int(12 * math.sqrt(kappa + 1)))
    number = np.asarray([number_of_harmonics(int(k), d) for k in degrees], float)
    scale = math.exp(gammaln(d / 2) + order * math.log(2 / kappa))
    return float(scale * np.sum(number * ive(degrees + order, kappa)))


@functools.cache
def largest_length(degree: int, d: int, tolerance: float) -> float:
    """The largest |q| that a series of this degree serves, to three digits."""
    # Lengths grow like degree^2 over the logarithm of the tolerance: no degree serves the upper end.
    low, high = 0.0, 10.0 * degree**2 + 1
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, degree, d) <= tolerance else (low, middle)
    return low


# Series for queries of one length, with derivatives in queries of any length.
#
# **Algorithm.** The coefficients of a series for one length kappa contain the Bessel functions of kappa, so that an
# evaluation depends only on directions. Derivatives then lack the change of the sums with the length of a query:
# `one_length_sums` adds this change by a custom JVP, from the derivative of the coefficients with respect to kappa.
#
# **Reference.** `jax.custom_jvp`: JAX documentation, *Custom derivative rules*. **Invariants.** Values depend on the
# directions and the common length alone; first and second derivatives are those of the sums that each query would have
# with a series for its own length; the scale exp(-|q|) carries no derivative.


Make = Callable[[Any, Scalar], Any]
Sums = tuple[Float[Array, " n"], Float[Array, "n k"]]


class OneLength(NamedTuple):
    """The coefficients of a series for queries of one common length, with their inputs."""

    moments: Any
    # The norm of the queries, without derivative.
    length: Scalar
    # The coefficients for `length`, from which the sums are evaluated, and their derivative with respect to it.
    at_length: Any
    derivative: Any


def make_one_length(make: Make, moments: Any, length: Scalar) -> OneLength:
    """The coefficients `make(moments, length)` and their derivative with respect to the length."""
    length = lax.stop_gradient(length)
    return OneLength(moments, length, make(moments, length), length_derivative(make, moments, length))


def one_length_sums(make: Make, apply: Callable[[Tokens, Any], Sums], queries: Tokens, coefficients: OneLength) -> Sums:
    """Evaluate `apply(directions, make(moments, length))`, differentiable in queries of any length.

    `apply` is linear in its second argument, so that the derivative of the sums with respect to the length is `apply`
    of the derivative of the coefficients.

    The first and second derivatives are those of sums made for the length of each query, with a fixed scale e^{-|q|}:
    the change of the sums with the length is added in the derivative rule. A third derivative raises a ValueError.
    """
    kappa, direction = length_and_direction(queries)
    moments, length, at_length, _ = coefficients
    first, second = _sums((make, apply), kappa, direction, moments, length, at_length)
    # The coefficients contain e^{-kappa}, whose derivative is cancelled, as for a shift.
    scale = held_scale(kappa)
    return first * scale, second * scale[:, None]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sums(fns, kappa, direction, moments, length, at_length) -> Sums:
    # `kappa`, `moments` and `length` are arguments only for the rule below; the value needs only the coefficients.
    return fns[1](direction, at_length)


@_sums.defjvp
def _(fns, primals, tangents):
    make, apply = fns
    kappa, direction, moments, length, _ = primals
    derivative = partial(length_derivative, make)
    # The derivative of both sums with respect to kappa is computed through `_sums`, so that the result can be
    # differentiated once more.
    by_length = _sums((derivative, apply), kappa, direction, moments, length, derivative(moments, length))
    change = zero_with_tangent(kappa)

    def at_own_length(direction, moments):
        # A first-order Taylor expansion in kappa - length. The change is zero in value and has the tangent of kappa, so
        # that mixed second derivatives (direction or moments, and length) are right.
        first, second = apply(direction, make(moments, length))
        first_derivative, second_derivative = apply(direction, derivative(moments, length))
        return first + change * first_derivative, second + change[:, None] * second_derivative

    # Reverse mode transposes the part that is linear in the tangents, and differentiates only the primal values in it:
    # the dependence on kappa must be part of these values.
    along = jax.jvp(at_own_length, (direction, moments), (tangents[1], tangents[2]))[1]
    tangent = along[0] + tangents[0] * by_length[0], along[1] + tangents[0][:, None] * by_length[1]
    return _sums(fns, *primals), tangent


def length_derivative(make: Make, moments: Any, length: Scalar) -> Any:
    """The derivative of the coefficients `make(moments, length)` with respect to the length."""
    return jax.jvp(lambda length: make(moments, length), (length,), (jnp.ones_like(length),))[1]


@jax.custom_jvp
def zero_with_tangent(kappa: Float[Array, " n"]) -> Float[Array, " n"]:
    """Zero, with the derivative of `kappa`; a further derivative of this derivative raises a ValueError."""
    return jnp.zeros_like(kappa)


@zero_with_tangent.defjvp
def _(primals, tangents):
    return zero_with_tangent(*primals), tangents[0] * _unit_tangent(*primals)


@jax.custom_jvp
def _unit_tangent(kappa: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.ones_like(kappa)


@_unit_tangent.defjvp
def _(primals, tangents):
    # A third derivative would silently miss the terms of second order in kappa - length.
    raise ValueError(
        "Harmonic has no third derivatives with respect to queries of one length; take summation=Blocked() for them."
    )


# The sums of mass and of mass times token, with derivatives that are sums of the same form.
#
# **Algorithm.** For $f(q) = ∑_j m_j exp(⟨q, y_j⟩)$, the sums of mass times token are ∇f, and their derivatives are
# $∇²f = ∑_j m_j y_j y_j^T exp(⟨q, y_j⟩)$. Harmonics times coordinates are harmonics of neighbouring degrees
# (`DegreeShift`), so that one set of moments gives the coefficients of value, gradient and Hessian, and no angle is
# differentiated.
#
# **Reference.** Multiplication by coordinates: DLMF 14.10.3 for the sphere. **Invariant.** Each multiplication by a
# coordinate loses the highest degree: moments have two degrees more than their series.


class Derived(NamedTuple):
    """Coefficients, or other data of sums: for value and gradient, and for the Hessian."""

    # For mass times 1 and times each of the d coordinates, along the leading axis or the axis "functions".
    first: Any
    # For mass times the products of two coordinates, by rows of the upper triangle; only derivatives use this part.
    second: Any


def derived(parts: Array, times_coordinates: Callable[[Array], Array]) -> Derived:
    """Both sets of harmonics from `parts`, the harmonics of the masses; valid up to two degrees less than `parts`."""
    by = times_coordinates(parts)
    # The products y_a y_b are taken for b >= a, since the matrix is symmetric.
    second = [times_coordinates(part)[a:] for a, part in enumerate(by)]
    return Derived(jnp.concatenate([parts[None], by]), jnp.concatenate(second))


def _products(second: Float[Array, "pairs n"], vectors: Tokens) -> Float[Array, "d n"]:
    """The symmetric matrix of each token, given by its upper half, times the vector of that token."""
    d = vectors.shape[1]
    # The index of entry (a, b) among the products of the upper triangle.
    index = np.zeros((d, d), int)
    index[np.triu_indices(d)] = np.arange(second.shape[0])
    index = np.maximum(index, index.T)
    # The product is written out over the at most four coordinates, so that the n matrices are never built.
    return jnp.stack([sum(second[index[a, b]] * vectors[:, b] for b in range(d)) for a in range(d)])


Evaluate = Callable[[int, Tokens, Any], Array]


def with_derivatives(first: Evaluate, second: Evaluate, moved_coefficients: Any = None) -> Evaluate:
    """`first(degree, queries, coefficients)`, (1 + d, n), whose derivatives are sums too, with the scale held fixed.

    The derivative with respect to queries uses `second`, the Hessian: no angle is differentiated. The derivative with
    respect to coefficients is `moved_coefficients(degree, queries, coefficients, their tangent)` or, by default,
    `first` of the tangent, since `first` is linear in the coefficients. Higher derivatives differentiate `second`,
    angles included. At a pole, the azimuth is undefined and its derivative is set to zero: first derivatives are right
    there, and second derivatives only along the polar axis, which is the direction of the query.
    """

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def sums(degree, queries, coefficients):
        return first(degree, queries, coefficients)

    @sums.defjvp
    def _(degree, primals, tangents):
        queries, coefficients = primals
        queries_dot, coefficients_dot = tangents
        out = sums(degree, queries, coefficients)
        # The derivative of the gradient is Hessian times tangent, and of the value gradient times tangent.
        products = _products(second(degree, queries, coefficients), queries_dot)
        moved = jnp.concatenate([jnp.sum(out[1:] * queries_dot.T, axis=0)[None], products])
        if moved_coefficients is None:
            return out, moved + first(degree, queries, coefficients_dot)
        return out, moved + moved_coefficients(degree, queries, coefficients, coefficients_dot)

    return sums


def with_any_lengths(evaluate: Evaluate) -> Evaluate:
    """`with_derivatives` for a series whose coefficients, a `Derived`, do not depend on the lengths of the queries."""
    return with_derivatives(
        lambda degree, queries, coefficients: evaluate(degree, queries, coefficients.first),
        lambda degree, queries, coefficients: evaluate(degree, queries, coefficients.second),
    )


def with_one_length(make: Callable[[int, Array, Array], Derived], evaluate: Evaluate) -> Evaluate:
    """`with_derivatives` for a series whose coefficients are a `OneLength` of the coefficients by `make`.

    `make(degree, moments, length)` returns the coefficients, and `evaluate(degree, directions, coefficients)` sums.
    """

    def first(degree, queries, coefficients):
        return evaluate(degree, queries, coefficients.at_length.first)

    def second(degree, queries, coefficients):
        # `one_length_sums` gives the Hessian a derivative with respect to the length of each query.
        head, tail = one_length_sums(
            lambda moments, length: make(degree, moments, length).second,
            lambda directions, at_length: split(evaluate(degree, directions, at_length)),
            queries,
            coefficients._replace(at_length=coefficients.at_length.second, derivative=coefficients.derivative.second),
        )
        return jnp.concatenate([head[None], tail.T])

    def moved_coefficients(degree, queries, coefficients, tangent):
        kappa, direction = length_and_direction(queries)
        moved = evaluate(degree, direction, tangent.at_length.first)
        # The second term is zero in value, and gives the first term its derivative with respect to the length.
        by_length = evaluate(degree, direction, tangent.derivative.first)
        return held_scale(kappa)[None] * (moved + zero_with_tangent(kappa)[None] * by_length)

    return with_derivatives(first, second, moved_coefficients)


def with_token_derivatives(weighted_moments: Any, token_derivatives: Any) -> Callable[[int, Tokens, Masses], Array]:
    """`moments(degree, tokens, masses)`, whose derivatives with respect to tokens are tangential sums of the same form.

    `weighted_moments(degree, tokens, weights)` are the moments for several sets of masses. `token_derivatives(degree,
    sets)` are the moments of the sum of the derivatives in each coordinate of sets of one degree more, which the shift
    loses. Angles are never differentiated, so that the poles need no special treatment.
    """

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def moments(degree, tokens, masses):
        return weighted_moments(degree, tokens, masses[None])[0]

    @moments.defjvp
    def _(degree, primals, tangents):
        tokens, masses = primals
        tokens_dot, masses_dot = tangents
        # The weight of each coordinate's set is mass times the motion of the token along the coordinate.
        derivatives = token_derivatives(degree, weighted_moments(degree + 1, tokens, tokens_dot.T * masses[None]))
        return moments(degree, tokens, masses), moments(degree, tokens, masses_dot) + derivatives

    return moments


def split(sums: Float[Array, "k n"]) -> tuple[Float[Array, " n"], Float[Array, "n rest"]]:
    """The first sum, and the other sums by tokens."""
    return sums[0], sums[1:].T


# The two series of the spheres in three and four dimensions: for queries of one common length and of any lengths.
#
# **Algorithm.** For one length, harmonics are products of waves in the angles, so that the sums of a chunk are matrix
# products. For any lengths, a scan over the degrees uses a three-term recurrence. An instance of `Harmonics` holds the
# functions that depend on the dimension. **Reference.** Plane-wave expansion, DLMF 10.60.9. **Invariant.** Moments are
# of degree + 2: two multiplications by coordinates, for the first and second derivatives, lose two degrees.


class Harmonics(NamedTuple):
    """The functions of one dimension from which its two series are built; the first argument is mostly the degree."""

    # As in `AbstractSeries`; the last two take the degree of the moments.
    chunk_size: Callable[[int, Any, bool], int]
    empty: Callable[[int, Any], Array]
    moments: Callable[[int, Tokens, Masses], Array]
    # Coefficients of the products of waves, (degree, moments, length), and the sums from them.
    wave_coefficients: Callable[[int, Array, Scalar], Derived]
    sums_by_waves: Evaluate
    # Coefficients and sums for queries of any lengths.
    recurrence_coefficients: Callable[[int, Array], Derived]
    sums_by_recurrence: Evaluate
    # The contribution of each degree to the rounding errors, (degree, moments, gradients, by_waves).
    error_terms: Callable[[int, Array, bool, bool], Array]


class AbstractHarmonicSeries(AbstractSeries):
    """The series of a sphere: a few matrix products for each chunk of tokens with queries of one length, and a scan
    over the degrees, with Bessel functions of each query's own length, otherwise. Both have the same moments."""

    harmonics: eqx.AbstractClassVar[Harmonics]

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return self.harmonics.chunk_size(self.degree, dtype, causal)

    def empty(self, dtype: Any) -> Array:
        return self.harmonics.empty(self.degree + 2, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return self.harmonics.moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> Any:
        if self.one_length:
            return make_one_length(partial(self.harmonics.wave_coefficients, self.degree), moments, length)
        return self.harmonics.recurrence_coefficients(self.degree, moments)

    def evaluate(self, queries: Tokens, coefficients: Any) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        sums = self.harmonics.sums_by_waves if self.one_length else self.harmonics.sums_by_recurrence
        return split(sums(self.degree, queries, coefficients))

    def error_terms(self, moments: Array, length: Scalar, gradients: bool) -> Array:
        error_terms = self.harmonics.error_terms(self.degree, moments, gradients, self.one_length)
        return at_one_length(error_terms, length, self.dimension) if self.one_length else error_terms

    def rounding(self, error_terms: Array, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        if self.one_length:
            return jnp.broadcast_to(error_terms, lengths.shape)
        bessel = scaled_bessel(lengths, error_terms.shape[1] - 1, self.dimension)
        return jnp.max(matmul(error_terms, bessel), axis=0)


# Multiplication of harmonics by a coordinate, as a shift of their indices.
#
# **Algorithm.** A harmonic of degree l times a coordinate is a sum of harmonics of degrees l + 1 and l - 1. Their order
# is m for the coordinate along the polar axis, and m + 1 and m - 1 for the two coordinates across it. The derivative
# along the sphere has this form too: with $y_a Y_l = h_a + b_a$, of degrees l + 1 and l - 1, the gradient of $Y_l$
# along the sphere has the components $(l + d - 2) b_a - l h_a$ ($b_a$ is $∂_a$ of the solid harmonic, divided by 2 l +
# d - 2).
#
# **Reference.** The recurrences of Legendre functions, DLMF 14.10. **Invariant.** Results are correct up to one degree
# less than the input: the tables drop the neighbour beyond the highest degree.


class DegreeShift(NamedTuple):
    """The factors of the harmonics of degrees l + 1 and l - 1, with the degree l of the result in the last axis."""

    higher: np.ndarray
    lower: np.ndarray


class OrderShift(NamedTuple):
    """The shifts of multiplication by ρ cos φ and ρ sin φ, for functions of mφ.

    Both products have equal factors: cos and sin of phi times a wave of m phi are half the sum and half the difference
    of waves of (m + 1) phi and (m - 1) phi. The order m is along the first axis, then cosine or sine.
    """

    # The shifts for the neighbours m + 1 and m - 1.
    up: DegreeShift
    down: DegreeShift


def order_shift(up: DegreeShift, down: DegreeShift) -> OrderShift:
    """An `OrderShift` from tables for exp(imφ) with m along the first axis, without an axis of cosine and sine.

    Cosine and sine are normalised, with a factor of √2 for m > 0. A cosine with m = 0 has twice the neighbour m + 1 and
    no other; its sine is zero.
    """

    def parts(table: np.ndarray) -> np.ndarray:
        return np.repeat(table[:, None] / 2, 2, axis=1)

    ups, downs = DegreeShift(*map(parts, up)), DegreeShift(*map(parts, down))
    for table in ups:
        # The neighbour m = 1 counts twice, divided by the sqrt(2) of its normalisation.
        table[0, 0] *= np.sqrt(2)
        table[0, 1] = 0
    for table in downs:
        # Order -1 is order 1, which `ups` includes.
        table[0] = 0
        # The neighbour m = 0 is normalised without sqrt(2).
        table[1] *= np.sqrt(2)
    return OrderShift(ups, downs)


def gradient_shift(shift: DegreeShift, d: int) -> DegreeShift:
    """The shifts of the derivative along the sphere in R^d, from the shifts of multiplication."""
    degrees = np.arange(shift.higher.shape[-1])
    return DegreeShift(-degrees * shift.higher, (degrees + d - 2) * shift.lower)


def shift_degree(moments: Array, shift: DegreeShift) -> Array:
    """A multiplication that changes only the degree; contributions from beyond the highest degree are left out."""
    # With padding by one on either side, index l + 1 is degree l: [2:] are the higher neighbours, [:-2] the lower.
    padded = jnp.pad(moments, ((0, 0),) * (moments.ndim - 1) + ((1, 1),))
    higher, lower = (jnp.asarray(table, moments.dtype) for table in shift)
    return higher * padded[..., 2:] + lower * padded[..., :-2]


def shift_order(moments: Array, turn: OrderShift) -> tuple[Array, Array]:
    """Multiplication by ρ cos φ and ρ sin φ; axes of `moments`: m, cosine or sine, any others, l."""
    padded = jnp.pad(moments, ((1, 1),) + ((0, 0),) * (moments.ndim - 1))
    after, before = padded[2:], padded[:-2]
    by_cosine = shift_degree(after, turn.up) + shift_degree(before, turn.down)
    # sin(phi) exchanges cosines and sines, hence the reversed second axis: sin a cos b and cos a sin b.
    by_sine = shift_degree(after[:, ::-1], turn.up) - shift_degree(before[:, ::-1], turn.down)
    sign = jnp.asarray([1, -1], moments.dtype).reshape((2,) + (1,) * (moments.ndim - 2))
    return by_cosine, sign[None] * by_sine


# Waves: the cosines and sines of the multiples of an angle. Harmonics are sums of products of waves.
#
# **Algorithm.** An angle is the pair of its cosine and sine, computed from coordinates without trigonometric functions.
# Complex multiplication gives the multiples: each step of a loop makes an even and an odd multiple. **Reference.** The
# addition theorems, DLMF 4.21.2 and 4.21.3; `POWER` for the growth of errors. **Invariants.** At most k complex
# products make the k-th multiple; at the poles, where an angle is undefined, it is zero and its derivative finite.


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
