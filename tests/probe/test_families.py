"""Each family of networks equals the classes of transformers, on tiny random checkpoints with every option."""

import contextlib

import numpy as np
import pytest
import safetensors.numpy

from clusterjax import probe
from clusterjax.probe.networks.families import FAMILIES
from tests.probe_twins import REASON, save_twin


TINY = {
    "vocab_size": 30, "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SHARED = TINY | {"num_key_value_heads": 2, "tie_word_embeddings": False}
OWN = SHARED | {"head_dim": 6}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
IMAGES = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 12, "patch_size": 4,
    "intermediate_size": 20, "num_channels": 2,
}  # fmt: skip
DISTIL = {
    "vocab_size": 30, "dim": 16, "hidden_dim": 20, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 24,
    "pad_token_id": 0,
}  # fmt: skip
OPT = {name: TINY[name] for name in TINY if name != "intermediate_size"} | {"ffn_dim": 20, "word_embed_proj_dim": 32}
BLOOM = {"vocab_size": 30, "hidden_size": 20, "n_layer": 2, "n_head": 5, "bos_token_id": 1, "eos_token_id": 2}
ROPE = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 8}
YARN = {"rope_parameters": ROPE}
# Each case has the class of transformers, the configuration and its options; its name begins with the model type.
# `make test` runs the first case of each family.
CASES = {
    "gpt_neox": ("GPTNeoXForCausalLM", TINY, {}),
    "gpt_neox, in turn, tied": ("GPTNeoXForCausalLM", TINY, {
        "use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True, "hidden_act": "relu",
        "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5, "rope_type": "default"},
    }),
    "gpt_neox, all rotated": ("GPTNeoXModel", TINY, {
        "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 1.0, "rope_type": "default"},
    }),
    "qwen3": ("Qwen3ForCausalLM", OWN, {"attention_bias": True}),
    "qwen3, windows, tied": ("Qwen3ForCausalLM", OWN, MIXED | {
        "use_sliding_window": True, "sliding_window": 3, "tie_word_embeddings": True,
    }),
    "gemma2": ("Gemma2ForCausalLM", OWN, MIXED | {"sliding_window": 3, "query_pre_attn_scalar": 20}),
    "gemma2, no caps": ("Gemma2ForCausalLM", OWN, MIXED | {
        "sliding_window": 3, "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True,
        "tie_word_embeddings": True,
    }),
    "gemma2, small caps": ("Gemma2Model", OWN, MIXED | {"sliding_window": 3, "attn_logit_softcapping": 0.7}),
    "gemma3_text": ("Gemma3ForCausalLM", OWN, MIXED | {"sliding_window": 3, "tie_word_embeddings": True}),
    "gemma3_text, scaled": ("Gemma3ForCausalLM", OWN, MIXED | {
        "sliding_window": 3, "final_logit_softcapping": 2.0, "attn_logit_softcapping": None, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
        },
    }),
    "phi3": ("Phi3ForCausalLM", SHARED, {
        "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5, "rope_type": "default"},
    }),
    "phi3, window, tied": ("Phi3ForCausalLM", SHARED, {"sliding_window": 3, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2ForCausalLM", SHARED, {}),
    "olmo2, biases, tied": ("Olmo2ForCausalLM", SHARED, {"attention_bias": True, "tie_word_embeddings": True}),
    "smollm3": ("SmolLM3ForCausalLM", SHARED, {"no_rope_layers": [1, 0, 1]}),
    "smollm3, windows, biases": ("SmolLM3ForCausalLM", SHARED, MIXED | {
        "no_rope_layers": [0, 1, 1], "use_sliding_window": True, "sliding_window": 3, "attention_bias": True,
        "mlp_bias": True,
    }),
    "opt": ("OPTForCausalLM", OPT, {}),
    "opt, norms after": ("OPTForCausalLM", OPT, {
        "do_layer_norm_before": False, "word_embed_proj_dim": 16, "activation_function": "gelu"
    }),
    "opt, no biases": ("OPTForCausalLM", OPT, {"enable_bias": False, "tie_word_embeddings": False}),
    "opt, a map to the stream": ("OPTForCausalLM", OPT, {"word_embed_proj_dim": 16}),
    "bloom": ("BloomForCausalLM", BLOOM, {}),
    "bloom, eight heads": ("BloomModel", BLOOM, {"n_head": 4, "layer_norm_epsilon": 1e-3}),
    "roberta": ("RobertaForMaskedLM", TINY, {"type_vocab_size": 1, "hidden_act": "relu"}),
    "roberta, pooler": ("RobertaModel", TINY, {"pad_token_id": 1}),
    "roberta, not tied": ("RobertaForMaskedLM", TINY, {"tie_word_embeddings": False}),
    "distilbert": ("DistilBertForMaskedLM", DISTIL, {"activation": "relu"}),
    "distilbert, sines": ("DistilBertModel", DISTIL, {"sinusoidal_pos_embds": True}),
    "electra": ("ElectraForMaskedLM", TINY, {"embedding_size": 8, "hidden_act": "relu"}),
    "electra, one size": ("ElectraForPreTraining", TINY, {"embedding_size": 32}),
    "modernbert": ("ModernBertForMaskedLM", TINY, {"local_attention": 4, "global_attn_every_n_layers": 2}),
    "modernbert, biases": ("ModernBertForMaskedLM", TINY, MIXED | {
        "local_attention": 5, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
        "classifier_activation": "relu", "tie_word_embeddings": False,
    }),
    "vit": ("ViTModel", IMAGES, {}),
    "vit, no biases": ("ViTForImageClassification", IMAGES, {"qkv_bias": False, "hidden_act": "relu"}),
    "dinov2": ("Dinov2Model", IMAGES, {"mlp_ratio": 2}),
    "dinov2, gates": ("Dinov2ForImageClassification", IMAGES, {"use_swiglu_ffn": True, "mlp_ratio": 3}),
    "llama, yarn": ("LlamaForCausalLM", SHARED, YARN),
    "llama, yarn to the entry": ("LlamaForCausalLM", SHARED, {"rope_parameters": ROPE | {
        "truncate": False, "beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.3
    }}),
    "llama, yarn of two scales": ("LlamaForCausalLM", SHARED, {"rope_parameters": ROPE | {
        "mscale": 0.7, "mscale_all_dim": 1.2,
    }}),
    "llama, dynamic": ("LlamaForCausalLM", SHARED, {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0}, "max_position_embeddings": 6,
    }),
}  # fmt: skip
FIRST = list({name.partition(",")[0]: name for name in reversed(CASES)}.values())
IDS = np.random.default_rng(3).integers(3, 30, (3, 9))
MASK = np.arange(9)[None, :] < np.array([9, 6, 2])[:, None]


def outputs(twin, inputs, dtype):
    """Hidden states, attention and word scores of the class of transformers."""
    torch = pytest.importorskip("torch", reason=REASON)
    # The classes for image labels do not return the output of the last norm.
    twin = (twin.base_model if "pixel_values" in inputs else twin).to(dtype)
    given = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    with torch.no_grad():
        out = twin(**given, output_hidden_states=True, output_attentions=True)
    levels = [part.double().numpy() for part in out.hidden_states]
    if hasattr(out, "last_hidden_state"):
        # transformers returns the last level of an image network before its last norm.
        levels[-1] = out.last_hidden_state.double().numpy()
    logits = out.logits.double().numpy() if hasattr(out, "logits") else None
    return levels, np.stack([part.double().numpy() for part in out.attentions], 1), logits


def largest(difference, where):
    return np.abs(np.where(where, difference, 0)).max()


MORE = [pytest.param(name, marks=pytest.mark.exhaustive) for name in CASES if name not in FIRST]


@pytest.mark.parametrize("name", [*FIRST, *MORE])
def test_live(tmp_path, name):
    """Hidden states agree to 1e-5 of the largest entry of their level, attention to 2e-5 or twice the rounding of
    PyTorch in float32, word scores to 1e-4; the tensors of network and file are equal, bit for bit.
    """
    torch = pytest.importorskip("torch", reason=REASON)
    kind, config, options = CASES[name]
    family = name.partition(",")[0]
    twin = save_twin(tmp_path, kind, config | options | {"model_type": family})
    # transformers has a second bias beside an untied decoder, and does not use it.
    untied = kind == "RobertaForMaskedLM" and "not tied" in name
    with pytest.warns(UserWarning, match="bias' is used") if untied else contextlib.nullcontext():
        model = probe.load(tmp_path)
    images = "image_size" in config
    if images:
        pixels = np.random.default_rng(5).normal(size=(2, 2, 12, 12)).astype("f4")
        inputs, found = {"pixel_values": torch.tensor(pixels)}, probe.trace(model, pixels)
        words = np.ones(found.mask.shape, bool)
    else:
        # In transformers a dynamic base depends on the longest text of a batch, here on each text.
        rows = slice(0, 1) if "dynamic" in name else slice(None)
        ids, words = IDS[rows], MASK[rows]
        inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(words.astype(np.int64))}
        found = probe.trace(model, ids, words)
    levels, attention, logits = outputs(twin, inputs, torch.float32)
    exact = outputs(twin, inputs, torch.float64)
    assert found.hidden.shape[1] == len(levels) and found.attention.shape == attention.shape
    for k, level in enumerate(levels):
        ours = np.asarray(found.hidden[:, k])
        # Here a map from the last stream to the words belongs to the head.
        if ours.shape == level.shape:
            assert largest(ours - level, words[..., None]) < 1e-5 * np.abs(level).max(), k
        else:
            assert family == "opt" and k == len(levels) - 1
    rounding = largest(attention - exact[1], words[:, None, None, :, None])
    assert largest(np.asarray(found.attention) - attention, words[:, None, None, :, None]) < max(2e-5, 2 * rounding)
    if logits is not None and logits.shape[-1] == 30 and not images:
        ours = np.asarray(model.logits(found.hidden[:, -1]))
        assert largest(ours - logits, words[..., None]) < 1e-4 * max(1.0, np.abs(logits).max())
    stored = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    known = {FAMILIES[family].bare(name): array for name, array in stored.items()}
    for tensor, array in probe.tensors(model.network).items():
        np.testing.assert_array_equal(array, known.pop(tensor))
    known.pop("lm_head.bias" if untied else "", None)
    assert sorted(known) == sorted(FAMILIES[family].bare(name) for name in model.left_out)
