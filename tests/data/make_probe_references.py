"""Makes probe_albert.safetensors and probe_t5.safetensors: small random networks, and what PyTorch's make of a batch.

Each file holds the weights (float32), a batch, and the hidden states and attentions that `transformers` computes in
float64; its header holds the configuration and the versions. Run it in an environment with PyTorch:

    python tests/data/make_probe_references.py
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
import transformers
from transformers.models.t5 import modeling_t5


HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.probe_cases import ALBERT, IDS, MASK, T5, TYPES, tensors_of


def norm_in_its_own_precision(self, x):
    """T5's RMS norm; the original takes the mean square in float32 even in a network of float64."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def outputs(config, tensors, **types):
    """(batch, layers + 1, n, d) and (batch, layers, heads, n, n), by PyTorch in float64."""
    kind = {"albert": ("AlbertConfig", "AlbertModel"), "t5": ("T5Config", "T5EncoderModel")}[config["model_type"]]
    settings, network = (getattr(transformers, name) for name in kind)
    model = network(settings.from_dict(config)).eval().double()
    model.set_attn_implementation("eager")
    loaded = model.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()}, strict=False)
    assert not loaded.unexpected_keys and set(loaded.missing_keys) <= {"encoder.embed_tokens.weight"}
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor(IDS),
            attention_mask=torch.tensor(MASK.astype(np.int64)),
            output_hidden_states=True,
            output_attentions=True,
            **{name: torch.tensor(value) for name, value in types.items()},
        )
    return (np.stack([part.numpy() for part in parts], 1) for parts in (out.hidden_states, out.attentions))


def main():
    modeling_t5.T5LayerNorm.forward = norm_in_its_own_precision
    for config, types in ((ALBERT, {"token_type_ids": TYPES}), (T5, {})):
        tensors = tensors_of(config)
        hidden, attention = outputs(config, tensors, **types)
        arrays = {f"weights/{name}": array for name, array in tensors.items()}
        arrays |= {"token_ids": IDS, "mask": MASK, "hidden": hidden, "attention": attention}
        arrays |= {"token_types": TYPES} if types else {}
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        metadata = {"config": json.dumps(config)} | {name: version(name) for name in ("torch", "transformers")}
        file = HERE / f"probe_{config['model_type']}.safetensors"
        file.write_bytes(safetensors.numpy.save(arrays, metadata))
        print(f"{file.name}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
