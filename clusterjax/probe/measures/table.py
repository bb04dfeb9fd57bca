"""Results as tables with named axes, and as files.

The decorator `tabled` gives the class of a result the methods `to_xarray`, `to_pandas`, `save` and `load`. Its
arguments name the axes of each field, so that a result of any measure can be converted to an `xarray.Dataset`.

Invariant: a result that was saved and loaded has the same fields, bit for bit.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._base.checks import check_path, refusal
from ..._files.sealed import SealedFile


_Class = TypeVar("_Class", bound=type)
_FILE = SealedFile("path", "clusterjax result of probe", 1, "measure it again", what="result")
_TABLED: dict[str, type] = {}
_AVERAGE = ("mean", "spread", "texts", "values")
# Axes that are counted from 0.
_COUNTED = ("level", "layer", "block", "head", "head_2", "text", "token", "draw")


def tabled(rows: str = "", /, **axes: str) -> Callable[[_Class], _Class]:
    """A decorator for the class of a result; `rows` are the axes of the rows of its table, and `axes` those of fields.

    The axes of a field are words, such as "layer head". "target" is the key of a dictionary; "*" stands for further
    axes, whose names are generated; "?checkpoint" is an axis that only some results have.
    """

    def decorate(cls: _Class) -> _Class:
        methods: Any = cls
        methods.axes_of_rows, methods.axes_of_fields = tuple(rows.split()), axes
        methods.to_xarray, methods.to_pandas = to_xarray, to_pandas
        methods.save, methods.load = save, classmethod(load)
        _TABLED[cls.__name__] = cls
        return cls

    return decorate


def to_xarray(self: Any) -> Any:
    """The result as an `xarray.Dataset` with named axes: level, layer, head, token, text.

    The mean over texts of a statistic is the variable of the same name, the standard error has the suffix `_error`, and
    the values of the texts, where they are kept, have the suffix `_of_texts`. The method requires `xarray`.

    **Returns:**

    An `xarray.Dataset`.

    **Raises:**

    - `ImportError` if `xarray` is not installed.
    """
    try:
        import xarray
    except ImportError as error:
        raise ImportError("to_xarray needs xarray; install it with: pip install 'clusterjax[sweep]'") from error
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    coordinates: dict[str, Any] = {}
    for name, value in _fields(self):
        _add(variables, coordinates, name, value, tuple(self.axes_of_fields.get(name, "*").split()))
    # A number may have the name of an axis, such as the level of a verdict.
    variables = {f"{name}_number" if name in _COUNTED else name: value for name, value in variables.items()}
    for axes, array in variables.values():
        coordinates |= {axis: np.arange(size) for axis, size in zip(axes, array.shape, strict=True) if axis in _COUNTED}
    return xarray.Dataset(variables, coordinates, {"result": type(self).__name__})


def to_pandas(self: Any) -> Any:
    """The result as a `pandas.DataFrame`, with a row for each level, or for each layer and head, and a column for each
    field with these axes; a result without axes has one row. Requires `pandas`, which comes with `xarray`.

    **Returns:**

    A `pandas.DataFrame`.

    **Raises:**

    - `ImportError` if `xarray` is not installed.
    """
    data = to_xarray(self)
    rows = tuple(row.lstrip("?") for row in self.axes_of_rows if row[0] != "?" or row[1:] in data.dims)
    names = [name for name, variable in data.data_vars.items() if variable.dims == rows]
    if not rows:
        return data[names].expand_dims("row").to_dataframe()
    return data[names].to_dataframe()


def save(self: Any, path: str | os.PathLike[str]) -> None:
    """Write the result to a file, atomically: its arrays as safetensors, the rest as JSON in the header.

    **Arguments:**

    - `path`: The file; a file of another program is not replaced.

    **Raises:**

    - `ValueError` if the file cannot be written, or another program wrote it.
    """
    file = Path(check_path(path, "path"))
    _FILE.refuse_stranger(file)
    arrays: dict[str, np.ndarray] = {}
    form = _packed(self, "", arrays)
    _FILE.write(file, arrays, None, result=form)


def load(cls: type, path: str | os.PathLike[str]) -> Any:
    """Read a result that `save` wrote.

    **Arguments:**

    - `path`: The file.

    **Returns:**

    The result.

    **Raises:**

    - `ValueError` if there is no such file, it is damaged, or it is of another kind of result.
    """
    file = Path(check_path(path, "path"))
    header, arrays = _FILE.unpack(file, {"result": dict})
    try:
        result = _unpacked(header["result"], arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise _FILE.refusal(f"in {file} the fields do not fit together") from error
    if not isinstance(result, cls):
        kind = type(result).__name__
        raise refusal(
            "path", f"be a result of {cls.__name__}", f"{str(file)!r} is of {kind}", f"read it by {kind}.load"
        )
    return result


def _fields(result: Any) -> list[tuple[str, Any]]:
    names = getattr(result, "_fields", None) or list(result.__dataclass_fields__)
    return [(name, getattr(result, name)) for name in names]


def _is_average(value: Any) -> bool:
    return getattr(value, "_fields", None) == _AVERAGE


def _add(variables: Any, coordinates: Any, name: str, value: Any, axes: tuple[str, ...]) -> None:
    """Add a field to the variables of a dataset."""
    if value is None:
        return
    if _is_average(value):
        _add(variables, coordinates, name, value.mean, axes)
        _add(variables, coordinates, f"{name}_error", value.error, axes)
        _add(variables, coordinates, f"{name}_of_texts", value.values, ("text", *axes))
    elif hasattr(value, "axes_of_fields"):
        for inner, part in _fields(value):
            _add(variables, coordinates, f"{name}.{inner}", part, tuple(value.axes_of_fields.get(inner, "*").split()))
    elif isinstance(value, dict) and axes[:1] == ("target",):
        if value:
            coordinates["target"] = list(value)
            for field, suffix in (("mean", ""), ("error", "_error"), ("values", "_of_texts")):
                parts = [getattr(part, field) for part in value.values()]
                named = axes if field != "values" else ("target", "text", *axes[1:])
                if all(part is not None for part in parts):
                    _add(variables, coordinates, f"{name}{suffix}", np.stack(parts), named)
    elif isinstance(value, dict):
        for key, part in value.items():
            _add(variables, coordinates, f"{name}.{key}", part, axes)
    elif isinstance(value, tuple) and any(hasattr(part, "axes_of_fields") or _is_average(part) for part in value):
        for number, part in enumerate(value):
            _add(variables, coordinates, f"{name}.{number}", part, axes)
    else:
        array = np.asarray(value)
        # An optional axis is there if no other axis would be missing.
        present = [axis.lstrip("?") for axis in axes if axis[0] != "?" or array.ndim >= len(axes)]
        named = tuple(axis for axis in present if axis != "*")[: array.ndim]
        own = tuple(f"{name}_axis_{k}" for k in range(array.ndim - len(named)))
        variables[name] = ((*named, *own), array)


def _packed(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The value as JSON, with its arrays under dotted names."""
    if value is None or isinstance(value, bool | int | float | str):
        # JSON has no NaN and no infinity.
        return {"number": repr(value)} if isinstance(value, float) else value
    if hasattr(value, "_fields") or hasattr(value, "__dataclass_fields__"):
        inside = {inner: _packed(part, f"{name}.{inner}", arrays) for inner, part in _fields(value)}
        return {"class": type(value).__name__, "fields": inside}
    if isinstance(value, dict):
        return {"entries": [[key, _packed(part, f"{name}.{key}", arrays)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        parts = [_packed(part, f"{name}.{number}", arrays) for number, part in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": parts}
    array = np.asarray(value)
    if array.dtype.kind in "US":
        return {"texts": array.tolist()}
    if array.dtype == np.complex128:  # the format has no such dtype
        arrays[f"{name}.real"], arrays[f"{name}.imag"] = np.real(array), np.imag(array)
        return {"complex": name}
    arrays[name] = array
    return {"array": name}


def _unpacked(form: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value that `_packed` packed."""
    if not isinstance(form, dict):
        return form
    (kind, content), *_ = form.items()
    if kind == "class":
        fields = {name: _unpacked(part, arrays) for name, part in form["fields"].items()}
        constructor = _TABLED[content]
        # A module holds arrays of jax.
        return constructor(
            **(jtu.tree_map(jnp.asarray, fields) if hasattr(constructor, "__dataclass_fields__") else fields)
        )
    if kind == "entries":
        return {key: _unpacked(part, arrays) for key, part in content}
    if kind in ("list", "tuple"):
        parts = [_unpacked(part, arrays) for part in content]
        return parts if kind == "list" else tuple(parts)
    if kind == "complex":
        return arrays[f"{content}.real"] + 1j * arrays[f"{content}.imag"]
    return {"number": float, "texts": np.asarray, "array": arrays.__getitem__}[kind](content)
