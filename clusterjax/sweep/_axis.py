"""The axes of a sweep: checks the axes of the user and brings them into one form.

An axis is dynamic (an array, mapped over) or static (a list of Python values, each compiled separately); values that
are not numbers are always static. Each axis labels the result by a coordinate, which is the index for an axis of
arrays.

Invariants: no name is used twice, neither by axes nor by their coordinates; no value is NaN, which cannot be a label;
integers fit the dtype that jax gives them.
"""

import inspect
import keyword
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import ArrayLike

from .._base.checks import (
    as_numbers,
    check_callable,
    check_concrete,
    check_fits,
    check_flag,
    check_integer,
    check_text,
    refusal,
    shown,
)
from .._base.numerics import too_deep


# The part of a sweep that is known before any point is run: the labels of the result, and the points of each batch.
#
# A `Frame` is the data set without its numbers: axes, coordinates, outputs and attributes, with the order of the points
# and the bounds of the batches. `assemble` fills it with the batches that exist.
#
# Invariants: no point is in two batches; points without a batch are unfinished, with status 3 and without numbers.


# Zero means success; the numbers are those of the attribute `flag_values` and of stored files.
FINISHED, NOT_FINITE, RAISED, UNFINISHED = range(4)
STATUS = {
    "description": "What became of each point.",
    "flag_values": [0, 1, 2, 3],
    "flag_meanings": "finished not_finite raised unfinished",
}


class Coord(NamedTuple):
    """A coordinate: numbers, or words in an array of objects."""

    name: str
    dims: tuple[str, ...]
    values: np.ndarray
    attrs: dict[str, str]


class Output(NamedTuple):
    """The label of one output of a point."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attrs: dict[str, str]


class Outcome(NamedTuple):
    """The results of the points of one batch: arrays with the points first, and a status and reason each."""

    arrays: dict[str, np.ndarray]
    status: np.ndarray
    reasons: list[str]


class Frame(NamedTuple):
    """The result without its numbers.

    **Attributes:**

    - `names`, `sizes`: The names and the sizes of the axes.
    - `coords`, `outputs`, `attrs`: The coordinates, outputs and attributes of the data set.
    - `order`: The flat indices of the points in the order in which they are run, (points,).
    - `bounds`: The start of each batch in `order`, and the end, (batches + 1,).
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    coords: list[Coord]
    outputs: list[Output]
    attrs: dict[str, Any]
    order: np.ndarray
    bounds: np.ndarray

    @property
    def batches(self) -> int:
        """The number of batches."""
        return len(self.bounds) - 1

    @property
    def variables(self) -> list[str]:
        """The names of all variables and coordinates of the data set."""
        return [*(out.name for out in self.outputs), "status", "reason", *(coord.name for coord in self.coords)]

    def points(self, number: int) -> np.ndarray:
        """The flat indices of the points of a batch."""
        return self.order[self.bounds[number] : self.bounds[number + 1]]

    def assemble(self, outcomes: Iterable[tuple[int, Outcome]]) -> xr.Dataset:
        """The data set of the given batches; the points of all others are unfinished."""
        total = len(self.order)
        # The arrays are flat over points; each batch writes its rows, and a reshape at the end gives the grid.
        arrays = {out.name: np.full((total, *out.shape), missing(out.dtype), out.dtype) for out in self.outputs}
        status, reasons = np.full(total, UNFINISHED, np.uint8), np.full(total, "", object)
        for number, outcome in outcomes:
            points = self.points(number)
            # The flat indices of the batch are in the order in which it was run.
            status[points], reasons[points] = outcome.status, outcome.reasons
            for name, values in outcome.arrays.items():
                arrays[name][points] = values
        data = {
            out.name: ((*self.names, *out.dims), arrays[out.name].reshape(*self.sizes, *out.shape), out.attrs)
            for out in self.outputs
        }
        # The flags follow the conventions of climate data (CF), which readers of xarray know.
        data["status"] = (self.names, status.reshape(self.sizes), STATUS)
        data["reason"] = (self.names, reasons.reshape(self.sizes), {"description": "Why a point failed."})
        coords = {coord.name: (coord.dims, coord.values, coord.attrs) for coord in self.coords}
        return xr.Dataset(data, coords, self.attrs)


def plain(array: np.ndarray) -> np.ndarray:
    """`array` in a dtype that every reader of files supports: bfloat16 and similar dtypes become float32."""
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


def missing(dtype: Any) -> Any:
    """The value of a point without a number: NaN, the smallest integer, the largest unsigned integer, or False."""
    dtype = np.dtype(dtype)
    # Integers have no NaN; the extreme value is the least likely result.
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return False if dtype.kind == "b" else np.nan


MOST_POINTS = 10**8  # each point has a status and a reason, which are kept in memory
RESERVED = ("key", "status", "reason")


@dataclass(frozen=True)
class Axis:
    """The values along one axis of a sweep, with their unit and description.

    **Arguments:**

    - `values`: Numbers, one per point. Booleans and integers keep their kind; floats have the dtype that jax gives
        them. An array of more axes, such as a stack of matrices (m, d, d), is cut along its first axis, with the index
        as label.
    - `unit`: The attribute `units` of the coordinate; empty for none.
    - `description`: One sentence, the attribute `description` of the coordinate.
    - `static`: Whether the function receives each value as a Python value, with a separate compilation: for sizes,
        names and objects such as a mask. Values that are not numbers are always static.
    """

    values: ArrayLike | Iterable[Any]
    unit: str = ""
    description: str = ""
    static: bool = False

    def __post_init__(self):
        check_text(self.unit, "unit", empty=True)
        check_text(self.description, "description", empty=True)
        check_flag(self.static, "static")
        _points(self.values, "values", self.static)


class Parsed(NamedTuple):
    """A checked axis: an array of its values, or a list of its values if the axis is static."""

    name: str
    values: Any
    static: bool
    attrs: dict[str, str]

    def coords(self) -> list[Coord]:
        """The coordinates that label the axis."""
        if self.static:
            return [Coord(self.name, (self.name,), _labels(self.values), self.attrs)]
        values = plain(self.values)
        if values.ndim == 1:
            return [Coord(self.name, (self.name,), values, self.attrs)]
        # Values of shape (m, d, d) have the dimension of the axis, and then dimensions of their own.
        dims = (self.name, *(f"{self.name}_{k}" for k in range(1, values.ndim)))
        index = Coord(self.name, (self.name,), np.arange(len(values)), self.attrs)
        return [index, Coord(f"{self.name}_values", dims, values, self.attrs)]

    def describe(self) -> str:
        """The name, the number of points and the two ends, for messages."""
        labels = self.coords()[0].values
        ends = f"{labels[0]}" if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"
        return f"{self.name} ({len(labels)}: {ends})"


def parse_axes(axes: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> list[Parsed]:
    """The axes as `Parsed`, in their order.

    **Raises:**

    - `ValueError` if there are no axes, if two have the same name, or if one has no points or an invalid name.
    """
    try:
        check_concrete(axes, "axes")
        # An object without a length, such as a generator, may be infinite.
        sized = axes if hasattr(axes, "__len__") else ()
        pairs: list[Any] = list(axes.items()) if isinstance(axes, Mapping) else list(sized)
    except TypeError:  # the object cannot be iterated over
        pairs = []
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise refusal("axes", "map names to values", f"it is {shown(axes)}", "pass {'beta': [1.0, 9.0]}, say")
    names = [name for name, _ in pairs]
    for name in names:
        # The function is called with the values as keyword arguments.
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"axes must have names that an argument can have, but one is {name!r}; rename it.")
        if name in RESERVED:
            raise ValueError(f"axes must not be called {name!r}, which a sweep keeps for itself; rename that one.")
        if names.count(name) > 1:
            raise ValueError(f"axes must have names of their own, but {name!r} is there twice; rename one.")
    parsed = [_parse(name, axis) for name, axis in pairs]
    # A stack of arrays has two coordinates, the index and the values.
    labels = [coord.name for axis in parsed for coord in axis.coords()]
    if duplicates := sorted({name for name in labels if labels.count(name) > 1}):
        raise ValueError(f"axes must not be called {duplicates}, which label the arrays of another; rename them.")
    total = math.prod(len(axis.values) for axis in parsed)
    if total > MOST_POINTS:
        raise refusal("axes", f"have at most {MOST_POINTS:.0e} points", f"they have {total}", "split the sweep")
    return parsed


def _parse(name: str, axis: Any) -> Parsed:
    values, unit, description, static = axis, "", "", False
    if isinstance(axis, Axis):
        values, unit, description, static = axis.values, axis.unit, axis.description, axis.static
    attrs = {key: text for key, text in (("units", unit), ("description", description)) if text}
    points = _points(values, name, static)
    return Parsed(name, points, isinstance(points, list), attrs)


def _points(values: Any, name: str, static: bool) -> Any:
    """The values of an axis as an array, or as a list if the axis is static.

    **Raises:**

    - `ValueError` if there are no values, or a value cannot be a label.
    """
    check_concrete(values, name)
    # Sets have no order, and a string or a mapping is meant as one value.
    ordered = hasattr(values, "__iter__") and hasattr(values, "__len__") or hasattr(values, "__array__")
    remedy = "pass a list of them" if hasattr(values, "__next__") else f"pass [{shown(values)}], say"
    if not ordered or too_deep(values) or isinstance(values, str | bytes | Mapping | set | frozenset | type):
        raise refusal(name, "be a sequence of values", f"it is {shown(values)}", remedy)
    if _length(values) > MOST_POINTS:
        raise refusal(name, f"have at most {MOST_POINTS:.0e} points", f"it is {shown(values)}", "split the sweep")
    if not hasattr(values, "__array__"):
        values = list(values)
    if jnp.issubdtype(getattr(values, "dtype", float), jax.dtypes.prng_key):
        remedy = "pass integers, and make the keys of them in the function"
        raise refusal(name, "not be of keys", f"it is {shown(values)}", remedy)
    array = None if static else _numbers(values, name)
    shape = np.shape(values) if hasattr(values, "__array__") else (len(values),)
    if not shape or 0 in (shape if array is None else array.shape):
        remedy = "pass some, or leave it out"
        raise refusal(
            name, "have at least one point", f"its shape is {shape if array is None else array.shape}", remedy
        )
    if array is None:
        static_values = [value.item() if isinstance(value, np.generic) else value for value in values]
        if any(isinstance(value, float) and math.isnan(value) for value in static_values):
            raise refusal(name, "not hold nan, which labels nothing", "it does", "remove that point")
        if not static and all(isinstance(value, int) for value in static_values):
            raise refusal(name, "fit 64 bits", "one of its integers does not", "pass smaller ones")
        return static_values
    # Without x64 jax would wrap large integers to int32.
    check_fits(array, name)
    canonical = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and np.any(array != array.astype(canonical)):
        raise ValueError(
            f"{name} must fit {canonical}, but it reaches {array.max()}; enable x64, or pass smaller ones."
        )
    if np.any(np.isnan(plain(array))):
        raise ValueError(f"{name} must not hold nan, which labels nothing, but it does; remove that point.")
    return array


def _length(values: Any) -> int:
    """The number of values along the first axis; 0 for an array of shape ()."""
    try:
        return next(iter(np.shape(values)), 0) if hasattr(values, "__array__") else len(values)
    except OverflowError:  # for example, the length of range(10**30)
        return sys.maxsize


def _numbers(values: Any, name: str) -> np.ndarray | None:
    """`values` as an array of numbers; None if they are not numbers."""
    array = as_numbers(values, name)
    return None if array is None else np.asarray(array, float if array.size == 0 else None)


def _labels(values: list[Any]) -> np.ndarray:
    """The labels of static values in a coordinate: the values if they are numbers, otherwise strings."""
    for kind in (bool, int, float):
        if all(type(value) is kind for value in values) and np.asarray(values).dtype != object:
            return np.asarray(values)
    return np.asarray([_word(value) for value in values], object)


def _word(value: Any) -> str:
    # The label is the name of a function, or the repr of another object without addresses, which differ between runs.
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or repr(value)
    return re.sub(r"\s+", " ", re.sub(r" at 0x[0-9a-f]+", "", text))


# The order in which the points of a sweep are run, and their division into batches.
#
# The grid is flattened in C order. Points with the same static values are grouped, since one program runs them, and
# sorted by decreasing cost within their group; each group is then divided into batches.
#
# Invariants: the order is a permutation of the flat indices; no batch has points of two groups; without a cost the
# order within a group is that of the grid.


def point_values(axes: list[Parsed], points: np.ndarray) -> dict[str, np.ndarray]:
    """The values of the dynamic axes at flat indices."""
    places = np.unravel_index(points, [len(axis.values) for axis in axes])
    return {axis.name: axis.values[place] for axis, place in zip(axes, places, strict=True) if not axis.static}


def static_values(axes: list[Parsed], point: int) -> dict[str, Any]:
    """The values of the static axes at one flat index."""
    places = np.unravel_index(point, [len(axis.values) for axis in axes])
    return {axis.name: axis.values[int(place)] for axis, place in zip(axes, places, strict=True) if axis.static}


def plan(
    axes: list[Parsed], batch_size: int, cost: Callable[..., Any] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The order of the points, (points,), the starts of the batches and the end, (batches + 1,), and the costs.

    Points with the same static values are adjacent, since one program runs them. Among these the costliest come first:
    the points of a batch, which wait for each other, then have similar costs, and the last batches are short.
    """
    sizes = [len(axis.values) for axis in axes]
    indices = np.arange(math.prod(sizes)).reshape(sizes)
    static = [k for k, axis in enumerate(axes) if axis.static]
    # (groups, points in each): static axes come first, flattened separately from the others.
    groups = np.moveaxis(indices, static, range(len(static))).reshape(math.prod(sizes[k] for k in static), -1)
    costs = None if cost is None else _costs(axes, indices.ravel(), cost)
    if costs is not None:
        # The sort is stable, so that points of equal cost keep the order of the grid on every machine.
        groups = np.stack([group[np.argsort(-costs[group], kind="stable")] for group in groups])
    # Batches start anew in each group, so that the last batch of a group may be smaller.
    starts = np.arange(0, groups.shape[1], batch_size)
    bounds = (starts + groups.shape[1] * np.arange(len(groups))[:, None]).ravel()
    return groups.ravel(), np.append(bounds, groups.size), costs


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


def names_taken(function: Callable[..., Any], names: list[str]) -> list[str]:
    """Those of `names` that `function` takes as arguments; all of them if its signature is unknown."""
    parameters = parameters_of(function)
    # A function that takes **kwargs, or whose signature is unknown, is given all values.
    if parameters is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return names
    return [
        name
        for name in names
        if name in parameters
        and parameters[name].kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of `function`, or None if its signature is unknown."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def check_function(function: Any, axes: list[Parsed]) -> bool:
    """True if `function` takes a `key`.

    **Raises:**

    - `ValueError` if `function` lacks an argument for an axis, or requires an argument that is not an axis.
    """
    check_callable(function, "function", "a function of one point")
    names = [axis.name for axis in axes]
    if lacking := sorted(set(names) - set(names_taken(function, names))):
        raise ValueError(f"function must take each axis by name, but it lacks {lacking}; add them to its arguments.")
    parameters = parameters_of(function) or {}
    needed = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if unfilled := [name for name in needed if name not in names and name != "key"]:
        raise ValueError(f"axes must have all that function needs, but {unfilled} are missing; add them, or a default.")
    return "key" in parameters


def check_seed(seed: Any) -> int:
    """`seed`, if it is an integer of 32 bits."""
    return check_integer(seed, "seed", least=0, most=2**32 - 1)
