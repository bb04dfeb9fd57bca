"""The examples in the docstrings of public names run as a user would run them, and print what they say.

An example is a fenced block in the form of `doctest`, inside an `!!! example`. They run in two processes beside each
other, in float32: those of the front door, and those of the parts behind it. Most of their time is compiling, and what
one example has compiled the next one uses.
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
from tests.house.test_docs import NAMES, public_modules


BLOCK = re.compile(r"^!!! example\n\n^    ```python\n(.*?)^    ```$", re.MULTILINE | re.DOTALL)

# The names that README, guides, notebooks, benchmarks and experiments use most: each of them shows what it does.
MUST_HAVE = """
    simulate iterate AttentionField MultiHeadField FunctionField SoftmaxAttention UnnormalisedAttention
    HardmaxAttention KernelAttention FullMask CausalMask WindowMask FunctionMask Sphere Euclidean PiecewiseConstant
    Auto Blocked Harmonic Hull Sharded interaction_energy cluster_labels num_clusters cosine_histogram renyi_centres
    hardmax.HardmaxLayer hardmax.leaders hardmax.limit_set phase.phase_diagram sweep.run probe.load probe.encode
    probe.similarity_histograms transformer.load transformer.residual_stream sentiment.fit sentiment.explain
    plot.circle experiments.find_experiments
""".split()

# Those that compile for two seconds and more are left out of `make test`, unless they are what users begin with.
DEAR = """
    design.hold design.recover design.sensitivity design.steer phase.branch phase.stationary MeanField Rodas5P TokensAnd
    probe.special_ids probe.parameter_counts plot.player
    sentiment.explain probe.first_token Harmonic probe.generate probe.from_language_model Hull phase.phase_diagram
    transformer.logit_lens probe.position_heads probe.with_mask probe.without probe.head_signs
""".split()

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
    """A fresh interpreter that runs these examples, with jax as it comes but for less time spent on compiling."""
    env = fresh_environment(JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    (folder / "examples.json").write_text(json.dumps(chosen), "utf-8")
    with open(folder / "examples.json", encoding="utf-8") as given:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=folder, env=env,
        )  # fmt: skip


def test_the_most_used_names_have_an_example():
    parts = {module.__name__ for module in public_modules()}
    named = {f"clusterjax.{name}" for name in MUST_HAVE}
    there = {name for name in named if name.rpartition(".")[0] in parts}
    assert len(named) >= 30 and there <= set(NAMES)
    assert sorted(there - {name for name, _ in EXAMPLES}) == []


@pytest.mark.parametrize("name", [name for name, value in NAMES.items() if ">>>" in (value.__doc__ or "")])
def test_each_example_is_in_a_block(name):
    """What is not found would not be run."""
    words = NAMES[name].__doc__
    assert words.count(">>> ") == sum(code.count(">>> ") for code in examples(words))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("dear", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_the_examples_print_what_they_say(tmp_path, dear):
    chosen = [example for example in EXAMPLES if (example[0].removeprefix("clusterjax.") in DEAR) == dear]
    assert len(chosen) > 50 or dear and {name.removeprefix("clusterjax.") for name, _ in chosen} == set(DEAR)
    running = []
    for behind in (False, True):  # `clusterjax.simulate`, and `clusterjax.probe.load`
        (folder := tmp_path / str(behind)).mkdir()
        running.append(start([example for example in chosen if (example[0].count(".") > 1) == behind], folder))
    # Both are waited for before anything is asserted, so that no process is left behind.
    ended = [(*process.communicate(), process.returncode) for process in running]
    for told, warned, code in ended:
        assert code == 0, told or warned
