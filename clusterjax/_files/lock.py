"""A lock of a folder, which allows one run at a time to write; the system releases it however the process ends.

The lock is an advisory file lock (`filelock`: flock or LockFileEx) on an empty file in the folder, which is removed
before the lock is released. Another process may thus lock a file after its removal: that lock guards nothing, and is
acquired again. **Invariant.** A holder has locked the file that has the name of the lock now.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import filelock

from .disk import clear_drafts, clear_live_drafts


LOCK = ".clusterjax.lock"
_WAIT = 0.3  # seconds to wait for a run that is about to release the lock
_TRIES = 100
_held: set[Path] = set()


@contextlib.contextmanager
def locked(
    folder: str | os.PathLike[str], argument: str = "out", *, name: str = LOCK, shown: Path | None = None
) -> Iterator[None]:
    """Hold the lock of a folder, which is created if necessary; drafts of killed runs in the folder are removed.

    If another run holds the lock, or the folder cannot be written, a ValueError names `argument` and the folder, or
    `shown` in its place.
    """
    path = Path(folder) / name
    shown = Path(folder) if shown is None else shown
    # The folders that are created here, the innermost first.
    created = [place for place in (path.parent, *path.parent.parents) if not place.exists()]
    try:
        lock = _acquire(path)
    except filelock.Timeout:
        raise ValueError(
            f"{argument} must be used by one run at a time, but another process is writing to {str(shown)!r}; wait for "
            "it, or choose another folder."
        ) from None
    except (OSError, RuntimeError) as error:  # filelock raises RuntimeError where the file system has no locks
        raise ValueError(
            f"{argument} must be a folder that can be written, but {str(shown)!r} cannot "
            f"({getattr(error, 'strerror', None) or error}); choose another."
        ) from error
    # A signal handler may call `abandon` from here on.
    _held.add(path)
    try:
        clear_drafts(path.parent)
        yield
    finally:
        # The file is removed before the lock is released: see the head of this file.
        _held.discard(path)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        lock.release()
        for place in created:  # a refused run leaves no empty folders
            with contextlib.suppress(OSError):
                place.rmdir()


def abandon() -> None:
    """Remove the drafts of this process, which is about to end, and the files of all its locks."""
    clear_live_drafts()
    for path in tuple(_held):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


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
        descriptor = lock._context.lock_file_fd
        with contextlib.suppress(FileNotFoundError):
            if descriptor is None or os.path.samestat(os.fstat(descriptor), path.stat()):
                return lock
        lock.release()
    raise OSError(f"{path} is removed again and again")
