"""The figures of a trained network's heads, run once: numbers against loops, and figure 2 for either outcome."""

from dataclasses import replace

import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments.figures.albert_bridge import FIGURE as ALBERT_BRIDGE, effort, parts_of
from clusterjax.experiments.figures.figure2 import (
    FIGURE as FIGURE2,
    groups_of,
    heads_beyond_controls,
    largest_of,
    targets_of,
)
from clusterjax.experiments.shared.layout import drawable
from clusterjax.experiments.shared.networks import network_of
from clusterjax.probe.measures.survey import average_of
from tests.helpers import as_a_user
from tests.network_cases import CONFIG, by_name, checkpoint
from tests.reference import probes as reference


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="module")
def found(settings):
    return network_of(settings)


@pytest.fixture(scope="module")
def outcome(settings):
    return FIGURE2.run(settings, lambda line: None)


@pytest.fixture(scope="module")
def heads(outcome):
    """The measurement of figure 2, to be altered."""
    return outcome.draw.args[0]


@pytest.fixture(scope="module")
def traced(found):
    return probe.trace(found.model, *found.texts)


@pytest.fixture(scope="module")
def attention(found, traced):
    """The maps of each text, (layers, heads, n, n), with its mask."""
    return list(zip(np.asarray(traced.attention, np.float64), found.texts.mask, strict=True))


@pytest.mark.exhaustive
def test_correlations_of_figure_2_are_those_of_a_loop(outcome, attention):
    each = np.array([[reference.correlation(maps, mask) for maps in text] for text, mask in attention])
    mean = each.mean(axis=0)
    others = [(h, g) for h in range(4) for g in range(4) if h != g]
    between = np.array([np.mean([layer[pair] for pair in others]) for layer in mean])
    np.testing.assert_allclose(outcome.series["correlation"], between, rtol=0, atol=1e-5)
    rise = by_name(outcome, "The correlations between heads increase")
    assert rise.value == pytest.approx(between[-1] - between[0], abs=1e-5)
    assert rise.holds == (rise.value > 2 * rise.error)
    of_texts = np.array([[np.mean([layer[pair] for pair in others]) for layer in text] for text in each])
    gain = of_texts[:, -1] - of_texts[:, 0]
    assert rise.error == pytest.approx(gain.std(ddof=1) / np.sqrt(len(gain)), rel=0.35)  # by resampling


@pytest.mark.exhaustive
def test_sinks_of_figure_2_are_those_of_a_loop(outcome, found, attention):
    assert len(attention) == 16 and not found.texts.mask.all()
    places = {"first token [CLS]": lambda mask: [0], "[SEP]": lambda mask: [int(mask.sum()) - 1]}
    excess, twice = {}, {}
    for name, place in places.items():
        values, over = [], []
        for text, mask in attention:
            targets = np.isin(np.arange(len(mask)), place(mask))
            masses = np.array([[reference.mass(m, mask, targets, False) for m in layer] for layer in text])
            values.append(masses - 1 / mask.sum())
            over.append(masses - 2 / mask.sum())
        mean, spread = reference.average(values)
        excess[name], error = mean, spread / 4
        np.testing.assert_allclose(outcome.series[f"excess_by_head, {name}"], mean, rtol=0, atol=1e-6)
        np.testing.assert_allclose(outcome.series[f"error_by_head, {name}"], error, rtol=1e-3, atol=1e-6)
        mean, spread = reference.average(over)
        twice[name] = mean > 2 * spread / 4
    found_sink = by_name(outcome, "Some head gives the first token")
    name = max(excess, key=lambda name: excess[name].max())
    layer, head = np.argwhere(excess[name] == excess[name].max())[0]
    assert found_sink.value == pytest.approx(excess[name].max(), abs=1e-6)
    assert f"the strongest sink is {name} at layer {layer + 1}, head {head + 1}," in found_sink.measured
    assert all(
        f"{twice[name].sum()} exceed twice uniform attention for {name}" in found_sink.measured for name in places
    )
    first = by_name(outcome, "Several heads give the first token")
    assert first.value == twice["first token [CLS]"].sum(axis=1).min()


def alike_of(matrices, noise=0.01):
    """Head correlations (layers, heads, heads) with resamples about them."""
    rng = np.random.default_rng(1)
    matrices = np.asarray(matrices, float)
    wobble = noise * rng.normal(size=(20, *matrices.shape))
    resampled = matrices + (wobble + wobble.swapaxes(2, 3)) / 2
    average = probe.Average(matrices, np.full(matrices.shape, noise), 16)
    others = ~np.eye(matrices.shape[-1], dtype=bool)
    of_texts = (matrices + noise * rng.normal(size=(16, *matrices.shape)))[..., others].mean(axis=-1)
    groups = probe.head_clusters(matrices, resampled, 2)
    return probe.HeadCorrelations(average, resampled, groups, average_of(of_texts))


def blocks(within, across, sizes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.where(labels[:, None] == labels[None, :], within, across)
    np.fill_diagonal(matrix, 1.0)
    return matrix


PAIR, LONE = blocks(0.8, 0.1, (2, 2)), blocks(0.8, 0.1, (3, 1))
FLAT, WEAK = blocks(0.3, 0.3, (2, 2)), blocks(0.35, 0.3, (2, 2))


def test_groups_are_called_what_they_are():
    alike = alike_of([PAIR, LONE, FLAT, WEAK])
    pair, lone, flat, weak = (groups_of(alike, layer) for layer in range(4))
    assert (pair.word, lone.word, flat.word, weak.word) == ("clusters", "outlier", "unsure", "unsure")
    assert pair.heads == [[0, 1], [2, 3]] and pair.numbers == [[1, 2], [3, 4]]
    assert pair.within == pytest.approx([0.8, 0.8]) and pair.across == pytest.approx(0.1)
    assert [margin for margin, _ in pair.margins] == pytest.approx([0.7, 0.7])
    assert all(0 < error < 0.02 for _, error in pair.margins)
    assert np.isnan(lone.within[1]) and lone.stability == 1


def test_heads_are_held_against_their_controls(heads):
    """The correlations of the controls are smaller, as large, and larger."""
    of = lambda shift: average_of(heads.alike.between_heads.values + shift)
    for shift, holds in ((-0.2, True), (0.0, False), (0.2, False)):
        other = heads.alike._replace(between_heads=of(shift))
        seen = heads.of_heads._replace(shuffled=other, random=(other,) * 3)
        beyond = seen.compare("between_heads")
        changed = replace(heads, of_heads=seen._replace(beyond_shuffled=beyond[0], beyond_random=beyond[1]))
        claim = heads_beyond_controls(changed)
        assert claim.holds == holds and claim.value == pytest.approx(-shift, abs=1e-9)
        np.testing.assert_allclose(changed.lines[1][0], changed.lines[0][0] + shift)
    largest = largest_of("first")(heads.sinks)
    values = heads.sinks.excess["first"].values
    for level in range(values.shape[1]):
        head = values[:, level].mean(axis=0).argmax()
        np.testing.assert_array_equal(largest.values[:, level], values[:, level, head])


def test_the_first_token_is_named_once():
    values = np.random.default_rng(0).uniform(size=(3, 2, 2))
    one, other = average_of(values), average_of(values + 1)
    sinks = probe.AttentionSinks({"first": one, "[CLS]": one, "[SEP]": other}, {}, {})
    assert targets_of(sinks) == {"first": "first token [CLS]", "[SEP]": "[SEP]"}
    assert targets_of(sinks._replace(mass={"first": one})) == {"first": "first token"}


def test_a_network_of_one_head_is_refused(tmp_path):
    settings = checkpoint(tmp_path, CONFIG | {"num_attention_heads": 1})
    with as_a_user(), pytest.raises(ValueError, match="albert must have two heads or more for figure 2"):
        FIGURE2.run(settings, lambda line: None)


@pytest.mark.exhaustive
def test_numbers_of_the_bridge_are_those_of_the_network(settings, found, traced):
    """The curve of the network, text by text; root mean squares of what the record holds."""
    outcome, how = ALBERT_BRIDGE.run(settings, lambda line: None), effort(True, 16, 2)
    texts, others = parts_of(found.texts, how)
    assert texts.mask.shape[1] == min(32, found.texts.mask.shape[1]) and len(texts.mask) == len(others.mask) > 1
    rows = [int(np.flatnonzero((found.texts.token_ids == ids).all(axis=1))[0]) for ids in texts.token_ids]
    assert found.texts.mask.shape[1] <= how.length and rows == sorted(rows)
    hidden = np.asarray(traced.hidden, np.float64)[rows]
    each = [[np.mean(reference.cosines(x, mask)) for x in text] for text, mask in zip(hidden, texts.mask, strict=True)]
    series = outcome.series
    np.testing.assert_allclose(series["cosine network"], np.mean(each, axis=0), rtol=0, atol=1e-5)
    for name, start in (("particles", "Particles that are not fitted"), ("fitted", "Particles with fitted")):
        rmse = np.sqrt(np.mean((np.array(series[f"cosine {name}"]) - series["cosine network"]) ** 2))
        assert f"rmse {rmse:.4f} over the layers" in by_name(outcome, start).measured
    parted = by_name(outcome, "Without the feed-forward")
    assert parted.value == pytest.approx(series["cosine without feed-forward"][-1] - series["cosine network"][-1])
    assert 2 < len(series["loss_by_step"]) <= how.steps + 1 and outcome.parameters["beta"] > 0


def test_tokens_are_drawable():
    assert drawable("a b\n$\U00012000ə") == r"a␣b␣\$\U00012000ə"
