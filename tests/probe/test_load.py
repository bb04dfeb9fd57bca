"""Loading: folder, architecture, precision, configurations, the hub without a network, depth and heads."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from clusterjax import CausalMask, probe
from clusterjax.probe.networks.families import sizes_of
from tests.helpers import as_a_user
from tests.probe_cases import (
    ALBERT,
    BERT,
    CONFIGS,
    GPT2,
    IDS,
    LLAMA,
    MASK,
    SHARED,
    T5,
    assert_refused,
    flax_tree,
    kinds,
    sizes_like,
    tensors_of,
    tiny,
    write,
    write_msgpack,
)


ROPE = LLAMA["rope_parameters"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each of the configurations."""
    base = tmp_path_factory.mktemp("models")
    configs = {"albert": ALBERT, "shared": SHARED, "t5": T5}
    return {name: write(base / name, config, tensors_of(config)) for name, config in configs.items()}


def test_what_a_model_knows(folders):
    model = probe.load(str(folders["albert"]))
    assert (model.name, model.folder, model.left_out) == ("albert", folders["albert"], ())
    assert (model.num_layers, model.num_heads, model.max_positions) == (8, 3, 16)
    assert model.config.model_type == "albert" and model.config.hidden_size == 12
    assert probe.load(folders["t5"]).max_positions is None


def test_a_changed_network_keeps_the_tokenizer_that_was_read():
    model = probe.load()
    assert "tokenizer" not in vars(probe.without(model, "attention", layer=0))
    tokenizer = model.tokenizer
    for changed in (probe.with_mask(model, CausalMask()), probe.deeper(model, 2)):
        assert changed.tokenizer is tokenizer and changed.network is not model.network


# Each case has a configuration of a family, the fields that are changed in it, and the message.
MISFITS = (
    (SHARED, {"model_type": "xlnet"}, "architecture among albert, bert, .* is of 'xlnet'"),
    (SHARED, {"model_type": None}, "is of None"),
    (SHARED, {"hidden_act": "mish"}, "one of gelu, .*, swish as hidden_act, but in '.*config.json' it is 'mish'"),
    (SHARED, {"num_attention_heads": 5}, "num_attention_heads that divides .* 12, but in '.*config.json' it is 5"),
    (SHARED, {"num_hidden_layers": 0}, "positive num_hidden_layers, but in '.*config.json' it is 0"),
    (SHARED, {"num_hidden_layers": "many"}, "config"),
    (SHARED, {"vocab_size": 31}, "'embeddings.word_embeddings.weight' of .* has the shape"),
    (T5, {"feed_forward_proj": "gated-mish"}, "one of gelu, .* as dense_act_fn, .*config.json"),
    (T5, {"feed_forward_proj": "a-b-c"}, "config must be one of t5, but .* is refused"),
    (T5, {"relative_attention_num_buckets": 2}, "at least 4 buckets .*config.json"),
    (T5, {"relative_attention_max_distance": 2}, "at least 4 buckets .*config.json"),
    (BERT, {"num_attention_heads": 5}, "num_attention_heads that divides the hidden size, 12, .* it is 5"),
    (BERT, {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; name another"),
    (BERT, {"is_decoder": True}, "represented here, but in '.*config.json' is_decoder is true; name another"),
    (BERT, {"num_hidden_layers": 4}, "lacks 'encoder.layer.3"),
    (GPT2, {"n_head": 5}, "n_head that divides the hidden size, 12, but in '.*config.json' it is 5"),
    (GPT2, {"add_cross_attention": True}, "add_cross_attention is true; name another checkpoint"),
    (GPT2, {"n_inner": 20}, "'h.0.mlp.c_fc.*' of .* has the shape"),
    (LLAMA, {"num_attention_heads": 5, "head_dim": None}, "divides .* 12, or a head_dim, .* 5;"),
    (LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads that divides .* 4, but in '.*config.json' it is 3"),
    (LLAMA, {"head_dim": 3}, "heads of an even size, or .*, but in '.*config.json' it is 3; mend it"),
    (LLAMA, {"sliding_window": 0}, "positive window, but in '.*config.json' it is 0"),
    (
        LLAMA,
        {"rope_parameters": ROPE | {"rope_type": "longrope"}},
        "config must be one of qwen2, .*longrope|among default, linear, dynamic",
    ),
    (LLAMA, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": -1.0}}, "positive factor, .* -1"),
    (LLAMA, {"rope_parameters": ROPE | {"low_freq_factor": 4.0}}, "low_freq_factor below the high_freq_factor, 4.0"),
    # In the next two cases transformers 5.17 raises the second message.
    (
        LLAMA,
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        "has full_attention|be one of qwen2",
    ),
    (LLAMA, {"layer_types": ["full_attention"]}, "(have a layer_type for each of 3 layers|be one of qwen2)"),
    (
        LLAMA,
        {"layer_types": ["full_attention", "chunked_attention", "full_attention"]},
        "layer_types among full_attention, sliding_attention, but in '.*config.json' one is 'chunked_attention'",
    ),
    (LLAMA, {"num_hidden_layers": 2, "layer_types": None}, "has 'layers.2.input_layernorm.weight' and 11 more"),
    # transformers suggests another class for this case, and would use windows in all layers.
    (LLAMA, {"model_type": "mistral"}, "layer_types among sliding_attention, but .* one is 'full_attention'"),
)


@pytest.mark.parametrize(("config", "fields", "message"), MISFITS, ids=range(len(MISFITS)))
def test_configurations_that_do_not_fit(tmp_path, config, fields, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        probe.load(write(tmp_path, config | fields, tensors_of(config)))


# Fields that transformers adds to these configurations.
ADDED = {
    "albert": {"initializer_range": 0.02}, "bert": {"initializer_range": 0.02},
    "t5": {"initializer_factor": 1.0, "dense_act_fn": "gelu_new", "is_gated_act": True},
    "gpt2": {"initializer_range": 0.02, "n_inner": 48, "scale_attn_weights": True,
             "scale_attn_by_inverse_layer_idx": False},
}  # fmt: skip


@pytest.mark.parametrize("wrong", ("12", None, float("nan"), float("inf"), True, [12]), ids=str)
@pytest.mark.parametrize("family", ADDED)
def test_numbers_that_are_none(family, wrong):
    """Such values are refused before any computation, in every version of transformers."""
    whole = {"albert": SHARED, "bert": BERT, "t5": T5, "gpt2": GPT2}[family] | ADDED[family]
    whole |= {"tie_word_embeddings": True}
    assert sizes_of(SimpleNamespace(**whole), Path("config.json")).vocab_size == 30
    for field, value in whole.items():
        absent = wrong is None and field in ("n_inner", "initializer_range")  # None means that the field is not given
        if absent or isinstance(value, bool | str) or "token" in field:
            continue
        words = rf"config must have a positive \w+, but in 'config.json' it is {re.escape(repr(wrong))}; mend it"
        with pytest.raises(ValueError, match=words):
            sizes_of(SimpleNamespace(**(whole | {field: wrong})), Path("config.json"))


def test_sizes_that_do_not_fit():
    make = lambda **options: lambda: sizes_like("llama", **(dict(
        vocab_size=8, hidden_size=4, num_heads=2, num_shared=1, head_size=2, intermediate_size=4, num_layers=2
    ) | options))  # fmt: skip
    make(window=3, sliding=(False, True))()
    cases = (
        ({"num_heads": 3, "num_shared": 2}, "num_shared must divide num_heads, 3, but it is 2"),
        ({"head_size": 3}, "head_size must be even, but it is 3"),
        ({"head_size": None, "hidden_size": 5}, "num_heads must divide the hidden size, 5, but it is 2"),
        ({"rotary_size": 1}, "rotary_size must be even, but it is 1"),
        ({"sliding": (True,)}, "sliding must have an entry for each of 2 layers, but it is 1"),
        ({"sliding": True}, "sliding must be a tuple of bool, but it is True"),
        ({"rotary_kinds": (0,)}, "rotary_kinds must have an entry for each of 2 layers, but it is 1"),
        ({"rotary": (probe.Rotary(scaling="llama3", low=4.0),)}, "rotary must have a low below the high, 4.0"),
        ({"window": 0}, "window must be a positive integer, but it is 0"),
        ({"norm": "batch"}, "norm must be one of layer, rms, but it is 'batch'"),
        ({"num_layers": 2**21}, "num_layers must be at most 1048576"),
        ({"gated": 1}, "gated must be True or False, but it is 1"),
        ({"eps": "small"}, "eps must be a positive number, but it is 'small'"),
    )
    assert_refused(*((make(**options), message) for options, message in cases))


@pytest.mark.parametrize("content", ("", "[1, 2]", '{"model_type": "albert"'), ids=("empty", "list", "truncated"))
def test_broken_configurations(tmp_path, content):
    folder = write(tmp_path, SHARED, tensors_of(SHARED))
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match="config must be"):
        probe.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="a folder with a config.json"):
        probe.load(folder)


def test_code_of_a_checkpoint_is_never_run(tmp_path):
    """A configuration may name a Python file, which is never imported."""
    config = SHARED | {"auto_map": {"AutoConfig": "evil.Config"}, "tokenizer_class": "Evil"}
    folder = write(tmp_path, config, tensors_of(SHARED))
    (folder / "evil.py").write_text("raise SystemExit('was run')")
    assert probe.load(folder).num_layers == 4


def test_precision(folders):
    """The precision is float32 by default; half precision computes in itself; float64 requires x64 of jax."""
    hidden = probe.trace(probe.load(folders["shared"]), IDS, MASK).hidden
    assert hidden.dtype == jnp.float32
    half = probe.trace(probe.load(folders["shared"], dtype=jnp.bfloat16), IDS, MASK)
    assert half.hidden.dtype == half.attention.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.hidden.astype(jnp.float32), hidden, rtol=0, atol=0.2)
    with pytest.raises(ValueError, match="dtype must be float32, float64, bfloat16 or float16, but it is float8"):
        probe.load(folders["shared"], dtype=jnp.float8_e4m3fn)
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match="set jax.config.update"):
            probe.load(folders["shared"], dtype=jnp.float64)
    finally:
        jax.config.update("jax_enable_x64", True)


def test_paths_that_are_none(folders, tmp_path):
    with pytest.raises(ValueError, match="is another file; name its folder"):
        probe.load(folders["shared"] / "config.json")
    with pytest.raises(ValueError, match="there is no folder"):
        probe.load(tmp_path / "nowhere")


def test_the_hub_without_a_network(folders, tmp_path, monkeypatch):
    """A model in the cache is found without a network; otherwise the error names the possible causes."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="no network, nothing in the cache, or no such id"):
        probe.load("somebody/tiny-albert")
    commit = "0" * 40
    entry = cache / "models--somebody--tiny-albert"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text(commit)
    (entry / "snapshots").mkdir()
    write(entry / "snapshots" / commit, SHARED, tensors_of(SHARED))
    model = probe.load("somebody/tiny-albert")
    assert model.name == "somebody/tiny-albert" and model.num_layers == 4


def test_whatever_fails_on_the_way_to_the_hub(monkeypatch):
    """A proxy raises plain Exceptions, of no class that the library of the hub defines."""

    def snapshot_download(*args, **options):
        raise Exception("403 Forbidden")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ValueError, match="no network, nothing in the cache, or no such id .*403 .* with a network"):
        probe.load("somebody/tiny-albert")


def test_an_id_that_only_has_a_pickle(tmp_path, monkeypatch):
    """The pickle is not fetched; the message names the id and gives the reason."""
    (tmp_path / "config.json").write_text(json.dumps(SHARED))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **options: str(tmp_path))
    message = "'some/pickle' has neither; a pickle, such as pytorch_model.bin, is never read, because .* runs whatever"
    with pytest.raises(ValueError, match=f"model.safetensors or flax_model.msgpack, but {message}") as caught:
        probe.load("some/pickle")
    assert str(tmp_path) not in str(caught.value)


def test_what_is_asked_of_the_hub(folders, tmp_path, monkeypatch):
    """Pickles and files in subfolders are never requested, and the file of Flax only if there are no safetensors."""
    flax = write_msgpack(tmp_path, SHARED, flax_tree(tensors_of(SHARED)))
    for folder, patterns in ((folders["shared"], ["*.safetensors"]), (flax, ["*.safetensors", "flax_model*.msgpack"])):
        asked = []

        def snapshot_download(name, *, allow_patterns, ignore_patterns, asked=asked, folder=folder):
            asked.append(allow_patterns[-1])
            assert ignore_patterns == ["*/*"] and not any("bin" in pattern for pattern in allow_patterns)
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert probe.load("albert-tiny").name == "albert-tiny"
        assert asked == patterns


@pytest.mark.parametrize("depth", (0, -1, 2.0, True, "3", 10**9))
def test_depths_that_are_none(folders, depth):
    for name in ("shared", "t5"):
        with as_a_user(), pytest.raises(ValueError, match="depth must be an integer from 1 to 1048576"):
            probe.load(folders[name], depth=depth)


@pytest.mark.exhaustive_cases("llama")
@pytest.mark.parametrize(
    ("config", "depth", "order"),
    ((ALBERT, 6, [0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1]), (ALBERT, 3, [0, 1, 0, 1, 2, 3]), (BERT, 5, [0, 1, 2, 0, 1]),
     (GPT2, 5, [0, 1, 2, 0, 1]), (LLAMA, 4, [0, 1, 2, 0])),
    ids=("albert deeper", "albert", "bert", "gpt2", "llama"),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.* is deepened to")
def test_layers_are_repeated_from_the_first(tmp_path, config, depth, order):
    """Thus the layers of the trained depth stay unchanged."""
    assert probe.load(write(tmp_path, config, tensors_of(config)), depth=depth).network.order() == order


@pytest.mark.exhaustive
def test_deeper_is_what_a_configuration_of_that_depth_makes(folders, tmp_path):
    """An ALBERT of four layers that is deepened to six equals a configuration with six layers."""
    deep = probe.load(folders["shared"], depth=6)
    other = probe.load(write(tmp_path / "six", SHARED | {"num_hidden_layers": 6}, tensors_of(SHARED)))
    np.testing.assert_array_equal(probe.trace(deep, IDS, MASK).hidden, probe.trace(other, IDS, MASK).hidden)


def test_deeper_is_the_stack_again(folders, tmp_path):
    """A T5 of three blocks with depth 5 equals five blocks of which the last two are copies of the first two."""
    tensors = tensors_of(T5)
    for i in (0, 1):
        copies = {name: array for name, array in tensors.items() if name.startswith(f"encoder.block.{i}.")}
        copies = {name.replace(f"block.{i}.", f"block.{i + 3}."): array for name, array in copies.items()}
        tensors |= {name: array for name, array in copies.items() if "relative" not in name}
    copied = probe.load(write(tmp_path / "five", T5 | {"num_layers": 5}, tensors))
    with pytest.warns(UserWarning, match="trained with 3 blocks and is deepened to 5 by applying them again"):
        deep = probe.load(folders["t5"], depth=5)
    found, expected = probe.trace(deep, IDS, MASK), probe.trace(copied, IDS, MASK)
    np.testing.assert_array_equal(found.hidden, expected.hidden)
    np.testing.assert_array_equal(found.attention, expected.attention)


def equations(jaxpr):
    """The number of equations of a jaxpr, where those inside its scans count once."""
    inner = [value for eqn in jaxpr.eqns for value in eqn.params.values() if hasattr(value, "eqns")]
    closed = [value.jaxpr for eqn in jaxpr.eqns for value in eqn.params.values() if hasattr(value, "jaxpr")]
    return len(jaxpr.eqns) + sum(map(equations, [*inner, *closed]))


@pytest.mark.exhaustive_cases("albert", "t5")
@pytest.mark.filterwarnings("ignore:.* is deepened to")
@pytest.mark.parametrize("name", ("shared", "albert", "t5"))
def test_depth_costs_no_compilation(folders, name):
    """The program has the same length at depth 96 as at depth 4: one layer is traced at any depth."""

    def length(depth):
        form, state = nnx.split(probe.load(folders[name], depth=depth).network)
        run = lambda state, ids, mask: nnx.merge(form, state)(ids, mask)
        return equations(jax.make_jaxpr(run)(state, jnp.asarray(IDS), jnp.asarray(MASK)).jaxpr)

    assert length(4) == length(96) > 20


def test_heads_are_never_changed_silently(folders, tmp_path):
    """Another number of heads causes a warning, and gives the network of a configuration with that number."""
    with pytest.warns(
        UserWarning, match="trained with 3 heads and is cut into 1: this is another network from layer 1"
    ):
        cut = probe.load(folders["shared"], heads=1)
    found = probe.trace(cut, IDS, MASK)
    other = probe.load(write(tmp_path / "one", SHARED | {"num_attention_heads": 1}, tensors_of(SHARED)))
    np.testing.assert_array_equal(found.hidden, probe.trace(other, IDS, MASK).hidden)
    assert found.attention.shape == (3, 4, 1, 8, 8)
    assert probe.load(folders["shared"], heads=3).num_heads == 3  # as trained, without a warning
    wrong = ((5, "divide the hidden size, 12"), (0, "divide"), (2.0, "be an integer"), ([3], "be an integer"))
    for heads, rule in wrong:
        with as_a_user(), pytest.raises(ValueError, match=f"heads must {rule}"):
            probe.load(folders["shared"], heads=heads)
    with pytest.raises(ValueError, match="heads must be None for a network whose 2 heads are made each for its own"):
        probe.load(folders["t5"], heads=1)
    with pytest.raises(ValueError, match="heads must be None for a network whose 4 heads are rotated each by itself"):
        probe.load(write(tmp_path / "llama", LLAMA, tensors_of(LLAMA)), heads=2)


@pytest.mark.parametrize("kind", kinds("gpt2", "bert"))
def test_more_tokens_than_positions(kind):
    """A network with a table of positions refuses them, and tools cut the text with a warning; T5 has no limit."""
    model, ids = tiny(kind), jnp.ones((1, 17), int)
    if kind == "t5":
        assert model.max_positions is None and probe.trace(model, ids).hidden.shape == (1, 4, 17, 12)
        return
    if kind != "llama":
        with as_a_user(), pytest.raises(ValueError, match="token_ids must hold at most 16 tokens a text"):
            model.network(ids)
    with pytest.warns(UserWarning, match="1 of 1 texts are longer than 16 tokens"):
        assert probe.trace(model, ids).hidden.shape[2:] == (16, 12)
    if CONFIGS[kind]["model_type"] not in ("albert", "bert"):
        with pytest.raises(ValueError, match="token_types must be None"):
            probe.trace(model, ids[:, :16], token_types=0 * ids[:, :16])


def test_a_folder_needs_no_tokenizer(folders):
    model = probe.load(folders["shared"])
    assert model.tokenizer is None
    with pytest.raises(ValueError, match="the folder of 'shared' has none; pass probe.Encoded"):
        probe.encode(model, ["a"])
