"""Matching of the tensors of a checkpoint with the parameters of a network, one to one.

The names in a file are those of the parameter tree, up to three differences: the prefix of a model with a head, the
last word (`kernel` in Flax, `weight` in PyTorch; old words in old files) and the layout of a linear map, which PyTorch
stores as (out, in). Copies of tied weights that transformers writes are compared with their originals and left out.

Invariants: each parameter gets one tensor, and each tensor of the file is a parameter, a tied copy, or in a part that
is left out on purpose; anything else is an error. `tensors` and `load` are inverse, bit for bit.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..._check import check_instance
from .architectures import architecture_of
from .network import AbstractNetwork
from .weight_files import Tensors, read_tensors


# The last word of a parameter in the tree of Flax, and its name in the PyTorch files of transformers.
_TORCH = {"kernel": "weight", "embedding": "weight", "scale": "weight"}


def read_weights(folder: Path, sizes: Any, make: Any, dtype: Any) -> tuple[Any, tuple[str, ...]]:
    """A network with the weights of a folder, and the names of the tensors that were left out on purpose.

    `make(sizes, pooler=..., head=...)` builds the network, of which only the shapes are computed.
    """
    architecture = architecture_of(sizes)
    # A pattern, since the heads for tasks differ between the classes of transformers that saved the file.
    left_out = re.compile(architecture.left_out)
    tensors = read_tensors(folder, lambda name: not left_out.match(architecture.bare(name)))
    return fill(tensors, sizes, make, dtype)


def fill(tensors: Tensors, sizes: Any, make: Any, dtype: Any) -> tuple[Any, tuple[str, ...]]:
    """A network with these tensors as its weights, and the names of the tensors that were left out on purpose."""
    architecture = architecture_of(sizes)
    arrays, sizes = _untied(_bare(tensors, architecture.bare), sizes, tensors)
    arrays = _without_copies(arrays, architecture.ties(sizes), tensors)
    _check_layers(sizes, arrays, tensors)
    # The pooler and the masked-LM head are built only if the file has them, so that no random weights remain.
    parts = {part: any(name.startswith(f"{key}.") for name in arrays) for part, key in architecture.parts.items()}
    # `eval_shape` avoids drawing random weights that would be replaced at once.
    split = lambda network: nnx.split(network, nnx.Param, ...)
    form, state, rest = split(nnx.eval_shape(lambda: make(sizes, **parts)))
    # `rest` has constants of layers, which no file contains. `jit` removes the random weights, which are not used.
    rest = jax.jit(lambda: split(make(sizes, **parts))[2])() if rest else rest
    flat = list(nnx.to_flat_state(state))
    names = [_name_in_file(path, tensors.flax) for path, _ in flat]
    _account(names, arrays, tensors)
    filled = [
        (path, variable.replace(_parameter(name, str(path[-1]), variable.shape, arrays[name], tensors, dtype)))
        for name, (path, variable) in zip(names, flat, strict=True)
    ]
    return nnx.merge(form, nnx.from_flat_state(filled), rest), tensors.left_out


def _check_layers(sizes: Any, arrays: dict[str, np.ndarray], tensors: Tensors) -> None:
    """Raise a ValueError if there are fewer tensors than layers, before a network with this many layers is built."""
    layers = sizes.num_blocks
    # Otherwise a `config.json` with a billion layers would build a billion modules before the names are compared.
    if layers > len(arrays):
        raise ValueError(
            f"weights must be those of config.json, which has {layers} layers of weights, but {str(tensors.file)!r} "
            f"has {len(arrays)} tensors; mend config.json, or name the folder of one model."
        )


def tensors(network: nnx.Module) -> dict[str, np.ndarray]:
    """The parameters of a network with the names and the layout of `transformers`.

    Saved by `safetensors.numpy.save_file` as `model.safetensors`, beside a `config.json`, they form a checkpoint that
    `load` reads back bit for bit, and that `transformers` can also read.

    **Arguments:**

    - `network`: An `Albert`, or another network of `probe`.

    **Returns:**

    A dictionary of NumPy arrays.

    **Raises:**

    - `ValueError` if `network` is not a network of `probe`.
    """
    check_instance(network, "network", AbstractNetwork, "a network of probe", "pass model.network, say")
    arrays = {}
    for path, value in nnx.to_flat_state(nnx.state(network, nnx.Param)):
        array = np.asarray(value[...])
        # Contiguous, because safetensors writes the memory in its order.
        arrays[_name_in_file(path, False)] = np.ascontiguousarray(array.T if path[-1] == "kernel" else array)
    return arrays


def _bare(tensors: Tensors, bare: Any) -> dict[str, np.ndarray]:
    """The arrays under their names without the prefix of a model with a head."""
    arrays: dict[str, np.ndarray] = {}
    for name, array in tensors.arrays.items():
        if bare(name) in arrays:
            raise ValueError(
                f"weights must name each tensor once, but {str(tensors.file)!r} has {bare(name)!r} with and without "
                "a prefix; save it anew."
            )
        arrays[bare(name)] = array
    return arrays


def _untied(arrays: dict[str, np.ndarray], sizes: Any, tensors: Tensors) -> tuple[dict[str, np.ndarray], Any]:
    """The arrays and the sizes of a network with a separate decoder, if the file has different numbers for weights that
    its config.json ties, in which case transformers 5 ties nothing."""
    ties_of = architecture_of(sizes).ties
    ties = ties_of(sizes) if getattr(sizes, "tied", True) else {}
    differ = [tied for tied, name in ties.items() if tied in arrays and not _is_copy(arrays, tied, name)]
    if not differ:
        return arrays, sizes
    told = f"{differ[0]!r} and {ties[differ[0]]!r}"
    if not hasattr(sizes, "tied"):
        raise ValueError(
            f"weights must be equal where the network has one matrix, but {told} differ in {str(tensors.file)!r}; save "
            "it anew with one of them."
        )
    warnings.warn(
        f"{str(tensors.file)!r} holds different numbers for {told}, which its config.json ties: both are read, as "
        "transformers 5 does; set tie_word_embeddings to false there.",
        stacklevel=2,
    )
    sizes = sizes._replace(tied=False)
    for tied, name in ties.items():
        if name in arrays:
            arrays.setdefault(tied, arrays[name].T if tied.endswith("kernel") else arrays[name])
    # Drops a bias that the separate decoder does not add.
    return {name: array for name, array in arrays.items() if name not in ties_of(sizes)}, sizes


def _is_copy(arrays: dict[str, np.ndarray], tied: str, name: str) -> bool:
    """True if the file has equal numbers under both names, or only one of the names."""
    copy = arrays[tied]
    return name not in arrays or np.array_equal(arrays[name], copy.T if tied.endswith("kernel") else copy)


def _without_copies(arrays: dict[str, np.ndarray], ties: dict[str, str], tensors: Tensors) -> dict[str, np.ndarray]:
    """The arrays without the copies of tied weights that transformers writes."""
    arrays = dict(arrays)
    for tied, name in ties.items():
        if tied not in arrays:
            continue
        same, copy = _is_copy(arrays, tied, name), arrays.pop(tied)
        # If the file has only the copy, it becomes the original.
        arrays.setdefault(name, copy.T if tied.endswith("kernel") else copy)
        if not same:
            warnings.warn(
                f"{str(tensors.file)!r} ties {tied!r} to {name!r}, but holds different numbers for them; {name!r} is "
                "used, as in transformers.",
                stacklevel=2,
            )
    return arrays


def _name_in_file(path: tuple[Any, ...], flax: bool) -> str:
    *parents, last = (str(part) for part in path)
    return ".".join((*parents, last if flax else _TORCH.get(last, last)))


def _account(names: list[str], arrays: dict[str, np.ndarray], tensors: Tensors) -> None:
    """Raise a ValueError unless the tensors of the file are exactly the parameters of the network."""
    file = str(tensors.file)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(
            f"weights must be those of config.json, but {file!r} lacks {missing[0]!r}{_more(missing)}; name the folder "
            "of one whole model."
        )
    extra = sorted(set(arrays) - set(names))
    if extra:
        raise ValueError(
            f"weights must be those of config.json, but {file!r} has {extra[0]!r}{_more(extra)}, which no part of the "
            "network is called; name the folder of one model."
        )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _parameter(name: str, kind: str, shape: tuple[int, ...], array: np.ndarray, tensors: Tensors, dtype: Any) -> Any:
    """The array as a parameter, checked for its shape and for finite values, in the requested precision."""
    turned = kind == "kernel" and not tensors.flax  # in PyTorch the first axis of a linear map is that of its outputs
    expected = shape[::-1] if turned else shape
    if array.shape != expected:
        raise ValueError(
            f"weights must be those of config.json, but {name!r} of {str(tensors.file)!r} has the shape {array.shape} "
            f"in place of {expected}; name the folder of one model."
        )
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(
            f"weights must be floats, but {name!r} of {str(tensors.file)!r} is of {array.dtype}; name a checkpoint "
            "that is not quantised."
        )
    # Cast before the check: a float64 of 1e300 is finite in the file but infinite in float32.
    array = array.astype(dtype)
    if not np.all(np.isfinite(array)):
        raise ValueError(
            f"weights must be finite, but {name!r} of {str(tensors.file)!r} holds NaN or infinity; train it again."
        )
    return jnp.asarray(array.T if turned else array)
