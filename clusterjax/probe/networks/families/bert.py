"""BERT (Devlin et al., 1810.04805) and the encoders that follow it: RoBERTa, DistilBERT, ELECTRA, and ALBERT.

RoBERTa: Liu et al. (1907.11692); DistilBERT: Sanh et al. (1910.01108); ELECTRA: Clark et al. (2003.10555); ALBERT,
whose layers share their weights and whose embedding is factorised: Lan et al. (1909.11942).
"""

from typing import Any

from ._family import COMMON, Family, tied


_ENTRIES = COMMON | {"type_vocab_size": "type_vocab_size", "eps": "layer_norm_eps", "activation": "hidden_act"}
_FIXED = {"causal": False, "norm_place": "after", "last_norm": False, "embedding_norm": True, "positions": "learned",
          "head": "masked"}  # fmt: skip
_EMBEDDING = {
    "words": "embeddings.word_embeddings", "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings", "embedding_norm": "embeddings.LayerNorm",
}  # fmt: skip
_IN_BLOCK = {
    "attention.query": "attention.self.query", "attention.key": "attention.self.key",
    "attention.value": "attention.self.value", "attention.output": "attention.output.dense",
    "attention_norms.stream": "attention.output.LayerNorm", "feed_forward.into": "intermediate.dense",
    "feed_forward.out": "output.dense", "feed_forward_norms.stream": "output.LayerNorm",
}  # fmt: skip
# Version 5 of transformers has no relative positions, and would read such a file as if they were absolute.
_REFUSED = {"position_embedding_type": ("absolute", None), "is_decoder": (False,)}
# `position_ids` and `token_type_ids` are buffers of early versions of transformers.
_BUFFERS = r"|embeddings\.(position_ids|token_type_ids)$"


def _read(config: Any, place: str) -> dict[str, Any]:
    return {"tied": tied(config)}


def _read_roberta(config: Any, place: str) -> dict[str, Any]:
    # Positions begin after the position of padding, so that the first rows of the table are not used.
    rows, offset = config.max_position_embeddings, config.pad_token_id + 1
    # The head always has this activation, whatever the activation of the layers is.
    return _read(config, place) | {
        "max_positions": rows - offset, "position_offset": offset, "head_activation": "gelu"
    }  # fmt: skip


def _read_electra(config: Any, place: str) -> dict[str, Any]:
    size = config.embedding_size
    return _read(config, place) | {
        "embedding_size": None if size == config.hidden_size else size, "head_activation": "gelu"
    }  # fmt: skip


BERT = Family(
    config="BertConfig", entries=_ENTRIES, fixed=_FIXED, read=_read,
    names=_EMBEDDING | {
        "pooler": "pooler.dense", "head.dense": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm", "head.decoder": "cls.predictions.decoder",
        "head": "cls.predictions",
    },
    block="encoder.layer.{i}", in_block=lambda sizes: _IN_BLOCK, prefix="bert.", refused=_REFUSED,
    left_out=r"(cls\.seq_relationship|classifier|qa_outputs)\." + _BUFFERS,
    # TensorFlow's names, which the first files have.
    renamed=((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")),
)  # fmt: skip
ROBERTA = BERT._replace(
    config="RobertaConfig", read=_read_roberta, prefix="roberta.", left_out=r"(classifier|qa_outputs)\." + _BUFFERS,
    names=_EMBEDDING | {
        "pooler": "pooler.dense", "head.dense": "lm_head.dense", "head.norm": "lm_head.layer_norm",
        "head.decoder": "lm_head.decoder", "head": "lm_head",
    },
    refused=_REFUSED | {"add_cross_attention": (False,)},
)  # fmt: skip
ELECTRA = BERT._replace(
    config="ElectraConfig", read=_read_electra, prefix="electra.",
    left_out=r"(discriminator_predictions|classifier|qa_outputs|sequence_summary)\." + _BUFFERS,
    names=_EMBEDDING | {
        "projection": "embeddings_project", "head.dense": "generator_predictions.dense",
        "head.norm": "generator_predictions.LayerNorm", "head.decoder": "generator_lm_head",
        "head": "generator_lm_head",
    },
)  # fmt: skip
DISTILBERT = Family(
    config="DistilBertConfig",
    entries=COMMON | {
        "hidden_size": "dim", "num_heads": "n_heads", "intermediate_size": "hidden_dim", "num_layers": "n_layers",
        "activation": "activation",
    },
    fixed=_FIXED | {"eps": 1e-12}, read=_read, prefix="distilbert.",
    names=_EMBEDDING | {
        "head.dense": "vocab_transform", "head.norm": "vocab_layer_norm", "head.decoder": "vocab_projector",
        "head": "vocab_projector",
    },
    block="transformer.layer.{i}",
    in_block=lambda sizes: {
        "attention.query": "attention.q_lin", "attention.key": "attention.k_lin", "attention.value": "attention.v_lin",
        "attention.output": "attention.out_lin", "attention_norms.stream": "sa_layer_norm",
        "feed_forward.into": "ffn.lin1", "feed_forward.out": "ffn.lin2",
        "feed_forward_norms.stream": "output_layer_norm",
    },
    left_out=r"(pre_classifier|classifier|qa_outputs)\." + _BUFFERS,
)  # fmt: skip
ALBERT = Family(
    config="AlbertConfig",
    entries=_ENTRIES | {
        "embedding_size": "embedding_size", "num_groups": "num_hidden_groups", "inner_layers": "inner_group_num"
    },
    fixed=_FIXED, read=_read, prefix="albert.",
    names=_EMBEDDING | {
        "projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler", "head.dense": "predictions.dense",
        "head.norm": "predictions.LayerNorm", "head.decoder": "predictions.decoder", "head": "predictions",
    },
    block="encoder.albert_layer_groups.{group}.albert_layers.{inner}",
    in_block=lambda sizes: {
        "attention.query": "attention.query", "attention.key": "attention.key", "attention.value": "attention.value",
        "attention.output": "attention.dense", "attention_norms.stream": "attention.LayerNorm",
        "feed_forward.into": "ffn", "feed_forward.out": "ffn_output",
        "feed_forward_norms.stream": "full_layer_layer_norm",
    },
    left_out=r"(sop_classifier|classifier|qa_outputs)\." + _BUFFERS,
    # Version 4 of transformers could build ALBERT with relative positions; no published checkpoint has them.
    refused={"position_embedding_type": ("absolute", None)},
)  # fmt: skip
