"""The laws of random V and Q^T K in the phase diagrams, and the scopes of one draw.

A law says how one matrix is distributed, a draw scope whether one matrix is drawn for the diagram, for each beta or for
each system. Invariant: a matrix depends on the seed, and where it is drawn per beta on the value of beta, never on its
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

from .._abstract import AbstractPart
from .._check import as_numbers, check_array, check_concrete, check_fits, check_instance, check_scalar, refusal, shown
from .._custom_types import Numbers, RealScalarLike
from .._misc import as_float, matmul
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


class Gaussian(AbstractLaw):
    r"""$G/\sqrt d$, entries standard normal, no symmetry: its eigenvalues fill the unit disc.

    **Arguments:**

    - `drawn`: When it is drawn anew.
    """

    drawn: AbstractDrawScope = PerSystem()

    def __check_init__(self):
        check_draw_scope(self.drawn)

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        return self.drawn.draw(lambda key: draw_normal(key, (d, d), beta.dtype) / math.sqrt(d), key, beta, systems)


class Orthogonal(AbstractLaw):
    """Uniform among the orthogonal matrices, of either determinant.

    **Arguments:**

    - `drawn`: When it is drawn anew.

    ??? cite "Source"

        Mezzadri, *How to generate random matrices from the classical compact groups* (math-ph/0609050).
    """

    drawn: AbstractDrawScope = PerSystem()

    def __check_init__(self):
        check_draw_scope(self.drawn)

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        return self.drawn.draw(lambda key: _orthogonal(key, d, beta.dtype), key, beta, systems)


def _orthogonal(key: PRNGKeyArray, d: int, dtype: Any) -> Float[Array, "d d"]:
    q, r = jnp.linalg.qr(draw_normal(key, (d, d), dtype))
    # Without the signs of the diagonal of R the law would depend on the routine.
    return q * jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(dtype)[None, :]


def _normal_form(eigenvalues: Any) -> Array:
    """The real block diagonal matrix of these eigenvalues."""
    check_concrete(eigenvalues, "eigenvalues")
    given = as_numbers(eigenvalues, "eigenvalues")
    rule = "be finite numbers (d,), complex ones in pairs of conjugates"
    if given is None or np.ndim(given) != 1 or np.size(given) == 0 or not np.all(np.isfinite(np.asarray(given))):
        raise refusal("eigenvalues", rule, f"they are {shown(eigenvalues)}", "pass [1.0, 0.5], say")
    numbers: Any = np.asarray(given).astype(complex)
    above, below = numbers[numbers.imag > 0], numbers[numbers.imag < 0]
    if sorted(above, key=_ordered) != sorted(below.conj(), key=_ordered):
        raise refusal("eigenvalues", rule, f"{shown(eigenvalues)} lack a conjugate", "add it")
    blocks = [np.array([[z.real]]) for z in numbers[numbers.imag == 0]]
    # A rotation times a length has the two conjugates.
    blocks += [np.array([[z.real, -z.imag], [z.imag, z.real]]) for z in above]
    form = block_diag(*blocks)
    check_fits(form, "eigenvalues")
    return as_float(form, jnp.result_type(float))


def _ordered(z: complex) -> tuple[float, float]:
    return z.real, z.imag


class Spectrum(AbstractLaw):
    """A normal matrix with eigenvalues that are given, in a uniform random orthonormal basis.

    **Arguments:**

    - `eigenvalues`: (d,), real, or complex in pairs of conjugates.
    - `drawn`: When the basis is drawn anew.

    **Raises:**

    - `ValueError` if they are no such numbers, or on use if they are not as many as tokens have coordinates.
    """

    eigenvalues: Float[Array, "d d"]
    drawn: AbstractDrawScope

    def __init__(self, eigenvalues: Num[ArrayLike, " d"] | Sequence[complex], drawn: AbstractDrawScope = PerSystem()):
        check_draw_scope(drawn)
        # Kept as the matrix that has them.
        self.eigenvalues, self.drawn = _normal_form(eigenvalues), drawn

    def draw(self, key: PRNGKeyArray, beta: Float[Array, ""], systems: int, d: int, query_key: Matrices) -> Matrices:
        many = self.eigenvalues.shape[0]
        if many != d:
            raise ValueError(
                f"eigenvalues must be as many as tokens have coordinates, {d}, but there are {many}; pass {d}."
            )
        form = self.eigenvalues.astype(beta.dtype)

        def sample(key):
            basis = _orthogonal(key, d, beta.dtype)
            return matmul(matmul(basis, form), basis.T)

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


LAWS: dict[str, Any] = {
    "identity": Identity, "square": Square, "product": Product, "wigner": Wigner, "gaussian": Gaussian,
    "orthogonal": Orthogonal,
}  # fmt: skip


def _of_beta(key: PRNGKeyArray, beta: Float[Array, ""]) -> PRNGKeyArray:
    """A key of its own for each beta, whatever the other points of the sweep are."""
    # The bits of beta as an integer; in float32, so that both precisions draw the same matrices.
    return jr.fold_in(key, jax.lax.bitcast_convert_type(beta.astype(jnp.float32), jnp.uint32))
