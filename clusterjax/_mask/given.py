"""`MatrixMask` and `FunctionMask`: a general attention graph, as a matrix or as a user-defined rule."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._blocks import map_blocks
from .._check import as_numbers, call_traced, check_callable, shown
from .._custom_types import IntScalar, Numbers
from .._misc import is_concrete, matmul
from .base import AbstractMask


def _permitted(value: Numbers) -> Array:
    array = as_numbers(value, "permitted")
    if array is None:
        raise ValueError(
            f"permitted must be a square boolean matrix, but it is {shown(value)}; "
            "pass one row and one column for each token."
        )
    return jnp.asarray(array)


class MatrixMask(AbstractMask):
    """Token i attends to token j where `permitted[i, j]` is True, and always to itself: a general attention graph.

    **Arguments:**

    - `permitted`: Boolean, (n, n).

    **Raises:**

    - `ValueError` if `permitted` is not a square boolean matrix or, on use, if its size is not the number of tokens.
    """

    permitted: Bool[Array, "n n"] = eqx.field(converter=_permitted)

    def __check_init__(self):
        shape, dtype = self.permitted.shape, self.permitted.dtype
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1 or not jnp.issubdtype(dtype, jnp.bool_):
            raise ValueError(
                f"permitted must be a square boolean matrix, but its shape is {shape} and its dtype is {dtype}; "
                "pass one row and one column for each token."
            )
        # Traced matrices have no concrete values to check.
        if is_concrete(self.permitted) and not np.asarray(self.permitted).diagonal().all():
            row = int(np.flatnonzero(~np.asarray(self.permitted).diagonal())[0])
            raise ValueError(
                f"permitted must let each token attend to itself, but permitted[{row}, {row}] is False; "
                "set its diagonal to True."
            )

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        # Indices of padding are n or more; the caller drops the values at these indices.
        last = self.permitted.shape[0] - 1
        return self.permitted[jnp.minimum(i, last), jnp.minimum(j, last)]

    # The blocks of a general graph are not classified: every block is computed and masked.
    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        return True

    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        return False

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return matmul(self.permitted.astype(masses.dtype), masses)

    def check(self, n: int) -> None:
        if self.permitted.shape[0] != n:
            raise ValueError(
                f"mask must be of as many tokens as x, but it is of {self.permitted.shape[0]} and x has {n}; "
                "pass a MatrixMask of shape (n, n)."
            )


_WHAT = "a function of i and j"


class FunctionMask(AbstractMask):
    """Token i attends to token j where `allowed(i, j)` is True, and always to itself: a user-defined rule.

    A blocked sum evaluates the rule on one block at a time, without a matrix of all pairs, and computes every block.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> every_second = cjx.FunctionMask(lambda i, j: (j <= i) & ((i - j) % 2 == 0))
        >>> print(every_second.matrix(4).astype(int))
        [[1 0 0 0]
         [0 1 0 0]
         [1 0 1 0]
         [0 1 0 1]]
        >>> attention = cjx.SoftmaxAttention(1.0, mask=every_second)
        ```

    **Arguments:**

    - `allowed`: `allowed(i, j)` takes two arrays of integers that broadcast against each other, and returns booleans of
        their common shape, as JAX arrays. `allowed` is a function or a callable `equinox.Module`.

    **Raises:**

    - `ValueError` if `allowed` does not take two arguments or, on use, does not return such booleans.
    """

    fn: Callable[..., Any]

    def __init__(self, allowed: Callable[..., Any]):
        self.fn = check_callable(allowed, "allowed", _WHAT, takes=2)

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        allowed, shape = call_traced(self.fn, "allowed", _WHAT, i, j), jnp.broadcast_shapes(jnp.shape(i), jnp.shape(j))
        # A smaller shape is accepted if it broadcasts: a rule of i alone returns (rows, 1).
        if getattr(allowed, "dtype", None) != jnp.bool_ or jnp.broadcast_shapes(jnp.shape(allowed), shape) != shape:
            raise ValueError(
                f"allowed(i, j) must be booleans of the shape {shape} of i and j together, but it is {shown(allowed)}; "
                "compare with == and <=, and join with & and |."
            )
        return allowed | (i == j)

    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        return True

    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        return False

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        columns = jnp.arange(masses.shape[0])

        def of_rows(rows):
            allowed = jnp.broadcast_to(self.allowed(rows[:, None], columns[None, :]), (rows.shape[0], columns.shape[0]))
            # The shapes are (rows, n) and (n,).
            return matmul(allowed.astype(masses.dtype), masses)

        return map_blocks(of_rows, _ROWS_AT_ONCE, columns, recompute=True)

    def check(self, n: int) -> None:
        pass


# The number of rows of the mask that `attended_mass` forms at once, as (512, n) booleans.
_ROWS_AT_ONCE = 512
