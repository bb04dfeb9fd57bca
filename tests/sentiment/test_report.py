"""Reports on a classifier, counted again in loops, on small models made by hand."""

import json

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax.sentiment import (
    Fitted,
    HardmaxClassifier,
    Recipe,
    Reviews,
    encode_reviews,
    evaluate,
    leaders_report,
)
from clusterjax.sentiment._leading import lead
from tests.reference import sentiment as reference
from tests.reference.observables import labels
from tests.sentiment_data import VOCABULARY, WORDS, fitted_by_hand


def reviews_of(seed=0, count=12, longest=15):
    """Random reviews of which the last two have no known word."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count - 2)]
    return Reviews((*texts, "", "unheard"), rng.integers(0, 2, count))


FITTED = {heads: fitted_by_hand(heads) for heads in (1, 2)}
REVIEWS = reviews_of()


def words_of(text):
    """The different words of a text as ids, in the order of the text, with their counts."""
    ids = list(dict.fromkeys(VOCABULARY.encode(text)))
    return ids, [VOCABULARY.encode(text).count(i) for i in ids]


@pytest.mark.exhaustive_cases("1")
@pytest.mark.parametrize("heads", FITTED)
def test_leaders_are_those_of_the_definition(heads):
    model = FITTED[heads].model
    led = lead(model, encode_reviews(REVIEWS, VOCABULARY), horizon=30, batch_size=5)
    E, alpha = np.asarray(model.embedding), np.asarray(model.alpha)
    for row, text in enumerate(REVIEWS.texts):
        ids, _ = words_of(text)
        for head in range(heads):
            z, present = [E[i, head] for i in ids], [True] * len(ids)
            first = reference.leading(z, alpha[head], present, 4) if ids else []
            assert led.first[row, : len(ids), head].tolist() == first
            layers = reference.walk(z, alpha[head], None, present, 30)[0] if ids else []
            for i, k in enumerate(first):
                if k >= 0:
                    np.testing.assert_allclose(led.points[row, i, head], layers[k][i], rtol=1e-12)
            if ids:
                longest = max(np.linalg.norm(one) for one in z)
                moved = max(np.linalg.norm(layers[30] - layers[4], axis=1)) / longest
                np.testing.assert_allclose(led.further[row, head], moved, rtol=1e-9, atol=1e-12)
                assert led.clusters[row, head] == len(set(labels(layers[4], 0.01 * longest)))
        assert np.all(led.first[row, len(ids) :] == -1) and led.present[row].sum() == len(ids)
    assert np.all(led.clusters[-2:] == 0) and np.all(led.further[-2:] == 0)


@pytest.mark.exhaustive_cases("1", "2")
@pytest.mark.parametrize("heads", FITTED)
def test_report_counts_what_the_definition_gives(heads):
    fitted = FITTED[heads]
    found = leaders_report(fitted, REVIEWS, confident=0.25, top=4, horizon=30)
    led = lead(fitted.model, encode_reviews(REVIEWS, VOCABULARY), horizon=30)
    logits = fitted.logits(REVIEWS.texts)
    known = [row for row in range(len(REVIEWS)) if words_of(REVIEWS.texts[row])[0]]
    leading = [(led.first[row] >= 0).sum() for row in known]
    words = [len(words_of(REVIEWS.texts[row])[0]) for row in known]
    assert found.sampled == len(known) == 10
    np.testing.assert_allclose(found.leaders_per_review, np.mean(leading) / heads)
    np.testing.assert_allclose(found.leaders_per_word, np.sum(leading) / np.sum(words) / heads)
    np.testing.assert_allclose(found.words_per_review, np.mean(words))
    np.testing.assert_allclose(found.clusters, led.clusters[known].mean())
    np.testing.assert_allclose(found.settled, np.mean(led.further[known].max(axis=1) < 0.01))
    least = np.quantile(np.abs(logits[known]), 0.25)
    sure = [r for r in known if abs(logits[r]) >= least and (logits[r] > 0) == (REVIEWS.labels[r] == 1)]
    assert found.correct == len(sure) > 1 and found.least == pytest.approx(least)
    times = {}
    for row in sure:
        for i, word in enumerate(words_of(REVIEWS.texts[row])[0]):
            for head in range(heads):
                times[word, head] = times.get((word, head), 0) + (led.first[row, i, head] >= 0)
    best = sorted((word for word in times if times[word]), key=lambda word: (-times[word], word))[:4]
    assert [(one.word, one.head, one.reviews) for one in found.leaders] == [
        (*VOCABULARY.decode([word]), head, times[word, head]) for word, head in best
    ]
    for lists, label in ((found.positive, 1), (found.negative, 0)):
        assert sum(one.reviews for one in lists) <= sum(led.first[r].size for r in sure if REVIEWS.labels[r] == label)


@pytest.mark.exhaustive
def test_records_are_json_and_a_key_draws_the_sample():
    found, again, other = (leaders_report(FITTED[1], REVIEWS, sample=3, key=jr.key(seed)) for seed in (0, 0, 3))
    assert found == again != other and found.sampled == 3 >= found.correct
    for one in (found, evaluate(FITTED[1], REVIEWS)):
        assert json.loads(json.dumps(one.record(), allow_nan=False))
        assert all(len(line) < 2000 for line in str(one).splitlines())


def test_evaluation_is_that_of_loops():
    fitted = FITTED[2]
    model = fitted.model
    given = [np.asarray(one) for one in (model.embedding, model.w, model.v, model.alpha)]
    logits = [reference.logit(*given, None, 4, *words_of(text))[0] for text in REVIEWS.texts]
    found = evaluate(fitted, REVIEWS)
    right = [(logit > 0) == (label == 1) for logit, label in zip(logits, REVIEWS.labels, strict=True)]
    losses = [np.log1p(np.exp(-l if y else l)) for l, y in zip(logits, REVIEWS.labels, strict=True)]
    assert found.accuracy == pytest.approx(np.mean(right)) and found.loss == pytest.approx(np.mean(losses))
    assert found.positive_accuracy == pytest.approx(np.array(right)[REVIEWS.labels == 1].mean())
    assert found.negative_accuracy == pytest.approx(np.array(right)[REVIEWS.labels == 0].mean())
    assert found.standard_error == pytest.approx(np.std(right) / np.sqrt(12))
    assert (found.count, found.without_words) == (12, 2)


def test_nothing_to_report_on():
    none = Reviews((), np.zeros(0, np.int8))
    for call in (evaluate, leaders_report):
        with pytest.raises(ValueError, match="reviews must hold some"):
            call(FITTED[1], none)
    with pytest.raises(ValueError, match="reviews must hold known words"):
        leaders_report(FITTED[1], Reviews(("unheard", ""), np.array([0, 1])))


@pytest.mark.exhaustive
def test_late_leaders_are_seen():
    """In a cloud of ten words one word begins to lead after the first layer."""
    z = np.random.default_rng(63).normal(size=(10, 2))
    embedding = jnp.zeros((VOCABULARY.size, 1, 2)).at[2:12, 0].set(z)
    model = HardmaxClassifier(embedding, jnp.ones(2), jnp.asarray(0.0), jnp.asarray(1.0), depth=4)
    fitted = Fitted(model, VOCABULARY, Recipe(depth=4), [], 1)
    reviews = Reviews((" ".join(WORDS[:10]), ""), np.array([1, 0]))
    led, found = lead(model, encode_reviews(reviews, VOCABULARY)), leaders_report(fitted, reviews)
    assert led.first[0, :10, 0].tolist() == reference.leading(z, 1.0, [True] * 10, 4)
    assert led.first[0, 8, 0] == 1 and found.leaders_per_review == 4 and found.late_leaders == 0.25
    np.testing.assert_allclose(led.points[0, 8, 0], reference.walk(z, 1.0, None, [True] * 10, 1)[0][1][8], rtol=1e-12)


def test_distance_is_that_of_the_word():
    """A leader of layer 0 does not move, so that its distance is that of its embedding."""
    fitted = fitted_by_hand(depth=0)
    E, w = np.asarray(fitted.model.embedding)[:, 0], np.asarray(fitted.model.w)[0]
    found = leaders_report(fitted, REVIEWS, confident=0.0)
    assert found.leaders and found.late_leaders == 0
    for one in found.leaders:
        expected = (E[VOCABULARY.ids[one.word]] @ w + 0.125) / np.linalg.norm(w)
        assert one.distance == pytest.approx(expected, rel=1e-12)


def test_one_label_alone_has_no_accuracy_of_the_other():
    found = evaluate(FITTED[1], REVIEWS.take(np.flatnonzero(REVIEWS.labels == 1)))
    assert found.negative_accuracy is None and found.positive_accuracy == found.accuracy


def test_a_lonely_word_leads_itself():
    """A single word is its own leader; a word that occurs twice is one token of count 2, and leads as well."""
    one = Reviews((f"{WORDS[0]} {WORDS[0]}", WORDS[1]), np.array([0, 1]))
    led = lead(FITTED[1].model, encode_reviews(one, VOCABULARY))
    assert led.first[:, 0, 0].tolist() == [0, 0] and np.all(led.clusters == 1) and np.all(led.further == 0)
