"""What a finished store says of itself, with a checksum of each of its files, and of itself.

It stands in the attribute `sweep` of the root `zarr.json`, as JSON: format, version, identity, `files` (the
SHA-256 of each other file by its path), and `itself`, that of what the root holds while `itself` is empty. Stores of
version 1, as clusterjax 0.1.0 wrote them, have neither of the two.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._json import misfit, parse


FORMAT, VERSION = "clusterjax sweep", 2
ROOT = "zarr.json"

_WORDS = {"identity": {str: str}}
_FORMS = (
    {"format": FORMAT, "version": 1, "files?": (), "itself?": (), **_WORDS},
    {"format": FORMAT, "version": VERSION, "files": {str: str}, "itself": str, **_WORDS},
)


def seal(folder: Path, root: dict[str, Any], identity: dict[str, str]) -> dict[str, Any]:
    """The contents of the root file of the zarr store in `folder`, with what it says of itself."""
    files = {name: _digest(folder / name) for name in sorted(_files(folder)) if name != ROOT}
    word = {"format": FORMAT, "version": VERSION, "identity": identity, "files": files, "itself": ""}
    attributes = root["attributes"]
    root = root | {"attributes": attributes | {"sweep": json.dumps(word)}}
    return root | {"attributes": attributes | {"sweep": json.dumps(word | {"itself": _digest_of(root)})}}


def read_root(path: Path) -> dict[str, Any] | None:
    """What the store with this root file says of itself; None if it is no store of a sweep.

    **Raises:**

    - `ValueError` if it is one whose root is damaged.

    Source: this library.
    """
    try:
        root = parse(path.read_bytes(), {"attributes": {"sweep": str}}, "zarr.json", "store", "", finite=False)
        word = parse(root["attributes"]["sweep"], {"format": FORMAT}, "sweep", "store", "", finite=False)
    except (OSError, ValueError):
        return None
    if misfit(word, _FORMS) is None:
        if word["version"] == 1:
            return word
        empty = root | {"attributes": root["attributes"] | {"sweep": json.dumps(word | {"itself": ""})}}
        if _digest_of(empty) == word["itself"]:
            return word
    raise ValueError(f"store must be as it was written, but {str(path)!r} is damaged; remove its folder and run again.")


def damaged(folder: Path, word: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the files of the store in `folder`, whose root says `word`, in a few words each."""
    for name, digest in word.get("files", {}).items():
        path = folder / name
        try:
            found = _digest(path)
        except OSError as error:
            yield f"{str(path)!r} cannot be read ({error.strerror or error})"
        else:
            if found != digest:
                yield f"{str(path)!r} has another checksum"


def _files(folder: Path) -> Iterator[str]:
    for root, _, names in os.walk(folder):
        yield from ((Path(root) / name).relative_to(folder).as_posix() for name in names)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(root: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(root, sort_keys=True).encode()).hexdigest()
