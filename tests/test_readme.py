"""The examples of the README and of the pages in docs run as a reader would run them, and print what these say."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .helpers import fresh_environment


ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
# Each example of these by itself. Those of docs/experiments.md, sweeps.md and scaling.md have tests of their own.
PAGES = ("README.md", "docs/many_tokens.md", "docs/networks.md", "docs/sentiment.md", "docs/transformer.md")
# The examples of each of these build on each other. Those of which compiling takes long are left out of `make test`.
IN_ONE = ("docs/first_steps.md", *(f"docs/howto/{page.name}" for page in sorted((ROOT / "docs/howto").glob("*.md"))))
DEAR = ()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPET = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def examples(text: str) -> list[tuple[str, str]]:
    """Each Python block of `text` with the output in the `text` block right after it, empty if there is none."""
    blocks = BLOCK.findall(text)
    following = [*blocks[1:], ("", "")]
    return [
        (code, output if kind == "text" else "")
        for (language, code), (kind, output) in zip(blocks, following, strict=True)
        if language == "python"
    ]


def run(code: str, folder: Path) -> subprocess.CompletedProcess:
    """`code` in a fresh interpreter with jax as it comes, in an empty folder."""
    env = fresh_environment("XLA_")
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=env)


def test_the_readme_has_an_example_with_its_result():
    (code, output), *_ = examples(README)
    assert "import clusterjax as cjx" in code
    assert output.strip()
    assert len([line for line in code.splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize(
    ("code", "output"),
    [pytest.param(*example, id=page) for page in PAGES for example in examples((ROOT / page).read_text("utf-8"))],
)
def test_pages_print_what_they_say(code, output, tmp_path):
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == output.strip()


CUT = "-- the end of an example --"


def in_one(text: str) -> tuple[str, list[str]]:
    """The examples of a page as one program, and what each must print."""
    found = examples(text)
    return "".join(f"{code}\nprint({CUT!r})\n" for code, _ in found), [output.strip() for _, output in found]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.exhaustive if page in DEAR else (), id=page) for page in IN_ONE]
)
def test_the_examples_of_a_page_print_what_they_say(page, tmp_path):
    """In one program, each after the other, as a reader runs them."""
    code, expected = in_one((ROOT / page).read_text("utf-8"))
    if not expected:
        pytest.skip(f"{page} has no example")
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [output.strip() for output in done.stdout.split(f"{CUT}\n")[:-1]] == expected


def test_the_snippets_of_the_changelog_run(tmp_path):
    """In one program, each after the other, on what the changelog says that they assume and a few matrices."""
    code = [textwrap.dedent(snippet) for snippet in SNIPPET.findall((ROOT / "CHANGELOG.md").read_text("utf-8"))]
    assert len(code) >= 5
    prelude = """
        import clusterjax as cjx, jax, jax.numpy as jnp
        x, ts = cjx.Sphere().sample(jax.random.key(0), 5, 3), jnp.linspace(0.0, 9.0, 10)
        V, w_in, w_out, counts = jnp.eye(3), jnp.ones((4, 3)), jnp.ones((3, 4)), [5, 4, 2, 2, 2, 2, 2, 2, 1, 1]
    """
    done = run("\n".join([textwrap.dedent(prelude), *code]), tmp_path)
    assert done.returncode == 0, done.stderr


MADE = ("reference/", "changelog.md", "references.md", "notebooks/index.md", "benchmarks/")
PROSE = ("README.md", *(page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs").rglob("*.md"))))


@pytest.mark.parametrize("page", PROSE)
def test_local_links_lead_somewhere(page):
    """Every picture, file and heading that a page names is in the repository."""
    text, missing = (ROOT / page).read_text("utf-8"), []
    for target in re.findall(r"\]\((?!https?://)([^)]+)", text) + re.findall(r'<img[^>]+src="(?!http)([^"]+)"', text):
        path, _, heading = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        # Pages that are made as the site is built, such as the reference, are looked at there (tests/site); where
        # GitHub says what its workflows did is known to GitHub.
        if any(part in target for part in MADE) or target.startswith("../../actions/"):
            continue
        headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE) if heading and file.exists() else []
        if not file.exists() or (heading and heading not in map(anchor, headings)):
            missing.append(target)
    assert not missing, f"{page} names what does not exist: {missing}"


def anchor(heading: str) -> str:
    """The name that a heading gets on the page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_readme_is_short():
    assert len(README.split()) <= 900


def test_the_examples_are_found():
    """The reader of code blocks sees code with and without output, and leaves other languages alone."""
    text = "a\n```python\nprint(1)\n```\n\nprints\n\n```text\n1\n```\n```sh\nls\n```\n```python\nx = 2\n```\n"
    assert examples(text) == [("print(1)\n", "1\n"), ("x = 2\n", "")]
