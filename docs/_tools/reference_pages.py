"""The pages of the reference: one for each subject of the core, and one or more for each other public package.

The public names are read from the stubs (`__init__.pyi`) of the packages; nothing is imported.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple


# The titles of the pages of the core, and the modules whose names they document; "runs" has the names of all others.
SUBJECTS = {
    "runs": ("Runs: simulate, iterate", ()),
    "attention": (
        "Attention, masks and positions",
        ("_model.attention", "_model.further_attention", "_model.mask", "_model.position"),
    ),
    "fields": (
        "Fields, layers, schedules",
        ("_model.field", "_model.heads", "_model.density", "_model.causal_density", "_model.layer", "_model.schedule"),
    ),
    "spaces": ("Spaces", ("_model.space",)),
    "summations": ("Summations", ("_summation", "_model.summation")),
    "observables": ("Observables", ("_observables",)),
}
# The packages with several pages, one for each of these folders and one for the rest.
SPLIT = {"probe": ("networks", "measures")}


class Name(NamedTuple):
    """A public name, and the first sentence of its documentation."""

    name: str
    part: str  # the package, such as "clusterjax.probe"
    place: str  # the module that defines the name, relative to the package, such as "measures.sinks"
    summary: str


def pages(root: Path) -> Iterator:
    """The pages, and the index of all names."""
    from made_pages import Made

    package = root / "clusterjax"
    names = public_names(package)
    # A page begins with the names in its title, and ends with abstract classes.
    titles = " ".join(title for title, _ in SUBJECTS.values())
    names.sort(key=lambda name: (name.name.startswith("Abstract"), name.name not in titles))
    groups = {uri: [name for name in names if page_of(name) == uri] for uri in dict.fromkeys(map(page_of, names))}
    order = [f"reference/{subject}.md" for subject in SUBJECTS]
    groups = dict(sorted(groups.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 99, item[0])))
    index = [INDEX]
    for uri, members in groups.items():
        title, words = heading(uri, members[0].part, package)
        index += [f"## [{title}]({uri.removeprefix('reference/')})", "", "| name | |", "|---|---|"]
        index += [
            f"| [`{n.name}`]({uri.removeprefix('reference/')}#{n.part}.{n.name}) | {_cell(n.summary)} |"
            for n in members
        ]
        index.append("")
        blocks = [f"::: {n.part}.{n.name}\n" for n in members]
        yield Made(uri, uri, title, f"# {title}\n\n{words}\n\n" + "\n".join(blocks))
    yield Made("reference/index.md", "reference/", "Reference", "\n".join(index))


INDEX = """# Reference

All public names, by package. After `import clusterjax as cjx`, names such as `cjx.simulate` and `cjx.probe.load` need
no further import. In Python, `help(cjx.simulate)` shows the documentation of a name.
"""


def linker(package: Path) -> Callable[[str], str | None]:
    """A function that returns the address of a name, written as after `cjx.`, such as "probe.load"; None if unknown."""
    places = {f"{n.part}.{n.name}".removeprefix("clusterjax."): n for n in public_names(package)}
    return lambda name: f"{page_of(n)}#{n.part}.{n.name}" if (n := places.get(name)) else None


def page_of(name: Name) -> str:
    """The page that documents a name."""
    if name.part == "clusterjax":
        here = lambda places: any(f"{name.place}.".startswith(f"{place}.") for place in places)
        return f"reference/{next((subject for subject, (_, places) in SUBJECTS.items() if here(places)), 'runs')}.md"
    part, folder = name.part.removeprefix("clusterjax."), name.place.split(".")[0]
    return f"reference/{part}_{folder}.md" if folder in SPLIT.get(part, ()) else f"reference/{part}.md"


def heading(uri: str, part: str, package: Path) -> tuple[str, str]:
    """The title of a page, and its introduction, which is the docstring of its package."""
    stem = Path(uri).stem
    if stem in SUBJECTS:
        return SUBJECTS[stem][0], "In `clusterjax`."
    short = part.removeprefix("clusterjax.")
    suffix = stem.removeprefix(short).replace("_", " ").strip()
    words = ast.get_docstring(_tree(package / short / "__init__.py")) or ""
    return f"{short}: {suffix}" if suffix else short, words


def public_names(package: Path) -> list[Name]:
    """All public names, in the order of the stubs."""
    parts = ["", *sorted(p.parent.name for p in package.glob("[!_]*/__init__.py"))]
    return [name for part in parts for name in _names_of(package, part)]


def _names_of(package: Path, part: str) -> Iterator[Name]:
    folder = package / part
    dotted = ".".join(["clusterjax", *filter(None, [part])])
    for name, place in _imports(folder / "__init__.pyi").items():
        if place and not name.startswith("_"):
            node = _definition(folder, place, name)
            yield Name(name, dotted, place, _summary(node))


def _imports(file: Path) -> dict[str, str]:
    """The names that a file imports by relative imports, each with the dotted path of its module, relative to the
    folder of the file; each further leading dot stands for a folder above."""
    return {
        alias.asname or alias.name: "." * (node.level - 1) + (node.module or "")
        for node in _tree(file).body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }


def _definition(folder: Path, place: str, name: str) -> ast.AST | None:
    """The definition of a function or class, also if other packages re-export it; None for any other value."""
    bare = place.lstrip(".")
    path = folder.joinpath(*[".."] * (len(place) - len(bare)), *bare.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in _tree(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    further = _imports(file).get(name)
    return _definition(file.parent, further, name) if further else None


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _summary(node: ast.AST | None) -> str:
    words = ast.get_docstring(node) if node is not None else None
    return re.sub(r"\s+", " ", (words or "").split("\n\n")[0])


def _cell(text: str) -> str:
    # A bar would end the cell of the table. Code may have it after a backslash, which in a formula makes a double bar.
    text = re.sub(r"\$[^$]+\$", lambda formula: formula[0].replace("|", "∣"), text)
    return text.replace("|", r"\|")
