"""GGUF files that are broken, forged or of another network are each refused in one sentence, at little cost."""

import re
import struct
import tracemalloc

import numpy as np
import pytest

from clusterjax.probe.networks.gguf import MOST_ENTRIES, opened, read_gguf
from tests.gguf_cases import SMALLEST, gguf, network, patched, tiny_gguf, write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def refused(file, words):
    """Reading the file is refused in one sentence that names the file."""
    with pytest.raises(ValueError, match=words) as caught:
        read_gguf(file)
    text = str(caught.value)
    assert re.fullmatch(rf"file must [^\n]*, but [^\n]*{re.escape(repr(str(file)))}[^\n]*; [^\n]*\.", text), text


def test_files_that_are_none(tmp_path):
    for content in (b"", b"GG", b"lmgg" + bytes(100), b"\x80\x02"):
        (tmp_path / "a.gguf").write_bytes(content)
        refused(tmp_path / "a.gguf", "be a (whole )?GGUF file")
    refused(tmp_path / "nothing.gguf", "No such file")
    refused(tmp_path, "it is a folder")


def test_versions_and_byte_orders(tiny):
    refused(patched(tiny, 4, "<I", 1), "of version 1, and only 2 and 3 are read")
    refused(patched(tiny, 4, ">I", 3), "big-endian, and only little-endian")
    assert read_gguf(patched(tiny, 4, "<I", 2)).config == read_gguf(tiny).config


def test_truncated_anywhere(tiny, tmp_path):
    data = tiny.read_bytes()
    with opened(tiny) as (header, _):
        end = max(place.end for place in header.places.values())
    file = tmp_path / "short.gguf"
    for length in [*range(0, end, 17), end - 1]:
        file.write_bytes(data[:length])
        refused(file, "be a (whole )?GGUF file")
    file.write_bytes(data[:end])  # the padding after the last tensor contains no data
    assert read_gguf(file).arrays.keys() == read_gguf(tiny).arrays.keys()


def place_of(file, name):
    """The place in the file where the bytes after a name begin."""
    text = name.encode()
    return file.read_bytes().index(struct.pack("<Q", len(text)) + text) + 8 + len(text)


def test_headers_that_claim_too_much(tiny):
    """Such a file is refused before the claimed arrays are made."""
    tokens, tensor = place_of(tiny, "tokenizer.ggml.tokens"), place_of(tiny, "token_embd.weight")
    forged = (
        (8, "<Q", (2**40,), f"claims {2**40} tensors"),
        (16, "<Q", (2**63,), "at most 65536 are read"),
        (8, "<Q", (60000,), "ends before its header does|a tensor of"),
        (24, "<Q", (2**62,), "ends before its header does"),
        (tokens + 8, "<Q", (2**60,), f"lists have more than {MOST_ENTRIES} entries"),
        (tokens + 8, "<Q", (10**6,), "ends before its header does"),
        (tokens + 4, "<I", (9,), "is a list of type 9, which is not read"),
        (tokens, "<I", (77,), "is of type 77, which GGUF does not have"),
        (tokens + 16, "<Q", (2**63,), "ends before its header does"),
        (tensor, "<I", (2**31,), "a tensor of 2147483648 axes"),
        (tensor + 4, "<QQ", (2**63, 2**63), "ends before the tensor 'token_embd.weight' does"),
        (tensor + 4, "<QQ", (0, 8), r"a tensor of shape \(8, 0\)"),
        (tensor + 20, "<I", (999,), "'token_embd.weight' is of type 999, which is none of ggml"),
        (tensor + 20, "<I", (4,), "is of type 4, which is none"),
        (tensor + 20, "<I", (8,), "has rows of 4 numbers, and Q8_0 has blocks of 32"),
        (tensor + 24, "<Q", (32,), "'token_embd.weight' is at 32 in place of 0"),
        (tensor + 24, "<Q", (2**64 - 32,), "in place of 0"),
    )
    read_gguf(tiny)
    for place, form, values, words in forged:
        file = patched(tiny, place, form, *values)
        tracemalloc.start()
        try:
            refused(file, words)
            assert tracemalloc.get_traced_memory()[1] < 2**20, words
        finally:
            tracemalloc.stop()


def test_names_that_are_there_twice(tiny, tmp_path):
    data = tiny.read_bytes()
    (tmp_path / "a.gguf").write_bytes(data.replace(b"blk.0.attn_k.weight", b"blk.0.attn_v.weight"))
    refused(tmp_path / "a.gguf", "the tensor 'blk.0.attn_v.weight' is there twice")
    (tmp_path / "a.gguf").write_bytes(data.replace(b"tokenizer.ggml.model", b"llama.context_length"))
    refused(tmp_path / "a.gguf", "'llama.context_length' is there twice")


def test_texts_that_are_no_utf8(tiny, tmp_path):
    (tmp_path / "a.gguf").write_bytes(tiny.read_bytes().replace(b"smollm", b"sm\xffllm"))
    refused(tmp_path / "a.gguf", "is not in UTF-8")


@pytest.mark.parametrize("alignment", (0, 3, 2**20, "32"))
def test_alignments(tmp_path, alignment):
    file = write_gguf(tmp_path / "a.gguf", network(SMALLEST), SMALLEST, settings={"general.some": alignment})
    file.write_bytes(file.read_bytes().replace(struct.pack("<Q", 12) + b"general.some",
                                               struct.pack("<Q", 17) + b"general.alignment"))  # fmt: skip
    refused(file, "general.alignment is no small power of two")


@pytest.mark.parametrize(
    ("settings", "words"),
    (
        ({"llama.block_count": None}, "of llama, 'block_count' is missing"),
        ({"llama.block_count": "two"}, 'block_count is "two" in place of an integer'),
        ({"llama.block_count": 2**31 - 1}, "tensors for each of its 2147483647 layers, but .* has 20 in all"),
        ({"llama.block_count": 1}, "has beside them 'blk.1.attn_k.weight'"),
        ({"llama.block_count": 3}, "lacks 'blk.2.attn_k.weight'"),
        ({"llama.attention.head_count": [4, 4]}, "attention.head_count is a list in place of an integer"),
        ({"llama.attention.head_count": 3}, "heads that divide its width, but .* has 3 of 10 numbers, 2 of keys"),
        ({"llama.attention.head_count_kv": 3}, "heads that divide its width"),
        ({"llama.attention.head_count": 0}, "from 1 to 2147483647"),
        ({"llama.attention.key_length": 7}, "heads that divide its width"),
        ({"llama.attention.value_length": 16}, "heads of one size, 8, but in .* attention.value_length is 16"),
        ({"llama.rope.dimension_count": 4}, "heads of one size, 8, but in .* rope.dimension_count is 4"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon is NaN"),
        ({"llama.rope.freq_base": float("inf")}, "rope.freq_base is Infinity"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type is \"longrope\" in place of 'none' or 'linear'"),
        ({"llama.rope.scaling.attn_factor": 2.0}, "attn_factor is 2.0 in place of 1.0"),
        ({"llama.expert_count": 8}, "expert_count is 8 in place of 0"),
        ({"llama.logit_scale": 0.5}, "logit_scale is 0.5"),
        (
            {"llama.embedding_length": 64},
            r"fit its settings, but in .* has the shape \(24, 32\) in place of \(24, 64\)",
        ),
        ({"llama.vocab_size": 25}, r"'token_embd.weight' has the shape \(24, 32\) in place of \(25, 32\)"),
        ({"tokenizer.ggml.eos_token_id": 24}, "special tokens among its 24 words, but in .* eos is 24"),
        ({"tokenizer.ggml.bos_token_id": [1]}, "bos is a list of 1"),
    ),
    ids=str,
)
def test_settings_that_do_not_fit(tmp_path, settings, words):
    refused(write_gguf(tmp_path / "a.gguf", network(), settings=settings), words)


def test_architectures_that_are_not_read(tmp_path):
    refused(write_gguf(tmp_path / "a.gguf", network(), architecture="gemma2"),
            "an architecture among llama, mistral, qwen2, but .* is of 'gemma2'")  # fmt: skip
    window = {"qwen2.attention.sliding_window": 8}
    file = write_gguf(
        tmp_path / "b.gguf", network(biased=("q_proj", "k_proj", "v_proj")), architecture="qwen2", settings=window
    )
    refused(file, "no sliding window if it is of qwen2")


def test_tensors_that_are_missing_or_too_many(tmp_path):
    refused(write_gguf(tmp_path / "a.gguf", network(), without=("blk.1.ffn_up.weight",)), "lacks 'blk.1.ffn_up.weight'")
    refused(write_gguf(tmp_path / "b.gguf", network(), architecture="qwen2"), "lacks 'blk.0.attn_k.bias'")
    more = network() | {"raw.blk.0.attn_q_norm.weight": np.ones(8, np.float32)}
    refused(write_gguf(tmp_path / "c.gguf", more), "and no others, but .* has beside them 'blk.0.attn_q_norm.weight'")
    factors = network() | {"raw.rope_freqs.weight": np.ones(4, np.float32)}
    refused(write_gguf(tmp_path / "d.gguf", factors), "powers of one base, but .* has factors for them in 'rope_freqs")


@pytest.mark.parametrize("number", (np.nan, np.inf))
@pytest.mark.parametrize("kind", ("F32", "F16"))
def test_numbers_that_are_not_finite(tmp_path, number, kind):
    arrays = network()
    arrays["model.layers.0.mlp.up_proj.weight"][3, 5] = number
    refused(
        write_gguf(tmp_path / "a.gguf", arrays, kind=kind), "finite numbers, but in .* 'blk.0.ffn_up.weight' has others"
    )


def test_kinds_of_numbers_that_gguf_does_not_unpack(tmp_path):
    file = write_gguf(tmp_path / "a.gguf", network(SMALLEST), SMALLEST)
    refused(patched(file, place_of(file, "output_norm.weight") + 12, "<I", int(gguf.GGMLQuantizationType.I32)),
            "'output_norm.weight' is of I32")  # fmt: skip
