"""Parameters that depend on time: accepted wherever a parameter is."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, Inexact

from ._custom_types import RealScalarLike
from ._misc import as_float, is_concrete


class AbstractSchedule(eqx.Module):
    """A parameter as a function of time.

    Source: this library.
    """

    @abstractmethod
    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        """The parameter at time `t`."""

    @abstractmethod
    def jumps(self) -> Float[Array, " jumps"] | None:
        """The times at which the parameter is discontinuous: a solver steps onto them, not over them."""


def _check_knots(ts: Array, values: Array, lengths: tuple[int, ...], rule: str) -> None:
    if ts.ndim != 1 or ts.shape[0] < 1:
        raise ValueError(f"ts must be a non-empty vector of times, but its shape is {ts.shape}; pass one time a value.")
    if values.ndim < 1 or values.shape[0] < 1 or values.shape[0] not in lengths:
        raise ValueError(f"values must have {rule}, but it has shape {values.shape} and ts has length {ts.shape[0]}.")
    if is_concrete(ts) and not (np.all(np.isfinite(np.asarray(ts))) and np.all(np.diff(np.asarray(ts)) > 0)):
        raise ValueError(f"ts must be finite and strictly increasing, but it is {np.asarray(ts)}; sort it.")
    if is_concrete(values) and not np.all(np.isfinite(np.asarray(values))):
        raise ValueError("values must be finite, but some are not; mend them.")


class PiecewiseConstant(AbstractSchedule):
    r"""One value a layer: `values[k]` from `ts[k]` until `ts[k + 1]`, the last one for ever after.

    Before `ts[0]` it is `values[0]`. Continuous from the right. `simulate` steps exactly onto the jumps.

    **Arguments:**

    - `ts`: Strictly increasing times, (L,): where each value begins; or (L + 1,): the edges of the layers.
    - `values`: (L, ...), one parameter (a number, a matrix, a stack of matrices) for each layer.

    **Raises:**

    - `ValueError` if the lengths do not match, or `ts` does not increase.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: a layer is a time step,
        and parameters that differ by layer are piecewise constant in time.
    """

    ts: Float[Array, " knots"] = eqx.field(converter=as_float)
    values: Inexact[Array, "layers ..."] = eqx.field(converter=as_float)

    def __check_init__(self):
        knots = self.ts.shape[0] if self.ts.ndim == 1 else 0
        _check_knots(self.ts, self.values, (knots, knots - 1), "one entry for each time or each interval of ts")

    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        layer = jnp.searchsorted(self.ts, jnp.asarray(t, self.ts.dtype), side="right") - 1
        return self.values[jnp.clip(layer, 0, self.values.shape[0] - 1)]

    def jumps(self) -> Float[Array, " jumps"] | None:
        return self.ts[1 : self.values.shape[0]]


class Interpolated(AbstractSchedule):
    """Values at given times, straight lines between them, constant outside.

    **Arguments:**

    - `ts`: Strictly increasing times, (L,).
    - `values`: (L, ...), the parameter at each of them.

    **Raises:**

    - `ValueError` if the lengths do not match, or `ts` does not increase.

    Source: this library.
    """

    ts: Float[Array, " knots"] = eqx.field(converter=as_float)
    values: Inexact[Array, "knots ..."] = eqx.field(converter=as_float)

    def __check_init__(self):
        knots = self.ts.shape[0] if self.ts.ndim == 1 else 0
        _check_knots(self.ts, self.values, (knots,), "one entry for each time of ts")

    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        if self.ts.shape[0] == 1:
            return self.values[0]
        t = jnp.asarray(t, self.ts.dtype)
        right = jnp.clip(jnp.searchsorted(self.ts, t, side="right"), 1, self.ts.shape[0] - 1)
        left = right - 1
        share = jnp.clip((t - self.ts[left]) / (self.ts[right] - self.ts[left]), 0, 1).astype(self.values.dtype)
        return (1 - share) * self.values[left] + share * self.values[right]

    def jumps(self) -> Float[Array, " jumps"] | None:
        return None


class Combined(AbstractSchedule):
    """A function of several parameters, each of which may depend on time: $t \\mapsto f(a(t), b(t), ...)$.

    **Arguments:**

    - `fn`: The function of the parameters' values.
    - `parts`: The parameters: arrays or schedules.

    Source: this library.
    """

    fn: Callable[..., Array]
    parts: tuple[Any, ...]

    def __call__(self, t: RealScalarLike) -> Inexact[Array, "..."]:
        return self.fn(*(at_time(part, t) for part in self.parts))

    def jumps(self) -> Float[Array, " jumps"] | None:
        found = [part.jumps() for part in self.parts if isinstance(part, AbstractSchedule)]
        found = [times for times in found if times is not None]
        if not found:
            return None
        widest = max((times.dtype for times in found), key=lambda dtype: dtype.itemsize)
        return jnp.sort(jnp.concatenate([times.astype(widest) for times in found]))


def at_time(parameter: Any, t: RealScalarLike, dtype: Any = None) -> Any:
    """The value of `parameter` at time `t`, in `dtype`; None stays None."""
    if parameter is None:
        return None
    value = parameter(t) if isinstance(parameter, AbstractSchedule) else jnp.asarray(parameter)
    return value if dtype is None else value.astype(dtype)


def as_parameter(parameter: Any) -> Any:
    """What a field stores of a parameter: None and schedules as they are, all else as a floating array."""
    if parameter is None or isinstance(parameter, AbstractSchedule):
        return parameter
    return as_float(parameter)


def example(parameter: Any) -> Any:
    """A value of `parameter` from which its shape can be read."""
    return parameter(0.0) if isinstance(parameter, AbstractSchedule) else parameter


def check_real(parameter: Any, name: str, remedy: str) -> None:
    """Raise a ValueError if the parameter `name` is complex or holds a NaN or an infinity."""
    for leaf in jtu.tree_leaves(eqx.filter(parameter, eqx.is_array)):
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ValueError(f"{name} must be real, but its dtype is {leaf.dtype}; {remedy}.")
        if is_concrete(leaf) and not np.all(np.isfinite(np.asarray(leaf))):
            shown = f"it is {np.asarray(leaf)}" if np.ndim(leaf) == 0 else "some of its entries are not"
            raise ValueError(f"{name} must be finite, but {shown}; {remedy}.")
