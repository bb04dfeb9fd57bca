"""The gallery is one page that needs nothing else."""

import json
from html.parser import HTMLParser

import pytest

from clusterjax.experiments import EXPERIMENTS
from clusterjax.experiments._gallery import write_gallery


RECORD = {
    "schema": 2,
    "name": "figure3",
    "title": "Figure 3: a <single> cluster",
    "claim": "All gather & stay.",
    "heading": "",
    "caption": "Tokens of one start. More.",
    "claims": [
        {
            "says": "a < b",
            "measured": "1",
            "criterion": "1",
            "holds": True,
            "kind": "identity",
            "verdict": "holds",
            "apart": [],
            "on": "particles; uniform <tokens>; n = 64",
            "source": None,
        },
        {
            "says": "c",
            "measured": "2",
            "criterion": "3",
            "holds": False,
            "kind": "paper",
            "verdict": "does not reproduce",
            "apart": [],
            "on": "particles; uniform <tokens>; n = 64",
            "source": {"words": "A paper, Figure 1"},
        },
    ],
    "parameters": {"n": 64, "beta": 1.0, "times": [3.0, 6.0]},
    "versions": {"jax": "0"},
    "machine": {"cores": 2},
    "seconds": {"total": 1.5, "simulation": 1.0},
    "finished": "2026-01-01T00:00:00+00:00",
    "files": ["figure3.png", "figure3.gif"],
}


class Page(HTMLParser):
    """What a browser would see: tags, references, texts; complains of tags that do not close."""

    VOID = ("meta", "img", "br")

    def __init__(self, text):
        HTMLParser.__init__(self)
        self.open, self.references, self.images, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.references += [value for name, value in attrs if name in ("src", "href")]
        if tag == "img":
            self.images.append(attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def page(tmp_path):
    place = tmp_path / "figure3"
    place.mkdir()
    (place / "results.json").write_text(json.dumps(RECORD), "utf-8")
    (place / "figure3.png").write_bytes(b"png")
    (place / "figure3.gif").write_bytes(b"gif")
    return Page(write_gallery(tmp_path).read_text("utf-8"))


def test_page_is_well_formed_and_fetches_nothing(page):
    assert page.open == []
    assert all(reference.startswith(("data:image/", "#")) for reference in page.references)


def test_pictures_are_embedded_with_a_text(page):
    kinds = [image["src"].split(";")[0] for image in page.images]
    assert kinds == ["data:image/png", "data:image/gif"] and all(image["alt"] for image in page.images)


def test_claims_numbers_and_verdicts_are_shown_as_text(page):
    for words in ("a <single> cluster", "All gather & stay.", "a < b", "does not reproduce", "beta = 1", "1.5 s"):
        assert words in page.text


def test_empty_folder_gives_an_empty_page(tmp_path):
    assert Page(write_gallery(tmp_path).read_text("utf-8")).images == []


def test_figures_stand_in_the_order_of_the_papers(tmp_path):
    names = [one.name for one in EXPERIMENTS]
    for name in sorted(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(RECORD | {"name": name}), "utf-8")
    page = Page(write_gallery(tmp_path).read_text("utf-8"))
    assert page.references == [f"#{name}" for name in names] and "Figures 1 to 8" in page.text


@pytest.mark.parametrize(("name", "words"), (("figure3", "The paper: All"), ("albert-training", "The question: All")))
def test_what_no_paper_says_is_not_called_so(tmp_path, name, words):
    (tmp_path / name).mkdir()
    (tmp_path / name / "results.json").write_text(json.dumps(RECORD | {"name": name}), "utf-8")
    assert words in Page(write_gallery(tmp_path).read_text("utf-8")).text


def test_gallery_of_another_network_is_linked(tmp_path):
    (tmp_path / "plbert" / "figure3").mkdir(parents=True)
    (tmp_path / "plbert" / "figure3" / "results.json").write_text(json.dumps(RECORD), "utf-8")
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "index.html").write_text("<p>not ours</p>")
    assert Page(write_gallery(tmp_path).read_text("utf-8")).references == []
    write_gallery(tmp_path / "plbert")
    page = Page(write_gallery(tmp_path).read_text("utf-8"))
    assert page.open == [] and page.references == ["plbert/index.html"] and "Another network: plbert" in page.text


def test_figures_stand_in_the_order_of_their_numbers_and_strangers_are_left_out(tmp_path):
    for name in ("figure10", "figure9", "hardmax_figure2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(RECORD | {"name": name, "title": name}), "utf-8")
    for name, text in (("broken", "{"), ("foreign", "[1]"), ("copy", json.dumps(RECORD))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(text, "utf-8")
    page = Page(write_gallery(tmp_path).read_text("utf-8"))
    assert page.references == ["#figure9", "#figure10", "#hardmax_figure2"]
