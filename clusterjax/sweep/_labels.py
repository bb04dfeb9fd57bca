"""The labels of a sweep: the axes of the grid, and the outputs of the function at one point, checked and in one form.

An axis is dynamic (an array, mapped over) or static (a list of Python values, each compiled separately); values that
are not numbers are always static. Each axis labels the result by a coordinate, which is the index for an axis of
arrays. The outputs are arrays by name; `jax.eval_shape` traces the function once for each choice of static values, and
the shapes must be equal for all of them, since each output becomes one array.

Invariants: no axis, output, dimension or coordinate has a name that is used already; no label is NaN; integers fit the
dtype that jax gives them; all readers of files support the dtypes.
"""

import hashlib
import inspect
import keyword
import math
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from .._base.checks import (
    as_numbers,
    check_callable,
    check_concrete,
    check_fits,
    check_flag,
    check_host_array,
    check_instance,
    check_integer,
    check_sequence,
    check_text,
    memory_room,
    refusal,
    shown,
)
from .._base.numerics import too_deep


MOST_POINTS = 10**8  # each point has a status and a reason, which are kept in memory
# Names that are reserved for a sweep. No axis can have the names with a dot, since names of axes are identifiers.
POINTS, CHECKSUM = "sweep.points", "sweep.checksum"
RESERVED = ("key", "status", "reason", POINTS, CHECKSUM)
# The status of a point, also in stored files; zero means success.
FINISHED, NOT_FINITE, RAISED, UNFINISHED = range(4)


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
    attrs: dict[str, Any]

    @property
    def fill(self) -> Any:
        """The value of a point without a number: NaN, the smallest integer, the largest unsigned integer, or False."""
        if self.name in ("status", "reason"):
            return UNFINISHED if self.name == "status" else ""
        kind = np.dtype(self.dtype).kind
        # Integers have no NaN; the extreme value is the least likely result.
        if kind in "iu":
            return np.iinfo(self.dtype).min if kind == "i" else np.iinfo(self.dtype).max
        return False if kind == "b" else np.nan

    def blank(self, count: int) -> np.ndarray:
        """The rows of `count` points without a number, (count, ...)."""
        return np.full((count, *self.shape), self.fill, self.dtype)


# The flags follow the conventions of climate data (CF), which readers of xarray know.
STATUS = Output("status", (), (), "uint8", {
    "description": "The status of each point.", "flag_values": [0, 1, 2, 3],
    "flag_meanings": "finished not_finite raised unfinished",
})  # fmt: skip
REASON = Output("reason", (), (), "object", {"description": "The reason why a point failed."})


def plain(values: ArrayLike) -> np.ndarray:
    """The values in a dtype that every reader of files supports: bfloat16 and similar dtypes become float32."""
    array = np.asarray(values)
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


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
        # Values of shape (m, d, d) have the dimension of the axis, and then two further dimensions.
        dims = (self.name, *(f"{self.name}_{k}" for k in range(1, values.ndim)))
        index = Coord(self.name, (self.name,), np.arange(len(values)), self.attrs)
        return [index, Coord(f"{self.name}_values", dims, values, self.attrs)]

    def describe(self) -> str:
        """The name, the number of points and the two ends, for messages."""
        labels = self.coords()[0].values
        ends = f"{labels[0]}" if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"
        return f"{self.name} ({len(labels)}: {ends})"


def words_of(coords: list[Coord]) -> np.ndarray:
    """Two words of 32 bits for each value of an axis with these coordinates, (values, 2), for the keys of points."""
    digests = [
        hashlib.blake2b(f"{coords[0].name}:{mark}".encode(), digest_size=8).digest() for mark in marks_of(coords)
    ]
    return np.frombuffer(b"".join(digests), "<u4").reshape(-1, 2)


def marks_of(coords: list[Coord]) -> list[str]:
    """A text for each value of an axis, exact and the same on all machines; no two values of an axis have the same.

    Equal numbers of any dtype have one text. Equal values of one axis, such as draws that are all 0, are counted.
    """
    values = coords[-1].values
    if values.dtype == object:
        marks = [f"text:{value}" for value in values]
    elif values.ndim == 1:
        marks = [_exact(value) for value in values.tolist()]
    else:
        marks = [" ".join([f"{value.shape}", *map(_exact, value.ravel().tolist())]) for value in values]
    count: dict[str, int] = {}
    for k, mark in enumerate(marks):
        count[mark] = count.get(mark, -1) + 1
        marks[k] = f"{count[mark]}:{mark}"
    return marks


def _exact(number: bool | int | float | complex) -> str:
    """A number without rounding: an integer in decimal digits, and any other number in hexadecimal digits."""
    if isinstance(number, complex):
        return f"{_exact(number.real)},{_exact(number.imag)}"
    if isinstance(number, float):
        return str(int(number)) if number.is_integer() else number.hex()
    return str(number)


def parse_axes(axes: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> list[Parsed]:
    """The axes as `Parsed`, in their order."""
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
    """The values of an axis as an array, or as a list if the axis is static."""
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
    array = None if static else as_numbers(values, name)
    shape = array.shape if array is not None else (len(values),) if isinstance(values, list) else np.shape(values)
    if not shape or 0 in shape:
        raise refusal(name, "have at least one point", f"its shape is {shape}", "pass some, or leave it out")
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
        raise refusal(name, f"fit {canonical}", f"it reaches {array.max()}", "enable x64, or pass smaller ones")
    if np.any(np.isnan(plain(array))):
        raise refusal(name, "not hold nan, which labels nothing", "it does", "remove that point")
    return array


def _length(values: Any) -> int:
    """The number of values along the first axis; 0 for an array of shape ()."""
    try:
        return next(iter(np.shape(values)), 0) if hasattr(values, "__array__") else len(values)
    except OverflowError:  # for example, the length of range(10**30)
        return sys.maxsize


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
    """True if `function` takes a `key`."""
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


@dataclass(frozen=True)
class Variable:
    """The labels of one output of the function.

    **Arguments:**

    - `dims`: A name for each axis of the output at one point; by default they are named after the output.
    - `coords`: Values along such axes, by their names, for example save times.
    - `unit`: The attribute `units`; empty for none.
    - `description`: One sentence, the attribute `description`.
    """

    dims: tuple[str, ...] | None = None
    coords: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ""
    description: str = ""

    def __post_init__(self):
        if self.dims is not None:
            dims = check_sequence(self.dims, "dims", str, "strings", least=0)
            object.__setattr__(self, "dims", tuple(check_text(dim, "dims") for dim in dims))
        check_instance(self.coords, "coords", Mapping, "a mapping of dims to values", "pass {'time': ts}")
        for dim, values in self.coords.items():
            _along(values, f"coords[{dim!r}]")
        check_text(self.unit, "unit", empty=True)
        check_text(self.description, "description", empty=True)


def as_outputs(returned: Any) -> OrderedDict[str, Array]:
    """The returned value as arrays by name, in their order; a single array is called `result`."""
    # The outputs of a NamedTuple have the names of its fields.
    if hasattr(returned, "_asdict"):
        returned = returned._asdict()
    if not isinstance(returned, Mapping):
        returned = {"result": returned}
    # A plain dictionary is a PyTree whose keys jax sorts.
    outputs = OrderedDict()  # jax keeps its order
    for name, value in returned.items():
        try:
            outputs[name] = jnp.asarray(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"function must return an array, or a dictionary of arrays, but {name!r} is a {type(value).__name__}; "
                "return its arrays one by one under names of their own."
            ) from None
        if not isinstance(name, str) or jnp.issubdtype(outputs[name].dtype, jax.dtypes.prng_key):
            raise ValueError(
                f"function must return numbers under names, but {name!r} is of {outputs[name].dtype}; "
                "return jax.random.key_data of a key, and name outputs by strings."
            )
    if not outputs:
        raise refusal("function", "return at least one array", f"it returned {shown(returned)}", "return what to keep")
    return outputs


def one_shape(templates: Iterable[tuple[str, Callable[[], dict[str, jax.ShapeDtypeStruct]]]]) -> dict[str, Any]:
    """The shapes and dtypes of all points, from one function for each choice of static values that does not raise."""
    shapes_found, label_found, first_error = None, "", None
    for label, template in templates:
        try:
            # The axis of the batch is removed.
            shapes = {name: (leaf.shape[1:], str(leaf.dtype)) for name, leaf in template().items()}
        # If the function raises for a choice of static values, its points fail, and it determines no shape.
        except Exception as error:
            first_error = first_error or error
            continue
        if shapes_found is None:
            shapes_found, label_found = shapes, label
        elif shapes != shapes_found:
            raise ValueError(
                "function must return the same names, shapes and dtypes at all points, but they are "
                f"{shapes_found} at {label_found} and {shapes} at {label}; pad them, or run one sweep for each."
            )
    if shapes_found is None:
        assert first_error is not None
        raise first_error
    return shapes_found


def label_outputs(
    shapes: dict[str, Any], axes: list[Parsed], variables: Mapping[str, Variable] | None
) -> tuple[list[Output], list[Coord]]:
    """The outputs with their labels, and the coordinates that belong to them."""
    variables = {} if variables is None else dict(variables)
    if unknown := sorted(set(variables) - set(shapes)):
        raise ValueError(f"variables must name outputs ({sorted(shapes)}), but there is {unknown}; rename it.")
    # The present meaning of each name in the data set, for the message.
    taken = {coord.name: "an axis" for axis in axes for coord in axis.coords()}
    taken |= {dim: "an axis" for axis in axes for coord in axis.coords() for dim in coord.dims}
    taken |= dict.fromkeys(RESERVED, "kept by a sweep")
    sizes: dict[str, int] = {}
    outputs, coords = [], {}
    for name, (shape, dtype) in shapes.items():
        if name in taken:
            raise ValueError(f"function must not return {name!r}, which is {taken[name]}; rename the output.")
        variable = variables.get(name, Variable())
        own_dims = variable.dims
        dims = tuple(f"{name}_{k}" for k in range(len(shape))) if own_dims is None else tuple(own_dims)
        if len(dims) != len(shape) or len(set(dims)) < len(dims):
            raise ValueError(
                f"variables must give {name!r} of shape {shape} as many dims, each its own, but they are {dims}; "
                "name each of its axes once."
            )
        for dim, size in zip(dims, shape, strict=True):
            # Outputs may share a dimension of one size, such as time.
            if dim in taken or dim in shapes or sizes.setdefault(dim, size) != size:
                raise ValueError(
                    f"variables must give {name!r} dims of their own, but {dim!r} of size {size} is an axis, an output "
                    "or a dim of another size; rename it."
                )
        for dim, values in variable.coords.items():
            coords[dim] = _coord(name, dim, dict(zip(dims, shape, strict=True)), values)
        attrs = {key: text for key, text in (("units", variable.unit), ("description", variable.description)) if text}
        stored = plain(np.empty(0, jnp.dtype(dtype))).dtype.name
        outputs.append(Output(name, dims, tuple(shape), stored, attrs))
    return outputs, list(coords.values())


def check_variables(variables: Any) -> None:
    """Raise a ValueError unless `variables` maps names of outputs to labels, or is None."""
    if variables is None:
        return
    remedy = "pass {'count': sweep.Variable(('time',))}, say"
    check_instance(variables, "variables", Mapping, "a mapping of outputs to sweep.Variable", remedy)
    for name, variable in variables.items():
        check_text(name, "variables")
        check_instance(variable, f"variables[{name!r}]", Variable, "a sweep.Variable", remedy)


def _along(values: Any, name: str) -> np.ndarray:
    """The values of a coordinate as a vector of numbers or strings."""
    array = as_numbers(values, name)
    if array is None:
        words = check_sequence(values, name, str, "numbers or strings", least=0)
        return np.asarray(words, object)
    labels = check_host_array(array, name, shape=(None,), finite=False, integers=array.dtype.kind in "iu")
    if np.any(np.isnan(plain(labels))):
        raise refusal(name, "not hold nan, which labels nothing", "it does", "pass what labels each")
    return array if array.dtype == bool else labels


def check_point_room(outputs: list[Output], points: int) -> None:
    """Raise a ValueError if the numbers of all points exceed the memory of this machine."""
    sizes = [math.prod(out.shape) * np.dtype(out.dtype).itemsize for out in outputs]
    num_bytes, room = points * sum(sizes), memory_room(device=False)
    if num_bytes > room:
        rule, problem = "return no more than memory holds", f"all points together take {num_bytes / 2**30:.1f} GiB"
        raise refusal("function", rule, problem, "return less, or split the sweep")


def _coord(name: str, dim: str, sizes: dict[str, int], values: Any) -> Coord:
    array = _along(values, f"coords[{dim!r}]")
    if dim not in sizes or array.shape != (sizes[dim],):
        raise ValueError(
            f"variables must give {name!r} coords along its dims {sizes}, but those of {dim!r} have shape "
            f"{array.shape}; pass one value for each."
        )
    return Coord(dim, (dim,), array if array.dtype == object else plain(array), {})
