r"""The two series of the spheres in three and four dimensions: for queries of one common length and of any lengths.

**Algorithm.** $e^{\langle q, y\rangle} = \sum_l a_l(|q|) \sum_m Y_{lm}(q / |q|) Y_{lm}(y)$. For one length, harmonics
are products of waves in the angles, so that the sums of a chunk are matrix products. For any lengths, a scan over the
degrees uses a three-term recurrence. An instance of `Harmonics` holds the functions that depend on the dimension.

**Reference.** Addition theorem, DLMF 14.30.9; plane-wave expansion, 10.60.9. **Invariant.** Moments are of degree + 2:
two multiplications by coordinates, for the first and second derivatives, lose two degrees.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...._custom_types import Masses, Scalar, Tokens
from .base import AbstractSeries
from .derived import Derived, Evaluate, split
from .lengths import OneLength, make_one_length
from .rounding import TokenRounding, at_lengths, at_one_length


class Harmonics(NamedTuple):
    """The functions of one dimension from which its two series are built; the first argument is mostly the degree.

    **Arguments:**

    - `dimension`: The dimension of the tokens.
    - `chunk_size`, `empty`, `moments`: As in `AbstractSeries`; the last two take the degree of the moments.
    - `wave_coefficients`, `sums_by_waves`: Coefficients of the products of waves, (degree, moments, length), and the
        sums from them, (degree, queries, coefficients).
    - `recurrence_coefficients`, `sums_by_recurrence`: Coefficients and sums for queries of any lengths, without length.
    - `error_terms`: The contribution of each degree to the rounding errors, (degree, moments, gradients, by_waves).
    - `token_rounding`: A bound of the rounding errors of the features of a token.
    """

    dimension: int
    chunk_size: Callable[[int, Any, bool], int]
    empty: Callable[[int, Any], Array]
    moments: Callable[[int, Tokens, Masses], Array]
    wave_coefficients: Callable[[int, Array, Scalar], Derived]
    sums_by_waves: Evaluate
    recurrence_coefficients: Callable[[int, Array], Derived]
    sums_by_recurrence: Evaluate
    error_terms: Callable[[int, Array, bool, bool], Array]
    token_rounding: TokenRounding


class AbstractIsotropicSeries(AbstractSeries):
    """The series for queries of one length: a few matrix products for each chunk of tokens.

    **Arguments:**

    - `degree`: The highest degree of the truncated series.
    """

    degree: int = eqx.field(static=True)
    harmonics: eqx.AbstractClassVar[Harmonics]
    block: ClassVar[int] = 64

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return self.harmonics.chunk_size(self.degree, dtype, causal)

    def empty(self, dtype: Any) -> Array:
        return self.harmonics.empty(self.degree + 2, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return self.harmonics.moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> OneLength:
        return make_one_length(partial(self.harmonics.wave_coefficients, self.degree), moments, length)

    def evaluate(self, queries: Tokens, coefficients: OneLength) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        return split(self.harmonics.sums_by_waves(self.degree, queries, coefficients))

    def token_rounding(self) -> TokenRounding:
        return self.harmonics.token_rounding

    def error_terms(self, moments: Array, length: Scalar, gradients: bool) -> Scalar:
        error_terms = self.harmonics.error_terms(self.degree, moments, gradients, True)
        return at_one_length(error_terms, length, self.harmonics.dimension)

    def rounding(self, error_terms: Scalar, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(error_terms, lengths.shape)


class AbstractGeneralSeries(AbstractSeries):
    """The series for queries of any lengths: a scan over the degrees of the harmonics, with Bessel functions of each
    query's own length. The moments are those of `AbstractIsotropicSeries`.

    **Arguments:**

    - `degree`: The highest degree of the truncated series.
    """

    degree: int = eqx.field(static=True)
    harmonics: eqx.AbstractClassVar[Harmonics]
    block: ClassVar[int] = 64

    def chunk_size(self, dtype: Any, causal: bool) -> int:
        return self.harmonics.chunk_size(self.degree, dtype, causal)

    def empty(self, dtype: Any) -> Array:
        return self.harmonics.empty(self.degree + 2, dtype)

    def moments(self, tokens: Tokens, masses: Masses) -> Array:
        return self.harmonics.moments(self.degree + 2, tokens, masses)

    def coefficients(self, moments: Any, length: Scalar) -> Derived:
        return self.harmonics.recurrence_coefficients(self.degree, moments)

    def evaluate(self, queries: Tokens, coefficients: Derived) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        return split(self.harmonics.sums_by_recurrence(self.degree, queries, coefficients))

    def token_rounding(self) -> TokenRounding:
        return self.harmonics.token_rounding

    def error_terms(self, moments: Array, length: Scalar, gradients: bool) -> Array:
        return self.harmonics.error_terms(self.degree, moments, gradients, False)

    def rounding(self, error_terms: Array, lengths: Float[Array, " n"]) -> Float[Array, " n"]:
        return at_lengths(error_terms, lengths, self.harmonics.dimension)
