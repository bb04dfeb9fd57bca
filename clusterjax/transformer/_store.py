"""Saving and loading of Transformers: one file with the arrays and, in its header, the structure as JSON.

`described` converts a module to {"module": its class, "fields": ...} and arrays, and `rebuilt` converts them back: the
JSON is checked against a form (`clusterjax._files.json`), the module is built without calling `__init__`, and one call
is traced on shapes alone. Only the classes and activations listed here are ever created. `save` writes both atomically
into `model.safetensors` (`clusterjax._files.sealed`).

Invariants: `load` reads bit for bit what `save` wrote; a process that is stopped at any moment leaves the old or the
new model.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._base.checks import check_concrete, check_instance, check_path, refusal, shown
from .._files.json import Within, decode, read_bounded
from .._files.sealed import MODEL, SealedFile
from .._model.mask import CausalMask, FullMask, MatrixMask, WindowMask
from .._training.corpus import MOST_TOKENIZER, parse_tokenizer
from ._attention import MultiHeadAttention
from ._block import Block, Transformer
from ._feed_forward import FeedForward
from ._head import LanguageModelHead
from ._language_model import BUNDLED, LanguageModel
from ._lstm import LSTMLanguageModel
from ._norm import LayerNorm, NoNorm, PostNorm, PreNorm
from ._positions import LearnedPositions, RelativePositions, RotaryPositions, SinusoidalPositions


_MODULES = {
    kind.__name__: kind
    for kind in (
        Block, FeedForward, LanguageModel, LanguageModelHead, LayerNorm, LearnedPositions, MultiHeadAttention, NoNorm,
        PostNorm, PreNorm, RelativePositions, RotaryPositions, SinusoidalPositions, Transformer, CausalMask, FullMask,
        MatrixMask, WindowMask, LSTMLanguageModel, eqx.nn.LSTMCell,
    )
}  # fmt: skip
_ACTIVATIONS = {
    name: getattr(jax.nn, name)
    for name in ("celu", "elu", "gelu", "leaky_relu", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus")
} | {"tanh": jnp.tanh}

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_COUNT = Within(int, 1, 2**31 - 1)


def _module(*names: str) -> Any:
    """The form of a module of one of the named classes, and its fields; `clusterjax._files.json` explains forms."""

    def form(value: Any) -> dict[Any, Any]:
        # The form of the fields depends on the class that the value names.
        known = isinstance(value, dict) and value.get("module") in names
        return {"module": names, "fields": _FIELDS[value["module"]] if known else dict, str: ()}

    return form


_ARRAY = {"array": str, "dtype": _FLOATS, str: ()}
_MAYBE = (None, _ARRAY)
_NORM = (None, _module("LayerNorm"))
_FIELDS: dict[str, dict[Any, Any]] = {
    "MultiHeadAttention": {
        **dict.fromkeys(("query", "key", "value", "output", "beta"), _ARRAY),
        "mask": _module("FullMask", "CausalMask", "WindowMask", "MatrixMask"),
        "relative": (None, _module("RelativePositions", "RotaryPositions")),
    },
    "FeedForward": {
        "w_in": _ARRAY, "w_out": _ARRAY, "bias_in": _MAYBE, "bias_out": _MAYBE,
        "activation": {"activation": tuple(_ACTIVATIONS), str: ()},
    },
    "LayerNorm": {"gain": _ARRAY, "bias": _MAYBE, "epsilon": Within(float, 0, 1e9)},
    "Block": {
        "attention": _module("MultiHeadAttention"), "feed_forward": (None, _module("FeedForward")),
        "norms": {"tuple": [_NORM], str: ()}, "residual": _module("PostNorm", "PreNorm", "NoNorm"),
    },
    "Transformer": {"blocks": _module("Block"), "depth": (None, _COUNT), "norm": _NORM},
    "LanguageModelHead": {"unembedding": _MAYBE},
    "LanguageModel": {
        "embedding": _ARRAY, "stack": _module("Transformer"), "head": _module("LanguageModelHead"),
        "positions": (None, _module("LearnedPositions", "SinusoidalPositions")),
        "stream_dtype": (None, {"dtype": _FLOATS, str: ()}),
    },
    "LSTMLanguageModel": {
        "embedding": _ARRAY, "cell": _module("LSTMCell"), "output": _ARRAY, "head": _module("LanguageModelHead"),
    },
    "LSTMCell": {
        "weight_ih": _ARRAY, "weight_hh": _ARRAY, "bias": _MAYBE, "input_size": _COUNT, "hidden_size": _COUNT,
        "use_bias": bool,
    },
    "LearnedPositions": {"table": _ARRAY},
    "SinusoidalPositions": {"d": _COUNT, "base": Within(float, 1e-300, 1e300)},
    "RotaryPositions": {"k": _COUNT, "base": Within(float, 1e-300, 1e300)},
    "RelativePositions": {"keys": _ARRAY, "values": _MAYBE},
    "WindowMask": {"width": _COUNT, "causal": bool},
    "MatrixMask": {"permitted": {"array": str, "dtype": "bool", str: ()}},
    **dict.fromkeys(("FullMask", "CausalMask", "PostNorm", "PreNorm", "NoNorm"), {}),
}  # fmt: skip
# Unknown entries are refused, so that a file of a later version is not read in part.
_FIELDS = {name: fields | {str: ()} for name, fields in _FIELDS.items()}
FORM = _module(*_FIELDS)


def described(value: Any, path: str, arrays: dict[str, Any]) -> Any:
    """Describe a value as JSON; its arrays are put into `arrays` under their paths."""
    if eqx.is_array(value):
        narrow = value.dtype == jnp.bfloat16  # safetensors with NumPy cannot read bfloat16
        # The conversion from bfloat16 to float32 and back is exact.
        arrays[path] = np.asarray(value.astype(jnp.float32) if narrow else value)
        return {"array": path, "dtype": jnp.dtype(value.dtype).name}
    # Classes are compared by identity: another library may have a class of the same name.
    if isinstance(value, eqx.Module) and _MODULES.get(type(value).__name__) is type(value):
        names = [field.name for field in dataclasses.fields(value)]  # pyright: ignore[reportArgumentType]
        below = f"{path}." if path else ""
        return {
            "module": type(value).__name__,
            "fields": {name: described(getattr(value, name), f"{below}{name}", arrays) for name in names},
        }
    if isinstance(value, tuple):
        return {"tuple": [described(item, f"{path}.{k}", arrays) for k, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # Functions are compared by identity, since the name of a function cannot be trusted.
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


def rebuilt(described: Any, arrays: dict[str, Any]) -> Any:
    """Build the module from a description of the form `FORM`; the arrays of the module are removed from `arrays`.

    **Raises:**

    - `ValueError` if an array is missing, has another dtype than described, is not finite, or has a shape that does not
        match the others; the text of the error is a clause for the message of the caller.
    """
    module = _rebuilt(described, arrays)
    try:
        _try_shapes(module)
    except Exception as error:  # the type depends on where shapes first disagree
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the shapes of its arrays do not fit each other: {first}") from error
    return module


def _rebuilt(described: Any, arrays: dict[str, Any]) -> Any:
    if not isinstance(described, dict):
        return described
    if "array" in described:
        return _array(described["array"], described["dtype"], arrays)
    if "tuple" in described:
        return tuple(_rebuilt(item, arrays) for item in described["tuple"])
    if "activation" in described:
        return _ACTIVATIONS[described["activation"]]
    if "dtype" in described:
        return jnp.dtype(described["dtype"])
    kind = _MODULES[described["module"]]
    # `__init__` is skipped: its converters would name arguments that the caller did not pass. `rebuilt` checks the
    # fields as a whole instead.
    module = object.__new__(kind)
    for name, value in described["fields"].items():
        object.__setattr__(module, name, _rebuilt(value, arrays))
    return module


def _array(name: str, dtype: str, arrays: dict[str, Any]) -> Any:
    if name not in arrays:
        raise ValueError(f"the array {name!r} is missing")
    # The array is removed, so that the caller finds arrays that the configuration does not mention.
    array = arrays.pop(name)
    if array.dtype.name != ("float32" if dtype == "bfloat16" else dtype):
        raise ValueError(f"the array {name!r} is of {array.dtype.name}, but is said to be of {dtype}")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise ValueError(f"the array {name!r} holds NaN or infinity")
    return jnp.asarray(array, dtype)


def _try_shapes(module: Any) -> None:
    """Trace a call of the module without computing anything; raises an error if the shapes do not match."""
    is_graph = lambda value: isinstance(value, MatrixMask)
    masks = [mask for mask in jtu.tree_leaves(module, is_leaf=is_graph) if is_graph(mask)]
    # A mask that is given as a matrix fits texts of one length only.
    n = masks[0].permitted.shape[0] if masks else 2
    if isinstance(module, LanguageModel):
        module.__check_init__()
        most = None if module.positions is None else module.positions.longest()
        eqx.filter_eval_shape(module, jax.ShapeDtypeStruct((n if most is None else min(n, most),), jnp.int32))
    elif isinstance(module, LSTMLanguageModel):
        module.__check_init__()
        eqx.filter_eval_shape(module, jax.ShapeDtypeStruct((n,), jnp.int32))
    elif isinstance(module, Transformer | Block | MultiHeadAttention | FeedForward | LayerNorm):
        # `object.__new__` skipped this check, which compares depth and the axes of the arrays.
        if isinstance(module, Transformer):
            module.__check_init__()
        width = _width(module)
        eqx.filter_eval_shape(module, jax.ShapeDtypeStruct((n, *width.shape), width.dtype))


def _width(module: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of one input token of the module."""
    if isinstance(module, LayerNorm):
        return jax.ShapeDtypeStruct(module.gain.shape, module.gain.dtype)
    if isinstance(module, FeedForward):
        return jax.ShapeDtypeStruct(module.w_in.shape[:1], module.w_in.dtype)
    block = module.blocks if isinstance(module, Transformer) else module
    query = (block.attention if isinstance(block, Block) else block).query
    return jax.ShapeDtypeStruct(query.shape[-2:-1], query.dtype)


FORMAT = "clusterjax transformer"
_FILE = SealedFile("folder", FORMAT, 2, "save it again", what="model")
_HEADER = {"module": FORM, "further": dict, "tokenizer": (None, dict)}


def save(module: eqx.Module, folder: str | Path, **further: Any) -> None:
    """Write a Transformer, or a part of a Transformer, to `model.safetensors` in a folder, from which `load` reads the
    module bit for bit.

    **Arguments:**

    - `module`: A `LanguageModel`, `LSTMLanguageModel`, `Transformer`, `Block` or another module of this package that
        consists of modules of this package.
    - `folder`: The folder, which is created if it does not exist. An old model in the folder is replaced atomically: a
        process that is stopped at any moment leaves the old or the new model.
    - `further`: Further entries of the header of the file, which must be values of JSON.

    **Raises:**

    - `ValueError` if the folder cannot be written, or the module contains an unknown part, such as an activation that
        is not in `jax.nn`.
    """
    kind = "a module of clusterjax.transformer"
    check_concrete(check_instance(module, "module", eqx.Module, kind, "pass a LanguageModel, say"), "module")
    folder = check_path(folder, "folder")
    _check_further(further)
    save_with(module, folder, further)


def save_with(module: eqx.Module, folder: Path, further: dict[str, Any], tokenizer: str | None = None) -> None:
    """`save` without checks; `tokenizer` is the JSON of the tokenizer of a language model."""
    # `described` puts the arrays here under their paths.
    arrays: dict[str, Any] = {}
    module = described(module, "", arrays)
    _FILE.refuse_stranger(folder / MODEL)
    _FILE.write(
        folder / MODEL, arrays, None, module=module, further=further, tokenizer=tokenizer and json.loads(tokenizer)
    )


def load(folder: str | Path | None = None) -> Any:
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

    **Returns:**

    The module, with arrays of the dtypes that were saved.

    **Raises:**

    - `ValueError` if the folder does not exist, or a file is missing or broken.
    """
    folder = BUNDLED if folder is None else check_path(folder, "folder")
    path = folder / MODEL
    header, arrays = _FILE.unpack(path, _HEADER)
    try:
        module = rebuilt(header["module"], arrays)
    except ValueError as error:
        raise _FILE.refusal(f"{path} does not fit its arrays ({error})") from None
    # Arrays that the description does not mention belong to another model.
    if arrays:
        raise _FILE.refusal(f"{path} holds {sorted(arrays)[0]!r} too")
    return module


def load_further(folder: str | Path) -> dict[str, Any]:
    """Load the further entries that `save` wrote.

    **Arguments:**

    - `folder`: The folder of the module.

    **Raises:**

    - `ValueError` if the file cannot be read.
    """
    return _FILE.unpack(check_path(folder, "folder") / MODEL, _HEADER)[0]["further"]


def load_tokenizer(folder: str | Path | None = None) -> Any:
    """Load the tokenizer of a language model, as an object of the library tokenizers.

    **Arguments:**

    - `folder`: A folder that `train_language_model` wrote; None is the bundled model.

    **Returns:**

    A `tokenizers.Tokenizer`.

    **Raises:**

    - `ValueError` if the folder has no tokenizer, or the tokenizer cannot be read.
    """
    folder = BUNDLED if folder is None else check_path(folder, "folder")
    text, path, remedy = tokenizer_text(folder), folder / MODEL, "name the folder of a language model"
    if text is None:  # `save` wrote the model, and the user may have put a tokenizer beside it
        path = folder / "tokenizer.json"
        text = read_bounded(path, MOST_TOKENIZER, "folder", remedy).decode("utf-8", "replace")
    return parse_tokenizer(text, path, "folder must hold a tokenizer", remedy)


def tokenizer_text(folder: Path) -> str | None:
    """The JSON of the tokenizer of a language model; None if the model has no tokenizer."""
    tokenizer = _FILE.unpack(folder / MODEL, _HEADER)[0]["tokenizer"]
    return None if tokenizer is None else json.dumps(tokenizer)


def bundled_training() -> dict[str, Any]:
    """The record of the training of the bundled language model: its recipe, its losses, and the `DepthProfile` of
    snapshots during training, as means and standard errors.
    """
    return _FILE.unpack(BUNDLED / MODEL, {"training": dict})[0]["training"]


def _check_further(further: dict[str, Any]) -> None:
    """Raise a `ValueError` if an entry is no value of JSON."""
    for name, value in further.items():
        try:
            # The round trip ensures that `load_further` can read the entry.
            decode(json.dumps(value), finite=False)
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error).split("\n")[0]
            raise refusal(name, "be a value of JSON", f"it is {shown(value)} ({reason})", "convert it") from None
