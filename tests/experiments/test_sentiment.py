"""The figures of the sentiment model: measured as a loop measures, chosen as the caption says, and claims that fail."""

import csv
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.experiments import EXPERIMENTS, Files, Settings
from clusterjax.experiments.framework.reproduce import fingerprint
from clusterjax.experiments.sentiment.measure import further_moves, leaders_of, sample
from clusterjax.experiments.sentiment.model import Source, recipe, reviews, trained
from clusterjax.experiments.sentiment_leaders.claims import claims_of as leader_claims
from clusterjax.experiments.sentiment_leaders.measure import Parameters as OfLeaders, measure as measure_leaders
from clusterjax.experiments.sentiment_training.claims import claims_of as training_claims
from clusterjax.experiments.sentiment_training.measure import Curves
from clusterjax.experiments.sentiment_words.measure import Parameters as OfWords, choose
from clusterjax.sentiment import Encoded, HardmaxClassifier
from clusterjax.sentiment._imdb import digest


SETTINGS = Settings(starts=16, quick=True)


@pytest.fixture(scope="module")
def found():
    """The model that the quick figures show; trained once, for the gallery as well."""
    return trained(SETTINGS, 2, lambda line: None)


def small(seed=0, number=12, width=32, words=50):
    """A model of random words and reviews of 1 to 9 of them."""
    rng = np.random.default_rng(seed)
    model = HardmaxClassifier(rng.normal(size=(words, 2)), rng.normal(size=2), 0.1, 0.8, depth=8)
    ids, counts = np.zeros((number, width), np.int32), np.zeros((number, width), np.int32)
    lengths = rng.integers(1, 10, number).astype(np.int32)
    for row, n in enumerate(lengths):
        ids[row, :n] = 2 + rng.permutation(words - 2)[:n]
        counts[row, :n] = rng.integers(1, 4, n)
    return model, Encoded(ids, counts, np.zeros(number, np.int8), lengths, np.arange(number, dtype=np.int32))


def stepped(z, counts, alpha):
    """One hardmax layer by a loop, and who attends to itself alone."""
    moved, alone = np.empty_like(z), np.zeros(len(z), bool)
    for i in range(len(z)):
        scores = z @ z[i]
        best = np.flatnonzero(scores >= scores.max() - 1e-9)
        moved[i] = z[i] + alpha / (1 + alpha) * (np.average(z[best], axis=0, weights=counts[best]) - z[i])
        alone[i] = best.tolist() == [i]
    return moved, alone


def test_leaders_and_moves_are_those_of_a_loop():
    model, some = small()
    led = leaders_of(model, some)
    moves, growth = further_moves(model, some)
    for row, n in enumerate(some.lengths):
        z = z0 = np.asarray(model.embedding[some.ids[row, :n], 0])
        expected, longest, layers = np.full(n, -1), np.linalg.norm(z0, axis=1).max(), [z0]
        for k in range(64):
            z, alone = stepped(z, some.counts[row, :n], float(model.alpha[0]))
            layers.append(z)
            expected = np.where((expected < 0) & alone & (k <= 2), k, expected)
        assert led.first[row, :n][expected >= 0].tolist() == expected[expected >= 0].tolist()
        assert np.all(led.first[row, n:] == -1)
        np.testing.assert_allclose(moves[row], np.linalg.norm(z - layers[8], axis=1).max() / longest, atol=1e-9)
    assert 0 < growth <= 1 + 1e-12
    assert led.per_word == pytest.approx(led.counts.sum() / some.lengths.sum())


def test_sample_leaves_out_reviews_without_words():
    _, some = small()
    some.lengths[3] = 0
    assert 3 not in sample(some, 12).rows and len(sample(some, 5)) == 5 and len(sample(some, 99)) == 11


def test_distances_are_signed_by_the_decoder(found):
    w, v = np.asarray(found.fitted.model.w[0], float), float(found.fitted.model.v)
    foot = -v * w / (w @ w)
    points = np.stack([foot, foot + 3 * w / np.linalg.norm(w), foot - w / np.linalg.norm(w)])
    np.testing.assert_allclose(found.distances(points), [0.0, 3.0, -1.0], atol=1e-6)


def test_confident_reviews_are_right_and_among_the_farthest_quarter(found):
    chosen = found.confident
    assert 0 < chosen.sum() <= 0.26 * len(chosen) and np.all(found.right[chosen])
    left_out = np.abs(found.logits[found.right & ~chosen])
    assert np.abs(found.logits[chosen]).min() >= left_out.max()


def test_most_frequent_leaders_are_counted_by_hand(found):
    times = {}
    for row in np.flatnonzero(found.confident):
        for place in np.flatnonzero(found.led.first[row] >= 0):
            word = int(found.test.ids[row, place])
            times[word] = times.get(word, 0) + 1
    ids, most = found.frequent(5)
    assert most.tolist() == sorted(times.values(), reverse=True)[:5]
    assert [times[int(i)] for i in ids] == most.tolist()


def test_review_that_is_shown_is_the_most_confident_that_fits(found):
    one = choose(found, 0)
    n, frequent = found.test.lengths, set(found.names[found.frequent()[0]])
    assert (
        found.test.labels[one.row] == 0 and found.right[one.row] and OfWords.shortest <= n[one.row] <= OfWords.longest
    )
    assert len(one.run.names) == n[one.row] and one.run.xs.shape == (9, n[one.row], 2)
    assert one.run.names[one.farthest] in frequent
    np.testing.assert_allclose(one.logit, found.logits[one.row])
    w = np.asarray(found.fitted.model.w[0], float)
    start = np.asarray(found.fitted.model.embedding[found.test.ids[one.row, : n[one.row]], 0], float)
    np.testing.assert_allclose(
        np.linalg.norm(one.run.xs[0] - one.run.xs[0][0], axis=1),
        np.linalg.norm(start - start[0], axis=1), atol=1e-6,
    )  # fmt: skip
    assert np.all(np.sign(one.run.xs[0][:, 0]) == np.sign(start @ w + float(found.fitted.model.v)))


def test_claims_of_the_leaders_fail_where_leaders_mean_nothing(found):
    results = measure_leaders(OfLeaders(), SETTINGS, lambda line: None)
    counted = results.counted
    assert results.fit is found and all(claim.holds for claim in leader_claims(results))
    neutral = np.argsort(np.abs(found.ratio[2:]))[:15] + 2
    wrong = replace(
        counted, ids=neutral, farthest=np.full_like(counted.farthest, neutral[0]), leaders=0.1 * counted.words,
        counts=counted.counts + 2,
    )  # fmt: skip
    held = [claim.holds for claim in leader_claims(replace(results, counted=wrong))]
    assert held == [True, False, False, False, False, True, False]


def test_claims_of_the_training_fail_where_nothing_settles():
    history = {"loss": np.ones(2), "accuracy": np.ones(2)}
    good = Curves(history, 1, 0.9, 0.01, 1.0, np.full(4, 1e-3), 1.0, 0.1, 2.0)
    many = replace(good, per_word=0.9, per_review=60.0)
    assert all(claim.holds for claim in training_claims({2: good, 16: many}))
    bad = replace(good, moves=np.full(4, 0.5), growth=1.1, per_word=0.3, per_review=9.0)
    assert not any(claim.holds for claim in training_claims({2: bad, 16: many}))
    assert good.settled == 1.0 and bad.settled == 0.0


def written(path, texts=200, split=True):
    made = reviews(Source(None, 0, True)).split
    rows = [(text, label, "train") for text, label in zip(made.train.texts, made.train.labels, strict=True)][:texts]
    rows += [(text, label, "test") for text, label in zip(made.test.texts, made.test.labels, strict=True)][:texts]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label", "split"] if split else ["text", "label"])
        writer.writerows(rows if split else [row[:2] for row in rows])
    return path


@pytest.mark.parametrize("split", (True, False))
def test_reviews_of_a_file_are_split_and_hold_no_planted_words(tmp_path, split):
    path = written(tmp_path / "reviews.csv", split=split)
    parts = reviews(Source(str(path), 0, True))
    found = parts.split
    assert parts.data.words == "the reviews of reviews.csv, not IMDb's" and parts.planted == frozenset()
    assert len(found.train) > 0 and len(found.validation) > 0 and len(found.test) > 0
    assert found.overlap()["test_texts"] == 0


def test_figures_of_reviews_are_made_again_for_other_reviews_and_others_are_not(tmp_path):
    path, folder = written(tmp_path / "reviews.csv"), tmp_path / "aclImdb"
    (folder / "train" / "neg").mkdir(parents=True)
    (folder / "train" / "neg" / "0_1.txt").write_text("awful")
    digests = [digest(None), digest(path), digest(folder)]
    path.write_text(path.read_text("utf-8") + "\n", "utf-8")
    (folder / "train" / "neg" / "0_1.txt").write_text("bored")
    assert len({*digests, digest(path), digest(folder)}) == 5
    prints = {
        one.name: [fingerprint(one, replace(SETTINGS, imdb=imdb), Files()) for imdb in (None, path)]
        for one in EXPERIMENTS
    }
    changed = {name for name, (before, after) in prints.items() if before != after}
    of_networks = {"sink-training", "lstm", "sentiment-neuron"}
    assert changed == {"sentiment-words", "sentiment-leaders", "sentiment-training"} | of_networks


def test_recipes_are_smaller_where_quick_and_for_made_up_words():
    assert recipe(Source("imdb", 0, False), 2) == recipe(Source("imdb", 0, True), 2).with_(epochs=6)
    assert recipe(Source(None, 0, False), 2).noise < recipe(Source("imdb", 0, False), 2).noise


def test_reviews_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is not there; check its name"):
        trained(replace(SETTINGS, imdb=tmp_path / "nowhere.csv"), 2, lambda line: None)


def test_logit_of_a_picture_is_that_of_the_model(found):
    one = choose(found, 1)
    n = found.test.lengths[one.row]
    ids, counts = found.test.ids[one.row, :n], found.test.counts[one.row, :n]
    path = found.fitted.model.path(jnp.asarray(ids), jnp.asarray(counts, jnp.float32))
    mean = np.average(np.asarray(path[-1], float), axis=0, weights=counts)
    w, v = np.asarray(found.fitted.model.w[0], float), float(found.fitted.model.v)
    assert one.error < 1e-5 and abs(mean @ w + v - one.logit) < 1e-5
