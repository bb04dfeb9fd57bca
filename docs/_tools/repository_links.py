"""Links between files of the repository, led to the pages of the site that are made of these files."""

import posixpath
import re
from pathlib import Path


LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^( *)(`{3,}|~{3,})", re.MULTILINE)
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks/index.md",
}
CARD = re.compile(r"clusterjax/(\w+)/data/MODEL_CARD\.md")


def page_of(path: str) -> str | None:
    """The page or file of the site for a file of the repository; None if it is not on the site."""
    if path in PAGES:
        return PAGES[path]
    if card := CARD.fullmatch(path):
        return f"cards/{card[1]}.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("notebooks/") and path.endswith((".ipynb", ".py")):
        return str(Path(path).with_suffix(".md"))
    return path if path.startswith("benchmarks/") and path.endswith(".py") else None


def rewrite(markdown: str, source: str, uri: str) -> str:
    """`markdown` of the file `source` as it must read on the page `uri`; code is left alone.

    A link to a file that is not on the site stays as it is, and MkDocs, which is strict, names it.
    """

    def lead(match: re.Match) -> str:
        target = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2])))
        if target is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(uri) or '.')}{match[3] or ''}{match[4]}"

    return outside_fences(markdown, lambda text: LINK.sub(lead, text))


def outside_fences(markdown: str, change) -> str:
    """`markdown` with `change` made to what is no block of code. A link may go over the end of a line."""
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
