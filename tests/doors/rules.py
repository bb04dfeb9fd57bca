"""Which bad values an argument may take after all, and why: a door may still refuse them, in the clear form."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """The labels of `values.VALUES` that are accepted, and the reason.

    `anything` also lets the result be what it is: numbers of it are not looked at. What is `endless` is accepted and
    takes hours: it is never called.
    """

    accepts: frozenset[str]
    reason: str
    anything: bool = False
    endless: bool = False

    def __or__(self, other: "Rule") -> "Rule":
        reasons = "; ".join(filter(None, (self.reason, other.reason)))
        return Rule(self.accepts | other.accepts, reasons, self.anything or other.anything)


def rule(labels: str, reason: str, anything: bool = False) -> Rule:
    return Rule(frozenset(label.strip() for label in labels.split(",") if label.strip()), reason, anything)


_ABOVE = "one and a half, huge number, huge integer"

NOTHING = rule("", "")
NONE = rule("none", "None is the default, or means that there is none")
POSITIVE = rule(f"{_ABOVE}", "a number above zero")
NUMBER = rule(f"minus one, zero, {_ABOVE}", "any finite real number")
TRACED = rule("traced", "its value may be traced: no value of it compiles anew")
ONE = rule(f"true, minus one, zero, {_ABOVE}", "any finite real number")
ARRAY = rule("list, traced", "lists of numbers are arrays, and its values may be traced")
LIST = rule("list", "a list of numbers is an array")
BATCH = rule("more axes", "further axes in front are mapped over")
FLAG = rule("true", "a flag")
TEXT = rule("text", "any text")
ANY_TEXT = rule("text, empty text", "any text, the empty one too")
PATH = rule("text", "a name of a file or folder")
COUNT = rule("zero", "zero of them is a count")
SIZE = rule("other shape", "any number of rows and columns")
AXIS = rule("text", "a name of an axis of devices")
LONG = rule("long list", "as many numbers as wanted")
OVERFLOWN = rule("nan array, inf array", "queries may have overflown: no series serves them")
OF_NONE = rule("empty dict", "a dictionary of nothing")
EMPTY = rule("empty list, empty array", "of none there is none")
TEXTS = rule("list of text, text array", "a list or an array of texts")
PARAMETERS = rule("ragged, long list, list of none, list", "a list of parameters")
INFINITE = rule("inf", "infinity is the limit")
CLASS_OF_FLOATS = rule("class", "float is a dtype")
CALLABLE = rule("class, function", "classes and functions can be called")
ANYTHING = rule(
    "none, true, minus one, zero, one and a half, nan, inf, complex, text, empty text, bytes, empty list, empty dict, "
    "object, class, function, empty array, nan array, inf array, complex array, text array, ragged, more axes, "
    "other shape, huge integer, huge number, long list, list of text, list of none, list, endless, traced",
    "handed on as it is",
    True,
)


def by_value(good: object) -> Rule:
    """What an argument whose good value is this may take besides, where its case does not say more."""
    if good is None:
        return NONE
    if isinstance(good, bool):
        return FLAG
    if isinstance(good, float):
        return POSITIVE
    if hasattr(good, "dtype") and hasattr(good, "shape"):
        return ARRAY if getattr(good, "shape", ()) else NUMBER | TRACED
    return NOTHING
