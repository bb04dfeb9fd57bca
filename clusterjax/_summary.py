"""The texts of a result: `short`, a repr of a few lines without the values of arrays, and `summary`, its numbers.

`repr` names the fields with the shapes of their arrays, as equinox does for modules. `summary` gives a statistic over
texts as mean ± standard error, at its first and its last level, and the mean and the range of any other array. Both
return text, and read values only where these are known.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from ._misc import is_concrete


_WIDTH = 110
_LINES = 6
_KINDS = {"f": "f", "i": "i", "u": "u", "b": "bool", "c": "c"}


def short(self: Any) -> str:
    """The class of a result and its fields, arrays by shape and dtype, in a few lines.

    This function serves as `__repr__`, whose argument type checkers expect to be named `self`.
    """
    name, fields = type(self).__name__, _fields(self)
    parts = [f"{field}={brief(value)}" for field, value in fields.items()]
    line = f"{name}({', '.join(parts)})"
    if len(line) <= _WIDTH:
        return line
    lines, current = [f"{name}("], " "
    for part in parts:
        part = part if len(part) <= _WIDTH - 6 else part[: _WIDTH - 9] + "..."
        if len(current) + len(part) + 2 > _WIDTH:
            lines.append(current)
            current = " "
        current += f" {part},"
    lines.append(current.rstrip(","))
    return "\n".join(lines if len(lines) < _LINES else [*lines[: _LINES - 1], "  ..."]) + ")"


def summary(result: Any, *first: str, leave_out: tuple[str, ...] = ()) -> str:
    """The numbers of a result, one line per field, below the lines `first`."""
    told = {name: value for name, value in _fields(result).items() if name not in leave_out and value is not None}
    rows = [row for name, value in told.items() for row in _rows(name, value)]
    widest = max((len(name) for name, _ in rows), default=0)
    return "\n".join([*first, *(f"{name.ljust(widest)}  {words}" for name, words in rows)])


def estimate(mean: Any, error: Any) -> str:
    """A number with its standard error, such as "0.312 ± 0.004". For several numbers the standard error of their mean
    is not known, and their mean and range are given instead."""
    mean, error = np.asarray(mean), np.asarray(error)
    if mean.size != 1:
        return spread(mean)
    shown = float(error.reshape(-1)[0])
    return f"{_number(mean)} ± {_number(shown)}" if np.isfinite(shown) else f"{_number(mean)} (no standard error)"


def spread(values: Any) -> str:
    """The mean and the range of some numbers."""
    if not is_concrete(values):
        return _shape(values)
    values = np.asarray(values)
    if values.size == 0:
        return "none"
    if values.size == 1:
        return _number(values)
    if values.dtype == bool:
        return f"true for {int(values.sum())} of {values.size}"
    if values.dtype.kind not in "fiuc":
        return f"{values.size} entries"
    finite = values[np.isfinite(values)]
    if not finite.size:
        return f"no finite number of {values.size}"
    what = f"{_number(finite.mean())} on average"
    what += "" if np.iscomplexobj(finite) else f", from {_number(finite.min())} to {_number(finite.max())}"
    lost = values.size - finite.size
    return what + (f", {lost} of {values.size} not finite" if lost else "")


def _rows(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [row for key, entry in value.items() for row in _rows(f"{name}: {key}", entry)]
    # For a statistic over texts, `Average`, and for a comparison of two, the first axis is the level, or the layer.
    error = getattr(value, "error", None)
    mean = getattr(value, "mean", getattr(value, "difference", None))
    if error is not None and mean is not None and not callable(mean):
        return [(name, levels(np.asarray(mean), np.asarray(error)))]
    if isinstance(value, bool | int | float | np.number):
        return [(name, str(value) if isinstance(value, bool | int) else _number(value))]
    if isinstance(value, str):
        return [(name, value)]
    if isinstance(value, jax.Array | np.ndarray):
        return [(name, spread(value))]
    return [(name, brief(value))]


def levels(mean: np.ndarray, error: np.ndarray) -> str:
    """A statistic at its first and its last level, or the number itself if it has only one."""
    if mean.ndim == 0 or len(mean) < 2:
        return estimate(mean, error)
    return f"{estimate(mean[0], error[0])} first, {estimate(mean[-1], error[-1])} last of {len(mean)}"


def _fields(result: Any) -> dict[str, Any]:
    names = getattr(result, "_fields", None)
    if names is None:
        names = [field.name for field in dataclasses.fields(result) if field.repr]
    return {name: getattr(result, name) for name in names}


def brief(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, jax.Array | np.ndarray):
        return _shape(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {brief(entry)}" for key, entry in list(value.items())[:3]) + (
            ", ..." if len(value) > 3 else ""
        ) + "}"  # fmt: skip
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return f"{type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, bool | int | np.integer):
        return str(value)
    if isinstance(value, float | np.floating):
        return _number(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    mean = getattr(value, "mean", None)
    return f"{type(value).__name__}({brief(mean)})" if isinstance(mean, np.ndarray) else f"{type(value).__name__}(...)"


def _shape(value: Any) -> str:
    dtype = np.dtype(value.dtype) if not jax.numpy.issubdtype(value.dtype, jax.dtypes.extended) else None
    kind = str(value.dtype) if dtype is None or dtype.kind not in _KINDS else _KINDS[dtype.kind]
    bits = "" if kind == "bool" or dtype is None or dtype.kind not in _KINDS else str(8 * dtype.itemsize)
    return f"{kind}{bits}[{','.join(map(str, np.shape(value)))}]"


def _number(value: Any) -> str:
    value = np.asarray(value).reshape(-1)[0]
    return f"{value:.4g}" if isinstance(value, np.inexact) else str(value)
