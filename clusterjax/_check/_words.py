"""The wording of error messages: `NAME must RULE, but FOUND; REMEDY.`, values and ranges in them.

Values are shortened, and arrays described by shape and dtype, so that a message is one line whatever the argument was.
"""

import os
import reprlib
from typing import Any

import jax
import numpy as np

from .._misc import is_concrete, too_deep


# The most characters of a value in a message.
_SHOWN = 60


# How complex tokens of C^d are real ones of R^(2d), and a complex matrix acts on them.
PAIRS = (
    "write each coordinate a + ib of tokens as the pair a, b, and each entry a + ib of matrices as [[a, -b], [b, a]]"
)


def shown(value: Any) -> str:
    """`value` in a message: a short literal as it is, an array by shape and dtype, anything else by its kind."""
    if isinstance(value, jax.Array | np.ndarray) and (np.ndim(value) or not is_concrete(value)):
        return f"an array of shape {np.shape(value)} and dtype {value.dtype}"
    if isinstance(value, jax.Array | np.generic | np.ndarray):
        return str(value)
    # Python converts at most 4300 digits to text.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return f"an integer of {value.bit_length()} bits"
    # Literals as they are, long ones shortened.
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | os.PathLike):
        short = reprlib.Repr()
        short.maxstring = short.maxother = short.maxlong = _SHOWN
        return short.repr(str(value) if isinstance(value, os.PathLike) else value)
    if too_deep(value):
        return f"a {type(value).__name__} that is nested more than 32 deep"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"a {type(value).__name__} of {len(value)}" if value else f"an empty {type(value).__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    article = "an" if type(value).__name__[:1].lower() in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


def refusal(name: str, rule: str, found: str, remedy: str) -> ValueError:
    """The error of an argument that breaks `rule`; `found` says what it is instead, `remedy` what to pass."""
    return ValueError(f"{name} must {rule}, but {found}; {remedy}.")


def range_words(least: Any, most: Any, above: Any = None, below: Any = None) -> str:
    """The words of a range, after "a number" or "an integer"."""
    words = []
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if least is not None:
        words.append(f"at least {least}")
    if above is not None:
        words.append(f"above {above}")
    if most is not None:
        words.append(f"at most {most}")
    if below is not None:
        words.append(f"below {below}")
    return (" " if above is not None and least is None else " of ") + " and ".join(words) if words else ""
