"""The gallery: one self-contained page with each picture, its claims and its numbers."""

import base64
import html
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...plot._save import whole_file
from .record import RESULTS, read_record, told
from .registry import EXPERIMENTS


MOST_BYTES = 2**26  # of a picture


def write_gallery(folder: Path) -> Path:
    """`index.html` of all figures that are finished in `folder`, pictures included; nothing is fetched from elsewhere.
    Galleries in folders of it, of other networks, are linked.
    """
    records, refused = _finished(folder)
    body = "\n".join(_section(place, record) for place, record in records)
    links = " ".join(f'<a href="#{quote(r["name"])}">{html.escape(r["title"].split(":")[0])}</a>' for _, r in records)
    # Galleries of other networks, one level below; hidden folders are drafts.
    for page in sorted(folder.glob("[!.]*/index.html")):
        if _finished(page.parent)[0]:
            name = os.fsencode(page.parent.name)
            # Names of files are bytes and need not be UTF-8.
            shown = html.escape(name.decode("utf-8", "replace"))
            links += f' <a href="./{quote(name)}/index.html">Another network: {shown}</a>'
    body += "".join(f"\n<p>Left out: {html.escape(reason)}</p>" for reason in refused)
    # Figures of a user, behind all others.
    own = [record["name"] for _, record in records if record["name"] not in _KNOWN]
    more = f" Not of this library, and at the end: {html.escape(', '.join(own))}." if own else ""
    parts = {"links": links, "body": body, "style": _STYLE, "own": more}
    # One pass: a caption that contains {{body}} is not replaced in its turn.
    page = re.sub("{{(links|body|style|own)}}", lambda match: parts[match[1]], _PAGE)
    with whole_file(folder / "index.html") as draft:
        draft.write_text(page, "utf-8")
    return folder / "index.html"


def _finished(folder: Path) -> tuple[list[tuple[Path, dict[str, Any]]], list[str]]:
    """The figures that are whole, in the order of the papers, behind them others in that of their numbers; and why what
    calls itself one is none."""
    records, refused = [], []
    for path in sorted(folder.glob(f"[!.]*/{RESULTS}")):
        try:
            records.append((path.parent, read_record(path.parent)))
        except ValueError as error:
            refused.append(str(error))
    return sorted(records, key=lambda pair: _order(pair[1]["name"])), refused


_KNOWN = {experiment.name: experiment for experiment in EXPERIMENTS}


def _order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Sorts figure10 behind figure9."""
    # Runs of digits compare as numbers, the rest as text; 18 digits fit int64 wherever it is read.
    words = [(int(word[:18]), word) if word.isdecimal() else (0, word) for word in re.split(r"([0-9]+)", name)]
    return (list(_KNOWN).index(name) if name in _KNOWN else len(_KNOWN)), words


def _section(place: Path, record: dict[str, Any]) -> str:
    name, title = record["name"], html.escape(record["title"])
    # The first sentence of the caption stands for the picture.
    alt = html.escape(record["caption"].split(". ")[0])
    pictures = []
    # Pictures are part of the page, so that one file can be sent and opened anywhere.
    still, film = (_embedded(place / f"{name}.{kind}", f"image/{kind}") for kind in ("png", "gif"))
    if still:
        pictures.append(f'<img class="still" alt="{alt}" src="{still}">')
    if film:
        film = f'<img alt="The same run as a moving picture: {alt}" src="{film}">'
        pictures.append(f'<details class="film" open><summary>Moving picture</summary>{film}</details>')
    rows = "\n".join(_claim_row(claim) for claim in record["claims"])
    # Headings of columns with their scope, for screen readers.
    heads = "".join(f'<th scope="col">{word}</th>' for word in ("Claim", "Measured", "Criterion", "Verdict"))
    parameters = "; ".join(f"{key} = {_short(value)}" for key, value in record["parameters"].items())
    versions = ", ".join(f"{key} {value}" for key, value in record["versions"].items())
    machine = ", ".join(f"{key} {value}" for key, value in record["machine"].items())
    name, seconds = html.escape(name), record["seconds"]
    heading = f'<p class="apart">{html.escape(record["heading"])}</p>' if record["heading"] else ""
    # Records of an earlier version have no "asks"; the registry knows it of the figures of the package.
    whose = "The question" if record.get("asks", name in _KNOWN and _KNOWN[name].asks) else "The paper"
    return f"""<section id="{name}">
<h2>{title}</h2>{heading}
<p class="claim">{whose}: {html.escape(record["claim"])}</p>
<div class="pictures">{"".join(pictures)}</div>
<p>{html.escape(record["caption"])}</p>
<div class="table"><table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody></table></div>
<details><summary>Parameters, versions, time</summary>
<p>{html.escape(parameters)}</p>
<p>{html.escape(versions)}; {html.escape(machine)}</p>
<p>{seconds["total"]:g} s, of which {seconds["simulation"]:g} s simulation and measurement;
finished {html.escape(record["finished"])}.
All numbers against time are in <code>{name}/results.json</code>.</p></details>
</section>"""


def _claim_row(claim: dict[str, Any]) -> str:
    words = {"identity": "proved, and must hold", "paper": "the paper says so", "finding": "found here"}
    # Three colours: of another network or size, holds, does not hold.
    verdict = "apart" if claim["apart"] else "yes" if claim["holds"] else "no"
    source = f"<br><small>The paper: {html.escape(claim['source']['words'])}</small>" if claim["apart"] else ""
    return (
        f"<tr><td>{html.escape(claim['says'])} <small>({words[claim['kind']]})</small></td>"
        f"<td>{html.escape(told(claim))}<br><small>On: {html.escape(claim['on'])}</small>{source}</td>"
        f"<td>{html.escape(claim['criterion'])}</td>"
        f'<td class="{verdict}">{html.escape(claim["verdict"])}</td></tr>'
    )


def _embedded(path: Path, kind: str) -> str:
    """A picture as part of the page; nothing if there is none, or it is of unlikely size or elsewhere."""
    # What is embedded is published: no link may bring in a file from elsewhere.
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return ""
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(_short(entry) for entry in value) + "]"
    return str(value)


_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fdfdfb; --line: #d5d5d0; --yes: #00694d; --no: #a33a00;
  --apart: #5b4b8a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e4; --paper: #191a1c; --line: #44464a; --yes: #4ec9a0; --no: #ff9a5c;
    --apart: #b9a7ee; }
  img { background: #ffffff; border-radius: 6px; }
}
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 68rem; padding: 1.5rem; }
h1 { font-size: 1.7rem; }
h2 { font-size: 1.3rem; margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
nav a { margin-right: 1rem; } .claim { font-style: italic; }
.pictures { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: center; }
.still { width: min(46rem, 100%); height: auto; }
.film { width: 16rem; max-width: 100%; } .film img { width: 100%; height: auto; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; vertical-align: top; padding: 0.45rem 0.7rem; border-bottom: 1px solid var(--line); }
.yes { color: var(--yes); font-weight: 600; } .no { color: var(--no); font-weight: 600; }
.apart { color: var(--apart); font-weight: 600; }
small { opacity: 0.75; } details { margin-top: 1rem; font-size: 0.9rem; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Clustering in Transformers, reproduced</title>
<style>{{style}}</style>
</head>
<body>
<header>
<h1>Clustering in Transformers, reproduced</h1>
<p>Figures 1 to 8 of T. Peat, <cite>Clustering in Transformers</cite> (two of trained networks, six of causal
attention on the sphere with 64 tokens), more of those networks and of a causal language model, what layer norms,
feed-forwards, several heads and long contexts do to clustering (the figures on perceptrons and on heads explore:
their claims are of this library, partly made after looking at other settings), the phase diagrams of Geshkovski et al.,
<cite>A mathematical perspective on transformers</cite>, the first phase of very many tokens, and figures of Alcalde,
Fantuzzi and Zuazua, <cite>Clustering in pure-attention hardmax transformers</cite>. A picture of particles shows one
start; a number is taken over many starts or texts, with its standard error. A claim of a paper that the numbers do not
bear out is marked so, and the caption says what holds.{{own}}</p>
<nav aria-label="Figures">{{links}}</nav>
</header>
<main>
{{body}}
</main>
</body>
</html>
"""
