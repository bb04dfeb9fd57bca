"""A case: the arguments of a small valid call of one public callable, and what else it may be given."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.doors.rules import Rule


@dataclass(frozen=True)
class Case:
    """How a public callable is called.

    - `good`: makes the arguments by name; one that is left out has its default, and is tried with bad values too.
    - `on`: makes the object whose method it is.
    - `rules`: by argument, what is accepted beyond what follows from the good value.
    - `dear`: the valid call compiles or trains for longer than a moment: only `exhaustive` makes it.
    - `finite`: whether the numbers of an accepted result are finite.
    - `seconds`: of computing; a call that takes longer hangs.
    """

    good: Callable[[], Mapping[str, Any]]
    on: Callable[[], Any] | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)
    dear: bool = False
    finite: bool = True
    seconds: float = 10


def case(
    good: Any = None, on: Any = None, *, dear: bool = False, finite: bool = True, seconds: float = 10, **rules: Rule
) -> Case:
    """`good` is a dictionary, or a function that makes it once; `on` the object of a method, or what makes it."""
    made = functools.cache(good) if callable(good) else lambda: {} if good is None else good
    return Case(made, on, rules, dear, finite, seconds)
