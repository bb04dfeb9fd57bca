"""The source of a claim, the measurement of an experiment, and the verdict that follows from a comparison of the two.

No verdict is written by hand: a claim of a paper has a `Source`, an experiment states its network, data and size as
`Measured`, and `differences` compares the two. The verdict is "reproduces" or "does not reproduce" only if network,
data and size are those of the source. Otherwise the verdict names the first of them that differs, and the number is
shown with the remark whether it would agree. Invariants: an identity holds or is VIOLATED on any network, data and
size; a run with parameters set by hand neither confirms nor refutes a paper.
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

VIOLATED = "VIOLATED"  # the verdict on an identity that does not hold
NOT_MEASURED = "not measured"  # the verdict on a claim whose number is NaN
DIFFERENT = {part: f"not the paper's {part}" for part in ("network", "data", "size")}
VERDICTS = (
    "reproduces", "does not reproduce", *DIFFERENT.values(), "holds", "does not hold", VIOLATED, NOT_MEASURED
)  # fmt: skip
FAILED = ("does not reproduce", "does not hold", VIOLATED)  # the verdicts on claims that the measurement contradicts


@dataclass(frozen=True)
class Subject:
    """A network, or a body of data.

    **Attributes:**

    - `key`: The identity: two subjects are equal if and only if their keys are equal.
    - `words`: The description for a reader.
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
    """The network, the data and the size of which a paper makes a claim.

    **Attributes:**

    - `work`: The paper, and the section or figure.
    - `networks`: The network, or several networks, any of which counts. `ANY` is a claim about all networks, such as a
        theorem, and `UNSAID` a network that the paper does not name; no run differs from these two.
    - `data`: The data, likewise.
    - `size`: Numbers that a run must have exactly: tokens, d, beta, layers, ...
    - `least`: Lower bounds of numbers of a run.
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
        """The work, network, data and size in one line, for a reader."""
        numbers = [_number(name, value) for name, value in self.size.items()]
        numbers += [f"{name} >= {value:g}" for name, value in self.least.items()]
        either = lambda subjects: " or ".join(subject.words for subject in _several(subjects))
        return (
            f"{self.work}: network: {either(self.networks)}; data: {either(self.data)}; size: "
            f"{', '.join(numbers) or 'any'}"
        )

    def record(self) -> dict[str, Any]:
        """The source as JSON."""
        return {
            "work": self.work,
            "networks": [subject.words for subject in _several(self.networks)],
            "data": [subject.words for subject in _several(self.data)],
            "size": dict(self.size),
            "least": dict(self.least),
        }


@dataclass(frozen=True)
class Measured:
    """The network, the data and the size that an experiment measured.

    **Attributes:**

    - `network`, `data`: The network and the data.
    - `size`: Numbers by name, or tuples of numbers if several sizes were run: tokens, d, beta, layers, starts, ...
    - `changed`: The parameters that were changed from their defaults, in words. `reproduce` sets this field.
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
        """The network, data, size and changed parameters in one line, for a reader."""
        numbers = ", ".join(_number(name, value) for name, value in self.size.items())
        changed = f"; set: {self.changed}" if self.changed else ""
        return f"{self.network.words}; {self.data.words}; {numbers}{changed}"

    def record(self) -> dict[str, Any]:
        """The measurement as JSON."""
        return {
            "network": {"key": self.network.key, "words": self.network.words},
            "data": {"key": self.data.key, "words": self.data.words},
            "size": {name: list(value) if isinstance(value, tuple) else value for name, value in self.size.items()},
        } | ({"changed": self.changed} if self.changed else {})


def differences(source: Source, measured: Measured) -> tuple[str, ...]:
    """Those of "network", "data" and "size" in which a measurement differs from the source. Raises a ValueError if the
    measurement does not state a number that the source names.

    If a parameter of the experiment was set by hand, the size counts as different even if all numbers agree: the
    criterion of the claim was chosen for the default parameters, and does not apply to other runs.
    """
    # A number that the experiment does not state is a mistake of the experiment, and not a difference.
    missing = [name for name in (*source.size, *source.least) if name not in measured.size]
    if missing:
        raise ValueError(
            f"measured must state the size that {source.work} names, but it has no {', '.join(map(repr, missing))}; "
            "add it to the size."
        )
    # If several sizes were run, one of them must be that of the paper. Betas and times are compared with a tolerance,
    # since they may be results of computations such as 0.1 + 0.2.
    same = lambda value, run: math.isclose(value, run, rel_tol=1e-9, abs_tol=0.0)
    same_size = all(any(same(value, run) for run in _all(measured.size[name])) for name, value in source.size.items())
    # The largest run is compared with a lower bound.
    enough = all(max(_all(measured.size[name])) >= value for name, value in source.least.items())
    agrees = {
        "network": _is_one_of(measured.network, source.networks),
        "data": _is_one_of(measured.data, source.data),
        "size": same_size and enough and not measured.changed,
    }
    return tuple(part for part in agrees if not agrees[part])


def judge(kind: Kind, holds: bool, apart: Sequence[str], value: float | None = None) -> str:
    """The verdict on a claim, one of `VERDICTS`; `apart` are the `differences` from the source of the claim, of which
    the first decides."""
    # A number that could not be measured is NaN; the criterion, which may be True or False, is then meaningless.
    if value is not None and math.isnan(value):
        return NOT_MEASURED
    if kind == "identity":
        return "holds" if holds else VIOLATED
    if kind == "finding":
        return "holds" if holds else "does not hold"
    return DIFFERENT[apart[0]] if apart else "reproduces" if holds else "does not reproduce"


def _is_one_of(subject: Subject, wanted: Subject | tuple[Subject, ...]) -> bool:
    return any(candidate.key in (subject.key, ANY.key, UNSAID.key) for candidate in _several(wanted))


def _several(subjects: Subject | tuple[Subject, ...]) -> tuple[Subject, ...]:
    return (subjects,) if isinstance(subjects, Subject) else subjects


def _all(value: Number | Iterable[Number]) -> tuple[Number, ...]:
    return (value,) if isinstance(value, int | float) else tuple(value)


def _number(name: str, value: Number | Iterable[Number]) -> str:
    return f"{name} = {', '.join(f'{number:.10g}' for number in _all(value))}"


_REMEDY = 'pass Subject("uniform", "uniform tokens"), for example'


def _check_subjects(value: Any, name: str) -> None:
    """Raise a ValueError unless `value` is a subject, or a tuple of one or more subjects."""
    subjects = value if isinstance(value, tuple) else (value,)
    if not subjects or not all(isinstance(subject, Subject) for subject in subjects):
        raise refusal(name, "be a Subject, or a tuple of several", f"it is {shown(value)}", _REMEDY)


def _checked_size(value: Any, name: str, *, several: bool) -> dict[str, Any]:
    """A dict of numbers by name, with NumPy scalars as Python numbers; if `several`, an entry may be a tuple."""
    rule = f"be a dict of finite numbers{', or tuples of them,' if several else ''} by name"
    remedy = 'pass {"tokens": 64}, for example'
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refusal(name, rule, f"it is {shown(value)}", remedy)
    checked = {}
    for key, entry in value.items():
        entries = entry if several and isinstance(entry, tuple) else (entry,)
        if not entries or not all(map(_is_number, entries)):
            raise refusal(name, rule, f"{key!r} is {shown(entry)}", remedy)
        # A NumPy integer is not an `int`, and JSON cannot store it.
        plain = tuple(number.item() if isinstance(number, np.generic) else number for number in entries)
        checked[key] = plain if isinstance(entry, tuple) else plain[0]
    return checked


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value)
