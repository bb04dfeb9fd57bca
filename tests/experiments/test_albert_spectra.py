"""The spectra of a network's heads: against whole operators and tables of words, and claims for either outcome."""

from dataclasses import replace

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments import Settings
from clusterjax.experiments.figures.albert_spectra import (
    CLAIMS,
    FIGURE,
    LETTERS,
    draw,
    listed,
    spectra_of,
    untrained_beta,
)
from clusterjax.experiments.framework.figure import stated
from clusterjax.experiments.shared.networks import network_of
from tests.network_cases import CONFIG, by_name, checkpoint, texts_of
from tests.probe_cases import PLBERT, T5, needs_plbert, tensors_of, write


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


def test_so_many_words_as_there_is_room_for():
    assert listed(["ab", "$"]) == r"ab  \$" and listed(["x" * 50, "y"]) == "x" * 50
    assert len(listed(["abcdefghij"] * 9)) <= LETTERS


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


def test_claims_of_the_spectra_hold_and_fail(measured):
    line = np.tile(np.array([2.0, 0.5, -0.1, -1.0], complex), (4, 1))
    good = replace(
        measured, value=line, radius=np.full(4, 0.5), beta=np.full(4, 9.0), untrained=1.0,
        readings=tuple(replace(reading, cosine=1.0) for reading in measured.readings),
    )  # fmt: skip
    turned = np.tile(np.array([1j, -1j, -0.5, -1.0], complex), (4, 1))
    bad = replace(
        good, value=turned, radius=np.ones(4), untrained=9.0, beta=np.ones(4),
        readings=tuple(replace(reading, cosine=0.0) for reading in measured.readings),
    )  # fmt: skip
    assert [claim.holds for claim in stated(CLAIMS, good)][:5] == [True, False, True, True, True]
    assert [claim.holds for claim in stated(CLAIMS, bad)][:5] == [False] * 5
    assert good.rightmost.all() and not bad.rightmost.any() and not bad.dominant.any()
    definite = replace(good, forms=np.full((4, 16), 0.5), matrices=wide(measured.matrices))
    claims = stated(CLAIMS, definite)
    assert claims[1].holds and "at 4 of 4 heads;" in claims[1].measured
    assert not any("inertia" in claim.says for claim in claims)


def wide(matrices):
    """Heads so wide that Q^T K may have full rank."""
    repeat = lambda array, axis: np.repeat(array, 4, axis=axis)
    return matrices._replace(
        query=repeat(matrices.query, 3), key=repeat(matrices.key, 3), value=repeat(matrices.value, 3),
        output=repeat(matrices.output, 2),
    )  # fmt: skip


def test_spectra_without_names_are_drawn_without_words(found, measured):
    """No tokenizer and no symbols; and a star only where a pair has a larger real part."""
    bare = replace(found, model=replace(found.model, folder=None))
    without = spectra_of(bare, 0)
    assert without.readings == () and len(stated(CLAIMS, without)) == 4 + 3
    assert "(d)" not in texts_of(draw(without))
    star = replace(measured, readings=(replace(measured.readings[0], beaten=True),))
    assert any(text.endswith("*") for text in texts_of(draw(star)))


def test_symbols_without_names_are_passed_over(found):
    names = {int(i): f"s{i}" for i in range(0, 70, 2)}
    readings = spectra_of(replace(found, names=names), 0).readings
    assert readings and all(word in names.values() for reading in readings for end in reading.ends for word in end)


@needs_plbert
def test_spectra_of_a_trained_network():
    """PL-BERT: known heads have a leading eigenvalue as the theorem asks; the words are its phonemes."""
    outcome = FIGURE.run(Settings(quick=True, albert=PLBERT), lambda line: None)
    assert "at 2 [9, 11] of 12 heads" in outcome.claims[0].measured and outcome.claims[0].holds
    assert all(claim.holds for claim in outcome.claims if claim.kind == "identity")
    assert {"ʤ", "ø"} <= set(" ".join(texts_of(outcome.draw())).split())
