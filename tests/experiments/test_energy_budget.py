"""The energy along the layers: verdicts on made-up budgets, and the energy computed again from a traced stream."""

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments.figures import energy_budget as file
from clusterjax.experiments.shared.causal import OWN, PASSAGES
from clusterjax.experiments.shared.every_network import at_hand
from clusterjax.probe.measures.survey import average_of, clustered_error
from tests.probe_cases import IDS, tiny


ARTICLES = np.array([0, 0, 1, 1, 2, 2, 3, 3])
NOISE = 1e-3 * np.random.default_rng(0).normal(size=(8, 3))
TEXTS = probe.Encoded(np.zeros((8, 16), np.int32), np.ones((8, 16), bool))
CHANGE, ATTENTION, FEED_FORWARD = (np.array(row) for row in ([0.2, 0.1, 0.3], [0.4, 0.3, 0.5], [-0.1, -0.1, -0.2]))


def budget(change=CHANGE, attention=ATTENTION, feed_forward=FEED_FORWARD, margin=0.3, lost=0.0, start=0.6):
    """A budget of 8 texts in 3 layers, whose parts are the given means with a little noise."""
    change, attention, feed_forward = (part + NOISE for part in (change, attention, feed_forward))
    energy = start + np.concatenate([np.zeros((8, 1)), np.cumsum(change, axis=1)], axis=1)
    norm = change - attention - feed_forward - lost
    of = lambda values: average_of(values, ARTICLES)
    margins = of(np.full((8, 4), margin) + NOISE[:, :1])
    parts = (energy, change, attention, feed_forward, norm, np.full((8, 3), lost), (change < 0).astype(float))
    return probe.EnergyBudget(*map(of, parts), margins, 1.0)


def results(trained, shuffled=None, random=None, off=0.0):
    random = random or tuple(budget(change=CHANGE / k, margin=0.1, start=0.6) for k in (4.0, 5.0))
    controls = probe.Controls(trained, shuffled or budget(0.5 * CHANGE, margin=0.2), random, *[None] * 2, -1, 2.0)
    given = at_hand("own", OWN, PASSAGES, tiny("gpt2"), TEXTS, ARTICLES)
    return file.Results(file.Parameters(), {"own": file.Compared(given, controls, off)})


def holds(claims, m):
    return claims[1](m).holds


def test_no_layer_lowers_the_energy_unless_one_does_beyond_rounding():
    """A single fall of a single text refutes the claim; its value is the fraction of texts and layers."""
    m = results(budget())
    assert holds(file.never_falls, m) and file.never_falls[1](m).value == 0
    assert file.never_falls[0](m) == () and "language model" in file.never_falls[1](m).says
    change = np.tile(CHANGE, (8, 1))
    for fall, kept in ((-0.5e-5, True), (-2e-5, False)):
        change[2, 1] = fall - NOISE[2, 1]
        found = file.never_falls[1](results(budget(change=change)))
        assert found.holds == kept and found.value == pytest.approx(0 if kept else 1 / 24)
    assert "(± over 4 articles)" in found.measured


def test_the_rise_and_the_margin_are_judged_against_both_controls():
    m = results(budget())
    rise = file.rises[1](m)
    expected = clustered_error(CHANGE.sum() + NOISE.sum(axis=1), ARTICLES)
    assert rise.holds and (rise.value, rise.error) == pytest.approx((float(expected.mean), float(expected.error)))
    assert holds(file.rises_beyond, m) and holds(file.margin_beyond, m)
    assert not holds(file.rises, results(budget(change=-CHANGE)))
    higher = budget(change=2 * CHANGE, margin=0.4)
    for other in (results(budget(), shuffled=higher), results(budget(), random=(higher, budget(3 * CHANGE)))):
        assert not holds(file.rises_beyond, other) and not holds(file.margin_beyond, other)
    assert file.hemispheres(m).holds and not file.hemispheres(results(budget(margin=0.0))).holds


def test_parts_are_judged_by_their_signs():
    m = results(budget())
    assert file.attention_raises[1](m).value == pytest.approx(0.4 + NOISE.mean())
    assert file.feed_forward_lowers[1](m).value == pytest.approx(-0.4 / 3 + NOISE.mean())
    assert holds(file.attention_raises, m) and holds(file.feed_forward_lowers, m)
    other = results(budget(attention=-ATTENTION, feed_forward=-FEED_FORWARD))
    assert not holds(file.attention_raises, other) and not holds(file.feed_forward_lowers, other)


def test_identities_see_a_lost_part_and_another_energy():
    """A remainder in one control alone is seen, and so is an energy that differs from that of the traced stream."""
    assert file.parts_add_up(results(budget())).holds and not file.parts_add_up(results(budget(lost=2e-5))).holds
    assert not file.parts_add_up(results(budget(), random=(budget(), budget(lost=-2e-5)))).holds
    assert file.energies_again(results(budget())).holds and not file.energies_again(results(budget(), off=2e-5)).holds
    model, texts = tiny("gpt2"), probe.Encoded(IDS.astype(np.int32), np.arange(8)[None] < np.array([8, 5, 3])[:, None])
    found = probe.energy_budget(model, texts, beta=1.5)
    assert file.energies_off(model, texts, found) < 1e-12
    assert file.energies_off(model, texts, found._replace(beta=1.6)) > 1e-3
