"""Every notebook is a pair: a percent script that runs, and an .ipynb with the same cells, executed without error. Each
ends with two exercises, whose answers, folded away in Markdown, are run behind its cells.
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


def faults_of_exercises(script: Path) -> list[str]:
    """What is wrong with the exercises of a notebook: there are two, and each answer says something and asserts it."""
    text = "\n".join(cell.source for cell in read(script).cells)
    found = []
    asked = re.findall(r"^\*\*(\d)\. ", text.partition("## Exercises\n")[2], re.M)
    if asked != ["1", "2"]:
        found.append(f"{script.name} has the exercises {asked} under '## Exercises', not 1 and 2")
    if len(answers(script)) != 2 or text.count("<details>") != 2:
        found.append(f"{script.name} has {len(answers(script))} answers that are folded away, not 2")
    for number, answer in enumerate(answers(script), 1):
        code = CODE.findall(answer)
        if len(code) != 1 or not re.search(r"^\s*(assert |np\.testing\.)", code[0], re.M):
            found.append(f"answer {number} of {script.name} has no code that asserts something")
        # Without an empty line behind the tag what follows is HTML, not Markdown.
        if not answer.startswith("\n\n") or not CODE.sub("", answer).strip():
            found.append(f"answer {number} of {script.name} is no Markdown, or says nothing")
    return found


def with_answers(script: Path) -> str:
    """The cells of a notebook as one script, and behind them the code of its answers."""
    return "\n\n".join([script.read_text("utf-8"), *(code for one in answers(script) for code in CODE.findall(one))])


def run(script: Path, folder: Path) -> subprocess.CompletedProcess:
    """The script and its answers, from top to bottom at small sizes, outside the test's own jax configuration."""
    whole = folder / f"whole_{script.name}"
    whole.write_text(with_answers(script), "utf-8")
    env = fresh_environment("XLA_", SMALL="1")
    return subprocess.run([sys.executable, str(whole)], capture_output=True, text=True, cwd=script.parent, env=env)


def test_pairs_are_executed_and_in_step_and_end_with_two_exercises():
    assert [fault for script in SCRIPTS for fault in (*faults(script), *faults_of_exercises(script))] == []


def test_they_are_numbered_from_the_first_steps():
    numbers, names = zip(*(script.stem.split("_", 1) for script in SCRIPTS), strict=True)
    assert names[0] == "first_steps" and 8 <= len(numbers) <= 14
    assert numbers == tuple(f"{number:02}" for number in range(len(numbers)))


def test_a_link_between_notebooks_leads_to_one():
    for script in SCRIPTS:
        linked = re.findall(r"\]\((\w+)\.ipynb\)", script.read_text("utf-8"))
        assert set(linked) <= {one.stem for one in SCRIPTS}, script.name


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_and_answers_assert_their_claims_and_run(script, tmp_path):
    assert "assert " in script.read_text("utf-8"), f"{script.name} claims nothing that it asserts"
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]


def test_every_notebook_has_its_script():
    alone = [pair.name for pair in NOTEBOOKS.glob("*.ipynb") if not pair.with_suffix(".py").exists()]
    assert not alone, f"These notebooks have no percent script: {alone}"
