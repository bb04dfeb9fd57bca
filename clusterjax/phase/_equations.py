r"""The equations of stationary densities of noisy attention that concentrate about one axis, at given order parameter.

**Algorithm.** With V = B = I the velocity of the mean field is the gradient of a potential U: $Z/\beta$ for
unnormalised attention and $\log Z/\beta$ for softmax, $Z(x) = \int e^{\beta\langle x, y\rangle}d\mu(y)$. A density is
stationary at temperature T if and only if it is proportional to $e^{U/T}$ with its own potential U. For densities of
one coordinate z this gives one equation for each moment $m_l = \int P_l(z)\,d\mu$, $l \ge 1$, with $P_l(1) = 1$. The
order parameter $r = m_1$ is given, and T replaces it as an unknown: as a function of r the branch has no fold, so that
its unstable part poses no difficulty. Newton's method starts from the linear extrapolation of the last two points. The
branch folds where $d\log T/dr$, from the implicit function theorem, is zero.

**Reference.** 2604.16288 and 2606.05140 (unnormalised attention); Keller, *Numerical solution of bifurcation and
nonlinear eigenvalue problems*, 1977 (continuation). **Invariants.** T tends to $T_c$ as r tends to zero. The equations
are exact up to quadrature: moments beyond the highest degree do not enter where the kernel vanishes.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
from jax import lax
from jaxtyping import Array, Float

from .._custom_types import Scalar
from .._misc import matmul
from ._zonal import nodes, table


class Equations(eqx.Module):
    """The equations of one attention and one dimension; all are arrays, so that each form of attention compiles once.

    **Arguments:**

    - `strengths`: $a_l/\\beta$ for l = 1, ..., degree, divided by $a_0$ for softmax.
    - `numbers`: N_l, the number of harmonics of each degree.
    - `polynomials`: P_l at the nodes.
    - `weights`: The quadrature weights, with sum one.
    - `beta`: The beta of softmax; None for unnormalised attention.
    """

    strengths: Float[Array, " degrees"]
    numbers: Float[Array, " degrees"]
    polynomials: Float[Array, "nodes degrees"]
    weights: Float[Array, " nodes"]
    beta: Scalar | None

    def potential(self, moments: Float[Array, " degrees"]) -> Float[Array, " nodes"]:
        """Z / beta less its mean for unnormalised attention, or log(Z over its mean) / beta for softmax."""
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


def equations_of(strengths: np.ndarray, numbers: np.ndarray, beta: float | None, d: int, count: int) -> Equations:
    """The equations, with integrals by quadrature with `count` nodes."""
    polynomials = table(count, len(strengths), d, 0).values[:, 1:] / np.sqrt(numbers)
    arrays = (jnp.asarray(part) for part in (strengths, numbers, polynomials, nodes(count, d)[1]))
    return Equations(*arrays, beta=None if beta is None else jnp.asarray(beta))


@eqx.filter_jit
def solve(equations: Equations, r: Scalar, guess: Float[Array, " degrees"]) -> Float[Array, " degrees"]:
    """The unknowns at order parameter `r`; NaN where Newton's method does not converge."""
    # The tolerance bounds the last step of Newton's method, after which the error is far smaller.
    tolerance = float(jnp.finfo(guess.dtype).eps) ** 0.65
    solver = optx.Newton(rtol=tolerance, atol=tolerance, linear_solver=lx.LU())
    found = optx.root_find(lambda y, _: equations.residual(y, r), solver, guess, max_steps=64, throw=False)
    return jnp.where(found.result == optx.RESULTS.successful, found.value, jnp.nan)


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
    found = np.full((len(rs), len(last)), np.nan)
    for k, r in enumerate(np.asarray(rs, float)):
        guess = last + (last - before) * ((r - r_last) / (r_last - r_before))
        found[k] = solve(equations, rs[k], jnp.asarray(guess, rs.dtype))
        if not np.all(np.isfinite(found[k])):
            return np.where(np.arange(len(rs))[:, None] < k, found, np.nan)
        before, r_before, last, r_last = last, r_last, found[k], r
    return found
