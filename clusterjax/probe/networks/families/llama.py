"""Causal networks with RMS norms and rotary positions: Llama, Mistral, Qwen2, Qwen3, Phi-3, OLMo-2, SmolLM3, Gemma.

Llama: Touvron et al. (2302.13971), Section 2.2; Mistral: Jiang et al. (2310.06825); Qwen2: Yang et al. (2407.10671);
Qwen3: Yang et al. (2505.09388); Phi-3: Abdin et al. (2404.14219); OLMo-2, with norms of updates: OLMo et al.
(2501.00656); SmolLM3: the model card of HuggingFaceTB/SmolLM3-3B; Gemma 2 and 3: 2408.00118 and 2503.19786.
"""

from typing import Any

from ._family import COMMON, QKV, Family, head_size, rotary, sliding, unfit


_ENTRIES = COMMON | {"eps": "rms_norm_eps", "num_shared": "num_key_value_heads", "activation": "hidden_act"}
_FIXED = {"norm": "rms", "gated": True, "bias_in": False, "bias_out": False, "output_bias": False,
          "attention_bias": False}  # fmt: skip


def _plain(config: Any, place: str) -> dict[str, Any]:
    """The fields that are read in the same way for all families of this file."""
    return rotary(config, place) | {"head_size": head_size(config, place), "tied": bool(config.tie_word_embeddings)}


def _biases(config: Any) -> dict[str, bool]:
    return {"attention_bias": bool(config.attention_bias), "output_bias": bool(config.attention_bias)}


def _windows(config: Any, place: str, window: Any) -> dict[str, Any]:
    return {"window": window, "sliding": None if window is None else sliding(config, place)}


def _read_llama(config: Any, place: str) -> dict[str, Any]:
    bias = bool(config.mlp_bias)
    return _plain(config, place) | _biases(config) | {"bias_in": bias, "bias_out": bias}


def _read_mistral(config: Any, place: str) -> dict[str, Any]:
    # transformers ignores the layer_types of a Mistral and applies the window in all layers.
    sliding(config, place, ("sliding_attention",) if config.sliding_window is not None else ("full_attention",))
    return _plain(config, place) | {"window": config.sliding_window}


def _read_qwen2(config: Any, place: str) -> dict[str, Any]:
    # Qwen2 has biases of queries, keys and values, and no entry for them.
    return _plain(config, place) | _windows(config, place, config.sliding_window) | {"attention_bias": True}


def _read_qwen3(config: Any, place: str) -> dict[str, Any]:
    return _plain(config, place) | _windows(config, place, config.sliding_window) | _biases(config)


def _read_phi3(config: Any, place: str) -> dict[str, Any]:
    return _plain(config, place) | {"window": config.sliding_window}


def _read_olmo2(config: Any, place: str) -> dict[str, Any]:
    return _plain(config, place) | _biases(config)


def _read_smollm3(config: Any, place: str) -> dict[str, Any]:
    window = config.sliding_window if config.use_sliding_window else None
    rotated = config.no_rope_layers  # 1 for the layers that have rotations, despite its name
    if any(flag not in (0, 1) for flag in rotated):
        raise unfit("have no_rope_layers of 0 and 1", place, f"they are {rotated}", "mend it")
    kinds = tuple(0 if flag else -1 for flag in rotated)
    return _read_llama(config, place) | _windows(config, place, window) | {"rotary_kinds": kinds}


def _read_gemma(config: Any, place: str) -> dict[str, Any]:
    d, scalar = config.hidden_size, config.query_pre_attn_scalar
    real = lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    if not real(d) or not real(scalar):
        field, value = ("query_pre_attn_scalar", scalar) if real(d) else ("hidden_size", d)
        raise unfit(f"have a positive {field}", place, f"it is {value!r}", "mend it")
    return _plain_gemma(config, place) | _biases(config) | {
        "embedding_scale": d**0.5, "scale": scalar**-0.5, "score_cap": config.attn_logit_softcapping,
        "logit_cap": config.final_logit_softcapping,
    }  # fmt: skip


def _plain_gemma(config: Any, place: str) -> dict[str, Any]:
    fields = _windows(config, place, config.sliding_window)
    fields |= {"head_size": head_size(config, place), "tied": bool(config.tie_word_embeddings)}
    if config.model_type == "gemma2":
        return fields | rotary(config, place)
    slides = fields["sliding"] or (False,) * config.num_hidden_layers
    kinds = tuple(int(flag) for flag in slides)
    return fields | rotary(config, place, ("full_attention", "sliding_attention")) | {"rotary_kinds": kinds}


_MAPS = {
    "attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj", "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj", "feed_forward.gate": "mlp.gate_proj", "feed_forward.into": "mlp.up_proj",
    "feed_forward.out": "mlp.down_proj",
}  # fmt: skip
_BEFORE = {"attention_norms.read": "input_layernorm", "feed_forward_norms.read": "post_attention_layernorm"}
_HEAD_NORMS = {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
LLAMA = Family(
    config="LlamaConfig", entries=_ENTRIES, fixed=_FIXED, read=_read_llama, prefix="model.", block="layers.{i}",
    names={"words": "embed_tokens", "norm": "norm", "head.decoder": "lm_head"}, in_block=lambda sizes: _MAPS | _BEFORE,
    # Early versions of transformers stored the rotation frequencies with each layer.
    left_out=r"(score|classifier|qa_outputs)\.|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$",
)  # fmt: skip
MISTRAL = LLAMA._replace(config="MistralConfig", read=_read_mistral)
QWEN2 = LLAMA._replace(config="Qwen2Config", read=_read_qwen2)
QWEN3 = LLAMA._replace(
    config="Qwen3Config",
    read=_read_qwen3,
    fixed=_FIXED | {"head_norm": "head"},
    in_block=lambda sizes: _MAPS | _BEFORE | _HEAD_NORMS,
)
PHI3 = LLAMA._replace(
    config="Phi3Config", read=_read_phi3,
    in_block=lambda sizes: _BEFORE | _MAPS | dict.fromkeys(QKV, "self_attn.qkv_proj") | {
        "feed_forward.gate": "mlp.gate_up_proj", "feed_forward.into": "mlp.gate_up_proj",
    },
)  # fmt: skip
OLMO2 = LLAMA._replace(
    config="Olmo2Config", read=_read_olmo2, fixed=_FIXED | {"head_norm": "whole", "norm_place": "update"},
    in_block=lambda sizes: _MAPS | _HEAD_NORMS | {
        "attention_norms.update": "post_attention_layernorm", "feed_forward_norms.update": "post_feedforward_layernorm",
    },
)  # fmt: skip
SMOLLM3 = LLAMA._replace(config="SmolLM3Config", read=_read_smollm3)
_GEMMA = _MAPS | {
    "attention_norms.read": "input_layernorm", "attention_norms.update": "post_attention_layernorm",
    "feed_forward_norms.read": "pre_feedforward_layernorm", "feed_forward_norms.update": "post_feedforward_layernorm",
}  # fmt: skip
GEMMA2 = LLAMA._replace(
    config="Gemma2Config", read=_read_gemma, entries=_ENTRIES | {"activation": "hidden_activation"},
    in_block=lambda sizes: _GEMMA,
    fixed=_FIXED | {"norm_place": "both", "unit_offset": True},
    refused={"use_bidirectional_attention": (False, None)},
)  # fmt: skip
GEMMA3 = GEMMA2._replace(
    config="Gemma3TextConfig", fixed=GEMMA2.fixed | {"head_norm": "head"}, in_block=lambda sizes: _GEMMA | _HEAD_NORMS
)
