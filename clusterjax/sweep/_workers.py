"""Batches as tasks of an executor: workers, which are other threads, processes or machines, run and write them.

A task is a run of batches that share a chunk of the store, so that no two workers write one chunk. A worker prepares a
sweep at its first task: it plans and traces what the caller planned and traced, and refuses the task where the two
differ, as they do with another version of jax. Only the function, the axes and the options travel to a worker; with a
store only counts travel back.

**Invariant.** A task may run twice, since some executors run the tasks of a lost worker again: the second run computes
the same rows and writes them to the same place.
"""

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from .._base.checks import refusal, shown
from ._batches import Definition, Frame, Prepared, finished_batches
from ._labels import FINISHED
from ._store import Rows, Store


# The settings of jax that change numbers. A worker takes those of the caller.
_SETTINGS = (
    "jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion",
)  # fmt: skip
# The seconds between two checks of tasks that are not futures of `concurrent.futures`, as those of `submitit`.
_PAUSE = 0.2
# The seconds of work that a killed worker loses at most, besides its last batch.
_INTERVAL = 0.5


class Job(NamedTuple):
    """The data that all tasks of one call of `run` share."""

    name: str
    definition: Definition
    identity: dict[str, str]
    store: str | None
    settings: dict[str, Any]


class Finished(NamedTuple):
    """The result that a worker returns for a batch."""

    number: int
    failed: int
    rows: Rows | None  # None where the worker wrote the rows to the store


def check_executor(executor: Any, devices: Any) -> None:
    """Raise a ValueError unless `executor` takes tasks, and its workers can run jax."""
    if not callable(getattr(executor, "submit", None)):
        rule = "be an executor of concurrent.futures, or have its method submit"
        raise refusal("executor", rule, f"it is {shown(executor)}", "pass Client.get_executor() of Dask, for example")
    if devices is not None:
        problem = "both are given"
        raise refusal("devices", "be None with an executor", problem, "each worker uses all devices that it sees")
    if jax.process_count() > 1:
        problem = f"this is one of {jax.process_count()} processes of jax.distributed"
        raise refusal("executor", "be None in a program of many processes", problem, "start one process")
    context = getattr(executor, "_mp_context", None)
    if isinstance(executor, ProcessPoolExecutor) and context is not None and context.get_start_method() == "fork":
        remedy = 'pass mp_context=multiprocessing.get_context("spawn") to ProcessPoolExecutor'
        raise refusal("executor", "start fresh processes", "it forks this one, in which jax has threads", remedy)


def batches_of_workers(
    executor: Any, definition: Definition, frame: Frame, identity: dict[str, str], numbers: list[int], store: str | None
) -> Iterator[Finished]:
    """Run the batches `numbers` by the workers of an executor, and yield the result of each finished batch."""
    settings = {name: getattr(jax.config, name) for name in _SETTINGS}
    job = Job(uuid.uuid4().hex, definition, identity, store, settings)
    chunks: dict[int, list[int]] = {}
    for number in numbers:
        chunks.setdefault(number // frame.gathered, []).append(number)
    tasks = [executor.submit(run_task, job, chunk) for chunk in chunks.values()]
    try:
        for task in _as_completed(tasks):
            try:
                finished = task.result()
            except ValueError:
                raise
            except Exception as error:
                hint = "the finished batches are in the store; run again" if store else "pass a store, and run again"
                raise RuntimeError(
                    f"executor must run its tasks, but one of them was lost ({type(error).__name__}: {error}); {hint}."
                ) from error
            yield from finished
    finally:
        # No task begins after an error, or after the caller was interrupted.
        for task in tasks:
            task.cancel()


def _as_completed(tasks: list[Any]) -> Iterator[Any]:
    """The tasks, each as soon as it is done."""
    pending = list(tasks)
    while pending:
        if all(isinstance(task, Future) for task in pending):
            wait(pending, return_when=FIRST_COMPLETED)
        finished = [task for task in pending if task.done()]
        if not finished:
            time.sleep(_PAUSE)
        yield from finished
        pending = [task for task in pending if task not in finished]


# Each thread of a worker keeps the sweep that it prepared last, since compiled programs belong to one thread at a time.
_latest = threading.local()


def run_task(job: Job, numbers: list[int]) -> list[Finished]:
    """Run batches of one chunk in a worker, and write them to the store at the end, and every half second before."""
    if getattr(_latest, "name", None) != job.name:
        _latest.prepared, _latest.store, _latest.name = _prepared(job), _store(job), job.name
    prepared: Prepared = _latest.prepared
    store: Store | None = _latest.store
    frame = prepared.frame
    batches = finished_batches(prepared.programs, frame, numbers, jax.local_devices(), job.definition.finite)
    failed = lambda rows: int(np.sum(rows["status"] != FINISHED))
    if store is None:
        return [Finished(number, failed(rows), rows) for number, rows in batches]
    chunk, finished, unwritten = store.chunk(frame, prepared.identity, numbers), [], []
    written = time.monotonic()
    for number, rows in batches:
        chunk.set(number, rows)
        unwritten.append(number)
        finished.append(Finished(number, failed(rows), None))
        # Writing takes milliseconds, which are much for a small batch.
        if time.monotonic() - written > _INTERVAL or number == numbers[-1]:
            store.write_chunk(chunk, unwritten)
            unwritten, written = [], time.monotonic()
    return finished


def _prepared(job: Job) -> Prepared:
    """The sweep of a job, planned and traced in this worker."""
    for name, value in job.settings.items():
        # Assigning an equal value would compile anew what this process has compiled.
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)
    prepared = job.definition.prepare()
    differ = [name for name, value in job.identity.items() if prepared.identity.get(name) != value]
    if differ:
        description_of = lambda identity: "; ".join(f"{name} {identity.get(name)}" for name in differ)
        raise ValueError(
            f"executor must have workers like this process, which has {description_of(job.identity)}, but a worker has "
            f"{description_of(prepared.identity)}; install the same versions, and use the same kind of device."
        )
    return prepared


def _store(job: Job) -> Store | None:
    """The store of a job, as this worker sees it."""
    store = None if job.store is None else Store(job.store)
    if store is not None and store.identity() != job.identity:
        raise ValueError(
            f"store must be a folder that all workers see, but a worker does not find this sweep in {job.store!r}; "
            "choose one on a disk that they share."
        )
    return store
