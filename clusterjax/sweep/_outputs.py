"""The outputs of a function of a point: their names, shapes and dtypes, and the labels of the user.

Outputs are normalised to arrays by name. Shapes are found by tracing the function once for each choice of static values
(`jax.eval_shape`), and must be equal for all of them, since each output becomes one array.

Invariants: no output, dimension or coordinate has a name that is used already; all readers of files support the dtypes.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.checks import (
    as_numbers,
    check_host_array,
    check_instance,
    check_sequence,
    check_text,
    memory_room,
    refusal,
    shown,
)
from ._axis import RESERVED, Coord, Output, Parsed, plain


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
    """The shapes and dtypes of all points, from a function for each choice of the static values; functions that raise
    an error are skipped.

    **Raises:**

    - `ValueError` if two of them differ. If all of them raise, the first error.
    """
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
    """The outputs with their labels, and the coordinates that belong to them.

    **Raises:**

    - `ValueError` if a name is already used, or a label does not fit.
    """
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
        outputs.append(Output(name, dims, tuple(shape), _stored(dtype), attrs))
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
        rule, told = "return no more than memory holds", f"all points together take {num_bytes / 2**30:.1f} GiB"
        raise refusal("function", rule, told, "return less, or split the sweep")


def _coord(name: str, dim: str, sizes: dict[str, int], values: Any) -> Coord:
    array = _along(values, f"coords[{dim!r}]")
    if dim not in sizes or array.shape != (sizes[dim],):
        raise ValueError(
            f"variables must give {name!r} coords along its dims {sizes}, but those of {dim!r} have shape "
            f"{array.shape}; pass one value for each."
        )
    return Coord(dim, (dim,), array if array.dtype == object else plain(array), {})


def _stored(dtype: str) -> str:
    return str(plain(np.empty(0, jnp.dtype(dtype))).dtype)
