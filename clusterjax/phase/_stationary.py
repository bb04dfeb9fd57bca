r"""`stationary` finds a stationary density of a mean field near a guess, and the growth rate of its perturbations.

**Algorithm.** Newton's method solves for all coefficients except the mass, which the field conserves. With V = B = I a
rotated density is stationary too, so that the Jacobian is singular along rotations. Each step is therefore the
minimum-norm solution of the linear equations, by the singular value decomposition. Newton's method with the
pseudoinverse converges quadratically to a point of a manifold of zeros whose tangent space is the null space.
**Reference.** Allgower and Georg, *Introduction to Numerical Continuation Methods*, 2003, chapter 3. **Invariant.** The
eigenvalues of rotations that leave the velocity zero are removed, as many as there are independent rotations.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float

from .._check import check_instance, check_tokens, refusal
from .._field import MeanField
from .._misc import is_concrete


# Singular values below this fraction of the largest belong to rotations.
_RANK = 1e-9
# The largest velocity of a rotated density, relative to a mode that decays at rate one, that counts as zero.
_SYMMETRY = 1e-6

# A truncated series may be this negative where the density is nearly zero; lower roots are no densities.
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
        ...     found = cjx.phase.stationary(field, field.from_density(lambda x: jnp.exp(3 * x[:, 0])))
        ...     print(f"{field.order_parameter(found.coefficients):.2f}", found.growth_rate < 0, found.rotations)
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
    wanted = (field.degree + 1, field.basis.columns(field.degree))
    if shape != wanted:
        problem = f"its shape is {shape}"
        raise refusal(
            "guess", f"hold coefficients up to degree {field.degree}, {wanted}", problem, "make it by the field"
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
            "Newton's method found none from it" if not bool(good) else "what stands still there is negative somewhere",
            "run the flow for a while from there, or follow a branch by clusterjax.phase.branch",
        )
    matrix = np.asarray(_jacobian(velocity, c), float)
    turned = _rotations(field, full)[:, free]
    kept = [g for g in turned if np.linalg.norm(matrix @ g) < _SYMMETRY * max(1e-12, np.linalg.norm(g))]
    count = int(np.linalg.matrix_rank(np.stack(kept), tol=1e-6)) if kept else 0
    eigenvalues = np.linalg.eigvals(matrix)
    rest = np.delete(eigenvalues, np.argsort(np.abs(eigenvalues))[:count])
    return Stationary(full, float(jnp.max(jnp.abs(velocity(c, None)))), float(np.max(rest.real)), count)


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
    found = optx.root_find(velocity, solver, start, max_steps=64, throw=False)
    good = (found.result == optx.RESULTS.successful) & (jnp.max(jnp.abs(velocity(found.value, None))) < tolerance**0.5)
    return found.value, good


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
