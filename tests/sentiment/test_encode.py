"""Reviews as arrays: words with their counts, in rectangles as narrow as can be."""

import itertools

import numpy as np
import pytest

from clusterjax.sentiment import Vocabulary, encode_reviews
from tests.sentiment_data import reviews_of


LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = tuple(f"{a}{b}q" for a in LETTERS for b in LETTERS)
VOCABULARY = Vocabulary(WORDS[:400], (5,) * 400)  # some words of the texts are not known


def random_reviews(seed, count, longest):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(longest + 1, size=count)
    return reviews_of(*(" ".join(WORDS[i] for i in rng.integers(600, size=length)) for length in lengths))


REVIEWS = random_reviews(0, 60, 200)


@pytest.mark.parametrize("keep", ("last", "first"))
@pytest.mark.parametrize("length", (5, 40, 128))
def test_counts_are_those_of_the_words_kept(length, keep):
    encoded = encode_reviews(REVIEWS, VOCABULARY, length=length, keep=keep)
    for row, text in enumerate(REVIEWS.texts):
        words = [word for word in text.split() if word in VOCABULARY.words]
        words = words[max(len(words) - length, 0) :] if keep == "last" else words[:length]
        expected = {}
        for word in words:
            expected[word] = expected.get(word, 0) + 1
        n = encoded.lengths[row]
        assert VOCABULARY.decode(encoded.ids[row, :n]) == list(expected)  # in the order in which they are first read
        assert encoded.counts[row, :n].tolist() == list(expected.values())
        assert not encoded.ids[row, n:].any() and not encoded.counts[row, n:].any()
    np.testing.assert_array_equal(encoded.labels, REVIEWS.labels)
    np.testing.assert_array_equal(encoded.rows, np.arange(len(REVIEWS)))
    assert encoded.width % 32 == 0 and encoded.width - 32 < encoded.lengths.max() <= encoded.width
    assert encoded.ids.dtype == encoded.counts.dtype == encoded.lengths.dtype == np.int32


def cost(encoded):
    return sum(len(bucket) * bucket.width**2 for bucket in encoded)


@pytest.mark.parametrize("most", (1, 2, 3, 4, 9))
def test_buckets_hold_each_review_once(most):
    encoded = encode_reviews(random_reviews(1, 80, 400), VOCABULARY, length=300)
    buckets = encoded.buckets(most)
    assert 1 <= len(buckets) <= most
    assert sorted(row for bucket in buckets for row in bucket.rows.tolist()) == list(range(80))
    assert sorted({bucket.width for bucket in buckets}) == [bucket.width for bucket in buckets]
    for bucket in buckets:
        assert bucket.width % 32 == 0 and bucket.lengths.max() <= bucket.width and len(bucket)
        assert (np.diff(bucket.rows) > 0).all()
        np.testing.assert_array_equal(bucket.ids, encoded.ids[bucket.rows, : bucket.width])
        np.testing.assert_array_equal(bucket.counts, encoded.counts[bucket.rows, : bucket.width])
        np.testing.assert_array_equal(bucket.labels, encoded.labels[bucket.rows])
        assert not encoded.ids[bucket.rows, bucket.width :].any()


@pytest.mark.parametrize("most", (1, 2, 3))
def test_no_other_widths_are_cheaper(most):
    encoded = encode_reviews(random_reviews(2, 80, 400), VOCABULARY, length=300)
    widths = range(32, encoded.width + 1, 32)
    for chosen in itertools.chain.from_iterable(itertools.combinations(widths, k) for k in range(1, most + 1)):
        if chosen[-1] == encoded.width:
            other = sum(min(w for w in chosen if w >= length) ** 2 for length in encoded.lengths)
            assert cost(encoded.buckets(most)) <= other


def test_reviews_without_words_are_in_a_bucket():
    (bucket,) = encode_reviews(reviews_of("", "zzq"), VOCABULARY).buckets()
    assert bucket.ids.shape == (2, 32) and not bucket.ids.any() and not bucket.lengths.any()


def test_no_reviews_are_no_buckets():
    encoded = encode_reviews(reviews_of(), VOCABULARY)
    assert len(encoded) == 0 and encoded.ids.shape == (0, 32) and encoded.buckets() == ()
