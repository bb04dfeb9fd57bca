"""The gallery is one page that needs nothing else."""

import json
from html.parser import HTMLParser

import pytest

from clusterjax.experiments import EXPERIMENTS
from clusterjax.experiments.framework.gallery import write_gallery
from clusterjax.experiments.framework.record import read_record
from clusterjax.experiments.framework.reproduce import _finished


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
            "value": 1.0,
            "error": None,
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
            "value": None,
            "error": None,
            "verdict": "does not reproduce",
            "apart": [],
            "on": "particles; uniform <tokens>; n = 64",
            "source": {"words": "A paper, Figure 1"},
        },
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

    VOID = ("meta", "img", "br")

    def __init__(self, text):
        HTMLParser.__init__(self)
        self.open, self.references, self.images, self.text = [], [], [], ""
        self.attributes = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.attributes |= attributes.keys()
        self.references += [value for name, value in attrs if name in ("src", "href")]
        if tag == "img":
            self.images.append(attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.text += data


def written(folder, record=RECORD, name=None):
    """The folder of a figure with this record, which may be text or bytes of another shape."""
    place = folder / (record["name"] if name is None else name)
    place.mkdir(parents=True, exist_ok=True)
    text = record if isinstance(record, str | bytes) else json.dumps(record)
    (place / "results.json").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return place


@pytest.fixture
def page(tmp_path):
    place = written(tmp_path)
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
    assert page.open == [] and page.references == ["./plbert/index.html"] and "Another network: plbert" in page.text


def test_figures_stand_in_the_order_of_their_numbers_and_strangers_are_left_out(tmp_path):
    for name in ("figure10", "figure9", "hardmax_figure2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(RECORD | {"name": name, "title": name}), "utf-8")
    for name, text in (("broken", "{"), ("foreign", "[1]"), ("copy", json.dumps(RECORD))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(text, "utf-8")
    page = Page(write_gallery(tmp_path).read_text("utf-8"))
    assert page.references == ["#figure9", "#figure10", "#hardmax_figure2"]


DEEP = "[" * 200_000 + "]" * 200_000
OTHERS = {
    "a list": "[]",
    "nothing": "",
    "half of it": json.dumps(RECORD)[:100],
    "not UTF-8": b"\xff\xfe{}",
    "no more than a name": '{"schema": 2, "name": "figure3"}',
    "an older schema": json.dumps(RECORD | {"schema": 1}),
    "a schema of text": json.dumps(RECORD | {"schema": "2"}),
    "another figure's": json.dumps(RECORD | {"name": "figure4"}),
    "claims of text": json.dumps(RECORD | {"claims": "none"}),
    "a claim that is none": json.dumps(RECORD | {"claims": [3]}),
    "seconds of text": json.dumps(RECORD | {"seconds": {"total": "<script>", "simulation": 1.0}}),
    "finished by a number": json.dumps(RECORD | {"finished": 3}),
    "files elsewhere": json.dumps(RECORD | {"files": ["../../secret"]}),
    "a number that is none": json.dumps(RECORD | {"series": {"t": [float("nan")]}}),
    "deep": DEEP,
    "deep parameters": json.dumps(RECORD)[:-1] + f', "more": {DEEP}}}',
    "a verdict of no kind": json.dumps(RECORD).replace("does not reproduce", "proved"),
    "a verdict that does not follow": json.dumps(RECORD).replace("does not reproduce", "reproduces"),
    "reproduces on other data": json.dumps(RECORD | {"claims": [RECORD["claims"][1] | {"holds": True, "apart": ["data"],
                                                                                     "verdict": "reproduces"}]}),
    "reproduces without a source": json.dumps(RECORD | {"claims": [RECORD["claims"][1] | {"source": None}]}),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_results_of_another_shape_are_left_out_with_a_sentence(tmp_path, case):
    """Neither the gallery nor `reproduce` stumbles over them, and the figure is run again."""
    place = written(tmp_path, OTHERS[case], "figure3")
    written(tmp_path, RECORD | {"name": "figure4"})
    page, said = Page(write_gallery(tmp_path).read_text("utf-8")), []
    assert page.references == ["#figure4"] and page.open == [] and "Left out: results.json must " in page.text
    assert _finished(place, {"seed": 0}, said.append) is None
    (line,) = said
    assert line.startswith("figure3: results.json must ") and line.endswith("; run the figure again.")
    assert len(line) < 500 + len(str(tmp_path))


def test_an_older_schema_is_named(tmp_path):
    with pytest.raises(
        ValueError, match="must have schema 2, but .* has 1, whose verdicts do not say what they are of"
    ):
        read_record(written(tmp_path, RECORD | {"schema": 1}))


def test_a_record_of_this_version_is_read(tmp_path):
    assert read_record(written(tmp_path)) == RECORD


@pytest.mark.parametrize("what", ("results.json", "figure3.png"))
def test_links_to_other_places_are_not_followed(tmp_path, what):
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(RECORD) if what == "results.json" else "secret", "utf-8")
    place = written(tmp_path / "gallery")
    (place / what).unlink(missing_ok=True)
    (place / what).symlink_to(secret)
    page = Page(write_gallery(tmp_path / "gallery").read_text("utf-8"))
    assert page.images == [] and page.references == ([] if what == "results.json" else ["#figure3"])


HOSTILE = '"><script>alert(1)</script>{{style}}'


def test_no_text_of_a_record_becomes_markup(tmp_path):
    """Each text of a record in turn, and all of them, and names of folders."""
    hostile = {"title": HOSTILE, "heading": HOSTILE, "claim": HOSTILE, "caption": HOSTILE, "finished": HOSTILE,
               "parameters": {HOSTILE: [HOSTILE]}, "versions": {HOSTILE: HOSTILE}, "machine": {HOSTILE: HOSTILE},
               "claims": [claim | {"says": HOSTILE, "measured": HOSTILE, "criterion": HOSTILE, "on": HOSTILE}
                          for claim in RECORD["claims"]]}  # fmt: skip
    apart = hostile["claims"][1] | {"apart": ["data"], "verdict": "not the paper's data", "source": {"words": HOSTILE}}
    record = RECORD | hostile | {"claims": [*hostile["claims"], apart], "name": HOSTILE.replace("/", "\\")}
    (written(tmp_path, record) / f"{record['name']}.png").write_bytes(b"png")
    for name in ("javascript:alert(1)", 'a" onclick="alert(1)', "&amp;"):
        written(tmp_path / name)
        write_gallery(tmp_path / name)
    text = write_gallery(tmp_path).read_text("utf-8")
    page = Page(text)
    assert page.open == [] and "<script" not in text and "onclick" not in page.attributes
    assert text.count(".still {") == 1, "what is written is not read for places to write at"
    assert all(reference.startswith(("#%22", "./", "data:image/png")) for reference in page.references)
    assert "./javascript%3Aalert%281%29/index.html" in page.references and HOSTILE in page.text
