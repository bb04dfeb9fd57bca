"""The type checker of the tests: beartype, compiled for a function when it is first called and not when it is defined.

Of four thousand functions, each of them defined in every process of the tests, most are called in none of a process's
tests; to compile the checks of all is a third of what the collection of tests costs.
"""

import functools

import beartype


_CONF = beartype.BeartypeConf(strategy=beartype.BeartypeStrategy.On)


def at_first_call(function):
    """`function` with the types of its arguments and of what it returns checked."""

    @functools.wraps(function)
    def checked(*args, **kwargs):
        nonlocal made
        if made is None:
            made = beartype.beartype(conf=_CONF)(function)
        return made(*args, **kwargs)

    made = None
    return checked
