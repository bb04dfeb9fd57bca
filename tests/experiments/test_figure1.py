"""Figure 1 of a small network: its numbers, distances from the normal law, and the network and texts that it shows."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import laplace, logistic, norm

from clusterjax import probe
from clusterjax.experiments import Settings
from clusterjax.experiments.figures.figure1 import (
    FIGURE,
    _OfBoth,
    distances,
    measure_alike,
    normality,
    normality_of,
    special_ids,
)
from clusterjax.experiments.shared.networks import network_digest, network_of
from clusterjax.probe.measures.similarity import _measure_of
from tests.helpers import as_a_user
from tests.network_cases import checkpoint
from tests.probe_cases import SHARED, T5, tensors_of, write


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="module")
def outcome(settings):
    return FIGURE.run(settings, lambda line: None)


def cosines(settings, times, special):
    """The cosines of the pairs of each text at each level, by loops over the hidden states of a trace."""
    found = network_of(settings)
    traced = probe.trace(probe.deeper(found.model, times), *found.texts)
    rows = []
    for states, word, ids in zip(
        np.asarray(traced.hidden, np.float64), found.texts.mask, found.texts.token_ids, strict=True
    ):
        row = []
        for level in states:
            there = [k for k in range(len(word)) if word[k] and ids[k] not in special]
            unit = [level[k] / np.sqrt(np.sum(level[k] ** 2)) for k in there]
            row.append(np.array([[a @ b for b in unit] for a in unit]))
        rows.append(row)
    return rows


def pairs(matrix):
    return np.array([matrix[i, j] for i in range(len(matrix)) for j in range(i)])


def clusters(matrix):
    """Counts the groups that chains of cosines of at least 0.9 join, by a walk."""
    left, count = set(range(len(matrix))), 0
    while left:
        count, way = count + 1, [left.pop()]
        while way:
            near = {j for j in left if matrix[way[-1], j] >= 0.9}
            way.pop()
            left -= near
            way += near
    return count


@pytest.mark.exhaustive_cases(", without special tokens-special1", "-special0")
@pytest.mark.parametrize(("which", "special"), [("", ()), (", without special tokens", (2, 3))])
def test_its_numbers_are_those_of_loops(settings, outcome, which, special):
    """The numbers agree with and without the special tokens [CLS] and [SEP], whose ids are 2 and 3."""
    every = cosines(settings, 8, special)
    of = lambda number: np.array([[number(level) for level in text] for text in every])
    near = lambda name, expected, atol=1e-5: np.testing.assert_allclose(
        outcome.series[f"{name} trained{which}"], expected.mean(axis=0), rtol=0, atol=atol
    )
    near("cosine", of(lambda one: pairs(one).mean()))
    near("near_mass", of(lambda one: np.mean(pairs(one) > 0.9)), 0.01)  # in float32 a pair may be on either side
    near("num_clusters", of(clusters), 0.1)
    near("single", of(lambda one: clusters(one) == 1.0), 0.07)
    near("height", of(lambda one: np.histogram(pairs(one), 200, (-1, 1))[0][190:].max() / len(pairs(one)) / 0.01), 0.5)
    near("width", of(lambda one: np.subtract(*np.quantile(pairs(one), (0.75, 0.25), method="inverted_cdf"))), 0.01)
    assert len(outcome.series["layer"]) == 25 and outcome.parameters["layers of training"] == 3
    assert outcome.parameters["special tokens"] == [2, 3] and isinstance(outcome.draw(), Figure)


def hidden_of(n, apart):
    """The states of n tokens near one point; the first and the last token are elsewhere if `apart`."""
    x = np.tile([1.0, 0.0, 0.0], (n, 1)) + 0.01 * np.random.default_rng(n).normal(size=(n, 3))
    x[[0, -1]] = [0.0, 1.0, 0.0] if apart else [1.0, 0.0, 0.0]
    return jnp.asarray(x)[None]


@pytest.mark.exhaustive_cases("128", "64")
@pytest.mark.parametrize("n", (64, 128))
def test_one_cluster_is_one_cluster_at_any_length(n):
    """With two tokens apart the share of near pairs grows with n and is 95 % or more at 128; the clusters stay two."""
    words = jnp.ones((1, n), bool).at[:, jnp.array([0, -1])].set(False)
    of = _OfBoth(_measure_of(200, 0.9, (0.25, 0.75), False, np.float64), 0.9, words)
    parted, joined = (of(hidden_of(n, apart), jnp.ones((1, n), bool)) for apart in (True, False))
    assert parted["every num_clusters"] == 2 and parted["words num_clusters"] == joined["every num_clusters"] == 1
    assert parted["every near_mass"] == pytest.approx(((n - 2) * (n - 3) + 2) / (n * (n - 1)))
    assert (parted["every near_mass"] >= 0.95) == (n >= 128) and parted["words near_mass"] == 1
    assert parted["words cosine"] > 0.99 > parted["every cosine"]


def test_a_text_needs_words_beside_its_special_tokens(settings):
    found = network_of(settings)
    short = probe.Encoded(found.texts.token_ids[:2], found.texts.mask[:2].copy())
    short.mask[1, 2:] = False
    with as_a_user(), pytest.raises(ValueError, match="texts must have two words each .* but text 1 has fewer"):
        measure_alike(found.model, short, special=(2, 3))


def test_what_stands_at_the_ends_is_special(settings, tmp_path):
    found = network_of(settings)
    assert special_ids(found) == (2, 3)
    assert special_ids(found._replace(special={"ends": 0})) == (0,)
    other = network_of(checkpoint(tmp_path, T5 | {"vocab_size": 70}))
    ids, mask = other.texts
    assert {ids[0, 0], ids[0, mask[0].sum() - 1]} == set(special_ids(other))


QUANTILES = (np.arange(4000) + 0.5) / 4000


@pytest.mark.parametrize(
    ("law", "expected"),
    [(norm(0.1, 0.2), 0.0), (logistic(0.1, 0.04), 0.02266), (laplace(0, 0.1), 0.06203), (None, 0.05721)],
)
def test_distance_from_normal_is_that_of_known_laws(law, expected):
    """Distances of known laws, such as 0.0572 for a uniform one, are found for any mean and spread, also in bins."""
    rng = np.random.default_rng(0)
    numbers = 1.6 * QUANTILES - 0.8 if law is None else law.ppf(QUANTILES)
    found = normality(np.array_split(rng.permutation(numbers), 20), rng, np.arange(20))
    assert found.distance == pytest.approx(expected, abs=2e-3) and found.upper > found.distance
    assert (found.p < 0.01) == (expected > 0.03) or expected == 0.02266
    assert found.mean == pytest.approx(numbers.mean(), abs=1e-9)
    assert found.spread == pytest.approx(numbers.std(), abs=1e-9)
    counts, edges = np.histogram(numbers, 200, (-1, 1), density=True)
    assert distances(counts[None], edges)[0] == pytest.approx(expected, abs=3e-3)


def test_a_spike_of_two_bins_has_no_distance():
    edges = np.linspace(-1, 1, 201)
    spike = np.zeros((2, 200))
    spike[:, -1], spike[1, 0] = 1.0, 1.0
    found = distances(spike, edges)
    assert np.isnan(found[0]) and found[1] > 0.3


def test_articles_and_not_their_texts_are_resampled():
    """Four copies of each text change nothing if they are one article, and lower the bound if they are four."""
    rng = np.random.default_rng(2)
    texts = [0.2 * rng.normal() + 0.1 * rng.normal(size=400) for _ in range(12)]
    alone = normality(texts, np.random.default_rng(0), np.arange(12))
    copied = normality(4 * texts, np.random.default_rng(0), np.tile(np.arange(12), 4))
    np.testing.assert_allclose(copied, alone, rtol=1e-12)
    assert normality(4 * texts, np.random.default_rng(0), np.arange(48)).upper < alone.upper - 0.02
    # With articles of one text and of two, a resample weighs all its texts alike, however many there are.
    uneven = normality([*texts, *texts[:6]], np.random.default_rng(0), np.arange(18) % 12)
    assert uneven.upper < 1.3 * alone.upper


def test_normality_is_of_the_tokens_before_the_first_layer(settings):
    found = network_of(settings)
    for special in ((), (2, 3)):
        every = [pairs(text[0]) for text in cosines(settings, 1, special)]
        of = normality_of(found.model, found.texts, special, np.random.default_rng(0), found.articles)
        expected = normality(every, np.random.default_rng(0), found.articles)
        np.testing.assert_allclose(of, expected, rtol=0, atol=1e-4)
        assert of.mean == pytest.approx(np.mean([one.mean() for one in every]), abs=1e-5)


def test_networks_and_texts_are_told_apart(settings, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("ba lo mi\nne ru ta so\n")
    changed = dataclasses.replace(settings, texts=other)
    assert network_digest(settings, texts=False) == network_digest(changed, texts=False)
    assert network_digest(settings, texts=True) != network_digest(changed, texts=True)
    folder = write(tmp_path / "model", SHARED, tensors_of(SHARED))
    assert network_digest(Settings(albert=folder), texts=False) != network_digest(settings, texts=False)


def test_a_network_of_phonemes_says_what_it_is(tmp_path):
    """The id 0 is at both ends of a text, and symbols that the network does not know are left out."""
    folder = write(tmp_path / "model", SHARED, tensors_of(SHARED))
    (folder / "phoneme_vocab.json").write_text(json.dumps({"a": 3, "b": 4}))
    (folder / "phonemized_samples.jsonl").write_text('{"phonemes": "abxa"}\n{"phonemes": "b"}\n')
    found = network_of(Settings(albert=folder, quick=True))
    assert found.texts.token_ids[:, :5].tolist() == [[0, 3, 4, 3, 0], [0, 4, 0, 0, 0]]
    assert found.texts.mask.sum(axis=1).tolist() == [5, 3]
    assert "PHONEMES" in found.words.upper() and found.fixed == (0,) and found.names[3] == "a"
