"""Masks: which tokens each token may attend to.

A mask is a rule for index pairs, so that blocked sums evaluate it on one block at a time. `reaches` and `covers`
classify whole blocks: a block that no pair reaches is skipped, one that is covered needs no masking. Invariant: every
token may attend to itself, so that no softmax has an empty row.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ._blocks import map_blocks
from ._check import as_numbers, check_callable, check_flag, check_instance, check_integer, shown
from ._custom_types import IntScalar, Numbers
from ._misc import is_concrete, matmul


class AbstractMask(eqx.Module):
    """A rule that says of each pair (i, j) whether token i may attend to token j."""

    @abstractmethod
    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether token `i` may attend to token `j`, for index arrays that broadcast against each other."""

    @abstractmethod
    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        """Whether some i of [first_i, last_i] may attend to some j of [first_j, last_j]; True when in doubt.

        A blocked sum skips the blocks for which this is False. A plain `True` promises that no block is ever empty.
        """

    @abstractmethod
    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        """Whether every i of [first_i, last_i] may attend to every j of [first_j, last_j]; False when in doubt."""

    @abstractmethod
    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        """For each token, the mass of the tokens that it may attend to."""

    @abstractmethod
    def check(self, n: int) -> None:
        """Raise a ValueError unless the mask fits `n` tokens."""

    def matrix(self, n: int) -> Bool[Array, "n n"]:
        """The mask of `n` tokens as a matrix: row i, column j."""
        n = check_integer(n, "n", remedy="pass the number of tokens")
        self.check(n)
        index = jnp.arange(n)
        # A rule may return less than the full shape, such as (n, 1).
        return jnp.broadcast_to(self.allowed(index[:, None], index[None, :]), (n, n))


class FullMask(AbstractMask):
    """Every token attends to every token.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> print(cjx.FullMask().matrix(2))
        [[ True  True]
         [ True  True]]
        ```

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), eq. (SA).
    """

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        return jnp.ones(jnp.broadcast_shapes(jnp.shape(i), jnp.shape(j)), dtype=bool)

    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        return True

    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        return True

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(jnp.sum(masses), masses.shape)

    def check(self, n: int) -> None:
        pass


class CausalMask(AbstractMask):
    r"""Token i attends to the tokens $j \le i$: itself and its predecessors.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> print(cjx.CausalMask().matrix(3).astype(int))
        [[1 0 0]
         [1 1 0]
         [1 1 1]]
        >>> attention = cjx.SoftmaxAttention(1.0, mask=cjx.CausalMask())
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=6, d=3)
        >>> whole, first = attention.average(x, None), attention.average(x[:4], None)
        >>> bool(jnp.allclose(whole[:4], first, atol=1e-5))  # later tokens have no effect on earlier ones
        True
        ```

    ??? cite "Source"

        Karagodin, Polyanskiy, Rigollet, *Clustering in causal attention masking* (2411.04990), eq. (CSA); Peat,
        *Clustering in Transformers*, eq. (3).
    """

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        return j <= i

    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # The last row sees the most: it reaches the block if it sees the first column.
        return first_j <= last_i

    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # The last column precedes the first row: below the diagonal block.
        return last_j <= first_i

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.cumsum(masses)

    def check(self, n: int) -> None:
        pass


def _width(value: int) -> int:
    return check_integer(value, "width", remedy="the token itself counts")


class WindowMask(AbstractMask):
    r"""Token i attends to the tokens with $|i - j| < $ `width`; with `causal=True` only to those with $j \le i$.

    `width=1` leaves each token alone with itself; a width of n or more is the full (or the causal) mask.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> print(cjx.WindowMask(2, causal=True).matrix(4).astype(int))
        [[1 0 0 0]
         [1 1 0 0]
         [0 1 1 0]
         [0 0 1 1]]
        ```

    **Arguments:**

    - `width`: How many tokens a side the window holds, the token itself counted. A positive integer.
    - `causal`: Whether the window ends at the token itself.

    **Raises:**

    - `ValueError` if `width` is not a positive integer.

    ??? cite "Source"

        Beltagy, Peters, Cohan, *Longformer* (2004.05150), Section 3.1: sliding window attention.
    """

    width: int = eqx.field(converter=_width)
    causal: bool = False

    def __check_init__(self):
        check_flag(self.causal, "causal")

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        # Strict on either side: the token itself counts as one.
        near = (j > i - self.width) & (j < i + self.width)
        return near & (j <= i) if self.causal else near

    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # Two intervals of columns overlap: that of the block, and the union of the windows of its rows.
        ahead = 0 if self.causal else self.width - 1
        return (last_j > first_i - self.width) & (first_j <= last_i + ahead)

    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # The block lies within the intersection of the windows of its rows.
        ahead = 0 if self.causal else self.width - 1
        return (first_j > last_i - self.width) & (last_j <= first_i + ahead)

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        n, back = masses.shape[0], min(self.width, masses.shape[0]) - 1
        # A moving sum, as a convolution with ones: differences of a cumulative sum would cancel.
        padded = jnp.pad(masses, (back, 0 if self.causal else back))
        return lax.conv(padded[None, None], jnp.ones((1, 1, padded.shape[0] - n + 1), masses.dtype), (1,), "VALID")[
            0, 0
        ]

    def check(self, n: int) -> None:
        pass


def _permitted(value: Numbers) -> Array:
    array = as_numbers(value)
    if array is None:
        raise ValueError(
            f"permitted must be a square boolean matrix, but it is {shown(value)}; "
            "pass one row and one column for each token."
        )
    return jnp.asarray(array)


class MatrixMask(AbstractMask):
    """Token i attends to token j where `permitted[i, j]`, and always to itself: any graph of attention.

    **Arguments:**

    - `permitted`: Boolean, (n, n).

    **Raises:**

    - `ValueError` if `permitted` is not a square boolean matrix or, on use, if it is not of as many tokens.
    """

    permitted: Bool[Array, "n n"] = eqx.field(converter=_permitted)

    def __check_init__(self):
        shape, dtype = self.permitted.shape, self.permitted.dtype
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1 or not jnp.issubdtype(dtype, jnp.bool_):
            raise ValueError(
                f"permitted must be a square boolean matrix, but its shape is {shape} and its dtype is {dtype}; "
                "pass one row and one column for each token."
            )
        # Traced matrices have no values to check.
        if is_concrete(self.permitted) and not np.asarray(self.permitted).diagonal().all():
            row = int(np.flatnonzero(~np.asarray(self.permitted).diagonal())[0])
            raise ValueError(
                f"permitted must let each token attend to itself, but permitted[{row}, {row}] is False; "
                "set its diagonal to True."
            )

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        # Indices of padding are n or more; what they give is dropped by the caller.
        last = self.permitted.shape[0] - 1
        return self.permitted[jnp.minimum(i, last), jnp.minimum(j, last)]

    # The blocks of a general graph are not classified: each is computed, and masked.
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


class FunctionMask(AbstractMask):
    """Token i attends to token j where `allowed(i, j)` is true, and always to itself: a rule of a user's own.

    Without a matrix of all pairs: a blocked sum asks about one block at a time, and computes every block.

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
        their common shape, as jax arrays. A function, or an `equinox.Module` that can be called.

    **Raises:**

    - `ValueError` if `allowed` does not take two arguments or, on use, returns something else.
    """

    fn: Callable[..., Any]

    def __init__(self, allowed: Callable[..., Any]):
        self.fn = check_callable(allowed, "allowed", "a function of i and j", takes=2)

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        allowed, shape = self.fn(i, j), jnp.broadcast_shapes(jnp.shape(i), jnp.shape(j))
        # The shape may be smaller if it broadcasts: a rule of i alone returns (rows, 1).
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
            # (rows, n) times (n,).
            return matmul(allowed.astype(masses.dtype), masses)

        return map_blocks(of_rows, _ROWS_AT_ONCE, columns, recompute=True)

    def check(self, n: int) -> None:
        pass


# Rows of the mask that `attended_mass` forms at once: (512, n) booleans.
_ROWS_AT_ONCE = 512


def check_mask(mask: Any, name: str = "mask") -> AbstractMask:
    """`mask`, if it is one; raises a `ValueError` otherwise."""
    return check_instance(mask, name, AbstractMask, "a mask of clusterjax", "pass CausalMask(), for example")
