"""What is saved comes back bit for bit, whatever it is made of; what is broken or of another kind is refused."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import pytest

import clusterjax as cjx
from clusterjax import transformer
from tests.helpers import as_a_user, assert_same
from tests.transformer_cases import X, attention_of, block_of, in_dtype


def model_of(**options):
    return transformer.LanguageModel.random(jr.key(0), 11, 8, 2, 16, 2, **({"positions": 6} | options))


MODULES = {
    "language model": lambda: model_of(),
    "mixed precision": lambda: model_of(dtype=jnp.float32, stream_dtype=jnp.bfloat16, tied=False),
    "half": lambda: in_dtype(model_of(), jnp.bfloat16),
    "sinusoids": lambda: model_of(positions=transformer.SinusoidalPositions(8), residual=transformer.PostNorm()),
    "relative, shared": lambda: transformer.Transformer(block_of("post", "causal", "gelu", True), 3),
    "rotary": lambda: transformer.Transformer.of([block_of("pre", relative="rotary", seed=k) for k in (1, 9)]),
    "lstm": lambda: transformer.LSTMLanguageModel.random(jr.key(0), 11, 8, 5),
    "lstm, its own head": lambda: transformer.LSTMLanguageModel.random(jr.key(0), 11, 8, 5, tied=False),
    "none": lambda: block_of("none", "window"),
    "graph": lambda: transformer.MultiHeadAttention(
        *(getattr(attention_of(), name) for name in ("query", "key", "value", "output")),
        mask=cjx.MatrixMask(jnp.eye(6, dtype=bool)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_module_comes_back_bit_for_bit(name, tmp_path):
    module = MODULES[name]()
    transformer.save(module, tmp_path / "model", note={"step": 3})
    found = transformer.load(tmp_path / "model", like=module)
    assert jtu.tree_structure(found) == jtu.tree_structure(module)
    assert eqx.filter(found, eqx.is_array, inverse=True) == eqx.filter(module, eqx.is_array, inverse=True)
    arrays = (jtu.tree_leaves(eqx.filter(one, eqx.is_array)) for one in (found, module))
    for one, other in zip(*arrays, strict=True):
        assert one.dtype == other.dtype
        assert_same(one.astype(jnp.float64), other.astype(jnp.float64))
    reads = isinstance(module, transformer.LanguageModel | transformer.LSTMLanguageModel)
    argument = jnp.array([1, 2, 3]) if reads else X
    assert_same(eqx.filter_jit(found)(argument), eqx.filter_jit(module)(argument))
    assert transformer.load_further(tmp_path / "model") == {"note": {"step": 3}}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: model_of(positions=7), r"whose positions.table is float64 \(7, 8\), but in .* it is float64 \(6, 8\)"),
        (lambda: model_of(tied=False), r"whose head.unembedding is float64 \(11, 8\), but in .* it is None"),
        (lambda: model_of(causal=False), "whose stack.blocks.attention.mask is FullMask, but in .* it is CausalMask"),
        (lambda: model_of(activation=jax.nn.relu), "activation is relu, but in .* it is gelu"),
        (lambda: model_of(dtype=jnp.float32), r"whose embedding is float32 \(11, 8\), but in .* it is float64"),
        (lambda: block_of(), "whose module is Block, but in .* it is LanguageModel"),
    ],
)
def test_another_configuration_is_refused_with_both_sides(other, message, tmp_path):
    transformer.save(model_of(), tmp_path)
    with as_a_user(), pytest.raises(ValueError, match=message):
        transformer.load(tmp_path, like=other())


def test_a_second_model_takes_the_place_of_the_first_and_nothing_does_not(tmp_path):
    transformer.save(model_of(), tmp_path)
    transformer.save(block_of("none"), tmp_path)
    assert isinstance(transformer.load(tmp_path), transformer.Block)
    odd = transformer.Block(
        attention_of(), transformer.FeedForward(jnp.ones((8, 3)), jnp.ones((3, 8)), activation=lambda x: x),
        residual=transformer.NoNorm(),
    )  # fmt: skip
    with (
        as_a_user(),
        pytest.raises(
            ValueError, match="module must be made of the parts of this package, but its feed_forward.activation"
        ),
    ):
        transformer.save(odd, tmp_path)
    assert isinstance(transformer.load(tmp_path), transformer.Block)


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ({"format": "other"}, "format must be what save itself writes"),
        ({"version": 2}, "version must be what save itself writes"),
        ({"note": 1j}, "note must be a value of JSON, but it is 1j"),
        ({"note": float}, "note must be a value of JSON, but it is the class float"),
    ],
)
def test_what_json_cannot_keep_is_refused_before_anything_is_written(further, message, tmp_path):
    with as_a_user(), pytest.raises(ValueError, match=message):
        transformer.save(block_of("none"), tmp_path / "model", **further)
    assert not (tmp_path / "model").exists()


def damaged(folder, how):
    transformer.save(block_of("none"), folder)
    config, arrays = folder / "config.json", folder / "model.safetensors"
    record = json.loads(config.read_text())
    if how == "no config":
        config.unlink()
    elif how == "no JSON":
        config.write_text("{")
    elif how == "another format":
        config.write_text(json.dumps(record | {"format": "other"}))
    elif how == "another version":
        config.write_text(json.dumps(record | {"version": 9}))
    elif how == "an unknown module":
        config.write_text(json.dumps(record | {"module": {"module": "Robot", "fields": {}}}))
    elif how == "a field less":
        del record["module"]["fields"]["norms"]
        config.write_text(json.dumps(record))
    elif how == "an array less":
        record["module"]["fields"]["attention"]["fields"]["query"] = None
        config.write_text(json.dumps(record))
    elif how == "arrays cut":
        arrays.write_bytes(arrays.read_bytes()[:-10])
    return folder


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no config", "lacks config.json; save it again"),
        ("no JSON", "config.json' cannot be read"),
        ("another format", "must be one that transformer.save wrote, but .* is of another format"),
        ("another version", "use the clusterjax that wrote it"),
        ("an unknown module", "does not fit its arrays .*Robot"),
        ("a field less", "does not fit its arrays .*'norms' is missing at module.fields"),
        ("an array less", "module.fields.attention.fields.query is null in place of an object"),
        ("arrays cut", "must hold a whole model.safetensors"),
    ],
)
def test_what_is_broken_is_refused(how, message, tmp_path):
    with as_a_user(), pytest.raises(ValueError, match=message):
        transformer.load(damaged(tmp_path, how))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with as_a_user(), pytest.raises(ValueError, match="folder must be one that can be written, but"):
        transformer.save(block_of("none"), tmp_path / "file")
