"""The changes that `probe` makes to a network, on every kind of network.

`test_view.py` tests the tools that divide a network into parts (the residual stream, memories, knock-outs, fields) on
the same kinds; `test_parity.py` tests that traces equal those of the published networks.
"""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe
from tests.probe_cases import CONFIGS, IDS, MASK, kinds, tiny
from tests.transformer_cases import language_model


EVERY = (*CONFIGS, "language model")


@pytest.fixture(scope="module", params=kinds("albert", "gpt2", "llama", "t5", every=EVERY))
def model(request):
    if request.param in CONFIGS:
        return tiny(request.param)
    return probe.from_language_model(language_model(30, 12, 3, 20, 3, positions=16, dtype=jnp.float64))


@pytest.mark.exhaustive
def test_changes(model):
    """Each changed network runs, differs from the original network, and leaves the original unchanged."""
    before = np.asarray(probe.trace(model, IDS, MASK).hidden)
    sizes = model.network.sizes
    spread = 0.5 if sizes.spread is None and sizes.factor is None else None
    makers = (
        lambda: probe.randomise(model, jr.key(0), spread=spread),
        lambda: probe.deeper(model, 2),
        lambda: probe.without_norms(model),
        lambda: probe.on_sphere(model, 2.0),
    )
    for make in makers:
        changed = np.asarray(probe.trace(make(), IDS, MASK).hidden)
        assert np.isfinite(changed).all() and not np.allclose(changed[:, -1], before[:, -1])
    np.testing.assert_array_equal(probe.trace(model, IDS, MASK).hidden, before)
    # A network of twice the depth has the same stream up to the original depth.
    deep = np.asarray(probe.trace(probe.deeper(model, 2), IDS, MASK).hidden)
    np.testing.assert_allclose(deep[:, : model.num_layers], before[:, :-1], rtol=0, atol=1e-12)


@pytest.mark.exhaustive_cases("gpt2", "t5")
def test_on_the_sphere_tokens_have_one_length(model):
    """If norms act on the stream, layers end at the radius; else the first attention is the same at any radius."""
    held = probe.trace(probe.on_sphere(model, 2.0), IDS, MASK)
    if model.network.norm_scales() is None:
        lengths = np.linalg.norm(np.asarray(held.hidden)[:, 1:], axis=-1)
        present = np.broadcast_to(MASK[:, None], lengths.shape)
        np.testing.assert_allclose(lengths[present], 2.0, rtol=0, atol=1e-12)
    else:
        again = probe.trace(probe.on_sphere(model, np.array([2.0, 3.0, 4.0])), IDS, MASK)
        np.testing.assert_array_equal(held.attention[:, 0], again.attention[:, 0])
        assert np.abs(held.attention[:, 1] - again.attention[:, 1]).max() > 1e-9


@pytest.mark.exhaustive_cases("gpt2", "t5")
def test_without_feed_forward_only_attention_moves(model):
    """Without feed-forward and norms, a layer adds what the maps of its heads give."""
    changed = probe.without_norms(probe.without_feed_forward(model))
    found, matrices = probe.trace(changed, IDS[:1]), probe.head_matrices(model)
    hidden, attention = np.asarray(found.hidden[0]), np.asarray(found.attention[0])
    moved = np.einsum("hnm,md,hdk,hke->ne", attention[0], hidden[0], matrices.value[0], matrices.output[0])
    # The biases of value and output are equal for all tokens, since rows of attention sum to 1.
    rest = hidden[1] - hidden[0] - moved
    np.testing.assert_allclose(rest, np.broadcast_to(rest[0], rest.shape), rtol=0, atol=1e-11)
