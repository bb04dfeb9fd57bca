"""Tiny networks of transformers, saved by that library, and their differences from the networks of the package."""

import numpy as np
import pytest

from clusterjax import probe


REASON = "the networks are compared with those of PyTorch, which is not installed"


def save_twin(folder, name, config, seed=0):
    """Save the network of transformers of this class, with all parameters random, into a folder; return the network."""
    torch = pytest.importorskip("torch", reason=REASON)
    import transformers

    torch.manual_seed(seed)
    fields = {key: value for key, value in config.items() if key != "model_type"}
    kind = transformers.AutoConfig.for_model(config["model_type"], **fields)
    network = getattr(transformers, name)(kind)
    with torch.no_grad():
        for parameter in network.parameters():  # biases start at zero, and the scales of norms at one
            parameter.add_(0.3 * torch.randn_like(parameter))
    network.save_pretrained(str(folder))
    return getattr(transformers, name).from_pretrained(str(folder), attn_implementation="eager").eval()


def double_norms(twin):
    """The network in float64, including its norms: T5 computes a mean square in float32 at every precision."""
    torch = pytest.importorskip("torch", reason=REASON)
    for module in twin.double().modules():
        if type(module).__name__.endswith("T5LayerNorm"):
            module.forward = lambda x, m=module: (
                m.weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + m.variance_epsilon)
            )
    return twin


def errors(model, twin, ids, mask, token_types=None, step=1):
    """The largest differences at words: of hidden states relative to the largest entry of their level, of attention,
    and of the scores of words, None without a head. The twin has every `step`-th level.
    """
    torch = pytest.importorskip("torch", reason=REASON)
    given = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": token_types}
    given = {name: torch.tensor(value) for name, value in given.items() if value is not None}
    with torch.no_grad():
        out = twin(**given, output_hidden_states=True, output_attentions=True)
    hidden = np.stack([part.numpy() for part in out.hidden_states], 1)
    attention = np.stack([part.numpy() for part in out.attentions], 1)
    found = probe.trace(model, ids, mask, token_types=token_types)
    levels = np.asarray(found.hidden)[:, ::step]
    assert levels.shape == hidden.shape and found.attention.shape == attention.shape
    largest = lambda theirs, ours: np.abs(ours - theirs)[mask].max() / np.abs(theirs[mask]).max()
    of_hidden = max(largest(hidden[:, k], levels[:, k]) for k in range(hidden.shape[1]))
    rows = np.broadcast_to(mask[:, None, None, :, None], attention.shape)
    of_attention = np.abs(np.asarray(found.attention) - attention)[rows].max()
    if not hasattr(out, "logits"):
        return of_hidden, of_attention, None
    of_logits = np.abs(np.asarray(model.logits(found.hidden[:, -1])) - out.logits.numpy())[mask].max()
    return of_hidden, of_attention, of_logits
