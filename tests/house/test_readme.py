"""The examples of the README and of the pages in docs run as a reader would run them, and print the stated output."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import fresh_environment


ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
# Each example of these pages runs by itself. The examples of docs/experiments.md and sweeps.md have tests of their own.
PAGES = (
    "README.md",
    "docs/index.md",
    "docs/many_tokens.md",
    "docs/networks.md",
    "docs/sentiment.md",
    "docs/transformer.md",
)
# The examples of each of these pages depend on earlier examples of the page.
IN_ONE = (
    "docs/first_steps.md",
    "docs/scaling.md",
    *(f"docs/howto/{page.name}" for page in sorted((ROOT / "docs/howto").glob("*.md"))),
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(text: str) -> list[tuple[str, str]]:
    """Each Python block of `text` with the output in the `text` block right after it, empty if there is none."""
    blocks = BLOCK.findall(text)
    following = [*blocks[1:], ("", "")][: len(blocks)]
    return [
        (code, output if kind == "text" else "")
        for (language, code), (kind, output) in zip(blocks, following, strict=True)
        if language == "python"
    ]


# As in conftest.py, `OPTIMISED=1` compiles as for users.
QUICK = {} if os.environ.get("OPTIMISED") else {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


# The child runs programs in turn and prints the output and the error of each as JSON. One process imports jax once and
# reuses compiled programs, which are most of the time of a small example.
CHILD = """
import contextlib, io, json, os, sys, tempfile, traceback
for code in json.load(sys.stdin):
    os.chdir(tempfile.mkdtemp(dir=sys.argv[1]))
    told, failed = io.StringIO(), ""
    with contextlib.redirect_stdout(told):
        try:
            exec(compile(code, "<example>", "exec"), {"__name__": "__main__"})
        except Exception:
            failed = traceback.format_exc()
    print(json.dumps([told.getvalue(), failed]))
"""


def run(programs: list[str], folder: Path, settings: dict[str, str] = QUICK) -> list[tuple[str, str]]:
    """The output of each program, and its error if it failed; one fresh interpreter runs all programs, each in its own
    namespace and its own empty folder.
    """
    if not programs:
        return []
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)], input=json.dumps(programs), capture_output=True, text=True,
        cwd=folder, env=fresh_environment("XLA_", **settings),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert len(told) == len(programs), done.stdout
    return told


def ends_alone(code: str) -> bool:
    """True if a program changes settings that a later program in the same interpreter would see."""
    return re.search(r"jax\.config|os\.environ", code) is not None


CUT = "-- the end of an example --"


def in_one(text: str) -> tuple[str, list[str]]:
    """The examples of a page as one program, and the output that each must print."""
    found = examples(text)
    return "".join(f"{code}\nprint({CUT!r})\n" for code, _ in found), [output.strip() for _, output in found]


def programs_of(page: str) -> list[tuple[str, str, list[str]]]:
    """The name of the page, the program and the expected outputs of its examples, for each program of a page."""
    text = (ROOT / page).read_text("utf-8")
    if page in PAGES:
        return [(page, code, [output.strip()]) for code, output in examples(text)]
    return [(page, *in_one(text))] if examples(text) else []


def assert_they_print_what_they_say(programs: list[tuple[str, str, list[str]]], *given) -> None:
    for (page, _, expected), (told, failed) in zip(
        programs, run([code for _, code, _ in programs], *given), strict=True
    ):
        assert not failed, f"{page}: {failed}"
        printed = [output.strip() for output in told.split(f"{CUT}\n")]
        assert (printed[:-1] if CUT in told else printed) == expected, page


@pytest.mark.exhaustive_cases(*PAGES[1:], *IN_ONE)  # the README, which is read first, is not left to `make exhaustive`
@pytest.mark.parametrize("page", (*PAGES, *IN_ONE))
def test_a_page_prints_what_it_says(page, tmp_path):
    """Programs that change settings of jax run alone, compiled as for users: one of them is about rounding."""
    programs = programs_of(page)
    assert_they_print_what_they_say([program for program in programs if not ends_alone(program[1])], tmp_path)
    for program in programs:
        if ends_alone(program[1]):
            assert_they_print_what_they_say([program], tmp_path, {})


def test_a_page_that_says_something_else_fails(tmp_path):
    assert_they_print_what_they_say([("right", "print(1)", ["1"])], tmp_path)
    for code in ("print(2)", "raise ValueError('no')", "print(1); print(1)"):
        with pytest.raises(AssertionError, match="wrong"):
            assert_they_print_what_they_say([("right", "print(1)", ["1"]), ("wrong", code, ["1"])], tmp_path)


MADE = ("reference/", "changelog.md", "references.md", "notebooks/index.md", "benchmarks/")
PROSE = ("README.md", *(page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs").rglob("*.md"))))


def test_local_links_lead_somewhere():
    """Every picture, file and heading to which a page links is in the repository."""
    missing, link = [], re.compile(r"\]\((?!https?://)([^)]+)|<img[^>]+src=\"(?!http)([^\"]+)\"")
    targets = [(page, "".join(parts)) for page in PROSE for parts in link.findall((ROOT / page).read_text("utf-8"))]
    for page, target in targets:
        path, _, heading = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        # Pages that the build of the site makes, such as the reference, are tested in tests/site; the results of
        # workflows exist only on GitHub.
        if any(part in target for part in MADE) or target.startswith("../../actions/"):
            continue
        headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE) if heading and file.exists() else []
        if not file.exists() or (heading and heading not in map(anchor, headings)):
            missing.append(f"{page}: {target}")
    assert targets and not missing, "these are not there"


def anchor(heading: str) -> str:
    """The anchor of a heading on its page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
