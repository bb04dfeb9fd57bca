"""Labelled texts of any kind from a table: labels that are positive, rows that are left out, and refusals."""

import csv
import gzip
import io
import json
import math
import re

import numpy as np
import pytest

from clusterjax.sentiment import Reviews, load_reviews
from clusterjax.sentiment._reviews import digest
from tests.helpers import as_a_user


ROWS = (("Good, all of it.", 5), ('He said "fine"', 4), ("So-so\nand so on", 3), ("Poor.", 2), ("Café, bad", 1))
COLUMNS = {"text_column": "body", "label_column": "Stars"}


def as_csv(rows=ROWS, names=("Body", "stars")):
    stream = io.StringIO()
    csv.writer(stream).writerows((names, *rows))
    return stream.getvalue().encode()


def as_lines(rows=ROWS, names=("body", "stars")):
    return b"".join(json.dumps(dict(zip(names, row, strict=True))).encode() + b"\n\n" for row in rows)


def as_parquet(rows=ROWS):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table, stream = (
        pytest.importorskip("pyarrow").table(dict(zip(("body", "stars"), zip(*rows, strict=True), strict=True))),
        io.BytesIO(),
    )
    parquet.write_table(table, stream)
    return stream.getvalue()


def write(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ("a.csv", "a.csv.gz", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.parquet.gz"))
def test_kinds_of_tables(tmp_path, name):
    make = {"csv": as_csv, "jsonl": as_lines, "parquet": as_parquet}[name.split(".")[1]]
    reviews = load_reviews(write(tmp_path / name, make()), **COLUMNS, threshold=3)
    assert reviews.texts == tuple(text for text, _ in ROWS) and reviews.labels.tolist() == [1, 1, 0, 0, 0]
    assert reviews.split is reviews.films is reviews.ratings is None


@pytest.mark.parametrize(
    ("threshold", "labels", "words"),
    (
        (3, {5: 1, 4: 1, 3: 0, 2: 0, 1: 0}, "above 3 are positive (2), labels up to 3 negative (3)"),
        (3.5, {5: 1, 4: 1, 3: 0, 2: 0, 1: 0}, "above 3.5 are positive (2), labels up to 3.5 negative (3)"),
        ((2, 3), {5: 1, 4: 1, 2: 0, 1: 0}, "; 1 rows above 2 and up to 3 are left out"),
        ([1, 4], {5: 1, 1: 0}, "; 3 rows above 1 and up to 4 are left out"),
    ),
)
def test_thresholds(tmp_path, threshold, labels, words):
    """Labels above the threshold are positive, and the intervals of left-out labels are closed on the right."""
    said = []
    reviews = load_reviews(write(tmp_path / "a.csv", as_csv()), **COLUMNS, threshold=threshold, say=said.append)
    stars = {text: number for text, number in ROWS}
    assert {stars[text]: int(label) for text, label in zip(reviews.texts, reviews.labels, strict=True)} == labels
    assert len(said) == 1 and words in said[0]


@pytest.mark.parametrize(
    ("labels", "positive", "expected"),
    (
        (("1", "2", "2"), None, [0, 1, 1]),
        (("-1", "1.0", "1"), None, [0, 1, 1]),
        (("1", "2", "2"), "1", [1, 0, 0]),
        (("neg", "Positive ", "positive"), None, None),
        (("neg", "Pos ", "pos"), None, [0, 1, 1]),
        (("yes", "no", "No"), None, [1, 0, 0]),
        (("True", "False", "True"), None, [1, 0, 1]),
        (("sad", "happy", "Happy"), "happy", [0, 1, 1]),
        (("sad", "happy", "Happy"), " SAD", [1, 0, 0]),
    ),
)
def test_two_labels(tmp_path, labels, positive, expected):
    rows = [(f"text {k}", label) for k, label in enumerate(labels)]
    read = lambda: load_reviews(write(tmp_path / "a.csv", as_csv(rows)), **COLUMNS, positive=positive)
    if expected is None:  # neg and positive are the two names that mean something
        assert read().labels.tolist() == [0, 1, 1]
    else:
        assert read().labels.tolist() == expected


def test_usual_columns_need_no_names(tmp_path):
    rows = [("train", "a", "pos"), ("test", "b", "neg")]
    reviews = load_reviews(write(tmp_path / "a.csv", as_csv(rows, ("Split", "review", "sentiment"))))
    assert reviews.texts == ("a", "b") and reviews.labels.tolist() == [1, 0]
    assert reviews.split.tolist() == ["train", "test"]


def test_parts(tmp_path):
    """Parts come from a column or from a second table, whose rows come last; a threshold leaves out rows of both."""
    rows = [(*row, part) for row, part in zip(ROWS, ("train", "TEST", "test", "train", "test"), strict=True)]
    table = write(tmp_path / "a.csv", as_csv(rows, ("body", "stars", "part")))
    reviews = load_reviews(table, **COLUMNS, threshold=(2, 3), split_column="part")
    assert reviews.split.tolist() == ["train", "test", "train", "test"]
    test = write(tmp_path / "b.jsonl", as_lines(ROWS[::-1]))
    reviews = load_reviews(write(tmp_path / "c.csv", as_csv()), **COLUMNS, threshold=3, test=test)
    assert reviews.texts == tuple(text for text, _ in (*ROWS, *ROWS[::-1]))
    assert reviews.split.tolist() == ["train"] * 5 + ["test"] * 5


TWO = (("a", 1), ("b", 0))
NAMES = [(f"text {k}", name) for k, name in enumerate(("glad", "sad", "mad", "sad"))]
REFUSED = {
    "no such text column": (as_csv(), {"text_column": "Text", "label_column": "stars"},
                            "text_column must be a column of .*'text' is not among its columns 'body', 'stars'; pass"),
    "no usual text column": (as_csv(), {}, "text_column must .*'text' or 'review' or 'processed' is not among"),
    "no such label column": (as_csv(), {**COLUMNS, "label_column": "label"}, "label_column must be a column"),
    "no such split column": (as_csv(TWO), {**COLUMNS, "split_column": "part"}, "split_column must be a column of"),
    "another part": (as_csv([("a", 1, "dev")], ("body", "stars", "split")), COLUMNS, "must have train or test in its"),
    "five numbers": (as_csv(), COLUMNS, r"must have two different labels, but it has '5' \(1\), .* a threshold"),
    "three names": (as_csv(NAMES), COLUMNS, r"but it has 'sad' \(2\), 'glad' \(1\), 'mad' \(1\); keep the rows"),
    "one label": (as_csv([("a", 1), ("b", 1)]), COLUMNS, r"must have two different labels, but it has '1' \(2\)"),
    "many labels": (as_csv([(f"a{k}", f"n{k}") for k in range(9)]), COLUMNS, "and 3 more; keep"),
    "unnamed names": (as_csv(NAMES[:2]), COLUMNS, "positive must name the positive one of the labels, .*; pass one of"),
    "another positive": (as_csv(NAMES[:2]), {**COLUMNS, "positive": "mad"}, "positive must be one of the two"),
    "both": (as_csv(), {**COLUMNS, "positive": "5", "threshold": 3}, "positive must be left out beside threshold"),
    "names above 3": (as_csv(NAMES), {**COLUMNS, "threshold": 3}, "threshold must be left out for .* is 'glad'; leave"),
    "all above": (as_csv(), {**COLUMNS, "threshold": 0}, "threshold must leave .* 5 of the 5 labels are above 0 and 0"),
    "all below": (as_csv(), {**COLUMNS, "threshold": (5, 6)}, "0 of the 5 labels are above 6 and 5 are up to 5"),
    "falling": (as_csv(), {**COLUMNS, "threshold": (3, 2)}, "threshold must increase, but it is 3 and 2"),
    "three thresholds": (as_csv(), {**COLUMNS, "threshold": (1, 2, 3)}, "threshold must be one number or two"),
    "no number": (as_csv(), {**COLUMNS, "threshold": "3"}, "threshold must be a finite number"),
    "empty text": (as_csv([*ROWS, (" ", 1), ("", 2)]), {**COLUMNS, "threshold": 3},
                   "text_column must have a text in each row, but 2 of the 7 rows .* is row 5, counted from 0; remove"),
    "no label": (as_csv([*ROWS, ("a", ""), ("b", "nan")]), {**COLUMNS, "threshold": 3},
                 "label_column must have a label in each row, but 2 of the 7 rows of .*; remove these rows"),
    "no rows": (as_csv(()), COLUMNS, "source must hold rows"),
    "two splits": (as_csv(TWO), {**COLUMNS, "split_column": "a", "test": "b.csv"}, "split_column must be left out"),
    "no test table": (as_csv(TWO), {**COLUMNS, "test": "nowhere.csv"}, "test must be a .csv, .*is not there; check"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named(tmp_path, case):
    data, options, words = REFUSED[case]
    with as_a_user(), pytest.raises(ValueError, match=words) as caught:
        load_reviews(write(tmp_path / "a.csv", data), **options)
    assert re.fullmatch(r"\w+ must [^\n]*, but [^\n]*; [^\n]*\.", str(caught.value))


BROKEN = {
    "a.txt": b"a", "a.csv.gz": b"no gzip", "a.jsonl": b'{"body": "a"', "b.jsonl": b"[1, 2]\n", "c.jsonl": b"\n",
    "d.jsonl": as_lines([("a", math.nan), ("b", 1)]), "e.jsonl": b'{"body": 5, "stars": 1}\n', "a.parquet": b"PAR1",
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_tables_are_refused(tmp_path, name):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for role in ("source", "test"):
        whole, broken = write(tmp_path / "whole.csv", as_csv()), tmp_path / name
        broken.write_bytes(BROKEN[name])
        given = {"source": broken} if role == "source" else {"source": whole, "test": broken}
        with pytest.raises(ValueError, match=rf"^({role}|\w+_column) must .*, but .*; .*\.$"):
            load_reviews(**given, **COLUMNS, threshold=3)
    with pytest.raises(ValueError, match="^source must be a .csv, .*a folder; check its path"):
        load_reviews(tmp_path)


def test_lines_have_a_ceiling(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(as_lines(ROWS * 10_000)))
    with pytest.raises(ValueError, match="source must take at most 1000000 bytes.*pass a larger most_bytes"):
        load_reviews(tmp_path / "a.jsonl.gz", **COLUMNS, threshold=3, most_bytes=10**6)


def test_a_column_may_begin_in_any_line(tmp_path):
    lines = b'{"body": "a", "stars": 1}\n{"stars": 5, "Body": "b", "more": [1, 2]}\n'
    assert load_reviews(write(tmp_path / "a.jsonl", lines), **COLUMNS).texts == ("a", "b")


def test_the_digest_is_that_of_texts_labels_and_parts():
    parts = np.array(["train", "test"])
    made = lambda *texts, labels=(0, 1), **more: Reviews(texts, np.array(labels), **more)
    different = [
        made("a", "b"), made("a", "b", labels=(1, 0)), made("a", "c"), made("ab", ""), made("a", "b", split=parts),
        made("a", "b", films=parts),
    ]  # fmt: skip
    assert len({digest(reviews) for reviews in different}) == len(different)
    assert digest(made("a", "b")) == digest(different[0])
