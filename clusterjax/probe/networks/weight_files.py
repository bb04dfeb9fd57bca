"""Reader for the tensors of a checkpoint folder: safetensors or Flax's msgpack, in one file or in shards.

The first of the following that exists is read: `model.safetensors`, the shards of its index, `flax_model.msgpack`, the
shards of its index. Formats: the specification of safetensors; `flax.serialization`.

Invariants: a pickle is never read, because that runs code; a shard is in the folder of its index, so that no path leads
out of the folder; an index and its shards list the same tensors; an unwanted tensor is named and not loaded.
"""

from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._arrays import NotRead, read_arrays
from ..._disk import check
from ..._json import decode, misfit, open_regular, read_bounded, read_regular
from .flax_msgpack import NoTree, read_flax


WHOLE, FLAX = "model.safetensors", "flax_model.msgpack"
INDEX, FLAX_INDEX = f"{WHOLE}.index.json", f"{FLAX}.index.json"
MOST_INDEX = 2**26
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Tensors(NamedTuple):
    """The tensors in the files of a folder, under dotted names.

    `arrays` has the wanted tensors and `left_out` the names of the others; `flax` is True if the names are Flax's.
    """

    arrays: dict[str, np.ndarray]
    left_out: tuple[str, ...]
    flax: bool
    file: Path


def read_tensors(folder: Path, wanted: Callable[[str], bool]) -> Tensors:
    """The tensors of a folder; unwanted tensors are not loaded, where the format allows it, and only named."""
    if (folder / WHOLE).is_file():
        return _tensors(_read_safetensors(folder / WHOLE, wanted), folder / WHOLE)
    if (folder / INDEX).is_file():
        return _tensors(_read_shards(folder / INDEX, _read_safetensors, wanted), folder / INDEX)
    if (folder / FLAX).is_file():
        return _tensors(_read_msgpack(folder / FLAX, wanted), folder / FLAX)
    if (folder / FLAX_INDEX).is_file():
        return _tensors(_read_shards(folder / FLAX_INDEX, _read_msgpack, wanted), folder / FLAX_INDEX)
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


def _tensors(contents: dict[str, np.ndarray | None], file: Path) -> Tensors:
    arrays = {name: array for name, array in contents.items() if array is not None}
    left_out = tuple(sorted(name for name, array in contents.items() if array is None))
    return Tensors(arrays, left_out, file.name in (FLAX, FLAX_INDEX), file)


def _read_safetensors(file: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray | None]:
    try:
        with open_regular(file) as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            # A memory map, so that the unwanted decoder of a T5 is never read from the disk.
            tensors_read = read_arrays(data, wanted)
    except NotRead as error:
        raise ValueError(
            f"weights must be of a dtype that NumPy has, such as F32 or BF16, but in {str(file)!r} {error}; save the "
            "model anew in bfloat16 or float32."
        ) from error
    except (ValueError, OSError) as error:
        raise ValueError(
            f"weights must be a whole safetensors file, but {str(file)!r} is not ({error}); fetch it again."
        ) from error
    check(file, "weights", "fetch it again")
    return tensors_read.arrays | dict.fromkeys(tensors_read.left_out)


def _read_shards(index: Path, read: Callable[..., Any], wanted: Callable[[str], bool]) -> dict[str, np.ndarray | None]:
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
    contents: dict[str, np.ndarray | None] = {}
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


def _read_msgpack(file: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray | None]:
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
    check(file, "weights", "fetch it again")
    # Sorted, so that messages about the first wrong tensor do not depend on the file.
    return dict(sorted(contents.items()))
