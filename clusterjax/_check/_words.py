"""The wording of error messages: `NAME must RULE, but FOUND; REMEDY.`, with values and ranges.

Values are shortened, and arrays described by shape and dtype, so that a message is one line for every argument.
"""

import os
import reprlib
from typing import Any

import jax
import numpy as np

from .._misc import is_concrete, too_deep


# The largest number of characters of a value in a message.
_SHOWN = 60


# Complex tokens of C^d are real tokens of R^(2d), on which a complex matrix acts as a real one.
PAIRS = (
    "write each coordinate a + ib of tokens as the pair a, b, and each entry a + ib of matrices as [[a, -b], [b, a]]"
)


def shown(value: Any) -> str:
    """`value` in a message: a short literal, the shape and dtype of an array, or the kind of any other object."""
    if isinstance(value, jax.Array | np.ndarray) and (np.ndim(value) or not is_concrete(value)):
        return f"an array of shape {np.shape(value)} and dtype {value.dtype}"
    if isinstance(value, jax.Array | np.generic | np.ndarray):
        return str(value)
    # Python converts at most 4300 digits to text.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return f"an integer of {value.bit_length()} bits"
    # Literals are printed, long ones shortened.
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
    """The error of an argument that violates `rule`; `found` describes its value, and `remedy` the correct argument."""
    return ValueError(f"{name} must {rule}, but {found}; {remedy}.")


def range_words(least: Any, most: Any, above: Any = None, below: Any = None) -> str:
    """The words of a range, to follow "a number" or "an integer"."""
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
