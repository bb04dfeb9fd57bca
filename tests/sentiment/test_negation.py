"""Negations composed of their words: the map is the one of the formula, and what is trained, kept and known by it."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax.sentiment import Recipe, Reviews, Vocabulary, encode_reviews, explain, fit, load, official_split, save
from clusterjax.sentiment._loss import start
from clusterjax.sentiment._negation import NegatedClassifier, composed, is_residual


WORDS = ("good", "bad", "plot", "not_good", "film", "not_film", "good film", "not_bad", "not_plot", "not_rare")
VOCABULARY = Vocabulary(WORDS, (90, 80, 70, 60, 50, 4, 3, 0, 0, 0))
RECIPE = Recipe(dim=3, heads=2, depth=2, smoothing=5.0, negation="reflection")


def started(recipe=RECIPE, seed=0):
    """An untrained model whose embeddings and normals are any numbers."""
    rng = np.random.default_rng(seed)
    reviews = Reviews(("good film not good", "bad plot"), np.array([1, 0]))
    model = start(encode_reviews(reviews, VOCABULARY), VOCABULARY.size, recipe, key=jr.key(seed))
    embedding = jnp.asarray(rng.normal(size=model.embedding.shape), jnp.float32)
    return type(model)(embedding, 3 * model.w, model.v, model.alpha, depth=model.depth)


def test_the_composition_is_that_of_loops():
    model = started()
    negated = NegatedClassifier.of(model, VOCABULARY, RECIPE)
    rng = np.random.default_rng(1)
    affine = rng.normal(size=(2, 3, 4)).astype(np.float32)
    residual = rng.normal(size=(2, 2, 3)).astype(np.float32)
    negated = NegatedClassifier(model, jnp.asarray(affine), jnp.asarray(residual), negated.words, negated.negations)
    expected = np.array(model.embedding)
    for name in ("good", "film", "bad", "plot"):
        for head in range(2):
            place = affine[head, :, :3] @ expected[VOCABULARY.ids[name], head] + affine[head, :, 3]
            own = {"good": residual[0, head], "film": residual[1, head]}.get(name, 0)
            expected[VOCABULARY.ids[f"not_{name}"], head] = place + own
    found = composed(negated)
    np.testing.assert_allclose(found.embedding, expected, rtol=1e-5, atol=1e-6)
    # `not_rare` has no word that it negates, and `good film` is no negation.
    for name in ("not_rare", "good film"):
        np.testing.assert_array_equal(found.embedding[VOCABULARY.ids[name]], model.embedding[VOCABULARY.ids[name]])
    assert composed(model) is model


def test_at_the_start_a_rare_negation_is_reflected_and_a_frequent_one_is_where_it_was():
    model = started()
    found = np.asarray(composed(NegatedClassifier.of(model, VOCABULARY, RECIPE)).embedding, np.float64)
    embedding, ids = np.asarray(model.embedding, np.float64), VOCABULARY.ids
    for head in range(2):
        normal = np.asarray(model.w[head], np.float64) / np.linalg.norm(model.w[head])
        for name in ("bad", "plot"):
            word, negation = embedding[ids[name], head], found[ids[f"not_{name}"], head]
            assert negation @ normal == pytest.approx(-0.5 * (word @ normal), abs=1e-5)
            across = word - (word @ normal) * normal
            np.testing.assert_allclose(negation - (negation @ normal) * normal, across, atol=1e-5)
        for name, count in (("good", 60), ("film", 4)):
            word, own = embedding[ids[name], head], embedding[ids[f"not_{name}"], head]
            image = word - 1.5 * (word @ normal) * normal
            share = count / (count + 2 * 5.0)
            np.testing.assert_allclose(found[ids[f"not_{name}"], head], own + (1 - share) * image, atol=1e-5)


def test_gradients_reach_the_word_and_the_map():
    """The gradient of a logit by a word that stands in its negation alone is that of a finite difference."""
    with jax.enable_x64(True):
        model = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, jnp.float64), started())
        negated = NegatedClassifier.of(model, VOCABULARY, RECIPE)
        ids = jnp.asarray([[VOCABULARY.ids[name] for name in ("not_bad", "not_good", "plot")]])
        counts = jnp.ones(ids.shape)

        def logit(affine, embedding):
            tree = NegatedClassifier(
                type(model)(embedding, model.w, model.v, model.alpha, depth=2), affine, negated.residual,
                negated.words, negated.negations,
            )  # fmt: skip
            return composed(tree).logits(ids, counts)[0]

        affine, embedding = negated.affine, model.embedding
        gradients = jax.grad(logit, (0, 1))(affine, embedding)
        for which, place in ((0, (1, 2, 1)), (0, (0, 1, 3)), (1, (VOCABULARY.ids["bad"], 1, 0))):
            step = lambda size, which=which, place=place: logit(
                *(x.at[place].add(size) if k == which else x for k, x in enumerate((affine, embedding)))
            )
            difference = (step(1e-6) - step(-1e-6)) / 2e-6
            assert gradients[which][place] == pytest.approx(float(difference), abs=1e-7) and difference != 0
        for name in ("not_bad", "not_good"):
            assert not np.any(gradients[1][VOCABULARY.ids[name]])


def test_only_residuals_decay():
    negated = NegatedClassifier.of(started(), VOCABULARY, RECIPE)
    marked = is_residual(negated)
    assert marked.residual is True and marked.affine is False
    assert not any(jax.tree_util.tree_leaves(is_residual(negated.model)))


# Reviews in which `not_fine` is said of bad films and `not_poor` of good ones; `not_lovely` and `not_dire` are unheard.
def made(count=400):
    rng = np.random.default_rng(0)
    good, bad, filler = ("lovely", "fine", "not poor"), ("dire", "poor", "not fine"), ("film", "scene", "plot", "cast")
    labels = np.arange(count) % 2
    texts = [
        ", ".join(rng.permutation([*rng.choice(good if label else bad, 2), *rng.choice(filler, 4)]).tolist())
        for label in labels
    ]
    return Reviews(tuple(texts), labels, split=np.where(np.arange(count) < 300, "train", "test"))


SPLIT = official_split(made(), key=jr.key(0))
SHORT = Recipe(depth=2, length=32, epochs=4, batch_size=32, noise=0.05, learning_rate=0.02)


@pytest.fixture(scope="module")
def reflected():
    return fit(SPLIT.train, SPLIT.validation, SHORT.with_(negation="reflection"), key=jr.key(1))


def test_an_unheard_negation_is_on_the_other_side_of_its_word(reflected):
    words = fit(SPLIT.train, SPLIT.validation, SHORT, key=jr.key(1))
    assert "not_dire" not in words.vocabulary.ids and words.negation is None
    lovely, not_lovely, dire, not_dire = reflected.logits(["lovely", "not lovely", "dire", "not dire"])
    assert lovely > 1 > not_lovely and dire < -1 < not_dire
    double, hardly, only = reflected.logits(["not without lovely", "hardly lovely", "not only lovely"])
    assert double == lovely == only and hardly == not_lovely
    heard = reflected.logits(["not fine", "not poor"])
    assert heard[0] < 0 < heard[1]


def test_an_explanation_names_the_negation(reflected):
    found = explain(reflected, "A film: not dire.")
    assert set(found.words) == {"film", "not_dire"} and found.unknown == ()
    parts = found.contributions.sum() + float(reflected.model.v)
    assert found.logit == pytest.approx(parts, abs=1e-5) == pytest.approx(reflected.logits(["A film: not dire."])[0])
    assert {one.word for one in found.leaders} <= {"film", "not_dire"} and found.leaders


def test_it_comes_back_from_its_file(reflected, tmp_path):
    save(reflected, tmp_path)
    again = load(tmp_path)
    np.testing.assert_array_equal(again.negation, reflected.negation)
    assert again.recipe == reflected.recipe and again.vocabulary == reflected.vocabulary
    assert again.negation.shape == (1, 2, 3) and not np.allclose(again.negation[0, :, :2], np.eye(2))
    texts = ["not dire", "lovely film"]
    np.testing.assert_array_equal(again.logits(texts), reflected.logits(texts))


class Killed(Exception):
    pass


@pytest.mark.exhaustive
def test_a_killed_run_goes_on_bit_for_bit(reflected, tmp_path):
    def killed(line):
        if line.startswith("epoch 2 of"):
            raise Killed

    recipe, path = reflected.recipe, tmp_path / "checkpoint"
    with pytest.raises(Killed):
        fit(SPLIT.train, SPLIT.validation, recipe, key=jr.key(1), checkpoint=path, say=killed)
    done = fit(SPLIT.train, SPLIT.validation, recipe, key=jr.key(1), checkpoint=path)
    np.testing.assert_array_equal(done.model.embedding, reflected.model.embedding)
    np.testing.assert_array_equal(done.negation, reflected.negation)
    with pytest.raises(ValueError, match="with residual_decay = 2.0, but .* with residual_decay = 1.0"):
        fit(SPLIT.train, SPLIT.validation, recipe.with_(residual_decay=2.0), key=jr.key(1), checkpoint=path)
