"""The same seed gives the same files, byte for byte, in another process and if the run is killed in between."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from clusterjax._training_loop import _FILE

from .training_process import KINDS, TEXTS


TIMED = "checkpoint.safetensors"


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def process(hash_seed, *arguments):
    """A process as a user's, but that it compiles as these tests do; strings have other hashes in each."""
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    if jax.config.jax_compilation_cache_dir:
        environment["JAX_COMPILATION_CACHE_DIR"] = jax.config.jax_compilation_cache_dir
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, "-m", "tests.training_process", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[1])


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.exhaustive if kind != "language-model" else ()) for kind in KINDS]
)
def test_what_is_trained_twice_is_the_same_but_for_the_seconds_of_the_checkpoint(kind, tmp_path):
    """A run in one process, and another that is killed in a second process and goes on in a third one."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    whole, again = tmp_path / "whole", tmp_path / "again"
    one = process(1, kind, whole, tmp_path / "texts.txt")
    assert process(2, kind, again, tmp_path / "texts.txt", "killed").wait() == -signal.SIGKILL
    assert (again / TIMED).is_file() and not (again / "config.json").exists()
    assert process(3, kind, again, tmp_path / "texts.txt").wait() == one.wait() == 0
    files, others = files_of(whole), files_of(again)
    assert files.keys() == others.keys() >= {"config.json", "history.json", "report.json", "curves.png"}
    assert [name for name in files if files[name] != others[name] and name != TIMED] == []
    headers, arrays = zip(*(_FILE.unpack(folder / TIMED) for folder in (whole, again)), strict=True)
    for header in headers:
        assert len(header["progress"].pop("seconds")) == 3
        # Its own checksum, which follows from the rest.
        del header["sha256"]
    assert headers[0] == headers[1] and arrays[0].keys() == arrays[1].keys()
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
