"""The numbers of a command line: what a machine can count, and what single precision can hold."""

import argparse
import os
from pathlib import Path

import numpy as np


_MOST = 2**31 - 1
LARGEST, _SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


def whole(text: str) -> int:
    """An integer of 32 bits; whether it is one that fits is asked where it is used."""
    try:
        found = int(text)
    except ValueError:
        found = None
    if found is None or abs(found) > _MOST:
        raise argparse.ArgumentTypeError(f"it must be an integer of at most {_MOST}, but it is {_short(text)}")
    return found


def number(text: str) -> float:
    """A number that single precision holds; whether it is one that fits is asked where it is used."""
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not (found == 0 or _SMALLEST <= abs(found) <= LARGEST):
        raise argparse.ArgumentTypeError(
            f"it must be a number between {_SMALLEST:.2g} and {LARGEST:.2g}, but it is {_short(text)}"
        )
    return found


def named(text: str) -> str:
    """A path, or a name of the hub."""
    longest = max(len(os.fsencode(part)) for part in text.split("/"))
    if not text.strip() or "\0" in text or longest > 255 or len(text) > 4095:
        raise argparse.ArgumentTypeError(f"it must be a name that a file can have, but it is {_short(text)}")
    return text


def path(text: str) -> Path:
    """The same as a path."""
    return Path(named(text))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
