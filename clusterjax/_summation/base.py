"""The interface of the summations: sums over tokens j of weights w_ij times values v_j.

Two kinds: sums of exponentials of scores <q_i, y_j>, scaled per row so that nothing overflows, and sums over the tokens
of the largest score. Each summation says in `supports` what it serves; attentions check that before anything is traced.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._abstract import AbstractPart
from .._check import check_instance, refusal, shown
from .._custom_types import Masses, Tokens
from .._mask import AbstractMask


class ExponentialSums(eqx.Module):
    r"""The sums $\sum_j m_j e^{\langle q_i, y_j\rangle}$ and $\sum_j m_j e^{\langle q_i, y_j\rangle} v_j$, each divided
    by $e^{\text{shift}_i}$, so that neither overflows.

    The shift carries no derivative of its own: whatever is computed from the triple must not depend on it.

    **Arguments:**

    - `shift`: (n,), of the size of the largest exponent in each row.
    - `normaliser`: (n,), the first sum, scaled.
    - `total`: (n, k), the second sum, scaled.
    """

    shift: Float[Array, " n"]
    normaliser: Float[Array, " n"]
    total: Float[Array, "n k"]


class HardmaxSums(eqx.Module):
    """The mass of the tokens that attain the maximum of each row, and the sum of their values.

    **Arguments:**

    - `normaliser`: (n,), their mass.
    - `total`: (n, k), the sum of mass times value.
    """

    normaliser: Float[Array, " n"]
    total: Float[Array, "n k"]


class Support(NamedTuple):
    """What a summation serves; checked before anything is computed.

    **Arguments:**

    - `dimensions`: Of the tokens; None is any.
    - `masks`: The kinds of masks; None is any.
    - `dtypes`: Of the tokens; None is any floating one.
    - `forward_mode`: Whether it has derivatives in forward mode (`jax.jvp`, `diffrax.ForwardMode`). Those of reverse
        mode all have.
    """

    dimensions: tuple[int, ...] | None = None
    masks: tuple[type[AbstractMask], ...] | None = None
    dtypes: tuple[str, ...] | None = None
    forward_mode: bool = True


class AbstractSummation(AbstractPart):
    """How attention's sums over tokens are computed: sums of exponentials, nearest-score searches, or both.

    A summation knows nothing of softmax, spaces or time. It is given queries q, tokens y, their values v, their
    masses m (None: all one) and a mask, and sums over the tokens that row i may attend to. Queries are as many as
    tokens. What it cannot sum itself it refuses: no summation calls another one in its place.

    A new one is a class in a file of its own, of one kind or both: `AbstractExponentialSum`, `AbstractNearestSearch`.
    """

    @property
    @abstractmethod
    def supports(self) -> Support:
        """What it serves."""


class AbstractExponentialSum(AbstractSummation):
    """Sums of exponentials of scores: what softmax and unnormalised attention are made of."""

    @abstractmethod
    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        """The sums of e^{<q_i, y_j>} and of e^{<q_i, y_j>} v_j, stably scaled.

        Values of None are the tokens themselves, which some summations have for less than any other values.
        """


class AbstractNearestSearch(AbstractSummation):
    """Sums over the tokens of the largest score: what hardmax attention is made of."""

    @abstractmethod
    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
    ) -> HardmaxSums:
        """The sums over the tokens whose <q_i, y_j> is within `tie_tolerance` |q_i| max_j |y_j| of the largest."""


def ratio(total: Float[Array, "n k"], normaliser: Float[Array, " n"]) -> Float[Array, "n k"]:
    """`total` over `normaliser` by row; zero where there is nothing to average."""
    # Division by one in rows without mass: zero over zero would be NaN, and so its derivative.
    empty = normaliser == 0
    return jnp.where(empty[:, None], 0, total / jnp.where(empty, 1, normaliser)[:, None])


# For the error messages: what each kind is called, and the remedy.
_KINDS: dict[type[AbstractSummation], tuple[str, str]] = {
    AbstractSummation: ("a summation of clusterjax", "pass Auto() or Dense(), for example"),
    AbstractExponentialSum: ("one that sums exponentials", "pass Auto(), Dense(), Blocked() or Harmonic()"),
    AbstractNearestSearch: ("one that searches for the largest score", "pass Auto(), Dense(), Blocked() or Hull()"),
}


def check_summation(
    summation: Any, name: str = "summation", kind: type[AbstractSummation] = AbstractSummation
) -> AbstractSummation:
    """`summation`, if it is one of this kind, and so are those inside it; raises a `ValueError` otherwise."""
    checked = check_instance(summation, name, kind, *_KINDS[kind])
    # `Sharded` wraps another summation, which has to be of the same kind.
    inner = getattr(checked, "inner", None)
    if inner is not None:
        check_summation(inner, f"{name}.inner", kind)
    return checked


def serves(summation: AbstractSummation, mask: AbstractMask, d: int, dtype: Any) -> bool:
    """Whether the summation serves tokens of this dimension and dtype, with this mask."""
    served = summation.supports
    by_mask = served.masks is None or isinstance(mask, served.masks)
    by_dimension = served.dimensions is None or d in served.dimensions
    by_dtype = served.dtypes is None or jnp.dtype(dtype).name in served.dtypes
    return by_mask and by_dimension and by_dtype


def check_supported(
    summation: AbstractSummation, mask: AbstractMask | None = None, d: int | None = None, dtype: Any = None
) -> None:
    """Raise a ValueError unless the summation serves such tokens; it names one that does."""
    # None of the arguments is checked where it is None: mask, dimension and dtype are known at different places.
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


_REMEDY = "take summation=Blocked() or Auto()"
