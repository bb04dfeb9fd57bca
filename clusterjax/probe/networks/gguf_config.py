"""Translation of the settings of a GGUF file into the fields of a `config.json` of transformers.

Invariants: a setting that defines another network than transformers has under the same name is refused, not ignored;
every number is checked against its bounds before anything is allocated.
"""

from pathlib import Path
from typing import Any

from ..._check import shown
from ..._json import Within, misfit
from .gguf_header import Header, Place, wrong


_SIZE = Within(int, 1, 2**31 - 1)
_POSITIVE = Within(float, 1e-30, 1e30)
_REQUIRED = {
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads", "context_length": "max_position_embeddings",
}  # fmt: skip
_SETTINGS = dict.fromkeys(_REQUIRED, _SIZE) | {
    "attention.head_count_kv?": _SIZE, "attention.key_length?": _SIZE, "attention.value_length?": _SIZE,
    "attention.layer_norm_rms_epsilon": _POSITIVE, "attention.sliding_window?": _SIZE, "vocab_size?": _SIZE,
    "rope.dimension_count?": _SIZE, "rope.freq_base?": _POSITIVE, "rope.scale_linear?": _POSITIVE,
    "rope.scaling.type?": ("none", "linear", "yarn"), "rope.scaling.factor?": _POSITIVE,
    "rope.scaling.original_context_length?": _SIZE, "rope.scaling.attn_factor?": 1.0,
    "rope.scaling.yarn_beta_fast?": _POSITIVE, "rope.scaling.yarn_beta_slow?": _POSITIVE,
    # llama.cpp also uses the name llama for networks with other layers, which these settings identify.
    "expert_count?": 0, "attention.causal?": True, "logit_scale?": 1.0, "embedding_scale?": 1.0, "residual_scale?": 1.0,
    "attention.scale?": (), "attention.clamp_kqv?": (), "rope.scaling.yarn_log_multiplier?": (),
}  # fmt: skip


def network_config(header: Header, file: Path) -> dict[str, Any]:
    """The fields of a `config.json` for the network."""
    settings, places = header.settings, header.places
    kind = settings["general.architecture"]
    given = {name.removeprefix(f"{kind}."): value for name, value in settings.items() if name.startswith(f"{kind}.")}
    amiss = misfit(given, _SETTINGS)
    if amiss is not None:
        raise wrong(file, "have the settings of a known network", f"in {{}}, of {kind}, {amiss}")
    config = {theirs: given[ours] for ours, theirs in _REQUIRED.items()}
    width, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    groups, window = given.get("attention.head_count_kv", heads), given.get("attention.sliding_window")
    head = given.get("attention.key_length", width // heads)
    if heads % groups or width % heads or head % 2:
        raise wrong(
            file,
            "have heads that divide its width",
            f"{{}} has {heads} of {head} numbers, {groups} of keys, and a width of {width}",
        )
    for name in ("attention.value_length", "rope.dimension_count"):
        if given.get(name, head) != head:
            raise wrong(file, f"have heads of one size, {head}", f"in {{}} {name} is {given[name]}")
    # The number of layers is checked before a name is created for each layer.
    if layers > len(places):
        raise wrong(file, f"have tensors for each of its {layers} layers", f"{{}} has {len(places)} in all")
    if window is not None and kind == "qwen2":
        raise wrong(file, "have no sliding window if it is of qwen2, which does not say in which layers", "{} has one")
    embedding = places.get("token_embd.weight")
    words = given.get("vocab_size", embedding.shape[0] if embedding is not None else 1)
    # The converter of llama.cpp uses the name llama for mistral too; the two differ only in the window.
    model = "mistral" if window is not None else kind
    config |= {
        "model_type": model,
        "num_key_value_heads": groups,
        "head_dim": head,
        "rms_norm_eps": given["attention.layer_norm_rms_epsilon"],
        "rope_theta": given.get("rope.freq_base", 10000.0),
        "rope_parameters": _rope(given, places, file),
        "sliding_window": window,
        "vocab_size": words,
        "tie_word_embeddings": "output.weight" not in places,
        "hidden_act": "silu",
        "attention_bias": model == "qwen2" or (model == "llama" and "blk.0.attn_q.bias" in places),
    }
    for name, theirs in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        number = config[theirs] = settings.get(f"tokenizer.ggml.{name}_token_id")
        if number is not None and misfit(number, Within(int, 0, words - 1)) is not None:
            raise wrong(file, f"name special tokens among its {words} words", f"in {{}} {name} is {shown(number)}")
    return config


def _rope(given: dict[str, Any], places: dict[str, Place], file: Path) -> dict[str, Any]:
    """The parameters of the rotation of queries and keys, in the format of transformers."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": given.get("rope.freq_base", 10000.0)}
    if "rope_freqs.weight" in places:
        raise wrong(file, "turn all heads by the powers of one base", "{} has factors for them in 'rope_freqs.weight'")
    kind = given.get("rope.scaling.type", "linear" if "rope.scale_linear" in given else "none")
    factor = given.get("rope.scaling.factor", given.get("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor == 1):
        return rope
    rope |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = given.get(
            "rope.scaling.original_context_length", given["context_length"]
        )
        betas = {name: given.get(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
        rope |= {name: beta for name, beta in betas.items() if beta is not None}
    return rope
