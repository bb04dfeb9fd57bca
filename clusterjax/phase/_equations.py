r"""What the stationary densities of noisy attention obey that gather about one axis, with the order parameter given.

**Algorithm.** With V = B = I the velocity of the mean field is a gradient, of $Z/\beta$ for unnormalised attention and
of $\log Z/\beta$ for softmax, $Z(x) = \int e^{\beta\langle x, y\rangle}d\mu(y)$. A density is then stationary at
temperature T if and only if it is $e^{U/T}$ up to a factor, with U this potential of itself. For densities of one
coordinate z this is one equation for each moment $m_l = \int P_l(z)\,d\mu$, $l \ge 1$, of polynomials with $P_l(1) =
1$. The order parameter $r = m_1$ is given, and T is an unknown in its place: along r the branch has no fold, so that
its unstable part is passed like the rest. Newton's method starts from the line through the two points before. Where
$d\log T/dr$, by the implicit function theorem, is zero, the branch folds.

**Reference.** 2604.16288 and 2606.05140 (unnormalised attention); Keller, *Numerical solution of bifurcation and
nonlinear eigenvalue problems*, 1977 (continuation). **Invariants.** As r tends to zero, T tends to $T_c$. The equations
are exact but for the integrals: moments beyond the highest degree do not enter where the kernel has none.
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

    - `strengths`: $a_l/\\beta$ for l = 1, ..., degree, over $a_0$ for softmax.
    - `numbers`: How many harmonics of each degree there are, N_l.
    - `polynomials`: P_l at the nodes.
    - `weights`: Of the nodes, of sum one.
    - `beta`: Of softmax; None for unnormalised attention.
    """

    strengths: Float[Array, " degrees"]
    numbers: Float[Array, " degrees"]
    polynomials: Float[Array, "nodes degrees"]
    weights: Float[Array, " nodes"]
    beta: Scalar | None

    def potential(self, moments: Float[Array, " degrees"]) -> Float[Array, " nodes"]:
        """Z / beta less its mean, or the logarithm of Z over its mean, over beta."""
        linear = matmul(self.polynomials, self.numbers * self.strengths * moments)
        return linear if self.beta is None else jnp.log1p(self.beta * linear) / self.beta

    def density(self, moments: Float[Array, " degrees"], temperature: Scalar) -> Float[Array, " nodes"]:
        """The density of this potential, with respect to the uniform measure, at the nodes."""
        exponents = self.potential(moments) / temperature
        values = jnp.exp(exponents - lax.stop_gradient(jnp.max(exponents)))
        return values / jnp.sum(self.weights * values)

    def unpack(self, unknowns: Float[Array, " degrees"], r: Scalar) -> tuple[Float[Array, " degrees"], Scalar]:
        """The moments and the temperature: the unknowns are its logarithm and the moments from degree two."""
        return unknowns.at[0].set(r), jnp.exp(unknowns[0])

    def residual(self, unknowns: Float[Array, " degrees"], r: Scalar) -> Float[Array, " degrees"]:
        """By how much each moment is off, the first one relative to r."""
        moments, temperature = self.unpack(unknowns, r)
        off = matmul(self.weights * self.density(moments, temperature), self.polynomials) - moments
        return off.at[0].divide(r)

    def excess(self, unknowns: Float[Array, " degrees"], r: Scalar) -> Scalar:
        """The free energy less that of the uniform density, of unnormalised attention."""
        moments, temperature = self.unpack(unknowns, r)
        density = self.density(moments, temperature)
        # The logarithm of a density that is rounded to zero is finite beside it.
        disorder = jnp.sum(self.weights * density * jnp.log(jnp.maximum(density, jnp.finfo(density.dtype).tiny)))
        return temperature * disorder - jnp.sum(self.numbers * self.strengths * moments * moments) / 2


def equations_of(strengths: np.ndarray, numbers: np.ndarray, beta: float | None, d: int, count: int) -> Equations:
    """The equations, with integrals by `count` nodes."""
    polynomials = table(count, len(strengths), d, 0).values[:, 1:] / np.sqrt(numbers)
    arrays = (jnp.asarray(part) for part in (strengths, numbers, polynomials, nodes(count, d)[1]))
    return Equations(*arrays, beta=None if beta is None else jnp.asarray(beta))


@eqx.filter_jit
def solve(equations: Equations, r: Scalar, guess: Float[Array, " degrees"]) -> Float[Array, " degrees"]:
    """The unknowns at this order parameter; NaN where Newton's method finds none."""
    # The last step of Newton's method is far better than the one before, which is compared with this.
    tolerance = float(jnp.finfo(guess.dtype).eps) ** 0.65
    solver = optx.Newton(rtol=tolerance, atol=tolerance, linear_solver=lx.LU())
    found = optx.root_find(lambda y, _: equations.residual(y, r), solver, guess, max_steps=64, throw=False)
    return jnp.where(found.result == optx.RESULTS.successful, found.value, jnp.nan)


@eqx.filter_jit
def describe(
    equations: Equations, unknowns: Float[Array, "points degrees"], rs: Float[Array, " points"]
) -> tuple[Array, Array, Array, Array]:
    """Moments, temperatures, densities at the nodes and excesses of free energy at points of the branch."""
    moments, temperatures = jax.vmap(equations.unpack)(unknowns, rs)
    densities = jax.vmap(equations.density)(moments, temperatures)
    return moments, temperatures, densities, jax.vmap(equations.excess)(unknowns, rs)


@eqx.filter_jit
def _derivatives(equations: Equations, unknowns: Float[Array, " degrees"], r: Scalar) -> tuple[Array, Array]:
    return jax.jacfwd(equations.residual, argnums=(0, 1))(unknowns, r)


def slope(equations: Equations, unknowns: Float[Array, " degrees"], r: Scalar) -> float:
    """The derivative of log T by r along the branch."""
    matrix, change = _derivatives(equations, unknowns, r)
    return -float(np.linalg.solve(np.asarray(matrix), np.asarray(change))[0])


def follow(equations: Equations, rs: Float[Array, " points"]) -> np.ndarray:
    """The unknowns at all `rs`, (points, degrees); NaN from the first point on that was not found."""
    last = np.zeros(len(equations.strengths))
    last[0] = np.log(float(equations.strengths[0]))
    # Temperature and moments of degree two begin as the square of r: the line through the uniform state is flat.
    before, r_before, r_last = last, -1.0, 0.0
    found = np.full((len(rs), len(last)), np.nan)
    for k, r in enumerate(np.asarray(rs, float)):
        guess = last + (last - before) * ((r - r_last) / (r_last - r_before))
        found[k] = solve(equations, rs[k], jnp.asarray(guess, rs.dtype))
        if not np.all(np.isfinite(found[k])):
            return np.where(np.arange(len(rs))[:, None] < k, found, np.nan)
        before, r_before, last, r_last = last, r_last, found[k], r
    return found
