"""Sweeps whose batches are tasks of an executor: threads, processes, Dask, and executors like `submitit`."""

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from clusterjax import sweep
from clusterjax.sweep import _store, _workers
from tests.sweep_cases import AXES, content, fixed_date, point, run, run_unfinished  # noqa: F401


MANY, WIDE = ({"beta": np.linspace(1.0, 2.0, points)} for points in (20, 300))


@pytest.fixture(autouse=True, scope="module")
def few_chunks():
    """Up to three of twenty batches share a chunk, as thousands do in large sweeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_store, "_MOST_CHUNKS", 8)
        yield


def threads():
    return concurrent.futures.ThreadPoolExecutor(2)


def wave(beta):
    return {"y": jnp.sin(beta), "z": jnp.log(beta - 1.5)}


def many(store, **options):
    """Twenty points in batches of one; half of the points fail."""
    return sweep.run(wave, MANY, store=store, batch_size=1, progress=False, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of the stores that one process writes, at the date that each test has."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder / "few")
    many(folder / "many")
    return {name: content(folder / name) for name in ("few", "many")}


# --- the store is that of one process


def test_threads_write_the_store_of_one_process(whole, tmp_path):
    with threads() as executor:
        found = run(tmp_path / "few", executor=executor)
        assert content(tmp_path / "few") == whole["few"]
        many(tmp_path / "many", executor=executor)
        assert content(tmp_path / "many") == whole["many"]
        xr.testing.assert_identical(found, run(None, executor=executor))
    xr.testing.assert_identical(found, run(None))


def test_an_interrupted_sweep_is_continued_by_workers_and_the_other_way_round(whole, tmp_path):
    run_unfinished(tmp_path / "store", 3)
    with threads() as executor:
        run(tmp_path / "store", executor=executor)
    assert content(tmp_path / "store") == whole["few"]

    class Interrupted(concurrent.futures.ThreadPoolExecutor):
        def submit(self, task, job, numbers):
            if 9 in numbers:
                raise KeyboardInterrupt
            return super().submit(task, job, numbers)

    with Interrupted(2) as executor, pytest.raises(KeyboardInterrupt):
        many(tmp_path / "many", executor=executor)
    assert np.count_nonzero(sweep.open(tmp_path / "many").status == 3) > 0
    many(tmp_path / "many")
    assert content(tmp_path / "many") == whole["many"]


@pytest.mark.exhaustive_cases("y")
@pytest.mark.parametrize("name", ("y", "sweep.checksum"))
def test_workers_run_damaged_batches_again(whole, tmp_path, name):
    """The damaged chunk holds three batches of numbers or checksums; the other batches of its task are kept."""
    many(tmp_path / "store")
    file = next(path for path in sorted((tmp_path / "store" / name).glob("c.5*")))
    file.write_bytes(file.read_bytes()[:-9] + b"\0" * 9)
    with threads() as executor:
        many(tmp_path / "store", executor=executor)
    assert content(tmp_path / "store") == whole["many"]


@pytest.mark.exhaustive
def test_a_task_that_runs_twice_changes_nothing(whole, tmp_path):
    """A task runs twice if the worker of its first run is lost after the last batch."""

    class Twice(concurrent.futures.ThreadPoolExecutor):
        def submit(self, task, *arguments):
            return super().submit(lambda: (task(*arguments), task(*arguments))[1])

    with Twice(2) as executor:
        many(tmp_path / "store", executor=executor)
    assert content(tmp_path / "store") == whole["many"]


def test_each_chunk_is_of_one_task():
    tasks = []

    class Recorded(concurrent.futures.ThreadPoolExecutor):
        def submit(self, task, job, numbers):
            tasks.append(numbers)
            return super().submit(task, job, numbers)

    with Recorded(2) as executor:
        many(None, executor=executor)
    assert [number for task in tasks for number in task] == list(range(20))
    assert {len(task) for task in tasks} == {2, 3} and len(tasks) == 7


# --- other executors


class Later:
    """An executor whose tasks are no futures, but have `done` and `result` as in `submitit`."""

    def submit(self, task, *arguments):
        return Later.Task(functools.partial(task, *arguments))

    class Task:
        def __init__(self, task):
            self.task, self.looks = task, 0

        def done(self):
            self.looks += 1
            return self.looks > 1

        def result(self):
            return self.task()

        def cancel(self):
            pass


@pytest.mark.exhaustive
def test_tasks_need_only_say_whether_they_are_done(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(_workers, "_PAUSE", 0.0)
    run(tmp_path / "store", executor=Later())
    assert content(tmp_path / "store") == whole["few"]


@pytest.mark.exhaustive
def test_processes_write_the_store_of_one_process(whole, tmp_path):
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as executor:
        found = run(tmp_path / "store", executor=executor)
    # The tests compile programs without optimisations, and these processes with all optimisations.
    xr.testing.assert_allclose(found.drop_vars("reason"), run(None).drop_vars("reason"), rtol=1e-14)
    assert content(tmp_path / "store").keys() == whole["few"].keys()


def die_once(flag, beta):
    """Returns `beta`; if it exceeds 1.5 and the file `flag` is missing, makes the file and kills the process."""
    if float(beta) > 1.5 and not os.path.exists(flag):
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return np.asarray(beta)


def deadly(flag, beta):
    shape = jax.ShapeDtypeStruct((), beta.dtype)
    beta = jax.pure_callback(functools.partial(die_once, flag), shape, beta, vmap_method="sequential")
    return wave(beta)


@pytest.fixture
def dask():
    """Two worker processes of Dask on the loopback interface."""
    distributed = pytest.importorskip("distributed", reason="needs the extra distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, memory_limit=0
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_a_worker_of_dask_that_is_killed_loses_nothing(tmp_path, dask):
    """The task of the killed worker runs again on another worker; the store has the values of one process."""
    flag = tmp_path / "killed"
    function = functools.partial(deadly, str(flag))
    options = {"batch_size": 50, "progress": False}
    found = sweep.run(function, WIDE, store=tmp_path / "dask", executor=dask.get_executor(), **options)
    assert flag.exists()
    alone = sweep.run(function, WIDE, store=tmp_path / "alone", **options)
    xr.testing.assert_identical(found, alone)
    assert content(tmp_path / "dask") == content(tmp_path / "alone")


@pytest.mark.exhaustive
def test_a_lost_process_is_said_and_the_next_run_continues(tmp_path):
    flag = tmp_path / "killed"
    function, spawn = functools.partial(deadly, str(flag)), multiprocessing.get_context("spawn")
    call = functools.partial(sweep.run, function, WIDE, store=tmp_path / "store", batch_size=50, progress=False)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as executor:
        with pytest.raises(RuntimeError, match="one of them was lost .Broken.* in the store; run again"):
            call(executor=executor)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as executor:
        assert not np.any(call(executor=executor).status == 3)


# --- refusals and errors


@pytest.mark.parametrize(
    ("options", "words"),
    (
        ({"executor": 4}, "executor must be an executor of concurrent.futures, or have its method submit, but it is 4"),
        ({"executor": Later(), "devices": jax.local_devices()}, "devices must be None with an executor"),
        (
            {"executor": concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))},
            "executor must start fresh processes, but it forks this one, .*spawn",
        ),
    ),
    ids=("number", "devices", "fork"),
)
def test_executors_that_cannot_run_tasks_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        run(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_a_lost_task_is_an_error_that_says_what_was_kept(tmp_path):
    class Losing(concurrent.futures.ThreadPoolExecutor):
        def submit(self, task, job, numbers):
            return super().submit(lambda: 1 / 0 if 4 in numbers else task(job, numbers))

    with Losing(1) as executor:
        with pytest.raises(RuntimeError, match="lost .ZeroDivisionError: division by zero.; the finished batches are"):
            run(tmp_path / "store", executor=executor)
        with pytest.raises(RuntimeError, match="pass a store, and run again"):
            run(None, executor=executor)
    assert np.any(sweep.open(tmp_path / "store").status != 3)


def test_the_error_of_a_worker_is_that_of_the_sweep(tmp_path, monkeypatch):
    """A worker that has another version of a package, or does not see the folder, ends the sweep with its error."""

    class Changed(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, **changes):
            super().__init__(1)
            self.changes = changes

        def submit(self, task, job, numbers):
            return super().submit(task, job._replace(name="other", **self.changes), numbers)

    identity = {"jaxlib_version": "0.0.1"}
    with Changed(identity=identity) as executor:
        with pytest.raises(ValueError, match="workers like this process, which has jaxlib_version 0.0.1, but a worker"):
            run(tmp_path / "store", executor=executor)
    with Changed(store=str(tmp_path / "elsewhere")) as executor:
        with pytest.raises(ValueError, match="store must be a folder that all workers see"):
            run(tmp_path / "store", executor=executor)


def test_two_sweeps_of_one_executor_do_not_meet(tmp_path):
    """A worker thread prepares the second sweep anew."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        first, second = run(None, executor=executor), run(None, executor=executor, seed=4)
    xr.testing.assert_identical(first, run(None))
    xr.testing.assert_identical(second, run(None, seed=4))
    assert not np.array_equal(first.y, second.y)


def test_progress_counts_points_of_workers(capfd):
    with threads() as executor:
        run(None, executor=executor, progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "sweep: 0 of 12 points are finished" and "12 of 12 points" in lines[-1] and "failed" in lines[-1]


@pytest.mark.exhaustive
def test_many_batches_cost_little(tmp_path, monkeypatch):
    """Ten thousand batches are at most 256 tasks; a bound on time would depend on the machine."""
    monkeypatch.setattr(_store, "_MOST_CHUNKS", 256)
    axes, tasks = {"beta": np.linspace(1.0, 2.0, 10_000)}, []

    class Counted(concurrent.futures.ThreadPoolExecutor):
        def submit(self, *arguments):
            tasks.append(time.perf_counter())
            return super().submit(*arguments)

    with Counted(1) as executor:
        found = sweep.run(wave, axes, store=tmp_path / "store", batch_size=1, progress=False, executor=executor)
    assert len(tasks) <= 256
    np.testing.assert_allclose(found.y[5001:], np.sin(axes["beta"][5001:]), rtol=1e-6)


assert AXES and point  # from the cases that all tests of stores share
