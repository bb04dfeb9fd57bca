"""The figure of the bridge from a network to particles: the share of a curve that is missed, and paired controls."""

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments.shared.causal import BridgeControls, share_missed
from clusterjax.probe.measures.survey import average_of


def curve(levels, texts=8, noise=0.01):
    rng = np.random.default_rng(len(levels))
    return average_of(
        np.asarray(levels, float) + noise * np.linspace(-1, 1, texts)[:, None] * rng.normal(size=len(levels))
    )


RISE = [0.1, 0.3, 0.5, 0.7]


def beside_of(trained=0.5, shuffled=0.5, random=0.5):
    """Controls that miss these shares: eight texts of the trained network, four of each of the others."""
    texts = 0.01 * np.linspace(-1, 1, 4)
    either = lambda values: {"particles": values + 1, "fitted": values}
    drawn = np.stack([random + shift - texts for shift in (-0.02, 0.0, 0.02)])
    return BridgeControls(
        either(trained + np.repeat(texts, 2)), np.arange(0, 8, 2), either(shuffled - texts), either(drawn),
        np.arange(8),
    )  # fmt: skip


def test_what_is_missed_is_a_share_of_the_spread():
    """A curve that is off by 0.1 everywhere misses 0.1 over the spread of the network's curve, text by text."""
    network, moved = curve(RISE), curve(np.array(RISE) + 0.1)
    some = probe.Bridge(network, {"particles": moved, "fitted": network}, 0.5, 2.0, np.zeros(2), 3.0)
    pairs = zip(moved.values, network.values, strict=True)
    expected = [np.sqrt(np.mean((m - n) ** 2)) / np.std(n) for m, n in pairs]
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
