"""Transformers as a folder: the arrays in safetensors, and in JSON what they are arrays of."""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from .._mask import CausalMask, FullMask, MatrixMask, WindowMask
from .._run_file import replace
from ._attention import MultiHeadAttention
from ._block import Block
from ._bundled import BUNDLED
from ._feed_forward import FeedForward
from ._head import LanguageModelHead
from ._language_model import LanguageModel
from ._norm import LayerNorm, NoNorm, PostNorm, PreNorm
from ._positions import LearnedPositions, RelativePositions, SinusoidalPositions
from ._transformer import Transformer


_FORMAT, _VERSION = "clusterjax transformer", 1
_ARRAYS, _CONFIG = "model.safetensors", "config.json"
_MODULES = {
    kind.__name__: kind
    for kind in (
        Block, FeedForward, LanguageModel, LanguageModelHead, LayerNorm, LearnedPositions, MultiHeadAttention, NoNorm,
        PostNorm, PreNorm, RelativePositions, SinusoidalPositions, Transformer, CausalMask, FullMask, MatrixMask,
        WindowMask,
    )
}  # fmt: skip
_ACTIVATIONS = {
    name: getattr(jax.nn, name)
    for name in ("celu", "elu", "gelu", "leaky_relu", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus")
} | {"tanh": jnp.tanh}


def save(module: eqx.Module, folder: str | Path, **further: Any) -> None:
    """Write a Transformer, or a part of one, into a folder, from which `load` reads it bit for bit.

    **Arguments:**

    - `module`: A `LanguageModel`, `Transformer`, `Block` or any other module of this package, made of such.
    - `folder`: Where to; made if it is not there. What is there is replaced, `config.json` last.
    - `further`: What else to keep in `config.json`, of JSON.

    **Raises:**

    - `ValueError` if the folder cannot be written, or something in the module is not known here, such as an activation
        that is not of `jax.nn`.

    Source: this library.
    """
    folder, arrays = Path(folder), {}
    config = {"format": _FORMAT, "version": _VERSION, "module": _described(module, "", arrays)} | further
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _CONFIG).unlink(missing_ok=True)  # without it the folder holds no model
        replace(folder / _ARRAYS, safetensors.numpy.save({name: np.array(a, order="C") for name, a in arrays.items()}))
        replace(folder / _CONFIG, (json.dumps(config, indent=1) + "\n").encode())
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
    folder = BUNDLED if folder is None else Path(folder)
    config = _read(folder)
    try:
        arrays = safetensors.numpy.load((folder / _ARRAYS).read_bytes())
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise ValueError(
            f"folder must hold a whole {_ARRAYS}, but {folder} does not ({error}); save it again."
        ) from None
    if like is not None:
        expected: dict[str, Any] = {}
        wanted = _flat(_described(like, "", expected), expected)
        _compare(folder, wanted, _flat(config["module"], arrays))
    left = dict(arrays)
    try:
        module = _rebuilt(config["module"], left)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"folder must be whole, but {folder / _CONFIG} does not fit its arrays ({error!r}); save it again."
        ) from None
    if left:
        raise ValueError(f"folder must be whole, but {folder / _ARRAYS} holds {sorted(left)[0]!r} too; save it again.")
    return module


def load_further(folder: str | Path) -> dict[str, Any]:
    """What was kept beside the module in `config.json`.

    **Arguments:**

    - `folder`: Where it is.

    **Raises:**

    - `ValueError` if it cannot be read.

    Source: this library.
    """
    return {name: value for name, value in _read(Path(folder)).items() if name not in ("format", "version", "module")}


def _read(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / _CONFIG).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"folder must be one that transformer.save wrote, but {folder / _CONFIG} cannot be read ({error}); name "
            "another, or save it again."
        ) from None
    if not isinstance(config, dict) or config.get("format") != _FORMAT or config.get("version") != _VERSION:
        raise ValueError(
            f"folder must be one that transformer.save wrote, in version {_VERSION}, but {folder / _CONFIG} is not; "
            "name another, or use the clusterjax that wrote it."
        )
    return config


def _described(value: Any, path: str, arrays: dict[str, Any]) -> Any:
    """A value as JSON; its arrays go to `arrays` under their paths."""
    if eqx.is_array(value):
        narrow = value.dtype == jnp.bfloat16  # which NumPy's safetensors do not read; wider it is the same number
        arrays[path] = np.asarray(value.astype(jnp.float32) if narrow else value)
        return {"array": path, "dtype": jnp.dtype(value.dtype).name}
    if isinstance(value, eqx.Module) and _MODULES.get(type(value).__name__) is type(value):
        fields = value.__dataclass_fields__
        below = f"{path}." if path else ""
        return {
            "module": type(value).__name__,
            "fields": {name: _described(getattr(value, name), f"{below}{name}", arrays) for name in fields},
        }
    if isinstance(value, tuple):
        return {"tuple": [_described(one, f"{path}.{k}", arrays) for k, one in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for name, function in _ACTIVATIONS.items():
        if value is function:
            return {"activation": name}
    kind: Any = value
    try:
        return {"dtype": jnp.dtype(kind).name}
    except TypeError:
        raise ValueError(
            f"module must be made of the parts of this package, but its {path or 'whole'} is {value!r}; save it by "
            "other means."
        ) from None


def _rebuilt(described: Any, arrays: dict[str, Any]) -> Any:
    """The value; its arrays are taken out of `arrays`."""
    if isinstance(described, list):
        raise TypeError("a list where a value should be")
    if not isinstance(described, dict):
        return described
    if "array" in described:
        return jnp.asarray(arrays.pop(described["array"]), described["dtype"])
    if "tuple" in described:
        return tuple(_rebuilt(one, arrays) for one in described["tuple"])
    if "activation" in described:
        return _ACTIVATIONS[described["activation"]]
    if "dtype" in described:
        return jnp.dtype(described["dtype"])
    kind = _MODULES[described["module"]]
    module, fields = object.__new__(kind), described["fields"]
    if set(fields) != set(kind.__dataclass_fields__):
        raise TypeError(f"the fields of {kind.__name__} are {sorted(fields)}")
    for name, value in fields.items():
        object.__setattr__(module, name, _rebuilt(value, arrays))
    return module


def _flat(described: Any, arrays: dict[str, Any], path: str = "") -> dict[str, Any]:
    """What stands at each path, arrays by their dtype and shape."""
    if not isinstance(described, dict):
        return {path: described}
    if "array" in described:
        array = arrays.get(described["array"])
        return {path: "nothing" if array is None else f"{described['dtype']} {tuple(array.shape)}"}
    if "fields" in described:
        found = {path: described["module"]}
        for name, value in described["fields"].items():
            found |= _flat(value, arrays, f"{path}.{name}" if path else name)
        return found
    if "tuple" in described:
        found = {}
        for k, value in enumerate(described["tuple"]):
            found |= _flat(value, arrays, f"{path}.{k}")
        return found
    return {path: next(iter(described.values()))}


def _compare(folder: Path, wanted: dict[str, Any], there: dict[str, Any]) -> None:
    for path in wanted | there:
        one, other = wanted.get(path, "nothing"), there.get(path, "nothing")
        if one != other:
            raise ValueError(
                f"folder must be of the configuration of like, whose {path or 'module'} is {one}, but in {folder} it "
                f"is {other}; name another folder, or build like as it is there."
            )
