"""Every notebook is a pair: a percent script that runs, and an .ipynb with the same cells, executed without error. The
answers to its exercises, folded away in Markdown, are run behind its cells.
"""

import functools
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

from tests.helpers import fresh_environment


ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))


@functools.cache
def read(script: Path) -> nbformat.NotebookNode:
    return jupytext.read(script, fmt="py:percent")


def cells(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source.strip()) for cell in notebook.cells if cell.source.strip()]


def faults(script: Path) -> list[str]:
    """What is wrong with the .ipynb beside a percent script."""
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
    """The Markdown of each answer that is folded away."""
    cells = read(script).cells
    return [found for cell in cells if cell.cell_type == "markdown" for found in ANSWER.findall(cell.source)]


def with_answers(script: Path) -> str:
    """The cells of a notebook as one script, and behind them the code of its answers."""
    return "\n\n".join([script.read_text("utf-8"), *(code for one in answers(script) for code in CODE.findall(one))])


def run(script: Path, folder: Path) -> subprocess.CompletedProcess:
    """The script and its answers, from top to bottom at small sizes, outside the test's own jax configuration."""
    whole = folder / f"whole_{script.name}"
    whole.write_text(with_answers(script), "utf-8")
    env = fresh_environment("XLA_", SMALL="1")
    return subprocess.run([sys.executable, str(whole)], capture_output=True, text=True, cwd=script.parent, env=env)


def test_pairs_are_executed_and_in_step():
    assert [fault for script in SCRIPTS for fault in faults(script)] == []
    assert {pair.stem for pair in NOTEBOOKS.glob("*.ipynb")} == {script.stem for script in SCRIPTS}


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_and_answers_assert_their_claims_and_run(script, tmp_path):
    assert "assert " in script.read_text("utf-8"), f"{script.name} claims nothing that it asserts"
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
