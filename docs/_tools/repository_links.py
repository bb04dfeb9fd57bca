"""Replaces links between files of the repository by links between the pages of the site that show these files."""

import posixpath
import re
from pathlib import Path


LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^( *)(`{3,}|~{3,})", re.MULTILINE)
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks/index.md",
}
FIGURE = re.compile(r"clusterjax/experiments/figures/(\w+\.py)")
CARD = re.compile(r"clusterjax/(\w+)/data/MODEL_CARD\.md")


def page_of(path: str) -> str | None:
    """The page or file of the site for a file of the repository; None if it is not on the site."""
    if path in PAGES:
        return PAGES[path]
    if card := CARD.fullmatch(path):
        return f"cards/{card[1]}.md"
    if figure := FIGURE.fullmatch(path):
        return f"gallery/{figure[1]}"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("notebooks/") and path.endswith((".ipynb", ".py")):
        return str(Path(path).with_suffix(".md"))
    return path if path.startswith("benchmarks/") and path.endswith(".py") else None


def rewrite(markdown: str, source: str, uri: str) -> str:
    """The Markdown of the file `source` with its links as the page `uri` needs them; code blocks are not changed.

    A link to a file that is not on the site is not changed, so that the strict build of MkDocs reports it.
    """

    def replaced(match: re.Match) -> str:
        target = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2])))
        if target is None:
            return match[0]
        heading = match[3] or ""
        if heading and target == "benchmarks/index.md":
            # Each heading of that file is a page of the site.
            target, heading = f"benchmarks/{re.sub(r'[^a-z0-9]+', '_', heading.lower()).strip('_')}.md", ""
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(uri) or '.')}{heading}{match[4]}"

    return outside_fences(markdown, lambda text: LINK.sub(replaced, text))


def outside_fences(markdown: str, change) -> str:
    """`markdown` with the function `change` applied to all text outside of code blocks, in which a link may span two
    lines."""
    parts, text, code, fence = [], [], [], None
    for line in markdown.splitlines(keepends=True):
        mark = FENCE.match(line)
        if fence is None and mark is None:
            text.append(line)
        elif fence is None:
            parts.append(change("".join(text)))
            text, code, fence = [], [line], mark[2]
        else:
            code.append(line)
            if mark and mark[2] == fence and line.strip() == fence:
                parts.append("".join(code))
                code, fence = [], None
    return "".join([*parts, change("".join(text)), "".join(code)])
