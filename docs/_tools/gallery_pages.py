"""The gallery: thumbnails by theme, and a page for each figure, as Markdown.

`docs/gallery.md` lists the figures of each theme. The measurements are those of `docs/gallery/*.json`, which
`publish_gallery.py` writes from a finished gallery, and what would refute the claims of a figure is read from the
docstring of its file. Only the standard library is imported, so that the site is built without other packages.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


DOCS = Path(__file__).resolve().parents[1]
THEME = re.compile(r"^## (.+)\n\n<!-- figures: ([^>]+) -->", re.MULTILINE)
REFUTED = re.compile(r"^(What would refute [^:]+:)\n+((?:(?:- |  ).+\n?)+)", re.MULTILINE)
WIDE = "---\nhide: [toc]\n---\n\n"  # for large pictures and tables
LEADING = 3  # the number of findings that a page without a claim of a paper shows first
# The class of each verdict in site.css, in the order in which a page shows them.
VERDICTS = {
    "VIOLATED": "no", "does not reproduce": "no", "not the paper's network": "apart", "not the paper's data": "apart",
    "not the paper's size": "apart", "reproduces": "yes", "does not hold": "no", "holds": "yes", "tested": "yes",
    "not measured": "none",
}  # fmt: skip


def published(root: Path = DOCS) -> dict[str, dict[str, Any]]:
    """The figures of `gallery/*.json` by name."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((root / "gallery").glob("*.json"))}


def themes(root: Path = DOCS) -> dict[str, list[str]]:
    """The names of the published figures by theme, as `gallery.md` lists them.

    **Raises:**

    - `ValueError` if a published figure is listed more than once, or not at all.
    """
    found = {title: names.split() for title, names in THEME.findall((root / "gallery.md").read_text("utf-8"))}
    figures, listed = published(root), Counter(name for names in found.values() for name in names)
    if wrong := [name for name in figures if listed[name] != 1]:
        raise ValueError(f"docs/gallery.md must list each published figure once; list {wrong} in one theme each.")
    return {title: [name for name in names if name in figures] for title, names in found.items()}


def plain(text: str) -> str:
    """Markdown that shows `text` literally, also in a cell of a table."""
    special = "\\`*_{}[]<>#|~^$&"
    return "".join(f"&#{ord(letter)};" if letter in special else letter for letter in text.replace("\n", " "))


def verdict_of(claim: Mapping[str, Any]) -> str:
    """The verdict on a claim; if the paper measured something else, with the remark whether the number would agree."""
    would = f" (would {'' if claim['holds'] else 'not '}agree)" if claim["apart"] else ""
    return f"{claim['verdict']}{would}"


def badge(verdict: str, words: str | None = None) -> str:
    """A verdict, or other words, beside which the style of the site draws a coloured dot with a sign."""
    return f'<span class="verdict {VERDICTS[verdict]}">{plain(words or verdict)}</span>'


def badges(verdicts: Iterable[str]) -> str:
    """A badge for each verdict, with the number of times that it occurs."""
    counts = Counter(verdicts)
    return " ".join(
        badge(name, f"{name}: {counts[name]}" if counts[name] > 1 else name) for name in VERDICTS if counts[name]
    )


def cards(names: str, root: Path = DOCS) -> str:
    """Thumbnails of figures, each with its verdicts and its claim or question."""
    figures = published(root)
    items = []
    for figure in (figures[name] for name in names.split() if name in figures):
        picture = f"![](gallery/{figure['picture']}){{ loading=lazy }}" if figure["picture"] else ""
        items.append(
            f"-   [{picture}{plain(figure['title'])}](gallery/{figure['name']}.md)\n\n"
            f"    {plain(figure['claim'])}\n\n    {_verdicts(figure)}"
        )
    return '<div class="grid cards gallery" markdown="1">\n\n{}\n\n</div>'.format("\n\n".join(items))


def pages(root: Path) -> Iterator:
    """The page of each published figure, and the file that draws it."""
    from made_pages import Made

    figures = published(root / "docs")
    for theme, names in themes(root / "docs").items():
        for name in names:
            source = f"clusterjax/experiments/figures/{name.replace('-', '_')}.py"
            words = ast.get_docstring(ast.parse((root / source).read_text("utf-8"))) or ""
            text = page(figures[name], source, words)
            yield Made(f"gallery/{name}.md", "docs/gallery.md", figures[name]["title"], text, group=theme)
            yield Made(f"gallery/{Path(source).name}", source, path=str(root / source))


def page(figure: Mapping[str, Any], source: str, words: str) -> str:
    """The page of a figure that the file `source` draws, whose docstring is `words`; links are relative to docs."""
    claims = figure["claims"]
    leading = [claim for claim in claims if claim["kind"] == "paper"]
    leading = leading or [claim for claim in claims if claim["kind"] == "finding"][:LEADING]
    quick = "**A quick run, with fewer starts and shorter runs: its numbers are rough.**" if figure["quick"] else ""
    heading = f"**{plain(figure['heading'])}**" if figure["heading"] else ""
    picture = f"gallery/{figure['picture']}"
    versions = ", ".join(f"{name} {number}" for name, number in figure["versions"].items())
    head = "| verdict | claim | measured | criterion |\n|---|---|---|---|"
    rows = [
        f"| {badge(claim['verdict'], verdict_of(claim))} | {plain(claim['says'])} | {plain(claim['measured'])} | "
        f"{plain(claim['criterion'])} |"
        for claim in claims
    ]
    parts = [
        f"{WIDE}# {plain(figure['title'])}",
        f"*{'The question' if figure['asks'] else 'The paper'}: {plain(figure['claim'])}*",
        quick,
        heading,
        _verdicts(figure),
        f"[![{plain(figure['title'])}]({picture})]({picture}){{ .picture }}" if figure["picture"] else "",
        "## What was measured",
        *map(_measured, leading),
        "## What would refute it",
        _refuted(leading, words),
        _folded("The caption of the picture", plain(figure["caption"])),
        _folded(f"All claims of the figure: {len(claims)}", "\n".join([head, *rows])),
        "## Draw it",
        f"```sh\n{figure['command']}\n```" if figure["command"] else "",
        f"[`{Path(source).name}`](../{source}) draws the figure. This run ended on {plain(figure['finished'][:10])}, "
        f"after {figure['seconds']['total']:g} s, with {plain(versions)}.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _verdicts(figure: Mapping[str, Any]) -> str:
    """The verdicts on the claims of a figure, without identities that hold: these are checks of the code."""
    shown = (claim for claim in figure["claims"] if claim["kind"] != "identity" or not claim["holds"])
    return badges(claim["verdict"] for claim in shown)


def _measured(claim: Mapping[str, Any]) -> str:
    """The verdict, the claim, its number and its source, a line each."""
    lines = [
        f"{badge(claim['verdict'], verdict_of(claim))} **{plain(claim['says'])}**",
        plain(claim["measured"]),
        f"<small>{plain(claim['source'])}</small>" if claim["source"] else "",
    ]
    return "<br>".join(filter(None, lines))


def _refuted(claims: Iterable[Mapping[str, Any]], words: str) -> str:
    """What would refute the claims: from the docstring `words` where it says so, otherwise from their criteria."""
    if found := REFUTED.search(words):
        return f"{found[1]}\n\n{found[2]}"
    listed = "\n".join(f"- *{plain(claim['says'])}* {plain(claim['criterion'].rstrip('.'))}." for claim in claims)
    return f"A measurement that fails the criterion of a claim refutes it. The criteria are:\n\n{listed}"


def _folded(title: str, text: str) -> str:
    """A part of a page that a reader unfolds, and that a search leaves out."""
    return f'<details markdown="1" data-search-exclude="">\n<summary>{title}</summary>\n\n{text}\n\n</details>'
