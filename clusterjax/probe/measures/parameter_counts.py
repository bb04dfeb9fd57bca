"""The number of parameters of each part of a network.

Parameters are classified by their names, which are those of the checkpoints. Shared parameters are counted once, as
they are stored: a head tied to the embedding counts as embedding, and the single layer of an ALBERT counts once.

Invariants: every parameter is counted exactly once; an unknown name is refused rather than left out.
"""

from typing import NamedTuple

import numpy as np
from flax import nnx

from ..networks.load import Model, check_model


# A parameter belongs to the first part with a name in the path of the parameter. The order matters: the norm of a head
# counts to the head, and a bias of distances inside an attention to the positions.
_NAMES = {
    "unembedding": {"predictions", "lm_head", "head", "cls", "pooler"},
    "positions": {
        "position_embeddings", "wpe", "position_table", "relative_attention_bias", "distance_keys", "distance_values",
    },
    "norms": {
        "LayerNorm", "layer_norm", "final_layer_norm", "full_layer_layer_norm", "input_layernorm",
        "post_attention_layernorm", "norm", "ln_1", "ln_2", "ln_f", "first", "second",
    },
    "embedding": {
        "word_embeddings", "token_type_embeddings", "embedding_hidden_mapping_in", "wte", "shared", "embed_tokens",
    },
    "attention": {"attention", "attn", "self_attn", "SelfAttention", "query", "key", "value"},
    "feed_forward": {
        "mlp", "ffn", "ffn_output", "intermediate", "DenseReluDense", "w_in", "w_out", "bias_in", "bias_out",
    },
}  # fmt: skip


class ParameterCounts(NamedTuple):
    """The number of parameters of each part of a network.

    **Attributes:**

    - `embedding`: The embeddings of words and token types, including a map to the hidden space.
    - `positions`: Position tables, and biases or vectors of distances.
    - `attention`, `feed_forward`: The attention and the feed-forward of all layers, without their norms.
    - `norms`: All norms.
    - `unembedding`: The head that scores words, except the weights tied to the embedding, and a pooler.
    """

    embedding: int
    positions: int
    attention: int
    feed_forward: int
    norms: int
    unembedding: int

    @property
    def total(self) -> int:
        """The number of all parameters."""
        return sum(self)

    @property
    def shares(self) -> dict[str, float]:
        """The fraction of each part, by name; the fractions sum to 1."""
        return {name: count / self.total for name, count in self._asdict().items()}


def parameter_counts(model: Model) -> ParameterCounts:
    """Count the parameters in the embedding, the attention, the feed-forward and the other parts of a network.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> counts = probe.parameter_counts(probe.load("language-model"))
        >>> counts.total, round(counts.shares["feed_forward"], 2)
        (1061632, 0.5)
        ```

    **Arguments:**

    - `model`: The model that `load` returned.

    **Returns:**

    A `ParameterCounts`.

    **Raises:**

    - `ValueError` if the network has a parameter with a name that no supported architecture has.

    ??? cite "Source"

        *Transformers, part 2*, slide 9: most parameters are in the feed-forward.
    """
    counts = dict.fromkeys(ParameterCounts._fields, 0)
    for path, value in nnx.to_flat_state(nnx.state(check_model(model).network, nnx.Param)):
        counts[_part_of(tuple(map(str, path)))] += int(np.prod(value[...].shape))
    return ParameterCounts(**counts)


def _part_of(path: tuple[str, ...]) -> str:
    for part, names in _NAMES.items():
        if names & set(path):
            return part
    # The embedding of the language model of this package is at the root of the tree.
    if path == ("embedding",):
        return "embedding"
    if "output" in path:
        # "output" is the map of the heads of that model, and the second map of the feed-forward of a BERT.
        return "attention" if path[-1] == "output" else "feed_forward"
    raise ValueError(
        f"model must have parameters of known names, but {'/'.join(path)!r} is none; pass a network that load returns."
    )
