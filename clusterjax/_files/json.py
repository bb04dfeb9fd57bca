"""Opens and reads regular files within bounds, and reads JSON and checks it against a form.

All files that the package reads go through `open_regular`, and all JSON through `decode`. A form is a plain value:

    object              any value
    str, bool, dict     a value of that type; `list` likewise
    int, float          an integer; a number, integer or not; a boolean is neither
    None, "a", 1        exactly that value
    Within(int, 0, 9)   a number in a closed range
    [x]                 a list whose entries have the form x
    [x, y]              a list of two entries, of the forms x and y; likewise for more entries
    {"a": x, "b?": y}   an object with a field a, optionally a field b, and any others
    {"a": x, str: y}    an object with a field a, in which every other field has the form y
    (x, y)              a value of one of these forms; `()` accepts nothing: {"a": x, str: ()} has no other names
    a function          given the value, it returns the form that the value must have
"""

import errno
import io
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple


MOST_BYTES = 2**24
# Smaller files are read without asking for the free memory.
_LITTLE = 2**26

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Within(NamedTuple):
    """A number in a closed range, as a form."""

    kind: type
    least: float
    most: float


def read_json(path: Path, form: Any, *, argument: str, remedy: str) -> Any:
    """The content of a JSON file of this form; for any other file, a ValueError with `argument` and `remedy`."""
    return parse(read_bounded(path, MOST_BYTES, argument, remedy), form, repr(str(path)), argument, remedy)


def read_bounded(path: Path, most: int, argument: str, remedy: str) -> bytes:
    """All bytes of a regular file of at most `most` bytes, or a ValueError that names `argument` and says `remedy`."""
    try:
        return read_regular(path, most)
    except OSError as error:
        if error.errno == errno.EFBIG:
            problem = f"must have at most {most} bytes, but {str(path)!r} has more"
        else:
            problem = f"must be a file that can be read, but {str(path)!r} cannot ({error.strerror or error})"
        raise ValueError(f"{argument} {problem}; {remedy}.") from error


def read_regular(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """All bytes of a regular file of at most `most` bytes; None is the free memory.

    For any other file, the `strerror` of an OSError gives the reason; its `errno` is EFBIG for a larger file.
    """
    with open_regular(path) as file:
        # The size is compared first, so that a large file is not read at all.
        size = os.fstat(file.fileno()).st_size
        bound = room_for(size) if most is None else most
        if size > bound:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {bound}", os.fspath(path))
        data = file.read(size + 1)
    if len(data) > size:
        raise OSError(errno.EBUSY, "it grows while it is read", os.fspath(path))
    return data


def room_for(size: int) -> int | float:
    """A bound for a file of `size` bytes: the bytes of free memory, or a constant above `size` for a small file."""
    if size <= _LITTLE:
        return _LITTLE
    # `checks` is imported here, since it imports jax, which small files, such as those of locks, do not need.
    from .._base.checks import memory_room

    return memory_room(device=False)


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """A regular file, open for reading, or an OSError whose `strerror` gives the reason.

    Other files are refused: a named pipe would wait for a writer forever, and a device such as `/dev/zero` has no end.
    """
    # Without O_NONBLOCK a named pipe would block this call.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    # The name is checked before opening, since some devices act when they are opened, and the open file once more.
    refuse_irregular(os.stat(path), path)
    descriptor = os.open(path, flags)
    try:
        refuse_irregular(os.fstat(descriptor), path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


class NotRegular(OSError):
    """The error of a path that is not a regular file, and is therefore neither read nor replaced."""


def remedy_of(error: OSError, remedy: str) -> str:
    """The instruction for a file that could not be written: `remedy`, or to name another if the file is not regular."""
    return "name another" if isinstance(error, NotRegular) else remedy


def refuse_irregular(state: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raise a `NotRegular`, whose `strerror` names the kind of the file, unless `state` is that of a regular file."""
    if stat.S_ISDIR(state.st_mode):
        raise NotRegular(errno.EISDIR, "it is a folder", os.fspath(path))
    if not stat.S_ISREG(state.st_mode):
        kind = next((words for test, words in _IRREGULAR.items() if test(state.st_mode)), "something else")
        raise NotRegular(errno.EINVAL, f"it is {kind} and no regular file", os.fspath(path))


_IRREGULAR = {
    stat.S_ISLNK: "a link",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def parse(data: bytes | str, form: Any, name: str, argument: str, remedy: str, *, finite: bool = True) -> Any:
    """The content of JSON data of this form, which messages call `name`; a ValueError for any other data."""
    try:
        value = decode(data, finite=finite)
    except ValueError as error:
        raise ValueError(f"{argument} must be whole JSON, but {name} is not ({error}); {remedy}.") from error
    wrong = misfit(value, form)
    if wrong is not None:
        raise ValueError(f"{argument} must be of its form, but in {name} {wrong}; {remedy}.")
    return value


def decode(data: bytes | str, *, finite: bool = True) -> Any:
    """The content of JSON data; a ValueError, with a few words as its message, if they are not complete JSON.

    NaN and Infinity, which are not JSON, are read if `finite` is False.
    """
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_refuse if finite else None,
        )
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded, and so not printed
    except UnicodeError as error:
        raise ValueError("it is not in UTF-8") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return value


def _integer(digits: str) -> int | float:
    # An integer of more than 64 bits is a float, such as the 10^30 that `transformers` writes where there is no limit.
    number = int(digits)
    return number if abs(number) < 2**64 else _number(digits)


def _number(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"the number {digits[:20]} is beyond all floats")
    return number


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number")


def misfit(value: Any, form: Any, place: str = "") -> str | None:
    """The first misfit of a value and its position, in words; None if the value has the form."""
    # `bool` is a subclass of `int` in Python, but not a number here; the form `float` accepts integers too.
    if isinstance(form, type) and form in _TYPES:
        fits = value is not None or form is object
        fits = fits and (form is object or isinstance(value, (int, float) if form is float else form))
        fits = fits and not (isinstance(value, bool) and form in (int, float))
        return None if fits else _wrong(place, value, _TYPES[form])
    if isinstance(form, Within):
        wrong = misfit(value, form.kind, place)
        outside = wrong is None and not form.least <= value <= form.most
        return _wrong(place, value, f"from {form.least} to {form.most}") if outside else wrong
    if isinstance(form, dict):
        return misfit(value, dict, place) or _misfit_of_fields(value, form, place)
    if isinstance(form, list):
        wrong = misfit(value, list, place)
        if wrong is None and len(form) > 1 and len(value) != len(form):
            return f"{place or 'the whole'} is a list of {len(value)} in place of {len(form)}"
        if wrong is None and len(form) == 1 and _all_plain(value, form[0]):
            return None
        # A single form is that of every entry, several forms are those of the entries in order.
        forms = form if len(form) > 1 else form * len(value if wrong is None else ())
        inner = (misfit(entry, forms[k], _at(place, k)) for k, entry in enumerate(value if wrong is None else ()))
        return wrong or next((flaw for flaw in inner if flaw is not None), None)
    if isinstance(form, tuple):
        return _misfit_of_all(value, form, place)
    if callable(form):
        return misfit(value, form(value), place)
    # A literal must agree in type: 1 equals neither true nor 1.0.
    return None if type(value) is type(form) and value == form else _wrong(place, value, repr(form))


def _all_plain(entries: list[Any], form: Any) -> bool:
    """True if one test of all entries shows that they have the form, as for the 40,000 words of a vocabulary."""
    kind, bounded = (form.kind, True) if isinstance(form, Within) else (form, False)
    if kind not in (str, int) or not set(map(type, entries)) <= {kind}:
        return False
    return not (bounded and entries) or form.least <= min(entries) and max(entries) <= form.most


_TYPES: dict[Any, str] = {
    object: "anything", str: "a text", bool: "true or false", dict: "an object", list: "a list", int: "an integer",
    float: "a number",
}  # fmt: skip


def _misfit_of_fields(value: dict[str, Any], form: dict[Any, Any], place: str) -> str | None:
    others, remaining = form.get(str, object), dict(value)
    for label, inner in form.items():
        # The key `str` stands for all other names; a question mark follows an optional name.
        if label is str:
            continue
        name = label.removesuffix("?")
        if name in value:
            wrong = _misfit_within(remaining.pop(name), inner, place, name)
            if wrong is not None:
                return wrong
        elif not label.endswith("?"):
            return f"{name!r} is missing{f' at {place}' if place else ''}"
    for name, entry in remaining.items() if others is not object else ():
        if others == ():
            return f"{name!r} is not expected{f' at {place}' if place else ''}"
        wrong = _misfit_within(entry, others, place, name)
        if wrong is not None:
            return wrong
    return None


def _misfit_within(value: Any, form: Any, place: str, name: str) -> str | None:
    """`misfit` of a field; the position is formatted only for a field that does not have a plain type as its form."""
    return None if type(value) is form else misfit(value, form, _at(place, name))


def _misfit_of_all(value: Any, forms: tuple[Any, ...], place: str) -> str | None:
    wrongs = [misfit(value, form, place) for form in forms]
    if any(wrong is None for wrong in wrongs):
        return None
    # An error inside of one alternative is more informative than the error that no alternative fits.
    deeper = next((wrong for wrong in wrongs if wrong and not wrong.startswith(f"{place or 'the whole'} is ")), None)
    return deeper or _wrong(place, value, " or ".join(map(_words, forms)) or "left out")


def _words(form: Any) -> str:
    """The values that a form accepts, in words for a message."""
    if isinstance(form, type):
        return _TYPES[form]
    if isinstance(form, Within):
        return f"from {form.least} to {form.most}"
    if isinstance(form, list | dict):
        return _TYPES[type(form)]
    return "null" if form is None else repr(form)


def _at(place: str, name: Any) -> str:
    return f"{place}.{name}" if place else str(name)


def _wrong(place: str, value: Any, wanted: str) -> str:
    shown = _TYPES[type(value)] if isinstance(value, dict | list) else json.dumps(value)
    return f"{place or 'the whole'} is {shown if len(shown) <= 60 else shown[:60] + '...'} in place of {wanted}"
