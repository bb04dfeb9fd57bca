"""The checks of arguments in `transformer`: weights, sizes, tokens, ids of words, and flags of present tokens."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.checks import (
    as_numbers,
    check_array,
    check_float_dtype,
    check_instance,
    check_integer,
    check_room,
    check_scalar,
    check_tokens,
    refusal,
    shown,
)
from .._base.numerics import is_concrete
from .._base.types import Numbers


MOST_NUMBERS = 2**40  # in one array of weights

_T = TypeVar("_T")


def weights(name: str, shape: str, *, optional: bool = False) -> Callable[[Any], Any]:
    """The converter of a field of weights called `name`, whose axes are named in `shape`, such as "(h, d, k)"; with
    `optional`, None stays None."""
    # The number of axes is read from the text of the shape, which the error message quotes as well.
    axes = len([axis for axis in shape.strip("()").split(",") if axis])
    rule = f"have {axes} {'axis' if axes == 1 else 'axes'}, {shape}"

    def converted(value: Numbers | None) -> Array | None:
        if value is None and optional:
            return None
        array = check_array(value, name, remedy=f"pass {shape}")
        if array.ndim != axes:
            raise refusal(name, rule, f"its shape is {array.shape}", f"pass {shape}")
        return array

    return converted


def check_optional(value: Any, name: str, kind: type[_T] | tuple[type, ...], rule: str, remedy: str) -> _T | None:
    """Return `value` if it is None or an instance of `kind`; see `check_instance`."""
    return None if value is None else check_instance(value, name, kind, f"{rule} or None", remedy)


def check_sizes(**sizes: Any) -> tuple[int, ...]:
    """Return the sizes of an array of weights if they are positive integers and the array fits into memory."""
    integers = tuple(check_integer(size, name) for name, size in sizes.items())
    # The check precedes the allocation, since a process that runs out of memory may be killed without a message.
    if math.prod(integers) > MOST_NUMBERS:
        largest = list(sizes)[integers.index(max(integers))]
        product = " times ".join(f"{name} = {size}" for name, size in zip(sizes, integers, strict=True))
        raise refusal(
            largest,
            f"be small enough for arrays of at most {MOST_NUMBERS} numbers",
            f"there are {product}",
            "ask for less",
        )
    # Two arrays exist at a time: the drawn numbers, and their product with the deviation.
    longest = max(integers)
    which, num_bytes = list(sizes)[integers.index(longest)], 2 * math.prod(integers) * jnp.result_type(float).itemsize
    check_room(longest, which, num_bytes, "two arrays of that shape", longest=longest, remedy="ask for less")
    return integers


def check_draw(scale: Any, dtype: Any, default: float | None = None) -> tuple[Array, Any]:
    """The standard deviation and the dtype of random weights."""
    dtype = check_float_dtype(dtype) or jnp.result_type(float)
    scale = default if scale is None else scale
    return check_scalar(scale, "scale", dtype, least=0, remedy="pass a standard deviation"), dtype


def check_features(x: Any, d: int, name: str = "x") -> Array:
    """Return `x` as an array if it holds finite real numbers and has the shape (..., d)."""
    array = check_array(x, name, remedy=f"pass (n, {d})")
    if array.shape[-1:] != (d,):
        raise ValueError(f"{name} must be tokens of dimension {d}, but its shape is {array.shape}; pass (n, {d}).")
    return array


def check_stream(x: Any, present: Any, d: int, name: str = "x") -> tuple[Array, Array | None]:
    """Return the tokens, (n, d), and the flags of the present tokens, (n,) or None, if both are valid."""
    array = check_tokens(x, name)
    if array.shape[1] != d:
        raise ValueError(
            f"{name} must be tokens of dimension {d}, but its shape is {array.shape}; pass (n, {d}), and map over "
            "further axes with jax.vmap."
        )
    return array, check_present(present, array.shape[0])


def check_present(present: Any, n: int) -> Array | None:
    """Return the flags of the present tokens, (n,), if they are valid; None stays None."""
    rule = f"say of each of {n} tokens whether it is there"
    return None if present is None else jnp.asarray(check_booleans(present, "present", (n,), rule))


def check_booleans(value: Any, name: str, shape: tuple[int, ...], rule: str) -> Any:
    """Return `value` as an array of this shape, if its entries are booleans, or integers that are 0 or 1."""
    array = as_numbers(value, name)
    remedy = f"pass booleans, ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    if array is None:
        raise refusal(name, rule, f"it is {shown(value)}", remedy)
    # Masks of tokenizers are the integers 0 and 1; other integers would silently become true.
    if jnp.issubdtype(array.dtype, jnp.integer) and is_concrete(array) and np.isin(np.asarray(array), (0, 1)).all():
        array = np.asarray(array).astype(bool)
    if np.shape(array) != shape or array.dtype != bool:
        raise refusal(name, rule, f"its shape is {np.shape(array)} and its dtype {array.dtype}", remedy)
    return array


def check_ids(ids: Any, words: int, name: str = "ids", *, texts: bool = False) -> Any:
    """Return `ids`, (n,), or (texts, n) with `texts`, if they are integers and, unless traced, in the vocabulary."""
    rule = "be ids, (texts, n), at least one" if texts else "be a vector of integers"
    remedy = "pad them to one length" if texts else "pass (n,), and map over texts with jax.vmap"
    array = as_numbers(ids, name)
    if array is None:
        raise refusal(name, rule, f"it is {shown(ids)}", remedy)
    # `texts` counts as the integer 1: several texts have one axis more.
    if np.ndim(array) != 1 + texts or 0 in np.shape(array) or not jnp.issubdtype(array.dtype, jnp.integer):
        raise refusal(name, rule, f"its shape is {np.shape(array)} and its dtype {array.dtype}", remedy)
    check_range(array, words, name)
    return array


def check_range(ids: Any, words: int, name: str = "ids") -> None:
    """Raise a `ValueError` if an id is out of the vocabulary; ids that are traced are not checked."""
    if is_concrete(ids):
        array = np.asarray(ids)
        # jax clamps a lookup beyond the table to its last row without an error.
        wrong = array[(array < 0) | (array >= words)]
        if wrong.size:
            raise ValueError(
                f"{name} must be from 0 to {words - 1}, but one is {wrong[0]}; use the tokenizer of this model."
            )
