"""Files that are there whole or not at all, each with a checksum that says whether it is still what was written.

A file alone carries its checksum within (`seal`): where 64 zeros stand first, the SHA-256 of the whole is put. Files
that belong to one folder are written together (`write_folder`), with `checksums.json` beside them:

1. every file is written in full under another name, `model.safetensors.draft`, and forced to the disk;
2. `checksums.json.draft`, which lists them, is put beside them in one step: from now on the new files count;
3. each draft is renamed to what it is called, `checksums.json` last.

A process that is stopped before 2 leaves the old files; one that is stopped after it leaves all that `settle` needs to
do 3, which every reader does first. Folders without `checksums.json`, as version 0.1.0 wrote them, are read unchecked.

Source: this library.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._json import MOST_BYTES, parse, read_bounded, read_json


CHECKSUMS = "checksums.json"
BLANK = "0" * 64
_FORM = {"format": "clusterjax checksums", "version": 1, "itself": str, "sha256": {str: str}, "gone": [str], str: ()}


def replace(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one step: whatever happens, there is the old file or the new one.

    **Raises:**

    - `OSError` if it cannot be written, with what was there before kept.

    Source: this library.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        _write_new(partial, content)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that nobody else has open under this name, in place of one that a killed process left there.

    A link of that name is removed, never followed, so that nothing outside of the folder is written.
    """
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o666), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        if os.name == "posix" and os.fstat(file.fileno()).st_nlink == 0:
            raise FileExistsError(17, "another process writes it at the same time", str(path))


def seal(content: bytes) -> bytes:
    """`content` with its own checksum in place of the 64 zeros that stand first in it.

    Source: this library.
    """
    at = content.index(BLANK.encode())
    return content[:at] + checksum(content).encode() + content[at + len(BLANK) :]


def is_sealed(content: bytes, digest: str) -> bool:
    """Whether `content` is what `seal` made, with this checksum in it.

    Source: this library.
    """
    at = content.find(digest.encode("utf-8", "replace")) if len(digest) == len(BLANK) else -1
    return at >= 0 and checksum(content[:at] + BLANK.encode() + content[at + len(BLANK) :]) == digest


def checksum(content: bytes) -> str:
    """SHA-256, in hexadecimal digits.

    Source: this library.
    """
    return hashlib.sha256(content).hexdigest()


def write_folder(folder: Path, contents: dict[str, bytes], gone: Sequence[str] = ()) -> None:
    """Write files of one folder together, as the head of this file says; it is made if it is not there.

    **Arguments:**

    - `folder`: Where.
    - `contents`: The bytes of each file. Files that are in the folder and not among these stay.
    - `gone`: Files to remove in the same step.

    **Raises:**

    - `OSError` if something cannot be written, with what was there before kept.

    Source: this library.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settle(folder)
    listed = _listed(folder / CHECKSUMS) if (folder / CHECKSUMS).is_file() else {}
    listed = {name: digest for name, digest in listed.items() if name not in gone}
    listed |= {name: checksum(content) for name, content in contents.items()}
    record = {"format": _FORM["format"], "version": 1, "itself": BLANK}
    record |= {"sha256": dict(sorted(listed.items())), "gone": sorted(gone)}
    drafts = [_draft(folder, name) for name in contents]
    try:
        for name, content in contents.items():
            _write_new(_draft(folder, name), content)
        replace(_draft(folder, CHECKSUMS), seal((json.dumps(record, indent=1) + "\n").encode()))
    except BaseException:
        for draft in drafts:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
        raise
    settle(folder)


def settle(folder: Path) -> None:
    """Finish what a process that was stopped in `write_folder` began, if all of it is there.

    **Raises:**

    - `OSError` if the folder cannot be written.
    - `ValueError` if the list of the new files is damaged.

    Source: this library.
    """
    journal = _draft(folder, CHECKSUMS)
    if not journal.is_file():
        return
    record = _record(journal)
    for name, digest in record["sha256"].items():
        draft = _draft(folder, name)
        with contextlib.suppress(FileNotFoundError):  # it was renamed before the stop, or another process is faster
            if _digest(draft) == digest:
                os.replace(draft, folder / name)
            else:  # it is of a process that was stopped earlier, when this list was not there yet
                draft.unlink()
    for name in record["gone"]:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(journal, folder / CHECKSUMS)


def check(path: Path, argument: str, remedy: str) -> None:
    """Hold a file against `checksums.json` beside it, if that lists it.

    **Arguments:**

    - `path`: The file.
    - `argument`, `remedy`: Which argument names it, and what to do about it, for messages.

    **Raises:**

    - `ValueError` if it is listed with another checksum, or the list is damaged.

    Source: this library.
    """
    listed = _listed(path.parent / CHECKSUMS).get(path.name) if (path.parent / CHECKSUMS).is_file() else None
    if listed is None:
        return
    try:
        found = _digest(path)
    except OSError as error:
        raise ValueError(
            f"{argument} must be whole, but {str(path)!r} cannot be read ({error.strerror or error}); {remedy}."
        ) from error
    if found != listed:
        raise ValueError(
            f"{argument} must be as it was written, but {str(path)!r} is damaged or was changed: its checksum is not "
            f"the one in {CHECKSUMS}; {remedy}, or remove {CHECKSUMS} if it was changed on purpose."
        )


def begin_reading(folder: Path, argument: str, remedy: str) -> None:
    """Settle a folder before its files are read.

    **Raises:**

    - `ValueError` if a process was stopped as it replaced them, and they cannot be put in place here.

    Source: this library.
    """
    try:
        settle(folder)
    except OSError as error:
        raise ValueError(
            f"{argument} must be whole, but {str(folder)!r} was left as its files were being replaced, and cannot be "
            f"written ({error.strerror or error}); make it writable and load it again, or {remedy}."
        ) from error


def read_checked(path: Path, argument: str, remedy: str, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file, at most so many, that fit their checksum.

    **Raises:**

    - `ValueError` if it cannot be read, is larger, or is damaged.

    Source: this library.
    """
    data = read_bounded(path, most, argument, remedy)
    check(path, argument, remedy)
    return data


def read_checked_json(path: Path, form: Any, argument: str, remedy: str, **options: Any) -> Any:
    """What a file of JSON of a folder holds; see `read_json`.

    **Raises:**

    - `ValueError` if it is damaged, or not whole JSON of this form.

    Source: this library.
    """
    check(path, argument, remedy)
    return read_json(path, form, argument=argument, remedy=remedy, **options)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed(path: Path) -> dict[str, str]:
    return _record(path)["sha256"]


def _record(path: Path) -> dict[str, Any]:
    remedy = "write the folder again, or remove that file"
    data = read_bounded(path, MOST_BYTES, "folder", remedy)
    record = parse(data, _FORM, repr(str(path)), "folder", remedy)
    if not is_sealed(data, record["itself"]):
        raise ValueError(f"folder must be as it was written, but {str(path)!r} is damaged; {remedy}.")
    names = [*record["sha256"], *record["gone"]]
    if any(os.path.basename(name) != name or name in ("", ".", "..") or "\\" in name or "\0" in name for name in names):
        raise ValueError(f"folder must list files that are in it, but {str(path)!r} names others; {remedy}.")
    return record


def _draft(folder: Path, name: str) -> Path:
    return folder / f"{name}.draft"
