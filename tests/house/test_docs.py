"""Every public name has a docstring that describes the object and its arguments; the reference is built from these."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusterjax


# A public part whose library is not installed cannot be imported; only the parts that can be imported are tested.
OPTIONAL = {"flax", "transformers", "datasets", "safetensors", "xarray", "zarr", "matplotlib"}

ROOT = Path(__file__).resolve().parents[2]
ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")
ARGUMENTS = re.compile(r"^\*\*(Arguments|Main arguments):\*\*$", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
BULLET = re.compile(r"^\s*- ((?:`\*{0,2}\w+`(?:, | and )?)+)", re.MULTILINE)


def public_modules() -> list[Any]:
    """The package itself and every public part that this environment can import."""
    modules = [clusterjax]
    for found in pkgutil.iter_modules(clusterjax.__path__, "clusterjax."):
        if found.name.split(".")[-1].startswith("_"):
            continue
        try:
            modules.append(importlib.import_module(found.name))
        except ImportError as error:
            cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
            if (cause.name or "").split(".")[0] not in OPTIONAL:
                raise
    return modules


def is_ours(value: Any) -> bool:
    return callable(value) and str(getattr(value, "__module__", "")).startswith("clusterjax")


def public_names() -> dict[str, Any]:
    """Each public class and function under its dotted name; values that cannot be called need no docstring."""
    return {
        f"{module.__name__}.{name}": value
        for module in public_modules()
        for name in module.__all__
        if is_ours(value := getattr(module, name))
    }


NAMES = public_names()


def arguments_of(value: Any) -> list[str]:
    """The arguments that a user passes to a function, or to the constructor of a class that can be built."""
    if inspect.isclass(value) and value.__name__.startswith("Abstract"):
        return []
    parameters = inspect.signature(value).parameters.values()
    return [parameter.name for parameter in parameters if parameter.name not in ("self", "cls")]


def words_of(value: Any) -> str:
    """The docstring of `value`, for a class followed by the docstring of its constructor, if there is one."""
    words = inspect.cleandoc(value.__doc__ or "")
    init = vars(value).get("__init__") if inspect.isclass(value) else None
    return f"{words}\n\n{inspect.cleandoc(init.__doc__)}" if init is not None and init.__doc__ else words


def shortcomings(value: Any) -> Iterator[str]:
    """The parts that the docstring of `value` lacks."""
    words = words_of(value)
    if not words:
        yield "a docstring"
        return
    summary = words.split("\n\n")[0].strip()
    if not summary.endswith("."):
        yield "a summary that ends with a full stop"
    arguments = arguments_of(value)
    listed = {name for bullet in BULLET.findall(words) for name in re.findall(r"`\*{0,2}(\w+)`", bullet)}
    if "**Attributes:**" in words:  # a result, which no user builds by hand
        unknown = sorted(name for name in listed if not hasattr(value, name) and name not in arguments)
        if unknown or not listed:
            yield f"attributes that exist, in place of {', '.join(unknown)}"
    elif arguments and not ARGUMENTS.search(words):
        yield "**Arguments:** (or, if it is a result, **Attributes:**)"
    elif missing := [name for name in arguments if name not in listed]:
        yield f"bullets for {', '.join(missing)}"


def methods_without_words(cls: type) -> list[str]:
    """Public methods of a class that have no docstring, neither in the class nor in an abstract class above it."""
    return [
        name
        for name, value in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and is_ours(value) and not inspect.getdoc(getattr(cls, name))
    ]


def test_every_public_name_is_documented():
    lacking = {name: list(shortcomings(value)) for name, value in NAMES.items()}
    report = [f"{name} lacks {'; '.join(what)}" for name, what in lacking.items() if what]
    assert not report, f"{len(report)} public names are not documented in full:\n" + "\n".join(report)


def test_every_public_method_is_documented():
    lacking = {name: methods_without_words(value) for name, value in NAMES.items() if inspect.isclass(value)}
    report = [f"{name}: {', '.join(what)}" for name, what in lacking.items() if what]
    assert not report, "These methods have no docstring, here or in their abstract class:\n" + "\n".join(report)


def test_every_public_module_says_what_it_is_for():
    assert not [module.__name__ for module in public_modules() if not (module.__doc__ or "").strip().endswith(".")]


def docstrings() -> Iterator[tuple[str, str]]:
    """Each docstring of the package, including private names, under its file and name, without its code."""
    for file in sorted((ROOT / "clusterjax").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (words := ast.get_docstring(node)):
                name = getattr(node, "name", "the module")
                yield f"{file.relative_to(ROOT).as_posix()}, {name}", CODE.sub("code", words)


def test_formulas_are_plain_text():
    """`help` shows docstrings unchanged: formulas are written in Unicode, and the site converts them to LaTeX."""
    found = {place: re.findall(r"\\\S+", words) for place, words in docstrings()}
    report = [f"{place}: {' '.join(commands)}" for place, commands in found.items() if commands]
    assert len(found) > 1000 and not report, "These docstrings have LaTeX:\n" + "\n".join(report)


def test_every_cited_paper_is_in_the_references():
    listed = set(ARXIV.findall((ROOT / "docs" / "references.bib").read_text("utf-8")))
    files = [
        *(ROOT / "clusterjax").rglob("*.py"),
        *(ROOT / "notebooks").glob("*.py"),
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
    ]
    cited = {number: file.name for file in files for number in ARXIV.findall(file.read_text("utf-8"))}
    missing = {number: name for number, name in cited.items() if number not in listed}
    assert cited and not missing, f"docs/references.bib has no entry for {missing}."


def test_every_reference_is_whole_and_listed_once():
    text = (ROOT / "docs" / "references.bib").read_text("utf-8")
    entries = re.findall(r"^@\w+\{(\w+),\n(.*?)^\}$", text, re.MULTILINE | re.DOTALL)
    keys, numbers = [key for key, _ in entries], re.findall(r"eprint\s*= \{(.+?)\}", text)
    assert len(entries) == text.count("\n@") > 10
    assert len(set(keys)) == len(keys) and len(set(numbers)) == len(numbers)
    assert all("author" in body and ("title" in body or "note" in body) for _, body in entries)
