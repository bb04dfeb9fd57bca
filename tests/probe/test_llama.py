"""Llama, Mistral and Qwen2: against PyTorch's where it is installed, against double loops everywhere."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

import clusterjax as cjx
from clusterjax import probe
from clusterjax.probe.networks.block import rotate, rotation
from tests.probe.test_encode import add_tokenizer
from tests.probe_cases import IDS, LLAMA, MASK, tensors_of, write
from tests.reference import networks


ROPE = LLAMA["rope_parameters"]
OLD = {name: value for name, value in LLAMA.items() if name != "rope_parameters"} | {
    "rope_theta": ROPE["rope_theta"],
    "rope_scaling": {name: value for name, value in ROPE.items() if name != "rope_theta"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama"), LLAMA, tensors_of(LLAMA))


@pytest.mark.parametrize("config", (LLAMA, OLD), ids=("rope_parameters", "rope_scaling"))
def test_blocks_are_double_loops(tmp_path, config):
    """Each block of a text with padding, from the state before it, the last norm, and the scores of the words."""
    tensors = tensors_of(LLAMA)
    model = probe.load(write(tmp_path, config, tensors), dtype=jnp.float64)
    found, words = probe.trace(model, IDS, MASK), range(int(MASK[1].sum()))
    np.testing.assert_array_equal(found.hidden[0, 0], tensors["model.embed_tokens.weight"][IDS[0]].astype("f8"))
    for block, back in enumerate((3, 100, 3)):
        before, prefix = np.asarray(found.hidden[1, block]), f"model.layers.{block}."
        after, weights = networks.llama_block(before, tensors, prefix, 4, 2, MASK[1], back, ROPE, "silu", 1e-6)
        if block == 2:
            after = networks.rms_norm(after, tensors["model.norm.weight"], 1e-6)
        np.testing.assert_allclose(found.hidden[1, block + 1][: len(words)], after[words], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.attention[1, block], weights, rtol=0, atol=1e-12)
    scores = networks.linear(np.asarray(found.hidden[1, -1]), tensors["lm_head.weight"])
    np.testing.assert_allclose(model.logits(found.hidden[1:2, -1])[0], scores, rtol=0, atol=1e-12)


TINY = {
    "vocab_size": 30, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 16, "tie_word_embeddings": False, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {name: value for name, value in ROPE.items() if name != "rope_theta"}
LIVE = {
    "llama": ("Llama", {}),
    "llama, a key for each head": ("Llama", {"num_key_value_heads": 4}),
    "llama, one key for all heads": ("Llama", {"num_key_value_heads": 1}),
    "llama, heads of their own size": ("Llama", {"head_dim": 10}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, gelu": ("Llama", {"hidden_act": "gelu"}),
    "llama, swish": ("Llama", {"hidden_act": "swish"}),
    "llama, linear": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama, linear as of old": ("Llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "llama, llama3": ("Llama", {"rope_theta": 100.0, "rope_scaling": LLAMA3}),
    "llama, one block": ("Llama", {"num_hidden_layers": 1}),
    "mistral": ("Mistral", {"sliding_window": 3, "head_dim": 6}),
    "mistral, no window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, window from layer 2 on": ("Qwen2", {"use_sliding_window": True, "sliding_window": 3,
                                               "max_window_layers": 1}),
    "qwen2, mixed layers": ("Qwen2", {"use_sliding_window": True, "sliding_window": 2, "layer_types":
                                      ["sliding_attention", "full_attention", "sliding_attention"]}),
}  # fmt: skip


def saved(folder, kind, options, **how):
    """A random network of transformers, saved in `folder`."""
    torch = pytest.importorskip("torch", reason="PyTorch's networks are compared with where it is installed")
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(**(TINY | options), attn_implementation="eager")
    torch.manual_seed(0)
    network = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            # Large enough that attention is far from uniform and no layer is nearly the identity.
            parameter.copy_(0.4 * torch.randn_like(parameter) + (1.0 if "norm" in name else 0.0))
    network.save_pretrained(folder, **how)
    return network


def largest_errors(network, model):
    """Of hidden states (to the largest entry of each level), of attention and of logits, at words."""
    import torch

    with torch.no_grad():
        theirs = network(
            torch.tensor(IDS),
            attention_mask=torch.tensor(MASK.astype(np.int64)),
            output_hidden_states=True,
            output_attentions=True,
        )
    ours = probe.trace(model, IDS, MASK)
    hidden = np.stack([part.numpy() for part in theirs.hidden_states], 1)
    attention = np.stack([part.numpy() for part in theirs.attentions], 1)
    assert ours.hidden.shape == hidden.shape and ours.attention.shape == attention.shape
    words = MASK[:, None, :]
    scale = np.where(words[..., None], np.abs(hidden), 0.0).max(axis=(0, 2, 3))
    by_level = np.where(words[..., None], np.abs(ours.hidden - hidden), 0.0).max(axis=(0, 2, 3)) / scale
    of_attention = np.where(words[:, :, None, :, None], np.abs(ours.attention - attention), 0.0).max()
    scores = np.asarray(model.logits(ours.hidden[:, -1]))
    return by_level.max(), of_attention, np.abs(scores - theirs.logits.numpy())[MASK].max()


def assert_close(network, model):
    hidden, attention, logits = largest_errors(network, model)
    assert hidden < 1e-5 and attention < 2e-5 and logits < 1e-4


@pytest.mark.exhaustive_cases(
    "llama, biases", "llama, gelu", "llama, swish", "llama, tied", "mistral, no window", "qwen2, mixed layers"
)
@pytest.mark.parametrize("name", LIVE)
def test_live(tmp_path, name):
    """Random networks of every option, texts of unequal length; the last level is after the last norm."""
    network = saved(tmp_path, *LIVE[name])
    assert_close(network, probe.load(tmp_path))


def test_shards(tmp_path):
    network = saved(tmp_path, "Qwen2", {}, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2 and not (tmp_path / "model.safetensors").exists()
    assert_close(network, probe.load(tmp_path))


def test_transformers_reads_what_was_read(tmp_path, folder):
    """The names of `tensors` are those of the checkpoints, up to the prefix, which PyTorch's class adds."""
    pytest.importorskip("torch", reason="PyTorch's networks are compared with where it is installed")
    import transformers

    model = probe.load(folder)
    arrays = probe.tensors(model.network)
    expected = {name.removeprefix("model."): array for name, array in tensors_of(LLAMA).items()}
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)
    network = transformers.Qwen2ForCausalLM.from_pretrained(str(write(tmp_path, LLAMA, arrays)))
    network.set_attn_implementation("eager")
    assert_close(network.eval(), model)


def test_no_token_depends_on_later_ones(folder):
    """Another end of a text changes nothing before it; weights above the diagonal and beyond the window are zero."""
    model = probe.load(folder, dtype=jnp.float64)
    found, other = probe.trace(model, IDS), probe.trace(model, np.where(np.arange(8) < 5, IDS, 29))
    np.testing.assert_array_equal(found.hidden[:, :, :5], other.hidden[:, :, :5])
    back = np.arange(8)[:, None] - np.arange(8)
    attention = np.asarray(found.attention)
    for layer, width in enumerate((3, 100, 3)):
        seen = attention[:, layer] > 0
        np.testing.assert_array_equal(seen, np.broadcast_to((back >= 0) & (back < width), seen.shape))


def test_scores_depend_on_distances(folder):
    """Queries and keys rotated by the same number of places more have the same products."""
    sizes = probe.load(folder).network.sizes
    cosines, sines = rotation(12, sizes, jnp.float64)
    x, y = (jnp.asarray(np.random.default_rng(k).normal(size=(1, 4, 2, 6))) for k in (0, 1))
    products = []
    for first in (0, 7):
        turn = cosines[first : first + 4], sines[first : first + 4]
        products.append(jnp.einsum("bihk,bjhk->bhij", rotate(x, turn), rotate(y, turn)))
    np.testing.assert_allclose(products[0], products[1], rtol=0, atol=1e-12)


def test_heads_and_their_field(folder):
    """The factors of each head are rows of the matrices of the file; the field is causal and has no rotation."""
    tensors, model = tensors_of(LLAMA), probe.load(folder, dtype=jnp.float64)
    matrices = probe.head_matrices(model)
    assert matrices.query.shape == matrices.key.shape == (3, 4, 12, 6) and matrices.scale == 6**-0.5
    for head in range(4):
        rows, shared = slice(6 * head, 6 * head + 6), slice(6 * (head // 2), 6 * (head // 2) + 6)
        for found, name, part in (
            (matrices.query, "q", rows), (matrices.key, "k", shared), (matrices.value, "v", shared),
        ):  # fmt: skip
            expected = tensors[f"model.layers.1.self_attn.{name}_proj.weight"][part].T
            np.testing.assert_array_equal(found[1, head], expected.astype("f8"))
    field = probe.particle_field(model, np.array([1.0, 2.0, 3.0]))
    assert isinstance(field.mask, cjx.CausalMask) and field.factors.bias is None
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 12)))
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    time = jnp.asarray(1.5)  # in block 1
    scale = np.sqrt(12) * tensors["model.layers.1.input_layernorm.weight"].astype("f8")
    read, expected = np.asarray(x) * scale, np.zeros((5, 12))
    for head in range(4):
        query, key, value = (read @ factor[1, head] for factor in (matrices.query, matrices.key, matrices.value))
        for i in range(5):
            weights = np.exp(key[: i + 1] @ query[i] * 6**-0.5)
            expected[i] += weights @ value[: i + 1] / weights.sum() @ matrices.output[1, head] / 2.0
    expected -= np.sum(expected * np.asarray(x), axis=1, keepdims=True) * np.asarray(x)
    np.testing.assert_allclose(field(time, x, None), expected, rtol=0, atol=1e-11)


@pytest.mark.exhaustive
def test_every_tool_takes_it(folder):
    """What measures and changes networks, on one whose attention is not symmetric; windows survive each change."""
    model, texts, key = probe.load(folder), probe.Encoded(IDS, MASK), jax.random.key(0)
    assert probe.similarity_histograms(model, texts).cosine.mean.shape == (4,)
    assert probe.head_correlations(model, texts, clusters=2, replicates=3, key=key).between_heads.mean.shape[0] == 3
    sinks = probe.attention_sinks(model, texts)
    # The first token of a text sees itself only.
    assert np.all(np.isfinite(sinks.excess["first"].mean))
    assert probe.value_spectra(model).beta.shape == (3, 4)
    vectors = probe.value_directions(model, head=1, block=2, top=1).vectors
    assert probe.nearest_words(model, np.real(vectors), 2).token_ids.shape == (1, 2)
    changed = {
        "deeper": probe.deeper(model, 2), "feed-forward": probe.without_feed_forward(model),
        "norms": probe.without_norms(model), "sphere": probe.on_sphere(model, np.array([1.0, 2.0, 3.0])),
        "random": probe.randomise(model, key),
        "all": probe.randomise(probe.without_feed_forward(probe.on_sphere(model, 2.0)), key),
    }  # fmt: skip
    for name, other in changed.items():
        found = probe.trace(other, IDS, MASK)
        assert found.hidden.shape[1] == (7 if name == "deeper" else 4) and np.all(np.isfinite(found.hidden))
        assert not np.any(found.attention[:, 0, :, 3:, 0]) and np.any(found.attention[:, 1, :, 3:, 0])
    twice = probe.trace(changed["deeper"], IDS, MASK)
    np.testing.assert_allclose(twice.hidden[:, :3], probe.trace(model, IDS, MASK).hidden[:, :3], rtol=0, atol=1e-6)
    silent = probe.trace(changed["sphere"], IDS, MASK)
    assert not np.array_equal(silent.hidden[:, 1], probe.trace(model, IDS, MASK).hidden[:, 1])


def test_a_network_without_head_has_no_logits(tmp_path):
    """`LlamaModel` saved alone, untied; the head that `randomise` drops. One that is tied has them always."""
    tensors = tensors_of(LLAMA, head=False)
    hidden = jnp.ones((1, 2, 12), jnp.float32)
    with pytest.raises(ValueError, match="must have a head for logits, but this network has none"):
        probe.load(write(tmp_path / "body", LLAMA, tensors)).logits(hidden)
    tied = LLAMA | {"tie_word_embeddings": True}
    model = probe.load(write(tmp_path / "tied", tied, tensors))
    expected = np.asarray(hidden[0]) @ tensors["model.embed_tokens.weight"].T
    np.testing.assert_allclose(model.logits(hidden)[0], expected, rtol=1e-5)
    copy = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    assert probe.load(write(tmp_path / "copy", tied, tensors | copy)).network.lm_head is None


@pytest.mark.parametrize(
    ("fields", "message"),
    (
        ({"num_attention_heads": 5, "head_dim": None}, "num_attention_heads that divides .* 12, or a head_dim, .* 5;"),
        ({"num_key_value_heads": 3}, "num_key_value_heads that divides .* 4, but in '.*config.json' it is 3; mend it"),
        ({"head_dim": 3}, "heads of an even size, but in '.*config.json' it is 3; mend it"),
        ({"num_key_value_heads": 0}, "positive num_shared, but in '.*config.json' it is 0"),
        ({"sliding_window": 0}, "positive window, but in '.*config.json' it is 0"),
        ({"hidden_act": "mish"}, "activation among gelu, .*, swish, but in '.*config.json' it is 'mish'"),
        ({"rope_parameters": ROPE | {"rope_type": "yarn"}},
         "rope_type among default, linear, llama3 for all layers and whole heads, but in '.*json' it is 'yarn'"),
        ({"rope_parameters": {"rope_type": "other", "rope_theta": 1e4}}, "among default, linear, llama3 .* is 'other'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": -1.0}}, "positive factor, .* -1.0"),
        ({"rope_parameters": ROPE | {"low_freq_factor": 4.0}}, "low_freq_factor below the high_freq_factor, 4.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
         "has full_attention|be one of qwen2"),  # the latter by transformers 5.17,
        ({"layer_types": ["full_attention"]}, "config must (have a layer_type for each of 3 layers|be one of qwen2)"),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]},
         "layer_types among full_attention, sliding_attention, but in '.*config.json' one is 'chunked_attention'"),
        ({"num_hidden_layers": 2, "layer_types": None}, "has 'layers.2.input_layernorm.weight' and 11 more"),
        ({"num_hidden_layers": 4, "layer_types": None}, "lacks 'layers.3.input_layernorm.weight' and 11 more"),
        ({"intermediate_size": 21}, r"'layers.0.mlp.down_proj.weight' of .* has the shape \(12, 20\) in place of"),
    ),
    ids=str,
)  # fmt: skip
def test_configurations_that_do_not_fit(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        probe.load(write(tmp_path, LLAMA | fields, tensors_of(LLAMA)))


def test_a_mistral_of_mixed_layers_is_refused(tmp_path):
    """transformers says to use another class for it, and would slide in all layers."""
    config = LLAMA | {"model_type": "mistral"}
    with pytest.raises(ValueError, match="layer_types among sliding_attention, but .* one is 'full_attention'"):
        probe.load(write(tmp_path, config, tensors_of(LLAMA)))


def test_tensors_that_do_not_fit(tmp_path):
    """Missing, more than there are, misshapen: each by its name; frequencies of early versions are left out."""
    tensors, name = tensors_of(LLAMA), "model.layers.1.self_attn.q_proj.weight"
    with pytest.raises(ValueError, match=re.escape(f"lacks '{name.removeprefix('model.')}'")):
        probe.load(write(tmp_path / "less", LLAMA, {key: value for key, value in tensors.items() if key != name}))
    with pytest.raises(ValueError, match=re.escape("has 'layers.0.self_attn.q_norm.weight', which no part")):
        probe.load(
            write(tmp_path / "more", LLAMA, tensors | {"model.layers.0.self_attn.q_norm.weight": np.ones(6, "f4")})
        )
    with pytest.raises(ValueError, match=re.escape("has the shape (12, 24) in place of (24, 12)")):
        probe.load(write(tmp_path / "turned", LLAMA, tensors | {name: tensors[name].T}))
    early = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, "f4"), "score.weight": np.ones((2, 12), "f4")}
    model = probe.load(write(tmp_path / "early", LLAMA, tensors | early))
    assert model.left_out == tuple(sorted(early))


def test_other_heads_and_greater_depth(folder):
    with pytest.raises(ValueError, match="heads must be None for a network whose 4 heads are rotated each by itself"):
        probe.load(folder, heads=2)
    with pytest.warns(UserWarning, match="trained with 3 blocks and is deepened to 4"):
        assert probe.load(folder, depth=4).network.order() == [0, 1, 2, 0]


def test_sizes_that_do_not_fit():
    make = lambda **options: probe.LlamaSizes(**(dict(
        vocab_size=8, hidden_size=4, num_heads=2, num_shared=1, head_size=2, intermediate_size=4, num_layers=2
    ) | options))  # fmt: skip
    assert make(window=3).widths == [3, 3] and make().widths is None
    assert make(window=3, sliding=(False, True)).widths == [2**31 - 1, 3]
    for options, message in (
        ({"num_heads": 3, "num_shared": 2}, "num_shared must divide num_heads, 3, but it is 2"),
        ({"head_size": 3}, "head_size must be even, but it is 3"),
        ({"sliding": (True,)}, "sliding must be None or a tuple of True and False, one for each of 2 layers"),
        ({"scaling": "yarn"}, "scaling must be one of 'default', 'linear', 'llama3', but it is 'yarn'"),
        ({"scaling": "llama3", "low_frequency": 4.0}, "low_frequency must be below high_frequency, 4.0"),
        ({"window": 0}, "window must be an integer from 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**options)


def test_texts_are_encoded_and_cut_to_the_positions(tmp_path):
    """With a tokenizer beside it a Llama encodes texts as the others do."""
    add_tokenizer(write(tmp_path, LLAMA, tensors_of(LLAMA)))
    model = probe.load(tmp_path)
    assert model.max_positions == 16 and model.network.num_token_types is None
    ids = np.tile(IDS, (1, 3))
    with pytest.warns(UserWarning, match="3 of 3 texts are longer than 16 tokens"):
        assert probe.trace(model, ids).hidden.shape[2] == 16
    assert model.network(jnp.asarray(ids)).shape == (3, 24, 12)


@pytest.mark.exhaustive
def test_derivatives_reach_every_parameter(folder):
    network = probe.load(folder).network
    loss = lambda network: jnp.sum(network.logits(network(jnp.asarray(IDS), jnp.asarray(MASK)))[..., 0] ** 2)
    gradients = nnx.grad(loss)(network)
    leaves = dict(nnx.to_flat_state(nnx.state(gradients, nnx.Param)))
    # A shift of all keys moves all scores of a row alike only without rotation, so that also their biases count.
    assert all(np.all(np.isfinite(leaf[...])) and np.any(leaf[...]) for leaf in leaves.values())


def test_a_config_says_the_sizes(folder):
    sizes = probe.load(folder).network.sizes
    assert sizes.sliding == (True, False, True) and sizes.window == 3 and sizes.attention_bias
    assert not sizes.output_bias and sizes.scaling == "llama3" and sizes.original_positions == 32
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen2"
    assert safetensors.numpy.load_file(folder / "model.safetensors").keys() == tensors_of(LLAMA).keys()
