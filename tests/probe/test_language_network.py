"""The language model of `transformer` as a network of `probe` is the same function for all options."""

import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import probe, transformer
from tests.helpers import normal
from tests.probe_cases import assert_refused, kinds
from tests.transformer_cases import language_model


IDS = np.random.default_rng(3).integers(0, 11, (3, 8))
MASK = np.arange(8)[None, :] < np.array([8, 5, 2])[:, None]


def small_model(positions=16, **options):
    return language_model(26, 8, 2, 12, 3, positions=positions, dtype=jnp.float64, **options)


def relative_positions(values):
    vectors = 0.5 * np.random.default_rng(2).normal(size=(2, 5, 4))
    return transformer.RelativePositions(*(jnp.asarray(part, float) for part in vectors[: 1 + values]))


CASES = {
    "as GPT-2": lambda: small_model(),
    "post-norm": lambda: small_model(residual=transformer.PostNorm()),
    "no norm": lambda: small_model(residual=transformer.NoNorm()),
    "no biases": lambda: small_model(bias=False, tied=False),
    "sinusoidal": lambda: small_model(positions=transformer.SinusoidalPositions(8, 30.0)),
    "relative": lambda: small_model(positions=None, relative=relative_positions(False)),
    "relative values": lambda: small_model(positions=None, relative=relative_positions(True)),
    "rotary": lambda: small_model(positions=None, relative=transformer.RotaryPositions(4, 30.0)),
    "shared": lambda: small_model(shared=True),
    "not causal": lambda: small_model(causal=False, activation=jax.nn.relu),
}


@pytest.fixture(scope="module", params=kinds("relative values", every=CASES))
def pair(request):
    model = CASES[request.param]()
    return model, probe.from_language_model(model, name="ours")


@eqx.filter_jit
def of_texts(model, ids, present):
    """All levels and the logits of each text, and the attention of the second layer."""

    def of_text(ids, present):
        levels, block = model.stack.levels(model.embed(ids), present), model.stack.block(1)
        read = block.residual.read(block.norms[0], levels[1])
        return levels, model(ids, present), block.attention.weights(read, present)

    return jax.vmap(of_text)(ids, present)


def test_levels_are_those_of_the_model(pair):
    """Every level, the logits and the attention of one layer agree."""
    model, network = pair
    found = probe.trace(network, IDS, MASK)
    logits = np.asarray(network.logits(found.hidden[:, -1]))
    levels, scores, weights = (np.asarray(part) for part in of_texts(model, IDS, MASK))
    there = MASK[:, None, :, None]
    np.testing.assert_allclose(found.hidden[:, :-1], np.where(there, levels[:, :-1], 0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(logits[MASK], scores[MASK], rtol=0, atol=1e-11)
    np.testing.assert_allclose(found.attention[:, 1], np.where(there, weights, 0), rtol=0, atol=1e-13)


@pytest.mark.exhaustive
def test_tools_agree(pair):
    """The residual stream, the logit lens and the memories agree, for the network and for the model."""
    model, network = pair
    ids = jnp.asarray(IDS[0])
    ours, theirs = transformer.residual_stream(network, ids), transformer.residual_stream(model, ids)
    for a, b in zip(jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11)
    lens = transformer.logit_lens(network, ids)
    np.testing.assert_allclose(lens, transformer.logit_lens(model, ids), rtol=0, atol=1e-11)
    np.testing.assert_allclose(lens, model.logit_lens(ids), rtol=0, atol=1e-11)
    one, other = (transformer.key_value_memory(m, IDS, MASK, layer=1, top=2, words=3) for m in (network, model))
    np.testing.assert_array_equal(one.promoted, other.promoted)
    np.testing.assert_allclose(one.mean, other.mean, rtol=0, atol=1e-12)
    assert probe.head_matrices(network).query.shape == (len(network.network.blocks()), 2, 8, 4)


def test_fields_agree(pair):
    """The velocity of a layer agrees, for the network and for the model; relative positions are refused."""
    model, network = pair
    x = normal(4, 6, 8)
    if model.stack.block(2).attention.relative is not None:
        with pytest.raises(ValueError, match="block must be without relative positions"):
            transformer.as_field(model, 2)
        return
    ours, theirs = (transformer.as_field(one, 2, space=space) for one in pair for space in [cjx.Sphere()])
    np.testing.assert_allclose(ours(0.0, x), theirs(0.0, x), rtol=0, atol=1e-12)
    if not isinstance(model.stack.blocks.residual, transformer.PostNorm):
        ours, theirs = (transformer.as_field(one, 2) for one in pair)
        np.testing.assert_allclose(ours(0.0, x), theirs(0.0, x), rtol=0, atol=1e-11)


@pytest.mark.exhaustive
def test_folder(tmp_path):
    """`load` reads a model that `save` wrote, including its depth."""
    model = small_model()
    transformer.save(model, tmp_path / "model")
    loaded = probe.load(tmp_path / "model", dtype=jnp.float64)
    np.testing.assert_array_equal(
        probe.trace(loaded, IDS).hidden, probe.trace(probe.from_language_model(model), IDS).hidden
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert probe.load(tmp_path / "model", depth=5).network.order() == [0, 1, 2, 0, 1]
    assert "deepened to 5" in str(told[-1].message)
    assert probe.load("language-model").num_layers == transformer.load().stack.num_layers


def test_refused(tmp_path):
    transformer.save(transformer.FeedForward.random(jr.key(0), 4, 8), tmp_path / "part")
    other = dataclasses.replace(small_model(), stream_dtype=jnp.bfloat16)
    cases = [
        (lambda: probe.from_language_model(3), "model must be a LanguageModel"),
        (lambda: probe.from_language_model(other), "compute in the dtype of its parameters"),
        (lambda: probe.load("language-model", heads=2), "heads must be None for a language model"),
        (lambda: probe.load(tmp_path / "part"), "path must be of a language model, but it is of a FeedForward"),
    ]
    assert_refused(*cases)
