r"""The interface of a kernel expansion: moments of the tokens, which add up, and sums that are evaluated from them.

A series of degree L stands for $e^{\langle q, y\rangle} \approx \sum_{l \le L} a_l(|q|) \sum_m Y_{lm}(q / |q|)
Y_{lm}(y)$ (addition theorem, DLMF 14.30.9): a product of functions of the query and of the token, so that n tokens and
n queries cost n each. Each dimension has one series for queries of one length and one for any lengths.
"""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...._abstract import AbstractPart
from ...._custom_types import Masses, Scalar, Tokens
from .rounding import TokenRounding


class AbstractSeries(AbstractPart):
    r"""An expansion of $e^{\langle q, y\rangle}$ for unit tokens y, truncated at a fixed degree: it holds sizes and no
    data.

    Everything that the sums need to know of the tokens is in their moments, scalar ones of one degree more than the
    series has: $\nabla_q e^{\langle q, y\rangle} = y\, e^{\langle q, y\rangle}$. Moments are a tree of arrays of the
    tokens' dtype, and they add: over chunks of tokens, and over devices.

    Derivatives are those of the sums with the scale $e^{-|q_i|}$ held fixed, as that of `ExponentialSums` is: the
    `length` given to `coefficients` carries none of its own. Those with respect to tokens are tangential.

    **Arguments:**

    - `degree`: The highest degree of the truncated series.
    - `block`: How many tokens are summed in an order that the device chooses; it divides the size of a chunk.
    """

    degree: eqx.AbstractVar[int]
    block: eqx.AbstractClassVar[int]

    @abstractmethod
    def chunk_size(self, dtype: Any, causal: bool) -> int:
        """How many tokens to sum at once, such that their features stay in the cache of a core."""

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
        """A bound of the rounding errors of the features of a token."""

    @abstractmethod
    def error_terms(self, moments: Any, length: Scalar, gradients: bool) -> Any:
        """What `rounding` needs, made once of the moments; without `gradients` for the sum of masses alone."""

    @abstractmethod
    def rounding(self, error_terms: Any, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        """A bound of the errors of `coefficients` and `evaluate`, in units of the unit roundoff, in the largest of the
        sums of each query, whose length is given; the moments are taken as exact."""


def cached_chunk(degree: int, dtype: Any, causal: bool, size: int = 36_000) -> int:
    """A power of two, at least 256, for which `degree` numbers for each token are about `size` bytes.

    Causal sums take at most 512, since they sum the pairs of a chunk.
    """
    # Fewer than 256 would not pay for the work that is done once for each chunk.
    fitting = size / (max(degree, 1) * jnp.dtype(dtype).itemsize)
    return 2 ** min(max(round(math.log2(fitting)), 8), 9 if causal else 11)
