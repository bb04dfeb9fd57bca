"""Attention: softmax, unnormalised, hardmax and user-defined kernels, as matrices of weights and as averages."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .._base.batching import map_blocks
from .._base.checks import (
    as_numbers,
    call_traced,
    check_array,
    check_callable,
    check_fits,
    check_flag,
    check_instance,
    check_tokens,
    check_traceable,
    refusal,
    shown,
)
from .._base.defaults import TIE_EPSILONS
from .._base.numerics import as_float, below, bounded, is_concrete, matmul, warn_of_rounding
from .._base.types import AbstractPart, Masses, RealScalarLike, Tokens
from .._summation import (
    AbstractExponentialSum,
    AbstractNearestSearch,
    AbstractSummation,
    Auto,
    Dense,
    ExponentialSums,
    check_summation,
    check_supported,
    ratio,
)
from .._summation.ties import longest_attended, tie_slack
from .mask import AbstractMask, FullMask, check_mask
from .position import AbstractLogWeights, AbstractPosition, LogWeights, Rotary, check_position, position_of
from .schedule import (
    AbstractSchedule,
    Combined,
    Parameter,
    StoredParameter,
    as_parameter,
    at_time,
    check_beta,
    check_real,
    check_time,
    example,
    optional_array,
    optional_parameter,
    parameter,
)


# The interface of attention layers, and the checks of their arguments.
#
# An attention is a matrix of weights that depends on the tokens: row-stochastic or, if unnormalised, positive.
# `weights` returns the matrix; `average` returns its product with values, by a summation that need not form the matrix.
# Invariants:
# `average` equals `weights(x) @ values` up to rounding. No token attends to a token of mass zero. The derivative with
# respect to a zero mass is one-sided; for hardmax, whose weights jump where a token gains mass, it is zero.


class AbstractAttention(AbstractPart):
    r"""A matrix of weights that depends on the tokens, (n, n), and averages of values with these weights."""

    query_key: eqx.AbstractVar[StoredParameter | None]
    mask: eqx.AbstractVar[AbstractMask]
    summation: eqx.AbstractVar[AbstractSummation]

    @abstractmethod
    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        """The attention matrix, whose entry (i, j) is the weight of token j for token i."""

    @abstractmethod
    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        """The product `weights(x) @ values`, by the summation; if `values` is None, the tokens are the values."""

    def check(self, n: int, d: int) -> None:
        """Raise a ValueError unless the attention fits `n` tokens of dimension `d`."""
        # The method is called on the class: binding it to a module makes a new module, which takes longer.
        type(self.mask).check(self.mask, n)
        check_dimension(self.query_key, "query_key", d)
        check_supported(self.summation, None, d)
        if (position := position_of(self)) is not None:
            position.check(d)

    def enter(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike, masses: Masses | None
    ) -> tuple[Tokens, Float[Array, "n k"] | None, Masses | None]:
        """Convert tokens, values and masses to arrays; raises a ValueError if they are invalid or do not fit."""
        x = check_tokens(x)
        n, d = x.shape
        # The check comes before tracing, so that the message names the argument of the caller.
        self.check(n, d)
        check_supported(self.summation, dtype=x.dtype)
        check_time(t)
        warn_of_rounding(masses, "masses")
        masses = check_masses(masses)
        check_number_of_masses(masses, n)
        values = None if values is None else check_array(values, "values", shape=(n, "k"))
        return x, values, None if masses is None else as_float(masses)

    def queries(self, x: Tokens, t: RealScalarLike) -> Tokens:
        """The rows $B^T x_i$, whose inner product with $x_j$ is $⟨x_i, B x_j⟩$."""
        form = at_time(self.query_key, t, x.dtype)
        # Row i of x B is the transpose of B^T x_i.
        return x if form is None else matmul(x, form)


def turned(
    position: AbstractPosition | None, queries: Tokens, keys: Tokens, t: RealScalarLike
) -> tuple[Tokens, Tokens]:
    """The queries and keys, turned by a rotary position."""
    if not isinstance(position, Rotary):
        return queries, keys
    return position.turn(queries, t), position.turn(keys, t)


def log_weights_of(position: AbstractPosition | None, t: RealScalarLike, n: int, dtype: Any) -> LogWeights | None:
    """The log-weights of `n` tokens at time `t`; None if the position adds none."""
    return position.log_weights(t, n, dtype) if isinstance(position, AbstractLogWeights) else None


def _added(scores: Float[Array, "n n"], log_weights: LogWeights | None) -> Float[Array, "n n"]:
    """The scores of all pairs plus their log-weights, if there are some."""
    n = scores.shape[0]
    if log_weights is None:
        return scores
    return scores + log_weights(jnp.arange(n)[:, None], jnp.arange(n)[None, :], scores.dtype)


# Queries and keys whose inner products are the scores.
Compared = tuple[Float[Array, "n k"], Float[Array, "n k"]]


class AbstractExponentialAttention(AbstractAttention):
    r"""An attention whose weights are exponentials of scores, and which also averages with given queries.

    The queries may belong to other vectors than the tokens: factored attention heads have separate queries and keys.
    """

    beta: eqx.AbstractVar[StoredParameter]
    summation: eqx.AbstractVar[AbstractExponentialSum]
    position: eqx.AbstractVar[AbstractPosition | None]

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        queries, keys, log_weights = self._placed(self.queries(x, t), x, t, masses)
        return self._of_scores(_added(matmul(queries, keys.T), log_weights), t, masses)

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
        """The averages $∑_j w_{ij} v_j$ with scores $β(⟨q_i, y_j⟩ + b_{ij})$ and the position, without checks.

        Scores with a bias are not inner products, so that no summation applies: the (n, n) matrix is formed.
        """
        placed, keys, log_weights = self._placed(queries, tokens, t, masses)
        if bias is not None:
            scores = matmul(placed, keys.T) + at_time(self.beta, t, queries.dtype) * bias
            weights = self._of_scores(_added(scores, log_weights), t, masses)
            return matmul(weights, tokens if values is None else values)
        # The values are by default the tokens; a summation would take the keys, which may be other vectors.
        values = tokens if values is None and keys is not tokens else values
        return self._of_sums(self._sums(placed, keys, values, masses, log_weights), t, masses)

    def _placed(
        self, queries: Tokens, tokens: Tokens, t: RealScalarLike, masses: Masses | None
    ) -> tuple[Float[Array, "n k"], Float[Array, "n k"], LogWeights | None]:
        """Queries times beta and keys, both turned by the position, and the log-weights of the position."""
        queries, keys = self._compared(queries, tokens, masses)
        # The queries are (n, d) numbers, where the product of beta with the scores would be (n, n).
        queries, keys = turned(self.position, at_time(self.beta, t, queries.dtype) * queries, keys, t)
        return queries, keys, log_weights_of(self.position, t, tokens.shape[0], tokens.dtype)

    def _sums(
        self,
        queries: Float[Array, "n k"],
        keys: Float[Array, "n k"],
        values: Float[Array, "n v"] | None,
        masses: Masses | None,
        log_weights: LogWeights | None,
    ) -> ExponentialSums:
        # A user-defined summation may have no argument for log-weights.
        extra = () if log_weights is None else (log_weights,)
        return self.summation.exponential(queries, keys, values, masses, self.mask, *extra)

    @abstractmethod
    def _compared(self, queries: Tokens, tokens: Tokens, masses: Masses | None) -> Compared:
        """The vectors in place of `queries` and `tokens` whose inner products are the scores."""

    @abstractmethod
    def _of_scores(self, scores: Float[Array, "n n"], t: RealScalarLike, masses: Masses | None) -> Float[Array, "n n"]:
        """The weights for given scores, times beta and with log-weights."""

    @abstractmethod
    def _of_sums(self, sums: ExponentialSums, t: RealScalarLike, masses: Masses | None) -> Float[Array, "n v"]:
        """The averages for given sums."""


def query_key_form(query: Parameter, key: Parameter) -> StoredParameter:
    """The form $B = Q^T K$, for which $⟨Q x, K y⟩ = ⟨x, B y⟩$.

    **Arguments:**

    - `query`: Q, (k, d), or a schedule of matrices.
    - `key`: K, (k, d), or a schedule of matrices.

    **Returns:**

    B, (d, d), or a schedule of matrices if `query` or `key` depends on time.

    **Raises:**

    - `ValueError` if `query` and `key` are not matrices of the same shape, or not real and finite.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2; Peat, *Clustering in
        Transformers*, eq. (2).
    """
    # Numbers and NumPy arrays become floating-point JAX arrays; schedules are unchanged.
    Q, K = as_parameter(query, "query"), as_parameter(key, "key")
    for name, matrix in (("query", Q), ("key", K)):
        if matrix is None:
            raise ValueError(f"{name} must be a matrix (k, d) or a schedule, but it is None; pass a real matrix.")
        check_real(matrix, name, "pass a real matrix of shape (k, d)", of_tokens=True)
    shapes = jnp.shape(example(Q)), jnp.shape(example(K))
    # An empty matrix is refused, since the product would be a matrix of zeros.
    if len(shapes[0]) != 2 or shapes[0] != shapes[1] or 0 in shapes[0]:
        problem = f"their shapes are {shapes[0]} and {shapes[1]}"
        rule, remedy = "be matrices of the same shape (k, d)", "give both as many rows and columns"
        raise refusal("query and key", rule, problem, remedy)
    # `_form` is a module-level function, so that the combined schedules of equal calls compare equal.
    if isinstance(Q, AbstractSchedule) or isinstance(K, AbstractSchedule):
        return Combined(_form, (Q, K))
    return _form(Q, K)


def _form(query: Float[Array, "k d"], key: Float[Array, "k d"]) -> Float[Array, "d d"]:
    return matmul(query.T, key)


def check_parts(mask: Any, summation: Any, position: Any, kind: type[AbstractSummation]) -> None:
    """Raise a ValueError unless `mask` is a mask, `position` a position or None, and `summation` is a summation of this
    kind that supports both."""
    check_mask(mask)
    check_summation(summation, kind=kind)
    check_supported(summation, mask, position=check_position(position))


def check_attention(attention: Any, name: str = "attention") -> AbstractAttention:
    """Return `attention`; raises a `ValueError` if it is not an attention."""
    return check_instance(
        attention, name, AbstractAttention, "an attention of clusterjax", "pass SoftmaxAttention(beta), for example"
    )


def check_square(matrix: Any, name: str) -> None:
    """Raise a ValueError unless `matrix` is None or a finite real square matrix."""
    if matrix is None:
        return
    check_real(matrix, name, "pass a real matrix of shape (d, d)", of_tokens=True)
    shape = jnp.shape(example(matrix))
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise ValueError(f"{name} must be a square matrix, but its shape is {shape}; pass one of shape (d, d).")


def check_dimension(matrix: Any, name: str, d: int) -> None:
    """Raise a ValueError unless `matrix` is None or acts on tokens of dimension `d`."""
    # Only the last axis is checked, so that a stack of matrices, one for each head, passes too.
    if matrix is not None and jnp.shape(example(matrix))[-1] != d:
        problem = f"its shape is {jnp.shape(example(matrix))}"
        raise refusal(name, f"act on tokens of dimension {d}", problem, f"pass a matrix of shape ({d}, {d})")


def check_masses(masses: Any) -> Any:
    """Return `masses` as an array, or None; raises a ValueError unless they are a vector of finite numbers, none
    negative, not all zero."""
    if masses is None:
        return None
    array = None if isinstance(masses, AbstractSchedule) else as_numbers(masses, "masses")
    if array is None:
        raise ValueError(f"masses must be a vector, one mass per token, but it is {shown(masses)}; pass an array.")
    if np.ndim(array) != 1:
        raise refusal("masses", "be a vector, one mass per token", f"its shape is {np.shape(array)}", "reshape it")
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"masses must be real, but its dtype is {array.dtype}; mend them.")
    # Traced masses have no concrete values to check.
    if is_concrete(array):
        values = np.asarray(array)
        if not np.all(np.isfinite(values)) or np.any(values < 0) or not np.any(values > 0):
            problem = (
                f"they are {values}" if values.size <= 8 else f"they are {values[:8]} and so on".replace("\n", " ")
            )
            raise ValueError(f"masses must be finite, not negative and not all zero, but {problem}; mend them.")
    check_fits(array, "masses")
    return array


def check_number_of_masses(masses: Any, n: int) -> None:
    """Raise a ValueError unless the number of `masses` is the number of tokens."""
    # `check_masses` omits this check, since a field is built before the number of its tokens is known.
    if masses is not None and np.shape(masses)[0] != n:
        problem = f"it holds {np.shape(masses)[0]}"
        raise refusal("masses", f"hold one mass for each of the {n} tokens", problem, "pass a vector of length n")


# Softmax attention: the weights of each row are positive and sum to one.
#
# Exponents are shifted by the largest score of their row, so that no finite score overflows (Milakov, Gimelshein,
# 1805.02867, for summations over parts of a row). Queries are multiplied by beta: summations do not depend on beta.


class AbstractSoftmaxAttention(AbstractExponentialAttention):
    """An attention whose rows of weights are a softmax of scores, which the subclasses define."""

    def _of_scores(self, scores: Float[Array, "n n"], t: RealScalarLike, masses: Masses | None) -> Float[Array, "n n"]:
        return softmax_weights(scores, masses, self.mask)

    def _of_sums(self, sums: ExponentialSums, t: RealScalarLike, masses: Masses | None) -> Float[Array, "n v"]:
        if masses is None:
            # Every row attends to itself: the sum is zero only if all scores overflow, and the result is then NaN.
            return sums.total / sums.normaliser[:, None]
        return ratio(sums.total, sums.normaliser)


class SoftmaxAttention(AbstractSoftmaxAttention):
    """Self-attention (SA): $w_{ij} = exp(β⟨x_i, B x_j⟩) / ∑_k exp(β⟨x_i, B x_k⟩)$.

    Each row of weights is positive and sums to one. At `beta = 0`, the average is the mean; for large `beta`, it tends
    to `HardmaxAttention`. With masses, $w_{ij} ∝ m_j exp(β⟨x_i, B x_j⟩)$. A position adds a log-weight $b(i - j)$ to
    the exponent, which beta does not multiply, or turns queries and keys.

    If the dtype can hold the scores $β⟨x_i, B x_j⟩$, the weights are accurate to the rounding of the scores. Beyond
    this range (3e38 in float32, 1e308 in float64), a row with a score of infinity is NaN, and scores of minus infinity
    have no weight.

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
    - `query_key`: The form $B = Q^T K$, (d, d), or a schedule; see `query_key_form`. None is the identity.
    - `mask`: The tokens that each token may attend to.
    - `summation`: The algorithm for the sums, which must support the mask and the dimension of the tokens.
    - `position`: How weights depend on the places of tokens: `ALiBi`, `Decay`, `RelativeBias` or `Rotary`. None is no
        dependence.

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
    position: AbstractPosition | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        check_beta(self.beta)
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation, self.position, AbstractExponentialSum)

    def log_partition(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, " n"]:
        """The logarithms $log Z_i = log ∑_j m_j exp(β⟨x_i, B x_j⟩)$, (n,); finite at any beta."""
        x, _, masses = self.enter(x, None, t, masses)
        # Only the normaliser is needed; a single column of values is the minimum for a summation.
        queries, keys, log_weights = self._placed(self.queries(x, t), x, t, masses)
        sums = self._sums(queries, keys, x[:, :1], masses, log_weights)
        return sums.shift + jnp.log(sums.normaliser)

    def _compared(self, queries: Tokens, tokens: Tokens, masses: Masses | None) -> Compared:
        return queries, tokens


def softmax_weights(scores: Float[Array, "n n"], masses: Masses | None, mask: AbstractMask) -> Float[Array, "n n"]:
    """The softmax of each row of scores, $w_{ij} ∝ m_j exp(s_{ij})$ over the columns that the mask allows.

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


# Unnormalised attention, whose flow with V = B = I is the gradient flow of the interaction energy.
#
# A summation returns sums of exponentials divided by e^shift. One exponential of the shift minus the offset restores
# the scale, so that the result overflows only if the weights do.


class UnnormalisedAttention(AbstractExponentialAttention):
    """Unnormalised self-attention (USA): $w_{ij} = exp(β⟨x_i, B x_j⟩ - offset) / n$.

    With a mask, the sum of row i is divided by the number of tokens that i may attend to (i for a causal mask); with
    masses, by their mass. If B and V are the identity, the dynamics is the gradient flow of `interaction_energy`.

    The weights are as large as $e^β$: they overflow beyond `beta` of about 85 in float32 (700 in float64), unless
    `offset` reduces the exponents. An offset only changes the unit of time, by $exp(-offset)$; `offset=beta` gives the
    kernel $exp(β(⟨x, y⟩ - 1))$, which never overflows on the sphere.

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
    - `query_key`: The form $B = Q^T K$, (d, d), or a schedule. None is the identity.
    - `mask`: The tokens that each token may attend to.
    - `summation`: The algorithm for the sums, which must support the mask and the dimension of the tokens.
    - `position`: As in `SoftmaxAttention`: a log-weight is added to the exponent.
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
    position: AbstractPosition | None = eqx.field(default=None, kw_only=True)
    offset: StoredParameter = eqx.field(default=0.0, converter=parameter("offset"), kw_only=True)

    def __check_init__(self):
        check_beta(self.beta)
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation, self.position, AbstractExponentialSum)
        check_beta(self.offset, "offset", "number")

    def _compared(self, queries: Tokens, tokens: Tokens, masses: Masses | None) -> Compared:
        return queries, tokens

    def _of_sums(self, sums: ExponentialSums, t: RealScalarLike, masses: Masses | None) -> Float[Array, "n v"]:
        # The divisor is the attended mass, not the normaliser of the sums.
        masses = jnp.ones(sums.shift.shape, sums.shift.dtype) if masses is None else masses
        # One exponential of the difference: e^shift alone may overflow where its product with e^-offset does not.
        size = jnp.exp(sums.shift - at_time(self.offset, t, sums.shift.dtype)) / self._attended(masses)
        return size[:, None] * sums.total

    def _of_scores(self, scores: Float[Array, "n n"], t: RealScalarLike, masses: Masses | None) -> Float[Array, "n n"]:
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


# Hardmax attention: the limit of softmax attention as the inverse temperature goes to infinity.
#
# A score ties with the maximum within a threshold relative to the norm of the query times the largest norm of the
# attended tokens. This product bounds the rounding error of a score, so that equal tokens tie. Every summation uses
# this rule.


class HardmaxAttention(AbstractAttention):
    """Hardmax: each token attends equally to the tokens that maximise $⟨x_i, B x_j⟩$.

    The set of maximisers is $C_i = {j : s_{ij} ≥ max_k s_{ik} - ε |B^T x_i| max_k |x_k|}$, with the scores $s_{ij} =
    ⟨x_i, B x_j⟩$, the `tie_tolerance` ε, and j and k among the tokens that i may attend to. The tolerance makes ties
    independent of rounding. Hardmax is the limit of `SoftmaxAttention` as `beta` goes to infinity. A position adds its
    log-weight to the scores, $s_{ij} = ⟨x_i, B x_j⟩ + b(i - j)$: hardmax is then the limit of softmax with the
    log-weights βb, and ε multiplies $max(|B^T x_i| max_k |x_k|, |max_k s_{ik}|)$. The weights are
    piecewise constant in x, so that derivatives pass through the averaged values only.

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

    - `query_key`: The form $B = Q^T K$, (d, d), or a schedule. None is the identity.
    - `mask`: The tokens that each token may attend to.
    - `summation`: The algorithm for the sums, which must support the mask and the dimension of the tokens.
    - `position`: As in `SoftmaxAttention`, with log-weights for each unit of beta.
    - `tie_tolerance`: The relative tolerance of ties, >= 0; None is 64 times the machine epsilon of the dtype of x.

    **Raises:**

    - `ValueError` if `tie_tolerance` is negative or `query_key` not a square real matrix.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), eq. (1b).
    """

    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractNearestSearch = eqx.field(default=Auto(), kw_only=True)
    position: AbstractPosition | None = eqx.field(default=None, kw_only=True)
    tie_tolerance: Array | None = eqx.field(default=None, converter=optional_array("tie_tolerance"), kw_only=True)

    def __check_init__(self):
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation, self.position, AbstractNearestSearch)
        if self.tie_tolerance is not None:
            check_beta(self.tie_tolerance, "tie_tolerance", "number")
            if isinstance(self.tie_tolerance, AbstractSchedule):
                kind = type(self.tie_tolerance).__name__
                raise ValueError(f"tie_tolerance must be constant in time, but it is a {kind}; pass a number, or None.")
            # A traced tolerance has no concrete sign to check.
            if is_concrete(self.tie_tolerance) and self.tie_tolerance < 0:
                problem = f"it is {self.tie_tolerance}"
                raise refusal("tie_tolerance", "not be negative", problem, "pass a small number, or None")

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        queries, keys = turned(self.position, self.queries(x, t), x, t)
        log_weights = log_weights_of(self.position, t, x.shape[0], x.dtype)
        # The rule of `summation.rows`, for all pairs at once.
        allowed = self.mask.matrix(x.shape[0])
        masses = jnp.ones(x.shape[0], x.dtype) if masses is None else masses
        attended = allowed & (masses > 0)[None, :]
        scores = jnp.where(attended, _added(matmul(queries, keys.T), log_weights), -jnp.inf)
        top = jnp.max(scores, axis=1)
        longest = longest_attended(keys, attended)
        least = top - tie_slack(queries, longest, self._tolerance(x), None if log_weights is None else top)
        # Without the second condition, a row that attends to nothing would choose all scores of minus infinity.
        chosen = jnp.where((scores >= least[:, None]) & (scores > -jnp.inf), masses[None, :], 0)
        return ratio(chosen, jnp.sum(chosen, axis=1))

    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        x, values, masses = self.enter(x, values, t, masses)
        values = x if values is None else values
        # The queries have no derivative, since the set of maximisers is piecewise constant.
        queries, keys = turned(self.position, self.queries(x, t), x, t)
        log_weights = log_weights_of(self.position, t, x.shape[0], x.dtype)
        extra = () if log_weights is None else (log_weights,)
        sums = self.summation.hardmax(queries, keys, values, masses, self.mask, self._tolerance(x), *extra)
        return ratio(sums.total, sums.normaliser)

    def _tolerance(self, x: Tokens) -> Float[Array, ""]:
        if self.tie_tolerance is None:
            # Each of the d products in a score contributes rounding errors.
            return jnp.asarray(TIE_EPSILONS * jnp.finfo(x.dtype).eps, x.dtype)
        return jnp.asarray(self.tie_tolerance, x.dtype)


# Attention with a user-defined kernel, a function of the inner products.
#
# **Algorithm.** No summation serves a general kernel. Scores are formed for a block of rows at a time, (rows, n),
# masked, and multiplied by the values. For a masked pair, the function receives the score of the row's token with
# itself, so that the pair can neither overflow nor make a derivative NaN. The sums of a row depend on a token without
# mass only through their derivative with respect to its mass, which is its kernel, where the kernel is finite.
#
# **Invariants.** `average` equals `weights(x) @ values` up to rounding. Memory is (rows, n), also for derivatives,
# which recompute each block.


_PAIRS = 2**22  # the approximate number of pairs in one block


_WHAT = "a function of inner products"


def _check_function(function: Callable[..., Any]) -> Callable[..., Any]:
    return check_callable(function, "function", _WHAT, takes=1)


def _check_normalise(normalise: bool) -> bool:
    return check_flag(normalise, "normalise")


class KernelAttention(AbstractAttention):
    """Attention with a user-defined kernel, $w_{ij} = f(s_{ij}) / ∑_k f(s_{ik})$ with $s_{ij} = ⟨x_i, B x_j⟩$; with
    `normalise=False`, $w_{ij} = f(s_{ij}) / n$.

    With a mask, the sum, or n, counts the tokens that i may attend to; with masses, $w_{ij} ∝ m_j f(s_{ij})$. A row
    whose weights sum to zero is zero. The kernel may be negative; a normalised row whose sum is near zero may then be
    arbitrarily large. For $f = exp(βs)$, `SoftmaxAttention` and `UnnormalisedAttention` are faster and avoid overflow.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> bounded = cjx.KernelAttention(lambda s: jnp.where(s > 0.5, 1.0, 0.0))  # bounded confidence
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=32, d=2)
        >>> traj = cjx.simulate(cjx.AttentionField(bounded), x, jnp.array([0.0, 60.0]))
        >>> [int(cjx.num_clusters(x, radius=0.1)) for x in traj.xs]
        [20, 2]
        ```

    **Arguments:**

    - `function`: `function(s)` takes an array of inner products and returns the kernel of each, as real numbers of the
        same shape. `function` is a JAX function, or a callable `equinox.Module`, whose arrays are parameters and may be
        differentiated.
    - `query_key`: The form $B = Q^T K$, (d, d), or a schedule. None is the identity.
    - `normalise`: If True, each row is divided by its sum; otherwise by the mass of the tokens it may attend to.
    - `mask`: The tokens that each token may attend to.
    - `position`: As in `SoftmaxAttention`: the kernel is multiplied by the exponential of a log-weight.

    **Raises:**

    - `ValueError` if `function` does not take one argument, jax cannot trace `function` (such as one of NumPy or
        `math`), or `query_key` is not a square real matrix; on use, if `function` returns another shape.

    ??? cite "Source"

        Criscitiello et al., *Synchronization on circles and spheres with nonlinear interactions* (2405.18273): tokens
        attract each other by a function of their inner products (`normalise=False`). Tsai et al., *Transformer
        Dissection* (1908.11775): a kernel in place of the exponential, divided by the sum of the row.
    """

    function: Callable[..., Any] = eqx.field(converter=_check_function)
    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    # The converter checks the flag before storage, since equinox warns of an array in a static field.
    normalise: bool = eqx.field(default=True, converter=_check_normalise, static=True, kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    position: AbstractPosition | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        check_square(self.query_key, "query_key")
        check_mask(self.mask)
        check_position(self.position)
        # A function of NumPy would work outside of `jit`, and fail only in a run.
        check_traceable(self.function, "function", _WHAT, (1, 1))

    @property
    def summation(self) -> AbstractSummation:
        """The summation by pairs, since no other summation serves a general kernel."""
        return Dense()

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        queries, keys = turned(self.position, self.queries(x, t), x, t)
        log_weights = log_weights_of(self.position, t, x.shape[0], x.dtype)
        return self._rows(queries, jnp.arange(x.shape[0]), keys, masses, log_weights)

    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        x, values, masses = self.enter(x, values, t, masses)
        values, n = x if values is None else values, x.shape[0]
        queries, keys = turned(self.position, self.queries(x, t), x, t)
        log_weights = log_weights_of(self.position, t, x.shape[0], x.dtype)
        of_rows = lambda queries, index: matmul(self._rows(queries, index, keys, masses, log_weights), values)
        return map_blocks(of_rows, max(1, _PAIRS // n), queries, jnp.arange(n), recompute=True)

    def _rows(
        self,
        queries: Float[Array, "rows d"],
        index: Int[Array, " rows"],
        x: Tokens,
        masses: Masses | None,
        log_weights: LogWeights | None,
    ) -> Float[Array, "rows n"]:
        """The weights of the rows with the numbers `index`, for keys `x`."""
        scores, n = matmul(queries, x.T), x.shape[0]
        allowed = jnp.broadcast_to(self.mask.allowed(index[:, None], jnp.arange(n)[None, :]), scores.shape)
        # The score of a row's token with itself, which the function must accept in any case.
        own = jnp.take_along_axis(scores, index[:, None], axis=1)
        has_mass = None if masses is None else (masses > 0)[None, :]
        if has_mass is not None:
            fixed = lax.stop_gradient(scores)
            scores = jnp.where(has_mass, scores, fixed)
            allowed = allowed & (has_mass | jnp.isfinite(self._kernel(fixed, x.dtype)))
        kernel = jnp.where(allowed, self._kernel(jnp.where(allowed, scores, own), x.dtype), 0)
        masses = jnp.ones(n, x.dtype) if masses is None else masses
        kernel = kernel * masses[None, :]
        if log_weights is not None:
            exponents = jnp.where(allowed, log_weights(index[:, None], jnp.arange(n)[None, :], x.dtype), -jnp.inf)
            if self.normalise:
                # The largest factor of a row that is normalised is one, so that not all factors underflow.
                counted = jnp.where((masses > 0)[None, :], exponents, -jnp.inf)
                top = lax.stop_gradient(jnp.max(counted, axis=1, keepdims=True))
                exponents = below(exponents, jnp.where(jnp.isneginf(top), 0, top), has_mass)
            elif has_mass is not None:
                exponents = jnp.where(has_mass, exponents, bounded(exponents))
            kernel = kernel * jnp.exp(exponents)
        if self.normalise:
            return ratio(kernel, jnp.sum(kernel, axis=1))
        return ratio(kernel, self.mask.attended_mass(masses)[index])

    def _kernel(self, scores: Float[Array, "rows n"], dtype: Any) -> Float[Array, "rows n"]:
        kernel = check_array(
            call_traced(self.function, "function", _WHAT, scores),
            "function(s)",
            shape=scores.shape,
            finite=False,
            remedy="return the kernel of each inner product",
        )
        if jnp.iscomplexobj(kernel):
            raise refusal("function(s)", "be real", f"its dtype is {kernel.dtype}", "return its real part")
        return kernel.astype(dtype)
