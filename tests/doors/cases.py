"""A case: the arguments of a small valid call of one public callable."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """How a public callable is called.

    - `good`: makes the arguments by name; one that is left out has its default, and is tried with bad values too.
    - `on`: makes the object whose method it is.
    - `finite`: whether the numbers of an accepted result are finite.
    - `seconds`: of computing; a call that takes longer hangs.
    """

    good: Callable[[], Mapping[str, Any]]
    on: Callable[[], Any] | None = None
    finite: bool = True
    seconds: float = 10


def case(good: Any = None, on: Any = None, *, finite: bool = True, seconds: float = 10) -> Case:
    """`good` is a dictionary, or a function that makes it once; `on` the object of a method, or what makes it."""
    made = functools.cache(good) if callable(good) else lambda: {} if good is None else good
    return Case(made, on, finite, seconds)
