"""Every door, argument and kind of bad value: the value is refused in one clear sentence, or accepted for a reason."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterjax._base import compilation_cache
from clusterjax._training.corpus import read_texts
from clusterjax.transformer import _train
from tests.doors.good import MODULES, good_values
from tests.doors.inside import split
from tests.doors.rules import NOT_FINITE
from tests.doors.walk import doors, faults, is_finite
from tests.helpers import as_a_user


DOORS = {name: door for module in MODULES for name, door in doors(module).items()}
# Libraries warn: diffrax of complex numbers, which a field may want in its args; matplotlib of a film that is neither
# shown nor written; Equinox, which looks through all arguments, of iterables.
WORDS = ("Complex dtype support", "Animation was deleted", "Python iterable type")
pytestmark = [pytest.mark.filterwarnings(f"ignore:{words}") for words in WORDS]
every_door = pytest.mark.parametrize("name", sorted(DOORS))


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """A door may write files into a folder, texts for a training are only read, and the cache of jax is off."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compilation_cache, "_use", lambda path: None)
    monkeypatch.setattr(_train, "_train_in", lambda asked: {"texts": len(read_texts(asked.paths))})
    with as_a_user():
        yield


@every_door
def test_bad_values_are_refused(name):
    assert faults(DOORS[name], dear=False) == {}


@pytest.mark.exhaustive
@every_door
def test_values_are_refused_or_documented(name):
    assert faults(DOORS[name], dear=True) == {}
    gc.collect()


@pytest.mark.exhaustive
@every_door
def test_the_valid_call_is_valid(name):
    assert is_finite(DOORS[name].call()) or name in NOT_FINITE
    gc.collect()


@pytest.mark.parametrize("module", MODULES, ids=lambda name: name or "clusterjax")
def test_each_good_value_is_of_an_argument(module):
    """Each key names an argument, an argument at one door, or an object."""
    here = [door for door in DOORS.values() if not module or split(door.name)[0] == module]
    arguments = {name for door in here for name in door.parameters}
    places = {f"{split(door.name)[1]}.{name}" for door in here for name in (*door.parameters, "*")}
    owners = {f"{split(door.name)[1].rpartition('.')[0]}.self" for door in here}
    assert set(good_values(module)) - arguments - places - owners == set()


def _numbers(*arguments):
    """Runs a process of its own, since x64 is chosen once per process."""
    command = [sys.executable, "-m", "tests.doors.numbers", *arguments]
    settings = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=1500)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


@pytest.mark.exhaustive
def test_numbers_beyond_float32_and_in_the_other_order_of_bytes():
    _numbers("16")


@pytest.mark.exhaustive
@pytest.mark.parametrize("module", MODULES, ids=lambda name: name or "clusterjax")
def test_all_numbers_beyond_float32_and_in_the_other_order_of_bytes(module):
    _numbers("1", module or "clusterjax")
