"""Texts as token ids: each kind of file is read, and every fault is reported in one sentence."""

import gzip
import json

import numpy as np
import pytest

from clusterjax.probe.networks.batch import read_ids
from tests.helpers import as_a_user


ROWS = [[1, 2, 3], [4], [0, 9, 9, 5]]
LINES = "1 2 3\n4\n0,9, 9 5\n"


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", LINES), ("a.csv", "1,2,3\n4\n0,9,9,5"), ("a.TSV", "1\t2\t3\r\n4\r\n0\t9\t9\t5\r\n"),
        ("a.jsonl", "[1, 2, 3]\n[4]\n[0,9,9,5]\n"), ("a.json", json.dumps(ROWS)),
        ("a.txt.gz", gzip.compress(LINES.encode())), ("a.json.gz", gzip.compress(json.dumps(ROWS).encode())),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("a.") else "",
)  # fmt: skip
def test_each_kind_of_file(tmp_path, name, content):
    found = read_ids(write(tmp_path / name, content), 10)
    assert [row.tolist() for row in found] == ROWS and all(row.dtype == np.int32 for row in found)


def test_an_array_has_a_text_in_each_row(tmp_path):
    for dtype in (np.int64, np.uint8):
        np.save(tmp_path / "a.npy", np.array([[1, 2], [3, 4]], dtype))
        assert [row.tolist() for row in read_ids(tmp_path / "a.npy", 5)] == [[1, 2], [3, 4]]


def numpy_file(array, tmp_path, **options):
    np.save(tmp_path / "made.npy", array, **options)
    return (tmp_path / "made.npy").read_bytes()


BAD = {
    "beyond": (
        "a.txt",
        "1 2\n3 10 4\n",
        r"from 0 to 9, the vocabulary of the network, but line 2 of .* holds 10; mend",
    ),
    "negative": ("a.csv", "1,-2\n", r"but line 1 of .* holds -2; mend"),
    "word": ("a.txt", "1 2\n\n3 b\n", r"each text, but line 2 of .* is empty; leave it out"),
    "fraction": ("a.txt", "1 2.5\n", r"but line 1 of .* holds '2.5'; mend it"),
    "flag": ("a.jsonl", "[1]\n[true]\n", r"line 2 of .* holds True"),
    "float": ("a.json", "[[1], [2.0]]", r"entry 2 of .* holds 2.0"),
    "huge": ("a.txt", "9" * 60, r"line 1 of .* holds '9{36}\.\.\.; mend"),
    "flat": ("a.json", "[1, 2]", r"entry 1 of .* is no list"),
    "dict": ("a.json", "{}", r"cannot be read as one \(it is no list of lists\); write it anew"),
    "broken": ("a.jsonl", "[1\n", r"cannot be read as one \("),
    "empty": ("a.txt", "", r"hold texts, but there is none in"),
    "empty list": ("a.jsonl", "[1]\n[]\n", r"line 2 of .* is empty"),
    "kind": ("a.doc", "1", r"of kind txt, csv, tsv, jsonl, json, npy, but it is"),
    "gzip": ("a.txt.gz", b"\x1f\x8b cut", r"cannot be read as one \("),
    "latin": ("a.txt", b"\xff\xfe1", r"cannot be read as one \("),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_text(tmp_path, case):
    name, content, words = BAD[case]
    with as_a_user(), pytest.raises(ValueError, match=f"^ids must .*{words}") as caught:
        read_ids(write(tmp_path / name, content), 10)
    assert str(caught.value).count("\n") == 0


def test_arrays_that_are_none(tmp_path):
    objects = np.array([[1], [2, 3]], dtype=object)
    for array, options in ((np.ones((2, 2)), {}), (np.arange(3), {}), (objects, {"allow_pickle": True})):
        write(tmp_path / "a.npy", numpy_file(array, tmp_path, **options))
        with pytest.raises(ValueError, match="ids must be a file of token ids, but .* cannot be read as one"):
            read_ids(tmp_path / "a.npy", 10)
    with pytest.raises(ValueError, match="but there is none at .*absent.txt"):
        read_ids(tmp_path / "absent.txt", 10)
