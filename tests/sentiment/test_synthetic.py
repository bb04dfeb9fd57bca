"""Made-up reviews: the planted words alone decide the label."""

import re

import jax.random as jr
import numpy as np
import pytest

from clusterjax.sentiment import TextOptions, synthetic_reviews
from tests.helpers import as_a_user


KEY = jr.key(3)
MADE = synthetic_reviews(KEY, 1000, num_neutral=300, shortest=15, longest=60, planted=7)
WORDS = [re.findall("[a-z]+", re.sub("<br />", " ", text).lower()) for text in MADE.reviews.texts]


def votes(words):
    return sum(word in MADE.positive for word in words), sum(word in MADE.negative for word in words)


def test_the_label_is_the_majority_of_the_planted_words():
    for words, label in zip(WORDS, MADE.reviews.labels, strict=True):
        for_it, against = votes(words)
        assert (for_it > against) == bool(label) and 15 <= len(words) <= 60
    assert MADE.reviews.labels.sum() == 500
    assert {votes(words) for words in WORDS} == {(a, n - a) for n in (1, 3, 5, 7) for a in range(n + 1)}
    assert all(TextOptions().words(text) == words for text, words in zip(MADE.reviews.texts, WORDS, strict=True))


def test_neutral_words_are_zipfs_and_say_nothing():
    counts = np.array([sum(words.count(word) for words in WORDS) for word in MADE.neutral])
    expected = counts.sum() / np.arange(1, 301) / np.sum(1 / np.arange(1, 301))
    error = (counts - expected) / np.sqrt(expected)
    assert np.abs(error).max() < 4.5 and 0.8 < np.sqrt(np.mean(error**2)) < 1.2
    good = [words for words, label in zip(WORDS, MADE.reviews.labels, strict=True) if label]
    share = sum(words.count(MADE.neutral[0]) for words in good) / counts[0]
    assert abs(share - sum(map(len, good)) / sum(map(len, WORDS))) < 4.5 / np.sqrt(counts[0])
    assert len({*MADE.neutral, *MADE.positive, *MADE.negative}) == 320


def test_films_are_in_one_half_of_the_split():
    reviews = MADE.reviews
    train, test = (set(reviews.films[reviews.split == name]) for name in ("train", "test"))
    assert not train & test and len(train | test) == 100
    assert (reviews.split == "train").sum() == 500
    assert all((reviews.films == film).sum() == 10 for film in train)


def test_the_key_decides():
    again, other = synthetic_reviews(jr.key(3), 60), synthetic_reviews(jr.key(4), 60)
    assert synthetic_reviews(KEY, 60).reviews.texts == again.reviews.texts != other.reviews.texts
    assert synthetic_reviews(jr.PRNGKey(3), 60).reviews.texts == again.reviews.texts


def test_other_words_can_be_planted():
    made = synthetic_reviews(KEY, 40, positive=("yes",), negative=("nope", "nah"), planted=1, per_film=4)
    for text, label in zip(made.reviews.texts, made.reviews.labels, strict=True):
        words = TextOptions().words(text)
        assert ("yes" in words) == bool(label) != any(word in words for word in ("nope", "nah"))
    assert made.positive == ("yes",) and made.negative == ("nope", "nah") and len(set(made.reviews.films)) == 10


BAD = (
    (dict(count=19), "count", "an integer from 20"),
    (dict(num_neutral=200_000), "num_neutral", " to 171500"),
    (dict(planted=4), "planted", "pass 3"),
    (dict(planted=21), "planted", " to 20"),
    (dict(longest=10), "longest", "an integer from 20"),
    (dict(positive=()), "positive", "pass more"),
    (dict(positive=("the",)), "positive", "pass others"),
    (dict(negative=("Bad",)), "negative", "pass others"),
    (dict(negative=("so bad",)), "negative", "pass others"),
    (dict(negative=("never",)), "negative", "pass others"),
    (dict(positive=("awful",)), "positive", "pass others"),
)


@pytest.mark.parametrize(("options", "name", "remedy"), BAD, ids=str)
def test_bad_input_is_refused(options, name, remedy):
    with as_a_user(), pytest.raises(ValueError, match=rf"^{name} must .*, but .*; .*\.$") as caught:
        synthetic_reviews(KEY, **{"count": 100, **options})
    assert remedy in str(caught.value)
