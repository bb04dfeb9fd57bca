"""The pages "from the paper to the code": an index by paper and by verdict, and a page for each paper, as Markdown.

`docs/papers.toml` has the statements of the papers with their code and tests, and `docs/gallery/*.json` the
measurements. All numbers and verdicts of the pages are read from these files. Only the standard library is imported, so
that the site is built without other packages.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gallery_pages import DOCS, VERDICTS, WIDE, badge, badges, plain, published, verdict_of


NOT_MEASURED, NOT_YET = "not measured", "not measured yet"
LEGEND = (
    "A verdict compares the network, the data and the size of a measurement with those of the paper; see [*verdict* in "
    "the glossary](glossary.md#what-is-claimed). *Tested* names the tests that check a formula or a theorem at each "
    "change of the code. An entry that is neither measured nor tested says so."
)
FIRST = "A statement with several verdicts stands under the first of them."

Link = Callable[[str], str | None]


def papers(root: Path = DOCS) -> list[dict[str, Any]]:
    """The papers of `papers.toml`, with their entries."""
    return tomllib.loads((root / "papers.toml").read_text("utf-8"))["paper"]


def pages(root: Path) -> Iterator:
    """A page for each paper, with its entry in references.bib as the short title."""
    from made_pages import Made, bibliography
    from reference_pages import linker

    figures, link, known = published(root / "docs"), linker(root / "clusterjax"), dict(bibliography(root))
    for paper in papers(root / "docs"):
        key = paper["key"]
        yield Made(f"papers/{key}.md", "docs/papers.toml", known[key]["title"], page(paper, figures, link))


def page(paper: Mapping[str, Any], figures: Mapping[str, Any], link: Link) -> str:
    """The page of a paper; `link` gives the address of a public name, such as "phase.Wigner", relative to docs."""
    rows = [_row(place, entry, figures, link) for place, entry in enumerate(paper["entry"], 1)]
    head = "| section | statement | verdict and measurement | in the code |\n|---|---|---|---|"
    return "\n\n".join([f"{WIDE}# {plain(paper['title'])}", LEGEND, "\n".join([head, *rows])]) + "\n"


def index(root: Path = DOCS) -> str:
    """The papers, and the statements of all papers by verdict; links are relative to docs."""
    figures, by_paper, by_verdict = published(root), [], {verdict: [] for verdict in VERDICTS}
    for paper in papers(root):
        address, found = f"papers/{paper['key']}.md", [verdicts(entry, figures) for entry in paper["entry"]]
        count = f"{len(found)} statement{'s' if len(found) > 1 else ''}"
        by_paper.append(f"- [{plain(paper['title'])}]({address}), {count}<br>{badges(v for one in found for v in one)}")
        for place, (entry, shown) in enumerate(zip(paper["entry"], found, strict=True), 1):
            by_verdict[shown[0]].append(
                f"- {plain(entry['says'])} [{plain(paper['title'].split(',')[0])}, {plain(entry['at'])}]"
                f"({address}#{place})<br>{badges(shown)}"
            )
    parts = ["## By paper", "\n".join(by_paper), "## By claim { data-search-exclude }", f"{LEGEND} {FIRST}"]
    for verdict, statements in by_verdict.items():
        if statements:
            parts += [f"### {verdict.capitalize()}: {len(statements)} {{ data-search-exclude }}", "\n".join(statements)]
    return "\n\n".join(parts) + "\n"


def verdicts(entry: Mapping[str, Any], figures: Mapping[str, Any]) -> list[str]:
    """The different verdicts on an entry and "tested", in the order of `VERDICTS`; "not measured" if there are none."""
    claims = [claim for reference in entry.get("claims", ()) for claim in claims_of(reference, figures)[1] or ()]
    found = {claim["verdict"] for claim in claims} | ({"tested"} if entry.get("tests") else set())
    return [verdict for verdict in VERDICTS if verdict in (found or {NOT_MEASURED})]


def claims_of(reference: str, figures: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]] | None]:
    """The name of the figure in a reference such as "figure4: some words", and the claims of that figure with these
    words; None in place of the claims if the figure has not been published."""
    name, _, words = reference.partition(": ")
    if name not in figures:
        return name, None
    return name, [claim for claim in figures[name]["claims"] if words in claim["says"]]


def _row(place: int, entry: Mapping[str, Any], figures: Mapping[str, Any], link: Link) -> str:
    results = _measured(entry.get("claims", ()), figures)
    if tests := entry.get("tests", ()):
        results.append(f"{badge('tested')} " + ", ".join(f"`{name.removeprefix('tests/')}`" for name in tests))
    if not results:
        results.append(badge(NOT_MEASURED))
    if note := entry.get("note"):
        results.append(f"*{plain(note)}*")
    code = [_name(name, link) for name in entry.get("code", ())]
    # The place is the anchor to which the index links.
    at = f'<a id="{place}"></a>{plain(entry["at"])}'
    return f"| {at} | {plain(entry['says'])} | {'<br>'.join(results)} | {', '.join(code)} |"


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
        f"{badge(claim['verdict'], verdict_of(claim))}{says(claim)} {plain(claim['measured'])} "
        f"([{name}](gallery/{name}.md){quick(name)})"
        for name, claim in measured
    ]  # fmt: skip
    # Several missing claims of one figure make one line.
    return [*lines, *dict.fromkeys(missing)]


def _name(name: str, link: Link) -> str:
    address = link(name)
    return f"`{name}`" if address is None else f"[`{name}`]({address})"
