"""Atomic writing of files: under a hidden name beside the file, synced to the disk, and renamed by `os.replace`.

A draft is called `.NAME.PID-NUMBER@HOST.clusterjax-draft`. A folder that is being replaced has a name of the same form
with the ending `.clusterjax-old`. A killed process leaves its drafts. If the process was on this machine, they are
removed when the same file is written again, or when their folder is locked.

Invariants: at any moment either the former file or the new file exists, and is complete. Files without the mark
`clusterjax-` in their names belong to other programs, and are kept. Devices, pipes and folders are never replaced.
If the path is a link, the file to which the link leads is written.
"""

import contextlib
import itertools
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from .json import refuse_irregular


DRAFT, OLD = ".clusterjax-draft", ".clusterjax-old"
_NAME = re.compile(
    rf"\.(?P<name>.+)\.(?P<pid>\d+)-\d+@(?P<host>[A-Za-z0-9-]+)({re.escape(DRAFT)}|{re.escape(OLD)})", re.DOTALL
)
_numbers = itertools.count()
# The drafts that this process is writing; they are removed when a signal ends the process.
_live: set[Path] = set()


def replace(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically; an OSError if this fails, and the former file is then kept."""
    path = target_of(path)
    with draft_beside(path) as draft:
        # The mode "x" follows no link and opens no file that another process made.
        with open(draft, "xb") as file:
            file.write(content)
            # The sync precedes the renaming: after a power failure the name may otherwise lead to an empty file.
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)


def target_of(path: Path) -> Path:
    """The file to which `path` leads, so that a link stays; an OSError if that file exists and is not regular."""
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    # A path that leads through a file is refused when it is written, with the folder named as the cause.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        refuse_irregular(os.stat(path), path)
    return path


@contextlib.contextmanager
def draft_beside(path: Path, kind: str = DRAFT) -> Iterator[Path]:
    """A name beside `path` for this call alone; a file or a folder of this name is removed at the end."""
    clear_drafts(path.parent, path.name)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}@{_host()}{kind}")
    _live.add(draft)
    try:
        yield draft
    finally:
        _live.discard(draft)
        _discard(draft)


def clear_drafts(folder: Path, name: str | None = None) -> None:
    """Remove the drafts of `name` in `folder`, by default of all names, that ended processes of this machine left."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for entry in entries:
        match = _NAME.fullmatch(entry) if entry.endswith((DRAFT, OLD)) else None
        if match is not None and name in (None, match["name"]) and _has_ended(folder / entry, match):
            _discard(folder / entry)


def clear_live_drafts() -> None:
    """Remove the drafts of this process, which is about to end."""
    for draft in tuple(_live):
        _discard(draft)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "localhost"


def _discard(draft: Path) -> None:
    """Remove a draft; a folder that was moved away gets its name back if no other folder has taken the name."""
    match = _NAME.fullmatch(draft.name)
    final = draft.with_name(match["name"]) if match else draft
    with contextlib.suppress(OSError):
        if draft.name.endswith(OLD) and draft.is_dir() and not os.path.lexists(final):
            draft.rename(final)
        # A link is removed, never followed.
        elif draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def _has_ended(draft: Path, match: re.Match[str]) -> bool:
    """True if the process of a draft was one of this machine and does not run any more."""
    if match["host"] != _host():
        return False
    pid = int(match["pid"])
    # Process numbers are reused: a draft with the number of this process is live only if this process knows it.
    if pid == os.getpid():
        return draft not in _live
    if os.name != "posix":  # on other systems the signal 0 would end the process
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False
