"""Finds the doors, calls each with one argument replaced, and judges the outcome."""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from tests.doors.good import good_values
from tests.doors.inside import is_door, split
from tests.doors.rules import ANYTHING, ENDLESS, NOT_FINITE, PAIRED, SLOW, UNBOUNDED, accepted
from tests.doors.values import TRACED, VALUES, Hang, is_numeric, traced_like


@dataclasses.dataclass(frozen=True)
class Door:
    """A public callable, its name with that of its module, and a small valid call of it."""

    name: str
    called: Callable[..., Any]

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters with a name of their own, without `self` and parameters with a star."""
        parameters = inspect.signature(self.called).parameters.items()
        starred = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {name: one for name, one in parameters if name != "self" and one.kind not in starred}

    @functools.cached_property
    def good(self) -> dict[str, Any]:
        """The good value of each argument that has one; the others have their defaults."""
        module, rest = split(self.name)
        own, shared = good_values(module), good_values("")
        good = dict(own.get(f"{rest}.*", {}))
        for name, parameter in self.parameters.items():
            needed = parameter.default is parameter.empty
            if name in good:
                continue
            if (key := next((key for key in (f"{rest}.{name}", name) if key in own), None)) is not None:
                good[name] = own[key]
            elif name in shared and (needed or parameter.default is None):
                good[name] = shared[name]
            else:
                assert not needed, f"{self.name} needs a good value of {name} in tests/doors/good.py"
        return good

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """Each argument with its good value or its default."""
        defaults = {name: one.default for name, one in self.parameters.items() if one.default is not one.empty}
        return defaults | self.good

    @functools.cached_property
    def owner(self) -> Any:
        """The object whose method is called; None for a function, a class and a method of a class."""
        module, rest = split(self.name)
        if "self" not in inspect.signature(self.called).parameters:
            return None
        cls = rest.rpartition(".")[0]
        own = good_values(module)
        if f"{cls}.self" in own:
            return own[f"{cls}.self"]
        return Door(self.name.rpartition(".")[0], getattr(_home(module), cls)).call()

    def call(self, /, **changed: Any) -> Any:
        """Makes the valid call with some arguments changed; positional-only arguments are passed by position."""
        target = self.called if self.owner is None else getattr(self.owner, self.name.rpartition(".")[2])
        values = self.good | changed
        first = [name for name, one in self.parameters.items() if one.kind is one.POSITIONAL_ONLY]
        return target(*(values.pop(name) for name in first), **values)

    @property
    def seconds(self) -> float:
        """The seconds of computing after which a call counts as hanging."""
        return 100 if self.name.startswith(SLOW) else 10


def _home(module: str) -> Any:
    return importlib.import_module(f"clusterjax.{module}" if module else "clusterjax")


def doors(module: str) -> dict[str, Door]:
    """The doors of a module of clusterjax by name, with constructors and public methods of its classes."""
    called = {}
    for name in _home(module).__all__:
        value = getattr(_home(module), name)
        if callable(value):
            called[name] = value
        if inspect.isclass(value):
            called |= {f"{name}.{method}": getattr(value, method) for method in _methods(value)}
    names = {f"{module}.{name}" if module else name: value for name, value in called.items()}
    return {name: Door(name, value) for name, value in names.items() if is_door(name)}


def _methods(cls: type) -> Iterator[str]:
    fields = {entry.name for entry in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name in dir(cls):
        if name in fields or name.startswith("_") and name != "__call__":
            continue
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        is_property = isinstance(inspect.getattr_static(owner, name), property)
        if owner.__module__.startswith("clusterjax") and not is_property and callable(getattr(cls, name)):
            yield name


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raises `Hang` in the main thread after so many seconds of computing, where the system can; raises it again each
    second in case the first was swallowed."""
    if not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise Hang(f"takes more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def folder_of_its_own() -> Iterator[None]:
    """Changes to a new folder, so that files of one call are not there for the next."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


INFINITE = "accepted, with numbers that are not finite"


def faults(door: Door, *, dear: bool) -> dict[str, str]:
    """The faults of a door, by argument and bad value.

    Unless `dear`, only every second bad value is tried, the even or the odd ones by the length of the names, and no
    value that may be accepted, since such a call computes.
    """
    found = {}
    for argument, good in door.arguments.items():
        place = f"{door.name}.{argument}"
        may = accepted(place, argument, good)
        if argument in door.parameters and door.parameters[argument].default is None:
            may |= {"none"}
        labels = (*VALUES, TRACED)
        for label in labels if dear else labels[len(place) % 2 :: 2]:
            handed_on = argument in ANYTHING or place in ENDLESS
            if handed_on and (place in ENDLESS or not dear) or label in may and not dear:
                continue
            with folder_of_its_own() if dear else contextlib.nullcontext():
                outcome = judge(door, argument, good, label)
            if outcome == "accepted" and label not in may and not handed_on:
                outcome = "wrongly accepted"
            elif outcome == INFINITE and (handed_on or place in UNBOUNDED):
                outcome = "accepted"
            if outcome not in ("refused", "accepted"):
                found[f"{place} = {label}"] = outcome
    return found


def judge(door: Door, argument: str, good: Any, label: str | Callable[[Any], Any]) -> str:
    """The outcome of the call with this argument replaced by a value of `VALUES` or of a function."""
    try:
        with alarm(door.seconds):
            if label != TRACED:
                out = door.call(**{argument: (label if callable(label) else VALUES[label])(good)})
            else:
                jax.eval_shape(lambda traced: (door.call(**{argument: traced}), None)[1], traced_like(good))
                return "accepted"
    except Hang as error:
        return str(error)
    except ValueError as error:
        if label == "masked" and is_numeric(good) and "masked" not in str(error):
            return f"not refused as masked: {_short(error)}"
        mismatched = label in ("other shape", "more axes", "empty array", "list", "long list", "empty list")
        mismatched |= f"{door.name}.{argument}" in PAIRED
        others = (*door.arguments, *parts_of(door)) if mismatched else ()
        return "refused" if is_clear(error, (argument, *others)) else f"{type(error).__name__}: {_short(error)}"
    except Exception as error:
        if isinstance(error, RuntimeError) and str(error).startswith("The run stopped at t = "):
            return "refused"
        return f"{type(error).__name__}: {_short(error)}"
    return "accepted" if door.name in NOT_FINITE or is_finite(out) else INFINITE


def parts_of(door: Door) -> set[str]:
    """The names of parts of a method's object and of arguments: an error about a misfit may name one of these."""
    leaves = jtu.tree_flatten_with_path((door.owner, door.good))[0]
    return {str(getattr(step, "name", "")) for path, _ in leaves for step in path} - {""}


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


def is_clear(error: ValueError, names: tuple[str, ...]) -> bool:
    """True if the message is one sentence `NAME must ..., but ...; REMEDY.` about one of these arguments."""
    message = str(error)
    if type(error) is not ValueError or not re.fullmatch(r"[^\n]+ must [^\n]+, but [^\n]+; [^\n]+\.", message):
        return False
    subject = message.partition(" must ")[0]
    return any(re.search(rf"(^|\W){re.escape(name)}\b", subject) for name in names)


def is_finite(out: Any) -> bool:
    """True if every floating-point number in a result is finite."""
    return all(
        np.all(np.isfinite(np.asarray(leaf))) for leaf in jtu.tree_leaves(out) if eqx.is_inexact_array_like(leaf)
    )
