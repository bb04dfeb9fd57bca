"""The types of the command line's options: integers of 32 bits, numbers of single precision, names and paths."""

import argparse
import os
from pathlib import Path


_MOST = 2**31 - 1
# The largest and the smallest normal number of float32, without NumPy: a parser needs nothing heavy.
LARGEST, _SMALLEST = float((2 - 2**-23) * 2**127), 2.0**-126


def integer(text: str) -> int:
    """An integer of 32 bits; its range is checked where it is used."""
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or abs(value) > _MOST:
        raise argparse.ArgumentTypeError(f"it must be an integer of at most {_MOST}, but it is {_short(text)}")
    return value


def number(text: str) -> float:
    """A number that single precision holds; its range is checked where it is used."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    # Subnormal numbers are refused too: XLA flushes them to zero.
    if not (value == 0 or _SMALLEST <= abs(value) <= LARGEST):
        raise argparse.ArgumentTypeError(
            f"it must be a number between {_SMALLEST:.2g} and {LARGEST:.2g}, but it is {_short(text)}"
        )
    return value


def setting(text: str) -> tuple[str, int | float]:
    """A name and a number, NAME=VALUE; whether there is such a parameter is checked where it is used."""
    name, equals, value = (part.strip() for part in text.partition("="))
    try:
        # An integer stays one: parameters that are counts are checked for it.
        parsed = int(value) if value.lstrip("+-").isdecimal() else float(value)
    except ValueError:
        parsed = None
    if not (name and equals) or parsed is None or not abs(parsed) <= LARGEST:
        raise argparse.ArgumentTypeError(f"it must be NAME=VALUE, VALUE a number such as 5, but it is {_short(text)}")
    return name, parsed


def named(text: str) -> str:
    """A path, or a name of the hub."""
    # The limits of a path component and of a path on Linux.
    longest = max(len(os.fsencode(part)) for part in text.split("/"))
    if not text.strip() or "\0" in text or longest > 255 or len(text) > 4095:
        raise argparse.ArgumentTypeError(f"it must be a name that a file can have, but it is {_short(text)}")
    return text


def path(text: str) -> Path:
    """The same as a path."""
    return Path(named(text))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
