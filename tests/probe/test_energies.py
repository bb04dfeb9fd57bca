"""The energy at each level equals a double loop, and the parts of its changes follow from the intermediate streams."""

import math

import numpy as np
import pytest

from clusterjax import probe
from tests.probe_cases import IDS, WORDS, assert_refused, kinds, tiny


TEXTS = probe.Encoded(IDS.astype(np.int32), WORDS)


def energy(x, beta):
    """The energy of the directions of the rows, pair by pair."""
    n, total = len(x), 0.0
    for i in range(n):
        for j in range(n):
            total += math.exp(beta * float(x[i] @ x[j]) / math.sqrt(float(x[i] @ x[i]) * float(x[j] @ x[j])))
    return total / (2 * beta * n * n)


@pytest.mark.exhaustive_cases("bert")
@pytest.mark.parametrize("kind", kinds("gpt2", "bert"))
def test_parts_add_up_to_the_changes_between_levels(kind):
    """Levels equal double loops, parts equal differences of the streams of `activations`, in batches of two texts."""
    model, beta = tiny(kind), 1.5
    found = probe.energy_budget(model, TEXTS, beta=beta, margin=True, batch_size=2)
    hidden = np.asarray(probe.trace(model, *TEXTS).hidden)
    expected = [[energy(level[words], beta) for level in levels] for levels, words in zip(hidden, WORDS, strict=True)]
    np.testing.assert_allclose(found.energy.values, expected, rtol=1e-12)
    np.testing.assert_allclose(found.change.values, np.diff(expected, axis=1), rtol=0, atol=1e-12)
    parts = found.attention.values + found.feed_forward.values + found.norm.values + found.remainder.values
    np.testing.assert_allclose(parts, found.change.values, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.remainder.values, 0, atol=1e-12)
    np.testing.assert_array_equal(found.falls.values, found.change.values < 0)
    streams, updates, fed = (
        np.asarray(probe.activations(model, *TEXTS, place=place)) for place in ("stream", "attention", "feed_forward")
    )
    post = model.network.blocks()[0].post_norm
    for text, words in enumerate(WORDS):
        for layer in range(model.num_layers):
            x = streams[text, layer][words]
            with_heads = x + updates[text, layer][words]
            attention = energy(with_heads, beta) - energy(x, beta)
            np.testing.assert_allclose(found.attention.values[text, layer], attention, rtol=0, atol=1e-11)
            if not post:
                both = with_heads + fed[text, layer][words]
                change = energy(both, beta) - energy(with_heads, beta)
                np.testing.assert_allclose(found.feed_forward.values[text, layer], change, rtol=0, atol=1e-11)
                # Only the norm after the last layer acts on the stream.
                last = layer == model.num_layers - 1 and model.network.norm is not None
                assert last or abs(found.norm.values[text, layer]) < 1e-12
    assert found.margin.values.shape == found.energy.values.shape


def test_equal_tokens_have_the_largest_energy_and_margin():
    """Without positions, tokens of one word coincide: E = e^beta / (2 beta), and their hemisphere has the margin 1."""
    texts = probe.Encoded(np.full((1, 6), 3), np.ones((1, 6), bool))
    found = probe.energy_budget(tiny("llama"), texts, beta=1.5, margin=True)
    np.testing.assert_allclose(found.energy.values, math.exp(1.5) / 3.0, rtol=1e-12)
    np.testing.assert_allclose(found.margin.values, 1, rtol=1e-9)


def test_layers_that_add_nothing_leave_the_energy_and_edits_are_refused():
    model = tiny("gpt2")
    same = probe.patch(model, probe.Edit("stream", np.arange(1.0, 13.0), layer=2))
    with pytest.raises(ValueError, match="model must be without edits of patch"):
        probe.energy_budget(same, TEXTS)
    silent = probe.without(probe.without(model, "attention"), "feed_forward")
    found = probe.energy_budget(silent, TEXTS)
    # The layers add nothing, so that only the last norm changes the energy.
    for part in (found.attention, found.feed_forward):
        np.testing.assert_allclose(part.values, 0, atol=1e-14)
    np.testing.assert_allclose(found.change.values[:, :-1], 0, atol=1e-14)
    np.testing.assert_allclose(found.norm.values[:, -1], found.change.values[:, -1], atol=1e-14)


def test_errors_are_over_units_and_options_are_checked():
    model = tiny("gpt2")
    found, units = (probe.energy_budget(model, TEXTS, units=units) for units in (None, np.array([0, 0, 1])))
    np.testing.assert_allclose(found.energy.mean, units.energy.mean)
    assert not np.allclose(found.energy.error, units.energy.error)
    budget = lambda **options: lambda: probe.energy_budget(model, TEXTS, **options)
    assert_refused(
        (budget(beta=0.0), "beta must be"), (budget(beta=81.0), "beta must be"), (budget(margin=1), "margin must be"),
        (budget(units=np.array([0, 1])), "units must be"), (budget(batch_size=0), "batch_size must be"),
    )  # fmt: skip
