"""Positions: weights that depend on the places i and j of two tokens in their order.

A position either adds a log-weight $b(i - j)$ to the exponent of each pair, or turns queries and keys before their
inner product. Log-weights at one time are a rule for pairs of indices, as a mask is, so that blocked sums evaluate the
rule on one block at a time. Invariant: both kinds depend on i - j alone.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .._base.checks import call_traced, check_array, check_callable, check_instance, check_integer, refusal, shown
from .._base.numerics import at_least_single
from .._base.types import AbstractPart, DTypeLike, RealScalarLike, Tokens
from .schedule import AbstractSchedule, StoredParameter, at_time, check_real, example, parameter


class LogWeights(eqx.Module):
    """The log-weights $b(i - j)$ of pairs at one time.

    **Arguments:**

    - `slope`: (), for $b = -slope |i - j|$; or None.
    - `table`: (2 clip + 1,), the values of b from -clip to clip, for $b(i - j)$ with i - j clipped; or None.
    """

    slope: Float[Array, ""] | None = None
    table: Float[Array, " entries"] | None = None

    def __call__(self, i: Int[Array, "..."], j: Int[Array, "..."], dtype: Any) -> Float[Array, "..."]:
        """The log-weights in `dtype`, for index arrays that broadcast against each other."""
        if self.table is None:
            assert self.slope is not None
            far = jnp.abs(i - j)
            # `where` keeps the compiler from fusing the product and the addition of a score into one operation with one
            # rounding: scores and their maximum, compiled separately, would differ by the rounding of the product.
            return jnp.where(far > 0, -self.slope * far.astype(self.slope.dtype), 0).astype(dtype)
        clip = self.table.shape[0] // 2
        return self.table[jnp.clip(i - j, -clip, clip) + clip].astype(dtype)


class AbstractPosition(AbstractPart):
    """A rule by which the weight of token j for token i depends on i - j."""

    @property
    @abstractmethod
    def num_heads(self) -> int | None:
        """The number of heads of a stack of parameters, (h, ...); None for the parameters of one attention."""

    @abstractmethod
    def check(self, d: int) -> None:
        """Raise a ValueError unless the position fits queries of dimension `d`."""

    def at(self, t: RealScalarLike, dtype: DTypeLike) -> Any:
        """The position with its parameters at time `t`, in `dtype`."""
        is_schedule = lambda node: isinstance(node, AbstractSchedule)
        return jtu.tree_map(lambda node: at_time(node, t, dtype), self, is_leaf=is_schedule)


class AbstractLogWeights(AbstractPosition):
    """A position that adds a log-weight $b(i - j)$ to the exponent of each pair."""

    @abstractmethod
    def log_weights(self, t: RealScalarLike, n: int, dtype: DTypeLike) -> LogWeights:
        """The log-weights of `n` tokens at time `t`."""

    def check(self, d: int) -> None:
        pass


def _check_parameter(value: Any, name: str, shape: str, axes: int) -> None:
    """Raise a ValueError unless the parameter is finite and real, of `axes` axes or a stack of such, one per head."""
    rule, remedy = f"be {shape}, or a stack of one for each head", f"pass finite real numbers, {shape}"
    if value is None:
        raise refusal(name, rule, "it is None", remedy)
    check_real(value, name, remedy)
    if jnp.ndim(example(value)) not in (axes, axes + 1) or 0 in jnp.shape(example(value)):
        raise refusal(name, rule, f"its shape is {jnp.shape(example(value))}", remedy)


def _heads(value: Any, axes: int) -> int | None:
    shape = jnp.shape(example(value))
    return shape[0] if len(shape) > axes else None


class ALiBi(AbstractLogWeights):
    """Attention with linear biases: the log-weight $-slope |i - j|$ is added to the exponent of each pair.

    A slope of 0 changes no weight. Under a causal mask |i - j| is i - j.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp, numpy as np
        >>> nearby = cjx.SoftmaxAttention(0.0, mask=cjx.CausalMask(), position=cjx.ALiBi(jnp.log(2.0)))
        >>> print(np.asarray(nearby.weights(jnp.eye(3))).round(3))  # each step back halves the weight
        [[1.    0.    0.   ]
         [0.333 0.667 0.   ]
         [0.143 0.286 0.571]]
        ```

    **Arguments:**

    - `slope`: A finite real number or a schedule; in `MultiHeadField` also one for each head, (h,).

    **Raises:**

    - `ValueError` if `slope` is not a finite real number.

    ??? cite "Source"

        Press, Smith, Lewis, *Train short, test long* (2108.12409), Section 3.
    """

    slope: StoredParameter = eqx.field(converter=parameter("slope"))

    def __check_init__(self):
        _check_parameter(self.slope, "slope", "one number", 0)

    @property
    def num_heads(self) -> int | None:
        return _heads(self.slope, 0)

    def log_weights(self, t: RealScalarLike, n: int, dtype: DTypeLike) -> LogWeights:
        return LogWeights(slope=at_time(self.slope, t, at_least_single(dtype)))


class Decay(AbstractLogWeights):
    """Weights that decay in the continuous place s = i/n: the log-weight $-rate |i - j| / n$.

    For n tokens `Decay(rate)` equals `ALiBi(rate / n)`: as n grows, weights become a function of s.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp, numpy as np
        >>> nearby = cjx.SoftmaxAttention(0.0, mask=cjx.CausalMask(), position=cjx.Decay(2 * jnp.log(2.0)))
        >>> print(np.asarray(nearby.weights(jnp.eye(2))).round(3))  # half the way back halves the weight
        [[1.    0.   ]
         [0.333 0.667]]
        ```

    **Arguments:**

    - `rate`: A finite real number or a schedule; in `MultiHeadField` also one for each head, (h,).

    **Raises:**

    - `ValueError` if `rate` is not a finite real number.

    ??? cite "Source"

        2605.09213: causal attention with a decay in the continuous place.
    """

    rate: StoredParameter = eqx.field(converter=parameter("rate"))

    def __check_init__(self):
        _check_parameter(self.rate, "rate", "one number", 0)

    @property
    def num_heads(self) -> int | None:
        return _heads(self.rate, 0)

    def log_weights(self, t: RealScalarLike, n: int, dtype: DTypeLike) -> LogWeights:
        return LogWeights(slope=at_time(self.rate, t, at_least_single(dtype)) / n)


def _clip(value: int | None) -> int | None:
    return None if value is None else check_integer(value, "clip", least=0, remedy="pass the largest distance, or None")


_WHAT = "a function of i - j"


class RelativeBias(AbstractLogWeights):
    """A table of log-weights: $b(i - j)$, where i - j is clipped to the distances -clip to clip.

    A table of zeros changes no weight. If rows of weights are normalised, adding one number to all entries changes no
    weight either. `RelativeBias.from_function` makes the table of a function of i - j.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp, numpy as np
        >>> table = jnp.log(jnp.array([1.0, 2.0, 5.0]))  # of i - j = -1, 0 and 1
        >>> print(np.asarray(cjx.SoftmaxAttention(0.0, position=cjx.RelativeBias(table)).weights(jnp.eye(2))).round(3))
        [[0.667 0.333]
         [0.714 0.286]]
        ```

    **Arguments:**

    - `table`: The log-weights of i - j = -clip, ..., clip, (2 clip + 1,), or a schedule; in `MultiHeadField` also one
        table for each head, (h, 2 clip + 1).
    - `clip`: The largest distance; None is that of the table.

    **Raises:**

    - `ValueError` if `table` does not hold 2 clip + 1 finite real numbers.

    ??? cite "Source"

        Shaw, Uszkoreit, Vaswani, *Self-attention with relative position representations* (1803.02155), Section 3.2:
        clipped distances; Raffel et al., *T5* (1910.10683), Section 2.1: one number for each distance.
    """

    table: StoredParameter = eqx.field(converter=parameter("table"))
    clip: int | None = eqx.field(default=None, converter=_clip)

    def __check_init__(self):
        _check_parameter(self.table, "table", "one number for each distance (2 clip + 1,)", 1)
        entries = jnp.shape(example(self.table))[-1]
        if entries % 2 == 0 or self.clip is not None and entries != 2 * self.clip + 1:
            size = "an odd number of entries" if self.clip is None else f"{2 * self.clip + 1} entries"
            remedy = "pass those of i - j = -clip, ..., clip"
            raise refusal("table", f"hold {size}", f"it holds {entries}", remedy)

    @classmethod
    def from_function(cls, function: Callable[..., Any], clip: int) -> "RelativeBias":
        """The position whose log-weights are a function of i - j.

        !!! example

            ```python
            >>> import clusterjax as cjx, jax.numpy as jnp
            >>> near = cjx.RelativeBias.from_function(lambda k: -0.5 * jnp.abs(k) ** 0.5, clip=8)
            >>> near.table.shape  # one log-weight for each distance from -8 to 8
            (17,)
            ```

        **Arguments:**

        - `function`: `function(k)` takes the distances i - j, an array of floats, and returns the log-weight of each.
        - `clip`: The largest distance at which the function is evaluated; n - 1 or more clips no distance.

        **Returns:**

        A `RelativeBias`.

        **Raises:**

        - `ValueError` if `function` does not return one finite real number for each distance.
        """
        check_callable(function, "function", _WHAT, takes=1)
        clip = check_integer(clip, "clip", least=0, remedy="pass the largest distance, such as n - 1")
        values = call_traced(function, "function", _WHAT, jnp.arange(-clip, clip + 1, dtype=float))
        remedy = "return the log-weight of each distance"
        return cls(check_array(values, "function(k)", shape=(2 * clip + 1,), remedy=remedy), clip)

    @property
    def num_heads(self) -> int | None:
        return _heads(self.table, 1)

    def log_weights(self, t: RealScalarLike, n: int, dtype: DTypeLike) -> LogWeights:
        return LogWeights(table=at_time(self.table, t, dtype))


class Rotary(AbstractPosition):
    """Rotary positions: queries and keys are turned by angles proportional to their places, values are not.

    The score of tokens i and j is $⟨R_i B^T x_i, R_j x_j⟩$ where $R_i$ turns coordinates 2a and 2a + 1 (counted from
    0) by the angle $i θ_a$; further coordinates are not turned. For given tokens the score depends on i - j alone, and
    frequencies of 0 change no score.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp, numpy as np
        >>> quarter = cjx.SoftmaxAttention(2.0, position=cjx.Rotary([jnp.pi / 2]))
        >>> print(np.asarray(quarter.weights(jnp.ones((2, 2)))).round(3))  # equal tokens, a quarter turn apart
        [[0.982 0.018]
         [0.018 0.982]]
        ```

    **Arguments:**

    - `frequencies`: The angles $θ_a$ for each place, (m,) with 2 m at most the dimension of queries and keys, or a
        schedule; in `MultiHeadField` also those of each head, (h, m).

    **Raises:**

    - `ValueError` if `frequencies` is not a vector of finite real numbers, or, on use, if 2 m exceeds the dimension.

    ??? cite "Source"

        Su et al., *RoFormer* (2104.09864), eqs. (14) and (15).
    """

    frequencies: StoredParameter = eqx.field(converter=parameter("frequencies"))

    def __check_init__(self):
        _check_parameter(self.frequencies, "frequencies", "a vector of angles (m,)", 1)

    @property
    def num_heads(self) -> int | None:
        return _heads(self.frequencies, 1)

    def check(self, d: int) -> None:
        if (count := jnp.shape(example(self.frequencies))[-1]) > d // 2:
            rule = f"hold at most {d // 2} for queries of dimension {d}, one for each pair of coordinates"
            raise refusal("frequencies", rule, f"it holds {count}", "pass fewer")

    def turn(self, x: Tokens, t: RealScalarLike) -> Tokens:
        """The vectors $R_i x_i$, (n, d), at time `t`."""
        # Half precision holds neither the places of many tokens nor their angles.
        angles = _angles(at_time(self.frequencies, t, at_least_single(x.dtype)), x.shape[0])
        cosines, sines = jnp.cos(angles), jnp.sin(angles)
        turned = 2 * angles.shape[1]
        first, second = (x[:, start:turned:2].astype(angles.dtype) for start in (0, 1))
        pairs = jnp.stack([first * cosines - second * sines, second * cosines + first * sines], axis=2)
        return jnp.concatenate([pairs.reshape(x.shape[0], turned).astype(x.dtype), x[:, turned:]], axis=1)


# Turns are multiples of 1 / _STEPS, whose products with places are exact, plus a remainder.
_STEPS = 2**16


def _angles(frequencies: Float[Array, " m"], n: int) -> Float[Array, "n m"]:
    """The angles $i θ_a$ of the places i = 0, ..., n - 1, up to whole turns."""
    dtype = frequencies.dtype
    # In float32, the product of a place near 10^6 with a frequency has an error of .06, which would turn neighbours
    # relative to each other. Whole turns are therefore subtracted, since they change nothing, and the multiples of
    # 1 / _STEPS of a turn are multiplied as integers, which wrap around at a whole number of turns.
    turns = frequencies / (2 * np.pi)
    turns = turns - lax.stop_gradient(jnp.round(turns))
    steps = lax.stop_gradient(jnp.round(turns * _STEPS))
    rest = turns - steps / _STEPS
    place = jnp.arange(n, dtype=jnp.int32)[:, None]
    whole = jnp.bitwise_and(place * steps.astype(jnp.int32)[None, :], _STEPS - 1).astype(dtype) / _STEPS
    return 2 * np.pi * (whole + place.astype(dtype) * rest[None, :])


def check_position(position: Any) -> AbstractPosition | None:
    """Return `position`; raises a ValueError unless it is None or a position of a single attention."""
    if position is None:
        return None
    check_instance(position, "position", AbstractPosition, "a position of clusterjax", "pass ALiBi(0.1), for example")
    if position.num_heads is not None:
        problem = f"it is {shown(position)} of {position.num_heads} heads"
        remedy = "pass those of one head, or take MultiHeadField"
        raise refusal("position", "have the parameters of one attention", problem, remedy)
    return position


def position_of(attention: Any) -> AbstractPosition | None:
    """The position of an attention; None for a user-defined attention without a position."""
    return getattr(attention, "position", None)


def has_schedules(position: AbstractPosition | None) -> bool:
    """True if a parameter of the position depends on time."""
    is_schedule = lambda node: isinstance(node, AbstractSchedule)
    return any(map(is_schedule, jtu.tree_leaves(position, is_leaf=is_schedule)))


def refuse_position(attention: Any, name: str, reason: str) -> None:
    """Raise a ValueError if the attention has a position."""
    position = position_of(attention)
    if position is not None:
        raise refusal(name, "be None", f"it is {shown(position)}: {reason}", "leave it out")
