"""Softmax attention: the weights of each row are positive and sum to one.

Exponents are shifted by the largest score of their row, so that no finite score overflows (Milakov, Gimelshein,
1805.02867, for summations over parts of a row). Queries are multiplied by beta: summations do not depend on beta.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._custom_types import Masses, RealScalarLike, Tokens
from .._mask import AbstractMask, FullMask
from .._misc import below, matmul
from .._schedule import StoredParameter, at_time, optional_parameter, parameter
from .._summation import AbstractExponentialSum, Auto, check_supported, ratio
from .base import AbstractExponentialAttention, check_beta, check_dimension, check_parts, check_square


class SoftmaxAttention(AbstractExponentialAttention):
    r"""Self-attention (SA): $w_{ij} = e^{\beta\langle x_i, B x_j\rangle} / \sum_k e^{\beta\langle x_i, B x_k\rangle}$.

    Each row of weights is positive and sums to one. At `beta = 0`, the average is the mean; for large `beta`, it tends
    to `HardmaxAttention`. With masses, $w_{ij} \propto m_j e^{\beta\langle x_i, B x_j\rangle}$.

    If the dtype can hold the scores $\beta\langle x_i, B x_j\rangle$, the weights are accurate to the rounding of the
    scores. Beyond this range (3e38 in float32, 1e308 in float64), a row with a score of infinity is NaN, and scores of
    minus infinity have no weight.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp, numpy as np
        >>> print(np.asarray(cjx.SoftmaxAttention(jnp.log(3.0)).weights(jnp.eye(2))).round(2))
        [[0.75 0.25]
         [0.25 0.75]]
        >>> causal = cjx.SoftmaxAttention(20.0, mask=cjx.CausalMask())
        >>> print(np.asarray(causal.weights(jnp.eye(2))).round(2))  # at a large beta nearly hardmax
        [[1. 0.]
         [0. 1.]]
        ```

    **Arguments:**

    - `beta`: Inverse temperature: a finite real number of any sign, an array of shape (), or a schedule.
    - `query_key`: The form $B = Q^\top K$, (d, d), or a schedule; see `query_key_form`. None is the identity.
    - `mask`: The tokens that each token may attend to.
    - `summation`: The algorithm for the sums, which must support the mask and the dimension of the tokens.

    **Raises:**

    - `ValueError` if `beta` is not a finite real number or `query_key` not a square real matrix.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), eq. (SA); with `CausalMask`,
        Karagodin et al. (2411.04990), eq. (CSA), and Peat, *Clustering in Transformers*, eq. (3).
    """

    beta: StoredParameter = eqx.field(converter=parameter("beta"))
    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractExponentialSum = eqx.field(default=Auto(), kw_only=True)

    def __check_init__(self):
        check_beta(self.beta)
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation, AbstractExponentialSum)

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        scores = matmul(self._queries(x, t), x.T)
        return softmax_weights(scores, masses, self.mask)

    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        x, values, masses = self.enter(x, values, t, masses)
        return self.between(self.queries(x, t), x, values, t, masses)

    def between(
        self,
        queries: Float[Array, "n k"],
        tokens: Float[Array, "n k"],
        values: Float[Array, "n v"] | None,
        t: RealScalarLike = 0.0,
        masses: Masses | None = None,
        *,
        bias: Float[Array, "n n"] | None = None,
    ) -> Float[Array, "n v"]:
        beta = at_time(self.beta, t, queries.dtype)
        # The queries hold (n, k) numbers; the product of beta with the scores would hold (n, n).
        queries = beta * queries
        if bias is None:
            return softmax_average(queries, tokens, values, masses, self.mask, self.summation)
        weights = softmax_weights(matmul(queries, tokens.T) + beta * bias, masses, self.mask)
        return matmul(weights, tokens if values is None else values)

    def log_partition(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, " n"]:
        r"""The logarithms $\log Z_i = \log\sum_j m_j e^{\beta\langle x_i, B x_j\rangle}$, (n,); finite at any beta."""
        x, _, masses = self.enter(x, None, t, masses)
        # Only the normaliser is needed; a single column of values is the minimum for a summation.
        sums = self.summation.exponential(self._queries(x, t), x, x[:, :1], masses, self.mask)
        return sums.shift + jnp.log(sums.normaliser)

    def check(self, n: int, d: int) -> None:
        type(self.mask).check(self.mask, n)
        check_dimension(self.query_key, "query_key", d)
        check_supported(self.summation, None, d)

    def _queries(self, x: Tokens, t: RealScalarLike) -> Tokens:
        # The queries hold (n, d) numbers; the product of beta with the scores would hold (n, n).
        return at_time(self.beta, t, x.dtype) * self.queries(x, t)


def softmax_weights(scores: Float[Array, "n n"], masses: Masses | None, mask: AbstractMask) -> Float[Array, "n n"]:
    r"""The softmax of each row of scores, $w_{ij} \propto m_j e^{s_{ij}}$ over the columns that the mask allows.

    The function forms the whole matrix, and so serves scores that are not inner products.
    """
    has_mass = None if masses is None else (masses > 0)[None, :]
    scores = jnp.where(mask.matrix(scores.shape[0]), scores, -jnp.inf)
    # A large score of a token without mass must not set the shift.
    counted = scores if has_mass is None else jnp.where(has_mass, scores, -jnp.inf)
    top = jnp.max(counted, axis=1, keepdims=True)
    # In a row without mass, the maximum is minus infinity, and its difference from itself would be NaN.
    kernel = jnp.exp(below(scores, jnp.where(jnp.isneginf(top), 0, top), has_mass))
    kernel = kernel if masses is None else kernel * masses[None, :]
    return ratio(kernel, jnp.sum(kernel, axis=1))


def softmax_average(
    queries: Float[Array, "n k"],
    tokens: Float[Array, "n k"],
    values: Float[Array, "n v"] | None,
    masses: Masses | None,
    mask: AbstractMask,
    summation: AbstractExponentialSum,
) -> Float[Array, "n v"]:
    r"""The averages $\sum_j w_{ij} v_j$ with $w_{ij} \propto m_j e^{\langle q_i, y_j\rangle}$, by default of tokens."""
    sums = summation.exponential(queries, tokens, values, masses, mask)
    if masses is None:
        # Every row attends to itself: the sum is zero only if all scores overflow, and the result is then NaN.
        return sums.total / sums.normaliser[:, None]
    return ratio(sums.total, sums.normaliser)
