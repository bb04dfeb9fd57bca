"""Runs a sweep: checks the arguments, then runs batch after batch, in memory or in a store that survives a kill.

The grid is flattened, ordered by static values and cost (`_plan`), and divided into batches of one width; each batch is
one call of a compiled `jax.vmap` of the function (`_evaluate`). With a store each finished batch is a file (`_store`),
and at the end the files become one zarr folder.

Invariants: the result does not depend on the number of devices or processes, nor on whether the run was killed and
resumed, bit for bit; a failed point does not affect the others; a store of another sweep is refused.
"""

import contextlib
import logging
import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
import xarray as xr

from .._base.checks import call_traced, check_callable, check_flag, check_integer, check_sequence, refusal, shown
from ._axis import (
    FINISHED,
    NOT_FINITE,
    RAISED,
    Frame,
    Outcome,
    Output,
    Parsed,
    check_function,
    check_seed,
    missing,
    parse_axes,
    plan,
    point_values,
    static_values,
)
from ._identity import attributes, identity_of
from ._outputs import Variable, as_outputs, check_point_room, check_variables, label_outputs, one_shape
from ._store import Store


# Batches of points on devices: one program for each choice of the static values; a failed point fails alone.
#
# A batch is one call of `jax.jit(jax.vmap(function))`. One batch is in flight for each entry of the list of devices;
# when all entries are busy, the oldest batch is collected. If a batch raises, its points are run one by one, so that
# the error belongs to a single point. Asynchronous calls from one thread do not overlap on CPU devices: with several
# entries each call has its own thread, except the first call on each device, which compiles.
#
# Invariants: every batch is padded to the same width, so that nothing compiles anew and the numbers of a point do not
# depend on the number of its neighbours; the key of a point is fold_in(root key, its flat index), in every batch.


_WITHIN = re.compile(r"(?:\w+\.)*_?(\w*(?:Error|Exception)): (.*)")


class Task(NamedTuple):
    """A function, the axes of its points, and the options of a batch.

    **Attributes:**

    - `function`, `takes_key`: The function of a point, and whether it takes a PRNG key.
    - `axes`: The axes of the points.
    - `width`: The number of points to which every batch is padded.
    - `seed`: The seed of the keys.
    - `finite`: Whether a number that is not finite makes a point fail.
    """

    function: Callable[..., Any]
    takes_key: bool
    axes: list[Parsed]
    width: int
    seed: int
    finite: bool

    def mapped(self, point: int) -> Callable[..., dict[str, jax.Array]]:
        """The function of (root key, flat indices, values) for many points that share the static values of `point`."""
        static = static_values(self.axes, point)

        def at_point(root, index, values):
            # The key depends on the flat index of the point in the grid, and not on its position in the order.
            key = {"key": jr.fold_in(root, index)} if self.takes_key else {}
            return as_outputs(
                call_traced(self.function, "function", "a function of one point", **static, **values, **key)
            )

        # The root key is shared; indices and values are mapped.
        return jax.vmap(at_point, in_axes=(None, 0, 0))

    def arguments(self, points: np.ndarray, width: int) -> tuple[Any, ...]:
        """The arguments of `mapped`, padded with copies of the last point, so that all batches have one shape."""
        # The results of the copies are dropped.
        padded = np.concatenate([points, np.full(width - len(points), points[-1], points.dtype)])
        values = point_values(self.axes, padded)
        # On the host float64 axes become float32 without a warning for each batch, unless x64 is enabled.
        canonical = {name: array.astype(jax.dtypes.canonicalize_dtype(array.dtype)) for name, array in values.items()}
        return jr.key(self.seed), padded.astype(np.uint32), canonical


class Programs:
    """The programs of a task, one for each choice of the static values."""

    def __init__(self, task: Task):
        self.task = task
        self._jitted: dict[tuple[int, ...], Any] = {}
        self._latest: tuple[int, ...] | None = None

    def shapes(self, point: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and dtypes that the program for the static values of `point` returns."""
        return jax.eval_shape(self._at(point), *self.task.arguments(np.asarray([point]), self.task.width))

    def next(self, point: int) -> Any:
        """The program for the static values of `point`. The previous program is released, since batches with the same
        static values are adjacent."""
        which = self._which(point)
        # A compiled program occupies memory on the device; no later batch needs the previous program again.
        if self._latest not in (None, which):
            self._jitted.pop(self._latest, None)
        self._latest = which
        return self._at(point)

    def _at(self, point: int) -> Any:
        return self._jitted.setdefault(self._which(point), jax.jit(self.task.mapped(point)))

    def _which(self, point: int) -> tuple[int, ...]:
        # The key is the static part of the position in the grid.
        places = np.unravel_index(point, [len(axis.values) for axis in self.task.axes])
        return tuple(int(place) for axis, place in zip(self.task.axes, places, strict=True) if axis.static)


def outcomes(
    programs: Programs, frame: Frame, batches: Iterable[int], devices: list[Any]
) -> Iterator[tuple[int, Outcome]]:
    """The outcome of each batch. One batch is in flight for each entry of `devices`; no batch spans two devices, so
    that its numbers do not depend on the number of devices."""
    in_flight: deque[tuple[int, Any, Any, Any]] = deque()
    # The program of the previous batch, and the devices for which it was compiled.
    latest: Any = None
    compiled: set[Any] = set()
    # The filter of the log belongs to the process, and so threads must not remove each other's filter.
    with _quiet(), ThreadPoolExecutor(len(devices)) as threads:
        for turn, number in enumerate(batches):
            # Every entry has a batch: the oldest is collected before the next one is sent.
            if len(in_flight) == len(devices):
                yield _collect(programs.task, frame, *in_flight.popleft())
            device = devices[turn % len(devices)]
            points = frame.points(number)
            # The arguments are moved to the device first, so that the program runs there.
            arguments = jax.device_put(programs.task.arguments(points, programs.task.width), device)
            program = programs.next(int(points[0]))
            if program is not latest:
                latest, compiled = program, set()
            if len(devices) > 1 and device in compiled:
                result: Any = threads.submit(lambda program, arguments: jax.block_until_ready(program(*arguments)),
                                             program, arguments)  # fmt: skip
            else:
                # The first call is made here, since two threads would both compile.
                compiled.add(device)
                try:
                    result = program(*arguments)
                except Exception as error:
                    result = error
            in_flight.append((number, result, program, device))
        while in_flight:
            yield _collect(programs.task, frame, *in_flight.popleft())


def _collect(task: Task, frame: Frame, number: int, result: Any, program: Any, device: Any) -> tuple[int, Outcome]:
    points = frame.points(number)
    if isinstance(result, Future):
        # This waits for the thread; its error becomes the result.
        result = result.exception() or result.result()
    if not isinstance(result, Exception):
        try:
            with _quiet():
                # This waits for the batch, and raises the errors of its execution.
                arrays = jax.device_get(result)
            return number, _outcome_of(task, frame.outputs, arrays, len(points))
        except Exception as error:
            result = error
    # Insufficient memory is reported before the points are tried one by one.
    _refuse_full_memory(result, task.width)
    return number, _one_by_one(task, frame.outputs, points, program, device)


def _outcome_of(task: Task, outputs: list[Output], arrays: dict[str, Any], count: int) -> Outcome:
    """The outcome of points that were run; those with a number that is not finite are marked."""
    kept = {out.name: np.asarray(arrays[out.name])[:count].astype(out.dtype) for out in outputs}
    # Each point has one status and one reason.
    status, reasons = np.full(count, FINISHED, np.uint8), [""] * count
    if task.finite:
        bad = {name: ~np.all(_is_number(array).reshape(count, -1), axis=1) for name, array in kept.items()}
        for k in np.flatnonzero(np.any(list(bad.values()), axis=0)):
            status[k] = NOT_FINITE
            reasons[k] = "not finite: " + ", ".join(name for name in kept if bad[name][k])
    for out in outputs:
        # A point with one invalid output keeps none of its numbers, so that no incomplete point is averaged by mistake.
        kept[out.name][status != FINISHED] = missing(out.dtype)
    return Outcome(kept, status, reasons)


def _is_number(array: np.ndarray) -> np.ndarray:
    """True where an entry is a number: neither NaN, nor infinite, nor the smallest integer, a NaN count."""
    return array != missing(array.dtype) if array.dtype.kind == "i" else np.isfinite(array)


def _one_by_one(task: Task, outputs: list[Output], points: np.ndarray, program: Any, device: Any) -> Outcome:
    """The outcome of a batch that raised an error, from runs of its points one at a time."""
    try:
        # If tracing itself fails, no point can run, and trying each would only take time.
        jax.eval_shape(program, *task.arguments(points[:1], 1))
    except Exception as error:  # without a program no point can run
        return _stack([_raised(outputs, error)] * len(points))
    single_outcomes = []
    for k in range(len(points)):
        try:
            with _quiet():
                arrays = jax.device_get(program(*jax.device_put(task.arguments(points[k : k + 1], 1), device)))
            single_outcomes.append(_outcome_of(task, outputs, arrays, 1))
        except Exception as error:
            _refuse_full_memory(error, 1)
            single_outcomes.append(_raised(outputs, error))
    return _stack(single_outcomes)


def _raised(outputs: list[Output], error: Exception) -> Outcome:
    arrays = {out.name: np.full((1, *out.shape), missing(out.dtype), out.dtype) for out in outputs}
    return Outcome(arrays, np.full(1, RAISED, np.uint8), [_reason(error)])


def _stack(single_outcomes: list[Outcome]) -> Outcome:
    names = single_outcomes[0].arrays
    arrays = {name: np.concatenate([single.arrays[name] for single in single_outcomes]) for name in names}
    status = np.concatenate([single.status for single in single_outcomes])
    return Outcome(arrays, status, [single.reasons[0] for single in single_outcomes])


def _reason(error: Exception) -> str:
    """The line of an error that does not depend on where and when the error was raised."""
    # Tracebacks and addresses would make the reason differ from run to run.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # An error of a callback, also of `equinox.error_if`, is wrapped, after a traceback of the runtime.
    inner_errors = [match for line in lines if (match := _WITHIN.match(line))]
    if inner_errors and "Traceback" in str(error):
        return f"{inner_errors[-1][1]}: {inner_errors[-1][2]}"[:300]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log of a traceback for an error that becomes the reason of a point."""
    # `equinox.error_if` reports through the logger of jax's callbacks. Each context has its own filter, so that
    # contexts that overlap do not remove each other's filter.
    logger, drop = logging.getLogger("jax._src.callback"), lambda record: _drop(record)
    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def _drop(record: logging.LogRecord) -> bool:
    return "callback failed" not in record.getMessage()


def _refuse_full_memory(error: Exception, width: int) -> None:
    # Full memory is no property of the points: running them one by one would hide that batches are too large.
    if "RESOURCE_EXHAUSTED" in str(error):
        raise ValueError(
            f"batch_size must be such that a batch fits the memory of a device, but one of {width} points does not; "
            f"pass a smaller one ({_reason(error)})."
        ) from error


# A barrier between the processes of a sweep, which also raises an error of one process in all of them.
#
# At the end of each part of the work all processes exchange one message, empty if the work succeeded, by an all-gather
# of
# `jax.experimental.multihost_utils`. No process therefore waits for ever for a process that has failed.
#
# Invariants: a single process exchanges nothing; if the work raises in one process, all processes raise at the same
# barrier.


_LONGEST = 2_000


@contextlib.contextmanager
def barrier() -> Iterator[None]:
    """A context at whose end all processes wait for each other; if one process raises an error, all of them do.

    **Raises:**

    - The error of this process; in processes without an error a `ValueError` with the message of the failed one.
    """
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


# The progress of a sweep, in one line on stderr, with the remaining time.


class Progress:
    """A line of progress: overwritten on a terminal, otherwise appended at intervals."""

    def __init__(
        self,
        costs: np.ndarray,
        todo: np.ndarray,
        done: int,
        shown: bool,
        *,
        now: Callable[[], float] = time.monotonic,
    ):
        self.costs, self.shown, self.now = costs, shown, now
        self.done, self.failed = done, 0
        self.total = done + len(todo)
        # The work is counted in units of cost: the remaining time is right although the costliest points come first.
        self.left = self.work = float(costs[todo].sum())
        self.begun = self.last = now()
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
        if self.shown and (over or self.now() - self.last > (0.2 if self.terminal else 30.0)):
            self.last = self.now()
            end = "\n" if over or not self.terminal else ""
            # A carriage return and an erasure to the end of the line overwrite it.
            print(("\r\x1b[K" if self.terminal else "") + self.line(), end=end, file=sys.stderr, flush=True)

    def line(self) -> str:
        """The line of progress."""
        gone = self.now() - self.begun
        # Only the work of this run counts: points that were finished before took none of its time.
        worked = self.work - self.left
        words = [f"sweep: {self.done} of {self.total} points", f"{_clock(gone)} gone"]
        if self.done < self.total and worked > 0:
            words.append(f"{_clock(gone * self.left / worked)} left")
        return ", ".join(words + ([f"{self.failed} failed"] if self.failed else []))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def run(
    function: Callable[..., Any],
    axes: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    batch_size: int,
    store: str | os.PathLike[str] | None = None,
    resume: bool = True,
    devices: Sequence[Any] | None = None,
    progress: bool = True,
    seed: int = 0,
    cost: Callable[..., float] | None = None,
    variables: Mapping[str, Variable] | None = None,
    finite: bool = True,
    version: str | int | None = None,
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
        >>> found = cjx.sweep.run(energy, axes, batch_size=2, progress=False)
        >>> dict(found.sizes), round(float(found.energy.sel(beta=2.0, d=3)), 3)
        ({'beta': 3, 'd': 2}, 0.782)
        ```

    **Arguments:**

    - `function`: Called with each axis by its name. The values of static axes are Python values, all others are scalars
        (or arrays, if the axis is of arrays) that may be traced. If it takes `key`, the key is `fold_in(key(seed), k)`
        at the point of flat index k, in the order of the axes, the last one fastest. It returns an array, called
        `result`, or a dictionary or NamedTuple of arrays, of one shape and dtype at all points.
    - `axes`: Names and values, as a dictionary or pairs; an `Axis` gives values a unit or a description or makes them
        static.

    **Other arguments:**

    - `batch_size`: The number of points that are run at once, as many as fit the memory of a device.
    - `store`: A folder, created if necessary; None keeps the result in memory only.
    - `resume`: Whether a run continues from the store; batches whose file is damaged are then run again. False
        computes all batches anew; a store of another sweep is refused in either case.
    - `devices`: The devices of this process over which batches are distributed, one batch on each at a time; None takes
        all. A device that is listed twice has two batches at a time: a program of loops does not use several cores by
        itself, and `4 * jax.devices("cpu")` occupies four cores, with the memory of four batches. The number of devices
        changes no bit of the result.
    - `progress`: Whether to show the progress and the remaining time on stderr.
    - `seed`: The seed of the keys.
    - `cost`: The approximate work of a point, a function of those axes that it names. Points of similar cost share a
        batch, and the costliest are run first. The result keeps the order of the axes.
    - `variables`: Labels of outputs, by their names.
    - `finite`: Whether a number that is not finite makes its point fail.
    - `version`: The version of the function; change it after a change that the bytecode of the function does not show.

    **Returns:**

    An `xarray.Dataset` with a dimension and a coordinate for each axis, the outputs, `status` (0 finished, 1 not
    finite, 2 raised, 3 unfinished), `reason`, and attributes: function, options, versions, git revision and date (that
    of the environment variable SOURCE_DATE_EPOCH if it is set).

    **Raises:**

    - `ValueError` if an argument is invalid; if the store is of another sweep (the store is not changed), is finished
        and damaged, is being written by another process, or cannot be written (finished batches are kept); if a batch
        does not fit the memory of a device. The error of the function, if it raises for all static values.

    Under `jax.distributed` every process makes the same call, runs its share of the batches, and returns the complete
    result; all processes must have access to the folder of the store.
    """
    parsed = parse_axes(axes)
    takes_key = check_function(function, parsed)
    result_store, run_devices, batch_size = check_place(store, devices, batch_size, resume, progress)
    seed = check_seed(seed)
    _check_options(finite, cost, version)
    check_variables(variables)
    order, bounds, costs = plan(parsed, batch_size, cost)
    # All batches have the width of the largest, so that each choice of static values is one compilation.
    programs = Programs(Task(function, takes_key, parsed, int(np.diff(bounds).max()), seed, finite))
    group = math.prod(len(axis.values) for axis in parsed if not axis.static)
    # One point for each choice of static values, whose points are adjacent in the order.
    firsts = order[::group].tolist()
    # The function is traced and not run: names, shapes and dtypes are known before the first batch.
    shapes = one_shape((str(static_values(parsed, k)), lambda k=k: programs.shapes(k)) for k in firsts)
    labels = label_outputs(shapes, parsed, variables)
    check_point_room(labels[0], len(order))
    options = {"batch_size": batch_size, "seed": seed, "finite": bool(finite), "version": version}
    # A store must have this identity to be continued.
    identity = identity_of(function, parsed, order, labels, options)
    names, sizes = tuple(axis.name for axis in parsed), tuple(len(axis.values) for axis in parsed)
    coords = [coord for axis in parsed for coord in axis.coords()] + labels[1]
    frame = Frame(names, sizes, coords, labels[0], attributes(function, identity, options), order, bounds)
    costs = np.ones(len(order)) if costs is None else costs
    if result_store is not None:
        return _run_in_store(result_store, programs, frame, identity, costs, run_devices, resume, progress)
    meter = Progress(costs, order, 0, progress)
    return frame.assemble(_counted(outcomes(programs, frame, range(frame.batches), run_devices), frame, meter))


def _run_in_store(
    result_store: Store,
    programs: Programs,
    frame: Frame,
    identity: dict[str, str],
    costs: np.ndarray,
    devices: list[Any],
    resume: bool,
    progress: bool,
) -> xr.Dataset:
    # One process writes the frame and the final store; all processes write batches.
    leads = jax.process_index() == 0
    with contextlib.ExitStack() as stack:
        with barrier():
            if leads:
                result_store.check()
                result_store.refuse_another(identity)
                # A finished store is only read, and needs no lock.
                if not (resume and result_store.is_finished and not result_store.work.exists()):
                    stack.enter_context(result_store.locked())
                    _prepare(result_store, frame, identity, resume)
        with barrier():
            _refuse_unshared(result_store, identity)
            is_finished = result_store.is_finished
            # The frame of the store is used, so that a resumed run keeps the date of its start.
            frame = frame if is_finished else result_store.frame()
            intact = set() if is_finished else result_store.intact(frame)
            if leads and progress and not is_finished and (damaged := len(result_store.finished(frame)) - len(intact)):
                print(f"sweep: {damaged} batches are damaged and are run again", file=sys.stderr, flush=True)
        if not is_finished:
            with barrier():
                # Batches are distributed round robin: they are ordered by cost, so that the shares are even.
                own_batches = range(jax.process_index(), frame.batches, jax.process_count())
                numbers = [number for number in own_batches if number not in intact]
                todo = np.concatenate([np.empty(0, int), *(frame.points(number) for number in numbers)])
                own_points = sum(len(frame.points(number)) for number in own_batches)
                meter = Progress(costs, todo, own_points - len(todo), progress and leads)
                # Each batch is on the disk before the next one is fetched.
                for number, outcome in _counted(outcomes(programs, frame, numbers, devices), frame, meter):
                    result_store.write(number, outcome)
            with barrier():
                if leads:
                    result_store.finish(frame, identity)
    return result_store.dataset()


def _prepare(result_store: Store, frame: Frame, identity: dict[str, str], resume: bool) -> None:
    """Write the frame of this sweep, or remove the remains of a finished one; the lock must be held."""
    result_store.refuse_another(identity)
    if resume and result_store.is_finished:
        # A damaged finished store is not silently replaced.
        result_store.check_whole()
        result_store.clear()  # the previous run was killed during this removal
        return
    result_store.refuse_strangers(frame.variables)
    try:
        if not resume or result_store.identity() is None:
            result_store.begin(frame, identity)
    except OSError as error:
        raise result_store.full(error) from error


def _refuse_unshared(result_store: Store, identity: dict[str, str]) -> None:
    if result_store.identity() != identity:
        raise ValueError(
            f"store must be a folder that all processes see, but process {jax.process_index()} does not find this "
            f"sweep in {str(result_store.path)!r}; choose one on a disk that they share."
        )


def _counted(batches: Iterable[tuple[int, Outcome]], frame: Frame, meter: Progress) -> Iterator[tuple[int, Outcome]]:
    for number, outcome in batches:
        yield number, outcome
        # The points count after the consumer has written the batch, so that points shown as finished are stored.
        meter.add(frame.points(number), int(np.sum(outcome.status != FINISHED)))


def check_place(
    store: Any, devices: Any, batch_size: Any, resume: Any, progress: Any
) -> tuple[Store | None, list[Any], int]:
    """The checked store, devices and batch size of a sweep."""
    check_flag(resume, "resume")
    check_flag(progress, "progress")
    if store is None and jax.process_count() > 1:
        raise ValueError("store must be a folder that all processes see, but it is None; name one.")
    return None if store is None else Store(store), _devices(devices), check_integer(batch_size, "batch_size")


def _check_options(finite: Any, cost: Any, version: Any) -> None:
    check_flag(finite, "finite")
    if cost is not None:
        check_callable(cost, "cost", "a function of axes, by their names")
    if version is not None and (isinstance(version, bool) or not isinstance(version, str | int)):
        raise refusal("version", "be a word or an integer", f"it is {shown(version)}", "pass 'v2', say")
    if isinstance(version, int):
        check_integer(version, "version", least=None)


def _devices(devices: Any) -> list[Any]:
    local = jax.local_devices()
    if devices is None:
        return local
    listed = check_sequence(devices, "devices", jax.Device, "devices of jax")
    # Devices of other processes run their own batches.
    if any(device not in local for device in listed):
        rule, told = "be some of those of this process", f"they are {listed[:8]}"
        raise refusal("devices", rule, told, f"choose from {local}")
    return listed
