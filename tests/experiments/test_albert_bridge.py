"""The bridge from a network to particles as a figure: shares, controls, and claims for either outcome."""

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments.figures.albert_bridge import (
    effort,
    parts_of,
)
from clusterjax.experiments.shared.causal import BridgeControls, controls_of, share_missed
from clusterjax.experiments.shared.networks import network_of
from clusterjax.probe.measures.survey import average_of
from tests.network_cases import checkpoint


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return network_of(checkpoint(tmp_path_factory.mktemp("network")))


def curve(levels, texts=8, noise=0.01):
    rng = np.random.default_rng(len(levels))
    return average_of(
        np.asarray(levels, float) + noise * np.linspace(-1, 1, texts)[:, None] * rng.normal(size=len(levels))
    )


def bridge_of(network, **curves):
    names = {
        "without_feed_forward": "without feed-forward",
        "without_norms": "without norms",
        "on_the_sphere": "on the sphere",
    }
    every = {name: network for name in (*names, "particles", "fitted")} | curves
    found = {names.get(name, name): curve(levels) for name, levels in every.items()}
    base = curve(network)
    squares = [np.mean((found[name].values - base.values) ** 2) for name in ("particles", "fitted")]
    return probe.Bridge(base, found, 0.5, 2.0, np.array([squares[0], squares[1]]), 3.0)


RISE = [0.1, 0.3, 0.5, 0.7]


def beside_of(trained=0.5, shuffled=0.5, random=0.5):
    """Controls that are missed by so much, three networks of four texts each."""
    texts = 0.01 * np.linspace(-1, 1, 4)
    either = lambda values: {"particles": values + 1, "fitted": values}
    drawn = np.stack([random + shift - texts for shift in (-0.02, 0.0, 0.02)])
    return BridgeControls(
        either(trained + np.repeat(texts, 2)), np.arange(0, 8, 2), either(shuffled - texts), either(drawn),
        np.arange(8),
    )  # fmt: skip


def test_what_is_missed_is_a_share_of_the_spread():
    """A curve that is off by 0.1 everywhere, of a network whose curve has a spread of 0.2; text by text."""
    some = bridge_of(RISE, particles=np.array(RISE) + 0.1)
    network, moved = some.network.values, some.curves["particles"].values
    expected = [np.sqrt(np.mean((m - n) ** 2)) / np.std(n) for m, n in zip(moved, network, strict=True)]
    np.testing.assert_allclose(share_missed(some, "particles"), expected)
    assert np.mean(expected) == pytest.approx(0.1 / np.std(RISE), rel=0.1) and (share_missed(some, "fitted") == 0).all()


def test_controls_are_paired_by_text_and_by_network():
    some = beside_of(0.5, 0.6, 0.9)
    texts = 0.01 * np.linspace(-1, 1, 4)
    trained, shuffled, random = some.runs("fitted")
    assert (trained[0], shuffled[0], random[0]) == pytest.approx((0.5, 0.6, 0.9))
    assert trained[1] == pytest.approx(np.repeat(texts, 2).std(ddof=1) / np.sqrt(8))
    assert random[1] == pytest.approx(0.02 / np.sqrt(3)) and some.runs("particles")[0][0] == pytest.approx(1.5)
    beyond = some.beyond_shuffled
    assert beyond.difference[0] == pytest.approx(0.1)
    assert beyond.error[0] == pytest.approx((2 * texts).std(ddof=1) / 2)
    assert some.beyond_random.beyond.difference[0] == pytest.approx(0.4)


@pytest.mark.exhaustive
def test_controls_are_the_network_shuffled_and_redrawn(found, monkeypatch):
    """Which networks and which texts are run: its own words in another order, and three starts on the same words."""
    ran = []

    def bridge(model, texts, *, fit_on, **options):
        ran.append((model.name, texts, fit_on, options))
        return bridge_of(RISE)

    monkeypatch.setattr("clusterjax.experiments.shared.causal.probe.bridge", bridge)
    how = effort(True, 16, 2)
    texts, others = parts_of(found.texts, how)
    special = tuple(found.model.tokenizer.all_special_ids)
    some = controls_of(
        found.model, bridge_of(RISE), texts, others, how, 0, None, lambda line: None, special=special,
        units=np.arange(len(texts.mask)),
    )  # fmt: skip
    assert [name.endswith("with random weights") for name, *_ in ran] == [False, True, True, True]
    shuffled, *random = ran
    for shown, plain in ((shuffled[1], texts), (shuffled[2], others)):
        np.testing.assert_array_equal(np.sort(shown.token_ids, axis=1), np.sort(plain.token_ids, axis=1))
        assert (shown.token_ids != plain.token_ids).any()
        np.testing.assert_array_equal(shown.token_ids[:, 0], plain.token_ids[:, 0])
    for _, shown, fitted, options in random:
        np.testing.assert_array_equal(shown.token_ids, texts.token_ids)
        np.testing.assert_array_equal(fitted.token_ids, others.token_ids)
        assert options["fit_steps"] == 8 and options["steps_per_layer"] == 2
    assert some.random["fitted"].shape == (3, 4) and len(some.rows) == len(texts.mask)
