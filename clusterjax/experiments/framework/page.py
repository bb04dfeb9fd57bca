"""The gallery: a page of all verdicts, pictures, numbers and commands, beside the folders of the figures.

The template `page/page.html` has the markup of the page. Pictures and players are separate files, which a browser loads
when a reader scrolls to them. The page works without a server and without its script; the content policy of the page
has the digest of the script. The page links no file outside of its folder, and no text of a record becomes markup.
"""

import base64
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from ..._files.json import read_regular
from ...plot._save import whole_file
from .listing import OWN, entries_by_folder, paper_of, papers
from .record import RESULTS, measured_words, network_of, read_record
from .verdict import DIFFERENT, FAILED, NOT_MEASURED, VERDICTS, VIOLATED


TITLE = "Clustering in Transformers, reproduced"
# The file of the page, and a text that every gallery has, and no other page.
PAGE, _MARK = "index.html", b'<a class="skip" href="#figures">Skip to the figures</a>'
MOST_BYTES = 2**26  # the largest size of a picture
_KINDS = {"identity": "proved, and must hold", "paper": "claimed by the paper", "finding": "found here"}
_PARTS = Path(__file__).with_name("page")


@dataclass(frozen=True)
class Shown:
    """A figure on the page: its folder, its `results.json`, and its heading, which no other figure of the page has."""

    folder: Path
    record: dict[str, Any]
    title: str

    @property
    def name(self) -> str:
        return self.record["name"]

    @property
    def quick(self) -> bool:
        return bool(self.record["fingerprint"].get("quick"))

    @property
    def single(self) -> list[dict[str, Any]]:
        """The claims with a row each in the table of verdicts: claims of a paper, and violated or unmeasured claims."""
        return [c for c in self.record["claims"] if c["kind"] == "paper" or c["verdict"] in (VIOLATED, NOT_MEASURED)]

    @property
    def others(self) -> list[dict[str, Any]]:
        """The other claims, which share a row in the table of verdicts."""
        return [claim for claim in self.record["claims"] if claim not in self.single]

    @property
    def others_words(self) -> str:
        kinds = Counter(claim["kind"] for claim in self.others)
        words = {"finding": "found here", "identity": "proved"}
        return ", ".join(f"{kinds[kind]} {word}" for kind, word in words.items() if kinds[kind]) or "no claim"

    @property
    def size(self) -> tuple[int, int] | None:
        """The width and the height of the still picture, with which the page keeps its layout while pictures load."""
        try:
            with Image.open(self.folder / f"{self.name}.png") as image:
                return image.size
        except (OSError, Image.DecompressionBombError):
            return None

    @property
    def files(self) -> list[tuple[str, str]]:
        """The address and the label of each file of the figure that exists."""
        kinds = [(f"{self.name}.{kind}", kind.upper()) for kind in ("png", "svg", "pdf", "gif", "mp4")]
        kinds += [(f"{self.name}-player.html", "player"), (RESULTS, "JSON, with all numbers against time")]
        return [(address, words) for name, words in kinds if (address := self.file(name))]

    def file(self, name: str) -> str | None:
        """The address of a file of the figure; None if the file does not exist, is too large, or is a link."""
        path = self.folder / name
        # A link of the file system could publish a file from outside of the folder.
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        return f"./{quote(self.folder.name)}/{quote(name)}"


def refuse_another_page(folder: Path) -> None:
    """Raise a ValueError if the folder has an `index.html` of another program, which the gallery would replace."""
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
    """Write `index.html` with all finished figures of `folder`, and with links to the galleries of other networks in
    its folders, and return its path."""
    records, refused = _finished(folder)
    figures = _shown(records)
    groups = [(paper, [figure for figure in figures if paper_of(figure.name) is paper]) for paper in (*papers(), OWN)]
    environment = Environment(
        loader=FileSystemLoader(_PARTS), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {
        "colour_of": _colour_of, "count": _count, "digest": _digest, "kinds": _KINDS, "listed": _listed,
        "measured_words": measured_words, "short": _short,
    }  # fmt: skip
    page = environment.get_template("page.html").render(
        title=_title(figures),
        style=(_PARTS / "page.css").read_text("utf-8"),
        script=(_PARTS / "page.js").read_text("utf-8"),
        number=len(figures),
        quick=sum(figure.quick for figure in figures),
        groups=[(paper, shown) for paper, shown in groups if shown],
        claims=[claim for figure in figures for claim in figure.record["claims"]],
        others=_others(folder),
        refused=refused,
    )
    with whole_file(folder / PAGE) as draft:
        draft.write_text(page, "utf-8")
    return folder / PAGE


def _colour_of(verdict: str) -> str:
    """The CSS class of a verdict."""
    if verdict in DIFFERENT.values():
        return "apart"
    if verdict == NOT_MEASURED:
        return "none"
    return "no" if verdict in FAILED else "yes"


def _count(claims: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """The verdicts of the claims, each with the number of claims."""
    counts = Counter(claim["verdict"] for claim in claims)
    return [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return str(value)


def _finished(folder: Path) -> tuple[list[tuple[Path, dict[str, Any]]], list[str]]:
    """The folders and records of the finished figures, in the order of the page, and the errors of other records."""
    records, refused = [], []
    for path in sorted(folder.glob(f"[!.]*/{RESULTS}")):
        try:
            records.append((path.parent, read_record(path.parent)))
        except ValueError as error:
            refused.append(str(error))
    return sorted(records, key=lambda pair: _order(pair[1]["name"])), refused


def _order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """A sort key: the figures of the package come first, in their order, and figure10 comes after figure9."""
    # Runs of digits compare as numbers, all other text as text.
    words = [(int(word[:18]), word) if word.isdecimal() else (0, word) for word in re.split(r"([0-9]+)", name)]
    names = list(entries_by_folder())
    return (names.index(name) if name in names else len(names)), words


def _shown(records: list[tuple[Path, dict[str, Any]]]) -> list[Shown]:
    """The figures with distinct titles: a title has the network of the figure, and the name if a title repeats."""
    network_figures = {name for name, entry in entries_by_folder().items() if {"network", "texts"} & {*entry.reads}}
    titles = []
    for _, record in records:
        network = network_of(record) if record["name"] in network_figures else ""
        titles.append(f"{record['title']} ({network})" if network else record["title"])
    counts = Counter(titles)
    return [
        Shown(folder, record, f"{title} ({record['name']})" if counts[title] > 1 else title)
        for (folder, record), title in zip(records, titles, strict=True)
    ]


def _title(figures: list[Shown]) -> str:
    """The title of the page, with the network if all figures show one network that is not of the package."""
    networks = {network_of(figure.record) for figure in figures} - {""}
    (network,) = networks if len(networks) == 1 else ("",)
    return TITLE if not network or "of this package" in network else f"{TITLE}: {network}"


def _others(folder: Path) -> list[tuple[str, str]]:
    """The address and the label of each gallery of another network, in a folder of `folder` that is not hidden."""
    links = []
    for page in sorted(folder.glob(f"[!.]*/{PAGE}")):
        records = [] if page.is_symlink() or page.parent.is_symlink() else _finished(page.parent)[0]
        if records:
            name = os.fsencode(page.parent.name)
            networks = {network_of(record) for _, record in records} - {""}
            # File names are bytes, which need not be UTF-8.
            words = ", ".join([*sorted(networks), f"folder {name.decode('utf-8', 'replace')}"])
            links.append((f"./{quote(name)}/{PAGE}", words))
    return links
