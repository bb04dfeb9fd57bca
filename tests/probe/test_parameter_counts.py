"""Parameters by part equal counts from the sizes of tiny networks of each kind, by the definition of their layers."""

from types import SimpleNamespace

import jax.tree_util as jtu
import numpy as np
from flax import nnx

from clusterjax import probe
from tests.probe_cases import sizes_like
from tests.transformer_cases import language_model


W, D, H, K, M, L, P = 20, 8, 2, 4, 12, 3, 16  # words, dimension, heads, dimension of a head, neurons, layers, positions


def of(sizes, **options):
    """A model that has only the shapes of its parameters."""
    return probe.Model(nnx.eval_shape(lambda: probe.Network(sizes, nnx.Rngs(0), **options)), SimpleNamespace(), "tiny")


def llama(tied):
    numbers = {"vocab_size": W, "hidden_size": D, "num_heads": H, "intermediate_size": M, "num_layers": L}
    return of(sizes_like("llama", num_shared=1, head_size=K, tied=tied, **numbers), head=True)


def test_a_llama_has_gates_shared_keys_and_no_positions():
    counts = probe.parameter_counts(llama(tied=False))
    expected = np.zeros(6, int)
    expected[0] = W * D
    expected[5] = W * D
    for _ in range(L):
        expected[2] += D * H * K + 2 * D * K + H * K * D
        expected[3] += 3 * D * M
        expected[4] += 2 * D
    expected[4] += D
    np.testing.assert_array_equal(counts, expected)
    assert counts.total == expected.sum()
    np.testing.assert_allclose(list(counts.shares.values()), expected / expected.sum(), rtol=1e-15)
    # In a tied network the head is the embedding.
    assert probe.parameter_counts(llama(tied=True)) == counts._replace(unembedding=0)


def test_gpt2_has_a_table_of_positions_and_biases():
    sizes = sizes_like(
        "gpt2", vocab_size=W, hidden_size=D, num_heads=H, intermediate_size=M, num_layers=L, max_positions=P, tied=True
    )
    counts = probe.parameter_counts(of(sizes))
    attention, feed_forward = L * (4 * D * D + 4 * D), L * (2 * D * M + M + D)
    assert counts == (W * D, P * D, attention, feed_forward, (2 * L + 1) * 2 * D, 0)


def test_bert_and_t5():
    numbers = {"vocab_size": W, "hidden_size": D, "num_heads": H, "intermediate_size": M, "num_layers": L}
    sizes = sizes_like("bert", **numbers)
    counts = probe.parameter_counts(of(sizes))
    assert counts[2:] == (L * (4 * D * D + 4 * D), L * (2 * D * M + M + D), (2 * L + 1) * 2 * D, 0)
    assert counts.embedding == (W + sizes.type_vocab_size) * D and counts.positions == sizes.max_positions * D
    sizes = sizes_like("t5", head_size=K, **numbers)
    counts = probe.parameter_counts(of(sizes))
    assert counts == (W * D, sizes.num_buckets * H, L * 4 * D * H * K, L * 2 * D * M, (2 * L + 1) * D, 0)


def test_the_language_model_of_the_package():
    counts = probe.parameter_counts(probe.from_language_model(language_model(W, D, H, M, L)))
    assert counts.attention == L * 4 * D * D and counts.feed_forward == L * (2 * D * M + M + D)
    assert counts.embedding == W * D and counts.norms == (2 * L + 1) * 2 * D and counts.unembedding == 0
    assert counts.positions % D == 0 and counts.positions > 0


def test_an_albert_counts_its_layer_once_with_its_head():
    model = probe.load()
    counts, sizes = probe.parameter_counts(model), model.network.sizes
    d, m = sizes.hidden_size, sizes.intermediate_size
    assert counts.attention == 4 * d * d + 4 * d and counts.feed_forward == 2 * d * m + m + d
    leaves = jtu.tree_leaves(nnx.state(model.network, nnx.Param))
    assert counts.unembedding > 0 and counts.total == sum(leaf.size for leaf in leaves)
