"""Spaces of tokens: all of R^d, and the unit sphere.

A space retracts points, projects vectors onto tangent spaces, samples and measures distances (Absil, Mahony, Sepulchre,
*Optimization Algorithms on Matrix Manifolds*, chapters 3 and 4). Invariants: `retract` is idempotent up to rounding;
tangent vectors of the sphere are orthogonal to the point, even if the point is not a unit vector.
"""

import functools
from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import check_array, check_float_dtype, check_instance, check_integer, check_key, check_room, refusal
from .._base.numerics import is_concrete, normalise
from .._base.random import draw_normal
from .._base.types import AbstractPart, DTypeLike, Tokens


class AbstractSpace(AbstractPart):
    """A space of tokens: retraction, tangent vectors, samples and distances."""

    @abstractmethod
    def retract(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """The point of the space that belongs to `x` in R^d: on the sphere x / |x|."""

    @abstractmethod
    def tangent(self, x: Float[Array, "*batch d"], v: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """The part of `v` that is tangent to the space at `x`."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, n: int, d: int, dtype: DTypeLike | None = None) -> Tokens:
        """`n` independent tokens of dimension `d`."""

    @abstractmethod
    def distance(self, x: Float[Array, "*batch d"], y: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        """The geodesic distance of `x` and `y`."""


def _check_sample(key: Any, n: Any, d: Any, dtype: Any) -> tuple[int, int, Any]:
    """The checked `n`, `d` and `dtype` of a sample, or a ValueError that names the argument."""
    check_key(key)
    n, d = (check_integer(size, name, remedy="ask for at least one") for name, size in (("n", n), ("d", d)))
    dtype = check_float_dtype(dtype) or jnp.result_type(float)
    # `draw_normal` draws all numbers along one axis; the measured memory is that of four arrays of their size.
    content = f"n tokens of dimension d = {d} and what draws them"
    check_room(n, "n", 4 * n * d * jnp.dtype(dtype).itemsize, content, longest=n * d, remedy="ask for fewer tokens")
    return n, d, dtype


def _check_points(**points: Any) -> tuple[Array, ...]:
    """The points as arrays (..., d), or a ValueError that names the first argument that is not one."""
    arrays = tuple(check_array(value, name, remedy="pass points of shape (..., d)") for name, value in points.items())
    for name, array in zip(points, arrays, strict=True):
        if array.ndim < 1 or array.shape[-1] < 1:
            raise ValueError(f"{name} must be points of shape (..., d), but its shape is {array.shape}; pass such.")
        if array.shape != arrays[0].shape:
            rule = f"have the shape of {next(iter(points))}, {arrays[0].shape}"
            raise refusal(name, rule, f"its shape is {array.shape}", "pass as many points of as many dimensions")
    return arrays


def check_space(space: Any, name: str = "space") -> AbstractSpace:
    """`space`, or a `ValueError` if it is not a space."""
    return check_instance(
        space, name, AbstractSpace, "a space of clusterjax", "pass an instance such as Sphere() or Euclidean()"
    )


def check_directions(space: AbstractSpace, x: Tokens, name: str = "x0") -> None:
    """Raise a ValueError if `space` is a sphere and a row of `x` is zero, which has no retraction onto the sphere."""
    # Under `jit` a zero row gives NaN.
    if isinstance(space, Sphere) and is_concrete(x):
        zero = np.flatnonzero(~np.any(np.asarray(x), axis=1))
        if zero.size:
            raise refusal(name, "have no zero row on the sphere", f"row {zero[0]} is zero", "give it a direction")


class Euclidean(AbstractSpace):
    """All of $ℝ^d$: retraction changes nothing, and every vector is tangent.

    Tokens are drawn from the standard normal distribution.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> float(cjx.Euclidean().distance(jnp.array([0.0, 0.0]), jnp.array([3.0, 4.0])))
        5.0
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(1.0), space=cjx.Euclidean())
        >>> traj = cjx.simulate(field, jnp.array([[1.0, 0.0]]), jnp.array([0.0, 1.0]))
        >>> round(float(traj.xs[-1, 0, 0]), 3)  # one token alone grows like exp(t); on the sphere it would stay
        2.718
        ```

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eq. (1.1): the dynamics
        without layer normalisation.
    """

    def retract(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        return _check_points(x=x)[0]

    def tangent(self, x: Float[Array, "*batch d"], v: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        return _check_points(x=x, v=v)[1]

    def sample(self, key: PRNGKeyArray, n: int, d: int, dtype: DTypeLike | None = None) -> Tokens:
        n, d, dtype = _check_sample(key, n, d, dtype)
        return draw_normal(key, (n, d), dtype)

    def distance(self, x: Float[Array, "*batch d"], y: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        x, y = _check_points(x=x, y=y)
        return jnp.linalg.norm(x - y, axis=-1)


class Sphere(AbstractSpace):
    """Unit vectors of $ℝ^d$, with the projector $P_x v = v - ⟨x, v⟩ x / |x|²$.

    `retract` divides by the norm, `sample` draws uniformly, and `distance` is the angle in radians, from 0 to pi,
    accurate at both ends. The projector has the |x|² of the paper, so that it is correct off the sphere too. A field
    must still be evaluated at `retract(x)`, or the sphere is repelling where $⟨x, v⟩ < 0$.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> sphere = cjx.Sphere()
        >>> print(sphere.retract(jnp.array([[3.0, 4.0]])))
        [[0.6 0.8]]
        >>> round(float(sphere.distance(jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0]))), 3)  # an angle
        1.571
        >>> x = sphere.sample(jax.random.key(0), n=5, d=3)
        >>> x.shape, bool(jnp.allclose(jnp.sum(x * x, axis=1), 1))
        ((5, 3), True)
        ```

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2; Peat, *Clustering in
        Transformers*, Section 2.4 for the projector.
    """

    def retract(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        (x,) = _check_points(x=x)
        if is_concrete(x) and not np.any(np.asarray(x), axis=-1).all():
            raise ValueError("x must have no zero row on the sphere, but one is zero; give it a direction.")
        return normalise(x)

    def tangent(self, x: Float[Array, "*batch d"], v: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        x, v = _check_points(x=x, v=v)
        # The division by |x|^2 makes the projection correct off the sphere, as for the stages of a Runge-Kutta step.
        along = jnp.sum(x * v, axis=-1, keepdims=True) / jnp.sum(x * x, axis=-1, keepdims=True)
        return v - along * x

    def sample(self, key: PRNGKeyArray, n: int, d: int, dtype: DTypeLike | None = None) -> Tokens:
        n, d, dtype = _check_sample(key, n, d, dtype)
        # The sphere of R^1 consists of two points.
        if d == 1:
            return jr.rademacher(key, (n, 1)).astype(dtype)
        return _directions(key, (n, d), dtype)

    def distance(self, x: Float[Array, "*batch d"], y: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        # The angle depends on the directions only, so points off the sphere are projected first.
        x, y = map(normalise, _check_points(x=x, y=y))
        # Kahan's formula: the arc cosine of an inner product loses half the digits at 0 and pi.
        return 2 * jnp.arctan2(jnp.linalg.norm(x - y, axis=-1), jnp.linalg.norm(x + y, axis=-1))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _directions(key: PRNGKeyArray, shape: tuple[int, int], dtype: Any) -> Tokens:
    # Directions of normal vectors are uniform on the sphere (Muller, 1959).
    return normalise(draw_normal(key, shape, dtype))


def project(space: AbstractSpace, x: Float[Array, "*batch d"], v: Float[Array, "*batch d"]) -> Array:
    """`space.tangent(x, v)` for points `x` that `space.retract` has returned."""
    if not isinstance(space, Sphere):
        return space.tangent(x, v)
    # |x|^2 is one up to rounding. For a few tokens of dimension 64, its sum would take up to a fifth of the time.
    return v - jnp.sum(x * v, axis=-1, keepdims=True) * x


def tangent_basis(point: Float[Array, "n d"]) -> Float[Array, "n d k"]:
    """An orthonormal basis of each tangent space, from the reflection that takes the first axis to -+ the point."""
    d = point.shape[1]
    # This sign avoids cancellation.
    sign = jnp.where(point[:, :1] >= 0, 1, -1).astype(point.dtype)
    normal = point.at[:, :1].add(sign)
    reflected = normal[:, :, None] * normal[:, None, :] / jnp.sum(normal * normal, axis=1)[:, None, None]
    return (jnp.eye(d, dtype=point.dtype)[None] - 2 * reflected)[:, :, 1:]
