"""Ways to damage a file, each drawn from a generator: bits, lengths, pieces, JSON, headers, archives."""

import functools
import gzip
import io
import json
import struct
import zipfile
from typing import Any

import numpy as np


HUGE = (0, -1, 1, 7, 2**31, 2**53, 2**63, 10**30, 10**400)
ODD = (
    None, True, "", "x", "\ud800", "int8", "NaN", [], [[]], [0, 1], {}, {"": {}}, 1.5, float("nan"),
    float("inf"), *HUGE,
)  # fmt: skip


def mutated(name: str, data: bytes, rng: np.random.Generator, other: bytes) -> tuple[str, bytes]:
    """Returns the name of the damage, and the damaged file; `other` is another file of the folder."""
    ways = [flipped, flipped, cut, doubled, spliced, zeroed, swapped_blocks, emptied]
    if name.endswith(".gz"):
        ways += 4 * [functools.partial(repacked, name)]
    elif name.endswith(".npz"):
        ways += 4 * [rezipped]
    elif name.endswith(".npy"):
        ways += 2 * [of_header]
    elif name.endswith(".msgpack"):
        ways += 2 * [of_counts]
    elif is_tensors(data):
        ways += 3 * [of_tensors] + 2 * [not_finite]
    elif data[:1] in (b"{", b"["):
        ways += 8 * [of_json]
    way = ways[rng.integers(len(ways))]
    return getattr(way, "__name__", "repacked"), way(data, rng, other)


def flipped(data: bytes, rng: Any, other: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.integers(1, 9) if rng.random() < 0.3 else 1):
        if changed:
            changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
    return bytes(changed)


def cut(data: bytes, rng: Any, other: bytes) -> bytes:
    return data[: rng.integers(len(data) + 1)] if rng.random() < 0.7 else data[rng.integers(len(data) + 1) :]


def doubled(data: bytes, rng: Any, other: bytes) -> bytes:
    start, end = sorted(rng.integers(0, len(data) + 1, 2))
    return data[:end] + data[start:end] * rng.integers(1, 4) + data[end:]


def spliced(data: bytes, rng: Any, other: bytes) -> bytes:
    if rng.random() < 0.3:
        return other
    start, end = sorted(rng.integers(0, len(other) + 1, 2))
    at = rng.integers(len(data) + 1)
    return data[:at] + other[start:end] + data[at + (end - start) * rng.integers(2) :]


def zeroed(data: bytes, rng: Any, other: bytes) -> bytes:
    start = int(rng.integers(len(data) + 1))
    end = min(len(data), start + int(rng.integers(1, 64)))
    return data[:start] + bytes([rng.choice([0, 255, 0x7F])]) * (end - start) + data[end:]


def swapped_blocks(data: bytes, rng: Any, other: bytes) -> bytes:
    a, b, c = sorted(rng.integers(0, len(data) + 1, 3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def emptied(data: bytes, rng: Any, other: bytes) -> bytes:
    return b"" if rng.random() < 0.5 else b"\0" * len(data)


def of_json(data: bytes, rng: Any, other: bytes) -> bytes:
    """Inserts a value of another type, a huge count or deep nesting, or removes, renames or repeats a name."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        return flipped(data, rng, other)
    places: list[tuple[Any, Any]] = []
    pending = [whole]
    while pending:
        at = pending.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        places += [(at, key) for key in keys]
        pending += [at[key] for key in keys]
    if not places:
        return b"[" * 100_000
    holder, key = places[rng.integers(len(places))]
    way = rng.integers(8)
    if way < 4:
        holder[key] = ODD[rng.integers(len(ODD))]
    elif way == 4:
        del holder[key]
    elif way == 5 and isinstance(holder, dict):
        holder[str(ODD[rng.integers(len(ODD))])] = holder.pop(key)
    elif way == 6:
        holder[key] = "HERE"
        deep = int(rng.choice([70, 5000, 100_000]))
        return json.dumps(whole).replace('"HERE"', "[" * deep + "]" * deep).encode("utf-8", "surrogatepass")
    elif way == 7 and isinstance(holder, dict):
        text = json.dumps({key: holder[key]})[1:-1]
        return json.dumps(whole).replace(text, f"{text}, {json.dumps(key)}: 3", 1).encode("utf-8", "surrogatepass")
    return json.dumps(whole).encode("utf-8", "surrogatepass")


def is_tensors(data: bytes) -> bool:
    return len(data) > 9 and data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data)


def of_tensors(data: bytes, rng: Any, other: bytes) -> bytes:
    """Changes the header, and states its new length or a false length."""
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length]
    if rng.random() < 0.4:
        text = inner_json(text, rng)
    else:
        text = of_json(text, rng, other)
    claimed = len(text) if rng.random() < 0.9 else int(rng.choice([0, 1, 2**31, 2**62]))
    return claimed.to_bytes(8, "little") + text + data[8 + length :]


def inner_json(text: bytes, rng: Any) -> bytes:
    """Changes the JSON that the header's metadata hold as a text."""
    try:
        whole = json.loads(text)
        name, inner = next(iter(whole["__metadata__"].items()))
        whole["__metadata__"][name] = of_json(inner.encode(), rng, b"").decode("utf-8", "surrogatepass")
        return json.dumps(whole).encode("utf-8", "surrogatepass")
    except (ValueError, KeyError, StopIteration, RecursionError):
        return of_json(text, rng, b"")


def not_finite(data: bytes, rng: Any, other: bytes) -> bytes:
    """Puts NaN or infinity into one tensor of floats."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    tensors = [one for name, one in header.items() if name != "__metadata__" and one["dtype"] in ("F32", "F64")]
    tensors = [one for one in tensors if one["data_offsets"][0] < one["data_offsets"][1]]
    if not tensors:
        return flipped(data, rng, other)
    tensor = tensors[rng.integers(len(tensors))]
    size = 4 if tensor["dtype"] == "F32" else 8
    begin, end = tensor["data_offsets"]
    at = 8 + length + begin + size * int(rng.integers((end - begin) // size))
    value = float(rng.choice([np.nan, np.inf, -np.inf]))
    return data[:at] + struct.pack("<f" if size == 4 else "<d", value) + data[at + size :]


def of_header(data: bytes, rng: Any, other: bytes) -> bytes:
    """Puts another shape or dtype into the header of an `.npy` file."""
    for old, new in ((b"(", b"(%d, " % HUGE[rng.integers(len(HUGE) - 2)]), (b"<f", b"<c"), (b"<f8", b"|O8")):
        if old in data[:128] and rng.random() < 0.6:
            length = len(data[:128])
            head = data[:128].replace(old, new, 1)[:length].ljust(length)
            return head + data[128:]
    return flipped(data, rng, other)


def of_counts(data: bytes, rng: Any, other: bytes) -> bytes:
    """Inserts a map, an array, a text or bytes of msgpack that claim to be very long."""
    at = rng.integers(len(data) + 1)
    mark = bytes([rng.choice([0xDD, 0xDF, 0xDB, 0xC6, 0xC9, 0xDE, 0xDC])])
    return data[:at] + mark + b"\x7f\xff\xff\xff" + data[at + 5 * rng.integers(2) :]


def repacked(name: str, data: bytes, rng: Any, other: bytes) -> bytes:
    """Damages the content of an archive that is itself whole."""
    inner = gzip.decompress(data)
    way, changed = mutated(name.removesuffix(".gz"), inner, rng, other)
    return gzip.compress(changed, 1)


def rezipped(data: bytes, rng: Any, other: bytes) -> bytes:
    """Damages one array of an archive that is itself whole."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as held, zipfile.ZipFile(stream, "w") as made:
        names = held.namelist()
        chosen = names[rng.integers(len(names))]
        for name in names:
            inner = held.read(name)
            made.writestr(name, mutated("x.npy", inner, rng, other)[1] if name == chosen else inner)
    return stream.getvalue()
