"""A trained classifier as a folder: arrays, words, recipe, history, report."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._check import check_instance, check_path
from .._json import Within, misfit
from .._model_folder import ARRAYS, CONFIG, HISTORY, REPORT, VOCABULARY, ModelFolder
from ._fit import Fitted, check_fitted
from ._model import HardmaxClassifier
from ._recipe import Recipe
from ._vocabulary import Vocabulary


_FOLDER = ModelFolder("folder", "train it again", "sentiment.save", "clusterjax sentiment model", 1)
_ARRAYS = ("embedding", "w", "v", "raw_alpha")
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
    # The order of memory is written as it is, hence C order.
    arrays = {name: np.array(getattr(model, name), order="C") for name in _ARRAYS}
    if model.A is not None:
        arrays["A"] = np.array(model.A, order="C")
    config = {
        "depth": model.depth,
        "best_epoch": fitted.best_epoch,
        "recipe": fitted.recipe.record(),
        "words": fitted.vocabulary.size,
        "versions": {name: version(name) for name in ("clusterjax", "jax", "numpy")},
    }
    # Files of the model beside arrays and configuration, replaced in the same step.
    further = {VOCABULARY: fitted.vocabulary._content(), HISTORY: _json(fitted.history)}
    further |= {} if report is None else {REPORT: _report(report)}
    _FOLDER.write(folder, arrays, config, _json, further, metadata={"format": str(_FOLDER.format)}, gone=[REPORT])


def load(folder: str | Path) -> Fitted:
    """The classifier that `save` wrote.

    **Arguments:**

    - `folder`: The folder.

    **Returns:**

    A `Fitted`, in the precision in which it was trained.

    **Raises:**

    - `ValueError` if there is no such folder, a file is missing or broken, or it is of another format, version, or
        vocabulary.
    """
    folder = check_path(folder, "folder")
    if not folder.is_dir():
        raise ValueError(f"folder must be one of a model, but there is none at {str(folder)!r}; train one, or name it.")
    return _FOLDER.load(folder, _build)


def _build(folder: Path) -> Fitted:
    config = _FOLDER.config(folder)
    _FOLDER.present(folder, ARRAYS, VOCABULARY, HISTORY)
    # It has its own checksum, and is useful without the model.
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    try:
        wrong = misfit(config, _FORM)
        if wrong is not None:
            raise TypeError(wrong)
        recipe = Recipe(**config["recipe"])
    except (KeyError, TypeError, ValueError) as error:
        where = f"{str(folder / CONFIG)!r} does not fit this version ({error})"
        raise _FOLDER.refusal("be whole", where) from error
    model = _model(folder, config["depth"])
    # The files may be of two models that were copied over each other.
    words, heads, dim = model.embedding.shape
    # Rows of the embedding and ids of the vocabulary belong together.
    if words != vocabulary.size:
        where = f"the {words} rows of its {ARRAYS} are not the {vocabulary.size} ids of its {VOCABULARY}"
        raise _FOLDER.refusal("hold one model", where)
    if (heads, dim, model.depth) != (recipe.heads, recipe.dim, recipe.depth):
        where = f"its {ARRAYS} is of {heads} heads of dimension {dim} and its {CONFIG} of {recipe.heads}"
        raise _FOLDER.refusal("hold one model", f"{where} of dimension {recipe.dim}")
    # Read as strictly as the model: a table of numbers by name for each epoch.
    history = _FOLDER.json(folder, HISTORY)
    wrong = misfit(history, [{str: float}])
    if wrong is not None:
        raise _FOLDER.refusal("be whole", f"in {str(folder / HISTORY)!r} {wrong}")
    _FOLDER.check(folder, CONFIG, ARRAYS, VOCABULARY, HISTORY)
    return Fitted(model, vocabulary, recipe, history, config["best_epoch"])


def load_report(folder: str | Path) -> dict[str, Any] | None:
    """The report that `save` wrote beside the model, or None if there is none.

    **Arguments:**

    - `folder`: The folder.

    **Raises:**

    - `ValueError` if it is broken.
    """
    return _FOLDER.load(check_path(folder, "folder"), _build_report)


def _build_report(folder: Path) -> dict[str, Any] | None:
    if not (folder / REPORT).is_file():
        return None
    report = _FOLDER.json(folder, REPORT)
    wrong = misfit(report, dict)
    if wrong is not None:
        raise _FOLDER.refusal("be whole", f"in {str(folder / REPORT)!r} {wrong}")
    _FOLDER.check(folder, REPORT)
    return report


def _model(folder: Path, depth: Any) -> HardmaxClassifier:
    arrays, path = _FOLDER.arrays(folder), folder / ARRAYS
    lacking = [name for name in _ARRAYS if name not in arrays]
    if lacking:
        raise _FOLDER.refusal("hold a whole model", f"{str(path)!r} lacks {lacking[0]!r}")
    # All arrays have the precision in which the model was trained.
    dtype = arrays["embedding"].dtype
    for name in (*_ARRAYS, *(["A"] if "A" in arrays else [])):
        if arrays[name].dtype != dtype or dtype.name not in ("float16", "float32", "float64"):
            where = f"in {str(path)!r} {name!r} is of {arrays[name].dtype} and 'embedding' of {dtype}"
            raise _FOLDER.refusal("hold one model", where)
        if not np.all(np.isfinite(arrays[name])):
            raise _FOLDER.refusal("hold a model of finite numbers", f"in {str(path)!r} {name!r} has others")
    embedding, w, v, raw = (jnp.asarray(arrays[name], dtype) for name in _ARRAYS)
    try:
        # With alpha 1, whose place is taken below: the constructor takes alpha, and the file has raw_alpha.
        model = HardmaxClassifier(embedding, w, v, jnp.ones(raw.shape, dtype), arrays.get("A"), depth=depth)
    except ValueError as error:
        raise ValueError(f"folder must hold one model, but in {str(path)!r} {error}") from error
    if raw.shape != model.raw_alpha.shape or not np.all(np.isfinite(raw)):
        raise _FOLDER.refusal("hold one model", f"in {str(path)!r} alpha is {raw}")
    # The number that was trained, not one that went through its inverse.
    return eqx.tree_at(lambda tree: tree.raw_alpha, model, raw)


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
