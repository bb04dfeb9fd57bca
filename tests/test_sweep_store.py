"""A store survives: killed at any moment it is completed to the same bytes, and nothing else is ever written over."""

import os
import shutil
import threading
import warnings

import pytest
import xarray as xr

from clusterjax import sweep
from clusterjax.sweep._store import Store

from .helpers import as_a_user
from .sweep_cases import AXES, DATE, content, point, run


@pytest.fixture(autouse=True)
def fixed_date(monkeypatch):
    monkeypatch.setenv(*next(iter(DATE.items())))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store that nothing disturbed, and its bytes."""
    path = tmp_path_factory.mktemp("whole") / "deep" / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*next(iter(DATE.items())))
        found = run(path)
    return path, content(path), found


def test_the_store_is_plain_zarr_and_nothing_else(whole):
    path, files, found = whole
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The codec `vlen-utf8`")  # of an older zarr
        with xr.open_zarr(path) as plain:
            assert plain.load().equals(found)
    assert sweep.open(path).identical(found) and list(found) == ["y", "edge", "status", "reason"]
    in_memory = run(None)
    assert in_memory.equals(found) and in_memory.attrs == {k: v for k, v in found.attrs.items() if k != "sweep"}
    assert {name.split("/")[0] for name in files} == {*found.variables, "zarr.json"}
    assert found.attrs["date"] == "1970-01-02T00:00:00Z" and found.model.values.tolist() == ["tanh", "sin"]
    assert (found.status.sel(model="sin") == [[1, 1], [1, 1], [0, 0]]).all()


@pytest.mark.parametrize("every", (5, pytest.param(1, marks=pytest.mark.exhaustive)))
def test_killed_at_any_moment_it_is_completed_to_the_same_bytes(whole, tmp_path, monkeypatch, every):
    """The folder is copied before each change that the run makes to it, which is what a kill would leave there."""
    path, moments, seen = tmp_path / "store", [], set()
    one = threading.RLock()  # zarr writes from threads of its own: none of them may take away what is being copied

    def keep():
        state = content(path) if path.exists() else None
        if state is not None and (key := tuple(sorted(state.items()))) not in seen:
            seen.add(key)
            moments.append(tmp_path / str(len(moments)))
            shutil.copytree(path, moments[-1])

    for module, name in ((os, "replace"), (os, "fsync"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree")):

        def before(*arguments, call=getattr(module, name), **options):
            with one:
                keep()
                return call(*arguments, **options)

        monkeypatch.setattr(module, name, before)
    run(path)
    monkeypatch.undo()
    monkeypatch.setenv(*next(iter(DATE.items())))
    assert content(path) == whole[1]
    assert len(moments) > 20
    finished = []
    for moment in moments[::every]:
        done = Store(moment)
        finished.append(6 if done.is_finished else len(list(moment.glob(".sweep/batches/*[0-9]"))))
        if done.identity() is not None:
            half = sweep.open(moment)
            there = half.status != 3
            assert int(there.sum()) == 2 * finished[-1]
            assert half.where(there).y.identical(whole[2].where(there).y)
        run(moment)
        assert content(moment) == whole[1]
    assert finished == sorted(finished) and set(finished) >= {0, 3, 6}


def test_a_large_array_is_cut_along_its_first_axis(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("clusterjax.sweep._store._CHUNK_BYTES", 100)
    assert run(tmp_path / "store").identical(whole[2])
    assert {name.split("/")[2] for name in content(tmp_path / "store") if name.startswith("y/c/")} == {"0", "1", "2"}


def test_a_store_that_is_finished_while_it_is_read(whole, tmp_path, monkeypatch):
    """The batches vanish between the look at what is there and the reading of it."""
    path, frame = tmp_path / "store", Store.frame
    monkeypatch.setattr(Store, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(path)
    monkeypatch.undo()
    monkeypatch.setenv(*next(iter(DATE.items())))

    def late(store):
        monkeypatch.setattr(Store, "frame", frame)
        run(path)
        return frame(store)

    monkeypatch.setattr(Store, "frame", late)
    assert sweep.open(path).identical(whole[2])


def test_only_what_is_missing_is_computed(whole, tmp_path, monkeypatch):
    from clusterjax.sweep import _run

    path, batches = tmp_path / "store", []
    outcomes = _run.outcomes

    def spy(programs, frame, wanted, devices):
        batches.append(list(wanted))
        return outcomes(programs, frame, wanted, devices)

    def stop(store, number, outcome, write=Store.write):
        write(store, number, outcome)
        if number == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(_run, "outcomes", spy)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "write", stop)
        run(path)
    run(path)
    run(path)
    assert batches == [[0, 1, 2, 3, 4, 5], [4, 5]]
    run(path, resume=False)
    assert batches[2:] == [[0, 1, 2, 3, 4, 5]] and content(path) == whole[1]


def other(beta, model, V, key):
    return {"y": 2 * point(beta, model, V, key)["y"], "edge": beta}


@pytest.mark.parametrize(
    ("change", "words"),
    (
        ({"axes": AXES | {"beta": [1.0, 2.0, 4.0]}}, r"axes .*4.0.*axes .*3\.0"),
        ({"axes": dict(reversed(AXES.items()))}, "axes V .*axes beta"),
        ({"axes": {name: AXES[name] for name in ("model", "V", "beta")}}, "axes model"),
        ({"function": other}, r"function other .*function point"),
        ({"version": "second"}, "version second, but .* has version None"),
        ({"batch_size": 3}, "batch_size 3, but .* has batch_size 2"),
        ({"seed": 4}, "seed 4, but .* has seed 3"),
        ({"finite": False}, "finite False"),
        ({"cost": lambda beta: beta}, "order of the points"),
        ({"resume": False, "seed": 4}, "seed 4"),
    ),
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_sweep_is_refused_and_the_store_kept(whole, change, words):
    path, files, _ = whole
    with pytest.raises(ValueError, match=f"store must be of this sweep, with .*{words}.*; choose another folder"):
        run(path, **change)
    assert content(path) == files


def test_an_unfinished_store_of_another_sweep_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "store"
    monkeypatch.setattr(Store, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(path)
    files = content(path)
    with pytest.raises(ValueError, match="batch_size 3, but .* has batch_size 2"):
        run(path, batch_size=3)
    assert {k: v for k, v in content(path).items() if "lock" not in k} == {
        k: v for k, v in files.items() if "lock" not in k
    }
    assert not (sweep.open(path).status == 3).any()


def test_what_is_no_store_is_refused_and_kept(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("mine")
    xr.Dataset({"a": 1}).to_zarr(tmp_path / "foreign", zarr_format=3, consolidated=False)
    before = content(tmp_path)
    for name, words in (("file", "is a file"), ("folder", "is not"), ("foreign", "is not")):
        for use in (run, sweep.open):
            with pytest.raises(ValueError, match=f"store must be .*{name}.* {words}; choose another folder"):
                use(tmp_path / name)
    with pytest.raises(ValueError, match="there is none in .*nowhere.*; run it first"):
        sweep.open(tmp_path / "nowhere")
    with as_a_user():
        for store in ("s3://bucket/run", 5):
            with pytest.raises(ValueError, match="store must be a folder of this machine"):
                run(store)
    with pytest.raises(ValueError, match="must be a folder that can be written.*choose another"):
        run(tmp_path / "file" / "store")
    assert content(tmp_path) == before


def test_a_second_run_is_refused_while_the_first_one_writes(whole, tmp_path):
    path = tmp_path / "store"
    with Store(path).locked():
        with pytest.raises(ValueError, match=f"one run at a time, but process {os.getpid()} on .* is writing"):
            run(path)
    run(path)
    assert content(path) == whole[1]


@pytest.mark.parametrize(
    ("call", "fits"), (("os.fsync", 0), ("os.fsync", 3), ("os.fsync", 15), ("os.replace", 3), ("os.replace", 15))
)
def test_a_full_disk_keeps_what_was_finished(whole, tmp_path, monkeypatch, call, fits):
    """After no file, after the frame and two batches, and in the midst of the zarr store."""
    path, left = tmp_path / "store", [fits]

    def full(*arguments, real={"os.fsync": os.fsync, "os.replace": os.replace}[call], **options):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(ValueError, match="No space left on device.*make room"):
        patch.setattr(call, full)
        run(path)
    if fits:
        assert int((sweep.open(path).status != 3).sum()) == 2 * min(fits - 1, 6)
    run(path)
    assert content(path) == whole[1]
