"""The first token, heads that attend to one place, losses, and similarity without some tokens equal loops."""

import dataclasses
import math

import equinox as eqx
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import probe
from clusterjax.probe.measures.position_heads import of_layer
from tests.helpers import as_a_user
from tests.probe_cases import assert_refused, kinds, tiny
from tests.reference import probes as reference


# Texts have at least five tokens, so that some tokens are left when others are excluded.
TEXTS = probe.Encoded(
    np.random.default_rng(8).integers(1, 30, (5, 12)), np.arange(12)[None, :] < np.array([9, 5, 12, 7, 9])[:, None]
)
# The mask of each layer: all pairs, pairs with the past, or a causal window of three, where the layer has a window.
FULL, CAUSAL, WINDOW = (lambda i, j: True), (lambda i, j: j <= i), (lambda i, j: i - 3 < j <= i)
MASKS = {"shared albert": [FULL] * 4, "bert": [FULL] * 3, "gpt2": [CAUSAL] * 3, "llama": [WINDOW, CAUSAL, WINDOW]}


@pytest.fixture(scope="module", params=kinds("gpt2", "llama", every=MASKS))
def case(request):
    model = tiny(request.param)
    return model, MASKS[request.param], probe.trace(model, *TEXTS)


@pytest.fixture(scope="module")
def causal():
    return tiny("gpt2")


def assert_averages(found, each):
    """Values, mean and error of an `Average` equal the statistics of these values, (texts, ...)."""
    mean, spread = reference.average(each)
    np.testing.assert_allclose(found.values, each, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.error, spread / np.sqrt(len(each)), rtol=1e-8, atol=1e-12)


@pytest.mark.exhaustive_cases("llama")
def test_the_first_token_is_that_of_a_loop(case):
    model, _, traced = case
    found, hidden = probe.first_token(model, TEXTS, batch_size=2), np.asarray(traced.hidden)
    each = [
        [reference.first_against_others(level, mask) for level in text]
        for text, mask in zip(hidden, TEXTS.mask, strict=True)
    ]
    for name in probe.FirstToken._fields:
        assert_averages(getattr(found, name), np.array([[level[name] for level in text] for text in each]))


def test_apart_is_sure():
    """A ratio of 20 ± 1 is surely above 10 and above 17.9, but not surely above 18.5; a single text is never sure."""
    ratio = lambda values: probe.Average(np.array([np.mean(values)]), np.array([np.std(values, ddof=1)]), len(values))
    found = probe.FirstToken(*[ratio([19.0, 21.0])] * 5)
    assert [bool(found.apart(times)[0]) for times in (10.0, 17.9, 18.5)] == [True, True, False]
    assert bool(found.apart(18.5, sigmas=0.0)[0])
    alone = found._replace(ratio=probe.Average(np.array([20.0]), np.array([np.nan]), 1))
    assert not alone.apart()[0]
    with pytest.raises(ValueError, match="times must be"):
        found.apart(0.0)


@pytest.mark.exhaustive_cases("gpt2")
def test_heads_of_places_are_those_of_a_loop(case):
    """Mass, baseline under each layer's mask, and excess equal loops, for four places and a separator of two ids."""
    model, masks, traced = case
    found, attention = probe.position_heads(model, TEXTS, separators={"odd": (3, 5)}, batch_size=2), traced.attention
    separator = np.isin(TEXTS.token_ids, (3, 5))
    ours = lambda text, layer, head: np.asarray(attention)[text, layer, head]
    uniform = lambda text, layer, head: reference.uniform_over(TEXTS.mask[text], masks[layer])
    for target in ("previous", "self", "next", "first", "odd"):
        mass, baseline = (
            np.array([[[reference.place_mass(maps(text, layer, head), TEXTS.mask[text], target, separator[text])
                        for head in range(model.num_heads)] for layer in range(len(masks))] for text in range(5)])
            for maps in (ours, uniform)
        )  # fmt: skip
        assert_averages(found.mass[target], mass)
        assert_averages(found.baseline[target], baseline)
        assert_averages(found.excess[target], mass - baseline)
    layer, head = found.strongest("previous")
    assert found.excess["previous"].mean[layer, head] == found.excess["previous"].mean.max()


def test_heads_that_are_one_place():
    """A head that attends to the previous token has mass 1 there; a uniform head has the uniform mass at each place."""
    n = 6
    previous = np.eye(n, k=-1)
    previous[0, 0] = 1
    uniform = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    ids, mask = np.arange(n)[None], np.ones((1, n), bool)
    measured = eqx.filter_jit(of_layer(ids, mask, {"third": (2,)}))(
        np.ones((1, n, 3)), np.array([[previous, uniform]]), mask
    )
    np.testing.assert_allclose(measured["mass"][0, 0], [1, 0, 0, 1 / 5, 1 / 5], rtol=1e-14)
    harmonic = sum(1 / i for i in range(2, n + 1))
    np.testing.assert_allclose(measured["mass"][0, 1, :4], [harmonic / 5, harmonic / 5, 0, harmonic / 5], rtol=1e-14)


def test_places_under_another_mask(causal):
    """The baseline belongs to the mask that the network was given: a window of two allows two tokens."""
    found = probe.position_heads(probe.with_mask(causal, cjx.WindowMask(2, causal=True)), TEXTS)
    for place in ("previous", "self"):
        np.testing.assert_allclose(found.baseline[place].values, 0.5, rtol=1e-14)
    np.testing.assert_allclose(found.mass["previous"].values + found.mass["self"].values, 1, rtol=1e-12)


@pytest.mark.exhaustive
def test_losses_under_another_mask(causal):
    """A window of all tokens changes no loss, a short one only where it hides tokens; a look-ahead mask is refused."""
    plain = probe.token_losses(causal, TEXTS)
    masked = lambda mask: probe.token_losses(probe.with_mask(causal, mask), TEXTS)
    np.testing.assert_allclose(masked(cjx.WindowMask(12, causal=True)), plain, rtol=1e-12)
    short, kept = masked(cjx.WindowMask(3, causal=True)), masked(cjx.SinkMask(3, kept=1))
    # The loss at place i belongs to token i + 1 and is read at place i: a window of three hides nothing up to place 2,
    # and with the first token kept, nothing up to place 3.
    for found, same in ((short, 3), (kept, 4)):
        np.testing.assert_allclose(found[:, :same], plain[:, :same], rtol=1e-12)
        assert np.nanmin(np.abs(found[:, same:] - plain[:, same:])) > 1e-12
    with as_a_user(), pytest.raises(ValueError, match="its mask is FullMask"):
        masked(cjx.FullMask())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"without_first": True}, lambda ids, mask: mask & (np.arange(12)[None] > 0)),
        ({"leave_out": (3, 5)}, lambda ids, mask: mask & ~np.isin(ids, (3, 5))),
        ({"leave_out": [3], "without_first": True}, lambda ids, mask: mask & (np.arange(12)[None] > 0) & (ids != 3)),
    ],
)
def test_similarity_without_some_tokens(case, options, kept, tmp_path):
    """Similarity equals that of the same hidden states under a smaller mask: the network still reads all tokens."""
    model, _, traced = case
    found = probe.similarity_histograms(model, TEXTS, bins=9, near=0.4, batch_size=2, **options)
    expected = probe.similarity_of_hidden(traced.hidden, kept(*TEXTS), bins=9, near=0.4)
    for name in ("density", "cosine", "near_mass", "num_clusters", "effective_rank"):
        np.testing.assert_allclose(getattr(found, name).mean, getattr(expected, name).mean, rtol=1e-10, atol=1e-11)
    store = tmp_path / "run.safetensors"
    probe.similarity_histograms(model, TEXTS, bins=9, rank=False, store=store, **options)
    with as_a_user(), pytest.raises(ValueError, match="store"):
        probe.similarity_histograms(model, TEXTS, bins=9, rank=False, store=store, leave_out=(7,))


def test_losses_are_those_of_a_loop(causal):
    """Losses equal the softmax of the scores at the previous place, in any batch, and are NaN after the text's end."""
    found = probe.token_losses(causal, TEXTS, batch_size=2)
    scores = np.asarray(causal.logits(probe.trace(causal, *TEXTS).hidden[:, -1]))
    assert found.shape == (5, 11)
    for text, mask in enumerate(TEXTS.mask):
        for place in range(11):
            if not mask[place + 1]:
                assert np.isnan(found[text, place])
                continue
            row = scores[text, place]
            total = math.fsum(math.exp(score - row.max()) for score in row)
            right = row[TEXTS.token_ids[text, place + 1]]
            assert found[text, place] == pytest.approx(math.log(total) + row.max() - right, rel=1e-12)
    np.testing.assert_allclose(probe.token_losses(causal, TEXTS, length=6), found[:, :5], rtol=1e-12)


def test_special_ids():
    model = probe.load()
    assert probe.special_ids(model) == (0, 1, 2, 3, 4)
    assert probe.special_ids(dataclasses.replace(model, folder=None)) == ()


def test_bad_arguments(case, causal):
    model = case[0]
    two = probe.Encoded(TEXTS.token_ids[:1, :2], np.ones((1, 2), bool))
    alike = probe.Encoded(np.array([[7, 7, 3, 7]]), np.ones((1, 4), bool))
    calls = (
        (lambda: probe.first_token(model, two), "at least 3 tokens each .* text 0 has 2"),
        (lambda: probe.similarity_histograms(model, alike, leave_out=(7,)), "at least 2 tokens each .* has 1"),
        (lambda: probe.similarity_histograms(model, alike, leave_out=(-1,)), r"leave_out\[0\] must be"),
        (lambda: probe.similarity_histograms(model, alike, without_first=1), "without_first must be True or False"),
        (lambda: probe.position_heads(model, alike, separators={"first": 3}), "separators must have other names"),
        (lambda: probe.position_heads(model, alike, separators={2: 3}), "separators must be ids of tokens by name"),
        (lambda: probe.position_heads(model, alike, separators={"x": ()}), r"separators\['x'\] must"),
        (lambda: probe.position_heads(model, alike).strongest("x"), "target must be one of previous, self"),
        (lambda: probe.token_losses(probe.load(), alike), "model must be causal"),
    )  # fmt: skip
    assert_refused(*calls)
