"""The command `sweep phase-diagram`: what it passes on, what it keeps and draws, what it refuses in one line."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr

from clusterjax import CausalMask, FullMask, WindowMask, phase, sweep
from clusterjax._cli import main
from tests.cli.test_main import refused


CALL = ["sweep", "phase-diagram"]
SMALL = ["--betas", "1:4:2", "--times", "3", "--until", "1", "--n", "4", "--samples", "8"]


@pytest.mark.exhaustive
def test_small_diagram(capsys, tmp_path):
    """It is kept and drawn, and the same call again only draws."""
    store, picture = tmp_path / "run.zarr", tmp_path / "a.png"
    call = [*CALL, *SMALL, "--store", str(store), "--out", str(picture)]
    assert main(call) == 0
    assert f"2 betas in {store}" in capsys.readouterr().out and picture.read_bytes()[:4] == b"\x89PNG"
    found = sweep.open(store)
    assert dict(found.sizes) == {"beta": 2, "t": 3} and found.close_pairs.dtype == np.float32
    assert {"close_pairs", "close_pairs_error"} < set(found)
    picture.unlink()
    assert main(call) == 0 and picture.exists()
    assert main(call[:-2]) == 0 and (tmp_path / "run.png").exists(), "without a name it is drawn beside the store"
    assert main([*CALL, *SMALL, "--store", str(store), "--n", "5"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("clusterjax sweep: --store must be of this sweep")


def test_options_are_passed_on(monkeypatch, tmp_path):
    seen = []

    def run(betas, times, **options):
        seen.append((betas, times, options))
        return xr.Dataset({"status": ("beta", np.zeros(len(betas), int))}, {"beta": betas}, {"n": 4, "d": 2})

    monkeypatch.setattr(phase, "phase_diagram", run)
    monkeypatch.setattr("clusterjax._cli.find_spec", lambda name: None)  # nothing is drawn
    store = ["--store", str(tmp_path / "run.zarr")]
    random = ["--query-key", "wigner", "--value", "descent", "--drawn", "beta", "--d", "3", "--seed", "7"]
    how = "--variant unnormalised --causal --adaptive --double --fresh --times 5 --betas 0:2:3".split()
    assert main([*CALL, *store, *random, *how]) == 0
    ((betas, times, options),) = seen
    np.testing.assert_array_equal(betas, [0, 1, 2])
    np.testing.assert_array_equal(times, np.linspace(0, 1, 5))
    assert (options["mask"], options["dtype"], options["resume"]) == (CausalMask(), "float64", False)
    assert options["unnormalised"]
    assert (options["d"], options["seed"], options["store"]) == (3, 7, store[1])
    assert options["query_key"] == phase.Wigner(phase.PerBeta()) and options["integrator"] == phase.Adaptive()
    assert float(options["value"].scale) == pytest.approx(-0.5)
    np.save(tmp_path / "x0.npy", np.eye(3)[None])
    assert main([*CALL, *store, "--starts", str(tmp_path / "x0.npy"), "--dt", "0.01"]) == 0
    options = seen[1][2]
    np.testing.assert_array_equal(options["starts"], np.eye(3)[None])
    assert options["mask"] == FullMask()
    assert options["integrator"] == phase.NormalisedEuler(0.01) and options["value"] == phase.Identity()
    np.testing.assert_array_equal(seen[1][0], np.linspace(0.1, 9, 90))
    np.testing.assert_array_equal(seen[1][1], np.linspace(0, 30, 200))
    more = ["--window", "3", "--spectrum", "1+2j, 1-2j", "--query-key", "gaussian", "--drawn", "once"]
    assert main([*CALL, *store, *more]) == 0 and main([*CALL, *store, "--window", "4", "--causal"]) == 0
    options = seen[2][2]
    assert options["mask"] == WindowMask(3) and seen[3][2]["mask"] == WindowMask(4, causal=True)
    assert options["query_key"] == phase.Gaussian(phase.Once()) and options["value"].drawn == phase.Once()
    np.testing.assert_array_equal(options["value"].eigenvalues, [[1, -2], [2, 1]])


def test_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for words, line in {
        "": "--store or --out must be given",
        "--store a --betas 1:2": "--betas must be A:B:N",
        "--store a --betas=-1:2:4": "--betas must be A:B:N",
        "--store a --times 1": "--times must be an integer from 2",
        "--store a --until 0": "--until must be a finite number above 0",
        "--store a --dt 0": "--dt must be a finite number above 0",
        "--store a --statistics pairs": "--statistics must be of close-pairs",
        "--store a --starts b.npy": "--starts must be a file that is there",
        "--store a --starts b.npy --d 2": "--d must be left out beside --starts",
        "--out a.gif": "--out must be a .png, .svg or .pdf",
        "--out nowhere/a.png": "--out must be a .png, .svg or .pdf in an existing folder",
        "--store a --window 0": "--window must be a positive integer",
        "--store a --spectrum 1,x": "--spectrum must be 2 numbers",
        "--store a --spectrum 1": "--spectrum must be 2 numbers",
        "--store a --spectrum 1j,1j": "eigenvalues must be finite numbers",
        "--store a --spectrum 1,1 --value square": "--spectrum must be given without --value",
        "--store a --n 1": "--n must be an integer of at least 2",
        "--store a --n 100000 --samples 100000": "--n, --d and --samples must be at most",
        "--store a --variant unnormalised --betas 0:30:2": "--betas must leave fewer than",
    }.items():
        assert line in refused(capsys, *words.split(), command="sweep phase-diagram")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_killed_run_goes_on(tmp_path):
    """SIGKILL in the middle, and again: the finished store is that of a run which was left alone, file by file."""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "SOURCE_DATE_EPOCH": "0"}
    small = ["--betas", "0.5:9:24", "--times", "20", "--until", "20", "--n", "16", "--samples", "256"]
    call = lambda store: [sys.executable, "-m", "clusterjax", *CALL, *small, "--store", str(store)]
    subprocess.run(call(tmp_path / "alone"), check=True, env=env, capture_output=True)
    killed = 0
    for _ in range(2):
        running = subprocess.Popen(call(tmp_path / "killed"), env=env, stderr=subprocess.DEVNULL)
        before = len(list((tmp_path / "killed").rglob("*")))
        while running.poll() is None and len(list((tmp_path / "killed").rglob("*"))) < before + 4:
            time.sleep(0.02)
        running.send_signal(signal.SIGKILL)
        killed += running.wait() == -signal.SIGKILL
    assert killed
    subprocess.run(call(tmp_path / "killed"), check=True, env=env, capture_output=True)
    files = {path.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(tmp_path / "killed") for path in (tmp_path / "killed").rglob("*") if path.is_file()
    }
    for path in files:
        assert (tmp_path / "alone" / path).read_bytes() == (tmp_path / "killed" / path).read_bytes(), path
