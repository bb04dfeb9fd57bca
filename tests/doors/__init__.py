"""Every public callable with every kind of bad value: it is refused in one clear sentence, or accepted with a reason.

`walk` finds the callables and calls them, `values` are the bad values, `rules` say what may be
accepted, and the other files hold for each callable the arguments of a small valid call.

A module that is new here gets a file with `CASES`, one for each public name that is no record and no step of the
package itself (see `inside`), as in `lower`, and an entry in `FILES`.
"""

import functools
import importlib

from tests.doors.cases import Case
from tests.doors.inside import split


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
        found |= importlib.import_module(f".{file}", __package__).CASES
    return {name: case for name, case in found.items() if split(name)[0] == module}
