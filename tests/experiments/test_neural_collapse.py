"""Neural collapse of networks: features against plain loops, places and clusters by counting, claims that can fail."""

from types import SimpleNamespace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe, transformer
from clusterjax.experiments.figures.neural_collapse import (
    Clustering,
    Measures,
    OfReviews,
    OfTexts,
    Parameters,
    Results,
    Training,
    balanced,
    beginnings,
    caption_of,
    claims_of,
    clustering_of,
    clusters_of,
    correlation,
    draw,
    frequent,
    mean_of,
    measure_texts,
    measures_of,
    places_of,
    redrawn,
    review_rows_of as rows_of,
    run,
    shuffled,
    stream_of,
    text_rows_of as head_rows,
    train_models,
)
from clusterjax.experiments.framework.experiment import Settings
from clusterjax.experiments.shared.small_models import MADE_UP_TEXTS, Corpus, Labelled
from clusterjax.experiments.shared.sources import particles
from clusterjax.sentiment import Encoded, HardmaxClassifier
from tests.network_cases import texts_of as words_of
from tests.reference import observables as reference


RNG = lambda seed=0: np.random.default_rng(seed)


def simplex(classes, each, spread, rng):
    """Features around the corners of a simplex, and their labels."""
    labels = np.repeat(np.arange(classes), each)
    return np.eye(classes)[labels] + spread * rng.normal(size=(len(labels), classes)), labels


def test_measures_are_those_of_the_definition_level_by_level():
    rng = RNG(1)
    levels = np.stack([simplex(4, 6, spread, rng)[0] for spread in (0.5, 0.1)])
    labels, weights, bias = simplex(4, 6, 0, rng)[1], rng.normal(size=(4, 4)), rng.normal(size=4)
    found = measures_of(levels, labels, weights, bias)
    for k, level in enumerate(levels):
        by_loop = reference.neural_collapse(level, labels, weights - weights.mean(axis=0), bias)
        picked = (by_loop[0], by_loop[1], by_loop[3], by_loop[5], by_loop[6])
        np.testing.assert_allclose([values[k] for values in found], picked, rtol=1e-9, atol=1e-12)
    assert found.variability[1] < 0.1 * found.variability[0]
    # What all rows have in common leaves all measures as they are, if the features have no part along it.
    np.testing.assert_allclose(measures_of(levels, labels, weights + 3.0, bias)[:4], found[:4], rtol=1e-9)


def test_labels_in_random_order_are_chance():
    """The scatter of the means is Wishart's: of C classes in d dimensions NC1 is (m - 1) d / (C - d - 2) on average."""
    rng, labels = RNG(2), np.repeat(np.arange(8), 40)
    features, weights = rng.normal(size=(1, 320, 4)), rng.normal(size=(8, 4))
    mixed = shuffled(features, labels, weights, None, rng, 30)
    two = mean_of([measures(2, 2.0, disagreement=0.1), measures(2, 8.0, disagreement=0.3)])
    np.testing.assert_allclose([two.variability[0], two.disagreement[0]], [4.0, 0.2])
    assert 50 < mixed.variability[0] < 120 and 1.5 < mixed.self_duality[0] < 2.5 and mixed.disagreement[0] > 0.7


def test_places_are_as_many_of_each_of_the_most_frequent():
    labels = np.array([5, 5, 5, 5, 2, 2, 2, 9, 9, 7])
    assert list(frequent(labels, 3, 2)) == [5, 2, 9] and list(frequent(labels, 3, 3)) == [5, 2]
    chosen = balanced(labels, np.array([2, 5]), 3, RNG())
    assert list(labels[chosen]) == [2, 2, 2, 5, 5, 5] and len(set(chosen)) == 6


def test_clusters_of_a_text_leave_out_what_is_not_there():
    tokens = np.array([[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    cosine, rank, clusters = np.asarray(
        clusters_of(jnp.asarray(tokens), jnp.array([1.0, 2.0, 1.0, 0.0]), jnp.asarray(0.1), unit=True)
    )[0]
    # Of three tokens two have one direction: one pair of three is alike, and there are two clusters.
    singular = np.array([5**0.5, 1.0])
    shares = singular / singular.sum()
    assert cosine == pytest.approx(1 / 3) and clusters == pytest.approx(2 / 3)
    assert rank == pytest.approx(np.exp(-np.sum(shares * np.log(shares))) / 2)
    apart = clusters_of(jnp.asarray(tokens), jnp.array([1.0, 2.0, 1.0, 0.0]), jnp.asarray(0.1), unit=False)
    assert apart[0, 2] == pytest.approx(1)


def reviews_of_words(rng):
    """Reviews of few words, and a classifier of them."""
    model = HardmaxClassifier(rng.normal(size=(12, 2)), np.array([0.6, -0.8]), 0.3, 0.7, depth=3)
    ids = np.array([[2, 5, 7, 0], [3, 4, 0, 0], [8, 9, 10, 11]])
    counts = np.array([[2, 1, 1, 0], [1, 3, 0, 0], [1, 1, 1, 2]])
    rows = np.arange(3, dtype=np.int32)
    return model, Encoded(ids, counts, np.array([0, 1, 1], np.int8), np.array([3, 2, 4], np.int32), rows)


def test_features_of_a_review_are_the_means_of_its_words():
    model, part = reviews_of_words(RNG(3))
    features, clustering = run(model, part)
    assert features.shape == (4, 3, 2)
    for k, (ids, counts, n) in enumerate(zip(part.ids, part.counts, part.lengths, strict=True)):
        path = np.asarray(model.path(ids[:n], counts[:n]))
        np.testing.assert_allclose(features[:, k], counts[:n] @ path / counts.sum(), atol=1e-12)
    # The rows are of two classes whose scores differ by the logit.
    rows, bias = rows_of(model)
    scores = features[-1] @ rows.T + bias
    np.testing.assert_allclose(scores[:, 1] - scores[:, 0], np.asarray(model.logits(part.ids, part.counts)), atol=1e-12)
    assert clustering.cosine.shape == (4,) and np.all(np.diff(clustering.clusters) <= 0)
    assert clustering.clusters[0] == pytest.approx(1)


def test_a_redrawn_classifier_has_the_same_layers_and_no_hyperplane():
    model, _ = reviews_of_words(RNG(3))
    other = redrawn(model, jr.key(0))
    assert other.depth == model.depth and np.array_equal(other.alpha, model.alpha) and other.v == 0
    assert not np.allclose(other.embedding, model.embedding) and not np.allclose(other.w, model.w)
    scale = lambda one: float(np.sqrt(np.mean(np.square(one.embedding))))
    assert 0.6 < scale(other) / scale(model) < 1.5


@pytest.fixture(scope="module")
def network():
    recipe = transformer.LanguageRecipe(d=8, heads=2, hidden=16, layers=2, length=16)
    model = probe.from_language_model(recipe.model(0))
    # Its control is drawn with this, as it is not of the size of the model of the package.
    model.network.sizes = model.network.sizes._replace(spread=0.02)
    return model


def some_texts(rng, texts=11, n=10, words=5):
    """Texts of few words, all of one length but the last."""
    ids = rng.integers(20, 20 + words, size=(texts, n)).astype(np.int32)
    mask = np.ones((texts, n), bool)
    mask[-1, 6:] = False
    return probe.Encoded(ids, mask)


def test_the_stream_at_places_is_that_of_a_trace_after_the_last_norm(network):
    texts = some_texts(RNG(4))
    (after,), (before,) = (places_of(texts, 3, 4, RNG(5), ahead=ahead) for ahead in (True, False))
    for places, ahead in ((after, 1), (before, 0)):
        assert len(places.labels) == 12 and len(set(zip(places.rows, places.columns, strict=True))) == 12
        assert places.columns.min() >= 1 and np.all(texts.mask[places.rows, places.columns + 1])
        assert np.array_equal(texts.token_ids[places.rows, places.columns + ahead], places.tokens[places.labels])
    features = stream_of(network, texts, [after, before])
    hidden = np.asarray(probe.trace(network, texts.token_ids, texts.mask).hidden)
    for places, found in zip((after, before), features, strict=True):
        assert found.shape == (3, 12, 8)
        for level in range(3):
            read = hidden[:, level] if level == 2 else np.asarray(network.network.finish(jnp.asarray(hidden[:, level])))
            np.testing.assert_allclose(found[level], read[places.rows, places.columns], atol=1e-5)
    table = np.asarray(network.network.unembedding())
    assert np.array_equal(head_rows(network, after), table[after.tokens])


def test_other_texts_have_the_same_classes_or_are_refused(network):
    texts, others = some_texts(RNG(4)), some_texts(RNG(6), words=2)
    one, other = places_of(texts, 5, 4, RNG(5), ahead=True, beside=others)
    assert np.array_equal(one.tokens, other.tokens) and set(one.tokens) <= {20, 21} and len(other.labels) == 8
    with pytest.raises(ValueError, match="of 200 times there is none; set a smaller one, or pass more texts"):
        places_of(texts, 5, 200, RNG(5), ahead=True)


def test_clusters_of_texts_are_those_of_each_text(network):
    texts = some_texts(RNG(4), texts=3)
    found = clustering_of(network, texts)
    hidden = np.asarray(probe.trace(network, texts.token_ids, texts.mask).hidden, float)
    for level in range(3):
        cosines = []
        for text in range(3):
            x = hidden[text, level, 1 : texts.mask[text].sum()]
            unit = x / np.linalg.norm(x, axis=1, keepdims=True)
            cosines.append(np.mean([unit[i] @ unit[j] for i in range(len(x)) for j in range(len(x)) if i != j]))
        assert found.cosine[level] == pytest.approx(np.mean(cosines), abs=1e-5)


def test_a_network_has_its_controls(network):
    found = measure_texts(network, some_texts(RNG(4)), 3, 4, [jr.key(0), jr.key(1)], RNG(7), 2)
    assert (found.classes, found.each, len(found.random)) == (3, 4, 2)
    assert all(values.shape == (3,) and np.isfinite(values).all() for values in found.next)
    # Before the layers a token is told by its own embedding and place, and the next one is not.
    assert found.current.variability[0] < 0.5 * found.next.variability[0]
    assert not np.allclose(found.random[0].variability, found.random[1].variability)
    assert not np.allclose(found.shuffled.variability, found.next.variability)


@pytest.mark.exhaustive
def test_small_models_are_measured_before_and_along_their_training():
    p = Parameters(classes=3, each=8, trainings=2, steps=16)
    corpus, found = train_models(p, Settings(starts=2, quick=True), RNG(0), lambda line: None)
    assert found.steps[0] == 0 and found.steps[-1] == 16 and len(corpus.seen) == 320
    for measures in (found.seen, found.unseen, found.shuffled):
        assert all(values.shape == (2, len(found.steps)) and np.isfinite(values).all() for values in measures)
    assert found.clustering.cosine.shape == (2, len(found.steps))
    assert found.seen.self_duality[:, -1].mean() < found.seen.self_duality[:, 0].mean()


def test_beginnings_are_cut_and_short_texts_left_out(network):
    model = probe.Model(network.network, SimpleNamespace(), "words")
    model.__dict__["tokenizer"] = lambda texts, **options: {
        "input_ids": [[len(word) for word in text.split()] for text in texts]
    }
    texts = beginnings(model, ["the cat sat on the mat", "no way out", "so it is good"], 5)
    assert np.array_equal(texts.token_ids, [[3, 3, 3, 2, 3], [2, 2, 2, 4, 0]])
    assert np.array_equal(texts.mask, [[True] * 5, [True] * 4 + [False]])


def test_beginnings_are_no_longer_than_the_positions_of_the_network():
    """The language model of the package has positions for 64 tokens, fewer than are read by default."""
    model = probe.load("language-model")
    assert model.max_positions is not None and model.max_positions < Parameters().tokens
    texts = beginnings(model, probe.bundled_texts()[:4], Parameters().tokens)
    assert texts.token_ids.shape == (4, model.max_positions) and np.asarray(texts.mask).any(axis=0).all()


def measures(levels, variability, equinorm=0.1, equiangular=0.1, duality=0.1, disagreement=0.01):
    """From a first to a last level."""
    ends = lambda value: np.linspace(*(value if isinstance(value, tuple) else (value, value)), levels)
    return Measures(*map(ends, (variability, equinorm, equiangular, duality, disagreement)))


def clustering(levels, first, last):
    return Clustering(np.linspace(first, last, levels), np.full(levels, 0.5), np.full(levels, 0.9))


def training(end=0.2, spread=0.01):
    along = np.linspace(1.0, end, 4) + spread * np.arange(2)[:, None] * np.linspace(0, 1, 4)
    of = lambda values: Measures(*[values] * 5)
    return Training(np.array([0, 1, 2, 4]), of(along), of(along), of(np.ones((2, 4))), Clustering(*[along] * 3))


GOOD = measures(5, (2.0, 0.1), (0.5, 0.1), (0.5, 0.1), (2.0, 0.1), (0.5, 0.01))
CHANCE = measures(5, (9.0, 9.0), duality=2.0, disagreement=0.8)


CORPUS = Corpus([], *[Labelled([], np.zeros(0, bool))] * 2, MADE_UP_TEXTS)


def results(*, classifier=None, network=None, along=None):
    two = measures(5, (2.0, 0.1), 0.0, 0.0, (2.0, 0.1), (0.5, 0.01))
    ofr = {"trained": two, "test": two, "shuffled": CHANCE, "random": (CHANCE, CHANCE), "each": 40,
           "clustering": clustering(5, 0.1, 0.9)}  # fmt: skip
    oft = {"next": GOOD, "current": measures(5, (0.01, 3.0)), "shuffled": CHANCE, "random": (CHANCE, CHANCE),
           "spread": "of spread 0.0417", "clustering": clustering(5, 0.1, 0.9), "classes": 6, "each": 16}  # fmt: skip
    return Results(
        Parameters(), False, particles(reviews=2), CORPUS, OfReviews(**ofr | (classifier or {})),
        OfTexts(**oft | (network or {})), along or training(),
    )  # fmt: skip


def test_claims_follow_from_the_numbers_and_each_can_fail():
    verdicts = lambda **other: [claim.holds for claim in claims_of(results(**other))]
    assert verdicts() == [True] * 15
    assert verdicts(along=training(end=0.6)) == [False] * 5 + [True] * 10
    assert verdicts(along=training(end=0.3, spread=0.3)) == [False] * 5 + [True] * 10
    failing = lambda **other: [k for k, holds in enumerate(verdicts(**other)) if not holds]
    two = results().classifier.trained
    assert failing(classifier={"trained": two._replace(variability=np.linspace(2, 1.2, 5))}) == [5]
    # A random classifier that happens to do it is not what random ones do.
    lucky = CHANCE._replace(variability=np.linspace(9, 3, 5), self_duality=np.full(5, 0.1))
    assert failing(classifier={"random": (CHANCE, lucky)}) == []
    # Where labels in random order, or random weights, do the same, nothing is said of the layers.
    assert failing(classifier={"shuffled": CHANCE._replace(variability=np.linspace(9, 1, 5))}) == [5]
    assert failing(classifier={"random": (measures(5, (9.0, 4.0), duality=2.0),)}) == [5]
    assert failing(classifier={"trained": two._replace(self_duality=np.full(5, 0.6))}) == [6]
    assert failing(classifier={"random": (measures(5, 9.0), measures(5, 9.0))}) == [6]
    assert failing(classifier={"trained": two._replace(disagreement=np.full(5, 0.06))}) == [7]
    assert failing(network={"next": GOOD._replace(variability=np.linspace(2, 1.2, 5))}) == [8]
    assert failing(network={"next": GOOD._replace(equinorm=np.linspace(0.5, 0.3, 5))}) == [9]
    assert failing(network={"next": GOOD._replace(equiangular=np.linspace(0.1, 0.15, 5))}) == [9]
    assert failing(network={"next": GOOD._replace(self_duality=np.full(5, 0.6))}) == [10]
    assert failing(network={"next": GOOD._replace(disagreement=np.full(5, 0.11))}) == [11]
    assert failing(network={"shuffled": CHANCE._replace(disagreement=np.full(5, 0.04))}) == [11]
    assert failing(network={"current": measures(5, (0.01, 0.05))}) == [12]
    assert failing(network={"clustering": clustering(5, 0.9, 0.1)}) == [13]
    assert failing(classifier={"trained": two._replace(equiangular=np.full(5, 0.01))}) == [14]


def test_captions_and_panels_say_which_measures_fall():
    m = results()
    assert "NC1, the lengths of NC2, the angles of NC2, NC3, NC4 fall" in caption_of(m, claims_of(m), "reviews")
    slow = results(along=training(end=0.9))
    assert "no measure falls to a half" in caption_of(slow, claims_of(slow), "reviews")
    assert correlation(GOOD, clustering(5, 0.1, 0.9)) == pytest.approx(-1)
    assert {"NC3", "next token", "random weights", "training step"} <= {*words_of(draw(m))}
