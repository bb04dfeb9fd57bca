"""Prints lines of progress on standard output; a run never fails because the output cannot be written."""

import contextlib
import sys


def log_line(line: str) -> None:
    """Print a line without buffering, with characters that the terminal cannot show escaped.

    If the pipe is closed or the disk is full, the line is lost and the run continues.
    """
    with contextlib.suppress(OSError, ValueError):  # ValueError: standard output was closed
        try:
            print(line, flush=True)
        except UnicodeEncodeError:
            print(printable(line, sys.stdout), flush=True)


def printable(line: str, stream: object) -> str:
    """`line` with the characters that the encoding of `stream` lacks written as `\\x..` and `\\u....`."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    return line.encode(encoding, "backslashreplace").decode(encoding)
