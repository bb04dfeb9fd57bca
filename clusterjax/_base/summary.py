"""The texts of a result: `short`, a repr of a few lines without the values of arrays, and `summary`, its numbers.

`repr` names the fields with the shapes of their arrays, as equinox does for modules. `summary` gives a statistic over
texts as mean ± standard error, at its first and its last level, and the mean and the range of any other array. Both
return text, and read values only where these are known.
"""

import dataclasses
import functools
import importlib.metadata
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .numerics import is_concrete
from .version import __version__


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
    fields = {name: value for name, value in _fields(result).items() if name not in leave_out and value is not None}
    rows = [row for name, value in fields.items() for row in _rows(name, value)]
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
    description = f"{_number(finite.mean())} on average"
    description += "" if np.iscomplexobj(finite) else f", from {_number(finite.min())} to {_number(finite.max())}"
    lost = values.size - finite.size
    return description + (f", {lost} of {values.size} not finite" if lost else "")


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


# The description of a run: the class and the fields of each module, and the name of each function.
#
# `Setup` carries the description with a run through `jit`, `vmap` and derivatives: its text is static JSON, equal
# wherever the structure is equal, and its numbers are arrays, whose values never cause a recompilation. Functions are
# kept by name only, so that two runs that differ only in a `lambda` can be stacked. No description is ever executed.


# The largest size of an array that is kept: under `vmap` every run of a batch holds a copy.
MOST_NUMBERS = 2**14
_LIBRARIES = ("jax", "diffrax", "equinox", "numpy")
_ARRAY = "array"


@jtu.register_static
class StaticString(str):
    """A string in a tree of arrays: it has no leaves, so that `jit` and `vmap` ignore it."""


class Setup(eqx.Module):
    """The description of a run: a JSON text, and the arrays to which the text refers by number, as {"array": 0}."""

    arrays: tuple[Array, ...]
    text: str = eqx.field(static=True)

    @classmethod
    def of(cls, most: int | None = MOST_NUMBERS, **parts: Any) -> "Setup":
        """The description of `parts`, without those that are None, and of the versions of the libraries; it keeps
        arrays of at most `most` numbers."""
        arrays: list[Array] = []
        described = {name: describe(part, arrays, most) for name, part in parts.items() if part is not None}
        return cls(tuple(arrays), json.dumps(described | {"versions": versions()}))

    @classmethod
    def told(cls, settings: dict[str, Any]) -> "Setup":
        """The description whose dictionary is `settings`: the inverse of the method `settings`."""
        arrays: list[Array] = []
        text = json.dumps(describe(settings, arrays, None))
        return cls(tuple(arrays), text)

    def settings(self) -> dict[str, Any]:
        """The description as a dictionary that contains the arrays."""
        return json.loads(self.text, object_hook=self._filled)

    def _filled(self, node: dict[str, Any]) -> Any:
        return self.arrays[node[_ARRAY]] if node.keys() == {_ARRAY} else node


def describe(value: Any, arrays: list[Array], most: int | None = MOST_NUMBERS) -> Any:
    """`value` as JSON; its arrays are appended to `arrays`, and the JSON refers to them by their index."""
    # Scalars of NumPy are tested first, since some of them are also Python numbers.
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _described_array(value, arrays, most)
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if type(value) not in (type(None), bool, int, float, str) else value
    if isinstance(value, dict):
        return {str(key): describe(entry, arrays, most) for key, entry in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [describe(entry, arrays, most) for entry in value]
    # Functions are tested before modules, since equinox wraps some functions in modules.
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(value, type):
        return {"class": class_name(value)}
    if isinstance(name, str):
        return {"function": f"{getattr(value, '__module__', None) or '?'}.{name}"}
    if isinstance(value, functools.partial):
        return {"function": describe(value.func, arrays, most), "args": describe(list(value.args), arrays, most)}
    fields = {name: getattr(value, name) for name in fields_of(value) if hasattr(value, name)}
    return {"class": class_name(type(value))} | {name: describe(entry, arrays, most) for name, entry in fields.items()}


def fields_of(value: Any) -> tuple[str, ...]:
    """The names of the fields of a named tuple, a module or another dataclass."""
    if hasattr(value, "_fields"):
        return tuple(value._fields)
    # Class variables are left out: a function among them would be bound to the instance.
    return tuple(field.name for field in dataclasses.fields(value)) if dataclasses.is_dataclass(value) else ()


def _described_array(value: Any, arrays: list[Array], most: int | None) -> Any:
    dtype = str(value.dtype)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": str(jax.random.key_impl(value)), "data": describe(jax.random.key_data(value), arrays, most)}
    # Arrays of text or objects, and arrays too large for each run of a batch, are described by shape and dtype.
    if getattr(value.dtype, "kind", "O") not in "biufcV" or most is not None and value.size > most:
        return {"shape": list(np.shape(value)), "dtype": dtype}
    arrays.append(jnp.asarray(value))
    return {_ARRAY: len(arrays) - 1}


def class_name(kind: type) -> str:
    """The name of a class, without its module if it belongs to this package, diffrax or the builtins."""
    own = kind.__module__.split(".")[0] in ("clusterjax", "diffrax", "builtins")
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    installed = {"clusterjax": __version__} | {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return tuple(installed.items())


def versions() -> dict[str, str]:
    """The versions of this package and of the libraries that a run depends on."""
    return dict(_versions())
