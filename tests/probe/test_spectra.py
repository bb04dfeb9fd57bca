"""Spectra of heads, computed from small products, equal the spectra of the full matrices."""

import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import probe
from tests.probe.test_encode import add_tokenizer
from tests.probe_cases import ALBERT, SHARED, T5, tensors_of, write


def full(config, tensors, block, head):
    """V and B of one head as (d, d) matrices that act on columns, from tensors with the names of PyTorch."""
    if config["model_type"] == "t5":
        names = [f"encoder.block.{block}.layer.0.SelfAttention.{name}.weight" for name in "qkvo"]
        k, scale = config["d_kv"], 1.0
    else:
        group, inner = divmod(block, config["inner_group_num"])
        prefix = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}.attention."
        names = [f"{prefix}{name}.weight" for name in ("query", "key", "value", "dense")]
        k = config["hidden_size"] // config["num_attention_heads"]
        scale = 1 / np.sqrt(k)
    q, key, v, o = (tensors[name].astype(np.float64) for name in names)
    rows = slice(head * k, (head + 1) * k)
    return o[:, rows] @ v[rows], scale * q[rows].T @ key[rows], k


@pytest.mark.parametrize("config", (ALBERT, SHARED, T5), ids=("groups", "shared", "t5"))
def test_the_small_products_have_the_whole_spectrum(config, tmp_path):
    tensors = tensors_of(config)
    model = probe.load(write(tmp_path, config, tensors), dtype=jnp.float64)
    found = probe.value_spectra(model)
    blocks, heads, d = len(model.network.blocks()), model.num_heads, 12
    assert found.value.shape[:2] == found.beta.shape == (blocks, heads)
    assert found.order.tolist() == model.network.order()
    for block in range(blocks):
        for head in range(heads):
            value, form, k = full(config, tensors, block, head)
            whole = np.linalg.eigvals(value)
            whole = whole[np.argsort(-np.abs(whole))][:k]
            for eigenvalue in found.value[block, head]:
                assert np.abs(whole - eigenvalue).min() < 1e-10
            np.testing.assert_allclose(found.value[block, head].sum(), np.trace(value), rtol=0, atol=1e-12)
            symmetric = np.linalg.eigvalsh((form + form.T) / 2)
            symmetric = np.sort(symmetric[np.argsort(-np.abs(symmetric), kind="stable")][: min(2 * k, d)])[::-1]
            np.testing.assert_allclose(found.query_key[block, head], symmetric, rtol=0, atol=1e-12)
            np.testing.assert_allclose(found.beta[block, head], cjx.effective_beta(form), rtol=1e-12)


@pytest.mark.parametrize("rank", (0, 2, 4), ids=lambda rank: f"rank{rank}")
def test_columns_that_depend_on_each_other(rank, tmp_path):
    """Where queries equal keys, or have lower rank, the spectrum is still that of the whole matrix, including zeros."""
    tensors = tensors_of(SHARED)
    prefix = "encoder.albert_layer_groups.0.albert_layers.0.attention."
    key = tensors[f"{prefix}key.weight"] * (np.arange(12) % 4 < rank)[:, None].astype("f4")
    tensors |= {f"{prefix}key.weight": key, f"{prefix}query.weight": key}
    found = probe.value_spectra(probe.load(write(tmp_path, SHARED, tensors), dtype=jnp.float64))
    for head in range(3):
        _, form, _ = full(SHARED, tensors, 0, head)
        expected = np.concatenate([np.linalg.eigvalsh(form)[::-1][:rank], np.zeros(8 - rank)])
        np.testing.assert_allclose(found.query_key[0, head], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", (ALBERT, T5), ids=("groups", "t5"))
def test_directions_are_eigenvectors(config, tmp_path):
    tensors = tensors_of(config)
    model = probe.load(write(tmp_path, config, tensors), dtype=jnp.float64)
    block = len(model.network.blocks()) - 1
    value, _, k = full(config, tensors, block, 1)
    found = probe.value_directions(model, 1, block=block, top=k)
    np.testing.assert_allclose(value @ found.vectors.T, found.vectors.T * found.eigenvalues, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(found.eigenvalues, probe.value_spectra(model).value[block, 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", (SHARED, T5), ids=("albert", "t5"))
def test_nearest_words_through_the_factors(config, tmp_path):
    """The words and their order equal those from the centred table of all words in the hidden space."""
    tensors = tensors_of(config)
    model = probe.load(add_tokenizer(write(tmp_path, config, tensors)), dtype=jnp.float64)
    if config is T5:
        table = tensors["shared.weight"].astype(np.float64)
    else:
        into = tensors["encoder.embedding_hidden_mapping_in.weight"].astype(np.float64)
        table = np.array([into @ row for row in tensors["embeddings.word_embeddings.weight"].astype(np.float64)])
    table = table - table.mean(axis=0)
    vectors = np.stack([table[7], -table[7], np.arange(12.0) - 4])
    found = probe.nearest_words(model, vectors, 14)
    for row, v in enumerate(vectors):
        cosines = [float(v @ w) / np.sqrt((v @ v) * (w @ w)) for w in table]
        order = np.argsort(-np.array(cosines))[:14]
        np.testing.assert_array_equal(found.token_ids[row], order)
        np.testing.assert_allclose(found.cosines[row], np.array(cosines)[order], rtol=0, atol=1e-12)
    assert found.token_ids[0, 0] == 7 and found.cosines[0, 0] == pytest.approx(1)
    assert found.words is not None and found.words[0][0] == "d"
