"""Runs a sweep: checks the arguments, then runs batch after batch, in memory or in a store that survives a kill.

With a store the rows of each batch are written before the next one is fetched. Batches run in this process, in all
processes of `jax.distributed`, or in the workers of an executor.

Invariants: the result does not depend on the number of devices or processes, nor on whether the run was killed and
resumed, bit for bit; a store of another sweep is refused.
"""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr

from .._base.checks import (
    check_callable,
    check_flag,
    check_integer,
    check_sequence,
    check_text,
    refusal,
    shown,
)
from ._batches import Definition, Prepared, extended_plan, finished_batches
from ._labels import (
    FINISHED,
    Variable,
    check_function,
    check_seed,
    check_variables,
    marks_of,
    parse_axes,
)
from ._store import Frame, Rows, State, Store
from ._workers import batches_of_workers, check_executor


_LONGEST = 2_000
_OTHER = "choose another store"


@contextlib.contextmanager
def barrier() -> Iterator[None]:
    """A context at whose end all processes wait for each other; if one process raises an error, all of them do."""
    error_here = None
    try:
        yield
    except Exception as error:
        error_here = error
    # The exchange also follows an error, since the other processes wait in it.
    if jax.process_count() > 1:
        messages = _exchange("" if error_here is None else str(error_here) or type(error_here).__name__)
        # The message names the first process that failed; a process that failed raises its own error below.
        if error_here is None and any(messages):
            k = next(k for k, text in enumerate(messages) if text)
            raise ValueError(f"process {k} of this sweep has stopped: {messages[k]}")
    if error_here is not None:
        raise error_here


def _exchange(message: str) -> list[str]:
    """The messages of all processes, in the order of their indices."""
    from jax.experimental import multihost_utils

    # An all-gather needs rows of equal length; a longer message is truncated.
    sent = np.frombuffer(message.encode()[:_LONGEST].ljust(_LONGEST, b"\0"), np.uint8)
    received = np.asarray(multihost_utils.process_allgather(sent)).reshape(jax.process_count(), -1)
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in received]


class Progress:
    """A line of progress: overwritten on a terminal, otherwise appended at intervals."""

    def __init__(self, costs: np.ndarray, todo: np.ndarray, done: int, shown: bool):
        self.costs, self.shown = costs, shown
        self.done, self.failed = done, 0
        self.total = done + len(todo)
        # The work is counted in units of cost: the remaining time is right although the costliest points come first.
        self.left = self.work = float(costs[todo].sum())
        self.begun = self.last = time.monotonic()
        self.terminal = sys.stderr.isatty()
        if shown:
            print(f"sweep: {done} of {self.total} points are finished", file=sys.stderr, flush=True)

    def add(self, points: np.ndarray, failed: int) -> None:
        """Count the points of one more batch."""
        self.done += len(points)
        self.failed += failed
        self.left -= float(self.costs[points].sum())
        # The line is printed at most five times a second on a terminal, and twice a minute in a log.
        over = self.done == self.total
        if self.shown and (over or time.monotonic() - self.last > (0.2 if self.terminal else 30.0)):
            self.last = time.monotonic()
            end = "\n" if over or not self.terminal else ""
            # A carriage return and an erasure to the end of the line overwrite it.
            print(("\r\x1b[K" if self.terminal else "") + self.line(), end=end, file=sys.stderr, flush=True)

    def line(self) -> str:
        """The line of progress."""
        gone = time.monotonic() - self.begun
        # Only the work of this run counts: points that were finished before took none of its time.
        worked = self.work - self.left
        words = [f"sweep: {self.done} of {self.total} points", f"{_clock(gone)} gone"]
        if self.done < self.total and worked > 0:
            words.append(f"{_clock(gone * self.left / worked)} left")
        return ", ".join(words + ([f"{self.failed} failed"] if self.failed else []))


def _clock(seconds: float) -> str:
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes}:{remainder:02d}"


def run(
    function: Callable[..., Any],
    axes: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    batch_size: int,
    store: str | os.PathLike[str] | None = None,
    resume: bool = True,
    extend: bool = False,
    devices: Sequence[Any] | None = None,
    executor: Any = None,
    progress: bool = True,
    seed: int = 0,
    cost: Callable[..., float] | None = None,
    variables: Mapping[str, Variable] | None = None,
    finite: bool = True,
    version: str = "1",
) -> xr.Dataset:
    """Evaluate a function at every point of a grid, and return a labelled data set.

    The points are mapped over by `jax.vmap` in batches; each batch is one call of a compiled program on one device.
    With a `store` each finished batch is on the disk before the next one begins. A run that is killed at any moment
    therefore continues when it is started again, with the final store of an uninterrupted run, byte for byte.

    A point fails if the function raises an error there (for example by `equinox.error_if`, or while a static value is
    traced), or, with `finite`, if one of its numbers is NaN, infinite, or the smallest integer of its dtype, which
    `num_clusters` and similar functions return for NaN tokens. The `status` of the point is then not 0, its `reason`
    gives the cause, and all of its numbers are nan (integers: the smallest of their dtype, or the largest if unsigned;
    booleans: False). All other points remain valid.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> def energy(beta, d):
        ...     return {"energy": cjx.interaction_energy(jnp.eye(d), beta)}
        ...
        >>> axes = {"beta": [1.0, 2.0, 4.0], "d": cjx.sweep.Axis([2, 3], static=True)}
        >>> result = cjx.sweep.run(energy, axes, batch_size=2, progress=False)
        >>> dict(result.sizes), round(float(result.energy.sel(beta=2.0, d=3)), 3)
        ({'beta': 3, 'd': 2}, 0.782)
        ```

    **Arguments:**

    - `function`: Called with each axis by its name. The values of static axes are Python values, all others are scalars
        (or arrays, if the axis is of arrays) that may be traced. If it takes `key`, the key is that of `point_key`,
        which depends on the seed and on the coordinates of the point only. The function returns an array, called
        `result`, or a dictionary or NamedTuple of arrays, of one shape and dtype at all points.
    - `axes`: Names and values, as a dictionary or pairs; an `Axis` gives values a unit or a description or makes them
        static.

    **Other arguments:**

    - `batch_size`: The number of points that are run at once, as many as fit the memory of a device.
    - `store`: A folder, created if necessary; None keeps the result in memory only.
    - `resume`: Whether a run continues from the store; damaged batches are then run again. False computes all batches
        anew; a store of another sweep is refused in either case.
    - `extend`: Whether `axes` may have further values besides those of the store. The store is then extended to all
        points of `axes`, and only the missing points are run. They follow the former points in the order of the run,
        so that a later call that continues the store needs `extend` too.
    - `devices`: The devices of this process over which batches are distributed, one batch on each at a time; None takes
        all. A device that is listed twice has two batches at a time: a program of loops does not use several cores by
        itself, and `4 * jax.devices("cpu")` occupies four cores, with the memory of four batches. The number of devices
        changes no bit of the result.
    - `executor`: An executor of `concurrent.futures`, or an object with the method `submit`, such as that of
        `dask.distributed`, Ray or `submitit`. Its workers run the batches, on all devices of each worker, and write
        them to the store, at least every half second. A task is one batch or, if there are more than 256 batches, all
        that share a chunk of the store. The function must be importable by the workers, unless the executor pickles
        functions by value, as Dask and `submitit` do. The result is that of one process, bit for bit, on workers with
        the same kind of processor.
    - `progress`: Whether to show the progress and the remaining time on stderr.
    - `seed`: The seed of the keys.
    - `cost`: The approximate work of a point, a function of those axes that it names. Points of similar cost share a
        batch, and the costliest are run first. The result keeps the order of the axes.
    - `variables`: Labels of outputs, by their names.
    - `finite`: Whether a number that is not finite makes its point fail.
    - `version`: The version of the function; raise it when the function changes, since a store of the same version is
        continued without a check of what the function computes.

    **Returns:**

    An `xarray.Dataset` with a dimension and a coordinate for each axis, the outputs, `status` (0 finished, 1 not
    finite, 2 raised, 3 unfinished), `reason`, and attributes: function, options, versions and date (that of the
    environment variable SOURCE_DATE_EPOCH if it is set).

    **Raises:**

    - `ValueError` if an argument is invalid; if the store is of another sweep (the store is not changed), has damaged
        labels, is being written by another process, or cannot be written (finished batches are kept); if a batch does
        not fit the memory of a device. The error of the function, if it raises for all static values.
    - `RuntimeError` if the executor loses a task, for example with a worker process that was killed. Finished batches
        are in the store; the executor of Dask runs a lost task again on another worker.

    Under `jax.distributed` every process makes the same call, runs its share of the batches, and returns the complete
    result; all processes must have access to the folder of the store.
    """
    parsed = parse_axes(axes)
    takes_key = check_function(function, parsed)
    for flag, name in ((resume, "resume"), (extend, "extend"), (progress, "progress"), (finite, "finite")):
        check_flag(flag, name)
    if extend and (store is None or not resume):
        problem = "store is None" if store is None else "resume is False"
        raise refusal("extend", "be False without a store that is resumed", problem, "name the store, and resume it")
    if store is None and jax.process_count() > 1:
        raise ValueError("store must be a folder that all processes see, but it is None; name one.")
    result_store, run_devices = None if store is None else Store(store), _devices(devices)
    batch_size, seed = check_integer(batch_size, "batch_size"), check_seed(seed)
    check_text(version, "version")
    if cost is not None:
        check_callable(cost, "cost", "a function of axes, by their names")
    check_variables(variables)
    definition = Definition(function, takes_key, parsed, batch_size, seed, cost, variables, finite, version)
    if extend and result_store is not None:
        definition = _extended(definition, result_store)
    programs, frame, identity, costs = definition.prepare()
    points = frame.points
    if executor is not None:
        check_executor(executor, devices)

    def run_batches(arrays: Rows, share: np.ndarray, left: np.ndarray, shown: bool) -> Iterator[int]:
        """Run the batches that are left of a share, and yield the number of each batch that is to be written.

        The rows of these batches are in `arrays`; the workers of an executor write theirs.
        """
        numbers = np.flatnonzero(share & left).tolist()
        todo = points[numbers]
        num_done = int(np.sum(points[share] >= 0)) - int(np.sum(todo >= 0))
        meter = Progress(costs, todo[todo >= 0], num_done, shown and todo.size > 0)
        if executor is not None:
            folder = None if result_store is None else str(result_store.path)
            for batch in batches_of_workers(executor, definition, frame, identity, numbers, folder):
                for name, values in ({} if batch.rows is None else batch.rows).items():
                    arrays[name][frame.batch(batch.number)] = values
                meter.add(frame.batch(batch.number), batch.failed)
            return
        for number, rows in finished_batches(programs, frame, numbers, run_devices, finite):
            for name, values in rows.items():
                arrays[name][frame.batch(number)] = values
            # The points count after the batch is written, so that points shown as finished are stored.
            yield number
            meter.add(frame.batch(number), int(np.sum(rows["status"] != FINISHED)))

    if result_store is not None:
        rereads = executor is not None or jax.process_count() > 1
        return _run_in_store(result_store, frame, identity, run_batches, resume, progress, rereads)
    arrays, every = frame.empty(), np.ones(len(points), bool)
    deque(run_batches(arrays, every, every, progress), maxlen=0)
    return frame.dataset(arrays)


def _extended(definition: Definition, result_store: Store) -> Definition:
    """`definition` with the batches of the store, after the store was extended to all points of `definition`."""
    with barrier():
        if jax.process_index() == 0 and result_store.identity() is not None:
            if result_store.identity() != _with_points(definition, result_store)[2].identity:
                with result_store.locked():
                    state, places, larger = _with_points(definition, result_store)
                    # The date of a sweep is that of its start.
                    frame = larger.frame._replace(attrs=larger.frame.attrs | {"date": state.frame.attrs["date"]})
                    result_store.extend(frame, larger.identity, state, places)
    with barrier():
        stored = None if result_store.identity() is None else result_store.read().frame.points
    return definition._replace(points=stored)


def _with_points(definition: Definition, result_store: Store) -> tuple[State, np.ndarray, Prepared]:
    """The content of a store, the flat index of its points in the grid of `definition`, and the larger sweep."""
    state = result_store.read()
    stored, names = state.frame, tuple(axis.name for axis in definition.axes)
    if stored.names != names:
        problem = f"they are {', '.join(names)}, and those of the store are {', '.join(stored.names)}"
        raise refusal("axes", "have the names of the store, in their order, with extend=True", problem, _OTHER)
    indices = []
    for axis in definition.axes:
        coords = axis.coords()
        formers = [former for former in stored.coords if former.name in [coord.name for coord in coords]]
        if [(former.name, former.attrs) for former in formers] != [(coord.name, coord.attrs) for coord in coords]:
            problem = f"those of {axis.name!r} differ"
            raise refusal("axes", "have the units and descriptions of the store with extend=True", problem, _OTHER)
        place = {mark: k for k, mark in enumerate(marks_of(coords))}
        lost = [mark for mark in marks_of(formers) if mark not in place]
        if lost:
            problem = f"{axis.name!r} lacks {len(lost)}, the first of which is {shown(lost[0].partition(':')[2])}"
            raise refusal("axes", "have all values of the store with extend=True", problem, f"add them, or {_OTHER}")
        indices.append(np.array([place[mark] for mark in marks_of(formers)]))
    sizes = [len(axis.values) for axis in definition.axes]
    places = np.ravel_multi_index(np.ix_(*indices), sizes).ravel()
    former_points = np.where(stored.points < 0, -1, places[stored.points])
    points = extended_plan(definition.axes, definition.batch_size, definition.cost, former_points)
    larger = definition._replace(points=points).prepare()
    # All else must be as it was.
    former = result_store.identity() or {}
    result_store.refuse_another(larger.identity | {name: former[name] for name in ("axes", "order of the points")})
    return state, places, larger


def _run_in_store(
    result_store: Store,
    frame: Frame,
    identity: dict[str, str],
    run_batches: Callable[..., Iterator[int]],
    resume: bool,
    progress: bool,
    rereads: bool,
) -> xr.Dataset:
    """Run the batches that the store lacks; `rereads` is True if other processes write to the store too."""
    # One process begins the store; all processes write batches.
    leads, state = jax.process_index() == 0, None
    with contextlib.ExitStack() as stack:
        with barrier():
            if leads:
                result_store.refuse_another(identity)
                # A finished store is only read, and needs no lock.
                if resume and result_store.is_marked:
                    state = result_store.read()
                if state is None or state.left.any():
                    state = None
                    stack.enter_context(result_store.locked())
                    # The lock brings back a store that a killed run was about to extend.
                    result_store.refuse_another(identity)
                    if not resume or result_store.identity() is None:
                        result_store.begin(frame, identity)
        with barrier():
            if result_store.identity() != identity:
                raise ValueError(
                    f"store must be a folder that all processes see, but process {jax.process_index()} does not find "
                    f"this sweep in {str(result_store.path)!r}; choose one on a disk that they share."
                )
            # The frame of the store is used, so that a resumed run keeps the date of its start.
            state = result_store.read() if state is None else state
            if leads and progress and state.damaged:
                print(f"sweep: {len(state.damaged)} batches are damaged and are run again", file=sys.stderr, flush=True)
        with barrier():
            # Chunks of batches are distributed round robin: they are ordered by cost, so that the shares are even.
            chunks = np.arange(len(frame.points)) // frame.gathered
            share = chunks % jax.process_count() == jax.process_index()
            # Each batch is on the disk before the next one is fetched.
            for number in run_batches(state.arrays, share, state.left, progress and leads):
                result_store.write(state, number)
    return state.frame.dataset(result_store.read().arrays if rereads else state.arrays)


def _devices(devices: Any) -> list[Any]:
    local = jax.local_devices()
    if devices is None:
        return local
    listed = check_sequence(devices, "devices", jax.Device, "devices of jax")
    # Devices of other processes run their own batches.
    if any(device not in local for device in listed):
        rule, problem = "be some of those of this process", f"they are {listed[:8]}"
        raise refusal("devices", rule, problem, f"choose from {local}")
    return listed
