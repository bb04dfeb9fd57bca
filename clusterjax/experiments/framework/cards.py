"""What the page of the gallery shows of one figure: its rows in the table of verdicts, and its card."""

import html
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

from .command import command_of
from .record import RESULTS, told
from .registry import EXPERIMENTS
from .verdict import DIFFERENT, FAILED, NOT_MEASURED, VERDICTS, VIOLATED


MOST_BYTES = 2**26  # of a picture
_KINDS = {"identity": "proved, and must hold", "paper": "the paper says so", "finding": "found here"}
_ASKS = {experiment.name: experiment.asks for experiment in EXPERIMENTS}


@dataclass(frozen=True)
class Shown:
    """A figure on the page.

    **Attributes:**

    - `place`: Its folder.
    - `record`: Its `results.json`.
    - `title`: Its heading, which no other figure of the page has.
    """

    place: Path
    record: dict[str, Any]
    title: str

    @property
    def name(self) -> str:
        return self.record["name"]

    @property
    def quick(self) -> bool:
        return bool(self.record["fingerprint"].get("quick"))

    @property
    def anchor(self) -> str:
        """Where its card is, in a link."""
        return f"#{quote(self.name)}"

    def file(self, name: str) -> str | None:
        """The address of one of its files; None if there is none, or it is of unlikely size or elsewhere."""
        path = self.place / name
        # What is linked is published: no link of a file system may bring in a file from elsewhere.
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        return f"./{quote(self.place.name)}/{quote(name)}"


def colour_of(verdict: str) -> str:
    """The class of a verdict on the page: it holds, it does not, it is of something else, or there is none."""
    if verdict in DIFFERENT.values():
        return "apart"
    if verdict == NOT_MEASURED:
        return "none"
    return "no" if verdict in FAILED else "yes"


def verdict_rows(one: Shown) -> list[str]:
    """A row for each claim of a paper, and for each that is violated; one for all that was found here or is proved."""
    quick = ' <span class="quick">quick run</span>' if one.quick else ""
    # The name and not the title: it is short, and no two have the same.
    figure = f'<td><a href="{one.anchor}">{html.escape(one.name)}</a>{quick}</td>'
    apart = [c for c in one.record["claims"] if c["kind"] == "paper" or c["verdict"] in (VIOLATED, NOT_MEASURED)]
    rest = [claim for claim in one.record["claims"] if claim not in apart]
    rows = [
        f"<tr{_verdicts([claim])}><td>{_verdict(claim)}</td><td>{html.escape(claim['says'])}</td>{figure}</tr>"
        for claim in apart
    ]
    if rest or not rows:
        kinds = Counter(claim["kind"] for claim in rest)
        of = [
            f"{kinds[kind]} {words}"
            for kind, words in (("finding", "found here"), ("identity", "proved"))
            if kinds[kind]
        ]
        asked = html.escape(one.record["claim"]) if not rows and _asks(one.record) else ""
        words = " ".join(filter(None, (asked, f"<small>{', '.join(of) or 'no claim'}</small>")))
        rows.append(f"<tr{_verdicts(rest)}><td>{_counted(rest, '<br>')}</td><td>{words}</td>{figure}</tr>")
    return rows


def card(one: Shown) -> str:
    """All of one figure but its times, so that two runs write the same page; `results.json` has them."""
    record = one.record
    name, text = html.escape(one.name), html.escape
    whose = "The question" if _asks(record) else "The paper"
    quick = ' <span class="quick">quick run</span>' if one.quick else ""
    differs = f'<p class="differs">{text(record["heading"])}</p>' if record["heading"] else ""
    parameters = "; ".join(f"{key} = {_short(value)}" for key, value in record["parameters"].items())
    versions = ", ".join(f"{key} {value}" for key, value in record["versions"].items())
    machine = ", ".join(f"{key} {value}" for key, value in record["machine"].items())
    return f"""<article class="card" id="{name}"{_verdicts(record["claims"])}>
<h3>{text(one.title)}{quick}</h3>
<p class="counts">{_counted(record["claims"], " ")}</p>{differs}
<p class="says">{whose}: {text(record["claim"])}</p>
{_pictures(one)}
<p class="caption">{text(record["caption"])}</p>
{_claims(record)}
{_files(one)}{_command(record)}
<details class="more"><summary>Parameters, versions</summary>
<p>{text(parameters)}</p>
<p>{text(versions)}; {text(machine)}</p></details>
<p class="back"><a href="#top">Back to top</a></p>
</article>"""


def _asks(record: dict[str, Any]) -> bool:
    # Records of an earlier version have no "asks"; the registry knows it of the figures of the package.
    return bool(record.get("asks", _ASKS.get(record["name"], False)))


def _verdicts(claims: Iterable[dict[str, Any]]) -> str:
    """For the filter: the verdicts that are found in what has this attribute."""
    found = dict.fromkeys(claim["verdict"] for claim in claims)
    return f' data-verdicts="{html.escape("|".join(found))}"'


def _verdict(claim: dict[str, Any]) -> str:
    would = ""
    if claim["apart"]:
        would = f" <small>(would {'' if claim['holds'] else 'not '}agree)</small>"
    return f'<span class="verdict {colour_of(claim["verdict"])}">{html.escape(claim["verdict"])}</span>{would}'


def _counted(claims: Iterable[dict[str, Any]], between: str) -> str:
    """How many claims have which verdict."""
    counts = Counter(claim["verdict"] for claim in claims)
    return between.join(
        f'<span><span class="verdict {colour_of(verdict)}">{html.escape(verdict)}</span> '
        f"<small>{counts[verdict]}</small></span>"
        for verdict in VERDICTS
        if counts[verdict]
    )


def _claims(record: dict[str, Any]) -> str:
    if not record["claims"]:
        return ""
    heads = "".join(f'<th scope="col">{word}</th>' for word in ("Verdict", "Claim", "Measured", "Criterion"))
    rows = "\n".join(_claim(claim) for claim in record["claims"])
    return f'<table class="claims"><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'


def _claim(claim: dict[str, Any]) -> str:
    source = f"<br><small>The paper: {html.escape(claim['source']['words'])}</small>" if claim["apart"] else ""
    measured = f"{html.escape(told(claim))}<br><small>On: {html.escape(claim['on'])}</small>{source}"
    return (
        f"<tr{_verdicts([claim])}><td>{_verdict(claim)}</td>"
        f"<td>{html.escape(claim['says'])} <small>({_KINDS[claim['kind']]})</small></td>"
        f'<td data-head="Measured">{measured}</td><td data-head="Criterion">{html.escape(claim["criterion"])}</td></tr>'
    )


def _pictures(one: Shown) -> str:
    """The still picture, which opens large, and the player, or where a run has none its film."""
    # The first sentence of the caption stands for the picture.
    alt = html.escape(one.record["caption"].split(". ")[0])
    still, film = one.file(f"{one.name}.png"), one.file(f"{one.name}.gif")
    player, parts = one.file(f"{one.name}-player.html"), []
    if still:
        size = _size(one.place / f"{one.name}.png")
        parts.append(f'<a class="still" href="{still}"><img loading="lazy" alt="{alt}"{size} src="{still}"></a>')
    if player:
        title = html.escape(f"{one.title}: the run, to be turned and played")
        # No more than scripts: the player asks for nothing, and cannot reach this page. It is loaded by the script, as
        # browsers load frames late from servers alone; without scripts it would not play either, and is a link below.
        frame = f'<iframe sandbox="allow-scripts" title="{title}" data-src="{player}"></iframe>'
        summary = "<summary>The run, to be turned and played</summary>"
        parts.append(f'<details class="film player" open hidden>{summary}{frame}</details>')
    elif film:
        image = f'<img loading="lazy" alt="The same run as a moving picture: {alt}" src="{film}">'
        parts.append(f'<details class="film" open><summary>Moving picture</summary>{image}</details>')
    return f'<div class="pictures">{"".join(parts)}</div>'


def _size(path: Path) -> str:
    """Width and height as attributes, so that the page does not jump as pictures arrive."""
    try:
        with Image.open(path) as image:
            width, height = image.size
    except (OSError, Image.DecompressionBombError):
        return ""
    return f' width="{width}" height="{height}"'


def _files(one: Shown) -> str:
    """Links to the files of the figure that are there."""
    kinds = [(f"{one.name}.{kind}", kind.upper()) for kind in ("png", "svg", "pdf", "gif", "mp4")]
    kinds += [(f"{one.name}-player.html", "player"), (RESULTS, "JSON, with all numbers against time")]
    links = [(one.file(name), words) for name, words in kinds]
    items = "".join(f'<li><a href="{address}">{words}</a></li>' for address, words in links if address)
    return f'<ul class="files" aria-label="Files">{items}</ul>'


def _command(record: dict[str, Any]) -> str:
    command = command_of(record)
    if command is None:
        return "\n<p>A figure of your own: <code>experiments.reproduce</code> makes it again.</p>"
    return f'\n<div class="command"><pre><code>{html.escape(command)}</code></pre></div>'


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(_short(entry) for entry in value) + "]"
    return str(value)
