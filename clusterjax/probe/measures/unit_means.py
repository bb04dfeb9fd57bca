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

from ..._padding import words_first
from ..networks.layer_scan import scan_layers
from ..networks.load import Model


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
        found = _means(form, state, jnp.asarray(token_ids[rows]), jnp.asarray(mask[rows]))
        # The scan returns layers along the first axis.
        parts.append([np.moveaxis(np.asarray(part), 0, 1)[: len(token_ids) - begin] for part in found])
    return UnitMeans(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@eqx.filter_jit
def _means(form: Any, state: Any, ids: Array, mask: Array) -> tuple[Array, Array]:
    network = nnx.merge(form, state)
    context = network.shared_context(ids.shape[1])
    counted = mask.at[:, 0].set(False)

    def mean(x: Array) -> Array:
        weight = counted[..., None].astype(x.dtype)
        return jnp.sum(x * weight, axis=1) / jnp.sum(weight, axis=1)

    def step(block: Any, hidden: Array, given: tuple[Any, Any]) -> tuple[Array, tuple[Array, Array]]:
        hidden = jnp.where(mask[..., None], hidden, 0)
        middle, _ = block.after_attention(hidden, mask, context, given[0])
        fired = block.activations(block.read(1, middle))
        return block.after_feed_forward(middle, given[0]), (mean(hidden), mean(fired))

    last, (levels, fired) = scan_layers(network, step, network.embed(ids), ids.shape[1])
    return fired, jnp.concatenate([levels, mean(last)[None]])
