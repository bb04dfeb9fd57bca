"""Saving and loading of a trained classifier: a folder with arrays, words, recipe, history and report, optionally
compact at a quarter of the size.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._base.checks import check_flag, check_instance, check_path
from .._files.json import Within, misfit
from .._files.model_folder import ARRAYS, CONFIG, HISTORY, PACKED_VOCABULARY, REPORT, VOCABULARY, ModelFolder
from ._loss import Fitted, check_fitted
from ._model import HardmaxClassifier, Recipe
from ._released import find_shipped
from ._vocabulary import Vocabulary


_FOLDER = ModelFolder("folder", "train it anew with --fresh", "sentiment.save", "clusterjax sentiment model", 1)
_ARRAYS = ("embedding", "w", "v", "raw_alpha")
_FORM = {"depth": Within(int, 0, 10**6), "best_epoch": Within(int, -1, 2**31), "recipe": dict, "compact?": bool}
_COMPACT = np.dtype(np.float16)


def save(fitted: Fitted, folder: str | Path, report: dict[str, Any] | None = None, *, compact: bool = False) -> None:
    """Write a classifier into a folder, from which `load` reads the classifier bit for bit.

    The files are `model.safetensors`, `vocabulary.json`, `history.json`, `report.json`, `config.json` with the recipe
    and the versions, and `checksums.json` with the checksum of each. They are written atomically: a process that is
    stopped at any moment leaves the former or the new model.

    !!! example

        ```python
        >>> import tempfile
        >>> from clusterjax import sentiment
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sentiment.save(sentiment.load(), folder, compact=True)
        ...     again = sentiment.load(folder)
        >>> bool(again.logits(["A wonderful film."])[0] > 0)
        True
        ```

    **Arguments:**

    - `fitted`: A `Fitted`, as from `fit`.
    - `folder`: The folder, which is created if it does not exist. An old model in the folder is replaced.
    - `report`: Numbers to store with the model, such as `evaluate(...).record()`; None writes no report.

    **Other arguments:**

    - `compact`: True rounds the embedding to float16 and compresses the vocabulary. Words at distances below a
        thousandth may then change their order, so the accuracy of the saved model must be measured again.

    **Raises:**

    - `ValueError` if the folder cannot be written, in which case an old model is unchanged, or if `compact` is True and
        the embedding overflows float16.
    """
    check_fitted(fitted)
    folder, model, compact = check_path(folder, "folder"), fitted.model, check_flag(compact, "compact")
    if report is not None:
        check_instance(report, "report", dict, "a dictionary", "pass numbers by name, or None")
    if model.embedding.shape[0] != fitted.vocabulary.size:
        raise ValueError(
            f"fitted must have a row of its embedding for each of the {fitted.vocabulary.size} ids of its vocabulary, "
            f"but it has {model.embedding.shape[0]}; pair them anew."
        )
    # safetensors writes the memory unchanged, hence C order.
    arrays = {name: np.array(getattr(model, name), order="C") for name in _ARRAYS}
    if model.A is not None:
        arrays["A"] = np.array(model.A, order="C")
    if compact:
        arrays["embedding"] = _rounded(arrays["embedding"])
    config = {
        "depth": model.depth,
        "best_epoch": fitted.best_epoch,
        "recipe": fitted.recipe.record(),
        "words": fitted.vocabulary.size,
        "compact": compact,
        "versions": {name: version(name) for name in ("clusterjax", "jax", "numpy")},
    }
    # These files are replaced in the same step as arrays and configuration.
    words = {PACKED_VOCABULARY: fitted.vocabulary._packed()} if compact else {VOCABULARY: fitted.vocabulary._content()}
    further = words | {HISTORY: _json(fitted.history)}
    further |= {} if report is None else {REPORT: _report(report)}
    _FOLDER.write(folder, arrays, config, _json, further, metadata={"format": str(_FOLDER.format)}, gone=[REPORT])


def _rounded(embedding: np.ndarray) -> np.ndarray:
    """The embedding in float16.

    **Raises:**

    - `ValueError` if an entry is too large for float16.
    """
    largest = float(np.abs(embedding).max())
    if not largest <= float(np.finfo(_COMPACT).max):
        raise ValueError(
            f"compact must be False for an embedding with numbers beyond {float(np.finfo(_COMPACT).max):g}, but its "
            f"largest is {largest:g}; leave it out."
        )
    return embedding.astype(_COMPACT)


def load(folder: str | Path | None = None) -> Fitted:
    """Load a classifier that `save` wrote, or a bundled classifier.

    !!! example

        ```python
        >>> from clusterjax import sentiment
        >>> found = sentiment.explain(sentiment.load(), "A wonderful film.")
        >>> found.sentiment, [leader.word for leader in found.leaders]
        ('positive', ['wonderful'])
        ```

    **Arguments:**

    - `folder`: The folder. None is the bundled classifier with d = 2 and one head, and `"heads"` the bundled classifier
        with four heads and n-grams, unless a folder of this name exists. Both were trained on the film reviews of Maas
        et al.; the accompanying `MODEL_CARD.md` describes the models and their limits.

    **Returns:**

    A `Fitted`, in the precision in which it was trained.

    **Raises:**

    - `ValueError` if the folder does not exist, a file is missing or damaged, or has another format, version or
        vocabulary.
    """
    folder = find_shipped(folder)
    if not folder.is_dir():
        raise ValueError(f"folder must be one of a model, but there is none at {str(folder)!r}; train one, or name it.")
    return _FOLDER.load(folder, _build)


def _build(folder: Path) -> Fitted:
    config = _FOLDER.config(folder)
    words = PACKED_VOCABULARY if config.get("compact") is True else VOCABULARY
    _FOLDER.present(folder, ARRAYS, words, HISTORY)
    # The vocabulary has a separate checksum, since it is useful without the model.
    vocabulary = Vocabulary.load(folder / words)
    try:
        wrong = misfit(config, _FORM)
        if wrong is not None:
            raise TypeError(wrong)
        recipe = Recipe(**config["recipe"])
    except (KeyError, TypeError, ValueError) as error:
        where = f"{str(folder / CONFIG)!r} does not fit this version ({error})"
        raise _FOLDER.refusal("be whole", where) from error
    model = _model(folder, config["depth"])
    # The files of two models may have been mixed by copying.
    rows, heads, dim = model.embedding.shape
    if rows != vocabulary.size:
        where = f"the {rows} rows of its {ARRAYS} are not the {vocabulary.size} ids of its {words}"
        raise _FOLDER.refusal("hold one model", where)
    if (heads, dim, model.depth) != (recipe.heads, recipe.dim, recipe.depth):
        where = f"its {ARRAYS} is of {heads} heads of dimension {dim} and its {CONFIG} of {recipe.heads}"
        raise _FOLDER.refusal("hold one model", f"{where} of dimension {recipe.dim}")
    # The history must be a list of dictionaries of numbers, one for each epoch.
    history = _FOLDER.json(folder, HISTORY)
    wrong = misfit(history, [{str: float}])
    if wrong is not None:
        raise _FOLDER.refusal("be whole", f"in {str(folder / HISTORY)!r} {wrong}")
    _FOLDER.check(folder, CONFIG, ARRAYS, words, HISTORY)
    return Fitted(model, vocabulary, recipe, history, config["best_epoch"])


def load_report(folder: str | Path | None = None) -> dict[str, Any] | None:
    """Load the report that `save` wrote with the model; None if there is no report.

    **Arguments:**

    - `folder`: The folder or the name of a bundled model, as in `load`.

    **Raises:**

    - `ValueError` if the report is damaged.
    """
    return _FOLDER.load(find_shipped(folder), _build_report)


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
    # All arrays have the dtype of the training, except a compact embedding, which is rounded.
    dtype = arrays["w"].dtype
    for name in (*_ARRAYS, *(["A"] if "A" in arrays else [])):
        known = dtype.name in ("float16", "float32", "float64")
        if not known or arrays[name].dtype not in ((dtype, _COMPACT) if name == "embedding" else (dtype,)):
            where = f"in {str(path)!r} {name!r} is of {arrays[name].dtype} and 'w' of {dtype}"
            raise _FOLDER.refusal("hold one model", where)
        if not np.all(np.isfinite(arrays[name])):
            raise _FOLDER.refusal("hold a model of finite numbers", f"in {str(path)!r} {name!r} has others")
    # NumPy converts dtypes without any compilation.
    embedding, w, v, raw = (jnp.asarray(np.asarray(arrays[name], dtype)) for name in _ARRAYS)
    try:
        # The constructor takes alpha, but the file has raw_alpha, so alpha is 1 here and raw_alpha is replaced below.
        model = HardmaxClassifier(embedding, w, v, jnp.ones(raw.shape, dtype), arrays.get("A"), depth=depth)
    except ValueError as error:
        raise ValueError(f"folder must hold one model, but in {str(path)!r} {error}") from error
    if raw.shape != model.raw_alpha.shape or not np.all(np.isfinite(raw)):
        raise _FOLDER.refusal("hold one model", f"in {str(path)!r} alpha is {raw}")
    # The stored raw_alpha is exact, whereas the inverse of softplus has rounding errors.
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
