"""Runs a sweep: checks the arguments, then runs batch after batch, in memory or in a store that survives a kill.

The grid is flattened in C order. Points with the same static values are adjacent, since one program runs them; among
these the costliest come first, so that the points of a batch, which wait for each other, have similar costs. A batch is
one call of `jax.jit(jax.vmap(function))` on one device, and one batch is in flight for each entry of the list of
devices. Asynchronous calls from one thread do not overlap on CPU devices: with several entries each call has its own
thread, except the first call on each device, which compiles. If a batch raises, its points are run one by one, so that
the error belongs to a single point. With a store the rows of each batch are written before the next one is fetched.

Invariants: the result does not depend on the number of devices or processes, nor on whether the run was killed and
resumed, bit for bit. Every batch is padded to the same width, so that nothing compiles anew and the numbers of a point
do not depend on the number of its neighbours; the key of a point is fold_in(root key, its flat index). A failed point
does not affect the others; a store of another sweep is refused.
"""

import contextlib
import functools
import hashlib
import logging
import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from .._base.checks import (
    call_traced,
    check_callable,
    check_flag,
    check_integer,
    check_sequence,
    check_text,
    refusal,
    shown,
)
from ._labels import (
    FINISHED,
    NOT_FINITE,
    RAISED,
    REASON,
    STATUS,
    Parsed,
    Variable,
    as_outputs,
    check_function,
    check_point_room,
    check_seed,
    check_variables,
    label_outputs,
    names_taken,
    one_shape,
    parse_axes,
)
from ._store import Frame, Rows, Store


_WITHIN = re.compile(r"(?:\w+\.)*_?(\w*(?:Error|Exception)): (.*)")


def plan(axes: list[Parsed], batch_size: int, cost: Callable[..., Any] | None) -> tuple[np.ndarray, np.ndarray]:
    """The flat indices of the points of each batch, (batches, width), padded with -1, and the cost of each point."""
    sizes = [len(axis.values) for axis in axes]
    indices = np.arange(math.prod(sizes))
    static = [k for k, axis in enumerate(axes) if axis.static]
    # (groups, points in each): static axes come first, flattened separately from the others.
    groups = np.moveaxis(indices.reshape(sizes), static, range(len(static)))
    groups = groups.reshape(math.prod(sizes[k] for k in static), -1)
    costs = np.ones(len(indices)) if cost is None else _costs(axes, indices, cost)
    # The sort is stable, so that points of equal cost keep the order of the grid on every machine.
    groups = np.take_along_axis(groups, np.argsort(-costs[groups], axis=1, kind="stable"), axis=1)
    # Batches start anew in each group, so that the last batch of a group may be smaller.
    width = min(batch_size, groups.shape[1])
    padded = np.pad(groups, ((0, 0), (0, -groups.shape[1] % width)), constant_values=-1)
    return padded.reshape(-1, width), costs


def point_values(axes: list[Parsed], points: np.ndarray) -> dict[str, np.ndarray]:
    """The values of the dynamic axes at flat indices."""
    places = np.unravel_index(points, [len(axis.values) for axis in axes])
    return {axis.name: axis.values[place] for axis, place in zip(axes, places, strict=True) if not axis.static}


def static_values(axes: list[Parsed], point: int) -> dict[str, Any]:
    """The values of the static axes at one flat index."""
    places = np.unravel_index(point, [len(axis.values) for axis in axes])
    return {axis.name: axis.values[int(place)] for axis, place in zip(axes, places, strict=True) if axis.static}


def _costs(axes: list[Parsed], points: np.ndarray, cost: Callable[..., Any]) -> np.ndarray:
    values, names = point_values(axes, points), names_taken(cost, [axis.name for axis in axes])
    costs = np.empty(len(points))
    for point in points.tolist():
        # The values are Python numbers and NumPy scalars, since the cost is not a function of jax.
        values_at = static_values(axes, point) | {name: array[point] for name, array in values.items()}
        returned = cost(**{name: values_at[name] for name in names})
        try:
            costs[point] = float(returned)
        except (TypeError, ValueError, OverflowError):
            costs[point] = np.nan
        if not np.isfinite(costs[point]):
            raise refusal("cost", "be finite", f"it is {shown(returned)} at point {point}", "mend it there")
    return costs


class Programs:
    """The compiled programs of a function of a point, one for each choice of the static values."""

    def __init__(self, function: Callable[..., Any], takes_key: bool, axes: list[Parsed], width: int, seed: int):
        self.function, self.takes_key, self.axes, self.width, self.seed = function, takes_key, axes, width, seed
        self._jitted: dict[Any, Any] = {}
        self._latest: Any = None

    def shapes(self, point: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and dtypes that the program for the static values of `point` returns."""
        return jax.eval_shape(self._at(point), *self.arguments(np.asarray([point]), self.width))

    def next(self, point: int) -> Any:
        """The program for the static values of `point`."""
        which = self._which(point)
        # A compiled program occupies memory on the device; no later batch needs the previous program again.
        if which != self._latest:
            self._jitted.pop(self._latest, None)
            self._latest = which
        return self._at(point)

    def arguments(self, points: np.ndarray, width: int) -> tuple[Any, ...]:
        """The arguments of a program, padded with copies of the last point, so that all batches have one shape."""
        padded = np.pad(points, (0, width - len(points)), mode="edge")
        values = point_values(self.axes, padded)
        # On the host float64 axes become float32 without a warning for each batch, unless x64 is enabled.
        canonical = {name: array.astype(jax.dtypes.canonicalize_dtype(array.dtype)) for name, array in values.items()}
        return jr.key(self.seed), padded.astype(np.uint32), canonical

    def _at(self, point: int) -> Any:
        return self._jitted.setdefault(self._which(point), jax.jit(self._mapped(point)))

    def _mapped(self, point: int) -> Callable[..., dict[str, jax.Array]]:
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

    def _which(self, point: int) -> Any:
        # The static part of the position in the grid.
        places = np.unravel_index(point, [len(axis.values) for axis in self.axes])
        return tuple(int(place) for axis, place in zip(self.axes, places, strict=True) if axis.static)


def finished_batches(
    programs: Programs, frame: Frame, numbers: Iterable[int], devices: list[Any], finite: bool
) -> Iterator[tuple[int, Rows]]:
    """The rows of each batch; one batch is in flight for each entry of `devices`."""
    in_flight: deque[tuple[int, Any, Any, Any]] = deque()
    # The program of the previous batch, and the devices for which it was compiled.
    latest: Any = None
    compiled: set[Any] = set()

    def collect() -> tuple[int, Rows]:
        number, result, program, device = in_flight.popleft()
        points = frame.batch(number)
        try:
            if isinstance(result, Exception):
                raise result
            with _quiet():
                # This waits for the batch, and raises the errors of its execution.
                arrays = jax.device_get(result.result() if isinstance(result, Future) else result)
        except Exception as error:
            # Insufficient memory is reported before the points are tried one by one.
            _refuse_full_memory(error, programs.width)
            return number, _one_by_one(programs, frame, points, program, device, finite)
        return number, _rows_of(frame, arrays, len(points), finite)

    # The filter of the log belongs to the process, and so threads must not remove each other's filter.
    with _quiet(), ThreadPoolExecutor(len(devices)) as threads:
        for turn, number in enumerate(numbers):
            # Every entry has a batch: the oldest is collected before the next one is sent.
            if len(in_flight) == len(devices):
                yield collect()
            device, points = devices[turn % len(devices)], frame.batch(number)
            # The arguments are moved to the device first, so that the program runs there.
            arguments = jax.device_put(programs.arguments(points, programs.width), device)
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
            yield collect()


def _rows_of(frame: Frame, arrays: dict[str, Any], count: int, finite: bool) -> Rows:
    """The rows of points that were run; with `finite`, those with a number that is not finite are marked."""
    *outputs, _, _ = frame.outputs
    rows = {out.name: np.asarray(arrays[out.name])[:count].astype(out.dtype) for out in outputs}
    status, reasons = np.full(count, FINISHED, np.uint8), np.full(count, "", object)
    if finite:
        bad = {name: ~np.all(_is_number(values).reshape(count, -1), axis=1) for name, values in rows.items()}
        for k in np.flatnonzero(np.any(list(bad.values()), axis=0)):
            status[k] = NOT_FINITE
            reasons[k] = "not finite: " + ", ".join(name for name in rows if bad[name][k])
    for out in outputs:
        # A point with one invalid output keeps none of its numbers, so that no incomplete point is averaged by mistake.
        rows[out.name][status != FINISHED] = out.fill
    return rows | {"status": status, "reason": reasons}


def _is_number(array: np.ndarray) -> np.ndarray:
    """True where an entry is a number: neither NaN, nor infinite, nor the smallest integer, a NaN count."""
    return array != np.iinfo(array.dtype).min if array.dtype.kind == "i" else np.isfinite(array)


def _one_by_one(programs: Programs, frame: Frame, points: np.ndarray, program: Any, device: Any, finite: bool) -> Rows:
    """The rows of a batch that raised an error, from runs of its points one at a time."""
    try:
        # If tracing itself fails, no point can run, and trying each would only take time.
        jax.eval_shape(program, *programs.arguments(points[:1], 1))
    except Exception as error:
        return _raised(frame, error, len(points))
    singles = []
    for point in points:
        try:
            with _quiet():
                arguments = jax.device_put(programs.arguments(np.asarray([point]), 1), device)
                singles.append(_rows_of(frame, jax.device_get(program(*arguments)), 1, finite))
        except Exception as error:
            _refuse_full_memory(error, 1)
            singles.append(_raised(frame, error, 1))
    return {out.name: np.concatenate([single[out.name] for single in singles]) for out in frame.outputs}


def _raised(frame: Frame, error: Exception, count: int) -> Rows:
    rows = {out.name: out.blank(count) for out in frame.outputs}
    rows["status"][:], rows["reason"][:] = RAISED, _reason(error)
    return rows


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
    logger, drop = logging.getLogger("jax._src.callback"), lambda record: "callback failed" not in record.getMessage()
    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def _refuse_full_memory(error: Exception, width: int) -> None:
    # Full memory is no property of the points: running them one by one would hide that batches are too large.
    if "RESOURCE_EXHAUSTED" in str(error):
        raise ValueError(
            f"batch_size must be such that a batch fits the memory of a device, but one of {width} points does not; "
            f"pass a smaller one ({_reason(error)})."
        ) from error


_LONGEST = 2_000


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
    devices: Sequence[Any] | None = None,
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
        (or arrays, if the axis is of arrays) that may be traced. If it takes `key`, the key is `fold_in(key(seed), k)`
        at the point of flat index k, in the order of the axes, the last one fastest. It returns an array, called
        `result`, or a dictionary or NamedTuple of arrays, of one shape and dtype at all points.
    - `axes`: Names and values, as a dictionary or pairs; an `Axis` gives values a unit or a description or makes them
        static.

    **Other arguments:**

    - `batch_size`: The number of points that are run at once, as many as fit the memory of a device.
    - `store`: A folder, created if necessary; None keeps the result in memory only.
    - `resume`: Whether a run continues from the store; damaged batches are then run again. False computes all batches
        anew; a store of another sweep is refused in either case.
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
    - `version`: The version of the function; raise it when the function changes, since a store of the same version is
        continued without a look at what the function computes now.

    **Returns:**

    An `xarray.Dataset` with a dimension and a coordinate for each axis, the outputs, `status` (0 finished, 1 not
    finite, 2 raised, 3 unfinished), `reason`, and attributes: function, options, versions and date (that of the
    environment variable SOURCE_DATE_EPOCH if it is set).

    **Raises:**

    - `ValueError` if an argument is invalid; if the store is of another sweep (the store is not changed), has damaged
        labels, is being written by another process, or cannot be written (finished batches are kept); if a batch does
        not fit the memory of a device. The error of the function, if it raises for all static values.

    Under `jax.distributed` every process makes the same call, runs its share of the batches, and returns the complete
    result; all processes must have access to the folder of the store.
    """
    parsed = parse_axes(axes)
    takes_key = check_function(function, parsed)
    for flag, name in ((resume, "resume"), (progress, "progress"), (finite, "finite")):
        check_flag(flag, name)
    if store is None and jax.process_count() > 1:
        raise ValueError("store must be a folder that all processes see, but it is None; name one.")
    result_store, run_devices = None if store is None else Store(store), _devices(devices)
    batch_size, seed = check_integer(batch_size, "batch_size"), check_seed(seed)
    check_text(version, "version")
    if cost is not None:
        check_callable(cost, "cost", "a function of axes, by their names")
    check_variables(variables)
    points, costs = plan(parsed, batch_size, cost)
    # All batches have one width, so that each choice of static values is one compilation.
    programs = Programs(function, takes_key, parsed, points.shape[1], seed)
    # One point for each choice of static values, whose points are adjacent in the order.
    firsts = points[points >= 0][:: math.prod(len(axis.values) for axis in parsed if not axis.static)].tolist()
    # The function is traced and not run: names, shapes and dtypes are known before the first batch.
    shapes = one_shape((str(static_values(parsed, k)), lambda k=k: programs.shapes(k)) for k in firsts)
    outputs, coords = label_outputs(shapes, parsed, variables)
    check_point_room(outputs, len(costs))
    names, sizes = tuple(axis.name for axis in parsed), tuple(len(axis.values) for axis in parsed)
    options = {"version": version, "batch_size": batch_size, "seed": seed, "finite": int(finite)}
    attrs = {"function": _name_of(function), **options, **_environment()}
    axis_coords = [coord for axis in parsed for coord in axis.coords()]
    frame = Frame(names, sizes, axis_coords + coords, [*outputs, STATUS, REASON], attrs, points)
    # A store must have this identity to be continued.
    identity = {
        "axes": f"{', '.join(axis.describe() for axis in parsed)} [{digest(axis_coords)}]",
        "outputs": f"{', '.join(shapes)} [{digest([*outputs, *coords])}]",
        "order of the points": digest([points[points >= 0]]),
        **{name: str(value) for name, value in attrs.items() if name not in ("date", "numpy_version")},
        "keys": str(jax.eval_shape(jax.random.key, 0).dtype),
    }

    def run_batches(arrays: Rows, share: np.ndarray, left: np.ndarray, shown: bool) -> Iterator[int]:
        """Run the batches that are left of a share, and yield the number of each batch whose rows are in `arrays`."""
        numbers = np.flatnonzero(share & left).tolist()
        todo = points[numbers]
        done = int(np.sum(points[share] >= 0)) - int(np.sum(todo >= 0))
        meter = Progress(costs, todo[todo >= 0], done, shown and todo.size > 0)
        for number, rows in finished_batches(programs, frame, numbers, run_devices, finite):
            for name, values in rows.items():
                arrays[name][frame.batch(number)] = values
            # The points count after the batch is written, so that points shown as finished are stored.
            yield number
            meter.add(frame.batch(number), int(np.sum(rows["status"] != FINISHED)))

    if result_store is not None:
        return _run_in_store(result_store, frame, identity, run_batches, resume, progress)
    arrays, every = frame.empty(), np.ones(len(points), bool)
    deque(run_batches(arrays, every, every, progress), maxlen=0)
    return frame.dataset(arrays)


def _run_in_store(
    result_store: Store,
    frame: Frame,
    identity: dict[str, str],
    run_batches: Callable[..., Iterator[int]],
    resume: bool,
    progress: bool,
) -> xr.Dataset:
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
    # Other processes have written to the store too.
    return state.frame.dataset(state.arrays if jax.process_count() == 1 else result_store.read().arrays)


def digest(values: Iterable[Any]) -> str:
    """Twelve hexadecimal digits that identify values: arrays, nested tuples, and other objects by their `repr`."""
    hasher = hashlib.sha256()
    for value in values:
        is_number = isinstance(value, np.ndarray) and value.dtype != object
        nested = isinstance(value, tuple)
        piece = digest(value) if nested else f"{value.dtype} {value.shape}" if is_number else repr(value)
        hasher.update(piece.encode() + b"\0" + (value.tobytes() if is_number else b""))
    return hasher.hexdigest()[:12]


def _name_of(function: Any) -> str:
    """The qualified name of a function, or of the class of a callable."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _environment() -> dict[str, str]:
    """The settings of jax and the versions that determine the numbers besides the arguments, and the date."""
    # Reproducible builds set the date by this variable.
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    date = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdigit() else datetime.now(UTC)
    versions = {f"{name}_version": version_of(name) for name in ("clusterjax", "jax", "jaxlib", "numpy")}
    kinds = {"floats": jnp.result_type(float).name, "platform": jax.default_backend()}
    return kinds | versions | {"date": date.strftime("%Y-%m-%dT%H:%M:%SZ")}


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
