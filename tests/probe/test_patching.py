"""Edits of a network equal hooks of PyTorch, and causal tracing equals one patched run for each place."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe, transformer
from tests.probe_cases import BERT, GPT2, IDS, LLAMA, MASK, WORDS, assert_refused, tiny, tiny_tensors, write
from tests.probe_twins import save_twin


RNG = np.random.default_rng(8)
D, K, WIDE = 12, 4, {"gpt2": 48, "bert": 20}
FAMILIES = {"gpt2": ("GPT2LMHeadModel", GPT2), "bert": ("BertForMaskedLM", BERT)}
TEXTS = probe.Encoded(IDS.astype(np.int32), MASK)


def hooked(family, twin, place, layer, change):
    """A hook of PyTorch that changes the values at a place, (batch, n, ...)."""
    block = (twin.transformer.h if family == "gpt2" else twin.bert.encoder.layer)[layer]
    attention = block.attn if family == "gpt2" else block.attention
    maps = {
        "gpt2": lambda: (attention.c_proj, block.mlp.c_proj),
        "bert": lambda: (attention.output.dense, block.output.dense),
    }[family]()
    of_input = lambda part: part.register_forward_pre_hook(lambda part, given: (change(given[0]), *given[1:]))
    of_output = lambda part: part.register_forward_hook(lambda part, given, out: change(out))
    return {
        "stream": lambda: of_input(block), "head": lambda: of_input(maps[0]), "attention": lambda: of_output(maps[0]),
        "neuron": lambda: of_input(maps[1]), "feed_forward": lambda: of_output(maps[1]),
    }[place]()  # fmt: skip


@pytest.fixture(scope="module", params=(pytest.param("bert", marks=pytest.mark.exhaustive), "gpt2"))
def pair(request, tmp_path_factory):
    kind, config = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("twin")
    twin = save_twin(folder, kind, config).double()
    return request.param, twin, probe.load(folder, dtype=jnp.float64)


def compared(pair, edits, place, layer, change):
    """Compare the last hidden states at words with those of PyTorch with the hook."""
    torch = pytest.importorskip("torch")
    family, twin, model = pair
    ids, mask = torch.tensor(IDS), torch.tensor(MASK.astype(np.int64))
    handle = hooked(family, twin, place, layer, change)
    try:
        with torch.no_grad():
            out = twin(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    finally:
        handle.remove()
    found = np.asarray(probe.trace(probe.patch(model, edits), IDS, MASK).hidden)[:, -1]
    expected = out.hidden_states[-1].numpy()
    np.testing.assert_allclose(found[MASK], expected[MASK], rtol=0, atol=1e-9)
    before = np.asarray(probe.trace(model, IDS, MASK).hidden)[:, -1]
    assert np.abs(before[MASK] - found[MASK]).max() > 1e-3


@pytest.mark.exhaustive_cases("gpt2-head", "gpt2-attention", "gpt2-stream")
@pytest.mark.parametrize("place", ("stream", "head", "attention", "neuron", "feed_forward"))
def test_values_are_those_of_hooks_of_pytorch(pair, place):
    """Edits are a vector at a token, one for each text and token, a function, or a number at some heads or neurons."""
    torch = pytest.importorskip("torch")
    family = pair[0]
    more = {"head": (3, K), "neuron": (WIDE[family],)}.get(place, (D,))
    flat = lambda array: torch.tensor(array.reshape(*array.shape[:-2], -1) if place == "head" else array)
    vector, every = RNG.normal(size=more), RNG.normal(size=(3, 8, *more))

    def at_token(x):
        x = x.clone()
        x[:, 1] = flat(vector)
        return x

    compared(pair, probe.Edit(place, vector, layer=1, token=1), place, 1, at_token)
    compared(pair, probe.Edit(place, every, layer=[2]), place, 2, lambda x: flat(every))
    compared(pair, probe.Edit(place, lambda x: jnp.tanh(x) - 2, layer=-1 if place != "stream" else 2), place, 2,
             lambda x: torch.tanh(x) - 2)  # fmt: skip
    index = 1 if place == "head" else [3, 5]

    def at_units(x):
        x = x.clone()
        x[:, 2:4, slice(K, 2 * K) if place == "head" else index] = 0.5
        return x

    compared(pair, probe.Edit(place, 0.5, layer=0, index=index, token=[2, 3]), place, 0, at_units)


def test_several_edits_and_the_names_of_places(pair):
    """Edits act one after another; the embedding is level 0 of the stream; an edit to zero equals `without`."""
    _, _, model = pair
    vector = RNG.normal(size=D)
    for one, other in (
        (probe.Edit("embedding", vector, token=0), probe.Edit("stream", vector, layer=0, token=0)),
        ([probe.Edit("stream", 7.0, layer=1), probe.Edit("stream", vector, layer=1)], probe.Edit("stream", vector, 1)),
    ):
        found, expected = (probe.trace(probe.patch(model, edits), IDS, MASK).hidden for edits in (one, other))
        np.testing.assert_array_equal(found, expected)
    after = probe.trace(probe.patch(model, probe.Edit("embedding", vector, token=0)), IDS, MASK).hidden
    np.testing.assert_allclose(after[:, 0, 0], np.tile(vector, (3, 1)), rtol=1e-15)
    for part in ("attention", "feed_forward"):
        silent = probe.without(model, part, layer=1, token=[0, 2])
        zero = probe.patch(model, probe.Edit(part, layer=1, token=[0, 2]))
        one, other = (probe.trace(network, IDS, WORDS).hidden for network in (silent, zero))
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)


@pytest.mark.exhaustive_cases("gpt2-head", "gpt2-attention")
@pytest.mark.parametrize("place", ("stream", "head", "attention", "neuron", "feed_forward"))
def test_means_and_copies_are_of_what_the_network_computes(pair, place):
    """A copy of the text's own values changes nothing, also beside other texts; a mean is over words only."""
    _, _, model = pair
    before = probe.trace(model, *TEXTS).hidden
    own = probe.patch(model, probe.Edit(place, probe.CopyOf(TEXTS)))
    np.testing.assert_allclose(probe.trace(own, *TEXTS).hidden, before, rtol=0, atol=1e-12)
    found = np.asarray(probe.activations(model, *TEXTS, place=place))
    mean = found[:, 1][MASK].mean(axis=0)
    one = probe.patch(model, probe.Edit(place, probe.MeanOver(TEXTS), layer=1))
    other = probe.patch(model, probe.Edit(place, mean, layer=1))
    one, other = (probe.trace(network, *TEXTS).hidden for network in (one, other))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
    single = probe.Encoded(TEXTS.token_ids[:1], TEXTS.mask[:1])
    if place == "stream":
        same = probe.patch(model, probe.Edit("stream", probe.CopyOf(single), layer=1))
        # The words of the first text in reverse order are another text, which the copied stream overwrites.
        found = np.asarray(probe.trace(same, IDS[:1, ::-1], MASK[:1]).hidden)
        np.testing.assert_allclose(found[0, 1:], before[0, 1:], rtol=0, atol=1e-12)
        assert not np.allclose(found[0, 0], before[0, 0])


def test_an_edit_acts_once_in_a_long_text(tmp_path):
    """An edit of token 1 changes the stream that enters the layer at token 1 and at none of 39 other tokens."""
    longer = write(tmp_path / "longer", LLAMA | {"max_position_embeddings": 64}, tiny_tensors("llama"))
    model, ids = probe.load(longer), np.arange(40)[None] % 20
    patched = probe.patch(model, probe.Edit("stream", 7.0, layer=1, token=1))
    before, after = (np.asarray(probe.trace(network, ids).hidden)[0, 1] for network in (model, patched))
    np.testing.assert_array_equal(after[1], 7.0)
    np.testing.assert_array_equal(np.delete(after, 1, axis=0), np.delete(before, 1, axis=0))


def test_tools_take_a_patched_network_or_refuse_it():
    model = tiny("gpt2")
    patched = probe.patch(model, probe.Edit("head", 0.0, layer=1, index=2))
    silent = probe.without(model, "attention", layer=1, head=2)
    for measure in (probe.first_token, probe.attention_sinks):
        data = probe.Encoded(IDS, np.ones(IDS.shape, bool))
        found, expected = measure(patched, data), measure(silent, data)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10)
    left = np.flip(MASK, axis=1)
    left_ids = np.where(left, IDS, 0)
    one, other = (probe.trace(network, left_ids, left).hidden for network in (patched, silent))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="model must be without edits of patch for this tool"):
        transformer.residual_stream(patched, IDS[0])


@pytest.mark.exhaustive_cases("attention", "feed_forward", "neuron")
@pytest.mark.parametrize("place", ("stream", "head", "attention", "neuron", "feed_forward"))
def test_what_was_patched_stands_there_and_the_lens_reads_it(place):
    """Patched values are found at their places; each level of the lens is the head applied to the patched stream."""
    model = tiny("gpt2")
    where = {"layer": [0, 2], "token": [1, 3]} | ({"index": 1} if place in ("head", "neuron") else {})
    patched = probe.patch(model, [probe.Edit(place, 0.25, **where), probe.Edit("stream", lambda x: 1.1 * x, layer=3)])
    found = np.asarray(probe.activations(patched, TEXTS, place=place))[:, [0, 2]][:, :, [1, 3]]
    found = found[:, :, :, 1] if place in ("head", "neuron") else found
    there = TEXTS.mask[:, [1, 3]]
    np.testing.assert_array_equal(np.moveaxis(found, 2, 1)[there], 0.25)
    hidden, mask = probe.trace(patched, TEXTS).hidden, TEXTS.mask
    lens = np.asarray(probe.logit_lens(patched, TEXTS))
    network = model.network
    for level in range(hidden.shape[1]):
        x = hidden[:, level]
        # The hidden states of a trace end after the last norm of the network.
        x = x if level == hidden.shape[1] - 1 else network.finish(x)
        np.testing.assert_allclose(lens[:, level][mask], np.asarray(network.logits(x))[mask], rtol=0, atol=1e-10)


def test_causal_tracing_is_one_patched_run_for_each_place():
    """Restoring the last token of the last level gives the clean score; each place equals a run with `patch`."""
    model, ids, answer = tiny("gpt2"), IDS[:1], 4
    found = probe.causal_trace(model, probe.Encoded(ids, MASK[:1]), answer, tokens=[0, 1], key=jr.key(0), draws=2)
    assert found.restored.shape == (4, 8)
    log_p = lambda network: jax.nn.log_softmax(network.logits(probe.trace(network, ids).hidden[:, -1]))[0, -1, answer]
    np.testing.assert_allclose(found.clean, log_p(model), rtol=1e-10)
    # The answer is read at the last token of the last level, and no other token there matters.
    np.testing.assert_allclose(found.restored[-1, -1], found.clean, rtol=1e-10)
    np.testing.assert_allclose(found.restored[-1, :-1], found.corrupted, rtol=1e-10)
    # Tokens with a clean embedding restore nothing at level 0.
    np.testing.assert_allclose(found.restored[0, 2:], found.corrupted, rtol=1e-10)
    assert found.clean != found.corrupted and found.effect[-1, -1] == pytest.approx(1)
    one = probe.causal_trace(
        model, probe.Encoded(ids, MASK[:1]), answer, tokens=[1], key=jr.key(1), draws=1, spread=2.0
    )
    levels = np.asarray(probe.activations(model, ids, place="stream"))[0]
    noise = np.asarray(2.0 * jr.normal(jr.key(1), (1, 1, 12), jnp.float32), float)
    start = probe.Edit("embedding", levels[0, 1] + noise[0, 0], token=1)
    np.testing.assert_allclose(one.corrupted, log_p(probe.patch(model, start)), rtol=1e-10)
    for level, token in ((1, 1), (2, 5), (3, 7)):
        restored = probe.patch(model, [start, probe.Edit("stream", levels[level, token], layer=level, token=token)])
        np.testing.assert_allclose(one.restored[level, token], log_p(restored), rtol=1e-10)


def test_what_does_not_fit_is_refused(pair):
    _, _, model = pair
    text = probe.Encoded(IDS[:1], MASK[:1])
    trace = lambda answer, **options: (
        lambda: probe.causal_trace(tiny("gpt2"), text, answer, **({"tokens": [0], "key": jr.key(0)} | options))
    )
    edit = lambda *given, **options: lambda: probe.patch(model, probe.Edit(*given, **options))
    run = lambda value: lambda: probe.trace(probe.patch(model, probe.Edit("stream", value, 1)), IDS, MASK)
    cases = (
        (edit("logits"), "place must be one of"),
        (edit("stream", layer=5), "layer must be an integer from -4 to 3"),
        (edit("head", layer=3), "layer must be an integer from -3 to 2"),
        (edit("head", index=3), "index must be an integer from -3 to 2"),
        (edit("stream", index=12), "index must be an integer from -12 to 11"),
        (edit("stream", token=-1), "token must be"),
        (edit("embedding", layer=1), "layer must be None for the embedding"),
        (edit("stream", np.zeros((1, 1, 1, 12))), "value must have at most the 3 axes of 'stream'"),
        (edit("stream", "much"), "value must"),
        (edit("stream", np.nan), "value must"),
        (run(np.zeros(5)), "edits must have values of shape"),
        (run(np.zeros((2, 8, 12))), "edits must have values of shape"),
        (run(lambda x: x[:, :2]), "edits must have values of shape"),
        (lambda: probe.patch(model, []), "edits must"),
        (lambda: probe.patch(model, [3]), "edits must"),
        (lambda: probe.activations(model, IDS, np.flip(MASK, axis=1), place="head"), "mask must have padding behind"),
        (lambda: probe.activations(model, IDS, place="embedding"), "place must be one of"),
        (trace(30), "answer must be an integer from 0 to 29"),
        (trace(3, tokens=[8]), "tokens must be an integer from -8 to 7"),
        (trace(3, spread=0.0), "spread must be"),
    )
    assert_refused(*cases)
