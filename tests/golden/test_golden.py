"""Every canonical run returns the arrays of `runs.safetensors`, written before the package was restructured."""

import re
from pathlib import Path

import numpy as np
import pytest

from .register import FILE, TOLERANCES, difference, stored
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


def test_the_file_is_small():
    assert FILE.stat().st_size < 500_000


def test_runs_use_the_public_face_alone():
    for file in Path(__file__).parent.glob("*.py"):
        assert not re.search(r"clusterjax[\w.]*\._|\b[a-z]+\._[a-z]", file.read_text("utf-8")), file.name


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-8], "by 1e-08, which is 5e-09 of its scale, above 1e-09"),
        ([1e-12], [0.0], None),
        ([1.0, np.nan], [1.0, np.nan], None),
        ([1.0, np.inf], [1.0, -np.inf], "is not finite where"),
        ([np.nan, 1.0], [1.0, 1.0], "is not finite where"),
        ([1, 2], [1, 3], "differs from the file in 1 of 2 entries"),
        ([1.0], [1.0, 1.0], r"is float64\[1\], but the file has float64\[2\]"),
        (np.float32([1.0]), [1.0], r"is float32\[1\], but the file has float64\[1\]"),
    ],
)
def test_a_difference_is_described(found, expected, words):
    said = difference(np.asarray(found), np.asarray(expected), TOLERANCES)
    assert said is None if words is None else re.search(words, said)
