"""A trained classifier as a folder: arrays, words, recipe, history, report."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from .._arrays import read_arrays
from .._check import check_instance, check_path
from .._disk import begin_reading, check, write_folder
from .._json import MOST_BYTES, Within, decode, misfit, read_bounded
from ._fit import Fitted, check_fitted
from ._model import HardmaxClassifier
from ._recipe import Recipe
from ._vocabulary import Vocabulary


_FORMAT, _VERSION = "clusterjax sentiment model", 1
_MODEL, _VOCABULARY, _HISTORY, _REPORT, _CONFIG = (
    "model.safetensors", "vocabulary.json", "history.json", "report.json", "config.json",
)  # fmt: skip
_ARRAYS = ("embedding", "w", "v", "raw_alpha")
_REMEDY = "train it again"
_FORM = {"depth": Within(int, 0, 10**6), "best_epoch": Within(int, -1, 2**31), "recipe": dict}


def save(fitted: Fitted, folder: str | Path, report: dict[str, Any] | None = None) -> None:
    """Write a classifier into a folder, from which `load` reads it bit for bit.

    The files are `model.safetensors`, `vocabulary.json`, `history.json`, `report.json`, `config.json` with the recipe
    and the versions, and `checksums.json` with the checksum of each. They are there whole or not at all: a process that
    is stopped at any moment leaves the former model or this one.

    **Arguments:**

    - `fitted`: What `fit` returned.
    - `folder`: Where to write; made if it is not there. A model that is there is replaced.
    - `report`: Numbers to keep beside it, such as `evaluate(...).record()`; None writes none.

    **Raises:**

    - `ValueError` if the folder cannot be written; a model that was there before stays.

    Source: this library.
    """
    check_fitted(fitted)
    folder, model = check_path(folder, "folder"), fitted.model
    if report is not None:
        check_instance(report, "report", dict, "a dictionary", "pass numbers by name, or None")
    if model.embedding.shape[0] != fitted.vocabulary.size:
        raise ValueError(
            f"fitted must have a row of its embedding for each of the {fitted.vocabulary.size} ids of its vocabulary, "
            f"but it has {model.embedding.shape[0]}; pair them anew."
        )
    arrays = {name: np.array(getattr(model, name), order="C") for name in _ARRAYS}
    if model.A is not None:
        arrays["A"] = np.array(model.A, order="C")
    config = {
        "format": _FORMAT,
        "version": _VERSION,
        "depth": model.depth,
        "best_epoch": fitted.best_epoch,
        "recipe": fitted.recipe.record(),
        "words": fitted.vocabulary.size,
        "versions": {name: version(name) for name in ("clusterjax", "jax", "numpy")},
    }
    contents = {
        _MODEL: safetensors.numpy.save(arrays, {"format": _FORMAT}),
        _VOCABULARY: fitted.vocabulary._content(),
        _HISTORY: _json(fitted.history),
    }
    contents |= {_CONFIG: _json(config)} | ({} if report is None else {_REPORT: _report(report)})
    try:
        write_folder(folder, contents, gone=[_REPORT] if report is None else [])
    except OSError as error:
        raise ValueError(
            f"folder must be one that can be written, but {str(folder)!r} cannot ({error.strerror or error}); make "
            "room, or choose another."
        ) from error


def load(folder: str | Path) -> Fitted:
    """The classifier that `save` wrote.

    **Arguments:**

    - `folder`: The folder.

    **Returns:**

    A `Fitted`, in the precision in which it was trained.

    **Raises:**

    - `ValueError` if there is no such folder, a file is missing or broken, or it is of another format, version, or
        vocabulary.

    Source: this library.
    """
    folder = check_path(folder, "folder")
    if not folder.is_dir():
        raise ValueError(f"folder must be one of a model, but there is none at {str(folder)!r}; train one, or name it.")
    begin_reading(folder, "folder", _REMEDY)
    config = _read(folder, _CONFIG)
    if misfit(config, {"format": _FORMAT}) is not None:
        raise ValueError(f"folder must be one of a model, but {str(folder / _CONFIG)!r} is of another format; name it.")
    if config.get("version") != _VERSION:
        raise ValueError(
            f"folder must be of version {_VERSION}, but {str(folder)!r} is of version {config.get('version')!r}; use "
            "the clusterjax that wrote it."
        )
    for name in (_MODEL, _VOCABULARY, _HISTORY):
        _present(folder, name)
    vocabulary = Vocabulary.load(folder / _VOCABULARY)
    try:
        wrong = misfit(config, _FORM)
        if wrong is not None:
            raise TypeError(wrong)
        recipe = Recipe(**config["recipe"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"folder must be whole, but {str(folder / _CONFIG)!r} does not fit this version ({error}); train it again."
        ) from error
    model = _model(folder / _MODEL, config["depth"])
    words, heads, dim = model.embedding.shape
    if words != vocabulary.size:
        raise ValueError(
            f"folder must hold one model, but the {words} rows of its {_MODEL} are not the {vocabulary.size} ids of "
            f"its {_VOCABULARY}; train it again."
        )
    if (heads, dim, model.depth) != (recipe.heads, recipe.dim, recipe.depth):
        raise ValueError(
            f"folder must hold one model, but its {_MODEL} is of {heads} heads of dimension {dim} and its {_CONFIG} of "
            f"{recipe.heads} of dimension {recipe.dim}; train it again."
        )
    history = _read(folder, _HISTORY)
    wrong = misfit(history, [{str: float}])
    if wrong is not None:
        raise ValueError(f"folder must be whole, but in {str(folder / _HISTORY)!r} {wrong}; train it again.")
    for name in (_CONFIG, _MODEL, _VOCABULARY, _HISTORY):
        check(folder / name, "folder", _REMEDY)
    return Fitted(model, vocabulary, recipe, history, config["best_epoch"])


def load_report(folder: str | Path) -> dict[str, Any] | None:
    """The report that `save` wrote beside the model, or None if there is none.

    **Arguments:**

    - `folder`: The folder.

    **Raises:**

    - `ValueError` if it is broken.

    Source: this library.
    """
    folder = check_path(folder, "folder")
    begin_reading(folder, "folder", _REMEDY)
    if not (folder / _REPORT).is_file():
        return None
    report = _read(folder, _REPORT)
    wrong = misfit(report, dict)
    if wrong is not None:
        raise ValueError(f"folder must be whole, but in {str(folder / _REPORT)!r} {wrong}; train it again.")
    check(folder / _REPORT, "folder", _REMEDY)
    return report


def _model(path: Path, depth: Any) -> HardmaxClassifier:
    try:
        arrays = read_arrays(path.read_bytes()).arrays
    except (OSError, ValueError) as error:
        raise ValueError(
            f"folder must hold a whole {path.name}, but {str(path)!r} cannot be read ({error}); train it again."
        ) from error
    lacking = [name for name in _ARRAYS if name not in arrays]
    if lacking:
        raise ValueError(f"folder must hold a whole model, but {str(path)!r} lacks {lacking[0]!r}; train it again.")
    dtype = arrays["embedding"].dtype
    for name in (*_ARRAYS, *(["A"] if "A" in arrays else [])):
        if arrays[name].dtype != dtype or dtype.name not in ("float16", "float32", "float64"):
            raise ValueError(
                f"folder must hold one model, but in {str(path)!r} {name!r} is of {arrays[name].dtype} and 'embedding' "
                f"of {dtype}; train it again."
            )
        if not np.all(np.isfinite(arrays[name])):
            raise ValueError(
                f"folder must hold a model of finite numbers, but in {str(path)!r} {name!r} has others; train it again."
            )
    embedding, w, v, raw = (jnp.asarray(arrays[name], dtype) for name in _ARRAYS)
    try:
        model = HardmaxClassifier(embedding, w, v, jnp.ones(raw.shape, dtype), arrays.get("A"), depth=depth)
    except ValueError as error:
        raise ValueError(f"folder must hold one model, but in {str(path)!r} {error}") from error
    if raw.shape != model.raw_alpha.shape or not np.all(np.isfinite(raw)):
        raise ValueError(f"folder must hold one model, but in {str(path)!r} alpha is {raw}; train it again.")
    # The number that was trained, not one that went through its inverse.
    return eqx.tree_at(lambda tree: tree.raw_alpha, model, raw)


def _present(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise ValueError(f"folder must hold a whole model, but {str(folder)!r} lacks {name}; train it again.")
    return path


def _read(folder: Path, name: str) -> Any:
    path = _present(folder, name)
    try:
        return decode(read_bounded(path, MOST_BYTES, "folder", _REMEDY), finite=False)
    except ValueError as error:
        raise ValueError(
            f"folder must hold a whole model, but {str(path)!r} is not whole JSON ({error}); train it again."
        ) from error


def _report(report: dict[str, Any]) -> bytes:
    try:
        return _json(report)
    except (TypeError, ValueError, RecursionError) as error:
        words = str(error) or type(error).__name__
        raise ValueError(
            f"report must hold what JSON can hold, but it does not ({words}); pass numbers, texts, lists and "
            "dictionaries."
        ) from error


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
