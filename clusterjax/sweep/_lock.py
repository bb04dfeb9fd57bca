"""One run at a time in a folder: a lock that the system gives back when its process ends, however it ends."""

import contextlib
import os
import platform
from collections.abc import Iterator
from typing import IO

from ._store import Store


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextlib.contextmanager
def locked(store: Store) -> Iterator[None]:
    """Hold the lock of `store`, whose folder is made if need be.

    **Raises:**

    - `ValueError` if another process holds it, or the folder cannot be written.

    Source: this library.
    """
    try:
        file = _take(store)
    except OSError as error:
        raise store.full(error) from error
    with file:
        yield


def _take(store: Store) -> IO[str]:
    while True:
        store.work.mkdir(parents=True, exist_ok=True)
        try:
            file = open(store.lock_file, "a+", encoding="utf-8")
        except FileNotFoundError:  # a run that has just ended removed the folder
            continue
        if fcntl is None:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise ValueError(
                f"store must be used by one run at a time, but {holder} is writing {str(store.path)!r}; "
                "wait for it, or choose another folder."
            ) from None
        except OSError:
            file.close()
            raise
        # A run that has just ended may have removed the file that was opened here.
        if store.lock_file.exists() and os.path.samestat(os.fstat(file.fileno()), store.lock_file.stat()):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            return file
        file.close()
