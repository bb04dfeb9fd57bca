"""A sweep as batches: the order of its points, the compiled programs, and the rows of each batch.

The grid is flattened in C order. Points with the same static values are adjacent, since one program runs them; among
these the costliest come first, so that the points of a batch, which wait for each other, have similar costs. A batch is
one call of `jax.jit(jax.vmap(function))` on one device, and one batch is in flight for each entry of the list of
devices. Asynchronous calls from one thread do not overlap on CPU devices: with several entries each call has its own
thread, except the first call on each device, which compiles. If a batch raises, its points are run one by one, so that
the error belongs to a single point.

A store that is extended keeps its batches, and batches of the points that it lacks follow them.

Invariants: the rows of a batch do not depend on the number of devices, nor on the process that runs the batch, bit for
bit. Every batch is padded to the same width, so that nothing compiles anew and the numbers of a point do not depend on
the number of its neighbours. The key of a point depends on the seed and on its coordinates only, and so remains when
other points join: `fold_in` takes a hash of each coordinate. A failed point does not affect the others.
"""

import contextlib
import functools
import hashlib
import logging
import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from .._base.checks import (
    call_traced,
    check_instance,
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
    check_point_room,
    check_seed,
    label_outputs,
    names_taken,
    one_shape,
    parse_axes,
    words_of,
)
from ._store import Frame, Rows


_WITHIN = re.compile(r"(?:\w+\.)*_?(\w*(?:Error|Exception)): (.*)")


def plan(axes: list[Parsed], batch_size: int, cost: Callable[..., Any] | None) -> tuple[np.ndarray, np.ndarray]:
    """The flat indices of the points of each batch, (batches, width), padded with -1, and the cost of each point."""
    groups, costs = _groups(axes, cost)
    # Batches start anew in each group, so that the last batch of a group may be smaller.
    width = min(batch_size, groups.shape[1])
    padded = np.pad(groups, ((0, 0), (0, -groups.shape[1] % width)), constant_values=-1)
    return padded.reshape(-1, width), costs


def extended_plan(axes: list[Parsed], batch_size: int, cost: Callable[..., Any] | None, kept: np.ndarray) -> np.ndarray:
    """The batches `kept`, (batches, width), and those of all other points after them, padded to one width."""
    groups, costs = _groups(axes, cost)
    is_new = np.ones(len(costs), bool)
    is_new[kept[kept >= 0]] = False
    rows = [group[is_new[group]] for group in groups]
    width = max(kept.shape[1], min(batch_size, max(map(len, rows))))
    kept = np.pad(kept, ((0, 0), (0, width - kept.shape[1])), constant_values=-1)
    padded = [np.pad(row, (0, -len(row) % width), constant_values=-1).reshape(-1, width) for row in rows]
    return np.concatenate([kept, *padded])


def _groups(axes: list[Parsed], cost: Callable[..., Any] | None) -> tuple[np.ndarray, np.ndarray]:
    """The flat indices of the points that share static values, (groups, points), costliest first, and all costs."""
    sizes = [len(axis.values) for axis in axes]
    indices = np.arange(math.prod(sizes))
    static = [k for k, axis in enumerate(axes) if axis.static]
    # (groups, points in each): static axes come first, flattened separately from the others.
    groups = np.moveaxis(indices.reshape(sizes), static, range(len(static)))
    groups = groups.reshape(math.prod(sizes[k] for k in static), -1)
    costs = np.ones(len(indices)) if cost is None else _costs(axes, indices, cost)
    # The sort is stable, so that points of equal cost keep the order of the grid on every machine.
    return np.take_along_axis(groups, np.argsort(-costs[groups], axis=1, kind="stable"), axis=1), costs


def point_key(seed: int, coordinates: Mapping[str, Any]) -> PRNGKeyArray:
    """The key that `run` gives to the function at one point.

    The key depends on the seed and the coordinates only, so that a point has the same numbers in every grid. The key is
    `jax.random.key(seed)`, into which `fold_in` takes two words for each axis, in the alphabetical order of the names:
    the eight bytes of the BLAKE2b hash of "name:0:value", as two integers, the lower bytes first. A number is written
    without rounding: an integer, such as 1.0, in decimal digits, and any other number as `float.hex` writes it. A value
    that is not a number is "text:" and its label. Equal values of one axis have 0, 1, 2, ... in place of the 0.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax
        >>> draw = lambda beta, draw, key: jax.random.uniform(key)
        >>> found = cjx.sweep.run(draw, {"beta": [1.0, 9.0], "draw": range(3)}, batch_size=6, seed=1, progress=False)
        >>> key = cjx.sweep.point_key(1, {"beta": 9.0, "draw": 2})
        >>> bool(found.result.sel(beta=9.0, draw=2) == draw(9.0, 2, key))
        True
        ```

    **Arguments:**

    - `seed`: The seed of the sweep.
    - `coordinates`: The value of each axis at the point, by name.

    **Returns:**

    A PRNG key.

    **Raises:**

    - `ValueError` if the seed is not an integer of 32 bits, or `coordinates` are not values of axes by their names.
    """
    check_instance(coordinates, "coordinates", Mapping, "a mapping of axes to values", "pass {'beta': 1.0, 'draw': 0}")
    if not coordinates:
        raise refusal("coordinates", "name a value of each axis", "they are empty", "pass {'beta': 1.0, 'draw': 0}")
    axes = parse_axes({name: [value] for name, value in coordinates.items()})
    words = [words_of(axis.coords()) for axis in sorted(axes, key=lambda axis: axis.name)]
    return _folded(jr.key(check_seed(seed)), np.concatenate(words, axis=1)[0])


def _folded(key: PRNGKeyArray, words: Any) -> PRNGKeyArray:
    """`key` after `fold_in` of each of the words."""
    for k in range(len(words)):
        key = jr.fold_in(key, words[k])
    return key


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
        # The words of the coordinates, for keys, by axis in the alphabetical order of the names.
        ordered = sorted(range(len(axes)), key=lambda k: axes[k].name) if takes_key else []
        self._words = {k: words_of(axes[k].coords()) for k in ordered}
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
        places = np.unravel_index(padded, [len(axis.values) for axis in self.axes])
        words = [axis_words[places[k]] for k, axis_words in self._words.items()]
        return jr.key(self.seed), np.concatenate([np.empty((width, 0), np.uint32), *words], axis=1), canonical

    def _at(self, point: int) -> Any:
        return self._jitted.setdefault(self._which(point), jax.jit(self._mapped(point)))

    def _mapped(self, point: int) -> Callable[..., dict[str, jax.Array]]:
        """The function of (root key, words, values) for many points that share the static values of `point`."""
        static = static_values(self.axes, point)

        def at_point(root, words, values):
            # The key depends on the coordinates of the point, and not on its index in the grid or in the order.
            key = {"key": _folded(root, words)} if self.takes_key else {}
            return as_outputs(
                call_traced(self.function, "function", "a function of one point", **static, **values, **key)
            )

        # The root key is shared; words and values are mapped.
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
                # `device_get` waits for the batch, and raises the errors of its execution.
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
    # Points do not cause a lack of memory: running them one by one would hide that batches are too large.
    if "RESOURCE_EXHAUSTED" in str(error):
        raise ValueError(
            f"batch_size must be such that a batch fits the memory of a device, but one of {width} points does not; "
            f"pass a smaller one ({_reason(error)})."
        ) from error


class Definition(NamedTuple):
    """The checked arguments of a sweep that determine its numbers: all that another process needs to run the sweep."""

    function: Callable[..., Any]
    takes_key: bool
    axes: list[Parsed]
    batch_size: int
    seed: int
    cost: Callable[..., float] | None
    variables: Mapping[str, Variable] | None
    finite: bool
    version: str
    points: np.ndarray | None = None  # the batches of a store that was extended; None plans them

    def prepare(self) -> "Prepared":
        """Plan the batches, and trace the function once for each choice of static values."""
        axes = self.axes
        points, costs = plan(axes, self.batch_size, self.cost)
        # One point for each choice of static values, whose points are adjacent in the order of the plan.
        firsts = points[points >= 0][:: math.prod(len(axis.values) for axis in axes if not axis.static)].tolist()
        points = points if self.points is None else self.points
        # All batches have one width, so that each choice of static values is one compilation.
        programs = Programs(self.function, self.takes_key, axes, points.shape[1], self.seed)
        # The function is traced and not run: names, shapes and dtypes are known before the first batch.
        shapes = one_shape((str(static_values(axes, k)), lambda k=k: programs.shapes(k)) for k in firsts)
        outputs, coords = label_outputs(shapes, axes, self.variables)
        check_point_room(outputs, len(costs))
        names, sizes = tuple(axis.name for axis in axes), tuple(len(axis.values) for axis in axes)
        options = {"version": self.version, "batch_size": self.batch_size, "seed": self.seed}
        attrs = {"function": _name_of(self.function), **options, "finite": int(self.finite), **_environment()}
        axis_coords = [coord for axis in axes for coord in axis.coords()]
        frame = Frame(names, sizes, axis_coords + coords, [*outputs, STATUS, REASON], attrs, points)
        # A store must have this identity to be continued.
        identity = {
            "axes": f"{', '.join(axis.describe() for axis in axes)} [{digest(axis_coords)}]",
            "outputs": f"{', '.join(shapes)} [{digest([*outputs, *coords])}]",
            "order of the points": digest([points[points >= 0]]),
            **{name: str(value) for name, value in attrs.items() if name not in ("date", "numpy_version")},
            "keys": str(jax.eval_shape(jax.random.key, 0).dtype),
        }
        return Prepared(programs, frame, identity, costs)


class Prepared(NamedTuple):
    """A sweep that is ready to run in this process."""

    programs: Programs
    frame: Frame
    identity: dict[str, str]  # what a store must have to be continued
    costs: np.ndarray  # the work of each point


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
