"""An extended store has the numbers of a sweep over all points, keeps its former numbers, and survives kills."""

import os
from concurrent.futures import ThreadPoolExecutor

import jax.random as jr
import numpy as np
import pytest

from clusterjax import sweep
from clusterjax._files.lock import LOCK
from clusterjax.sweep import _run, _store
from tests.sweep_cases import AXES, content, fixed_date as fixed_date, full_disk, moments_of, run, run_unfinished


# A part of the grid: beta lacks its middle value, V its first value, and the static axis one of two values.
PART = {"beta": sweep.Axis([1.0, 3.0], "1"), "model": ["sin"], "V": AXES["V"][1:]}


@pytest.fixture
def ran(monkeypatch):
    """Records the points of each run."""
    points, finished_batches = [], _run.finished_batches

    def spy(programs, frame, numbers, *rest):
        points.append(np.sort(np.concatenate([[-1], *map(frame.batch, numbers)])[1:]).astype(int).tolist())
        return finished_batches(programs, frame, numbers, *rest)

    monkeypatch.setattr(_run, "finished_batches", spy)
    return points


@pytest.fixture(scope="module")
def whole():
    """The result of a run over all points."""
    return run(None)


@pytest.mark.exhaustive_cases("all-1", "beta-5", "beta-1", "all-5")
@pytest.mark.parametrize("batch_size", (1, 2, 5))
@pytest.mark.parametrize(
    "part", (PART, PART | {"model": AXES["model"]}, AXES | {"beta": PART["beta"]}), ids=("all", "two", "beta")
)
def test_only_new_points_are_run_and_the_result_is_that_of_all(tmp_path, ran, whole, part, batch_size):
    path = tmp_path / "store"
    former = run(path, axes=part, batch_size=batch_size)
    found = run(path, extend=True, batch_size=batch_size)
    assert len(ran) == 2 and len(ran[0]) + len(ran[1]) == 12 and os.listdir(tmp_path) == ["store"]
    expected = whole.assign_attrs(batch_size=batch_size)
    assert found.identical(expected) and sweep.open(path).identical(expected)
    kept = found.sel(beta=former.beta, model=former.model)
    np.testing.assert_array_equal(kept.isel(V=-1).y, former.isel(V=-1).y)
    files = content(path)
    assert run(path, extend=True, batch_size=batch_size).identical(found) and ran[2] == []
    assert content(path) == files


def test_a_store_is_extended_again_and_again(tmp_path, whole):
    """Values are added along every axis in turn; a store that does not exist yet is begun."""
    path = tmp_path / "store"
    for axes in (
        {"beta": sweep.Axis([3.0], "1"), "model": ["sin"], "V": AXES["V"][:1]},
        {"beta": sweep.Axis([2.0, 3.0], "1"), "model": ["sin"], "V": AXES["V"][:1]},
        {"beta": sweep.Axis([2.0, 3.0], "1"), "model": ["tanh", "sin"], "V": AXES["V"][:1]},
        {"beta": sweep.Axis([2.0, 3.0], "1"), "model": ["tanh", "sin"], "V": AXES["V"]},
    ):
        run(path, axes=axes, extend=True)
    assert run(path, extend=True).identical(whole)


def test_equal_values_and_values_of_another_kind(tmp_path):
    """More draws with equal values are added to an axis, and a fraction to an axis of integers."""
    function = lambda draw, n, key: jr.uniform(key, (), float) + draw.astype(float) + n.astype(float)
    options = {"batch_size": 2, "store": tmp_path / "store", "progress": False}
    first = sweep.run(function, {"draw": [0, 0], "n": [1, 2]}, **options)
    axes = {"draw": [0, 0, 0], "n": [0.5, 1.0, 2.0]}
    found = sweep.run(function, axes, extend=True, **options)
    np.testing.assert_array_equal(found.result[:2, 1:], first.result)
    assert len(np.unique(found.result)) == 9 and found.n.values.tolist() == [0.5, 1.0, 2.0]
    np.testing.assert_array_equal(found.result, sweep.run(function, axes, batch_size=2, progress=False).result)


def test_an_unfinished_store_is_extended_too(tmp_path, ran, whole):
    path = tmp_path / "store"
    part = AXES | {"beta": PART["beta"]}
    run_unfinished(path, batches=1, axes=part)
    assert int((sweep.open(path).status == 3).sum()) == 6
    assert run(path, extend=True).identical(whole) and len(ran[-1]) == 10


def test_batches_of_a_store_of_few_points_become_wider(tmp_path, ran, whole):
    path = tmp_path / "store"
    run(path, axes={"beta": sweep.Axis([2.0], "1"), "model": ["tanh"], "V": AXES["V"][:1]}, batch_size=4)
    assert run(path, extend=True, batch_size=4).identical(whole.assign_attrs(batch_size=4))
    assert sweep.open(path).sizes == whole.sizes and _store.Store(path).read().frame.points.shape == (5, 4)


def test_costly_points_come_first_among_the_new(tmp_path, whole):
    path, cost = tmp_path / "store", lambda beta: beta
    run(path, axes=AXES | {"beta": PART["beta"]}, cost=cost)
    assert (
        run(path, extend=True, cost=cost, axes=AXES | {"beta": sweep.Axis([1.0, 2.0, 3.0, 4.0], "1")})
        .sel(beta=[1.0, 2.0, 3.0])
        .y.identical(whole.y)
    )
    points = _store.Store(path).read().frame.points
    beta = np.array([1.0, 2.0, 3.0, 4.0])[np.where(points < 0, 0, np.unravel_index(np.abs(points), (4, 2, 2))[0])]
    np.testing.assert_array_equal(beta.ravel(), [3, 3, 1, 1, 3, 3, 1, 1, 4, 4, 2, 2, 4, 4, 2, 2])


@pytest.mark.exhaustive_cases("True-12")
@pytest.mark.parametrize("every", (12, pytest.param(1, marks=pytest.mark.exhaustive)))
@pytest.mark.parametrize("finished", (True, pytest.param(False, marks=pytest.mark.exhaustive)))
def test_killed_at_any_moment_it_is_completed_to_the_same_bytes(tmp_path, whole, every, finished):
    """The folder is copied before each change that the run makes to it; no copy has lost a finished point."""
    path = tmp_path / "run" / "store"
    if finished:
        former = run(path, axes=PART)
    else:
        run_unfinished(path, batches=1, axes=PART | {"model": AXES["model"]})
        former = sweep.open(path)
    had = former.status.isel(V=-1) != 3
    assert bool(had.all()) == finished and bool(had.any())
    with moments_of(path.parent) as moments:
        assert run(path, extend=True).identical(whole)
    files, gone = content(path), 0
    for number, moment in enumerate(moments):
        missing = not (moment / "store").exists()
        gone += missing
        if number % every and not missing:
            continue
        half = sweep.open(moment / "store")
        there, over = half.sel(beta=former.beta, model=former.model).isel(V=-1), not (half.status == 3).any()
        np.testing.assert_array_equal(there.y.where(had), former.y.isel(V=-1).where(had))
        assert run(moment / "store", extend=True).identical(whole)
        # A finished store is only read: the empty file of a lock that its run did not remove stays beside it.
        beside = {f".store{LOCK}"} if over else set()
        assert content(moment / "store") == files and set(os.listdir(moment)) - beside == {"store"}
    assert gone == 1 and len(moments) > 25


def test_workers_extend_a_store(tmp_path, whole):
    path = tmp_path / "store"
    run(path, axes=PART)
    with ThreadPoolExecutor(2) as executor:
        assert run(path, extend=True, executor=executor).identical(whole)


@pytest.mark.parametrize(
    ("change", "words"),
    (
        (
            {"axes": PART | {"beta": sweep.Axis([1.0, 2.0], "1")}},
            "axes must have all values of the store .*'beta' lacks 1, the",
        ),
        (
            {"axes": PART | {"model": ["tanh"]}},
            "axes must have all values of the store .*'model' lacks 1, the first.*sin",
        ),
        ({"axes": PART | {"V": AXES["V"][:1]}}, "axes must have all values of the store .*'V' lacks 1"),
        ({"axes": AXES | {"beta": [1.0, 2.0, 3.0]}}, "axes must have the units .* but those of 'beta' differ; choose"),
        ({"axes": dict(reversed(AXES.items()))}, "axes must have the names of the store, in their order"),
        ({"axes": {"beta": AXES["beta"]}, "function": lambda beta, key: beta}, "axes must have the names of the store"),
        ({"seed": 4}, "store must be of this sweep, with seed 4, but .* has seed 3; choose"),
        ({"batch_size": 3}, "store must be of this sweep, with batch_size 3, but"),
        ({"version": "2"}, "store must be of this sweep, with version 2, but"),
        ({"variables": {"y": sweep.Variable(unit="m")}}, "store must be of this sweep, with outputs"),
        ({"extend": False}, "store must be of this sweep, with axes"),
        ({"resume": False}, "extend must be False without a store that is resumed, but resume is False"),
    ),
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_extended_is_refused_and_kept(tmp_path, change, words):
    path = tmp_path / "store"
    run(path, axes=PART)
    files = content(path)
    with pytest.raises(ValueError, match=f"^{words}"):
        run(path, **({"extend": True} | change))
    assert content(path) == files and os.listdir(tmp_path) == ["store"]


def test_without_a_store_nothing_is_extended():
    with pytest.raises(ValueError, match="^extend must be False without a store that is resumed, but store is None"):
        run(None, extend=True)


def test_a_full_disk_keeps_the_former_store(tmp_path, whole):
    path = tmp_path / "store"
    run(path, axes=PART)
    files = content(path)
    with full_disk(path, 10):
        run(path, extend=True)
    assert content(path) == files and os.listdir(tmp_path) == ["store"]
    assert run(path, extend=True).identical(whole)
