"""Reading checkpoints: three formats agree bit for bit, and every tensor is accounted for."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx, serialization
from flax.traverse_util import flatten_dict, unflatten_dict

from clusterjax import probe
from tests.probe_cases import (
    ALBERT,
    BERT,
    GPT2,
    LLAMA,
    SHARED,
    T5,
    albert_head_tree,
    flax_tree,
    llama_shapes,
    t5_tree,
    tensors_of,
    write,
    write_msgpack,
)


def parameters(model):
    return {path: np.asarray(value[...]) for path, value in nnx.to_flat_state(nnx.state(model.network))}


def assert_same_parameters(model, other):
    found, expected = parameters(model), parameters(other)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        assert found[path].dtype == value.dtype
        np.testing.assert_array_equal(found[path], value)


def write_shards(folder, config, tensors):
    """Write the tensors into two files with an index, and return the folder."""
    write(folder, config, {})
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, part in shards.items():
        (folder / shard).write_bytes(safetensors.numpy.save({name: tensors[name] for name in part}))
    index = {"metadata": {}, "weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_flax_shards(folder, config, tree):
    """A Flax tree as transformers 4 wrote large trees: parts of the tree, and an index of names with slashes."""
    write(folder, config, {})
    (folder / "model.safetensors").unlink()
    flat = flatten_dict(tree, sep="/")
    shards = {f"flax_model-0000{k + 1}-of-00002.msgpack": sorted(flat)[k::2] for k in range(2)}
    for shard, part in shards.items():
        content = serialization.to_bytes(unflatten_dict({name: flat[name] for name in part}, sep="/"))
        (folder / shard).write_bytes(content)
    index = {"metadata": {}, "weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (folder / "flax_model.msgpack.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.exhaustive_cases("albert")
@pytest.mark.parametrize(("config", "tree"), ((ALBERT, flax_tree), (T5, t5_tree)), ids=("albert", "t5"))
def test_formats_agree_bit_for_bit(tmp_path, config, tree):
    """safetensors, shards and the published Flax tree contain the same network."""
    tensors = tensors_of(config)
    whole = probe.load(write(tmp_path / "whole", config, tensors))
    assert_same_parameters(probe.load(write_shards(tmp_path / "shards", config, tensors)), whole)
    flax = probe.load(write_msgpack(tmp_path / "flax", config, tree(tensors)))
    assert_same_parameters(flax, whole)
    shards = probe.load(write_flax_shards(tmp_path / "flax-shards", config, tree(tensors)))
    assert_same_parameters(shards, whole)
    assert shards.left_out == flax.left_out
    if config is T5:
        assert flax.left_out == ("decoder.final_layer_norm.weight", "lm_head.kernel") and whole.left_out == ()


@pytest.mark.parametrize("config", (SHARED, T5, BERT, GPT2, LLAMA), ids=("albert", "t5", "bert", "gpt2", "qwen2"))
def test_tensors_are_what_was_read(tmp_path, config):
    """Tensors have their original names, up to a prefix of the PyTorch class, and can be written again."""
    expected = tensors_of(config, head=True) if config in (SHARED, BERT) else tensors_of(config)
    model = probe.load(write(tmp_path, config, expected))
    found = probe.tensors(model.network)
    expected = {name.removeprefix("model."): array for name, array in expected.items()}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    (tmp_path / "model.safetensors").write_bytes(safetensors.numpy.save(found))
    assert_same_parameters(probe.load(tmp_path), model)


def old_albert(tensors):
    """The body under `albert.`, a head beside it, copies of tied tensors, and index buffers of early versions."""
    full = {name if name.startswith("predictions") else f"albert.{name}": array for name, array in tensors.items()}
    full["predictions.decoder.weight"] = tensors["embeddings.word_embeddings.weight"]
    full["predictions.decoder.bias"] = tensors["predictions.bias"]
    return full, {
        "albert.embeddings.position_ids": np.arange(16)[None], "sop_classifier.classifier.weight": np.ones((2, 12)),
    }  # fmt: skip


def old_bert(tensors):
    """An old BERT: gamma and beta as names, the prefix `bert.`, copies of tied tensors."""
    old = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    full = {old(name) if name.startswith("cls.") else f"bert.{old(name)}": array for name, array in tensors.items()}
    full["cls.predictions.decoder.weight"] = tensors["embeddings.word_embeddings.weight"]
    full["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    names = ("bert.embeddings.position_ids", "classifier.bias", "cls.seq_relationship.weight", "qa_outputs.weight")
    return full, {name: np.ones(2) for name in names}


def old_gpt2(tensors):
    """An old GPT-2: the prefix `transformer.`, the masks of old files, a copy of a tied tensor."""
    full = {f"transformer.{name}": array for name, array in tensors.items()}
    full["lm_head.weight"] = tensors["wte.weight"]
    names = [f"transformer.h.{i}.attn.{name}" for i in range(3) for name in ("bias", "masked_bias")]
    return full, {name: np.float32([-1e4]) for name in ("score.weight", *names)}


def old_llama(tensors):
    """An old Llama: the rotary frequencies of early versions."""
    return tensors, {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3), "score.weight": np.ones((2, 12))}


def old_t5(tensors):
    """An old T5: a decoder, and the embedding under another name."""
    shared = tensors.pop("shared.weight")
    more = {"decoder.block.0.layer.0.SelfAttention.q.weight": shared, "lm_head.weight": shared}
    return tensors | {"encoder.embed_tokens.weight": shared}, more


@pytest.mark.parametrize(
    ("config", "old"),
    ((SHARED, old_albert), (BERT, old_bert), (GPT2, old_gpt2), (LLAMA, old_llama), (T5, old_t5)),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_prefixes_copies_and_what_is_no_part(tmp_path, config, old):
    """Such files give the same network, and the names of the tensors that were left out."""
    tensors = tensors_of(config, head=True) if config in (SHARED, BERT) else tensors_of(config)
    plain = probe.load(write(tmp_path / "plain", config, tensors))
    full, left_out = old(dict(tensors))
    model = probe.load(write(tmp_path / "old", config, full | left_out))
    assert_same_parameters(model, plain)
    assert sorted(model.left_out) == sorted(left_out)


def test_the_head_of_a_file_of_flax(tmp_path):
    tensors = tensors_of(SHARED, head=True)
    flax = probe.load(write_msgpack(tmp_path / "flax", SHARED, albert_head_tree(tensors)))
    assert_same_parameters(flax, probe.load(write(tmp_path / "plain", SHARED, tensors)))


def test_two_embeddings_of_a_t5_are_refused(tmp_path):
    tensors = tensors_of(T5)
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"] + 1
    with pytest.raises(ValueError, match="'shared.weight' differ in .*; save it anew with one of them"):
        probe.load(write(tmp_path, T5, tensors))


def test_an_untied_head_has_a_decoder_of_its_own(tmp_path):
    """If `tie_word_embeddings` is false, the decoder is a parameter, and a file without it is refused."""
    config = SHARED | {"tie_word_embeddings": False}
    tensors = tensors_of(SHARED, head=True)
    with pytest.raises(ValueError, match=re.escape("lacks 'predictions.decoder.weight'")):
        probe.load(write(tmp_path / "lacks", config, tensors))
    tensors["predictions.decoder.weight"] = np.full((30, 6), 2.0, "f4")
    model = probe.load(write(tmp_path / "has", config, tensors))
    # Early files store the bias of the decoder under the name of the tied bias.
    np.testing.assert_array_equal(model.network.head.decoder.bias[...], tensors["predictions.bias"])
    np.testing.assert_array_equal(model.network.head.decoder.kernel[...], np.full((6, 30), 2.0))


@pytest.mark.exhaustive_cases("qwen2")
@pytest.mark.parametrize(
    ("config", "said"),
    ((SHARED, "this network has no masked-LM head"), (LLAMA, "this network has no head for words"),
     (T5, "must have a head for logits")),
    ids=("albert", "qwen2", "t5"),
)  # fmt: skip
def test_only_what_the_file_has(tmp_path, config, said):
    """Pooler and head exist if the file has them, and otherwise a call says so; a tied head needs no tensor."""
    parts = {"pooler": False} if config is SHARED else {"head": False} if config is LLAMA else {}
    bare = probe.load(write(tmp_path / "bare", config, tensors_of(config, **parts)))
    hidden = jnp.ones((1, 2, 12), jnp.float32)
    with pytest.raises(ValueError, match=said):
        bare.logits(hidden)
    if config is SHARED:
        with pytest.raises(ValueError, match="this network has no pooler"):
            bare.network.pool(hidden)
    if config is LLAMA:
        tensors = tensors_of(LLAMA, head=False)
        tied = probe.load(write(tmp_path / "tied", LLAMA | {"tie_word_embeddings": True}, tensors))
        expected = np.asarray(hidden[0]) @ tensors["model.embed_tokens.weight"].T
        np.testing.assert_allclose(tied.logits(hidden)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("half", (np.float16, ml_dtypes.bfloat16), ids=lambda dtype: np.dtype(dtype).name)
def test_half_precision_is_read_as_float32(tmp_path, half):
    tensors = {name: array.astype(half) for name, array in tensors_of(SHARED).items()}
    rounded = {name: array.astype("f4") for name, array in tensors.items()}
    expected = probe.load(write(tmp_path / "rounded", SHARED, rounded))
    assert_same_parameters(probe.load(write(tmp_path / "half", SHARED, tensors)), expected)
    tree = flax_tree(tensors)
    assert_same_parameters(probe.load(write_msgpack(tmp_path / "flax", SHARED, tree)), expected)
    assert {value.dtype for value in parameters(expected).values()} == {np.dtype("f4")}


ONES = np.ones(12, "f4")
# What is changed in the tensors of a configuration, where None removes a tensor, and what is said of it.
BROKEN = {
    "missing": (ALBERT, {"pooler.bias": None}, "lacks 'pooler.bias'"),
    "extra": (ALBERT, {"adapter.down": ONES}, "has 'adapter.down', which no part"),
    "misshapen": (ALBERT, {"pooler.weight": np.ones((12, 11), "f4")}, r"shape \(12, 11\) in place of \(12, 12\)"),
    "nan": (ALBERT, {"pooler.bias": np.nan * ONES}, "'pooler.bias' of .* holds NaN"),
    "infinite": (ALBERT, {"pooler.bias": np.inf * ONES}, "'pooler.bias' .* holds NaN or inf"),
    "quantised": (ALBERT, {"pooler.bias": np.ones(12, "i1")}, "'pooler.bias' of .* is of int8"),
    "twice": (ALBERT, {"albert.pooler.bias": ONES}, "'pooler.bias' with and without a prefix"),
    # T5 leaves this tensor out.
    "albert": (SHARED, {"decoder.final_layer_norm.weight": ONES}, "has 'decoder.final_layer_norm.weight'"),
    # The tensor is there under its present name as well.
    "bert": (BERT, {"embeddings.LayerNorm.gamma": ONES}, "'embeddings.LayerNorm.weight'"),
    "gpt2": (GPT2, {"h.2.attn.c_attn.weight": ONES}, r"c_attn.weight'.* has the shape \(12,\) in place of \(12, 36\)"),
    "qwen2": (LLAMA, {"model.layers.0.self_attn.q_norm.weight": ONES}, "has 'layers.0.self_attn.q_norm.weight', which"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_tensor_is_accounted_for(tmp_path, name):
    config, changes, message = BROKEN[name]
    tensors = {name: array for name, array in (tensors_of(config) | changes).items() if array is not None}
    with pytest.raises(ValueError, match=message):
        probe.load(write(tmp_path, config, tensors))


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "model", SHARED, tensors_of(SHARED))


def lie(file):
    """Write a header that claims more numbers than the file has."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["pooler.bias"]["shape"] = [120]
    lying = json.dumps(header).encode()
    file.write_bytes(len(lying).to_bytes(8, "little") + lying + content[8 + size :])


@pytest.mark.parametrize(
    "damage",
    (
        lambda file: file.write_bytes(file.read_bytes()[:-5]),
        lambda file: file.write_bytes(file.read_bytes()[:6]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"version https://git-lfs.github.com/spec/v1"),
        lambda file: file.write_bytes((2**60).to_bytes(8, "little") + file.read_bytes()[8:]),
        lie,
    ),
    ids=("truncated", "no header", "empty", "pointer", "endless header", "lying header"),
)
def test_broken_safetensors(folder, damage):
    damage(folder / "model.safetensors")
    with pytest.raises(ValueError, match="weights must be a whole safetensors file, but .*model.safetensors"):
        probe.load(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    (
        (lambda whole: whole[:-7], "whole msgpack file of Flax"),
        (lambda whole: b"", "whole msgpack file of Flax"),
        (lambda whole: b"\xc1\xff not msgpack", "whole msgpack file of Flax"),
        (lambda whole: b"P", "must be a tree of arrays, but in .* it is int"),
        (lambda whole: b"\x93\x01\x02\x03", "must be a tree of arrays, but in .* it is list"),
        (lambda whole: b"\x80", "must be a tree of arrays, but in .* it is dict"),
        (lambda whole: b"\x81\xa1a\x81\xa1b\xa3abc", "must be a tree of arrays, but in .* 'a.b' is str"),
    ),
    ids=("truncated", "empty", "noise", "number", "list", "no leaves", "a leaf of text"),
)
def test_broken_msgpack(tmp_path, content, message):
    folder = write_msgpack(tmp_path, SHARED, flax_tree(tensors_of(SHARED)))
    file = folder / "flax_model.msgpack"
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(ValueError, match=message):
        probe.load(folder)


def _edit(index, **changes):
    index.write_text(json.dumps({"weight_map": json.loads(index.read_text())["weight_map"] | changes}))


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("damage", "message"),
    (
        (lambda index: (index.parent / SECOND).unlink(), f"the shard .*{SECOND}' is missing"),
        (lambda index: index.write_text("{"), "must have an index with a weight_map"),
        (lambda index: index.write_text('{"weight_map": ["a"]}'), "must have an index with a weight_map"),
        (lambda index: _edit(index, extra=FIRST), f"'extra' is not in .*{FIRST}"),
        (lambda index: _edit(index, **{"pooler.bias": SECOND, "pooler.weight": SECOND}), "'pooler.*' is .* in"),
        (lambda index: _edit(index, extra="../model.safetensors"), "in shards beside their index"),
    ),
    ids=("a shard missing", "no JSON", "no map", "not in the shard", "in another shard", "elsewhere"),
)
def test_broken_index(tmp_path, damage, message):
    folder = write_shards(tmp_path, SHARED, tensors_of(SHARED))
    damage(folder / "model.safetensors.index.json")
    with pytest.raises(ValueError, match=message):
        probe.load(folder)


def test_broken_shards_of_flax(tmp_path):
    folder = write_flax_shards(tmp_path, SHARED, flax_tree(tensors_of(SHARED)))
    shard = folder / "flax_model-00002-of-00002.msgpack"
    shard.write_bytes(shard.read_bytes()[:-7])
    with pytest.raises(ValueError, match="whole msgpack file of Flax, but .*flax_model-00002"):
        probe.load(folder)
    shard.unlink()
    with pytest.raises(ValueError, match="the shard .*flax_model-00002-of-00002.msgpack' is missing"):
        probe.load(folder)


def test_pickles_are_refused(folder):
    shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="only has pytorch_model.bin, a pickle, which runs whatever code"):
        probe.load(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match="none of model.safetensors, flax_model.msgpack and an index"):
        probe.load(folder)


def test_eight_bit_floats_are_named(tmp_path):
    """A whole file of a dtype that NumPy lacks is not damaged, and downloading it again would not help."""
    folder = write(tmp_path, SHARED, tensors_of(SHARED))
    data = (folder / "model.safetensors").read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:length])
    header["pooler.bias"] |= {"dtype": "F8_E4M3", "shape": [48]}  # as many bytes as 12 numbers of float32
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data[length:])
    with pytest.raises(ValueError, match="'pooler.bias' is of 'F8_E4M3', which is not read; save the model anew in"):
        probe.load(folder)


@pytest.mark.parametrize("config", (SHARED, T5), ids=("albert", "t5"))
def test_a_billion_layers_are_refused_before_any_is_made(tmp_path, config):
    """This also holds where all layers share one block, so that the file has all tensors of such a network."""
    many = {"num_hidden_layers" if config is SHARED else "num_layers": 10**9}
    folder = write(tmp_path, config | many, tensors_of(config))
    with pytest.raises(
        ValueError, match="^config must have a num_(hidden_)?layers of at most 1048576, but in '.*config.json'"
    ):
        probe.load(folder)


LARGE = LLAMA | {
    "vocab_size": 8000, "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64,
    "intermediate_size": 2048, "num_hidden_layers": 8, "use_sliding_window": False, "layer_types": None,
    "tie_word_embeddings": True,
}  # fmt: skip
# The small network is loaded first, so that libraries and jax are in memory before memory is measured.
LOADED = """
import sys
import jax
from clusterjax import probe
from tests.fuzz.trial import peak_megabytes
small, large, dtype = sys.argv[1:]
probe.load(small, dtype=dtype)
before = peak_megabytes(reset=True)
model = probe.load(large, dtype=dtype)
grown = peak_megabytes() - before
print(before, 1.024 * grown, sum(array.nbytes for array in probe.tensors(model.network).values()) / 1e6)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkpoint of 126 MB in bfloat16, and a small checkpoint of the same family."""
    drawn = np.random.default_rng(0).normal(scale=0.02, size=10**6).astype(ml_dtypes.bfloat16)
    arrays = {name: np.resize(drawn, shape) for name, shape in llama_shapes(LARGE, head=False).items()}
    base = tmp_path_factory.mktemp("memory")
    return write(base / "small", LLAMA, tensors_of(LLAMA)), write(base / "large", LARGE, arrays)


@pytest.mark.exhaustive  # two processes take several seconds
@pytest.mark.parametrize(("dtype", "megabytes"), (("float32", 251), ("bfloat16", 126)))
def test_the_memory_of_loading_is_that_of_the_weights(large, dtype, megabytes):
    """At its peak a process holds the weights in the given precision and little more."""
    call = [sys.executable, "-c", LOADED, *map(str, large), dtype]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    before, grown, weights = map(float, done.stdout.split())
    if not before:
        pytest.skip("the system does not say what was the most memory of a process")
    assert weights == pytest.approx(megabytes, rel=0.01) and weights < grown < 1.3 * weights
