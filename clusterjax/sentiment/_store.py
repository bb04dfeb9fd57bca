"""Saving and loading of a trained classifier: one file with arrays, words, recipe, history and report."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._base.checks import check_flag, check_instance, check_path, refusal
from .._files.json import Within
from .._files.sealed import MODEL, SealedFile
from ._loss import Fitted, check_fitted
from ._model import HardmaxClassifier, Recipe
from ._released import find_shipped
from ._vocabulary import Vocabulary


FILE = SealedFile("folder", "clusterjax sentiment model", 2, "train it anew with --fresh", what="model")
_ARRAYS, _WORDS = ("embedding", "w", "v", "raw_alpha"), "vocabulary"
_FORM = {
    "depth": Within(int, 0, 10**6), "best_epoch": Within(int, -1, 2**31), "recipe": dict, "history": [{str: float}],
    "report": (None, dict),
}  # fmt: skip
_COMPACT = np.dtype(np.float16)


def save(fitted: Fitted, folder: str | Path, report: dict[str, Any] | None = None, *, compact: bool = False) -> None:
    """Write a classifier into a folder, from which `load` reads the classifier bit for bit.

    The model is one file, `model.safetensors`, whose header has the recipe, the history and the report. The file is
    written atomically: a process that is stopped at any moment leaves the former or the new model.

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

    - `compact`: True rounds the embedding to float16. Words at distances below a thousandth may then change their
        order, so the accuracy of the saved model must be measured again.

    **Raises:**

    - `ValueError` if the folder cannot be written, in which case an old model is unchanged, or if `compact` is True and
        the embedding overflows float16.
    """
    check_fitted(fitted)
    folder, model, compact = check_path(folder, "folder"), fitted.model, check_flag(compact, "compact")
    if report is not None:
        check_instance(report, "report", dict, "a dictionary", "pass numbers by name, or None")
        try:
            json.dumps(report)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"report must hold what JSON can hold, but it does not ({str(error) or type(error).__name__}); pass "
                "numbers, texts, lists and dictionaries."
            ) from error
    if model.embedding.shape[0] != fitted.vocabulary.size:
        raise ValueError(
            f"fitted must have a row of its embedding for each of the {fitted.vocabulary.size} ids of its vocabulary, "
            f"but it has {model.embedding.shape[0]}; pair them anew."
        )
    arrays = {name: np.asarray(getattr(model, name)) for name in _ARRAYS}
    if model.A is not None:
        arrays["A"] = np.asarray(model.A)
    if compact:
        arrays["embedding"] = _rounded(arrays["embedding"])
    arrays[_WORDS] = np.frombuffer(fitted.vocabulary._packed(), np.uint8)
    FILE.refuse_stranger(folder / MODEL)
    FILE.write(
        folder / MODEL, arrays, None, depth=model.depth, best_epoch=fitted.best_epoch, recipe=fitted.recipe.record(),
        history=fitted.history, report=report,
        versions={name: version(name) for name in ("clusterjax", "jax", "numpy")},
    )  # fmt: skip


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
        problem, remedy = f"there is none at {str(folder)!r}", "train one first, or check the path"
        raise refusal("folder", "hold a trained model", problem, remedy)
    header, arrays = FILE.unpack(folder / MODEL, _FORM)
    try:
        vocabulary = Vocabulary._unpack(arrays[_WORDS].tobytes())
        model, recipe = _model(arrays, header["depth"]), Recipe(**header["recipe"])
    except (KeyError, TypeError, ValueError) as error:
        raise FILE.refusal(f"{str(folder / MODEL)!r} does not fit this version ({error})") from error
    # The parts of the file must belong to one model.
    rows, heads, dim = model.embedding.shape
    if (rows, heads, dim, model.depth) != (vocabulary.size, recipe.heads, recipe.dim, recipe.depth):
        raise FILE.refusal(f"in {str(folder / MODEL)!r} the arrays, the vocabulary and the recipe differ in size")
    return Fitted(model, vocabulary, recipe, header["history"], header["best_epoch"])


def load_report(folder: str | Path | None = None) -> dict[str, Any] | None:
    """Load the report that `save` wrote with the model; None if there is no report.

    **Arguments:**

    - `folder`: The folder or the name of a bundled model, as in `load`.

    **Raises:**

    - `ValueError` if the model is damaged.
    """
    return FILE.unpack(find_shipped(folder) / MODEL, _FORM)[0]["report"]


def _model(arrays: dict[str, np.ndarray], depth: int) -> HardmaxClassifier:
    # All arrays have the dtype of the training, except a compact embedding, which is rounded.
    dtype = arrays["w"].dtype
    for name in (*_ARRAYS, *(["A"] if "A" in arrays else [])):
        known = dtype.name in ("float16", "float32", "float64")
        if not known or arrays[name].dtype not in ((dtype, _COMPACT) if name == "embedding" else (dtype,)):
            raise ValueError(f"{name!r} is of {arrays[name].dtype} and 'w' of {dtype}")
        if not np.all(np.isfinite(arrays[name])):
            raise ValueError(f"{name!r} has numbers that are not finite")
    # NumPy converts dtypes without any compilation, and jax needs none where the dtype is given.
    embedding, w, v, raw = (jnp.asarray(np.asarray(arrays[name], dtype), dtype) for name in _ARRAYS)
    # The constructor takes alpha, but the file has raw_alpha, so alpha is 1 here and raw_alpha is replaced below.
    model = HardmaxClassifier(embedding, w, v, jnp.ones(raw.shape, dtype), arrays.get("A"), depth=depth)
    if raw.shape != model.raw_alpha.shape:
        raise ValueError(f"raw_alpha is of shape {raw.shape}")
    # The stored raw_alpha is exact, whereas the inverse of softplus has rounding errors.
    return eqx.tree_at(lambda tree: tree.raw_alpha, model, raw)
