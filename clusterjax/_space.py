"""Where tokens live: all of R^d, or the unit sphere."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

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


def _check_sizes(n: int, d: int) -> None:
    for name, size in (("n", n), ("d", d)):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a positive integer, but it is {size!r}; ask for at least one.")


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
        return x

    def tangent(self, x: Float[Array, "*batch d"], v: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        return v

    def sample(self, key: PRNGKeyArray, n: int, d: int, dtype: Any = None) -> Tokens:
        _check_sizes(n, d)
        return draw_normal(key, (n, d), dtype or jnp.result_type(float))

    def distance(self, x: Float[Array, "*batch d"], y: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
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
        return normalise(x)

    def tangent(self, x: Float[Array, "*batch d"], v: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        along = jnp.sum(x * v, axis=-1, keepdims=True) / jnp.sum(x * x, axis=-1, keepdims=True)
        return v - along * x

    def sample(self, key: PRNGKeyArray, n: int, d: int, dtype: Any = None) -> Tokens:
        _check_sizes(n, d)
        dtype = dtype or jnp.result_type(float)
        if d == 1:
            return jr.rademacher(key, (n, 1)).astype(dtype)
        return normalise(draw_normal(key, (n, d), dtype))

    def distance(self, x: Float[Array, "*batch d"], y: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        x, y = normalise(x), normalise(y)
        return 2 * jnp.arctan2(jnp.linalg.norm(x - y, axis=-1), jnp.linalg.norm(x + y, axis=-1))
