"""Saving and loading of Transformers: a folder with the arrays in safetensors and the structure in JSON.

`_described` converts a module to JSON and arrays, and back. `save` writes both atomically into a folder of the format
that all models of this library share (`clusterjax._model_folder`).

Invariants: `load` reads bit for bit what `save` wrote; a process that is stopped at any moment leaves the old or the
new model; a folder with another configuration than `like` is refused, and the error names the first difference.
"""

import json
from pathlib import Path
from typing import Any

import equinox as eqx

from .._check import check_concrete, check_instance, check_path, refusal, shown
from .._json import decode, misfit
from .._model_folder import ARRAYS, CONFIG, ModelFolder
from ._bundled import BUNDLED
from ._described import FORM, described, flat, rebuilt


FORMAT = "clusterjax transformer"
_FOLDER = ModelFolder("folder", "save it again", "transformer.save", FORMAT, 1)


def save(module: eqx.Module, folder: str | Path, **further: Any) -> None:
    """Write a Transformer, or a part of a Transformer, into a folder, from which `load` reads the module bit for bit.

    **Arguments:**

    - `module`: A `LanguageModel`, `LSTMLanguageModel`, `Transformer`, `Block` or another module of this package that
        consists of modules of this package.
    - `folder`: The folder, which is created if it does not exist. An old model in the folder is replaced atomically: a
        process that is stopped at any moment leaves the old or the new model.
    - `further`: Further entries of `config.json`, which must be values of JSON.

    **Raises:**

    - `ValueError` if the folder cannot be written, or the module contains an unknown part, such as an activation that
        is not in `jax.nn`.
    """
    _check_module(module, "module")
    check_concrete(module, "module")
    folder = check_path(folder, "folder")
    _check_further(further)
    save_with(module, folder, further, {})


def save_with(module: eqx.Module, folder: Path, further: dict[str, Any], files: dict[str, bytes]) -> None:
    """`save` without checks; `files` are further files of the model, written in the same atomic step."""
    # `described` puts the arrays here under their paths.
    arrays: dict[str, Any] = {}
    config = {"module": described(module, "", arrays)} | further
    _FOLDER.write(folder, arrays, config, lambda value: (json.dumps(value, indent=1) + "\n").encode(), files)


def load(folder: str | Path | None = None, like: eqx.Module | None = None) -> Any:
    """Load the module that `save` wrote.

    !!! example

        ```python
        >>> import jax.numpy as jnp
        >>> from clusterjax import transformer
        >>> model, tokenizer = transformer.load(), transformer.load_tokenizer()
        >>> ids = jnp.asarray(tokenizer.encode("one of the worst films i have ever", add_special_tokens=False).ids)
        >>> tokenizer.id_to_token(int(model.logit_lens(ids)[-1, -1].argmax()))
        'seen'
        ```

    **Arguments:**

    - `folder`: The folder of the module; None is the bundled language model.
    - `like`: A module of the expected configuration; None accepts any configuration.

    **Returns:**

    The module, with arrays of the dtypes that were saved.

    **Raises:**

    - `ValueError` if the folder does not exist, a file is missing or broken, or the configuration is not that of
        `like`; the error then names the first difference with both values.
    """
    folder = BUNDLED if folder is None else check_path(folder, "folder")
    if like is not None:
        check_concrete(_check_module(like, "like"), "like")
    return _FOLDER.load(folder, lambda folder: _build(folder, like))


def _build(folder: Path, like: eqx.Module | None) -> Any:
    config, arrays = _read(folder), _FOLDER.arrays(folder)
    if like is not None:
        expected_arrays: dict[str, Any] = {}
        expected_form = flat(described(like, "", expected_arrays), expected_arrays)
        # The comparison precedes the build, so that the error names the difference and not a shape.
        _compare(folder, expected_form, flat(config["module"], arrays))
    unused = dict(arrays)
    try:
        module = rebuilt(config["module"], unused)
    except ValueError as error:
        raise _FOLDER.refusal("be whole", f"{folder / CONFIG} does not fit its arrays ({error})") from None
    # Arrays that the configuration does not mention belong to another model.
    if unused:
        raise _FOLDER.refusal("be whole", f"{folder / ARRAYS} holds {sorted(unused)[0]!r} too")
    _FOLDER.check(folder, CONFIG, ARRAYS)
    return module


def load_further(folder: str | Path) -> dict[str, Any]:
    """Load the further entries of `config.json` that `save` wrote.

    **Arguments:**

    - `folder`: The folder of the module.

    **Raises:**

    - `ValueError` if `config.json` cannot be read.
    """
    return _FOLDER.load(check_path(folder, "folder"), _build_further)


def _build_further(folder: Path) -> dict[str, Any]:
    config = _read(folder)
    _FOLDER.check(folder, CONFIG)
    return {name: value for name, value in config.items() if name not in ("format", "version", "module")}


def _check_module(module: Any, name: str) -> eqx.Module:
    return check_instance(module, name, eqx.Module, "a module of clusterjax.transformer", "pass a LanguageModel, say")


def _check_further(further: dict[str, Any]) -> None:
    """Raise a `ValueError` if an entry is no value of JSON, or its name is reserved in `config.json`."""
    for name, value in further.items():
        if name in ("format", "version"):
            raise ValueError(f"{name} must be what save itself writes, but it is given; choose another name.")
        try:
            # The round trip ensures that `load_further` can read the entry.
            decode(json.dumps(value), finite=False)
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error).split("\n")[0]
            raise refusal(name, "be a value of JSON", f"it is {shown(value)} ({reason})", "convert it") from None


def _read(folder: Path) -> dict[str, Any]:
    """The content of `config.json`, checked against its form."""
    config = _FOLDER.config(folder)
    wrong = misfit(config, {"module": FORM})
    if wrong is not None:
        raise _FOLDER.refusal("be whole", f"{folder / CONFIG} does not fit its arrays or this version ({wrong})")
    return config


def _compare(folder: Path, wanted: dict[str, Any], stored: dict[str, Any]) -> None:
    for path in wanted | stored:
        expected, actual = wanted.get(path, "nothing"), stored.get(path, "nothing")
        if expected != actual:
            raise ValueError(
                f"folder must be of the configuration of like, whose {path or 'module'} is {expected}, but in "
                f"{folder} it is {actual}; name another folder, or build like as it is there."
            )
