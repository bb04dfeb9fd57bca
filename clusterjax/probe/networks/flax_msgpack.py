"""Reader for the msgpack files of Flax: trees of arrays, each checked against the available bytes before allocation.

In these files an array is an extension of type 1, which contains, again in msgpack, its shape, the name of its dtype
and its bytes; an array of more than 2^30 bytes is a map of its chunks.

Source: `flax.serialization`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np


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
