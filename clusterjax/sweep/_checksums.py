"""What a finished store says of itself, with a checksum of each of its files, and of itself.

It is in the attribute `sweep` of the root `zarr.json`, as JSON: format, version, identity, `files` (the
SHA-256 of each other file by its path), and `itself`, that of what the root holds while `itself` is empty. Stores of
version 1, as clusterjax 0.1.0 wrote them, have neither of the two.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._json import MOST_BYTES, decode, misfit, open_regular, parse, read_regular


FORMAT, VERSION = "clusterjax sweep", 2
ROOT = "zarr.json"

_WORDS = {"identity": {str: str}}
_FORMS = (
    {"format": FORMAT, "version": 1, "files?": (), "itself?": (), **_WORDS},
    {"format": FORMAT, "version": VERSION, "files": {str: str}, "itself": str, **_WORDS},
)


def seal(folder: Path, root: dict[str, Any], identity: dict[str, str]) -> dict[str, Any]:
    """The root file of the zarr store in `folder`, with its record: format, identity and checksums."""
    # All but the root, which holds the list.
    files = {name: _digest(folder / name) for name in sorted(_files(folder)) if name != ROOT}
    record = {"format": FORMAT, "version": VERSION, "identity": identity, "files": files, "itself": ""}
    attributes = root["attributes"]
    root = root | {"attributes": attributes | {"sweep": json.dumps(record)}}
    # The checksum of the root is taken with an empty entry in its own place.
    return root | {"attributes": attributes | {"sweep": json.dumps(record | {"itself": _digest_of(root)})}}


def read_root(path: Path) -> dict[str, Any] | None:
    """The record in the root file of a store; None if there is no root, or it is whole and of another zarr store.

    **Raises:**

    - `ValueError` if the root is cut short or damaged.
    """
    try:
        root = decode(read_regular(path, MOST_BYTES), finite=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ValueError(
            f"store must have a whole {ROOT}, but {str(path)!r} cannot be read "
            f"({getattr(error, 'strerror', None) or error}): it is damaged or was cut short; put back a copy of that "
            "file, or remove its folder and run again."
        ) from error
    try:
        sealed = root["attributes"]["sweep"] if misfit(root, {"attributes": {"sweep": str}}) is None else "{}"
        record = parse(sealed, {"format": FORMAT}, "sweep", "store", "", finite=False)
    except ValueError:
        return None
    if misfit(record, _FORMS) is None:
        # Written by 0.1.0, without checksums.
        if record["version"] == 1:
            return record
        empty = root | {"attributes": root["attributes"] | {"sweep": json.dumps(record | {"itself": ""})}}
        if _digest_of(empty) == record["itself"]:
            return record
    raise ValueError(f"store must be as it was written, but {str(path)!r} is damaged; remove its folder and run again.")


def damaged(folder: Path, record: dict[str, Any]) -> Iterator[str]:
    """A description of each damaged file of the store in `folder`, given its record."""
    for name, digest in record.get("files", {}).items():
        path = folder / name
        try:
            actual = _digest(path)
        except OSError as error:
            yield f"{str(path)!r} cannot be read ({error.strerror or error})"
        else:
            if actual != digest:
                yield f"{str(path)!r} has another checksum"


def _files(folder: Path) -> Iterator[str]:
    for root, _, names in os.walk(folder):
        yield from ((Path(root) / name).relative_to(folder).as_posix() for name in names)


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(root: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(root, sort_keys=True).encode()).hexdigest()
