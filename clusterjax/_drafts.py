"""Drafts: the temporary files of a run before they get their final names, and the removal of those of killed runs.

A draft is written beside the file or the folder that it becomes:

- `NAME.clusterjax-partial`, `NAME.clusterjax-draft`: a file of a run that holds the lock of its folder;
- `.NAME.PID.clusterjax-draft`, `.NAME.PID.clusterjax-old`: a folder of such a run, the second one being replaced by
  the first;
- `.NAME.PID@HOST.clusterjax-draft`: a file of a process that need not hold a lock, such as a picture.

The holder of the lock of a folder may remove the drafts of runs in it. A draft that needs no lock is removed if its
name is of this machine and of a process that has ended. **Invariant.** A name without the mark `clusterjax-` is of
another program, and stays.
"""

import contextlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ._disk import CHECKSUMS, DRAFT, PARTIAL, recover


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
