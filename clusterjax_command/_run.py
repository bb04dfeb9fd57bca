"""Runs the command; only the standard library is imported before the signal handlers are installed."""

import atexit
import contextlib
import io
import os
import signal
import sys
import threading
import time
from typing import Any, Never


GRACE = 0.5  # the seconds in which the main thread may handle a signal before another thread does
CLOSED_PIPE = 141  # the status that a shell reports for a process that wrote into a closed pipe
_ENDING = threading.Lock()
_STATUS: list[int] = []  # the exit status, as soon as it is known
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name))


def run() -> int:
    """Run the command with the arguments of this process.

    **Returns:**

    The exit status that `clusterjax._cli.main` returns, or 141 if the last output could not be written.
    """
    end_quietly_on_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal cannot show are escaped
            stream.reconfigure(errors="backslashreplace")
    status = 0
    try:
        from clusterjax._cli import main

        status = main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    # All output is written, so that a signal while Python shuts down does not change the status.
    _STATUS[:] = [status if _flushed() or status else CLOSED_PIPE]
    return _STATUS[0]


def end_quietly_on_signals() -> None:
    """Let SIGINT and SIGTERM end this process at any moment, with one line and the status 130 or 143.

    The main thread handles a signal between two instructions of Python; while compiled code runs, another thread does.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read,), daemon=True).start()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell ignores SIGINT for a job in the background
            signal.signal(number, _end)
            # After all other exit functions the signal is ignored: Python would otherwise restore the default handler,
            # which kills.
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
    with contextlib.suppress(BaseException):  # the module may be half imported, or the disk missing
        sys.modules["clusterjax._files.lock"].abandon()
    words = " ".join(["clusterjax", *(word for word in sys.argv[1:2] if word.isalpha())])
    reason = "interrupted" if number == signal.SIGINT else "terminated"
    with contextlib.suppress(OSError):
        os.write(2, f"{words}: {reason}; finished results are kept.\n".encode())
    os._exit(128 + number)


def _flushed() -> bool:
    """True if all output could be written; otherwise standard output is replaced by the null device, so that the
    interpreter does not try again at its end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return sys.stdout is None
    return True
