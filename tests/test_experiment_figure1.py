"""Figure 1 of a small network: its numbers, its verdicts, and which network and texts it shows."""

import dataclasses
import json

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments import Settings
from clusterjax.experiments._figure1 import FIGURE1, _claims, _verdict
from clusterjax.experiments._networks import model_of, network_digest, network_of, spread

from .helpers import as_a_user
from .network_cases import by_name, checkpoint, texts_of
from .probe_cases import PLBERT, SHARED, needs_plbert, tensors_of, write


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="module")
def outcome(settings):
    return FIGURE1.run(settings, lambda line: None)


def cosines(settings, times):
    """Mean cosine of each level of each text, by loops over the hidden states of a trace."""
    found = network_of(settings)
    traced = probe.trace(probe.deeper(found.model, times), *found.texts)
    hidden, mask = np.asarray(traced.hidden, np.float64), np.asarray(traced.mask)
    rows = []
    for states, word in zip(hidden, mask, strict=True):
        row = []
        for level in states:
            tokens = [token / np.sqrt(np.sum(token**2)) for token, there in zip(level, word, strict=True) if there]
            pairs = [tokens[i] @ tokens[j] for i in range(len(tokens)) for j in range(i)]
            row.append(sum(pairs) / len(pairs))
        rows.append(row)
    return np.array(rows)


def test_its_numbers_are_those_of_loops(settings, outcome):
    expected = cosines(settings, 2)
    np.testing.assert_allclose(outcome.series["cosine trained"], expected.mean(axis=0), atol=1e-5)
    rise = expected[:, 3] - expected[:, 0]
    claim = by_name(outcome, "Tokens become more alike")
    assert claim.value == pytest.approx(rise.mean(), abs=1e-5)
    assert claim.error == pytest.approx(rise.std(ddof=1) / np.sqrt(len(rise)), abs=1e-5)
    assert claim.holds == (claim.value > 2 * claim.error)
    assert by_name(outcome, "Each histogram").holds
    assert len(outcome.series["layer"]) == 7 and outcome.parameters["layers of training"] == 3


def test_it_draws_the_network_beside_its_controls(outcome):
    figure = outcome.draw()
    written = texts_of(figure)
    assert {"trained", "tokens shuffled", "random weights", "layer 0", "layer 3", "layer 6", "mean cosine"} <= {
        *written
    }
    assert "random weights, usual scale" not in written and "drawn as transformers begins" in outcome.caption
    assert outcome.film is None and "16 passages of at most" in outcome.caption


def made(trained, shuffled, random, error=0.01):
    """Controls whose mean cosines are these at the last of two levels, of two texts, with the error of the random
    ones."""
    average = lambda mean: probe.Average(np.array([0.1, mean]), np.array([0.01, 0.01]), 2, np.array([[0.1, mean]] * 2))
    shape = lambda mean: probe.Similarity(
        np.array([-1.0, 1.0]), probe.Average(np.full((2, 1), 0.5), np.zeros((2, 1)), 2), np.array([0.5]),
        *(average(mean) for _ in range(5)), near=0.9,
    )  # fmt: skip
    compare = lambda other, error: probe.Comparison(
        np.array([0.0, trained - other]), np.array([0.01, error]), np.array([0.0, (trained - other) / error])
    )
    runs = shape(trained), shape(shuffled), (shape(random),) * 2
    return probe.Controls(*runs, compare(shuffled, 0.01), compare(random, error), 1, 2.0)


@pytest.mark.parametrize(
    ("numbers", "words", "beyond"),
    [
        ((0.9, 0.5, 0.6), "above that of shuffled tokens (0.50) and above that of random weights (0.60): what", True),
        ((0.5, 0.6, 0.9), "below that of shuffled tokens (0.60) and below that of random weights (0.90).", False),
        ((0.5, 0.4, 0.9), "above that of shuffled tokens (0.40) and below that of random weights (0.90).", False),
        ((0.5, 0.5, 0.4), "no different from that of shuffled tokens (0.50) and above that of", False),
    ],
)
def test_the_verdict_says_what_was_found(numbers, words, beyond):
    seen = made(*numbers)
    assert words in _verdict(seen, 1)
    claims = {claim.says.split()[0]: claim for claim in _claims(seen, 1)}
    assert claims["The"].holds == beyond
    assert claims["Tokens"].holds


def test_the_claim_has_the_comparison_that_decides():
    """That with shuffled tokens, of which it has fewer, and not that with the larger error."""
    claim = {claim.says.split()[0]: claim for claim in _claims(made(0.6, 0.7, 0.2, error=0.05), 1)}["The"]
    assert claim.value == pytest.approx(-0.1) and claim.error == pytest.approx(0.01) and not claim.holds
    claim = {claim.says.split()[0]: claim for claim in _claims(made(0.6, 0.5, 0.2, error=0.3), 1)}["The"]
    assert claim.value == pytest.approx(0.4) and claim.error == pytest.approx(0.3) and not claim.holds


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
