"""Figure 1 of a small network: its numbers, its verdicts, and which network and texts it shows."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import kstest, laplace, logistic, norm

from clusterjax import probe
from clusterjax.experiments import Settings
from clusterjax.experiments.figures.figure1 import (
    FIGURE,
    Alike,
    Both,
    Normality,
    Parameters,
    Results,
    _OfBoth,
    beyond_controls,
    distances,
    draw,
    measure_alike,
    more_alike,
    normal_at_first,
    normality,
    normality_of,
    one_cluster_of_all,
    one_cluster_of_words,
    special_apart,
    special_ids,
    spike_by_late,
)
from clusterjax.experiments.shared.networks import Network, model_of, network_digest, network_of, spread
from clusterjax.probe.measures.similarity import _measure_of
from clusterjax.probe.measures.survey import average_of
from tests.helpers import as_a_user
from tests.network_cases import by_name, checkpoint, texts_of
from tests.probe_cases import PLBERT, SHARED, T5, needs_plbert, tensors_of, write


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
    """How many groups chains of cosines of 0.9 join, by walking."""
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
    """With [CLS] and [SEP], ids 2 and 3, and without them."""
    every = cosines(settings, 8, special)
    of = lambda number: np.array([[number(level) for level in text] for text in every])
    near = lambda name, expected, atol=1e-5: np.testing.assert_allclose(
        outcome.series[f"{name} trained{which}"], expected.mean(axis=0), rtol=0, atol=atol
    )
    near("cosine", of(lambda one: pairs(one).mean()))
    near("near_mass", of(lambda one: np.mean(pairs(one) > 0.9)), 0.01)  # in float32 a pair may lie on either side
    near("num_clusters", of(clusters), 0.1)
    near("single", of(lambda one: clusters(one) == 1.0), 0.07)
    near("height", of(lambda one: np.histogram(pairs(one), 200, (-1, 1))[0][190:].max() / len(pairs(one)) / 0.01), 0.5)
    near("width", of(lambda one: np.subtract(*np.quantile(pairs(one), (0.75, 0.25), method="inverted_cdf"))), 0.01)
    assert len(outcome.series["layer"]) == 25 and outcome.parameters["layers of training"] == 3
    assert outcome.parameters["special tokens"] == [2, 3] and isinstance(outcome.draw(), Figure)


@pytest.mark.exhaustive
def test_its_claims_are_about_these_numbers(settings, outcome):
    every = cosines(settings, 8, ())
    mean = np.array([[pairs(level).mean() for level in text] for text in every])
    rise = mean[:, 3] - mean[:, 0]
    claim = by_name(outcome, "Tokens become more alike")
    assert claim.value == pytest.approx(rise.mean(), abs=1e-5)
    assert claim.error == pytest.approx(rise.std(ddof=1) / np.sqrt(len(rise)), abs=1e-5)
    assert claim.holds == (claim.value > 2 * claim.error)
    assert by_name(outcome, "Each histogram").holds and by_name(outcome, "By layer 24 there is")
    normal = by_name(outcome, "Before the first layer")
    first = np.concatenate([pairs(text[0]) for text in every])
    assert normal.value == pytest.approx(kstest(first, norm(first.mean(), first.std()).cdf).statistic, abs=0.02)
    one = by_name(outcome, "As the layers are applied further, all tokens")
    assert one.value == pytest.approx(np.mean([clusters(text[24]) == 1 for text in every]), abs=0.07)


@pytest.mark.exhaustive
def test_special_tokens_are_measured_apart(settings, outcome):
    """Their mean cosine to words, by loops; that of all pairs is the mean of theirs, of words', and of one another."""
    found = network_of(settings)
    every, ids = cosines(settings, 8, ()), found.texts.token_ids
    expected = []
    for text, row, word in zip(every, ids, found.texts.mask, strict=True):
        kept = [row[k] for k in range(len(row)) if word[k]]
        special, words = ([k for k, one in enumerate(kept) if (one in (2, 3)) == of] for of in (True, False))
        expected.append([np.mean([[level[i, j] for j in words] for i in special]) for level in text])
    np.testing.assert_allclose(
        outcome.series["special tokens to words trained"], np.mean(expected, axis=0), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(("apart", "holds"), [(0.1, True), (0.55, False)])
def test_special_tokens_stand_apart_or_not(apart, holds):
    """Of the words (0.6) by 0.5 in all runs: claimed of trained and shuffled, refuted by random weights alike."""
    at = lambda value: average_of(np.array([0.0, value]) + 0.01 * TEXTS)
    found = made(0.6, 0.6, 0.6, apart=at(apart), special=(2, 3))
    random = tuple(one._replace(apart=at(0.6)) for one in found.seen.random)
    found = dataclasses.replace(found, seen=found.seen._replace(random=random))
    claim = special_apart(found)
    assert claim.holds == holds and claim.value == pytest.approx(0.6 - apart)
    both = dataclasses.replace(found, seen=found.seen._replace(random=found.seen.random[:1] * 2))
    assert special_apart(both).holds == holds
    same = tuple(one._replace(apart=at(apart)) for one in random)
    assert not special_apart(dataclasses.replace(found, seen=found.seen._replace(random=same))).holds
    assert special_apart(made(0.9, 0.5, 0.6)) == ()


def hidden_of(n, apart):
    """A text of n tokens at one point, give or take a little, but for the first and the last, which are elsewhere."""
    x = np.tile([1.0, 0.0, 0.0], (n, 1)) + 0.01 * np.random.default_rng(n).normal(size=(n, 3))
    x[[0, -1]] = [0.0, 1.0, 0.0] if apart else [1.0, 0.0, 0.0]
    return jnp.asarray(x)[None]


@pytest.mark.exhaustive_cases("128", "64")
@pytest.mark.parametrize("n", (64, 128))
def test_one_cluster_is_one_cluster_at_any_length(n):
    """The share of near pairs with two tokens apart grows with the length, past 95 % at 128; the clusters stay two."""
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
    assert special_ids(dataclasses.replace(found, special={"ends": 0})) == (0,)
    other = network_of(checkpoint(tmp_path, T5 | {"vocab_size": 70}))
    ids, mask = other.texts
    assert {ids[0, 0], ids[0, mask[0].sum() - 1]} == set(special_ids(other))


QUANTILES = (np.arange(4000) + 0.5) / 4000


@pytest.mark.parametrize(
    ("law", "expected"),
    [(norm(0.1, 0.2), 0.0), (logistic(0.1, 0.04), 0.02266), (laplace(0, 0.1), 0.06203), (None, 0.05721)],
)
def test_distance_from_normal_is_that_of_known_laws(law, expected):
    """The supremum for a uniform law is 0.0572, and so on, whatever mean and spread; as numbers, and as histograms."""
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


@pytest.mark.exhaustive
def test_texts_and_not_pairs_are_resampled():
    """Normal numbers that share a part within their text: a test that takes them as independent rejects nearly all."""
    rng, rejected, naive = np.random.default_rng(1), 0, 0
    for _ in range(40):
        texts = [0.2 * rng.normal() + 0.1 * rng.normal(size=400) for _ in range(24)]
        rejected += normality(texts, rng, np.arange(24)).p < 0.05
        every = np.concatenate(texts)
        naive += kstest(every, norm(every.mean(), every.std()).cdf).pvalue < 0.05
    uniform = [rng.uniform(-0.5, 0.5, 400) for _ in range(24)]
    assert rejected <= 6 and normality(uniform, rng, np.arange(24)).p < 0.01
    assert naive > rejected + 3


def test_articles_and_not_their_texts_are_resampled():
    """Four copies of a text are one: D is what it was, and its bound too, but for the other resamples."""
    rng = np.random.default_rng(2)
    texts = [0.2 * rng.normal() + 0.1 * rng.normal(size=400) for _ in range(12)]
    alone = normality(texts, np.random.default_rng(0), np.arange(12))
    copied = normality(4 * texts, np.random.default_rng(0), np.tile(np.arange(12), 4))
    np.testing.assert_allclose(copied, alone, rtol=1e-12)
    assert normality(4 * texts, np.random.default_rng(0), np.arange(48)).upper < alone.upper - 0.02
    # Articles of one text and of two: a resample weighs its texts alike, however many they are.
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


TEXTS = np.linspace(-1, 1, 4)[:, None]  # how texts differ


def alike(cosine, *, height=1.0, top=2.0, clusters=(2, 2, 2, 2), mode=150):
    """Of four texts at two levels: this mean cosine and spike at the last, these clusters, and a histogram highest in
    bin `mode`."""
    of = lambda first, last: average_of(np.array([first, last]) + 0.01 * TEXTS)
    density = np.full((2, 200), 0.4)
    density[1, mode] = 20.4
    count = average_of(np.array([[5.0, one] for one in clusters]))
    assert count.values is not None
    return Alike(
        probe.Average(density / density.sum(axis=1, keepdims=True) / 0.01, np.zeros((2, 200)), 4), of(0.1, cosine),
        of(0.0, 0.5), count, average_of((count.values == 1) * 1.0), of(0.0, height),
        average_of(np.array([top, height]) - 0.01 * TEXTS), of(0.2, 0.1),
        np.linspace(-1, 1, 201),
    )  # fmt: skip


NEARLY = Normality(0.01, 0.015, 0.001, 0.1, 0.2)


def made(trained, shuffled, random, error=0.01, *, words=None, normal=(NEARLY, NEARLY), apart=None, special=(), **more):
    """What figure 1 found, whose mean cosines are these at the last of two levels."""
    compare = lambda other, error: probe.Comparison(
        np.array([0.0, trained - other]), np.array([0.01, error]), np.array([0.0, (trained - other) / error])
    )
    none = average_of(np.full((4, 2), np.nan))
    both = lambda one, words=None: Both(one, one if words is None else words, none if apart is None else apart)
    runs = both(alike(trained, **more), words), both(alike(shuffled)), (both(alike(random)),) * 2
    controls = probe.Controls(*runs, compare(shuffled, 0.01), compare(random, error), 1, 2.0)
    network = object.__new__(Network)
    network.__dict__["articles"] = np.arange(4)
    return Results(Parameters(), network, controls, None, normal, 1, special)


@pytest.mark.parametrize(
    ("numbers", "beyond"), [((0.9, 0.5, 0.6), True), ((0.5, 0.6, 0.9), False), ((0.5, 0.4, 0.9), False)]
)
def test_both_controls_must_be_exceeded(numbers, beyond):
    assert beyond_controls(made(*numbers)).holds == beyond and more_alike(made(*numbers)).holds


def test_nearly_normal_is_below_the_bound_with_confidence():
    """Both with and without special tokens, and not only at the estimate."""
    assert normal_at_first(made(0.9, 0.5, 0.6)).holds
    for far in (NEARLY._replace(upper=0.026), NEARLY._replace(distance=0.04, upper=0.05)):
        assert not normal_at_first(made(0.9, 0.5, 0.6, normal=(NEARLY, far))).holds
        assert not normal_at_first(made(0.9, 0.5, 0.6, normal=(far, NEARLY))).holds


@pytest.mark.parametrize(
    ("height", "top", "mode", "holds"),
    [(9.0, 2.0, 195, True), (9.0, 2.0, 185, False), (2.005, 2.0, 195, False), (1.0, 2.0, 195, False)],
)
def test_a_spike_is_near_1_and_higher_than_all_before(height, top, mode, holds):
    claim = spike_by_late(made(0.9, 0.5, 0.6, height=height, top=top, mode=mode))
    assert claim.holds == holds and claim.value == pytest.approx(height - top)


def test_one_cluster_is_claimed_with_and_without_special_tokens():
    found = made(0.9, 0.5, 0.6, words=alike(0.9, clusters=(1, 1, 1, 1)))
    every, words = one_cluster_of_all(found), one_cluster_of_words(found)
    assert not every.holds and every.value == 0 and words.holds and words.value == 1
    some = made(0.9, 0.5, 0.6, clusters=(1, 1, 1, 2))
    every = one_cluster_of_all(some)
    assert every.value == 0.75 and not every.holds and every.error == pytest.approx(0.25)
    assert "(shuffled 0, random weights 0 %)" in every.measured


def test_the_claim_has_the_comparison_that_decides():
    """The comparison with the smaller number of standard errors decides."""
    claim = beyond_controls(made(0.6, 0.7, 0.2, error=0.05))
    assert claim.value == pytest.approx(-0.1) and claim.error == pytest.approx(0.01) and not claim.holds
    claim = beyond_controls(made(0.6, 0.5, 0.2, error=0.3))
    assert claim.value == pytest.approx(0.4) and claim.error == pytest.approx(0.3) and not claim.holds


def test_the_usual_scale_is_drawn_beside():
    found = made(0.9, 0.5, 0.6)
    usual = dataclasses.replace(found, usual=found.seen.shuffled)
    assert "random weights, usual scale" in texts_of(draw(usual))


def test_deeper_applies_the_trained_layers_again(settings):
    model = model_of(settings)[0]
    with as_a_user(), pytest.raises(ValueError, match="times must be a positive integer, but it is 0"):
        probe.deeper(model, 0)
    deep = probe.deeper(model, 2)
    assert (model.num_layers, deep.num_layers) == (3, 6)


def test_networks_and_texts_are_told_apart(settings, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("ba lo mi\nne ru ta so\n")
    changed = dataclasses.replace(settings, texts=other)
    assert network_digest(settings, texts=False) == network_digest(changed, texts=False)
    assert network_digest(settings, texts=True) != network_digest(changed, texts=True)
    folder = write(tmp_path / "model", SHARED, tensors_of(SHARED))
    assert network_digest(Settings(albert=folder), texts=False) != network_digest(settings, texts=False)


def test_texts_are_taken_from_all_over():
    assert spread(list("abcdefghi"), 3) == ["a", "e", "i"] and spread(["a", "b"], 5) == ["a", "b"]


def test_a_network_of_phonemes_says_what_it_is(tmp_path):
    """0 stands at both ends of a text, and symbols that it does not know are left out."""
    folder = write(tmp_path / "model", SHARED, tensors_of(SHARED))
    (folder / "phoneme_vocab.json").write_text(json.dumps({"a": 3, "b": 4}))
    (folder / "phonemized_samples.jsonl").write_text('{"phonemes": "abxa"}\n{"phonemes": "b"}\n')
    found = network_of(Settings(albert=folder, quick=True))
    assert found.texts.token_ids[:, :5].tolist() == [[0, 3, 4, 3, 0], [0, 4, 0, 0, 0]]
    assert found.texts.mask.sum(axis=1).tolist() == [5, 3]
    assert "PHONEMES" in found.words.upper() and found.fixed == (0,) and found.names[3] == "a"
    (folder / "phonemized_samples.jsonl").write_text('{"text": "abxa"}\n')
    with pytest.raises(ValueError, match="lines of JSON with 'phonemes' for a network of phonemes"):
        network_of(Settings(albert=folder, quick=True, texts=folder / "phonemized_samples.jsonl"))
    with pytest.raises(ValueError, match="there is no file"):
        network_of(Settings(albert=folder, quick=True, texts=folder / "absent.jsonl"))


@needs_plbert
def test_plbert_is_called_what_it_is():
    found = network_of(Settings(albert=PLBERT, quick=True))
    assert "about 7 bits" in found.words and "phonemes" in found.of_texts and found.texts.mask.shape == (16, 64)
