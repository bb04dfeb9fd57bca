"""ModernBERT (Warner et al., 2412.13663): an encoder with rotary positions, windows in most layers and gates."""

from typing import Any

from ._family import COMMON, QKV, Family, rotary, sliding, tied, unfit


def _read(config: Any, place: str) -> dict[str, Any]:
    width, bias = config.local_attention, bool(config.attention_bias)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise unfit("have a positive local_attention", place, f"it is {width!r}", "mend it")
    slides = sliding(config, place)
    if slides is None:  # version 4 of transformers
        slides = tuple(i % config.global_attn_every_n_layers != 0 for i in range(config.num_hidden_layers))
    feed_forward = bool(config.mlp_bias)
    # Half of `local_attention` on either side of a token.
    return rotary(config, place, ("full_attention", "sliding_attention")) | {
        "rotary_kinds": tuple(map(int, slides)), "sliding": slides, "window": width // 2 + 1, "attention_bias": bias,
        "output_bias": bias, "bias_in": feed_forward, "bias_out": feed_forward, "norm_bias": bool(config.norm_bias),
        "head_map_bias": bool(config.classifier_bias), "tied": tied(config),
    }  # fmt: skip


MODERN_BERT = Family(
    config="ModernBertConfig",
    entries=COMMON | {
        "eps": "norm_eps", "activation": "hidden_activation", "head_activation": "classifier_activation"
    },
    # The first attention reads the normed embedding as it is.
    fixed={
        "causal": False, "gated": True, "embedding_norm": True, "first_unnormed": True, "head": "masked",
        "scaled_outputs": True,
    },
    read=_read,
    prefix="model.", block="layers.{i}",
    names={
        "words": "embeddings.tok_embeddings", "embedding_norm": "embeddings.norm", "norm": "final_norm",
        "head.dense": "head.dense", "head.norm": "head.norm", "head.decoder": "decoder", "head": "decoder",
    },
    in_block=lambda sizes: dict.fromkeys(QKV, "attn.Wqkv") | {
        "attention.output": "attn.Wo", "feed_forward.gate": "mlp.Wi", "feed_forward.into": "mlp.Wi",
        "feed_forward.out": "mlp.Wo", "attention_norms.read": "attn_norm", "feed_forward_norms.read": "mlp_norm",
    },
    left_out=r"(classifier|pooler)\.", refused={"decoder_bias": (True,)},
)  # fmt: skip
