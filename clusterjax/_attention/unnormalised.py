"""Unnormalised attention, whose flow with V = B = I is the gradient flow of the interaction energy.

A summation returns sums of exponentials divided by e^shift. One exponential of the shift minus the offset restores the
scale, so that the result overflows only if the weights do.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._custom_types import Masses, RealScalarLike, Tokens
from .._mask import AbstractMask, FullMask
from .._misc import bounded, matmul
from .._schedule import StoredParameter, at_time, optional_parameter, parameter
from .._summation import AbstractExponentialSum, Auto, check_supported
from .base import AbstractExponentialAttention, check_beta, check_dimension, check_parts, check_square


class UnnormalisedAttention(AbstractExponentialAttention):
    r"""Unnormalised self-attention (USA): $w_{ij} = e^{\beta\langle x_i, B x_j\rangle - \text{offset}} / n$.

    With a mask, the sum of row i is divided by the number of tokens that i may attend to (i for a causal mask); with
    masses, by their mass. If B and V are the identity, the dynamics is the gradient flow of `interaction_energy`.

    The weights are as large as $e^\beta$: they overflow beyond `beta` of about 85 in float32 (700 in float64), unless
    `offset` reduces the exponents. An offset only changes the unit of time, by $e^{-\text{offset}}$; `offset=beta`
    gives the kernel $e^{\beta(\langle x, y\rangle - 1)}$, which never overflows on the sphere.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=5, d=3)
        >>> average = cjx.UnnormalisedAttention(2.0).average(x, None)
        >>> gradient = jax.grad(cjx.interaction_energy)(x, 2.0)
        >>> bool(jnp.allclose(average, 5 * gradient, atol=1e-3))  # n times the gradient of the energy
        True
        ```

    **Arguments:**

    - `beta`: Inverse temperature: a finite real number, an array of shape (), or a schedule.
    - `query_key`: The form $B = Q^\top K$, (d, d), or a schedule. None is the identity.
    - `mask`: The tokens that each token may attend to.
    - `summation`: The algorithm for the sums, which must support the mask and the dimension of the tokens.
    - `offset`: The number subtracted from each exponent: a finite real number or a schedule.

    **Raises:**

    - `ValueError` if `beta` or `offset` is not a finite real number or `query_key` not a square real matrix.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), eq. (USA); causal attention:
        2605.09213; the offset: 2410.06833.
    """

    beta: StoredParameter = eqx.field(converter=parameter("beta"))
    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractExponentialSum = eqx.field(default=Auto(), kw_only=True)
    offset: StoredParameter = eqx.field(default=0.0, converter=parameter("offset"), kw_only=True)

    def __check_init__(self):
        check_beta(self.beta)
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation, AbstractExponentialSum)
        check_beta(self.offset, "offset", "number")

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        return self._of_scores(matmul(self._queries(x, t), x.T), t, masses)

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
        queries = beta * queries
        if bias is not None:
            weights = self._of_scores(matmul(queries, tokens.T) + beta * bias, t, masses)
            return matmul(weights, tokens if values is None else values)
        # The divisor is the attended mass, not the normaliser of the sums.
        sums = self.summation.exponential(queries, tokens, values, masses, self.mask)
        masses = jnp.ones(queries.shape[0], queries.dtype) if masses is None else masses
        # One exponential of the difference: e^shift alone may overflow where its product with e^-offset does not.
        size = jnp.exp(sums.shift - at_time(self.offset, t, queries.dtype)) / self._attended(masses)
        return size[:, None] * sums.total

    def check(self, n: int, d: int) -> None:
        self.mask.check(n)
        check_dimension(self.query_key, "query_key", d)
        check_supported(self.summation, None, d)

    def _queries(self, x: Tokens, t: RealScalarLike) -> Tokens:
        return at_time(self.beta, t, x.dtype) * self.queries(x, t)

    def _of_scores(self, scores: Float[Array, "n n"], t: RealScalarLike, masses: Masses | None) -> Float[Array, "n n"]:
        """The weights for given scores, (n, n)."""
        masses = jnp.ones(scores.shape[0], scores.dtype) if masses is None else masses
        scores = jnp.where(self.mask.matrix(scores.shape[0]), scores, -jnp.inf)
        scores = scores - at_time(self.offset, t, scores.dtype)
        # No shift is used: weights that are too large for the dtype overflow.
        kernel = jnp.exp(jnp.where((masses > 0)[None, :], scores, bounded(scores))) * masses[None, :]
        return kernel / self._attended(masses)[:, None]

    def _attended(self, masses: Masses) -> Float[Array, " n"]:
        """The mass of the tokens that each token may attend to, or one where this mass and hence the sum are zero."""
        attended = self.mask.attended_mass(masses)
        # With a mask, all tokens that a token may attend to can be padding.
        return jnp.where(attended > 0, attended, 1)
