"""Find the public callables, call each with one argument replaced, and judge what came of it."""

import contextlib
import dataclasses
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

from tests.doors.cases import Case
from tests.doors.rules import ANYTHING, ENDLESS, UNBOUNDED, accepted
from tests.doors.values import TRACED, VALUES, Hang, is_numeric, traced_like


def public(module: str) -> dict[str, Callable[..., Any]]:
    """The public callables of a module of clusterjax by name, with constructors and public methods of its classes."""
    home = importlib.import_module("clusterjax" + (f".{module}" if module else ""))
    found = {}
    for name in home.__all__:
        value = getattr(home, name)
        if not callable(value):
            continue
        found[name] = value
        if inspect.isclass(value):
            found |= {f"{name}.{method}": called for method, called in _methods(value)}
    return {f"{module}.{name}" if module else name: value for name, value in found.items()}


def _methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    fields = {entry.name for entry in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name in dir(cls):
        if name in fields or name.startswith("_") and name != "__call__":
            continue
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        value = inspect.getattr_static(owner, name)
        if (
            owner.__module__.startswith("clusterjax")
            and not isinstance(value, property)
            and callable(getattr(cls, name))
        ):
            yield name, getattr(cls, name)


NOT_FINITE = "accepted, with numbers that are not finite"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of one call: "refused", "accepted" or a fault in words."""

    name: str
    argument: str
    label: str
    outcome: str

    @property
    def where(self) -> str:
        return f"{self.name}({self.argument} = {self.label})"

    @property
    def is_fault(self) -> bool:
        return self.outcome not in ("refused", "accepted")


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise `Hang` in the main thread after so many seconds of computing, and again each second after, in case that
    the first was swallowed; where the system can."""
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


def arguments(called: Callable[..., Any], case: Case) -> dict[str, Any]:
    """Each argument of the callable with its good value or its default; not those collected by a star."""
    found = {}
    good = case.good()
    for name, parameter in inspect.signature(called).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        default = None if parameter.default is parameter.empty else parameter.default
        found[name] = good.get(name, default)
    unknown = set(good) - set(found)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(called).parameters.values())
    assert open_ended or not unknown, f"{called} has no arguments {sorted(unknown)}"
    return found | {name: good[name] for name in sorted(unknown)}


def bound(name: str, called: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """The callable itself, or the method of the object of the case."""
    return called if case.on is None else getattr(case.on(), name.rpartition(".")[2])


def call(name: str, called: Callable[..., Any], case: Case, /, **changed: Any) -> Any:
    """The valid call with some arguments changed, positional where the signature wants it so."""
    target = bound(name, called, case)
    values = {**case.good(), **changed}
    positional = [
        parameter.name
        for parameter in inspect.signature(target).parameters.values()
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    return target(*(values.pop(name) for name in positional), **values)


def walk(name: str, called: Callable[..., Any], case: Case, *, dear: bool) -> Iterator[Verdict]:
    """One verdict for each argument and each bad value; of accepted ones, which are computed with, only if `dear`."""
    parameters = inspect.signature(called).parameters
    for argument, good in arguments(called, case).items():
        place = f"{name}.{argument}"
        may = accepted(place, argument, good)
        may |= {"none"} if argument in parameters and parameters[argument].default is None else set()
        for label in (*VALUES, TRACED):
            handed_on = argument in ANYTHING or place in ENDLESS
            if handed_on and (place in ENDLESS or not dear) or label in may and not dear:
                continue
            outcome = judge(name, called, case, argument, good, label)
            if outcome == "accepted" and label not in may and not handed_on:
                outcome = "wrongly accepted"
            elif outcome == NOT_FINITE and (handed_on or place in UNBOUNDED):
                outcome = "accepted"
            yield Verdict(name, argument, label, outcome)


def judge(
    name: str, called: Callable[..., Any], case: Case, argument: str, good: Any, label: str | Callable[[Any], Any]
) -> str:
    """What comes of the call with this argument replaced, by a value of `VALUES` or of a function, in a folder of its
    own."""
    try:
        with alarm(case.seconds), tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            if label != TRACED:
                value = (label if callable(label) else VALUES[label])(good)
                out = call(name, called, case, **{argument: value})
            else:
                jax.eval_shape(
                    lambda traced: (call(name, called, case, **{argument: traced}), None)[1], traced_like(good)
                )
                return "accepted"
    except Hang as error:
        return str(error)
    except ValueError as error:
        if label == "masked" and is_numeric(good) and "masked" not in str(error):
            return f"not refused as masked: {_short(error)}"
        mismatched = label in ("other shape", "more axes", "empty array", "list", "long list", "empty list")
        others = (*arguments(called, case), *parts_of(case)) if mismatched else ()
        return "refused" if is_clear(error, (argument, *others)) else f"{type(error).__name__}: {_short(error)}"
    except Exception as error:
        return f"{type(error).__name__}: {_short(error)}"
    return "accepted" if not case.finite or is_finite(out) else NOT_FINITE


def parts_of(case: Case) -> set[str]:
    """What the object of a case and its arguments are made of: what does not fit them may be said of one of these."""
    leaves = jax.tree_util.tree_flatten_with_path((None if case.on is None else case.on(), case.good()))[0]
    return {str(getattr(step, "name", "")) for path, _ in leaves for step in path} - {""}


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


def is_clear(error: ValueError, names: tuple[str, ...]) -> bool:
    """Whether the message is one sentence of the form `NAME must ..., but ...; REMEDY.`, of one of these arguments."""
    message = str(error)
    if type(error) is not ValueError or not re.fullmatch(r"[^\n]+ must [^\n]+, but [^\n]+; [^\n]+\.", message):
        return False
    subject = message.partition(" must ")[0]
    return any(re.search(rf"(^|\W){re.escape(name)}\b", subject) for name in names)


def is_finite(out: Any) -> bool:
    """Whether every floating number in what was returned is finite."""
    return all(
        np.all(np.isfinite(np.asarray(leaf)))
        for leaf in jtu.tree_leaves(out, is_leaf=lambda node: node is None)
        if eqx.is_inexact_array_like(leaf)
    )
