"""One run at a time in a folder: a lock that the system drops when its process ends, however it ends.

Two files lie in the folder while it is held. The lock itself is empty, for on some systems what is locked cannot be
read; the other one says who holds it. Both are removed before the lock is given back, so a file that was opened may
have been removed by the time that it is locked: such a lock guards nothing, and is taken anew.
"""

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

from ._drafts import clear_drafts, clear_live_drafts


LOCK = ".clusterjax.lock"
_WAIT = 0.3  # seconds, for a run that is about to give it back
_TRIES = 100
_held: dict[Path, bool] = {}


@contextlib.contextmanager
def locked(
    folder: str | os.PathLike[str],
    argument: str = "out",
    *,
    name: str = LOCK,
    shown: Path | None = None,
    clears: bool = True,
) -> Iterator[None]:
    """Hold the lock of a folder, which is made if need be; what killed runs left in it is cleared away.

    **Arguments:**

    - `folder`: The folder.
    - `argument`: What the argument that names it is called, for messages.
    - `name`: Of the file that is locked.
    - `shown`: What the messages name, if it is not the folder.
    - `clears`: Whether the lock is of the whole folder, so that the drafts in it are nobody else's.

    **Raises:**

    - `ValueError` if another run holds it, which is named, or the folder cannot be written.

    Source: this library.
    """
    path = Path(folder) / name
    shown = Path(folder) if shown is None else shown
    made = [place for place in (path.parent, *path.parent.parents) if not place.exists()]
    try:
        lock = _take(path)
        _write_holder(holder_file(path))
    except filelock.Timeout:
        raise ValueError(
            f"{argument} must be used by one run at a time, but {_who(holder_file(path))} is writing to "
            f"{str(shown)!r}; wait for it, or choose another folder."
        ) from None
    except (OSError, RuntimeError) as error:  # the second from filelock, where the file system has no locks
        raise ValueError(
            f"{argument} must be a folder that can be written, but {str(shown)!r} cannot "
            f"({getattr(error, 'strerror', None) or error}); choose another."
        ) from error
    _held[path] = clears
    try:
        if clears:
            clear_drafts(path.parent)
        yield
    finally:
        del _held[path]
        _forget(path)
        lock.release()
        for place in made:  # what a run that was refused would leave empty
            with contextlib.suppress(OSError):
                place.rmdir()


def abandon() -> None:
    """Clear away the drafts and the files of all locks of this process, which is about to end.

    Source: this library.
    """
    clear_live_drafts()
    for path, clears in tuple(_held.items()):
        if clears:
            clear_drafts(path.parent)
        _forget(path)


def holder_file(path: Path) -> Path:
    """The file that says who holds the lock at `path`.

    Source: this library.
    """
    return path.with_name(path.name + ".holder")


def _write_holder(file: Path) -> None:
    """A new file, never what a link of that name leads to."""
    file.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(file, flags, 0o666), "w", encoding="utf-8") as opened:
        opened.write(json.dumps(_oneself()))


def _take(path: Path) -> filelock.BaseFileLock:
    for _ in range(_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        try:
            lock.acquire(timeout=_WAIT, poll_interval=0.02)
        except FileNotFoundError:  # a run that has just ended removed the folder
            continue
        if _is_of(lock, path):
            return lock
        lock.release()
    raise OSError(f"{path} is removed again and again")


def _is_of(lock: filelock.BaseFileLock, path: Path) -> bool:
    """Whether what is locked still has that name."""
    descriptor = lock._context.lock_file_fd
    try:
        return descriptor is None or os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _forget(path: Path) -> None:
    for file in (holder_file(path), path):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def _oneself() -> dict[str, Any]:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else ""
    since = datetime.now(UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
    return {"pid": os.getpid(), "host": platform.node(), "command": command[:200], "since": since}


def _who(file: Path) -> str:
    """Who holds a lock, as its holder says: it writes that as soon as it has the lock."""
    for _ in range(10):
        try:
            found = json.loads(file.read_text("utf-8"))
            return f"process {found['pid']} on {found['host']} ({found['command']!r}, since {found['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            time.sleep(0.02)
    return "another process"
