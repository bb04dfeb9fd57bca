"""One layer of the discrete hardmax dynamics, and its counterpart with softmax attention (`SoftmaxTwin`).

**Algorithm.** $z_i ↦ z_i + α/(1 + α) (m_i - z_i)$ with $m_i$ the mean of the tokens of largest score (Alcalde,
Fantuzzi, Zuazua, 2407.01602, eqs. (1a), (1b)). **Invariants.** A token that attends to itself alone does not move, bit
by bit; a token that has arrived at the mean with which it ties does not move either; padding attends to nothing and
stays.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from .._base.checks import check_instance, check_tokens
from .._base.numerics import is_concrete
from .._base.types import DTypeLike, RealScalarLike, Tokens
from .._model.attention import (
    AbstractAttention,
    HardmaxAttention,
    SoftmaxAttention,
    check_beta,
    check_masses,
    check_number_of_masses,
    check_square,
)
from .._model.layer import AbstractLayer
from .._model.mask import AbstractMask, FullMask
from .._model.schedule import (
    AbstractSchedule,
    Combined,
    Interpolated,
    PiecewiseConstant,
    StoredParameter,
    at_time,
    check_time,
    example,
    optional_array,
    optional_parameter,
    parameter,
)
from .._model.space import AbstractSpace, Euclidean
from .._summation import AbstractExponentialSum, AbstractNearestSearch, Auto
from .._summation.ties import norms


# A token that ties with the mean to which it moves, and is within this many tie slacks of it, has arrived. A tie bounds
# only the component of the way along A z_i; the whole way is longer by 1 / cos of the angle between them. 64 allows for
# angles close to a right angle, but excludes a token that ties with a mean far away.
_ARRIVED = 64


class HardmaxLayer(AbstractLayer):
    """$z_i ↦ z_i + α/(1+α) ∑_{j ∈ C_i} (z_j - z_i)/|C_i|$, $C_i$ the tokens j with the largest $⟨A z_i, z_j⟩$.

    Tokens that attend to themselves alone stay exactly where they are, and all others approach the mean of the tokens
    to which they attend by the factor 1/(1+α). The convex hull never grows; for a symmetric positive definite A no
    token's A-norm ever falls. The embedding $z ↦ A^{1/2} z$ absorbs such an A. The choice of $C_i$ is piecewise
    constant, so that the derivative with respect to any A is zero: derivatives flow through the tokens and `alpha`.
    Sums, and the choice, are exact if the numbers are (for example dyadic tokens and `alpha` = 1 or 3).

    Rounding has two effects. A token that ties with the mean to which it moves, and is within 64 tie tolerances of it,
    has arrived and stays. After some 70 layers, for `alpha` = 1/2, tokens are so near to their leaders that they tie
    with them; from then on they count in the mean of a token between two leaders, and shift it to one side. `leaders`,
    `limit_set` and `certificate` know the leaders and leave the merged tokens out.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> z0 = jnp.array([[4.0, 0.0], [0.0, 4.0], [1.0, 0.0]])
        >>> traj = cjx.iterate(cjx.hardmax.HardmaxLayer(1.0), z0, depth=2)
        >>> traj.xs[:, 2].tolist()  # the third token goes half of the way to the first in each layer
        [[1.0, 0.0], [2.5, 0.0], [3.25, 0.0]]
        ```

    **Arguments:**

    - `alpha`: The step, > 0, a number or a schedule, which is evaluated at the index of the layer.
    - `A`: Any square real matrix, (d, d), or a schedule; None is the identity. The theorem requires a symmetric
        positive definite A, `iterate` and `leaders` do not.
    - `masses`: (n,), not negative: a token of mass 2 weighs as much as two equal tokens in the mean over $C_i$. A token
        of mass zero is padding: no token attends to it, and it does not move. None means mass one for each token.
    - `mask`: The mask, which says which tokens a token may attend to.
    - `tie_tolerance`: Scores closer than this, relative to $|A z_i| max_j |z_j|$, are ties; None is 64 times the
        machine epsilon of the dtype of the tokens.
    - `summation`: The method that computes the sums.

    **Raises:**

    - `ValueError` if `alpha` is not a positive number, `A` not a square matrix, `masses` not a vector of numbers >= 0,
        or `tie_tolerance` negative.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), eqs. (1a), (1b).
    """

    alpha: StoredParameter = eqx.field(converter=parameter("alpha"))
    A: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("A"))
    masses: Array | None = eqx.field(default=None, converter=optional_array("masses"), kw_only=True)
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    tie_tolerance: Array | None = eqx.field(default=None, converter=optional_array("tie_tolerance"), kw_only=True)
    summation: AbstractNearestSearch = eqx.field(default=Auto(), kw_only=True)
    space: AbstractSpace = eqx.field(default=Euclidean(), init=False)

    def __check_init__(self):
        check_alpha(self.alpha)
        check_square(self.A, "A")
        check_masses(self.masses)
        _ = self.attention  # the constructor checks the tie tolerance and the summation

    @property
    def attention(self) -> HardmaxAttention:
        """Hardmax attention with the query-key form $A^T$."""
        return HardmaxAttention(
            query_key=_transposed(self.A), mask=self.mask, summation=self.summation, tie_tolerance=self.tie_tolerance
        )

    def step(self, k: RealScalarLike, dtype: DTypeLike) -> Float[Array, ""]:
        """The fraction alpha / (1 + alpha) of their way that tokens move in layer `k`."""
        alpha = at_time(self.alpha, k)
        return (alpha / (1 + alpha)).astype(dtype)

    def __call__(self, k: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(k, "k")
        x = check_tokens(x)
        self.check(*x.shape)
        return hardmax_step(self, k, x)

    def check(self, n: int, d: int) -> None:
        self.mask.check(n)
        shape = (d, d) if self.A is None else jnp.shape(example(self.A))
        if shape[-1] != d:
            raise ValueError(
                f"A must act on tokens of dimension {d}, but its shape is {shape}; pass a matrix of shape ({d}, {d})."
            )
        check_number_of_masses(self.masses, n)


class SoftmaxTwin(AbstractLayer):
    """$z_i ↦ z_i + α/(1+α) (∑_j w_{ij} z_j - z_i)$ with $w_{ij} ∝ exp(β⟨A z_i, z_j⟩)$: the hardmax layer at a finite
    inverse temperature.

    If token i attends to one token, and every other score is lower by at least `gap`, then the weight of all other
    tokens is at most $(n-1) exp(-β gap)$, so that the two layers differ by no more than that weight times the diameter
    of the cloud. Unlike the hardmax layer, this layer has a derivative with respect to A.

    **Arguments:**

    - `layer`: The `HardmaxLayer` that provides the parameters.
    - `beta`: Inverse temperature, a number or a schedule.

    **Raises:**

    - `ValueError` if `beta` is not a finite real number, or `layer` is not a `HardmaxLayer`.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), where this model is
        trained.
    """

    layer: HardmaxLayer
    beta: StoredParameter = eqx.field(converter=parameter("beta"))
    space: AbstractSpace = eqx.field(default=Euclidean(), init=False)

    def __check_init__(self):
        check_hardmax_layer(self.layer)
        check_beta(self.beta)

    def __call__(self, k: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(k, "k")
        x = check_tokens(x)
        self.check(*x.shape)
        form, layer = _transposed(self.layer.A), self.layer
        # A summation that only searches for the largest score, such as Hull, cannot sum exponentials.
        summation = layer.summation if isinstance(layer.summation, AbstractExponentialSum) else Auto()
        soft = SoftmaxAttention(self.beta, query_key=form, mask=layer.mask, summation=summation)
        return _moved(layer, _averages(layer, soft, k, x), k, x)

    def check(self, n: int, d: int) -> None:
        self.layer.check(n, d)


def check_hardmax_layer(layer: Any) -> HardmaxLayer:
    """`layer`, if it is a `HardmaxLayer`; raises a `ValueError` otherwise."""
    return check_instance(layer, "layer", HardmaxLayer, "a HardmaxLayer", "pass one, HardmaxLayer(alpha)")


def hardmax_step(layer: HardmaxLayer, k: RealScalarLike, x: Tokens, hidden: Bool[Array, " n"] | None = None) -> Tokens:
    """`x` after layer `k`; no token attends to the `hidden` tokens, which move like all others."""
    attention = layer.attention
    average = _averages(layer, attention, k, x, hidden)
    moved = _moved(layer, average, k, x)
    # A leader ties with the tokens that have merged with it. Following their mean by a few rounding errors would break
    # the ties of other tokens between this leader and another. The correction carries no derivative.
    slack = attention._tolerance(x) * _longest(layer, k, x)
    queries = attention.queries(x, k)
    ties = jnp.sum(queries * (average - x), axis=1) <= slack * norms(queries)
    arrived = ties & (norms(average - x) <= _ARRIVED * slack)
    return moved + lax.stop_gradient(jnp.where(arrived[:, None], x - moved, 0))


def _averages(
    layer: HardmaxLayer,
    attention: AbstractAttention,
    k: RealScalarLike,
    x: Tokens,
    hidden: Bool[Array, " n"] | None = None,
) -> Tokens:
    """The point to which each token moves: its average by `attention`, or for padding its own position."""
    masses = at_time(layer.masses, k, x.dtype)
    attended = masses
    if hidden is not None:
        # Hidden tokens have no mass in the sums but still move, unlike padding.
        attended = jnp.where(hidden, 0, jnp.ones(x.shape[0], x.dtype) if masses is None else masses)
    average = attention.average(x, x, k, attended)
    return average if masses is None else jnp.where(masses[:, None] > 0, average, x)


def _moved(layer: HardmaxLayer, average: Tokens, k: RealScalarLike, x: Tokens) -> Tokens:
    return x + layer.step(k, x.dtype) * (average - x)


def _longest(layer: HardmaxLayer, k: RealScalarLike, x: Tokens) -> Float[Array, ""]:
    """The largest norm of a token that is not padding."""
    masses = at_time(layer.masses, k, x.dtype)
    return jnp.max(norms(x) if masses is None else jnp.where(masses > 0, norms(x), 0))


def _transposed(matrix: Any) -> Any:
    if matrix is None:
        return None
    # <A z_i, z_j> = <z_i, A^T z_j>, so that the query-key form of the attention is the transpose.
    return Combined(jnp.transpose, (matrix,)) if isinstance(matrix, AbstractSchedule) else matrix.T


def check_alpha(alpha: Any) -> None:
    """Raise a ValueError unless `alpha` is a positive finite number, at all knots (at layer 0) if it is a schedule."""
    check_beta(alpha, "alpha", "number above zero")
    # A schedule that is positive at all knots is positive everywhere between them.
    values = alpha.values if isinstance(alpha, PiecewiseConstant | Interpolated) else at_time(alpha, 0.0)
    if is_concrete(values) and not np.all(np.asarray(values) > 0):
        raise ValueError(f"alpha must be positive, but it is {np.asarray(values)}; pass a number above zero.")
