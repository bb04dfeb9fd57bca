"""How many parameters each part of a network has.

Parameters are counted by their names, which are those of the checkpoints. What layers share is counted once, as it is
stored: a head that is tied to the embedding counts as embedding, and the one layer of an ALBERT once.

Invariants: every parameter is counted exactly once; a name that no rule knows is refused and not left out.
"""

from typing import NamedTuple

import numpy as np
from flax import nnx

from ..networks.load import Model, check_model


# The first part that has one of these among the names of a parameter, from the root to it. In this order: the norm of a
# head is of the head, and a bias of distances inside an attention is of the positions.
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
    """How many parameters each part of a network has.

    **Attributes:**

    - `embedding`: Of words and token types, with a map to the hidden space.
    - `positions`: Tables of positions, and biases or vectors of distances.
    - `attention`, `feed_forward`: Of all layers, without their norms.
    - `norms`: All of them.
    - `unembedding`: A head of its own that scores words, and a pooler; none where the head is the embedding.
    """

    embedding: int
    positions: int
    attention: int
    feed_forward: int
    norms: int
    unembedding: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)

    @property
    def shares(self) -> dict[str, float]:
        """The share of each part, by name; they add up to 1."""
        return {name: count / self.total for name, count in self._asdict().items()}


def parameter_counts(model: Model) -> ParameterCounts:
    """How many parameters of a network are in its embedding, its attention, its feed-forward and so on.

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

    - `ValueError` if the network has a parameter of a name that no architecture here has.

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
    # The table of the language model of this package, at the root; its maps of the output of the heads.
    if path == ("embedding",):
        return "embedding"
    if "output" in path:
        # "output" is the map of the heads of that model, and the second map of the feed-forward of a BERT.
        return "attention" if path[-1] == "output" else "feed_forward"
    raise ValueError(
        f"model must have parameters of known names, but {'/'.join(path)!r} is none; pass a network that load returns."
    )
