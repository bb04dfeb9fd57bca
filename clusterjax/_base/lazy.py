"""Names of a package that are imported when they are first asked for (PEP 562), so that importing it costs nothing.

The `__init__.py` of a package lists its public names once, each with the module that it comes from:

    if TYPE_CHECKING:
        from ._space import Sphere as Sphere
    else:
        from ._lazy import lazy_names

        __getattr__, __dir__, __all__ = lazy_names(__name__)

Type checkers follow these imports. At run time they are not executed: `lazy_names` reads them from the source, as
`lazy_loader.attach_stub` reads a stub, so that there is no second list that could differ from the first. This module
imports nothing but the standard library, and neither does a package before one of its names is used.

Source: PEP 562; SPEC 1 of Scientific Python, *Lazy loading of submodules and functions*.
"""

import ast
import functools
import importlib
import importlib.util
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(
    package: str,
    *,
    extra: str | None = None,
    libraries: tuple[str, ...] = (),
    at_import: bool = True,
    moved: str | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], tuple[str, ...]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package.

    **Arguments:**

    - `package`: Its dotted name.
    - `extra`, `libraries`: The extra of clusterjax with which the libraries come that the package needs. Whether they
        are installed is asked at once, without importing them.
    - `at_import`: If False, the libraries are asked for with the first name, and the package is imported without them.
    - `moved`: A package whose public names were once here and are still found here, without being listed.

    **Raises:**

    - `ImportError` if a library is not installed; it says what to install.
    """

    def check() -> None:
        if any(importlib.util.find_spec(library) is None for library in libraries):
            raise ImportError(
                f"{package} needs {' and '.join(libraries)}; install them with: pip install 'clusterjax[{extra}]'"
            )

    if at_import:
        check()
    places = _places(package)
    module = sys.modules[package]
    module.__class__ = _documented(package, module.__doc__ or "", places)

    def __getattr__(name: str) -> Any:
        if name not in places:
            if moved is not None and not name.startswith("_") and name in importlib.import_module(moved).__all__:
                return getattr(sys.modules[moved], name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        check()
        module = importlib.import_module(places[name] or f".{name}", package)
        value = getattr(module, name) if places[name] else module
        setattr(sys.modules[package], name, value)  # the next time it is found without this function
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    # `from package import *` imports no other packages, whose libraries may be missing.
    public = tuple(name for name, place in places.items() if place and not name.startswith("_"))
    return __getattr__, __dir__, public


def _documented(package: str, written: str, places: dict[str, str]) -> type[types.ModuleType]:
    """A module whose docstring, when it is asked for, lists what is public: what `help(package)` shows first."""

    class Documented(types.ModuleType):
        # A property of the class: `help` asks for it past the `__getattr__` of a module.
        @property
        def __doc__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]

            return contents(package, written, places)

    return Documented


def _places(package: str) -> dict[str, str]:
    """Each name under `if TYPE_CHECKING`, with the module that it comes from; for a module of the package itself, with
    nothing."""
    spec = sys.modules[package].__spec__
    source = getattr(spec.loader, "get_source", lambda name: None)(package) if spec is not None else None
    if source is None:
        raise ImportError(f"{package} needs its source files, which are not installed; install clusterjax from a wheel")
    (block,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    return {
        name.asname or name.name: "." * node.level + node.module if node.module else ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


# The docstring of a package with all that is public in it: each name with the first sentence of its docstring.
#
# Sentences are read from the source, by the imports that `_lazy.py` reads too, so that `help(clusterjax)` lists what
# there is without a second list by hand, and without importing what it lists. Nothing is read before the docstring is
# asked for.


_WIDTH = 110


def contents(package: str, written: str, places: dict[str, str]) -> str:
    """The docstring of a package, and below it a line for each of its public names, by the module it comes from.

    **Arguments:**

    - `package`: Its dotted name.
    - `written`: The docstring of its source.
    - `places`: Each public name, with the module that it comes from; for a part, with nothing.
    """
    parts = [name for name, place in places.items() if not place and not name.startswith("_")]
    names = [name for name, place in places.items() if place and not name.startswith("_")]
    widest = max(map(len, (*parts, *names)), default=0)
    lines = [written.strip()]
    if parts:
        lines += ["", f"Parts, each a module of its own, such as {package}.{parts[0]}; help() lists what is in it:", ""]
        lines += [_line(name, widest, _of_part(package, name)) for name in parts]
    group = ""
    for name in names:
        if places[name] != group:
            group = places[name]
            lines += ["", _title(package, group), ""]
        lines.append(_line(name, widest, sentence(_resolved(package, group), name)))
    return "\n".join(lines) + "\n"


def sentence(module: str, name: str) -> str:
    """The first sentence of the docstring of a name of a module, wherever it is defined; empty if it has none."""
    node = _tree(module)
    for statement in node.body if node else ():
        if getattr(statement, "name", None) == name:
            return first_sentence(ast.get_docstring(statement) or "")  # pyright: ignore[reportArgumentType]
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    package = module if _file(module).name == "__init__.py" else module.rpartition(".")[0]
                    origin = "." * statement.level + (statement.module or "")
                    return sentence(_resolved(package, origin), alias.name)
    return _of_constant(node, name)


def first_sentence(docstring: str) -> str:
    """Its first sentence, in one line."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    end = paragraph.find(". ")
    return paragraph if end < 0 else paragraph[: end + 1]


def _of_constant(node: ast.Module | None, name: str) -> str:
    """The sentence of the text that follows an assignment, as for an alias of a type."""
    body = node.body if node else []
    for statement, after in zip(body, body[1:], strict=False):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = getattr(after, "value", None)
            return first_sentence(value.value) if isinstance(value, ast.Constant) and type(value.value) is str else ""
    return ""


def _title(package: str, place: str) -> str:
    """What a group is called: by the first sentence of the module that it comes from, or of the one beside it."""
    node = _tree(_resolved(package, place))
    words = first_sentence(ast.get_docstring(node) or "") if node else ""
    return textwrap.shorten(words or place.lstrip("._").capitalize(), _WIDTH, placeholder=" ...")


def _line(name: str, widest: int, words: str) -> str:
    return f"    {name.ljust(widest)}  {textwrap.shorten(words, _WIDTH, placeholder=' ...')}".rstrip()


def _of_part(package: str, name: str) -> str:
    node = _tree(f"{package}.{name}")
    return first_sentence(ast.get_docstring(node) or "") if node else ""


def _resolved(package: str, place: str) -> str:
    """The dotted name of a module that is named from a package with leading dots."""
    level = len(place) - len(place.lstrip("."))
    above = package.split(".")[: len(package.split(".")) - max(level - 1, 0)] if level else []
    return ".".join([*above, *filter(None, place.lstrip(".").split("."))])


def _file(module: str) -> Path:
    """Where the source of a module of this package is; a package would be imported by asking Python for it."""
    path = Path(__file__).resolve().parents[1].joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def _tree(module: str) -> ast.Module | Any:
    """The source of a module of this package; None of one elsewhere, or that is not there."""
    if module.split(".")[0] != __name__.split(".")[0]:
        return None
    try:
        return ast.parse(_file(module).read_text("utf-8"))
    except OSError:
        return None
