"""The gallery is a page of text beside the files that it shows: whole, safe, and of distinct names."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from clusterjax.experiments import EXPERIMENTS
from clusterjax.experiments.framework.listing import papers
from clusterjax.experiments.framework.page import write_gallery


CLAIM = {
    "says": "c", "measured": "1", "criterion": "1", "holds": True, "kind": "paper", "value": None, "error": None,
    "apart": [], "on": "particles; uniform <tokens>; n = 64", "source": None,
}  # fmt: skip
RECORD = {
    "schema": 2,
    "name": "figure3",
    "title": "Figure 3: a <single> cluster",
    "claim": "All gather & stay.",
    "asks": False,
    "measured_on": {"network": {"words": "particles on the sphere"}},
    "heading": "",
    "command": "clusterjax reproduce figure3 --seed 0",
    "caption": "Tokens of one start. More.",
    "claims": [
        CLAIM | {"says": "a < b", "kind": "identity", "value": 1.0, "verdict": "holds"},
        CLAIM | {"holds": False, "verdict": "does not reproduce", "source": {"words": "A paper, Figure 1"}},
    ],
    "series": {"t": [0.0]},
    "fingerprint": {"seed": 0},
    "parameters": {"n": 64, "beta": 1.0, "times": [3.0, 6.0]},
    "versions": {"jax": "0"},
    "machine": {"cores": 2},
    "seconds": {"total": 1.5, "simulation": 1.0},
    "finished": "2026-01-01T00:00:00+00:00",
    "files": ["figure3.png", "figure3.gif"],
}


class Page(HTMLParser):
    """What a browser would see: tags, references, texts; complains of tags that do not close."""

    VOID = ("meta", "img", "br", "input")

    def __init__(self, text):
        HTMLParser.__init__(self)
        self.open, self.references, self.images, self.frames, self.text = [], [], [], [], ""
        self.attributes, self.ids, self.headings, self.rows, self.cards = set(), [], [], [], []
        self.texts = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.attributes |= attributes.keys()
        self.references += [value for name, value in attrs if name in ("src", "href", "data-src")]
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag in ("img", "iframe"):
            (self.images if tag == "img" else self.frames).append(attributes)
        if tag in ("h1", "h2", "h3", "title"):
            self.headings.append("")
        if tag == "tr" and "table#all" in self.open:
            self.rows.append("")
        if tag == "article":
            self.cards.append("")
        if tag not in self.VOID:
            self.open.append(f"{tag}#{attributes['id']}" if "id" in attributes else tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop().split("#")[0] == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open and self.open[-1] in ("style", "script"):
            self.texts[self.open[-1]] = data
            return
        self.text += data
        tags = {name.split("#")[0] for name in self.open}
        if tags & {"h1", "h2", "h3", "title"}:
            self.headings[-1] += data
        if "table#all" in self.open and "tr" in self.open:
            self.rows[-1] += data
        if "article" in tags:
            self.cards[-1] += data

    @property
    def figures(self):
        """The links to cards, in order."""
        own = [reference for reference in self.references if reference.startswith("#")]
        fixed = ("#top", "#figures")
        return list(dict.fromkeys(one for one in own if one not in fixed and not one.startswith("#paper-")))


def page_of(folder):
    return Page(write_gallery(folder).read_text("utf-8"))


def written(folder, record=RECORD, name=None):
    """The folder of a figure with this record, which may be text or bytes of another shape."""
    place = folder / (record["name"] if name is None else name)
    place.mkdir(parents=True, exist_ok=True)
    text = record if isinstance(record, str | bytes) else json.dumps(record)
    (place / "results.json").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return place


def drawn(folder, record=RECORD):
    """The same with a picture of 30 x 20 pixels, and files of other kinds."""
    place = written(folder, record)
    Image.new("RGB", (30, 20)).save(place / f"{record['name']}.png")
    for name in (f"{record['name']}.svg", f"{record['name']}.gif", f"{record['name']}-player.html"):
        (place / name).write_bytes(b"it")
    return place


@pytest.fixture
def page(tmp_path):
    drawn(tmp_path)
    return page_of(tmp_path)


def test_page_is_well_formed_and_its_files_are_beside_it(page):
    assert page.open == [] and len(set(page.ids)) == len(page.ids)
    assert {one for one in page.references if not one.startswith("#")} == {
        f"./figure3/{name}"
        for name in ("figure3.png", "figure3.svg", "figure3.gif", "figure3-player.html", "results.json")
    }
    assert all(reference[1:] in page.ids for reference in page.references if reference.startswith("#"))


def test_a_run_is_played_in_a_frame_of_its_own(page, tmp_path):
    (frame,) = page.frames
    assert (frame["data-src"], frame["sandbox"]) == ("./figure3/figure3-player.html", "allow-scripts")
    assert "src" not in frame, "it is loaded as it is scrolled to"
    assert "a <single> cluster" in frame["title"]
    # A run without a player, as those of earlier versions: its GIF.
    (tmp_path / "figure3" / "figure3-player.html").unlink()
    other = page_of(tmp_path)
    assert other.frames == [] and [image.get("src") for image in other.images[:2]] == [
        "./figure3/figure3.png", "./figure3/figure3.gif"
    ]  # fmt: skip
    assert all(image.get("loading") == "lazy" for image in other.images[:2])


def test_the_policy_allows_its_own_style_and_script_and_files_beside_it(page, tmp_path):
    text = (tmp_path / "index.html").read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == rules["frame-src"] == "'self' file:" and "unsafe" not in policy
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        digest = base64.b64encode(hashlib.sha256(page.texts[tag].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "style" not in page.attributes and not any(name.startswith("on") for name in page.attributes)


def test_claims_numbers_and_verdicts_are_shown_as_text(page):
    for words in ("a <single> cluster", "All gather & stay.", "a < b", "does not reproduce", "beta = 1"):
        assert words in page.text
    assert "1.5 s" not in page.text and "2026-01-01" not in page.text, "times would differ between two runs"


def test_what_fails_or_was_not_measured_has_a_row_of_its_own(tmp_path):
    violated = RECORD["claims"][0] | {"says": "it must", "holds": False, "verdict": "VIOLATED"}
    absent = RECORD["claims"][0] | {"says": "it may", "kind": "finding", "value": None, "verdict": "not measured"}
    written(tmp_path, RECORD | {"claims": [violated, absent]})
    assert [row[:20] for row in page_of(tmp_path).rows[2:]] == ["VIOLATEDit mustfigur", "not measuredit mayfi"]


def test_quick_runs_say_so_on_every_card_and_row(tmp_path):
    written(tmp_path)
    assert "quick run" not in page_of(tmp_path).text
    written(tmp_path, RECORD | {"name": "figure4", "fingerprint": {"seed": 0, "quick": True}})
    page = page_of(tmp_path)
    assert ["quick run" in card for card in page.cards] == [False, True]
    assert [row.endswith("quick run") for row in page.rows[2:]] == [False, False, True, True]
    assert "1 of 2 figures are of quick runs" in page.text
    written(tmp_path, RECORD | {"fingerprint": {"seed": 0, "quick": True}})
    assert "All figures are of quick runs" in page_of(tmp_path).text


def test_empty_folder_gives_an_empty_page(tmp_path):
    page = page_of(tmp_path)
    assert page.cards == [] and len(page.images) == 1 and "No figure is finished yet." in page.text


def test_figures_stand_in_the_order_of_the_papers(tmp_path):
    names = [entry.name for paper in papers() for entry in paper.figures]
    for name in sorted(names):
        written(tmp_path, RECORD | {"name": name, "title": f"Title of {name}"})
    page = page_of(tmp_path)
    assert page.figures == [f"#{name}" for name in names] and len(names) == len(EXPERIMENTS)
    groups = [f"#paper-{paper.key}" for paper in papers()]
    assert [one for one in page.references if one.startswith("#paper-")] == groups
    assert len(set(page.headings[1:])) == len(page.headings) - 1, "the title stands in the head as well"


def of_network(words, name="figure1"):
    return RECORD | {"name": name, "title": "Figure 1: similarity", "measured_on": {"network": {"words": words}}}


def test_a_network_is_named_in_the_headings_and_in_the_title_of_its_page(tmp_path):
    written(tmp_path / "plbert", of_network("PL-BERT, an ALBERT trained on phonemes, 6 million parameters"))
    page = page_of(tmp_path / "plbert")
    assert page.headings[:2] == ["Clustering in Transformers, reproduced: PL-BERT"] * 2
    assert "Figure 1: similarity (PL-BERT)" in page.headings
    written(tmp_path, of_network("the ALBERT of this package, trained, 1 million parameters"))
    above = page_of(tmp_path)
    assert above.headings[0] == "Clustering in Transformers, reproduced"
    assert "Figure 1: similarity (the ALBERT of this package)" in above.headings
    assert "Another network: PL-BERT, folder plbert" in above.text


def test_gallery_of_another_network_is_linked(tmp_path):
    written(tmp_path / "plbert")
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "index.html").write_text("<p>not ours</p>")
    links = lambda: [one for one in page_of(tmp_path).references if one.startswith("./")]
    assert links() == []
    write_gallery(tmp_path / "plbert")
    page = page_of(tmp_path)
    assert links() == ["./plbert/index.html"] and page.open == [] and "Another network: folder plbert" in page.text
    # Not through a link of the file system.
    (tmp_path / "gallery").mkdir()
    (tmp_path / "gallery" / "linked").symlink_to(tmp_path / "plbert")
    assert not [one for one in page_of(tmp_path / "gallery").references if one.startswith("./")]


def test_strangers_are_left_out_and_titles_that_are_alike_are_told_apart(tmp_path):
    for name in ("figure10", "figure9", "hardmax_figure2"):
        written(tmp_path, RECORD | {"name": name, "title": "One title"})
    for name, text in (("broken", "{"), ("foreign", "[1]"), ("copy", json.dumps(RECORD))):
        written(tmp_path, text, name)
    page = page_of(tmp_path)
    assert page.figures == ["#figure9", "#figure10", "#hardmax_figure2"]
    assert "Not of this library: figures of your own" in page.headings
    titles = [head for head in page.headings if head.startswith("One")]
    assert titles == [f"One title ({name})" for name in ("figure9", "figure10", "hardmax_figure2")]
