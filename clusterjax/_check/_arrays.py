"""Checks of arrays of numbers, of scalars that may be traced, and of clouds of tokens.

Shapes and dtypes are always checked; values only where they are known at trace time. The result is a JAX array that is
never weakly typed, so that a Python number and an array of the same dtype share one trace.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._misc import as_float, is_concrete, leaves_unless_plain, too_deep, warn_of_rounding
from ._numbers import check_number, check_unmasked
from ._objects import check_concrete
from ._words import PAIRS, range_words, refusal, shown


def check_array(
    value: Any,
    name: str,
    *,
    shape: Sequence[int | str | None] | None = None,
    integers: bool = False,
    finite: bool = True,
    least: float | int | None = None,
    most: float | int | None = None,
    remedy: str | None = None,
) -> Array:
    """`value` as an array, if it has real numbers and this shape, and, where concrete, is finite and in the range.

    Lists, tuples, numbers and objects that NumPy can convert become arrays; without `integers` they are floats.

    **Arguments:**

    - `shape`: One entry per axis: its length, a name for a length of at least one, or None for any length; None allows
        any number of axes.
    - `integers`: Whether the numbers must be integers.
    - `finite`: Whether NaN and infinities are refused.

    **Raises:**

    - `ValueError` naming the argument, what it was and what to do.
    """
    array = _checked(value, name, shape, integers, finite, least, most, remedy)
    check_fits(array, name, integers=integers)
    warn_of_rounding(value, name)
    return jnp.asarray(array) if integers else as_float(array)


def check_host_array(
    value: Any,
    name: str,
    *,
    shape: Sequence[int | str | None] | None = None,
    integers: bool = False,
    finite: bool = True,
    least: float | int | None = None,
    most: float | int | None = None,
    remedy: str | None = None,
) -> np.ndarray:
    """The checks of `check_array` with the result as a NumPy array of its own precision: for functions never traced.

    **Raises:**

    - `ValueError` naming the argument, what it was and what to do.
    """
    # float64 remains float64, whether x64 is enabled in JAX or not.
    check_concrete(value, name)
    array = np.asarray(_checked(value, name, shape, integers, finite, least, most, remedy))
    return array if integers or np.issubdtype(array.dtype, np.floating) else array.astype(float)


def _checked(
    value: Any,
    name: str,
    shape: Sequence[int | str | None] | None,
    integers: bool,
    finite: bool,
    least: float | int | None,
    most: float | int | None,
    remedy: str | None,
) -> Any:
    """Apply the checks of `check_array`, and return the array in its own dtype."""
    rule, remedy = _array_rule(shape, integers), remedy or "pass such an array"
    array = as_numbers(value, name)
    if array is None:
        raise refusal(name, rule, f"it is {shown(value)}", remedy)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise refusal(name, "be real", f"its dtype is {array.dtype}", "pass its real part")
    if shape is not None and not _fits(np.shape(array), shape):
        raise refusal(name, rule, f"its shape is {np.shape(array)}", remedy)
    if integers and not array.size and not hasattr(value, "dtype"):
        array = array.astype(int)  # NumPy converts an empty list to floats
    if integers and not jnp.issubdtype(array.dtype, jnp.integer):
        raise refusal(name, rule, f"its dtype is {array.dtype}", remedy)
    if is_concrete(array):
        _check_values(np.asarray(array), name, finite and not integers, least, most, remedy)
    return array


def _array_rule(shape: Sequence[int | str | None] | None, integers: bool) -> str:
    kind = "integers" if integers else "real numbers"
    if shape is None:
        return f"be an array of {kind}"
    axes = ", ".join("any" if k is None else str(k) for k in shape)
    return f"be an array of {kind} of shape ({axes}{',' if len(shape) == 1 else ''})"


def as_numbers(value: Any, name: str, *, masked: str | None = None) -> Any:
    """`value` as an array of booleans, integers, floats or complex numbers; None if it is something else.

    Every number that a user passes enters through this function. A masked array is accepted if none of its entries is
    masked; bytes are converted to the byte order of this machine. An array that is not a JAX array keeps its precision,
    which `check_fits` compares with that of JAX.

    **Arguments:**

    - `masked`: The remedy for masked entries, for the message.

    **Raises:**

    - `ValueError` if entries are masked, since the numbers below a mask are not meant by the user.
    """
    if isinstance(value, jax.Array):
        return value if jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool else None
    # NumPy would convert these to arrays of text or objects, and never end for a list that contains itself.
    if isinstance(value, str | bytes | dict | set | frozenset | type) or value is None or too_deep(value):
        return None
    leaves = leaves_unless_plain(value) if isinstance(value, list | tuple) else []
    for leaf in leaves:
        check_unmasked(leaf, name, masked)
    if any(isinstance(leaf, jax.Array) for leaf in leaves):
        # NumPy cannot convert a list that contains traced arrays.
        try:
            return jnp.asarray(value)
        except (TypeError, ValueError, OverflowError):
            return None
    try:
        array = np.asanyarray(value)
    except Exception:  # an object that raises any error on conversion is not an array of numbers
        return None
    check_unmasked(array, name, masked)
    array = np.asarray(array)
    # Times and their differences, "m" and "M", count as integers in NumPy.
    if array.dtype.kind in "mM" or not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool):
        return None
    # LAPACK and JAX support nothing wider than double precision.
    if array.dtype.kind in "fc" and array.dtype.itemsize > (8 if array.dtype.kind == "f" else 16):
        return array.astype(float if array.dtype.kind == "f" else complex)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def check_fits(array: Any, name: str, dtype: Any = None, *, integers: bool = False) -> None:
    """Raise a ValueError if a float of `array` does not fit in `dtype`; None is the dtype that JAX would choose.

    Without x64 JAX silently converts numbers beyond the range of float32 to infinities, and wraps large integers.

    **Arguments:**

    - `integers`: Whether integers are checked, which remain integers; integers that become floats fit.
    """
    wanted = jax.dtypes.canonicalize_dtype(array.dtype) if dtype is None else jnp.dtype(dtype)
    narrower = wanted.itemsize < array.dtype.itemsize
    if not (narrower and jnp.issubdtype(array.dtype, jnp.integer if integers else jnp.floating) and is_concrete(array)):
        return
    held = np.asarray(array)
    with np.errstate(over="ignore"):
        rounded = held.astype(wanted)
    wrong = np.asarray(held != rounded if integers else np.isfinite(held) & ~np.isfinite(rounded))
    if wrong.any():
        largest = np.iinfo(wanted).max if integers else f"{float(jnp.finfo(wanted).max):.2g}"
        remedy = "pass tokens of float64, or smaller numbers"
        if dtype is None:
            remedy = 'call jax.config.update("jax_enable_x64", True) first, or pass smaller numbers'
        raise refusal(name, f"fit in {wanted}, which ends at {largest}", _first(held, wrong), remedy)


def _fits(axes: tuple[int, ...], shape: Sequence[int | str | None]) -> bool:
    return len(axes) == len(shape) and all(
        k == wanted if isinstance(wanted, int) else wanted is None or k >= 1
        for k, wanted in zip(axes, shape, strict=True)
    )


def _check_values(
    array: np.ndarray, name: str, finite: bool, least: float | int | None, most: float | int | None, remedy: str
) -> None:
    # Finiteness is checked first, since no comparison with a bound rejects NaN.
    bad = np.asarray(~np.isfinite(array)) if finite else np.zeros(array.shape, bool)
    if bad.any():
        raise refusal(name, "be finite", _first(array, bad), remedy)
    for bound, outside in ((least, np.less), (most, np.greater)):
        if bound is not None:
            bad = np.asarray(outside(array, bound))
            if bad.any():
                raise refusal(name, f"be{range_words(least, most)}".replace("be of", "be"), _first(array, bad), remedy)


def _first(array: np.ndarray, bad: np.ndarray) -> str:
    """The first entry of `array` for which `bad` is True, in words."""
    if array.ndim == 0:
        return f"it is {array}"
    index = tuple(int(k) for k in np.argwhere(bad)[0])
    return f"entry {index[0] if array.ndim == 1 else index} is {array[index]}"


def check_scalar(
    value: Any,
    name: str,
    dtype: Any = None,
    *,
    least: float | int | None = None,
    above: float | int | None = None,
    most: float | int | None = None,
    below: float | int | None = None,
    remedy: str | None = None,
) -> Array:
    """`value` as an array of shape () in `dtype`, if it is a finite real number in the range, or traced.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    array = as_numbers(value, name)
    if array is not None and np.ndim(array) != 0:
        raise refusal(
            name, "be a number", f"its shape is {np.shape(array)}", "map over several values with equinox.filter_vmap"
        )
    if array is not None and jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise refusal(name, "be real", f"its dtype is {array.dtype}", "pass its real part")
    # Known values are checked as Python numbers; for traced values only shape and kind are known.
    if array is None or array.dtype == bool or is_concrete(array):
        number = check_number(value, name, least=least, above=above, most=most, below=below, remedy=remedy)
        array = np.asarray(number) if array is None else array  # an integer beyond 64 bits is not an array
    check_fits(array, name, dtype)
    # The array is never weakly typed, so that a Python float and an array of the same dtype share one trace.
    return as_float(array, dtype)


def check_tokens(x: Any, name: str = "x", *, min_tokens: int = 1) -> Array:
    """`x` as an array, if it is a cloud of tokens: two-dimensional, not empty, of floats, finite where concrete.

    **Raises:**

    - `ValueError` naming the argument, what it was and what it should be.
    """
    # `check_array` is not used, since the messages must name tokens and the row that is wrong.
    masked = f"leave these tokens out, or fill them, {name}.filled(1), and give them masses of zero"
    array = as_numbers(x, name, masked=masked)
    if array is None:
        raise refusal(
            name,
            "be an array of real numbers of shape (n, d), one token per row",
            f"it is {shown(x)}",
            "pass an array of shape (n, d)",
        )
    # The range is checked before jax converts the array, which would warn of an overflow.
    check_fits(array, name)
    # Integers become floats here; arrays of other ranks are refused with their own dtype.
    check_rank(as_float(array) if np.ndim(array) == 2 else array, name)
    if array.shape[0] < min_tokens:
        raise ValueError(
            f"{name} must hold at least {min_tokens} tokens, but its shape is {array.shape}; pass more of them."
        )
    if is_concrete(array) and not np.all(np.isfinite(np.asarray(array))):
        row = int(np.flatnonzero(~np.isfinite(np.asarray(array)).all(axis=1))[0])
        entries = np.asarray(array)[row]
        kept = f"{entries}" if entries.size <= 8 else f"{entries[:8]} and so on"
        raise ValueError(f"{name} must be finite, but row {row} is {kept}; remove or mend that token.")
    warn_of_rounding(x, name)
    return as_float(array)


def check_rank(x: Any, name: str = "x") -> None:
    """Raise a ValueError unless `x` is a non-empty (n, d) array of real floats, traced or not."""
    if not isinstance(x, jax.Array | np.ndarray):
        raise refusal(
            name,
            "be an array of real numbers of shape (n, d), one token per row",
            f"it is {shown(x)}",
            "pass an array of shape (n, d)",
        )
    if np.ndim(x) != 2:
        raise ValueError(
            f"{name} must have two dimensions, (n, d), one token per row, but its shape is {np.shape(x)}; "
            "map over further axes with jax.vmap."
        )
    if x.shape[0] < 1 or x.shape[1] < 1:
        raise ValueError(
            f"{name} must hold at least 1 token of at least one dimension, but its shape is {np.shape(x)}; "
            "pass an array of shape (n, d)."
        )
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise ValueError(f"{name} must be real, but its dtype is {x.dtype}; pass its real part, or {PAIRS}.")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"{name} must be of floats, but its dtype is {x.dtype}; pass {name}.astype(float).")
