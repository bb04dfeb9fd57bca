"""How a run speaks: a line at a time, at once, and never so that it ends for want of a listener."""

import contextlib
import sys


def say(line: str) -> None:
    """Print a line, with what the terminal has no letters for escaped. If nobody reads on, or the disk is full, it is
    lost: a model that was trained is not.

    Source: this library.
    """
    with contextlib.suppress(OSError, ValueError):  # ValueError: what was standard output is closed
        try:
            print(line, flush=True)
        except UnicodeEncodeError:
            print(printable(line, sys.stdout), flush=True)


def printable(line: str, stream: object) -> str:
    """`line` with all that the encoding of `stream` lacks as `\\x..` and `\\u....`.

    Source: this library.
    """
    encoding = getattr(stream, "encoding", None) or "ascii"
    return line.encode(encoding, "backslashreplace").decode(encoding)
