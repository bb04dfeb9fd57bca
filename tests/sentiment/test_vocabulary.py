"""Words and their ids: the words of a vocabulary, their order, and the ids of texts."""

import random

import numpy as np
import pytest

from clusterjax.sentiment import TextOptions, Vocabulary


TEXTS = ("Good film. Good plot, bad ending!", "A bad, bad film", "not good<br />", "", "the of and", "zebra film plot")
PLAIN = Vocabulary(("film", "bad", "good"), (9, 5, 5))


def counted(texts, options):
    """The number of times that each word occurs, by a search for every word."""
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


def test_each_word_has_its_negation():
    """Negations in the texts have their counts, the others follow with zero; n-grams and negations have no negation."""
    texts = ("good film not good", "good film not bad", "a bad film not good not odd")
    plain = Vocabulary.build(texts, TextOptions(ngrams=2), min_count=2)
    vocabulary = Vocabulary.build(texts, TextOptions(ngrams=2), min_count=2, negations=True)
    assert vocabulary.words[: len(plain.words)] == plain.words and "not_good" in plain.words and "film" in plain.words
    assert vocabulary.words[len(plain.words) :] == ("not_film",) and vocabulary.counts[-1] == 0
    names = (None, None, *vocabulary.words)
    assert {(names[a], names[b]) for a, b in vocabulary.negations} == {("good", "not_good"), ("film", "not_film")}
    assert np.all(np.diff(vocabulary.negations[:, 1]) > 0) and PLAIN.negations.shape == (0, 2)


def test_ids_start_behind_padding_and_unknown():
    assert PLAIN.ids == {"film": 2, "bad": 3, "good": 4}
    assert PLAIN.size == 5
    assert PLAIN.decode(range(PLAIN.size)) == ["<unk>", "film", "bad", "good"]


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
    assert PLAIN.encode_many([], 4)[0].shape == (0, 4)
