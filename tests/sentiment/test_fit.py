"""Training on made-up reviews: accuracy, killed runs, the start, the dropout and the recipe are as stated."""

import functools

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax.sentiment import (
    Recipe,
    Reviews,
    Vocabulary,
    encode_reviews,
    evaluate,
    fit,
    official_split,
    synthetic_reviews,
)
from clusterjax.sentiment._loss import log_ratio, start, thinned


MADE_UP = synthetic_reviews(jr.key(1), 1500, num_neutral=100, shortest=8, longest=24, planted=3)
SPLIT = official_split(MADE_UP.reviews, key=jr.key(0))
RECIPE = Recipe(epochs=20, drop=0.0, length=32, depth=6, learning_rate=0.01)
FEW = SPLIT.train.take(np.arange(200)), SPLIT.validation.take(np.arange(50))
SHORT = Recipe(epochs=3, length=32, depth=2, min_count=1)


@functools.cache
def fitted():
    return fit(SPLIT.train, SPLIT.validation, RECIPE, key=jr.key(0))


@pytest.mark.exhaustive
def test_reviews_that_it_has_not_seen_are_told_apart():
    found = evaluate(fitted(), SPLIT.test)
    assert found.accuracy > 0.9 and min(found.positive_accuracy, found.negative_accuracy) > 0.85
    best = max(epoch["validation accuracy"] for epoch in fitted().history)
    assert evaluate(fitted(), SPLIT.validation).accuracy == fitted().history[fitted().best_epoch - 1][
        "validation accuracy"
    ] == pytest.approx(best)  # fmt: skip


@pytest.fixture(scope="module")
def whole():
    return fit(*FEW, SHORT, key=jr.key(2))


@pytest.mark.exhaustive
def test_killed_run_goes_on_bit_for_bit(tmp_path, whole):
    def killed(line):
        if line.startswith("epoch 1 of"):
            raise KeyboardInterrupt

    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        fit(*FEW, SHORT, key=jr.key(2), checkpoint=path, say=killed)
    for data, recipe, seed, words in (
        (FEW, SHORT, 3, "key = "),
        ((FEW[0].take(np.arange(199)), FEW[1]), SHORT, 2, "data = "),
        (FEW, SHORT.with_(drop=0.25), 2, "drop = 0.25, but .* drop = 0.5"),
    ):
        # The error names the settings that differ; arrays of other shapes are never compared.
        with pytest.raises(ValueError, match=f"checkpoint must be of this run with .*{words}"):
            fit(*data, recipe, key=jr.key(seed), checkpoint=path)
    done = fit(*FEW, SHORT, key=jr.key(2), checkpoint=path)
    assert eqx.tree_equal(done.model, whole.model) and done.best_epoch == whole.best_epoch and len(done.history) == 3


def test_log_ratio_is_that_of_counting():
    reviews = Reviews(("good plot good", "good bad", "bad plot", "bad"), np.array([1, 1, 0, 0]))
    vocabulary = Vocabulary(("good", "bad", "plot", "rare"), (3, 3, 2, 1))
    found = log_ratio(encode_reviews(reviews, vocabulary), vocabulary.size, 0.5)
    positive, negative = [2, 1, 1, 0], [0, 2, 1, 0]  # the number of reviews of each label that hold the word
    sums = [sum(0.5 + n for n in (0, 0, *counts)) for counts in (positive, negative)]
    expected = [np.log((p + 0.5) / sums[0] * sums[1] / (q + 0.5)) for p, q in zip(positive, negative, strict=True)]
    np.testing.assert_allclose(found, [0, 0, *expected], rtol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("naive_bayes", (True, False))
def test_start_is_the_log_ratio_along_w(naive_bayes):
    encoded = encode_reviews(FEW[0], fitted().vocabulary)
    words = fitted().vocabulary.size
    recipe = Recipe(dim=3, heads=2, noise=1e-3, naive_bayes=naive_bayes, depth=2, alpha=1.5)
    model = start(encoded, words, recipe, key=jr.key(0))
    ratio = log_ratio(encoded, words, recipe.smoothing) * naive_bayes
    np.testing.assert_allclose(np.linalg.norm(model.w, axis=1), 1, rtol=1e-6)
    rest = np.asarray(model.embedding) - ratio[:, None, None] * np.asarray(model.w)
    assert 0.9e-3 < rest.std() < 1.1e-3 and np.abs(ratio).max() * (1 - naive_bayes) == 0
    np.testing.assert_allclose(model.alpha, 1.5, rtol=1e-6)
    assert model.v == 0 and model.depth == 2


@pytest.mark.exhaustive
def test_dropout_leaves_words_as_they_are_and_out_of_order_none():
    rng = np.random.default_rng(0)
    ids = jnp.asarray([rng.permutation(np.arange(1, 65)) for _ in range(400)], jnp.int32)
    counts = jnp.asarray(rng.integers(0, 3, ids.shape), jnp.float32)
    new, left = (np.asarray(one) for one in thinned(ids, counts, 0.5, jr.key(1)))
    assert new.shape == left.shape and new.shape[1] < 64 and new.shape[1] % 16 == 0
    stayed = {1: 0, 2: 0}
    for row in range(400):
        before = {int(i): int(c) for i, c in zip(ids[row], counts[row], strict=True) if c}
        kept = [(int(i), int(c)) for i, c in zip(new[row], left[row], strict=True) if c]
        assert all(before[i] == c for i, c in kept) and len({i for i, _ in kept}) == len(kept)
        assert [i for i in before if i in dict(kept)] == [i for i, _ in kept]
        assert not np.any(left[row, len(kept) :])
        for _, c in kept:
            stayed[c] += 1
    for count, share in ((1, 0.5), (2, 0.75)):  # a word of count c is dropped with probability 2^-c
        assert stayed[count] / float((counts == count).sum()) == pytest.approx(share, abs=0.02)


@pytest.mark.exhaustive
def test_patience_and_vocabulary_are_passed_on():
    lines = []
    words = Vocabulary.build(FEW[0].texts, min_count=5)
    done = fit(*FEW, SHORT.with_(epochs=9, learning_rate=1e-9), key=jr.key(0), patience=2, vocabulary=words,
               say=lines.append)  # fmt: skip
    assert done.vocabulary is words and done.best_epoch == 1 and len(done.history) == 3 == len(lines)


def test_logits_of_texts(whole):
    positive, empty, negative = whole.logits(["wonderful excellent", "", "awful boring waste"])
    assert positive > 0 > negative and empty == whole.model.v
    assert whole.logits([]).shape == (0,)


def test_reviews_that_cannot_be_trained_on():
    none = Reviews((), np.zeros(0, np.int8))
    with pytest.raises(ValueError, match="training must hold reviews, but it is empty"):
        fit(none, FEW[1], SHORT, key=jr.key(0))
    with pytest.raises(ValueError, match="validation must hold reviews, but it is empty"):
        fit(FEW[0], none, SHORT, key=jr.key(0))
    one = FEW[0].take(np.flatnonzero(FEW[0].labels == 1))
    with pytest.raises(ValueError, match="training must hold reviews of both labels"):
        fit(one, FEW[1], SHORT, key=jr.key(0))


def test_recipes():
    assert Recipe.of_dim(2) == Recipe()
    assert Recipe.of_dim(16) == Recipe(dim=16, noise=0.4, learning_rate=6e-3)
    assert Recipe.of_dim(4, epochs=2) == Recipe(dim=4, noise=0.2, epochs=2)
    assert Recipe.of_dim(2, heads=4) == Recipe(heads=4, alpha=1.3, learn_alpha=False)
    bag = Recipe.bag_of_words(ngrams=2)
    assert (bag.depth, bag.dim, bag.heads, bag.ngrams, bag.min_count) == (0, 1, 1, 2, 5)
    assert Recipe.of_dim(2, ngrams=2, length=200) == Recipe(ngrams=2, length=200, min_count=5)
    assert Recipe(**Recipe(dim=3).record()) == Recipe(dim=3)
