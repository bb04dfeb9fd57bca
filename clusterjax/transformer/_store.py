"""Transformers as a folder: the arrays in safetensors, and in JSON what they are arrays of."""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import safetensors.numpy

from .._arrays import read_arrays
from .._check import check_concrete, check_instance, check_path, refusal, shown
from .._disk import begin_reading, check, write_folder
from .._json import MOST_BYTES, decode, misfit, read_bounded
from ._bundled import BUNDLED
from ._described import FORM, described, flat, rebuilt


_FORMAT, _VERSION = "clusterjax transformer", 1
_ARRAYS, _CONFIG = "model.safetensors", "config.json"
_REMEDY = "save it again"


def save(module: eqx.Module, folder: str | Path, **further: Any) -> None:
    """Write a Transformer, or a part of one, into a folder, from which `load` reads it bit for bit.

    **Arguments:**

    - `module`: A `LanguageModel`, `Transformer`, `Block` or any other module of this package, made of such.
    - `folder`: Where to; made if it is not there. A model that is there is replaced in one step: a process that is
        stopped at any moment leaves the old one or the new one.
    - `further`: What else to keep in `config.json`, of JSON.

    **Raises:**

    - `ValueError` if the folder cannot be written, or something in the module is not known here, such as an activation
        that is not of `jax.nn`.

    Source: this library.
    """
    _check_module(module, "module")
    check_concrete(module, "module")
    folder, arrays = check_path(folder, "folder"), {}
    _check_further(further)
    config = {"format": _FORMAT, "version": _VERSION, "module": described(module, "", arrays)} | further
    try:
        packed = safetensors.numpy.save({name: np.array(a, order="C") for name, a in arrays.items()})
        write_folder(folder, {_ARRAYS: packed, _CONFIG: (json.dumps(config, indent=1) + "\n").encode()})
    except OSError as error:
        raise ValueError(
            f"folder must be one that can be written, but {str(folder)!r} cannot ({error.strerror or error}); make "
            "room, or choose another."
        ) from error


def load(folder: str | Path | None = None, like: eqx.Module | None = None) -> Any:
    """The module that `save` wrote.

    **Arguments:**

    - `folder`: Where it is; None is the language model of the package.
    - `like`: A module of the configuration that is expected; None takes whatever is there.

    **Returns:**

    The module, with arrays of the dtypes that were saved.

    **Raises:**

    - `ValueError` if there is no such folder, a file is missing or broken, or it is of another configuration than
        `like`: the first difference is named, with both sides.

    Source: this library.
    """
    folder = BUNDLED if folder is None else check_path(folder, "folder")
    if like is not None:
        check_concrete(_check_module(like, "like"), "like")
    begin_reading(folder, "folder", _REMEDY)
    config = _read(folder)
    try:
        arrays = read_arrays((folder / _ARRAYS).read_bytes()).arrays
    except (OSError, ValueError) as error:
        raise ValueError(
            f"folder must hold a whole {_ARRAYS}, but {folder} does not ({error}); save it again."
        ) from None
    if like is not None:
        expected: dict[str, Any] = {}
        wanted = flat(described(like, "", expected), expected)
        _compare(folder, wanted, flat(config["module"], arrays))
    left = dict(arrays)
    try:
        module = rebuilt(config["module"], left)
    except ValueError as error:
        raise ValueError(
            f"folder must be whole, but {folder / _CONFIG} does not fit its arrays ({error}); save it again."
        ) from None
    if left:
        raise ValueError(f"folder must be whole, but {folder / _ARRAYS} holds {sorted(left)[0]!r} too; save it again.")
    for name in (_CONFIG, _ARRAYS):
        check(folder / name, "folder", _REMEDY)
    return module


def load_further(folder: str | Path) -> dict[str, Any]:
    """What was kept beside the module in `config.json`.

    **Arguments:**

    - `folder`: Where it is.

    **Raises:**

    - `ValueError` if it cannot be read.

    Source: this library.
    """
    folder = check_path(folder, "folder")
    begin_reading(folder, "folder", _REMEDY)
    config = _read(folder)
    check(folder / _CONFIG, "folder", _REMEDY)
    return {name: value for name, value in config.items() if name not in ("format", "version", "module")}


def _check_module(module: Any, name: str) -> eqx.Module:
    return check_instance(module, name, eqx.Module, "a module of clusterjax.transformer", "pass a LanguageModel, say")


def _check_further(further: dict[str, Any]) -> None:
    """Raise a ValueError that names the entry which JSON cannot keep, or that stands for something else there."""
    for name, value in further.items():
        if name in ("format", "version"):
            raise ValueError(f"{name} must be what save itself writes, but it is given; choose another name.")
        try:
            decode(json.dumps(value), finite=False)
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error).split("\n")[0]
            raise refusal(name, "be a value of JSON", f"it is {shown(value)} ({reason})", "convert it") from None


def _read(folder: Path) -> dict[str, Any]:
    """What `config.json` says."""
    path = folder / _CONFIG
    try:
        config = decode(read_bounded(path, MOST_BYTES, "folder", _REMEDY), finite=False)
    except ValueError as error:
        raise ValueError(
            f"folder must be one that transformer.save wrote, but {path} cannot be read ({error}); name another, or "
            "save it again."
        ) from None
    if misfit(config, {"format": _FORMAT, "version": _VERSION}) is not None:
        raise ValueError(
            f"folder must be one that transformer.save wrote, in version {_VERSION}, but {path} is not; name another, "
            "or use the clusterjax that wrote it."
        )
    wrong = misfit(config, {"module": FORM})
    if wrong is not None:
        raise ValueError(
            f"folder must be whole, but {path} does not fit its arrays or this version ({wrong}); save it again."
        )
    return config


def _compare(folder: Path, wanted: dict[str, Any], there: dict[str, Any]) -> None:
    for path in wanted | there:
        one, other = wanted.get(path, "nothing"), there.get(path, "nothing")
        if one != other:
            raise ValueError(
                f"folder must be of the configuration of like, whose {path or 'module'} is {one}, but in {folder} it "
                f"is {other}; name another folder, or build like as it is there."
            )
