"""Texts continued with cached keys and values equal a pass over the whole text; `test_continuation.py` compares with
transformers.
"""

import functools
from types import SimpleNamespace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flax import nnx

from clusterjax import FullMask, SinkMask, probe, transformer
from clusterjax.probe.networks.network import _layer
from tests.causal_cases import WORDS, Letters, causal_model
from tests.helpers import as_a_user
from tests.probe_cases import assert_refused, drawn, kinds, sizes_like


TEXTS = ["c", "defghijk", "lmn"]
STARTS = [[ord(letter) - ord("a") for letter in text] for text in TEXTS]


def lettered(network, **config):
    """A network whose tokens are letters; no token ends a text, except the one in `config`."""
    model = probe.Model(network, SimpleNamespace(**config), "letters")
    model.__dict__["tokenizer"] = Letters()
    return model


@functools.cache
def llama_network(**options):
    sizes = sizes_like(
        "llama", vocab_size=WORDS, hidden_size=8, num_heads=4, num_shared=2, head_size=2, intermediate_size=12,
        num_layers=3, max_positions=40, spread=None, **({"tied": False} | options),
    )  # fmt: skip
    return drawn(probe.Network(sizes, nnx.Rngs(0), head=True, dtype=jnp.float64), 0.6)


def llama(**options):
    return lettered(llama_network(**options))


def gpt2():
    sizes = sizes_like(
        "gpt2", vocab_size=WORDS, hidden_size=8, num_heads=2, intermediate_size=12, num_layers=3, max_positions=24,
        scaled_by_layer=True, spread=0.5, tied=True,
    )  # fmt: skip
    return lettered(probe.Network(sizes, nnx.Rngs(0), dtype=jnp.float64))


def language(**options):
    options = {"positions": None} | options
    model = transformer.LanguageModel.random(jr.key(0), WORDS, 8, 2, 12, 3, scale=0.6, dtype=jnp.float64, **options)
    return lettered(probe.from_language_model(model).network)


def relative():
    return transformer.RelativePositions.random(jr.key(2), 2, 4, values=True, scale=0.9, dtype=jnp.float64)


def patched():
    values = np.random.default_rng(4).normal(size=(2, 20, 8))
    return probe.patch(llama(), [
        probe.Edit("head", 0.3, layer=1, index=2, token=[0, 9]),
        probe.Edit("stream", values[0], layer=[1, 3], token=[1, 12]),
        probe.Edit("feed_forward", values[1, 0], layer=2),
        probe.Edit("neuron", 1.5, layer=0, index=[2, 5]),
        probe.Edit("attention", values[1], layer=0, token=0),
    ])  # fmt: skip


CASES = {
    "llama, windows": lambda: llama(window=3, sliding=(True, False, True)),
    "gpt2": gpt2,
    "language, learned": lambda: language(positions=40),
    "language, relative": lambda: language(relative=relative(), residual=transformer.PostNorm()),
    "language, rotary, shared": lambda: language(relative=transformer.RotaryPositions(4, 30.0), shared=True),
    "first token and window": lambda: probe.with_mask(llama(), SinkMask(3, 1)),
    "without a head at a token": lambda: probe.without(llama(), "attention", layer=1, token=[9]),
    "patched": patched,
    "one sphere": lambda: probe.on_sphere(llama(), np.array([1.0, 2.0, 3.0])),
}


def log_probs_after(model, *texts):
    """The log probabilities after each place, from one pass over the whole texts."""
    lengths = np.array([len(text) for text in texts])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(texts)
    scores = np.asarray(model.logits(probe.trace(model, ids, mask).hidden[:, -1]), np.float64)
    return scores - np.log(np.sum(np.exp(scores), axis=-1, keepdims=True))


@pytest.mark.exhaustive_cases("llama, windows", "patched")
@pytest.mark.parametrize("name", kinds("llama, windows", "patched", every=CASES))
def test_cached_is_uncached(name):
    """For texts of three lengths, far longer than the windows, each token is the likeliest of a pass over the text."""
    model = CASES[name]()
    model.__dict__["tokenizer"] = Letters()
    found = probe.generate(model, TEXTS, 12)
    assert found.token_ids.shape == found.log_probs.shape == (3, 12) and found.lengths.tolist() == [12, 12, 12]
    after = log_probs_after(model, *([*start, *new] for start, new in zip(STARTS, found.token_ids, strict=True)))
    if name == "patched":
        whole = log_probs_after(llama(), *([*start, *new] for start, new in zip(STARTS, found.token_ids, strict=True)))
        assert np.abs(whole - after).max() > 0.1
    for start, all_places, new, log_probs, text in zip(
        STARTS, after, found.token_ids, found.log_probs, found.texts, strict=True
    ):
        expected = all_places[len(start) - 1 : len(start) + 11]
        np.testing.assert_array_equal(new, expected.argmax(axis=1))
        np.testing.assert_allclose(log_probs, expected[np.arange(12), new], rtol=0, atol=1e-11)
        assert text == Letters().decode(new.tolist())


@pytest.mark.exhaustive
def test_single_precision_and_the_chain_rule():
    model = causal_model()
    found = probe.generate(model, TEXTS, 9)
    assert found.log_probs.dtype == np.float32
    for text, new, log_probs in zip(TEXTS, found.texts, found.log_probs, strict=True):
        np.testing.assert_allclose(log_probs.sum(), probe.continuation_log_prob(model, text, new), rtol=1e-5)


@pytest.mark.exhaustive
def test_company_changes_nothing():
    """A text has the same tokens alone, beside others, and among twenty, where sums differ; drawn texts have keys."""
    model, key = llama(), jr.key(3)
    together = probe.generate(model, TEXTS, 6, temperature=1.5, key=key)
    alone = probe.generate(model, TEXTS[0], 6, temperature=1.5, key=key)
    assert together.texts[0] == alone.texts[0] and len(alone.texts) == 1
    many = probe.generate(model, TEXTS * 7, 6, temperature=1.5, key=key)
    assert many.texts[:3] == together.texts and len(set(many.texts)) > 5
    np.testing.assert_allclose(many.log_probs[:3], together.log_probs, rtol=0, atol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("top_k", (None, 3))
def test_frequencies_are_the_probabilities(top_k):
    model, count, temperature = llama(), 3000, 1.7
    found = probe.generate(model, ["cd"] * count, 1, temperature=temperature, top_k=top_k, key=jr.key(0))
    log_p = log_probs_after(model, [2, 3])[0, -1]
    np.testing.assert_allclose(found.log_probs[:, 0], log_p[found.token_ids[:, 0]], rtol=0, atol=1e-11)
    expected = np.exp(log_p / temperature)
    if top_k is not None:
        expected[np.argsort(-log_p)[top_k:]] = 0.0
    expected = count * expected / expected.sum()
    seen = np.bincount(found.token_ids[:, 0], minlength=WORDS)
    assert not seen[expected == 0].any()
    some = expected > 5
    deviations = (seen - expected)[some] / np.sqrt(expected * (1 - expected / count))[some]
    assert some.sum() >= 3 and np.abs(deviations).max() < 4


@pytest.mark.exhaustive
def test_one_temperature_is_nearly_greedy_and_one_word_is():
    model = llama()
    greedy = probe.generate(model, TEXTS, 5)
    for options in ({"temperature": 1e-4}, {"temperature": 5.0, "top_k": 1}):
        np.testing.assert_array_equal(probe.generate(model, TEXTS, 5, key=jr.key(1), **options).token_ids,
                                      greedy.token_ids)  # fmt: skip


def test_the_end_of_a_text():
    """A text stops at its first end token; the loop stops when all texts have stopped."""
    free = probe.generate(llama(), TEXTS, 10)
    end = int(free.token_ids[1, 3])
    for eos in (end, [WORDS + 3, end]):
        model = lettered(llama().network, eos_token_id=eos)
        found = probe.generate(model, TEXTS, 10)
        for i in range(3):
            at = np.flatnonzero(free.token_ids[i] == end)
            count = int(at[0]) + 1 if len(at) else 10
            assert found.lengths[i] == count
            np.testing.assert_array_equal(found.token_ids[i, :count], free.token_ids[i, :count])
            np.testing.assert_allclose(found.log_probs[i, :count], free.log_probs[i, :count], rtol=0, atol=1e-12)
            assert not found.token_ids[i, count:].any() and not found.log_probs[i, count:].any()
            kept = count - 1 if len(at) else count
            assert found.texts[i] == free.texts[i][:kept]
    assert found.lengths[1] <= 4


@pytest.mark.exhaustive
def test_positions_are_used_to_the_last():
    model = gpt2()
    found = probe.generate(model, TEXTS, 16)
    new = found.token_ids[1]
    np.testing.assert_array_equal(new, log_probs_after(model, [*STARTS[1], *new])[0, 7:-1].argmax(axis=1))
    with (
        as_a_user(),
        pytest.raises(ValueError, match="^texts must have at most 24 tokens with the 17 that follow, but"),
    ):
        probe.generate(model, TEXTS, 17)


def test_few_programs_are_compiled():
    """A layer has two programs, for texts and for a token; other lengths, numbers and temperatures compile none."""
    model = llama()
    before = _layer._cache_size()
    probe.generate(model, ["cd", "e"] * 2, 3, temperature=1.0, key=jr.key(0))
    assert _layer._cache_size() == before + 2
    probe.generate(model, ["cdefg", "hij"] * 2, 9, temperature=0.3, key=jr.key(1))
    assert _layer._cache_size() == before + 2


def test_refused():
    model = llama()
    with_mask = lambda mask: lettered(probe.with_mask(model, mask).network)
    cases = [
        (
            lambda: probe.generate(probe.load(), "a b"),
            "model must be causal, .* is not; load GPT-2, a Llama, 'language",
        ),
        (lambda: probe.generate(model, ""), "texts"),
        (lambda: probe.generate(model, []), "texts"),
        (lambda: probe.generate(model, "c", 0), "num_tokens must be a positive integer"),
        (
            lambda: probe.generate(model, "c", 40),
            "texts must have at most 40 tokens with the 40 that follow, .* has 1 ",
        ),
        (lambda: probe.generate(model, "c", temperature=1.0), "key must be a PRNG key where the temperature is not 0"),
        (lambda: probe.generate(model, "c", temperature=-1.0), "temperature must"),
        (lambda: probe.generate(model, "c", temperature=1.0, top_k=27, key=jr.key(0)), "top_k must be .* 1 to 26"),
        (lambda: probe.generate(with_mask(FullMask()), "c", 2), "model must have a mask under which no"),
        *(
            (lambda value=value: probe.generate(probe.patch(model, probe.Edit("stream", value)), "c", 2), message)
            for value, message in (
                (lambda x: 2 * x, "model must have edits .* one is a function of the whole text; patch single"),
                (np.ones((2, 1, 8)), "model must have edits .* the value of one differs between texts"),
                (np.ones((2, 8)), "model must have edits .* one has values for 2 tokens and no later"),
            )
        ),
    ]
    assert_refused(*((call, f"^{message}") for call, message in cases))
