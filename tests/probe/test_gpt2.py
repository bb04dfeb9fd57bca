"""GPT-2 against transformers where PyTorch is installed, against double loops everywhere."""

import re
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import probe
from clusterjax.probe.networks.architectures import sizes_of
from tests.helpers import as_a_user
from tests.probe_cases import GPT2, IDS, MASK, tensors_of, write
from tests.probe_twins import errors, save_twin
from tests.reference import networks


BY_LAYER = GPT2 | {"scale_attn_by_inverse_layer_idx": True}
LIVE = {
    "gelu_new": ("GPT2LMHeadModel", {}),
    "gelu, a width of its own": ("GPT2LMHeadModel", {"activation_function": "gelu", "n_inner": 20}),
    "relu, large eps": ("GPT2LMHeadModel", {"activation_function": "relu", "layer_norm_epsilon": 1e-2}),
    "gelu_pytorch_tanh": ("GPT2LMHeadModel", {"activation_function": "gelu_pytorch_tanh"}),
    "not scaled": ("GPT2LMHeadModel", {"scale_attn_weights": False}),
    "scaled by layer": ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}),
    "only by layer": (
        "GPT2LMHeadModel",
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ),
    "not tied": ("GPT2LMHeadModel", {"tie_word_embeddings": False}),
    "one layer, one head": ("GPT2LMHeadModel", {"n_layer": 1, "n_head": 1}),
    "without a head": ("GPT2Model", {"tie_word_embeddings": False}),
}


@pytest.mark.exhaustive_cases(
    "gelu, a width of its own",
    "gelu_new",
    "not scaled",
    "not tied",
    "one layer, one head",
    "only by layer",
    "relu, large eps",
    "scaled by layer",
    "without a head",
)
@pytest.mark.parametrize("name", LIVE)
def test_live(tmp_path, name):
    """All levels, attentions and scores of a network that transformers saved, at words, in both precisions."""
    kind, more = LIVE[name]
    twin = save_twin(tmp_path, kind, GPT2 | more)
    allowed_in = {jnp.float32: (1e-5, 2e-5, 1e-4), jnp.float64: (1e-12,) * 3}
    if "reorder_and_upcast_attn" in more:  # which theirs cannot do in float64
        del allowed_in[jnp.float64]
    for dtype, allowed in allowed_in.items():
        model = probe.load(tmp_path, dtype=dtype)
        found = errors(model, twin.double() if dtype == jnp.float64 else twin, IDS, MASK)
        assert (found[2] is None) == (kind == "GPT2Model")
        assert all(error is None or error < most for error, most in zip(found, allowed, strict=True)), found
    assert model.left_out == ()
    if kind == "GPT2Model":
        with pytest.raises(ValueError, match="this network has no head for words"):
            model.logits(jnp.ones((1, 2, 12)))


@pytest.mark.parametrize("config", (GPT2, BY_LAYER), ids=("scaled", "by layer"))
def test_blocks(tmp_path, config):
    """Each block of a text with padding, from the state before it, the embedding, the last norm, the scores."""
    tensors = tensors_of(config)
    model = probe.load(write(tmp_path, config, tensors), dtype=jnp.float64)
    found, words = probe.trace(model, IDS, MASK), range(int(MASK[1].sum()))
    for i in range(3):
        scale = 0.5 / (i + 1 if config is BY_LAYER else 1)  # the dimension of a head is 4
        before = np.asarray(found.hidden[1, i])
        after, weights = networks.gpt2_block(before, tensors, f"h.{i}.", 3, MASK[1], "gelu_new", 1e-5, scale)
        if i == 2:
            after = networks.layer_norm(after, tensors["ln_f.weight"], tensors["ln_f.bias"], 1e-5)
        np.testing.assert_allclose(found.hidden[1, i + 1][: len(words)], after[words], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.attention[1, i], weights, rtol=0, atol=1e-12)
    total = tensors["wte.weight"][IDS[0]].astype("f8") + tensors["wpe.weight"][:8]
    np.testing.assert_allclose(found.hidden[0, 0], total, rtol=0, atol=1e-15)
    scores = networks.linear(np.asarray(found.hidden[0, 3]), tensors["wte.weight"])
    np.testing.assert_allclose(model.logits(found.hidden[:, 3])[0], scores, rtol=0, atol=1e-12)


def test_a_prefix_does_not_know_what_follows(tmp_path):
    """States and attention of the first tokens are those of the text that ends there."""
    model = probe.load(write(tmp_path, GPT2, tensors_of(GPT2)), dtype=jnp.float64)
    found, cut = probe.trace(model, IDS), probe.trace(model, IDS[:, :5])
    np.testing.assert_allclose(found.hidden[:, :, :5], cut.hidden, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.attention[..., :5, :5], cut.attention, rtol=0, atol=1e-13)
    assert not np.triu(np.asarray(found.attention), 1).any()


@pytest.mark.parametrize("config", (GPT2, BY_LAYER), ids=("scaled", "by layer"))
def test_head_matrices_give_the_attention(tmp_path, config):
    """softmax of scale Q K^T by the matrices of each head: the number of a block that divides scores is in them."""
    tensors = tensors_of(config)
    tensors |= {name: 0 * array for name, array in tensors.items() if name.endswith("c_attn.bias")}
    model = probe.load(write(tmp_path, config, tensors), dtype=jnp.float64)
    found, matrices = probe.trace(model, IDS[:1]), probe.head_matrices(model)
    for i in range(3):
        scale, shift = tensors[f"h.{i}.ln_1.weight"], tensors[f"h.{i}.ln_1.bias"]
        read = networks.layer_norm(np.asarray(found.hidden[0, i]), scale, shift, 1e-5)
        scores = matrices.scale * np.einsum("nd,hdk,hek,me->hnm", read, matrices.query[i], matrices.key[i], read)
        weights = np.tril(np.exp(scores))
        weights /= weights.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(found.attention[0, i], weights, rtol=0, atol=1e-12)


def test_prefixes_buffers_and_copies(tmp_path):
    """The same network with `transformer.`, the masks of old files, a tied copy; and written as it was."""
    tensors = tensors_of(GPT2)
    full = {f"transformer.{name}": array for name, array in tensors.items()}
    full |= {"lm_head.weight": tensors["wte.weight"], "score.weight": np.ones((2, 12), "f4")}
    for i in range(3):
        full[f"transformer.h.{i}.attn.bias"] = np.ones((1, 1, 16, 16), "f4")
        full[f"transformer.h.{i}.attn.masked_bias"] = np.float32(-1e4)
    model = probe.load(write(tmp_path / "full", GPT2, full))
    buffers = [f"transformer.h.{i}.attn.{name}" for i in range(3) for name in ("bias", "masked_bias")]
    assert model.left_out == ("score.weight", *buffers)
    found = probe.tensors(model.network)
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)


def test_an_untied_head(tmp_path):
    """A map of its own, written as it was; without it there are no scores."""
    config = GPT2 | {"tie_word_embeddings": False}
    tensors = tensors_of(GPT2) | {"lm_head.weight": np.random.default_rng(0).normal(size=(30, 12)).astype("f4")}
    model = probe.load(write(tmp_path, config, tensors), dtype=jnp.float64)
    hidden = np.random.default_rng(1).normal(size=(1, 2, 12))
    expected = networks.linear(hidden[0], tensors["lm_head.weight"])
    np.testing.assert_allclose(model.logits(jnp.asarray(hidden))[0], expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(probe.tensors(model.network)["lm_head.weight"], tensors["lm_head.weight"])


@pytest.mark.parametrize(
    ("fields", "message"),
    (
        ({"n_head": 5}, "n_head that divides the hidden size, 12, but in '.*config.json' it is 5"),
        ({"add_cross_attention": True}, "add_cross_attention is true; name another checkpoint"),
        ({"activation_function": "tanh"}, "activation among .* 'tanh'"),
        ({"n_inner": 20}, "'h.0.mlp.c_fc.*' of .* has the shape"),
        ({"n_layer": 4}, "lacks 'h.3"),
        ({"tie_word_embeddings": False, "vocab_size": 31}, "'wte.weight' of .* has the shape"),
    ),
    ids=str,
)
def test_configurations_that_do_not_fit(tmp_path, fields, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        probe.load(write(tmp_path, GPT2 | fields, tensors_of(GPT2)))


NAMES = {"n_embd": "hidden_size", "n_inner": "intermediate_size", "n_layer": "num_layers", "vocab_size": "vocab_size"}


@pytest.mark.parametrize("wrong", ("12", None, float("nan"), True, 0), ids=str)
@pytest.mark.parametrize("field", NAMES)
def test_numbers_that_are_none(field, wrong):
    """Whatever the version of transformers lets through, before anything is computed of it."""
    whole = GPT2 | {"initializer_range": 0.02, "tie_word_embeddings": None, "scale_attn_weights": True}
    whole |= {"scale_attn_by_inverse_layer_idx": False, "n_inner": None}
    if field == "n_inner" and wrong is None:  # four times the hidden size
        assert sizes_of(SimpleNamespace(**whole), Path("config.json")).intermediate_size == 48
        return
    message = f"positive {NAMES[field]}, but in 'config.json' it is {wrong!r}; mend"
    with as_a_user(), pytest.raises(ValueError, match=message):
        sizes_of(SimpleNamespace(**(whole | {field: wrong})), Path("config.json"))


BROKEN = {
    "missing": (lambda t: t.pop("h.1.ln_2.bias"), "lacks 'h.1.ln_2.bias'"),
    "extra": (lambda t: t.update({"h.0.adapter": np.ones(2, "f4")}), "has 'h.0.adapter', which no part"),
    "transposed": (
        lambda t: t.update({"h.2.attn.c_attn.weight": np.ones((36, 12), "f4")}),
        re.escape("'h.2.attn.c_attn.weight'") + ".* has the shape \\(36, 12\\) in place of \\(12, 36\\)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_tensor_is_accounted_for(tmp_path, name):
    change, message = BROKEN[name]
    tensors = tensors_of(GPT2)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        probe.load(write(tmp_path, GPT2, tensors))


def test_more_tokens_than_positions(tmp_path):
    """The network refuses them, and tools cut them and say so."""
    model = probe.load(write(tmp_path, GPT2, tensors_of(GPT2)))
    ids = jnp.ones((1, 17), int)
    with as_a_user(), pytest.raises(ValueError, match="token_ids must hold at most 16 tokens a text"):
        model.network(ids)
    with pytest.warns(UserWarning, match="longer than 16 tokens"):
        assert probe.trace(model, ids).hidden.shape == (1, 4, 16, 12)
    with pytest.raises(ValueError, match="token_types must be None"):
        probe.trace(model, ids[:, :16], token_types=0 * ids[:, :16])
    assert model.network(ids[:, :16]).shape == (1, 16, 12)


def test_depth_and_heads(tmp_path):
    """Deeper repeats the blocks from the first, with their own scale of scores; other heads are said."""
    folder = write(tmp_path, BY_LAYER, tensors_of(BY_LAYER))
    with pytest.warns(UserWarning, match="deepened to 5"):
        deep = probe.load(folder, depth=5)
    assert deep.network.order() == [0, 1, 2, 0, 1]
    with pytest.warns(UserWarning, match="cut into 2"):
        cut = probe.load(folder, heads=2)
    assert probe.trace(cut, IDS, MASK).attention.shape[2] == 2
