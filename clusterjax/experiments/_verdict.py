"""What a claim was made of, what it was measured on, and the verdict that follows from comparing the two.

Nobody writes a verdict: a claim of a paper carries a `Source`, an experiment states what it `Measured`, and `judge`
compares network, data and size. "reproduces" and "does not reproduce" are said only where all three are those of the
source; where one is not, the verdict says which, and the number is shown with whether it would agree.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


Kind = Literal["identity", "paper", "finding"]
Number = int | float

VIOLATED = "VIOLATED"  # the verdict on what is proved and yet was not found
NOT_MEASURED = "not measured"  # the number is none
DIFFERENT = {part: f"not the paper's {part}" for part in ("network", "data", "size")}
VERDICTS = (
    "reproduces", "does not reproduce", *DIFFERENT.values(), "holds", "does not hold", VIOLATED, NOT_MEASURED
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A network, or a body of data.

    **Attributes:**

    - `key`: What tells it from others: two subjects are the same if their keys are.
    - `words`: What a reader is told that it is.

    Source: this library.
    """

    key: str
    words: str


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

    Source: this library.
    """

    work: str
    networks: Subject | tuple[Subject, ...]
    data: Subject | tuple[Subject, ...]
    size: Mapping[str, Number] = field(default_factory=dict)
    least: Mapping[str, Number] = field(default_factory=dict)

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

    Source: this library.
    """

    network: Subject
    data: Subject
    size: Mapping[str, Number | tuple[Number, ...]]

    @property
    def words(self) -> str:
        """The three in one line, for a reader."""
        numbers = ", ".join(_number(name, value) for name, value in self.size.items())
        return f"{self.network.words}; {self.data.words}; {numbers}"

    def record(self) -> dict[str, Any]:
        """The same for a JSON file."""
        return {
            "network": {"key": self.network.key, "words": self.network.words},
            "data": {"key": self.data.key, "words": self.data.words},
            "size": {name: list(value) if isinstance(value, tuple) else value for name, value in self.size.items()},
        }


def differences(source: Source, measured: Measured) -> tuple[str, ...]:
    """Which of "network", "data" and "size" are not those of the source.

    **Raises:**

    - `ValueError` if the source names a number that the experiment does not state: without it nothing can be said.

    Source: this library.
    """
    missing = [name for name in (*source.size, *source.least) if name not in measured.size]
    if missing:
        raise ValueError(
            f"measured must state the size that {source.work} names, but it has no {', '.join(map(repr, missing))}; "
            "add what was run."
        )
    same_size = all(any(_equal(value, run) for run in _all(measured.size[name])) for name, value in source.size.items())
    enough = all(max(_all(measured.size[name])) >= value for name, value in source.least.items())
    found = {
        "network": _is_one_of(measured.network, source.networks),
        "data": _is_one_of(measured.data, source.data),
        "size": same_size and enough,
    }
    return tuple(part for part, same in found.items() if not same)


def judge(kind: Kind, holds: bool, value: float | None, source: Source | None, measured: Measured) -> str:
    """The verdict on a claim: one of `VERDICTS`. Where several parts differ, it names the first of network, data, size.

    Source: this library.
    """
    if value is not None and math.isnan(value):
        return NOT_MEASURED
    return verdict_on(kind, holds, () if source is None else differences(source, measured))


def verdict_on(kind: Kind, holds: bool, apart: Sequence[str]) -> str:
    """The same by what differs.

    Source: this library.
    """
    if kind == "identity":
        return "holds" if holds else VIOLATED
    if kind == "finding":
        return "holds" if holds else "does not hold"
    return DIFFERENT[apart[0]] if apart else "reproduces" if holds else "does not reproduce"


def _is_one_of(subject: Subject, wanted: Subject | tuple[Subject, ...]) -> bool:
    return any(one.key in (subject.key, ANY.key, UNSAID.key) for one in _several(wanted))


def _several(subjects: Subject | tuple[Subject, ...]) -> tuple[Subject, ...]:
    return (subjects,) if isinstance(subjects, Subject) else subjects


def _all(value: Number | Iterable[Number]) -> tuple[Number, ...]:
    return (value,) if isinstance(value, int | float) else tuple(value)


def _equal(one: Number, other: Number) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=0.0)


def _number(name: str, value: Number | Iterable[Number]) -> str:
    return f"{name} = {', '.join(f'{one:.10g}' for one in _all(value))}"
