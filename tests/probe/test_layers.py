"""The layers of every family equal double loops, and no later token changes an earlier one in a causal network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from clusterjax import probe
from clusterjax.probe.networks.block import _ROWS, Distances, attend, distance_rows
from clusterjax.probe.networks.positions import relative_buckets
from tests.probe_cases import CONFIGS, GPT2, IDS, LLAMA, MASK, TYPES, kinds, tensors_of, tiny, tiny_tensors, write
from tests.reference import networks


BY_LAYER = GPT2 | {"scale_attn_by_inverse_layer_idx": True}
ROPE = LLAMA["rope_parameters"]
OLD_LLAMA = {name: value for name, value in LLAMA.items() if name != "rope_parameters"} | {
    "rope_theta": ROPE["rope_theta"],
    "rope_scaling": {name: value for name, value in ROPE.items() if name != "rope_theta"},
}
GROUPS = [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1), (1, 0), (1, 1)]  # (group, layer in it) of ALBERT, in order


def albert_layers(tensors, before):
    for layer, (group, inner) in enumerate(GROUPS):
        prefix = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}."
        yield networks.albert_layer(before[layer], tensors, prefix, 3, MASK[1], "gelu_new", 1e-12)


def bert_layers(tensors, before):
    for i in range(3):
        yield networks.bert_layer(before[i], tensors, f"encoder.layer.{i}.", 3, MASK[1], "gelu", 1e-12)


def t5_layers(tensors, before):
    table = tensors["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias = networks.t5_bias(8, table, 8, 10)
    for i in range(3):
        prefix = f"encoder.block.{i}."
        after, weights = networks.t5_block(before[i], tensors, prefix, 2, MASK[1], bias, "gelu_new", True, 1e-6)
        last = tensors["encoder.final_layer_norm.weight"]
        yield (after if i < 2 else networks.rms_norm(after, last, 1e-6)), weights


def gpt2_layers(tensors, before, by_layer=False):
    for i in range(3):
        scale = 0.5 / (i + 1 if by_layer else 1)  # the dimension of a head is 4
        after, weights = networks.gpt2_block(before[i], tensors, f"h.{i}.", 3, MASK[1], "gelu_new", 1e-5, scale)
        last = tensors["ln_f.weight"], tensors["ln_f.bias"]
        yield (after if i < 2 else networks.layer_norm(after, *last, 1e-5)), weights


def llama_layers(tensors, before):
    for i, back in enumerate((3, 100, 3)):
        prefix = f"model.layers.{i}."
        after, weights = networks.llama_block(before[i], tensors, prefix, 4, 2, MASK[1], back, ROPE, "silu", 1e-6)
        yield (after if i < 2 else networks.rms_norm(after, tensors["model.norm.weight"], 1e-6)), weights


LAYERS = {"albert": albert_layers, "bert": bert_layers, "t5": t5_layers, "gpt2": gpt2_layers, "qwen2": llama_layers}


def assert_layers(model, layers):
    found, words = probe.trace(model, IDS, MASK), range(int(MASK[1].sum()))
    for layer, (after, weights) in enumerate(layers(np.asarray(found.hidden[1]))):
        np.testing.assert_allclose(found.hidden[1, layer + 1][: len(words)], after[words], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.attention[1, layer], weights, rtol=0, atol=1e-12)


@pytest.mark.exhaustive_cases("albert")
@pytest.mark.parametrize("kind", ("albert", "bert", "gpt2", "llama", "t5"))
def test_layers_are_double_loops(kind):
    """Each layer of a text with padding, and the norm after the last one, equal double loops from the state before."""
    layers = LAYERS[CONFIGS[kind]["model_type"]]
    assert_layers(tiny(kind), lambda before: layers(tiny_tensors(kind), before))


def test_the_old_field_of_rotary_positions(tmp_path):
    """`rope_scaling` has the same meaning as the present `rope_parameters`."""
    assert probe.load(write(tmp_path, OLD_LLAMA, tensors_of(LLAMA))).network.sizes == tiny("llama").network.sizes


def test_embeddings_and_scores():
    """Level 0 is the sum over token, place and type, normed and mapped; scores come from the table of words."""
    tensors, hidden = tiny_tensors("albert"), probe.trace(tiny("albert"), IDS, MASK, token_types=TYPES).hidden
    names = ("word", "position", "token_type")
    word, place, kind = (tensors[f"embeddings.{name}_embeddings.weight"].astype("f8") for name in names)
    total = np.array([word[i] + place[p] + kind[TYPES[0, p]] for p, i in enumerate(IDS[0])])
    get = lambda name: (tensors[f"{name}.weight"], tensors[f"{name}.bias"])
    normed = networks.layer_norm(total, *get("embeddings.LayerNorm"), 1e-12)
    expected = networks.linear(normed, *get("encoder.embedding_hidden_mapping_in"))
    np.testing.assert_allclose(hidden[0, 0], expected, rtol=0, atol=1e-12)
    pooled = np.tanh(networks.linear(np.asarray(hidden)[0, -1, :1], *get("pooler")))
    np.testing.assert_allclose(tiny("albert").network.pool(hidden[:1, -1]), pooled, rtol=0, atol=1e-12)
    tensors, model = tensors_of(GPT2), tiny("gpt2")
    hidden = probe.trace(model, IDS, MASK).hidden
    total = tensors["wte.weight"][IDS[0]].astype("f8") + tensors["wpe.weight"][:8]
    np.testing.assert_allclose(hidden[0, 0], total, rtol=0, atol=1e-15)
    scores = networks.linear(np.asarray(hidden[0, 3]), tensors["wte.weight"])
    np.testing.assert_allclose(model.logits(hidden[:, 3])[0], scores, rtol=0, atol=1e-12)
    for kind, name in (("t5", "shared.weight"), ("llama", "model.embed_tokens.weight")):
        found = probe.trace(tiny(kind), IDS, MASK).hidden[0, 0]
        np.testing.assert_array_equal(found, tensors_of(CONFIGS[kind])[name][IDS[0]].astype("f8"))


@pytest.mark.parametrize("kind", ("gpt2", "llama"))
def test_no_token_depends_on_later_ones(kind):
    """Another ending of a text changes no earlier token; weights on later tokens and beyond the window are zero."""
    model = tiny(kind)
    found, other = probe.trace(model, IDS), probe.trace(model, np.where(np.arange(8) < 5, IDS, 29))
    np.testing.assert_array_equal(found.hidden[:, :, :5], other.hidden[:, :, :5])
    back = np.arange(8)[:, None] - np.arange(8)
    for layer, width in enumerate((3, 100, 3) if kind == "llama" else (100,) * 3):
        seen = np.asarray(found.attention)[:, layer] > 0
        np.testing.assert_array_equal(seen, np.broadcast_to((back >= 0) & (back < width), seen.shape))


def test_layers_whose_scores_are_divided_by_their_number(tmp_path):
    """Layers equal double loops; the head matrices, which include the layer's number, give the attention."""
    tensors = tensors_of(BY_LAYER)
    tensors |= {name: 0 * array for name, array in tensors.items() if name.endswith("c_attn.bias")}
    model = probe.load(write(tmp_path, BY_LAYER, tensors), dtype=jnp.float64)
    assert_layers(model, lambda before: gpt2_layers(tensors, before, by_layer=True))
    found, matrices = probe.trace(model, IDS, MASK), probe.head_matrices(model)
    for i in range(3):
        scale, shift = tensors[f"h.{i}.ln_1.weight"], tensors[f"h.{i}.ln_1.bias"]
        read = networks.layer_norm(np.asarray(found.hidden[0, i]), scale, shift, 1e-5)
        for head in range(3):
            scores = matrices.scale * (read @ matrices.query[i, head]) @ (read @ matrices.key[i, head]).T
            weights = np.tril(np.exp(scores - scores.max()))
            weights /= weights.sum(axis=1, keepdims=True)
            np.testing.assert_allclose(found.attention[0, i, head], weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", kinds("gpt2"))
def test_derivatives_reach_every_parameter(kind):
    model = tiny(kind)
    last = lambda network: network(jnp.asarray(IDS), jnp.asarray(MASK))
    scored = lambda network: last(network) if kind == "t5" else network.logits(last(network))
    gradients = nnx.jit(nnx.grad(lambda network: jnp.sum(scored(network)[..., :7] ** 2)))(model.network)
    for path, leaf in nnx.to_flat_state(nnx.state(gradients, nnx.Param)):
        assert np.all(np.isfinite(leaf[...])), path
        # A shift of all keys changes no softmax, except where keys are rotated; the pooler is not used here.
        assert np.any(np.abs(leaf[...]) > 1e-12) or path[-2:] == ("key", "bias") or "pooler" in path, path


BUCKETS = pytest.mark.parametrize(("buckets", "furthest"), ((32, 128), (8, 10), (8, 20), (64, 256), (12, 50)))


@BUCKETS
def test_relative_buckets(buckets, furthest):
    """Buckets are computed in integers, as in the reference."""
    distances = np.arange(-3 * furthest, 3 * furthest + 1)
    found = relative_buckets(distances, buckets, furthest)
    assert found.tolist() == [networks.t5_bucket(int(d), buckets, furthest) for d in distances]
    assert set(found.tolist()) == set(range(buckets)) - {buckets // 2}  # no distance is both zero and ahead


@pytest.mark.exhaustive
@BUCKETS
def test_relative_buckets_of_pytorch(buckets, furthest):
    """No logarithm of PyTorch is rounded across a bound of a bucket."""
    torch = pytest.importorskip("torch")
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-3 * furthest, 3 * furthest + 1)
    theirs = T5Attention._relative_position_bucket(torch.tensor(distances), True, buckets, furthest)
    assert relative_buckets(distances, buckets, furthest).tolist() == theirs.tolist()


@pytest.mark.exhaustive
def test_blocks_of_rows_are_the_causal_matrix_at_once():
    """Blocks and the whole agree, for a last shorter block, padding, shared keys, a bias and relative vectors."""
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
    # There are several blocks, and no exponential of later blocks of keys is computed.
    written = str(jax.make_jaxpr(lambda q: attend(q, *given[1:], causal=True)[0])(query))
    exponentials = [line for line in written.splitlines() if "= exp " in line]
    shapes = [f"2,4,{_ROWS},{_ROWS}]", f"2,4,{_ROWS},{2 * _ROWS}]", f"2,4,9,{n}]"]
    assert len(exponentials) == 3
    assert all(shape in line for shape, line in zip(shapes, exponentials, strict=True))
