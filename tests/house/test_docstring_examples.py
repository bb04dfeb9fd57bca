"""The examples in the docstrings of public names run as a user would run them, and print the stated output.

An example is a fenced block in the form of `doctest`, inside an `!!! example`. Two parallel processes run the examples
in float32, one for names of clusterjax itself and one for names of its parts. Most of the time is compilation, and an
example reuses the programs that earlier examples compiled.
"""

import inspect
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.helpers import fresh_environment
from tests.house.test_docs import NAMES


BLOCK = re.compile(r"^!!! example\n\n^    ```python\n(.*?)^    ```$", re.MULTILINE | re.DOTALL)

CHILD = """
import doctest, json, sys
parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
for name, code in json.load(sys.stdin):
    runner.run(parser.get_doctest(code, {}, name, name, 0))
sys.exit(1 if runner.summarize(verbose=False).failed else 0)
"""


def examples(words: str) -> list[str]:
    """The code of each example of a docstring."""
    return [textwrap.dedent(code) for code in BLOCK.findall(inspect.cleandoc(words))]


EXAMPLES = [(name, code) for name, value in NAMES.items() for code in examples(value.__doc__ or "")]


def start(chosen: list[tuple[str, str]], folder: Path) -> subprocess.Popen:
    """A fresh interpreter that runs these examples, with the defaults of jax except for fewer optimisations."""
    env = fresh_environment(JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    (folder / "examples.json").write_text(json.dumps(chosen), "utf-8")
    with open(folder / "examples.json", encoding="utf-8") as given:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=folder, env=env,
        )  # fmt: skip


@pytest.mark.parametrize("name", [name for name, value in NAMES.items() if ">>>" in (value.__doc__ or "")])
def test_each_example_is_in_a_block(name):
    """An example outside a block would not be found, and so would not run."""
    words = NAMES[name].__doc__
    assert words.count(">>> ") == sum(code.count(">>> ") for code in examples(words))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_examples_print_what_they_say(tmp_path):
    assert len(EXAMPLES) > 50
    running = []
    for behind in (False, True):  # names like `clusterjax.simulate`, then names like `clusterjax.probe.load`
        (folder := tmp_path / str(behind)).mkdir()
        running.append(start([example for example in EXAMPLES if (example[0].count(".") > 1) == behind], folder))
    # Both processes end before any assertion, so that no process is left running.
    ended = [(*process.communicate(), process.returncode) for process in running]
    for told, warned, code in ended:
        assert code == 0, told or warned
