"""The interface of the summations: sums over tokens j of weights w_ij times values v_j.

There are two kinds of sums: sums of exponentials of scores <q_i, y_j>, scaled by rows so that nothing overflows, and
sums over the tokens with the largest score. `supports` states the inputs of a summation, which attentions check before
tracing.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import check_instance, refusal, shown
from .._base.types import AbstractPart, Masses, Tokens
from .mask import AbstractMask
from .position import AbstractLogWeights, AbstractPosition, ALiBi, LogWeights


class ExponentialSums(eqx.Module):
    """The sums $∑_j m_j exp(⟨q_i, y_j⟩)$ and $∑_j m_j exp(⟨q_i, y_j⟩) v_j$, each divided by $exp(shift_i)$, so that
    neither overflows.

    The shift carries no derivative: results computed from the three arrays must not depend on the choice of the shift.

    **Arguments:**

    - `shift`: (n,), close to the largest exponent in each row.
    - `normaliser`: (n,), the first sum, scaled.
    - `total`: (n, k), the second sum, scaled.
    """

    shift: Float[Array, " n"]
    normaliser: Float[Array, " n"]
    total: Float[Array, "n k"]


class HardmaxSums(eqx.Module):
    """The mass of the tokens that attain the maximum of each row, and the sum of mass times value over these tokens.

    **Arguments:**

    - `normaliser`: (n,), the mass of these tokens.
    - `total`: (n, k), the sum of mass times value.
    """

    normaliser: Float[Array, " n"]
    total: Float[Array, "n k"]


class Support(NamedTuple):
    """The inputs that a summation supports, checked before anything is computed.

    **Arguments:**

    - `dimensions`: The dimensions of tokens; None is any.
    - `masks`: The types of masks; None is any.
    - `dtypes`: The dtypes of tokens; None is any floating dtype.
    - `forward_mode`: True if the summation has forward-mode derivatives (`jax.jvp`, `diffrax.ForwardMode`). All
        summations have reverse-mode derivatives.
    - `positions`: The types of positions whose log-weights the summation takes; None is any. Rotary positions have
        none: queries and tokens are turned before the sum.
    """

    dimensions: tuple[int, ...] | None = None
    masks: tuple[type[AbstractMask], ...] | None = None
    dtypes: tuple[str, ...] | None = None
    forward_mode: bool = True
    positions: tuple[type[AbstractLogWeights], ...] | None = ()


class AbstractSummation(AbstractPart):
    """An algorithm for attention's sums over tokens: sums of exponentials, searches for the largest score, or both.

    A summation is independent of softmax, spaces and time. Its inputs are queries q, tokens y, their values v, their
    masses m (None: all one) and a mask, and it sums over the tokens that row i may attend to. The number of queries is
    the number of tokens. A summation refuses unsupported inputs and never calls another summation in its place.

    A new summation is a class in a separate file, derived from `AbstractExponentialSum`, `AbstractNearestSearch` or
    both.
    """

    @property
    @abstractmethod
    def supports(self) -> Support:
        """The supported inputs."""


class AbstractExponentialSum(AbstractSummation):
    """Sums of exponentials of scores, for softmax and unnormalised attention."""

    @abstractmethod
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
        log_weights: LogWeights | None = None,
    ) -> ExponentialSums:
        """The sums of e^{<q_i, y_j>} and of e^{<q_i, y_j>} v_j, stably scaled.

        If `values` is None, the tokens are the values, which some summations compute at a lower cost. Log-weights are
        added to the exponents; attentions give them only to a summation that supports their position.
        """


class AbstractNearestSearch(AbstractSummation):
    """Sums over the tokens with the largest score, for hardmax attention."""

    @abstractmethod
    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
        log_weights: LogWeights | None = None,
    ) -> HardmaxSums:
        """The sums over the tokens whose <q_i, y_j> is within `tie_tolerance` |q_i| max_j |y_j| of the largest.

        Log-weights are added to the scores; the gap is then relative to the absolute value of the largest score, where
        this is above |q_i| max_j |y_j|.
        """


def ratio(total: Float[Array, "n k"], normaliser: Float[Array, " n"]) -> Float[Array, "n k"]:
    """The rows of `total` divided by `normaliser`; zero in rows where the normaliser is zero."""
    # Rows without mass are divided by one: zero over zero would be NaN, also in the derivative.
    empty = normaliser == 0
    return jnp.where(empty[:, None], 0, total / jnp.where(empty, 1, normaliser)[:, None])


# The name of each kind and the remedy, for the error messages.
_KINDS: dict[type[AbstractSummation], tuple[str, str]] = {
    AbstractSummation: ("a summation of clusterjax", "pass Auto() or Dense(), for example"),
    AbstractExponentialSum: ("one that sums exponentials", "pass Auto(), Dense(), Blocked(), Fused() or Harmonic()"),
    AbstractNearestSearch: ("one that searches for the largest score", "pass Auto(), Dense(), Blocked() or Hull()"),
}


def check_summation(
    summation: Any, name: str = "summation", kind: type[AbstractSummation] = AbstractSummation
) -> AbstractSummation:
    """Return `summation`; raises a `ValueError` unless this and any inner summation are of this kind."""
    checked = check_instance(summation, name, kind, *_KINDS[kind])
    # `Sharded` wraps another summation, which must be of this kind too.
    inner = getattr(checked, "inner", None)
    if inner is not None:
        check_summation(inner, f"{name}.inner", kind)
    return checked


def serves(
    summation: AbstractSummation, mask: AbstractMask, d: int, dtype: Any, log_weights: LogWeights | None = None
) -> bool:
    """True if the summation supports tokens of this dimension and dtype with this mask and these log-weights."""
    served = summation.supports
    by_mask = served.masks is None or isinstance(mask, served.masks)
    by_dimension = served.dimensions is None or d in served.dimensions
    by_dtype = served.dtypes is None or jnp.dtype(dtype).name in served.dtypes
    # Log-weights with a slope are those of `ALiBi`, and of `Decay` with a slope that depends on n.
    sloped = log_weights is not None and log_weights.slope is not None
    by_position = log_weights is None or served.positions is None or sloped and ALiBi in served.positions
    return by_mask and by_dimension and by_dtype and by_position


def check_supported(
    summation: AbstractSummation,
    mask: AbstractMask | None = None,
    d: int | None = None,
    dtype: Any = None,
    position: AbstractPosition | None = None,
) -> None:
    """Raise a ValueError, which names a summation to take, unless the summation supports these inputs."""
    # Arguments that are None are not checked: mask, dimension and dtype are known at different points.
    served = summation.supports
    name = type(summation).__name__
    if served.masks is not None and mask is not None and not isinstance(mask, served.masks):
        kinds = " or ".join(kind.__name__ for kind in served.masks)
        raise refusal(f"mask of {name}", f"be {kinds}", f"it is {shown(mask)}", _REMEDY)
    if served.dimensions is not None and d is not None and d not in served.dimensions:
        dimensions = " or ".join(map(str, served.dimensions))
        raise refusal(f"tokens of {name}", f"be of dimension {dimensions}", f"theirs is {d}", _REMEDY)
    if served.dtypes is not None and dtype is not None and jnp.dtype(dtype).name not in served.dtypes:
        dtypes = " or ".join(served.dtypes)
        raise refusal(f"tokens of {name}", f"be {dtypes}", f"they are {jnp.dtype(dtype).name}", _REMEDY)
    if isinstance(position, AbstractLogWeights) and served.positions is not None:
        if not isinstance(position, served.positions):
            kinds = " or ".join(("None", "Rotary", *(kind.__name__ for kind in served.positions)))
            raise refusal(f"position of {name}", f"be {kinds}", f"it is {shown(position)}", _REMEDY)


_REMEDY = "take summation=Blocked() or Auto()"
