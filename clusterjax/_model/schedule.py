"""Schedules: parameters that depend on time, accepted wherever a parameter is.

A parameter is None, an array, an `AbstractSchedule`, or a function of t, which `as_parameter` converts to a
`FunctionSchedule`, as `optax` accepts a function of the step as a learning rate; `at_time` evaluates a parameter.

Invariants: schedules give the times at which they are discontinuous (`jumps`), so that solvers step onto these times;
the shape of a schedule is found by abstract evaluation, which never evaluates a time at which it may be singular.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Inexact

from .._base.checks import (
    PAIRS,
    as_numbers,
    call_traced,
    check_array,
    check_callable,
    check_fits,
    check_scalar,
    check_text,
    refusal,
    shown,
)
from .._base.numerics import as_float, is_concrete, warn_of_rounding
from .._base.types import AbstractPart, Numbers, RealScalarLike


class AbstractSchedule(AbstractPart):
    """A parameter as a function of time."""

    @abstractmethod
    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        """The parameter at time `t`."""

    @abstractmethod
    def jumps(self) -> Float[Array, " jumps"] | None:
        """The times at which the parameter, or its slope, is discontinuous: a solver steps onto them, not over them."""


Parameter: TypeAlias = Numbers | AbstractSchedule | Callable[[Any], Any]
"""The argument for a parameter: numbers, a schedule of numbers, or a function of t."""

StoredParameter: TypeAlias = Array | AbstractSchedule
"""The form in which a field stores a parameter: an array, or a schedule."""


def _check_real(value: Any, name: str, axes: int) -> None:
    """Raise a ValueError if `value` is complex and has so many axes that it holds matrices, which act on tokens."""
    array = as_numbers(value, name)
    if array is not None and np.ndim(array) >= axes and jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise refusal(name, "be real", f"its dtype is {array.dtype}", f"pass its real part, or {PAIRS}")


def _knots(name: str) -> Callable[[Numbers], Array]:
    def convert(value: Numbers) -> Array:
        _check_real(value, name, 3)
        return check_array(value, name, finite=False, remedy="pass one time per value")

    return convert


def _check_knots(ts: Array, values: Array, lengths: tuple[int, ...], rule: str) -> None:
    if ts.ndim != 1 or ts.shape[0] < 1:
        raise refusal("ts", "be a non-empty vector of times", f"its shape is {ts.shape}", "pass one time per value")
    if values.ndim < 1 or values.shape[0] < 1 or values.shape[0] not in lengths:
        problem = f"it has shape {values.shape} and ts has length {ts.shape[0]}"
        raise refusal("values", f"have {rule}", problem, "pass as many of both")
    # Traced knots are not checked, although `searchsorted` needs them sorted.
    if is_concrete(ts) and not (np.all(np.isfinite(np.asarray(ts))) and np.all(np.diff(np.asarray(ts)) > 0)):
        raise ValueError(f"ts must be finite and strictly increasing, but it is {np.asarray(ts)}; sort it.")
    if is_concrete(values) and not np.all(np.isfinite(np.asarray(values))):
        raise ValueError("values must be finite, but some are not; mend them.")


class PiecewiseConstant(AbstractSchedule):
    r"""A schedule with one value per layer: `values[k]` from `ts[k]` until `ts[k + 1]`, then the last value forever.

    Before `ts[0]` the value is `values[0]`. The schedule is continuous from the right. `simulate` steps exactly onto
    the jumps, both with adaptive and with constant steps.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> beta = cjx.PiecewiseConstant([0.0, 1.0], [2.0, 9.0])
        >>> [float(beta(t)) for t in (0.0, 0.5, 1.0, 5.0)]
        [2.0, 2.0, 9.0, 9.0]
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(beta))
        ```

    **Arguments:**

    - `ts`: Strictly increasing times, (L,): the start of each value; or (L + 1,): the edges of the layers.
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
        # The wider of both dtypes is used: rounded to the dtype of the knots, a time just before a knot could equal it.
        dtype = getattr(t, "dtype", self.ts.dtype)
        wide = (
            dtype if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize > self.ts.dtype.itemsize else self.ts.dtype
        )
        # side="right": at a knot the new value holds.
        layer = jnp.searchsorted(self.ts.astype(wide), jnp.asarray(t, wide), side="right") - 1
        return self.values[jnp.clip(layer, 0, self.values.shape[0] - 1)]

    def jumps(self) -> Float[Array, " jumps"] | None:
        # The first time is not a jump, since the value before it is the same, and neither is the end of the last layer.
        return self.ts[1 : self.values.shape[0]]


class Interpolated(AbstractSchedule):
    """A schedule that is linear between values at given times, and constant outside of them.

    `simulate` steps exactly onto the times, where the slope jumps, both with adaptive and with constant steps.

    **Arguments:**

    - `ts`: Strictly increasing times, (L,).
    - `values`: (L, ...), the parameter at each time.

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
        # A single knot has no interval for interpolation.
        if self.ts.shape[0] == 1:
            return self.values[0]
        t = jnp.asarray(t, self.ts.dtype)
        # The interval [left, right] contains t. For t beyond the ends, it is the first or the last, with share 0 or 1.
        right = jnp.clip(jnp.searchsorted(self.ts, t, side="right"), 1, self.ts.shape[0] - 1)
        left = right - 1
        share = (t - self.ts[left]) / (self.ts[right] - self.ts[left])
        # The derivative of `clip` at its ends, which are knots, is one half; implicit solvers need it exactly.
        share = jnp.where(t < self.ts[0], 0, jnp.where(t >= self.ts[-1], 1, share)).astype(self.values.dtype)
        # This form is exact at both knots, unlike left + share * (right - left).
        return (1 - share) * self.values[left] + share * self.values[right]

    def jumps(self) -> Float[Array, " jumps"] | None:
        # The times have no derivative: the velocity is continuous at a knot, so that the time at which a step ends
        # changes only the error of the run, and its derivative would be a derivative of errors.
        return jax.lax.stop_gradient(self.ts) if self.ts.shape[0] > 1 else None


def _name(name: str) -> str:
    return check_text(name, "name")


class FunctionSchedule(AbstractSchedule):
    """A parameter that is a function of time, t ↦ f(t), as `SoftmaxAttention(f)` makes it from a function.

    Every parameter that accepts a schedule accepts a function of t, so that this class is seldom needed by name.

    The function is part of the compiled computation: the same function object compiles once, but a new `lambda`
    compiles each time. Numbers that change from run to run, or are differentiated, belong in the arrays of an
    `equinox.Module` with a `__call__(self, t)`, whose values never compile anew.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> attention = cjx.SoftmaxAttention(lambda t: 1 + t)
        >>> [float(attention.beta(t)) for t in (0.0, 3.0)]
        [1.0, 4.0]
        >>> field = cjx.AttentionField(attention, value=lambda t: jnp.exp(-t) * jnp.eye(3))
        ```

    **Arguments:**

    - `fn`: `fn(t)` takes a time, an array of shape (), and returns the parameter at that time, computed by jax: real
        numbers of the same shape and dtype at all times. The function should be smooth: the only jumps that a solver
        knows are those of schedules, such as `PiecewiseConstant`, among the fields of an `equinox.Module`.
    - `name`: The name of the function in error messages.

    **Raises:**

    - `ValueError` if `fn` does not take one argument, or returns no real numbers, or cannot be traced by jax; on use
        outside of `jit`, if it returns a number that is not finite.
    """

    fn: Callable[..., Any]
    name: str = eqx.field(default="fn", static=True, converter=_name, kw_only=True)

    def __check_init__(self):
        check_callable(self.fn, self.name, "a function of t", takes=1)
        # The function is traced, as in a run, and without values, since it may be singular at times outside of the run.
        jax.eval_shape(self._evaluate, 0.0)

    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        check_time(t)
        # A Python number remains weakly typed, so that it does not widen a computation in float32; the number of a
        # layer becomes a float.
        value = self._evaluate(as_float(t) if isinstance(t, Array) else jnp.asarray(float(t)))  # pyright: ignore[reportArgumentType]
        if is_concrete(value) and not np.all(np.isfinite(np.asarray(value))):
            problem = f"at t = {t} " + ("it is " + str(value) if value.ndim == 0 else "some of its entries are not")
            raise refusal(f"{self.name}(t)", "be finite", problem, "return finite numbers at all times of the run")
        return value

    def jumps(self) -> Float[Array, " jumps"] | None:
        return jumps_of(self.fn)

    def _evaluate(self, t: Any) -> Array:
        value = call_traced(self.fn, self.name, "a function of t", t)
        _check_real(value, f"{self.name}(t)", 2)
        return check_array(value, f"{self.name}(t)", finite=False, remedy="return the parameter at time t")


class Combined(AbstractSchedule):
    """A function of several parameters, each of which may depend on time: $t ↦ f(a(t), b(t), ...)$.

    **Arguments:**

    - `fn`: The function of the values of the parameters.
    - `parts`: The parameters: arrays or schedules.

    **Raises:**

    - `ValueError` if `fn` is not a function or `parts` not a tuple of parameters.
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
            array = as_numbers(part, f"parts[{index}]")
            # NumPy is used, since under `jit` an operation of JAX would be traced even for a known value.
            values = np.asarray(array) if array is not None and is_concrete(array) else None
            if array is None or values is not None and not np.all(np.isreal(values) & np.isfinite(values)):
                raise ValueError(f"parts {rule}, but entry {index} is {shown(part)}; pass finite real numbers.")

    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        check_time(t)
        return self.fn(*(at_time(part, t) for part in self.parts))

    def jumps(self) -> Float[Array, " jumps"] | None:
        return jumps_of((self.fn, self.parts))


def jumps_of(tree: Any, dtype: Any = None) -> Float[Array, " jumps"] | None:
    """The sorted jumps of all schedules in `tree`, in `dtype` or else their widest dtype; None if there are none."""
    is_schedule = lambda node: isinstance(node, AbstractSchedule)
    schedules = filter(is_schedule, jtu.tree_leaves(tree, is_leaf=is_schedule))
    jumps = [times for schedule in schedules if (times := schedule.jumps()) is not None and times.size]
    if not jumps:
        return None
    # Strict promotion does not join dtypes by itself.
    widest = dtype or max((times.dtype for times in jumps), key=lambda dtype: dtype.itemsize)
    return jnp.sort(jnp.concatenate([times.astype(widest) for times in jumps]))


def at_time(parameter: Any, t: RealScalarLike, dtype: Any = None) -> Any:
    """The value of `parameter` at time `t`, in `dtype`; None stays None."""
    if parameter is None:
        return None
    value = parameter(t) if isinstance(parameter, AbstractSchedule) else jnp.asarray(parameter)
    return value if dtype is None else value.astype(dtype)


def as_parameter(parameter: Any, name: str = "parameter") -> Any:
    """The form in which a field stores a parameter: None and schedules are kept, functions become schedules, and all
    other values floating arrays."""
    if parameter is None or isinstance(parameter, AbstractSchedule):
        return parameter
    # Classes are not functions of t; `FunctionSchedule` refuses modules, such as fields, that take other arguments.
    if callable(parameter) and not isinstance(parameter, type):
        return FunctionSchedule(parameter, name=name)
    # A boolean is an integer in Python, but as an inverse temperature it is a mistake.
    array = as_numbers(parameter, name)
    if array is None or array.dtype == bool and np.ndim(array) == 0:
        rule = "be a number, an array of real numbers, a schedule or a function of t"
        raise refusal(name, rule, f"it is {shown(parameter)}", "pass one of these")
    check_fits(array, name)
    warn_of_rounding(parameter, name)
    return as_float(array)


def parameter(name: str) -> Callable[[Parameter], StoredParameter]:
    """The converter of a field that holds the parameter `name`."""

    # A `def` has an annotation, which `equinox` copies to the argument of the constructor; a `lambda` has none.
    def convert(value: Parameter) -> Any:
        return as_parameter(value, name)

    return convert


def optional_parameter(name: str) -> Callable[[Parameter | None], StoredParameter | None]:
    """The converter of a field that holds the parameter `name`, or None."""

    def convert(value: Parameter | None) -> Any:
        return as_parameter(value, name)

    return convert


def optional_array(name: str) -> Callable[[Numbers | None], Array | None]:
    """The converter of a field that holds constant numbers, or None; a check of the field refuses schedules."""

    def convert(value: Numbers | None) -> Any:
        return as_parameter(constant(value, name), name)

    return convert


def constant(value: Any, name: str) -> Any:
    """`value`, where the numbers may not depend on time; a function of t is refused."""
    if callable(value) and not isinstance(value, type | AbstractSchedule):
        raise refusal(name, "not depend on time", f"it is {shown(value)}", "pass an array of numbers")
    return value


def check_schedules(tree: Any, times: Any) -> None:
    """Raise a ValueError if a function of t in `tree` is not finite at the first or the last of `times`."""
    is_schedule = lambda node: isinstance(node, FunctionSchedule)
    for schedule in filter(is_schedule, jtu.tree_leaves(tree, is_leaf=is_schedule)):
        # Under `jit` the values are traced, and are not checked.
        for t in (times[0], times[-1]):
            schedule(t)


def check_time(t: Any, name: str = "t") -> None:
    """Raise a ValueError unless `t` is a finite number, or traced and of shape ()."""
    if not (isinstance(t, Tracer) and t.ndim == 0 and jnp.issubdtype(t.dtype, jnp.floating)):
        check_scalar(t, name)


def example(parameter: Any) -> Any:
    """A value of `parameter` from which its shape can be read; of a schedule only the shape and the dtype."""
    return jax.eval_shape(parameter, 0.0) if isinstance(parameter, AbstractSchedule) else parameter


def check_beta(beta: Any, name: str = "beta", what: str = "inverse temperature") -> None:
    """Raise a ValueError unless `beta`, or another parameter, is a finite real number, of any sign, or a schedule."""
    if beta is None:
        raise ValueError(f"{name} must be a number or a schedule, but it is None; pass a finite real {what}.")
    # The values of traced numbers are not checked: a NaN that arises inside `jit` is visible in the result.
    check_real(beta, name, f"pass a finite real {what}")
    if jnp.ndim(example(beta)) != 0:
        remedy = f"map over several {what}s with equinox.filter_vmap"
        raise refusal(name, "be a number", f"its shape is {jnp.shape(example(beta))}", remedy)


def check_temperature(temperature: Any) -> None:
    """Raise a ValueError unless the temperature is a number that is not negative, or a schedule."""
    check_beta(temperature, "temperature", "number")
    if isinstance(temperature, Array) and is_concrete(temperature) and float(temperature) < 0:
        problem = f"it is {float(temperature):.3g}: the equation would have no solution"
        raise refusal("temperature", "not be negative", problem, "pass zero or more")


def check_real(parameter: Any, name: str, remedy: str, *, of_tokens: bool = False) -> None:
    """Raise a ValueError if the parameter `name` is complex, or holds a NaN or an infinity.

    **Arguments:**

    - `of_tokens`: Whether the parameter holds matrices that act on tokens; complex ones then have a real form.
    """
    # The arrays of a schedule, which are all of its knots, are checked too.
    for leaf in jtu.tree_leaves(eqx.filter(parameter, eqx.is_array)):
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            remedy = f"{remedy}: {PAIRS}" if of_tokens else remedy
            raise ValueError(f"{name} must be real, but its dtype is {leaf.dtype}; {remedy}.")
        if is_concrete(leaf) and not np.all(np.isfinite(np.asarray(leaf))):
            shown = f"it is {np.asarray(leaf)}" if np.ndim(leaf) == 0 else "some of its entries are not"
            raise ValueError(f"{name} must be finite, but {shown}; {remedy}.")
