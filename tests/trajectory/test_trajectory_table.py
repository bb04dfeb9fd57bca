"""Runs as labelled datasets: axes, coordinates, units, settings."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.helpers import assert_same
from tests.trajectory.test_trajectory_file import EULER, FIELD, TS, V, X, run


pytest.importorskip("xarray")


def test_tokens_are_labelled():
    traj = run("plain")
    data = traj.to_xarray()
    assert data["xs"].dims == ("time", "token", "dim") and data["x1"].dims == ("token", "dim")
    assert_same(data["xs"], traj.xs)
    assert_same(data["time"], TS)
    assert_same(data["xs"].sel(time=0.5, token=2), traj.xs[1, 2])
    assert data["xs"].dtype == np.float64 and float(data["t1"]) == 1.0
    assert int(data["num_steps"]) == int(traj.stats["num_steps"]) and data.attrs["summation"] == "Dense"
    assert str(data["result"].values) == "successful"


def test_units_parameters_and_versions_are_inside():
    data = run("plain").to_xarray()
    assert {data[name].attrs["units"] for name in data.variables if name not in ("token", "dim")} == {"1"}
    told = json.loads(data.attrs["settings"])
    assert told["field"]["attention"]["beta"] == 2.0 and told["solver"]["class"] == "Euler"
    assert_same(told["field"]["value"], V)
    assert data.attrs["clusterjax_version"] == cjx.__version__ and data.attrs["jax_version"] == jax.__version__


def test_layers_are_numbers():
    data = run("layers").to_xarray()
    assert data["xs"].dims == ("layer", "token", "dim")
    assert data["layer"].dtype.kind == "i" and data["layer"].values.tolist() == [0, 2, 4]
    assert json.loads(data.attrs["settings"])["depth"] == 4


def test_what_was_saved_has_the_names_of_its_tree():
    traj = run("saved")
    data = traj.to_xarray()
    assert data["saved.signs"].dims == ("time", "saved.signs_axis_0", "saved.signs_axis_1")
    assert_same(data["saved.integers.0"], traj.saved["integers"][0])
    assert "saved.none" not in data and str(data["result"].values) == "event_occurred"


@pytest.mark.exhaustive
def test_a_tuple_that_save_returns_has_the_names_of_its_places():
    data = run("noise").to_xarray()
    assert data["xs.0"].dims == ("time", "xs.0_axis_0") and data["xs.1.0"].dims == ("time",)


@pytest.mark.exhaustive
def test_batches_have_an_axis_of_runs():
    traj = run("batch")
    data = traj.to_xarray()
    assert data["xs"].dims == ("run", "time", "token", "dim") and data["num_steps"].dims == ("run",)
    assert_same(data["time"], TS)
    assert len(set(data["result"].values.tolist())) == 2
    spans = jax.vmap(lambda end: cjx.iterate(cjx.ResidualLayer(FIELD, end), X, 2))(jnp.asarray([0.1, 0.2]))
    assert spans.to_xarray()["layer"].values.tolist() == [0, 1, 2]
    times = jax.vmap(lambda end: cjx.simulate(FIELD, X, jnp.stack([jnp.asarray(0.0), end]), **EULER))(
        jnp.asarray([1.0, 2.0])
    )
    data = times.to_xarray()
    assert "time" not in data.coords and data["time_of_run"].dims == ("run", "time")
    assert_same(data["time_of_run"], [[0.0, 1.0], [0.0, 2.0]])


def test_two_axes_of_runs():
    step = jnp.asarray([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    runs = jax.vmap(jax.vmap(lambda step: cjx.iterate(cjx.ResidualLayer(FIELD, step), X, 2)))(step)
    data = runs.to_xarray()
    assert data["xs"].dims == ("run_0", "run_1", "layer", "token", "dim")
    assert data["max_steps"].dims == ("run_0", "run_1")
    assert_same(json.loads(data.attrs["settings"])["layer"]["step"], step)


def test_a_loaded_run_is_the_same_table(tmp_path):
    run("batch").save(tmp_path / "run")
    assert cjx.Trajectory.load(tmp_path / "run").to_xarray().identical(run("batch").to_xarray())


# Versions of zarr before 3.1 warn of words.
@pytest.mark.filterwarnings("ignore:The .* is currently not part in the Zarr format 3:UserWarning")
def test_it_can_be_written_by_xarray(tmp_path):
    """The attributes and names are such as zarr accepts."""
    import xarray

    for name in ("saved", "batch"):
        data = run(name).to_xarray()
        data = data.drop_vars([v for v in data.variables if data[v].dtype.name in ("bfloat16",)])
        data.to_zarr(tmp_path / name, consolidated=False)
        assert_same(xarray.open_zarr(tmp_path / name, consolidated=False)["x1"], data["x1"])


def test_errors(monkeypatch):
    with pytest.raises(ValueError, match="^the trajectory must have a value, but it is traced; call this outside"):
        jax.jit(lambda traj: traj.to_xarray())(run("single"))
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(
        ImportError, match=r"^to_xarray needs xarray; install it with: pip install 'clusterjax\[sweep\]'$"
    ):
        run("single").to_xarray()
