"""The encoder of T5 and mT5 (Raffel et al., 1910.10683, Section 2.1): unscaled scores with biases of distances."""

from typing import Any

from ..sizes import NetworkSizes
from ._family import Family


def _read(config: Any, place: str) -> dict[str, Any]:
    return {"gated": bool(config.is_gated_act)}


_FIRST, _SECOND = "layer.0.SelfAttention", "layer.1.DenseReluDense"


def _in_block(sizes: NetworkSizes) -> dict[str, str]:
    maps = {"gate": "wi_0", "into": "wi_1", "out": "wo"} if sizes.gated else {"into": "wi", "out": "wo"}
    return {f"feed_forward.{name}": f"{_SECOND}.{theirs}" for name, theirs in maps.items()} | {
        "attention.query": f"{_FIRST}.q", "attention.key": f"{_FIRST}.k", "attention.value": f"{_FIRST}.v",
        "attention.output": f"{_FIRST}.o", "attention_norms.read": "layer.0.layer_norm",
        "feed_forward_norms.read": "layer.1.layer_norm",
    }  # fmt: skip


T5 = Family(
    config="T5Config",
    entries={
        "vocab_size": "vocab_size", "hidden_size": "d_model", "num_heads": "num_heads", "head_size": "d_kv",
        "intermediate_size": "d_ff", "num_layers": "num_layers", "activation": "dense_act_fn",
        "num_buckets": "relative_attention_num_buckets", "max_distance": "relative_attention_max_distance",
        "eps": "layer_norm_epsilon", "factor": "initializer_factor",
    },
    fixed={
        "causal": False, "norm": "rms", "scale": 1.0, "attention_bias": False, "output_bias": False, "bias_in": False,
        "bias_out": False, "head": "none", "spread": None,
    },
    read=_read, prefix="transformer.", block="encoder.block.{i}", in_block=_in_block,
    names={
        "words": "shared", "relative": f"encoder.block.0.{_FIRST}.relative_attention_bias",
        "norm": "encoder.final_layer_norm",
    },
    left_out=r"(decoder|lm_head|classifier|classification_head|qa_outputs)\.",
    copies={"encoder.embed_tokens.weight": "shared.weight"},
)  # fmt: skip
MT5 = T5._replace(config="MT5Config")
