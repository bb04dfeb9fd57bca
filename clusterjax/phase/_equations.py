r"""The stationary densities of noisy attention that gather about one axis: a branch of them, from the uniform density on.

**Algorithm.** With V = B = I the velocity of the mean field is a gradient, of $Z/\beta$ for unnormalised attention and
of $\log Z/\beta$ for softmax, $Z(x) = \int e^{\beta\langle x, y\rangle}d\mu(y)$. A density is then stationary at
temperature T if and only if it is $e^{U/T}$ up to a factor, with U this potential of itself. For densities of one
coordinate this is one equation for each moment $m_l = \int P_l(z)\,d\mu$, $l \ge 1$, of polynomials with $P_l(1) = 1$.
The order parameter $r = m_1$ is given, and T is an unknown in its place: along r the branch has no fold, so that its unstable part is passed like the rest.
Newton's method starts from the line through the two points before. Where $dT/dr$, by the implicit function theorem, is
zero, the branch folds.

**Reference.** 2604.16288 and 2606.05140 (unnormalised attention); Keller, *Numerical solution of bifurcation and
nonlinear eigenvalue problems*, 1977 (continuation). **Invariants.** The first point has the least r > 0, and T tends to
$T_c$ there. The equations are exact but for the integrals: moments beyond `degree` do not enter where the kernel
has none.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jax import lax
from jaxtyping import Array, Float

from .._custom_types import Scalar
from .._misc import matmul
from ._zonal import nodes, table


class Equations(eqx.Module):
    """What the stationary densities of one attention obey.

    **Arguments:**

    - `strengths`: $a_l/\\beta$ for l = 1, ..., degree, over $a_0$ for softmax.
    - `numbers`: How many harmonics of each degree there are, N_l.
    - `beta`: Of softmax; None for unnormalised attention.
    - `d`, `count`: The dimension, and how many nodes there are.
    """

    strengths: Float[Array, " degrees"]
    numbers: Float[Array, " degrees"]
    beta: Scalar | None
    d: int = eqx.field(static=True)
    count: int = eqx.field(static=True)

    @property
    def degree(self) -> int:
        """The highest degree."""
        return len(self.strengths)

    @property
    def polynomials(self) -> Float[Array, "nodes degrees"]:
        """P_l at the nodes."""
        values = jnp.asarray(table(self.count, self.degree, self.d, 0).values[:, 1:], self.strengths.dtype)
        return values / jnp.sqrt(self.numbers)

    def potential(self, moments: Float[Array, " degrees"]) -> Float[Array, " nodes"]:
        """Z / beta less its mean, or the logarithm of Z over its mean, over beta."""
        linear = matmul(self.polynomials, self.numbers * self.strengths * moments)
        if self.beta is None:
            return linear
        return jnp.where(self.beta > 0, jnp.log1p(self.beta * linear) / jnp.where(self.beta > 0, self.beta, 1), linear)

    def density(self, moments: Float[Array, " degrees"], temperature: Scalar) -> Float[Array, " nodes"]:
        """The density of this potential, with respect to the uniform measure, at the nodes."""
        weights = jnp.asarray(nodes(self.count, self.d)[1], moments.dtype)
        exponents = self.potential(moments) / temperature
        values = jnp.exp(exponents - lax.stop_gradient(jnp.max(exponents)))
        return values / jnp.sum(weights * values)

    def moments(self, density: Float[Array, " nodes"]) -> Float[Array, " degrees"]:
        """Its moments of the degrees 1, 2, ..."""
        weights = jnp.asarray(nodes(self.count, self.d)[1], density.dtype)
        return matmul(weights * density, self.polynomials)

    def unpack(self, unknowns: Float[Array, " degrees"], r: Scalar) -> tuple[Float[Array, " degrees"], Scalar]:
        """The moments and the temperature: the unknowns are its logarithm and the moments from degree two."""
        return unknowns.at[0].set(r), jnp.exp(unknowns[0])

    def residual(self, unknowns: Float[Array, " degrees"], r: Scalar) -> Float[Array, " degrees"]:
        """By how much each moment is off, the first one relative to r."""
        moments, temperature = self.unpack(unknowns, r)
        off = self.moments(self.density(moments, temperature)) - moments
        return off.at[0].divide(r)

    def solve(self, r: Scalar, guess: Float[Array, " degrees"]) -> Float[Array, " degrees"]:
        """The unknowns at this order parameter; NaN where Newton's method finds none."""
        # The last step of Newton's method is far better than the one before, which is compared with this.
        tolerance = float(jnp.finfo(guess.dtype).eps) ** 0.65
        solver = optx.Newton(rtol=tolerance, atol=tolerance, linear_solver=lx.LU())
        found = optx.root_find(self.residual, solver, guess, args=r, max_steps=64, throw=False)
        return jnp.where(found.result == optx.RESULTS.successful, found.value, jnp.nan)

    def slope(self, r: Scalar, guess: Float[Array, " degrees"]) -> Scalar:
        """The derivative of log T by r along the branch."""
        return jax.jvp(lambda r: self.solve(r, guess)[0], (r,), (jnp.ones_like(r),))[1]

    def excess(self, unknowns: Float[Array, " degrees"], r: Scalar) -> Scalar:
        """The free energy less that of the uniform density, of unnormalised attention."""
        moments, temperature = self.unpack(unknowns, r)
        density = self.density(moments, temperature)
        weights = jnp.asarray(nodes(self.count, self.d)[1], moments.dtype)
        # The logarithm of a density that is rounded to zero is finite beside it.
        disorder = jnp.sum(weights * density * jnp.log(jnp.maximum(density, jnp.finfo(density.dtype).tiny)))
        return temperature * disorder - jnp.sum(self.numbers * self.strengths * moments * moments) / 2


@eqx.filter_jit
def follow(equations: Equations, rs: Float[Array, " points"]) -> Float[Array, "points degrees"]:
    """The unknowns at all `rs`, each point predicted by the two before."""
    first = jnp.zeros_like(equations.strengths).at[0].set(jnp.log(equations.strengths[0]))

    def step(carry: Any, r: Scalar) -> Any:
        (before, r_before), (last, r_last) = carry
        guess = last + (last - before) * ((r - r_last) / (r_last - r_before))
        # Where a point failed the others are of no use, but must be numbers.
        guess = jnp.where(jnp.all(jnp.isfinite(guess)), guess, first)
        found = equations.solve(r, guess)
        return ((last, r_last), (found, r)), found

    # Moments grow like powers of r, so that the line through the uniform state is flat.
    start = ((first, -rs[0]), (first, jnp.zeros_like(rs[0])))
    return lax.scan(step, start, rs)[1]


@eqx.filter_jit
def bisect(
    equations: Equations, ends: tuple[Scalar, Scalar], guess: Float[Array, " degrees"], fold: bool
) -> tuple[Scalar, Float[Array, " degrees"]]:
    """The order parameter between two where the branch folds, or where free energies are equal, and the unknowns there.

    The slope of the branch, or the excess of free energy, goes from positive to negative between the two.
    """

    def halve(_: Any, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        middle = (ends[0] + ends[1]) / 2
        value = equations.slope(middle, guess) if fold else equations.excess(equations.solve(middle, guess), middle)
        return jnp.where(value > 0, middle, ends[0]), jnp.where(value > 0, ends[1], middle)

    low, high = lax.fori_loop(0, 50, halve, ends)
    r = (low + high) / 2
    return r, equations.solve(r, guess)
