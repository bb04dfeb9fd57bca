"""The laws of random V and Q^T K in the phase diagrams, and the scopes of one draw.

A law is the distribution of a matrix. A draw scope says whether one matrix is drawn for the diagram, for each beta, or
for each system. Invariant: a matrix depends on the seed, and if drawn per beta on the value of beta, never on its
index.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Num, PRNGKeyArray
from scipy.linalg import block_diag

from .._base.checks import (
    as_numbers,
    check_array,
    check_concrete,
    check_fits,
    check_instance,
    check_scalar,
    refusal,
    shown,
)
from .._base.numerics import as_float, matmul
from .._base.random import draw_normal
from .._base.types import AbstractPart, DTypeLike, Numbers, RealScalarLike


Matrices = Float[Array, "..."] | None  # None, (d, d), or (systems, d, d)
Sample = Callable[[PRNGKeyArray], Array]


class AbstractDrawScope(AbstractPart):
    """The scope of one draw of a random matrix: the systems that share the matrix."""

    @abstractmethod
    def draw(self, sample: Sample, key: PRNGKeyArray, beta: Float[Array, ""], systems: int) -> Array:
        """`sample` of one key, (d, d), or of one key per system, (systems, d, d)."""


class Once(AbstractDrawScope):
    """One matrix for the whole diagram."""

    def draw(self, sample: Sample, key: PRNGKeyArray, beta: Float[Array, ""], systems: int) -> Array:
        return sample(key)


class PerBeta(AbstractDrawScope):
    """One matrix for all systems of one beta."""

    def draw(self, sample: Sample, key: PRNGKeyArray, beta: Float[Array, ""], systems: int) -> Array:
        return sample(_of_beta(key, beta))


class PerSystem(AbstractDrawScope):
    """One matrix for each system."""

    def draw(self, sample: Sample, key: PRNGKeyArray, beta: Float[Array, ""], systems: int) -> Array:
        # With one key per system the matrices do not depend on the chunks of systems.
        return jax.vmap(sample)(jr.split(_of_beta(key, beta), systems))


class AbstractLaw(AbstractPart):
    """The law of V or Q^T K in a phase diagram."""

    @abstractmethod
    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        """The matrices, or None for the identity; `query_key` holds the matrices drawn for Q^T K."""


class Identity(AbstractLaw):
    """The identity matrix."""

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        return None


class AbstractRandomLaw(AbstractLaw):
    """The law of a random matrix of dimension d, which is drawn in one of three scopes."""

    drawn: eqx.AbstractVar[AbstractDrawScope]

    def __check_init__(self):
        remedy = "pass one of these"
        check_instance(self.drawn, "drawn", AbstractDrawScope, "Once(), PerBeta() or PerSystem()", remedy)

    @abstractmethod
    def sample(self, key: PRNGKeyArray, d: int, dtype: DTypeLike) -> Float[Array, "d d"]:
        """One matrix."""

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        return self.drawn.draw(lambda key: self.sample(key, d, beta.dtype), key, beta, systems)


class Square(AbstractRandomLaw):
    """$GG^T/√d$ with standard normal entries of G; positive semidefinite.

    **Arguments:**

    - `drawn`: The scope of one draw.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794): its random V.
    """

    drawn: AbstractDrawScope = PerSystem()

    def sample(self, key: PRNGKeyArray, d: int, dtype: DTypeLike) -> Float[Array, "d d"]:
        g = draw_normal(key, (d, d), dtype)
        return matmul(g, g.T) / math.sqrt(d)


class Product(AbstractRandomLaw):
    """$G_1 G_2/√d$ with standard normal entries of both factors.

    **Arguments:**

    - `drawn`: The scope of one draw.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794): its random Q^T K.
    """

    drawn: AbstractDrawScope = PerSystem()

    def sample(self, key: PRNGKeyArray, d: int, dtype: DTypeLike) -> Float[Array, "d d"]:
        g = draw_normal(key, (2, d, d), dtype)
        return matmul(g[0], g[1]) / math.sqrt(d)


class Wigner(AbstractRandomLaw):
    """The Gaussian orthogonal ensemble $(G + G^T)/√2$: symmetric, variance 1 off the diagonal and 2 on it.

    **Arguments:**

    - `drawn`: The scope of one draw.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794). Another law in that
        code, whose diagonal is too small, is omitted.
    """

    drawn: AbstractDrawScope = PerSystem()

    def sample(self, key: PRNGKeyArray, d: int, dtype: DTypeLike) -> Float[Array, "d d"]:
        g = draw_normal(key, (d, d), dtype)
        return (g + g.T) / math.sqrt(2)


class Gaussian(AbstractRandomLaw):
    """G/√d with standard normal entries and no symmetry; its eigenvalues fill the unit disc.

    **Arguments:**

    - `drawn`: The scope of one draw.
    """

    drawn: AbstractDrawScope = PerSystem()

    def sample(self, key: PRNGKeyArray, d: int, dtype: DTypeLike) -> Float[Array, "d d"]:
        return draw_normal(key, (d, d), dtype) / math.sqrt(d)


class Orthogonal(AbstractRandomLaw):
    """The uniform distribution on the orthogonal matrices, of either determinant.

    **Arguments:**

    - `drawn`: The scope of one draw.

    ??? cite "Source"

        Mezzadri, *How to generate random matrices from the classical compact groups* (math-ph/0609050).
    """

    drawn: AbstractDrawScope = PerSystem()

    def sample(self, key: PRNGKeyArray, d: int, dtype: DTypeLike) -> Float[Array, "d d"]:
        q, r = jnp.linalg.qr(draw_normal(key, (d, d), dtype))
        # Without the signs of the diagonal of R the law would depend on the QR routine.
        return q * jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(dtype)[None, :]


def _normal_form(eigenvalues: Any) -> Array:
    """The real block diagonal matrix with these eigenvalues."""
    check_concrete(eigenvalues, "eigenvalues")
    given = as_numbers(eigenvalues, "eigenvalues")
    rule = "be finite numbers (d,), complex ones in pairs of conjugates"
    if given is None or np.ndim(given) != 1 or np.size(given) == 0 or not np.all(np.isfinite(np.asarray(given))):
        raise refusal("eigenvalues", rule, f"they are {shown(eigenvalues)}", "pass [1.0, 0.5], say")
    numbers: Any = np.asarray(given).astype(complex)
    above, below = numbers[numbers.imag > 0], numbers[numbers.imag < 0]
    if not np.array_equal(np.sort_complex(above), np.sort_complex(below.conj())):
        raise refusal("eigenvalues", rule, f"{shown(eigenvalues)} lack a conjugate", "add it")
    blocks = [np.array([[z.real]]) for z in numbers[numbers.imag == 0]]
    # The eigenvalues of a scaled rotation are two complex conjugates.
    blocks += [np.array([[z.real, -z.imag], [z.imag, z.real]]) for z in above]
    form = block_diag(*blocks)
    check_fits(form, "eigenvalues")
    return as_float(form, jnp.result_type(float))


class Spectrum(AbstractRandomLaw):
    """A normal matrix with given eigenvalues, in a uniform random orthonormal basis.

    **Arguments:**

    - `eigenvalues`: (d,), real, or complex in conjugate pairs.
    - `drawn`: The scope of one draw of the basis.

    **Raises:**

    - `ValueError` if `eigenvalues` is of another form, or on use if its length is not the dimension of the tokens.
    """

    eigenvalues: Float[Array, "d d"]
    drawn: AbstractDrawScope

    def __init__(self, eigenvalues: Num[ArrayLike, " d"] | Sequence[complex], drawn: AbstractDrawScope = PerSystem()):
        # The attribute holds the real matrix with these eigenvalues.
        self.eigenvalues, self.drawn = _normal_form(eigenvalues), drawn

    def sample(self, key: PRNGKeyArray, d: int, dtype: DTypeLike) -> Float[Array, "d d"]:
        count = self.eigenvalues.shape[0]
        if count != d:
            raise ValueError(
                f"eigenvalues must be as many as tokens have coordinates, {d}, but there are {count}; pass {d}."
            )
        basis = Orthogonal().sample(key, d, dtype)
        return matmul(matmul(basis, self.eigenvalues.astype(dtype)), basis.T)


def _scale(scale: RealScalarLike) -> Array:
    return check_scalar(scale, "scale")


def _square(matrix: Numbers) -> Array:
    array = check_array(matrix, "matrix", shape=("d", "d"))
    return check_array(array, "matrix", shape=(array.shape[0],) * 2)


class LikeQueryKey(AbstractLaw):
    """V = `scale` · $Q^T K$, with which the flow ascends or descends an energy if $Q^T K$ is symmetric.

    **Arguments:**

    - `scale`: The factor; the published code has ±1/√d for `Square` and `Product`, $±1/√(d+1)$ for `Wigner`.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    scale: Float[Array, ""] = eqx.field(converter=_scale)

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        # None stands for the identity, which must be explicit to be scaled.
        matrices = jnp.eye(d, dtype=beta.dtype) if query_key is None else query_key
        return self.scale.astype(beta.dtype) * matrices


class Fixed(AbstractLaw):
    """A given matrix.

    **Arguments:**

    - `matrix`: (d, d).
    """

    matrix: Float[Array, "d d"] = eqx.field(converter=_square)

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        # The shape is checked here, where the dimension of the tokens is first known.
        if self.matrix.shape != (d, d):
            raise ValueError(
                f"matrix must have the shape ({d}, {d}) of the tokens, but it has {self.matrix.shape}; pass another."
            )
        return self.matrix.astype(beta.dtype)


def _of_beta(key: PRNGKeyArray, beta: Float[Array, ""]) -> PRNGKeyArray:
    """A separate key for each beta, independent of the other points of the sweep."""
    # The bits of beta in float32 are folded in as an integer, so that both precisions draw equal matrices.
    return jr.fold_in(key, jax.lax.bitcast_convert_type(beta.astype(jnp.float32), jnp.uint32))
