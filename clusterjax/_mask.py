"""Who may attend to whom. The diagonal always may, so that no softmax runs over nothing."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ._check import as_numbers, check_flag, check_instance, check_integer, shown
from ._misc import is_concrete, matmul


class AbstractMask(eqx.Module):
    """A rule that says of each pair (i, j) whether token i may attend to token j.

    Source: this library.
    """

    @abstractmethod
    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether token `i` may attend to token `j`, for index arrays that broadcast against each other."""

    @abstractmethod
    def reaches(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
        """Whether some i of [first_i, last_i] may attend to some j of [first_j, last_j]; True when in doubt.

        A blocked sum skips the blocks for which this is False. A plain `True` promises that no block is ever empty.
        """

    @abstractmethod
    def covers(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
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
        return jnp.broadcast_to(self.allowed(index[:, None], index[None, :]), (n, n))


class FullMask(AbstractMask):
    """Every token attends to every token.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), eq. (SA).
    """

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        return jnp.ones(jnp.broadcast_shapes(jnp.shape(i), jnp.shape(j)), dtype=bool)

    def reaches(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
        return True

    def covers(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
        return True

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(jnp.sum(masses), masses.shape)

    def check(self, n: int) -> None:
        pass


class CausalMask(AbstractMask):
    r"""Token i attends to the tokens $j \le i$: itself and its predecessors.

    ??? cite "Source"

        Karagodin, Polyanskiy, Rigollet, *Clustering in causal attention masking* (2411.04990), eq. (CSA); Peat,
        *Clustering in Transformers*, eq. (3).
    """

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        return j <= i

    def reaches(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
        return first_j <= last_i

    def covers(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
        return last_j <= first_i

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.cumsum(masses)

    def check(self, n: int) -> None:
        pass


def _width(value: Any) -> int:
    return check_integer(value, "width", remedy="the token itself counts")


class WindowMask(AbstractMask):
    r"""Token i attends to the tokens with $|i - j| < $ `width`; with `causal=True` only to those with $j \le i$.

    `width=1` leaves each token alone with itself; a width of n or more is the full (or the causal) mask.

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
        near = (j > i - self.width) & (j < i + self.width)
        return near & (j <= i) if self.causal else near

    def reaches(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
        ahead = 0 if self.causal else self.width - 1
        return (last_j > first_i - self.width) & (first_j <= last_i + ahead)

    def covers(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
        ahead = 0 if self.causal else self.width - 1
        return (first_j > last_i - self.width) & (last_j <= first_i + ahead)

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        n, back = masses.shape[0], min(self.width, masses.shape[0]) - 1
        padded = jnp.pad(masses, (back, 0 if self.causal else back))
        return lax.conv(padded[None, None], jnp.ones((1, 1, padded.shape[0] - n + 1), masses.dtype), (1,), "VALID")[
            0, 0
        ]

    def check(self, n: int) -> None:
        pass


def _permitted(value: Any) -> Array:
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

    Source: this library.
    """

    permitted: Bool[Array, "n n"] = eqx.field(converter=_permitted)

    def __check_init__(self):
        shape, dtype = self.permitted.shape, self.permitted.dtype
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1 or not jnp.issubdtype(dtype, jnp.bool_):
            raise ValueError(
                f"permitted must be a square boolean matrix, but its shape is {shape} and its dtype is {dtype}; "
                "pass one row and one column for each token."
            )
        if is_concrete(self.permitted) and not np.asarray(self.permitted).diagonal().all():
            row = int(np.flatnonzero(~np.asarray(self.permitted).diagonal())[0])
            raise ValueError(
                f"permitted must let each token attend to itself, but permitted[{row}, {row}] is False; "
                "set its diagonal to True."
            )

    def allowed(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        last = self.permitted.shape[0] - 1
        return self.permitted[jnp.minimum(i, last), jnp.minimum(j, last)]

    def reaches(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
        return True

    def covers(self, first_i, last_i, first_j, last_j) -> Bool[Array, ""] | bool:
        return False

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return matmul(self.permitted.astype(masses.dtype), masses)

    def check(self, n: int) -> None:
        if self.permitted.shape[0] != n:
            raise ValueError(
                f"mask must be of as many tokens as x, but it is of {self.permitted.shape[0]} and x has {n}; "
                "pass a MatrixMask of shape (n, n)."
            )


def check_mask(mask: Any, name: str = "mask") -> AbstractMask:
    """`mask`, if it is one; a ValueError else."""
    return check_instance(mask, name, AbstractMask, "a mask of clusterjax", "pass CausalMask(), for example")
