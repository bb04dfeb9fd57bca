"""The parameters that an experiment declares: what a user may set, in which range, and what it is without that.

An experiment declares them as the fields of a frozen dataclass, each made by `parameter`. The measurement takes an
instance of that class, so that its numbers have names and types; `read_parameters` makes it from what a user set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from ..._base.checks import check_integer, check_number, check_text, refusal, shown
from .declared import in_words


_KEY = "parameter"  # of the metadata of a field
_P = TypeVar("_P")
Value = int | float


@dataclass(frozen=True)
class Parameter:
    """One number of an experiment that a user may set.

    **Attributes:**

    - `name`: Such as "beta".
    - `says`: What it is, in one line.
    - `default`: Its value if nobody sets it; an integer takes integers alone.
    - `quick`: The same for a quick run.
    - `least`, `most`: The range that it may lie in, both ends included; None is open.
    - `above`: What it must exceed; None is nothing.
    """

    name: str
    says: str
    default: Value
    quick: Value
    least: Value | None
    most: Value | None
    above: Value | None

    def check(self, value: Any) -> Value:
        """`value` as a number of this parameter, if it may be one."""
        remedy = f"set {self.says} in that range, or leave it at {self.default:g}"
        if isinstance(self.default, int):
            # Bounds may be floats such as 1e4; check_integer compares and prints integers.
            least, most = (None if bound is None else int(bound) for bound in (self.least, self.most))
            return check_integer(value, self.name, least=least, most=most, remedy=remedy)
        return check_number(value, self.name, least=self.least, most=self.most, above=self.above, remedy=remedy)

    @property
    def words(self) -> str:
        """Name and default, for a list."""
        return in_words(self.name, self.default, self.quick)


def parameter(
    default: Value,
    says: str,
    *,
    quick: Value | None = None,
    least: Value | None = None,
    most: Value | None = None,
    above: Value | None = None,
) -> Any:
    """A field of a frozen dataclass that declares a parameter of an experiment.

    **Arguments:**

    - `default`: Its value if nobody sets it; an integer takes integers alone.
    - `says`: What it is, in one line without a full stop.
    - `quick`: Its value in a quick run if nobody sets it; None is `default`.
    - `least`, `most`: The range that it may lie in, both ends included; None is open.
    - `above`: What it must exceed; None is nothing. Integers take `least`.

    **Returns:**

    What a dataclass takes as the default of a field.

    **Raises:**

    - `ValueError` if a default is not a number in the range, or `says` is no text.
    """
    # A boolean is an int of Python and no number of an experiment.
    kind = check_integer if isinstance(default, int) and not isinstance(default, bool) else check_number
    # Named, so that a message can say which bound refuses the default.
    bounds = {"least": least, "most": most, "above": above}
    for name, bound in bounds.items():
        if bound is not None:
            check_number(bound, name)
    default = kind(default, "default", least=None)
    quick = default if quick is None else kind(quick, "quick", least=None)
    outside = {
        "least": least is not None and default < least, "most": most is not None and default > most,
        "above": above is not None and default <= above,
    }  # fmt: skip
    if wrong := next((name for name, out in outside.items() if out), None):
        problem = f"it is {shown(bounds[wrong])}"
        raise refusal(wrong, f"allow the default, {default:g}", problem, "set another bound, or another default")
    # Under the name "default" until `parameters_of` knows the name of the field.
    declared = Parameter("default", check_text(says, "says"), default, quick, **bounds)
    # The quick value must lie in the same range; a message then names it.
    replace(declared, name="quick").check(quick)
    return field(default=declared.default, metadata={_KEY: declared})


@dataclass(frozen=True)
class NoParameters:
    """Of an experiment that has none to set."""


def parameters_of(kind: Any, name: str = "parameters") -> tuple[Parameter, ...]:
    """What a class of parameters declares, in order; `name` is that of the argument, for messages.

    **Raises:**

    - `ValueError` if it is no dataclass, or has a field that is not made by `parameter`.
    """
    rule, remedy = "be a frozen dataclass whose fields are made by parameter(...)", "write it so"
    # Frozen, as instances are static arguments of compiled functions and must have a hash.
    if not (isinstance(kind, type) and is_dataclass(kind) and kind.__dataclass_params__.frozen):  # pyright: ignore
        raise refusal(name, rule, f"it is {shown(kind)}", remedy)
    declared = []
    for entry in fields(kind):
        if _KEY not in entry.metadata:
            raise refusal(name, rule, f"{kind.__name__}.{entry.name} is not", remedy)
        declared.append(replace(entry.metadata[_KEY], name=entry.name))
    return tuple(declared)


def read_parameters(kind: type[_P], given: Mapping[str, Any], *, quick: bool = False, of: str = "it") -> _P:
    """An instance of a class of parameters: what is given, and the defaults of the rest.

    **Arguments:**

    - `kind`: The class.
    - `given`: Values by name.
    - `quick`: Whether the rest are those of a quick run.
    - `of`: Whose parameters they are, for messages.

    **Returns:**

    The instance.

    **Raises:**

    - `ValueError` for a name that is not declared, or a value that is not allowed.
    """
    declared = {entry.name: entry for entry in parameters_of(kind)}
    if unknown := [name for name in given if name not in declared]:
        raise undeclared(unknown, {of: tuple(declared.values())})
    values = {name: entry.quick if quick else entry.default for name, entry in declared.items()}
    # `__post_init__` of the class then checks what must fit together.
    return kind(**(values | {name: declared[name].check(value) for name, value in given.items()}))


def undeclared(names: Sequence[str], lacking: Mapping[str, Sequence[Parameter]]) -> ValueError:
    """The refusal of names that some experiments do not declare; `lacking` has what each of these does declare."""
    listed = {of: ", ".join(entry.name for entry in declared) or "none" for of, declared in lacking.items()}
    # The remedy lists what could be set, as long as that is few words.
    if len(listed) == 1:
        remedy = f"set what it has, {', '.join(listed.values())}, or leave it out"
    elif len(listed) <= 3:
        remedy = f"set what they all have ({'; '.join(f'{of}: {has}' for of, has in listed.items())})"
    else:
        remedy = "set what they all have, or leave these out"
    return refusal(
        "parameters", "be declared by every figure that is run",
        f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} not by {', '.join(lacking)}", remedy,
    )  # fmt: skip


def changed_parameters(values: Any, *, quick: bool = False) -> dict[str, tuple[Value, Value]]:
    """What is not as it is by default, of an instance of a class of parameters: name to value and default."""
    # By value and not by what was given: a parameter set to its default is not changed.
    plain = read_parameters(type(values), {}, quick=quick)
    pairs = {entry.name: (getattr(values, entry.name), getattr(plain, entry.name)) for entry in fields(values)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def changed_words(changed: Mapping[str, tuple[Value, Value]]) -> str:
    """The same for a reader."""
    return ", ".join(f"{name} = {value:.10g} in place of {plain:.10g}" for name, (value, plain) in changed.items())
