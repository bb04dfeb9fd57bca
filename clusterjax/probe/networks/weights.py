"""Matching of the tensors of a checkpoint with the parameters of a network, one to one.

The table of a family has the name of each module in files, to which the format adds the last word (`kernel` in Flax,
`weight` in PyTorch) and the layout of a linear map, which PyTorch stores as (out, in). Some families store several maps
in one tensor. Copies of tied weights that transformers writes are compared with their originals and left out.

Invariants: each parameter gets one tensor, or its part of one, and each tensor of the file is a parameter, a tied copy,
or in a part that is left out on purpose; anything else is an error. `tensors` and `load` are inverse, bit for bit.
Tensors of a safetensors file are read one at a time, so that memory holds the weights and one tensor more.
"""

import functools
import math
import re
import warnings
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..._base.checks import check_instance
from ..._files.arrays import NotRead, Place, find_arrays
from ..._files.json import decode, misfit, open_regular, read_bounded, read_regular
from ..._files.sealed import MARK, is_whole
from .families import FAMILIES, Family
from .network import Network
from .sizes import NetworkSizes


# Reader for the msgpack files of Flax: trees of arrays, each checked against the available bytes before allocation.
#
# In these files an array is an extension of type 1, which contains, again in msgpack, its shape, the name of its dtype
# and its bytes; an array of more than 2^30 bytes is a map of its chunks.
#
# Source: `flax.serialization`.


_ARRAY, _CHUNKS = 1, "__msgpack_chunked_array__"
_MOST_DEPTH, _MOST_NAMES = 64, 2**16
_DTYPES = {name: np.dtype(getattr(jnp, name)) for name in ("float16", "bfloat16", "float32", "float64")} | {
    f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class NoTree(ValueError):
    """Raised if the file is complete but does not contain a tree of arrays; the message states the position."""


def read_flax(data: bytes, wanted: Callable[[str], bool]) -> dict[str, np.ndarray | None]:
    """The arrays of a file under dotted names; unwanted arrays are replaced by None.

    **Raises:**

    - `ValueError` if the file is incomplete, and `NoTree` if it contains no tree of arrays; both give a short reason
        for a message.
    """
    import msgpack

    try:
        # msgpack checks the lengths of texts and bytes against the data, but allocates maps and arrays as large as a
        # header claims; hence the bounds on their counts. A tree has maps and arrays, and no lists.
        tree = msgpack.unpackb(
            data, ext_hook=_extension, object_pairs_hook=_once, max_array_len=_MOST_DEPTH, max_map_len=_MOST_NAMES
        )
    except Exception as error:  # msgpack raises a dozen types, depending on the first invalid byte
        raise ValueError(str(error).strip().splitlines()[0] if str(error).strip() else repr(error)) from error
    arrays: dict[str, np.ndarray | None] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    while pending:
        path, value = pending.pop()
        name = ".".join(path)
        # Chunked arrays come first: a chunked array is a map too, but its keys are not names.
        if isinstance(value, dict) and _CHUNKS in value:
            value = _joined(name, value)
        if isinstance(value, dict) and (value or path):
            if len(path) >= _MOST_DEPTH:
                raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
            pending.extend(((*path, str(key)), child) for key, child in value.items())
        elif path and isinstance(value, np.ndarray):
            if name in arrays:
                raise ValueError(f"it names {name!r} twice")
            arrays[name] = value if wanted(name) else None
        else:
            where = f"{name!r} is {type(value).__name__}" if path else f"it is {type(value).__name__}"
            raise NoTree(where)
    return arrays


def _extension(code: int, data: bytes) -> np.ndarray:
    import msgpack

    if code != _ARRAY:
        raise ValueError(f"it holds an extension of type {code}")
    parts = msgpack.unpackb(data, raw=True, max_array_len=64, max_map_len=0, max_ext_len=0)
    fits = isinstance(parts, list) and len(parts) == 3 and isinstance(parts[0], list) and isinstance(parts[2], bytes)
    name = parts[1] if fits else None
    # Only these dtypes: a structured or an object dtype named in a file could be anything.
    dtype = _DTYPES.get(name.decode("ascii", "replace") if isinstance(name, bytes) else str(name))
    if not fits or dtype is None or not all(type(size) is int and size >= 0 for size in parts[0]):
        raise ValueError(f"it holds an array of {name!r}, which is not read")
    # Python's integers do not overflow, so shapes whose product exceeds 64 bits are detected.
    if math.prod(parts[0]) * dtype.itemsize != len(parts[2]) or len(parts[0]) > 32:
        raise ValueError(f"an array of shape {parts[0]} has {len(parts[2])} bytes")
    return np.frombuffer(parts[2], dtype).reshape(parts[0])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    # A plain dict would silently keep the last of two equal names.
    if len(mapping) < len(pairs):
        raise ValueError("a name is there twice")
    return mapping


def _joined(name: str, value: dict[str, Any]) -> np.ndarray:
    """An array that is stored in chunks."""
    shape, chunks = value.get("shape"), value.get("chunks")
    if not isinstance(shape, dict) or not isinstance(chunks, dict) or not chunks:
        raise ValueError(f"the chunks of {name!r} are broken")
    sizes: Any = [shape.get(str(k)) for k in range(len(shape))]
    parts: Any = [chunks.get(str(k)) for k in range(len(chunks))]
    complete = all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts)
    if not complete or not all(type(size) is int and size >= 0 for size in sizes) or len({p.dtype for p in parts}) > 1:
        raise ValueError(f"the chunks of {name!r} are broken")
    if math.prod(sizes) != sum(part.size for part in parts):
        raise ValueError(f"the chunks of {name!r} do not make an array of shape {sizes}")
    return np.concatenate(parts).reshape(sizes)


# Reader for the tensors of a checkpoint folder: safetensors or Flax's msgpack, in one file or in shards.
#
# The first of the following that exists is read: `model.safetensors`, the shards of its index, `flax_model.msgpack`,
# the shards of its index. Formats: the specification of safetensors; `flax.serialization`.
#
# Invariants: a pickle is never read, because that runs code; a shard is in the folder of its index, so that no path
# leads out of the folder; an index and its shards list the same tensors; an unwanted tensor is named and not loaded.


WHOLE, FLAX = "model.safetensors", "flax_model.msgpack"
MOST_INDEX = 2**26
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Stored(NamedTuple):
    """A tensor in a file, which `read` reads."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    @classmethod
    def of(cls, array: np.ndarray) -> "Stored":
        """A tensor that is in memory."""
        return cls(array.shape, array.dtype, lambda: array)


class Tensors(NamedTuple):
    """The tensors in the files of a folder, under dotted names.

    `stored` has the wanted tensors and `left_out` the names of the others; `flax` is True if the names are Flax's.
    """

    stored: dict[str, Stored]
    left_out: tuple[str, ...]
    flax: bool
    file: Path


def read_tensors(folder: Path, wanted: Callable[[str], bool]) -> Tensors:
    """The tensors of a folder; unwanted tensors are not loaded, where the format allows it, and only named."""
    for whole, read in ((WHOLE, _read_safetensors), (FLAX, _read_msgpack)):
        for file in (folder / whole, folder / f"{whole}.index.json"):
            if file.is_file():
                contents = read(file, wanted) if file.name == whole else _read_shards(file, read, wanted)
                stored = {name: tensor for name, tensor in contents.items() if tensor is not None}
                return Tensors(stored, tuple(sorted(contents.keys() - stored.keys())), whole == FLAX, file)
    pickle = next((name for name in PICKLES if (folder / name).is_file()), None)
    if pickle is not None:
        raise ValueError(
            f"path must hold {WHOLE} or {FLAX}, but {str(folder)!r} only has {pickle}, a pickle, which runs whatever "
            "code it was made with when it is read; save it anew as safetensors."
        )
    raise ValueError(
        f"path must hold the weights of a model, but {str(folder)!r} has none of {WHOLE}, {FLAX} and an index "
        "of their shards; name the folder of a checkpoint."
    )


def _read_safetensors(file: Path, wanted: Callable[[str], bool]) -> dict[str, Stored | None]:
    try:
        with open_regular(file) as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            # A memory map, so that the unwanted decoder of a T5 is never read from the disk.
            arrays = find_arrays(data, wanted)
            # Only files of this package have a checksum, and they are small.
            if MARK in arrays.metadata and not is_whole(data[:], arrays.metadata):
                raise ValueError("its checksum is another")
    except NotRead as error:
        raise ValueError(
            f"weights must be of a dtype that NumPy has, such as F32 or BF16, but in {str(file)!r} {error}; save the "
            "model anew in bfloat16 or float32."
        ) from error
    except (ValueError, OSError) as error:
        raise ValueError(
            f"weights must be a whole safetensors file, but {str(file)!r} is not ({error}); fetch it again."
        ) from error
    return {name: _mapped(file, place) for name, place in arrays.places.items()} | dict.fromkeys(arrays.left_out)


def _mapped(file: Path, place: Place) -> Stored:
    shape, dtype, begin, size = place

    def read() -> np.ndarray:
        if size == 0:  # an empty range cannot be mapped
            return np.zeros(shape, dtype)
        # The map is dropped with its array, so that only one tensor of the file is in memory.
        return np.memmap(file, np.uint8, "r", begin, (size,)).view(dtype).reshape(shape)

    return Stored(shape, dtype, read)


def _read_shards(index: Path, read: Callable[..., Any], wanted: Callable[[str], bool]) -> dict[str, Stored | None]:
    try:
        # Names in Flax have slashes instead of the dots used here.
        listed = decode(read_bounded(index, MOST_INDEX, "weights", "fetch it again"))
        wrong = misfit(listed, {"weight_map": {str: str}})
        if wrong is not None:
            raise ValueError(wrong)
    except ValueError as error:
        raise ValueError(
            f"weights must have an index with a weight_map, but {str(index)!r} is none ({error}); fetch it again."
        ) from error
    shard_of = {name.replace("/", "."): shard for name, shard in listed["weight_map"].items()}
    shards = sorted(set(shard_of.values()))
    # A name such as ../other would read files outside of the folder; a zero byte makes the system call fail.
    plain = all(Path(name).name == name and "\0" not in name for name in shards)
    if not plain:
        raise ValueError(f"weights must be in shards beside their index, but {str(index)!r} names {shards}; mend it.")
    contents: dict[str, Stored | None] = {}
    for shard in shards:
        file = index.parent / shard
        if not file.is_file():
            raise ValueError(f"weights must be whole, but the shard {str(file)!r} is missing; fetch it again.")
        part = read(file, wanted)
        listed = {name for name, where in shard_of.items() if where == shard}
        # Compared in both directions, since an unlisted tensor may be a leftover of another model.
        for name in sorted(listed ^ set(part)):
            where = "is not in" if name in listed else "is unlisted in"
            raise ValueError(f"weights must be as their index says, but {name!r} {where} {str(file)!r}; fetch both.")
        contents |= part
    return contents


def _read_msgpack(file: Path, wanted: Callable[[str], bool]) -> dict[str, Stored | None]:
    try:
        contents = read_flax(read_regular(file), wanted)
    except NoTree as error:
        raise ValueError(
            f"weights must be a tree of arrays, but in {str(file)!r} {error}; name a flax_model.msgpack."
        ) from error
    except (ValueError, OSError) as error:
        raise ValueError(
            f"weights must be a whole msgpack file of Flax, but {str(file)!r} is not ({error}); fetch it again."
        ) from error
    # Sorted, so that messages about the first wrong tensor do not depend on the file.
    return {name: None if array is None else Stored.of(array) for name, array in sorted(contents.items())}


# The last word of a parameter, and its name in the PyTorch files of transformers.
_TORCH = {"kernel": "weight", "embedding": "weight", "scale": "weight"}


class _Slot(NamedTuple):
    """A tensor of a file: the parameters in it, in their order, and how they are laid out.

    **Arguments:**

    - `paths`: The paths of the parameters.
    - `shapes`: Their shapes.
    - `turned`: True if the tensor has the transposed maps, (out, in).
    - `groups`: The number of groups along the outputs, each of which has a part of every parameter.
    """

    paths: list[tuple[Any, ...]]
    shapes: list[tuple[int, ...]]
    turned: bool
    groups: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        first = self.shapes[0]
        whole = first if len(self.shapes) == 1 else (*first[:-1], sum(shape[-1] for shape in self.shapes))
        return whole[::-1] if self.turned else whole

    def split(self, array: np.ndarray) -> list[np.ndarray]:
        """The parameters, from the tensor."""
        array = array.T if self.turned else array
        if len(self.shapes) == 1:
            return [array]
        widths = [shape[-1] // self.groups for shape in self.shapes]
        grouped = array.reshape(*array.shape[:-1], self.groups, -1)
        parts = np.split(grouped, np.cumsum(widths)[:-1], axis=-1)
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        """The tensor, from the parameters."""
        if len(arrays) > 1:
            grouped = [array.reshape(*array.shape[:-1], self.groups, -1) for array in arrays]
            whole = np.concatenate(grouped, axis=-1)
            arrays = [whole.reshape(*arrays[0].shape[:-1], -1)]
        return arrays[0].T if self.turned else arrays[0]


def _slots(flat: Any, sizes: NetworkSizes, flax: bool) -> dict[str, _Slot]:
    """The tensors of a file of this network, by name, from its parameters and their paths."""
    family, members = FAMILIES.get(sizes.family), {}
    for path, value in flat:
        words = tuple(map(str, path))
        # The file has no such norm, and the network does not apply it: its parameters keep their initial values.
        if sizes.first_unnormed and words[:4] == ("layers", "0", "attention_norms", "read"):
            continue
        if family is None:  # a network of this package
            members.setdefault(".".join(words), []).append((0, "", path, value.shape))
            continue
        module, last = family.name_of(words, sizes)
        of_flax = "weight" if last == "scale" and sizes.norm == "rms" else last
        name = module if not last else f"{module}.{of_flax if flax else _TORCH.get(last, last)}"
        members.setdefault(name, []).append((_rank(family, words, sizes), last, path, value.shape))
    slots = {}
    for name, group in members.items():
        ranks, lasts, paths, shapes = zip(*sorted(group, key=lambda entry: entry[0]), strict=True)
        in_out = flax or (family is not None and family.in_out and str(paths[0][0]) == "layers")
        turned = lasts[0] == "kernel" and len(shapes[0]) == 2 and not in_out
        by_head = family is not None and any(name.rpartition(".")[0].endswith(entry) for entry in family.by_head)
        slots[name] = _Slot(list(paths), list(shapes), turned, sizes.num_heads if by_head else 1)
    return slots


def _rank(family: Family, words: tuple[str, ...], sizes: NetworkSizes) -> int:
    """The place of a parameter among those of one tensor: the order of the table of the family."""
    if words[0] != "layers":
        return 0
    listed = list(family.in_block(sizes))
    return next((k for k, module in enumerate(listed) if ".".join(words[2:]).startswith(f"{module}.")), 0)


def read_weights(folder: Path, sizes: NetworkSizes, options: dict[str, Any]) -> tuple[Network, tuple[str, ...]]:
    """A network with the weights of a folder, and the names of the tensors that were left out on purpose."""
    family = FAMILIES[sizes.family]
    # A pattern, since the heads for tasks differ between the classes of transformers that saved the file.
    left_out = re.compile(family.left_out)
    tensors = read_tensors(folder, lambda name: not left_out.match(family.bare(name)))
    return fill(tensors, sizes, options)


def fill(tensors: Tensors, sizes: NetworkSizes, options: dict[str, Any]) -> tuple[Network, tuple[str, ...]]:
    """A network with these tensors as its weights, and the names of the tensors that were left out on purpose.

    `options` are the depth, the number of heads and the dtype of the network.
    """
    family = FAMILIES[sizes.family]
    stored, sizes = _untied(_bare(tensors, family), sizes, tensors)
    stored = _without_copies(stored, _ties(family, sizes), tensors)
    _check_layers(sizes, stored, tensors)
    # The pooler and the head are built only if the file has them, so that no random weights remain.
    has = lambda *modules: any(
        name.startswith(f"{family.names[module]}.") for module in modules if module in family.names for name in stored
    )
    parts = {"pooler": has("pooler"), "head": has("head", "head.dense", "head.decoder", "head.project")}
    form, state, constants = _without_weights(sizes, tuple((options | parts).items()))
    flat = list(nnx.to_flat_state(state))
    slots = _slots(flat, sizes, tensors.flax)
    _account(list(slots), stored, tensors)
    values, dtype = {}, options["dtype"]
    for name, slot in slots.items():
        values |= zip(slot.paths, _parameters(name, slot, stored[name], tensors, dtype), strict=True)
    filled = []
    for path, variable in flat:
        # A norm that the network does not apply has no tensor.
        value = values[path] if path in values else jnp.ones(variable.shape, dtype)
        filled.append((path, variable.replace(value)))
    # `copy`, because networks of the same sizes are given the same `constants`.
    return nnx.merge(form, nnx.from_flat_state(filled), constants, copy=True), tensors.left_out


@functools.lru_cache(maxsize=32)
def _without_weights(sizes: NetworkSizes, options: tuple[tuple[str, Any], ...]) -> tuple[Any, Any, Any]:
    """The form of a network, the shapes of its parameters, and its numbers of layers that no file contains.

    The cache saves tracing the initialisers, most of the time of loading a small network, for networks of equal sizes.
    """
    # `eval_shape` avoids drawing random weights that would be replaced at once.
    split = lambda: nnx.split(Network(sizes, nnx.Rngs(0), **dict(options)), nnx.Param, ...)
    form, state, constants = nnx.eval_shape(split)
    # `jit` removes the random weights, which are not used.
    return form, state, jax.jit(lambda: split()[2])() if constants else constants


def _check_layers(sizes: NetworkSizes, stored: dict[str, Stored], tensors: Tensors) -> None:
    """Raise a ValueError if there are fewer tensors than layers, before a network with this many layers is built."""
    layers = sizes.num_blocks
    # Otherwise a `config.json` with a billion layers would build a billion modules before the names are compared.
    if layers > len(stored):
        raise ValueError(
            f"weights must be those of config.json, which has {layers} layers of weights, but {str(tensors.file)!r} "
            f"has {len(stored)} tensors; mend config.json, or name the folder of one model."
        )


def tensors(network: nnx.Module) -> dict[str, np.ndarray]:
    """The parameters of a network with the names and the layout of `transformers`.

    Saved by `safetensors.numpy.save_file` as `model.safetensors`, beside a `config.json`, they form a checkpoint that
    `load` reads back bit for bit, and that `transformers` can also read.

    **Arguments:**

    - `network`: The network of a model, `model.network`.

    **Returns:**

    A dictionary of NumPy arrays.

    **Raises:**

    - `ValueError` if `network` is not a network of `probe`.
    """
    network = check_instance(network, "network", Network, "a network of probe", "pass model.network, say")
    flat = {path: value for path, value in nnx.to_flat_state(nnx.state(network, nnx.Param))}
    slots = _slots(flat.items(), network.sizes, flax=False)
    # Contiguous, because safetensors writes the memory in its order.
    return {
        name: np.ascontiguousarray(slot.join([np.asarray(flat[path][...]) for path in slot.paths]))
        for name, slot in slots.items()
    }


def _bare(tensors: Tensors, family: Family) -> dict[str, Stored]:
    """The tensors under their names without the prefix of a model with a head."""
    stored: dict[str, Stored] = {}
    for name, tensor in tensors.stored.items():
        bare = family.bare(name)
        if bare in stored:
            raise ValueError(
                f"weights must name each tensor once, but {str(tensors.file)!r} has {bare!r} with and without a "
                "prefix; save it anew."
            )
        stored[bare] = tensor
    return stored


def _ties(family: Family, sizes: NetworkSizes) -> dict[str, str]:
    """The names of the copies of tied weights that transformers writes, each with its original."""
    names, ties = family.names, dict(family.copies)
    if sizes.head == "none":
        return ties
    decoder, masked = names["head.decoder"], sizes.head == "masked"
    # transformers names the bias of the decoder after the head if the decoder is tied, and after the decoder otherwise.
    biases = (f"{names['head']}.bias", f"{decoder}.bias") if masked else ("", "")
    if sizes.tied:
        ties |= {f"{decoder}.weight": f"{names['words']}.weight", f"{decoder}.kernel": f"{names['words']}.embedding"}
        biases = biases[::-1]
    return ties | {biases[0]: biases[1]} if biases[0] != biases[1] else ties


def _untied(stored: dict[str, Stored], sizes: NetworkSizes, tensors: Tensors) -> tuple[dict[str, Stored], NetworkSizes]:
    """The tensors and the sizes of a network with a separate decoder, if the file has different numbers for weights
    that its config.json ties, in which case transformers 5 ties nothing."""
    family = FAMILIES[sizes.family]
    ties = _ties(family, sizes) if sizes.tied or family.copies else {}
    differ = [copy for copy, name in ties.items() if copy in stored and not _is_copy(stored, copy, name)]
    if not differ:
        return stored, sizes
    pair = f"{differ[0]!r} and {ties[differ[0]]!r}"
    if not sizes.tied:
        raise ValueError(
            f"weights must be equal where the network has one matrix, but {pair} differ in {str(tensors.file)!r}; save "
            "it anew with one of them."
        )
    warnings.warn(
        f"{str(tensors.file)!r} holds different numbers for {pair}, which its config.json ties: both are read, as "
        "transformers 5 does; set tie_word_embeddings to false there.",
        stacklevel=2,
    )
    sizes = sizes._replace(tied=False)
    for copy, name in ties.items():
        if name in stored:
            turned = copy.endswith("kernel")
            stored.setdefault(copy, Stored.of(stored[name].read().T) if turned else stored[name])
    # Drops a bias that the separate decoder does not add.
    ties = _ties(family, sizes)
    return {name: tensor for name, tensor in stored.items() if name not in ties}, sizes


def _is_copy(stored: dict[str, Stored], copy: str, name: str) -> bool:
    """True if the file has equal numbers under both names, or only one of the names."""
    if name not in stored:
        return True
    array = stored[copy].read()
    return np.array_equal(stored[name].read(), array.T if copy.endswith("kernel") else array)


def _without_copies(stored: dict[str, Stored], ties: dict[str, str], tensors: Tensors) -> dict[str, Stored]:
    """The tensors without the copies of tied weights that transformers writes."""
    stored = dict(stored)
    for copy, name in ties.items():
        if copy not in stored:
            continue
        same, tensor = _is_copy(stored, copy, name), stored.pop(copy)
        # If the file has only the copy, it becomes the original.
        stored.setdefault(name, Stored.of(tensor.read().T) if copy.endswith("kernel") else tensor)
        if not same:
            warnings.warn(
                f"{str(tensors.file)!r} ties {copy!r} to {name!r}, but holds different numbers for them; {name!r} is "
                "used, as in transformers.",
                stacklevel=2,
            )
    return stored


def _account(names: list[str], stored: dict[str, Stored], tensors: Tensors) -> None:
    """Raise a ValueError unless the tensors of the file are exactly the parameters of the network."""
    file = str(tensors.file)
    missing = [name for name in names if name not in stored]
    if missing:
        raise ValueError(
            f"weights must be those of config.json, but {file!r} lacks {missing[0]!r}{_more(missing)}; name the folder "
            "of one whole model."
        )
    extra = sorted(set(stored) - set(names))
    if extra:
        raise ValueError(
            f"weights must be those of config.json, but {file!r} has {extra[0]!r}{_more(extra)}, which no part of the "
            "network is called; name the folder of one model."
        )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _parameters(name: str, slot: _Slot, stored: Stored, tensors: Tensors, dtype: Any) -> list[Any]:
    """The parameters in a tensor, checked for its shape and for finite values, in the requested precision."""
    if stored.shape != slot.shape:
        raise ValueError(
            f"weights must be those of config.json, but {name!r} of {str(tensors.file)!r} has the shape {stored.shape} "
            f"in place of {slot.shape}; name the folder of one model."
        )
    if not jnp.issubdtype(stored.dtype, jnp.floating):
        raise ValueError(
            f"weights must be floats, but {name!r} of {str(tensors.file)!r} is of {stored.dtype}; name a checkpoint "
            "that is not quantised."
        )
    values = []
    for part in slot.split(stored.read()):
        array = _aligned(part.shape, dtype)
        # A float64 of 1e300 is finite in the file but infinite in float32, which the check below finds.
        with np.errstate(over="ignore"):
            np.copyto(array, part, casting="unsafe")
        if not np.all(np.isfinite(array)):
            raise ValueError(
                f"weights must be finite, but {name!r} of {str(tensors.file)!r} holds NaN or infinity; train it again."
            )
        # The dtype is given, because jax otherwise compiles a program for each shape.
        values.append(jnp.asarray(array, dtype))
    return values


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array whose memory begins at a multiple of 64 bytes, which jax takes over on a CPU without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(dtype).reshape(shape)
