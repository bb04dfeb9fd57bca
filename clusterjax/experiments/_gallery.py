"""The gallery: one self-contained page with each picture, its claims and its numbers."""

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

from ..plot._save import whole_file
from ._record import SCHEMA, told
from ._registry import EXPERIMENTS


def write_gallery(folder: Path) -> Path:
    """`index.html` of all figures that are finished in `folder`, pictures included; nothing is fetched from elsewhere.
    Galleries in folders of it, of other networks, are linked.

    Source: this library.
    """
    records = _finished(folder)
    body = "\n".join(_section(place, record) for place, record in records)
    links = " ".join(f'<a href="#{r["name"]}">{html.escape(r["title"].split(":")[0])}</a>' for _, r in records)
    for page in sorted(folder.glob("[!.]*/index.html")):
        if _finished(page.parent):
            name = html.escape(page.parent.name)
            links += f' <a href="{name}/index.html">Another network: {name}</a>'
    page = _PAGE.replace("{{links}}", links).replace("{{body}}", body).replace("{{style}}", _STYLE)
    with whole_file(folder / "index.html") as draft:
        draft.write_text(page, "utf-8")
    return folder / "index.html"


def _finished(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The figures that are whole, in the order of the papers; behind them others, in that of their numbers."""
    records = []
    for path in folder.glob("[!.]*/results.json"):
        try:
            record = json.loads(path.read_text("utf-8"))
        except ValueError:
            continue  # not of our making
        if isinstance(record, dict) and record.get("schema") == SCHEMA and record.get("name") == path.parent.name:
            records.append((path.parent, record))
    return sorted(records, key=lambda pair: _order(pair[1]["name"]))


_KNOWN = {experiment.name: experiment for experiment in EXPERIMENTS}


def _order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Sorts figure10 behind figure9."""
    words = [(int(word), "") if word.isdigit() else (0, word) for word in re.split(r"(\d+)", name)]
    return (list(_KNOWN).index(name) if name in _KNOWN else len(_KNOWN)), words


def _section(place: Path, record: dict[str, Any]) -> str:
    name, title = record["name"], html.escape(record["title"])
    alt = html.escape(record["caption"].split(". ")[0])
    pictures = []
    if (place / f"{name}.png").is_file():
        pictures.append(f'<img class="still" alt="{alt}" src="{_embedded(place / f"{name}.png", "image/png")}">')
    if (place / f"{name}.gif").is_file():
        film = (
            f'<img alt="The same run as a moving picture: {alt}" src="{_embedded(place / f"{name}.gif", "image/gif")}">'
        )
        pictures.append(f'<details class="film" open><summary>Moving picture</summary>{film}</details>')
    rows = "\n".join(_claim_row(claim) for claim in record["claims"])
    heads = "".join(f'<th scope="col">{word}</th>' for word in ("Claim", "Measured", "Criterion", "Verdict"))
    parameters = "; ".join(f"{key} = {_short(value)}" for key, value in record["parameters"].items())
    versions = ", ".join(f"{key} {value}" for key, value in record["versions"].items())
    machine = ", ".join(f"{key} {value}" for key, value in record.get("machine", {}).items())
    heading = f'<p class="apart">{html.escape(record["heading"])}</p>' if record["heading"] else ""
    whose = "The question" if name in _KNOWN and _KNOWN[name].asks else "The paper"
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
<p>{record["seconds"]["total"]} s, of which {record["seconds"]["simulation"]} s simulation and measurement;
finished {record["finished"]}.
All numbers against time are in <code>{name}/results.json</code>.</p></details>
</section>"""


def _claim_row(claim: dict[str, Any]) -> str:
    words = {"identity": "proved, and must hold", "paper": "the paper says so", "finding": "found here"}
    verdict = "apart" if claim["apart"] else "yes" if claim["holds"] else "no"
    source = f"<br><small>The paper: {html.escape(claim['source']['words'])}</small>" if claim["apart"] else ""
    return (
        f"<tr><td>{html.escape(claim['says'])} <small>({words[claim['kind']]})</small></td>"
        f"<td>{html.escape(told(claim))}<br><small>On: {html.escape(claim['on'])}</small>{source}</td>"
        f"<td>{html.escape(claim['criterion'])}</td>"
        f'<td class="{verdict}">{html.escape(claim["verdict"])}</td></tr>'
    )


def _embedded(path: Path, kind: str) -> str:
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
bear out is marked so, and the caption says what holds.</p>
<nav aria-label="Figures">{{links}}</nav>
</header>
<main>
{{body}}
</main>
</body>
</html>
"""
