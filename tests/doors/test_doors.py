"""Every public callable, argument and kind of bad value: one clear sentence, or an acceptance with its reason."""

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests import doors
from tests.doors.inside import is_door
from tests.doors.walk import call, is_finite, public, walk
from tests.helpers import as_a_user


PUBLIC = {name: called for module in doors.FILES for name, called in public(module).items()}
CASES = {name: case for module in doors.FILES for name, case in doors.cases_of(module).items()}
DOORS = sorted(name for name in CASES if name in PUBLIC)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """A door that takes "x" for the name of a file writes it there."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("module", doors.FILES, ids=lambda name: name or "clusterjax")
def test_every_public_name_has_a_case(module):
    """A new public name comes with the arguments of a valid call, or is listed as one that users do not call."""
    wanted = {name for name in public(module) if is_door(name)}
    cases = set(doors.cases_of(module))
    assert wanted - cases == set(), "these public names have no case in tests/doors"
    assert cases - wanted == set(), "these cases are of no public name"


@pytest.mark.parametrize("name", DOORS)
def test_bad_values_are_refused(name):
    _walk(name, dear=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DOORS)
def test_values_are_refused_or_documented(name):
    _walk(name, dear=True)


def _walk(name, dear):
    called = PUBLIC[name]
    with as_a_user(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Complex dtype support")  # of diffrax, which a field may want in its args
        warnings.filterwarnings("ignore", "Animation was deleted")  # none is shown, nor written
        warnings.filterwarnings("ignore", "Python iterable type")  # of Equinox, which looks through all arguments
        verdicts = list(walk(name, called, CASES[name], dear=dear))
        if dear:
            gc.collect()
    assert {verdict.where: verdict.outcome for verdict in verdicts if verdict.is_fault} == {}


def _numbers(*arguments):
    """A process of its own, since x64 is chosen once a process."""
    command = [sys.executable, "-m", "tests.doors.numbers", *arguments]
    settings = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=1500)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


@pytest.mark.exhaustive
def test_numbers_beyond_float32_and_in_the_other_order_of_bytes():
    _numbers("16")


@pytest.mark.exhaustive
@pytest.mark.parametrize("module", doors.FILES, ids=lambda name: name or "clusterjax")
def test_all_numbers_beyond_float32_and_in_the_other_order_of_bytes(module):
    _numbers("1", module or "clusterjax")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DOORS)
def test_the_valid_call_is_valid(name):
    with as_a_user(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Animation was deleted")  # it is not shown, nor written
        assert is_finite(call(name, PUBLIC[name], CASES[name])) or not CASES[name].finite
        gc.collect()
