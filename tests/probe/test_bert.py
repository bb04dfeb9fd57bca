"""BERT against transformers where PyTorch is installed, against double loops everywhere."""

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from clusterjax import probe
from clusterjax.probe.networks.architectures import sizes_of
from tests.helpers import as_a_user
from tests.probe_cases import BERT, IDS, MASK, TYPES, tensors_of, write
from tests.probe_twins import errors, save_twin
from tests.reference import networks


LIVE = {
    "gelu": ("BertForMaskedLM", {}),
    "gelu_new": ("BertForMaskedLM", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "relu": ("BertForMaskedLM", {"hidden_act": "relu", "type_vocab_size": 3}),
    "not tied": ("BertForMaskedLM", {"tie_word_embeddings": False}),
    "one layer, one head": ("BertForMaskedLM", {"num_hidden_layers": 1, "num_attention_heads": 1}),
    "without a head": ("BertModel", {}),
    "two heads": ("BertForPreTraining", {}),
}


@pytest.mark.exhaustive_cases("gelu", "not tied", "two heads")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("gelu", "not tied", "two heads") else pytest.mark.exhaustive)
        for name in LIVE
    ],
)
def test_live(tmp_path, name):
    """All levels, attentions and scores of a network that transformers saved, at words, in both precisions."""
    kind, more = LIVE[name]
    twin = save_twin(tmp_path, kind, BERT | more)
    tied = more.get("tie_word_embeddings", True)
    for dtype, allowed in ((jnp.float32, (1e-5, 2e-5, 1e-4)), (jnp.float64, (1e-12, 1e-12, 1e-12))):
        # Beside an untied decoder transformers has a second bias, which it does not use.
        warned = contextlib.nullcontext() if tied else pytest.warns(UserWarning, match="decoder.bias' is used")
        with warned:
            model = probe.load(tmp_path, dtype=dtype)
        twin = twin.double() if dtype == jnp.float64 else twin
        found = errors(model, twin, IDS, MASK, TYPES)
        assert (found[2] is None) == (kind != "BertForMaskedLM")
        assert all(error is None or error < most for error, most in zip(found, allowed, strict=True)), found
    assert (model.network.pooler is None) == (kind == "BertForMaskedLM")
    kept = ("cls.seq_relationship.bias", "cls.seq_relationship.weight") if kind == "BertForPreTraining" else ()
    assert model.left_out == kept
    if kind == "BertModel":
        with pytest.raises(ValueError, match="this network has no masked-LM head"):
            model.logits(jnp.ones((1, 2, 12)))


def test_layers(tmp_path):
    """Each layer of a text with padding, from the state before it, and the embedding with its token types."""
    tensors = tensors_of(BERT)
    found = probe.trace(probe.load(write(tmp_path, BERT, tensors), dtype=jnp.float64), IDS, MASK, token_types=TYPES)
    words = range(int(MASK[1].sum()))
    for i in range(3):
        before = np.asarray(found.hidden[1, i])
        after, weights = networks.bert_layer(before, tensors, f"encoder.layer.{i}.", 3, MASK[1], "gelu", 1e-12)
        np.testing.assert_allclose(found.hidden[1, i + 1][: len(words)], after[words], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.attention[1, i], weights, rtol=0, atol=1e-12)
    word, place, kind = (
        tensors[f"embeddings.{name}_embeddings.weight"].astype("f8") for name in ("word", "position", "token_type")
    )
    total = np.array([word[i] + place[p] + kind[TYPES[0, p]] for p, i in enumerate(IDS[0])])
    scale, shift = tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"]
    expected = networks.layer_norm(total, scale, shift, 1e-12)
    np.testing.assert_allclose(found.hidden[0, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.exhaustive
def test_head_and_pooler(tmp_path):
    """The scores of the masked-LM head and the pooled token, by loops; what the network holds is written as it was."""
    tensors = tensors_of(BERT, head=True)
    model = probe.load(write(tmp_path, BERT, tensors), dtype=jnp.float64)
    hidden = np.random.default_rng(0).normal(size=(1, 2, 12))
    get = lambda name: (tensors[f"{name}.weight"], tensors[f"{name}.bias"])
    wide = networks.linear(hidden[0], *get("cls.predictions.transform.dense"))
    bent = np.vectorize(lambda v: networks.act("gelu", v))(wide)
    normed = networks.layer_norm(bent, *get("cls.predictions.transform.LayerNorm"), 1e-12)
    table, shift = tensors["embeddings.word_embeddings.weight"], tensors["cls.predictions.bias"]
    expected = networks.linear(normed, table, shift)
    np.testing.assert_allclose(model.logits(jnp.asarray(hidden))[0], expected, rtol=0, atol=1e-12)
    pooled = np.tanh(networks.linear(hidden[0, :1], *get("pooler.dense")))
    np.testing.assert_allclose(model.network.pool(jnp.asarray(hidden)), pooled, rtol=0, atol=1e-12)
    found = probe.tensors(probe.load(tmp_path).network)
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)


def test_old_files_and_prefixes(tmp_path):
    """gamma and beta, `bert.`, tied copies and what is no part of the network."""
    tensors = tensors_of(BERT, head=True)
    plain = probe.load(write(tmp_path / "plain", BERT, tensors))
    old = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    prefixed = lambda name: old(name) if name.startswith("cls.") else f"bert.{old(name)}"
    full = {prefixed(name): array for name, array in tensors.items()}
    assert "bert.encoder.layer.0.output.LayerNorm.gamma" in full
    full |= {
        "cls.predictions.decoder.weight": tensors["embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        "cls.seq_relationship.weight": np.ones((2, 12), "f4"),
        "bert.embeddings.position_ids": np.arange(16)[None],
        "classifier.bias": np.ones(2, "f4"),
        "qa_outputs.weight": np.ones((2, 12), "f4"),
    }
    model = probe.load(write(tmp_path / "old", BERT, full))
    left_out = ("bert.embeddings.position_ids", "classifier.bias", "cls.seq_relationship.weight", "qa_outputs.weight")
    assert model.left_out == left_out
    expected = nnx.to_flat_state(nnx.state(plain.network))
    for (path, value), (name, other) in zip(nnx.to_flat_state(nnx.state(model.network)), expected, strict=True):
        assert path == name
        np.testing.assert_array_equal(value[...], other[...])


@pytest.mark.parametrize(
    ("fields", "message"),
    (
        ({"num_attention_heads": 5}, "num_attention_heads that divides the hidden size, 12, .* it is 5"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; name another"),
        ({"is_decoder": True}, "must be of an encoder, but in '.*config.json' is_decoder is true; name another"),
        ({"hidden_act": "tanh"}, "activation among .* 'tanh'"),
        ({"vocab_size": 31}, "'embeddings.word_embeddings.weight' of .* has the shape"),
        ({"num_hidden_layers": 4}, "lacks 'encoder.layer.3"),
    ),
    ids=str,
)
def test_configurations_that_do_not_fit(tmp_path, fields, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        probe.load(write(tmp_path, BERT | fields, tensors_of(BERT)))


@pytest.mark.parametrize("wrong", ("12", None, float("nan"), True, 0), ids=str)
@pytest.mark.parametrize("field", ("hidden_size", "intermediate_size", "type_vocab_size", "vocab_size"))
def test_numbers_that_are_none(field, wrong):
    """Whatever the version of transformers lets through, before anything is computed of it."""
    config = SimpleNamespace(**(BERT | {"initializer_range": 0.02, "tie_word_embeddings": None, field: wrong}))
    with as_a_user(), pytest.raises(ValueError, match=f"positive {field}, but in 'config.json' it is {wrong!r}; mend"):
        sizes_of(config, Path("config.json"))


BROKEN = {
    "missing": (lambda t: t.pop("pooler.dense.bias"), "lacks 'pooler.dense.bias'"),
    "extra": (lambda t: t.update({"adapter.down": np.ones(2, "f4")}), "has 'adapter.down', which no part"),
    "misshapen": (
        lambda t: t.update({"encoder.layer.1.intermediate.dense.weight": np.ones((12, 20), "f4")}),
        re.escape("'encoder.layer.1.intermediate.dense.weight'") + ".* has the shape \\(12, 20\\)",
    ),
    "twice": (lambda t: t.update({"embeddings.LayerNorm.gamma": np.ones(12, "f4")}), "'embeddings.LayerNorm.weight'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_tensor_is_accounted_for(tmp_path, name):
    change, message = BROKEN[name]
    tensors = tensors_of(BERT)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        probe.load(write(tmp_path, BERT, tensors))


@pytest.mark.exhaustive
def test_more_tokens_than_positions(tmp_path):
    """The network refuses them, and tools cut them and say so."""
    model = probe.load(write(tmp_path, BERT, tensors_of(BERT)))
    ids = jnp.ones((1, 17), int)
    with as_a_user(), pytest.raises(ValueError, match="token_ids must hold at most 16 tokens a text"):
        model.network(ids)
    with pytest.warns(UserWarning, match="longer than 16 tokens"):
        assert probe.trace(model, ids).hidden.shape == (1, 4, 16, 12)
    assert model.network(ids[:, :16]).shape == (1, 16, 12)


def test_depth_and_heads(tmp_path):
    """Deeper repeats the layers from the first; other heads are said."""
    folder = write(tmp_path, BERT, tensors_of(BERT))
    with pytest.warns(UserWarning, match="deepened to 5"):
        deep = probe.load(folder, depth=5)
    assert deep.network.order() == [0, 1, 2, 0, 1]
    with pytest.warns(UserWarning, match="cut into 2"):
        cut = probe.load(folder, heads=2)
    assert probe.trace(cut, IDS, MASK).attention.shape[2] == 2
