"""Massive activations: a planted entry is found, patches and sinks against loops, and claims on made-up numbers."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from clusterjax import probe
from clusterjax.experiments.figures import massive_activations as figure
from clusterjax.experiments.figures.massive_activations import Entry, Parameters, entries_of, measure_reading
from clusterjax.experiments.framework.figure import Subject
from clusterjax.experiments.shared.causal import Reading
from tests.probe_cases import sizes_like


N, DIMENSION = 12, 3
ARTICLES = np.array([4, 4, 7, 7, 7, 8, 9, 9])
SCORED = np.array([2, 3, 4, 6, 7])  # of the articles 7 and 9, the second and the fourth


@pytest.fixture(scope="module")
def run():
    sizes = sizes_like(
        "llama", vocab_size=60, hidden_size=16, num_heads=4, num_shared=2, head_size=4, intermediate_size=12,
        num_layers=3, max_positions=N, spread=0.6,
    )  # fmt: skip
    whole = probe.Model(probe.Network(sizes, nnx.Rngs(0), head=True), SimpleNamespace(), "planted")
    # The planted value differs from text to text and is in the stream that enters the second layer.
    planted = lambda x: 20000.0 + 5000 * jnp.tanh(x)
    model = probe.patch(whole, probe.Edit("stream", planted, layer=1, index=DIMENSION, token=0))
    ids = np.random.default_rng(0).integers(0, 60, (len(ARTICLES), N)).astype(np.int32)
    texts = probe.Encoded(ids, np.ones(ids.shape, bool))
    reading = Reading(model, texts, texts, Subject("texts", "made-up texts"), ARTICLES)
    return model, ids, measure_reading(Parameters(draws=2), reading, False, 0, lambda line: None)


def losses_and_sinks(model, ids):
    """The mean loss of each text, and the weight of each layer on the first token beyond 1 / (i + 1), by loops."""
    traced = probe.trace(model, ids)
    hidden, attention = np.asarray(traced.hidden, float)[:, -1], np.asarray(traced.attention, float)
    kernel = np.asarray(model.network.head.decoder.kernel[...], float)
    losses, sinks = [], []
    for text in range(len(ids)):
        scores = hidden[text] @ kernel
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        losses.append(np.mean([-log_p[i, ids[text, i + 1]] for i in range(N - 1)]))
        uniform = np.mean([1 / (i + 1) for i in range(1, N)])
        sinks.append([np.mean(attention[text, layer, :, 1:, 0]) - uniform for layer in range(3)])
    return np.array(losses), np.array(sinks)


@pytest.mark.exhaustive
def test_a_planted_entry_is_found_and_patches_are_those_of_a_loop(run):
    model, ids, m = run
    streams = np.asarray(probe.trace(model, ids).hidden, float)
    others = np.setdiff1d(np.arange(len(ids)), SCORED)
    (entry,) = m.entries
    assert m.rank == 0 and entry[:3] == (1, 0, DIMENSION) and m.held.all() and (m.at_first == 1).all()
    np.testing.assert_allclose(entry.mean, streams[others, 1, 0, DIMENSION].mean(), rtol=1e-5)
    np.testing.assert_array_equal(m.articles, ARTICLES[SCORED])
    sizes = np.array([[np.abs(levels[0]).max() / np.median(np.abs(levels)) for levels in streams[text, :-1]]
                      for text in SCORED])  # fmt: skip
    np.testing.assert_allclose(m.largest["unpatched"], sizes, rtol=1e-4)
    values = {"unpatched": None, "zero": 0.0, "mean": entry.mean}
    for name, value in values.items():
        # The edit replaces the whole stream, and uses neither an index nor a token.
        edit = probe.Edit("stream", lambda x, value=value: x.at[:, 0, DIMENSION].set(value), layer=1)
        losses, sinks = losses_and_sinks(model if value is None else probe.patch(model, edit), ids[SCORED])
        np.testing.assert_allclose(m.loss[name][0], losses, atol=1e-5)
        np.testing.assert_allclose(m.sinks[name][0], sinks, atol=1e-5)
        np.testing.assert_allclose(m.sink(name)[0], sinks[:, 1:].mean(axis=1), atol=1e-5)
    assert np.abs(m.cost("zero")).max() > 1e-2 > 1e-4 > max(m.own_values, m.before)


@pytest.mark.exhaustive
def test_controls_are_ordinary_entries_and_change_the_loss(run):
    _, _, m = run
    rng, entries = np.random.default_rng(1), [Entry(1, 0, 3, 9.0), Entry(2, 4, 5, 9.0)]
    for _ in range(200):
        other = figure.elsewhere(entries, N, rng)
        assert {e.token for e in other}.isdisjoint({0, 4, N - 1}) and len({e.token for e in other}) == 1
        assert [(e.level, e.dimension) for e in other] == [(1, 3), (2, 5)]
        other = figure.other_dimensions(entries, 16, rng)
        assert [e[:2] for e in other] == [(1, 0), (2, 4)] and len({e.dimension for e in other} - {3, 5}) == 2
    for name in figure.CONTROLS:
        assert m.loss[name].shape == (2, len(SCORED)) and np.abs(m.cost(name)).max() > 1e-6
        assert np.abs(m.loss[name][0] - m.loss[name][1]).max() > 1e-6


def test_entries_are_those_of_more_than_half_of_the_texts():
    """Here are 4 texts of 3 levels, 5 tokens and 6 dimensions, and the median size is 1."""
    streams, p = np.ones((4, 3, 5, 6)), Parameters()
    streams[0, 1, 4, 5] = 90.0
    assert entries_of(streams, p) == (2, (Entry(1, 4, 5, (90 + 3) / 4),))
    streams[:3, 1, 2, 4], streams[:2, 1, 3, 3] = 500.0, 500.0
    assert entries_of(streams, p) == (1, (Entry(1, 2, 4, (3 * 500 + 1) / 4),))
    streams[1:, 1:, 0, 2], streams[:, 2, 0, 1] = -1000.0, 3000.0
    assert entries_of(streams, p) == (0, (Entry(2, 0, 1, 3000.0), Entry(1, 0, 2, (-3 * 1000 + 1) / 4)))
    # The size itself must be above 100, whatever the median.
    assert entries_of(streams / 50, p)[0] == 1


CLAIMS = {
    "massive": ({"held": np.ones(6, bool)}, {"held": np.array([True] * 3 + [False] * 3)}),
    "first": ({"at_first": np.full(6, 0.95)}, {"at_first": np.full(6, 0.85)}),
    "zero": ({"zero": 1.1}, {"zero": 0.9}),
    "mean_value": ({"mean": -0.01}, {"mean": 0.03}),
    "beyond_controls": ({"zero": 1.0}, {"zero": 0.2}),
    "sinks_go": ({"zero sink": 0.1}, {"zero sink": 0.3}),
    "sinks_stay": ({"mean sink": 0.42}, {"mean sink": 0.46}),
    "own_values": ({"own_values": 1e-6}, {"own_values": 1e-2}),
    "before_token": ({"before": 1e-6}, {"before": 1e-2}),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_each_claim_can_fail(run, name):
    """Six texts have an unpatched loss of 3 and sink of 0.4; controls change these by 0.3 and -0.15."""
    for changes, holds in zip(CLAIMS[name], (True, False), strict=True):
        of = {"zero": 1.5, "mean": 0.0, "zero sink": 0.05, "mean sink": 0.4} | changes
        noise = 1e-3 * np.random.default_rng(0).normal(size=6)
        loss = {patch: (3 + of[patch] + noise)[None] for patch in ("zero", "mean")} | {
            "unpatched": np.full((1, 6), 3.0)
        }
        sinks = {patch: np.tile((of[f"{patch} sink"] + noise)[None, :, None], 3) for patch in ("zero", "mean")}
        loss["unpatched"], sinks["unpatched"] = np.full((1, 6), 3.0), np.full((1, 6, 3), 0.4)
        for control in figure.CONTROLS:
            loss[control] = 3.3 + np.array([[0.01], [-0.01]]) + noise
            sinks[control] = np.tile((0.25 + np.array([[0.01], [-0.01]]) + noise)[..., None], 3)
        fields = {each: value for each, value in changes.items() if each in figure.Results._fields}
        m = run[2]._replace(articles=np.arange(6), loss=loss, sinks=sinks, **fields)
        assert getattr(figure, name)(m).holds is holds
        # Without massive or large entries there is no claim on patches.
        if name in ("first", "zero", "mean_value", "beyond_controls", "sinks_go", "sinks_stay"):
            assert getattr(figure, name)(m._replace(rank=2)) == ()
