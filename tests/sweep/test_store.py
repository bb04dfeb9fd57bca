"""A store that is killed at any moment is completed to the same bytes, and other files are never overwritten."""

import inspect
import os
import shutil
import threading
import time
import tracemalloc
import warnings

import numpy as np
import pytest
import xarray as xr
from numcodecs import CRC32C, Zstd

from clusterjax import sweep
from clusterjax.sweep import _run, _store
from clusterjax.sweep._labels import REASON, STATUS, Coord, Output
from clusterjax.sweep._store import Frame, Store
from tests.helpers import as_a_user
from tests.sweep_cases import AXES, content, fixed_date as fixed_date, full_disk, moments_of, point, run, run_unfinished


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store that was written without a disturbance, its bytes, and its data set."""
    path = tmp_path_factory.mktemp("whole") / "deep" / "store"
    dataset = run(path)
    return path, content(path), dataset


@pytest.fixture
def ran(monkeypatch):
    """Records the numbers of the batches of each run."""
    batches, finished_batches = [], _run.finished_batches

    def spy(programs, frame, numbers, *rest):
        batches.append(list(numbers))
        return finished_batches(programs, frame, numbers, *rest)

    monkeypatch.setattr(_run, "finished_batches", spy)
    return batches


def test_the_store_is_plain_zarr_and_nothing_else(whole):
    path, files, dataset = whole
    assert sweep.open(path).identical(dataset) and run(None).identical(dataset)
    assert list(dataset) == ["y", "edge", "status", "reason"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The codec `vlen-utf8`")  # a warning of older versions of zarr
        with xr.open_zarr(path) as plain:
            rows, order = plain.y.values.reshape(12, 3), plain["sweep.points"].values.ravel()
    np.testing.assert_array_equal(rows, dataset.y.values.reshape(12, 3)[order])
    assert {name.split("/")[0] for name in files} == {*dataset.variables, "sweep.points", "sweep.checksum", "zarr.json"}
    assert os.listdir(path.parent) == ["store"]
    assert dataset.attrs["date"] == "1970-01-02T00:00:00Z" and dataset.model.values.tolist() == ["tanh", "sin"]
    assert (dataset.status.sel(model="sin") == [[1, 1], [1, 1], [0, 0]]).all()


@pytest.mark.parametrize("every", (16, pytest.param(1, marks=pytest.mark.exhaustive)))
@pytest.mark.parametrize("chunks", (2, pytest.param(256, marks=pytest.mark.exhaustive)))
def test_killed_at_any_moment_it_is_completed_to_the_same_bytes(tmp_path, monkeypatch, every, chunks):
    """The folder is copied before each change that the run makes to it: a kill would leave these files."""
    monkeypatch.setattr(_store, "_MOST_CHUNKS", chunks)
    path = tmp_path / "run" / "store"
    with moments_of(path.parent) as moments:
        dataset = run(path)
    files, finished = content(path), []
    for moment in moments[::every]:
        if (moment / "store").exists():
            half = sweep.open(moment / "store")
            finished.append(int((half.status != 3).sum()) // 2)
            assert half.where(half.status != 3).y.identical(dataset.where(half.status != 3).y)
        assert run(moment / "store").identical(dataset)
        assert content(moment / "store") == files
    assert len(moments) > 25 and finished == sorted(finished) and len(set(finished)) > 6 // every


def test_large_batches_are_divided_and_many_small_ones_share_a_chunk(whole, tmp_path, monkeypatch):
    for name, size, divided, files in (("_CHUNK_BYTES", 30, "y", 12), ("_MOST_CHUNKS", 2, "status", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(_store, name, size)
            assert run(tmp_path / name).identical(whole[2])
        chunks = [file for file in content(tmp_path / name) if file.startswith(f"{divided}/c.")]
        assert len(chunks) == files - 2 * (divided == "y") * 2  # chunks that hold nothing but nan are not written


def test_an_unfinished_store_of_many_batches_opens_soon(tmp_path):
    batches = 3000
    labels, points = [Coord("beta", ("beta",), np.arange(batches) / 2, {})], np.arange(batches)[:, None]
    outputs = [Output("y", (), (), "float64", {}), STATUS, REASON]
    store = Store(tmp_path / "store")
    store.begin(Frame(("beta",), (batches,), labels, outputs, {}, points), {"function": "f"})
    state = store.read()
    state.arrays["y"][:], state.arrays["status"][:], state.arrays["reason"][:] = 1, 2, "no"
    for number in range(0, batches, 500):
        store.write(state, number)
    start = time.perf_counter()
    dataset = sweep.open(store.path)
    assert time.perf_counter() - start < 10  # about 0.5 on two quiet cores
    assert int((dataset.status == 2).sum()) == 6 and state.frame.gathered * 256 >= batches


def test_only_what_is_missing_is_computed(whole, tmp_path, ran):
    path = tmp_path / "store"
    run_unfinished(path, batches=4)
    run(path)
    run(path)
    assert ran == [[0, 1, 2, 3, 4, 5], [4, 5], []]
    run(path, resume=False)
    assert ran[3:] == [[0, 1, 2, 3, 4, 5]] and content(path) == whole[1]


def other(beta, model, V, key):
    return {"y": 2 * point(beta, model, V, key)["y"], "edge": beta}


@pytest.mark.parametrize(
    ("change", "words"),
    (
        ({"axes": AXES | {"beta": [1.0, 2.0, 4.0]}}, r"axes .*4.0.*axes .*3\.0"),
        ({"axes": AXES | {"beta": sweep.Axis([1.0, 2.5, 3.0], "1")}}, r"axes beta \(3: 1.0 to 3.0\)"),
        ({"axes": dict(reversed(AXES.items()))}, "axes V .*axes beta"),
        ({"function": other}, r"function other, but .* has function point"),
        ({"version": "2"}, "version 2, but .* has version 1"),
        ({"batch_size": 3}, "batch_size 3, but .* has batch_size 2"),
        ({"seed": 4}, "seed 4, but .* has seed 3"),
        ({"finite": False}, "finite 0"),
        ({"cost": lambda beta: beta}, "order of the points"),
        ({"variables": {"y": sweep.Variable(unit="m")}}, "outputs y, edge"),
        ({"resume": False, "seed": 4}, "seed 4"),
    ),
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_sweep_is_refused_and_the_store_kept(whole, change, words):
    path, files, _ = whole
    with pytest.raises(ValueError, match=f"store must be of this sweep, with .*{words}.*; choose another folder"):
        run(path, **change)
    assert content(path.parent) == {f"store/{name}": data for name, data in files.items()}


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
        for store, words in (("s3://bucket/run", "a folder of this machine"), (5, "a path, but it is 5")):
            with pytest.raises(ValueError, match=f"store must be {words}"):
                run(store)
    with pytest.raises(ValueError, match="must be a folder that can be written.*choose another"):
        run(tmp_path / "file" / "store")
    assert content(tmp_path) == before


def test_an_empty_folder_and_a_link_to_one_become_a_store(whole, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    run(tmp_path / "link")
    assert content(tmp_path / "empty") == whole[1] and (tmp_path / "link").is_symlink()


def test_a_second_run_is_refused_while_the_first_one_writes(whole, tmp_path):
    path = tmp_path / "store"
    with Store(path).locked():
        with pytest.raises(ValueError, match="one run at a time, but another process is writing"):
            run(path)
    run(path)
    assert content(path) == whole[1]


@pytest.mark.parametrize("fits", (0, 20))
def test_a_full_disk_keeps_what_was_finished(whole, tmp_path, fits):
    """The disk is full as the store is made, or after some batches."""
    path = tmp_path / "store"
    with full_disk(path, fits):
        run(path)
    assert os.listdir(tmp_path) == ["store"][: bool(fits)]
    if fits:
        assert 0 < int((sweep.open(path).status != 3).sum()) < 12
    run(path)
    assert content(path) == whole[1]


def damage(path, kind, other):
    """Damage a file, or swap it with another."""
    data = bytearray(path.read_bytes())
    if kind == "removed":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "flipped":
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    else:
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)


@pytest.mark.exhaustive_cases("status/c.{}.0-3-cut", "sweep.checksum/c.{}-3-flipped", "y/c.{}.0.0-5-swapped")
@pytest.mark.parametrize("kind", ("removed", "cut", "flipped", "swapped"))
@pytest.mark.parametrize(("name", "other"), (("y/c.{}.0.0", 5), ("status/c.{}.0", 3), ("sweep.checksum/c.{}", 3)))
def test_a_damaged_batch_is_named_and_run_again(whole, tmp_path, capsys, ran, kind, name, other):
    """A finished store is refused; in an unfinished store the points of the batch name the damage as reason."""
    path, lost = tmp_path / "store", {0, other} if kind == "swapped" else {0}
    # A batch without a checksum is not finished.
    is_unmarked = name.startswith("sweep") and kind == "removed"
    for left in ({1}, set()):
        shutil.copytree(whole[0], path)
        for number in left:
            (path / f"sweep.checksum/c.{number}").unlink()
        damage(path / name.format(0), kind, path / name.format(other))
        if left or is_unmarked:
            half = sweep.open(path)
            assert int((half.status == 3).sum()) == 2 * len(lost | left)
            words = set(half.reason.values[half.status.values == 3]) - {""}
            assert words == {f"run again: batch {k} in {str(path)!r} is damaged" for k in lost if not is_unmarked}
            assert half.where(half.status != 3).y.identical(whole[2].where(half.status != 3).y)
        else:
            with pytest.raises(ValueError, match=r"^store must be as .* batches \[0.* are damaged; run the sweep"):
                sweep.open(path)
        assert run(path, progress=True).identical(whole[2])
        assert (f"sweep: {len(lost)} batches are damaged" in capsys.readouterr().err) != is_unmarked
        assert content(path) == whole[1] and set(ran[-1]) == lost | left
        shutil.rmtree(path)


def test_a_chunk_that_claims_many_strings_is_damaged_and_takes_no_memory(whole, tmp_path):
    """The checksum of zarr in the chunk is right."""
    path = tmp_path / "store"
    shutil.copytree(whole[0], path)
    (path / "sweep.checksum/c.1").unlink()
    (path / "reason/c.0.0").write_bytes(CRC32C(location="end").encode(Zstd().encode((2**24).to_bytes(4, "little"))))
    tracemalloc.start()
    half = sweep.open(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(half.reason.values[half.status.values == 3]) == {"", f"run again: batch 0 in {str(path)!r} is damaged"}
    assert int((half.status == 3).sum()) == 4 and peak < 2**25


@pytest.mark.parametrize("name", ("zarr.json", "V_values/c.0.0.0", "model/c.0", "sweep.points/c.0.0"))
@pytest.mark.parametrize("kind", ("removed", "cut", "flipped"))
def test_damaged_labels_are_refused(whole, tmp_path, name, kind):
    """Without its root the folder is not that of a sweep; putting back a copy of the file mends the store."""
    path = tmp_path / "store"
    shutil.copytree(whole[0], path)
    damage(path / name, kind, path)
    words = "one of a sweep, but" if kind == "removed" and name == "zarr.json" else "put back a copy of it, or"
    for use in (run, sweep.open):
        with as_a_user(), pytest.raises(ValueError, match=f"^store must .*{words}"):
            use(path)
    shutil.copy(whole[0] / name, path / name)
    assert sweep.open(path).identical(whole[2])


@pytest.mark.parametrize("change", (('"seed": 3', '"seed": 7'), ('"units": "1"', '"units": "2"'), ('"NaN"', "0.0")))
def test_a_root_that_was_changed_and_is_still_json_is_refused(whole, tmp_path, change):
    path = tmp_path / "store"
    shutil.copytree(whole[0], path)
    text = (path / "zarr.json").read_text()
    assert change[0] in text
    (path / "zarr.json").write_text(text.replace(*change))
    for use in (run, sweep.open):
        with pytest.raises(ValueError, match="zarr.json' is damaged; put back a copy of it, or remove"):
            use(path)


def test_a_batch_of_another_sweep_is_run_again(whole, tmp_path, ran):
    """The batch has the same number and shapes, but is from a store of another seed."""
    for name, seed in (("store", 3), ("other", 4)):
        run(tmp_path / name, seed=seed)
    for file in (tmp_path / "other").glob("*/c.1*"):
        shutil.copy(file, tmp_path / "store" / file.relative_to(tmp_path / "other"))
    assert run(tmp_path / "store").identical(whole[2])
    assert ran[-1] == [1] and content(tmp_path / "store") == whole[1]


@pytest.mark.exhaustive
def test_a_store_that_is_computed_anew_is_whole_to_its_readers(whole, tmp_path, monkeypatch):
    """Before each change that the run makes to the folder a reader finds finished points only, with right numbers, also
    if the function has changed without a new version."""
    path, counts = tmp_path / "store", []
    shutil.copytree(whole[0], path)
    changed = lambda **values: {name: -array for name, array in point(**values).items()}
    changed.__qualname__, changed.__signature__ = "point", inspect.signature(point)
    old, new = whole[2], run(None, changed)

    def look(*arguments, call=os.replace):
        if not any(thread.name == "reader" for thread in threading.enumerate()):
            reader = threading.Thread(target=read, name="reader")
            reader.start()
            reader.join()
        return call(*arguments)

    def read():
        dataset = sweep.open(path)
        there = dataset.status != 3
        assert any(dataset.where(there).y.identical(result.where(there).y) for result in (old, new))
        counts.append(int(there.sum()))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", look)
        run(path, changed, resume=False)
    assert {0, 2, 10} <= set(counts) and sweep.open(path).identical(new)
