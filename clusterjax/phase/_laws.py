"""The laws of random V and Q^T K in the phase diagrams, and the scopes of one draw.

A law says how one matrix is distributed, a draw scope whether one matrix is drawn for the diagram, for each beta or for
each system. Invariant: a matrix depends on the seed, and where it is drawn per beta on the value of beta, never on its
index.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._abstract import AbstractPart
from .._check import check_array, check_instance, check_scalar
from .._custom_types import Numbers, RealScalarLike
from .._misc import matmul
from .._random import draw_normal


Matrices = Float[Array, "..."] | None  # None, (d, d), or (systems, d, d)


class AbstractDrawScope(AbstractPart):
    """The scope of one draw of a random matrix: when it is drawn anew."""

    @abstractmethod
    def draw(
        self, sample: Callable[[PRNGKeyArray], Array], key: PRNGKeyArray, beta: Float[Array, ""], systems: int
    ) -> Array:
        """`sample` of one key, (d, d), or of a key for each system, (systems, d, d)."""


class Once(AbstractDrawScope):
    """One matrix for the whole diagram."""

    def draw(
        self, sample: Callable[[PRNGKeyArray], Array], key: PRNGKeyArray, beta: Float[Array, ""], systems: int
    ) -> Array:
        return sample(key)


class PerBeta(AbstractDrawScope):
    """One matrix for all systems of one beta."""

    def draw(
        self, sample: Callable[[PRNGKeyArray], Array], key: PRNGKeyArray, beta: Float[Array, ""], systems: int
    ) -> Array:
        return sample(_of_beta(key, beta))


class PerSystem(AbstractDrawScope):
    """A matrix for each system."""

    def draw(
        self, sample: Callable[[PRNGKeyArray], Array], key: PRNGKeyArray, beta: Float[Array, ""], systems: int
    ) -> Array:
        # One key for each system: the matrices do not depend on how systems are taken in chunks.
        return jax.vmap(sample)(jr.split(_of_beta(key, beta), systems))


def check_draw_scope(drawn: Any) -> None:
    """Raise a ValueError unless it says when a matrix is drawn anew."""
    check_instance(drawn, "drawn", AbstractDrawScope, "Once(), PerBeta() or PerSystem()", "pass one of these")


class AbstractLaw(AbstractPart):
    """Where V or Q^T K of a phase diagram come from."""

    @abstractmethod
    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        """The matrices, or None for the identity; `query_key` is what was drawn before them."""


class Identity(AbstractLaw):
    """The identity."""

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        return None


class Square(AbstractLaw):
    r"""$GG^\top/\sqrt d$, entries of G standard normal: positive semidefinite.

    **Arguments:**

    - `drawn`: When it is drawn anew.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794): its random V.
    """

    drawn: AbstractDrawScope = PerSystem()

    def __check_init__(self):
        check_draw_scope(self.drawn)

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        def sample(key):
            g = draw_normal(key, (d, d), beta.dtype)
            return matmul(g, g.T) / math.sqrt(d)

        return self.drawn.draw(sample, key, beta, systems)


class Product(AbstractLaw):
    r"""$G_1G_2/\sqrt d$, entries standard normal.

    **Arguments:**

    - `drawn`: When it is drawn anew.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794): its random Q^T K.
    """

    drawn: AbstractDrawScope = PerSystem()

    def __check_init__(self):
        check_draw_scope(self.drawn)

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        def sample(key):
            g = draw_normal(key, (2, d, d), beta.dtype)
            return matmul(g[0], g[1]) / math.sqrt(d)

        return self.drawn.draw(sample, key, beta, systems)


class Wigner(AbstractLaw):
    r"""The Gaussian orthogonal ensemble $(G + G^\top)/\sqrt2$: symmetric, variance 1 off the diagonal and 2 on it.

    **Arguments:**

    - `drawn`: When it is drawn anew.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794); another law of it,
        which has too small a diagonal, is left out.
    """

    drawn: AbstractDrawScope = PerSystem()

    def __check_init__(self):
        check_draw_scope(self.drawn)

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        def sample(key):
            g = draw_normal(key, (d, d), beta.dtype)
            return (g + g.T) / math.sqrt(2)

        return self.drawn.draw(sample, key, beta, systems)


def _scale(scale: RealScalarLike) -> Array:
    return check_scalar(scale, "scale")


def _square(matrix: Numbers) -> Array:
    array = check_array(matrix, "matrix", shape=("d", "d"))
    return check_array(array, "matrix", shape=(array.shape[0],) * 2)


class LikeQueryKey(AbstractLaw):
    r"""V = `scale` $\cdot\,Q^\top K$, which for a symmetric one makes the flow ascend an energy, or descend.

    **Arguments:**

    - `scale`: The published code has $\pm1/\sqrt d$ for `Square` and `Product`, $\pm1/\sqrt{d+1}$ for `Wigner`.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    scale: Float[Array, ""] = eqx.field(converter=_scale)

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        # None is the identity, which has to be written out to be scaled.
        matrices = jnp.eye(d, dtype=beta.dtype) if query_key is None else query_key
        return self.scale.astype(beta.dtype) * matrices


class Fixed(AbstractLaw):
    """A matrix that is given.

    **Arguments:**

    - `matrix`: (d, d).
    """

    matrix: Float[Array, "d d"] = eqx.field(converter=_square)

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        # The dimension of the tokens is known here first.
        if self.matrix.shape != (d, d):
            raise ValueError(
                f"matrix must have the shape ({d}, {d}) of the tokens, but it has {self.matrix.shape}; pass another."
            )
        return self.matrix.astype(beta.dtype)


LAWS: dict[str, Any] = {"identity": Identity, "square": Square, "product": Product, "wigner": Wigner}


def _of_beta(key: PRNGKeyArray, beta: Float[Array, ""]) -> PRNGKeyArray:
    """A key of its own for each beta, whatever the other points of the sweep are."""
    # The bits of beta as an integer; in float32, so that both precisions draw the same matrices.
    return jr.fold_in(key, jax.lax.bitcast_convert_type(beta.astype(jnp.float32), jnp.uint32))
