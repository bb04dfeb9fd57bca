"""Words and their ids: what is known, in which order, what is kept of a text, and what a file holds."""

import errno
import gzip
import itertools
import json
import os
import random

import numpy as np
import pytest

from clusterjax.sentiment import TextOptions, Vocabulary
from tests.helpers import as_a_user
from tests.sentiment_data import needs_imdb, part, real_reviews


TEXTS = ("Good film. Good plot, bad ending!", "A bad, bad film", "not good<br />", "", "the of and", "zebra film plot")
PLAIN = Vocabulary(("film", "bad", "good"), (9, 5, 5))


# --- what is known


def counted(texts, options):
    """Each word with how often it is there, by a search for every one of them."""
    words = [word for text in texts for word in options.words(text)]
    return {word: words.count(word) for word in words}


@pytest.mark.parametrize("min_count", (1, 2, 3))
@pytest.mark.parametrize("options", (TextOptions(), TextOptions.published()), ids=("recipe", "published"))
def test_words_are_those_seen_often_enough(options, min_count):
    vocabulary = Vocabulary.build(TEXTS, options, min_count=min_count)
    expected = {word: count for word, count in counted(TEXTS, options).items() if count >= min_count}
    assert dict(zip(vocabulary.words, vocabulary.counts, strict=True)) == expected
    order = list(zip(vocabulary.counts, vocabulary.words, strict=True))
    for (count, word), (fewer, later) in zip(order, order[1:], strict=False):
        assert count > fewer or (count == fewer and word < later)
    assert vocabulary.options == options and vocabulary.size == len(expected) + 2


def test_the_order_of_texts_does_not_matter():
    shuffled = list(TEXTS)
    random.Random(1).shuffle(shuffled)
    assert Vocabulary.build(shuffled, min_count=1) == Vocabulary.build(tuple(TEXTS), min_count=1)


def test_ids_start_behind_padding_and_unknown():
    assert PLAIN.ids == {"film": 2, "bad": 3, "good": 4}
    assert PLAIN.size == 5
    assert PLAIN.decode(range(PLAIN.size)) == ["<unk>", "film", "bad", "good"]


@pytest.mark.exhaustive
@needs_imdb
def test_the_real_training_part():
    """The number of words is exact for this recipe, and a text goes to ids and back."""
    train = part(real_reviews(), "train")
    vocabulary = Vocabulary.build(train.texts)
    assert len(vocabulary.words) == 42777
    assert vocabulary.words[:5] == ("movie", "film", "one", "like", "good")
    assert vocabulary.counts[0] > 40000 and vocabulary.counts[-1] == 3
    assert sum(word.startswith("not_") for word in vocabulary.words) > 5000
    for text in train.texts[::2500]:
        known = [word for word in vocabulary.options.words(text) if word in vocabulary.words]
        assert vocabulary.decode(vocabulary.encode(text)) == known


# --- what is kept of a text


def test_unknown_words_are_left_out_or_marked():
    marking = Vocabulary(PLAIN.words, PLAIN.counts, keep_unknown=True)
    text = "A good zebra, the bad film. Not bad"
    assert PLAIN.encode(text) == [4, 3, 2]
    assert marking.encode(text) == [4, 1, 3, 2, 1]
    assert marking.decode(marking.encode(text)) == ["good", "<unk>", "bad", "film", "<unk>"]


@pytest.mark.parametrize("length", (1, 2, 3, 5))
@pytest.mark.parametrize("keep", ("last", "first"))
@pytest.mark.parametrize("keep_unknown", (False, True))
def test_rows_hold_the_ids_of_each_text(length, keep, keep_unknown):
    vocabulary = Vocabulary(PLAIN.words, PLAIN.counts, keep_unknown=keep_unknown)
    ids, lengths = vocabulary.encode_many(TEXTS, length, keep)
    assert ids.dtype == lengths.dtype == np.int32 and ids.shape == (len(TEXTS), length)
    for row, text in enumerate(TEXTS):
        found = vocabulary.encode(text)
        start = max(len(found) - length, 0) if keep == "last" else 0
        for column in range(length):
            place = start + column
            inside = place < len(found) and column < lengths[row]
            assert ids[row, column] == (found[place] if inside else 0)
        assert lengths[row] == min(len(found), length)


@pytest.mark.parametrize("text", ("", "zebra", "the of and", "<br />", "123 !!", "日本"))
def test_a_review_with_no_known_word_is_all_padding(text):
    assert PLAIN.encode(text) == []
    ids, lengths = PLAIN.encode_many([text, "film"], 4)
    np.testing.assert_array_equal(ids, [[0, 0, 0, 0], [2, 0, 0, 0]])
    np.testing.assert_array_equal(lengths, [0, 1])


def test_no_reviews_are_no_rows():
    ids, lengths = PLAIN.encode_many([], 4)
    assert ids.shape == (0, 4) and lengths.shape == (0,)


# --- its file


def lemma(word):
    return word.removesuffix("s")


@pytest.mark.parametrize(
    ("options", "lemmatise"),
    ((TextOptions(), None), (TextOptions.published(), None), (TextOptions(lemmatise=lemma), lemma)),
    ids=("recipe", "published", "lemmas"),
)
@pytest.mark.parametrize("keep_unknown", (False, True))
def test_a_file_gives_the_vocabulary_back(tmp_path, options, lemmatise, keep_unknown):
    vocabulary = Vocabulary.build(TEXTS, options, min_count=1, keep_unknown=keep_unknown)
    vocabulary.save(tmp_path / "new" / "vocabulary.json")
    back = Vocabulary.load(tmp_path / "new" / "vocabulary.json", lemmatise=lemmatise)
    assert back == vocabulary
    assert all(back.encode(text) == vocabulary.encode(text) for text in TEXTS)
    assert os.listdir(tmp_path / "new") == ["vocabulary.json"]


def test_another_lemmatiser_and_a_file_that_asks_for_one_by_damage(tmp_path):
    path = tmp_path / "vocabulary.json"
    words = Vocabulary(("a", "b"), (2, 1))
    words.save(path)
    with pytest.raises(ValueError, match=r"^lemmatise must be what it was.*without one.*, for '.*vocabulary.json'\.$"):
        Vocabulary.load(path, lemmatise=lemma)
    path.write_text(path.read_text("utf-8").replace('"lemmatise": false', '"lemmatise": true'), "utf-8")
    with pytest.raises(ValueError, match=r"^path must be a whole vocab.*.json' does not fit \(lemma"):
        Vocabulary.load(path)


def test_the_same_vocabulary_is_the_same_bytes(tmp_path):
    for name in "ab":
        Vocabulary.build(TEXTS, min_count=1).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "vocabulary.json"
    PLAIN.save(path)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"^path must be .*No space left on device.*make room\.$"):
        Vocabulary.build(TEXTS, min_count=1).save(path)
    assert os.listdir(tmp_path) == ["vocabulary.json"] and Vocabulary.load(path) == PLAIN


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(ValueError, match=r"^path must be .*; choose another folder or make room\.$"):
        PLAIN.save(tmp_path / "file" / "vocabulary.json")


def recorded(tmp_path, **changes):
    PLAIN.save(tmp_path / "whole.json")
    record = {**json.loads((tmp_path / "whole.json").read_text("utf-8")), **changes}
    return json.dumps({name: value for name, value in record.items() if value != "leave out"}).encode()


WRONG = (
    (lambda path: b"\xff\xfe\x00", "is not whole JSON in UTF-8 .*; restore the file"),
    (lambda path: b"", "is not whole JSON in UTF-8 .*; restore the file"),
    (lambda path: recorded(path)[:-20], "is not whole JSON in UTF-8 .*; restore the file"),
    (lambda path: b"[]", "is another file; name one made by save"),
    (lambda path: b'{"words": ["a"]}', "is another file; name one made by save"),
    (lambda path: recorded(path, version=2), "is of version 2; use the clusterjax that wrote it"),
    (lambda path: recorded(path, words="leave out"), "lacks words, counts or options .*; restore the file"),
    (lambda path: recorded(path, words="film bad good"), "lacks words, counts or options .*; restore the file"),
    (lambda path: recorded(path, counts=["a"]), "lacks words, counts or options .*; restore the file"),
    (lambda path: recorded(path, options=None), "lacks words, counts or options .*; restore the file"),
    (lambda path: recorded(path, counts=[5, 3]), "does not fit .*; restore the file from a copy"),
    (lambda path: recorded(path, counts=[5, 3, 1]), "is damaged or was changed: .*; restore the file from a copy"),
    (lambda path: recorded(path, keep_unknown=1), "lacks words, counts or options .*; restore the file"),
)


@pytest.mark.parametrize(("content", "remedy"), WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_other_files_are_refused(tmp_path, content, remedy):
    path = tmp_path / "vocabulary.json"
    path.write_bytes(content(tmp_path))
    with pytest.raises(ValueError, match=rf"^path must be a .*vocabulary.*, but '.*' {remedy}.*\.$"):
        Vocabulary.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.json' cannot be read \(No such file or directory\); name the file"):
        Vocabulary.load(tmp_path / "nothing.json")


def test_a_compressed_file_is_smaller_and_the_same(tmp_path):
    words = tuple(f"{a}{b}{c}" for a in "abcdefgh" for b in "klmnop" for c in "rstuvwxyz")
    vocabulary = Vocabulary(words, tuple(range(len(words), 0, -1)))
    for name in ("a.json", "a.json.gz", "b.json.gz"):
        vocabulary.save(tmp_path / name)
        assert Vocabulary.load(tmp_path / name) == vocabulary
    packed = (tmp_path / "a.json.gz").read_bytes()
    assert packed == (tmp_path / "b.json.gz").read_bytes() and packed[4:8] == bytes(4), "no time in it"
    assert gzip.decompress(packed) == vocabulary._content()
    assert len(packed) < 0.5 * (tmp_path / "a.json").stat().st_size


@pytest.mark.parametrize("damage", ("cut", "none", "changed", "bomb"))
def test_compressed_files_that_are_not_whole_are_refused(tmp_path, monkeypatch, damage):
    path = tmp_path / "vocabulary.json.gz"
    PLAIN.save(path)
    whole = path.read_bytes()
    monkeypatch.setattr("clusterjax.sentiment._vocabulary.MOST_UNPACKED", 10**6)
    content = {
        "cut": whole[: len(whole) // 2], "none": b"{}", "changed": whole[:40] + bytes([whole[40] ^ 8]) + whole[41:],
        "bomb": gzip.compress(b" " * (10**6 + 1)),
    }  # fmt: skip
    words = {"bomb": "more than 1000000 bytes once it is unpacked"}.get(damage, "no whole gzip file|JSON")
    path.write_bytes(content[damage])
    with pytest.raises(ValueError, match=f"^path must be a vocabulary, but .*({words})"):
        Vocabulary.load(path)


def test_options_of_the_file_are_checked(tmp_path):
    options = {**TextOptions().record(), "lower": 3}
    (tmp_path / "vocabulary.json").write_bytes(recorded(tmp_path, options=options))
    with as_a_user(), pytest.raises(ValueError, match="lower must be True or False"):
        Vocabulary.load(tmp_path / "vocabulary.json")


# --- bad input


BAD = (
    (lambda: Vocabulary((), ()), "words", "pass more"),
    (lambda: Vocabulary(("a", "b"), (1,)), "counts", "pass one for each"),
    (lambda: Vocabulary(("a", "a"), (1, 1)), "words", "remove it"),
    (lambda: Vocabulary(("a", "<unk>"), (1, 1)), "words", "remove it"),
    (lambda: Vocabulary.build("good film"), "texts", "pass a list of texts"),
    (lambda: Vocabulary.build(itertools.repeat("good film")), "texts", "pass a list of texts"),
    (lambda: Vocabulary.build(["good film"]), "texts", "a smaller min_count"),
    (lambda: Vocabulary.build([]), "texts", "pass more texts"),
    (lambda: Vocabulary.build(TEXTS, min_count=0), "min_count", "pass 1 to keep every word"),
    (lambda: Vocabulary.build(TEXTS, min_count=1.5), "min_count", "pass 1 to keep every word"),
    (lambda: PLAIN.encode_many(TEXTS, 0), "length", "pass 256"),
    (lambda: PLAIN.encode_many(TEXTS, 4, "middle"), "keep", "one of these"),
    (lambda: PLAIN.decode([5]), "ids", "pass ids of this model"),
    (lambda: PLAIN.decode([-1]), "ids", "pass ids of this model"),
)


@pytest.mark.parametrize(("call", "name", "remedy"), BAD, ids=[f"{i} {bad[1]}" for i, bad in enumerate(BAD)])
def test_bad_input_is_refused(call, name, remedy):
    with as_a_user(), pytest.raises(ValueError, match=rf"^{name} must .*, but .*; .*{remedy}.*\.$"):
        call()
