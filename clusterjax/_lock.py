"""A lock of a folder, so that one run at a time writes to it; the system releases it however its process ends.

Advisory file locks (`filelock`: flock or LockFileEx). Two files lie in the folder while it is held: the lock itself,
which is empty, since on some systems a locked file cannot be read, and one that names the holder. Both are removed
before the lock is released, so that a file may have been removed between opening and locking it: such a lock guards
nothing, and is acquired again. **Invariant.** Whoever holds the lock holds that of the file which has the name now.
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
from ._json import read_regular


LOCK = ".clusterjax.lock"
_WAIT = 0.3  # seconds, for a run that is about to release it
_TRIES = 100
# The locks of this process, and whether each is of a whole folder.
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
    """Hold the lock of a folder, which is created if it does not exist; drafts of killed runs in it are removed.

    **Arguments:**

    - `folder`: The folder.
    - `argument`: What the argument that names it is called, for messages.
    - `name`: Of the file that is locked.
    - `shown`: What the messages name, if it is not the folder.
    - `clears`: Whether the lock is of the whole folder, so that the drafts in it are of no other run.

    **Raises:**

    - `ValueError` if another run holds it, which is named, or the folder cannot be written.
    """
    path = Path(folder) / name
    shown = Path(folder) if shown is None else shown
    # The folders that are created here, the innermost first.
    made = [place for place in (path.parent, *path.parent.parents) if not place.exists()]
    try:
        lock = _acquire(path)
        _write_holder(holder_file(path))
    except filelock.Timeout:
        raise ValueError(
            f"{argument} must be used by one run at a time, but {_describe_holder(holder_file(path))} is writing to "
            f"{str(shown)!r}; wait for it, or choose another folder."
        ) from None
    except (OSError, RuntimeError) as error:  # the second from filelock, where the file system has no locks
        raise ValueError(
            f"{argument} must be a folder that can be written, but {str(shown)!r} cannot "
            f"({getattr(error, 'strerror', None) or error}); choose another."
        ) from error
    # From here on a signal handler may call `abandon`.
    _held[path] = clears
    try:
        if clears:
            clear_drafts(path.parent)
        yield
    finally:
        # The files first, then the lock: see the head of this file.
        del _held[path]
        _remove_files(path)
        lock.release()
        for place in made:  # a run that was refused leaves no empty folders
            with contextlib.suppress(OSError):
                place.rmdir()


def abandon() -> None:
    """Remove the drafts and the files of all locks of this process, which is about to end."""
    clear_live_drafts()
    for path, clears in tuple(_held.items()):
        if clears:
            clear_drafts(path.parent)
        _remove_files(path)


def holder_file(path: Path) -> Path:
    """The file that says who holds the lock at `path`."""
    return path.with_name(path.name + ".holder")


def _write_holder(file: Path) -> None:
    """Write who holds the lock to a new file; a link of that name is never followed."""
    file.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(file, flags, 0o666), "w", encoding="utf-8") as opened:
        opened.write(json.dumps(_this_process()))


def _acquire(path: Path) -> filelock.BaseFileLock:
    """The lock, acquired; a Timeout if another process holds it."""
    # Again as long as other runs remove the folder or the file between the steps below.
    for _ in range(_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        try:
            lock.acquire(timeout=_WAIT, poll_interval=0.02)
        except FileNotFoundError:  # a run that has just ended removed the folder
            continue
        if _is_current(lock, path):
            return lock
        lock.release()
    raise OSError(f"{path} is removed again and again")


def _is_current(lock: filelock.BaseFileLock, path: Path) -> bool:
    """Whether the locked file is still the one of that name."""
    descriptor = lock._context.lock_file_fd
    try:
        return descriptor is None or os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove_files(path: Path) -> None:
    for file in (holder_file(path), path):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def _this_process() -> dict[str, Any]:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else ""
    since = datetime.now(UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
    return {"pid": os.getpid(), "host": platform.node(), "command": command[:200], "since": since}


def _describe_holder(file: Path) -> str:
    """The holder of a lock in words, from its file; for a moment after it is acquired the file may not exist yet."""
    for _ in range(10):
        try:
            holder = json.loads(read_regular(file, 2**16))
            return f"process {holder['pid']} on {holder['host']} ({holder['command']!r}, since {holder['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            time.sleep(0.02)
    return "another process"
