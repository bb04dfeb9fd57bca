"""The description of a run: the class and the fields of each module, and the name of each function.

`Setup` carries the description with a run through `jit`, `vmap` and derivatives: its text is static JSON, equal
wherever the structure is equal, and its numbers are arrays, whose values never cause a recompilation. Functions are
kept by name only, so that two runs that differ only in a `lambda` can be stacked. No description is ever executed.
"""

import dataclasses
import functools
import importlib.metadata
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from ._version import __version__


# The largest size of an array that is kept: under `vmap` every run of a batch holds a copy.
MOST_NUMBERS = 2**14
_LIBRARIES = ("jax", "diffrax", "equinox", "numpy")
_ARRAY = "array"


@jtu.register_static
class StaticString(str):
    """A string in a tree of arrays: it has no leaves, so that `jit` and `vmap` ignore it."""


class Setup(eqx.Module):
    """The description of a run: a JSON text, and the arrays to which the text refers by number, as {"array": 0}."""

    arrays: tuple[Array, ...]
    text: str = eqx.field(static=True)

    @classmethod
    def of(cls, most: int | None = MOST_NUMBERS, **parts: Any) -> "Setup":
        """The description of `parts`, without those that are None, and of the versions of the libraries; it keeps
        arrays of at most `most` numbers."""
        arrays: list[Array] = []
        told = {name: describe(part, arrays, most) for name, part in parts.items() if part is not None}
        return cls(tuple(arrays), json.dumps(told | {"versions": versions()}))

    @classmethod
    def told(cls, settings: dict[str, Any]) -> "Setup":
        """The description whose dictionary is `settings`: the inverse of the method `settings`."""
        arrays: list[Array] = []
        text = json.dumps(describe(settings, arrays, None))
        return cls(tuple(arrays), text)

    def settings(self) -> dict[str, Any]:
        """The description as a dictionary that contains the arrays."""
        return json.loads(self.text, object_hook=self._filled)

    def _filled(self, node: dict[str, Any]) -> Any:
        return self.arrays[node[_ARRAY]] if node.keys() == {_ARRAY} else node


def describe(value: Any, arrays: list[Array], most: int | None = MOST_NUMBERS) -> Any:
    """`value` as JSON; its arrays are appended to `arrays`, and the JSON refers to them by their index."""
    # Scalars of NumPy are tested first, since some of them are also Python numbers.
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _described_array(value, arrays, most)
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if type(value) not in (type(None), bool, int, float, str) else value
    if isinstance(value, dict):
        return {str(key): describe(entry, arrays, most) for key, entry in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [describe(entry, arrays, most) for entry in value]
    # Functions are tested before modules, since equinox wraps some functions in modules.
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(value, type):
        return {"class": class_name(value)}
    if isinstance(name, str):
        return {"function": f"{getattr(value, '__module__', None) or '?'}.{name}"}
    if isinstance(value, functools.partial):
        return {"function": describe(value.func, arrays, most), "args": describe(list(value.args), arrays, most)}
    held = {name: getattr(value, name) for name in fields_of(value) if hasattr(value, name)}
    return {"class": class_name(type(value))} | {name: describe(entry, arrays, most) for name, entry in held.items()}


def fields_of(value: Any) -> tuple[str, ...]:
    """The names of the fields of a named tuple, a module or another dataclass."""
    if hasattr(value, "_fields"):
        return tuple(value._fields)
    # Class variables are left out: a function among them would be bound to the instance.
    return tuple(field.name for field in dataclasses.fields(value)) if dataclasses.is_dataclass(value) else ()


def _described_array(value: Any, arrays: list[Array], most: int | None) -> Any:
    dtype = str(value.dtype)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": str(jax.random.key_impl(value)), "data": describe(jax.random.key_data(value), arrays, most)}
    # Arrays of text or objects, and arrays too large for each run of a batch, are described by shape and dtype.
    if getattr(value.dtype, "kind", "O") not in "biufcV" or most is not None and value.size > most:
        return {"shape": list(np.shape(value)), "dtype": dtype}
    arrays.append(jnp.asarray(value))
    return {_ARRAY: len(arrays) - 1}


def class_name(kind: type) -> str:
    """The name of a class, without its module if it belongs to this package, diffrax or the builtins."""
    own = kind.__module__.split(".")[0] in ("clusterjax", "diffrax", "builtins")
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    found = {"clusterjax": __version__} | {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return tuple(found.items())


def versions() -> dict[str, str]:
    """The versions of this package and of the libraries that a run depends on."""
    return dict(_versions())
