"""The page "from the paper to the code" and the page of the gallery, as Markdown.

`docs/papers.toml` says what the papers say and where it lives, `docs/gallery/*.json` what was measured (written by
`publish_gallery.py` from a finished gallery). Neither page has a number or a verdict that is not read from there.
Standard library only: the site is built without the package's dependencies.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


DOCS = Path(__file__).resolve().parents[1]
NOT_MEASURED, NOT_YET = "not measured", "not measured yet"
LEGEND = (
    "A verdict follows from comparing what was measured here with what the paper measured: network, data and size; see "
    "[*verdict* in the glossary](glossary.md#what-is-claimed). *Tested* names the tests that hold a formula or a "
    "theorem, at each change of the code. What is neither measured nor tested says so."
)

Link = Callable[[str], str | None]


def render(root: Path = DOCS, link: Link = lambda _: None) -> str:
    """The page of the papers, without its title; `link` gives the address of a public name, such as "phase.Wigner"."""
    figures = published(root)
    parts = [LEGEND, _count(root, figures)]
    for paper in papers(root):
        rows = [_row(entry, figures, link) for entry in paper["entry"]]
        head = "| place | it says | verdict, and what was found | in the code |\n|---|---|---|---|"
        parts += [f"## {plain(paper['title'])} {{ #{paper['key']} }}", "\n".join([head, *rows])]
    return "\n\n".join(parts) + "\n"


def render_gallery(root: Path = DOCS, link: Link = lambda _: None) -> str:
    """The page of the gallery, without its title: pictures, claims, numbers and commands of all that was published."""
    figures, parts, group = published(root), [], None
    for figure in figures.values():
        if figure["paper"] != group:
            group = figure["paper"]
            parts.append(f"## {plain(group)}")
        parts.append(_card(figure))
    return "\n\n".join(parts or ["No figure has been published yet."]) + "\n"


def papers(root: Path = DOCS) -> list[dict[str, Any]]:
    """What `papers.toml` holds."""
    return tomllib.loads((root / "papers.toml").read_text("utf-8"))["paper"]


def published(root: Path = DOCS) -> dict[str, dict[str, Any]]:
    """The figures of `gallery/*.json` by name, in the order of the gallery."""
    figures = [json.loads(path.read_text("utf-8")) for path in sorted((root / "gallery").glob("*.json"))]
    return {figure["name"]: figure for figure in sorted(figures, key=lambda figure: (figure["place"], figure["name"]))}


def claims_of(reference: str, figures: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]] | None]:
    """The figure of "figure4: some words", and those of its claims that have these words; None if it is not there."""
    name, _, words = reference.partition(": ")
    if name not in figures:
        return name, None
    return name, [claim for claim in figures[name]["claims"] if words in claim["says"]]


def plain(text: str) -> str:
    """A text of a record or of the table as Markdown that shows it letter by letter, also in a cell of a table."""
    special = "\\`*_{}[]<>#|~^$&"
    return "".join(f"&#{ord(letter)};" if letter in special else letter for letter in text.replace("\n", " "))


def verdict_of(claim: Mapping[str, Any]) -> str:
    """The verdict of a claim; where the paper measured something else, whether the number would agree."""
    would = f" (would {'' if claim['holds'] else 'not '}agree)" if claim["apart"] else ""
    return f"{claim['verdict']}{would}"


def _row(entry: Mapping[str, Any], figures: Mapping[str, Any], link: Link) -> str:
    found = _measured(entry.get("claims", ()), figures)
    if tests := entry.get("tests", ()):
        found.append("**tested**: " + ", ".join(f"`{_test(name)}`" for name in tests))
    if not found:
        found.append(f"**{NOT_MEASURED}**")
    if note := entry.get("note"):
        found.append(f"*{plain(note)}*")
    code = [_name(name, link) for name in entry.get("code", ())]
    return f"| {plain(entry['at'])} | {plain(entry['says'])} | {'<br>'.join(found)} | {', '.join(code)} |"


def _measured(references: Sequence[str], figures: Mapping[str, Any]) -> list[str]:
    """A line for each claim: the verdict, the number, and a link to the figure."""
    found, lacking = [], []
    for reference in references:
        name, claims = claims_of(reference, figures)
        if not claims:
            why = NOT_YET if claims is None else f"{NOT_MEASURED} by the run that is shown"
            lacking.append(f"**{why}** (`{name}`)")
        found += [(name, claim) for claim in claims or ()]
    # One claim of the paper is what the entry says; of several, and of what was found here, each is named.
    said = lambda claim: "" if claim["kind"] == "paper" and len(found) == 1 else f" *{plain(claim['says'])}*"
    quick = lambda name: ", a quick run" if figures[name]["quick"] else ""
    lines = [
        f"**{plain(verdict_of(claim))}**:{said(claim)} {plain(claim['measured'])} "
        f"([{name}](gallery.md#{name}){quick(name)})"
        for name, claim in found
    ]  # fmt: skip
    # Several claims of a figure that is not there yet are one line.
    return [*lines, *dict.fromkeys(lacking)]


def _test(name: str) -> str:
    """A test without its folder."""
    return name.removeprefix("tests/")


def _name(name: str, link: Link) -> str:
    address = link(name)
    return f"`{name}`" if address is None else f"[`{name}`]({address})"


def _count(root: Path, figures: Mapping[str, Any]) -> str:
    """How many entries have a verdict on what a paper says, and which."""
    entries = [entry for paper in papers(root) for entry in paper["entry"]]
    seen: dict[tuple[str, str], str] = {}
    for entry in entries:
        for reference in entry.get("claims", ()):
            name, claims = claims_of(reference, figures)
            # Several entries may cite one claim: it counts once.
            seen |= {(name, claim["says"]): claim["verdict"] for claim in claims or () if claim["kind"] == "paper"}
    tested = sum(1 for entry in entries if entry.get("tests"))
    neither = sum(1 for entry in entries if not entry.get("tests") and not entry.get("claims"))
    verdicts = "; ".join(f"{verdict}: {many}" for verdict, many in sorted(Counter(seen.values()).items()))
    return (
        f"{len(entries)} entries, {tested} of them held by tests, {neither} neither measured nor tested. Claims of the "
        f"papers by verdict: {plain(verdicts) or 'none measured yet'}."
    )


def _card(figure: Mapping[str, Any]) -> str:
    whose = "The question" if figure["asks"] else "The paper"
    head = "| verdict | claim | measured | criterion |\n|---|---|---|---|"
    rows = [
        f"| **{plain(verdict_of(claim))}** | {plain(claim['says'])} | {plain(claim['measured'])} | "
        f"{plain(claim['criterion'])} |"
        for claim in figure["claims"]
    ]
    parts = [f"### {plain(figure['title'])} {{ #{figure['name']} }}"]
    if figure["quick"]:
        parts.append("**A quick run: fewer starts and shorter, so that its numbers are rough.**")
    if figure["heading"]:
        parts.append(f"**{plain(figure['heading'])}**")
    parts.append(f"*{whose}: {plain(figure['claim'])}*")
    if figure["picture"]:
        parts.append(f"![{plain(figure['title'])}](gallery/{figure['picture']}){{ loading=lazy }}")
    parts += [plain(figure["caption"]), "\n".join([head, *rows])]
    if figure["command"]:
        parts.append(f"```sh\n{figure['command']}\n```")
    versions = ", ".join(f"{name} {number}" for name, number in figure["versions"].items())
    parts.append(f"{plain(versions)}; {figure['seconds']['total']:g} s; {plain(figure['finished'][:10])}.")
    return "\n\n".join(parts)
