"""A network with one of its parts silenced, or with another attention mask, to measure the effect of that part.

The output of each part is multiplied by a gain of 0 (knock-out, or zero ablation: Meng et al., *Locating and editing
factual associations in GPT*, 2202.05262, compare parts likewise), so that one compiled program serves every layer,
head, neuron and token.

Invariants: the given model is not modified; knock-outs accumulate; a gain multiplies the output of a part including its
bias, except that the bias of the output map belongs to the attention as a whole and to none of its heads.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..._check import check_choice, check_integer, refusal, shown
from ..._mask import AbstractMask, check_mask
from ..measures.survey import dtype_of
from ..networks.block import Gains, at_places
from ..networks.load import Model, check_model, replace_network


def without(
    model: Model,
    part: str,
    *,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    neuron: int | Sequence[int] | None = None,
    token: int | Sequence[int] | None = None,
) -> Model:
    """The model with one part knocked out: the part writes zero to the residual stream.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load()
        >>> silent = probe.without(model, "attention", layer=0, head=[1, 2])
        >>> silent.name
        'clusterjax-albert without attention, layer 0, head 1, 2'
        ```

    **Arguments:**

    - `model`: The model that `load` returned; it is not modified.
    - `part`: "attention" or "feed_forward".

    **Other arguments:**

    - `layer`: The layers, counted from 0, or from the end with negative numbers; None selects all layers.
    - `head`: The heads of the attention; None selects the whole attention, including the bias of its output.
    - `neuron`: The neurons of the feed-forward; None selects the whole feed-forward, including its bias.
    - `token`: The positions of every text, counted from 0, at which the part writes nothing; None selects all
        positions. The returned model refuses texts that lack such a position.

    **Returns:**

    A `Model`. The new knock-out adds to the knock-outs that the model already has.

    **Raises:**

    - `ValueError` if there is no such part, layer, head, neuron or token, if `head` is given for a feed-forward, or if
        `neuron` is given for an attention.

    ??? cite "Source"

        Meng et al., *Locating and editing factual associations in GPT* (2202.05262), Section 2: effects of single parts
        at single tokens; Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913).
    """
    network: Any = nnx.clone(check_model(model).network)
    check_choice(part, "part", ("attention", "feed_forward"))
    for name, value, other in (("head", head, "attention"), ("neuron", neuron, "feed_forward")):
        if value is not None and part != other:
            raise refusal(
                name, f"be None unless part is {other!r}", f"it is {shown(value)}", f"name the part {other!r}"
            )
    layers = _places(layer, "layer", network.num_layers)
    heads = _places(head, "head", network.num_heads)
    neurons = None if neuron is None else _places(neuron, "neuron", network.blocks()[0].neuron_values().kernel.shape[0])
    tokens = None if token is None else _places(token, "token", None)
    # The last entry holds for all further positions.
    silent = np.ones((network.num_layers, 1 if tokens is None else max(tokens) + 2))
    silent[np.ix_(layers, [0] if tokens is None else tokens)] = 0
    what = part if head is None and neuron is None else "heads" if neuron is None else "neurons"
    if what in ("heads", "neurons"):
        chosen = heads if what == "heads" else neurons
        count = network.num_heads if what == "heads" else network.blocks()[0].neuron_values().kernel.shape[0]
        of_part = np.ones((network.num_layers, count, silent.shape[1]))
        of_part[:, chosen] = silent[:, None]
        silent = of_part
    gains = Gains() if network.gains is None else network.gains
    network.gains = nnx.data(gains._replace(**{what: _joined(getattr(gains, what), silent, dtype_of(model))}))
    named = {"layer": layer, "head": head, "neuron": neuron, "token": token}
    told = "".join(f", {name} {_told(value)}" for name, value in named.items() if value is not None)
    return replace_network(model, network, f"{model.name} without {part.replace('_', '-')}{told}")


def with_mask(model: Model, mask: AbstractMask) -> Model:
    """The model with another attention mask in place of the mask of its training.

    !!! example

        ```python
        >>> from clusterjax import SinkMask, probe
        >>> streaming = probe.with_mask(probe.load(), SinkMask(8, 1))
        >>> streaming.name
        'clusterjax-albert with SinkMask(width=8, kept=1)'
        ```

    **Arguments:**

    - `model`: The model that `load` returned; it is not modified.
    - `mask`: A mask of the core dynamics, e.g. `FullMask`, `CausalMask`, `WindowMask`, `SinkMask`. It also replaces
        the windows with which the network was trained (Mistral). Padding never receives attention.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if `mask` is not a mask.

    ??? cite "Source"

        Xiao et al., *Efficient streaming language models with attention sinks* (2309.17453): windows that keep the
        first tokens.
    """
    network: Any = nnx.clone(check_model(model).network)
    network.mask = nnx.data(check_mask(mask))
    return replace_network(model, network, f"{model.name} with {mask}")


def _places(value: Any, name: str, count: int | None) -> list[int]:
    """The indices in `value`, each from 0 to `count` - 1; None selects all, and negative ones count from the end."""
    if value is None:
        return list(range(count or 0))
    # A value that is no list is refused by `check_integer` below.
    several = isinstance(value, list | tuple | range) or (isinstance(value, np.ndarray) and value.ndim == 1)
    named = list(value) if several else [value]
    if not named:
        raise refusal(name, "name one at least", "it is empty", "pass None for all")
    if count is None:
        return [check_integer(each, name, least=0, remedy="count from 0") for each in named]
    return [
        check_integer(each, name, least=-count, most=count - 1, remedy=f"there are {count}") % count for each in named
    ]


def _joined(known: Any, more: np.ndarray, dtype: Any) -> Any:
    """The product of two gains, (..., positions) each, whose last entries hold for all further positions."""
    if known is None:
        return jnp.asarray(more, dtype)
    longest = max(known.shape[-1], more.shape[-1])
    return jnp.asarray(at_places(np.asarray(known), longest) * at_places(more, longest), dtype)


def _told(value: Any) -> str:
    return (
        ", ".join(str(each) for each in value) if isinstance(value, list | tuple | range | np.ndarray) else str(value)
    )
