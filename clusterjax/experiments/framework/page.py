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
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

from ..._files.json import read_regular
from ...plot._save import whole_file
from .experiment import Experiment, Settings, changed_parameters, read_parameters
from .listing import OWN, Paper, entries, is_known, paper_of, papers
from .record import RESULTS, network_of, read_record, told
from .verdict import DIFFERENT, FAILED, NOT_MEASURED, VERDICTS, VIOLATED


# The line of the shell that makes a figure again.


FULL_STARTS, QUICK_STARTS = 256, 64  # those of the command, with nothing said
_BUNDLED = "the ALBERT of this package"


def command_line(experiment: Experiment, settings: Settings) -> str | None:
    """The command that runs this experiment with these settings; None of one that is not of the package, as there is
    none."""
    if not is_known(experiment):
        return None
    said: list[Any] = ["--seed", settings.seed]
    # Only `probe` has options for these.
    sizes = {"most-texts": settings.most_texts, "length": settings.length, "num-layers": settings.depth,
             "num-heads": settings.heads}  # fmt: skip
    sizes = {name: value for name, value in sizes.items() if value is not None}
    reads = experiment.reads_network or experiment.reads_texts
    if reads and sizes:
        model = [] if settings.albert is None else [settings.albert]
        said = [
            "clusterjax",
            "probe",
            *model,
            *said,
            *(one for pair in sizes.items() for one in (f"--{pair[0]}", pair[1])),
        ]
    else:
        said = ["clusterjax", "reproduce", experiment.name, *said]
        if settings.starts != (QUICK_STARTS if settings.quick else FULL_STARTS):
            said += ["--starts", settings.starts]
        if reads and settings.albert is not None:
            said += ["--albert", settings.albert]
        said += [one for pair in settings.parameters.items() for one in ("--set", _set(*pair))]
    if settings.quick:
        said.append("--quick")
    if settings.texts is not None and (experiment.reads_texts or experiment.reads_causal):
        said += ["--texts", settings.texts]
    if settings.ids is not None and experiment.reads_texts:
        said += ["--ids", settings.ids]
    if settings.imdb is not None and experiment.reads_reviews:
        said += ["--imdb", settings.imdb]
    return _line(said)


def _changed(experiment: Experiment, values: Mapping[str, Any], quick: bool) -> Sequence[tuple[str, Any]]:
    """The parameters that are not as they are by default."""
    try:
        read = read_parameters(experiment.parameters, values, quick=quick)
    except ValueError:  # of a version that declared others
        return list(values.items())
    return [(name, pair[0]) for name, pair in changed_parameters(read, quick=quick).items()]


def _set(name: str, value: Any) -> str:
    return f"{name}={value!r}"


def _line(said: Sequence[Any]) -> str:
    return shlex.join(map(str, said))


# What the page of the gallery shows of one figure: its rows in the table of verdicts, and its card.


MOST_BYTES = 2**26  # of a picture
_KINDS = {"identity": "proved, and must hold", "paper": "the paper says so", "finding": "found here"}


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
    return bool(record.get("asks", False))


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
    command = record.get("command")
    if command is None:
        return "\n<p>A figure of your own: <code>experiments.reproduce</code> makes it again.</p>"
    return f'\n<div class="command"><pre><code>{html.escape(command)}</code></pre></div>'


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(_short(entry) for entry in value) + "]"
    return str(value)


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
    groups = [(paper, [one for one in figures if paper_of(one.name) is paper]) for paper in (*papers(), OWN)]
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


_NAMES = list(entries())


def _order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Sorts figure10 behind figure9."""
    # Runs of digits compare as numbers, the rest as text; 18 digits fit int64 wherever it is read.
    words = [(int(word[:18]), word) if word.isdecimal() else (0, word) for word in re.split(r"([0-9]+)", name)]
    return (_NAMES.index(name) if name in _NAMES else len(_NAMES)), words


def _shown(records: list[tuple[Path, dict[str, Any]]]) -> list[Shown]:
    """The figures under titles that tell them apart: with their network, and where two are still alike, their name."""
    of_networks = {one.name for one in entries().values() if {"network", "texts"} & {*one.reads}}
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
