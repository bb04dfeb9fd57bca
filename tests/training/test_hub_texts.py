"""Texts of C4 and WikiText, from files of C4 and from the library datasets, which a stand-in replaces."""

import gzip
import itertools
import json
import sys
import types

import pytest

from clusterjax._training.corpus import HubTexts, hub_texts_of
from clusterjax.probe import read_texts


WIKI = [
    "",
    " = Robert Boulter = \n",
    " Robert Boulter is an actor . \n",
    " = = Career = = \n",
    " He acts = well . \n",
    " \n",
]


class Stand:
    """Replaces `datasets`, and records the requests and the number of rows that are read."""

    def __init__(self, rows=(), error=None):
        self.asked, self.read, self.rows, self.error = [], 0, rows, error

    def load_dataset(self, *names, **options):
        self.asked.append((names, options))
        return self._rows()

    def _rows(self):
        for text in self.rows:
            self.read += 1
            yield {"text": text, "url": "https://example.org", "timestamp": "2019"}
        if self.error is not None:
            raise self.error


@pytest.fixture
def stand(monkeypatch):
    def put(*rows, error=None):
        made = Stand(rows, error)
        monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=made.load_dataset))
        return made

    return put


def test_a_file_of_c4_is_read_as_it_is(tmp_path):
    """A file of C4 holds lines of JSON with text, timestamp and url, gzipped."""
    texts = ["A first page.\nOf two lines.", "A second\u2028one."]
    lines = [json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "http://a.b"}) for text in texts]
    file = tmp_path / "c4-validation.00000-of-00008.json.gz"
    file.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    assert read_texts([file]) == texts
    (tmp_path / "plain.json").write_text(lines[0])
    assert read_texts([tmp_path / "plain.json"]) == texts[:1]
    (tmp_path / "list.json").write_text(json.dumps([{"text": "a"}], indent=1))
    with pytest.raises(ValueError, match=r"lines of whole JSON, but line 1 of .*list.json"):
        read_texts([tmp_path / "list.json"])


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("allenai/c4", ("allenai/c4", "en", "train")),
        ("allenai/c4:en:validation", ("allenai/c4", "en", "validation")),
        ("allenai/c4:realnewslike", ("allenai/c4", "realnewslike", "train")),
        ("wikitext", ("Salesforce/wikitext", "wikitext-103-raw-v1", "train")),
        ("Salesforce/wikitext:wikitext-2-raw-v1:test", ("Salesforce/wikitext", "wikitext-2-raw-v1", "test")),
    ],
)
def test_what_is_asked_of_the_hub(stand, path, asked):
    found = stand("a text", "  ", "another")
    assert read_texts([path]) == ["a text", "another"]
    assert found.asked == [(asked[:2], {"split": asked[2], "streaming": True})] and hub_texts_of(path) == HubTexts(
        *asked
    )


@pytest.mark.parametrize("path", ("allenai/c5", "c4", "wikitext:", "wikitext:a:b:c", "allenai/c4::test", "x/wikitext"))
def test_other_names_are_files(stand, path):
    found = stand("a")
    with pytest.raises(
        ValueError, match="paths must be files, or of allenai/c4, Salesforce/wikitext, wikitext, but there"
    ):
        read_texts([path])
    assert found.asked == [] and hub_texts_of(path) is None


def test_a_file_of_that_name_comes_first(stand, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wikitext").mkdir()
    found = stand("a")
    with pytest.raises(ValueError, match="there is none at 'wikitext'"):
        read_texts(["wikitext"])
    assert found.asked == []


def test_headings_of_wikitext_are_left_out(stand):
    stand(*WIKI)
    assert read_texts(["wikitext"]) == ["Robert Boulter is an actor .", "He acts = well ."]


def test_no_more_is_read_than_is_wanted(stand):
    found = stand(*(f"text {k}" for k in range(50)))
    assert read_texts(["allenai/c4"], most_texts=3) == ["text 0", "text 1", "text 2"] and found.read == 3
    found = stand(*itertools.repeat("a" * 36, 50))
    assert len(read_texts(["allenai/c4"], most_bytes=1000)) == 10 and found.read == 11


def test_the_hub_out_of_reach_is_one_sentence(stand):
    stand("a", error=ConnectionError("Couldn't reach 'allenai/c4' on the Hub\nTraceback: ..."))
    words = r"^paths must be within reach, but 'allenai/c4' \(en, train\) could not be loaded \(Couldn't reach "
    with pytest.raises(ValueError, match=words + r"'allenai/c4' on the Hub\); check the network, or name a file\.$"):
        read_texts(["allenai/c4"])
    stand("", "  ")
    with pytest.raises(ValueError, match="must hold texts, but there is none in 'wikitext'"):
        read_texts(["wikitext"])


def test_without_datasets_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ImportError, match=r"loading 'allenai/c4' .* needs datasets; .*: pip install 'clusterjax\[probe\]'"
    ):
        read_texts(["allenai/c4"])
