"""Every notebook is a pair: a percent script that runs, and an .ipynb with the same cells, executed without error."""

import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

from .helpers import fresh_environment


ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))


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
    if cells(notebook) != cells(jupytext.read(script, fmt="py:percent")):
        found.append(f"{pair.name} does not hold the cells of {script.name}; run make notebooks")
    if any(cell.execution_count is None for cell in code) or not any(cell.outputs for cell in code):
        found.append(f"{pair.name} is not executed; run make notebooks")
    if any(output.output_type == "error" for cell in code for output in cell.outputs):
        found.append(f"{pair.name} holds an error")
    return found


def run(script: Path) -> subprocess.CompletedProcess:
    """The script from top to bottom at its small sizes, outside the test's own jax configuration."""
    env = fresh_environment("XLA_", SMALL="1")
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=script.parent, env=env)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_pair_is_executed_and_in_step(script):
    assert not faults(script)


DEAR = ("04_million_tokens", "07_trained_albert", "08_causal_network", "09_lecture")  # minutes of a slow machine
RUNS = [
    pytest.param(script, marks=pytest.mark.exhaustive if script.stem in DEAR else (), id=script.stem)
    for script in SCRIPTS
]


@pytest.mark.parametrize("script", RUNS)
def test_script_asserts_its_claim_and_runs(script):
    assert "assert " in script.read_text("utf-8"), f"{script.name} claims nothing that it asserts"
    done = run(script)
    assert done.returncode == 0, done.stderr[-4000:]


def test_every_notebook_has_its_script():
    alone = [pair.name for pair in NOTEBOOKS.glob("*.ipynb") if not pair.with_suffix(".py").exists()]
    assert not alone, f"These notebooks have no percent script: {alone}"


EXAMPLE = "# %% [markdown]\n# One and one is two.\n\n# %%\ntotal = 1 + 1\nassert total == 2\ntotal\n"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A percent script and its executed pair, made as `make notebooks` makes them."""
    script = tmp_path_factory.mktemp("pair") / "example.py"
    script.write_text(EXAMPLE, "utf-8")
    notebook = jupytext.read(script, fmt="py:percent")
    NotebookClient(notebook, kernel_name="python3").execute()
    nbformat.write(notebook, script.with_suffix(".ipynb"))
    return script


@pytest.fixture
def pair(executed, tmp_path):
    """A copy of the executed pair that a test may spoil."""
    for suffix in (".py", ".ipynb"):
        shutil.copy(executed.with_suffix(suffix), tmp_path)
    return tmp_path / executed.name


def edit(script: Path, change) -> None:
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    change(notebook)
    nbformat.write(notebook, script.with_suffix(".ipynb"))


def test_a_good_pair_has_no_faults(pair):
    assert faults(pair) == []
    assert run(pair).returncode == 0


def test_faults_are_found(pair):
    """The tests above rest on `faults`: a stale, a bare, a failed and a missing pair are each told apart."""
    pair.write_text(EXAMPLE.replace("1 + 1", "3 - 1"), "utf-8")
    assert len(faults(pair)) == 1 and "does not hold the cells" in faults(pair)[0]
    pair.write_text(EXAMPLE, "utf-8")
    edit(pair, lambda notebook: notebook.cells[1].update(outputs=[], execution_count=None))
    assert len(faults(pair)) == 1 and "is not executed" in faults(pair)[0]
    error = nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])
    edit(pair, lambda notebook: notebook.cells[1].update(outputs=[error], execution_count=1))
    assert len(faults(pair)) == 1 and "holds an error" in faults(pair)[0]
    pair.with_suffix(".ipynb").unlink()
    assert len(faults(pair)) == 1 and "is missing" in faults(pair)[0]


def test_a_false_claim_fails(pair):
    pair.write_text(EXAMPLE.replace("== 2", "== 3"), "utf-8")
    assert run(pair).returncode == 1
