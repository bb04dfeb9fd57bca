"""Every notebook is a pair: a percent script that runs, and an .ipynb with the same cells, executed without error. The
notebook needs only the packages that its first cell names. The last cell asks three questions; the code of their folded
answers runs after the other cells.
"""

import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import datetime
from importlib import metadata
from pathlib import Path

import jupytext
import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers import fresh_environment


ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NOTEBOOKS = ROOT / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))


@functools.cache
def read(script: Path) -> nbformat.NotebookNode:
    return jupytext.read(script, fmt="py:percent")


def cells(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source.strip()) for cell in notebook.cells if cell.source.strip()]


def faults(script: Path) -> list[str]:
    """The faults of the .ipynb beside a percent script."""
    pair = script.with_suffix(".ipynb")
    if not pair.exists():
        return [f"{pair.name} is missing; run make notebooks"]
    notebook = nbformat.read(pair, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    found = []
    if cells(notebook) != cells(read(script)):
        found.append(f"{pair.name} does not hold the cells of {script.name}; run make notebooks")
    if any(cell.execution_count is None for cell in code) or not any(cell.outputs for cell in code):
        found.append(f"{pair.name} is not executed; run make notebooks")
    if any(output.output_type == "error" for cell in code for output in cell.outputs):
        found.append(f"{pair.name} holds an error")
    return found


ANSWER = re.compile(r"^<details><summary>Answer</summary>$(.*?)^</details>$", re.M | re.S)
CODE = re.compile(r"^```python$\n(.*?)^```$", re.M | re.S)


def answers(script: Path) -> list[str]:
    """The Markdown of each folded answer."""
    cells = read(script).cells
    return [found for cell in cells if cell.cell_type == "markdown" for found in ANSWER.findall(cell.source)]


def extras(script: Path) -> set[str]:
    """The extras of the package that the first cell of a notebook names."""
    return set(re.search(r"`pip install 'clusterjax\[([a-z0-9,]+)\]' jupyterlab`", first_cell(script))[1].split(","))


def first_cell(script: Path) -> str:
    return " ".join(read(script).cells[0].source.split())


def requirements(name: str, extras: set[str]) -> Iterator[Requirement]:
    """The direct requirements of an installed distribution, or of the package, with extras."""
    if name == "clusterjax":
        groups = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
        yield from (Requirement(line) for group in groups for line in group)
        return
    for requirement in map(Requirement, metadata.requires(name) or ()):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in ("", *extras)):
            yield requirement


def required(name: str, extras: set[str], found: set[tuple[str, frozenset[str]]]) -> set[str]:
    """The names of the distributions that the package with extras requires, directly and indirectly."""
    if (name, frozenset(extras)) not in found:
        found.add((name, frozenset(extras)))
        try:
            for requirement in requirements(name, extras):
                required(canonicalize_name(requirement.name), requirement.extras, found)
        except metadata.PackageNotFoundError:
            pass  # an extra that is not installed, such as smollm2
    return {name for name, _ in found}


# The first lines of each run, which hide the packages that the first cell does not name.
WITHOUT = """import sys
from importlib.machinery import PathFinder


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {absent} else PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without

"""


def with_answers(script: Path) -> str:
    """The cells of a notebook as one script, followed by the code of its answers."""
    return "\n\n".join([script.read_text("utf-8"), *(code for one in answers(script) for code in CODE.findall(one))])


def run(script: Path, folder: Path) -> subprocess.CompletedProcess:
    """Runs the script and its answers at small sizes, without the jax configuration of the tests, in an empty folder
    and without the packages that the first cell does not name.
    """
    present = required("clusterjax", extras(script), set())
    modules = metadata.packages_distributions().items()
    absent = {name for name, owners in modules if present.isdisjoint(map(canonicalize_name, owners))}
    whole = folder / f"whole_{script.name}"
    whole.write_text(WITHOUT.format(absent=sorted(absent)) + with_answers(script), "utf-8")
    env = fresh_environment("XLA_", SMALL="1")
    return subprocess.run([sys.executable, str(whole)], capture_output=True, text=True, cwd=folder, env=env)


def seconds(pair: Path) -> float:
    """The time of the stored run of a notebook, from its first cell to its last."""
    cells = nbformat.read(pair, as_version=4).cells
    stamps = [stamp for cell in cells for stamp in cell.metadata.get("execution", {}).values()]
    times = [datetime.fromisoformat(stamp) for stamp in stamps]
    return (max(times) - min(times)).total_seconds()


def test_pairs_are_executed_and_in_step():
    assert [fault for script in SCRIPTS for fault in faults(script)] == []
    assert {pair.stem for pair in NOTEBOOKS.glob("*.ipynb")} == {script.stem for script in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_first_cell_says_what_is_shown_and_needed(script):
    assert "**This notebook shows**" in first_cell(script) and extras(script)
    assert "The notebook needs no other file, and runs in less than two minutes on two cores." in first_cell(script)
    took = seconds(script.with_suffix(".ipynb"))
    assert took < 120, f"{script.stem} took {took:.0f} s; shorten it, or run make notebooks while nothing else runs"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_last_cell_asks_three_questions_with_folded_answers(script):
    last = read(script).cells[-1]
    assert last.cell_type == "markdown" and last.source.startswith("## Three questions\n")
    asked = re.split(r"^\*\*\d\. .+?\*\* ", last.source, flags=re.M)[1:]
    assert len(asked) == len(answers(script)) == 3
    for one in asked:
        question, answer = one.split("<details>")
        assert "?" in question and "assert" in "".join(CODE.findall(answer))


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_and_answers_assert_their_claims_and_run(script, tmp_path):
    assert "assert " in script.read_text("utf-8"), f"{script.name} claims nothing that it asserts"
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
