"""Every public callable with every kind of bad value: it is refused in one clear sentence, or accepted with a reason.

`walk` finds the callables and calls them, `values` are the bad values, `rules` say what may be accepted and why,
and the other files hold for each callable the arguments of a small valid call.

    python -m tests.doors                   the counts by module, and what is not refused
    python -m tests.doors transformer plot  of these modules only
    python -m tests.doors --dear plot       also the accepted calls that compile for long
    python -m tests.doors --only=angles plot   of the callables whose name holds this word
    python -m tests.doors --known plot      write what is not refused in `plot` into known/plot.txt

A module that is new here gets a file with `CASES`, one for each public name that is no record and no step of the
package itself (see `inside`), as in `lower`; when nothing of it is left it joins `FINISHED`, and the tests walk it.
"""

import functools
import importlib
from pathlib import Path

from tests.doors.cases import Case
from tests.doors.inside import split


# What is not refused yet, by module: one call a line. Each line that is refused by now fails the test.
KNOWN = Path(__file__).resolve().parent / "known"

# The modules that the tests walk; of the others `python -m tests.doors` says what is left to do.
FINISHED: tuple[str, ...] = (
    "", "hardmax", "sentiment", "transformer", "probe", "sweep", "phase", "plot", "experiments",
    "design",
)  # fmt: skip

# The files of cases by module.
FILES = {
    "": ("lower", "observables"), "hardmax": ("observables",), "sentiment": ("sentiment",),
    "transformer": ("transformer",), "probe": ("probe",), "sweep": ("sweep",), "phase": ("phase",), "plot": ("plot",),
    "experiments": ("experiments",), "design": ("design",),
}  # fmt: skip


@functools.cache
def cases_of(module: str) -> dict[str, Case]:
    """The cases of one module of clusterjax by the name of the callable."""
    found = {}
    for file in FILES[module]:
        if (Path(__file__).parent / f"{file}.py").is_file():
            found |= importlib.import_module(f".{file}", __package__).CASES
    return {name: case for name, case in found.items() if split(name)[0] == module}


def known(module: str) -> frozenset[str]:
    """The calls of a module that are not refused yet."""
    file = KNOWN / f"{module or 'clusterjax'}.txt"
    return frozenset(file.read_text("utf-8").splitlines()) if file.is_file() else frozenset()
