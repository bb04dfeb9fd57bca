"""What every attention offers, and the checks at its door."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import as_numbers, check_array, check_instance, check_tokens, shown
from .._custom_types import Masses, RealScalarLike, Tokens
from .._mask import AbstractMask, check_mask
from .._misc import as_float, is_concrete, matmul
from .._schedule import AbstractSchedule, Combined, as_parameter, at_time, check_real, check_time, example
from .._summation import AbstractSummation, check_summation


class AbstractAttention(eqx.Module):
    r"""Who looks at whom: a matrix of weights that depends on the tokens, and its averages.

    Source: this library.
    """

    query_key: eqx.AbstractVar[Any]
    mask: eqx.AbstractVar[AbstractMask]
    summation: eqx.AbstractVar[AbstractSummation]

    @abstractmethod
    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        """The attention matrix: row i attends to column j."""

    @abstractmethod
    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        """`weights(x) @ values`, computed by the summation; values of None are the tokens themselves."""

    @abstractmethod
    def check(self, n: int, d: int) -> None:
        """Raise a ValueError unless the attention fits `n` tokens of dimension `d`."""

    def enter(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike, masses: Masses | None
    ) -> tuple[Tokens, Float[Array, "n k"] | None, Masses | None]:
        """The tokens, values and masses as arrays, or a ValueError unless they are such and the attention fits them."""
        x = check_tokens(x)
        n, d = x.shape
        self.check(n, d)
        check_time(t)
        check_masses(masses)
        check_number_of_masses(masses, n)
        return x, _check_values(values, n), None if masses is None else as_float(masses)

    def queries(self, x: Tokens, t: RealScalarLike) -> Tokens:
        r"""The rows $B^\top x_i$, whose inner product with $x_j$ is $\langle x_i, B x_j\rangle$."""
        form = at_time(self.query_key, t, x.dtype)
        return x if form is None else matmul(x, form)


def query_key_form(query: Any, key: Any) -> Any:
    r"""The form $B = Q^\top K$, for which $\langle Q x, K y\rangle = \langle x, B y\rangle$.

    **Arguments:**

    - `query`: Q, (k, d), or a schedule of such.
    - `key`: K, (k, d), or a schedule of such.

    **Returns:**

    B, (d, d), or a schedule of it if either depends on time.

    **Raises:**

    - `ValueError` if the two are not matrices of the same shape, or not real and finite.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2; Peat, *Clustering in
        Transformers*, eq. (2).
    """
    query, key = as_parameter(query, "query"), as_parameter(key, "key")
    for name, matrix in (("query", query), ("key", key)):
        if matrix is None:
            raise ValueError(f"{name} must be a matrix (k, d) or a schedule, but it is None; pass a real matrix.")
        check_real(matrix, name, "pass a real matrix of shape (k, d)")
    shapes = jnp.shape(example(query)), jnp.shape(example(key))
    if len(shapes[0]) != 2 or shapes[0] != shapes[1] or 0 in shapes[0]:
        raise ValueError(
            f"query and key must be matrices of the same shape (k, d), but their shapes are {shapes[0]} and "
            f"{shapes[1]}; give both as many rows and columns."
        )
    if isinstance(query, AbstractSchedule) or isinstance(key, AbstractSchedule):
        return Combined(_form, (query, key))
    return _form(query, key)


def _form(query: Float[Array, "k d"], key: Float[Array, "k d"]) -> Float[Array, "d d"]:
    return matmul(query.T, key)


def check_parts(mask: Any, summation: Any) -> None:
    """Raise a ValueError unless the two options of an attention are a mask and a summation."""
    check_mask(mask)
    check_summation(summation)


def check_attention(attention: Any, name: str = "attention") -> AbstractAttention:
    """`attention`, if it is one; a ValueError else."""
    return check_instance(
        attention, name, AbstractAttention, "an attention of clusterjax", "pass SoftmaxAttention(beta), for example"
    )


def check_beta(beta: Any, name: str = "beta", what: str = "inverse temperature") -> None:
    """Raise a ValueError unless `beta` is a finite real number (zero and negative ones are legitimate)."""
    if beta is None:
        raise ValueError(f"{name} must be a number or a schedule, but it is None; pass a finite real {what}.")
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
    check_real(matrix, name, "pass a real matrix of shape (d, d)")
    shape = jnp.shape(example(matrix))
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise ValueError(f"{name} must be a square matrix, but its shape is {shape}; pass one of shape (d, d).")


def check_dimension(matrix: Any, name: str, d: int) -> None:
    """Raise a ValueError unless `matrix` is None or acts on tokens of dimension `d`."""
    if matrix is not None and jnp.shape(example(matrix))[-1] != d:
        raise ValueError(
            f"{name} must act on tokens of dimension {d}, but its shape is {jnp.shape(example(matrix))}; "
            f"pass a matrix of shape ({d}, {d})."
        )


def check_masses(masses: Any) -> None:
    """Raise a ValueError unless `masses` is None or a vector of finite numbers, none negative, not all zero."""
    if masses is None:
        return
    array = None if isinstance(masses, AbstractSchedule) else as_numbers(masses)
    if array is None:
        raise ValueError(f"masses must be a vector, one mass a token, but it is {shown(masses)}; pass an array.")
    if np.ndim(array) != 1:
        raise ValueError(f"masses must be a vector, one mass a token, but its shape is {np.shape(array)}; reshape it.")
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"masses must be real, but its dtype is {array.dtype}; mend them.")
    if is_concrete(array):
        values = np.asarray(array)
        if not np.all(np.isfinite(values)) or np.any(values < 0) or not np.any(values > 0):
            held = f"they are {values}" if values.size <= 8 else f"they are {values[:8]} and so on".replace("\n", " ")
            raise ValueError(f"masses must be finite, not negative and not all zero, but {held}; mend them.")


def check_number_of_masses(masses: Any, n: int) -> None:
    """Raise a ValueError unless there are as many `masses` as tokens."""
    if masses is not None and np.shape(masses)[0] != n:
        raise ValueError(
            f"masses must hold one mass for each of the {n} tokens, but it holds {np.shape(masses)[0]}; "
            "pass a vector of length n."
        )


def _check_values(values: Any, n: int) -> Float[Array, "n k"] | None:
    return None if values is None else check_array(values, "values", shape=(n, "k"))
