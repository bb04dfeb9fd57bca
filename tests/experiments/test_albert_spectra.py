"""The words along the eigenvectors of a network's heads, against whole tables of words, and beta before training."""

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments.figures.albert_spectra import spectra_of, untrained_beta
from clusterjax.experiments.shared.networks import network_of
from tests.network_cases import CONFIG, checkpoint
from tests.probe_cases import T5, tensors_of, write


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return network_of(checkpoint(tmp_path_factory.mktemp("network")))


def test_words_are_nearest_by_hand(found):
    """Each eigenvector of the whole V is compared with each row of the table of words in the hidden space."""
    measured = spectra_of(found, 0)
    assert measured.readings
    network = found.model.network
    table = np.asarray(network.words.embedding[...], np.float64)
    table = (table - table.mean(axis=0)) @ np.asarray(network.projection.kernel[...], np.float64)
    names = found.model.tokenizer.convert_ids_to_tokens(list(range(len(table))))
    for reading in measured.readings:
        value, output = (one[0, reading.head] for one in (measured.matrices.value, measured.matrices.output))
        eigenvalues, vectors = np.linalg.eig((value @ output).T)
        real = [i for i in range(16) if abs(eigenvalues[i].imag) < 1e-9 and abs(eigenvalues[i]) > 1e-9]
        best = max(real, key=lambda i: eigenvalues[i].real)
        assert reading.eigenvalue == pytest.approx(eigenvalues[best].real, abs=1e-9)
        others = [e.real for e in eigenvalues if abs(e) > 1e-9]
        assert reading.overtaken == (max(others) > reading.eigenvalue + 1e-9)
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
