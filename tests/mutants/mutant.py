"""A fault of one line, and how it is planted."""

from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).resolve().parents[2]


class Mutant(NamedTuple):
    """A one-line fault.

    `line` stands exactly once in `file`, and is replaced by `fault`; one of `tests`, arguments of pytest, must fail.
    """

    name: str
    file: str
    line: str
    fault: str
    tests: tuple[str, ...]


def planted(mutant: Mutant, text: str) -> str:
    """`text` with the fault in it, or a ValueError if its line does not stand there exactly once."""
    found = text.count(mutant.line)
    if found != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} must hold the line once, but holds it {found} times.")
    return text.replace(mutant.line, mutant.fault)
