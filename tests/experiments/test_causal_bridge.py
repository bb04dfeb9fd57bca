"""A causal network as particles: the first token's paths against matrix exponentials, heads, and claims either way."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg

import clusterjax as cjx
from clusterjax import probe
from clusterjax.experiments.figures.causal_bridge import (
    ALBERT_NAME,
    CLAIMS,
    TIME,
    FirstPath,
    HeadRuns,
    Parameters,
    Results,
    _off_linear,
    draw,
    first_path,
    head_runs,
    parts_of,
    stream_of_first,
    values_of,
)
from clusterjax.experiments.framework.figure import stated
from clusterjax.experiments.framework.verdict import Subject
from clusterjax.experiments.shared.causal import NAME, BridgeControls
from clusterjax.experiments.shared.ensemble import draw_starts, run_ensemble
from clusterjax.experiments.shared.trained_values import leading_block
from clusterjax.probe.measures.heads import cases_of
from clusterjax.probe.measures.survey import average_of
from tests.network_cases import by_name, texts_of
from tests.probe_cases import GPT2, LLAMA, many_texts, tensors_of, write
from tests.reference import fields as reference


TEXTS = many_texts(3, 6)
RADII = np.array([4.0, 6.0, 5.0])


@pytest.fixture(scope="module", params=(LLAMA, GPT2), ids=("qwen2", "gpt2"))
def model(request, tmp_path_factory):
    return probe.load(write(tmp_path_factory.mktemp("m"), request.param, tensors_of(request.param)))


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.exhaustive_cases("gpt2", "qwen2")
def test_the_first_token_follows_matrix_exponentials(model):
    """x e^{tV / r} in each layer, with the time that was fitted and without, and with the token's own length."""
    path = first_path(model, TEXTS, RADII, 0.5)
    hidden = np.asarray(probe.trace(model, *TEXTS).hidden, float)[:, :, 0]
    without = np.asarray(probe.trace(probe.without_feed_forward(model), *TEXTS).hidden, float)[:, :, 0]
    matrices, scales = probe.head_matrices(model), model.network.norm_scales()
    whole = [
        sum(
            np.sqrt(12) * np.diag(scales[b]) @ matrices.value[b, h] @ matrices.output[b, h]
            for h in range(model.num_heads)
        )
        for b in range(3)
    ]
    np.testing.assert_allclose(values_of(model), whole, rtol=0, atol=1e-10)
    for text, states in enumerate(hidden):
        start = reference.unit(states[0])
        found = {name: [start] for name in ("particle", "fitted", "own length")}
        for layer in (0, 1):
            times = {"particle": 1 / RADII[layer], "fitted": 0.5 / RADII[layer]}
            times["own length"] = 1 / np.linalg.norm(states[layer])
            for name, time in times.items():
                found[name].append(reference.unit(found[name][-1] @ scipy.linalg.expm(time * whole[layer])))
        found |= {"attention alone": without[text], "embedding": [start] * 3}
        for name, states_of in found.items():
            expected = [cosine(states[layer], states_of[layer]) for layer in range(3)]
            np.testing.assert_allclose(path.cosines[name][text], expected, rtol=0, atol=5e-4)
        turned = [cosine(states[layer], states[layer + 1]) for layer in (0, 1)]
        np.testing.assert_allclose(path.turned[text], turned, rtol=0, atol=1e-5)
    assert path.alone < 1e-5 and path.linear < 1e-5
    seeing = first_path(probe.with_mask(model, cjx.FullMask()), TEXTS, RADII, 1.0)
    assert seeing.alone > 1e-2
    assert np.abs(path.cosines["particle"] - path.cosines["fitted"]).max() > 1e-2


@pytest.mark.exhaustive_cases("qwen2")
def test_what_must_hold_of_the_first_token_can_fail(model):
    """Not so where the feed-forward stays."""
    assert _off_linear(model, stream_of_first(model, TEXTS)[:, :-1]) > 1e-2


def test_texts_are_measured_or_fitted_to():
    ids = np.arange(12)[:, None] * np.ones((1, 8), int)
    for many, fitted in ((12, [4, 9]), (3, [2])):
        texts, others = parts_of(probe.Encoded(ids[:many].astype(np.int32), np.ones((many, 8), bool)), 6)
        assert others.token_ids[:, 0].tolist() == fitted and texts.token_ids.shape == (many - len(fitted), 6)
        assert not set(texts.token_ids[:, 0]) & set(fitted)


@pytest.mark.exhaustive
def test_heads_as_they_are_run():
    """Each head of the package's ALBERT in units of its leading eigenvalue; those that repel keep particles apart."""
    found = head_runs(ALBERT_NAME, probe.load(), 3, 16, 1.0, lambda line: None, starts=2)
    assert found.clusters.shape == (1, 8)
    assert ((found.clusters > 8) == (found.signs.case == "repulsive")).all()
    for head in (0, 1):
        values = found.signs.values[0, head]
        form = leading_block(values / np.abs(values[0]))
        assert np.abs(np.linalg.eigvals(form)).max() >= 1 - 1e-9
        run = run_ensemble(draw_starts(3, 2, 16, 3), np.array([0.0, TIME]), beta=1.0, value=form)
        counts = [int(cjx.num_clusters(x, 0.1)) for x in run.xs[:, -1]]
        assert found.clusters[0, head] == np.mean(counts)


def heads_of(name, values, clusters):
    values = np.asarray(values, complex)[None, :, None]
    return HeadRuns(name, probe.HeadSigns(values, cases_of(values), np.array([0])), np.array([clusters], float), 32)


LEVELS = np.array([0.1, 0.3, 0.5, 0.4])


def results(fitted=0.02, uniform=0.05, shuffled=0.9, first=0.9, embedding=0.5, attention=0.2, off=1e-7, apart=30.0):
    """All that the figure shows of a network of three layers and eight texts."""
    noise = 0.01 * np.linspace(-1, 1, 8)[:, None]
    curve = lambda shift: average_of(LEVELS + noise + np.array([0, 1, 1, 1]) * shift)
    curves = {"particles": curve(0.3), "fitted": curve(fitted), "uniform": curve(uniform)}
    bridge = probe.Bridge(curve(0.0), curves, 0.5, 2.0, np.array([1.0, 0.5]), np.ones(3), True, 0.4)
    drawn = lambda level, *shape: {name: level + 0.01 * np.linspace(-1, 1, np.prod(shape)).reshape(shape)
                                   for name in ("particles", "fitted")}  # fmt: skip
    beside = BridgeControls(drawn(0.5, 8), np.arange(0, 8, 2), drawn(shuffled, 4), drawn(shuffled, 3, 4), np.arange(8))
    to = lambda level: np.hstack([np.ones((8, 1)), level + noise * np.ones((1, 2))])
    names = {"particle": 0.3, "fitted": first, "own length": 0.4, "attention alone": attention, "embedding": embedding}
    path = FirstPath({name: to(level) for name, level in names.items()}, to(0.9)[:, 1:], off, off)
    every = (
        heads_of(NAME, [1.0] * 10 + [1 + 1j], [2.0] * 11),
        heads_of("the language model of the package", [1.0, 0.5], [1.0, 1.0]),
        heads_of(ALBERT_NAME, [1.0, -1.0, -0.5 + 1j], [2.0, apart, 28.0]),
    )
    texts = probe.Encoded(np.zeros((8, 8), np.int32), np.ones((8, 8), bool))
    return Results(
        Parameters(), Subject("smollm2", "SmolLM2"), Subject("texts", "texts"), "SmolLM2", 3, True, np.arange(8),
        "of spread 0.0417", texts, texts,
        bridge, beside, path, every,
    )  # fmt: skip


HOLD_AND_FAIL = {
    "Fitted particles predict the similarity": ({}, {"fitted": 0.3}),
    "With beta 0 particles predict": ({}, {"uniform": 0.02}),
    "Fitted particles predict SmolLM2 and its texts": ({}, {"shuffled": 0.5}),
    "The fitted particle is nearer": ({}, {"embedding": 0.9}),
    "Without the feed-forward, by": ({}, {"attention": 0.6}),
    "Particles stay apart at just": ({}, {"apart": 10.0}),
    "The first token moves by itself": ({}, {"off": 1e-3}),
    "Without the feed-forward the first token": ({}, {"off": 1e-3}),
}


def claims_of(m):
    return SimpleNamespace(claims=stated(CLAIMS, m))


@pytest.mark.parametrize("start", HOLD_AND_FAIL)
def test_claims_hold_and_fail(start):
    holds, fails = HOLD_AND_FAIL[start]
    assert by_name(claims_of(results(**holds)), start).holds
    assert not by_name(claims_of(results(**fails)), start).holds


def test_numbers_of_the_claims():
    found = claims_of(results())
    cases = by_name(found, "More than half of the heads of the package's ALBERT")
    assert cases.holds and cases.value == pytest.approx(2 / 3)
    assert f"{NAME}: 10 attract, 0 repel, 1 turn, of 11" in cases.measured
    clusters = by_name(found, "Particles stay apart")
    assert clusters.value == 1 and "true of 16 of 16 heads" in clusters.measured
    near = by_name(found, "The fitted particle is nearer")
    assert near.value == pytest.approx(0.4) and "layer 1, to a cosine of 0.90" in near.measured
    share = by_name(found, "Fitted particles predict the similarity")
    expected = np.sqrt(0.75) * 0.02 / LEVELS.std()
    assert share.value == pytest.approx(expected) and "0.12 ± 0.00" in share.measured
    gain = by_name(found, "With beta 0 particles predict")
    assert gain.value == pytest.approx(0.75 * (0.05**2 - 0.02**2))


def test_the_picture_names_paths_cases_and_networks():
    words = texts_of(draw(results()))
    assert {"without feed-forward", "attractive", "repulsive", "rotating", "SmolLM2\n11 heads", "(f)"} <= set(words)
