"""Every canonical run returns the arrays of `runs.safetensors`, written before the package was restructured."""

import re
from pathlib import Path

import pytest

from .register import difference, stored
from .runs import RUNS


REMEDY = "find the change that caused this; run `python -m tests.golden.make NAME` only if the change was intended"


# Some runs are compared by `make test`; `make exhaustive` compares the others.
OFTEN = {"mergers of unnormalised attention with masses and repeats", "trace of llama"}


def chosen(name):
    return name if name in OFTEN else pytest.param(name, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("name", [chosen(name) for name in sorted(RUNS.keys() | stored().keys())])
def test_a_run_returns_the_arrays_of_the_file(name):
    assert name in RUNS, (
        f"run {name!r} is in the file, but no function is registered under this name; restore the function"
    )
    assert name in stored(), f"run {name!r} is not in the file; run `python -m tests.golden.make {name!r}`"
    run, expected = RUNS[name], stored()[name]
    found = run.arrays()
    assert found.keys() == expected.keys(), f"run {name!r} returns other arrays than the file holds; {REMEDY}"
    wrong = {part: difference(found[part], array, run.tolerances) for part, array in expected.items()}
    lines = [f"run {name!r}, array {part!r} {words}" for part, words in wrong.items() if words]
    assert not lines, "\n".join([*lines, REMEDY])


def test_runs_use_the_public_face_alone():
    for file in Path(__file__).parent.glob("*.py"):
        assert not re.search(r"clusterjax[\w.]*\._|\b[a-z]+\._[a-z]", file.read_text("utf-8")), file.name
