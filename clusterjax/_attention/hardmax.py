"""Hardmax attention: softmax attention at zero temperature."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._custom_types import Masses, RealScalarLike, Tokens
from .._mask import AbstractMask, FullMask
from .._misc import is_concrete, matmul
from .._schedule import AbstractSchedule, parameter
from .._summation import AbstractSummation, Auto, ratio
from .._summation.rows import longest_attended, tie_slack
from .base import AbstractAttention, check_beta, check_dimension, check_parts, check_square


class HardmaxAttention(AbstractAttention):
    r"""Hardmax: each token attends, equally, to the tokens that maximise $\langle x_i, B x_j\rangle$.

    The set of maximisers is $C_i = \{j : \langle x_i, B x_j\rangle \ge \max_k \langle x_i, B x_k\rangle -
    \text{tie\_tolerance}\,|B^\top x_i| \max_k |x_k|\}$, with j and k among those that i may attend to: a tie is not
    an accident of rounding. The limit of `SoftmaxAttention` as `beta` goes to infinity. The weights are piecewise
    constant in x, so that derivatives flow through the averaged values only.

    **Arguments:**

    - `query_key`: The form $B = Q^\top K$, (d, d), or a schedule. None is the identity.
    - `mask`: Who may attend to whom.
    - `summation`: How the sums are computed.
    - `tie_tolerance`: Relative, >= 0; None is 64 times the rounding unit of the dtype of x.

    **Raises:**

    - `ValueError` if `tie_tolerance` is negative or `query_key` not a square real matrix.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), eq. (1b).
    """

    query_key: Any = eqx.field(default=None, converter=parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractSummation = eqx.field(default=Auto(), kw_only=True)
    tie_tolerance: Any = eqx.field(default=None, converter=parameter("tie_tolerance"), kw_only=True)

    def __check_init__(self):
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation)
        if self.tie_tolerance is not None:
            check_beta(self.tie_tolerance, "tie_tolerance", "number")
            concrete = is_concrete(self.tie_tolerance) and not isinstance(self.tie_tolerance, AbstractSchedule)
            if concrete and self.tie_tolerance < 0:  # pyright: ignore[reportOperatorIssue]
                raise ValueError(
                    f"tie_tolerance must not be negative, but it is {self.tie_tolerance}; pass a small number, or None."
                )

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        queries = self.queries(x, t)
        allowed = self.mask.matrix(x.shape[0])
        masses = jnp.ones(x.shape[0], x.dtype) if masses is None else masses
        attended = allowed & (masses > 0)[None, :]
        scores = jnp.where(attended, matmul(queries, x.T), -jnp.inf)
        least = jnp.max(scores, axis=1) - tie_slack(queries, longest_attended(x, attended), self._tolerance(x))
        chosen = jnp.where((scores >= least[:, None]) & (scores > -jnp.inf), masses[None, :], 0)
        return ratio(chosen, jnp.sum(chosen, axis=1))

    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        x, values, masses = self.enter(x, values, t, masses)
        values = x if values is None else values
        sums = self.summation.hardmax(self.queries(x, t), x, values, masses, self.mask, self._tolerance(x))
        return ratio(sums.total, sums.normaliser)

    def check(self, n: int, d: int) -> None:
        self.mask.check(n)
        check_dimension(self.query_key, "query_key", d)

    def _tolerance(self, x: Tokens) -> Float[Array, ""]:
        if self.tie_tolerance is None:
            return jnp.asarray(64 * jnp.finfo(x.dtype).eps, x.dtype)
        return self.tie_tolerance.astype(x.dtype)
