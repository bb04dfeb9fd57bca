"""Reads arrays from memory, in the formats of safetensors and of NumPy.

Every size is compared with the file before an array is allocated. In safetensors, eight bytes give the length of a JSON
header, which gives the dtype, the shape and the byte range of each tensor; the byte ranges follow one another without a
gap, to the end of the file. No array is therefore larger than the file, whatever the header claims. (The library of
safetensors copies all tensors of a file, also those that are left out, and has no complex numbers.)

Source: the documentation of safetensors, section "Format".
"""

import io
import math
import zipfile
from collections.abc import Callable
from mmap import mmap
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .json import MOST_BYTES, Within, decode, misfit, room_for


DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": jnp.bfloat16, "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8",
}  # fmt: skip
_SIZE = Within(int, 0, 2**62)
_TENSOR = {"dtype": str, "shape": [_SIZE], "data_offsets": [_SIZE], str: ()}
_HEADER = {"__metadata__?": {str: str}, str: _TENSOR}
MOST_UNPACKED = 2**29
_LONGEST = 2**62


class NotRead(ValueError):
    """The error of a tensor, in an intact file, whose dtype NumPy does not have, such as eight-bit floats."""


class Arrays(NamedTuple):
    """The content of a file.

    `arrays` has the wanted arrays, `left_out` the names of the others, and `metadata` the texts of the header.
    """

    arrays: dict[str, np.ndarray]
    left_out: tuple[str, ...]
    metadata: dict[str, str]


class Place(NamedTuple):
    """Where the bytes of an array are in its file, and what they mean."""

    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int
    size: int


class Places(NamedTuple):
    """The wanted arrays of a file, the names of the others, and the texts of the header."""

    places: dict[str, Place]
    left_out: tuple[str, ...]
    metadata: dict[str, str]


def read_arrays(data: bytes | mmap, wanted: Callable[[str], bool] = lambda name: True) -> Arrays:
    """Copies of the tensors of a file that is in memory, for whose names `wanted` returns True.

    For a file that is not complete, or a wanted tensor of a dtype that NumPy does not have, a ValueError gives the
    reason in a few words.
    """
    places, left_out, metadata = find_arrays(data, wanted)
    # A sparse file occupies no space on the disk, but the copies of its tensors occupy memory.
    needed = sum(place.size for place in places.values())
    if needed > (room := room_for(needed)):
        raise ValueError(f"its tensors take {needed} bytes, and {room} bytes of memory are free")
    arrays = {}
    for name, (shape, dtype, begin, size) in places.items():
        flat = np.frombuffer(data, np.uint8, size, begin).copy().view(dtype)
        if dtype == np.bool_ and np.any(flat.view(np.uint8) > 1):
            raise ValueError(f"tensor {name!r} holds bytes that are neither true nor false")
        arrays[name] = flat.reshape(shape)
    return Arrays(arrays, left_out, metadata)


def find_arrays(data: bytes | mmap, wanted: Callable[[str], bool] = lambda name: True) -> Places:
    """The places of the tensors of a file, as `read_arrays` reads them."""
    header, start = _header(data)
    metadata = header.pop("__metadata__", {})
    place, places, left_out = 0, {}, []
    for key, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype = np.dtype(DTYPES[tensor["dtype"]]) if tensor["dtype"] in DTYPES else None
        begin, end = tensor["data_offsets"] if len(tensor["data_offsets"]) == 2 else (-1, -1)
        size = end - begin if dtype is None else math.prod(tensor["shape"]) * dtype.itemsize
        if begin != place or end - begin != size or start + end > len(data) or len(tensor["shape"]) > 32:
            raise ValueError(f"tensor {key!r} is not where its header says")
        place = end
        if not wanted(key):
            left_out.append(key)
            continue
        if dtype is None:
            raise NotRead(f"tensor {key!r} is of {tensor['dtype']!r}, which is not read")
        # An array may be empty although the product of its other axes overflows an integer.
        if max(tensor["shape"], default=0) > _LONGEST or (
            size == 0 and math.prod(filter(None, tensor["shape"])) > _LONGEST
        ):
            raise ValueError(f"tensor {key!r} has no such shape")
        places[key] = Place(tuple(tensor["shape"]), dtype, start + begin, size)
    if start + place != len(data):
        raise ValueError("it has another length than its header says")
    return Places(places, tuple(sorted(left_out)), metadata)


def _header(data: bytes | mmap) -> tuple[dict[str, Any], int]:
    """The header, and the byte at which the tensors begin."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ValueError("it ends before its header does")
    if length > MOST_BYTES:
        raise ValueError(f"its header has {length} bytes, at most {MOST_BYTES} are read")
    header = decode(data[8 : 8 + length])
    wrong = misfit(header, _HEADER)
    if wrong is not None:
        raise ValueError(f"in its header {wrong}")
    return header, 8 + length


def read_npz(data: bytes, most: int = MOST_UNPACKED) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, at most `most` bytes once they are unpacked; a ValueError gives the reason."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if sum(info.file_size for info in infos) > most:
                raise ValueError(f"its arrays have more than {most} bytes")
            return {info.filename.removesuffix(".npy"): read_npy(archive.read(info)) for info in infos}
    except Exception as error:  # its type depends on the position of the damage, and on the compression
        raise ValueError(str(error).strip().splitlines()[0] if str(error).strip() else repr(error)) from error


def read_npy(data: bytes) -> np.ndarray:
    """The array of an `.npy` file; a ValueError gives the reason why there is none."""
    try:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # the header is a line of Python, which can be invalid in many ways
        raise ValueError(f"it is no array of numbers: {str(error).strip().splitlines()[:1]}") from error
