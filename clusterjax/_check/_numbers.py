"""Checks of integers and numbers that are never traced: sizes, counts, seeds and options."""

import math
import operator
from typing import Any

import numpy as np

from .._misc import is_concrete
from ._words import range_words, refusal, shown


# The largest count or size: a larger one would overflow a 64-bit index.
LARGEST = 2**63 - 1


def check_integer(
    value: Any, name: str, *, least: int | None = 1, most: int | None = None, remedy: str | None = None
) -> int:
    """`value` as an int, if it is an integer (of Python or NumPy, not a boolean) from `least` to `most`.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    # The most frequent rule has its own words.
    if most is None and least == 1:
        rule = "be a positive integer"
    else:
        rule = f"be an integer{range_words(least, most)}"
    remedy = remedy or f"pass {'an integer' if least is None else least} or another in that range"
    check_unmasked(value, name)
    try:
        # `operator.index` accepts booleans, and raises other errors for traced values.
        if isinstance(value, bool | np.bool_) or not is_concrete(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise refusal(name, rule, f"it is {shown(value)}", remedy) from None
    if (least is not None and number < least) or number > (LARGEST if most is None else most) or number < -LARGEST:
        raise refusal(name, rule, f"it is {shown(number)}", remedy)
    return number


def check_number(
    value: Any,
    name: str,
    *,
    least: float | int | None = None,
    most: float | int | None = None,
    above: float | int | None = None,
    below: float | int | None = None,
    remedy: str | None = None,
) -> float:
    """`value` as a float, if it is a finite real number in the range; for numbers that are never traced.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    bounds = range_words(least, most, above, below)
    rule = f"be a finite number{bounds}"
    remedy = remedy or "pass such a number"
    check_unmasked(value, name)
    number = None
    kinds = bool | np.bool_ | complex | str | bytes | list | tuple | dict
    if is_concrete(value) and not isinstance(value, kinds) and getattr(value, "ndim", 0) == 0:
        try:
            # JAX and NumPy arrays of shape () count as numbers.
            number = float(np.asarray(value)) if hasattr(value, "dtype") else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
    # NaN is not finite, and is refused here, although no comparison with a bound rejects it.
    if (
        number is None
        or np.iscomplexobj(value)
        or not math.isfinite(number)
        or (least is not None and number < least)
        or (most is not None and number > most)
        or (above is not None and number <= above)
        or (below is not None and number >= below)
    ):
        raise refusal(name, rule, f"it is {shown(value)}", remedy)
    return number


def check_unmasked(value: Any, name: str, remedy: str | None = None) -> None:
    """Raise a ValueError if `value` is a NumPy masked array with masked entries, which are not numbers of the user.

    **Arguments:**

    - `remedy`: The remedy in the message; None is to leave these entries out, or to fill them.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        remedy = remedy or f"leave these out, or fill them, such as by {name}.filled(0)"
        found = f"{np.ma.count_masked(value)} of {value.size} are"
        raise refusal(name, "hold no entries that are masked", found, remedy)
