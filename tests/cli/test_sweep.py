"""The command `sweep phase-diagram`: its options, its store and picture, and its refusals in one line."""

import numpy as np
import pytest
import xarray as xr

from clusterjax import CausalMask, FullMask, WindowMask, phase, sweep
from clusterjax._cli import main


CALL = ["sweep", "phase-diagram"]
SMALL = ["--betas", "1:4:2", "--times", "3", "--until", "1", "--n", "4", "--samples", "8"]


@pytest.mark.exhaustive
def test_small_diagram(capsys, tmp_path):
    """The diagram is stored and drawn, and the same call again only draws."""
    store, picture = tmp_path / "run.zarr", tmp_path / "a.png"
    call = [*CALL, *SMALL, "--store", str(store), "--out", str(picture)]
    assert main(call) == 0
    assert f"2 betas are in {store}" in capsys.readouterr().out and picture.read_bytes()[:4] == b"\x89PNG"
    found = sweep.open(store)
    assert dict(found.sizes) == {"beta": 2, "t": 3} and found.close_pairs.dtype == np.float32
    assert {"close_pairs", "close_pairs_error"} < set(found)
    picture.unlink()
    written = {file: file.stat().st_mtime_ns for file in store.rglob("*")}
    assert main(call) == 0 and picture.exists()
    assert written == {file: file.stat().st_mtime_ns for file in store.rglob("*")}
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
    for grid, expected in (("log:0.1:100:4", [0.1, 1.0, 10.0, 100.0]), ("log:2:2:1", [2.0]), ("0:0:1", [0.0])):
        assert main([*CALL, *store, "--betas", grid]) == 0
        np.testing.assert_allclose(seen.pop()[0], expected, rtol=1e-14)
    more = ["--window", "3", "--spectrum", "1+2j, 1-2j", "--query-key", "gaussian", "--drawn", "once"]
    assert main([*CALL, *store, *more]) == 0 and main([*CALL, *store, "--window", "4", "--causal"]) == 0
    options = seen[2][2]
    assert options["mask"] == WindowMask(3) and seen[3][2]["mask"] == WindowMask(4, causal=True)
    assert options["query_key"] == phase.Gaussian(phase.Once()) and options["value"].drawn == phase.Once()
    np.testing.assert_array_equal(options["value"].eigenvalues, [[1, -2], [2, 1]])
