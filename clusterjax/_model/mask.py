"""Masks: the tokens that each token may attend to.

A mask is a rule for pairs of indices, so that blocked sums evaluate the rule on one block at a time. `reaches` and
`covers` classify blocks: blocks without allowed pairs are skipped, and blocks of allowed pairs need no masking.
Invariant: every token may attend to itself, so that no softmax has an empty row.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._base.batching import map_blocks
from .._base.checks import (
    as_numbers,
    call_traced,
    check_callable,
    check_flag,
    check_instance,
    check_integer,
    check_room,
    refusal,
    shown,
)
from .._base.numerics import as_array, is_concrete, matmul
from .._base.types import AbstractPart, BoolScalar, IntScalar, Numbers


class AbstractMask(AbstractPart):
    """A rule that allows or forbids token i to attend to token j, for each pair (i, j)."""

    @abstractmethod
    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        """True where token `i` may attend to token `j`, for index arrays that broadcast against each other."""

    @abstractmethod
    def reaches(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        """True if some i in [first_i, last_i] may attend to some j in [first_j, last_j], or if this is unknown.

        A blocked sum skips blocks with False. A constant `True` means that no block is ever skipped.
        """

    @abstractmethod
    def covers(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        """True if every i in [first_i, last_i] may attend to every j in [first_j, last_j]; False if this is unknown."""

    @abstractmethod
    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        """The mass of the tokens that each token may attend to."""

    @abstractmethod
    def check(self, n: int) -> None:
        """Raise a ValueError unless the mask fits `n` tokens."""

    def matrix(self, n: int) -> Bool[Array, "n n"]:
        """The mask of `n` tokens as a matrix: entry (i, j) is True if token i may attend to token j."""
        n = check_integer(n, "n", remedy="pass the number of tokens")
        self.check(n)
        # A rule may need three boolean matrices: two comparisons and their conjunction.
        check_room(n, "n", 3 * n * n, "the booleans of all n^2 pairs", longest=n, remedy="ask for fewer tokens")
        return _matrix(self, n)


@eqx.filter_jit
def _matrix(mask: AbstractMask, n: int) -> Bool[Array, "n n"]:
    index = jnp.arange(n)
    # A rule may return a smaller shape that broadcasts, such as (n, 1).
    return jnp.broadcast_to(mask.allowed(index[:, None], index[None, :]), (n, n))


def check_mask(mask: Any, name: str = "mask") -> AbstractMask:
    """Return `mask`; raises a `ValueError` if it is not a mask."""
    return check_instance(mask, name, AbstractMask, "a mask of clusterjax", "pass CausalMask(), for example")


class _AbstractRule(AbstractMask):
    """A mask that is a rule for any number of tokens."""

    def check(self, n: int) -> None:
        pass


class FullMask(_AbstractRule):
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

    def reaches(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        return True

    def covers(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        return True

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(jnp.sum(masses), masses.shape)


class CausalMask(_AbstractRule):
    """Token i attends to the tokens j ≤ i: itself and its predecessors.

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

    def reaches(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        # The last row sees the most columns: the block is reached if this row sees the first column.
        return first_j <= last_i

    def covers(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        # A block is covered if its last column is not after its first row.
        return last_j <= first_i

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.cumsum(masses)


def _moving_sum(masses: Float[Array, " n"], width: int, causal: bool) -> Float[Array, " n"]:
    """The mass within `width` of each token, on one side or on both sides."""
    n, back = masses.shape[0], min(width, masses.shape[0]) - 1
    # A convolution with ones, since differences of a cumulative sum would cancel.
    padded = jnp.pad(masses, (back, 0 if causal else back))
    ones = jnp.ones((1, 1, padded.shape[0] - n + 1), masses.dtype)
    return lax.conv(padded[None, None], ones, (1,), "VALID")[0, 0]


def _width(value: int) -> int:
    return check_integer(value, "width", remedy="the token itself counts")


class WindowMask(_AbstractRule):
    """Token i attends to the tokens with |i - j| < `width`; with `causal=True` only to those with j ≤ i.

    With `width=1`, each token attends only to itself; a width of n or more is the full (or the causal) mask.

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

    - `width`: The number of tokens on each side of the window, including the token itself. A positive integer.
    - `causal`: If True, the window ends at the token itself.

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
        # The inequalities are strict, since `width` includes the token itself.
        near = (j > i - self.width) & (j < i + self.width)
        return near & (j <= i) if self.causal else near

    def reaches(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        # The columns of the block must intersect the union of the windows of its rows.
        ahead = 0 if self.causal else self.width - 1
        return (last_j > first_i - self.width) & (first_j <= last_i + ahead)

    def covers(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        # The columns of the block must lie within the intersection of the windows of its rows.
        ahead = 0 if self.causal else self.width - 1
        return (first_j > last_i - self.width) & (last_j <= first_i + ahead)

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return _moving_sum(masses, self.width, self.causal)


def _kept(value: int) -> int:
    return check_integer(value, "kept", least=0, remedy="pass how many of the first tokens stay in sight, 0 for none")


class SinkMask(_AbstractRule):
    """Token i attends to the tokens with i - `width` < j ≤ i, and to the first `kept` tokens up to itself.

    The mask is a causal window plus the first tokens, to which trained networks attend strongly ("attention sinks").
    `kept=0` is `WindowMask(width, causal=True)`; a width of n or more is the causal mask.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> print(cjx.SinkMask(2, kept=1).matrix(5).astype(int))
        [[1 0 0 0 0]
         [1 1 0 0 0]
         [1 1 1 0 0]
         [1 0 1 1 0]
         [1 0 0 1 1]]
        ```

    **Arguments:**

    - `width`: The number of tokens in the window, including the token itself. A positive integer.
    - `kept`: The number of first tokens that every later token may attend to. A non-negative integer.

    **Raises:**

    - `ValueError` if `width` is not a positive integer, or `kept` is negative.

    ??? cite "Source"

        Xiao, Tian, Chen, Han, Lewis, *Efficient streaming language models with attention sinks* (2309.17453),
        Section 3.2.
    """

    width: int = eqx.field(converter=_width)
    kept: int = eqx.field(converter=_kept)

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        return (j <= i) & ((j > i - self.width) | (j < self.kept))

    def reaches(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        # Some column of the block is a kept token or in the window of a row, and is not after the last row.
        return ((last_j > first_i - self.width) | (first_j < self.kept)) & (first_j <= last_i)

    def covers(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        # Columns that are not kept must be in the window of the last row, which begins latest.
        return ((jnp.maximum(first_j, self.kept) > last_i - self.width) | (last_j < self.kept)) & (last_j <= first_i)

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        # The mass of the window plus the mass of the kept tokens before the window.
        kept = min(self.kept, masses.shape[0])
        before = jnp.concatenate([jnp.zeros(1, masses.dtype), jnp.cumsum(masses[:kept])])
        start = jnp.clip(jnp.arange(masses.shape[0]) - self.width + 1, 0, kept)
        return _moving_sum(masses, self.width, True) + before[start]


_ONE_EACH = "pass one row and one column for each token"


def _permitted(value: Numbers) -> Array:
    array = as_numbers(value, "permitted")
    if array is None:
        raise refusal("permitted", "be a square boolean matrix", f"it is {shown(value)}", _ONE_EACH)
    return as_array(array)


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
            problem = f"its shape is {shape} and its dtype is {dtype}"
            raise refusal("permitted", "be a square boolean matrix", problem, _ONE_EACH)
        # Traced matrices have no concrete values to check.
        if is_concrete(self.permitted) and not np.asarray(self.permitted).diagonal().all():
            row = int(np.flatnonzero(~np.asarray(self.permitted).diagonal())[0])
            problem = f"permitted[{row}, {row}] is False"
            raise refusal("permitted", "let each token attend to itself", problem, "set its diagonal to True")

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        # Indices of padding are n or more; the caller drops the values at these indices.
        last = self.permitted.shape[0] - 1
        return self.permitted[jnp.minimum(i, last), jnp.minimum(j, last)]

    # The blocks of a general graph are not classified: every block is computed and masked.
    def reaches(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        return True

    def covers(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        return False

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return matmul(self.permitted.astype(masses.dtype), masses)

    def check(self, n: int) -> None:
        if self.permitted.shape[0] != n:
            problem = f"it is of {self.permitted.shape[0]} and x has {n}"
            raise refusal("mask", "be of as many tokens as x", problem, "pass a MatrixMask of shape (n, n)")


_WHAT = "a function of i and j"


class FunctionMask(_AbstractRule):
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
            rule = f"be booleans of the shape {shape} of i and j together"
            remedy = "compare with == and <=, and join with & and |"
            raise refusal("allowed(i, j)", rule, f"it is {shown(allowed)}", remedy)
        return allowed | (i == j)

    def reaches(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        return True

    def covers(self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar) -> BoolScalar:
        return False

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        columns = jnp.arange(masses.shape[0])

        def of_rows(rows):
            allowed = jnp.broadcast_to(self.allowed(rows[:, None], columns[None, :]), (rows.shape[0], columns.shape[0]))
            # The shapes are (rows, n) and (n,).
            return matmul(allowed.astype(masses.dtype), masses)

        return map_blocks(of_rows, _ROWS_AT_ONCE, columns, recompute=True)


# The number of rows of the mask that `attended_mass` forms at once, as (512, n) booleans.
_ROWS_AT_ONCE = 512
