"""The spectra of a network's heads: against whole operators and tables of words, and claims for either outcome."""

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments.figures.albert_spectra import (
    FIGURE,
    spectra_of,
    untrained_beta,
)
from clusterjax.experiments.shared.networks import network_of
from tests.network_cases import CONFIG, by_name, checkpoint
from tests.probe_cases import T5, tensors_of, write


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="module")
def found(settings):
    return network_of(settings)


@pytest.fixture(scope="module")
def outcome(settings):
    return FIGURE.run(settings, lambda line: None)


@pytest.fixture(scope="module")
def measured(found):
    return spectra_of(found, 0)


def test_spectra_are_those_of_the_whole_operators(outcome, found):
    """V and Q^T K as (d, d) matrices from the tensors of the file, head by head."""
    tensors, d, k = probe.tensors(found.model.network), 16, 4
    kernel = lambda name: (
        np.asarray(tensors[f"encoder.albert_layer_groups.0.albert_layers.0.attention.{name}.weight"], np.float64).T
    )
    dominant, agree, ratios, shares = [], [], [], []
    for head in range(4):
        rows = slice(head * k, (head + 1) * k)
        value, output = kernel("value")[:, rows], kernel("dense")[rows]
        eigenvalues, vectors = np.linalg.eig((value @ output).T)
        top = np.abs(eigenvalues).argmax()
        expected = np.sort(np.abs(eigenvalues))[-k:]
        np.testing.assert_allclose(
            np.sort(np.hypot(outcome.series["real_by_head"][head], outcome.series["imaginary_by_head"][head])),
            expected, rtol=1e-8,
        )  # fmt: skip
        form = kernel("query")[:, rows] @ kernel("key")[:, rows].T / np.sqrt(k)
        if abs(eigenvalues[top].imag) < 1e-9 and eigenvalues[top].real > 0:
            dominant.append(head + 1)
            v = vectors[:, top].real
            agree += [head + 1] * bool(v @ form @ v > 0)
        spread = np.linalg.norm(value) * np.linalg.norm(output) / np.sqrt(k * d)
        ratios.append(abs(eigenvalues[top]) / spread)
        forms = np.linalg.eigvalsh((form + form.T) / 2)
        shares.append(100 * np.sum(forms[forms < 0] ** 2) / np.sum(forms**2))
        assert outcome.series["beta_by_head"][head] == pytest.approx(4 * np.linalg.norm(forms), rel=1e-9)
    leading = by_name(outcome, "V has a leading eigenvalue")
    assert leading.value == len(dominant) and leading.holds == bool(dominant)
    named = lambda heads: f"{len(heads)} {heads}" if heads else "none"
    assert f"is so at {named(dominant)} of 4 heads" in leading.measured
    assert f"also asks, at {named(agree)};" in leading.measured
    discs = by_name(outcome, "At half of the heads")
    assert discs.value == pytest.approx(np.mean(ratios), rel=1e-8)
    assert by_name(outcome, "The symmetric part of Q^T K is positive").value == pytest.approx(max(shares), rel=1e-8)


def test_words_are_nearest_by_hand(found, measured):
    """Each eigenvector of the whole V against each row of the table of words in the hidden space, one by one."""
    assert measured.readings
    network = found.model.network
    table = np.asarray(network.embeddings.word_embeddings.embedding[...], np.float64)
    table = (table - table.mean(axis=0)) @ np.asarray(
        network.encoder.embedding_hidden_mapping_in.kernel[...], np.float64
    )
    names = found.model.tokenizer.convert_ids_to_tokens(list(range(len(table))))
    for reading in measured.readings:
        value, output = (one[0, reading.head] for one in (measured.matrices.value, measured.matrices.output))
        eigenvalues, vectors = np.linalg.eig((value @ output).T)
        real = [i for i in range(16) if abs(eigenvalues[i].imag) < 1e-9 and abs(eigenvalues[i]) > 1e-9]
        best = max(real, key=lambda i: eigenvalues[i].real)
        assert reading.eigenvalue == pytest.approx(eigenvalues[best].real, abs=1e-9)
        others = [e.real for e in eigenvalues if abs(e) > 1e-9]
        assert reading.beaten == (max(others) > reading.eigenvalue + 1e-9)
        v = vectors[:, best].real
        cosines = [row @ v / np.linalg.norm(row) / np.linalg.norm(v) for row in table]
        order = np.argsort(cosines)
        ends = {tuple(names[i] for i in order[::-1][:5]), tuple(names[i] for i in order[:5])}
        assert {tuple(end) for end in reading.ends} == ends
        assert reading.cosine == pytest.approx(np.abs(cosines).max(), abs=1e-9)
        assert reading.drawn.shape == (99,) and 0 < reading.drawn.min() and reading.drawn.max() <= 1


@pytest.mark.parametrize("config", (CONFIG, T5), ids=("albert", "t5"))
def test_beta_before_training_is_that_of_random_weights(tmp_path, config):
    model = probe.load(write(tmp_path, config, tensors_of(config)))
    d, k = probe.head_matrices(model).query.shape[2:]
    query, key, scale = (0.02, 0.02, k**-0.5) if config is CONFIG else ((d * k) ** -0.5, d**-0.5, 1.0)
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(2000):
        form = scale * query * key * rng.normal(size=(d, k)) @ rng.normal(size=(k, d))
        squares.append(d * np.sum(((form + form.T) / 2) ** 2))
    assert untrained_beta(model) == pytest.approx(np.sqrt(np.mean(squares)), rel=0.03)
