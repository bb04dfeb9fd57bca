"""Files of a store: arrays as bytes, the encoding of the zarr folder, and what it takes to have files on the disk.

Nothing here knows what a sweep is; `_store` says what is written when. Batches are packed as raw bytes with the names
of their dtypes, since safetensors has not all of NumPy's; the zarr folder is written by xarray and sealed by
`_checksums`.

Invariants: packing and unpacking is exact, bit for bit; the final folder does not depend on the order in which the
disk lists files.
"""

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from ._checksums import ROOT, seal


_CHUNK_BYTES = 2**26


def file_stamp(path: Path) -> tuple[int, ...] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    # A file that is replaced gets another inode, also within the resolution of the clock.
    return state.st_ino, state.st_mtime_ns, state.st_size


@contextlib.contextmanager
def without_zarr_warnings() -> Iterator[None]:
    """Suppresses warnings about extensions that the specification of zarr 3 does not have yet, but all readers know."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata|The codec `vlen-utf8`|The dtype `StringDType")
        yield


def pack(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays as bytes, which every file format can hold, and the names of their dtypes."""
    packed = {name: np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8) for name, array in arrays.items()}
    return packed, {name: array.dtype.name for name, array in arrays.items()}


def unpack(packed: dict[str, np.ndarray], dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(packed[name].tobytes(), jnp.dtype(dtype)) for name, dtype in dtypes.items()}


def with_object_words(dataset: xr.Dataset) -> xr.Dataset:
    """`dataset` with its strings as arrays of objects again, in which versions of zarr differ."""
    columns = {name: array.astype(object) for name, array in dataset.variables.items() if array.dtype.kind == "T"}
    return dataset.assign(columns) if columns else dataset


def encoding_of(dataset: xr.Dataset) -> dict[Any, dict[str, Any]]:
    """One chunk for each array; a large one is divided along its first axis."""
    encoding = {}
    for name, array in dataset.variables.items():
        first = array.shape[0] if array.ndim else 1
        # About 64 MiB a chunk, so that most arrays are one file.
        rows = max(1, min(first, int(_CHUNK_BYTES * first / max(1, array.nbytes))))
        encoding[name] = {"chunks": (rows, *array.shape[1:])} if array.size else {}
    return encoding


def write_root(folder: Path, names: list[str], identity: dict[str, str]) -> None:
    """Write the root: variables in the order of the data set, which zarr lists in the order of the disk, and the
    checksums of all files."""
    root = json.loads((folder / ROOT).read_text("utf-8"))
    # Readers list variables in the order of this metadata.
    listed = root["consolidated_metadata"]["metadata"]
    root["consolidated_metadata"]["metadata"] = {name: listed[name] for name in names}
    (folder / ROOT).write_text(json.dumps(seal(folder, root, identity), indent=2), "utf-8")


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Flush every file and folder below `folder` to the disk."""
    for root, _, files in os.walk(folder):
        for file in files:
            sync_folder(Path(root) / file)
        sync_folder(Path(root))


def sync_folder(path: Path) -> None:
    # Windows cannot open a folder to flush it.
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    # A rename is safe from a loss of power once file and folder are flushed.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
