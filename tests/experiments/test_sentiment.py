"""The figures of the sentiment model: measured by loops, counted by hand, and made again for other reviews."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from clusterjax.experiments import EXPERIMENTS, Files, Settings
from clusterjax.experiments.figures.sentiment_leaders import Counted, count
from clusterjax.experiments.framework.run import fingerprint
from clusterjax.experiments.shared.sentiment import Source, further_moves, leaders_of, reviews, trained
from clusterjax.sentiment import Encoded, HardmaxClassifier
from clusterjax.sentiment._reviews import digest


SETTINGS = Settings(starts=16, quick=True)


@pytest.fixture(scope="module")
def found():
    """The model that the quick figures show; it is trained once, for the gallery as well."""
    return trained(SETTINGS, 2, lambda line: None)


def small(seed=0, number=12, width=32, words=50):
    """A random model, and reviews of 1 to 9 random words."""
    rng = np.random.default_rng(seed)
    model = HardmaxClassifier(rng.normal(size=(words, 2)), rng.normal(size=2), 0.1, 0.8, depth=8)
    ids, counts = np.zeros((number, width), np.int32), np.zeros((number, width), np.int32)
    lengths = rng.integers(1, 10, number).astype(np.int32)
    for row, n in enumerate(lengths):
        ids[row, :n] = 2 + rng.permutation(words - 2)[:n]
        counts[row, :n] = rng.integers(1, 4, n)
    return model, Encoded(ids, counts, np.zeros(number, np.int8), lengths, np.arange(number, dtype=np.int32))


def stepped(z, counts, alpha):
    """One hardmax layer by a loop, and the tokens that attend to themselves alone."""
    moved, alone = np.empty_like(z), np.zeros(len(z), bool)
    for i in range(len(z)):
        scores = z @ z[i]
        best = np.flatnonzero(scores >= scores.max() - 1e-9)
        moved[i] = z[i] + alpha / (1 + alpha) * (np.average(z[best], axis=0, weights=counts[best]) - z[i])
        alone[i] = best.tolist() == [i]
    return moved, alone


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_what_is_counted_is_counted_by_hand(found):
    """On made-up reviews the counts are those of a loop over leaders and words."""
    planted = reviews(Source.of(SETTINGS)).planted
    one, test = count(found, planted, 6), found.test
    assert Counted.of_record(one.record()).record() == one.record() and one.first(2).names == one.names[:2]
    w, v = np.asarray(found.fitted.model.w[0], float), float(found.fitted.model.v)
    leaders, words, farthest, many = [], [], [], np.zeros(99, int)
    for row in range(len(test)):
        led = []
        for place in range(test.lengths[row]):
            z = np.asarray(found.fitted.model.embedding[test.ids[row, place], 0], float)
            away = (z @ w + v) / np.sqrt(w @ w)
            (leaders if found.led.first[row, place] >= 0 else words).append(away)
            led += [(abs(away), test.ids[row, place])] if found.led.first[row, place] >= 0 else []
        many[len(led)] += test.lengths[row] > 0
        if found.confident[row]:
            farthest.append((max(led)[1], test.labels[row]))
    assert one.reviews_by_leaders.tolist() == many[: len(one.reviews_by_leaders)].tolist() and many.sum() == len(test)
    assert one.leaders.sum() == len(leaders) and one.words.sum() == len(words)
    np.testing.assert_array_equal(one.leaders, np.histogram(leaders, one.edges)[0])
    np.testing.assert_allclose(one.away, [np.median(np.abs(leaders)), np.median(np.abs(words))], rtol=1e-6)
    farther = np.mean([np.mean(abs(leader) > np.abs(words)) for leader in leaders])
    assert one.farther == pytest.approx(farther, abs=1e-4)
    clear = [found.ratio[word] * (1 if label else -1) >= 0.5 for word, label in farthest]
    assert one.own == pytest.approx(np.mean(clear)) and one.confident == len(farthest)
    assert one.planted == pytest.approx(np.mean([found.names[word] in planted for word, _ in farthest]))
    assert one.accuracy == np.mean(found.right) and one.words_a_review == pytest.approx(test.lengths.mean())


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
    of_networks = {"sink-training", "lstm", "sentiment-neuron", "hardmax-open-problems"}
    assert changed == {"sentiment-words", "sentiment-leaders", "sentiment-training"} | of_networks


def test_figures_without_reviews_are_made_again_for_another_classifier_of_the_package(monkeypatch):
    words = next(one for one in EXPERIMENTS if one.name == "sentiment-words")
    before = fingerprint(words, SETTINGS, Files())
    monkeypatch.setattr("clusterjax.experiments.framework.run.shipped_digest", lambda: "another")
    assert fingerprint(words, SETTINGS, Files()) == before | {"classifier": "another"}
    assert len(before["classifier"]) == 64
