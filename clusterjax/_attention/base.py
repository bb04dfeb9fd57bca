"""The interface of attention layers, and the checks of their arguments.

An attention is a matrix of weights that depends on the tokens: row-stochastic or, if unnormalised, positive. `weights`
returns the matrix; `average` returns its product with values, by a summation that need not form the matrix. Invariants:
`average` equals `weights(x) @ values` up to rounding. No token attends to a token of mass zero. The derivative by a
zero mass is one-sided, except for hardmax, whose weights jump where a token gains mass: there the derivative is zero.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._abstract import AbstractPart
from .._check import as_numbers, check_array, check_fits, check_instance, check_tokens, shown
from .._custom_types import Masses, RealScalarLike, Tokens
from .._mask import AbstractMask, check_mask
from .._misc import as_float, is_concrete, matmul, warn_of_rounding
from .._schedule import (
    AbstractSchedule,
    Combined,
    Parameter,
    StoredParameter,
    as_parameter,
    at_time,
    check_real,
    check_time,
    example,
)
from .._summation import AbstractSummation, check_summation, check_supported


class AbstractAttention(AbstractPart):
    r"""A matrix of weights that depends on the tokens, (n, n), and averages of values with these weights."""

    query_key: eqx.AbstractVar[StoredParameter | None]
    mask: eqx.AbstractVar[AbstractMask]
    summation: eqx.AbstractVar[AbstractSummation]

    @abstractmethod
    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        """The attention matrix, whose entry (i, j) is the weight of token j for token i."""

    @abstractmethod
    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        """The product `weights(x) @ values`, by the summation; if `values` is None, the tokens are the values."""

    @abstractmethod
    def check(self, n: int, d: int) -> None:
        """Raise a ValueError unless the attention fits `n` tokens of dimension `d`."""

    def enter(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike, masses: Masses | None
    ) -> tuple[Tokens, Float[Array, "n k"] | None, Masses | None]:
        """Convert tokens, values and masses to arrays; raises a ValueError if they are invalid or do not fit."""
        x = check_tokens(x)
        n, d = x.shape
        # The check comes before tracing, so that the message names the argument of the caller.
        self.check(n, d)
        check_supported(self.summation, None, d, x.dtype)
        check_time(t)
        warn_of_rounding(masses, "masses")
        masses = check_masses(masses)
        check_number_of_masses(masses, n)
        return x, _check_values(values, n), None if masses is None else as_float(masses)

    def queries(self, x: Tokens, t: RealScalarLike) -> Tokens:
        r"""The rows $B^\top x_i$, whose inner product with $x_j$ is $\langle x_i, B x_j\rangle$."""
        form = at_time(self.query_key, t, x.dtype)
        # Row i of x B is the transpose of B^T x_i.
        return x if form is None else matmul(x, form)


class AbstractExponentialAttention(AbstractAttention):
    r"""An attention whose weights are exponentials of scores, and which also averages with given queries.

    The queries may belong to other vectors than the tokens: factored attention heads have separate queries and keys.
    """

    @abstractmethod
    def between(
        self,
        queries: Float[Array, "n k"],
        tokens: Float[Array, "n k"],
        values: Float[Array, "n v"] | None,
        t: RealScalarLike = 0.0,
        masses: Masses | None = None,
        *,
        bias: Float[Array, "n n"] | None = None,
    ) -> Float[Array, "n v"]:
        r"""The averages $\sum_j w_{ij} v_j$ with scores $\beta(\langle q_i, y_j\rangle + b_{ij})$, without checks.

        Scores with a bias are not inner products, so that no summation applies: the (n, n) matrix is formed.
        """


def query_key_form(query: Parameter, key: Parameter) -> StoredParameter:
    r"""The form $B = Q^\top K$, for which $\langle Q x, K y\rangle = \langle x, B y\rangle$.

    **Arguments:**

    - `query`: Q, (k, d), or a schedule of matrices.
    - `key`: K, (k, d), or a schedule of matrices.

    **Returns:**

    B, (d, d), or a schedule of matrices if `query` or `key` depends on time.

    **Raises:**

    - `ValueError` if `query` and `key` are not matrices of the same shape, or not real and finite.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2; Peat, *Clustering in
        Transformers*, eq. (2).
    """
    # Numbers and NumPy arrays become floating-point JAX arrays; schedules are unchanged.
    Q, K = as_parameter(query, "query"), as_parameter(key, "key")
    for name, matrix in (("query", Q), ("key", K)):
        if matrix is None:
            raise ValueError(f"{name} must be a matrix (k, d) or a schedule, but it is None; pass a real matrix.")
        check_real(matrix, name, "pass a real matrix of shape (k, d)", of_tokens=True)
    shapes = jnp.shape(example(Q)), jnp.shape(example(K))
    # An empty matrix is refused, since the product would be a matrix of zeros.
    if len(shapes[0]) != 2 or shapes[0] != shapes[1] or 0 in shapes[0]:
        raise ValueError(
            f"query and key must be matrices of the same shape (k, d), but their shapes are {shapes[0]} and "
            f"{shapes[1]}; give both as many rows and columns."
        )
    # `_form` is a module-level function, so that the combined schedules of equal calls compare equal.
    if isinstance(Q, AbstractSchedule) or isinstance(K, AbstractSchedule):
        return Combined(_form, (Q, K))
    return _form(Q, K)


def _form(query: Float[Array, "k d"], key: Float[Array, "k d"]) -> Float[Array, "d d"]:
    return matmul(query.T, key)


def check_parts(mask: Any, summation: Any, kind: type[AbstractSummation]) -> None:
    """Raise a ValueError unless `mask` is a mask and `summation` is a summation of this kind that supports the mask."""
    check_mask(mask)
    check_summation(summation, kind=kind)
    check_supported(summation, mask)


def check_attention(attention: Any, name: str = "attention") -> AbstractAttention:
    """Return `attention`; raises a `ValueError` if it is not an attention."""
    return check_instance(
        attention, name, AbstractAttention, "an attention of clusterjax", "pass SoftmaxAttention(beta), for example"
    )


def check_beta(beta: Any, name: str = "beta", what: str = "inverse temperature") -> None:
    """Raise a ValueError unless `beta` is a finite real number, of any sign, or a schedule."""
    if beta is None:
        raise ValueError(f"{name} must be a number or a schedule, but it is None; pass a finite real {what}.")
    # The values of traced numbers are not checked: a NaN that arises inside `jit` is visible in the result.
    check_real(beta, name, f"pass a finite real {what}")
    if jnp.ndim(example(beta)) != 0:
        raise ValueError(
            f"{name} must be a number, but its shape is {jnp.shape(example(beta))}; "
            f"map over several {what}s with equinox.filter_vmap."
        )


def check_square(matrix: Any, name: str) -> None:
    """Raise a ValueError unless `matrix` is None or a finite real square matrix."""
    if matrix is None:
        return
    check_real(matrix, name, "pass a real matrix of shape (d, d)", of_tokens=True)
    shape = jnp.shape(example(matrix))
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise ValueError(f"{name} must be a square matrix, but its shape is {shape}; pass one of shape (d, d).")


def check_dimension(matrix: Any, name: str, d: int) -> None:
    """Raise a ValueError unless `matrix` is None or acts on tokens of dimension `d`."""
    # Only the last axis is checked, so that a stack of matrices, one for each head, passes too.
    if matrix is not None and jnp.shape(example(matrix))[-1] != d:
        raise ValueError(
            f"{name} must act on tokens of dimension {d}, but its shape is {jnp.shape(example(matrix))}; "
            f"pass a matrix of shape ({d}, {d})."
        )


def check_masses(masses: Any) -> Any:
    """Return `masses` as an array, or None; raises a ValueError unless they are a vector of finite numbers, none
    negative, not all zero."""
    if masses is None:
        return None
    array = None if isinstance(masses, AbstractSchedule) else as_numbers(masses, "masses")
    if array is None:
        raise ValueError(f"masses must be a vector, one mass per token, but it is {shown(masses)}; pass an array.")
    if np.ndim(array) != 1:
        raise ValueError(
            f"masses must be a vector, one mass per token, but its shape is {np.shape(array)}; reshape it."
        )
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"masses must be real, but its dtype is {array.dtype}; mend them.")
    # Traced masses have no concrete values to check.
    if is_concrete(array):
        values = np.asarray(array)
        if not np.all(np.isfinite(values)) or np.any(values < 0) or not np.any(values > 0):
            held = f"they are {values}" if values.size <= 8 else f"they are {values[:8]} and so on".replace("\n", " ")
            raise ValueError(f"masses must be finite, not negative and not all zero, but {held}; mend them.")
    check_fits(array, "masses")
    return array


def check_number_of_masses(masses: Any, n: int) -> None:
    """Raise a ValueError unless the number of `masses` is the number of tokens."""
    # `check_masses` omits this check, since a field is built before the number of its tokens is known.
    if masses is not None and np.shape(masses)[0] != n:
        raise ValueError(
            f"masses must hold one mass for each of the {n} tokens, but it holds {np.shape(masses)[0]}; "
            "pass a vector of length n."
        )


def _check_values(values: Any, n: int) -> Float[Array, "n k"] | None:
    return None if values is None else check_array(values, "values", shape=(n, "k"))
