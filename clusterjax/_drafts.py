"""What a run writes before it is whole: drafts, under names of their own, and what killed runs left of them.

A draft is written beside the file or the folder that it becomes:

- `NAME.partial`, `NAME.draft`: a file (JSON, safetensors, HTML) of a run that holds the lock of its folder;
- `.NAME.PID.draft`, `.NAME.PID.old`: a folder of such a run, the second one being replaced by the first;
- `.NAME.PID@HOST.draft`: a file of a process that need not hold a lock, such as a picture;
- `.probe.PID`, `.writable`: empty files that tried whether a folder can be written to.

Whoever holds the lock of a folder may clear away those of runs. What needs no lock is removed where the machine is this
one and the process has ended.
"""

import contextlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ._disk import settle


_OF_RUNS = re.compile(r".+\.(json|safetensors|html)(\.draft)?\.(partial|draft)|\.probe\.\d+|\.writable")
_FOLDER = re.compile(r"\.(?P<name>.+)\.\d+\.(?P<kind>draft|old)")
_FILE = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)(@(?P<host>[A-Za-z0-9-]+))?\.draft")
# Those that this process is writing: a signal that ends it takes them away.
_live: set[Path] = set()


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "localhost"


@contextlib.contextmanager
def draft_beside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to, of this process alone; whatever is there at the end is removed.

    Source: this library.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}@{_host()}.draft")
    _live.add(draft)
    try:
        yield draft
    finally:
        _remove(draft)
        _live.discard(draft)


def clear_drafts(folder: Path) -> None:
    """Remove what killed runs left in `folder`, whose lock is held; a finished folder that one of them was about to
    replace gets its name back, and files of which all is there are put in place.

    Source: this library.
    """
    with contextlib.suppress(OSError, ValueError):  # what is broken is said when it is read
        settle(folder)
    # With this list beside them drafts are whole and count already: `_disk.settle` gives them their names.
    counts = (folder / "checksums.json.draft").is_file()
    for entry in _entries(folder):
        if counts and entry.name.endswith(".draft") and not entry.name.startswith("."):
            continue
        if _is_folder(entry):
            found = _FOLDER.fullmatch(entry.name)
            whole = folder / (found["name"] if found else entry.name)
            if found and found["kind"] == "old" and not whole.exists():
                with contextlib.suppress(OSError):
                    entry.rename(whole)
            elif found:
                _remove(entry)
        elif _OF_RUNS.fullmatch(entry.name) or _is_forsaken(entry):
            _remove(entry)


def clear_drafts_of(path: Path) -> None:
    """Remove the drafts of one file that processes of this machine left when they were killed, and no others.

    Source: this library.
    """
    for entry in _entries(path.parent):
        if entry.name.startswith(f".{path.name}.") and _is_forsaken(entry):
            _remove(entry)


def _is_forsaken(entry: Path) -> bool:
    """Whether a file is the draft of a process of this machine that has ended."""
    found = _FILE.fullmatch(entry.name)
    if found is None or _is_folder(entry) or found["host"] not in (None, _host()):
        return False
    # A number may come again: of this process only those are alive that it knows.
    return entry not in _live if int(found["pid"]) == os.getpid() else not is_alive(int(found["pid"]))


def clear_live_drafts() -> None:
    """Remove the drafts of this process, which is about to end.

    Source: this library.
    """
    for draft in tuple(_live):
        _remove(draft)


def is_alive(pid: int) -> bool:
    """Whether a process of this number runs on this machine; where that cannot be asked, yes.

    Source: this library.
    """
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
    return entry.is_dir() and not entry.is_symlink()


def _remove(entry: Path) -> None:
    with contextlib.suppress(OSError):
        if _is_folder(entry):
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
