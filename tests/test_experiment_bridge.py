"""The bridge from a network to particles as a figure: claims, captions and pictures for either outcome."""

import json

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments._albert_bridge import ALBERT_BRIDGE, caption_of, claims_of, effort, parts_of
from clusterjax.experiments._albert_bridge_panels import draw
from clusterjax.experiments._networks import network_of
from clusterjax.probe._tally import average_of

from .network_cases import checkpoint
from .probe_cases import T5


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return network_of(checkpoint(tmp_path_factory.mktemp("network")))


def curve(levels, texts=4, noise=0.01):
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


RISE, FLAT_LINE, STEEP = [0.1, 0.3, 0.5, 0.7], [0.1, 0.1, 0.1, 0.1], [0.1, 0.9, 1.0, 1.0]


def test_claims_of_the_bridge_hold_and_fail(found):
    good = bridge_of(RISE, particles=[0.1, 0.35, 0.55, 0.8], fitted=[0.1, 0.31, 0.5, 0.7], without_feed_forward=STEEP)
    held = [claim.holds for claim in claims_of(good)]
    assert held == [True] * 5
    bad = bridge_of(RISE, particles=FLAT_LINE, fitted=FLAT_LINE, without_feed_forward=FLAT_LINE)
    assert [claim.holds for claim in claims_of(bad)] == [False, False, False, False, True]
    moved = bridge_of(RISE, fitted=[0.2, 0.3, 0.5, 0.7])
    assert [claim.holds for claim in claims_of(moved)][-1] is False
    texts = found.texts
    assert "predict the curve better than any constant does" in caption_of(found, good, texts)
    assert "predict the curve no better than a constant does" in caption_of(found, bad, texts)


def test_curves_that_overflow_are_said_and_drawn(found, tmp_path):
    some = bridge_of(RISE)
    lost = average_of(np.full((4, 4), np.nan))
    some = some._replace(curves=some.curves | {"without norms": lost})
    assert "(without norms: overflows" in caption_of(found, some, found.texts)
    assert "overflows" not in caption_of(found, bridge_of(RISE), found.texts)
    draw(some).savefig(tmp_path / "picture.png", dpi=40)


def test_wide_networks_get_less():
    assert effort(False, 128).texts > effort(False, 768).texts and effort(True, 128).steps > effort(True, 768).steps
    long = probe.Encoded(np.ones((9, 80), np.int32), np.ones((9, 80), bool))
    assert [part.mask.shape for part in parts_of(long, effort(False, 128))] == [(4, 64)] * 2
    assert [part.mask.shape for part in parts_of(long, effort(False, 768))] == [(4, 48)] * 2
    more = probe.Encoded(np.arange(40 * 80, dtype=np.int32).reshape(40, 80), np.ones((40, 80), bool))
    shown, fitted = parts_of(more, effort(True, 128))
    assert shown.mask.shape == fitted.mask.shape == (6, 32)
    assert not set(shown.token_ids[:, 0].tolist()) & set(fitted.token_ids[:, 0].tolist())


def test_an_encoder_of_t5_has_a_bridge_too(tmp_path):
    outcome = ALBERT_BRIDGE.run(checkpoint(tmp_path, T5 | {"vocab_size": 70}), lambda line: None)
    assert len(outcome.parameters["radius"]) == 3 and outcome.claims[-1].holds
    assert "fitted to other texts" in outcome.caption
    json.dumps(outcome.parameters)
