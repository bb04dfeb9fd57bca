"""What a claim was made of, what it was measured on, and the verdict that follows from comparing the two.

Nobody writes a verdict: a claim of a paper carries a `Source`, an experiment states what it `Measured`, and `judge`
compares network, data and size. "reproduces" and "does not reproduce" are said only where all three are those of the
source; where one is not, the verdict says which, and the number is shown with whether it would agree. Invariants: an
identity holds or is VIOLATED, whatever it was measured on; a run with parameters set by hand confirms and refutes no
paper.
"""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..._base.checks import check_instance, check_text, refusal, shown


Kind = Literal["identity", "paper", "finding"]
Number = int | float

VIOLATED = "VIOLATED"  # the verdict on what is proved and yet was not found
NOT_MEASURED = "not measured"  # the number is none
DIFFERENT = {part: f"not the paper's {part}" for part in ("network", "data", "size")}
VERDICTS = (
    "reproduces", "does not reproduce", *DIFFERENT.values(), "holds", "does not hold", VIOLATED, NOT_MEASURED
)  # fmt: skip
FAILED = ("does not reproduce", "does not hold", VIOLATED)  # the verdicts on what was measured and is not so


@dataclass(frozen=True)
class Subject:
    """A network, or a body of data.

    **Attributes:**

    - `key`: What tells it from others: two subjects are the same if their keys are.
    - `words`: What a reader is told that it is.
    """

    key: str
    words: str

    def __post_init__(self):
        check_text(self.key, "key")
        check_text(self.words, "words")


ANY = Subject("any", "any")
UNSAID = Subject("unsaid", "not said")


@dataclass(frozen=True)
class Source:
    """What a claim of a paper was made of.

    **Attributes:**

    - `work`: The paper and the place in it.
    - `networks`: The network; several if any of them is meant. `ANY` is for what is claimed of all of them, as by a
        theorem, `UNSAID` for what the paper does not say; neither can differ.
    - `data`: The same of the data.
    - `size`: Numbers that a run must have exactly: tokens, d, beta, layers, ...
    - `least`: Numbers that a run must come up to.
    """

    work: str
    networks: Subject | tuple[Subject, ...]
    data: Subject | tuple[Subject, ...]
    size: Mapping[str, Number] = field(default_factory=dict)
    least: Mapping[str, Number] = field(default_factory=dict)

    def __post_init__(self):
        check_text(self.work, "work")
        for name in ("networks", "data"):
            _check_subjects(getattr(self, name), name)
        for name in ("size", "least"):
            object.__setattr__(self, name, _checked_size(getattr(self, name), name, several=False))

    @property
    def words(self) -> str:
        """The three in one line, for a reader."""
        numbers = [_number(name, value) for name, value in self.size.items()]
        numbers += [f"{name} >= {value:g}" for name, value in self.least.items()]
        either = lambda subjects: " or ".join(subject.words for subject in _several(subjects))
        return (
            f"{self.work}: network: {either(self.networks)}; data: {either(self.data)}; size: "
            f"{', '.join(numbers) or 'any'}"
        )

    def record(self) -> dict[str, Any]:
        """The same for a JSON file."""
        return {
            "work": self.work,
            "networks": [subject.words for subject in _several(self.networks)],
            "data": [subject.words for subject in _several(self.data)],
            "size": dict(self.size),
            "least": dict(self.least),
        }


@dataclass(frozen=True)
class Measured:
    """What an experiment measured.

    **Attributes:**

    - `network`, `data`: What they were.
    - `size`: Numbers by name, or several where several were run: tokens, d, beta, layers, starts, ...
    - `changed`: In words, which parameters of the experiment were set to what they are not by default. `reproduce`
        fills it in.
    """

    network: Subject
    data: Subject
    size: Mapping[str, Number | tuple[Number, ...]]
    changed: str = ""

    def __post_init__(self):
        for name in ("network", "data"):
            check_instance(getattr(self, name), name, Subject, "a Subject", _REMEDY)
        object.__setattr__(self, "size", _checked_size(self.size, "size", several=True))
        check_text(self.changed, "changed", empty=True)

    @property
    def words(self) -> str:
        """The three in one line, for a reader."""
        numbers = ", ".join(_number(name, value) for name, value in self.size.items())
        return f"{self.network.words}; {self.data.words}; {numbers}" + (
            f"; set: {self.changed}" if self.changed else ""
        )

    def record(self) -> dict[str, Any]:
        """The same for a JSON file."""
        return {
            "network": {"key": self.network.key, "words": self.network.words},
            "data": {"key": self.data.key, "words": self.data.words},
            "size": {name: list(value) if isinstance(value, tuple) else value for name, value in self.size.items()},
        } | ({"changed": self.changed} if self.changed else {})


def differences(source: Source, measured: Measured) -> tuple[str, ...]:
    """Which of "network", "data" and "size" are not those of the source. Raises a ValueError if the source names a
    number that the experiment does not state: without it nothing can be said.

    Where a parameter of the experiment was set by hand the size is not that of the source, though all numbers that it
    names may agree: the criterion was chosen for the parameters as they are declared, and a verdict on a paper from
    another run would be none.
    """
    # A source that names a number and a run that does not state it cannot be compared; that is a mistake of the
    # experiment and not a difference.
    missing = [name for name in (*source.size, *source.least) if name not in measured.size]
    if missing:
        raise ValueError(
            f"measured must state the size that {source.work} names, but it has no {', '.join(map(repr, missing))}; "
            "add what was run."
        )
    # Several sizes were run: it is enough that the one of the paper is among them. Betas and times are computed, such
    # as 0.1 + 0.2.
    same = lambda value, run: math.isclose(value, run, rel_tol=1e-9, abs_tol=0.0)
    same_size = all(any(same(value, run) for run in _all(measured.size[name])) for name, value in source.size.items())
    # For lower bounds the largest run counts.
    enough = all(max(_all(measured.size[name])) >= value for name, value in source.least.items())
    same_parts = {
        "network": _is_one_of(measured.network, source.networks),
        "data": _is_one_of(measured.data, source.data),
        "size": same_size and enough and not measured.changed,
    }
    return tuple(part for part, same in same_parts.items() if not same)


def judge(kind: Kind, holds: bool, value: float | None, source: Source | None, measured: Measured) -> str:
    """The verdict on a claim: one of `VERDICTS`; where several parts differ, the first of network, data, size."""
    # NaN stands for what could not be measured, whether the criterion was then True or False.
    if value is not None and math.isnan(value):
        return NOT_MEASURED
    return verdict_on(kind, holds, () if source is None else differences(source, measured))


def verdict_on(kind: Kind, holds: bool, apart: Sequence[str]) -> str:
    """The same by what differs."""
    if kind == "identity":
        return "holds" if holds else VIOLATED
    if kind == "finding":
        return "holds" if holds else "does not hold"
    # The first of network, data and size: on another network the size says nothing more.
    return DIFFERENT[apart[0]] if apart else "reproduces" if holds else "does not reproduce"


def _is_one_of(subject: Subject, wanted: Subject | tuple[Subject, ...]) -> bool:
    # ANY and UNSAID are names of what the source leaves open.
    return any(each.key in (subject.key, ANY.key, UNSAID.key) for each in _several(wanted))


def _several(subjects: Subject | tuple[Subject, ...]) -> tuple[Subject, ...]:
    return (subjects,) if isinstance(subjects, Subject) else subjects


def _all(value: Number | Iterable[Number]) -> tuple[Number, ...]:
    return (value,) if isinstance(value, int | float) else tuple(value)


def _number(name: str, value: Number | Iterable[Number]) -> str:
    return f"{name} = {', '.join(f'{number:.10g}' for number in _all(value))}"


_REMEDY = 'pass Subject("uniform", "uniform tokens"), for example'


def _check_subjects(value: Any, name: str) -> None:
    """Raise a ValueError unless this is a subject, or a tuple of one or more."""
    subjects = value if isinstance(value, tuple) else (value,)
    if not subjects or not all(isinstance(subject, Subject) for subject in subjects):
        raise refusal(name, "be a Subject, or a tuple of several", f"it is {shown(value)}", _REMEDY)


def _checked_size(value: Any, name: str, *, several: bool) -> dict[str, Any]:
    """The numbers by name, those of NumPy as numbers of Python; a tuple of them where `several` may be."""
    rule = f"be a dict of finite numbers{', or tuples of them,' if several else ''} by name"
    remedy = 'pass {"tokens": 64}, for example'
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refusal(name, rule, f"it is {shown(value)}", remedy)
    checked = {}
    for key, entry in value.items():
        entries = entry if several and isinstance(entry, tuple) else (entry,)
        if not entries or not all(map(_is_number, entries)):
            raise refusal(name, rule, f"{key!r} is {shown(entry)}", remedy)
        # A NumPy integer is no `int`, and would neither be compared nor written as one.
        plain = tuple(number.item() if isinstance(number, np.generic) else number for number in entries)
        checked[key] = plain if isinstance(entry, tuple) else plain[0]
    return checked


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value)
