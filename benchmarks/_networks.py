"""The networks of the probe benchmarks, their texts, and the same weights in the PyTorch of transformers."""

import json
import os
from typing import Any

import jax.random as jr
import numpy as np
from _harness import DATA, say

from clusterjax import probe


PLBERT = DATA / "albert-plbert"
BASE = {
    "model_type": "albert", "vocab_size": 30_000, "embedding_size": 128, "hidden_size": 768, "num_attention_heads": 12,
    "intermediate_size": 3072, "num_hidden_layers": 12, "hidden_act": "gelu_new",
}  # fmt: skip
XLARGE = BASE | {
    "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192, "num_hidden_layers": 24
}  # fmt: skip


def random_model(config: dict[str, Any], depth: int | None = None) -> probe.Model:
    """A network of this configuration with random weights, which are not written anywhere."""
    return probe.from_config(config, jr.key(0), depth=depth, head=False)


def trained_model(depth: int | None = None) -> probe.Model:
    """The trained ALBERT of ../shared/data, of base size; without it random weights of that size."""
    if (PLBERT / "model.safetensors").is_file():
        return probe.load(PLBERT, depth=depth)
    say(f"{PLBERT} is not there: random weights in its place")
    return random_model(BASE, depth)


def full_texts(model: probe.Model, count: int, length: int) -> probe.Encoded:
    """Texts without padding: phonemes, or random ids."""
    sizes = model.network.sizes
    ids = np.random.default_rng(0).integers(1, sizes.vocab_size, (count, length), dtype=np.int32)
    if model.folder == PLBERT:
        symbols = json.loads((PLBERT / "phoneme_vocab.json").read_text("utf-8"))
        lines = (PLBERT / "phonemized_samples.jsonl").read_text("utf-8").splitlines()
        known = [[symbols[s] for s in json.loads(line)["phonemes"] if s in symbols] for line in lines]
        long = [text for text in known if len(text) >= length - 2]
        ids[:] = 0  # the id at both ends of a text
        ids[:, 1:-1] = [text[: length - 2] for text in long[:count]]
    return probe.Encoded(ids, np.ones(ids.shape, bool))


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def twin(model: probe.Model, attention: str, double: bool = False) -> Any:
    """The `AlbertModel` of transformers with the weights and the depth of a model, on as many threads as cores."""
    import torch
    import transformers

    torch.set_num_threads(cores())
    sizes, network = model.network.sizes, model.network
    config = transformers.AlbertConfig(
        vocab_size=sizes.vocab_size, embedding_size=sizes.embedding_size, hidden_size=sizes.hidden_size,
        num_hidden_layers=network.depth, num_hidden_groups=sizes.num_groups, inner_group_num=sizes.inner_layers,
        num_attention_heads=sizes.num_heads, intermediate_size=sizes.intermediate_size, hidden_act=sizes.activation,
        max_position_embeddings=sizes.max_positions, type_vocab_size=sizes.type_vocab_size, layer_norm_eps=sizes.eps,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation=attention,  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    theirs = transformers.AlbertModel(config, add_pooling_layer=network.pooler is not None).eval()
    theirs.load_state_dict({name: torch.tensor(array) for name, array in probe.tensors(network).items()})
    return theirs.double() if double else theirs


def run_twin(theirs: Any, ids: np.ndarray, **wanted: bool) -> Any:
    """The output of the `AlbertModel` for these ids; texts without padding need no mask, which is fastest."""
    import torch

    with torch.inference_mode():
        return theirs(torch.from_numpy(ids.astype(np.int64)), **wanted)
