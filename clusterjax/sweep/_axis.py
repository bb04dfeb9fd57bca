"""The axes of a sweep: checks the axes of the user and brings them into one form.

An axis is dynamic (an array, mapped over) or static (a list of Python values, each compiled separately); values that
are not numbers are always static. Each axis labels the result by a coordinate, which is the index for an axis of
arrays.

Invariants: no name is used twice, neither by axes nor by their coordinates; no value is NaN, which cannot be a label;
integers fit the dtype that jax gives them.
"""

import keyword
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from .._check import as_numbers, check_concrete, check_fits, check_flag, check_text, refusal, shown
from .._misc import too_deep
from ._frame import Coord, plain


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
