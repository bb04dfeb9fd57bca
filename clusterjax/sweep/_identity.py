"""What tells one sweep from another: axes, function, options and versions, each as words to compare and to show.

A function is known by its bytecode, its constants, defaults and closure, and by the functions and constants of its own
module that it names, recursively; arrays by their bytes; objects by the fields of their dataclass or their dictionary.
All pieces go into one SHA-256, each preceded by its length.

Invariants: comments, formatting and line numbers of a function do not count; no code of a repository is run when its
revision is asked for; the same process state gives the same words.
"""

import dataclasses
import functools
import hashlib
import inspect
import os
import subprocess
import types
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._axis import Parsed


def fingerprint(*values: Any) -> str:
    """Twelve hexadecimal digits of what `values` are: numbers, text, containers, and functions by their bytecode.

    A function counts with what it closes over, its defaults, and the functions, classes and constants of its own module
    that it names. What it imports from elsewhere does not count, nor do lines and comments of its source.
    """
    hasher = hashlib.sha256()
    for piece in _pieces(values, {}):
        # With its length, so that pieces cannot be divided differently.
        hasher.update(len(piece).to_bytes(8, "little") + piece)
    return hasher.hexdigest()[:12]


def _pieces(value: Any, seen: dict[int, Any]) -> Iterator[bytes]:
    # NumPy has no arrays of keys; their data is integers.
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if value is None or isinstance(value, _ATOMS):
        yield f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        yield f"array {array.dtype} {array.shape}".encode()
        yield array.tobytes()
    elif isinstance(value, list | tuple):
        yield f"{type(value).__qualname__} {len(value)}".encode()
        for part in value:
            yield from _pieces(part, seen)
    # Objects may refer to each other in a circle.
    elif id(value) in seen:
        yield b"again"
    else:
        seen[id(value)] = value  # held, so that its id stays its own
        yield type(value).__qualname__.encode()
        for part in _parts(value):
            yield from _pieces(part, seen)


_ATOMS = bool | int | float | complex | str | bytes | np.generic | types.EllipsisType


def _parts(value: Any) -> list[Any]:
    """The parts of an object, for the fingerprint."""
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, set | frozenset):
        # Sets have no order.
        return sorted(map(repr, value))
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.FunctionType):
        return _parts_of_function(value)
    if isinstance(value, type):
        methods = [getattr(method, "method", method) for _, method in sorted(vars(value).items())]
        return [value.__module__, value.__qualname__, *(m for m in methods if isinstance(m, types.FunctionType))]
    if isinstance(value, types.ModuleType | types.BuiltinFunctionType):
        return [value.__name__]
    if dataclasses.is_dataclass(value):
        return [type(value), *(getattr(value, field.name, None) for field in dataclasses.fields(value))]
    if callable(inner := getattr(value, "__wrapped__", None)):
        return [inner]
    return [type(value), getattr(value, "__name__", None), getattr(value, "__dict__", None)]


def _parts_of_function(function: types.FunctionType) -> list[Any]:
    code, names = function.__code__, function.__globals__
    closed = [_contents(cell) for cell in function.__closure__ or ()]
    used = []
    for name in _names_of(code):
        value = names.get(name)
        # Not what is imported: another version of a library is told by its version.
        is_own = callable(value) and getattr(value, "__module__", None) == function.__module__
        is_settings = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if is_own or is_settings or isinstance(value, _ATOMS | tuple | list | dict | np.ndarray | jax.Array):
            used += [name, value]
    return [_parts_of_code(code), function.__defaults__, function.__kwdefaults__, closed, used]


def _parts_of_code(code: types.CodeType) -> list[Any]:
    consts = [_parts_of_code(const) if isinstance(const, types.CodeType) else const for const in code.co_consts]
    # Not the file name and the table of lines, which change with a comment.
    return [code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars]


def _names_of(code: types.CodeType) -> list[str]:
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names_of(const)]
    return sorted({*code.co_names, *inner})


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None


def name_of(function: Any) -> str:
    """The qualified name of a function, or of the class of a callable."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def identity_of(
    function: Any, axes: list[Parsed], order: np.ndarray, outputs: Any, options: dict[str, Any]
) -> dict[str, str]:
    """What a store and a run must agree in, as strings by name."""
    described = ", ".join(axis.describe() for axis in axes)
    parts = [(axis.name, axis.values, axis.static) for axis in axes]
    return {
        "axes": f"{described} [{fingerprint(parts)}]",
        "function": f"{name_of(function)} [{fingerprint(function)}]",
        "outputs": f"{', '.join(out.name for out in outputs[0])} [{fingerprint(*outputs)}]",
        "order of the points": fingerprint(order),
        **{name: str(value) for name, value in options.items()},
        "floats": jnp.result_type(float).name,
        "keys": str(jax.eval_shape(jax.random.key, 0).dtype),
        "platform": jax.default_backend(),
        "clusterjax": version_of("clusterjax"),
        "jax": f"{jax.__version__} with jaxlib {version_of('jaxlib')}",
    }


def attributes(function: Any, identity: dict[str, str], options: dict[str, Any]) -> dict[str, Any]:
    """The attributes of the result."""
    return {
        "function": identity["function"],
        **{name: "none" if value is None else int(value) if value is True or value is False else value
           for name, value in options.items()},
        "floats": identity["floats"],
        "platform": identity["platform"],
        "date": _date(),
        "git_revision": _revision(function),
        **{f"{name}_version": version_of(name) for name in ("clusterjax", "jax", "jaxlib", "numpy")},
    }  # fmt: skip


def _date() -> str:
    # The convention of reproducible builds.
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdigit() else datetime.now(UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _revision(function: Any) -> str:
    """The git revision of the folder in which the function (or its class) is written, and whether anything was changed
    since; "none" if it is in no repository, or in no file, as what is typed at a prompt."""
    while isinstance(function, functools.partial):
        function = function.func
    # What a decorator such as `functools.wraps` wrapped.
    function = inspect.unwrap(function)
    if not (inspect.isroutine(function) or isinstance(function, type)):
        function = type(function)
    try:
        file = Path(inspect.getfile(function)).resolve()
    except (TypeError, OSError):
        return "none"
    return _described(file.parent) if file.is_file() else "none"


# What the configuration of a repository may have git run while it looks for changes: a monitor, hooks, and programs
# that convert files. These have names of the repository's own, and are looked up. Nothing is fetched, and submodules,
# which have a configuration of their own, are not looked into.
_SAFE = ("core.fsmonitor=", f"core.hooksPath={os.devnull}", "core.untrackedCache=false", "core.pager=")
_PROGRAMS = ("clean", "smudge", "process")
_SECONDS = 10.0


def _described(folder: Path) -> str:
    """The revision of `folder`, with "-dirty" if it was changed; git runs nothing else, and not for long."""
    try:
        revision = _git(folder, "rev-parse", "--verify", "HEAD").stdout.strip()
        given = _git(folder, "config", "--null", "--name-only", "--get-regexp", r"^filter\.").stdout.split("\0")
        filters = sorted({name.rpartition(".")[0] for name in given if name})
        if not revision or any("=" in name for name in filters):
            return "none"
        off = [f"{name}.{kind}=" for name in filters for kind in _PROGRAMS]
        off += [f"{name}.required=false" for name in filters]
        diff = ("diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "HEAD", "--")
        # 0: unchanged, 1: changed, others: an error.
        changed = _git(folder, *diff, settings=off).returncode
    except (OSError, subprocess.SubprocessError):
        return "none"
    return {0: revision, 1: f"{revision}-dirty"}.get(changed, "none")


def _git(folder: Path, *words: str, settings: Sequence[str] = ()) -> Any:
    options = [word for setting in (*_SAFE, *settings) for word in ("-c", setting)]
    # Variables that point git elsewhere, or name programs, are meant for another repository than this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    return subprocess.run(
        ["git", *options, *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", errors="replace", check=False, timeout=_SECONDS,
    )  # fmt: skip
