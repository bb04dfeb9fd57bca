"""`branch`: order parameter of noisy attention against temperature, stable or not, with fold and coexistence.

The sections below describe the equations, their solution, and the growth of perturbations. **Invariants.** Points are
sorted by the order parameter, which parametrises the branch. A point is stable if no perturbation grows, except for
rotations of the density. All computations are in float64, whatever the settings of jax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
from jax import lax
from jaxtyping import Array, Float

from .._base.checks import (
    call_traced,
    check_array,
    check_host_array,
    check_instance,
    check_integer,
    check_room,
    check_tokens,
    refusal,
    shown,
)
from .._base.numerics import as_array, double_precision, is_concrete, matmul
from .._base.types import Numbers, Scalar
from .._model.attention import KernelAttention, SoftmaxAttention, UnnormalisedAttention
from .._model.density import MeanField
from .._model.mask import FullMask
from .._model.position import refuse_position
from .._model.schedule import AbstractSchedule
from .._observables import uniform_growth_rates
from .._summation.harmonic.series import number_of_harmonics


# `stationary` finds a stationary density of a mean field near a guess, and the growth rate of its perturbations.
#
# **Algorithm.** Newton's method solves for all coefficients except the mass, which the field conserves. With V = B =
# I a rotated density is stationary too, so that the Jacobian is singular along rotations. Each step is therefore the
# minimum-norm solution of the linear equations, by the singular value decomposition. Newton's method with the
# pseudoinverse converges quadratically to a point of a manifold of zeros whose tangent space is the null space.
# **Reference.** Allgower and Georg, *Introduction to Numerical Continuation Methods*, 2003, chapter 3. **Invariant.**
# The eigenvalues of rotations that leave the velocity zero are removed, as many as there are independent rotations.


# Singular values below this fraction of the largest belong to rotations.
_RANK = 1e-9
# The largest velocity of a rotated density, relative to a mode that decays at rate one, that counts as zero.
_SYMMETRY = 1e-6

# A truncated series may be this negative where the density is nearly zero; lower roots are not densities.
_NEGATIVE = -0.01


class Stationary(NamedTuple):
    """A stationary density.

    **Attributes:**

    - `coefficients`: The coefficients of the density.
    - `residual`: The largest velocity of a coefficient.
    - `growth_rate`: The largest real part of an eigenvalue of the linearised flow, excluding rotations; the density is
        stable if negative.
    - `rotations`: The number of independent rotations of the density that are stationary too.
    """

    coefficients: Array
    residual: float
    growth_rate: float
    rotations: int


def stationary(field: MeanField, guess: Array) -> Stationary:
    r"""Find a stationary density of `field` near `guess`, stable or not.

    Requires double precision, with `jax_enable_x64` set: Newton's method reaches 1e-8 and below, where rotations can be
    distinguished from growth, whereas float32 reaches only 1e-6.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> with jax.enable_x64(True):
        ...     field = cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=16, temperature=0.3)
        ...     state = cjx.phase.stationary(field, field.from_density(lambda x: jnp.exp(3 * x[:, 0])))
        ...     print(f"{field.order_parameter(state.coefficients):.2f}", state.growth_rate < 0, state.rotations)
        0.89 True 1
        ```

    **Arguments:**

    - `field`: A `MeanField` whose parameters do not depend on time.
    - `guess`: Coefficients near the solution, in float64, because Newton's method is local.

    **Returns:**

    A `Stationary`.

    **Raises:**

    - `ValueError` if the shapes do not fit, the coefficients are not float64, or Newton's method does not converge from
        `guess` to a density.
    """
    check_instance(field, "field", MeanField, "a MeanField", "build one")
    guess = check_tokens(guess, "guess")
    shape = (guess.shape[0], guess.shape[1])
    expected = (field.degree + 1, field.basis.columns(field.degree))
    if shape != expected:
        problem = f"its shape is {shape}"
        raise refusal(
            "guess", f"hold coefficients up to degree {field.degree}, {expected}", problem, "make it by the field"
        )
    if guess.dtype != jnp.float64:
        raise refusal(
            "guess",
            "be float64, since Newton's method to 1e-8 needs double precision",
            f"it is {guess.dtype}",
            'call jax.config.update("jax_enable_x64", True) first and make it again',
        )
    if not is_concrete((field, guess)):
        raise refusal("guess", "be an array of numbers", "it is traced", "call this function outside of jax.jit")
    free = _free(field, shape)
    velocity = _Velocity(field, jnp.asarray(np.flatnonzero(free)), shape)
    start = guess.ravel()[velocity.free]
    c, good = _newton(velocity, start)
    full = velocity.embed(c)
    if not bool(good) or float(field.lowest(full)) < _NEGATIVE:
        raise refusal(
            "guess",
            "be near a stationary density",
            "Newton's method found none from it" if not bool(good) else "the one near it is negative somewhere",
            "run the flow for a while from there, or follow a branch by clusterjax.phase.branch",
        )
    matrix = np.asarray(_jacobian(velocity, c), float)
    turned = _rotations(field, full)[:, free]
    neutral = [g for g in turned if np.linalg.norm(matrix @ g) < _SYMMETRY * max(1e-12, np.linalg.norm(g))]
    count = int(np.linalg.matrix_rank(np.stack(neutral), tol=1e-6)) if neutral else 0
    eigenvalues = np.linalg.eigvals(matrix)
    remaining = np.delete(eigenvalues, np.argsort(np.abs(eigenvalues))[:count])
    return Stationary(full, float(jnp.max(jnp.abs(velocity(c, None)))), float(np.max(remaining.real)), count)


class _Velocity(eqx.Module):
    """The velocity of the free coefficients."""

    field: MeanField
    free: Array
    shape: tuple[int, int] = eqx.field(static=True)

    def embed(self, c: Float[Array, " free"]) -> Array:
        """All coefficients, with mass one."""
        return jnp.zeros(self.shape, c.dtype).at[0, 0].set(1).ravel().at[self.free].set(c).reshape(self.shape)

    def __call__(self, c: Float[Array, " free"], args: None) -> Float[Array, " free"]:
        return self.field(jnp.zeros((), c.dtype), self.embed(c)).ravel()[self.free]


def _free(field: MeanField, shape: tuple[int, int]) -> np.ndarray:
    """True for coefficients of harmonics of positive degree."""
    if field.d == 2:
        return np.repeat(np.arange(shape[0]) > 0, 2)
    l, column = np.indices(shape)
    return ((l > 0) & (column // 2 <= l) & (column != 1)).ravel()


@eqx.filter_jit
def _newton(velocity: _Velocity, start: Float[Array, " free"]) -> tuple[Float[Array, " free"], Array]:
    tolerance = float(jnp.finfo(start.dtype).eps) ** 0.65
    solver = optx.Newton(rtol=tolerance, atol=tolerance, linear_solver=lx.SVD(rcond=_RANK))
    root = optx.root_find(velocity, solver, start, max_steps=64, throw=False)
    good = (root.result == optx.RESULTS.successful) & (jnp.max(jnp.abs(velocity(root.value, None))) < tolerance**0.5)
    return root.value, good


@eqx.filter_jit
def _jacobian(velocity: _Velocity, c: Float[Array, " free"]) -> Float[Array, "free free"]:
    return jax.jacfwd(velocity)(c, None)


def _rotations(field: MeanField, c: Array) -> np.ndarray:
    """The changes of the coefficients under rotations in each plane, (planes, coefficients)."""
    grid = field.basis.grid(field.degree)
    planes = [(i, j) for i in range(field.d) for j in range(i)]
    values = field.basis.values(field.degree, c)
    changes = []
    for i, j in planes:
        swirl = np.zeros_like(grid.points)
        swirl[:, i], swirl[:, j] = grid.points[:, j], -grid.points[:, i]
        flux = values[None] * jnp.asarray(np.einsum("md,fmd->fm", swirl, grid.frame), c.dtype)
        changes.append(np.asarray(field.basis.divergence(field.degree, flux)).ravel())
    return np.stack(changes)


# Densities on the sphere of any dimension that depend only on one coordinate $z = ⟨x, e⟩$.
#
# **Algorithm.** Harmonics of degree l that rotate about the axis with order m are $Y_l(z) S_m(ω)$ with
# $Y_l = (1 - z²)^{m/2} p_{l-m}(z)$, where p are orthonormal Gegenbauer polynomials of index $d/2 - 1 + m$, from their
# three-term recurrence. Integrals over the sphere become Gauss-Gegenbauer quadratures over z with the weight
# $(1 - z²)^{(d-3)/2}$. Order 0 holds the densities, the other orders the perturbations that break their symmetry; the
# circle has only the orders 0 (even functions of the angle) and 1 (odd functions).
#
# **Reference.** DLMF 18.9.1 (recurrence), 3.5(v) (quadrature). **Invariant.** Each table is orthonormal with respect to
# the uniform probability measure; order 0 equals the first column of a `MeanField` for d = 2 and 3.


class Table(NamedTuple):
    """Values and derivatives along and across the meridian at the nodes, for degrees from m, each (nodes, l)."""

    values: np.ndarray
    along: np.ndarray
    across: np.ndarray


@lru_cache
def nodes(count: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes z, and the weights with sum one."""
    from scipy.special import roots_gegenbauer  # imported only when needed

    z, weights = roots_gegenbauer(count, d / 2 - 1)
    return z, weights / weights.sum()


@lru_cache
def table(count: int, degree: int, d: int, order: int) -> Table:
    """The harmonics of one order at `count` nodes."""
    z, weights = nodes(count, d)
    index = d / 2 - 1 + order
    n = np.arange(1.0, degree - order + 1)
    square = n * (n + 2 * index - 1) / (4 * (n + index) * np.where(n + index > 1, n + index - 1, 1))
    if index == 0 and len(n):
        square[0] = 0.5  # the limit for Chebyshev polynomials
    b = np.sqrt(square)
    sine = np.sqrt(1 - z * z)
    p, slope = np.zeros((2, len(z), degree - order + 1))
    p[:, 0] = 1 / np.sqrt(np.sum(weights * sine ** (2 * order)))
    for k in range(degree - order):
        before = (b[k - 1] * p[:, k - 1], b[k - 1] * slope[:, k - 1]) if k else (0, 0)
        p[:, k + 1] = (z * p[:, k] - before[0]) / b[k]
        slope[:, k + 1] = (p[:, k] + z * slope[:, k] - before[1]) / b[k]
    z, sine = z[:, None], sine[:, None]
    lower = sine ** (order - 1) * p if order else 0 * p
    across = np.sqrt(max(order * (order + d - 3.0), 0)) * lower
    return Table(sine**order * p, sine ** (order + 1) * slope - order * z * lower, across)


# The equations of stationary densities of noisy attention that concentrate about one axis, at given order parameter.
#
# **Algorithm.** With V = B = I the velocity of the mean field is the gradient of a potential U: Z/β for unnormalised
# attention and log Z/β for softmax, $Z(x) = ∫ exp(β⟨x, y⟩) dμ(y)$. For another kernel f the velocity is
# $∇∫ F(⟨x, y⟩) dμ(y)$ with F' = f, divided by $∫ f(⟨x, y⟩) dμ(y)$ if the rows are normalised; for densities of one
# coordinate it is the gradient of a potential U(z) in this case too, whose harmonics are integrals of the velocity. A
# density is stationary at temperature T if and only if it is proportional to exp(U/T) with its own potential U. For
# densities of one coordinate z this gives one equation for each moment $m_l = ∫ P_l(z) dμ$, l ≥ 1, with $P_l(1) = 1$.
# The order parameter $r = m_1$ is given, and T replaces it as an unknown: as a function of r the branch has no fold, so
# that its unstable part poses no difficulty. Newton's method starts from the linear extrapolation of the last two
# points. The branch folds where $d log T/dr$, from the implicit function theorem, is zero.
#
# **Reference.** 2604.16288 and 2606.05140 (unnormalised attention), 2412.14813 (kernels on spheres); Keller, *Numerical
# solution of bifurcation and nonlinear eigenvalue problems*, 1977 (continuation). **Invariants.** T tends to $T_c$ as r
# tends to zero. The equations are exact up to quadrature: moments beyond the highest degree do not enter where the
# kernel vanishes.


class Quotient(eqx.Module):
    """The potential of zonal densities where the kernel f is divided by the sums of its rows."""

    kernel: Float[Array, " degrees"]  # f_l / f_0 for l = 1, ..., degree
    along: Float[Array, "nodes degrees"]  # the derivatives of P_l along the meridian
    lift: Float[Array, "nodes nodes"]  # from a derivative along the meridian to the function, of mean zero


class Equations(eqx.Module):
    """The equations of one attention and one dimension, all in arrays, so that each form of attention compiles once."""

    # a_l / beta for l = 1, ..., degree, or F_l, divided by a_0 or f_0 where the rows are normalised.
    strengths: Float[Array, " degrees"]
    numbers: Float[Array, " degrees"]  # of harmonics of each degree
    polynomials: Float[Array, "nodes degrees"]  # P_l at the nodes
    weights: Float[Array, " nodes"]  # of the quadrature, with sum one
    beta: Scalar | None  # of softmax; None for all other attention
    quotient: Quotient | None = None  # of a kernel that is normalised

    def potential(self, moments: Float[Array, " degrees"]) -> Float[Array, " nodes"]:
        """Z / beta less its mean for unnormalised attention, or log(Z over its mean) / beta for softmax."""
        if self.quotient is not None:
            sums = 1 + matmul(self.polynomials, self.numbers * self.quotient.kernel * moments)
            force = matmul(self.quotient.along, self.numbers * self.strengths * moments)
            return matmul(self.quotient.lift, force / sums)
        linear = matmul(self.polynomials, self.numbers * self.strengths * moments)
        return linear if self.beta is None else jnp.log1p(self.beta * linear) / self.beta

    def density(self, moments: Float[Array, " degrees"], temperature: Scalar) -> Float[Array, " nodes"]:
        """The density proportional to exp(potential / T), relative to the uniform measure, at the nodes."""
        exponents = self.potential(moments) / temperature
        values = jnp.exp(exponents - lax.stop_gradient(jnp.max(exponents)))
        return values / jnp.sum(self.weights * values)

    def unpack(self, unknowns: Float[Array, " degrees"], r: Scalar) -> tuple[Float[Array, " degrees"], Scalar]:
        """The moments and the temperature; the unknowns are log T and the moments from degree two."""
        return unknowns.at[0].set(r), jnp.exp(unknowns[0])

    def residual(self, unknowns: Float[Array, " degrees"], r: Scalar) -> Float[Array, " degrees"]:
        """The error of each moment, the first relative to r."""
        moments, temperature = self.unpack(unknowns, r)
        off = matmul(self.weights * self.density(moments, temperature), self.polynomials) - moments
        return off.at[0].divide(r)

    def excess(self, unknowns: Float[Array, " degrees"], r: Scalar) -> Scalar:
        """The free energy relative to the uniform density, for unnormalised attention."""
        moments, temperature = self.unpack(unknowns, r)
        density = self.density(moments, temperature)
        # The bound keeps the logarithm finite where the density underflows to zero.
        disorder = jnp.sum(self.weights * density * jnp.log(jnp.maximum(density, jnp.finfo(density.dtype).tiny)))
        return temperature * disorder - jnp.sum(self.numbers * self.strengths * moments * moments) / 2


def equations_of(
    strengths: np.ndarray, numbers: np.ndarray, beta: float | None, d: int, count: int, kernel: np.ndarray | None = None
) -> Equations:
    """The equations, with integrals by quadrature with `count` nodes; `kernel` is f_l / f_0 of a normalised kernel."""
    zonal, weights = table(count, len(strengths), d, 0), nodes(count, d)[1]
    polynomials = zonal.values[:, 1:] / np.sqrt(numbers)
    arrays = map(as_array, (strengths, numbers, polynomials, weights))
    quotient = None
    if kernel is not None:
        # The quotient has higher degrees than the density; the quadrature is exact up to this one.
        highest = count // 2
        l, all_of = np.arange(1, highest + 1), table(count, highest, d, 0)
        lift = all_of.values[:, 1:] / (l * (l + d - 2.0)) @ (all_of.along[:, 1:] * weights[:, None]).T
        quotient = Quotient(*map(as_array, (kernel, zonal.along[:, 1:] / np.sqrt(numbers), lift)))
    return Equations(*arrays, beta=None if beta is None else jnp.asarray(beta), quotient=quotient)


@eqx.filter_jit
def solve(equations: Equations, r: Scalar, guess: Float[Array, " degrees"]) -> Float[Array, " degrees"]:
    """The unknowns at order parameter `r`; NaN where Newton's method does not converge."""
    # The tolerance bounds the last step of Newton's method, after which the error is far smaller.
    tolerance = float(jnp.finfo(guess.dtype).eps) ** 0.65
    solver = optx.Newton(rtol=tolerance, atol=tolerance, linear_solver=lx.LU())
    root = optx.root_find(lambda y, _: equations.residual(y, r), solver, guess, max_steps=64, throw=False)
    return jnp.where(root.result == optx.RESULTS.successful, root.value, jnp.nan)


@eqx.filter_jit
def describe(
    equations: Equations, unknowns: Float[Array, "points degrees"], rs: Float[Array, " points"]
) -> tuple[Array, Array, Array, Array]:
    """Moments, temperatures, densities at the nodes, and free energies relative to uniform, at points of the branch."""
    moments, temperatures = jax.vmap(equations.unpack)(unknowns, rs)
    densities = jax.vmap(equations.density)(moments, temperatures)
    return moments, temperatures, densities, jax.vmap(equations.excess)(unknowns, rs)


@eqx.filter_jit
def _derivatives(equations: Equations, unknowns: Float[Array, " degrees"], r: Scalar) -> tuple[Array, Array]:
    return jax.jacfwd(equations.residual, argnums=(0, 1))(unknowns, r)


def slope(equations: Equations, unknowns: Float[Array, " degrees"], r: Scalar) -> float:
    """The derivative of log T with respect to r along the branch."""
    matrix, change = _derivatives(equations, unknowns, r)
    return -float(np.linalg.solve(np.asarray(matrix), np.asarray(change))[0])


def follow(equations: Equations, rs: Float[Array, " points"]) -> np.ndarray:
    """The unknowns at all `rs`, (points, degrees); NaN from the first point at which Newton's method fails."""
    last = np.zeros(len(equations.strengths))
    last[0] = np.log(float(equations.strengths[0]))
    # log T and the moments of degree two start as r^2, so that the first extrapolation is constant.
    before, r_before, r_last = last, -1.0, 0.0
    unknowns = np.full((len(rs), len(last)), np.nan)
    for k, r in enumerate(np.asarray(rs, float)):
        guess = last + (last - before) * ((r - r_last) / (r_last - r_before))
        unknowns[k] = solve(equations, rs[k], jnp.asarray(guess, rs.dtype))
        if not np.all(np.isfinite(unknowns[k])):
            return np.where(np.arange(len(rs))[:, None] < k, unknowns, np.nan)
        before, r_before, last, r_last = last, r_last, unknowns[k], r
    return unknowns


# The growth rates of small perturbations of a stationary density, by the order of their rotation about its axis.
#
# **Algorithm.** A perturbation η of a stationary μ obeys $dη/dt = TΔη - ∇·(η v[μ]) - ∇·(μ v'η)$, where v'η is the
# gradient of $Z[η]/β$ for unnormalised attention, and of $Z[η]/(βZ[μ])$ for softmax; for another kernel f it is
# $∇F[η]$, or $∇F[η]/f[μ] - f[η]∇F[μ]/f[μ]²$ where the rows are normalised. A Galerkin projection on the
# harmonics of one order gives a matrix, whose entries are integrals over z. Its eigenvalues are real for a gradient
# flow; otherwise the real part counts.
#
# **Invariants.** Degree zero is left out, because mass is conserved. A rotated density is stationary too, so that
# order 1 has the eigenvalue zero; the eigenvalue nearest to zero is removed.


def growth(
    equations: Equations, moments: np.ndarray, temperature: float, density: np.ndarray, d: int, order: int
) -> Float[np.ndarray, "degrees degrees"]:
    """The matrix of the perturbations of one order of a stationary state with these moments and this density."""
    strengths, numbers = np.asarray(equations.strengths, float), np.asarray(equations.numbers, float)
    beta = None if equations.beta is None else float(equations.beta)
    degree, count = len(strengths), len(density)
    _, weights = nodes(count, d)
    zonal, own = table(count, degree, d, 0), table(count, degree, d, order)
    keep = slice(1, None) if order == 0 else slice(None)
    values, along, across = (part[:, keep] for part in own)
    l = np.arange(max(order, 1), degree + 1)
    scaled = np.sqrt(numbers) * strengths * moments
    force = zonal.along[:, 1:] @ scaled
    pull = strengths[l - 1]
    if equations.quotient is not None:
        kernel = np.asarray(equations.quotient.kernel, float)
        mass = 1 + zonal.values[:, 1:] @ (np.sqrt(numbers) * kernel * moments)
        slope = along / mass[:, None] * pull - values * (force / mass**2)[:, None] * kernel[l - 1]
        turn = across / mass[:, None] * pull
        force = force / mass
    elif beta is None:
        slope, turn = along * pull, across * pull
    else:
        # This is the gradient of the quotient of Z of the perturbation and Z of the density.
        mass = 1 + beta * (zonal.values[:, 1:] @ scaled)
        slope = (along / mass[:, None] - beta * values * (force / mass**2)[:, None]) * pull
        turn = across / mass[:, None] * pull
        force = force / mass
    # `moved` is the drift of the perturbation, `driven` that of the density in the field of the perturbation.
    moved = along.T @ ((weights * force)[:, None] * values)
    driven = along.T @ ((weights * density)[:, None] * slope) + across.T @ ((weights * density)[:, None] * turn)
    return moved + driven - temperature * np.diag(l * (l + d - 2.0))


def leading(matrix: np.ndarray, rotation: bool) -> float:
    """The largest real part of an eigenvalue, without the eigenvalue of the rotation if `rotation`."""
    eigenvalues = np.linalg.eigvals(matrix)
    if rotation:
        eigenvalues = np.delete(eigenvalues, np.argmin(np.abs(eigenvalues)))
    return float(np.max(eigenvalues.real))


# The number of orders of perturbations that are tested: none beyond 2 was found to grow first.
_ORDERS = 3
# The largest part of a kernel, in the mean square, that may lie beyond the highest degree.
_LEFT_OUT = 1e-8
# If the largest temperature exceeds T_c by less, relatively, rounding error is indistinguishable from a fold.
_FLAT = 1e-9


class Point(NamedTuple):
    """A point of a branch: its order parameter and its temperature."""

    order_parameter: float
    temperature: float


@dataclass(frozen=True, eq=False)
class Branch:
    """A branch of stationary densities that concentrate about one axis, parametrised by the order parameter.

    **Attributes:**

    - `d`: The dimension of the tokens.
    - `critical_temperature`: T_c, below which the uniform density is unstable.
    - `order_parameters`: (points,), increasing.
    - `temperatures`: (points,).
    - `moments`: (points, degree), the means of $P_l(z)$, $P_l(1) = 1$, for l = 1, ..., degree.
    - `growth_rates`: (points,), the largest real part of an eigenvalue of the linearised flow, excluding rotations.
    - `free_energies`: (points,), relative to the uniform density; None for softmax and for a kernel that is normalised,
        which have no free energy.
    - `fold`: The point of largest T, if that T is above T_c; else None.
    - `coexistence`: The point at which the free energy equals that of the uniform density; None if there is none.
    """

    d: int
    critical_temperature: float
    order_parameters: np.ndarray
    temperatures: np.ndarray
    moments: np.ndarray
    growth_rates: np.ndarray
    free_energies: np.ndarray | None
    fold: Point | None
    coexistence: Point | None

    @property
    def stable(self) -> np.ndarray:
        """(points,), True if no perturbation grows."""
        return self.growth_rates < 0

    @property
    def continuous(self) -> bool:
        """True if tokens cluster without a jump as T falls below T_c."""
        return self.fold is None

    def coefficients(self, index: int) -> np.ndarray:
        """The coefficients of one point for `MeanField`, about the first axis of the circle or last of the sphere.

        **Arguments:**

        - `index`: The index of the point.

        **Returns:**

        The coefficients, (degree + 1, 2) on the circle and (degree + 1, 2 (degree + 1)) on the sphere.

        **Raises:**

        - `ValueError` if `d` is neither 2 nor 3, or there is no such point.
        """
        if self.d not in (2, 3):
            raise refusal("d", "be 2 or 3 for coefficients", f"it is {self.d}", "use the moments")
        check_integer(index, "index", least=-len(self.temperatures), most=len(self.temperatures) - 1)
        degree = self.moments.shape[1]
        c = np.zeros((degree + 1, 2 if self.d == 2 else 2 * (degree + 1)))
        c[0, 0] = 1
        c[1:, 0] = np.sqrt(_numbers(degree, self.d)) * self.moments[index]
        return c


def branch(
    attention: SoftmaxAttention | UnnormalisedAttention | KernelAttention,
    d: int,
    *,
    order_parameters: Numbers | None = None,
    degree: int = 32,
) -> Branch:
    """Follow the stationary densities of attention with V = B = I and noise, starting from the uniform density.

    Newton's method solves for the density at each order parameter, in any dimension and without integration in time,
    also on the unstable part of the branch. A user-defined kernel enters through its Gegenbauer coefficients, computed
    by quadrature, and must be so smooth that they vanish beyond `degree`. A continuous transition has no fold.
    Otherwise there is a fold at $T_f > T_c$, and between $T_c$ and $T_f$ both the uniform and a concentrated density
    are stable (hysteresis). A host function, which computes in double precision whether `jax_enable_x64` is set or not;
    all arrays are NumPy's, in float64.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> branch = cjx.phase.branch(cjx.UnnormalisedAttention(4.0), d=2)
        >>> branch.continuous, f"{branch.fold.temperature / branch.critical_temperature:.3f}"
        (False, '1.059')
        >>> f"{branch.coexistence.temperature / branch.critical_temperature:.3f}"
        '1.047'
        ```

    **Arguments:**

    - `attention`: `SoftmaxAttention`, `UnnormalisedAttention`, or `KernelAttention` with a smooth kernel, not negative
        where it is normalised; B = I and a full mask.
    - `d`: The dimension of the tokens, at least 2.
    - `order_parameters`: (points,), increasing, between 0 and 1: the points of the branch. None means 238 points up to
        0.995.
    - `degree`: The highest degree of the moments. The kernel must be negligible beyond it, as for `MeanField`.

    **Returns:**

    A `Branch`.

    **Raises:**

    - `ValueError` for another attention, or for numbers outside of these ranges; for a kernel whose coefficients do not
        vanish beyond `degree`, or under which another degree than 1 becomes unstable first; and where the
        order parameters are too far apart for Newton's method.

    ??? cite "Source"

        2604.16288 (circle) and 2606.05140 (any dimension) for unnormalised attention; Shalova, Schlichting (2412.14813)
        for other kernels on spheres.
    """
    beta, offset = _check_attention(attention)
    if not isinstance(attention, KernelAttention) and beta <= 0:
        # The tables of exponentials are those of a positive beta; a kernel may be any function.
        softmax = isinstance(attention, SoftmaxAttention)
        attention = KernelAttention(lambda s: jnp.exp(beta * s - offset), normalise=softmax)
    d = check_integer(d, "d", least=2, remedy="pass the dimension of the tokens")
    degree = check_integer(degree, "degree", least=4, remedy="pass the highest degree of moments, such as 32")
    _check_degree(beta, d, degree)
    # Tables of three functions at each node, for each order of perturbations, and their inputs.
    count = _nodes(degree)
    content, remedy = f"the harmonics at {count} nodes", "pass a lower one, such as 32"
    # The coefficients of a kernel are computed to twice the degree.
    num_bytes = 8 * 4 * _ORDERS * degree * count * (3 if isinstance(attention, KernelAttention) else 1)
    check_room(degree, "degree", num_bytes, content, longest=count, remedy=remedy)
    rs = _check_rs(order_parameters)
    # Double precision is needed to find folds to 1e-12, and to compare free energies to 1e-9.
    with double_precision():
        numbers = _numbers(degree, d)
        if isinstance(attention, KernelAttention):
            strengths, kernel = kernel_strengths(attention, d, degree)
            return _follow(equations_of(strengths, numbers, None, d, count, kernel), d, rs)
        l, softmax = np.arange(1, degree + 1), isinstance(attention, SoftmaxAttention)
        rates = uniform_growth_rates(beta, d, degree, unnormalised=not softmax)[1:]
        strengths = rates / (l * (l + d - 2.0)) * np.exp(-offset)
        return _follow(equations_of(strengths, numbers, beta if softmax else None, d, count), d, rs)


def kernel_strengths(attention: KernelAttention, d: int, degree: int) -> tuple[np.ndarray, np.ndarray | None]:
    """F_l for l = 1, ..., degree, and f_l / f_0 if the kernel f is normalised, by which F_l is then divided too.

    By the formula of Funk and Hecke $f_l$ is the mean of $f P_l$; integration by parts of F' = f gives
    $l (l + d - 2) F_l$, the mean of $f (1 - z²) P_l'$.
    """
    further = 2 * degree + 16
    count = _nodes(further)
    z, weights = nodes(count, d)
    f = _values_of(attention, z)
    if not np.all(np.isfinite(f)) or not f.any():
        problem = "it is zero" if np.all(f == 0) else f"it is {f[~np.isfinite(f)][0]} at {z[~np.isfinite(f)][0]:.3g}"
        raise refusal("attention.function", "be finite between -1 and 1, and not zero", problem, "mend it there")
    if attention.normalise and f.min() < 0:
        problem = f"it is {f.min():.3g} at {z[np.argmin(f)]:.3g}"
        remedy = "pass normalise=False, or a kernel of positive numbers"
        raise refusal("attention.function", "not be negative where its rows are normalised", problem, remedy)
    zonal, numbers = table(count, further, d, 0), _numbers(further, d)
    # `whole` has the coefficients of orthonormal harmonics, whose squares sum to the mean square of f.
    whole = zonal.values.T @ (weights * f)
    beyond = float(np.sqrt(np.sum(whole[degree + 1 :] ** 2) / np.sum(weights * f**2)))
    if beyond > _LEFT_OUT:
        rule = f"be smooth, so that its Gegenbauer coefficients vanish beyond degree {degree} for d {d}"
        problem = f"{beyond:.1g} of it is there"
        raise refusal("attention.function", rule, problem, "pass a larger degree, or a smoother kernel")
    l, roots, sine = np.arange(1, degree + 1), np.sqrt(numbers[:degree]), np.sqrt(1 - z * z)
    strengths = zonal.along[:, 1 : degree + 1].T @ (weights * f * sine) / (roots * l * (l + d - 2.0))
    scale = float(whole[0]) if attention.normalise else 1.0
    strengths, first = strengths / scale, int(np.argmax(strengths)) + 1
    if first != 1 or not strengths[0] > 0:
        rule = "make the uniform density unstable to degree 1 first, where the branch begins"
        problem = f"degree 1 is so below T = {strengths[0]:.3g}, and degree {first} below {strengths[first - 1]:.3g}"
        raise refusal("attention.function", rule, problem, "pass a kernel that attracts, such as jax.numpy.exp")
    return strengths, whole[1 : degree + 1] / roots / scale if attention.normalise else None


def _values_of(attention: KernelAttention, z: np.ndarray) -> np.ndarray:
    """The kernel at some inner products."""
    scores, name = jnp.asarray(z)[None, :], "attention.function"
    returned = call_traced(attention.function, name, "a function of inner products", scores)
    kernel = check_array(returned, f"{name}(s)", shape=scores.shape, finite=False, remedy="return the kernel of each")
    return np.asarray(kernel[0], float)


def _follow(equations: Equations, d: int, order_parameters: np.ndarray) -> Branch:
    """The branch with its fold, coexistence and growth rates, for checked arguments."""
    rs = as_array(order_parameters)
    unknowns = follow(equations, rs)
    if not np.all(np.isfinite(unknowns)):
        r = order_parameters[np.argmin(np.isfinite(unknowns[:, 0]))]
        raise refusal(
            "order_parameters",
            "be near enough to each other for Newton's method",
            f"none was found at {r:.3g} for T_c {float(equations.strengths[0]):.3g} and d {d}",
            "pass more of them below that, or end there",
        )
    unknowns = as_array(unknowns)
    moments, temperatures, densities, all_excesses = (
        np.asarray(part, float) for part in describe(equations, unknowns, rs)
    )
    critical = float(equations.strengths[0])
    excesses = all_excesses if equations.beta is None and equations.quotient is None else None
    top = int(np.argmax(temperatures))
    fold = coexistence = None
    if float(temperatures[top]) > critical * (1 + _FLAT) and 0 < top < len(rs) - 1:
        fold = _locate(equations, rs, unknowns, (top - 1, top + 1), slope)
    if excesses is not None and (below := np.nonzero((excesses[:-1] > 0) & (excesses[1:] <= 0))[0]).size:
        ends = (int(below[-1]), int(below[-1]) + 1)
        coexistence = _locate(equations, rs, unknowns, ends, lambda *at: float(at[0].excess(*at[1:])))
    # The circle has only two orders: even and odd functions of the angle.
    orders = range(2 if d == 2 else _ORDERS)
    fastest = [
        max(leading(growth(equations, *state, d, order), order == 1) for order in orders)
        for state in zip(moments, temperatures, densities, strict=True)
    ]
    points = (np.asarray(rs, float), temperatures, moments, np.array(fastest))
    return Branch(d, critical, *points, free_energies=excesses, fold=fold, coexistence=coexistence)


def _locate(
    equations: Equations, rs: Array, unknowns: Array, ends: tuple[int, int], value: Callable[..., float]
) -> Point:
    """The point between two points of the branch at which a function is zero."""
    from scipy.optimize import brentq  # imported only when needed

    at = lambda r: (equations, solve(equations, jnp.asarray(r, rs.dtype), unknowns[ends[0]]), jnp.asarray(r, rs.dtype))
    low, high = (float(rs[end]) for end in ends)
    r: Any = brentq(lambda r: value(*at(r)), low, high, xtol=1e-12)
    return Point(float(r), float(np.exp(at(r)[1][0])))


def _nodes(degree: int) -> int:
    return 4 * (degree + 8)


def _numbers(degree: int, d: int) -> np.ndarray:
    return np.array([float(number_of_harmonics(l, d)) for l in range(1, degree + 1)])


def _check_attention(attention: Any) -> tuple[float, float]:
    """The beta and the offset, both zero for a kernel, or a ValueError unless the branch can be computed."""
    if not isinstance(attention, SoftmaxAttention | UnnormalisedAttention | KernelAttention):
        raise ValueError(
            "attention must be SoftmaxAttention, UnnormalisedAttention or KernelAttention, but it is "
            f"{shown(attention)}; pass one of these."
        )
    refuse_position(attention, "attention.position", "a density has no order of tokens")
    if attention.query_key is not None or not isinstance(attention.mask, FullMask):
        raise ValueError(
            "attention must have query_key None and a full mask, for only then densities about an axis stay so, but it "
            f"is {shown(attention)}; leave them out."
        )
    if isinstance(attention, KernelAttention):
        if not is_concrete(attention.function):
            raise refusal("attention", "be made of numbers", "it is traced", "call this function outside of jax.jit")
        return 0.0, 0.0
    numbers = (attention.beta, attention.offset if isinstance(attention, UnnormalisedAttention) else 0.0)
    if any(isinstance(number, AbstractSchedule) or not is_concrete(number) or np.ndim(number) for number in numbers):
        raise ValueError(f"attention must have a beta that is one number, but it is {shown(attention.beta)}; pass one.")
    beta, offset = (float(np.asarray(number)) for number in numbers)
    return beta, offset


def _check_degree(beta: float, d: int, degree: int) -> None:
    from .._model.density import degree_for

    if degree < (least := degree_for(abs(beta), d)):
        raise refusal(
            "degree", f"be at least {least} for beta {beta:.4g} and d {d}", f"it is {degree}", f"pass {least} or more"
        )


def _check_rs(order_parameters: Any) -> np.ndarray:
    """The order parameters as an increasing array between 0 and 1."""
    if order_parameters is None:
        return np.concatenate([np.arange(1, 181) * 0.005, 1 - 0.1 * 0.95 ** np.arange(1, 59)])
    rs = check_host_array(
        order_parameters, "order_parameters", shape=("points",), remedy="pass numbers between 0 and 1"
    )
    if len(rs) < 3 or np.any(np.diff(rs) <= 0) or rs[0] <= 0 or rs[-1] >= 1:
        raise refusal(
            "order_parameters",
            "be at least three, rising, above 0 and below 1",
            f"they are {shown(rs)}",
            "pass numpy.linspace(0.01, 0.95, 95), for example",
        )
    return rs
