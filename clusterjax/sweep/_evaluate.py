"""Batches of points on devices: one program for each choice of the static values; a failed point fails alone.

A batch is one call of `jax.jit(jax.vmap(function))`. One batch is in flight for each entry of the list of devices; when
all entries are busy, the oldest batch is collected. If a batch raises, its points are run one by one, so that the error
belongs to a single point. Asynchronous calls from one thread do not overlap on CPU devices: with several entries each
call has its own thread, except the first call on each device, which compiles.

Invariants: every batch is padded to the same width, so that nothing compiles anew and the numbers of a point do not
depend on the number of its neighbours; the key of a point is fold_in(root key, its flat index), in every batch.
"""

import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np

from .._check import call_traced
from ._axis import Parsed
from ._frame import FINISHED, NOT_FINITE, RAISED, Frame, Outcome, Output, missing
from ._outputs import as_outputs
from ._plan import point_values, static_values


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
