"""Faults of one line, which `faults.diff` lists by the file that they would break, and how each is planted."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).resolve().parents[2]


class Mutant(NamedTuple):
    """A fault: `line`, which occurs exactly once in `file`, becomes `fault`, and one of `tests` must then fail."""

    name: str
    file: str
    line: str
    fault: str
    tests: tuple[str, ...]


def read(text: str) -> Iterator[Mutant]:
    """The faults of a text in the form of `faults.diff`."""
    for section in text.split("\n+++ ")[1:]:
        file, *faults = section.split("\n@@ ")
        for fault in faults:
            head, *lines = f"{fault}\n".splitlines(keepends=True)
            of = {mark: "".join(line[1:] for line in lines if line[0] == mark) for mark in "@-+"}
            name, arguments = (head + of["@"]).split("@@")
            tests: list[str] = []
            for test in arguments.split():
                tests.append(test if test[:2] != "::" else tests[-1].partition("::")[0] + test)
            yield Mutant(name.strip(), file, of["-"], of["+"], tuple(tests))


MUTANTS = tuple(read(Path(__file__).with_name("faults.diff").read_text("utf-8")))


def planted(mutant: Mutant, text: str) -> str:
    """Returns `text` with the fault in it; raises a ValueError unless the line of the fault occurs exactly once."""
    found = text.count(mutant.line)
    if found != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} must hold the line once, but holds it {found} times.")
    return text.replace(mutant.line, mutant.fault)
