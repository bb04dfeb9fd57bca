"""The page "from the paper to the code" and the page of the gallery, as Markdown.

`docs/papers.toml` has the statements of the papers with their code and tests, and `docs/gallery/*.json` the
measurements, which `publish_gallery.py` writes from a finished gallery. All numbers and verdicts of the two pages are
read from these files. Only the standard library is imported, so that the site is built without other packages.
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
    "A verdict compares the network, the data and the size of a measurement with those of the paper; see [*verdict* in "
    "the glossary](glossary.md#what-is-claimed). *Tested* names the tests that check a formula or a theorem at each "
    "change of the code. An entry that is neither measured nor tested says so."
)

Link = Callable[[str], str | None]


def render(root: Path = DOCS, link: Link = lambda _: None) -> str:
    """The page of the papers, without its title; `link` gives the address of a public name, such as "phase.Wigner"."""
    figures = published(root)
    parts = [LEGEND, _count(root, figures)]
    for paper in papers(root):
        rows = [_row(entry, figures, link) for entry in paper["entry"]]
        head = "| section | statement | verdict and measurement | in the code |\n|---|---|---|---|"
        parts += [f"## {plain(paper['title'])} {{ #{paper['key']} }}", "\n".join([head, *rows])]
    return "\n\n".join(parts) + "\n"


def render_gallery(root: Path = DOCS, link: Link = lambda _: None) -> str:
    """The page of the gallery, without its title: pictures, claims, numbers and commands of all published figures."""
    figures, parts, group = published(root), [], None
    for figure in figures.values():
        if figure["paper"] != group:
            group = figure["paper"]
            parts.append(f"## {plain(group)}")
        parts.append(_card(figure))
    return "\n\n".join(parts or ["No figure has been published yet."]) + "\n"


def papers(root: Path = DOCS) -> list[dict[str, Any]]:
    """The papers of `papers.toml`, with their entries."""
    return tomllib.loads((root / "papers.toml").read_text("utf-8"))["paper"]


def published(root: Path = DOCS) -> dict[str, dict[str, Any]]:
    """The figures of `gallery/*.json` by name, in the order of the gallery."""
    figures = [json.loads(path.read_text("utf-8")) for path in sorted((root / "gallery").glob("*.json"))]
    return {figure["name"]: figure for figure in sorted(figures, key=lambda figure: (figure["place"], figure["name"]))}


def claims_of(reference: str, figures: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]] | None]:
    """The name of the figure in a reference such as "figure4: some words", and the claims of that figure with these
    words; None in place of the claims if the figure has not been published."""
    name, _, words = reference.partition(": ")
    if name not in figures:
        return name, None
    return name, [claim for claim in figures[name]["claims"] if words in claim["says"]]


def plain(text: str) -> str:
    """Markdown that shows `text` literally, also in a cell of a table."""
    special = "\\`*_{}[]<>#|~^$&"
    return "".join(f"&#{ord(letter)};" if letter in special else letter for letter in text.replace("\n", " "))


def verdict_of(claim: Mapping[str, Any]) -> str:
    """The verdict on a claim; if the paper measured something else, with the remark whether the number would agree."""
    would = f" (would {'' if claim['holds'] else 'not '}agree)" if claim["apart"] else ""
    return f"{claim['verdict']}{would}"


def _row(entry: Mapping[str, Any], figures: Mapping[str, Any], link: Link) -> str:
    results = _measured(entry.get("claims", ()), figures)
    if tests := entry.get("tests", ()):
        results.append("**tested**: " + ", ".join(f"`{name.removeprefix('tests/')}`" for name in tests))
    if not results:
        results.append(f"**{NOT_MEASURED}**")
    if note := entry.get("note"):
        results.append(f"*{plain(note)}*")
    code = [_name(name, link) for name in entry.get("code", ())]
    return f"| {plain(entry['at'])} | {plain(entry['says'])} | {'<br>'.join(results)} | {', '.join(code)} |"


def _measured(references: Sequence[str], figures: Mapping[str, Any]) -> list[str]:
    """A line for each claim: the verdict, the number, and a link to the figure."""
    measured, missing = [], []
    for reference in references:
        name, claims = claims_of(reference, figures)
        if not claims:
            reason = NOT_YET if claims is None else f"{NOT_MEASURED} by the published run"
            missing.append(f"**{reason}** (`{name}`)")
        measured += [(name, claim) for claim in claims or ()]
    # A single claim of the paper repeats the statement of the entry, and is left out.
    says = lambda claim: "" if claim["kind"] == "paper" and len(measured) == 1 else f" *{plain(claim['says'])}*"
    quick = lambda name: ", a quick run" if figures[name]["quick"] else ""
    lines = [
        f"**{plain(verdict_of(claim))}**:{says(claim)} {plain(claim['measured'])} "
        f"([{name}](gallery.md#{name}){quick(name)})"
        for name, claim in measured
    ]  # fmt: skip
    # Several missing claims of one figure make one line.
    return [*lines, *dict.fromkeys(missing)]


def _name(name: str, link: Link) -> str:
    address = link(name)
    return f"`{name}`" if address is None else f"[`{name}`]({address})"


def _count(root: Path, figures: Mapping[str, Any]) -> str:
    """The number of entries with tests and without any check, and the number of claims of the papers by verdict."""
    entries = [entry for paper in papers(root) for entry in paper["entry"]]
    # Several entries may cite one claim, which counts once.
    verdict_of_claim: dict[tuple[str, str], str] = {}
    for entry in entries:
        for reference in entry.get("claims", ()):
            name, claims = claims_of(reference, figures)
            of_paper = [claim for claim in claims or () if claim["kind"] == "paper"]
            verdict_of_claim |= {(name, claim["says"]): claim["verdict"] for claim in of_paper}
    tested = sum(1 for entry in entries if entry.get("tests"))
    neither = sum(1 for entry in entries if not entry.get("tests") and not entry.get("claims"))
    counts = sorted(Counter(verdict_of_claim.values()).items())
    verdicts = "; ".join(f"{verdict}: {count}" for verdict, count in counts)
    return (
        f"{len(entries)} entries, {tested} of them checked by tests, {neither} neither measured nor tested. Claims of "
        f"the papers by verdict: {plain(verdicts) or 'none measured yet'}."
    )


def _card(figure: Mapping[str, Any]) -> str:
    origin = "The question" if figure["asks"] else "The paper"
    head = "| verdict | claim | measured | criterion |\n|---|---|---|---|"
    rows = [
        f"| **{plain(verdict_of(claim))}** | {plain(claim['says'])} | {plain(claim['measured'])} | "
        f"{plain(claim['criterion'])} |"
        for claim in figure["claims"]
    ]
    parts = [f"### {plain(figure['title'])} {{ #{figure['name']} }}"]
    if figure["quick"]:
        parts.append("**A quick run, with fewer starts and shorter runs: its numbers are rough.**")
    if figure["heading"]:
        parts.append(f"**{plain(figure['heading'])}**")
    parts.append(f"*{origin}: {plain(figure['claim'])}*")
    if figure["picture"]:
        parts.append(f"![{plain(figure['title'])}](gallery/{figure['picture']}){{ loading=lazy }}")
    parts += [plain(figure["caption"]), "\n".join([head, *rows])]
    if figure["command"]:
        parts.append(f"```sh\n{figure['command']}\n```")
    versions = ", ".join(f"{name} {number}" for name, number in figure["versions"].items())
    parts.append(f"{plain(versions)}; {figure['seconds']['total']:g} s; {plain(figure['finished'][:10])}.")
    return "\n\n".join(parts)
