"""Further attentions: sigmoid, distance, cosine and doubly stochastic (Sinkhorn) weights.

Distance and cosine attention are softmax attention with other queries and keys, so that the summations serve them.
Sigmoid and Sinkhorn attention compute the matrix of weights: sigmoid attention in blocks of rows, Sinkhorn attention as
a whole.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._base.batching import map_blocks
from .._base.checks import refusal, shown
from .._base.numerics import is_concrete, matmul, normalise
from .._base.types import Masses, RealScalarLike, Scalar, Tokens
from .._summation import AbstractExponentialSum, AbstractSummation, Auto, Dense
from .attention import (
    AbstractAttention,
    AbstractSoftmaxAttention,
    Compared,
    check_parts,
    check_square,
    softmax_weights,
)
from .mask import AbstractMask, CausalMask, FullMask, MatrixMask, SinkMask, check_mask
from .schedule import StoredParameter, at_time, check_beta, optional_parameter, parameter


_PAIRS = 2**22  # the approximate number of pairs in one block
_NO_SERIES = 5  # the least dimension in which no series serves


# Sigmoid attention: a token's weight does not depend on the other tokens, except by the default offset.


class SigmoidAttention(AbstractAttention):
    """Sigmoid attention: $w_{ij} = m_j σ(β⟨x_i, B x_j⟩ + b)$ with $σ(s) = 1/(1 + e^{-s})$; by default, $b = -log n$.

    The rows do not sum to one. With the default offset $w_{ij} = e^{βs_{ij}} / (n + e^{βs_{ij}})$, which tends to
    `UnnormalisedAttention` as n goes to infinity. A mass of k counts as k tokens, so that n is the sum of the masses,
    and with a mask the sum over the tokens that i may attend to. With $V = B = B^T$ and a full mask the flow is the
    gradient flow of `energy`.

    The weights are not divided by n. `KernelAttention(lambda s: jax.nn.sigmoid(beta * s + b), normalise=False)` divides
    them by n.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp, numpy as np
        >>> print(np.asarray(cjx.SigmoidAttention(jnp.log(2.0)).weights(jnp.eye(2))).round(3))  # 2/4 and 1/3
        [[0.5   0.333]
         [0.333 0.5  ]]
        ```

    **Arguments:**

    - `beta`: Inverse temperature: a finite real number, an array of shape (), or a schedule.
    - `offset`: b, a finite real number or a schedule; None is $-log n$.
    - `query_key`: The form $B = Q^T K$, (d, d), or a schedule. None is the identity.
    - `mask`: The tokens that each token may attend to.

    **Raises:**

    - `ValueError` if `beta` or `offset` is not a finite real number or `query_key` not a square real matrix.

    ??? cite "Source"

        Ramapuram et al., *Theory, Analysis, and Best Practices for Sigmoid Self-Attention* (2409.04431), whose weights
        are sigmoids of scores and whose offset is $-log n$; Castin et al. (2501.18322). The energy is derived here.
    """

    beta: StoredParameter = eqx.field(converter=parameter("beta"))
    offset: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("offset"))
    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)

    def __check_init__(self):
        check_beta(self.beta)
        if self.offset is not None:
            check_beta(self.offset, "offset", "number")
        check_square(self.query_key, "query_key")
        check_mask(self.mask)

    @property
    def summation(self) -> AbstractSummation:
        """The summation by pairs, since no other summation serves sigmoids."""
        return Dense()

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        masses = jnp.ones(x.shape[0], x.dtype) if masses is None else masses
        return self._rows(self.queries(x, t), jnp.arange(x.shape[0]), x, t, masses)

    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        x, values, masses = self.enter(x, values, t, masses)
        values, n = x if values is None else values, x.shape[0]
        masses = jnp.ones(n, x.dtype) if masses is None else masses
        of_rows = lambda queries, index: matmul(self._rows(queries, index, x, t, masses), values)
        return map_blocks(of_rows, max(1, _PAIRS // n), self.queries(x, t), jnp.arange(n), recompute=True)

    def energy(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Scalar:
        """$E = 1/(2βM) ∑_{i,j} m_i m_j log(1 + exp(β⟨x_i, B x_j⟩ + b))$ with $M = ∑_i m_i$.

        With $V = B = B^T$ the velocity of token i is the tangent part of $(M/m_i) ∂E/∂x_i$, so that E never decreases.
        The energy needs a full mask and a beta other than zero.
        """
        x, _, masses = self.enter(x, None, t, masses)
        if not isinstance(self.mask, FullMask):
            raise refusal("mask", "be FullMask() for the energy", f"it is {shown(self.mask)}", "leave it out")
        masses, n = jnp.ones(x.shape[0], x.dtype) if masses is None else masses, x.shape[0]
        of_rows = lambda queries, index: matmul(
            jax.nn.softplus(self._exponents(queries, index, x, t, masses)), masses[:, None]
        )
        sums = map_blocks(of_rows, max(1, _PAIRS // n), self.queries(x, t), jnp.arange(n), recompute=True)[:, 0]
        return jnp.sum(masses * sums) / (2 * at_time(self.beta, t, x.dtype) * jnp.sum(masses))

    def _rows(
        self, queries: Float[Array, "rows d"], index: Int[Array, " rows"], x: Tokens, t: RealScalarLike, masses: Masses
    ) -> Float[Array, "rows n"]:
        """The weights of the rows with the numbers `index`."""
        allowed = self.mask.allowed(index[:, None], jnp.arange(x.shape[0])[None, :])
        weights = jax.nn.sigmoid(self._exponents(queries, index, x, t, masses))
        return jnp.where(allowed, weights, 0) * masses[None, :]

    def _exponents(
        self, queries: Float[Array, "rows d"], index: Int[Array, " rows"], x: Tokens, t: RealScalarLike, masses: Masses
    ) -> Float[Array, "rows n"]:
        scores = matmul(at_time(self.beta, t, x.dtype) * queries, x.T)
        if self.offset is not None:
            return scores + at_time(self.offset, t, x.dtype)
        attended = self.mask.attended_mass(masses)[index]
        # A row that attends to no mass has weights of zero, whatever its offset.
        return scores - jnp.log(jnp.where(attended > 0, attended, 1))[:, None]


# Distance attention: softmax attention with one more coordinate.
#
# -|q - y|^2 / 2 = <q, y> - |y|^2 / 2 - |q|^2 / 2, and the last term is the same in the whole row. Hence the weights are
# those of softmax attention with the queries (q, 1) and the keys (y, -|y|^2 / 2). Distances do not change when queries
# and keys are moved together. The first key with mass is therefore subtracted from both: the rounding error of a score
# then depends on the size of the cloud, not on its distance from the origin. Under a causal mask every row with mass
# sees this key, whereas the mean of the keys would depend on later tokens.


class DistanceAttention(AbstractSoftmaxAttention):
    """Distance attention: $w_{ij} ∝ m_j exp(-β|B^T x_i - x_j|²/2)$, each row summing to one.

    On the sphere and with B = I the weights are those of `SoftmaxAttention`, which is faster there. In R^d the weights
    do not change if all tokens are translated. The flow $ẋ_i = ∑_j w_{ij} x_j - x_i$ (mean shift) increases
    $1/(2βn²) ∑_{i,j} exp(-β|x_i - x_j|²/2)$: its velocity is the gradient in a metric weighted by the normalisers.
    `MultiHeadField.factored` takes the class and computes $|Q x_i - K x_j|²$.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=5, d=3)
        >>> near, soft = cjx.DistanceAttention(2.0), cjx.SoftmaxAttention(2.0)
        >>> bool(jnp.allclose(near.weights(x), soft.weights(x), atol=1e-5))
        True
        >>> bool(jnp.allclose(near.weights(2 * x + 1), cjx.DistanceAttention(8.0).weights(x), atol=1e-4))
        True
        ```

    **Arguments:**

    - `beta`: Inverse temperature: a finite real number, an array of shape (), or a schedule.
    - `query_key`: The form $B = Q^T K$, (d, d), or a schedule. None is the identity.
    - `mask`: The tokens that each token may attend to.
    - `summation`: The algorithm for the sums, which must serve tokens of any dimension.

    **Raises:**

    - `ValueError` if `beta` is not a finite real number, `query_key` not a square real matrix, or `summation` is one
        for the sphere.

    ??? cite "Source"

        Kim, Papamakarios, Mnih, *The Lipschitz constant of self-attention* (2006.04710), with beta = 2 / sqrt(D/H);
        Castin et al. (2501.18322).
    """

    beta: StoredParameter = eqx.field(converter=parameter("beta"))
    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractExponentialSum = eqx.field(default=Auto(), kw_only=True)

    def __check_init__(self):
        check_beta(self.beta)
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation, None, AbstractExponentialSum)
        if self.summation.supports.dimensions is not None:
            problem = f"it is {shown(self.summation)}, which serves the sphere"
            raise refusal(
                "summation", "serve tokens of any dimension", problem, "take Auto(), or SoftmaxAttention there"
            )

    @property
    def position(self) -> None:
        """None: no weight depends on the place of a token."""
        return None

    def _compared(self, queries: Tokens, tokens: Tokens, masses: Masses | None) -> Compared:
        # Queries and keys with one more coordinate, and with zeros up to `_NO_SERIES` dimensions.
        first = tokens[0] if masses is None else tokens[jnp.argmax(masses > 0)]
        # The weights do not depend on the origin, which needs no derivative.
        origin = lax.stop_gradient(first)[None, :]
        queries, keys = queries - origin, tokens - origin
        last = -jnp.sum(keys * keys, axis=1, keepdims=True) / 2
        # The lifted keys lie on no sphere: `Auto` tries no series for vectors of five dimensions or more.
        none = jnp.zeros((len(keys), max(0, _NO_SERIES - keys.shape[1] - 1)), keys.dtype)
        lifted = lambda rows, entry: jnp.concatenate([rows, entry, none], axis=1)
        return lifted(queries, jnp.ones_like(last)), lifted(keys, last)


# Cosine attention: softmax attention whose queries and keys are normalised.


class CosineAttention(AbstractSoftmaxAttention):
    """Cosine attention (query-key normalisation): $w_{ij} ∝ m_j exp(β⟨B^T x_i / |B^T x_i|, x_j / |x_j|⟩)$.

    The scores lie between -β and β, whatever the norms. On the sphere with B = I the weights are those of
    `SoftmaxAttention`. A query or key of zero has scores of zero. `MultiHeadField.factored` takes the class and
    normalises $Q x_i$ and $K x_j$. No energy of the flow is known. With $V = B = B^T$ other than a multiple of the
    identity, the velocity is not a gradient in Wasserstein space, whether or not the normalisers weight the metric: the
    figure `gradient-flow` measures the work along closed paths.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x = cjx.Sphere().sample(jax.random.key(0), n=5, d=3)
        >>> cosine = cjx.CosineAttention(2.0)
        >>> bool(jnp.allclose(cosine.weights(10 * x), cjx.SoftmaxAttention(2.0).weights(x), atol=1e-5))
        True
        ```

    **Arguments:**

    - `beta`: Inverse temperature: a finite real number, an array of shape (), or a schedule.
    - `query_key`: The form $B = Q^T K$, (d, d), or a schedule. None is the identity.
    - `mask`: The tokens that each token may attend to.
    - `summation`: The algorithm for the sums, which must support the mask and the dimension of the tokens.

    **Raises:**

    - `ValueError` if `beta` is not a finite real number or `query_key` not a square real matrix.

    ??? cite "Source"

        Henry et al., *Query-Key Normalization for Transformers* (2010.04245), whose learned factor is beta.
    """

    beta: StoredParameter = eqx.field(converter=parameter("beta"))
    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractExponentialSum = eqx.field(default=Auto(), kw_only=True)

    def __check_init__(self):
        check_beta(self.beta)
        check_square(self.query_key, "query_key")
        check_parts(self.mask, self.summation, None, AbstractExponentialSum)

    @property
    def position(self) -> None:
        """None: no weight depends on the place of a token."""
        return None

    def _compared(self, queries: Tokens, tokens: Tokens, masses: Masses | None) -> Compared:
        return _unit(queries), _unit(tokens)


def _unit(x: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """The rows divided by their norms; a row of zeros remains zero, and has the derivative zero."""
    some = jnp.any(x != 0, axis=1, keepdims=True)
    return jnp.where(some, normalise(jnp.where(some, x, 1)), 0)


# Sinkhorn attention: the doubly stochastic matrix that is nearest to the kernel.
#
# **Problem.** With masses m of sum one, find g such that the weights
# w_ij = m_j e^(s_ij + g_j) / sum_k m_k e^(s_ik + g_k) have the column sums c_j = sum_i m_i w_ij = m_j. The solution
# minimises the convex function
# J(g) = sum_i m_i log sum_j m_j e^(s_ij + g_j) - sum_j m_j g_j, whose gradient is c - m and whose Hessian is
# diag(c) - w^T diag(m) w, the Laplacian of a graph.
#
# **Algorithm.** Sinkhorn's iteration alone may need e^(the range of s) steps. Instead the scores are multiplied by
# 2^-L, where their range is about one, and then doubled L times. After each doubling g is extrapolated from the last
# two factors, since g is asymptotically affine in the factor. For each factor, a sweep of Sinkhorn's iteration is
# followed by a step of Newton's method, halved until the largest error of a column decreases. The entries of the
# Laplacian are sums of positive numbers, so that they have no cancellation. Where blocks of tokens are decoupled, a
# ridge of a few rounding errors makes the Laplacian regular: the relative potentials of such blocks change no weight.
#
# **Derivatives.** The iteration is not differentiated. Two further steps of Newton's method, which JAX differentiates,
# give exact derivatives of order one to three: each step squares the error of the Taylor series in the parameters.
#
# **Invariants.** Rows sum to one up to rounding. Columns sum to their masses up to the tolerance that
# `SinkhornAttention` states, or all weights are NaN. Tokens of mass zero do not change the other tokens; g_j of such a
# token has the value for which its column, divided by its mass, has the sum one.

_MOST_STEPS = 500
_HALVINGS = 8
_EPSILONS = 16  # the tolerance of the columns, in machine epsilons times one plus the largest score


class SinkhornAttention(AbstractAttention):
    """Sinkhorn attention: $w_{ij} = m_j exp(β⟨x_i, B x_j⟩ + f_i + g_j)$ with $∑_j w_{ij} = 1$ and $∑_i m_i w_{ij} =
    m_j$: a doubly stochastic matrix if the masses are equal.

    Rows sum to one up to rounding; columns up to 16 machine epsilons times $1 + max_{ij} |β⟨x_i, B x_j⟩|$, relative to
    their mass. Where this accuracy is not reached, all weights are NaN. At `beta = 0` the average is the
    mean. As `beta` goes to infinity with B = I, each of several distinct tokens attends to itself alone, so that
    tokens on the sphere come to rest. With $V = B = B^T$ the flow is the gradient flow of `energy`.

    Each evaluation solves several systems of n linear equations, and the (n, n) matrix is formed: time O(n³), memory
    O(n²).

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp, numpy as np
        >>> x = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> print(np.asarray(cjx.SinkhornAttention(jnp.log(4.0)).weights(x)).round(3))
        [[0.43  0.43  0.139]
         [0.43  0.43  0.139]
         [0.139 0.139 0.721]]
        ```

    **Arguments:**

    - `beta`: Inverse temperature: a finite real number, an array of shape (), or a schedule.
    - `query_key`: The form $B = Q^T K$, (d, d), or a schedule. None is the identity.
    - `mask`: The tokens that each token may attend to: a mask under which i may attend to j if j may attend to i. The
        only doubly stochastic matrix under a causal mask is the identity.

    **Raises:**

    - `ValueError` if `beta` is not a finite real number, `query_key` not a square real matrix, or `mask` not symmetric.

    ??? cite "Source"

        Sander, Ablin, Blondel, Peyré, *Sinkformers: Transformers with doubly stochastic attention* (2110.11773),
        where the flow is a gradient flow in Wasserstein space; Castin et al. (2501.18322). Newton's method for the
        potentials: Brauer et al., *A Sinkhorn-Newton method for entropic optimal transport* (1710.06635).
    """

    beta: StoredParameter = eqx.field(converter=parameter("beta"))
    query_key: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("query_key"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)

    def __check_init__(self):
        check_beta(self.beta)
        check_square(self.query_key, "query_key")
        check_mask(self.mask)
        # A rule for any number of tokens is tried with three.
        _check_symmetric(self.mask, len(self.mask.permitted) if isinstance(self.mask, MatrixMask) else 3)

    @property
    def summation(self) -> AbstractSummation:
        """The summation by pairs, since the potentials need the matrix."""
        return Dense()

    def weights(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Float[Array, "n n"]:
        x, _, masses = self.enter(x, None, t, masses)
        scores, masses, allowed = self._problem(x, t, masses)
        return _rows(scores, _potentials(scores, masses, allowed), masses)

    def average(
        self, x: Tokens, values: Float[Array, "n k"] | None, t: RealScalarLike = 0.0, masses: Masses | None = None
    ) -> Float[Array, "n k"]:
        x, values, masses = self.enter(x, values, t, masses)
        return matmul(self.weights(x, t, masses), x if values is None else values)

    def energy(self, x: Tokens, t: RealScalarLike = 0.0, masses: Masses | None = None) -> Scalar:
        """$E = ½ max_π (∑_{i,j} π_{ij} ⟨x_i, B x_j⟩ - KL(π | m m^T)/β)$ over the matrices π whose row sums and column
        sums are the masses m, divided by their sum; a maximum for β > 0, a minimum for β < 0.

        The energy equals $-1/(2β) ∑_i m_i (f_i + g_i)$. With $V = B = B^T$ the velocity of token i is the tangent part
        of $∂E/∂x_i$ divided by its share of the mass, so that E never decreases. The energy needs a beta other than 0.
        """
        x, _, masses = self.enter(x, None, t, masses)
        scores, masses, allowed = self._problem(x, t, masses)
        g = _potentials(scores, masses, allowed)
        return jnp.sum(masses * (_log_sums(scores + g[None, :], masses) - g)) / (2 * at_time(self.beta, t, x.dtype))

    def _problem(
        self, x: Tokens, t: RealScalarLike, masses: Masses | None
    ) -> tuple[Float[Array, "n n"], Masses, Bool[Array, "n n"]]:
        """The scores, minus infinity where the mask forbids; the masses of sum one; and the mask as a matrix."""
        n = x.shape[0]
        _check_symmetric(self.mask, n)
        allowed = self.mask.matrix(n)
        scores = matmul(at_time(self.beta, t, x.dtype) * self.queries(x, t), x.T)
        masses = jnp.ones(n, x.dtype) if masses is None else masses
        return jnp.where(allowed, scores, -jnp.inf), masses / jnp.sum(masses), allowed


def _check_symmetric(mask: AbstractMask, n: int) -> None:
    """Raise a ValueError unless the mask allows j to attend to i wherever i may attend to j."""
    if isinstance(mask, FullMask):
        return
    with jax.ensure_compile_time_eval():
        matrix = mask.matrix(n)
    # The entries of a traced mask are not known.
    if not is_concrete(matrix) or np.array_equal(np.asarray(matrix), np.asarray(matrix).T):
        return
    problem = f"it is {shown(mask)}"
    if isinstance(mask, CausalMask | SinkMask):
        problem += ", under which the identity is the only doubly stochastic matrix"
    raise refusal("mask", "allow j to attend to i wherever i may attend to j", problem, "take FullMask()")


def _log_sums(exponents: Float[Array, "n n"], masses: Masses) -> Float[Array, " n"]:
    """log sum_j m_j e^{a_ij} for each i, and zero where the sum is zero."""
    present = masses > 0
    top = lax.stop_gradient(jnp.max(jnp.where(present, exponents, -jnp.inf), axis=1, keepdims=True))
    top = jnp.where(jnp.isneginf(top), 0, top)
    # No exponent of a token without mass may overflow: the derivative with respect to its mass is the exponential.
    excess = jnp.where(present, exponents - top, jnp.minimum(exponents - top, 40))
    sums = matmul(jnp.exp(excess), masses)
    return jnp.where(sums > 0, jnp.log(jnp.where(sums > 0, sums, 1)) + top[:, 0], 0)


def _rows(scores: Float[Array, "n n"], g: Float[Array, " n"], masses: Masses) -> Float[Array, "n n"]:
    # The scores that the mask forbids are minus infinity already.
    return softmax_weights(scores + g[None, :], masses, FullMask())


def _balanced(scores: Float[Array, "n n"], g: Float[Array, " n"], masses: Masses) -> Float[Array, " n"]:
    """One sweep of Sinkhorn's iteration."""
    f = -_log_sums(scores + g[None, :], masses)
    return -_log_sums(scores.T + f[None, :], masses)


def _newton(weights: Float[Array, "n n"], masses: Masses) -> Float[Array, " n"]:
    """The step of Newton's method for g, zero for tokens without mass."""
    n, present = len(masses), masses > 0
    coupled = matmul(weights.T, masses[:, None] * weights)
    off = jnp.where(jnp.eye(n, dtype=bool), 0, coupled)
    # The ridge, and the square of the masses, which keeps the mean of the step at zero.
    ridge = jnp.where(present, 4 * n * jnp.finfo(weights.dtype).eps * masses, 1)
    matrix = jnp.diag(jnp.sum(off, axis=1) + ridge) - off + masses[:, None] * masses[None, :]
    step = jnp.linalg.solve(matrix, masses - matmul(masses, weights))
    return jnp.where(present, step, 0)


def _error(weights: Float[Array, "n n"], masses: Masses) -> Scalar:
    """The largest relative error of a column."""
    present = masses > 0
    return jnp.max(jnp.where(present, jnp.abs(matmul(masses, weights) / jnp.where(present, masses, 1) - 1), 0))


def _potentials(scores: Float[Array, "n n"], masses: Masses, allowed: Bool[Array, "n n"]) -> Float[Array, " n"]:
    """The potentials g, for which the columns sum to their masses; NaN where the iteration does not converge."""
    g = lax.stop_gradient(_iterated(lax.stop_gradient(scores), lax.stop_gradient(masses), allowed))
    for _ in range(2):
        # A sweep gives the potentials of tokens without mass.
        g = jnp.where(masses > 0, g, _balanced(scores, g, masses))
        g = g + _newton(_rows(scores, g, masses), masses)
    return g


class _State(eqx.Module):
    halvings: Scalar  # the scores are multiplied by 2^-halvings
    g: Float[Array, " n"]
    before: Float[Array, " n"]  # g for half of the factor
    error: Scalar
    steps: Int[Array, ""]


def _iterated(scores: Float[Array, "n n"], masses: Masses, allowed: Bool[Array, "n n"]) -> Float[Array, " n"]:
    zero = jnp.zeros_like(masses)
    counted = allowed & (masses > 0)[:, None] & (masses > 0)[None, :]
    largest = jnp.max(jnp.where(counted, jnp.abs(scores), 0))
    tolerance = _EPSILONS * jnp.finfo(masses.dtype).eps * (1 + largest)
    # A constant in a row changes no weight.
    below = jnp.where(allowed, scores - jnp.max(scores, axis=1, keepdims=True), 0)
    first = jnp.ceil(jnp.log2(jnp.maximum(jnp.max(jnp.where(counted, -below, 0)), 1)))

    def improve(state: _State) -> _State:
        scaled = jnp.where(allowed, below * jnp.exp2(-state.halvings), -jnp.inf)
        swept = _balanced(scaled, state.g, masses)
        weights = _rows(scaled, swept, masses)
        error, step = _error(weights, masses), _newton(weights, masses)

        def shorter(trial):
            count, _, _ = trial
            g = swept + jnp.exp2(-count.astype(masses.dtype)) * step
            return count + 1, g, _error(_rows(scaled, g, masses), masses)

        worse = lambda trial: ~(trial[2] < error) & (trial[0] < _HALVINGS)
        _, g, least = lax.while_loop(worse, shorter, shorter((jnp.asarray(0), swept, error)))
        g, error = jnp.where(least < error, g, swept), jnp.where(least < error, least, error)
        # The next factor: g is extrapolated as an affine function of the factor.
        ahead = (error < 0.1) & (state.halvings > 0)
        further = jnp.where(state.halvings == first, 2 * g, 3 * g - 2 * state.before)
        return _State(
            jnp.where(ahead, state.halvings - 1, state.halvings), jnp.where(ahead, further, g),
            jnp.where(ahead, g, state.before), jnp.where(ahead, jnp.inf, error), state.steps + 1,
        )  # fmt: skip

    unfinished = lambda state: ((state.halvings > 0) | ~(state.error <= tolerance)) & (state.steps < _MOST_STEPS)
    start = _State(first, zero, zero, jnp.asarray(jnp.inf, masses.dtype), jnp.asarray(0))
    state = lax.while_loop(unfinished, improve, start)
    return jnp.where(state.error <= tolerance, state.g, jnp.nan)
