"""The decorator of every picture: it checks arguments by their names, and then draws in the style of the package.

`door` reads the signature once and finds a check for each parameter by its name, first in the arguments of `door` and
then in `CHECKS`; None is accepted if the annotation allows None. A check takes a value and a name, and returns the
value for the picture or raises a `ValueError` of one sentence. The picture itself checks arguments that depend on each
other, such as one name for each of n tokens.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np
from matplotlib.animation import FFMpegWriter
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like, to_rgba_array

from .._base.checks import (
    as_numbers,
    check_callable,
    check_choice,
    check_concrete,
    check_flag,
    check_host_array,
    check_instance,
    check_integer,
    check_number,
    check_path,
    check_sequence,
    check_text,
    refusal,
    shown,
)
from .._model.space import check_space
from ._style import figure_of, real_array, style


_P = ParamSpec("_P")
_R = TypeVar("_R")
Check = Callable[[Any, str], Any]

_LINES = ("-", "--", "-.", ":", "solid", "dashed", "dashdot", "dotted", "None", " ", "")
MOST_SEVERAL = 1000  # the largest number of panels and lines


def door(**checks: Check) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Check the arguments of a picture by their names, `checks` first, and draw in the style of this library."""

    def wrap(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        # The checks are found here and not in `drawn`, which runs at every call.
        known = {name: (CHECKS | checks).get(name) for name in signature.parameters}
        optional = {name for name, kind in signature.parameters.items() if type(None) in get_args(kind.annotation)}

        @functools.wraps(function)
        def drawn(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            # Only given arguments are checked, since defaults are valid.
            bound = signature.bind(*args, **kwargs)
            for name, value in bound.arguments.items():
                check = known[name]
                if check is not None and not (value is None and name in optional):
                    bound.arguments[name] = check(value, name)
            # matplotlib reads its settings when artists are created, not when they are drawn.
            with style():
                return function(*bound.args, **bound.kwargs)

        return drawn

    return wrap


def real(*shape: int | str | None, finite: bool = True) -> Check:
    """Return a check for real numbers of this shape, of any shape by default; without `finite` some may be NaN."""
    return lambda value, name: real_array(value, name, shape=shape or None, finite=finite)


numbers, finite = real(finite=False), real()


def several(value: Any, name: str) -> np.ndarray:
    """Check for a number or a vector of numbers."""
    array = as_numbers(value, name)
    if array is None or np.ndim(array) == 0:
        return np.asarray(check_number(value, name, remedy="pass one number, or several in a row"))
    array = check_host_array(value, name, shape=("several",)).astype(np.float64)
    if len(array) > MOST_SEVERAL:
        raise refusal(name, f"be at most {MOST_SEVERAL} numbers", f"there are {len(array)}", "pass fewer")
    return array


def one_each(entries: Sequence[Any] | np.ndarray, name: str, count: int, rule: str) -> None:
    """Raise a `ValueError` if there are not `count` entries; `rule` describes entries: "names, one for each token"."""
    if len(entries) != count:
        raise refusal(name, f"be {count} {rule}", f"there are {len(entries)}", "pass as many")


def words(value: Any, name: str) -> list[str]:
    """Check for a sequence of strings, possibly empty."""
    return check_sequence(value, name, str, "strings", least=0)


def integer_from(least: int, most: int) -> Check:
    """Return a check for an integer in this range."""
    return lambda value, name: check_integer(value, name, least=least, most=most)


def above_zero(value: Any, name: str) -> float:
    """Check for a positive factor, or a positive size on paper."""
    return check_number(value, name, above=0, most=1000)


def text(value: Any, name: str) -> str:
    """Check for a string, possibly empty."""
    return check_text(value, name, empty=True)


def an_axes(value: Any, name: str) -> Axes:
    """Check for an Axes in a figure."""
    ax = check_instance(value, name, Axes, "a plain Axes of matplotlib", "pass one, as Figure().add_subplot() makes")
    figure_of(ax, name)
    return ax


def many_axes(value: Any, name: str) -> np.ndarray:
    """Check for one Axes, or several in a sequence or an array."""
    entries = [value] if isinstance(value, Axes) else value.ravel() if isinstance(value, np.ndarray) else value
    panels = [an_axes(ax, name) for ax in check_sequence(entries, name, Axes, "plain Axes of matplotlib")]
    # matplotlib would silently draw two panels on one Axes.
    if len({id(ax) for ax in panels}) < len(panels):
        raise refusal(name, "be there once each", "two of them are the same", "pass as many as there are panels")
    # np.array would test whether each Axes is a sequence.
    array = np.empty(len(panels), dtype=object)
    array[:] = panels
    return array


def colour(value: Any, name: str) -> Any:
    """Check for one colour."""
    check_concrete(value, name)
    if not (isinstance(value, str | tuple | list | np.ndarray) and is_color_like(value)):
        raise refusal(name, "be a colour of matplotlib", f"it is {shown(value)}", 'pass "#0072B2", for example')
    return value


def colours(value: Any, name: str) -> Any:
    """Check for one colour, or a colour or number for each token."""
    if isinstance(value, str):
        return colour(value, name)
    array = as_numbers(value, name)
    if array is not None and array.ndim == 1:
        return check_host_array(value, name, shape=(None,))
    check_concrete(value, name)
    try:
        rgba = to_rgba_array(value)
    except (TypeError, ValueError):
        rgba = None
    if rgba is None or not np.isfinite(rgba).all():
        rule = "be one colour, or a colour or a number for each token"
        raise refusal(name, rule, f"it is {shown(value)}", "pass one of these")
    return value


def integers(value: Any, name: str) -> np.ndarray:
    """Check for integers, possibly none."""
    return check_host_array(value, name, integers=True)


def film(value: Any, name: str) -> Path:
    """Check for the name of a GIF, or of an MP4 if ffmpeg is installed."""
    path, problem = check_path(value, name), f"it is {shown(value)}"
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise refusal(name, "end in .gif or .mp4", problem, "choose such a name")
    if path.suffix.lower() == ".mp4" and not FFMpegWriter.isAvailable():
        remedy = "install it (apt install ffmpeg, or conda install ffmpeg), or choose a name that ends in .gif"
        raise refusal(name, "end in .gif where there is no ffmpeg, which writes .mp4", problem, remedy)
    return path


def arrows(value: Any, name: str) -> Mapping[str, Any]:
    """Check for directions by name."""
    check_instance(value, name, Mapping, "a mapping of names to directions", "pass {'name': vector}")
    return {text(key, name): finite(entry, f"{name}[{key!r}]") for key, entry in value.items()}


def curves(value: Any, name: str) -> Mapping[str, Any]:
    """Check for pairs of arrays by name."""
    check_instance(value, name, Mapping, "a mapping of names to pairs of arrays", "pass {'name': (x, y)}")
    return {
        text(key, name): tuple(numbers(part, f"{name}[{key!r}]") for part in _pair(entry, f"{name}[{key!r}]"))
        for key, entry in value.items()
    }


def _pair(value: Any, name: str) -> list[Any]:
    parts = check_sequence(value, name, object, "two parts", least=2)
    if len(parts) != 2:
        raise refusal(name, "be a sequence of two parts", f"it has {len(parts)}", "pass such a pair")
    return parts


def line(value: Any, name: str) -> tuple[np.ndarray, float]:
    """Check for the normal and the offset of a line in the plane."""
    normal, offset = _pair(value, name)
    normal, offset = check_host_array(normal, f"{name}[0]", shape=(2,)), check_number(offset, f"{name}[1]")
    if not normal.any():
        raise refusal(name, "be a normal (2,) that is not zero and an offset", "the normal is zero", "pass (w, v)")
    return normal, offset


def ranges(value: Any, name: str) -> Any:
    """Check for two pairs of numbers that increase."""
    array = check_host_array(value, name, shape=(2, 2), remedy="pass ((left, right), (bottom, top))")
    if np.any(array[:, 0] >= array[:, 1]):
        raise refusal(name, "be ((left, right), (bottom, top))", f"they are {value!r}", "pass such pairs")
    return tuple(array)


def vocabulary(value: Any, name: str) -> Any:
    """Check for strings, or a function from an id to a word."""
    if callable(value) and not isinstance(value, type):
        return check_callable(value, name, "strings, or a function of an id", takes=1)
    return words(value, name)


def counting(value: Any, name: str) -> Any:
    """Check for a function of two counts: the finished frames and all frames."""
    return check_callable(value, name, "a function of two counts", takes=2)


def labels(value: Any, name: str) -> np.ndarray:
    """Check for an integer for each token."""
    return check_host_array(value, name, shape=(None,), integers=True, remedy="pass what cluster_labels gives")


CHECKS: dict[str, Check] = {
    "ax": an_axes, "axes": many_axes,
    "xlabel": text, "ylabel": text, "label": text, "title": text, "symbol": text,
    "linestyle": lambda value, name: check_choice(value, name, _LINES),
    "colour": colour, "colours": colours,
    "size": above_zero, "panel": above_zero, "inches": lambda value, name: check_number(value, name, above=0, most=100),
    "fontsize": above_zero, "turn": check_number,
    "log_x": check_flag, "symmetric": check_flag, "counted": check_flag, "equal": check_flag, "trail": check_flag,
    "counts_from": integer_from(2, 10**9), "highlight": integer_from(0, 10**9), "frames": integer_from(1, 10**5),
    "fps": integer_from(1, 50), "dpi": integer_from(1, 5000), "hold": integer_from(0, 1000),
    "move": integer_from(0, 1000), "most": integer_from(1, 10**6),
    "delta": lambda value, name: check_number(value, name, above=0, below=1),
    "token": integer_from(0, 10**9), "n": integer_from(2, 10**9),
    "labels": labels, "arrows": arrows, "view": real(2), "limits": real(2), "curves": curves, "line": line,
    "space": check_space,
    "progress": counting, "ts": numbers, "times": several,
    "xnames": words, "ynames": words, "tokens": words, "names": words, "words": vocabulary, "path": check_path,
}  # fmt: skip
"""The check of each argument of a picture, by the name of the argument."""
