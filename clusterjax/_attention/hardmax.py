"""Hardmax attention: the limit of softmax attention as the inverse temperature goes to infinity.

A score ties with the maximum within a threshold relative to the norm of the query times the largest norm of the
attended tokens. This product bounds the rounding error of a score, so that equal tokens tie. Every summation uses this
rule.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._custom_types import Masses, RealScalarLike, Tokens
from .._mask import AbstractMask, FullMask
from .._misc import is_concrete, matmul
from .._schedule import AbstractSchedule, StoredParameter, optional_array, optional_parameter
from .._summation import AbstractNearestSearch, Auto, check_supported, ratio
from .._summation.rows import longest_attended, tie_slack
from .base import AbstractAttention, check_beta, check_dimension, check_parts, check_square


class HardmaxAttention(AbstractAttention):
    r"""Hardmax: each token attends equally to the tokens that maximise $\langle x_i, B x_j\rangle$.

    The set of maximisers is $C_i = \{j : \langle x_i, B x_j\rangle \ge \max_k \langle x_i, B x_k\rangle -
    \text{tie\_tolerance}\,|B^\top x_i| \max_k |x_k|\}$, with j and k among the tokens that i may attend to. The
    tolerance makes ties independent of rounding. Hardmax is the limit of `SoftmaxAttention` as `beta` goes to infinity.
    The weights are piecewise constant in x, so that derivatives pass through the averaged values only.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0], [3.0, 1.0]])
        >>> print(cjx.HardmaxAttention().weights(x))  # the second token scores itself and the third alike
        [[0.  0.  1. ]
         [0.  0.5 0.5]
         [0.  0.  1. ]]
        ```

    **Arguments:**

    - `query_key`: The form $B = Q^\top K$, (d, d), or a schedule. None is the identity.
    - `mask`: The tokens that each token may attend to.
    - `summation`: The algorithm for the sums, which must support the mask and the dimension of the tokens.
    - `tie_tolerance`: The relative tolerance of ties, >= 0; None is 64 times the machine epsilon of the dtype of x.

    **Raises:**

    - `ValueError` if `tie_tolerance` is negative or `query_key` not a square real matrix.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), eq. (1b).
    """

    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractNearestSearch = eqx.field(default=Auto(), kw_only=True)
    tie_tolerance: Array | None = eqx.field(default=None, converter=optional_array("tie_tolerance"), kw_only=True)

    def __check_init__(self):
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation, AbstractNearestSearch)
        if self.tie_tolerance is not None:
            check_beta(self.tie_tolerance, "tie_tolerance", "number")
            if isinstance(self.tie_tolerance, AbstractSchedule):
                kind = type(self.tie_tolerance).__name__
                raise ValueError(f"tie_tolerance must be constant in time, but it is a {kind}; pass a number, or None.")
            # A traced tolerance has no concrete sign to check.
            if is_concrete(self.tie_tolerance) and self.tie_tolerance < 0:
                raise ValueError(
                    f"tie_tolerance must not be negative, but it is {self.tie_tolerance}; pass a small number, or None."
                )

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        queries = self.queries(x, t)
        # The rule of `summation.rows`, for all pairs at once.
        allowed = self.mask.matrix(x.shape[0])
        masses = jnp.ones(x.shape[0], x.dtype) if masses is None else masses
        attended = allowed & (masses > 0)[None, :]
        scores = jnp.where(attended, matmul(queries, x.T), -jnp.inf)
        least = jnp.max(scores, axis=1) - tie_slack(queries, longest_attended(x, attended), self._tolerance(x))
        # Without the second condition, a row that attends to nothing would choose all scores of minus infinity.
        chosen = jnp.where((scores >= least[:, None]) & (scores > -jnp.inf), masses[None, :], 0)
        return ratio(chosen, jnp.sum(chosen, axis=1))

    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        x, values, masses = self.enter(x, values, t, masses)
        values = x if values is None else values
        # The queries have no derivative, since the set of maximisers is piecewise constant.
        sums = self.summation.hardmax(self.queries(x, t), x, values, masses, self.mask, self._tolerance(x))
        return ratio(sums.total, sums.normaliser)

    def check(self, n: int, d: int) -> None:
        self.mask.check(n)
        check_dimension(self.query_key, "query_key", d)
        check_supported(self.summation, None, d)

    def _tolerance(self, x: Tokens) -> Float[Array, ""]:
        if self.tie_tolerance is None:
            # Each of the d products in a score contributes rounding errors.
            return jnp.asarray(64 * jnp.finfo(x.dtype).eps, x.dtype)
        return jnp.asarray(self.tie_tolerance, x.dtype)
