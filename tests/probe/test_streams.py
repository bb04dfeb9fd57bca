"""The stream and the lens of a batch equal those of each text alone in `transformer`, for any padding and batch."""

import numpy as np
import pytest

import clusterjax.transformer as transformer
from clusterjax import probe
from tests.helpers import as_a_user
from tests.probe_cases import IDS, MASK, assert_refused, kinds, tiny


LEFT = np.flip(MASK, axis=1)


@pytest.mark.exhaustive_cases("gpt2")
@pytest.mark.parametrize("kind", kinds("gpt2"))
def test_texts_of_a_batch_are_texts_alone(kind):
    """This holds for padding on the left, on the right, and for no padding."""
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


RNG = np.random.default_rng(4)
EDITS = {
    "stream": [
        probe.Edit("stream", RNG.normal(size=(len(IDS), IDS.shape[1], 16)), layer=[0, 2], token=[0, 2]),
        probe.Edit("stream", lambda x: x - x.mean(axis=0, keepdims=True), layer=3),
    ],
    "head": probe.Edit("head", probe.MeanOver(probe.Encoded(IDS, MASK)), layer=1, index=2),
    "attention": [probe.Edit("attention", 0.5, layer=0), probe.Edit("attention", lambda x: 2 * x, layer=2, token=1)],
    "neuron": probe.Edit("neuron", 1.5, layer=[0, 1], index=[0, 3]),
    "feed_forward": probe.Edit("feed_forward", probe.CopyOf(probe.Encoded(IDS[:1], MASK[:1])), layer=1),
}


@pytest.mark.exhaustive_cases("gpt_neox", "olmo2", "gemma2")
@pytest.mark.parametrize("family", ("gpt_neox", "gemma2", "olmo2", "dinov2"))
def test_parts_add_up_where_updates_are_normed_and_parts_run_side_by_side(family):
    """The contributions sum to the stream, and the shares of moved vectors sum to the shares of the heads."""
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
        assert check_parts(network).edits is None
    assert not np.asarray(probe.residual_stream(silent, IDS, MASK).heads)[:, 1, 2].any()
    for edits in EDITS.values():
        check_patched(model, edits)


def check_parts(model):
    """The levels of the stream equal the trace, and contributions and shares of heads sum to the stream."""
    found, trace = probe.residual_stream(model, IDS, MASK), probe.trace(model, IDS, MASK)
    levels = np.asarray(found.stream)[:, ::2]
    last = levels.shape[1] if model.network.norm is None else -1
    np.testing.assert_allclose(levels[:, :last], np.asarray(trace.hidden)[:, :last], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.total, levels[:, -1], rtol=0, atol=1e-9)
    of_heads = np.where(MASK[:, None, None], found.shares()["heads"], 0)
    np.testing.assert_allclose(np.asarray(found.share).sum(-1), of_heads, rtol=0, atol=1e-9)
    return found


def check_patched(model, edits):
    """The parts, which include the change by the edits, sum to the stream, for padding on either side."""
    patched, left = probe.patch(model, edits), np.flip(MASK, axis=1)
    found = check_parts(patched)
    of_all = sum(np.asarray(part).reshape(len(IDS), -1, IDS.shape[1]).sum(1) for part in found.shares().values())
    np.testing.assert_allclose(of_all[MASK], 1, rtol=0, atol=1e-9)
    assert np.abs(np.asarray(found.edits)[MASK]).max() > 1e-2 and not np.asarray(found.edits)[~MASK].any()
    # The words of each text stand in order behind the padding.
    ids = np.zeros_like(IDS)
    ids[left] = np.concatenate([IDS[k, : MASK[k].sum()] for k in range(len(IDS))])
    behind = probe.residual_stream(patched, ids, left)
    np.testing.assert_allclose(np.asarray(behind.edits)[left], np.asarray(found.edits)[MASK], rtol=0, atol=1e-9)


@pytest.mark.exhaustive_cases("stream-gpt2", "attention-gpt2", "head-gpt2", "neuron-gpt2")
@pytest.mark.parametrize("kind", kinds("gpt2"))
@pytest.mark.parametrize("place", ("head", "attention", "neuron", "feed_forward", "stream"))
def test_what_an_edit_changes_is_a_part_of_its_own(kind, place):
    """An edit of the last layer contributes the difference of the last streams, if no norm acts after the layer."""
    model = tiny(kind)
    network, more = model.network, {"index": 1} if place in ("head", "neuron") else {}
    layer = network.num_layers - (place != "stream")
    edit = probe.Edit(place, 0.75, layer=layer, token=[0, 2], **more)
    check_patched(model, edit)
    if model.text_view().post_norm:
        return
    patched, mask = probe.patch(model, edit), MASK
    before, after = (probe.residual_stream(each, IDS, mask) for each in (model, patched))
    np.testing.assert_allclose(after.heads, before.heads, rtol=0, atol=1e-12)
    if place in ("neuron", "feed_forward", "stream"):
        np.testing.assert_allclose(after.edits, after.stream[:, -1] - before.stream[:, -1], rtol=0, atol=1e-10)
    if place == "attention":
        updates = np.asarray(before.heads)[:, -1].sum(1)
        bias = np.asarray(before.stream[:, -2] - before.stream[:, -3]) - updates
        stands = np.asarray(probe.activations(patched, IDS, mask, place=place))[:, -1]
        expected = np.where(mask[:, :, None], stands - updates - bias, 0)
        np.testing.assert_allclose(after.edits, expected, rtol=0, atol=1e-10)


def test_what_does_not_fit_is_refused():
    model = tiny("gpt2")
    assert_refused(
        (lambda: probe.logit_lens(model, IDS, words=[30]), "words must be"),
        (lambda: probe.logit_lens(3, IDS), "model must be a Model"),
        (lambda: probe.residual_stream(model, IDS[0]), "token_ids must be"),
        (lambda: probe.residual_stream(model, IDS, MASK[:2]), "mask must be of the shape"),
    )


def test_memories_are_those_of_the_texts():
    """The tokens that activate a neuron agree in both subpackages, with padding on the left."""
    model = tiny("gpt2")
    found = probe.key_value_memory(model, np.where(LEFT, IDS, 0), LEFT, layer=1, top=2, words=3)
    other = transformer.key_value_memory(model, np.where(LEFT, IDS, 0), LEFT, layer=1, top=2, words=3)
    for name, one, two in zip(found._fields, found, other, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=0 if name in ("text", "position", "promoted") else 1e-12)
    assert (found.position >= 8 - LEFT.sum(axis=1)[found.text]).all()


def test_memories_of_a_patched_network_are_of_its_activations():
    model, ids = tiny("gpt2"), np.where(LEFT, IDS, 0)
    every = RNG.normal(size=(len(IDS), IDS.shape[1], 48))
    right = np.zeros_like(IDS)
    right[MASK] = ids[LEFT]
    for edit, batch_size in (
        (probe.Edit("neuron", 0.5, layer=1, index=[0, 7], token=1), 2),
        (probe.Edit("stream", 1.5, layer=0, index=3), 2),
        (probe.Edit("neuron", every, layer=1), len(IDS)),
        (probe.Edit("neuron", lambda x: x - x.mean(axis=0, keepdims=True), layer=1), len(IDS)),
    ):
        patched = probe.patch(model, edit)
        found = probe.key_value_memory(patched, ids, LEFT, layer=1, top=3, words=2, batch_size=batch_size)
        fired = np.asarray(probe.activations(patched, right, MASK, place="neuron"))[:, 1]
        np.testing.assert_allclose(found.mean, fired[MASK].mean(axis=0), rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.activation, -np.sort(-fired[MASK], axis=0)[:3].T, rtol=0, atol=1e-12)
        at = found.position - (8 - MASK.sum(axis=1))[found.text]
        np.testing.assert_allclose(fired[found.text, at, np.arange(48)[:, None]], found.activation, atol=1e-12)
        if batch_size > 2:
            with as_a_user(), pytest.raises(ValueError, match="batch_size must be at least 3, the number of texts"):
                probe.key_value_memory(patched, ids, LEFT, layer=1, batch_size=2)
