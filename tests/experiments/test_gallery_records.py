"""Records of another shape and links to other places stay off the page, and no text of a record becomes markup."""

import json

import pytest

from clusterjax.experiments.framework.page import write_gallery
from clusterjax.experiments.framework.run import _finished
from tests.experiments.test_gallery import RECORD, Page, drawn, page_of, written


DEEP = "[" * 200_000 + "]" * 200_000
OTHERS = {
    "a list": "[]",
    "not UTF-8": b"\xff\xfe{}",
    "an older schema": json.dumps(RECORD | {"schema": 1}),
    "another figure's": json.dumps(RECORD | {"name": "figure4"}),
    "a claim that is none": json.dumps(RECORD | {"claims": [3]}),
    "seconds of text": json.dumps(RECORD | {"seconds": {"total": "<script>", "simulation": 1.0}}),
    "a command that is no text": json.dumps(RECORD | {"command": ["rm"]}),
    "files elsewhere": json.dumps(RECORD | {"files": ["../../secret"]}),
    "a number that is none": json.dumps(RECORD | {"series": {"t": [float("nan")]}}),
    "a network that is none": json.dumps(RECORD | {"measured_on": {"network": 3}}),
    "deep": DEEP,
    "a verdict of no kind": json.dumps(RECORD).replace("does not reproduce", "proved"),
    "a verdict that does not follow": json.dumps(RECORD).replace("does not reproduce", "reproduces"),
    "reproduces on other data": json.dumps(RECORD | {"claims": [RECORD["claims"][1] | {"holds": True, "apart": ["data"],
                                                                                     "verdict": "reproduces"}]}),
    "reproduces without a source": json.dumps(RECORD | {"claims": [RECORD["claims"][1] | {"source": None}]}),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_results_of_another_shape_are_left_out_with_a_sentence(tmp_path, case):
    """Neither the gallery nor `reproduce` fails on such results, and the figure is run again."""
    place = written(tmp_path, OTHERS[case], "figure3")
    written(tmp_path, RECORD | {"name": "figure4"})
    page, said = page_of(tmp_path), []
    assert page.figures == ["#figure4"] and page.open == [] and "Left out: results.json must " in page.text
    assert _finished(place, {"seed": 0}, said.append) is None
    (line,) = said
    assert line.startswith("figure3: results.json must ") and line.endswith("; run the figure again.")
    assert len(line) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("what", ("results.json", "figure3.png", "figure3-player.html", "figure3.svg"))
def test_links_to_other_places_are_not_followed(tmp_path, what):
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(RECORD) if what == "results.json" else "secret", "utf-8")
    place = drawn(tmp_path / "gallery")
    (place / what).unlink(missing_ok=True)
    (place / what).symlink_to(secret)
    page = page_of(tmp_path / "gallery")
    assert not any(what in reference for reference in page.references)
    assert page.cards == (what != "results.json")


HOSTILE = '"><script>alert(1)</script>{{style}}'


def test_no_text_of_a_record_becomes_markup(tmp_path):
    """Every text of a record is hostile here, and so are names of folders."""
    hostile = {"title": HOSTILE, "heading": HOSTILE, "claim": HOSTILE, "caption": HOSTILE, "finished": HOSTILE,
               "parameters": {HOSTILE: [HOSTILE]}, "versions": {HOSTILE: HOSTILE}, "machine": {HOSTILE: HOSTILE},
               "command": HOSTILE, "measured_on": {"network": {"words": f"{HOSTILE} parameters"}},
               "claims": [claim | {"says": HOSTILE, "measured": HOSTILE, "criterion": HOSTILE, "on": HOSTILE}
                          for claim in RECORD["claims"]]}  # fmt: skip
    apart = hostile["claims"][1] | {"apart": ["data"], "verdict": "not the paper's data", "source": {"words": HOSTILE}}
    record = RECORD | hostile | {"claims": [*hostile["claims"], apart], "name": HOSTILE.replace("/", "\\")}
    for one in (record, record | {"name": "figure1"}):
        place = written(tmp_path, one)
        for end in (".png", "-player.html"):
            (place / f"{one['name']}{end}").write_bytes(b"it")
    for name in ("javascript:alert(1)", 'a" onclick="alert(1)', "&amp;"):
        written(tmp_path / name, RECORD | {"measured_on": hostile["measured_on"]})
        write_gallery(tmp_path / name)
    text = write_gallery(tmp_path).read_text("utf-8")
    page = Page(text)
    assert page.open == [] and text.count("<script") == 1 and "onclick" not in page.attributes
    assert text.count(".still {") == 1, "what is written is not read for places to write at"
    assert all(reference.startswith(("#", "./")) for reference in page.references)
    assert "./javascript%3Aalert%281%29/index.html" in page.references and HOSTILE in page.text
