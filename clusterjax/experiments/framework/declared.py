"""What the experiments of the package declare, read from their sources as `_lazy` reads names: importing them takes
seconds, a list of them need not.

`registry.py` says which there are and in which order, `experiment.py` of each folder how it is called, what it claims
and costs, `measure.py` what of it can be set. Only what is written there as it stands is understood: constants, numbers
and texts. Where a source says it in another way, `declared` returns None, and its caller imports.
"""

import ast
import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


PLACE = Path(__file__).parent
_PROBE = ("flax", "transformers")


class Row(NamedTuple):
    """An experiment in a list: what it costs in seconds, what it claims, and its parameters in words."""

    name: str
    alias: str
    full: int | float | None
    quick: int | float | None
    claim: str
    parameters: tuple[str, ...]


def declared() -> list[Row] | None:
    """The rows of all experiments of the package, in their order; those whose extra is missing by name alone."""
    try:
        return _rows(all(find_spec(library) is not None for library in _PROBE))
    except (OSError, SyntaxError, ValueError, LookupError, AttributeError, TypeError):
        return None


def _rows(with_probe: bool) -> list[Row]:
    registry = _tree(PLACE / "registry.py")
    (order,) = (
        node.value for node in registry.body if isinstance(node, ast.AnnAssign) and _is_name(node.target, "EXPERIMENTS")
    )
    # Of the branch that asks for the extra, which is the only one.
    (branch,) = (node for node in registry.body if isinstance(node, ast.If))
    above = [node for node in registry.body if isinstance(node, ast.ImportFrom)]
    chosen = [*above, *(branch.body if with_probe else branch.orelse)]
    rows = {}
    for node in chosen:
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            rows |= {name.name: _row(PLACE.parent / str(node.module), name.name) for name in node.names}
        elif isinstance(node, ast.Assign):
            name, alias = (ast.literal_eval(each) for each in node.value.args[:2])  # pyright: ignore
            rows[node.targets[0].id] = Row(name, alias, None, None, "", ())  # pyright: ignore
    return [rows[entry.id] for entry in order.elts]  # pyright: ignore


def _row(folder: Path, variable: str) -> Row:
    """What `experiment.py` of a folder calls by this name."""
    tree = _tree(folder / "experiment.py")
    call: Any = _value(tree, variable)
    name, alias, _, claim = (ast.literal_eval(each) for each in call.args[:4])
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    cost = given.get("cost")
    seconds = {} if cost is None else {each.arg: ast.literal_eval(each.value) for each in cost.keywords}
    parameters = _parameters(folder) if "parameters" in given else ()
    return Row(name, alias, seconds.get("full"), seconds.get("quick"), claim, parameters)


def _parameters(folder: Path) -> tuple[str, ...]:
    """Name and default of each field of the class `Parameters` in `measure.py`."""
    path = folder / "measure.py"
    (kind,) = (node for node in _tree(path).body if isinstance(node, ast.ClassDef) and node.name == "Parameters")
    words = []
    for field in kind.body:
        if isinstance(field, ast.AnnAssign):
            call: Any = field.value
            quick = next((each.value for each in call.keywords if each.arg == "quick"), call.args[0])
            words.append(in_words(field.target.id, _number(path, call.args[0]), _number(path, quick)))  # pyright: ignore
    return tuple(words)


def in_words(name: str, default: int | float, quick: int | float) -> str:
    """Name and default of a parameter, and that of a quick run where it is another."""
    return f"{name} = {default:g}" + (f" (quick: {quick:g})" if quick != default else "")


def _number(path: Path, node: ast.expr) -> int | float:
    """A number, or the constant of this name in this file or in one that it is imported from."""
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    for entry in _tree(path).body:
        if isinstance(entry, ast.ImportFrom) and any(name.name == node.id for name in entry.names):
            home = path.parents[entry.level - 1].joinpath(*(entry.module or "").split("."))
            return _number(home.with_suffix(".py"), node)
    return ast.literal_eval(_value(_tree(path), node.id))


def _value(tree: ast.Module, variable: str) -> ast.expr:
    """What is assigned to a variable of a module, also where several are assigned at once."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if _is_name(target, variable):
                return value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                for one, of in zip(target.elts, value.elts, strict=True):
                    if _is_name(one, variable):
                        return of
    raise LookupError(variable)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))
