"""Aliases of the types that public signatures use.

The type of a parameter that may depend on time is `Parameter` in `_model/schedule.py`, since it includes schedules.
"""

import inspect
from collections.abc import Sequence
from typing import Any, TypeAlias

import equinox as eqx
from jax.typing import DTypeLike as DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Real

from .checks import refusal, shown
from .numerics import too_deep


Tokens = Float[Array, "n d"]
Masses = Float[Array, " n"]
Values = Float[Array, "n k"]
Scalar = Float[Array, ""]
RealScalarLike = Real[ArrayLike, ""]
IntScalar: TypeAlias = int | Int[Array, ""]
BoolScalar: TypeAlias = bool | Bool[Array, ""]
Numbers: TypeAlias = ArrayLike | Sequence[Any]
"""An array of NumPy or JAX, a number, or a sequence of either."""


# `AbstractPart`: the base of all abstract modules, which reports every method and attribute that a subclass lacks.
#
# Python and equinox raise three different errors for missing methods, attributes and class attributes, and a user meets
# the next error only after correcting the previous one. `AbstractPart` reports all of them in one sentence, before any
# instance is built.


class _Meta(type(eqx.Module)):
    """Refuses an argument that contains itself, on which equinox's flattening of the arguments fails or never ends."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if any(map(too_deep, (*args, *kwargs.values()))):
            arguments = inspect.signature(cls).bind(*args, **kwargs).arguments
            name, value = next((name, value) for name, value in arguments.items() if too_deep(value))
            raise refusal(name, "not hold itself", f"it is {shown(value)}", "pass what ends")
        return type(eqx.Module).__call__(cls, *args, **kwargs)


class AbstractPart(eqx.Module, metaclass=_Meta):
    """A module that may have abstract methods and attributes, and that checks its arguments before equinox does.

    All abstract modules of the package derive from `AbstractPart`, and so do the concrete ones that users construct.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        message = lacking(cls)
        if message is not None:
            raise TypeError(message)
        return eqx.Module.__new__(cls)


def lacking(cls: type) -> str | None:
    """The error message that names the methods and attributes which `cls` must define; None if it lacks none."""
    methods: list[str] = []
    attributes: list[str] = []
    bases: list[str] = []
    abstract = set(cls.__abstractmethods__)
    variables = {*getattr(cls, "__abstractvars__", ()), *getattr(cls, "__abstractclassvars__", ())}
    # Names appear in the order of their definitions, those of the highest base class first.
    for base in reversed(cls.__mro__):
        declared = [name for name in {**base.__dict__.get("__annotations__", {}), **base.__dict__} if name in variables]
        declared += [name for name in base.__dict__ if name in abstract]
        for name in declared:
            listed = methods if name in abstract and callable(base.__dict__.get(name)) else attributes
            if name not in (*methods, *attributes):
                listed.append(name)
        if declared and base.__name__ not in bases:
            bases.append(base.__name__)
    if not methods and not attributes:
        return None
    parts = [_listed("method", methods), _listed("attribute", attributes)]
    missing = " and ".join(part for part in parts if part)
    if cls.__name__ in bases:
        return f"{cls.__name__} must be subclassed, since it is abstract; write {missing} in a class of your own."
    wants = f"{' and '.join(bases)} want{'s' if len(bases) == 1 else ''} of a subclass"
    return f"{cls.__name__} must have {missing}, which {wants}, but it has not; write what is missing."


def _listed(kind: str, names: list[str]) -> str:
    if not names:
        return ""
    joined = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"the {kind}{'s' if len(names) > 1 else ''} {joined}"
