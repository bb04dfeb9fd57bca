"""Small checkpoints for the tests of `probe`, written without the package, and a batch with padding."""

import functools
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx, serialization

from tests.helpers import as_a_user


PLBERT = Path(__file__).resolve().parents[2] / "shared" / "data" / "albert-plbert"
needs_plbert = pytest.mark.skipif(
    not (PLBERT / "model.safetensors").is_file(),
    reason="the trained ALBERT is not beside the checkout, in ../shared/data",
)

ALBERT = {
    "model_type": "albert", "vocab_size": 30, "embedding_size": 6, "hidden_size": 12, "num_hidden_layers": 4,
    "num_attention_heads": 3, "intermediate_size": 20, "num_hidden_groups": 2, "inner_group_num": 2,
    "hidden_act": "gelu_new", "max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}  # fmt: skip
SHARED = ALBERT | {"num_hidden_groups": 1, "inner_group_num": 1}  # one layer, as in all published networks
T5 = {
    "model_type": "t5", "vocab_size": 30, "d_model": 12, "d_kv": 5, "d_ff": 20, "num_layers": 3, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10, "feed_forward_proj": "gated-gelu",
    "layer_norm_epsilon": 1e-6, "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
LLAMA = {
    "model_type": "qwen2", "vocab_size": 30, "hidden_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 6, "intermediate_size": 20, "num_hidden_layers": 3, "max_position_embeddings": 16,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "use_sliding_window": True, "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}  # fmt: skip

BERT = {
    "model_type": "bert", "vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 20, "hidden_act": "gelu", "max_position_embeddings": 16, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 30, "n_embd": 12, "n_layer": 3, "n_head": 3, "n_positions": 16,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip

IDS = np.random.default_rng(3).integers(1, 30, (3, 8))
MASK = np.arange(8)[None, :] < np.array([8, 5, 2])[:, None]
WORDS = np.arange(8)[None, :] < np.array([8, 5, 3])[:, None]  # at least three words in each text


def many_texts(texts, n, seed=7):
    """`texts` random texts of only three lengths up to n, so that few programs are compiled for single texts."""
    from clusterjax import probe

    rng = np.random.default_rng(seed)
    lengths = np.resize([n - 3, 2, n], texts)
    mask = np.arange(n)[None, :] < lengths[:, None]
    return probe.Encoded(np.where(mask, rng.integers(1, 30, (texts, n)), 0).astype(np.int32), mask)


TYPES = np.random.default_rng(4).integers(0, 2, (3, 8))


def albert_shapes(config, *, pooler=True, head=False):
    """Every tensor of an ALBERT and its shape, in the names of PyTorch."""
    e, d, wide, words = (config[name] for name in ("embedding_size", "hidden_size", "intermediate_size", "vocab_size"))
    shapes = {
        "embeddings.word_embeddings.weight": (words, e),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], e),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], e),
        "embeddings.LayerNorm.weight": (e,),
        "embeddings.LayerNorm.bias": (e,),
        "encoder.embedding_hidden_mapping_in.weight": (d, e),
        "encoder.embedding_hidden_mapping_in.bias": (d,),
    }
    for group in range(config["num_hidden_groups"]):
        for inner in range(config["inner_group_num"]):
            layer = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}."
            maps = {f"attention.{name}": (d, d) for name in ("query", "key", "value", "dense")}
            maps |= {"ffn": (wide, d), "ffn_output": (d, wide)}
            maps |= {"attention.LayerNorm": (d,), "full_layer_layer_norm": (d,)}
            for name, shape in maps.items():
                shapes[f"{layer}{name}.weight"], shapes[f"{layer}{name}.bias"] = shape, shape[:1]
    if pooler:
        shapes |= {"pooler.weight": (d, d), "pooler.bias": (d,)}
    if head:
        shapes |= {"predictions.bias": (words,), "predictions.dense.weight": (e, d), "predictions.dense.bias": (e,)}
        shapes |= {"predictions.LayerNorm.weight": (e,), "predictions.LayerNorm.bias": (e,)}
    return shapes


def t5_shapes(config):
    """Every tensor of a T5 encoder and its shape, in the names of PyTorch."""
    d, wide, inner = config["d_model"], config["d_ff"], config["num_heads"] * config["d_kv"]
    gated = config["feed_forward_proj"].startswith("gated")
    shapes = {"shared.weight": (config["vocab_size"], d), "encoder.final_layer_norm.weight": (d,)}
    table = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    shapes[table] = (config["relative_attention_num_buckets"], config["num_heads"])
    for i in range(config["num_layers"]):
        attend, feed = f"encoder.block.{i}.layer.0.", f"encoder.block.{i}.layer.1."
        shapes |= {f"{attend}SelfAttention.{name}.weight": (inner, d) for name in "qkv"}
        shapes |= {f"{attend}SelfAttention.o.weight": (d, inner)}
        shapes |= {
            f"{feed}DenseReluDense.{name}.weight": (wide, d) for name in (("wi_0", "wi_1") if gated else ("wi",))
        }
        shapes |= {f"{feed}DenseReluDense.wo.weight": (d, wide)}
        shapes |= {f"{attend}layer_norm.weight": (d,), f"{feed}layer_norm.weight": (d,)}
    return shapes


def llama_shapes(config, *, head=True):
    """Every tensor of a Qwen2 and its shape, in the names of PyTorch."""
    d, wide, words = (config[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    inner, shared = (config["head_dim"] * config[f"num_{name}_heads"] for name in ("attention", "key_value"))
    shapes = {"model.embed_tokens.weight": (words, d), "model.norm.weight": (d,)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        maps = {"self_attn.q_proj": (inner, d), "self_attn.k_proj": (shared, d), "self_attn.v_proj": (shared, d)}
        shapes |= {f"{layer}{name}.bias": shape[:1] for name, shape in maps.items()}
        maps |= {"self_attn.o_proj": (d, inner), "mlp.gate_proj": (wide, d), "mlp.up_proj": (wide, d)}
        maps |= {"mlp.down_proj": (d, wide), "input_layernorm": (d,), "post_attention_layernorm": (d,)}
        shapes |= {f"{layer}{name}.weight": shape for name, shape in maps.items()}
    return shapes | ({"lm_head.weight": (words, d)} if head else {})


def _with_biases(maps):
    """The shapes of the given weights and norms, with the shape of a bias for each."""
    weights = {f"{name}.weight": shape for name, shape in maps.items()}
    return weights | {f"{name}.bias": shape[:1] for name, shape in maps.items()}


def bert_shapes(config, *, pooler=True, head=False):
    """Every tensor of a BERT and its shape, in the names of PyTorch."""
    d, wide, words = (config[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    rows = {"word": words, "position": config["max_position_embeddings"], "token_type": config["type_vocab_size"]}
    shapes = {f"embeddings.{name}_embeddings.weight": (count, d) for name, count in rows.items()}
    maps = {"embeddings.LayerNorm": (d,)}
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        maps |= {f"{layer}attention.self.{name}": (d, d) for name in ("query", "key", "value")}
        maps |= {f"{layer}attention.output.dense": (d, d), f"{layer}attention.output.LayerNorm": (d,)}
        maps |= {f"{layer}intermediate.dense": (wide, d), f"{layer}output.dense": (d, wide)}
        maps |= {f"{layer}output.LayerNorm": (d,)}
    maps |= {"pooler.dense": (d, d)} if pooler else {}
    if head:
        maps |= {"cls.predictions.transform.dense": (d, d), "cls.predictions.transform.LayerNorm": (d,)}
        shapes["cls.predictions.bias"] = (words,)
    return shapes | _with_biases(maps)


def gpt2_shapes(config):
    """Every tensor of a GPT-2 and its shape, in the names of PyTorch; its linear maps are (in, out)."""
    d = config["n_embd"]
    wide = config.get("n_inner") or 4 * d
    shapes, norms = {"wte.weight": (config["vocab_size"], d), "wpe.weight": (config["n_positions"], d)}, {"ln_f": (d,)}
    for i in range(config["n_layer"]):
        norms |= {f"h.{i}.ln_1": (d,), f"h.{i}.ln_2": (d,)}
        maps = {"attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "mlp.c_fc": (d, wide), "mlp.c_proj": (wide, d)}
        for name, shape in maps.items():
            shapes[f"h.{i}.{name}.weight"], shapes[f"h.{i}.{name}.bias"] = shape, shape[1:]
    return shapes | _with_biases(norms)


SHAPES = {
    "albert": albert_shapes, "t5": t5_shapes, "mt5": t5_shapes, "bert": bert_shapes, "gpt2": gpt2_shapes,
    "qwen2": llama_shapes,
}  # fmt: skip


@functools.cache
def _drawn(shapes, seed):
    rng = np.random.default_rng(seed)
    # The numbers are so large that attention is far from uniform and no layer is nearly the identity.
    is_scale = lambda name: ("norm" in name.lower() or "ln_" in name) and "weight" in name
    return {
        name: (rng.normal(size=shape) * 0.4 + (1.0 if is_scale(name) else 0.0)).astype("f4") for name, shape in shapes
    }


def tensors_of(config, seed=0, **parts):
    """Random tensors of a checkpoint of this configuration."""
    shapes = SHAPES[config["model_type"]](config, **parts)
    return dict(_drawn(tuple(shapes.items()), seed))


def write(folder, config, tensors, metadata=None):
    """Write the folder of a checkpoint as `transformers` saves it, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    (folder / "model.safetensors").write_bytes(safetensors.numpy.save(arrays, metadata or {"format": "pt"}))
    return folder


def sizes_like(family, **fields):
    """The sizes of a network of this family with the given numbers, built without transformers."""
    from clusterjax.probe import NetworkSizes, Rotary
    from clusterjax.probe.networks.families import FAMILIES

    rotary = {"rotary": (Rotary(),)} if family == "llama" else {}
    biases = {"num_buckets": 32, "factor": 1.0} if family == "t5" else {}
    types = {"type_vocab_size": 2, "max_positions": 512} if family in ("albert", "bert") else {}
    groups = {"num_groups": 1} if family == "albert" else {}
    return NetworkSizes(family=family, **(FAMILIES[family].fixed | rotary | biases | types | groups | fields))


CONFIGS = {"albert": ALBERT, "shared albert": SHARED, "bert": BERT, "gpt2": GPT2, "llama": LLAMA, "t5": T5}


def tiny_tensors(kind):
    """The tensors of `tiny`, with every head that this kind has."""
    return tensors_of(CONFIGS[kind], **({"head": True} if CONFIGS[kind]["model_type"] in ("albert", "bert") else {}))


@functools.cache
def tiny(kind):
    """The tiny network of this kind in float64; all tests share it, and so the programs compiled for it."""
    from clusterjax import probe

    with tempfile.TemporaryDirectory() as folder:
        return probe.load(write(Path(folder) / "tiny", CONFIGS[kind], tiny_tensors(kind)), dtype="float64")


def drawn(network, spread, seed=0):
    """A network whose parameters are drawn by NumPy where they are only shapes, or NaN since no spread is given."""
    rng = np.random.default_rng(seed)
    form, parameters, others = nnx.split(network, nnx.Param, ...)

    def draw(leaf):
        if isinstance(leaf, jax.Array) and not np.isnan(np.asarray(leaf)).any():
            return leaf
        return jnp.asarray((spread * rng.normal(size=leaf.shape)).astype(leaf.dtype), leaf.dtype)

    return nnx.merge(form, jax.tree_util.tree_map(draw, parameters), others)


def kinds(*taken, every=CONFIGS):
    """All kinds as parameters: the kinds in `taken` run in `make test`, the others in `make exhaustive`."""
    return [pytest.param(kind, marks=() if kind in taken else pytest.mark.exhaustive) for kind in every]


def assert_refused(*cases):
    """Each call raises a ValueError whose message matches the pattern beside it, as it does for a user."""
    for call, message in cases:
        with as_a_user(), pytest.raises(ValueError, match=message):
            call()


def assert_same(found, expected):
    """All arrays and numbers of two results, leaf by leaf."""
    ours, theirs = ([np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)] for tree in (found, expected))
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        if one.dtype.kind in "fciub":
            size = np.nanmax(np.abs(other), initial=1) if other.dtype.kind != "b" else 1
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * size)
        else:
            assert one.tolist() == other.tolist()


def write_msgpack(folder, config, tree):
    """Write the folder of a checkpoint as version 4 of transformers saved a Flax model, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "flax_model.msgpack").write_bytes(serialization.msgpack_serialize(tree))
    return folder


def flax_tree(tensors):
    """The tree of Flax with these tensors: kernels are (in, out); tables and norms of ALBERT have other names."""
    tree = {}
    for name, array in tensors.items():
        *path, last = name.split(".")
        if last == "weight" and array.ndim == 2:
            is_table = path[-1].endswith("_embeddings") or path[-1] in ("shared", "relative_attention_bias")
            last, array = ("embedding", array) if is_table else ("kernel", np.ascontiguousarray(array.T))
        elif last == "weight" and path[-1] in ("LayerNorm", "full_layer_layer_norm"):
            last = "scale"
        branch = functools.reduce(lambda branch, part: branch.setdefault(part, {}), path, tree)
        branch[last] = array
    return tree


def albert_head_tree(tensors):
    """The tree of FlaxAlbertForPreTraining."""
    head = {name: array for name, array in tensors.items() if name.startswith("predictions")}
    body = {name: array for name, array in tensors.items() if name not in head}
    order = {"classifier": {"kernel": np.zeros((len(tensors["pooler.bias"]), 2), "f4"), "bias": np.zeros(2, "f4")}}
    return flax_tree(head) | {"albert": flax_tree(body), "sop_classifier": order}


def t5_tree(tensors):
    """The tree of FlaxT5ForConditionalGeneration, whose decoder has only a norm."""
    words, d = tensors["shared.weight"].shape
    decoder = {"final_layer_norm": {"weight": np.ones(d, "f4")}}
    return flax_tree(tensors) | {"decoder": decoder, "lm_head": {"kernel": np.ones((d, words), "f4")}}
