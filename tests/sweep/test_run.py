"""A sweep gives the numbers of a plain loop, labelled, in the order of the axes; a point that fails, fails alone."""

import functools
import io
import itertools
import sys
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import xarray as xr

from clusterjax import sweep
from clusterjax.sweep._batches import plan
from clusterjax.sweep._labels import parse_axes
from clusterjax.sweep._run import Progress
from tests.helpers import CountTraces, assert_close


MATRICES = np.stack([np.eye(2), [[0.0, 1.0], [-1.0, 0.5]], np.ones((2, 2))])


def point(beta, rounds, V, model, key):
    """A function of floats, integers, a matrix, a static word and a random draw."""
    x = jr.normal(key, (2,), beta.dtype)
    for _ in range({"short": 1, "long": 3}[model]):
        x = jnp.tanh(beta * (V @ x))
    return {"x": x, "energy": jnp.sum(x**2) + jnp.asarray(rounds, x.dtype), "rounds_twice": 2 * rounds}


AXES = {
    "beta": sweep.Axis([0.5, 1.0, 2.0], "1", "Inverse temperature."),
    "model": ["short", "long"],
    "rounds": range(2),
    "V": MATRICES,
}


def plain_loop(seed):
    """The outputs of `point` by a loop over the points, in NumPy except for the draws."""
    shape = (3, 2, 2, 3)
    x, energy, twice = np.empty((*shape, 2)), np.empty(shape), np.empty(shape, int)
    for at in itertools.product(*map(range, shape)):
        beta, model, rounds, V = [0.5, 1.0, 2.0][at[0]], ("short", "long")[at[1]], at[2], MATRICES[at[3]]
        key = sweep.point_key(seed, {"beta": beta, "model": model, "rounds": rounds, "V": V})
        y = np.asarray(jr.normal(key, (2,), float))
        for _ in range(3 if model == "long" else 1):
            y = np.tanh(beta * V @ y)
        x[at], energy[at], twice[at] = y, y @ y + rounds, 2 * rounds
    return x, energy, twice


@pytest.fixture(scope="module")
def swept():
    variables = {"x": sweep.Variable(("coordinate",), {"coordinate": ["east", "north"]}, "m", "The place.")}
    return sweep.run(point, AXES, batch_size=4, seed=2**32 - 1, progress=False, variables=variables)


def test_every_point_is_that_of_a_plain_loop(swept):
    x, energy, twice = plain_loop(2**32 - 1)
    assert_close(swept.x, x)
    assert_close(swept.energy, energy)
    np.testing.assert_array_equal(swept.rounds_twice, twice)
    assert swept.rounds_twice.dtype == np.int64 and swept.x.dtype == np.float64
    assert not swept.status.any() and not (swept.reason != "").any()


def test_the_result_is_labelled(swept):
    assert list(swept) == ["x", "energy", "rounds_twice", "status", "reason"]
    assert swept.energy.dims == ("beta", "model", "rounds", "V") and swept.x.dims[-1] == "coordinate"
    assert swept.beta.attrs == {"units": "1", "description": "Inverse temperature."}
    assert swept.x.attrs == {"units": "m", "description": "The place."}
    assert float(swept.energy.sel(beta=2.0, model="long", rounds=1, V=2)) == float(swept.energy[2, 1, 1, 2])
    np.testing.assert_array_equal(swept.V_values, MATRICES)
    assert list(swept.coordinate.values) == ["east", "north"]
    assert swept.attrs["seed"] == 2**32 - 1 and swept.attrs["floats"] == "float64"
    assert swept.attrs["function"] == "point" and swept.attrs["jax_version"] == jax.__version__


def test_each_choice_of_static_values_is_compiled_once():
    """The last batch, which is short, compiles nothing anew."""
    counted = CountTraces(lambda beta, n: beta * jnp.ones(n).sum())
    found = sweep.run(
        counted, {"beta": np.arange(5.0), "n": sweep.Axis([1, 3], static=True)}, batch_size=2, progress=False
    )
    np.testing.assert_array_equal(found.result, np.outer(np.arange(5.0), [1, 3]))
    assert counted.traces == 2


def test_points_that_fail_are_nan_with_their_reason():
    def fragile(beta, n):
        if n == 3:
            raise ValueError("three is\none too many")
        beta = eqx.error_if(beta, beta == 2, "two is too hot")
        return {"y": n / beta, "pair": jnp.stack([beta, beta]), "index": jnp.asarray(n), "fine": beta > 0}

    axes = {"beta": [0.0, 1.0, 2.0, 3.0], "n": sweep.Axis([2, 3], static=True)}
    found = sweep.run(fragile, axes, batch_size=3, progress=False)
    np.testing.assert_array_equal(found.status, [[1, 2], [0, 2], [2, 2], [0, 2]])
    np.testing.assert_array_equal(found.y[:, 0], [np.nan, 2.0, np.nan, 2 / 3])
    assert found.pair[1, 0].values.tolist() == [1, 1] and np.isnan(found.pair[0, 0]).all()
    assert found.index[0, 1] == np.iinfo(np.int64).min and found.index[1, 0] == 2 and not found.fine[2, 0]
    assert found.reason[:, 0].values.tolist() == ["not finite: y", "", "EquinoxRuntimeError: two is too hot", ""]
    assert set(found.reason.values[:, 1]) == {"ValueError: three is"}


def test_batches_that_fail_share_one_program_for_their_points():
    """There is one compilation for batches and one for single points, however many batches raise."""
    counted = CountTraces(lambda beta: eqx.error_if(beta, beta % 2 == 1, "odd"))
    found = sweep.run(counted, {"beta": np.arange(6.0)}, batch_size=2, progress=False)
    assert found.reason.values.tolist() == ["", "EquinoxRuntimeError: odd"] * 3
    assert counted.traces == 2


def test_what_is_not_finite_may_be_wanted():
    found = sweep.run(lambda beta: 1 / beta, {"beta": [0.0, 2.0]}, batch_size=2, finite=False, progress=False)
    assert found.result.values.tolist() == [np.inf, 0.5] and not found.status.any()


def test_dear_points_share_a_batch():
    """The cost of batches falls; the result stays in the order of the axes."""
    axes = {"beta": [1.0, 2.0], "steps": [5.0, 1.0, 7.0]}
    points, costs = plan(parse_axes(axes), 4, lambda steps: steps)
    assert points.tolist() == [[2, 5, 0, 3], [1, 4, -1, -1]] and costs.tolist() == [5, 1, 7, 5, 1, 7]
    dataset = sweep.run(lambda beta, steps: beta**steps, axes, batch_size=4, cost=lambda steps: steps, progress=False)
    np.testing.assert_array_equal(dataset.result, [[1, 1, 1], [32, 2, 128]])


def test_a_device_that_is_listed_twice_has_two_batches_at_a_time():
    """The result is that of one batch at a time, bit for bit, and the same points fail."""

    def at(x):
        return {"sine": jnp.sin(eqx.error_if(x, x == 5, "five"))}

    axes = {"x": np.arange(12.0)}
    alone = sweep.run(at, axes, batch_size=2, progress=False)
    both = sweep.run(at, axes, batch_size=2, progress=False, devices=2 * jax.devices()[:1])
    assert alone.reason.values.tolist() == [""] * 5 + ["EquinoxRuntimeError: five"] + [""] * 6
    del alone.attrs["date"], both.attrs["date"]  # the dates may differ by a second
    xr.testing.assert_identical(alone, both)


def test_batches_on_one_device_run_at_the_same_time():
    """Each batch waits until another batch runs, except for the first, which compiles."""
    meeting = threading.Barrier(2, timeout=30)

    def meet(x):
        if x > 0:
            meeting.wait()
        return x

    def at(x):
        return jax.pure_callback(meet, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential")

    found = sweep.run(at, {"x": np.arange(5.0)}, batch_size=1, progress=False, devices=2 * jax.devices()[:1])
    assert found.result.values.tolist() == [0, 1, 2, 3, 4]


def test_a_function_is_named():
    """Partial functions and callable objects have names too; `version` tells apart functions of one name."""

    def scaled(beta, n=1):
        return n * beta

    name = "test_a_function_is_named.<locals>.scaled"
    for function, expected in ((functools.partial(scaled, n=2), name), (CountTraces(scaled), "CountTraces")):
        dataset = sweep.run(function, {"beta": [1.0]}, batch_size=9, progress=False, version="2")
        assert dataset.attrs["function"] == expected and dataset.attrs["version"] == "2"


def test_progress_says_what_is_left_in_proportion_to_cost(monkeypatch):
    clock, shown = [0.0], io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    meter = Progress(np.asarray([0.0, 30.0, 10.0, 5.0]), np.asarray([1, 2, 3]), 1, True)
    clock[0] = 60.0
    meter.add(np.asarray([1]), 0)
    clock[0] = 61.0
    meter.add(np.asarray([2]), 1)  # too soon for another line
    clock[0] = 3700.0
    meter.add(np.asarray([3]), 0)
    assert shown.getvalue().splitlines() == [
        "sweep: 1 of 4 points are finished",
        "sweep: 2 of 4 points, 1:00 gone, 0:30 left",
        "sweep: 4 of 4 points, 1:01:40 gone, 1 failed",
    ]
    silent = Progress(np.ones(1), np.arange(1), 0, False)
    silent.add(np.arange(1), 0)
    assert shown.getvalue().count("\n") == 3
