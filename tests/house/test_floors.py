"""The floors of the house: who may import whom, read from the source, so that nothing low ever leans on something high.

A new part gets its place in `FLOORS`; a part that needs something new from below gets one more name there, on purpose.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clusterjax"
FRONT_DOOR = "clusterjax"

BASE = {
    "_lazy", "_abstract", "_custom_types", "_misc", "_precision", "_bessel", "_blocks", "_batching", "_check",
    "_padding", "_random",
}  # fmt: skip
RUNS = {"_lock", "_drafts", "_log"}
WHERE = BASE | {"_space", "_mask", "_schedule"}
FIELDS = WHERE | {"_summation", "_attention", "_field", "_layer"}
RUN = {
    "_solver",
    "_describe",
    "_summary",
    "_interpolants",
    "_trajectory",
    "_simulate",
    "_iterate",
    "_integrate",
    "_failure",
    "_noise",
    "_saved",
}
DYNAMICS = FIELDS | RUN
MEASURES = {"_observables", "_events"}
DISK = {"_json", "_arrays", "_disk", "_run_file", "_model_folder"}
PARTS = {"design", "hardmax", "_limits", "transformer", "sentiment", "probe", "sweep", "phase", "plot"}

# Each part, lowest first, and every part that it may import. What is named must stand above in this table.
FLOORS: dict[str, set[str]] = {
    "_contents": set(),
    "_lazy": {"_contents"},
    "_version": set(),
    "_custom_types": set(),
    "_misc": {"_custom_types"},
    "_precision": set(),
    "_bessel": set(),
    "_blocks": set(),
    "_batching": set(),
    "_check": {"_misc"},
    "_padding": {"_misc"},
    "_abstract": {"_misc", "_check"},
    "_json": {"_check"},  # where a large file is read
    "_arrays": {"_json"},
    "_disk": {"_json"},
    "_random": {"_check"},
    "_space": BASE,
    "_mask": BASE,
    "_schedule": BASE,
    "_summation": WHERE,
    "_attention": WHERE | {"_summation"},
    "_field": WHERE | {"_summation", "_attention"},
    "_layer": WHERE | {"_summation", "_attention", "_field"},
    "_solver": WHERE | {"_attention", "_field"},
    "_describe": {"_version"},
    "_verdicts": set(),
    "_summary": {"_misc"},
    "_account": BASE | {"_summary", "_verdicts"},
    "_interpolants": BASE | {"_space", "_describe"},
    "_integrate": FIELDS | {"_solver", "_describe", "_interpolants"},  # steps onto jumps
    "_failure": FIELDS | {"_solver", "_integrate"},  # evaluates the velocity where a run stopped
    "_noise": FIELDS,
    "_saved": BASE | {"_space"},
    "_observables": BASE | {"_space", "_mask", "_summation", "_summary"},
    "_events": BASE | {"_space", "_observables"},
    "_drafts": {"_disk"},
    "_lock": {"_drafts", "_json"},
    "_log": set(),
    "_run_file": {"_json", "_arrays", "_disk"},
    "_model_folder": {"_json", "_arrays", "_disk"},
    "_trajectory_file": BASE | DISK | {"_space", "_describe", "_interpolants", "_verdicts"},
    "_trajectory_table": BASE | {"_describe", "_verdicts"},
    "_trajectory": BASE | {"_interpolants", "_account", "_failure", "_trajectory_file", "_trajectory_table"},
    "_simulate": FIELDS
    | {"_solver", "_trajectory", "_describe", "_interpolants", "_integrate", "_failure", "_noise", "_saved"},
    "_coarsen": FIELDS | {"_simulate", "_solver"},
    "_iterate": FIELDS | {"_trajectory", "_interpolants", "_describe"},
    "_further": DISK,
    "_training_loop": BASE | DISK | {"_lock", "_further", "_summary"},
    "_tables": {"_json"},
    "_hub_texts": {"_tables"},
    "_corpus": {"_tables", "_hub_texts", "_check"} | DISK,
    "_pretraining": BASE | DISK | {"_training_loop", "_corpus", "_further"},
    "plot": BASE | {"_space", "_mask", "_trajectory", "_observables", "_drafts", "_disk"},
    "sweep": BASE | RUNS | DISK,
    "phase": DYNAMICS | MEASURES | DISK | {"sweep"},
    "hardmax": DYNAMICS | MEASURES | {"_training_loop"},
    "_limits": DYNAMICS | MEASURES | {"hardmax", "_coarsen"},
    "design": DYNAMICS | MEASURES,
    "transformer": DYNAMICS | MEASURES | RUNS | DISK | {"_training_loop", "_corpus", "_pretraining", "_further"},
    "sentiment": DYNAMICS | MEASURES | RUNS | DISK | {"_training_loop", "_tables", "hardmax", "_further"},
    "probe": DYNAMICS
    | MEASURES
    | RUNS
    | DISK
    | {"transformer", "_training_loop", "_tables", "_corpus", "_pretraining", "_further"},
    "experiments": {FRONT_DOOR, "_training_loop", "_tables", "_corpus", "_coarsen"}
    | RUNS
    | DISK
    | DYNAMICS
    | MEASURES
    | PARTS,
    "_cli": {FRONT_DOOR, "_version", "experiments", "_training_loop", "_tables", "_further"}
    | RUNS
    | DISK
    | DYNAMICS
    | MEASURES
    | PARTS,
    "__main__": {"_cli"},
}

# Libraries of an extra, and the parts that may import them at their head; all others do so inside a function, or not.
EXTRAS = {
    "matplotlib": {"plot", "experiments"},
    "cycler": {"plot"},
    "PIL": {"plot", "experiments"},
    "flax": {"probe"},
    "transformers": {"probe"},
    "datasets": {"probe"},
    "gguf": set(),
    "shtab": set(),
    "xarray": {"sweep", "phase"},
    "zarr": {"sweep"},
}


class Import(NamedTuple):
    """One import of one file: where it stands, and the dotted name of what it names."""

    file: Path
    line: int
    target: str
    inside_function: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.target}"


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {file: ast.parse(file.read_text("utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}
MODULES = {module_name(file) for file in SOURCES}
STATEMENTS = ast.stmt | ast.ExceptHandler | ast.match_case  # no other nodes hold statements


def package_of(file: Path, level: int) -> str:
    """The package that `level` leading dots mean in `file`."""
    name = module_name(file).split(".")
    kept = len(name) - level + (file.name == "__init__.py")
    return ".".join(name[:kept])


def imports_of(file: Path, tree: ast.Module, modules: set[str] = MODULES) -> Iterator[Import]:
    """Every import of `file`, wherever it stands, under the name of the module that it loads.

    `import x` under `if TYPE_CHECKING:` is for annotations alone; it runs as little as one inside a function.
    """
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        inside |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += [(child, inside or isinstance(child, ast.Import)) for child in node.body]
            waiting += [(child, inside) for child in node.orelse]
            continue
        waiting += [(child, inside) for child in ast.iter_child_nodes(node) if isinstance(child, STATEMENTS)]
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(file, node.lineno, name.name, inside)
        elif isinstance(node, ast.ImportFrom):
            origin = package_of(file, node.level) if node.level else ""
            origin = ".".join(part for part in (origin, node.module) if part)
            for name in node.names:
                child = f"{origin}.{name.name}"
                yield Import(file, node.lineno, child if child in modules else origin, inside)


IMPORTS = [found for file, tree in SOURCES.items() for found in imports_of(file, tree)]
INSIDE = [found for found in IMPORTS if found.target.split(".")[0] == FRONT_DOOR]


def part_of(module: str) -> str:
    """The part of the house to which a module belongs; the front door is its own."""
    name = module.split(".")
    return name[1] if len(name) > 1 else FRONT_DOOR


def show(wrong) -> str:
    return "\n".join(map(str, wrong))


def test_every_part_has_its_floor():
    """A file whose part the table does not know has no floor, so nothing could be said of its imports."""
    unknown = {part_of(module_name(file)) for file in SOURCES} - set(FLOORS) - {FRONT_DOOR}
    assert not unknown, f"Give {sorted(unknown)} a place in FLOORS of {Path(__file__).name}."


def test_the_table_only_points_down():
    """A part may only name parts that stand above it in the table, which rules out every cycle between parts."""
    order = [FRONT_DOOR, *FLOORS]
    wrong = [(part, low) for part, lows in FLOORS.items() for low in lows if order.index(low) >= order.index(part)]
    assert not wrong


def test_imports_follow_the_floors():
    wrong = [
        found
        for found in INSIDE
        if (here := part_of(module_name(found.file))) != FRONT_DOOR
        and part_of(found.target) not in FLOORS[here] | {here}
    ]
    assert not wrong, "These imports are not in FLOORS:\n" + show(wrong)


def test_files_do_not_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for found in INSIDE:
        graph[module_name(found.file)].add(found.target)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "These files import each other: " + " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_only_the_command_imports_the_experiments():
    wrong = [
        found
        for found in INSIDE
        if part_of(found.target) == "experiments" and part_of(module_name(found.file)) not in ("experiments", "_cli")
    ]
    assert not wrong, show(wrong)


# The rooms of a part, lowest first: a room imports itself and the rooms before it.
ROOMS = {"probe": ("networks", "measures", "particle_bridge")}


@pytest.mark.parametrize("part", ROOMS)
def test_rooms_of_a_part_only_import_lower_rooms(part):
    rooms, start = ROOMS[part], f"clusterjax.{part}."
    room = lambda module: module.removeprefix(start).split(".")[0]
    inside = [found for found in INSIDE if module_name(found.file).startswith(start) and found.target.startswith(start)]
    assert {room(module) for module in MODULES if module.startswith(start)} == set(rooms)
    wrong = [found for found in inside if rooms.index(room(module_name(found.file))) < rooms.index(room(found.target))]
    assert inside and not wrong, show(wrong)


# The rooms of the experiments that a figure may use beside its own and the framework: what several figures share.
SHARED_BY_FIGURES = {"sentiment_words": {"sentiment"}, "sentiment_leaders": {"sentiment"},
    "sentiment_training": {"sentiment"}, "neural_collapse": {"sentiment"}, "hardmax_open_problems": {"sentiment"},
    "albert_spectra": {"figure2"}}  # fmt: skip


def test_figures_do_not_lean_on_each_other():
    """A figure's folder uses its own files, the framework and what it shares; the framework's registry alone knows the
    figures."""
    room = lambda module: module.split(".")[2] if module.count(".") > 1 else None
    wrong = [
        found
        for found in INSIDE
        if (here := room(module_name(found.file))) is not None
        and module_name(found.file).startswith("clusterjax.experiments.")
        and found.target.startswith("clusterjax.experiments.")
        and room(found.target) not in {here, "framework"} | SHARED_BY_FIGURES.get(here, set())
        and found.file.name != "registry.py"
    ]
    assert not wrong, show(wrong)


def reexports(node: ast.stmt) -> bool:
    """Whether a statement is `from ._x import Y as Y`, in which the repeated name says that Y is public."""
    return isinstance(node, ast.ImportFrom) and node.level > 0 and all(name.asname == name.name for name in node.names)


def is_door(node: ast.stmt) -> bool:
    """Whether a statement lists names for type checkers, and leaves it to `lazy_names` to import them."""
    if not isinstance(node, ast.If) or ast.unparse(node.test) != "TYPE_CHECKING" or len(node.orelse) != 2:
        return False
    imported, assigned = map(ast.unparse, node.orelse)
    return (
        all(map(reexports, node.body))
        and imported.lstrip("from .") == "_lazy import lazy_names"
        and assigned.startswith("__getattr__, __dir__, __all__ = lazy_names(__name__")
    )


@pytest.mark.parametrize("file", [f for f in SOURCES if f.name == "__init__.py"], ids=module_name)
def test_doors_only_reexport(file):
    """An `__init__.py` is a door: re-exports under the same name, at once or when they are asked for."""
    body = SOURCES[file].body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    name = module_name(file).split(".")
    public = len(name) <= 2 and not any(part.startswith("_") for part in name)
    if public:
        assert ast.unparse(body[0]) == "from typing import TYPE_CHECKING" and is_door(body[1]) and len(body) == 2
        return
    wrong = [f"line {node.lineno}: {ast.unparse(node).splitlines()[0]}" for node in body if not reexports(node)]
    assert not wrong, f"{file.relative_to(ROOT)} should only hold `from ._x import Y as Y`:\n" + "\n".join(wrong)


def test_libraries_of_extras_stay_in_their_parts():
    wrong = [
        found
        for found in IMPORTS
        if (library := found.target.split(".")[0]) in EXTRAS
        and not found.inside_function
        and part_of(module_name(found.file)) not in EXTRAS[library]
    ]
    assert not wrong, show(wrong)
    assert not [found for found in IMPORTS if found.target.split(".")[0] == "torch"], "torch is never a dependency"


@pytest.mark.parametrize(
    ("where", "line", "target"),
    (
        ("_field/new.py", "from .._misc import normalise", "clusterjax._base.numerics"),
        ("_field/new.py", "from .base import AbstractField", "clusterjax._model.field"),
        ("_model/field.py", "from .base import AbstractField as AbstractField", "clusterjax._model.field"),
        ("_new.py", "from . import _misc", "clusterjax._base.numerics"),
        ("_new.py", "from . import Sphere", "clusterjax"),
        ("_new.py", "import clusterjax._base.numerics", "clusterjax._base.numerics"),
        ("_new.py", "def f():\n    from clusterjax import Sphere", "clusterjax"),
        ("_new.py", "def f():\n    try:\n        pass\n    except OSError:\n        import clusterjax", "clusterjax"),
        ("_new.py", "if 1:\n    import clusterjax", "clusterjax"),
        ("_new.py", "if TYPE_CHECKING:\n    from . import _misc", "clusterjax._base.numerics"),
        ("_new.py", "if TYPE_CHECKING:\n    f = 1\nelse:\n    import clusterjax", "clusterjax"),
    ),
)
def test_the_reader_of_imports_sees(where, line, target):
    """The tests above rest on this reader, so it is held to every way in which an import can be written."""
    (found,) = imports_of(
        PACKAGE / where, ast.parse(line), MODULES | {"clusterjax._model.field", "clusterjax._base.numerics"}
    )
    assert found.target == target
    assert found.inside_function == line.startswith("def")


def test_an_import_for_annotations_alone_does_not_run():
    (found,) = imports_of(PACKAGE / "_new.py", ast.parse("if TYPE_CHECKING:\n    import xarray"))
    assert found.target == "xarray" and found.inside_function
