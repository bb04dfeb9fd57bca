"""The stream and the lens of batches: each text as `transformer` reads it alone, whatever its padding and its batch."""

import numpy as np
import pytest

import clusterjax.transformer as transformer
from clusterjax import probe
from tests.helpers import as_a_user
from tests.probe_cases import IDS, MASK, kinds, tiny


LEFT = np.flip(MASK, axis=1)


@pytest.mark.parametrize("kind", kinds("gpt2"))
def test_texts_of_a_batch_are_texts_alone(kind):
    """Padding on the left, on the right, and none."""
    model = tiny(kind)
    ids = np.where(LEFT, IDS[:, ::-1], 0)
    found = probe.residual_stream(model, ids, LEFT)
    on_the_right = probe.residual_stream(model, probe.Encoded(np.where(MASK, IDS, 0), MASK))
    for k, words in enumerate(MASK.sum(axis=1)):
        alone = transformer.residual_stream(model, IDS[k, ::-1][-words:])
        np.testing.assert_allclose(found.heads[k][:, :, -words:], alone.heads, rtol=0, atol=1e-11)
        np.testing.assert_allclose(found.stream[k][:, -words:], alone.stream, rtol=0, atol=1e-11)
        np.testing.assert_allclose(found.share[k][:, :, -words:, -words:], alone.share, rtol=0, atol=1e-11)
        np.testing.assert_array_equal(np.asarray(found.stream[k])[:, :-words], 0)
        right = transformer.residual_stream(model, IDS[k, :words])
        np.testing.assert_allclose(on_the_right.feed_forward[k][:, :words], right.feed_forward, rtol=0, atol=1e-11)
    if kind == "t5":
        with pytest.raises(ValueError, match="model must have a head for logits"):
            probe.logit_lens(model, IDS)
        return
    lens = probe.logit_lens(model, ids, LEFT, words=[3, 7])
    for k, words in enumerate(MASK.sum(axis=1)):
        alone = transformer.logit_lens(model, IDS[k, ::-1][-words:])
        np.testing.assert_allclose(lens[k][:, -words:], alone[:, :, [3, 7]], rtol=0, atol=1e-10)


@pytest.mark.exhaustive_cases("gpt_neox", "olmo2")
@pytest.mark.parametrize("family", ("gpt_neox", "gemma2", "olmo2", "dinov2"))
def test_parts_add_up_where_updates_are_normed_and_parts_run_side_by_side(family):
    """The contributions sum to the stream, and the shares of moved vectors to those of the heads."""
    import jax.random as jr

    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    if family == "dinov2":
        model = probe.from_config(
            {"model_type": family, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
             "image_size": 8, "patch_size": 4}, jr.key(0), dtype="float64"
        )  # fmt: skip
        with as_a_user(), pytest.raises(ValueError, match="model must read words, but 'random weights' reads images"):
            probe.residual_stream(model, np.zeros((1, 3, 8, 8)))
        return
    wide = {"intermediate_size": 20, "pad_token_id": 0, "initializer_range": 0.5, "head_dim": 4}
    config = {"model_type": family} | sizes | wide
    if family == "gpt_neox":
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    else:
        config["num_key_value_heads"] = 2
    model = probe.from_config(config, jr.key(1), dtype="float64")
    silent = probe.without(model, "attention", layer=1, head=2)
    for network in (model, silent, probe.without(model, "attention", layer=2, token=1)):
        found, trace = probe.residual_stream(network, IDS, MASK), probe.trace(network, IDS, MASK)
        levels = np.asarray(found.stream)[:, ::2]
        np.testing.assert_allclose(levels[:, :-1], np.asarray(trace.hidden)[:, :-1], rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.total, found.stream[:, -1], rtol=0, atol=1e-9)
        of_heads = np.where(MASK[:, None, None], found.shares()["heads"], 0)
        np.testing.assert_allclose(np.asarray(found.share).sum(-1), of_heads, rtol=0, atol=1e-9)
    assert not np.asarray(probe.residual_stream(silent, IDS, MASK).heads)[:, 1, 2].any()


def test_what_does_not_fit_is_refused():
    model = tiny("gpt2")
    for call, message in (
        (lambda: probe.logit_lens(model, IDS, words=[30]), "words must be"),
        (lambda: probe.logit_lens(3, IDS), "model must be a Model"),
        (lambda: probe.residual_stream(model, IDS[0]), "token_ids must be"),
        (lambda: probe.residual_stream(model, IDS, MASK[:2]), "mask must be of the shape"),
    ):
        with as_a_user(), pytest.raises(ValueError, match=message):
            call()


def test_memories_are_those_of_the_texts():
    """The tokens that fire a neuron, by either way in, where padding is on the left."""
    model = tiny("gpt2")
    found = probe.key_value_memory(model, np.where(LEFT, IDS, 0), LEFT, layer=1, top=2, words=3)
    other = transformer.key_value_memory(model, np.where(LEFT, IDS, 0), LEFT, layer=1, top=2, words=3)
    for one, two in zip(found, other, strict=True):
        np.testing.assert_array_equal(one, two)
    assert (found.position >= 8 - LEFT.sum(axis=1)[found.text]).all()
