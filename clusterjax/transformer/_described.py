"""The conversion of modules to JSON and arrays, and back: the content of `config.json` in the folder of a model.

A module becomes {"module": its class, "fields": ...}. An array becomes its path and dtype, and its numbers go into the
safetensors file under that path. Reading first checks the JSON against a form (`clusterjax._json`), then builds the
module without calling `__init__`, and then traces one call on shapes alone.

Invariants: only the classes and activations listed here are ever created; `rebuilt(described(m))` has the same leaves,
bit for bit; shapes that do not match are refused before any array is used.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._json import Within
from .._mask import CausalMask, FullMask, MatrixMask, WindowMask
from ._attention import MultiHeadAttention
from ._block import Block
from ._feed_forward import FeedForward
from ._head import LanguageModelHead
from ._language_model import LanguageModel
from ._lstm import LSTMLanguageModel
from ._norm import LayerNorm, NoNorm, PostNorm, PreNorm
from ._positions import LearnedPositions, RelativePositions, RotaryPositions, SinusoidalPositions
from ._transformer import Transformer


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


def _of(*names: str) -> Any:
    """The form of a module of one of the named classes, and its fields; `clusterjax._json` explains forms."""
    return {"module": names, "fields": dict, str: ()}, lambda described: {"fields": _FIELDS[described["module"]]}


def _module(*names: str) -> Any:
    form, fields = _of(*names)
    # The form of the fields depends on the class that the value names.
    return lambda value: form | fields(value) if _is_one_of(value, names) else form


def _is_one_of(value: Any, names: tuple[str, ...]) -> bool:
    return isinstance(value, dict) and any(value.get("module") == name for name in names)


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
        fields = value.__dataclass_fields__
        below = f"{path}." if path else ""
        return {
            "module": type(value).__name__,
            "fields": {name: described(getattr(value, name), f"{below}{name}", arrays) for name in fields},
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
        match the others; its text is a clause for the message of the caller.
    """
    module = _rebuilt(described, arrays)
    try:
        _try_shapes(module)
    except Exception as error:  # the type depends on where shapes first disagree
        raise ValueError(f"the shapes of its arrays do not fit each other: {_first_line(error)}") from error
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
    masks = [mask for mask in jtu.tree_leaves(module, is_leaf=_is_graph) if _is_graph(mask)]
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


def _is_graph(value: Any) -> bool:
    return isinstance(value, MatrixMask)


def _width(module: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of one input token of the module."""
    if isinstance(module, LayerNorm):
        return jax.ShapeDtypeStruct(module.gain.shape, module.gain.dtype)
    if isinstance(module, FeedForward):
        return jax.ShapeDtypeStruct(module.w_in.shape[:1], module.w_in.dtype)
    inner = module
    inner = inner.blocks if isinstance(inner, Transformer) else inner
    query = (inner.attention if isinstance(inner, Block) else inner).query
    return jax.ShapeDtypeStruct(query.shape[-2:-1], query.dtype)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def flat(described: Any, arrays: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The value at each path of a description; arrays are given by dtype and shape."""
    if not isinstance(described, dict):
        return {path: described}
    if "array" in described:
        array = arrays.get(described["array"])
        return {path: "nothing" if array is None else f"{described['dtype']} {tuple(array.shape)}"}
    if "fields" in described:
        flattened = {path: described["module"]}
        for name, value in described["fields"].items():
            flattened |= flat(value, arrays, f"{path}.{name}" if path else name)
        return flattened
    if "tuple" in described:
        flattened = {}
        for k, value in enumerate(described["tuple"]):
            flattened |= flat(value, arrays, f"{path}.{k}")
        return flattened
    return {path: next(iter(described.values()))}
