"""Schedules: parameters that depend on time, accepted wherever a parameter is.

A parameter is None, an array or an `AbstractSchedule`; `as_parameter` converts, `at_time` evaluates. Invariant:
schedules say where they are discontinuous (`jumps`), so that adaptive solvers step onto these times.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Inexact

from ._check import as_numbers, check_array, check_callable, check_scalar, shown
from ._custom_types import Numbers, RealScalarLike
from ._misc import as_float, is_concrete


class AbstractSchedule(eqx.Module):
    """A parameter as a function of time."""

    @abstractmethod
    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        """The parameter at time `t`."""

    @abstractmethod
    def jumps(self) -> Float[Array, " jumps"] | None:
        """The times at which the parameter is discontinuous: a solver steps onto them, not over them."""


Parameter: TypeAlias = Numbers | AbstractSchedule
"""What is passed for a parameter: numbers, or a schedule of them."""

StoredParameter: TypeAlias = Array | AbstractSchedule
"""What a field keeps of it: an array, or the schedule."""


def _knots(name: str) -> Callable[[Numbers], Array]:
    def convert(value: Numbers) -> Array:
        return check_array(value, name, finite=False, remedy="pass one time per value")

    return convert


def _check_knots(ts: Array, values: Array, lengths: tuple[int, ...], rule: str) -> None:
    if ts.ndim != 1 or ts.shape[0] < 1:
        raise ValueError(
            f"ts must be a non-empty vector of times, but its shape is {ts.shape}; pass one time per value."
        )
    if values.ndim < 1 or values.shape[0] < 1 or values.shape[0] not in lengths:
        raise ValueError(
            f"values must have {rule}, but it has shape {values.shape} and ts has length {ts.shape[0]}; "
            "pass as many of both."
        )
    # Traced knots pass unchecked: `searchsorted` needs them sorted all the same.
    if is_concrete(ts) and not (np.all(np.isfinite(np.asarray(ts))) and np.all(np.diff(np.asarray(ts)) > 0)):
        raise ValueError(f"ts must be finite and strictly increasing, but it is {np.asarray(ts)}; sort it.")
    if is_concrete(values) and not np.all(np.isfinite(np.asarray(values))):
        raise ValueError("values must be finite, but some are not; mend them.")


class PiecewiseConstant(AbstractSchedule):
    r"""One value a layer: `values[k]` from `ts[k]` until `ts[k + 1]`, the last one for ever after.

    Before `ts[0]` it is `values[0]`. Continuous from the right. `simulate` steps exactly onto the jumps.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> beta = cjx.PiecewiseConstant([0.0, 1.0], [2.0, 9.0])
        >>> [float(beta(t)) for t in (0.0, 0.5, 1.0, 5.0)]
        [2.0, 2.0, 9.0, 9.0]
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(beta))
        ```

    **Arguments:**

    - `ts`: Strictly increasing times, (L,): where each value begins; or (L + 1,): the edges of the layers.
    - `values`: (L, ...), one parameter (a number, a matrix, a stack of matrices) for each layer.

    **Raises:**

    - `ValueError` if the lengths do not match, or `ts` does not increase.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: a layer is a time step,
        and parameters that differ by layer are piecewise constant in time.
    """

    ts: Float[Array, " knots"] = eqx.field(converter=_knots("ts"))
    values: Inexact[Array, "layers ..."] = eqx.field(converter=_knots("values"))

    def __check_init__(self):
        knots = self.ts.shape[0] if self.ts.ndim == 1 else 0
        _check_knots(self.ts, self.values, (knots, knots - 1), "one entry for each time or each interval of ts")

    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        check_time(t)
        # side="right": at a knot the new value holds.
        layer = jnp.searchsorted(self.ts, jnp.asarray(t, self.ts.dtype), side="right") - 1
        return self.values[jnp.clip(layer, 0, self.values.shape[0] - 1)]

    def jumps(self) -> Float[Array, " jumps"] | None:
        # Not the first time, before which the value is the same, nor the end of the last layer.
        return self.ts[1 : self.values.shape[0]]


class Interpolated(AbstractSchedule):
    """Values at given times, straight lines between them, constant outside.

    **Arguments:**

    - `ts`: Strictly increasing times, (L,).
    - `values`: (L, ...), the parameter at each of them.

    **Raises:**

    - `ValueError` if the lengths do not match, or `ts` does not increase.
    """

    ts: Float[Array, " knots"] = eqx.field(converter=_knots("ts"))
    values: Inexact[Array, "knots ..."] = eqx.field(converter=_knots("values"))

    def __check_init__(self):
        knots = self.ts.shape[0] if self.ts.ndim == 1 else 0
        _check_knots(self.ts, self.values, (knots,), "one entry for each time of ts")

    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        check_time(t)
        # One knot has no interval to interpolate in.
        if self.ts.shape[0] == 1:
            return self.values[0]
        t = jnp.asarray(t, self.ts.dtype)
        # The interval [left, right] that holds t; beyond the ends the first or the last, with a share of 0 or 1.
        right = jnp.clip(jnp.searchsorted(self.ts, t, side="right"), 1, self.ts.shape[0] - 1)
        left = right - 1
        share = (t - self.ts[left]) / (self.ts[right] - self.ts[left])
        # Not by `clip`, whose derivative at its ends, here at a knot, is one half: implicit solvers need that by t.
        share = jnp.where(t < self.ts[0], 0, jnp.where(t >= self.ts[-1], 1, share)).astype(self.values.dtype)
        # Exact at both knots, which left + share * (right - left) is not.
        return (1 - share) * self.values[left] + share * self.values[right]

    def jumps(self) -> Float[Array, " jumps"] | None:
        return None


class Combined(AbstractSchedule):
    """A function of several parameters, each of which may depend on time: $t \\mapsto f(a(t), b(t), ...)$.

    **Arguments:**

    - `fn`: The function of the parameters' values.
    - `parts`: The parameters: arrays or schedules.

    **Raises:**

    - `ValueError` if `fn` is no function or `parts` no tuple of parameters.
    """

    fn: Callable[..., Array]
    parts: tuple[Any, ...]

    def __check_init__(self):
        check_callable(self.fn, "fn", "a function of the values of the parts")
        rule = "must be a tuple of parameters, numbers, arrays or schedules"
        if not isinstance(self.parts, tuple | list) or not self.parts:
            raise ValueError(f"parts {rule}, but it is {shown(self.parts)}; pass a tuple of at least one.")
        for index, part in enumerate(self.parts):
            if part is None or isinstance(part, AbstractSchedule) or type(part) is float and math.isfinite(part):
                continue
            array = as_numbers(part)
            # By NumPy: under `jit` an operation of JAX would be traced even for a known value.
            held = np.asarray(array) if array is not None and is_concrete(array) else None
            if array is None or held is not None and not np.all(np.isreal(held) & np.isfinite(held)):
                raise ValueError(f"parts {rule}, but entry {index} is {shown(part)}; pass finite real numbers.")

    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        check_time(t)
        return self.fn(*(at_time(part, t) for part in self.parts))

    def jumps(self) -> Float[Array, " jumps"] | None:
        jumps = [part.jumps() for part in self.parts if isinstance(part, AbstractSchedule)]
        jumps = [times for times in jumps if times is not None]
        if not jumps:
            return None
        # Strict promotion does not join dtypes by itself.
        widest = max((times.dtype for times in jumps), key=lambda dtype: dtype.itemsize)
        return jnp.sort(jnp.concatenate([times.astype(widest) for times in jumps]))


def at_time(parameter: Any, t: RealScalarLike, dtype: Any = None) -> Any:
    """The value of `parameter` at time `t`, in `dtype`; None stays None."""
    if parameter is None:
        return None
    value = parameter(t) if isinstance(parameter, AbstractSchedule) else jnp.asarray(parameter)
    return value if dtype is None else value.astype(dtype)


def as_parameter(parameter: Any, name: str = "parameter") -> Any:
    """What a field stores of a parameter: None and schedules as they are, all else as a floating array.

    **Raises:**

    - `ValueError` naming the argument if it is no array of numbers.
    """
    if parameter is None or isinstance(parameter, AbstractSchedule):
        return parameter
    # A boolean is an integer in Python, but as an inverse temperature a mistake.
    array = as_numbers(parameter)
    if array is None or array.dtype == bool and np.ndim(array) == 0:
        raise ValueError(
            f"{name} must be a number, an array of real numbers or a schedule, but it is {shown(parameter)}; "
            "pass one of these."
        )
    return as_float(array)


def parameter(name: str) -> Callable[[Parameter], StoredParameter]:
    """The converter of a field that holds the parameter of this name."""

    # A named function, for `equinox` makes its annotation that of the argument of the constructor.
    def convert(value: Parameter) -> Any:
        return as_parameter(value, name)

    return convert


def optional_parameter(name: str) -> Callable[[Parameter | None], StoredParameter | None]:
    """The same for a parameter that may be None."""

    def convert(value: Parameter | None) -> Any:
        return as_parameter(value, name)

    return convert


def optional_array(name: str) -> Callable[[Numbers | None], Array | None]:
    """The same for numbers that do not depend on time: a check of the field refuses schedules."""

    def convert(value: Numbers | None) -> Any:
        return as_parameter(value, name)

    return convert


def check_time(t: Any, name: str = "t") -> None:
    """Raise a ValueError unless `t` is a finite number, or traced and of shape ()."""
    if not (isinstance(t, Tracer) and t.ndim == 0 and jnp.issubdtype(t.dtype, jnp.floating)):
        check_scalar(t, name)


def example(parameter: Any) -> Any:
    """A value of `parameter` from which its shape can be read."""
    return parameter(0.0) if isinstance(parameter, AbstractSchedule) else parameter


def check_real(parameter: Any, name: str, remedy: str) -> None:
    """Raise a ValueError if the parameter `name` is complex or holds a NaN or an infinity, or is empty."""
    # The arrays of a schedule too, that is all of its knots.
    for leaf in jtu.tree_leaves(eqx.filter(parameter, eqx.is_array)):
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ValueError(f"{name} must be real, but its dtype is {leaf.dtype}; {remedy}.")
        if is_concrete(leaf) and not np.all(np.isfinite(np.asarray(leaf))):
            shown = f"it is {np.asarray(leaf)}" if np.ndim(leaf) == 0 else "some of its entries are not"
            raise ValueError(f"{name} must be finite, but {shown}; {remedy}.")
