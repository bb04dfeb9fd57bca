"""Texts to train on: the files that are read, the division into word pieces, and packing into rows."""

import gzip
import json
import re

import numpy as np
import pytest

from clusterjax._training.corpus import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL,
    UNKNOWN,
    pack,
    read_texts,
    tokenise,
    train_tokenizer,
)


TEXTS = ["The cat sat on the mat.", "A dog, not a cat; it ran!", "Unbelievable running of unbelievably many dogs."] * 4


def written(path, content):
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one film\n\n  \nanother<br /><br />film\n"),
        ("a.txt.gz", "one film\nanother<br /><br />film\n"),
        ("a.csv", 'id,text\n1,one film\n2,"another<br /><br />film"\n3,\n'),
        ("a.csv.gz", 'id,Text\n1,one film\n2,"another<br /><br />film"\n'),
        ("a.jsonl", '{"text": "one film"}\n\n{"text": "another<br /><br />film", "more": 3}\n'),
        ("a.jsonl", '{"text": "one film"}\r\n{"text": "another<br /><br />film"}\r\n'),
        ("a.txt", "one film\r\nanother<br /><br />film\r\n"),
        ("a.jsonl", '{"prefix": "one film", "gold_completion": "no"}\n{"prefix": "another<br /><br />film"}\n'),
    ],
)
def test_every_kind_of_file_gives_its_texts(tmp_path, name, content):
    assert read_texts([written(tmp_path / name, content)]) == ["one film", "another  film"]


@pytest.mark.parametrize("blank", "\u2028\u2029\x85")
def test_only_the_end_of_a_line_divides_texts(tmp_path, blank):
    """JSON may hold characters at which `str.splitlines` divides lines."""
    line = json.dumps({"text": f"one{blank}film"}, ensure_ascii=False)
    assert read_texts([written(tmp_path / "a.jsonl", f"{line}\n{line}")]) == [f"one{blank}film"] * 2
    assert read_texts([written(tmp_path / "a.txt", f"one{blank}film\nmore")]) == [f"one{blank}film", "more"]


def test_files_are_read_in_order(tmp_path):
    first, second = written(tmp_path / "a.txt", "one"), written(tmp_path / "b.jsonl", json.dumps({"text": "two"}))
    assert read_texts([second, str(first)]) == ["two", "one"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", "\n \n", "none in"),
        ("a.txt", b"\xff\xfe no", "UTF-8"),
        ("a.txt.gz", gzip.compress(b"many words", mtime=0)[:-6], "whole gzip file"),
        ("a.csv", "id,words\n1,one\n", "column 'text'"),
        ("a.jsonl", '{"text": "one"}\n{"text": ', "line 2"),
        ("a.jsonl", '{"text": "one"}\n[1]\n', "line 2"),
        ("a.jsonl", '{"text": 3}\n', "line 1"),
        ("a.doc", "one", "must be .txt"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=re.escape(words)):
        read_texts([path])


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="paths must be a sequence of paths of files, at least 1, but it holds 0"):
        read_texts([])
    with pytest.raises(ValueError, match="check its name"):
        read_texts([tmp_path / "absent.txt"])


def test_word_pieces_spell_the_text_and_special_ones_come_first():
    tokenizer = train_tokenizer(TEXTS, 60)
    assert [tokenizer.token_to_id(name) for name in SPECIAL] == [PAD, UNKNOWN, CLS, SEP, MASK]
    found = tokenizer.encode("Unbelievably many dogs!")
    assert (found.ids[0], found.ids[-1]) == (CLS, SEP)
    assert "".join(found.tokens[1:-1]).replace("##", "") == "unbelievablymanydogs!"
    assert tokenizer.decode(found.ids) == "unbelievably many dogs!"
    assert len({*found.ids}) > 4 and max(found.ids) < tokenizer.get_vocab_size() == 60


def test_rows_hold_all_pieces_in_order():
    tokenizer = train_tokenizer(TEXTS, 60)
    pieces = []
    for text in TEXTS:
        pieces += tokenizer.encode(text, add_special_tokens=False).ids
        pieces.append(SEP)
    rows = pack(tokenise(tokenizer, TEXTS), 11)
    assert rows.shape == (len(pieces) // 9, 11) and rows.dtype == np.int32
    assert np.all(rows[:, 0] == CLS) and np.all(rows[:, -1] == SEP)
    assert rows[:, 1:-1].ravel().tolist() == pieces[: len(rows) * 9]
    assert pack(tokenise(tokenizer, ["cat"]), 11).shape == (0, 11)


def test_the_same_texts_give_the_same_tokenizer():
    """All letters are equally frequent, so that the library may join any of them."""
    texts = ["".join(np.random.default_rng(seed).permutation(list("abcdefghij"))) for seed in range(20)]
    found = [train_tokenizer(texts, 60).to_str() for _ in range(6)]
    assert len(set(found)) == 1
    pieces = sorted(json.loads(found[0])["model"]["vocab"].items(), key=lambda pair: pair[1])
    assert [piece for piece, _ in pieces[5:25]] == [*"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]
