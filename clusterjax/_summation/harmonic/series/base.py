r"""The interface of a kernel expansion: additive moments of the tokens, and sums that are evaluated from the moments.

A series of degree L approximates $e^{\langle q, y\rangle} \approx \sum_{l \le L} a_l(|q|) \sum_m Y_{lm}(q / |q|)
Y_{lm}(y)$ (addition theorem, DLMF 14.30.9) by products of functions of the query and of the token, so that n tokens and
n queries each cost O(n). Each dimension has a series for queries of one common length and a series for any lengths.
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
    r"""An expansion of $e^{\langle q, y\rangle}$ for unit tokens y, truncated at a fixed degree, without data.

    The sums depend on the tokens only through their scalar moments, of one degree more than the series:
    $\nabla_q e^{\langle q, y\rangle} = y\, e^{\langle q, y\rangle}$. Moments are a tree of arrays of the tokens' dtype,
    and they are additive over chunks of tokens and over devices.

    Derivatives are of the sums with a fixed scale $e^{-|q_i|}$, as in `ExponentialSums`: the `length` given to
    `coefficients` carries no derivative. Derivatives with respect to tokens are tangential.

    **Arguments:**

    - `degree`: The highest degree of the truncated series.
    - `block`: The number of tokens summed in an order that the device chooses, a divisor of the size of a chunk.
    """

    degree: eqx.AbstractVar[int]
    block: eqx.AbstractClassVar[int]

    @abstractmethod
    def chunk_size(self, dtype: Any, causal: bool) -> int:
        """The number of tokens to sum at once, such that their features fit the cache of a core."""

    @abstractmethod
    def empty(self, dtype: Any) -> Any:
        """The moments of no tokens."""

    @abstractmethod
    def moments(self, tokens: Tokens, masses: Masses) -> Any:
        """The moments of a chunk of unit tokens with these masses, of either sign."""

    @abstractmethod
    def coefficients(self, moments: Any, length: Scalar) -> Any:
        """The input of `evaluate`, made once from the moments; `length` is the common length of queries, if any."""

    @abstractmethod
    def evaluate(self, queries: Tokens, coefficients: Any) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        r"""The sums $\sum_j m_j e^{\langle q_i, y_j\rangle - |q_i|}$ of masses and of mass times token."""

    @abstractmethod
    def token_rounding(self) -> TokenRounding:
        """A bound of the rounding errors of the features of a token."""

    @abstractmethod
    def error_terms(self, moments: Any, length: Scalar, gradients: bool) -> Any:
        """The input of `rounding`, made once from the moments; without `gradients` for the sum of masses alone."""

    @abstractmethod
    def rounding(self, error_terms: Any, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        """A bound of the errors of `coefficients` and `evaluate` in the largest of the sums of each query, in units of
        the unit roundoff, for exact moments; `lengths` are the norms of the queries."""


def cached_chunk(degree: int, dtype: Any, causal: bool, size: int = 36_000) -> int:
    """A power of two, at least 256, for which `degree` numbers for each token are about `size` bytes.

    Causal sums use at most 512, since they sum the pairs of a chunk.
    """
    # With fewer than 256 tokens, the fixed work for each chunk would dominate.
    fitting = size / (max(degree, 1) * jnp.dtype(dtype).itemsize)
    return 2 ** min(max(round(math.log2(fitting)), 8), 9 if causal else 11)
