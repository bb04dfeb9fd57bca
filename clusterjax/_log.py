"""Lines of progress on standard output; a run never fails because nobody reads them."""

import contextlib
import sys


def log_line(line: str) -> None:
    """Print a line at once, characters that the terminal cannot show escaped.

    If the pipe is closed, or the disk is full, the line is lost, and the run goes on.
    """
    with contextlib.suppress(OSError, ValueError):  # ValueError: standard output was closed
        try:
            print(line, flush=True)
        except UnicodeEncodeError:
            print(printable(line, sys.stdout), flush=True)


def printable(line: str, stream: object) -> str:
    """`line` with all characters that the encoding of `stream` lacks as `\\x..` and `\\u....`."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    return line.encode(encoding, "backslashreplace").decode(encoding)
