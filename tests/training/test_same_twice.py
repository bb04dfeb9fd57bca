"""Two runs with one seed give the same files, byte for byte, also in another process or after a kill."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import jax
import pytest

from clusterjax._training.loop import _FILE
from clusterjax.experiments import Files, Settings, reproduce
from clusterjax.experiments.framework import record
from tests.experiments.own import experiment
from tests.training_process import KINDS, TEXTS, make


def lasting(path):
    """The content of a file, less the parts in which two runs differ by docs/howto/save_and_load.md."""
    if path.name == "checkpoint.safetensors":
        header, arrays = _FILE.unpack(path)
        assert len(header["progress"].pop("seconds")) == 3 and header.pop("sha256")
        return header, {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}
    if path.name == "results.json":
        record = json.loads(path.read_text("utf-8"))
        assert record.pop("seconds") and record.pop("finished")
        return json.dumps(record)
    return path.read_bytes()


def files_of(folder):
    return {str(path.relative_to(folder)): lasting(path) for path in folder.rglob("*") if path.is_file()}


def killed(*arguments):
    """Runs a process that compiles as these tests do, with other hashes of strings; returns its exit status."""
    environment = os.environ | {"PYTHONHASHSEED": "1", "JAX_ENABLE_X64": "1"}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(jax.config.read("jax_disable_most_optimizations")))
    if jax.config.jax_compilation_cache_dir:
        environment["JAX_COMPILATION_CACHE_DIR"] = jax.config.jax_compilation_cache_dir
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, "-m", "tests.training_process", *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], check=False).returncode


@pytest.mark.exhaustive_cases("language-model")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.exhaustive if kind != "language-model" else ()) for kind in KINDS]
)
def test_what_is_made_twice_is_the_same_but_for_what_the_docs_name(kind, tmp_path):
    """A run in this process equals a run that is killed in another process and continues in this one."""
    texts, whole, again = (tmp_path / name for name in ("texts.txt", "whole", "again"))
    texts.write_text("\n".join(TEXTS))
    assert killed(kind, again, texts) == -signal.SIGKILL
    ended, begun = ("results.json", "figure8") if kind == "figures" else ("model.safetensors", "checkpoint.safetensors")
    place = again / "hardmax-polytope" if kind == "figures" else again
    assert (again / begun).exists() and not (place / ended).exists()
    for folder in (whole, again):
        make(kind, folder, texts)
    files, others = files_of(whole), files_of(again)
    assert (place / ended).exists() and files.keys() == others.keys()
    assert [name for name in files if files[name] != others[name]] == []


class _Tomorrow(datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + timedelta(days=1)


def test_a_gallery_made_twice_is_the_same_but_for_what_the_docs_name(tmp_path, monkeypatch):
    """The second gallery is stopped while its second figure is drawn, and continues on another day."""

    def make_gallery(name, say=lambda line: None):
        reproduce([experiment(), experiment("dice")], tmp_path / name, Settings(starts=2), Files(), say=say)

    def stop(line):
        if line.endswith("dice: drawing"):
            raise KeyboardInterrupt

    make_gallery("whole")
    with pytest.raises(KeyboardInterrupt):
        make_gallery("again", stop)
    assert (tmp_path / "again" / "coins").exists() and not (tmp_path / "again" / "dice").exists()
    monkeypatch.setattr(record, "datetime", _Tomorrow)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")  # the date in the files of matplotlib
    make_gallery("again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "whole")
