"""Every notebook is a pair: a percent script that runs, and an .ipynb with the same cells, executed without error. Each
ends with two exercises, whose answers, folded away in Markdown, are run behind its cells.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers import fresh_environment


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


ANSWER = re.compile(r"^<details><summary>Answer</summary>$(.*?)^</details>$", re.M | re.S)
CODE = re.compile(r"^```python$\n(.*?)^```$", re.M | re.S)


def answers(script: Path) -> list[str]:
    """The Markdown of each answer that is folded away."""
    cells = jupytext.read(script, fmt="py:percent").cells
    return [found for cell in cells if cell.cell_type == "markdown" for found in ANSWER.findall(cell.source)]


def faults_of_exercises(script: Path) -> list[str]:
    """What is wrong with the exercises of a notebook: there are two, and each answer says something and asserts it."""
    text = "\n".join(cell.source for cell in jupytext.read(script, fmt="py:percent").cells)
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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_pair_is_executed_and_in_step(script):
    assert not faults(script)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_ends_with_two_exercises(script):
    assert not faults_of_exercises(script)


def test_they_are_numbered_from_the_first_steps():
    numbers, names = zip(*(script.stem.split("_", 1) for script in SCRIPTS), strict=True)
    assert names[0] == "first_steps" and 8 <= len(numbers) <= 14
    assert numbers == tuple(f"{number:02}" for number in range(len(numbers)))


def test_a_link_between_notebooks_leads_to_one():
    for script in SCRIPTS:
        linked = re.findall(r"\]\((\w+)\.ipynb\)", script.read_text("utf-8"))
        assert set(linked) <= {one.stem for one in SCRIPTS}, script.name


def test_they_are_small_enough_to_be_kept():
    sizes = {pair.name: pair.stat().st_size for pair in NOTEBOOKS.glob("*.ipynb")}
    assert max(sizes.values()) < 400e3 and sum(sizes.values()) < 2.5e6, sizes


CHEAP = ("00_first_steps",)  # the others take from half a minute to minutes of a slow machine
RUNS = [
    pytest.param(script, marks=() if script.stem in CHEAP else pytest.mark.exhaustive, id=script.stem)
    for script in SCRIPTS
]


@pytest.mark.exhaustive_cases("00_first_steps")
@pytest.mark.parametrize("script", RUNS)
def test_script_and_answers_assert_their_claims_and_run(script, tmp_path):
    assert "assert " in script.read_text("utf-8"), f"{script.name} claims nothing that it asserts"
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]


def test_every_notebook_has_its_script():
    alone = [pair.name for pair in NOTEBOOKS.glob("*.ipynb") if not pair.with_suffix(".py").exists()]
    assert not alone, f"These notebooks have no percent script: {alone}"


EXAMPLE = """# %% [markdown]
# One and one is two.

# %%
total = 1 + 1
assert total == 2
total

# %% [markdown]
# ## Exercises
#
# **1. Three.** And one more?
#
# <details><summary>Answer</summary>
#
# It is three.
#
# ```python
# assert total + 1 == 3
# ```
#
# </details>
#
# **2. None.** And one less?
#
# <details><summary>Answer</summary>
#
# It is one.
#
# ```python
# less = total - 1
# assert less == 1
# ```
#
# </details>
"""


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
    assert faults(pair) == [] and faults_of_exercises(pair) == []
    assert len(answers(pair)) == 2 and with_answers(pair).endswith("\n\nless = total - 1\nassert less == 1\n")
    assert run(pair, pair.parent).returncode == 0


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


@pytest.mark.parametrize("claim", ["assert total == 2", "# assert total + 1 == 3", "# assert less == 1"])
def test_a_false_claim_fails(pair, claim):
    """Of the cells, and of each answer."""
    assert claim in EXAMPLE
    pair.write_text(EXAMPLE.replace(claim, f"{claim}0"), "utf-8")
    done = run(pair, pair.parent)
    assert done.returncode == 1 and "AssertionError" in done.stderr


@pytest.mark.parametrize(
    "there, instead, words",
    [
        ("# **2. None.**", "# **3. None.**", "has the exercises"),
        ("# <details><summary>Answer</summary>\n#\n# It is one.", "# It is one.", "has 1 answers"),
        ("# assert less == 1\n", "", "answer 2 of example.py has no code"),
        ("# ```python\n# less", "# ```\n# less", "answer 2 of example.py has no code"),
        ("# It is one.\n#\n", "", "says nothing"),
        ("</summary>\n#\n# It is three", "</summary>\n# It is three", "answer 1 of example.py is no Markdown"),
    ],
)
def test_faults_of_exercises_are_found(pair, there, instead, words):
    assert there in EXAMPLE
    pair.write_text(EXAMPLE.replace(there, instead), "utf-8")
    assert any(words in fault for fault in faults_of_exercises(pair))
