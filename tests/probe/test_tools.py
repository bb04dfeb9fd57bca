"""Every tool of `probe` on every architecture that is neither ALBERT nor T5, whose tests are of each tool."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe

from ..probe_cases import BERT, GPT2, IDS, MASK, many_texts, tensors_of, write


CONFIGS = {"bert": BERT, "gpt2": GPT2, "gpt2 by layer": GPT2 | {"scale_attn_by_inverse_layer_idx": True}}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request, tmp_path_factory):
    config = CONFIGS[request.param]
    return probe.load(write(tmp_path_factory.mktemp("tiny"), config, tensors_of(config)), dtype=jnp.float64)


def test_measures(model):
    """Of the similarity of tokens, of heads and of sinks: finite, and of three layers of three heads."""
    texts = many_texts(4, 6)
    similar = probe.similarity_histograms(model, texts)
    assert similar.cosine.mean.shape == (4,) and np.isfinite(similar.cosine.mean).all()
    heads = probe.head_correlations(model, texts, clusters=1, replicates=2, key=jr.key(0))
    assert np.isfinite(np.asarray(heads.correlation.mean)).all() and heads.correlation.mean.shape == (3, 3, 3)
    texts.token_ids[:, 1] = 1
    sinks = probe.attention_sinks(model, texts, special={"[SEP]": 1})
    first = sinks.mass["first"].mean
    assert first.shape == sinks.mass["[SEP]"].mean.shape == (3, 3) and np.all((first > 0) & (first < 1))


def test_heads(model):
    """Their matrices, the spectra of them, and words near a direction."""
    matrices = probe.head_matrices(model)
    assert matrices.query.shape == (3, 3, 12, 4) and matrices.output.shape == (3, 3, 4, 12)
    spectra, directions = probe.value_spectra(model), probe.value_directions(model, 1, block=2, top=2)
    assert spectra.value.shape == (3, 3, 4) and np.isfinite(spectra.query_key).all()
    moved = directions.vectors @ matrices.value[2, 1] @ matrices.output[2, 1]
    np.testing.assert_allclose(moved, directions.eigenvalues[:, None] * directions.vectors, rtol=0, atol=1e-10)
    near = probe.nearest_words(model, np.real(directions.vectors), top=3)
    assert near.token_ids.shape == (2, 3) and near.words is None


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


def test_on_the_sphere_tokens_have_one_length(model):
    """Where norms act on the stream, after each layer; else what enters the attention does not depend on the radius."""
    held = probe.trace(probe.on_sphere(model, 2.0), IDS, MASK)
    if model.network.norm_scales() is None:
        lengths = np.linalg.norm(np.asarray(held.hidden)[:, 1:], axis=-1)[np.broadcast_to(MASK[:, None], (3, 3, 8))]
        np.testing.assert_allclose(lengths, 2.0, rtol=0, atol=1e-12)
    else:
        again = probe.trace(probe.on_sphere(model, np.array([2.0, 3.0, 4.0])), IDS, MASK)
        np.testing.assert_array_equal(held.attention[:, 0], again.attention[:, 0])
        assert not np.allclose(held.attention[:, 1], again.attention[:, 1])


def test_without_feed_forward_only_attention_moves(model):
    """One layer without its feed-forward, from the maps of its heads, where the stream has no norms."""
    changed = probe.without_norms(probe.without_feed_forward(model))
    found, matrices = probe.trace(changed, IDS[:1]), probe.head_matrices(model)
    hidden, attention = np.asarray(found.hidden[0]), np.asarray(found.attention[0])
    moved = np.einsum("hnm,md,hdk,hke->ne", attention[0], hidden[0], matrices.value[0], matrices.output[0])
    # The biases of value and output are the same for all tokens, since rows of attention sum to 1.
    rest = hidden[1] - hidden[0] - moved
    np.testing.assert_allclose(rest, np.broadcast_to(rest[0], rest.shape), rtol=0, atol=1e-11)
