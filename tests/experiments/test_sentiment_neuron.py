"""Units for sentiment: a planted neuron, a planted direction, areas and discriminants, and the tokens that are read."""

import numpy as np
import pytest

from clusterjax.experiments.figures.sentiment_neuron import (
    LENGTH,
    STRENGTHS,
    areas,
    difference_of_means,
    discriminants,
    encoded,
    every_other,
    measured_units,
)
from clusterjax.experiments.shared.small_models import Labelled
from clusterjax.probe.measures.neurons import UnitMeans
from tests.causal_cases import causal_model


def planted(rng, labels, sure):
    """Means where praise lowers neuron 2 of layer 1 in a share `sure` of texts, and raises (1, 1, 0, 0) at level 2."""
    many = len(labels)
    neurons = rng.normal(size=(many, 2, 5))
    shown = labels ^ (np.arange(many) >= sure * many)
    neurons[:, 1, 2] = -3.0 * shown + 0.1 * rng.normal(size=many)
    levels = rng.normal(size=(many, 3, 4))
    levels[:, 2, :2] += 4.0 * labels[:, None]
    # Noise that is common to both coordinates with opposite signs hides either coordinate, and not their sum.
    noise = 8 * rng.normal(size=many)
    levels[:, 2, 0] += noise
    levels[:, 2, 1] -= noise
    return UnitMeans(neurons, levels)


def test_planted_units_are_found_and_scored_on_other_texts():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(400) % 2 == 1)
    others = rng.permutation(np.arange(200) % 2 == 1)
    units = measured_units([planted(rng, labels, 0.9), planted(rng, others, 0.7)], (labels, others))
    neuron = units.best["neuron"]
    assert neuron.unit == 1 * 5 + 2 and neuron.many == 10 and units.neurons == 5
    assert neuron.chosen == pytest.approx(0.9, abs=0.01) and neuron.accuracy == pytest.approx(0.7, abs=0.01)
    assert units.best["direction"].unit == 2 and units.best["direction"].accuracy > 0.8
    # The common noise of the two coordinates hides neither the discriminant nor the difference of means.
    level, strength = divmod(units.best["discriminant"].unit, 4)
    assert level == 2 and units.best["discriminant"].accuracy > 0.8 and 0 <= strength < 4
    assert units.best["coordinate"].accuracy < 0.75
    assert units.neuron_areas.shape == (2,) and units.direction_areas.shape == (3,)
    # The neuron is low for praise: its area counts from the side that was chosen.
    assert units.neuron_areas[1] > 0.6 and units.direction_areas[2] > 0.9 > units.direction_areas[0]


def test_a_half_is_one_half_of_each_kind_in_whatever_order():
    for labels in (np.arange(40) % 2 == 1, np.arange(40) < 20, np.random.default_rng(3).permutation(41) < 20):
        half = every_other(labels)
        for kind in (labels, ~labels):
            assert np.sum(half & kind) == -(-kind.sum() // 2)
    rng, labels = np.random.default_rng(4), np.arange(80) % 2 == 1  # labels alternate in made-up texts
    units = measured_units([planted(rng, labels, 0.9), planted(rng, labels, 0.7)], (labels, labels))
    assert units.best["direction"].unit == 2 and np.all(np.isfinite(units.direction_areas))


def test_level_and_threshold_of_a_direction_are_chosen_on_other_texts_than_itself():
    """In many dimensions the difference of means of noise separates the texts that it was computed from, no others."""
    rng, labels = np.random.default_rng(2), np.arange(80) % 4 < 2
    noise = lambda: UnitMeans(rng.normal(size=(80, 1, 3)), rng.normal(size=(80, 1, 200)))
    units = measured_units([noise(), noise()], (labels, labels))
    assert units.best["direction"].chosen < 0.75 and abs(units.best["direction"].accuracy - 0.5) < 0.2


def test_areas_and_directions_are_those_of_loops():
    rng = np.random.default_rng(1)
    labels, values = np.array([1, 0, 1, 1, 0, 0], bool), rng.integers(0, 4, (6, 3)).astype(float)
    for k in range(3):
        pairs = [(a > b) + 0.5 * (a == b) for a in values[labels, k] for b in values[~labels, k]]
        assert areas(values, labels)[k] == pytest.approx(np.mean(pairs))
    levels = rng.normal(size=(6, 2, 3))
    expected = sum(levels[i] / 3 if labels[i] else -levels[i] / 3 for i in range(6))
    np.testing.assert_allclose(difference_of_means(levels, labels), expected, atol=1e-12)


def test_discriminants_solve_their_equations_and_end_in_the_difference_of_means():
    """Noise along (1, -1) hides a difference along (1, 0.2): the discriminant turns away from the noise, the less so
    the larger lambda is."""
    rng, labels = np.random.default_rng(5), np.arange(300) % 2 == 1
    levels = rng.normal(size=(300, 2, 3)) + 3 * rng.normal(size=(300, 2, 1)) * np.array([1.0, -1.0, 0.0])
    levels += labels[:, None, None] * np.array([1.0, 0.2, 0.0])
    found, apart = discriminants(levels, labels), difference_of_means(levels, labels)
    for level in range(2):
        within = sum(np.cov(levels[of, level].T, ddof=0) * of.mean() for of in (labels, ~labels))
        for number, strength in enumerate(STRENGTHS):
            damped = within + strength * np.trace(within) / 3 * np.eye(3)
            np.testing.assert_allclose(damped @ found[level, number], apart[level], atol=1e-10)
        noise = np.array([1.0, -1.0, 0.0]) / np.sqrt(2)
        seen = [abs(w @ noise) / np.linalg.norm(w) for w in [*found[level], apart[level]]]
        assert seen == sorted(seen) and seen[0] < 0.3 < seen[-1]


def test_the_last_tokens_are_read(monkeypatch):
    text = "cdefghijklmnopqrstuvwxyz" * 4
    model = causal_model()
    letters = model.tokenizer
    model.__dict__["tokenizer"] = lambda texts, add_special_tokens, verbose: letters(texts)
    ids, present = encoded(model, Labelled([text, "cde"], np.array([True, False])))
    assert ids.shape == (2, LENGTH) and present.sum(axis=1).tolist() == [LENGTH, 3]
    assert [chr(ord("a") + i) for i in ids[0]] == list(text[-LENGTH:])
    assert ids[1, :4].tolist() == [2, 3, 4, 0]
