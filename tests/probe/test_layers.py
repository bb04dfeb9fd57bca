"""The layers against double loops, and what padding may not do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from clusterjax import probe
from clusterjax.probe.networks.block import _ROWS, Distances, attend, distance_rows
from clusterjax.probe.networks.t5 import relative_buckets
from tests.probe_cases import ALBERT, IDS, LLAMA, MASK, T5, tensors_of, write
from tests.reference import networks


@pytest.fixture(scope="module")
def albert(tmp_path_factory):
    return probe.load(write(tmp_path_factory.mktemp("albert"), ALBERT, tensors_of(ALBERT)), dtype=jnp.float64)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return probe.load(write(tmp_path_factory.mktemp("t5"), T5, tensors_of(T5)), dtype=jnp.float64)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return probe.load(write(tmp_path_factory.mktemp("llama"), LLAMA, tensors_of(LLAMA)), dtype=jnp.float64)


def words_of(text):
    return range(int(MASK[text].sum()))


def test_layers_of_albert(albert):
    """Each layer of a text with padding, from the state before it: the shared weights in their order."""
    tensors, found = tensors_of(ALBERT), probe.trace(albert, IDS, MASK)
    for layer, (group, inner) in enumerate([(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1), (1, 0), (1, 1)]):
        prefix = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}."
        before = np.asarray(found.hidden[1, layer])
        after, weights = networks.albert_layer(before, tensors, prefix, 3, MASK[1], "gelu_new", 1e-12)
        words = words_of(1)
        np.testing.assert_allclose(found.hidden[1, layer + 1][: len(words)], after[words], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.attention[1, layer], weights, rtol=0, atol=1e-12)


def test_embedding_of_albert(albert):
    """Level 0 is the sum of three embeddings, normed, and mapped to the hidden size."""
    tensors, found = tensors_of(ALBERT), probe.trace(albert, IDS, MASK)
    names = ("word", "position", "token_type")
    word, place, kind = (tensors[f"embeddings.{name}_embeddings.weight"].astype("f8") for name in names)
    total = np.array([word[i] + place[p] + kind[0] for p, i in enumerate(IDS[0])])
    scale, shift = tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"]
    name = "encoder.embedding_hidden_mapping_in"
    normed = networks.layer_norm(total, scale, shift, 1e-12)
    expected = networks.linear(normed, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
    np.testing.assert_allclose(found.hidden[0, 0], expected, rtol=0, atol=1e-12)


def test_blocks_of_t5(t5):
    """Each block of a text with padding, with the bias of block 0, and the last norm."""
    tensors, found = tensors_of(T5), probe.trace(t5, IDS, MASK)
    table = tensors["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias, words = networks.t5_bias(IDS.shape[1], table, 8, 10), words_of(1)
    for block in range(3):
        before = np.asarray(found.hidden[1, block])
        prefix = f"encoder.block.{block}."
        after, weights = networks.t5_block(before, tensors, prefix, 2, MASK[1], bias, "gelu_new", True, 1e-6)
        if block == 2:
            after = networks.rms_norm(after, tensors["encoder.final_layer_norm.weight"], 1e-6)
        np.testing.assert_allclose(found.hidden[1, block + 1][: len(words)], after[words], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.attention[1, block], weights, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found.hidden[0, 0], tensors["shared.weight"][IDS[0]].astype("f8"))


BUCKETS = pytest.mark.parametrize(("buckets", "furthest"), ((32, 128), (8, 10), (8, 20), (64, 256), (12, 50)))


def buckets_of(distances, buckets, furthest):
    sizes = probe.T5Sizes(9, 4, 2, 2, 8, 1, num_buckets=buckets, max_distance=furthest)
    return relative_buckets(distances, sizes)


@BUCKETS
def test_relative_buckets(buckets, furthest):
    """In whole numbers, as in the reference."""
    distances = np.arange(-3 * furthest, 3 * furthest + 1)
    found = buckets_of(distances, buckets, furthest)
    assert found.tolist() == [networks.t5_bucket(int(d), buckets, furthest) for d in distances]
    assert set(found.tolist()) == set(range(buckets)) - {buckets // 2}  # no distance is both zero and ahead


@pytest.mark.exhaustive_cases("32-128")
@BUCKETS
def test_relative_buckets_of_pytorch(buckets, furthest):
    """No logarithm of theirs is rounded across a bound."""
    torch = pytest.importorskip("torch")
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-3 * furthest, 3 * furthest + 1)
    found = buckets_of(distances, buckets, furthest)
    theirs = T5Attention._relative_position_bucket(torch.tensor(distances), True, buckets, furthest)
    assert found.tolist() == theirs.tolist()


@pytest.mark.parametrize("name", ("albert", "t5", "llama"))
def test_padding_is_nothing(name, request):
    """It has no attention and no state, and what is written there does not matter."""
    model = request.getfixturevalue(name)
    found = probe.trace(model, IDS, MASK)
    other = probe.trace(model, np.where(MASK, IDS, 29), MASK)
    np.testing.assert_array_equal(found.hidden, other.hidden)
    np.testing.assert_array_equal(found.attention, other.attention)
    hidden, attention = np.asarray(found.hidden), np.asarray(found.attention)
    assert not hidden[np.broadcast_to(~MASK[:, None, :, None], hidden.shape)].any()
    assert not attention[np.broadcast_to(~MASK[:, None, None, :, None], attention.shape)].any()
    assert not attention[np.broadcast_to(~MASK[:, None, None, None, :], attention.shape)].any()
    rows = attention.sum(-1)
    np.testing.assert_allclose(rows[np.broadcast_to(MASK[:, None, None, :], rows.shape)], 1.0, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(found.mask, MASK)


@pytest.mark.parametrize("name", ("albert", "t5", "llama"))
def test_a_text_in_a_batch_is_the_text_alone(name, request):
    """The shortest text with its padding and its companions, and without any of them."""
    model = request.getfixturevalue(name)
    found, alone = probe.trace(model, IDS, MASK), probe.trace(model, IDS[2:, :2])
    np.testing.assert_allclose(found.hidden[2, :, :2], alone.hidden[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.attention[2, :, :, :2, :2], alone.attention[0], rtol=0, atol=1e-13)


@pytest.mark.exhaustive
def test_blocks_of_rows_are_the_causal_matrix_at_once():
    """A text beyond two blocks, whose last is shorter, with padding, shared keys, a bias and vectors of distances."""
    rng, n = np.random.default_rng(0), 2 * _ROWS + 9
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape))
    query, keys, value = draw(2, n, 4, 3), draw(2, n, 2, 3), draw(2, n, 2, 3)
    bias, mask = draw(1, 4, n, n), jnp.arange(n)[None] < jnp.array([n, n - 20])[:, None]
    allowed = jnp.tril(jnp.ones((n, n), bool))
    places = np.arange(n)
    distances = Distances(draw(5, 3), draw(5, 3), distance_rows(places, places, 5))
    given = query, keys, value, mask, bias, lax.Precision.HIGHEST, allowed, distances
    attended, weights = attend(*given)
    in_blocks, of_blocks = attend(*given, causal=True)
    np.testing.assert_allclose(of_blocks, weights, rtol=0, atol=1e-14)
    np.testing.assert_allclose(in_blocks, attended, rtol=0, atol=1e-13)
    # Several blocks indeed: of later keys no exponential is computed.
    written = str(jax.make_jaxpr(lambda q: attend(q, *given[1:], causal=True)[0])(query))
    exponentials = [line for line in written.splitlines() if "= exp " in line]
    shapes = [f"2,4,{_ROWS},{_ROWS}]", f"2,4,{_ROWS},{2 * _ROWS}]", f"2,4,9,{n}]"]
    assert len(exponentials) == 3
    assert all(shape in line for shape, line in zip(shapes, exponentials, strict=True))
