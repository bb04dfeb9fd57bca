"""Every kind of module comes back from its file bit for bit; broken files and other formats are refused."""

import json

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import transformer
from clusterjax._files.arrays import read_arrays
from clusterjax._files.sealed import MARK, MODEL
from clusterjax.transformer._store import save_with
from tests.helpers import as_a_user, assert_same, rewrite_sealed
from tests.transformer_cases import X, attention_of, block_of, in_dtype, language_model


def model_of(**options):
    return language_model(11, 8, 2, 16, 2, **({"positions": 6} | options))


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


call = eqx.filter_jit(lambda module, argument: module(argument))


@pytest.mark.exhaustive_cases("half", "mixed precision")
@pytest.mark.parametrize("name", MODULES)
def test_a_module_comes_back_bit_for_bit(name, tmp_path):
    module = MODULES[name]()
    transformer.save(module, tmp_path / "model", note={"step": 3})
    found = transformer.load(tmp_path / "model")
    assert eqx.tree_equal(found, module)
    reads = isinstance(module, transformer.LanguageModel | transformer.LSTMLanguageModel)
    argument = jnp.array([1, 2, 3]) if reads else X
    assert_same(call(found, argument), call(module, argument))
    assert transformer.load_further(tmp_path / "model") == {"note": {"step": 3}}


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
        ({"note": 1j}, "note must be a value of JSON, but it is 1j"),
        ({"note": float}, "note must be a value of JSON, but it is the class float"),
    ],
)
def test_what_json_cannot_keep_is_refused_before_anything_is_written(further, message, tmp_path):
    with as_a_user(), pytest.raises(ValueError, match=message):
        transformer.save(block_of("none"), tmp_path / "model", **further)
    assert not (tmp_path / "model").exists()


def test_what_is_broken_is_refused(tmp_path):
    transformer.save(block_of("none"), tmp_path)
    path = tmp_path / MODEL
    whole = path.read_bytes()

    def refused(words):
        with as_a_user(), pytest.raises(ValueError, match=words):
            transformer.load(tmp_path)
        path.write_bytes(whole)

    path.unlink()
    refused("folder must be a model of this library, but .* cannot be read .*; save it again")
    path.write_bytes(whole[:-10])
    refused("cannot be read")
    rewrite_sealed(path, format="other")
    refused("model.safetensors is not; save it again")
    rewrite_sealed(path, version=9)
    refused("is of version 9; read it with the clusterjax that wrote it")
    module = json.loads(read_arrays(whole).metadata[MARK])["module"]
    rewrite_sealed(path, module={"module": "Robot", "fields": {}})
    refused("Robot")
    rewrite_sealed(path, module=module | {"fields": {k: v for k, v in module["fields"].items() if k != "norms"}})
    refused("'norms' is missing at module.fields")
    rewrite_sealed(path, read_arrays(whole).arrays | {"more": np.zeros(1)})
    refused("holds 'more' too")
    rewrite_sealed(path, {})
    refused("does not fit its arrays .*is missing")


def test_a_tokenizer_is_in_the_model_or_beside_it(tmp_path):
    text = transformer.load_tokenizer().to_str()
    transformer.save(model_of(), tmp_path)
    with pytest.raises(ValueError, match="folder must be a file that can be read, but .*tokenizer.json'"):
        transformer.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer.json' is broken .*; name the folder of a language model"):
        transformer.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(text)
    assert transformer.load_tokenizer(tmp_path).to_str() == text
    save_with(model_of(), tmp_path, {}, text)
    (tmp_path / "tokenizer.json").unlink()
    assert transformer.load_tokenizer(tmp_path).to_str() == text


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with as_a_user(), pytest.raises(ValueError, match="folder must be a model that can be written, but"):
        transformer.save(block_of("none"), tmp_path / "file")
