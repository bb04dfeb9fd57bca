"""A lock of a folder, which allows one run at a time to write; the system releases it however the process ends.

The lock is an advisory file lock (`filelock`: flock or LockFileEx). While it is held, the folder contains two files:
the empty lock file, since on some systems a locked file cannot be read, and a file that names the holder. Both are
removed before the lock is released. Another process may thus lock a file after its removal: that lock guards
nothing, and is acquired again. **Invariant.** A holder has locked the file that has the name of the lock now.
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

from .disk import clear_drafts, clear_live_drafts
from .json import read_regular


LOCK = ".clusterjax.lock"
_WAIT = 0.3  # seconds to wait for a run that is about to release the lock
_TRIES = 100
# The locks that this process holds, and whether each covers a whole folder.
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
    """Hold the lock of a folder, which is created if necessary; drafts of killed runs in the folder are removed.

    **Arguments:**

    - `folder`: The folder.
    - `argument`: The name of the caller's argument, for messages.
    - `name`: The name of the lock file.
    - `shown`: The path in messages, if it is not the folder.
    - `clears`: True if the lock covers the whole folder, so that no other run owns the drafts in it.

    **Raises:**

    - `ValueError` if another run, which the message names, holds the lock, or the folder cannot be written.
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
    except (OSError, RuntimeError) as error:  # filelock raises RuntimeError where the file system has no locks
        raise ValueError(
            f"{argument} must be a folder that can be written, but {str(shown)!r} cannot "
            f"({getattr(error, 'strerror', None) or error}); choose another."
        ) from error
    # A signal handler may call `abandon` from here on.
    _held[path] = clears
    try:
        if clears:
            clear_drafts(path.parent)
        yield
    finally:
        # The files are removed before the lock is released: see the head of this file.
        del _held[path]
        _remove_files(path)
        lock.release()
        for place in made:  # a refused run leaves no empty folders
            with contextlib.suppress(OSError):
                place.rmdir()


def abandon() -> None:
    """Remove the drafts of this process, which is about to end, and the files of all its locks."""
    clear_live_drafts()
    for path, clears in tuple(_held.items()):
        if clears:
            clear_drafts(path.parent)
        _remove_files(path)


def holder_file(path: Path) -> Path:
    """The file that names the holder of the lock at `path`."""
    return path.with_name(path.name + ".holder")


def _write_holder(file: Path) -> None:
    """Write the holder of the lock to a new file; a link with the name of the file is never followed."""
    file.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(file, flags, 0o666), "w", encoding="utf-8") as opened:
        opened.write(json.dumps(_this_process()))


def _acquire(path: Path) -> filelock.BaseFileLock:
    """Acquire the lock, or raise a Timeout if another process holds it."""
    # The loop repeats as long as other runs remove the folder or the file between the steps below.
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
    """True if the locked file still has the name `path`."""
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
    """The holder of a lock in words, from its file, which may not exist for a moment after the lock is acquired."""
    for _ in range(10):
        try:
            holder = json.loads(read_regular(file, 2**16))
            return f"process {holder['pid']} on {holder['host']} ({holder['command']!r}, since {holder['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            time.sleep(0.02)
    return "another process"
