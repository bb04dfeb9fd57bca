"""Causal networks with layer norms: GPT-2, GPT-NeoX (Pythia), OPT and BLOOM.

GPT-2: Radford et al., *Language models are unsupervised multitask learners* (2019), Section 2.3; GPT-NeoX, whose
feed-forward reads what the attention reads: Black et al. (2204.06745), Section 2.1, and Biderman et al., *Pythia*
(2304.01373); OPT: Zhang et al. (2205.01068); BLOOM, with ALiBi: Le Scao et al. (2211.05100), Section 3.2.
"""

from typing import Any

from ._family import COMMON, QKV, Family, rotary, tied


def _read_gpt2(config: Any, place: str) -> dict[str, Any]:
    d, inner = config.n_embd, config.n_inner
    return {
        # A value that is not an integer is refused later, under the name of the hidden size.
        "intermediate_size": 4 * d if inner is None and isinstance(d, int) else inner,
        "scale": None if config.scale_attn_weights else 1.0,
        "scaled_by_layer": bool(config.scale_attn_by_inverse_layer_idx), "tied": tied(config),
    }  # fmt: skip


def _read_neox(config: Any, place: str) -> dict[str, Any]:
    bias = getattr(config, "attention_bias", True)
    return rotary(config, place) | {
        "parallel": bool(config.use_parallel_residual), "attention_bias": bias, "output_bias": bias,
        "tied": bool(config.tie_word_embeddings),
    }  # fmt: skip


def _read_opt(config: Any, place: str) -> dict[str, Any]:
    before, bias, size = bool(config.do_layer_norm_before), bool(config.enable_bias), config.word_embed_proj_dim
    mapped = size != config.hidden_size
    return {
        "norm_place": "before" if before else "after",
        "last_norm": before and not getattr(config, "_remove_final_layer_norm", False),
        "embedding_size": size if mapped else None, "attention_bias": bias, "output_bias": bias, "bias_in": bias,
        "bias_out": bias, "tied": tied(config),
    }  # fmt: skip


def _read_bloom(config: Any, place: str) -> dict[str, Any]:
    d = config.hidden_size
    return {"intermediate_size": 4 * d if isinstance(d, int) else d, "tied": tied(config)}


_HEAD = {"head.decoder": "lm_head"}
GPT2 = Family(
    config="GPT2Config",
    entries={
        "vocab_size": "vocab_size", "hidden_size": "n_embd", "num_heads": "n_head", "num_layers": "n_layer",
        "intermediate_size": "n_inner", "max_positions": "n_positions", "activation": "activation_function",
        "eps": "layer_norm_epsilon", "spread": "initializer_range",
    },
    fixed={"positions": "learned", "scaled_outputs": True}, read=_read_gpt2, prefix="transformer.",
    names={"words": "wte", "positions": "wpe", "norm": "ln_f"} | _HEAD, block="h.{i}",
    in_block=lambda sizes: dict.fromkeys(QKV, "attn.c_attn") | {
        "attention.output": "attn.c_proj", "feed_forward.into": "mlp.c_fc", "feed_forward.out": "mlp.c_proj",
        "attention_norms.read": "ln_1", "feed_forward_norms.read": "ln_2",
    },
    in_out=True, refused={"add_cross_attention": (False,)},
    # Early versions of transformers stored the causal mask, and the value that replaced masked scores.
    left_out=r"h\.\d+\.attn\.(bias|masked_bias)$|(score|classifier|multiple_choice_head|qa_outputs)\.",
)  # fmt: skip
_FUSED = {
    "attention_norms.read": "input_layernorm", "feed_forward_norms.read": "post_attention_layernorm",
    "feed_forward.into": "mlp.dense_h_to_4h", "feed_forward.out": "mlp.dense_4h_to_h",
}  # fmt: skip
GPT_NEOX = Family(
    config="GPTNeoXConfig", entries=COMMON | {"eps": "layer_norm_eps", "activation": "hidden_act"}, fixed={},
    read=_read_neox, prefix="gpt_neox.",
    names={"words": "embed_in", "norm": "final_layer_norm", "head.decoder": "embed_out"},
    block="layers.{i}", by_head=("attention.query_key_value",),
    in_block=lambda sizes: _FUSED | dict.fromkeys(QKV, "attention.query_key_value") | {
        "attention.output": "attention.dense",
    },
    left_out=r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$|(score|classifier|qa_outputs)\.",
)  # fmt: skip
BLOOM = Family(
    config="BloomConfig",
    entries={
        "vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_heads": "n_head", "num_layers": "n_layer",
        "eps": "layer_norm_epsilon", "spread": "initializer_range",
    },
    fixed={"alibi": True, "embedding_norm": True, "activation": "gelu_new"}, read=_read_bloom, prefix="transformer.",
    names={"words": "word_embeddings", "embedding_norm": "word_embeddings_layernorm", "norm": "ln_f"} | _HEAD,
    block="h.{i}", by_head=("self_attention.query_key_value",),
    in_block=lambda sizes: _FUSED | dict.fromkeys(QKV, "self_attention.query_key_value") | {
        "attention.output": "self_attention.dense",
    },
    left_out=r"(score|classifier|qa_outputs)\.", refused={"apply_residual_connection_post_layernorm": (False,)},
)  # fmt: skip
OPT = Family(
    config="OPTConfig",
    entries=COMMON | {"intermediate_size": "ffn_dim", "activation": "activation_function", "spread": "init_std"},
    # The first two rows of the table of positions are not used.
    fixed={"positions": "learned", "position_offset": 2, "project_first": True, "projection_bias": False},
    read=_read_opt, prefix="model.", block="decoder.layers.{i}",
    names={
        "words": "decoder.embed_tokens", "positions": "decoder.embed_positions", "projection": "decoder.project_in",
        "head.project": "decoder.project_out", "norm": "decoder.final_layer_norm",
    } | _HEAD,
    in_block=lambda sizes: {
        "attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj", "attention.output": "self_attn.out_proj",
        "feed_forward.into": "fc1", "feed_forward.out": "fc2",
        "attention_norms.read": "self_attn_layer_norm", "attention_norms.stream": "self_attn_layer_norm",
        "feed_forward_norms.read": "final_layer_norm", "feed_forward_norms.stream": "final_layer_norm",
    },
    left_out=r"(score|classifier|qa_outputs)\.", refused={"layer_norm_elementwise_affine": (True,)},
)  # fmt: skip
