"""Softmax attention: the weights of each row sum to one."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._custom_types import Masses, RealScalarLike, Tokens
from .._mask import AbstractMask, FullMask
from .._misc import below, matmul
from .._schedule import at_time, parameter
from .._summation import AbstractSummation, Auto, ratio
from .base import AbstractAttention, check_beta, check_dimension, check_parts, check_square


class SoftmaxAttention(AbstractAttention):
    r"""Self-attention (SA): $w_{ij} = e^{\beta\langle x_i, B x_j\rangle} / \sum_k e^{\beta\langle x_i, B x_k\rangle}$.

    Each row of weights is positive and sums to one. At `beta = 0` the average is the mean; as `beta` grows it tends to
    `HardmaxAttention`. With masses, $w_{ij} \propto m_j e^{\beta\langle x_i, B x_j\rangle}$.

    Any scores $\beta\langle x_i, B x_j\rangle$ that the dtype can hold give their row, to the rounding of the scores.
    Beyond that (3e38 in float32, 1e308 in float64) a row with a score of infinity is not a number, and scores of minus
    infinity have no weight.

    **Arguments:**

    - `beta`: Inverse temperature: a finite real number, an array of shape (), or a schedule. Zero and negative values
        are legitimate.
    - `query_key`: The form $B = Q^\top K$, (d, d), or a schedule; see `query_key_form`. None is the identity.
    - `mask`: Who may attend to whom.
    - `summation`: How the sums are computed.

    **Raises:**

    - `ValueError` if `beta` is not a finite real number or `query_key` not a square real matrix.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), eq. (SA); with `CausalMask`,
        Karagodin et al. (2411.04990), eq. (CSA), and Peat, *Clustering in Transformers*, eq. (3).
    """

    beta: Any = eqx.field(converter=parameter("beta"))
    query_key: Any = eqx.field(default=None, converter=parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractSummation = eqx.field(default=Auto(), kw_only=True)

    def __check_init__(self):
        check_beta(self.beta)
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation)

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        scores = matmul(self._queries(x, t), x.T)
        allowed = self.mask.matrix(x.shape[0])
        if masses is not None:
            allowed = allowed & (masses > 0)[None, :]
        scores = jnp.where(allowed, scores, -jnp.inf)
        top = jnp.max(scores, axis=1, keepdims=True)
        kernel = jnp.exp(below(scores, jnp.where(jnp.isneginf(top), 0, top)))
        kernel = kernel if masses is None else kernel * masses[None, :]
        return ratio(kernel, jnp.sum(kernel, axis=1))

    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        x, values, masses = self.enter(x, values, t, masses)
        sums = self.summation.exponential(self._queries(x, t), x, values, masses, self.mask)
        if masses is None:
            # Every row attends to itself: nothing is summed only where all scores overflow, and that is not a number.
            return sums.total / sums.normaliser[:, None]
        return ratio(sums.total, sums.normaliser)

    def log_partition(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, " n"]:
        r"""$\log Z_i = \log\sum_j m_j e^{\beta\langle x_i, B x_j\rangle}$, (n,); finite at any beta."""
        x, _, masses = self.enter(x, None, t, masses)
        sums = self.summation.exponential(self._queries(x, t), x, x[:, :1], masses, self.mask)
        return sums.shift + jnp.log(sums.normaliser)

    def check(self, n: int, d: int) -> None:
        self.mask.check(n)
        check_dimension(self.query_key, "query_key", d)

    def _queries(self, x: Tokens, t: RealScalarLike) -> Tokens:
        return at_time(self.beta, t, x.dtype) * self.queries(x, t)
