"""The contract of a network: what `probe` changes in it and reads off its matrices, on every kind.

What takes a network apart (the residual stream, memories, knock-outs, fields) is in `test_view.py`, on the same kinds;
that the trace itself is that of the published networks is in `test_parity.py`.
"""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe, transformer
from tests.probe_cases import CONFIGS, IDS, MASK, kinds, many_texts, tiny
from tests.reference import probes as reference


TEXTS = many_texts(4, 6)
EVERY = (*CONFIGS, "language model")


@pytest.fixture(scope="module", params=kinds("albert", "gpt2", "llama", "t5", every=EVERY))
def model(request):
    if request.param in CONFIGS:
        return tiny(request.param)
    made = transformer.LanguageModel.random(jr.key(0), 30, 12, 3, 20, 3, positions=16, scale=0.5, dtype=jnp.float64)
    return probe.from_language_model(made)


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


@pytest.mark.exhaustive_cases("albert", "gpt2", "llama")
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
