"""The type checker of the tests: beartype, compiled for a function at its first call, and omitted after many calls.

Each process of the tests defines four thousand functions and calls few of them; compiling the checks of all would take
a third of the time of collecting the tests. A few functions are called a hundred thousand times, and checking each call
takes longer than the function itself.
"""

import functools
import operator
import sys
from typing import Any

import beartype


_CONF = beartype.BeartypeConf(strategy=beartype.BeartypeStrategy.On)
ENOUGH = 500  # the number of checked calls of a function


def at_first_call(function):
    """Returns `function` with checks of the types of its arguments and of its result in its first `ENOUGH` calls."""

    @functools.wraps(function)
    def checked(*args, **kwargs):
        nonlocal made, calls
        if made is None:
            # jaxtyping calls a function that checks the arguments, then one that checks both and returns the result.
            hints = function.__annotations__
            if hints.get("return", Any) is not Any:
                function.__annotations__ = {"return": hints["return"]}
            made = beartype.beartype(conf=_CONF)(function)
        calls += 1
        if calls == ENOUGH and "<" not in function.__qualname__:
            leave_unchecked(function)
        return made(*args, **kwargs)

    made, calls = None, 0
    return checked


def leave_unchecked(function):
    """Mark the function of the package that jaxtyping has wrapped, as `typing.no_type_check` would."""
    try:
        operator.attrgetter(function.__qualname__)(sys.modules[function.__module__]).__no_type_check__ = True
    except AttributeError:  # a property, or a function that another decorator has wrapped
        pass
