r"""The mean of each neuron and of each coordinate of the residual stream over the tokens of each text, in one pass.

The first token is left out: in a causal network it attends only to itself, and where it is a sink its residual stream
has a hundred times the norm of the others and would dominate the mean.

Source: Radford, Jozefowicz, Sutskever, *Learning to generate reviews and discovering sentiment* (1704.01444), Section
4: units that detect sentiment; *Transformers, part 2*, slide 12.

Invariants: padding enters no mean; the program holds one layer at a time, and one compilation serves all batches.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ..._base.padding import words_first
from ..networks.load import Model, check_model
from ..networks.network import scan_layers
from .patching import at_place
from .table import tabled


BATCH = 16


class UnitMeans(NamedTuple):
    """Means over the tokens of each text, without the first token.

    **Attributes:**

    - `neurons`: The mean activation of each neuron of the feed-forward, (texts, layers, m).
    - `levels`: The mean residual stream before the layers and after each, (texts, layers + 1, d).
    """

    neurons: Float[np.ndarray, "texts layers m"]
    levels: Float[np.ndarray, "texts levels d"]


def unit_means(model: Model, token_ids: Int[np.ndarray, "texts n"], mask: Bool[np.ndarray, "texts n"]) -> UnitMeans:
    """The means of all neurons and stream coordinates in each text.

    **Raises:**

    - `ValueError` if a text has fewer than two tokens.
    """
    few = np.flatnonzero(mask.sum(axis=1) < 2)
    if few.size:
        raise ValueError(f"token_ids must hold two tokens of each text, but text {few[0]} has fewer; leave it out.")
    order, _ = words_first(mask)
    if order is not None:
        token_ids, mask = (np.take_along_axis(part, order, axis=1) for part in (token_ids, mask))
    form, state = nnx.split(model.network)
    parts = []
    for begin in range(0, len(token_ids), BATCH):
        # Copies of the last text fill the last batch, so that all batches share one shape and one program.
        rows = np.minimum(np.arange(begin, begin + BATCH), len(token_ids) - 1)
        means = _means(form, state, jnp.asarray(token_ids[rows]), jnp.asarray(mask[rows]))
        # The scan returns layers along the first axis.
        parts.append([np.moveaxis(np.asarray(part), 0, 1)[: len(token_ids) - begin] for part in means])
    return UnitMeans(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@eqx.filter_jit
def _means(form: Any, state: Any, ids: Array, mask: Array) -> tuple[Array, Array]:
    network = nnx.merge(form, state)
    counted = mask.at[:, 0].set(False)
    embedded, step = at_place(network, ids, mask, "neuron")

    def mean(x: Array) -> Array:
        weight = counted[..., None].astype(x.dtype)
        return jnp.sum(x * weight, axis=1) / jnp.sum(weight, axis=1)

    def means(block: Any, hidden: Array, given: tuple[Any, Any]) -> tuple[Array, tuple[Array, Array]]:
        after, fired = step(block, hidden, (given[0], ()))
        return after, (mean(hidden), mean(fired))

    last, (levels, fired) = scan_layers(network, means, embedded, ids.shape[1])
    return fired, jnp.concatenate([levels, mean(last)[None]])


# The part to which a module of a network belongs; norms and positions are separate parts, wherever they are.
_PARTS = {
    "words": "embedding", "types": "embedding", "projection": "embedding", "embedding_norm": "norms", "norm": "norms",
    "positions": "positions", "relative": "positions", "head": "unembedding", "pooler": "unembedding",
    "patches": "embedding", "attention": "attention", "feed_forward": "feed_forward", "attention_norms": "norms",
    "feed_forward_norms": "norms", "query_norm": "norms", "key_norm": "norms", "distance_keys": "positions",
    "distance_values": "positions",
}  # fmt: skip


@tabled()
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

    ??? cite "Source"

        *Transformers, part 2*, slide 9: most parameters are in the feed-forward.
    """
    counts = dict.fromkeys(ParameterCounts._fields, 0)
    for path, value in nnx.to_flat_state(nnx.state(check_model(model).network, nnx.Param)):
        counts[_part_of(tuple(map(str, path)))] += int(np.prod(value.shape))
    return ParameterCounts(**counts)


def _part_of(path: tuple[str, ...]) -> str:
    if path[0] == "patches" and path[-1] == "positions":
        return "positions"
    if path[0] != "layers":
        return _PARTS[path[0]]
    # The norm of queries and the vectors of distances are within the attention.
    return _PARTS[next((name for name in path[3:] if name in _PARTS), path[2])]
