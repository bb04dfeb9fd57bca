"""The list of all generated pages of the site; here also those of the changelog, model cards and references."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Made(NamedTuple):
    """A generated page or file of the site."""

    uri: str  # the path within the site
    source: str  # the path of the source within the repository
    title: str = ""  # the title in the navigation; empty for files that are no page
    content: str | bytes | None = None
    path: str | None = None  # a file to copy, in place of `content`
    group: str = ""  # the section of the navigation within its folder


import benchmark_pages
import gallery_pages
import notebook_pages
import papers
import reference_pages
import repository_links


CARDS = {"probe": "The ALBERT of the package", "transformer": "The language model", "sentiment": "The sentiment model"}
ENTRY = re.compile(r"^@(\w+)\{(\w+),\n(.*?)^\}$", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\s*(\w+)\s*=\s*\{(.*?)\},?$", re.MULTILINE | re.DOTALL)


def all_pages(root: Path) -> list[Made]:
    """All generated pages; those of a folder are in the order of the navigation."""
    pages = [
        Made("changelog.md", "CHANGELOG.md", "Changelog", (root / "CHANGELOG.md").read_text("utf-8")),
        Made("contributing.md", "CONTRIBUTING.md", "Contributing", (root / "CONTRIBUTING.md").read_text("utf-8")),
        *_cards(root),
        Made("references.md", "docs/references.bib", "References", references(root)),
        *reference_pages.pages(root),
        *notebook_pages.pages(root),
        *benchmark_pages.pages(root),
        *gallery_pages.pages(root),
        *papers.pages(root),
    ]
    # Unlike GitHub, the site reads Markdown within an HTML element only if the element says so.
    folded = lambda text: text.replace("<details>", '<details markdown="1">')
    return [page._replace(content=folded(page.content)) if page.uri.endswith(".md") else page for page in pages]


def readme(title: str, root: Path) -> str:
    """The section of the README with this title, with links as a page in docs needs them."""
    parts = re.split(r"^## (.+)\n", (root / "README.md").read_text("utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return repository_links.rewrite(f"## {title}\n{sections[title]}", "README.md", "index.md")


def _cards(root: Path) -> Iterator[Made]:
    for card in sorted(root.glob("clusterjax/*/data/MODEL_CARD.md")):
        part = card.parents[1].name
        source = card.relative_to(root).as_posix()
        yield Made(f"cards/{part}.md", source, CARDS.get(part, part), card.read_text("utf-8"))


def bibliography(root: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The key and the fields of each entry of references.bib, in its order."""
    for _, key, body in ENTRY.findall((root / "docs" / "references.bib").read_text("utf-8")):
        yield key, {name.lower(): _plain(value) for name, value in FIELD.findall(body)}


def references(root: Path) -> str:
    """The page of the papers of references.bib, in its order: authors, title, journal, year, and a link to arXiv."""
    lines = ["# References", "", "The papers whose results are used; as BibTeX: [references.bib](references.bib).", ""]
    for key, fields in bibliography(root):
        names = ", ".join(_first_name_first(name) for name in fields["author"].split(" and "))
        where = next((fields[name] for name in ("journal", "booktitle", "howpublished", "note") if name in fields), "")
        year = fields.get("year", "")
        number = fields.get("eprint", "")
        link = f" [arXiv:{number}](https://arxiv.org/abs/{number})." if number else ""
        published = " ".join(f"{part.rstrip('.')}." for part in (where, year) if part)
        lines.append(f'- <a id="{key}"></a>{names}. *{fields.get("title", key)}*. {published}{link}')
    return "\n".join(lines) + "\n"


def _first_name_first(name: str) -> str:
    last, comma, first = name.partition(",")
    return f"{first.strip()} {last.strip()}" if comma else name.strip()


ACCENTS = {r"\'e": "é", r"\'a": "á", r"\'E": "É", r"\"o": "ö", r"\"u": "ü", r"\"a": "ä", r"\`e": "è", r"\^o": "ô"}


def _plain(text: str) -> str:
    """The text of a field of BibTeX, without braces and with accents as Unicode characters."""
    text = re.sub(r"\{?(\\[\"'`^])\{?(\w)\}?\}?", lambda m: ACCENTS.get(m[1] + m[2], m[2]), text)
    return re.sub(r"\s+", " ", re.sub(r"[{}]", "", text)).strip()
