"""The docstring of a package with all that is public in it: each name with the first sentence of its docstring.

Sentences are read from the source, by the imports that `_lazy.py` reads too, so that `help(clusterjax)` lists what
there is without a second list by hand, and without importing what it lists. Nothing is read before the docstring is
asked for.
"""

import ast
import functools
import textwrap
from pathlib import Path
from typing import Any


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
    path = Path(__file__).resolve().parent.joinpath(*module.split(".")[1:])
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
