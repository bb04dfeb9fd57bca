"""One thing in one file: a run, a checkpoint or a model, written atomically and with a checksum.

The file has the format of safetensors: a JSON header with the dtype, shape and position of each array, then the arrays.
The metadata of the header has the rest of the state as JSON, under the name `MARK`, and in that JSON the SHA-256 of the
whole file with 64 zeros in place of the checksum. The bytes of a file depend on its content only.

Source: the documentation of safetensors, section "Format".
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .arrays import DTYPES, read_arrays
from .disk import replace
from .json import MOST_BYTES, NotRegular, decode, misfit, open_regular, read_regular, remedy_of


MARK = "clusterjax sealed"
BLANK = "0" * 64
# A model is the file of this name in its folder.
MODEL = "model.safetensors"
_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def checksum(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def seal(content: bytes) -> bytes:
    """`content` with its own checksum in place of the 64 zeros that stand first in it."""
    at = content.index(BLANK.encode())
    return content[:at] + checksum(content).encode() + content[at + len(BLANK) :]


def is_sealed(content: bytes, digest: str) -> bool:
    """True if `seal` made `content`, with this checksum in it."""
    # `seal` writes checksums of one length only.
    at = content.find(digest.encode("utf-8", "replace")) if len(digest) == len(BLANK) else -1
    return at >= 0 and checksum(content[:at] + BLANK.encode() + content[at + len(BLANK) :]) == digest


def is_whole(content: bytes, metadata: dict[str, str]) -> bool:
    """True unless the metadata of a file have a seal that does not fit the content of the file."""
    header = decode(metadata.get(MARK, "null"), finite=False)
    return MARK not in metadata or (isinstance(header, dict) and is_sealed(content, str(header.get("sha256"))))


def pack(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """The bytes of a file in the format of safetensors, whose library orders the metadata at random."""
    # The format has the bytes of each number in one order, the lowest first.
    arrays = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in arrays.items()}
    # Larger numbers come first, so that all arrays are aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": metadata}
    data, place = [np.ascontiguousarray(arrays[name]).tobytes() for name in names], 0
    for name, part in zip(names, data, strict=True):
        shape, offsets = list(arrays[name].shape), [place, place + len(part)]
        header[name] = {"dtype": _NAMES[arrays[name].dtype], "shape": shape, "data_offsets": offsets}
        place += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


class SealedFile(NamedTuple):
    """A kind of file.

    **Attributes:**

    - `argument`: The name of the caller's argument that names the file, for messages.
    - `format`, `version`: The marks in the header; a file with other marks is refused. None accepts every format.
    - `remedy`: The instruction for a file that cannot be used, for messages.
    - `follow`: Settings that follow from the others; a message names them only if no other setting differs.
    - `what`: The name of this kind of file in messages.
    """

    argument: str
    format: str | None
    version: int
    remedy: str
    follow: tuple[str, ...] = ()
    what: str = "file"

    def write(
        self, path: Path, arrays: dict[str, np.ndarray], settings: Any, metadata: dict[str, str] | None = None,
        **further: Any,
    ) -> None:  # fmt: skip
        """Write the file atomically, with the settings of the run and further parts of its state as JSON.

        `metadata` are further texts for the header of safetensors.
        """
        header = {"sha256": BLANK, "format": self.format, "version": self.version, "settings": settings} | further
        text = json.dumps(header, separators=(",", ":"))
        content = seal(pack(arrays, {MARK: text} | (metadata or {})))
        write_file(path, content, self.argument, self.what)

    def refuse_stranger(self, path: Path) -> None:
        """Raise a ValueError if `path` exists and this library did not write it; damaged files count as written."""
        try:
            with open_regular(path) as file:
                # The mark is the first name in the header.
                ours = f'"{MARK}'.encode() in file.read(128)
        except NotRegular:  # `write` refuses it, and names its kind
            return
        except OSError:
            ours = not os.path.lexists(path)
        if not ours:
            raise stranger(self.argument, path)

    def read(
        self, path: Path, settings: Any, form: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The header and the arrays of a file of this kind, of a run with these settings.

        `form` is the form of `further` in the header; see `clusterjax._files.json`. Any other file is a ValueError.
        """
        header, arrays = self.unpack(path, form)
        given, stored = plain(settings) or {}, header["settings"] or {}
        if differ := differing(given, stored):
            differ = {name: pair for name, pair in differ.items() if name not in self.follow} or differ
            needed, actual = (", ".join(f"{name} = {pair[k]}" for name, pair in differ.items()) for k in (0, 1))
            raise ValueError(
                f"{self.argument} must be of this run with {needed}, but {path} is of one with {actual}; {self.remedy}."
            )
        return header, arrays

    def unpack(self, path: Path, form: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The header, which includes the settings, and the arrays of the file of any run."""
        try:
            data = read_regular(path)
            arrays, _, metadata = read_arrays(data)
            header = decode(metadata.get(MARK, "{}"), finite=False)
        except (ValueError, OSError) as error:
            raise self.refusal(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
        if misfit(header, {"format": str if self.format is None else self.format, "version": int}) is not None:
            raise self.refusal(f"{path} is not")
        # In a later version every name that follows may have another meaning.
        if self.format is not None and header["version"] != self.version:
            raise ValueError(
                f"{self.argument} must be a {self.what} of version {self.version}, but {path} is of version "
                f"{header['version']}; read it with the clusterjax that wrote it, or a later one."
            )
        # The format is compared first, so that a file of another program is reported as such, and not as damaged.
        if not is_sealed(data, str(header.get("sha256"))):
            raise ValueError(
                f"{self.argument} must be as it was written, but {path} is damaged: its checksum is another; "
                f"{self.remedy}."
            )
        wrong = misfit(header, {"settings": (dict, None)} | (form or {}))
        if wrong is not None:
            raise self.refusal(f"in {path} {wrong}")
        return header, arrays

    def refusal(self, problem: str) -> ValueError:
        """The error of a file that cannot be used."""
        return ValueError(f"{self.argument} must be a {self.what} of this library, but {problem}; {self.remedy}.")


def check_beside(path: Path, argument: str, remedy: str) -> None:
    """Raise a ValueError if a sealed model in the same folder lists the file with a checksum that the file lacks."""
    files = _header_of(path.with_name(MODEL)).get("files", {})
    digest = files.get(path.name) if isinstance(files, dict) else None
    try:
        if digest is None or checksum(read_regular(path)) == digest:
            return
        problem = "is damaged or was changed: its checksum is another"
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    raise ValueError(f"{argument} must be as it was written, but {str(path)!r} {problem}; {remedy}.")


def format_of(path: Path) -> Any:
    """The format of a sealed file, by its header alone; None for any other file."""
    return _header_of(path).get("format")


def _header_of(path: Path) -> dict[str, Any]:
    """The header of a sealed file, unchecked; empty for any other file."""
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            metadata = decode(file.read(min(length, MOST_BYTES)))["__metadata__"]
        header = decode(str(metadata[MARK]), finite=False)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return header if isinstance(header, dict) else {}


def put_file(path: Path, content: bytes, argument: str) -> None:
    """Write a file of a model for other programs, such as its `config.json`; never replaces a file that differs."""
    try:
        former = read_regular(path)
    except OSError:
        former = b"" if os.path.lexists(path) else None
    if former is None:
        write_file(path, content, argument)
    elif former != content:
        raise stranger(argument, path)


def write_file(path: Path, content: bytes, argument: str, what: str = "file") -> None:
    """Write a file atomically, and create its folders; a ValueError if this fails, and the former file is then kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, content)
    except OSError as error:
        raise ValueError(
            f"{argument} must be a {what} that can be written, but {str(path)!r} cannot ({error.strerror or error}); "
            f"{remedy_of(error, 'make room and run again: files written before are kept')}."
        ) from error


def stranger(argument: str, path: Path) -> ValueError:
    """The error of a file of another program that would be replaced."""
    return ValueError(
        f"{argument} must hold no file of another program that would be replaced, but {str(path)!r} is one; move it "
        "away, or choose another folder."
    )


def plain(settings: Any) -> Any:
    """Settings as JSON returns them, so that tuples and lists compare equal."""
    return json.loads(json.dumps(settings))


def differing(given: dict[str, Any], stored: dict[str, Any], above: str = "") -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by name (`recipe.steps` if nested), as pairs of values; None if missing."""
    pairs: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*given, *stored}):
        here, there = given.get(name), stored.get(name)
        if isinstance(here, dict) and isinstance(there, dict):
            pairs |= differing(here, there, f"{above}{name}.")
        elif here != there:
            pairs[above + name] = here, there
    return pairs
