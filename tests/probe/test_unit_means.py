"""Means of units over tokens equal those of tools for one layer, on several kinds of networks, with padding."""

import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe, transformer
from clusterjax.probe.measures import neurons as means
from tests.causal_cases import causal_model


MODELS = {"llama": causal_model, "language model": lambda: probe.load("language-model"), "ALBERT": probe.load}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", MODELS)
def test_means_are_those_of_each_layer_by_itself(kind, monkeypatch):
    """Levels equal `probe.trace`, and neurons equal `transformer.mean_activations`, except for ALBERT."""
    monkeypatch.setattr(means, "BATCH", 2)
    model, rng = MODELS[kind](), np.random.default_rng(0)
    ids = rng.integers(5, 26, (3, 7)).astype(np.int32)
    mask = np.ones((3, 7), bool)
    mask[1, 4:] = False
    found = means.unit_means(model, ids, mask)
    assert len(found.neurons) == 3 and found.levels.shape[:2] == (3, model.num_layers + 1)
    # The last level of `trace` is after the last norm.
    hidden = np.asarray(probe.trace(model, ids, mask).hidden, float)[:, :-1]
    for text in range(3):
        words = np.flatnonzero(mask[text])[1:]
        np.testing.assert_allclose(found.levels[text, :-1], hidden[text][:, words].mean(axis=1), atol=2e-5, rtol=1e-5)
    for layer in range(model.num_layers):
        # The mean without the first word follows from the means over all words and, in causal networks, the first.
        if kind == "ALBERT":
            continue
        count = mask.sum(axis=1)[:, None]
        every = transformer.mean_activations(model, ids, mask, layer=layer) * count
        first = transformer.mean_activations(model, ids, np.arange(7) < np.ones((3, 1)), layer=layer)
        np.testing.assert_allclose(found.neurons[:, layer], (every - first) / (count - 1), atol=2e-5, rtol=1e-4)


def test_dynamic_rotations_follow_the_length_of_each_text():
    """Frequencies of a text longer than the trained positions depend on its length, in levels and in neurons."""
    config = {
        "model_type": "llama", "vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 20, "initializer_range": 0.5, "max_position_embeddings": 6,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0},
    }  # fmt: skip
    model, ids = probe.from_config(config, jr.key(0), dtype="float64"), np.arange(18).reshape(2, 9).astype(np.int32)
    mask = np.arange(9) < np.array([9, 7])[:, None]
    found = means.unit_means(model, ids, mask)
    for place, values in (("stream", found.levels), ("neuron", found.neurons)):
        of_words = np.asarray(probe.activations(model, ids, mask, place=place))
        for text in range(2):
            expected = of_words[text][:2, 1 : mask[text].sum()].mean(axis=1)
            np.testing.assert_allclose(values[text, :2], expected, rtol=1e-5, atol=1e-6)


def test_a_text_of_one_token_is_refused():
    with pytest.raises(ValueError, match="two tokens of each text, but text 1 has fewer"):
        means.unit_means(causal_model(), np.ones((2, 3), np.int32), np.array([[1, 1, 1], [1, 0, 0]], bool))
