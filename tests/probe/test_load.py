"""Which folder, which architecture, which precision; the hub without a network; depth and heads."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flax import nnx

from clusterjax import CausalMask, probe
from clusterjax.probe.networks.architectures import sizes_of
from tests.helpers import as_a_user
from tests.probe_cases import ALBERT, IDS, MASK, SHARED, T5, albert_tree, tensors_of, write, write_msgpack


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
    for changed in (probe.without(model, "attention", layer=0), probe.with_mask(model, CausalMask()),
                    probe.deeper(model, 2), probe.randomise(model, jr.key(0))):  # fmt: skip
        assert changed.tokenizer is tokenizer and changed.network is not model.network


@pytest.mark.parametrize(
    ("fields", "message"),
    (
        ({"model_type": "electra"}, "architecture among albert, t5, mt5, .* is of 'electra'"),
        ({"model_type": "umt5"}, "is of 'umt5'"),
        ({"model_type": None}, "is of None"),
        ({"hidden_act": "mish"}, "activation among gelu, .*, swish, but in '.*config.json' it is 'mish'"),
        ({"num_attention_heads": 5}, "num_attention_heads that divides .* 12, but in '.*config.json' it is 5"),
        ({"num_hidden_layers": 0}, "positive num_layers, but in '.*config.json' it is 0"),
        ({"num_hidden_layers": "many"}, "config"),
        ({"vocab_size": 31}, "'embeddings.word_embeddings.weight' of .* has the shape"),
    ),
    ids=str,
)
def test_configurations_that_do_not_fit(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        probe.load(write(tmp_path, SHARED | fields, tensors_of(SHARED)))


@pytest.mark.parametrize(
    ("fields", "message"),
    (
        ({"feed_forward_proj": "gated-mish"}, "activation among .*config.json"),
        ({"feed_forward_proj": "a-b-c"}, "config must be one of t5, but .* is refused"),
        ({"relative_attention_num_buckets": 2}, "at least 4 buckets .*config.json"),
        ({"relative_attention_max_distance": 2}, "at least 4 buckets .*config.json"),
    ),
    ids=str,
)
def test_configurations_of_t5_that_do_not_fit(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        probe.load(write(tmp_path, T5 | fields, tensors_of(T5)))


@pytest.mark.parametrize("wrong", ("12", None, float("nan"), float("inf"), True, [12]), ids=str)
@pytest.mark.parametrize("config", (SHARED, T5), ids=("albert", "t5"))
def test_numbers_that_are_none(config, wrong):
    """Whatever the version of transformers lets through, before anything is computed of it."""
    names = {"layer_norm_eps": "eps", "initializer_range": "spread", "num_attention_heads": "num_heads"}
    names |= {"num_hidden_layers": "num_layers", "max_position_embeddings": "max_positions"}
    names |= {"relative_attention_num_buckets": "num_buckets", "relative_attention_max_distance": "max_distance"}
    names |= {"d_model": "hidden_size", "d_kv": "head_size", "d_ff": "intermediate_size", "layer_norm_epsilon": "eps"}
    names |= {"num_hidden_groups": "num_groups", "inner_group_num": "inner_layers", "initializer_factor": "factor"}
    fields = config | ({"initializer_range": 0.02} if config is SHARED else {"initializer_factor": 1.0})
    whole = fields | {"tie_word_embeddings": True, "dense_act_fn": "gelu_new", "is_gated_act": True}
    assert sizes_of(SimpleNamespace(**whole), Path("config.json")).vocab_size == 30
    for field in [name for name, value in fields.items() if isinstance(value, int | float) and "token" not in name]:
        name = names.get(field, field)
        words = f"config must have a positive {name}, but in 'config.json' it is {re.escape(repr(wrong))}; mend it"
        with pytest.raises(ValueError, match=words):
            sizes_of(SimpleNamespace(**(whole | {field: wrong})), Path("config.json"))


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
    """A configuration may name a file of Python; nobody imports it."""
    config = SHARED | {"auto_map": {"AutoConfig": "evil.Config"}, "tokenizer_class": "Evil"}
    folder = write(tmp_path, config, tensors_of(SHARED))
    (folder / "evil.py").write_text("raise SystemExit('was run')")
    assert probe.load(folder).num_layers == 4


def test_precision(folders):
    """float32 unless asked for; float64 only where JAX has it."""
    assert probe.trace(probe.load(folders["shared"]), IDS, MASK).hidden.dtype == jnp.float32
    with pytest.raises(ValueError, match="dtype must be float32 or float64, but it is float16"):
        probe.load(folders["shared"], dtype=jnp.float16)
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
    """What is in the cache is found, whatever the network; what is not is an error that says both."""
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
    """The errors of a proxy are plain Exceptions, of no kind that the library of the hub knows."""

    class ProxyError(Exception):
        pass

    def snapshot_download(*args, **options):
        raise ProxyError("403 Forbidden")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ValueError, match="no network, nothing in the cache, or no such id .*403 .* with a network"):
        probe.load("somebody/tiny-albert")


def test_an_id_that_only_has_a_pickle(tmp_path, monkeypatch):
    """Its pickle is not fetched; the message is of the id, and says why."""
    (tmp_path / "config.json").write_text(json.dumps(SHARED))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **options: str(tmp_path))
    message = "'some/pickle' has neither; a pickle, such as pytorch_model.bin, is never read, because .* runs whatever"
    with pytest.raises(ValueError, match=f"model.safetensors or flax_model.msgpack, but {message}") as caught:
        probe.load("some/pickle")
    assert str(tmp_path) not in str(caught.value)


def test_what_is_asked_of_the_hub(folders, tmp_path, monkeypatch):
    """Never a pickle, nothing in folders, and Flax's file only if there are no safetensors."""
    flax = write_msgpack(tmp_path, SHARED, albert_tree(SHARED, tensors_of(SHARED)))
    for folder, patterns in ((folders["shared"], ["*.safetensors"]), (flax, ["*.safetensors", "flax_model*.msgpack"])):
        asked = []

        def snapshot_download(name, *, allow_patterns, ignore_patterns, asked=asked, folder=folder):
            asked.append(allow_patterns[-1])
            assert ignore_patterns == ["*/*"] and not any("bin" in pattern for pattern in allow_patterns)
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert probe.load("albert-tiny").name == "albert-tiny"
        assert asked == patterns


@pytest.mark.parametrize("depth", (0, -1, 2.0, True, "3"))
def test_depths_that_are_none(folders, depth):
    for name in ("shared", "t5"):
        with as_a_user(), pytest.raises(ValueError, match="depth must be an integer from 1 to 1048576"):
            probe.load(folders[name], depth=depth)


def test_albert_deeper_is_its_shared_layer_further(folders, tmp_path):
    """Depth 6 of a network of 4 layers is the network whose configuration says 6, which is how they were published."""
    deep = probe.load(folders["shared"], depth=6)
    other = probe.load(write(tmp_path, SHARED | {"num_hidden_layers": 6}, tensors_of(SHARED)))
    found = probe.trace(deep, IDS, MASK)
    assert found.hidden.shape == (3, 7, 8, 12) and found.attention.shape == (3, 6, 3, 8, 8)
    np.testing.assert_array_equal(found.hidden, probe.trace(other, IDS, MASK).hidden)
    shallow = probe.trace(probe.load(folders["shared"]), IDS, MASK)
    np.testing.assert_array_equal(found.hidden[:, :5], shallow.hidden)
    np.testing.assert_array_equal(found.attention[:, :4], shallow.attention)


def test_groups_are_repeated_from_the_first(folders):
    """So that the layers of the trained depth stay what they were: groups 0, 0, 1, 1, then 0, 0 again."""
    assert probe.load(folders["albert"]).network.order() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert probe.load(folders["albert"], depth=6).network.order() == [0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1]
    assert probe.load(folders["albert"], depth=3).network.order() == [0, 1, 0, 1, 2, 3]


def test_t5_deeper_is_its_stack_again(folders, tmp_path):
    """Depth 5 of three blocks equals five blocks of which the last two are copies of the first two."""
    tensors = tensors_of(T5)
    for i in (0, 1):
        copies = {name: array for name, array in tensors.items() if name.startswith(f"encoder.block.{i}.")}
        copies = {name.replace(f"block.{i}.", f"block.{i + 3}."): array for name, array in copies.items()}
        tensors |= {name: array for name, array in copies.items() if "relative" not in name}
    copied = probe.load(write(tmp_path, T5 | {"num_layers": 5}, tensors))
    with pytest.warns(UserWarning, match="trained with 3 blocks and is deepened to 5 by applying them again"):
        deep = probe.load(folders["t5"], depth=5)
    found, expected = probe.trace(deep, IDS, MASK), probe.trace(copied, IDS, MASK)
    np.testing.assert_array_equal(found.hidden, expected.hidden)
    np.testing.assert_array_equal(found.attention, expected.attention)


def equations(jaxpr):
    """How many equations a jaxpr has, those inside its scans counted once."""
    inner = [value for eqn in jaxpr.eqns for value in eqn.params.values() if hasattr(value, "eqns")]
    closed = [value.jaxpr for eqn in jaxpr.eqns for value in eqn.params.values() if hasattr(value, "jaxpr")]
    return len(jaxpr.eqns) + sum(map(equations, [*inner, *closed]))


@pytest.mark.filterwarnings("ignore:.* is deepened to")
@pytest.mark.parametrize("name", ("shared", "albert", "t5"))
def test_depth_costs_no_compilation(folders, name):
    """The program is as long at depth 96 as at depth 4: one layer is traced, whatever the depth."""

    def length(depth):
        form, state = nnx.split(probe.load(folders[name], depth=depth).network)
        run = lambda state, ids, mask: nnx.merge(form, state)(ids, mask)
        return equations(jax.make_jaxpr(run)(state, jnp.asarray(IDS), jnp.asarray(MASK)).jaxpr)

    assert length(4) == length(96) > 20


def test_heads_are_never_changed_silently(folders, tmp_path):
    """Another number of heads is given, with a warning; it is what a configuration with that number makes."""
    with pytest.warns(
        UserWarning, match="trained with 3 heads and is cut into 1: this is another network from layer 1"
    ):
        cut = probe.load(folders["shared"], heads=1)
    found, trained = probe.trace(cut, IDS, MASK), probe.trace(probe.load(folders["shared"]), IDS, MASK)
    other = probe.load(write(tmp_path, SHARED | {"num_attention_heads": 1}, tensors_of(SHARED)))
    np.testing.assert_array_equal(found.hidden, probe.trace(other, IDS, MASK).hidden)
    assert found.attention.shape == (3, 4, 1, 8, 8)
    np.testing.assert_array_equal(found.hidden[:, 0], trained.hidden[:, 0])
    assert np.abs(np.asarray(found.hidden[:, 1] - trained.hidden[:, 1])).max() > 1e-2
    assert probe.load(folders["shared"], heads=3).num_heads == 3  # as trained: no warning
    for heads in (5, 0, 2.0, True):
        with as_a_user(), pytest.raises(ValueError, match="heads must divide the hidden size, 12"):
            probe.load(folders["shared"], heads=heads)
    with pytest.raises(ValueError, match="heads must be None for T5"):
        probe.load(folders["t5"], heads=1)


def test_a_folder_needs_no_tokenizer(folders):
    model = probe.load(folders["shared"])
    assert model.tokenizer is None
    with pytest.raises(ValueError, match="the folder of 'shared' has none; pass token ids"):
        probe.encode(model, ["a"])


def test_a_random_network():
    """Without a checkpoint: weights of the published spread, and a derivative of a loss at every parameter."""
    sizes = probe.AlbertSizes(8, 8, 8, 2, 8, 3, max_positions=8, type_vocab_size=8)  # one shape compiles quickest
    network = probe.Albert(sizes, nnx.Rngs(0), head=True, dtype=jnp.float64)
    form, state = nnx.split(network)
    kernels = [np.asarray(v[...]) for path, v in nnx.to_flat_state(state) if path[-1] in ("kernel", "embedding")]
    assert abs(np.std(kernels) / 0.02 - 1) < 0.1 and {kernel.dtype for kernel in kernels} == {np.dtype("f8")}

    def loss(state):
        network = nnx.merge(form, state)
        scores = network.logits(network(jnp.asarray(IDS % 8), jnp.asarray(MASK)))
        return jnp.mean(jnp.where(jnp.asarray(MASK)[:, :, None], scores, 1.0) ** 2)

    for path, slope in nnx.to_flat_state(jax.jit(jax.grad(loss))(state)):
        slope = np.asarray(slope[...])
        assert np.all(np.isfinite(slope)), path
        # A shift of all keys changes no softmax.
        assert np.any(np.abs(slope) > 1e-12) or path[-2:] == ("key", "bias"), path
    assert json.loads(json.dumps(sizes._asdict()))["vocab_size"] == 8  # plain numbers, to keep beside a checkpoint
