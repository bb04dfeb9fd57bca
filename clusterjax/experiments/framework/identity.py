"""What tells a user's experiment from an earlier one of its name, so that a changed one is run again.

An experiment of the package changes with the version of the package. One of a user's own is known by what it says of
itself and by its `version`; without one, by the text of the file that defines `run` and by the values that `run` has
taken from around it (defaults, closure, arguments of a `functools.partial`). Where that cannot be read, as of a
function that was typed at a prompt or in a notebook, nothing is known, and it is run again each time: a figure that is
drawn twice costs time, one that is wrongly taken for done is false.
"""

import functools
import inspect
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from .experiment import Experiment


class _Unknown(Exception):
    """Something of which nothing tells whether it has changed."""


def identity_of(experiment: Experiment) -> dict[str, Any] | None:
    """What identifies a user's experiment, for a JSON file; None if nothing does."""
    try:
        # A version is the user's word for it; without one the text of the file is.
        code = {"version": experiment.version} if experiment.version else {"code": _digest(experiment.run)}
    except _Unknown:
        return None
    return {name: getattr(experiment, name) for name in ("alias", "title", "claim", "asks")} | code


def _digest(function: Any) -> str:
    texts: dict[str, bytes] = {}
    known = repr(_of_function(function, texts)).encode()
    # Files in the order of their names, whatever order they were met in.
    return sha256(known + b"".join(texts[path] for path in sorted(texts))).hexdigest()


def _of_function(function: Any, texts: dict[str, bytes]) -> Any:
    """What a function has taken from around it; the text of its file goes into `texts`."""
    if isinstance(function, functools.partial):
        return _of_function(function.func, texts), _of_value((function.args, function.keywords), texts)
    # A builtin, a class, an instance that is called: nothing of these can be read.
    if not inspect.isfunction(function):
        raise _Unknown
    path = function.__code__.co_filename
    if path not in texts:
        if not Path(path).is_file():  # a prompt, or a cell of a notebook
            raise _Unknown
        texts[path] = Path(path).read_bytes()
    # A closure sees variables of the function around it; their values decide what it does.
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    return function.__qualname__, _of_value((function.__defaults__, function.__kwdefaults__, captured), texts)


def _of_value(value: Any, texts: dict[str, bytes]) -> Any:
    """The value in a form whose text decides what it is."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | Path):
        # With the type: 1, 1.0 and True have equal values and other behaviour.
        return type(value).__name__, repr(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, [_of_value(entry, texts) for entry in value]
    if isinstance(value, dict):
        return [(_of_value(name, texts), _of_value(entry, texts)) for name, entry in value.items()]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return value.dtype.str, value.shape, sha256(value.tobytes()).hexdigest()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__qualname__, [_of_value(getattr(value, one.name), texts) for one in fields(value)]
    return _of_function(value, texts)
