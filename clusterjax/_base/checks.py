"""The checks of all public arguments: each returns the argument as the package uses it, or raises a ValueError.

All messages have the form `NAME must RULE, but FOUND; REMEDY.`: the name of the argument, its value, and the remedy. A
value is shown in a few characters, however large it is, so that a message is one line for every argument. For traced
arrays only shapes and dtypes are checked, not values.
"""

import inspect
import math
import operator
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from .numerics import as_array, as_float, is_concrete, leaves_unless_plain, too_deep, warn_of_rounding


# The largest number of characters of a value in a message.
_SHOWN = 60


# Complex tokens of C^d are real tokens of R^(2d), on which a complex matrix acts as a real one.
PAIRS = (
    "write each coordinate a + ib of tokens as the pair a, b, and each entry a + ib of matrices as [[a, -b], [b, a]]"
)


def shown(value: Any) -> str:
    """`value` in a message: a short literal, the shape and dtype of an array, or the kind of any other object."""
    if isinstance(value, jax.Array | np.ndarray) and (np.ndim(value) or not is_concrete(value)):
        return f"an array of shape {np.shape(value)} and dtype {value.dtype}"
    if isinstance(value, jax.Array | np.generic | np.ndarray):
        return str(value)
    # Python converts at most 4300 digits to text.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return f"an integer of {value.bit_length()} bits"
    # Literals are printed, long ones shortened.
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | os.PathLike):
        short = reprlib.Repr()
        short.maxstring = short.maxother = short.maxlong = _SHOWN
        return short.repr(str(value) if isinstance(value, os.PathLike) else value)
    if too_deep(value):
        return f"a {type(value).__name__} that is nested more than 32 deep"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"a {type(value).__name__} of {len(value)}" if value else f"an empty {type(value).__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    article = "an" if type(value).__name__[:1].lower() in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


def refusal(name: str, rule: str, found: str, remedy: str) -> ValueError:
    """The error of an argument that violates `rule`; `found` describes its value, and `remedy` the correct argument."""
    return ValueError(f"{name} must {rule}, but {found}; {remedy}.")


def range_words(least: Any, most: Any, above: Any = None, below: Any = None) -> str:
    """The words of a range, to follow "a number" or "an integer"."""
    words = []
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if least is not None:
        words.append(f"at least {least}")
    if above is not None:
        words.append(f"above {above}")
    if most is not None:
        words.append(f"at most {most}")
    if below is not None:
        words.append(f"below {below}")
    return (" " if above is not None and least is None else " of ") + " and ".join(words) if words else ""


# The largest count or size: a larger one would overflow a 64-bit index.
LARGEST = 2**63 - 1


def check_integer(
    value: Any, name: str, *, least: int | None = 1, most: int | None = None, remedy: str | None = None
) -> int:
    """`value` as an int, if it is an integer (of Python or NumPy, not a boolean) from `least` to `most`."""
    # The most frequent rule has its own words.
    if most is None and least == 1:
        rule = "be a positive integer"
    else:
        rule = f"be an integer{range_words(least, most)}"
    remedy = remedy or f"pass {'an integer' if least is None else least} or another in that range"
    check_unmasked(value, name)
    try:
        # `operator.index` accepts booleans, and raises other errors for traced values.
        if isinstance(value, bool | np.bool_) or not is_concrete(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise refusal(name, rule, f"it is {shown(value)}", remedy) from None
    if (least is not None and number < least) or number > (LARGEST if most is None else most) or number < -LARGEST:
        raise refusal(name, rule, f"it is {shown(number)}", remedy)
    return number


def check_number(
    value: Any,
    name: str,
    *,
    least: float | int | None = None,
    most: float | int | None = None,
    above: float | int | None = None,
    below: float | int | None = None,
    remedy: str | None = None,
) -> float:
    """`value` as a float, if it is a finite real number in the range; for numbers that are never traced."""
    bounds = range_words(least, most, above, below)
    rule = f"be a finite number{bounds}"
    remedy = remedy or "pass such a number"
    check_unmasked(value, name)
    number = None
    kinds = bool | np.bool_ | complex | str | bytes | list | tuple | dict
    if is_concrete(value) and not isinstance(value, kinds) and getattr(value, "ndim", 0) == 0:
        try:
            # JAX and NumPy arrays of shape () count as numbers.
            number = float(np.asarray(value)) if hasattr(value, "dtype") else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
    # NaN is not finite, and is refused here, although no comparison with a bound rejects it.
    if (
        number is None
        or np.iscomplexobj(value)
        or not math.isfinite(number)
        or (least is not None and number < least)
        or (most is not None and number > most)
        or (above is not None and number <= above)
        or (below is not None and number >= below)
    ):
        raise refusal(name, rule, f"it is {shown(value)}", remedy)
    return number


def check_unmasked(value: Any, name: str, remedy: str | None = None) -> None:
    """Raise a ValueError if `value` is a NumPy masked array with masked entries, whose numbers mean nothing.

    **Arguments:**

    - `remedy`: The remedy in the message; None advises the user to leave these entries out, or to fill them.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        remedy = remedy or f"leave these out, or fill them, such as by {name}.filled(0)"
        problem = f"{np.ma.count_masked(value)} of {value.size} are"
        raise refusal(name, "hold no entries that are masked", problem, remedy)


_T = TypeVar("_T")


def check_instance(value: Any, name: str, kind: type[_T] | tuple[type, ...], rule: str, remedy: str) -> _T:
    """`value`, if it is an instance of `kind`, which `rule` describes in words, such as "a mask of clusterjax"."""
    if not isinstance(value, kind):
        problem = f"it is {shown(value)}"
        # The class in place of an instance is a frequent mistake.
        if isinstance(value, type) and issubclass(value, kind):
            problem, remedy = f"it is the class {value.__name__} itself", f"pass an instance, {value.__name__}(...)"
        # A string, which other libraries accept, is another frequent mistake.
        elif isinstance(value, str):
            meant = named_by(value, kind)
            remedy = remedy if meant is None else f"pass {meant}"
        raise refusal(name, f"be {rule}", problem, remedy)
    return value  # pyright: ignore[reportReturnType]


def named_by(word: str, kind: type | tuple[type, ...]) -> str | None:
    """The call that makes the object named by `word`, such as `CausalMask()` for "causal"; None if there is none.

    The class is the one with the shortest name among the public subclasses of `kind` whose names begin with the word.
    """
    waiting, classes = list(kind if isinstance(kind, tuple) else (kind,)), []
    word = "".join(filter(str.isalnum, word)).lower()
    while word and waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__name__.lower().startswith(word) and not inspect.isabstract(cls):
            classes.append(cls)
    for cls in sorted(classes, key=lambda cls: len(cls.__name__)):
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
    """`value`, if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise refusal(name, "be True or False", f"it is {shown(value)}", "pass one of the two")
    return bool(value)


def check_text(value: Any, name: str, *, empty: bool = False) -> str:
    """`value`, if it is a string, not empty unless `empty`."""
    if not isinstance(value, str) or not (value or empty):
        raise refusal(
            name, "be a string" if empty else "be a string that is not empty", f"it is {shown(value)}", "pass text"
        )
    return value


def check_choice(value: Any, name: str, choices: Iterable[str]) -> str:
    """`value`, if it is one of `choices`."""
    # The choices are read twice below: an iterator would be empty the second time.
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(map(repr, choices))
        raise refusal(name, f"be one of {listed}", f"it is {shown(value)}", "pass one of these")
    return value


def check_callable(value: Any, name: str, what: str = "a function", *, takes: int | None = None) -> Callable[..., Any]:
    """`value`, if it can be called; `what` describes the function, such as "a function of t, x and args".

    **Arguments:**

    - `takes`: The number of positional arguments that `value` must accept, not being a class; None does not check.
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
    """`function(*args, **kwargs)`, for a function that jax must be able to trace; `what` is as in `check_callable`."""
    try:
        return function(*args, **kwargs)
    except (*_NUMBERS_ASKED, TypeError, ValueError) as error:
        if not _asks_for_numbers(error):
            raise
        raise _needs_values(function, name, what) from error


def _asks_for_numbers(error: Exception) -> bool:
    # Outside of `jit`, `math` and `if` raise these errors for arrays of more than one number.
    words = ("converted to Python scalars", "truth value of an array")
    return isinstance(error, _NUMBERS_ASKED) or any(word in str(error) for word in words)


def _needs_values(function: Callable[..., Any], name: str, what: str) -> ValueError:
    cause = f"{shown(function)} needs the value of {what.removeprefix('a function of ')}, as math, numpy and if do"
    remedy = "use jax.numpy, such as jnp.exp, and jnp.where(condition, a, b) in place of if"
    return refusal(name, f"be {what} that jax can trace", cause, remedy)


def check_traceable(function: Callable[..., Any], name: str, what: str, *shapes: tuple[int, ...]) -> None:
    """Raise the ValueError of `call_traced` if `function` needs the values of its arguments, arrays of these shapes.

    The function is traced, as in a run. Other errors of the function are raised at its first use in a run.
    """

    def call(*arrays: Array) -> None:
        function(*arrays)

    try:
        jax.eval_shape(call, *(jax.ShapeDtypeStruct(shape, jnp.result_type(float)) for shape in shapes))
    except Exception as error:
        if _asks_for_numbers(error):
            raise _needs_values(function, name, what) from error


def check_say(value: Any, name: str = "say") -> Callable[[str], Any]:
    """`value`, if it is a function of one line of progress."""
    return check_callable(value, name, "a function of one line of text", takes=1)


def check_concrete(value: Any, name: str) -> None:
    """Raise a ValueError if `value` is traced, where its numbers are needed."""
    if not is_concrete(value):
        raise refusal(name, "have a value", "it is traced", "call this outside of jit, grad and vmap")


def check_args(args: Any) -> Any:
    """`args` of a field or a layer, if JAX accepts all of it, which excludes arrays of text or of objects."""
    if too_deep(args):
        raise refusal("args", "be nested at most 32 deep", f"it is {shown(args)}", "pass its arrays in one list")
    # "V" is the kind of the dtypes of JAX that NumPy lacks, such as bfloat16.
    for leaf in jtu.tree_leaves(args):
        check_unmasked(leaf, "args")
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biufcV":
            raise refusal("args", "hold arrays of numbers", f"it holds one of {leaf.dtype}", "pass numbers, or a list")
    return args


def check_path(value: Any, name: str) -> Path:
    """`value` as a path, if it is a string or a path that can name a file."""
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
    """
    requirement = f"be a sequence of {rule}" + (f", at least {least}" if least else "")
    try:
        # Strings and dictionaries are iterable, but are mistakes as lists of texts; traced arrays have no entries. An
        # object without a length, such as a generator, may be infinite.
        entries = (
            list(value) if hasattr(value, "__len__") and not isinstance(value, str | bytes | dict | Tracer) else None
        )
    except TypeError:  # the object cannot be iterated over
        entries = None
    if entries is None:
        raise refusal(name, requirement, f"it is {shown(value)}", f"pass a list of {rule}")
    for index, entry in enumerate(entries):
        if not isinstance(entry, kind) or isinstance(entry, bool) and kind is int:
            raise refusal(name, requirement, f"entry {index} is {shown(entry)}", f"pass a list of {rule}")
    if len(entries) < least:
        raise refusal(name, requirement, f"it holds {len(entries)}", "pass more of them")
    return entries


def check_key(key: Any, name: str = "key") -> Any:
    """`key`, if it is a single PRNG key of jax: of `jax.random.key`, or of the older `jax.random.PRNGKey`."""
    # New-style keys are scalars of a key dtype, old-style keys vectors of uint32.
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()
    raw = isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and np.ndim(key) == 1
    if not (typed or raw):
        raise refusal(name, "be one PRNG key of jax", f"it is {shown(key)}", "pass jax.random.key(0), for example")
    return key


def check_float_dtype(dtype: Any, name: str = "dtype") -> Any:
    """`dtype` as a NumPy dtype, if it is a floating dtype (None stays None)."""
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


# Checks of arrays of numbers, of scalars that may be traced, and of clouds of tokens.
#
# Shapes and dtypes are always checked; values only where they are known at trace time. The result is a JAX array that
# is never weakly typed, so that a Python number and an array of the same dtype share one trace.


def check_array(value: Any, name: str, *, integers: bool = False, **options: Any) -> Array:
    """`value` as an array, if it has real numbers and this shape, and, where concrete, is finite and in the range.

    Lists, tuples, numbers and objects that NumPy can convert become arrays; without `integers` they are floats. The
    options are those of `_checked`.
    """
    array = _checked(value, name, integers, **options)
    check_fits(array, name, integers=integers)
    warn_of_rounding(value, name)
    return as_array(array) if integers else as_float(array)


def check_host_array(value: Any, name: str, *, integers: bool = False, **options: Any) -> np.ndarray:
    """The checks of `check_array` with the result as a NumPy array of its own precision: for functions never traced."""
    # float64 remains float64, whether x64 is enabled in JAX or not.
    check_concrete(value, name)
    array = np.asarray(_checked(value, name, integers, **options))
    return array if integers or np.issubdtype(array.dtype, np.floating) else array.astype(float)


def _checked(
    value: Any,
    name: str,
    integers: bool,
    *,
    shape: Sequence[int | str | None] | None = None,
    finite: bool = True,
    least: float | int | None = None,
    most: float | int | None = None,
    remedy: str = "pass such an array",
) -> Any:
    """Apply the checks of `check_array`, and return the array in its own dtype.

    **Arguments:**

    - `integers`: Whether the numbers must be integers.
    - `shape`: One entry per axis: its length, a name for a length of at least one, or None for any length; None allows
        any number of axes.
    - `finite`: Whether NaN and infinities are refused.
    """
    rule = f"be an array of {'integers' if integers else 'real numbers'}"
    if shape is not None:
        axes = ", ".join("any" if k is None else str(k) for k in shape)
        rule += f" of shape ({axes}{',' if len(shape) == 1 else ''})"
    array = as_numbers(value, name)
    if array is None:
        raise refusal(name, rule, f"it is {shown(value)}", remedy)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise refusal(name, "be real", f"its dtype is {array.dtype}", "pass its real part")
    if shape is not None and not _fits(np.shape(array), shape):
        raise refusal(name, rule, f"its shape is {np.shape(array)}", remedy)
    if integers and not array.size and not hasattr(value, "dtype"):
        array = array.astype(int)  # NumPy converts an empty list to floats
    if integers and not jnp.issubdtype(array.dtype, jnp.integer):
        raise refusal(name, rule, f"its dtype is {array.dtype}", remedy)
    if is_concrete(array):
        _check_values(np.asarray(array), name, finite and not integers, least, most, remedy)
    return array


def as_numbers(value: Any, name: str, *, masked: str | None = None) -> Any:
    """`value` as an array of booleans, integers, floats or complex numbers; None if it is something else.

    Every number that a user passes enters through this function. A masked array is accepted if none of its entries is
    masked; bytes are converted to the byte order of this machine. An array that is not a JAX array keeps its precision,
    which `check_fits` compares with that of JAX.

    **Arguments:**

    - `masked`: The remedy for masked entries, for the message.
    """
    if isinstance(value, jax.Array):
        return value if jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool else None
    # NumPy would convert these to arrays of text or objects, and never end for a list that contains itself.
    if isinstance(value, str | bytes | dict | set | frozenset | type) or value is None or too_deep(value):
        return None
    leaves = leaves_unless_plain(value) if isinstance(value, list | tuple) else []
    for leaf in leaves:
        check_unmasked(leaf, name, masked)
    if any(isinstance(leaf, jax.Array) for leaf in leaves):
        # NumPy cannot convert a list that contains traced arrays.
        try:
            return jnp.asarray(value)
        except (TypeError, ValueError, OverflowError):
            return None
    try:
        array = np.asanyarray(value)
    except Exception:  # an object that raises any error on conversion is not an array of numbers
        return None
    check_unmasked(array, name, masked)
    array = np.asarray(array)
    # Times and their differences, "m" and "M", count as integers in NumPy.
    if array.dtype.kind in "mM" or not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool):
        return None
    # LAPACK and JAX support nothing wider than double precision.
    if array.dtype.kind in "fc" and array.dtype.itemsize > (8 if array.dtype.kind == "f" else 16):
        return array.astype(float if array.dtype.kind == "f" else complex)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def check_fits(array: Any, name: str, dtype: Any = None, *, integers: bool = False) -> None:
    """Raise a ValueError if a float of `array` does not fit in `dtype`; None is the dtype that JAX would choose.

    Without x64 JAX silently converts numbers beyond the range of float32 to infinities, and wraps large integers.

    **Arguments:**

    - `integers`: Whether integers are checked, which remain integers; integers that become floats fit.
    """
    target = jax.dtypes.canonicalize_dtype(array.dtype) if dtype is None else jnp.dtype(dtype)
    narrower = target.itemsize < array.dtype.itemsize
    if not (narrower and jnp.issubdtype(array.dtype, jnp.integer if integers else jnp.floating) and is_concrete(array)):
        return
    values = np.asarray(array)
    with np.errstate(over="ignore"):
        rounded = values.astype(target)
    wrong = np.asarray(values != rounded if integers else np.isfinite(values) & ~np.isfinite(rounded))
    if wrong.any():
        largest = np.iinfo(target).max if integers else f"{float(jnp.finfo(target).max):.2g}"
        remedy = "pass tokens of float64, or smaller numbers"
        if dtype is None:
            remedy = 'call jax.config.update("jax_enable_x64", True) first, or pass smaller numbers'
        raise refusal(name, f"fit in {target}, which ends at {largest}", _first(values, wrong), remedy)


def _fits(axes: tuple[int, ...], shape: Sequence[int | str | None]) -> bool:
    return len(axes) == len(shape) and all(
        k == length if isinstance(length, int) else length is None or k >= 1
        for k, length in zip(axes, shape, strict=True)
    )


def _check_values(
    array: np.ndarray, name: str, finite: bool, least: float | int | None, most: float | int | None, remedy: str
) -> None:
    # Finiteness is checked first, since no comparison with a bound rejects NaN.
    bad = np.asarray(~np.isfinite(array)) if finite else np.zeros(array.shape, bool)
    if bad.any():
        raise refusal(name, "be finite", _first(array, bad), remedy)
    for bound, outside in ((least, np.less), (most, np.greater)):
        if bound is not None:
            bad = np.asarray(outside(array, bound))
            if bad.any():
                raise refusal(name, f"be{range_words(least, most)}".replace("be of", "be"), _first(array, bad), remedy)


def _first(array: np.ndarray, bad: np.ndarray) -> str:
    """The first entry of `array` for which `bad` is True, in words."""
    if array.ndim == 0:
        return f"it is {array}"
    index = tuple(int(k) for k in np.argwhere(bad)[0])
    return f"entry {index[0] if array.ndim == 1 else index} is {array[index]}"


def check_scalar(value: Any, name: str, dtype: Any = None, **bounds: Any) -> Array:
    """`value` as an array of shape () in `dtype`, if it is a finite real number in the range, or traced."""
    array = as_numbers(value, name)
    if array is not None and np.ndim(array) != 0:
        raise refusal(
            name, "be a number", f"its shape is {np.shape(array)}", "map over several values with equinox.filter_vmap"
        )
    if array is not None and jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise refusal(name, "be real", f"its dtype is {array.dtype}", "pass its real part")
    # Known values are checked as Python numbers; for traced values only shape and kind are known.
    if array is None or array.dtype == bool or is_concrete(array):
        number = check_number(value, name, **bounds)
        array = np.asarray(number) if array is None else array  # an integer beyond 64 bits is not an array
    check_fits(array, name, dtype)
    # The array is never weakly typed, so that a Python float and an array of the same dtype share one trace.
    return as_float(array, dtype)


def check_tokens(x: Any, name: str = "x", *, min_tokens: int = 1) -> Array:
    """`x` as an array, if it is a cloud of tokens: two-dimensional, not empty, of floats, finite where concrete."""
    # `check_array` is not used, since the messages must name tokens and the row that is wrong.
    masked = f"leave these tokens out, or fill them, {name}.filled(1), and give them masses of zero"
    array = as_numbers(x, name, masked=masked)
    if array is None:
        rule = "be an array of real numbers of shape (n, d), one token per row"
        raise refusal(name, rule, f"it is {shown(x)}", "pass an array of shape (n, d)")
    # The range is checked before jax converts the array, which would warn of an overflow.
    check_fits(array, name)
    if np.ndim(array) != 2:
        rule = "have two dimensions, (n, d), one token per row"
        raise refusal(name, rule, f"its shape is {np.shape(array)}", "map over further axes with jax.vmap")
    if 0 in array.shape:
        rule = "hold at least 1 token of at least one dimension"
        raise refusal(name, rule, f"its shape is {array.shape}", "pass an array of shape (n, d)")
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"{name} must be real, but its dtype is {array.dtype}; pass its real part, or {PAIRS}.")
    if array.shape[0] < min_tokens:
        raise refusal(name, f"hold at least {min_tokens} tokens", f"its shape is {array.shape}", "pass more of them")
    if is_concrete(array) and not np.all(np.isfinite(np.asarray(array))):
        row = int(np.flatnonzero(~np.isfinite(np.asarray(array)).all(axis=1))[0])
        entries = np.asarray(array)[row]
        listed = f"{entries}" if entries.size <= 8 else f"{entries[:8]} and so on"
        raise ValueError(f"{name} must be finite, but row {row} is {listed}; remove or mend that token.")
    warn_of_rounding(x, name)
    return as_float(array)


# Checks sizes before jax sees them: an axis must have 32-bit indices, and the arrays must fit in memory.
#
# jax itself fails with `RESOURCE_EXHAUSTED`, raises an overflow that does not name the argument, or ends the
# interpreter.


# The largest number of entries along an axis: jax counts them in int32.
MOST_ENTRIES = 2**31 - 1

# A smaller size is not compared with the memory, since reading the state of the machine takes time.
_LITTLE = 2**28

# The memory limit of a container, in the two versions of the kernel's interface.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_room(value: int, name: str, num_bytes: int | float, what: str, *, longest: int = 0, remedy: str) -> None:
    """Raise a ValueError if arrays of `num_bytes` bytes do not fit in memory, or int32 cannot index one of their axes.

    **Arguments:**

    - `value`: The size that was requested, which the message gives.
    - `num_bytes`: The memory of all arrays that exist at the same time, which exceeds that of the result if the
        computation holds several arrays of its size.
    - `what`: A description of these arrays, in the plural, such as "the tokens and what draws them".
    - `longest`: The number of entries along their longest axis.
    """
    if longest > MOST_ENTRIES:
        entries = f"{longest:.1e}" if longest >= 10**15 else str(longest)
        problem = f"it is {shown(value)}, and one axis has {entries} entries, more than {MOST_ENTRIES}"
        raise refusal(name, "make no axis longer than int32 can index", problem, remedy)
    if num_bytes > _LITTLE and num_bytes > (room := memory_room()):
        problem = f"it is {shown(value)}, and {what} take {_gibibytes(num_bytes)}, while {_gibibytes(room)} are free"
        raise refusal(name, "leave room in memory", problem, remedy)


def memory_room(*, device: bool = True) -> int | float:
    """The free bytes on the first device of jax, or on this machine; infinite if the number is not available."""
    # jax gives no statistics for CPU devices.
    stats = jax.local_devices()[0].memory_stats() or {} if device else {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return min(_free_on_host(), *map(_limit, _LIMITS))


def _free_on_host() -> int | float:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, ValueError, LookupError):  # not Linux
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # the number is not available
        return math.inf


def _limit(file: Path) -> int | float:
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):  # no container of this kind, or one without a limit, "max"
        return math.inf


def _gibibytes(num_bytes: int | float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB" if num_bytes < 2**60 else f"{num_bytes:.1e} bytes"
