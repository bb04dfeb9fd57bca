"""The bad values for each argument, made from a good value where shape and kind matter."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _array(good: Any) -> np.ndarray:
    """Returns `good` as an array of numbers, or two ones if it is none."""
    if isinstance(good, str | bytes | dict) or good is None:
        return np.ones(2)
    try:
        array = np.asarray(good)
    except Exception:  # an object whose conversion raises
        return np.ones(2)
    if array.dtype == object or not np.issubdtype(array.dtype, np.number) and array.dtype != bool or not array.size:
        return np.ones(2)
    return array.astype(complex if np.iscomplexobj(array) else float)


def _with(good: Any, entry: Any) -> np.ndarray:
    array = np.atleast_1d(_array(good)).astype(complex if isinstance(entry, complex) else float)
    array.flat[-1] = entry
    return array


def _other_shape(good: Any) -> np.ndarray:
    shape = _array(good).shape
    return np.ones(tuple(k + 1 + axis for axis, k in enumerate(shape)) or (3,))


def _class(good: Any) -> type:
    return float if good is None or type(good).__module__ == "builtins" else type(good)


class _Unknown:
    """An object of a class that the package does not know."""


class Hang(BaseException):
    """A call does not end; no `except Exception` catches this exception."""


def _endless() -> Iterator[float]:
    """Numbers without an end, as far as the package can know."""
    yield from itertools.repeat(1.0, 10**6)
    raise Hang("reads on after a million numbers")


def _in_itself() -> list[Any]:
    held: list[Any] = []
    held.append(held)
    return held


def is_numeric(good: Any) -> bool:
    """True if a good value is an array of at least one number."""
    return (
        isinstance(good, jax.Array | np.ndarray)
        and good.dtype != object
        and np.size(good) > 0
        and (jnp.issubdtype(good.dtype, jnp.number) or good.dtype == bool)
    )


def _masked(good: Any) -> np.ma.MaskedArray:
    array = np.array(good) if is_numeric(good) else _array(good)
    mask = np.zeros(array.shape, bool)
    mask.flat[-1] = True
    return np.ma.array(array, mask=mask)


VALUES: dict[str, Callable[[Any], Any]] = {
    "none": lambda good: None,
    "true": lambda good: True,
    "minus one": lambda good: -1,
    "zero": lambda good: 0,
    "one and a half": lambda good: 1.5,
    "nan": lambda good: float("nan"),
    "inf": lambda good: float("inf"),
    "complex": lambda good: 1j,
    "text": lambda good: "x",
    "empty text": lambda good: "",
    "bytes": lambda good: b"x",
    "empty list": lambda good: [],
    "empty dict": lambda good: {},
    "object": lambda good: _Unknown(),
    "class": _class,
    "function": lambda good: lambda: None,
    "empty array": lambda good: np.zeros((0,) * max(1, _array(good).ndim)),
    "nan array": lambda good: _with(good, np.nan),
    "inf array": lambda good: _with(good, np.inf),
    "complex array": lambda good: _with(good, 1j),
    "text array": lambda good: np.full(_array(good).shape or (1,), "x"),
    "ragged": lambda good: [[1.0], [1.0, 2.0]],
    "more axes": lambda good: np.ones((1, 1, 1, *_array(good).shape)),
    "other shape": _other_shape,
    "huge integer": lambda good: 10**30,
    "huge number": lambda good: 1e300,
    "long list": lambda good: [0.0] * 10_000,
    "list of text": lambda good: ["x", "y"],
    "list of none": lambda good: [None, None],
    "list": lambda good: np.atleast_1d(_array(good)).tolist(),
    "list in itself": lambda good: _in_itself(),
    "endless": lambda good: _endless(),
    "masked": _masked,
}

# The label of a traced array in place of the argument: the whole call is then traced.
TRACED = "traced"


def traced_like(good: Any) -> Any:
    """The array that is traced in place of `good`: `good` if it holds numbers, an integer or a float otherwise."""
    if isinstance(good, jax.Array | np.ndarray) and (good.dtype != object):
        return good if isinstance(good, jax.Array) or np.issubdtype(good.dtype, np.number) else jnp.asarray(1.0)
    return jnp.asarray(3 if isinstance(good, int) and not isinstance(good, bool) else 1.0)
