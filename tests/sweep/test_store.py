"""A store survives: killed at any moment it is completed to the same bytes, and nothing else is ever written over."""

import json
import os
import shutil
import threading
import warnings

import numpy as np
import pytest
import xarray as xr

from clusterjax import sweep
from clusterjax.sweep import _store
from clusterjax.sweep._axis import Coord, Frame, Outcome, Output
from clusterjax.sweep._store import Store
from tests.helpers import as_a_user
from tests.sweep_cases import AXES, DATE, content, point, run, run_unfinished


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


@pytest.mark.exhaustive
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
    assert finished == sorted(finished) and {0, 6} < set(finished)


def test_a_large_array_is_cut_along_its_first_axis(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("clusterjax.sweep._store._CHUNK_BYTES", 100)
    assert run(tmp_path / "store").equals(whole[2])
    assert {name.split("/")[2] for name in content(tmp_path / "store") if name.startswith("y/c/")} == {"0", "1", "2"}


def test_a_store_that_is_finished_while_it_is_read(whole, tmp_path, monkeypatch):
    """The batches vanish between the look at what is there and the reading of it."""
    path, frame = tmp_path / "store", Store.frame
    run_unfinished(path)

    def late(store):
        monkeypatch.setattr(Store, "frame", frame)
        run(path)
        return frame(store)

    monkeypatch.setattr(Store, "frame", late)
    assert sweep.open(path).identical(whole[2])


def test_an_unfinished_store_is_opened_with_three_calls_of_the_disk_a_batch(tmp_path, monkeypatch):
    """One that opens the batch, and two that ask for its state and for that of the frame to which it belongs."""
    calls, opened = [], {}
    for batches in (20, 40):
        store, places = Store(tmp_path / str(batches)), np.arange(batches + 1)
        beta = Coord("beta", ("beta",), places / 2, {})
        store.begin(Frame(("beta",), (batches + 1,), [beta], [Output("y", (), (), "float64", {})], {}, places,
                          np.arange(batches + 2)), {"function": "f"})  # fmt: skip
        for number in range(batches):
            store.write(number, Outcome({"y": np.ones(1)}, np.zeros(1, np.uint8), [""]))
        with monkeypatch.context() as patch:
            for name in ("open", "stat", "listdir", "scandir"):
                call = getattr(os, name)
                patch.setattr(os, name, lambda *of, call=call, **more: calls.append(call) or call(*of, **more))
            found = sweep.open(store.path)
        assert int(found.y.sum()) == batches and found.status.values[-1] == 3
        opened[batches] = len(calls)
        calls.clear()
    assert opened[40] - opened[20] == 3 * 20 and opened[20] < 3 * 20 + 30


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


def test_an_unfinished_store_of_another_sweep_is_refused(tmp_path):
    path = tmp_path / "store"
    run_unfinished(path)
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
        for store, words in (("s3://bucket/run", "a folder of this machine"), (5, "a path, but it is 5")):
            with pytest.raises(ValueError, match=f"store must be {words}"):
                run(store)
    with pytest.raises(ValueError, match="must be a folder that can be written.*choose another"):
        run(tmp_path / "file" / "store")
    assert content(tmp_path) == before


def test_a_second_run_is_refused_while_the_first_one_writes(whole, tmp_path):
    path = tmp_path / "store"
    with Store(path).locked():
        with pytest.raises(ValueError, match="one run at a time, but another process is writing"):
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


def damage(path, kind, other):
    """Damage a file, or swap it with another."""
    data = bytearray(path.read_bytes())
    if kind == "removed":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "flipped":
        data[-1 if path.parent.name == "batches" else len(data) // 2] ^= 4
        path.write_bytes(data)
    else:
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ("removed", "cut", "flipped", "swapped"))
def test_a_damaged_finished_store_is_refused(whole, tmp_path, monkeypatch, kind):
    """A chunk, what says how it is packed, and the root, each named in the message; computed anew it is the same."""
    monkeypatch.setattr("clusterjax.sweep._store._CHUNK_BYTES", 100)  # several chunks, to be swapped
    path, keep = tmp_path / "store", tmp_path / "keep"
    run(keep)
    files = content(keep)
    names = ["y/c/0/0/0/0", "status/zarr.json", "zarr.json"]
    if kind == "flipped":
        names += [name for name in files if "/c/" in name]
    for name in names:
        shutil.copytree(keep, path)
        damage(path / name, kind, path / ("y/c/1/0/0/0" if "/c/" in name else "y/zarr.json"))
        for use in (run, sweep.open):
            with pytest.raises(ValueError, match="^store must .*(damaged|checksum|cannot be read|is not)") as raised:
                use(path)
            assert str(path) in str(raised.value)
        if name == names[0]:
            assert run(path, resume=False).equals(whole[2]) and content(path) == files
        shutil.rmtree(path)


def of_0_1_0(path):
    """Make a finished store into one without checksums."""
    root = json.loads((path / "zarr.json").read_text())
    word = json.loads(root["attributes"]["sweep"])
    assert set(word) == {"format", "version", "identity", "files", "itself"} and word["version"] == 2
    word = {"format": word["format"], "version": 1, "identity": word["identity"]}
    root["attributes"]["sweep"] = json.dumps(word)
    (path / "zarr.json").write_text(json.dumps(root))


def test_a_store_without_checksums_is_read_and_a_gone_chunk_of_floats_is_found(whole, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(whole[0], path)
    of_0_1_0(path)
    assert sweep.open(path).equals(whole[2]) and run(path).equals(whole[2])
    chunk = next(file for file in path.glob("y/c/**/*") if file.is_file())
    data = chunk.read_bytes()
    chunk.write_bytes(data[:10])
    with pytest.raises(ValueError, match=f"store must be whole, but {str(path)!r} cannot be read .*resume=False"):
        sweep.open(path)
    chunk.unlink()
    # The oldest xarray has zarr read 0.0 for what is gone, which a result may be too; today checksums tell.
    if json.loads((path / "y/zarr.json").read_text())["fill_value"] == "NaN":
        with pytest.raises(ValueError, match="8 points of 'y' .* are gone; run the sweep with resume=False"):
            run(path)


@pytest.mark.parametrize("kind", ("removed", "cut", "flipped", "swapped"))
def test_a_damaged_batch_is_run_again(whole, tmp_path, capsys, kind):
    path = tmp_path / "store"
    run_unfinished(path)
    batches = path / ".sweep" / "batches"
    damage(batches / "00000002", kind, batches / "00000000")
    lost = {"removed": 1, "swapped": 2}.get(kind, 1)
    half = sweep.open(path)
    assert int((half.status == 3).sum()) == 2 * lost
    words = set(half.reason.values[half.status.values == 3])
    assert words == {""} if kind == "removed" else all(word.startswith("run again: store must be") for word in words)
    assert half.where(half.status != 3).y.identical(whole[2].where(half.status != 3).y)
    run(path, progress=True)
    assert (f"sweep: {lost} batches are damaged" in capsys.readouterr().err) == (kind != "removed")
    assert content(path) == whole[1]


@pytest.mark.parametrize(
    "change",
    (
        lambda frame: frame["outputs"][0].__setitem__(0, [0, 1]),
        lambda frame: frame["outputs"][0].__setitem__(0, 7),
        lambda frame: frame["outputs"][0].__setitem__(1, []),
        lambda frame: frame["outputs"][0].__setitem__(3, ""),
        lambda frame: frame["coords"][0].__setitem__(1, []),
        lambda frame: frame["coords"][0].__setitem__(4, [7]),
        lambda frame: frame["names"].reverse(),
        lambda frame: frame["names"].__setitem__(0, []),
    ),
)
def test_a_frame_that_does_not_fit_together_is_refused(tmp_path, change):
    """Also where its checksum is right, as another writer could leave it."""
    path = tmp_path / "store"
    run_unfinished(path)
    file = path / ".sweep" / "frame"
    header, arrays = _store._FRAME.read(file, None)
    change(header["frame"])
    kept = {name: header[name] for name in ("identity", "dtypes", "frame")}
    _store._FRAME.write(file, arrays, None, **kept)
    with as_a_user(), pytest.raises(ValueError, match=r"^store must be .*frame .*; choose another folder, or remove"):
        sweep.open(path)


def test_a_batch_of_another_sweep_is_run_again(whole, tmp_path):
    """The same batch of the same shapes, from a folder of another seed."""
    for name, seed in (("store", 3), ("other", 4)):
        run_unfinished(tmp_path / name, seed=seed)
    batch = ".sweep/batches/00000001"
    shutil.copy(tmp_path / "other" / batch, tmp_path / "store" / batch)
    assert int((sweep.open(tmp_path / "store").status == 3).sum()) == 2
    run(tmp_path / "store")
    assert content(tmp_path / "store") == whole[1]


@pytest.mark.exhaustive
def test_a_store_that_is_computed_anew_is_whole_to_its_readers(whole, tmp_path, monkeypatch):
    """Before each change that the run makes to the folder a reader finds the old store, or finished points of the new
    one; and one who has begun to read before the change, and goes on after it, does not mix the two."""
    path, seen = tmp_path / "store", []
    shutil.copytree(whole[0], path)

    def look():
        found = sweep.open(path)
        there = found.status != 3
        assert found.where(there).y.identical(whole[2].where(there).y)
        seen.append(int(there.sum()))

    with monkeypatch.context() as patch:
        for module, name in ((os, "replace"), (os, "unlink"), (shutil, "rmtree")):

            def before(*arguments, call=getattr(module, name), **options):
                if threading.current_thread() is threading.main_thread():
                    look()
                return call(*arguments, **options)

            patch.setattr(module, name, before)
        run(path, resume=False)
    assert seen[0] == 12 and set(seen) >= {0, 2, 10, 12} and content(path) == whole[1]

    def late(word, folder, check=_store.damaged):
        found = list(check(word, folder))
        monkeypatch.setattr(_store, "damaged", check)
        shutil.rmtree(path / "y")  # what a run does that begins anew,
        run(tmp_path / "store", resume=False)  # and ends
        return found

    monkeypatch.setattr(_store, "damaged", late)
    assert sweep.open(path).identical(whole[2])


def test_a_root_that_was_changed_and_is_still_json_is_refused(whole, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(whole[0], path)
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(text.replace('"seed": 3', '"seed": 7'))
    for use in (run, sweep.open):
        with pytest.raises(ValueError, match="zarr.json' is damaged; remove its folder and run again"):
            use(path)
    (path / "zarr.json").write_text(text)
    assert sweep.open(path).identical(whole[2])
