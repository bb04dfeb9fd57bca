"""Every parameter of public functions and constructors has a type; where it is `Any`, this file gives the reason."""

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from tests.house.test_docs import NAMES


HANDED_ON = "whatever the user's own function takes: it is handed on as it is"
KEYWORDS = "keyword arguments of several types, which another constructor checks by name"

# Each public parameter that may be anything, and the reason why its type is not narrower.
ANYTHING = {
    "simulate args": HANDED_ON,
    "iterate args": HANDED_ON,
    "time_to_cluster args": HANDED_ON,
    "propagator args": HANDED_ON,
    "modes args": HANDED_ON,
    "lipschitz args": HANDED_ON,
    "plot.style overrides": "settings of matplotlib, each of a type of its own",
    "sweep.run executor": "what has a method submit: executors share no class",
    "probe.Controls trained": "what the user's own measure returned",
    "probe.Controls shuffled": "what the user's own measure returned",
    "probe.Model config": "a configuration of transformers, whose classes differ from version to version",
    "transformer.LanguageModel.random options": KEYWORDS,
    "transformer.Transformer.random options": KEYWORDS,
    "transformer.save further": "values of JSON, which may be nested",
}


def is_anything(annotation: Any) -> bool:
    """True if a parameter with this annotation may be anything: `Any`, `Any | None`, or no annotation."""
    if annotation is inspect.Parameter.empty or annotation is Any:
        return True
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(map(is_anything, typing.get_args(annotation)))
    return False


def callables(name: str, value: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The callables of a public name: a function itself, or the constructor and the public methods of a class."""
    if not inspect.isclass(value):
        yield name, value
        return
    if not value.__name__.startswith("Abstract"):
        yield name, value
    for method, held in vars(value).items():
        function = held.__func__ if isinstance(held, classmethod | staticmethod) else held
        if inspect.isfunction(function) and not method.startswith("_"):
            yield f"{name}.{method}", function


def parameters(names: dict[str, Any]) -> dict[str, Any]:
    """The annotation of each parameter of these callables, under the names of the callable and the parameter."""
    return {
        f"{called.removeprefix('clusterjax.')} {parameter.name}": parameter.annotation
        for name, value in names.items()
        for called, function in callables(name, value)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    }


PARAMETERS = parameters(NAMES)


def test_public_parameters_have_types():
    assert len(PARAMETERS) > 1000
    untyped = {name for name, annotation in PARAMETERS.items() if is_anything(annotation)}
    assert sorted(untyped - set(ANYTHING)) == [], "give these a type, such as those of clusterjax/_base/types.py"
    assert sorted(set(ANYTHING) & set(PARAMETERS) - untyped) == [], "these have a type by now: take them off the list"
    assert len(ANYTHING) <= 14 and all(ANYTHING.values())
