"""Checks of objects other than numbers: modules, flags, texts, paths, functions, PRNG keys, dtypes."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._misc import is_concrete, too_deep
from ._numbers import check_unmasked
from ._words import refusal, shown


_T = TypeVar("_T")


def check_instance(value: Any, name: str, kind: type[_T] | tuple[type, ...], rule: str, remedy: str) -> _T:
    """`value`, if it is an instance of `kind`, which `rule` describes in words, such as "a mask of clusterjax".

    **Raises:**

    - `ValueError` naming the argument, what it was and what to do.
    """
    if not isinstance(value, kind):
        what = f"it is {shown(value)}"
        # The class in place of an instance is a frequent mistake.
        if isinstance(value, type) and issubclass(value, kind):
            what, remedy = f"it is the class {value.__name__} itself", f"pass an instance, {value.__name__}(...)"
        # A word, which other libraries accept, is another one.
        elif isinstance(value, str):
            meant = named_by(value, kind)
            remedy = remedy if meant is None else f"pass {meant}"
        raise refusal(name, f"be {rule}", what, remedy)
    return value  # pyright: ignore[reportReturnType]


def named_by(word: str, kind: type | tuple[type, ...]) -> str | None:
    """The call that makes the object named by `word`, such as `CausalMask()` for "causal"; None if there is none.

    The class is the one with the shortest name among the public subclasses of `kind` whose names begin with the word.
    """
    waiting, found = list(kind if isinstance(kind, tuple) else (kind,)), []
    word = "".join(filter(str.isalnum, word)).lower()
    while word and waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__name__.lower().startswith(word) and not inspect.isabstract(cls):
            found.append(cls)
    for cls in sorted(found, key=lambda cls: len(cls.__name__)):
        library, *parts = cls.__module__.split(".")
        # The call uses the public name of the class, in the library or a part of it; private classes have none.
        for place in (library, ".".join((library, *parts[:1]))):
            public = library in ("clusterjax", "diffrax", "optimistix") and "._" not in place
            if public and getattr(sys.modules.get(place), cls.__name__, None) is cls:
                owner = place.removeprefix("clusterjax").removeprefix(".")
                return f"{owner + '.' if owner else ''}{cls.__name__}({'' if _needs_nothing(cls) else '...'})"
    return None


def _needs_nothing(cls: type) -> bool:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not inspect.Parameter.empty or p.kind in kinds for p in parameters)


def check_flag(value: Any, name: str) -> bool:
    """`value`, if it is True or False.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    if not isinstance(value, bool | np.bool_):
        raise refusal(name, "be True or False", f"it is {shown(value)}", "pass one of the two")
    return bool(value)


def check_text(value: Any, name: str, *, empty: bool = False) -> str:
    """`value`, if it is a string, not empty unless `empty`.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    if not isinstance(value, str) or not (value or empty):
        raise refusal(
            name, "be a string" if empty else "be a string that is not empty", f"it is {shown(value)}", "pass text"
        )
    return value


def check_choice(value: Any, name: str, choices: Iterable[str]) -> str:
    """`value`, if it is one of `choices`.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    # The choices are read twice below: an iterator would be empty the second time.
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(map(repr, choices))
        raise refusal(name, f"be one of {listed}", f"it is {shown(value)}", "pass one of these")
    return value


def check_callable(value: Any, name: str, what: str = "a function", *, takes: int | None = None) -> Callable[..., Any]:
    """`value`, if it can be called; `what` describes the function, such as "a function of t, x and args".

    **Arguments:**

    - `takes`: The number of positional arguments that it must accept; it then may not be a class. None does not check.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    if not callable(value) or takes is not None and isinstance(value, type):
        raise refusal(name, f"be {what}", f"it is {shown(value)}", _function_named(value))
    # The signatures of built-in methods may include `self`.
    if takes is not None and not inspect.isbuiltin(value):
        try:
            inspect.signature(value).bind(*[None] * takes)
        except TypeError:
            remedy = f"give it {takes} argument{'s' if takes > 1 else ''}"
            raise refusal(name, f"be {what}", f"{shown(value)} takes others", remedy) from None
        except ValueError:  # the function has no signature
            pass
    return value


def _function_named(value: Any) -> str:
    """The remedy for a value that cannot be called: the function of jax with that name, if `value` is a word."""
    for module, owner in ((jax.nn, "jax.nn"), (jnp, "jax.numpy")):
        if isinstance(value, str) and callable(getattr(module, value, None)) and not value.startswith("_"):
            return f"pass {owner}.{value}"
    return "pass one that can be called"


# The errors of jax where the numbers of a traced array are needed.
_NUMBERS_ASKED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def call_traced(function: Callable[..., Any], name: str, what: str, /, *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, for a function that jax must be able to trace; `what` is as in `check_callable`.

    **Raises:**

    - `ValueError` naming the argument if the function needs the numbers of an array, as `math`, NumPy and `if` do.
    """
    try:
        return function(*args, **kwargs)
    except (*_NUMBERS_ASKED, TypeError, ValueError) as error:
        # Outside of `jit`, `math` and `if` raise these errors for arrays of more than one number.
        words = ("converted to Python scalars", "truth value of an array")
        if not isinstance(error, _NUMBERS_ASKED) and not any(word in str(error) for word in words):
            raise
        asked = f"{shown(function)} needs the value of {what.removeprefix('a function of ')}, as math, numpy and if do"
        remedy = "use jax.numpy, such as jnp.exp, and jnp.where(condition, a, b) in place of if"
        raise refusal(name, f"be {what} that jax can trace", asked, remedy) from error


def check_say(value: Any, name: str = "say") -> Callable[[str], Any]:
    """`value`, if it is a function of one line of progress.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    return check_callable(value, name, "a function of one line of text", takes=1)


def check_concrete(value: Any, name: str) -> None:
    """Raise a ValueError if `value` is traced, where its numbers are needed."""
    if not is_concrete(value):
        raise refusal(name, "have a value", "it is traced", "call this outside of jit, grad and vmap")


def check_args(args: Any) -> Any:
    """`args` of a field or a layer, if JAX accepts all of it, which excludes arrays of text or of objects.

    **Raises:**

    - `ValueError` naming the argument, what it holds and what to do.
    """
    if too_deep(args):
        raise refusal("args", "be nested at most 32 deep", f"it is {shown(args)}", "pass its arrays in one list")
    # "V" is the kind of the dtypes of JAX that NumPy lacks, such as bfloat16.
    for leaf in jtu.tree_leaves(args):
        check_unmasked(leaf, "args")
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biufcV":
            raise refusal("args", "hold arrays of numbers", f"it holds one of {leaf.dtype}", "pass numbers, or a list")
    return args


def check_path(value: Any, name: str) -> Path:
    """`value` as a path, if it is a string or a path that can name a file.

    **Raises:**

    - `ValueError` naming the argument, its value and what to do.
    """
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes) or not os.fspath(value):
        raise refusal(name, "be a path", f"it is {shown(value)}", "pass a string or a pathlib.Path")
    # The operating system would raise an error that does not name the argument.
    if "\0" in os.fspath(value):
        raise refusal(name, "be a path", "it holds the character NUL", "leave that character out")
    return Path(value)


def check_sequence(value: Any, name: str, kind: type[_T] | tuple[type, ...], rule: str, *, least: int = 1) -> list[_T]:
    """`value` as a list, if it is a sequence (not a string) of at least `least` instances of `kind`.

    **Arguments:**

    - `rule`: The description of its entries, in the plural, such as "strings".

    **Raises:**

    - `ValueError` naming the argument, what it was and what to do.
    """
    what = f"be a sequence of {rule}" + (f", at least {least}" if least else "")
    try:
        # Strings and dictionaries are iterable, but are mistakes as lists of texts; traced arrays have no entries. An
        # object without a length, such as a generator, may be infinite.
        entries = (
            list(value) if hasattr(value, "__len__") and not isinstance(value, str | bytes | dict | Tracer) else None
        )
    except TypeError:  # the object cannot be iterated over
        entries = None
    if entries is None:
        raise refusal(name, what, f"it is {shown(value)}", f"pass a list of {rule}")
    for index, entry in enumerate(entries):
        if not isinstance(entry, kind) or isinstance(entry, bool) and kind is int:
            raise refusal(name, what, f"entry {index} is {shown(entry)}", f"pass a list of {rule}")
    if len(entries) < least:
        raise refusal(name, what, f"it holds {len(entries)}", "pass more of them")
    return entries


def check_key(key: Any, name: str = "key") -> Any:
    """`key`, if it is a single PRNG key of jax: of `jax.random.key`, or of the older `jax.random.PRNGKey`.

    **Raises:**

    - `ValueError` naming the argument, what it was and what to do.
    """
    # New-style keys are scalars of a key dtype, old-style keys vectors of uint32.
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()
    raw = isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and np.ndim(key) == 1
    if not (typed or raw):
        raise refusal(name, "be one PRNG key of jax", f"it is {shown(key)}", "pass jax.random.key(0), for example")
    return key


def check_float_dtype(dtype: Any, name: str = "dtype") -> Any:
    """`dtype` as a NumPy dtype, if it is a floating dtype (None stays None).

    **Raises:**

    - `ValueError` naming the argument, what it was and what to do.
    """
    if dtype is None:
        return None
    try:
        # `jnp.dtype` accepts an array or a NumPy number, and returns its dtype, but such an argument is a mistake.
        checked = None if isinstance(dtype, jax.Array | np.ndarray | np.generic) else jnp.dtype(dtype)
    except (TypeError, ValueError, AttributeError):
        checked = None
    if checked is None or not jnp.issubdtype(checked, jnp.floating):
        raise refusal(name, "be a floating dtype", f"it is {shown(dtype)}", "pass jax.numpy.float32, for example")
    return checked
