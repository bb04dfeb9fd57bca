"""The site builds without a warning, asks no other host for anything, and has no link to a place that does not exist.

A build of the whole site takes most of a minute. GitHub builds it at each push, so that `make test` builds small sites.
"""

import inspect
import os
import posixpath
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from filelock import FileLock

from tests.browser import browser  # noqa: F401
from tests.helpers import ROOT
from tests.house.test_docs import public_modules


pytest.importorskip("material", reason="mkdocs-material is not installed: pip install '.[docs]'")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install '.[docs]'")
griffe = pytest.importorskip("griffe", reason="griffe is not installed: pip install '.[docs]'")


def build(config: Path, out: Path, *options: str) -> subprocess.CompletedProcess:
    """Runs `mkdocs build`, which mkdocs.yml makes strict."""
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(out), *options]
    # Material warns once that MkDocs 2 will not read such sites; this switch, which Material names, silences it.
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=config.parent, env=env)


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The site, built once for all processes of the tests."""
    shared = (
        tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else tmp_path_factory.mktemp("s")
    )
    folder = shared / "site-of-the-tests"
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            done = build(ROOT / "mkdocs.yml", folder)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "WARNING" not in done.stderr and not done.stdout.strip(), done.stderr
            (folder / "done").touch()
    return folder


class Page(NamedTuple):
    """The references of a page, (tag, attribute, target), the names of its places, and its words."""

    references: list[tuple[str, str, str]]
    places: set[str]
    words: str


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.references, self.places, self.words, self.silent = [], set(), [], 0

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src", "data", "action", "poster") and value:
                self.references.append((tag, name, value))
            if name == "srcset" and value:
                self.references += [(tag, name, entry.split()[0]) for entry in value.split(",")]
            if name == "id" or (tag == "a" and name == "name"):
                self.places.add(value)
        self.silent += tag in ("script", "style", "code", "pre")

    def handle_endtag(self, tag):
        self.silent -= tag in ("script", "style", "code", "pre")

    def handle_data(self, data):
        if not self.silent:
            self.words.append(data)


def read(text: str) -> Page:
    reader = _Reader()
    reader.feed(text)
    return Page(reader.references, reader.places, "".join(reader.words))


@pytest.fixture(scope="session")
def pages(site) -> dict[str, Page]:
    """Every page of the site by its path."""
    found = {file.relative_to(site).as_posix(): read(file.read_text("utf-8")) for file in site.rglob("*.html")}
    assert len(found) > 50
    return found


def fetched(page: Page) -> list[str]:
    """The addresses on other hosts that a browser would request by itself: all but those of links and forms."""
    return [value for tag, _, value in page.references if tag not in ("a", "form") and is_elsewhere(value)]


def is_elsewhere(target: str) -> bool:
    return target.startswith("//") or urlsplit(target).scheme in ("http", "https", "ftp")


def astray(pages: dict[str, Page], site: Path) -> list[str]:
    """Links of pages to files or places that do not exist, or that are not relative."""
    found = []
    for path, page in pages.items():
        for _, _, value in page.references:
            scheme = urlsplit(value).scheme
            if is_elsewhere(value) or scheme in ("mailto", "data", "javascript", "blob", "about"):
                continue
            target, place = unquote(urlsplit(value).path), unquote(urlsplit(value).fragment)
            name = posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) if target else path
            lost = target.startswith("/") or scheme or not (site / name).is_file()
            # Places that a program on the page reads, such as the state of the playground, are not looked for.
            if lost or place and name in pages and "=" not in place and place not in pages[name].places | {"__skip"}:
                found.append(f"{path}: {value}")
    return found


@pytest.mark.exhaustive
def test_the_site_asks_no_other_host(site, pages):
    wanted = {path: addresses for path, page in pages.items() if (addresses := fetched(page))}
    assert not wanted
    # The styles ask no other host either.
    styles = {
        file.name: re.findall(r"url\(\s*['\"]?(?:https?:)?//", file.read_text("utf-8")) for file in site.rglob("*.css")
    }
    assert styles and not any(styles.values())


@pytest.mark.exhaustive
def test_every_link_leads_somewhere(site, pages):
    assert not astray(pages, site)


@pytest.mark.exhaustive
def test_the_start_page_begins_with_its_run_and_two_buttons(browser, site):  # noqa: F811
    browser.open(site / "index.html", width=1280, height=800)
    bottom = (
        "return Math.max(...[...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect().bottom))"
    )
    assert 300 < browser.run(bottom, "#start-scene") < 800 and browser.run(bottom, ".start .md-button") < 800
    links = [browser.run(f"return document.querySelectorAll('.start .md-button')[{k}].href") for k in range(2)]
    assert links == [(site / name).as_uri() for name in ("playground/index.html", "first_steps.html")]


def public() -> dict[str, Any]:
    return {
        f"{module.__name__}.{name}": getattr(module, name) for module in public_modules() for name in module.__all__
    }


@pytest.mark.exhaustive
def test_formulas_are_rendered(site, pages):
    """Formulas are MathML; no dollar, command of LaTeX or class of the former converter is left in the prose."""
    formulas = 0
    for path, page in pages.items():
        text = (site / path).read_text("utf-8")
        formulas += text.count("<math")
        assert "arithmatex" not in text, path
        if not path.startswith(("playground/", "benchmarks/", "gallery", "papers")):
            assert not re.findall(r"\$[^$\n]+\$|\\(?:beta|langle|sum|frac)\b", page.words), path
    assert formulas > 500


def test_signatures_are_those_of_the_constructors():
    """The reference shows the parameters of each class and function as Python does."""
    tools = str(ROOT / "docs" / "_tools")
    sys.path.insert(0, tools)
    try:
        from constructors import Constructors
    finally:
        sys.path.remove(tools)
    extensions = griffe.Extensions(Constructors())
    package = griffe.load("clusterjax", search_paths=[ROOT], extensions=extensions)
    wrong = []
    for name, value in public().items():
        if not callable(value) or not str(getattr(value, "__module__", "")).startswith("clusterjax"):
            continue
        documented = package[name.removeprefix("clusterjax.")]
        documented = documented.final_target if documented.is_alias else documented
        if inspect.isclass(value):
            if value.__name__.startswith("Abstract"):
                continue
            documented = documented.all_members.get("__init__", documented)
        expected = [
            shape(p.name, p.kind.name, p.default is not p.empty) for p in inspect.signature(value).parameters.values()
        ]
        shown = [shape(p.name, p.kind.name, p.default is not None) for p in getattr(documented, "parameters", ())]
        if [e for e in expected if e[0] != "self"] != [s for s in shown if s[0] not in ("self", "cls")]:
            wrong.append(name)
    assert not wrong


def shape(name: str, kind: str, has_default: bool) -> tuple[str, str, bool]:
    return name, kind.lower(), has_default and not kind.lower().startswith("var")


def small(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess:
    """Builds a site of one page with the rules of ours and the one hook that makes every build strict."""
    ours = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    kept = {name: ours[name] for name in ("site_name", "strict", "validation", "use_directory_urls")}
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(text, "utf-8")
    kept["hooks"] = [str(ROOT / ours["hooks"][0])]
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(kept), "utf-8")
    return build(folder / "mkdocs.yml", folder / "site", *options)


@pytest.mark.exhaustive_cases("page", "absolute", "whole", "quiet")
@pytest.mark.parametrize(
    ("link", "told", "options"),
    (
        ("[lost](nowhere.md)", "'nowhere.md', but the target is not found", ()),
        ("[lost](#no-such-heading)", "no such anchor", ()),
        ("[absolute](/index.html)", "absolute link '/index.html'", ()),
        ("[lost](nowhere.md)", "'nowhere.md', but the target is not found", ("--quiet",)),
        ("[here](#a-page)", "", ()),
    ),
    ids=("page", "heading", "absolute", "quiet", "whole"),
)
def test_a_broken_link_ends_the_build(link, told, options, tmp_path):
    """The error names the page and the broken link; `--quiet` alone would count no warning."""
    done = small(tmp_path, f"# A page\n\n{link}\n", *options)
    assert (done.returncode != 0) == bool(told)
    assert not told or "index.md" in done.stderr and told in done.stderr, done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("text", "told"),
    (
        ("[lost](../clusterjax/nowhere.py)", "../clusterjax/nowhere.py"),
        ("The formula $\\unheardof{x}$.", "unheardof"),
        ("::: clusterjax.nothing_of_this_name", "clusterjax.nothing_of_this_name"),
    ),
    ids=("link", "formula", "name"),
)
def test_a_broken_page_ends_the_build_of_the_whole(text, told, tmp_path):
    for name in ("docs", "notebooks", "benchmarks", "clusterjax"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mkdocs.yml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    page = tmp_path / "docs" / "first_steps.md"
    page.write_text(f"{page.read_text('utf-8')}\n{text}\n", "utf-8")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert told in done.stderr and "first_steps.md" in done.stderr, done.stderr
