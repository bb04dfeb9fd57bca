"""What a kernel expansion offers: moments of the tokens that add up, and sums evaluated from them."""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._custom_types import Masses, Scalar, Tokens
from .rounding import TokenRounding


class AbstractSeries(eqx.Module):
    r"""An expansion of $e^{\langle q, y\rangle}$ for unit tokens y, cut at a fixed degree: sizes only, no data.

    Everything that the sums need to know of the tokens is in their moments, scalar ones of one degree more than the
    series has: $\nabla_q e^{\langle q, y\rangle} = y\, e^{\langle q, y\rangle}$. Moments are a tree of arrays of the
    tokens' dtype, and they add: over chunks of tokens, and over devices.

    Derivatives are those of the sums with the scale $e^{-|q_i|}$ held fixed, as that of `ExponentialSums` is: the
    `length` given to `coefficients` carries none of its own. Those with respect to tokens are tangential.

    **Arguments:**

    - `degree`: The highest degree that is kept of the kernel.
    - `block`: How many tokens are summed without regard to their order; it divides the size of a chunk.

    Source: this library.
    """

    degree: eqx.AbstractVar[int]
    block: eqx.AbstractClassVar[int]

    @abstractmethod
    def chunk_size(self, dtype: Any, causal: bool) -> int:
        """How many tokens to sum at once, so that what is made of them stays in the cache of a core."""

    @abstractmethod
    def empty(self, dtype: Any) -> Any:
        """The moments of no tokens."""

    @abstractmethod
    def moments(self, tokens: Tokens, masses: Masses) -> Any:
        """The moments of a chunk of unit tokens with these masses, of either sign."""

    @abstractmethod
    def coefficients(self, moments: Any, length: Scalar) -> Any:
        """What `evaluate` needs, made once of the moments; `length` is that of the queries, where it is one for all."""

    @abstractmethod
    def evaluate(self, queries: Tokens, coefficients: Any) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        r"""The sums $\sum_j m_j e^{\langle q_i, y_j\rangle - |q_i|}$ of masses and of mass times token."""

    @abstractmethod
    def token_rounding(self) -> TokenRounding:
        """How much the features of a token err."""

    @abstractmethod
    def noise(self, moments: Any, length: Scalar, gradients: bool) -> Any:
        """What `rounding` needs, made once of the moments; without `gradients` for the sum of masses alone."""

    @abstractmethod
    def rounding(self, noise: Any, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        """By how much `coefficients` and `evaluate` err at most, in rounding units, in the largest of the sums of each
        query, whose length is given; the moments are taken as exact."""


def cached_chunk(degree: int, dtype: Any, causal: bool, size: int = 36_000) -> int:
    """A power of two, at least 256, for which `degree` numbers for each token are about `size` bytes.

    Fewer would not pay for what is made once for each chunk. Causal sums take at most 512, since they sum the pairs of
    a chunk.
    """
    fitting = size / (max(degree, 1) * jnp.dtype(dtype).itemsize)
    return 2 ** min(max(round(math.log2(fitting)), 8), 9 if causal else 11)
