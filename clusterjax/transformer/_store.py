"""Transformers as a folder: the arrays in safetensors, and in JSON what they are arrays of.

`_described` turns a module into JSON and arrays and back; here they are written into a folder of the form that all
models of this library have (`clusterjax._model_folder`), in one step.

Invariants: `load` reads bit for bit what `save` wrote; a process that is stopped at any moment leaves the old model or
the new one; a folder of another configuration than `like` is refused with the first difference.
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
    """Write a Transformer, or a part of one, into a folder, from which `load` reads it bit for bit.

    **Arguments:**

    - `module`: A `LanguageModel`, `LSTMLanguageModel`, `Transformer`, `Block` or any other module of this package,
        made of such.
    - `folder`: Where to; made if it is not there. A model that is there is replaced in one step: a process that is
        stopped at any moment leaves the old one or the new one.
    - `further`: What else to keep in `config.json`, of JSON.

    **Raises:**

    - `ValueError` if the folder cannot be written, or something in the module is not known here, such as an activation
        that is not of `jax.nn`.
    """
    _check_module(module, "module")
    check_concrete(module, "module")
    folder = check_path(folder, "folder")
    _check_further(further)
    save_with(module, folder, further, {})


def save_with(module: eqx.Module, folder: Path, further: dict[str, Any], files: dict[str, bytes]) -> None:
    """`save` without its checks, and other files of the model in the same step."""
    # Filled by `described`, by path.
    arrays: dict[str, Any] = {}
    config = {"module": described(module, "", arrays)} | further
    _FOLDER.write(folder, arrays, config, lambda value: (json.dumps(value, indent=1) + "\n").encode(), files)


def load(folder: str | Path | None = None, like: eqx.Module | None = None) -> Any:
    """The module that `save` wrote.

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

    - `folder`: Where it is; None is the language model of the package.
    - `like`: A module of the configuration that is expected; None takes whatever is there.

    **Returns:**

    The module, with arrays of the dtypes that were saved.

    **Raises:**

    - `ValueError` if there is no such folder, a file is missing or broken, or it is of another configuration than
        `like`: the first difference is named, with both sides.
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
        # Before the module is built, so that the message is about the difference and not about a shape.
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
    """What was kept beside the module in `config.json`.

    **Arguments:**

    - `folder`: Where it is.

    **Raises:**

    - `ValueError` if it cannot be read.
    """
    return _FOLDER.load(check_path(folder, "folder"), _build_further)


def _build_further(folder: Path) -> dict[str, Any]:
    config = _read(folder)
    _FOLDER.check(folder, CONFIG)
    return {name: value for name, value in config.items() if name not in ("format", "version", "module")}


def _check_module(module: Any, name: str) -> eqx.Module:
    return check_instance(module, name, eqx.Module, "a module of clusterjax.transformer", "pass a LanguageModel, say")


def _check_further(further: dict[str, Any]) -> None:
    """Raise a ValueError that names the entry which JSON cannot keep, or that has another meaning in `config.json`."""
    for name, value in further.items():
        if name in ("format", "version"):
            raise ValueError(f"{name} must be what save itself writes, but it is given; choose another name.")
        try:
            # There and back: what is written must be what `load_further` reads.
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
