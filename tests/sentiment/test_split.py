"""Three parts of the reviews: the reviews in each part, and the films and texts that parts may not share."""

import jax.random as jr
import numpy as np
import pytest

from clusterjax.sentiment import Reviews, official_split, random_split, stratified_split
from tests.helpers import as_a_user
from tests.sentiment_data import needs_imdb, real_reviews


def made(count=400, films=40, texts=350, known=True, split=True):
    """Reviews of random films, some of which share texts."""
    rng = np.random.default_rng(count + films)
    return Reviews(
        tuple(f"text {i}" for i in rng.integers(texts, size=count)),
        rng.integers(2, size=count),
        films=np.array([f"tt{i}" if i else "" for i in rng.integers(films, size=count)]) if known else None,
        split=np.where(rng.random(count) < 0.6, "train", "test") if split else None,
        ratings=np.arange(count),  # the number of each review
    )


def rows(part):
    return part.ratings.tolist()


def check_apart(split, reviews):
    """No review is in two parts or changed, and validation shares neither film nor text with training."""
    every = rows(split.train) + rows(split.validation) + rows(split.test)
    assert len(every) == len(set(every))
    for part in (split.train, split.validation, split.test):
        assert rows(part) == sorted(rows(part))
        assert part.texts == tuple(reviews.texts[row] for row in rows(part))
        np.testing.assert_array_equal(part.labels, reviews.labels[rows(part)])
    assert not set(split.train.texts) & set(split.validation.texts)
    if reviews.films is not None:
        assert not set(split.train.films) & set(split.validation.films) - {""}


@pytest.mark.parametrize("known", (True, False), ids=("films", "no films"))
@pytest.mark.parametrize("validation", (0, 0.1, 0.5))
def test_official_parts(known, validation):
    reviews = made(known=known, texts=5000)
    split = official_split(reviews, key=jr.key(1), validation=validation)
    check_apart(split, reviews)
    assert set(rows(split.train) + rows(split.validation)) == set(np.flatnonzero(reviews.split == "train"))
    assert rows(split.test) == np.flatnonzero(reviews.split == "test").tolist()
    total = len(split.train) + len(split.validation)
    assert validation * total - 2 <= len(split.validation) <= validation * total


def test_a_chain_of_films_and_texts_is_one():
    texts, films = ("a", "b", "b", "c", "c", "d", "e", "e"), ("1", "1", "2", "2", "3", "3", "4", "5")
    for seed in range(8):
        reviews = Reviews(texts, np.zeros(8, int), films=np.array(films), split=np.array(["train"] * 7 + ["test"]))
        split = official_split(reviews, key=jr.key(seed), validation=0.2)
        assert split.train.texts == texts[:6] and split.validation.texts == ("e",)


@pytest.mark.parametrize(("train", "test"), ((0.7, 0.3), (280, 120), (0.5, 100), (1, 1)))
def test_random_parts(train, test):
    reviews = made(split=False, texts=5000)
    split = random_split(reviews, train, test, key=jr.key(5), validation=0 if train == 1 else 0.1)
    check_apart(split, reviews)
    sizes = [round(part * 400) if isinstance(part, float) else part for part in (train, test)]
    assert [len(split.train) + len(split.validation), len(split.test)] == sizes


@pytest.mark.parametrize(("test", "validation"), ((0.2, 0.1), (0.5, 0.3)))
@pytest.mark.parametrize("positive", (30, 200, 370))
def test_stratified_parts(positive, test, validation):
    """Each part has the share of positive reviews of the whole, to rounding, and the size that is asked for."""
    labels = np.random.default_rng(positive).permutation(np.arange(400) < positive).astype(int)
    reviews = Reviews(tuple(f"text {k}" for k in range(400)), labels, ratings=np.arange(400))
    split = stratified_split(reviews, test, key=jr.key(3), validation=validation)
    check_apart(split, reviews)
    assert sorted(rows(split.train) + rows(split.validation) + rows(split.test)) == list(range(400))
    for count, label in ((positive, 1), (400 - positive, 0)):
        inside = [int(np.sum(part.labels == label)) for part in (split.test, split.validation)]
        expected = round(test * count)
        assert inside == [expected, round(validation * (count - expected))]


def test_stratified_parts_share_no_text_and_no_film():
    for reviews in (made(films=120, texts=5000), made(known=False, texts=120)):
        split = stratified_split(reviews, key=jr.key(1))
        check_apart(split, reviews)
        assert not {*split.train.texts, *split.validation.texts} & set(split.test.texts)
        assert min(len(split.validation), len(split.test)) >= 10


@pytest.mark.parametrize("split", (official_split, random_split, stratified_split))
def test_the_key_decides(split):
    reviews = made(texts=5000)
    first, again, other = (split(reviews, key=jr.key(seed)) for seed in (1, 1, 2))
    assert rows(first.validation) == rows(again.validation) != rows(other.validation)


@pytest.mark.parametrize("split", (official_split, random_split))
def test_repeated_texts_leave_the_test_part(split):
    reviews = made(films=100, texts=500)
    kept, dropped = (split(reviews, key=jr.key(1), drop_repeated=drop) for drop in (False, True))
    assert rows(kept.train) == rows(dropped.train) and rows(kept.validation) == rows(dropped.validation)
    seen = {*kept.train.texts, *kept.validation.texts}
    fresh = [row for row in rows(kept.test) if reviews.texts[row] not in seen]
    assert rows(dropped.test) == fresh and len(fresh) < len(kept.test)


def test_overlap_counts_reviews():
    reviews = made(films=60, texts=300)
    split = random_split(reviews, key=jr.key(1))
    overlap = split.overlap()
    assert overlap["validation_films"] == overlap["validation_texts"] == 0
    assert overlap["test_texts"] == sum(text in split.train.texts for text in split.test.texts) > 0
    assert overlap["test_films"] == sum(f != "" and f in split.train.films for f in split.test.films) > 0
    assert set(random_split(made(known=False), key=jr.key(1)).overlap()) == {"validation_texts", "test_texts"}


@pytest.mark.exhaustive
@needs_imdb
def test_the_real_reviews():
    """The official test part shares one film and 123 texts with the training part; validation shares nothing."""
    reviews = real_reviews()
    split = official_split(reviews, key=jr.key(0))
    assert len(split.train) + len(split.validation) == len(split.test) == 25000
    assert 2490 <= len(split.validation) <= 2500
    assert split.overlap()["validation_films"] == split.overlap()["validation_texts"] == 0
    assert len(split.test) - len(official_split(reviews, key=jr.key(0), drop_repeated=True).test) == 123
    train = set(split.train.films) | set(split.validation.films)
    assert len(train & set(split.test.films)) == 1
    random = random_split(reviews, key=jr.key(0))
    assert (len(random.train) + len(random.validation), len(random.test)) == (35000, 15000)
    assert random.overlap()["test_films"] > 10000


NO_SPLIT, ONE_PART = made(split=False), made().take(np.flatnonzero(made().split == "train"))
ONE_FILM = Reviews(
    ("a", "b", "c"), np.zeros(3, int), films=np.array(["1"] * 3), split=np.array(["train"] * 2 + ["test"])
)
ONE_TEXT = Reviews(("a", "a"), np.zeros(2, int), split=np.array(["train", "test"]))
FEW_TEXTS = Reviews(("a", "b") * 40, np.arange(80) % 2)
BAD = (
    (lambda: official_split(NO_SPLIT, key=jr.key(0)), "reviews", "use random_split"),
    (lambda: official_split(ONE_PART, key=jr.key(0)), "reviews", "use random_split"),
    (lambda: official_split(ONE_FILM, key=jr.key(0)), "validation", "pass more, or 0"),
    (lambda: official_split(ONE_TEXT, key=jr.key(0), validation=0, drop_repeated=True), "drop_repeated", "pass False"),
    (lambda: official_split(made(), key=jr.key(0), validation=1), "validation", "pass 0.1"),
    (lambda: random_split(made(), 300, 200, key=jr.key(0)), "train", "pass less of one"),
    (lambda: random_split(made(), 35000, 15000, key=jr.key(0)), "train", "pass 0.5"),
    (lambda: random_split(made(), 0.5, 0.0, key=jr.key(0)), "test", "pass 0.5"),
    (lambda: random_split(made(), 1.5, key=jr.key(0)), "train", "pass 0.5"),
    (lambda: stratified_split(made(), 1.0, key=jr.key(0)), "test", "pass 0.2"),
    (lambda: stratified_split(made(), key=jr.key(0), validation=0), "validation", "pass 0.2"),
    (lambda: stratified_split(made().take(np.arange(15)), key=jr.key(0)), "reviews", "add reviews"),
    (lambda: stratified_split(FEW_TEXTS, key=jr.key(0)), "reviews", "add reviews"),
)


@pytest.mark.parametrize(("call", "name", "remedy"), BAD, ids=[f"{i} {bad[1]}" for i, bad in enumerate(BAD)])
def test_bad_input_is_refused(call, name, remedy):
    with as_a_user(), pytest.raises(ValueError, match=rf"^{name} must .*, but .*; .*{remedy}.*\.$"):
        call()


def test_reviews_of_one_text_stay_together():
    """Films with a common text are tied together, and films that are tied are in one part."""
    reviews = made(films=200, texts=300)
    check_apart(official_split(reviews, key=jr.key(1)), reviews)
    check_apart(official_split(made(known=False, texts=80), key=jr.key(2)), made(known=False, texts=80))


def test_the_random_half_is_random():
    """Over keys each review is in the training half with probability one half."""
    reviews = made(texts=5000)
    times = np.zeros(400)
    for seed in range(30):
        times[rows(random_split(reviews, 0.5, 0.5, key=jr.key(seed), validation=0).train)] += 1
    error = (times - 15) / np.sqrt(7.5)
    assert np.abs(error).max() < 4.5 and 0.85 < np.sqrt(np.mean(error**2)) < 1.15
