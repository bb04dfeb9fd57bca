"""The place of padding and the rest of a batch change nothing, in every network and every measure."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from flax import nnx

import clusterjax as cjx
from clusterjax import probe, transformer
from clusterjax.probe.measures.neurons import unit_means
from clusterjax.probe.networks.families import FAMILIES
from tests.helpers import as_a_user
from tests.probe.test_families import CASES, FIRST
from tests.probe.test_language_network import relative_positions, small_model
from tests.probe_cases import CONFIGS, assert_same, kinds, tiny


OWN = {
    "learned": {"positions": 16},
    "sinusoidal": {"positions": transformer.SinusoidalPositions(8, 30.0)},
    "rotary": {"positions": None, "relative": transformer.RotaryPositions(4, 30.0)},
    "relative": {"positions": None, "relative": relative_positions(True)},
}
# These masks depend on places: the numbers stay the same only if padding does not count as a place.
MASKED = {
    "t5 in windows": ("t5", cjx.WindowMask(3)),
    "gpt2 with sinks": ("gpt2", cjx.SinkMask(2, 1)),
    "albert, causal": ("shared albert", cjx.CausalMask()),
}
EVERY = (*CONFIGS, *OWN, *MASKED)


WORDS = [[5, 9, 2, 7, 4], [8, 3, 6], [7, 7, 1, 9, 5]]
# The columns, of nine, that contain the words of each text; all other columns are padding.
PLACES = {
    "right": [range(5), range(3), range(5)],
    "left": [range(4, 9), range(6, 9), range(4, 9)],
    "holes": [[0, 2, 3, 5, 8], [1, 4, 7], [0, 1, 4, 5, 8]],
    "each another": [range(2, 7), range(3), [0, 3, 4, 6, 8]],
}


@functools.cache
def load(kind):
    if kind in OWN:
        return probe.from_language_model(small_model(**OWN[kind]))
    if kind in MASKED:
        base, mask = MASKED[kind]
        return probe.with_mask(tiny(base), mask)
    return tiny(kind)


def batch(where, texts=range(3)):
    """Texts in one batch, with the id of a word at padding."""
    places = PLACES[where]
    ids, mask = np.full((len(texts), 9), 11, np.int32), np.zeros((len(texts), 9), bool)
    for row, text in enumerate(texts):
        ids[row, list(places[text])], mask[row, list(places[text])] = WORDS[text], True
    return probe.Encoded(ids, mask)


def of_words(array, mask, *axes):
    """The entries that belong to the words of one text, along these axes."""
    for axis in axes:
        array = np.compress(mask, array, axis=axis)
    return array


@pytest.mark.exhaustive_cases("albert", "bert", "gpt2", "learned", "llama", "t5 in windows")
@pytest.mark.parametrize(
    "kind", kinds("albert", "bert", "gpt2", "llama", "t5 in windows", "learned", "gpt2 with sinks", every=EVERY)
)
def test_hidden_states_and_attention_are_those_of_the_text_alone(kind):
    """The place of the words and the other texts of the batch change nothing; all entries at padding are zero."""
    model = load(kind)
    for text, words in enumerate(WORDS):
        alone = probe.trace(model, [words])
        for where in PLACES:
            ids, mask = batch(where)
            found, here = probe.trace(model, ids, mask), mask[text]
            hidden, attention = np.asarray(found.hidden[text]), np.asarray(found.attention[text])
            assert_same(of_words(hidden, here, 1), alone.hidden[0])
            assert_same(of_words(attention, here, 2, 3), alone.attention[0])
            assert not hidden[:, ~here].any()
            assert not attention[:, :, ~here].any() and not attention[..., ~here].any()
            np.testing.assert_array_equal(found.mask, mask)


# A tiny network of each family, by model type, and networks whose angles depend on the number of words.
TINY = {name: CASES[name][1] | CASES[name][2] | {"model_type": name} for name in FIRST if "," not in name}
TINY |= {CONFIGS[kind]["model_type"]: CONFIGS[kind] for kind in CONFIGS}
TINY |= {"llama": CASES["llama, yarn"][1] | {"model_type": "llama"}, "mt5": CONFIGS["t5"] | {"model_type": "mt5"}}
TINY |= {"mistral": TINY["llama"] | {"model_type": "mistral", "sliding_window": 3}}
TINY |= {name: CASES[name][1] | CASES[name][2] | {"model_type": "llama"} for name in ("llama, yarn", "llama, dynamic")}
IN_IMAGES = ("vit", "dinov2")
OFTEN = ("bloom", "distilbert", "gemma3_text", "gpt_neox", "modernbert", "opt", "roberta")


@functools.cache
def of_family(name):
    """A network of this family with random numbers in all parameters, including biases and norms."""
    model, rng = probe.from_config(TINY[name], jr.key(0), dtype="float64"), np.random.default_rng(1)
    form, state, others = nnx.split(model.network, nnx.Param, ...)
    state = jtu.tree_map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape), state)
    return dataclasses.replace(model, network=nnx.merge(form, state, others))


def test_every_family_has_a_tiny_network():
    assert {name.partition(",")[0] for name in TINY} == set(FAMILIES)


@pytest.mark.exhaustive_cases("distilbert", "bloom", "modernbert")
@pytest.mark.parametrize("name", kinds(*OFTEN, every=[name for name in TINY if name not in IN_IMAGES]))
def test_padding_of_every_family(name):
    """Padding before, after, around and among words, its ids, and other texts of the batch change no hidden state."""
    model, rng = of_family(name), np.random.default_rng(2)
    words = rng.integers(3, 30, 5)
    alone = np.asarray(probe.trace(model, words[None]).hidden[0])
    # The layers mix the words.
    assert np.abs(np.asarray(probe.trace(model, words[None, ::-1]).hidden[0])[:, ::-1] - alone)[-1].max() > 1e-3
    rows = {"behind": range(5), "before": range(4, 9), "around": range(2, 7), "among": [0, 3, 4, 6, 8]}
    for places in (("behind", "before", "among"), ("around", "behind"), ("among",)):
        # The rest of the batch is drawn again: the ids at padding, and whole texts with padding anywhere.
        ids, mask = rng.integers(3, 30, (3, 9)), rng.random((3, 9)) < 0.6
        mask[:, 1] = True
        for row, where in enumerate(places):
            mask[row], mask[row, list(rows[where])], ids[row, list(rows[where])] = False, True, words
        hidden = np.asarray(probe.trace(model, ids, mask).hidden)
        for row, where in enumerate(places):
            assert_same(hidden[row][:, list(rows[where])], alone)
        assert not np.moveaxis(hidden, 1, 2)[~mask].any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in TINY if name not in IN_IMAGES])
def test_padding_behind_all_texts_of_every_family(name):
    """Hidden states are unchanged where all padding is at the end, so that no row is moved."""
    model, words = of_family(name), np.random.default_rng(2).integers(3, 30, (3, 9))
    mask = np.arange(9)[None] < np.array([[5], [9], [2]])
    found = probe.trace(model, words, mask).hidden
    for row, there in enumerate(mask):
        assert_same(found[row][:, there], probe.trace(model, words[row : row + 1, there]).hidden[0])


@pytest.mark.parametrize("name", kinds("vit", every=IN_IMAGES))
def test_batches_of_images(name):
    """The other images of a batch change no hidden state of an image."""
    images = np.random.default_rng(3).normal(size=(3, 2, 12, 12))
    found = [probe.trace(of_family(name), images[order]).hidden for order in ([0, 1, 2], [2, 0, 1])]
    assert_same(found[1], found[0][np.array([2, 0, 1])])
    assert_same(probe.trace(of_family(name), images[1:2]).hidden, found[0][1:2])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", kinds("bert", every=EVERY))
def test_a_network_called_by_itself(kind):
    """A call of the network itself ignores padding, also with a traced mask; the pooled word is the first word."""
    network = load(kind).network
    alone = [probe.trace(load(kind), [words]).hidden[:, -1] for words in WORDS]
    known = lambda ids, mask: jax.jit(lambda ids: network(ids, jnp.asarray(mask)))(ids)
    pool = jax.jit(network.pool) if getattr(network, "pooler", None) is not None else None
    for run, places in ((jax.jit(lambda ids, mask: network(ids, mask)), PLACES), (known, ("left",))):
        for where in places:
            ids, mask = batch(where)
            last = run(ids, mask)
            pooled = None if pool is None else pool(last, mask)
            for text, expected in enumerate(alone):
                assert_same(np.asarray(last)[text][mask[text]], expected[0])
                if pool is not None:
                    assert_same(pooled[text], pool(expected)[0])


FEW = {"bins": 8, "rank": True}
# The results of each public measure for an `Encoded`.
MEASURES = {
    "attention_sinks": lambda model, data: probe.attention_sinks(model, data, special={"three": 7}),
    "position_heads": lambda model, data: probe.position_heads(model, data, separators={"three": 3}),
    "without": lambda model, data: probe.first_token(probe.without(model, "attention", layer=1, head=0, token=1), data),
    "unit_means": lambda model, data: unit_means(model, *data),
    "token_losses": lambda model, data: probe.token_losses(model, data)[:, :4],
    "cut": lambda model, data: probe.similarity_histograms(model, data, length=4, without_first=True, bins=8),
    "similarity_histograms": lambda model, data: probe.similarity_histograms(model, data, **FEW),
    "first_token": lambda model, data: probe.first_token(model, data),
    "head_correlations": lambda model, data: probe.head_correlations(model, data, clusters=2, replicates=3),
    "survey": lambda model, data: probe.survey(model, data, MEAN).levels,
    "token_activation": lambda model, data: [
        probe.token_activation(model, probe.Encoded(*(part[k : k + 1] for part in data)))[:2] for k in range(3)
    ],
    "mean_activations": lambda model, data: transformer.mean_activations(model, *data, layer=1),
}


MEAN = probe.Measure(
    lambda hidden, mask: {"mean": jnp.sum(hidden, axis=(1, 2)), "first": jnp.sum(hidden[:, 0], axis=1)},
    lambda hidden, weights, mask: {"first": jnp.sum(weights[..., 0], axis=(1, 2))},
)


@pytest.mark.parametrize("name", kinds(*list(MEASURES)[:6], every=MEASURES))
@pytest.mark.parametrize("kind", kinds("gpt2", every=EVERY))
def test_measures_of_texts(kind, name):
    """Every measure gives the same numbers, however the texts are padded and divided into batches."""
    model = load(kind)
    if name == "token_losses" and (not model.network.shared_context(9).causal or model.network.mask is not None):
        pytest.skip("the network sees what it has to guess")
    # The second text lacks token 7, which is a target of the sinks.
    step = 2 if name == "attention_sinks" else 1
    given = lambda where: probe.Encoded(*(part[::step] for part in batch(where)))
    expected = MEASURES[name](model, given("left"))
    for where in ("holes", "each another"):
        assert_same(MEASURES[name](model, given(where)), expected)


def test_batches_of_a_survey():
    """Two texts at a time, all texts at once and another order give the same values of each text."""
    model = tiny("gpt2")
    data = batch("each another")
    expected = probe.first_token(model, data).ratio.values
    assert_same(probe.first_token(model, data, batch_size=2).ratio.values, expected)
    turned = probe.Encoded(data.token_ids[::-1], data.mask[::-1])
    assert_same(probe.first_token(model, turned).ratio.values[::-1], expected)


@pytest.mark.exhaustive  # half a minute to compile, and the check that all measures of texts share
def test_the_particle_model_of_a_network():
    """The bridge reads texts with padding as the network does."""
    model = tiny("albert")
    found = [probe.bridge(model, batch(where), batch_size=3, steps_per_layer=2) for where in ("right", "each another")]
    assert_same(found[1], found[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", kinds("albert", every=EVERY))
def test_one_text_taken_apart(kind):
    """The residual stream, the logit lens and the neurons of a text depend only on its present tokens."""
    model = load(kind)
    words, text = jnp.asarray(WORDS[0]), 0
    stream = transformer.residual_stream(model, words)
    memory = transformer.key_value_memory(model, [WORDS[0]], layer=1, top=3)
    for where in PLACES:
        ids, mask = (part[text] for part in batch(where))
        found = transformer.residual_stream(model, jnp.asarray(ids), jnp.asarray(mask))
        for name, axes in AXES.items():
            assert_same(of_words(np.asarray(getattr(found, name)), mask, *axes), getattr(stream, name))
        # At padding all entries are zero, also in the input.
        assert not np.asarray(found.stream)[:, ~mask].any() and not np.asarray(found.embedding)[~mask].any()
        of_batch = transformer.key_value_memory(model, ids[None], mask[None], layer=1, top=3)
        assert_same(of_batch.activation, memory.activation)
        assert_same(of_batch.position, np.flatnonzero(mask)[memory.position])
        if kind != "t5" and kind not in MASKED:
            lens = transformer.logit_lens(model, jnp.asarray(ids), jnp.asarray(mask))
            assert_same(of_words(np.asarray(lens), mask, 1), transformer.logit_lens(model, words))


AXES = {
    "stream": (1,), "embedding": (0,), "heads": (2,), "feed_forward": (1,), "biases": (0,), "weights": (2, 3),
    "moved": (2, 3), "share": (2, 3),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", kinds("relative", every=OWN))
def test_modules_of_transformer(kind):
    """A `LanguageModel`, its stack, its blocks and their attention ignore padding, called directly and traced."""
    model = small_model(**OWN[kind])
    words = jnp.asarray(WORDS[0])
    x = model.embed(words)
    block = model.stack.block(0)
    every = {
        "logits": (lambda ids, x, present: model(ids, present), (0,)),
        "lens": (lambda ids, x, present: model.logit_lens(ids, present), (1,)),
        "stack": (lambda ids, x, present: model.stack(x, present), (0,)),
        "levels": (lambda ids, x, present: model.stack.levels(x, present), (1,)),
        "block": (lambda ids, x, present: block(x, present), (0,)),
        "weights": (lambda ids, x, present: block.attention.weights(x, present), (1, 2)),
        "updates": (lambda ids, x, present: block.attention.heads(x, present).updates, (1,)),
        "stream": (lambda ids, x, present: transformer.residual_stream(model, ids, present).share, (2, 3)),
        "stream of a stack": (
            lambda ids, x, present: transformer.residual_stream(model.stack, x, present).share,
            (2, 3),
        ),
    }
    for name, (run, axes) in every.items():
        expected, traced = run(words, x, None), jax.jit(run)
        for where in PLACES:
            ids, mask = (part[0] for part in batch(where))
            rows = jnp.ones((9, 8)).at[np.flatnonzero(mask)].set(x)
            for function in (traced, run) if where == "left" else (traced,):
                found = np.asarray(function(jnp.asarray(ids), rows, jnp.asarray(mask)))
                np.testing.assert_allclose(of_words(found, mask, *axes), expected, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.exhaustive
def test_a_profile_of_a_language_model():
    """Texts with padding on the left or with holes have the same profile as texts with padding on the right."""
    model = small_model(**OWN["learned"])
    expected = transformer.depth_profile(model, *batch("right"))
    for where in PLACES:
        assert_same(tuple(transformer.depth_profile(model, *batch(where))), tuple(expected))
    with pytest.raises(ValueError, match="two tokens each, but text 1 holds 1; leave it out"):
        transformer.depth_profile(model, [[1, 2, 3]] * 2, [[1, 0, 1], [0, 0, 1]])


@pytest.mark.exhaustive
def test_texts_longer_than_the_positions():
    """Only words count: columns of padding before the words cut no word, and a text of 20 words loses its last four."""
    model, n = tiny("gpt2"), 16
    ids = np.random.default_rng(1).integers(1, 30, (1, 20))
    mask = np.arange(20)[None] >= 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = probe.trace(model, ids, mask)
    assert_same(np.asarray(found.hidden)[:, :, 4:], probe.trace(model, ids[:, 4:]).hidden)
    wide = np.concatenate([[[5]], ids, [[5]]], axis=1)
    there = np.array([[False] + [True] * 20 + [False]])
    with pytest.warns(UserWarning, match="1 of 1 texts are longer than 16 tokens and were cut"):
        found = probe.trace(model, wide, there)
    assert found.hidden.shape[2] == 22 and np.flatnonzero(found.mask).tolist() == list(range(1, n + 1))
    assert_same(np.asarray(found.hidden)[:, :, 1 : n + 1], probe.trace(model, ids[:, :n]).hidden)
    assert not np.asarray(found.hidden)[:, :, n + 1 :].any()


@pytest.mark.exhaustive
def test_what_encode_and_a_tokenizer_return_is_read_in_one_piece():
    """A mask inside the argument is used, and a second mask is refused; unused token types are ignored."""
    model = probe.load()
    texts = ["A film.", "A film that is far longer."]
    encoded = probe.encode(model, texts)
    parts = {"input_ids": encoded.token_ids, "attention_mask": encoded.mask.astype(int)}
    parts["token_type_ids"] = np.zeros_like(encoded.token_ids)
    expected = probe.trace(model, *encoded)
    with as_a_user():
        for given in (encoded, parts, model.tokenizer(texts, padding=True, return_tensors="np")):
            assert_same(probe.trace(model, given), expected)
        assert_same(probe.first_token(model, parts).ratio.values, probe.first_token(model, encoded).ratio.values)
        causal = tiny("gpt2")
        parts["input_ids"] = encoded.token_ids % 30
        assert_same(probe.trace(causal, parts), probe.trace(causal, parts["input_ids"], encoded.mask))
        with pytest.raises(ValueError, match="^mask must be None where token_ids hold one"):
            probe.trace(model, encoded, encoded.mask)
