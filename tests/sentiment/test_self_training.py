"""Training that includes texts without labels: their labels, the texts that are used, and what is learnt."""

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax.sentiment import (
    Recipe,
    Reviews,
    Vocabulary,
    encode_reviews,
    fit,
    load_report,
    load_texts,
    official_split,
    predict_logits,
    synthetic_reviews,
    train_sentiment,
)
from clusterjax.sentiment._loss import _Loss, keys_of, start, train_encoded


SPLIT = official_split(synthetic_reviews(jr.key(1), 900, num_neutral=100, shortest=8, longest=24, planted=3).reviews,
                       key=jr.key(0))  # fmt: skip
RECIPE = Recipe(epochs=3, length=32, depth=2, min_count=1, batch_size=8)
LABELLED, FURTHER, FEW = SPLIT.train.take(np.arange(80)), SPLIT.train.texts[80:], SPLIT.validation.take(np.arange(40))
KEY = jr.key(2)


def test_bags_of_words_label_the_texts():
    """Training equals, by hand, two teachers, their probabilities by a formula, and one training on both parts."""
    found = fit(LABELLED, FEW, RECIPE, key=KEY, unlabelled=FURTHER)
    words, bag = found.vocabulary, Recipe.bag_of_words(length=32, batch_size=8)
    first, second = jr.split(jr.fold_in(KEY, 1))
    teacher = trained(LABELLED, None, words, bag, first)
    teacher = trained(*guessed(teacher, words), words, bag, second)
    both, targets = guessed(teacher, words)
    assert 0.05 < np.mean((0.1 < targets) & (targets < 0.9)), "the labels are probabilities"
    wanted, hard = (trained(both, each, words, RECIPE, KEY) for each in (targets, None))
    for a, b in zip(jax.tree_util.tree_leaves(found.model), jax.tree_util.tree_leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert np.abs(hard.embedding - wanted.embedding).max() > 1e-3
    # The vocabulary is that of the reviews with labels.
    assert set(words.words) == {w for text in LABELLED.texts for w in words.options.words(text)}


def guessed(teacher, words):
    """All texts, and the probability of each that its label is positive: 0 or 1 where the label is known."""
    encoded = encode_reviews(Reviews(FURTHER, np.zeros(len(FURTHER), int)), words, length=32)
    shares = 1 / (1 + np.exp(-predict_logits(teacher, encoded.ids, encoded.counts).astype(np.float64)))
    targets = np.concatenate([LABELLED.labels, shares]).astype(np.float32)
    return Reviews((*LABELLED.texts, *FURTHER), (targets > 0.5).astype(int)), targets


def trained(reviews, targets, words, recipe, key):
    seen, unseen = (encode_reviews(part, words, length=32) for part in (reviews, FEW))
    begin, training = keys_of(key)
    model = start(seen, words.size, recipe, key=begin)
    return train_encoded(model, seen, unseen, recipe, key=training, targets=targets).model


def test_the_loss_is_the_cross_entropy_of_the_probability():
    seen = encode_reviews(LABELLED, fit(LABELLED, FEW, RECIPE, key=KEY).vocabulary)
    model = start(seen, int(seen.ids.max()) + 1, RECIPE, key=KEY)
    ids, counts = jnp.asarray(seen.ids), jnp.asarray(seen.counts, jnp.float32)
    targets = np.linspace(0, 1, len(seen))
    loss, _ = _Loss(0.0, 0.2)(model, (ids, counts, jnp.asarray(targets, jnp.float32)), KEY)
    share = 1 / (1 + np.exp(-np.asarray(model.logits(ids, counts), np.float64)))
    wanted = 0.8 * targets + 0.1
    assert float(loss) == pytest.approx(-np.mean(wanted * np.log(share) + (1 - wanted) * np.log(1 - share)), rel=1e-5)


def test_words_are_learnt_from_texts_without_labels():
    """Half of the sentiment words tell nothing in labelled reviews, and accompany the known words in other texts."""
    rng = np.random.default_rng(0)
    words = {(kind, label): [f"{kind}{'no' if not label else 'yes'}{letter}" for letter in "abcd"]
             for kind in ("known", "novel") for label in (0, 1)}  # fmt: skip
    draw = lambda kind, label, count: list(rng.choice(words[kind, label], count))
    labels = np.arange(400) % 2
    told = [" ".join(draw("known", label, 2) + draw("novel", i // 2 % 2, 1)) for i, label in enumerate(labels[:80])]
    further = [" ".join(draw("known", label, 1) + draw("novel", label, 2)) for label in labels]
    test = [" ".join(draw("novel", label, 3)) for label in labels[:100]]
    parts = Reviews(tuple(told[:60]), labels[:60]), Reviews(tuple(told[60:]), labels[60:80])
    rights = [
        np.mean((fit(*parts, RECIPE, key=KEY, unlabelled=more).logits(test) > 0) == labels[:100])
        for more in ((), further)
    ]
    assert rights[0] < 0.8 and rights[1] > 0.95, rights


def test_repeated_texts_and_reviews_are_left_out(tmp_path):
    reviews = Reviews(SPLIT.train.texts[:120], SPLIT.train.labels[:120])
    further = (*FURTHER[100:130], FURTHER[100], *reviews.texts[:3])
    lines = []
    report = train_sentiment(tmp_path, None, RECIPE, reviews=reviews, unlabelled=further, say=lines.append)
    assert report["unlabelled"] == 30 and load_report(tmp_path)["unlabelled"] == 30
    assert "30 of 34 unlabelled texts are used; the others are repeated, or reviews" in lines
    again = train_sentiment(tmp_path, None, RECIPE, reviews=reviews, unlabelled=further, say=lines.append)
    assert again["test"] == report["test"] and "done already" in lines[-1]
    with pytest.raises(
        ValueError, match="out must be a folder without another model, but .*the unlabelled texts were others; choose"
    ):
        train_sentiment(tmp_path, None, RECIPE, reviews=reviews, unlabelled=further[:20], say=lines.append)


def test_the_labels_as_targets_change_nothing():
    """The reviews have many lengths, and training takes them in three widths, each in an order of its own."""
    reviews = synthetic_reviews(jr.key(3), 200, num_neutral=300, shortest=8, longest=120, planted=3).reviews
    words = Vocabulary.build(reviews.texts, min_count=1)
    seen, unseen = (encode_reviews(part, words, length=128) for part in (reviews, FEW))
    assert len(seen.buckets()) == 3
    run = functools.partial(train_encoded, start(seen, words.size, RECIPE, key=KEY), seen, unseen, RECIPE, key=KEY)
    assert eqx.tree_equal(run().model, run(targets=seen.labels.astype(float)).model)


def test_a_checkpoint_belongs_to_its_targets(tmp_path):
    words = fit(LABELLED, FEW, RECIPE, key=KEY).vocabulary
    seen, unseen = (encode_reviews(part, words, length=32) for part in (LABELLED, FEW))
    model = start(seen, words.size, RECIPE, key=KEY)
    run = lambda targets: train_encoded(
        model, seen, unseen, RECIPE, key=KEY, targets=targets, checkpoint=tmp_path / "c"
    )
    run(np.linspace(0, 1, len(seen)))
    with pytest.raises(ValueError, match="checkpoint must be of this run with .*data = "):
        run(np.linspace(1, 0, len(seen)))


@pytest.mark.exhaustive
def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    def killed(line):
        if line.startswith("epoch 1 of"):
            raise KeyboardInterrupt

    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        fit(LABELLED, FEW, RECIPE, key=KEY, unlabelled=FURTHER, checkpoint=path, say=killed)
    with pytest.raises(ValueError, match="checkpoint must be of this run with .*data = "):
        fit(LABELLED, FEW, RECIPE, key=KEY, unlabelled=FURTHER[1:], checkpoint=path)
    done = fit(LABELLED, FEW, RECIPE, key=KEY, unlabelled=FURTHER, checkpoint=path)
    assert eqx.tree_equal(done.model, fit(LABELLED, FEW, RECIPE, key=KEY, unlabelled=FURTHER).model)


def test_texts_of_a_table(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"Body": text}) + "\n" for text in ("Good.", "Bad,\nvery.")), "utf-8")
    assert load_texts(path, text_column="body") == ("Good.", "Bad,\nvery.")
    with pytest.raises(ValueError, match="text_column must be a column of .*'body'; pass one of these"):
        load_texts(path)
    path.write_text('{"text": "Good."}\n{"text": " "}\n', "utf-8")
    with pytest.raises(ValueError, match="text_column must have a text in each row, but 1 of the 2 rows"):
        load_texts(path)
    with pytest.raises(ValueError, match="unlabelled must be a sequence of texts"):
        fit(LABELLED, FEW, RECIPE, key=KEY, unlabelled="Good.")
