"""Networks that read images: ViT (Dosovitskiy et al., 2010.11929) and DINOv2 (Oquab et al., 2304.07193)."""

from typing import Any

from ..sizes import NetworkSizes, Patches
from ._family import COMMON, Family, unfit


def _patches(config: Any, place: str) -> Patches:
    sizes = config.image_size, config.patch_size, config.num_channels
    wrong = [value for value in sizes if not isinstance(value, int) or isinstance(value, bool) or value < 1]
    if wrong or sizes[0] % sizes[1]:
        rule = "have a positive num_channels, and an image_size that is a multiple of the patch_size"
        raise unfit(rule, place, f"they are {sizes[2]!r}, {sizes[0]!r} and {sizes[1]!r}", "mend it")
    return Patches(*sizes)


def _read(config: Any, place: str) -> dict[str, Any]:
    patches = _patches(config, place)
    return {"patches": patches, "max_positions": patches.num_tokens, "attention_bias": bool(config.qkv_bias)}


def _read_dino(config: Any, place: str) -> dict[str, Any]:
    d, ratio = config.hidden_size, config.mlp_ratio
    wide = d * ratio if isinstance(d, int) and isinstance(ratio, int) else d
    if config.use_swiglu_ffn and isinstance(wide, int):
        wide = (int(wide * 2 / 3) + 7) // 8 * 8
    gated = {"gated": True, "activation": "silu"} if config.use_swiglu_ffn else {}
    return _read(config, place) | {"intermediate_size": wide} | gated


_FIXED = {"causal": False, "head": "none", "vocab_size": 0}
_ENTRIES = {name: entry for name, entry in COMMON.items() if name not in ("vocab_size", "max_positions")} | {
    "eps": "layer_norm_eps", "activation": "hidden_act"
}  # fmt: skip
_NAMES = {
    "patches.class_token": "embeddings.cls_token", "patches.positions": "embeddings.position_embeddings",
    "patches": "embeddings.patch_embeddings.projection", "norm": "layernorm", "pooler": "pooler.dense",
}  # fmt: skip
_MAPS = {
    "attention.query": "attention.attention.query", "attention.key": "attention.attention.key",
    "attention.value": "attention.attention.value", "attention.output": "attention.output.dense",
}  # fmt: skip


def _in_block(sizes: NetworkSizes) -> dict[str, str]:
    maps = {"gate": "weights_in", "into": "weights_in", "out": "weights_out"} if sizes.gated else {}
    maps = maps or {"into": "fc1", "out": "fc2"}
    return _MAPS | {f"feed_forward.{name}": f"mlp.{theirs}" for name, theirs in maps.items()} | {
        "attention_norms.read": "norm1", "feed_forward_norms.read": "norm2",
        "attention_norms.scale": "layer_scale1.lambda1", "feed_forward_norms.scale": "layer_scale2.lambda1",
    }  # fmt: skip


VIT = Family(
    config="ViTConfig", entries=_ENTRIES, fixed=_FIXED, read=_read, names=_NAMES, prefix="vit.",
    block="encoder.layer.{i}", left_out=r"classifier\.", refused={"pooler_act": ("tanh",)},
    in_block=lambda sizes: _MAPS | {
        "attention_norms.read": "layernorm_before", "feed_forward_norms.read": "layernorm_after",
        "feed_forward.into": "intermediate.dense", "feed_forward.out": "output.dense",
    },
)  # fmt: skip
DINOV2 = Family(
    config="Dinov2Config", read=_read_dino, names=_NAMES, prefix="dinov2.", block="encoder.layer.{i}",
    entries={name: entry for name, entry in _ENTRIES.items() if name != "intermediate_size"},
    fixed=_FIXED | {"update_scale": True}, in_block=_in_block, left_out=r"(classifier\.|embeddings\.mask_token$)",
)  # fmt: skip
