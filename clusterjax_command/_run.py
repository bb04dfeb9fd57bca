"""From the first line to the status, with nothing but the standard library until signals are seen to."""

import atexit
import contextlib
import io
import os
import signal
import sys
import threading
import time
from typing import Any, Never


GRACE = 0.5  # seconds in which the main thread may answer a signal, before another one does
CLOSED_PIPE = 141  # what a shell reports of a process that wrote into a pipe that nobody reads
_ENDING = threading.Lock()
_STATUS: list[int] = []  # the exit status, once there is one
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name))


def run() -> int:
    """Run the command that this process was called with.

    **Returns:**

    Its exit status, as `clusterjax._cli.main` gives it; 141 if what it printed could not be printed to the end.
    """
    end_quietly_on_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal has no letters for is escaped
            stream.reconfigure(errors="backslashreplace")
    status = 0
    try:
        from clusterjax._cli import main

        status = main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    # All is said and written: a signal while Python shuts down no longer changes how the command ended.
    _STATUS[:] = [status if _flushed() or status else CLOSED_PIPE]
    return _STATUS[0]


def end_quietly_on_signals() -> None:
    """Have SIGINT and SIGTERM end this process with one line and status 130 or 143, whatever it is at.

    The main thread answers between two steps of Python; while it is in compiled code another thread does.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read,), daemon=True).start()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # of a job in the background a shell has SIGINT ignored
            signal.signal(number, _end)
            # Registered first, so that it runs last: Python then gives back the default, which kills, unless a signal
            # is ignored.
            atexit.register(signal.signal, number, signal.SIG_IGN)


def _watch(read: int) -> None:
    while True:
        number = os.read(read, 1)[0]
        if number in _SIGNALS:
            time.sleep(GRACE)
            _end(number)


def _end(number: int, frame: Any = None) -> Never | None:
    if _STATUS:
        os._exit(_STATUS[0])
    if not _ENDING.acquire(blocking=False):
        return None
    with contextlib.suppress(BaseException):  # a module that is only half imported, a disk that is gone
        sys.modules["clusterjax._files.lock"].abandon()
    words = " ".join(["clusterjax", *(word for word in sys.argv[1:2] if word.isalpha())])
    with contextlib.suppress(OSError):
        os.write(2, f"{words}: {_said(number)}; what was finished is kept.\n".encode())
    os._exit(128 + number)


def _said(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else "terminated"


def _flushed() -> bool:
    """Whether all that was printed has gone out; if not, the interpreter is kept from trying again as it ends."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return sys.stdout is None
    return True
