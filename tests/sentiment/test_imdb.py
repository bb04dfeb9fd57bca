"""Reviews from files, folders and the hub: those that are read, and those that are refused."""

import csv
import gzip
import io
import os
import re
import sys
import types

import numpy as np
import pytest

from clusterjax.sentiment import load_imdb, synthetic_reviews
from clusterjax.sentiment._reviews import HUB, digest
from tests.sentiment_data import needs_imdb, real_reviews


ROWS = (
    ("train", "0", "3", "tt001", "A film, with a comma.<br />Bad"),
    ("train", "1", "9", "tt002", 'He said "good"\nand left'),
    ("test", "0", "1", "tt003", ""),
    ("test", "1", "10", "tt001", "café 日本"),
)
NAMES = ("split", "label", "rating", "imdb_title", "text")


def as_csv(names=NAMES, rows=ROWS):
    stream = io.StringIO()
    csv.writer(stream).writerows((names, *rows))
    return stream.getvalue().encode()


def check(reviews):
    assert reviews.texts == tuple(row[4] for row in ROWS)
    assert reviews.labels.tolist() == [0, 1, 0, 1] and reviews.labels.dtype == np.int8
    assert reviews.films.tolist() == ["tt001", "tt002", "tt003", "tt001"]
    assert reviews.split.tolist() == ["train", "train", "test", "test"]
    assert reviews.ratings.tolist() == [3, 9, 1, 10]


@pytest.mark.parametrize("name", ("a.csv", "b.CSV.GZ", "dir.v1/c.csv.gz"))
@pytest.mark.parametrize("start", (b"", b"\xef\xbb\xbf"), ids=("plain", "byte order mark"))
def test_csv(tmp_path, name, start):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    data = start + as_csv()
    path.write_bytes(gzip.compress(data) if name.lower().endswith("gz") else data)
    check(load_imdb(path))
    check(load_imdb(str(path)))


@pytest.mark.parametrize(
    ("text", "label", "names"),
    (("text", "label", ("0", "1")), ("review", "sentiment", ("neg", "pos")), ("processed", "label", ("neg", "pos")),
     (" Review ", "label", ("negative", "Positive "))),
)  # fmt: skip
def test_names_of_columns_and_labels(tmp_path, text, label, names):
    rows = [("bad", "tt1", names[0]), ("good", "", names[1])]
    (tmp_path / "a.csv").write_bytes(as_csv((text, "film", label), rows))
    reviews = load_imdb(tmp_path / "a.csv")
    assert reviews.texts == ("bad", "good") and reviews.labels.tolist() == [0, 1]
    assert reviews.films.tolist() == ["tt1", ""] and reviews.split is reviews.ratings is None


@pytest.mark.parametrize("name", ("a.parquet", "a.parquet.gz"))
def test_parquet(tmp_path, name):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pyarrow = pytest.importorskip("pyarrow")
    columns = {name: [row[i] for row in ROWS] for i, name in enumerate(NAMES)}
    columns["label"] = [int(label) for label in columns["label"]]
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), stream)
    data = stream.getvalue()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    check(load_imdb(tmp_path / name))
    (tmp_path / "b.parquet").write_bytes(data[:-40])
    with pytest.raises(
        ValueError, match=r"^source must be a whole Parquet file, but .*b\.parquet.*; fetch it again\.$"
    ):
        load_imdb(tmp_path / "b.parquet")
    columns["text"][1] = None
    parquet.write_table(pyarrow.table(columns), tmp_path / "c.parquet")
    with pytest.raises(ValueError, match=r"^source must have a text in each row, but row 1 of .* has None; drop it\.$"):
        load_imdb(tmp_path / "c.parquet")


def test_parquet_without_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        ImportError, match=r"reading '.*a\.parquet' needs pyarrow; install it with: pip install 'clusterjax\[probe\]'"
    ):
        load_imdb(tmp_path / "a.parquet")


def acl_folder(root, skip=None):
    for part in ("train", "test"):
        for number, (row, name) in enumerate((row, name) for row in (0, 1, 2) for name in ("neg", "pos")):
            if name == skip and part == "test":
                continue
            folder = root / part / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{10 * row}_{number + 1}.txt").write_text(f"{part} {name} {row} é", "utf-8")
            (folder / ".DS_Store").write_text("no review")
            (folder / "Thumbs.db").write_text("no review")
    addresses = "".join(f"http://www.imdb.com/title/tt{number:04d}/usercomments\n" for number in range(15))
    (root / "train" / "urls_neg.txt").write_text(addresses)
    return root


@pytest.mark.parametrize("inner", ("", "aclImdb"))
def test_folder(tmp_path, inner):
    acl_folder(tmp_path / inner)
    reviews = load_imdb(tmp_path)
    expected = [f"{part} {name} {row} é" for part in ("train", "test") for name in ("neg", "pos") for row in range(3)]
    assert reviews.texts == tuple(expected)
    assert reviews.labels.tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert reviews.split.tolist() == ["train"] * 6 + ["test"] * 6
    assert reviews.ratings.tolist() == [1, 3, 5, 2, 4, 6] * 2
    assert reviews.films.tolist() == ["tt0000", "tt0010", *[""] * 10]  # 20 is beyond the last address
    (tmp_path / inner / "train" / "urls_neg.txt").unlink()
    assert load_imdb(tmp_path).films is None


def test_folder_that_lacks_a_part(tmp_path):
    acl_folder(tmp_path, skip="pos")
    with pytest.raises(ValueError, match=r"^source must hold train/neg.*none in '.*pos'; name the folder aclImdb"):
        load_imdb(tmp_path)


@pytest.mark.parametrize(
    "name", ("notes.txt", "0_3.TXT", "0-3.txt", "0_4.txt", "0_3.txt.gz", "12_345.txt", "\u0663_4.txt")
)
def test_folder_with_files_of_other_names(tmp_path, name):
    """A file that may be a review is never left out silently: neither under another name nor under a used number."""
    folder = acl_folder(tmp_path) / "train" / "neg"
    (folder / name).write_text("a review")
    words = rf"but 1 of '.*neg' are not, the first '{re.escape(name)}'; rename"
    with pytest.raises(ValueError, match=words):
        load_imdb(tmp_path)


def test_the_digest_is_that_of_the_content(tmp_path):
    """The digest notices changes that size, name and time do not show: of a label, a letter or the film of a review."""
    table, folder = tmp_path / "a.csv", acl_folder(tmp_path / "aclImdb")
    table.write_text("text,label\ngood,1\nbad,0\n")
    changes = (
        (table, table, b"good,1", b"good,0"),
        (folder, folder / "test" / "pos" / "10_4.txt", b"1", b"2"),
        (folder, folder / "train" / "urls_neg.txt", b"tt0000", b"tt0001"),
    )
    for source, file, old, new in changes:
        before, times, content = digest(source), file.stat(), file.read_bytes()
        assert old in content
        file.write_bytes(content.replace(old, new, 1))
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert digest(source) != before
        file.write_bytes(content)
        assert digest(source) == before
    assert digest(folder) == digest(tmp_path) and len({digest(None), digest(HUB), digest(table), digest(folder)}) == 4


def test_folder_in_another_encoding(tmp_path):
    acl_folder(tmp_path)
    (tmp_path / "test" / "pos" / "30_7.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(ValueError, match=r"^source must be in UTF-8, but byte 3 of '.*30_7\.txt' is not; convert it"):
        load_imdb(tmp_path)


def test_hub(monkeypatch, tmp_path):
    asked = []

    def load_dataset(name, split):
        asked.append((name, split))
        return {"text": [f"{split} {i}" for i in range(3)], "label": [0, 1, 1]}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    reviews = load_imdb("stanfordnlp/imdb")
    assert asked == [("stanfordnlp/imdb", "train"), ("stanfordnlp/imdb", "test")]
    assert reviews.texts == ("train 0", "train 1", "train 2", "test 0", "test 1", "test 2")
    assert reviews.labels.tolist() == [0, 1, 1] * 2 and reviews.split.tolist() == ["train"] * 3 + ["test"] * 3
    assert reviews.films is reviews.ratings is None


def test_hub_out_of_reach(monkeypatch, tmp_path):
    def load_dataset(name, split):
        raise ConnectionError("no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(
        ValueError, match=r"^source must be within reach.*ConnectionError: no network.*or name a file\.$"
    ):
        load_imdb("stanfordnlp/imdb")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"needs datasets; install it with: pip install 'clusterjax\[probe\]'"):
        load_imdb("stanfordnlp/imdb")


def test_without_a_source_reviews_are_made_up(getkey):
    first, second = load_imdb(), load_imdb(None)
    assert first.texts == second.texts and len(first) == 2000
    assert first.texts != synthetic_reviews(getkey()).reviews.texts


with_row = lambda *cells: as_csv(rows=(*ROWS, cells))
UNNAMED = as_csv(("split", "label", "rating", "film", "words"))
ENDLESS = as_csv() + b'test,1,1,a,"' + b"b" * 200_000 + b'"'
REFUSED = {
    "no such column": ("a.csv", UNNAMED, "have a column 'text' or", "rename"),
    "no label": ("a.csv", as_csv(("split", "y", "rating", "film", "text")), "have a column 'label' or", "rename"),
    "another label": ("a.csv", with_row("test", "2", "1", "a", "b"), "the labels 0 and 1", "leave out"),
    "no value": ("a.csv", with_row("test", "", "1", "a", "b"), "the labels 0 and 1", "leave out"),
    "another split": ("a.csv", with_row("dev", "1", "1", "a", "b"), "train or test", "rename it"),
    "another rating": ("a.csv", with_row("test", "1", "*", "a", "b"), "a number of stars", "mend it"),
    "huge rating": ("a.csv", with_row("test", "1", "999", "a", "b"), "a number of stars", "mend it"),
    "two columns of a name": ("a.csv", as_csv(("text", *NAMES[1:])), "name each column once", "rename them"),
    "short row": ("a.csv", as_csv() + b"test,1\r\n", "5 columns in each row", "quote texts"),
    "long row": ("a.csv", as_csv() + b"test,1,1,a,b,c\r\n", "5 columns in each row", "quote texts"),
    "cut off": ("a.csv", as_csv()[:-40] + b'"ab', "5 columns in each row|a whole CSV file", "quote"),
    "open quote": ("a.csv", as_csv() + b'test,1,1,a,"b', "a whole CSV file", "fetch it again"),
    "endless field": ("a.csv", ENDLESS, "a whole CSV file", "fetch it again"),
    "empty": ("a.csv", b"", "hold rows", "name a file that has"),
    "only names": ("a.csv", as_csv(rows=()), "hold rows", "name a file that has"),
    "Latin 1": ("a.csv", as_csv().decode().replace("日本", "").encode("latin-1"), "in UTF-8", "convert it"),
    "UTF-16": ("a.csv", as_csv().decode().encode("utf-16"), "in UTF-8", "convert it"),
    "cut off gzip": ("a.csv.gz", gzip.compress(as_csv())[:-12], "a whole gzip file", "fetch it again"),
    "start of gzip": ("a.csv.gz", gzip.compress(as_csv())[:12], "a whole gzip file", "fetch it again"),
    "broken gzip": ("a.csv.gz", gzip.compress(as_csv())[:10] + b"\xff" * 40, "a whole gzip file", "fetch it again"),
    "no gzip": ("a.csv.gz", as_csv(), "a whole gzip file", "fetch it again"),
    "empty gzip": ("a.csv.gz", b"", "a whole gzip file|hold rows", "again|has"),
    "another kind": ("a.txt", as_csv(), "a .csv or .parquet file", "write it as"),
    "no kind": ("gz", as_csv(), "a .csv or .parquet file", "write it as"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_broken_tables_are_refused(tmp_path, case):
    name, data, what, remedy = REFUSED[case]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=rf"^source must .*({what}).*, but .*; .*({remedy})[^.]*\.$"):
        load_imdb(tmp_path / name)


@pytest.mark.parametrize("source", ("nothing/here.csv", "stanfordnlp/imdb50k", ""))
def test_missing_sources_are_named(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"^source must (be|hold) .*, but .*; (check its name|name the folder|pass a string).*\.$"
    ):
        load_imdb(source)


def test_rows_are_taken_in_their_order(tmp_path):
    (tmp_path / "a.csv").write_bytes(as_csv())
    reviews = load_imdb(tmp_path / "a.csv").take([3, 0, 3])
    assert reviews.texts == (ROWS[3][4], ROWS[0][4], ROWS[3][4]) and len(reviews) == 3
    assert reviews.films.tolist() == ["tt001"] * 3 and reviews.ratings.tolist() == [10, 3, 10]
    assert reviews.split.tolist() == ["test", "train", "test"] and reviews.labels.tolist() == [1, 0, 1]
    assert len(reviews.take([])) == 0


@pytest.mark.exhaustive
@needs_imdb
def test_the_real_reviews():
    reviews = real_reviews()
    assert len(reviews) == 50000
    for part in ("train", "test"):
        for label in (0, 1):
            assert ((reviews.split == part) & (reviews.labels == label)).sum() == 12500
    assert ((reviews.ratings <= 4) == (reviews.labels == 0)).all() and set(reviews.ratings) == {1, 2, 3, 4, 7, 8, 9, 10}
    assert reviews.texts[0].startswith("Story of a man who has unnatural feelings") and reviews.films[0] == "tt0064354"
    assert sum("<br />" in text for text in reviews.texts) > 25000
    assert len(reviews) - len(set(reviews.texts)) == 418
