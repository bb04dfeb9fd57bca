"""Where tokens live: all of R^d, or the unit sphere."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ._check import check_array, check_float_dtype, check_instance, check_integer, check_key
from ._custom_types import Tokens
from ._misc import draw_normal, is_concrete, normalise


class AbstractSpace(eqx.Module):
    """A space of tokens: how to come back to it, what its tangent vectors are, how to draw from it, how far apart.

    Source: this library.
    """

    @abstractmethod
    def retract(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """The point of the space that stands for the raw `x`."""

    @abstractmethod
    def tangent(self, x: Float[Array, "*batch d"], v: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """The part of `v` that is tangent to the space at `x`."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, n: int, d: int, dtype: Any = None) -> Tokens:
        """`n` independent tokens of dimension `d`."""

    @abstractmethod
    def distance(self, x: Float[Array, "*batch d"], y: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        """The geodesic distance of `x` and `y`."""


def _check_sample(key: Any, n: Any, d: Any, dtype: Any) -> tuple[int, int, Any]:
    """`n`, `d` and `dtype` as the samples use them, or a ValueError that names the argument."""
    check_key(key)
    n, d = (check_integer(size, name, remedy="ask for at least one") for name, size in (("n", n), ("d", d)))
    if n * d > 2**63 - 1:
        raise ValueError(f"n must be small enough for n d numbers, but it is {n} and d is {d}; ask for fewer tokens.")
    return n, d, check_float_dtype(dtype) or jnp.result_type(float)


def _check_points(**points: Any) -> tuple[Array, ...]:
    """The arrays of points by name, (..., d), or a ValueError that names the first that is none."""
    found = tuple(check_array(value, name, remedy="pass points of shape (..., d)") for name, value in points.items())
    for name, array in zip(points, found, strict=True):
        if array.ndim < 1 or array.shape[-1] < 1:
            raise ValueError(f"{name} must be points of shape (..., d), but its shape is {array.shape}; pass such.")
        if array.shape != found[0].shape:
            raise ValueError(
                f"{name} must have the shape of {next(iter(points))}, {found[0].shape}, but its shape is "
                f"{array.shape}; pass as many points of as many dimensions."
            )
    return found


def check_space(space: Any, name: str = "space") -> AbstractSpace:
    """`space`, if it is one; a ValueError else."""
    return check_instance(
        space, name, AbstractSpace, "a space of clusterjax", "pass an instance such as Sphere() or Euclidean()"
    )


def check_directions(space: AbstractSpace, x: Tokens, name: str = "x0") -> None:
    """Raise a ValueError if `space` is a sphere and a row of `x` is zero: it has no direction to be retracted to."""
    if isinstance(space, Sphere) and is_concrete(x):
        zero = np.flatnonzero(~np.any(np.asarray(x), axis=1))
        if zero.size:
            raise ValueError(
                f"{name} must have no zero row on the sphere, but row {zero[0]} is zero; give it a direction."
            )


class Euclidean(AbstractSpace):
    r"""All of $\mathbb{R}^d$: nothing is retracted, every vector is tangent.

    Tokens are drawn from the standard normal distribution.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eq. (1.1): the dynamics
        without layer normalisation.
    """

    def retract(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        return _check_points(x=x)[0]

    def tangent(self, x: Float[Array, "*batch d"], v: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        return _check_points(x=x, v=v)[1]

    def sample(self, key: PRNGKeyArray, n: int, d: int, dtype: Any = None) -> Tokens:
        n, d, dtype = _check_sample(key, n, d, dtype)
        return draw_normal(key, (n, d), dtype)

    def distance(self, x: Float[Array, "*batch d"], y: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        x, y = _check_points(x=x, y=y)
        return jnp.linalg.norm(x - y, axis=-1)


class Sphere(AbstractSpace):
    r"""Unit vectors of $\mathbb{R}^d$, with $P_x v = v - \frac{\langle x, v\rangle}{|x|^2} x$.

    `retract` divides by the norm, `sample` draws uniformly, `distance` is the angle in radians, from 0 to pi, accurate
    at both ends. The projector has the $|x|^2$ of the paper, so that it is right off the sphere too; still, a field
    must be evaluated at `retract(x)`, or the sphere repels where $\langle x, v\rangle < 0$.

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
        along = jnp.sum(x * v, axis=-1, keepdims=True) / jnp.sum(x * x, axis=-1, keepdims=True)
        return v - along * x

    def sample(self, key: PRNGKeyArray, n: int, d: int, dtype: Any = None) -> Tokens:
        n, d, dtype = _check_sample(key, n, d, dtype)
        if d == 1:
            return jr.rademacher(key, (n, 1)).astype(dtype)
        return normalise(draw_normal(key, (n, d), dtype))

    def distance(self, x: Float[Array, "*batch d"], y: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        x, y = map(normalise, _check_points(x=x, y=y))
        return 2 * jnp.arctan2(jnp.linalg.norm(x - y, axis=-1), jnp.linalg.norm(x + y, axis=-1))
