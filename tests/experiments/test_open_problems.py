"""Sentiment classifiers whose A is trained: their softmax against that of the model, the training, and leaders."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.experiments.figures.hardmax_open_problems import examine, soft_logits, train
from clusterjax.sentiment import Encoded, HardmaxClassifier, Recipe, predict_logits


FORM = np.array([[1.0, 0.4], [-0.2, 0.7]])


def some(number=24, width=8, words=12, seed=0):
    """Reviews of a few words, positive where more than half of the words have even ids."""
    rng = np.random.default_rng(seed)
    ids, counts = np.zeros((number, width), np.int32), np.zeros((number, width), np.int32)
    lengths = rng.integers(1, width, number).astype(np.int32)
    for row, n in enumerate(lengths):
        ids[row, :n] = 2 + rng.permutation(words - 2)[:n]
        counts[row, :n] = rng.integers(1, 3, n)
    labels = (np.where(counts > 0, ids % 2 == 0, False).sum(axis=1) * 2 > lengths).astype(np.int8)
    return Encoded(ids, counts, labels, lengths, np.arange(number, dtype=np.int32))


def model(form=FORM, depth=3, words=12, alpha=0.9):
    rng = np.random.default_rng(1)
    embedding = rng.normal(size=(words, 2)).astype(np.float32)
    return HardmaxClassifier(embedding, np.float32([0.6, -0.8]), 0.2, alpha, form.astype(np.float32), depth=depth)


@pytest.mark.exhaustive
def test_the_softmax_of_a_batch_is_that_of_the_model_and_comes_to_the_hardmax():
    part, one = some(), model()
    ids, counts = jnp.asarray(part.ids), jnp.asarray(part.counts, jnp.float32)
    soft = lambda beta: np.asarray(soft_logits(one, ids, counts, jnp.float32(beta)))
    np.testing.assert_allclose(soft(3.0), np.asarray(one.softmax_logits(part.ids, part.counts, 3.0)), atol=1e-5)
    hard = predict_logits(one, part.ids, part.counts)
    assert np.mean(np.abs(soft(1e4) - hard) < 1e-3) > 0.9 and np.abs(soft(1.0) - hard).max() > 0.05
    # A review whose words were all left out has finite logits.
    assert np.isfinite(np.asarray(soft_logits(one, ids, 0 * counts, jnp.float32(3.0)))).all()


@pytest.mark.exhaustive
def test_a_form_is_trained_only_where_it_should_be():
    part, one = some(64), model()
    recipe = Recipe(depth=3, epochs=12, batch_size=16, drop=0.2, learning_rate=0.05, warm_up=4, length=8)
    fixed, learnt = (train(one, part, recipe, jr.key(0), learn_form=learn) for learn in (False, True))
    assert fixed.A is not None and learnt.A is not None and one.A is not None
    np.testing.assert_array_equal(fixed.A, one.A)
    assert np.abs(learnt.A - one.A).max() > 0.02
    right = lambda of: np.mean((predict_logits(of, part.ids, part.counts) > 0) == (part.labels == 1))
    assert min(right(fixed), right(learnt)) > 0.8 > right(one)


def test_reviews_are_examined_as_the_package_examines_tokens():
    part, one = some(), model()
    found = examine(one, part, 3)
    assert found.sum() == 15
    by_package = np.zeros((5, 3), int)
    assert one.A is not None
    layer = cjx.hardmax.HardmaxLayer(float(one.alpha[0]), np.asarray(one.A[0], float))
    for row in np.linspace(0, len(part) - 1, 3).astype(int):
        tokens = np.asarray(one.embedding, float)[part.ids[row, : part.lengths[row]], 0]
        for c, clause in enumerate(cjx.hardmax.examine(jnp.asarray(tokens), layer, 40).clauses):
            by_package[c, ("held", "failed", "open").index(clause.verdict)] += 1
    np.testing.assert_array_equal(found, by_package)
    # With -I and alpha = 1 tokens come together two by two, and none leads; with a smaller alpha one leads.
    assert examine(model(-np.eye(2), alpha=1.0), part, 20)[0, 1] > 5
    assert examine(model(-np.eye(2), alpha=0.9), part, 20)[0, 1] == 0
