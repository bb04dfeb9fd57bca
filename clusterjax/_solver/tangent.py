"""The linearisation of an equation on a space, in coordinates of the tangent space, for the linear solves of `Rodas5P`.

On the sphere the field is evaluated at retracted tokens and is tangent to the space. The Jacobian J of f(x) therefore
has no columns along x_i, and its row along x_i is known: <x_i, f_i> = 0 gives -<u, f_i> / |x_i| for a tangent u. One LU
decomposition of size n (d - 1), instead of n d, then solves (I - c J) k = r exactly. On other spaces it has the size of
the state.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._field import AbstractField
from .._field.jacobian import has_velocity_jacobian, velocity_jacobian
from .._misc import einsum
from .._space import Sphere


class Equation(eqx.Module):
    """The right-hand side of a term, which on the sphere is made tangent and evaluated at retracted tokens."""

    term: Any

    @property
    def field(self) -> Any:
        """The field of clusterjax in the term; None for another vector field."""
        # diffrax wraps the term for runs backwards in time.
        field = getattr(getattr(self.term, "term", self.term), "vector_field", None)
        return field if isinstance(field, AbstractField) else None

    @property
    def direction(self) -> Any:
        """-1 where the term runs backwards, so that its time is minus the time of the field; else 1."""
        return getattr(self.term, "direction", 1)

    @property
    def on_sphere(self) -> bool:
        return self.field is not None and isinstance(self.field.space, Sphere)

    def __call__(self, t, y, args):
        if not self.on_sphere:
            return self.term.vf(t, y, args)
        space = self.field.space
        # The fields of clusterjax are tangent and retract already; a user's field may not.
        return space.tangent(y, self.term.vf(t, space.retract(y), args))

    def projected(self, y0, y1):
        """The end of a step from `y0`; on the sphere the norm of each token is restored to its norm in `y0`."""
        if not self.on_sphere:
            return y1
        # Norms are constant along the flow. A step that changes them, always to one side if V rotates, would change the
        # angular velocity v / |x| by an error that accumulates: the phase would be wrong by its square.
        return y1 * (jnp.linalg.norm(y0, axis=1) / jnp.linalg.norm(y1, axis=1))[:, None]


class Linearised(eqx.Module):
    """The Jacobian at a state, in tangent coordinates; `solver(c)` solves with I - c J."""

    jacobian: Float[Array, "size size"]
    by_time: Array
    # On the sphere: tangent basis, unit radial vectors, and velocity divided by the norm of each token. Otherwise None.
    basis: Float[Array, "n d k"] | None
    radial: Float[Array, "n d"] | None
    slope: Float[Array, "n d"] | None
    shape: tuple[int, ...] = eqx.field(static=True)

    def coordinates(self, v: Array) -> Array:
        """The tangent coordinates of v."""
        return (v if self.basis is None else einsum("ida,id->ia", self.basis, v)).reshape(-1)

    def vector(self, u: Array) -> Array:
        """The tangent vector of coordinates u."""
        if self.basis is None:
            return u.reshape(self.shape)
        n, _, k = self.basis.shape
        return einsum("ida,ia->id", self.basis, u.reshape(n, k))

    def solver(self, c):
        """The function r -> (I - c J)^{-1} r, and the corresponding function in tangent coordinates."""
        size = self.jacobian.shape[0]
        # The permutation is computed once with the decomposition, and not in each solve.
        lu, _, permutation = jax.lax.linalg.lu(jnp.eye(size, dtype=self.jacobian.dtype) - c * self.jacobian)

        def inner(u):
            column = u[permutation][:, None]
            column = jax.lax.linalg.triangular_solve(lu, column, left_side=True, lower=True, unit_diagonal=True)
            return jax.lax.linalg.triangular_solve(lu, column, left_side=True, lower=False)[:, 0]

        def outer(r):
            k = self.vector(inner(self.coordinates(r)))
            if self.radial is None or self.slope is None:
                return k
            # The row along x_i is solved after the tangent part is known.
            along = jnp.sum(self.radial * r, axis=1) - c * jnp.sum(self.slope * k, axis=1)
            return k + along[:, None] * self.radial

        return outer, inner


def linearise(equation: Equation, t, y: Array, args: Any) -> Linearised:
    """The derivatives of the equation at (t, y), with respect to time and to the state."""
    velocity, by_time = jax.jvp(lambda t: equation(t, y, args), (t,), (jnp.ones_like(t),))
    if not equation.on_sphere:
        jacobian = jax.jacfwd(lambda u: equation(t, u.reshape(y.shape), args).reshape(-1))(y.reshape(-1))
        return Linearised(jacobian, by_time, None, None, None, y.shape)
    radii = jnp.linalg.norm(y, axis=1)
    point = y / radii[:, None]
    basis = _tangent_basis(point)
    n, d, k = basis.shape
    if has_velocity_jacobian(equation.field):
        ambient, derivative = velocity_jacobian(equation.field, t * equation.direction, point)
        blocks = einsum("ida,idje,jeb->iajb", basis, derivative, basis)
        # The derivative of the projection is -<y_i, v_i> on the diagonal.
        pull = jnp.sum(point * ambient, axis=1)
        diagonal = einsum("ij,i,ab->iajb", jnp.eye(n, dtype=y.dtype), pull, jnp.eye(k, dtype=y.dtype))
        blocks = (blocks - diagonal) / radii[None, None, :, None]
    else:
        _, push = jax.linearize(lambda x: equation(t, x, args), y)
        columns = einsum("ij,jda->jaid", jnp.eye(n, dtype=y.dtype), basis).reshape(n * k, n, d)
        blocks = einsum("ida,mid->iam", basis, jax.vmap(push)(columns))
    return Linearised(blocks.reshape(n * k, n * k), by_time, basis, point, velocity / radii[:, None], y.shape)


def _tangent_basis(point: Float[Array, "n d"]) -> Float[Array, "n d k"]:
    """An orthonormal basis of each tangent space, from the reflection that takes the first axis to -+ the point."""
    d = point.shape[1]
    # This sign avoids cancellation.
    sign = jnp.where(point[:, :1] >= 0, 1, -1).astype(point.dtype)
    normal = point.at[:, :1].add(sign)
    reflected = normal[:, :, None] * normal[:, None, :] / jnp.sum(normal * normal, axis=1)[:, None, None]
    return (jnp.eye(d, dtype=point.dtype)[None] - 2 * reflected)[:, :, 1:]
