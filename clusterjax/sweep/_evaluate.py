"""Batches of points on devices: one program for each choice of the static values, and points that fail alone."""

import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np

from ._axis import Parsed
from ._frame import FINISHED, NOT_FINITE, RAISED, Frame, Outcome, Output, missing
from ._outputs import as_outputs
from ._plan import point_values, static_values


_WITHIN = re.compile(r"(?:\w+\.)*_?(\w*(?:Error|Exception)): (.*)")


class Task(NamedTuple):
    """What is run at each point.

    **Attributes:**

    - `function`, `takes_key`: Of a point, and whether it wants a PRNG key.
    - `axes`: What its points are made of.
    - `width`: How many points every batch is filled up to.
    - `seed`: Of the keys.
    - `finite`: Whether a number that is not makes a point fail.

    Source: this library.
    """

    function: Callable[..., Any]
    takes_key: bool
    axes: list[Parsed]
    width: int
    seed: int
    finite: bool

    def mapped(self, point: int) -> Callable[..., dict[str, jax.Array]]:
        """The function of (root key, flat indices, values) of many points which share the static values of `point`."""
        static = static_values(self.axes, point)

        def one(root, index, values):
            key = {"key": jr.fold_in(root, index)} if self.takes_key else {}
            return as_outputs(self.function(**static, **values, **key))

        return jax.vmap(one, in_axes=(None, 0, 0))

    def arguments(self, points: np.ndarray, width: int) -> tuple[Any, ...]:
        """What `mapped` takes, filled up with copies of the last point, so that all batches are of one shape."""
        padded = np.concatenate([points, np.full(width - len(points), points[-1], points.dtype)])
        values = point_values(self.axes, padded)
        canonical = {name: array.astype(jax.dtypes.canonicalize_dtype(array.dtype)) for name, array in values.items()}
        return jr.key(self.seed), padded.astype(np.uint32), canonical


class Programs:
    """The programs of a task, one for each choice of the static values."""

    def __init__(self, task: Task):
        self.task = task
        self._jitted: dict[tuple[int, ...], Any] = {}
        self._latest: tuple[int, ...] | None = None

    def shapes(self, point: int) -> dict[str, jax.ShapeDtypeStruct]:
        """What the program for the static values of `point` returns."""
        return jax.eval_shape(self._at(point), *self.task.arguments(np.asarray([point]), self.task.width))

    def next(self, point: int) -> Any:
        """That program, to be run. The one before is forgotten: batches of the same static values are in a row."""
        which = self._which(point)
        if self._latest not in (None, which):
            self._jitted.pop(self._latest, None)
        self._latest = which
        return self._at(point)

    def _at(self, point: int) -> Any:
        return self._jitted.setdefault(self._which(point), jax.jit(self.task.mapped(point)))

    def _which(self, point: int) -> tuple[int, ...]:
        places = np.unravel_index(point, [len(axis.values) for axis in self.task.axes])
        return tuple(int(place) for axis, place in zip(self.task.axes, places, strict=True) if axis.static)


def outcomes(
    programs: Programs, frame: Frame, batches: Iterable[int], devices: list[Any]
) -> Iterator[tuple[int, Outcome]]:
    """The outcome of each batch. One batch is in flight on each device, and a batch never spans two of them, so that
    its numbers do not depend on how many there are."""
    flight: deque[tuple[int, Any, Any, Any]] = deque()
    for turn, number in enumerate(batches):
        if len(flight) == len(devices):
            yield _land(programs.task, frame, *flight.popleft())
        device = devices[turn % len(devices)]
        points = frame.points(number)
        arguments = jax.device_put(programs.task.arguments(points, programs.task.width), device)
        program = programs.next(int(points[0]))
        try:
            with _quiet():
                flying = program(*arguments)
        except Exception as error:
            flying = error
        flight.append((number, flying, program, device))
    while flight:
        yield _land(programs.task, frame, *flight.popleft())


def _land(task: Task, frame: Frame, number: int, flying: Any, program: Any, device: Any) -> tuple[int, Outcome]:
    points = frame.points(number)
    if not isinstance(flying, Exception):
        try:
            with _quiet():
                arrays = jax.device_get(flying)
            return number, _sift(task, frame.outputs, arrays, len(points))
        except Exception as error:
            flying = error
    _refuse_full_memory(flying, task.width)
    return number, _one_by_one(task, frame.outputs, points, program, device)


def _sift(task: Task, outputs: list[Output], arrays: dict[str, Any], count: int) -> Outcome:
    """The outcome of points that were run, those marked whose numbers are not finite."""
    kept = {out.name: np.asarray(arrays[out.name])[:count].astype(out.dtype) for out in outputs}
    status, reasons = np.full(count, FINISHED, np.uint8), [""] * count
    if task.finite:
        bad = {name: ~np.all(_is_number(array).reshape(count, -1), axis=1) for name, array in kept.items()}
        for k in np.flatnonzero(np.any(list(bad.values()), axis=0)):
            status[k] = NOT_FINITE
            reasons[k] = "not finite: " + ", ".join(name for name in kept if bad[name][k])
    for out in outputs:
        kept[out.name][status != FINISHED] = missing(out.dtype)
    return Outcome(kept, status, reasons)


def _is_number(array: np.ndarray) -> np.ndarray:
    """Where there is a number: not NaN, nor infinite, nor the smallest integer, which stands for NaN in a count."""
    return array != missing(array.dtype) if array.dtype.kind == "i" else np.isfinite(array)


def _one_by_one(task: Task, outputs: list[Output], points: np.ndarray, program: Any, device: Any) -> Outcome:
    """The outcome of a batch which raised: each of its points alone."""
    try:
        jax.eval_shape(program, *task.arguments(points[:1], 1))
    except Exception as error:  # no program, so no point
        return _stack([_raised(outputs, error)] * len(points))
    alone = []
    for k in range(len(points)):
        try:
            with _quiet():
                arrays = jax.device_get(program(*jax.device_put(task.arguments(points[k : k + 1], 1), device)))
            alone.append(_sift(task, outputs, arrays, 1))
        except Exception as error:
            _refuse_full_memory(error, 1)
            alone.append(_raised(outputs, error))
    return _stack(alone)


def _raised(outputs: list[Output], error: Exception) -> Outcome:
    arrays = {out.name: np.full((1, *out.shape), missing(out.dtype), out.dtype) for out in outputs}
    return Outcome(arrays, np.full(1, RAISED, np.uint8), [_reason(error)])


def _stack(alone: list[Outcome]) -> Outcome:
    arrays = {name: np.concatenate([one.arrays[name] for one in alone]) for name in alone[0].arrays}
    return Outcome(arrays, np.concatenate([one.status for one in alone]), [one.reasons[0] for one in alone])


def _reason(error: Exception) -> str:
    """One line of an error: the one that does not depend on where and when it was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # What a callback raised, `equinox.error_if` too, comes wrapped, with a traceback of the runtime before it.
    within = [found for line in lines if (found := _WITHIN.match(line))]
    if within and "Traceback" in str(error):
        return f"{within[-1][1]}: {within[-1][2]}"[:300]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No traceback in the log for an error that becomes the reason of a point."""
    logger = logging.getLogger("jax._src.callback")
    logger.addFilter(_drop)
    try:
        yield
    finally:
        logger.removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return "callback failed" not in record.getMessage()


def _refuse_full_memory(error: Exception, width: int) -> None:
    if "RESOURCE_EXHAUSTED" in str(error):
        raise ValueError(
            f"batch_size must be such that a batch fits the memory of a device, but one of {width} points does not; "
            f"pass a smaller one ({_reason(error)})."
        ) from error
