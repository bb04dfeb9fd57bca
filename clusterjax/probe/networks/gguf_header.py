"""The header of a GGUF file: its settings and the location of each tensor, checked against the bytes of the file.

A file begins with `GGUF`, its version, and the numbers of tensors and settings. The settings follow, each with name,
type and value; then the name, dimensions (the fastest first), type and offset of each tensor; then the tensors
themselves, each padded to the alignment. `gguf.GGUFReader` trusts these counts; here each count is checked against the
remaining bytes before anything is allocated.

Invariants: the memory for a header is at most a few times its size, which is bounded; every tensor lies within the
file, and no two overlap.

Source: the documentation of ggml, `gguf.md`; tensors follow each other in order, as `gguf.cpp` of llama.cpp requires.
"""

import contextlib
import math
import struct
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._check import refusal
from ..._disk import check
from ..._json import open_regular


ARCHITECTURES = ("llama", "mistral", "qwen2")
# A vocabulary of 250000 words with its merges has about ten million bytes and a million texts and numbers.
MOST_HEADER, MOST_ENTRIES, MOST_NAMES, MOST_AXES = 2**26, 2**22, 2**16, 4
ALIGNMENT, MOST_ALIGNMENT = 32, 2**16
VERSIONS = (2, 3)
_BOOL, _TEXT, _LIST = 7, 8, 9
# Format strings that `struct` and NumPy share.
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", _BOOL: "<B", 10: "<Q", 11: "<q", 12: "<d"}


class Place(NamedTuple):
    """A tensor of the file: its shape, slowest axis first, the ggml name of its type, and the range of its bytes."""

    shape: tuple[int, ...]
    kind: str
    begin: int
    end: int


class Header(NamedTuple):
    """The settings by name (texts, numbers and lists of these), and the location of each tensor."""

    settings: dict[str, Any]
    places: dict[str, Place]


@contextlib.contextmanager
def opened(file: Path) -> Iterator[tuple[Header, mmap]]:
    """The header of a file, and its bytes while the context is open.

    **Raises:**

    - `ValueError` if the file is not a complete GGUF file of a supported architecture.
    - `ImportError` if the library `gguf` is not installed.
    """
    file = Path(file)
    sizes = {int(kind): (kind.name, *size) for kind, size in library().constants.GGML_QUANT_SIZES.items()}
    again = "fetch it again, or name another"
    try:
        with open_regular(file) as stream:
            data = mmap(stream.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped, and a folder cannot be opened
        reason = getattr(error, "strerror", None) or error
        raise wrong(file, "be a GGUF file that can be read", f"{{}} is none ({reason})", again) from error
    with data:
        try:
            header = read_header(data, sizes)
        except ValueError as error:
            raise wrong(file, "be a whole GGUF file", f"{{}} is none ({error})", again) from error
        kind = header.settings.get("general.architecture")
        if not isinstance(kind, str) or kind not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise wrong(file, f"be of an architecture among {known}", f"{{}} is of {str(kind)[:60]!r}")
        check(file, "file", "fetch it again")
        yield header, data


def library() -> Any:
    """The library gguf, or an ImportError with the command that installs it."""
    try:
        import gguf  # pyright: ignore[reportMissingImports]
        import gguf.quants  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "reading a GGUF file needs gguf; install it with: pip install 'clusterjax[smollm2]'", name="gguf"
        ) from error
    return gguf


def wrong(file: Path, rule: str, found: str, remedy: str = "name another file") -> ValueError:
    """The error for a file that breaks `rule`; `found` describes the fault, with {} in place of the file name."""
    return refusal("file", rule, found.replace("{}", repr(str(file)), 1), remedy)


def read_header(data: bytes | mmap, sizes: dict[int, tuple[str, int, int]]) -> Header:
    """The header of a file in memory.

    **Arguments:**

    - `data`: The whole file.
    - `sizes`: The types of ggml by number: name, numbers per block, bytes per block.

    **Raises:**

    - `ValueError` if the data is not a complete file of this format; it gives a short reason for a message.
    """
    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    cursor = _Cursor(data)
    version = cursor.number("<I")
    if version and not version & 0xFFFF:
        raise ValueError("it is big-endian, and only little-endian files are read")
    if version not in VERSIONS:
        raise ValueError(f"it is of version {version}, and only {' and '.join(map(str, VERSIONS))} are read")
    num_tensors, num_settings = cursor.number("<Q"), cursor.number("<Q")
    if max(num_tensors, num_settings) > MOST_NAMES:
        raise ValueError(f"it claims {num_tensors} tensors and {num_settings} settings, at most {MOST_NAMES} are read")
    settings: dict[str, Any] = {}
    for _ in range(num_settings):
        name = cursor.text()
        if name in settings:
            raise ValueError(f"{name[:60]!r} is there twice")
        settings[name] = cursor.value(name)
    found = [(cursor.text(), *cursor.tensor()) for _ in range(num_tensors)]
    alignment = settings.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError("its general.alignment is no small power of two")
    return Header(settings, _places(found, _padded(cursor.place, alignment), alignment, len(data), sizes))


def _places(found: Any, start: int, alignment: int, length: int, sizes: Any) -> dict[str, Place]:
    places: dict[str, Place] = {}
    begin = start
    for name, shape, number, offset in found:
        short = repr(name[:60])
        if name in places:
            raise ValueError(f"the tensor {short} is there twice")
        if number not in sizes:
            raise ValueError(f"the tensor {short} is of type {number}, which is none of ggml")
        kind, block, width = sizes[number]
        # Python's integers do not overflow, so axes whose product exceeds 64 bits are detected.
        if shape[-1] % block:
            raise ValueError(f"the tensor {short} has rows of {shape[-1]} numbers, and {kind} has blocks of {block}")
        end = begin + math.prod(shape) // block * width
        if start + offset != begin:
            raise ValueError(f"the tensor {short} is at {offset} in place of {begin - start}")
        if end > length:
            raise ValueError(f"it ends before the tensor {short} does")
        places[name] = Place(shape, kind, begin, end)
        begin = _padded(end, alignment)
    return places


def _padded(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment


class _Cursor:
    """Reads the header sequentially, never beyond the end of the file or the maximum size of a header."""

    def __init__(self, data: bytes | mmap) -> None:
        self.data, self.place, self.entries = data, 4, 0
        self.end = min(len(data), MOST_HEADER)

    def take(self, size: int) -> int:
        """The position of the next `size` bytes, which are then consumed."""
        place = self.place
        if size > self.end - place:
            more = f"its header has more than {self.end} bytes"
            raise ValueError("it ends before its header does" if self.end == len(self.data) else more)
        self.place += size
        return place

    def number(self, form: str) -> Any:
        return struct.unpack_from(form, self.data, self.take(struct.calcsize(form)))[0]

    def texts(self, number: int) -> list[str]:
        """The next `number` texts, each preceded by its length; in one loop, since vocabularies are long."""
        found = []
        for _ in range(number):
            begin = self.place + 8
            size = int.from_bytes(self.data[self.place : begin], "little")
            if begin + size > self.end:
                self.take(8 + size)
            self.place = begin + size
            try:
                found.append(self.data[begin : self.place].decode())
            except UnicodeDecodeError as error:
                raise ValueError(f"the text at byte {begin} is not in UTF-8") from error
        return found

    def text(self) -> str:
        return self.texts(1)[0]

    def value(self, name: str) -> Any:
        kind = self.number("<I")
        if kind != _LIST:
            return self.scalar(kind, name)
        inner, length = self.number("<I"), self.number("<Q")
        self.entries += length
        if self.entries > MOST_ENTRIES:
            raise ValueError(f"its lists have more than {MOST_ENTRIES} entries")
        if inner == _TEXT:
            return self.texts(length)
        if inner not in _NUMBERS:
            raise ValueError(f"{name[:60]!r} is a list of type {inner}, which is not read")
        dtype = np.dtype(_NUMBERS[inner])
        place = self.take(length * dtype.itemsize)
        return np.frombuffer(self.data, dtype, length, place).tolist()

    def scalar(self, kind: int, name: str) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind not in _NUMBERS:
            raise ValueError(f"{name[:60]!r} is of type {kind}, which GGUF does not have")
        number = self.number(_NUMBERS[kind])
        if kind == _BOOL and number > 1:
            raise ValueError(f"{name[:60]!r} is neither true nor false")
        return bool(number) if kind == _BOOL else number

    def tensor(self) -> tuple[tuple[int, ...], int, int]:
        """The shape, slowest axis first, the type and the offset of the next tensor."""
        axes = self.number("<I")
        if not 0 < axes <= MOST_AXES:
            raise ValueError(f"it has a tensor of {axes} axes")
        shape = tuple(self.number("<Q") for _ in range(axes))
        if not all(shape):
            raise ValueError(f"it has a tensor of shape {shape[::-1]}")
        return shape[::-1], self.number("<I"), self.number("<Q")
