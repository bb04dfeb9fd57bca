"""Negations composed of their words: the reflection and the residual of the formula, and negations not in training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax.sentiment import Recipe, Reviews, Vocabulary, encode_reviews, explain, fit, load, official_split, save
from clusterjax.sentiment._loss import start
from clusterjax.sentiment._negation import NegatedClassifier, composed


WORDS = ("good", "bad", "plot", "not_good", "film", "not_film", "good film", "not_bad", "not_plot", "not_rare")
VOCABULARY = Vocabulary(WORDS, (90, 80, 70, 60, 50, 4, 3, 0, 0, 0))
RECIPE = Recipe(dim=3, heads=2, depth=2, smoothing=5.0, negation="reflection")


def started(recipe=RECIPE, seed=0):
    """An untrained model whose embeddings are random."""
    rng = np.random.default_rng(seed)
    reviews = Reviews(("good film not good", "bad plot"), np.array([1, 0]))
    model = start(encode_reviews(reviews, VOCABULARY), VOCABULARY.size, recipe, key=jr.key(seed))
    embedding = jnp.asarray(rng.normal(size=model.embedding.shape), jnp.float32)
    return type(model)(embedding, 3 * model.w, model.v, model.alpha, depth=model.depth)


def test_the_composition_is_that_of_loops():
    model = started()
    negated = NegatedClassifier.of(model, VOCABULARY, RECIPE)
    residual = np.random.default_rng(1).normal(size=(2, 2, 3)).astype(np.float32)
    negated = NegatedClassifier(model, jnp.asarray(residual), negated.words, negated.negations)
    expected = np.array(model.embedding, np.float64)
    for head in range(2):
        normal = np.asarray(model.w[head], np.float64) / np.linalg.norm(model.w[head])
        for name in ("good", "film", "bad", "plot"):
            word = expected[VOCABULARY.ids[name], head]
            own = {"good": residual[0, head], "film": residual[1, head]}.get(name, 0)
            # The part along the normal changes its sign and is halved; the rest stays.
            expected[VOCABULARY.ids[f"not_{name}"], head] = word - 1.5 * (word @ normal) * normal + own
    found = composed(negated)
    np.testing.assert_allclose(found.embedding, expected, rtol=1e-5, atol=1e-6)
    # `not_rare` negates no known word, and `good film` is no negation.
    for name in ("not_rare", "good film"):
        np.testing.assert_array_equal(found.embedding[VOCABULARY.ids[name]], model.embedding[VOCABULARY.ids[name]])
    assert composed(model) is model


def test_at_the_start_a_rare_negation_is_reflected_and_a_frequent_one_is_where_it_was():
    model = started()
    found = np.asarray(composed(NegatedClassifier.of(model, VOCABULARY, RECIPE)).embedding, np.float64)
    embedding, ids = np.asarray(model.embedding, np.float64), VOCABULARY.ids
    for head in range(2):
        normal = np.asarray(model.w[head], np.float64) / np.linalg.norm(model.w[head])
        for name, count in (("bad", 0), ("plot", 0), ("good", 60), ("film", 4)):
            word, own = embedding[ids[name], head], embedding[ids[f"not_{name}"], head]
            image = word - 1.5 * (word @ normal) * normal
            expected = own + (1 - count / (count + 2 * 5.0)) * image if count else image
            np.testing.assert_allclose(found[ids[f"not_{name}"], head], expected, atol=1e-5)


@pytest.mark.exhaustive
def test_gradients_are_those_of_differences():
    """The gradients also hold for a word that occurs in its negation alone, and for the normal."""
    with jax.enable_x64(True):
        model = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, jnp.float64), started())
        negated = NegatedClassifier.of(model, VOCABULARY, RECIPE)
        ids = jnp.asarray([[VOCABULARY.ids[name] for name in ("not_bad", "not_good", "plot")]])
        counts = jnp.ones(ids.shape)

        def logit(w, embedding):
            moved = type(model)(embedding, w, model.v, model.alpha, depth=2)
            return composed(eqx.tree_at(lambda tree: tree.model, negated, moved)).logits(ids, counts)[0]

        arguments = (model.w, model.embedding)
        gradients = jax.grad(logit, (0, 1))(*arguments)
        for which, place in ((0, (1, 2)), (0, (0, 0)), (1, (VOCABULARY.ids["bad"], 1, 0))):
            step = lambda size, which=which, place=place: logit(
                *(x.at[place].add(size) if k == which else x for k, x in enumerate(arguments))
            )
            difference = float(step(1e-6) - step(-1e-6)) / 2e-6
            assert gradients[which][place] == pytest.approx(difference, abs=1e-7) and difference != 0
        for name in ("not_bad", "not_good"):
            assert not np.any(gradients[1][VOCABULARY.ids[name]])


# Reviews that say `not_fine` of bad films and `not_poor` of good ones; no review says `not_lovely` or `not_dire`.
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
    words = Vocabulary.build(SPLIT.train.texts, SHORT.text_options(), min_count=SHORT.min_count)
    assert "not_dire" not in words.ids and "not_dire" in reflected.vocabulary.ids
    lovely, not_lovely, dire, not_dire = reflected.logits(["lovely", "not lovely", "dire", "not dire"])
    assert lovely > 1 > not_lovely and dire < -1 < not_dire
    double, hardly, only = reflected.logits(["not without lovely", "hardly lovely", "not only lovely"])
    assert double == only == lovely and hardly == not_lovely
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
    assert again.recipe == reflected.recipe and again.vocabulary == reflected.vocabulary
    texts = ["not dire", "lovely film"]
    np.testing.assert_array_equal(again.logits(texts), reflected.logits(texts))


@pytest.mark.exhaustive
def test_a_killed_run_goes_on_bit_for_bit(reflected, tmp_path):
    def killed(line):
        if line.startswith("epoch 2 of"):
            raise KeyboardInterrupt

    recipe, path = reflected.recipe, tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        fit(SPLIT.train, SPLIT.validation, recipe, key=jr.key(1), checkpoint=path, say=killed)
    done = fit(SPLIT.train, SPLIT.validation, recipe, key=jr.key(1), checkpoint=path)
    np.testing.assert_array_equal(done.model.embedding, reflected.model.embedding)
    with pytest.raises(ValueError, match="with negation = words, but .* with negation = reflection"):
        fit(SPLIT.train, SPLIT.validation, recipe.with_(negation="words"), key=jr.key(1), checkpoint=path)
