"""The cache of compiled programs: the owner of its folder, and the programs that a second process reads from it."""

import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import clusterjax as cjx
from clusterjax._base import compilation_cache


@pytest.fixture(autouse=True)
def used(monkeypatch, tmp_path):
    """The folders that jax would use; the process of the tests itself stores no programs in them."""
    found = []
    monkeypatch.setattr(compilation_cache, "_use", found.append)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return found


def test_the_folder_is_in_the_cache_of_the_user_and_is_his_alone(used, tmp_path):
    before = os.umask(0)
    try:
        folder = cjx.enable_compilation_cache()
    finally:
        os.umask(before)
    assert used == [folder] and folder.parent == tmp_path / "caches" / "clusterjax" / "xla"
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert cjx.enable_compilation_cache() == folder  # the second call finds an existing folder


@pytest.mark.parametrize(
    ("platform", "place"),
    (("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")),
)
def test_each_system_has_its_own_place(monkeypatch, tmp_path, platform, place):
    """A relative `XDG_CACHE_HOME` is ignored."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    assert compilation_cache._user_folder() == tmp_path / "home" / place / "clusterjax" / "xla"


def test_a_folder_that_others_could_write_to_is_refused(used, monkeypatch, tmp_path):
    for mode in (0o770, 0o707, 0o720, 0o702):
        tmp_path.chmod(mode)
        with pytest.raises(ValueError, match="folder must be yours alone to write to, but others may write to .*chmod"):
            cjx.enable_compilation_cache(tmp_path)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ValueError, match="folder must belong to you, but .* belongs to another user"):
        cjx.enable_compilation_cache(tmp_path)
    assert used == []


def test_each_kind_of_processor_has_its_own_folder(monkeypatch, tmp_path):
    """A program for one processor may crash on another processor that shares the folder."""
    here = cjx.enable_compilation_cache(tmp_path / "cache")
    monkeypatch.setattr(platform, "processor", lambda: "another")
    assert cjx.enable_compilation_cache(tmp_path / "cache") != here


def test_a_folder_within_that_others_could_write_to_is_refused(used, tmp_path):
    cjx.enable_compilation_cache(tmp_path / "cache").chmod(0o777)
    with pytest.raises(ValueError, match="folder must be yours alone"):
        cjx.enable_compilation_cache(tmp_path / "cache")


def test_a_file_is_refused(used, tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="folder must be a folder, but .*file.* is not"):
            cjx.enable_compilation_cache(path)
    assert used == []


PROGRAM = """
import sys, jax, jax.numpy as jnp, clusterjax as cjx
hits, programs = [], []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: programs.append(event) if event.endswith("backend_compile_duration") else None
)
cjx.enable_compilation_cache(sys.argv[1] + "-before")
jnp.arange(3).sum()  # jax has then opened that folder
cjx.enable_compilation_cache(sys.argv[1])
hits.clear()
programs.clear()
x0 = cjx.Sphere().sample(jax.random.key(0), n=4, d=2)
field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
print(cjx.simulate(field, x0, jnp.asarray([0.0, 1.0])).x1.tolist())
print(len(programs), len(hits))
"""


@pytest.mark.exhaustive
def test_a_second_process_reads_every_program_of_the_first(tmp_path):
    """The program of the run is among them, since it has no callback; the numbers are equal."""
    env = os.environ | {"PYTHONPATH": str(Path(cjx.__file__).parents[1]), "JAX_PLATFORMS": "cpu"}
    answers = []
    for _ in range(2):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache")]
        run = subprocess.run(command, capture_output=True, text=True, env=env)
        assert run.returncode == 0, run.stderr
        answers.append(run.stdout.splitlines())
    (first, wrote), (second, read) = answers
    assert first == second
    assert any("_run" in entry.name for entry in (tmp_path / "cache").glob("*/*"))
    programs, hits = map(int, read.split())
    assert programs == hits == int(wrote.split()[0]) > 3
