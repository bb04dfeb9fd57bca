"""The gallery is a page of text beside the files that it shows: well formed, safe, and with distinct ids."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

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
    """The tags, references and texts of a page, as a browser sees them; an end tag without a start is an error."""

    VOID = ("meta", "img", "br", "input")

    def __init__(self, text):
        HTMLParser.__init__(self)
        self.open, self.references, self.ids, self.frames, self.text = [], [], [], [], ""
        self.attributes, self.texts, self.cards = set(), {}, 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.attributes |= attributes.keys()
        self.references += [value for name, value in attrs if name in ("src", "href", "data-src")]
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag == "iframe":
            self.frames.append(attributes)
        self.cards += tag == "article"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open and self.open[-1] in ("style", "script"):
            self.texts[self.open[-1]] = data
        else:
            self.text += data

    @property
    def figures(self):
        """Returns the links to cards, in order."""
        own = [reference for reference in self.references if reference.startswith("#")]
        fixed = ("#top", "#figures")
        return list(dict.fromkeys(one for one in own if one not in fixed and not one.startswith("#paper-")))


def page_of(folder):
    return Page(write_gallery(folder).read_text("utf-8"))


def written(folder, record=RECORD, name=None):
    """Writes the folder of a figure with this record, which may be text or bytes of another shape."""
    place = folder / (record["name"] if name is None else name)
    place.mkdir(parents=True, exist_ok=True)
    text = record if isinstance(record, str | bytes) else json.dumps(record)
    (place / "results.json").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return place


def drawn(folder, record=RECORD):
    """Writes the folder of a figure with a picture of 30 x 20 pixels, and with files of other kinds."""
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


def test_the_policy_allows_its_own_style_and_script_and_files_beside_it(page, tmp_path):
    text = (tmp_path / "index.html").read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == rules["frame-src"] == "'self' file:" and "unsafe" not in policy
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        digest = base64.b64encode(hashlib.sha256(page.texts[tag].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    (frame,) = page.frames
    assert (frame["data-src"], frame["sandbox"]) == ("./figure3/figure3-player.html", "allow-scripts")
    assert "style" not in page.attributes and not any(name.startswith("on") for name in page.attributes)


def test_claims_numbers_and_verdicts_are_shown_as_text(page):
    for words in ("a <single> cluster", "All gather & stay.", "a < b", "does not reproduce", "beta = 1"):
        assert words in page.text
    assert "1.5 s" not in page.text and "2026-01-01" not in page.text, "times would differ between two runs"
