"""The gallery: a page of all verdicts, pictures, numbers and commands, beside the folders of the figures.

Pictures and players are files beside the page, loaded as they are scrolled to: the page is text. It works from a disk
and without a network, and without its script, of which the policy of the page names the digest; no file outside of its
folder is linked, and no text of a record becomes markup.
"""

import base64
import hashlib
import html
import os
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..._files.json import read_regular
from ...plot._save import whole_file
from .cards import Shown, card, colour_of, verdict_rows
from .papers import OWN, PAPERS, Paper, paper_of
from .record import RESULTS, network_of, read_record
from .registry import EXPERIMENTS
from .verdict import VERDICTS


TITLE = "Clustering in Transformers, reproduced"
# The file of the page, and what stands at the beginning of every gallery and of no other page.
PAGE, _MARK = "index.html", b'<a class="skip" href="#figures">Skip to the figures</a>'


def refuse_another_page(folder: Path) -> None:
    """Raise a ValueError if the folder has an `index.html` that is no gallery, which one would replace."""
    page = folder / PAGE
    try:
        is_gallery = not page.is_symlink() and _MARK in read_regular(page)
    except FileNotFoundError:
        return
    except OSError:
        is_gallery = False
    if not is_gallery:
        raise ValueError(
            f"out must hold no page of another program that would be replaced, but {str(page)!r} is one; move it away, "
            "or choose another folder."
        )


def write_gallery(folder: Path) -> Path:
    """`index.html` of all figures that are finished in `folder`; nothing is fetched from elsewhere. Galleries in
    folders of it, of other networks, are linked.
    """
    records, refused = _finished(folder)
    figures = _shown(records)
    groups = [(paper, [one for one in figures if paper_of(one.name) is paper]) for paper in (*PAPERS, OWN)]
    groups = [(paper, of_paper) for paper, of_paper in groups if of_paper]
    counted = Counter(claim["verdict"] for one in figures for claim in one.record["claims"])
    style, script = (_part(name) for name in ("page.css", "page.js"))
    parts = {
        "title": html.escape(_title(figures)),
        "policy": _policy(style, script),
        "style": style,
        "script": script,
        "quick": _quick(figures),
        "links": _links(folder, groups),
        "filters": _filters(counted),
        "table": _table(groups),
        "cards": "\n".join(_group(paper, of_paper) for paper, of_paper in groups),
        "refused": "\n".join(f"<p>Left out: {html.escape(reason)}</p>" for reason in refused),
    }
    # One pass: a caption that contains {{cards}} is not replaced in its turn.
    page = re.sub(f"{{{{({'|'.join(parts)})}}}}", lambda match: parts[match[1]], _part("page.html"))
    with whole_file(folder / PAGE) as draft:
        draft.write_text(page, "utf-8")
    return folder / PAGE


def _finished(folder: Path) -> tuple[list[tuple[Path, dict[str, Any]]], list[str]]:
    """The figures that are whole, in the order of the page, behind them others in that of their numbers; and why what
    calls itself one is none."""
    records, refused = [], []
    for path in sorted(folder.glob(f"[!.]*/{RESULTS}")):
        try:
            records.append((path.parent, read_record(path.parent)))
        except ValueError as error:
            refused.append(str(error))
    return sorted(records, key=lambda pair: _order(pair[1]["name"])), refused


_NAMES = [name for paper in PAPERS for name in paper.experiments]


def _order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Sorts figure10 behind figure9."""
    # Runs of digits compare as numbers, the rest as text; 18 digits fit int64 wherever it is read.
    words = [(int(word[:18]), word) if word.isdecimal() else (0, word) for word in re.split(r"([0-9]+)", name)]
    return (_NAMES.index(name) if name in _NAMES else len(_NAMES)), words


def _shown(records: list[tuple[Path, dict[str, Any]]]) -> list[Shown]:
    """The figures under titles that tell them apart: with their network, and where two are still alike, their name."""
    of_networks = {one.name for one in EXPERIMENTS if one.reads_network or one.reads_texts}
    titles = []
    for _, record in records:
        network = network_of(record) if record["name"] in of_networks else ""
        titles.append(f"{record['title']} ({network})" if network else record["title"])
    often = Counter(titles)
    return [
        Shown(place, record, f"{title} ({record['name']})" if often[title] > 1 else title)
        for (place, record), title in zip(records, titles, strict=True)
    ]


def _title(figures: list[Shown]) -> str:
    """The title, with the network where all figures of one are of the same and not the package's."""
    networks = {network_of(one.record) for one in figures} - {""}
    (network,) = networks if len(networks) == 1 else ("",)
    return TITLE if not network or "of this package" in network else f"{TITLE}: {network}"


def _part(name: str) -> str:
    return (files("clusterjax.experiments.framework") / "page" / name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    """What the page may load: its own style and script, and files of its own place; on a disk `file:` is that place."""
    digest = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src 'self' file:; frame-src 'self' file:; "
        f"style-src 'sha256-{digest(style)}'; script-src 'sha256-{digest(script)}'"
    )


def _quick(figures: list[Shown]) -> str:
    quick = sum(one.quick for one in figures)
    if not quick:
        return ""
    which = "All figures are" if quick == len(figures) else f"{quick} of {len(figures)} figures are"
    return f'<p class="quick">{which} of quick runs: fewer starts, shorter, and their numbers rough.</p>'


def _links(folder: Path, groups: list[tuple[Paper, list[Shown]]]) -> str:
    """A list of the papers, and of the galleries of other networks."""
    links = [f'<a href="#paper-{paper.key}">{html.escape(paper.short)}</a>' for paper, _ in groups]
    # One level below; hidden folders are drafts.
    for page in sorted(folder.glob("[!.]*/index.html")):
        within = None if page.is_symlink() or page.parent.is_symlink() else _finished(page.parent)[0]
        if within:
            name = os.fsencode(page.parent.name)
            networks = {network_of(record) for _, record in within} - {""}
            # Names of files are bytes and need not be UTF-8.
            words = ", ".join([*sorted(networks), f"folder {name.decode('utf-8', 'replace')}"])
            links.append(f'<a href="./{quote(name)}/index.html">Another network: {html.escape(words)}</a>')
    items = "".join(f"<li>{link}</li>" for link in links)
    return f'<nav aria-label="Papers"><ul class="jump">{items}</ul></nav>' if items else ""


def _filters(counted: Counter[str]) -> str:
    """A button of a choice for each verdict that there is."""
    said = [("", "all", "")] + [
        (verdict, f"{verdict} ({counted[verdict]})", colour_of(verdict)) for verdict in VERDICTS if counted[verdict]
    ]
    return "".join(
        f'<label class="{colour}"><input type="radio" name="verdict" value="{html.escape(value)}"'
        f"{'' if value else ' checked'}>{html.escape(words)}</label>"
        for value, words, colour in said
    )


def _table(groups: list[tuple[Paper, list[Shown]]]) -> str:
    if not groups:
        return "<p>No figure is finished yet.</p>"
    # Headings of columns with their scope, for screen readers.
    heads = "".join(f'<th scope="col">{word}</th>' for word in ("Verdict", "Claim", "Figure"))
    bodies = "\n".join(
        f'<tbody><tr><th colspan="3" scope="rowgroup">{html.escape(paper.title)}</th></tr>\n'
        + "\n".join(row for one in figures for row in verdict_rows(one))
        + "</tbody>"
        for paper, figures in groups
    )
    return f'<table id="all"><thead><tr>{heads}</tr></thead>\n{bodies}</table>'


def _group(paper: Paper, figures: list[Shown]) -> str:
    cards = "\n".join(card(one) for one in figures)
    return f'<section class="paper"><h2 id="paper-{paper.key}">{html.escape(paper.title)}</h2>\n{cards}\n</section>'
