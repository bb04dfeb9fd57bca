"""Atomic writes of files and of folders, each file with a checksum.

A single file holds its own checksum (`seal`): the SHA-256 of the file with 64 zeros in the place of the checksum. Files
of one folder are written in one transaction (`write_folder`) with a journal, as in write-ahead logging (Gray, Reuter,
*Transaction Processing*, chapter 9), and `checksums.json` beside them:

1. every file is written under another name, `model.safetensors.clusterjax-draft`, and synced to the disk;
2. `checksums.json.clusterjax-draft`, the journal, which lists them, is put beside them by one rename, which commits
   the transaction;
3. each draft is renamed to its final name, `checksums.json` last.

A process that is stopped before 2 leaves the old files; one that is stopped after it leaves all that `recover` needs to
do 3, which every reader does first. Folders without `checksums.json`, as version 0.1.0 wrote them, are read unchecked.

Files of other programs stay: only names with a mark of this package, `DRAFT` and `PARTIAL`, are ever removed, and what
is there and is no regular file, such as a device or a named pipe, is refused and not replaced. A single file that is
written to a link goes to where the link leads; in a folder of files of one transaction there are no links.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .json import MOST_BYTES, open_regular, parse, read_bounded, read_json, read_regular, refuse_irregular


CHECKSUMS = "checksums.json"
# The ends of the names of files that are not whole yet. They name this package, so that no other program has them.
DRAFT, PARTIAL = ".clusterjax-draft", ".clusterjax-partial"
BLANK = "0" * 64
_FORM = {"format": "clusterjax checksums", "version": 1, "itself": str, "sha256": {str: str}, "gone": [str], str: ()}


def replace(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one step: whatever happens, there is the old file or the new one.

    **Raises:**

    - `OSError` if it cannot be written or what is there is no regular file, with what was there before kept.
    """
    path = target_of(path)
    # In the same folder, so that the rename stays within one file system and is atomic.
    partial = path.with_name(path.name + PARTIAL)
    try:
        _write_new(partial, content)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def target_of(path: Path) -> Path:
    """The file that is written for `path`: that to which it leads if it is a link, so that the link stays.

    **Raises:**

    - `OSError` if what is there is no regular file, which would be replaced by one.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    # A path that leads through a file is refused when it is written, with the folder named as the cause.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        refuse_irregular(os.stat(path), path)
    return path


def _write_new(path: Path, content: bytes) -> None:
    """Write a new file of this name, in place of one that a killed process left there.

    A link of that name is removed, never followed, so that nothing outside of the folder is written.
    """
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o666), "wb") as file:
        file.write(content)
        # To the disk before any rename: after a power failure a name may otherwise lead to an empty file.
        file.flush()
        os.fsync(file.fileno())
        # No link is left: another process removed the file while it was written.
        if os.name == "posix" and os.fstat(file.fileno()).st_nlink == 0:
            raise FileExistsError(17, "another process writes it at the same time", str(path))


def seal(content: bytes) -> bytes:
    """`content` with its own checksum in place of the 64 zeros that stand first in it."""
    at = content.index(BLANK.encode())
    return content[:at] + checksum(content).encode() + content[at + len(BLANK) :]


def is_sealed(content: bytes, digest: str) -> bool:
    """Whether `content` is what `seal` made, with this checksum in it."""
    # A checksum of another length is none that `seal` wrote.
    at = content.find(digest.encode("utf-8", "replace")) if len(digest) == len(BLANK) else -1
    return at >= 0 and checksum(content[:at] + BLANK.encode() + content[at + len(BLANK) :]) == digest


def checksum(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def write_folder(folder: Path, contents: dict[str, bytes], gone: Sequence[str] = ()) -> None:
    """Write files of one folder together, as the head of this file says; it is made if it is not there.

    **Arguments:**

    - `folder`: Where.
    - `contents`: The bytes of each file. Files that are in the folder and not among these stay.
    - `gone`: Files to remove in the same step.

    **Raises:**

    - `OSError` if something cannot be written, or a link or no regular file is in its place, with what was there
        before kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # A transaction that another process committed is finished first: its journal has the name of ours.
    recover(folder)
    # Before anything is written, since a committed transaction must be one that can be finished.
    for name in (*contents, *gone):
        with contextlib.suppress(FileNotFoundError):
            refuse_irregular(os.lstat(folder / name), folder / name)
    listed = _listed(folder / CHECKSUMS) if (folder / CHECKSUMS).is_file() else {}
    listed = {name: digest for name, digest in listed.items() if name not in gone}
    listed |= {name: checksum(content) for name, content in contents.items()}
    # Files that were written earlier and are not among these stay on the list.
    record = {"format": _FORM["format"], "version": 1, "itself": BLANK}
    record |= {"sha256": dict(sorted(listed.items())), "gone": sorted(gone)}
    # Any failure before the journal is written removes the drafts: the old files stay in force.
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
    recover(folder)


def recover(folder: Path) -> None:
    """Finish the committed transaction of a process that was stopped in `write_folder`.

    **Raises:**

    - `OSError` if the folder cannot be written.
    - `ValueError` if the list of the new files is damaged.
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
            else:  # left by an earlier process that was stopped before its journal was written
                draft.unlink()
    # Removed before the journal goes, so that a stop in between repeats it.
    for name in record["gone"]:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(journal, folder / CHECKSUMS)


def listed_files(folder: Path) -> set[str]:
    """The names of the files of a folder that were written here, as its list has them; none if there is no list.

    **Raises:**

    - `OSError` if what a stopped process began cannot be finished.
    - `ValueError` if the list is damaged.
    """
    recover(folder)
    return set(_listed(folder / CHECKSUMS)) if (folder / CHECKSUMS).is_file() else set()


def state_of(folder: Path) -> tuple[bytes | None, bool]:
    """The bytes of a folder's list, and whether a transaction is under way.

    If two such states are equal and no transaction is under way, all files that were read between them are of one
    transaction.
    """
    try:
        listed = read_regular(folder / CHECKSUMS, MOST_BYTES)
    except OSError:
        listed = None
    return listed, _draft(folder, CHECKSUMS).is_file()


def check(path: Path, argument: str, remedy: str) -> None:
    """Compare a file with its checksum in `checksums.json` beside it, if that lists it.

    **Arguments:**

    - `path`: The file.
    - `argument`, `remedy`: Which argument names it, and what to do about it, for messages.

    **Raises:**

    - `ValueError` if it is listed with another checksum, or the list is damaged.
    """
    listed = _listed(path.parent / CHECKSUMS).get(path.name) if (path.parent / CHECKSUMS).is_file() else None
    if listed is None:
        return
    try:
        digest = _digest(path)
    except OSError as error:
        raise ValueError(
            f"{argument} must be whole, but {str(path)!r} cannot be read ({error.strerror or error}); {remedy}."
        ) from error
    if digest != listed:
        raise ValueError(
            f"{argument} must be as it was written, but {str(path)!r} is damaged or was changed: its checksum is not "
            f"the one in {CHECKSUMS}; {remedy}, or remove {CHECKSUMS} if it was changed on purpose."
        )


def begin_reading(folder: Path, argument: str, remedy: str) -> None:
    """Recover a folder before its files are read.

    **Raises:**

    - `ValueError` if a process was stopped as it replaced them, and they cannot be put in place here.
    """
    try:
        recover(folder)
    except OSError as error:
        raise ValueError(
            f"{argument} must be whole, but {str(folder)!r} was left as its files were being replaced, and cannot be "
            f"written ({error.strerror or error}); make it writable and load it again, or {remedy}."
        ) from error


def read_checked(path: Path, argument: str, remedy: str, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file, at most so many, that fit their checksum.

    **Raises:**

    - `ValueError` if it cannot be read, is larger, or is damaged.
    """
    data = read_bounded(path, most, argument, remedy)
    check(path, argument, remedy)
    return data


def read_checked_json(path: Path, form: Any, argument: str, remedy: str, **options: Any) -> Any:
    """What a file of JSON of a folder holds; see `read_json`.

    **Raises:**

    - `ValueError` if it is damaged, or not whole JSON of this form.
    """
    check(path, argument, remedy)
    return read_json(path, form, argument=argument, remedy=remedy, **options)


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed(path: Path) -> dict[str, str]:
    return _record(path)["sha256"]


def _record(path: Path) -> dict[str, Any]:
    remedy = "remove that file, and the folder is read without checksums"
    # A list holds checksums of all other files, and its own.
    data = read_bounded(path, MOST_BYTES, "folder", remedy)
    record = parse(data, _FORM, repr(str(path)), "folder", remedy)
    if not is_sealed(data, record["itself"]):
        raise ValueError(f"folder must be as it was written, but {str(path)!r} is damaged; {remedy}.")
    names = [*record["sha256"], *record["gone"]]
    # A name that leads out of the folder would let a damaged list remove or replace any file.
    if any(os.path.basename(name) != name or name in ("", ".", "..") or "\\" in name or "\0" in name for name in names):
        raise ValueError(f"folder must list files that are in it, but {str(path)!r} names others; {remedy}.")
    return record


def _draft(folder: Path, name: str) -> Path:
    return folder / f"{name}{DRAFT}"


# Drafts: the temporary files of a run before they get their final names, and the removal of those of killed runs.
#
# A draft is written beside the file or the folder that it becomes:
#
# - `NAME.clusterjax-partial`, `NAME.clusterjax-draft`: a file of a run that holds the lock of its folder;
# - `.NAME.PID.clusterjax-draft`, `.NAME.PID.clusterjax-old`: a folder of such a run, the second one being replaced by
#   the first;
# - `.NAME.PID@HOST.clusterjax-draft`: a file of a process that need not hold a lock, such as a picture.
#
# The holder of the lock of a folder may remove the drafts of runs in it. A draft that needs no lock is removed if its
# name is of this machine and of a process that has ended. **Invariant.** A name without the mark `clusterjax-` is of
# another program, and stays.


OLD = ".clusterjax-old"
_OF_RUNS = re.compile(rf"[^.].*({re.escape(DRAFT)}|{re.escape(PARTIAL)})")
_FOLDER = re.compile(rf"\.(?P<name>.+)\.\d+(?P<kind>{re.escape(DRAFT)}|{re.escape(OLD)})")
_FILE = re.compile(rf"\.(?P<name>.+)\.(?P<pid>\d+)@(?P<host>[A-Za-z0-9-]+){re.escape(DRAFT)}")
# The drafts that this process is writing; they are removed when a signal ends it.
_live: set[Path] = set()


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "localhost"


@contextlib.contextmanager
def draft_beside(path: Path) -> Iterator[Path]:
    """A name beside `path` for this process alone to write to; a file of that name is removed at the end."""
    draft = path.with_name(f".{path.name}.{os.getpid()}@{_host()}{DRAFT}")
    _live.add(draft)
    try:
        yield draft
    finally:
        _remove(draft)
        _live.discard(draft)


def clear_drafts(folder: Path) -> None:
    """Remove what killed runs left in `folder`, whose lock is held; a finished folder that one of them was about to
    replace gets its name back, and committed transactions are finished.
    """
    with contextlib.suppress(OSError, ValueError):  # a damaged journal is reported when the folder is read
        recover(folder)
    # With the journal beside them drafts are complete and committed: `_disk.recover` gives them their names.
    committed = (folder / f"{CHECKSUMS}{DRAFT}").is_file()
    for entry in _entries(folder):
        if committed and entry.name.endswith(DRAFT) and not entry.name.startswith("."):
            continue
        if _is_folder(entry):
            match = _FOLDER.fullmatch(entry.name)
            final = folder / (match["name"] if match else entry.name)
            # Killed between moving the old folder away and moving the new one in: the old one is the only complete one.
            if match and match["kind"] == OLD and not final.exists():
                with contextlib.suppress(OSError):
                    entry.rename(final)
            elif match:
                _remove(entry)
        elif _OF_RUNS.fullmatch(entry.name) or _is_abandoned(entry):
            _remove(entry)


def clear_drafts_of(path: Path) -> None:
    """Remove the drafts of one file that processes of this machine left when they were killed, and no others."""
    for entry in _entries(path.parent):
        if entry.name.startswith(f".{path.name}.") and _is_abandoned(entry):
            _remove(entry)


def _is_abandoned(entry: Path) -> bool:
    """Whether a file is the draft of a process of this machine that has ended."""
    match = _FILE.fullmatch(entry.name)
    if match is None or _is_folder(entry) or match["host"] != _host():
        return False
    # Process numbers are reused: a draft with the number of this process is live only if this process knows it.
    return entry not in _live if int(match["pid"]) == os.getpid() else not is_alive(int(match["pid"]))


def clear_live_drafts() -> None:
    """Remove the drafts of this process, which is about to end."""
    for draft in tuple(_live):
        _remove(draft)


def is_alive(pid: int) -> bool:
    """Whether a process of this number runs on this machine; where that cannot be asked, yes."""
    if os.name != "posix":  # elsewhere this signal would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_folder(entry: Path) -> bool:
    """Whether it is a folder; a link to one is not, so that nothing outside is removed."""
    return entry.is_dir() and not entry.is_symlink()


def _remove(entry: Path) -> None:
    with contextlib.suppress(OSError):
        if _is_folder(entry):
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
