"""Checks of the options that several commands share, before anything is read."""

import argparse
import os
from pathlib import Path


def check(arguments: argparse.Namespace) -> None:
    """Raise a ValueError if `--seed` or `--snapshots` is out of range, or `--out` can be no folder, where the command
    has them."""
    given = vars(arguments)
    if not 0 <= given.get("seed", 0) < 2**32:
        raise ValueError(f"--seed must lie between 0 and 2**32 - 1, but it is {given['seed']}; choose another.")
    if given.get("snapshots", 0) < 0:
        raise ValueError(f"--snapshots must not be negative, but it is {given['snapshots']}; say 0 for none.")
    out = Path(given.get("out", "."))
    # The nearest existing folder above: that is where folders would be created.
    existing = next(place for place in (out, *out.parents, Path(".")) if os.path.lexists(place))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        what = "may not be written" if existing.is_dir() else "is no folder"
        raise ValueError(
            f"--out must be a folder that can be written, but {str(existing)!r} {what}; choose another, or remove that."
        )
