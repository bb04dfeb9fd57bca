"""`WindowMask`, in which tokens attend to nearby tokens, and `SinkMask`, which adds the first tokens."""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._check import check_flag, check_integer
from .._custom_types import IntScalar
from .base import AbstractMask


def _moving_sum(masses: Float[Array, " n"], width: int, causal: bool) -> Float[Array, " n"]:
    """The mass within `width` of each token, on one side or on both sides."""
    n, back = masses.shape[0], min(width, masses.shape[0]) - 1
    # A convolution with ones, since differences of a cumulative sum would cancel.
    padded = jnp.pad(masses, (back, 0 if causal else back))
    ones = jnp.ones((1, 1, padded.shape[0] - n + 1), masses.dtype)
    return lax.conv(padded[None, None], ones, (1,), "VALID")[0, 0]


def _width(value: int) -> int:
    return check_integer(value, "width", remedy="the token itself counts")


class WindowMask(AbstractMask):
    r"""Token i attends to the tokens with $|i - j| < $ `width`; with `causal=True` only to those with $j \le i$.

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

    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # The columns of the block must intersect the union of the windows of its rows.
        ahead = 0 if self.causal else self.width - 1
        return (last_j > first_i - self.width) & (first_j <= last_i + ahead)

    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # The columns of the block must lie within the intersection of the windows of its rows.
        ahead = 0 if self.causal else self.width - 1
        return (first_j > last_i - self.width) & (last_j <= first_i + ahead)

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        return _moving_sum(masses, self.width, self.causal)

    def check(self, n: int) -> None:
        pass


def _kept(value: int) -> int:
    return check_integer(value, "kept", least=0, remedy="pass how many of the first tokens stay in sight, 0 for none")


class SinkMask(AbstractMask):
    r"""Token i attends to the tokens with $i - $ `width` $ < j \le i$, and to the first `kept` tokens up to itself.

    The mask is a causal window plus the first tokens, to which trained networks attend much ("attention sinks").
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

    def reaches(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # Some column of the block is a kept token or in the window of a row, and is not after the last row.
        return ((last_j > first_i - self.width) | (first_j < self.kept)) & (first_j <= last_i)

    def covers(
        self, first_i: IntScalar, last_i: IntScalar, first_j: IntScalar, last_j: IntScalar
    ) -> Bool[Array, ""] | bool:
        # Columns that are not kept must be in the window of the last row, which begins latest.
        return ((jnp.maximum(first_j, self.kept) > last_i - self.width) | (last_j < self.kept)) & (last_j <= first_i)

    def attended_mass(self, masses: Float[Array, " n"]) -> Float[Array, " n"]:
        # The mass of the window plus the mass of the kept tokens before the window.
        kept = min(self.kept, masses.shape[0])
        before = jnp.concatenate([jnp.zeros(1, masses.dtype), jnp.cumsum(masses[:kept])])
        start = jnp.clip(jnp.arange(masses.shape[0]) - self.width + 1, 0, kept)
        return _moving_sum(masses, self.width, True) + before[start]

    def check(self, n: int) -> None:
        pass
