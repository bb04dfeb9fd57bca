"""The contract of a network: every tool of `probe` on every kind, against loops over its own trace.

What takes a network apart (the residual stream, memories, knock-outs, fields) is in `test_view.py`, on the same kinds;
that the trace itself is that of the published networks is in the tests of each kind.
"""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe, transformer
from clusterjax.probe.measures.position_heads import _allowed
from tests.probe_cases import ALBERT, BERT, GPT2, IDS, LLAMA, MASK, SHARED, T5, many_texts, tensors_of, write
from tests.reference import probes as reference


CONFIGS = {
    "albert": ALBERT, "shared albert": SHARED, "bert": BERT, "gpt2": GPT2,
    "gpt2 by layer": GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "llama": LLAMA, "t5": T5, "language model": None,
}  # fmt: skip
TEXTS = many_texts(4, 6)
EDGES = np.linspace(-1, 1, 21)


# Kinds that differ little from one beside them are left to `make exhaustive`.
TWINS = ("shared albert", "bert", "gpt2 by layer")
KINDS = [pytest.param(kind, marks=pytest.mark.exhaustive if kind in TWINS else ()) for kind in CONFIGS]


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    config = CONFIGS[request.param]
    if config is None:
        made = transformer.LanguageModel.random(jr.key(0), 30, 12, 3, 20, 3, positions=16, scale=0.5, dtype=jnp.float64)
        return probe.from_language_model(made)
    return probe.load(write(tmp_path_factory.mktemp("tiny"), config, tensors_of(config)), dtype=jnp.float64)


@pytest.fixture(scope="module")
def traced(model):
    """The hidden states, (texts, levels, n, d), and the attention, (texts, layers, heads, n, n)."""
    found = probe.trace(model, *TEXTS)
    return np.asarray(found.hidden), np.asarray(found.attention)


@pytest.mark.exhaustive_cases("gpt2", "language model")
def test_shape_of_the_trace(model, traced):
    hidden, attention = traced
    layers, heads = model.num_layers, model.num_heads
    assert hidden.shape == (4, layers + 1, 6, 12) and attention.shape == (4, layers, heads, 6, 6)
    # Each word gives all of its weight to words.
    np.testing.assert_allclose(attention.sum(axis=-1)[:, 0, 0], TEXTS.mask, rtol=0, atol=1e-12)


@pytest.mark.exhaustive_cases("albert", "gpt2", "language model", "t5")
def test_similarity(model, traced):
    found = probe.similarity_histograms(model, TEXTS, bins=EDGES, near=0.4)
    for level in range(model.num_layers + 1):
        rows = [
            reference.similarity(x[m], m[m], EDGES, 0.4, (0.5,))
            for x, m in zip(traced[0][:, level], TEXTS.mask, strict=True)
        ]
        for name in ("cosine", "near_mass", "effective_rank", "num_clusters"):
            mean, spread = reference.average([np.asarray(row[name], float) for row in rows])
            average = getattr(found, name)
            np.testing.assert_allclose(average.mean[level], mean, rtol=1e-9, atol=1e-12, err_msg=name)
            np.testing.assert_allclose(average.error[level], spread / 2, rtol=1e-7, atol=1e-11, err_msg=name)


@pytest.mark.exhaustive_cases("albert", "gpt2", "language model")
def test_heads_and_sinks(model, traced):
    found = probe.head_correlations(model, TEXTS, clusters=1, replicates=2, key=jr.key(0))
    rules = _allowed(model, TEXTS.mask.shape[1])
    each = [
        np.stack([reference.correlation(maps, mask, rule) for maps, rule in zip(text, rules, strict=True)])
        for text, mask in zip(traced[1], TEXTS.mask, strict=True)
    ]
    mean, _ = reference.average(each)
    np.testing.assert_allclose(found.correlation.mean, mean, rtol=0, atol=1e-10)
    sinks, first = probe.attention_sinks(model, TEXTS), np.zeros((4, 6), bool)
    first[:, 0] = True
    weight = [
        [[reference.mass(maps, mask, target, False) for maps in layer] for layer in text]
        for text, mask, target in zip(traced[1], TEXTS.mask, first, strict=True)
    ]
    np.testing.assert_allclose(sinks.mass["first"].mean, np.mean(weight, axis=0), rtol=0, atol=1e-12)


@pytest.mark.exhaustive_cases("albert", "gpt2", "language model", "t5")
def test_the_first_token_and_places(model, traced):
    # Of two tokens the others have no pairs.
    long = TEXTS.mask.sum(axis=1) > 2
    one = probe.first_token(model, probe.Encoded(*(part[long] for part in TEXTS)))
    for level in range(model.num_layers + 1):
        read = zip(traced[0][long, level], TEXTS.mask[long], strict=True)
        rows = [reference.first_against_others(x, m)["ratio"] for x, m in read]
        np.testing.assert_allclose(one.ratio.values[:, level], rows, rtol=1e-9, atol=1e-12)
    heads = probe.position_heads(model, TEXTS)
    for place in ("previous", "self"):
        weight = [
            [[reference.place_mass(maps, mask, place, mask & False) for maps in layer] for layer in text]
            for text, mask in zip(traced[1], TEXTS.mask, strict=True)
        ]
        np.testing.assert_allclose(heads.mass[place].mean, np.mean(weight, axis=0), rtol=0, atol=1e-12)


@pytest.mark.exhaustive_cases("language model")
def test_spectra(model):
    """The matrices of the heads, the spectra of them, and words near a direction."""
    matrices, h = probe.head_matrices(model), model.num_heads
    blocks = len(model.network.blocks())
    assert matrices.query.shape[:3] == (blocks, h, 12) and matrices.output.shape[-1] == 12
    spectra = probe.value_spectra(model)
    for block in range(blocks):
        for head in range(h):
            product = matrices.value[block, head] @ matrices.output[block, head]
            largest = np.abs(np.linalg.eigvals(product)).max()
            np.testing.assert_allclose(np.abs(spectra.value[block, head]).max(), largest, rtol=1e-9)
    directions = probe.value_directions(model, 1, block=blocks - 1, top=2)
    moved = directions.vectors @ matrices.value[-1, 1] @ matrices.output[-1, 1]
    np.testing.assert_allclose(moved, directions.eigenvalues[:, None] * directions.vectors, rtol=0, atol=1e-10)
    near = probe.nearest_words(model, np.real(directions.vectors), top=3)
    assert near.token_ids.shape == (2, 3) and near.words is None


@pytest.mark.exhaustive_cases("albert", "gpt2", "language model", "llama")
def test_changes(model):
    """Each changed network runs, differs from the one that it was made of, and leaves that one as it is."""
    before = np.asarray(probe.trace(model, IDS, MASK).hidden)
    makers = (
        lambda: probe.randomise(model, jr.key(0)),
        lambda: probe.deeper(model, 2),
        lambda: probe.without_feed_forward(model),
        lambda: probe.without_norms(model),
        lambda: probe.on_sphere(model, 2.0),
        lambda: probe.randomise(probe.on_sphere(model, 2.0), jr.key(0)),
    )
    for make in makers:
        changed = np.asarray(probe.trace(make(), IDS, MASK).hidden)
        assert np.isfinite(changed).all() and not np.allclose(changed[:, -1], before[:, -1])
    np.testing.assert_array_equal(probe.trace(model, IDS, MASK).hidden, before)
    # Twice as deep is the same stream up to there.
    deep = np.asarray(probe.trace(probe.deeper(model, 2), IDS, MASK).hidden)
    np.testing.assert_allclose(deep[:, : model.num_layers], before[:, :-1], rtol=0, atol=1e-12)


def test_on_the_sphere_tokens_have_one_length(model):
    """Where norms act on the stream, after each layer; else what enters the attention does not depend on the radius."""
    held = probe.trace(probe.on_sphere(model, 2.0), IDS, MASK)
    if model.network.norm_scales() is None:
        lengths = np.linalg.norm(np.asarray(held.hidden)[:, 1:], axis=-1)
        present = np.broadcast_to(MASK[:, None], lengths.shape)
        np.testing.assert_allclose(lengths[present], 2.0, rtol=0, atol=1e-12)
    else:
        again = probe.trace(probe.on_sphere(model, np.array([2.0, 3.0, 4.0])), IDS, MASK)
        np.testing.assert_array_equal(held.attention[:, 0], again.attention[:, 0])
        assert np.abs(held.attention[:, 1] - again.attention[:, 1]).max() > 1e-9


@pytest.mark.exhaustive_cases("gpt2")
def test_without_feed_forward_only_attention_moves(model):
    """One layer without its feed-forward, from the maps of its heads, where the stream has no norms."""
    changed = probe.without_norms(probe.without_feed_forward(model))
    found, matrices = probe.trace(changed, IDS[:1]), probe.head_matrices(model)
    hidden, attention = np.asarray(found.hidden[0]), np.asarray(found.attention[0])
    moved = np.einsum("hnm,md,hdk,hke->ne", attention[0], hidden[0], matrices.value[0], matrices.output[0])
    # The biases of value and output are the same for all tokens, since rows of attention sum to 1.
    rest = hidden[1] - hidden[0] - moved
    np.testing.assert_allclose(rest, np.broadcast_to(rest[0], rest.shape), rtol=0, atol=1e-11)


@pytest.mark.exhaustive_cases("albert", "gpt2", "language model", "llama")
def test_controls(model):
    found = probe.controls(probe.similarity_histograms, model, TEXTS, key=jr.key(1), draws=2)
    means = [run.cosine.mean for run in (found.trained, found.shuffled, *found.random)]
    assert len(means) == 4 and all(np.isfinite(mean).all() for mean in means)
    assert not any(np.allclose(means[i], means[j]) for i in range(4) for j in range(i))
    np.testing.assert_allclose(means[0], probe.similarity_histograms(model, TEXTS).cosine.mean, rtol=1e-12)


@pytest.mark.exhaustive_cases("gpt2", "t5")
def test_particles(model):
    """The heads as a field: tangent, and of the dimension of the network; its loops are in `test_field.py`."""
    n, radius = 5, 2.0
    field = probe.particle_field(model, radius)
    x = np.random.default_rng(0).normal(size=(n, 12))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    velocity = np.asarray(field(0.5, jnp.asarray(x)))
    assert velocity.shape == (n, 12) and np.abs(np.sum(velocity * x, axis=1)).max() < 1e-12


def test_a_bridge_to_a_causal_network(model):
    """Its curve is that of the network, and all others start where it does."""
    if not model.network.shared_context(6).causal or model.network.norm_scales() is not None:
        pytest.skip("the bridge from other kinds is in test_bridge.py")
    found = probe.bridge(model, TEXTS, fit_steps=1, steps_per_layer=1)
    hidden = np.asarray(probe.trace(model, *TEXTS).hidden)[:, -1]
    whole = [np.mean(reference.cosines(x, mask)) for x, mask in zip(hidden, TEXTS.mask, strict=True)]
    np.testing.assert_allclose(found.network.mean[-1], np.mean(whole), rtol=1e-9)
    for name, curve in found.curves.items():
        assert np.isfinite(curve.mean).all() and curve.mean.shape == found.network.mean.shape, name
        np.testing.assert_allclose(curve.mean[0], found.network.mean[0], rtol=1e-9, err_msg=name)
