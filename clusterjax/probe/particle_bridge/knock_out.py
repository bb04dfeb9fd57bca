"""A network without one of its parts, or with another attention mask, to see what that part is worth.

Parts are multiplied by gains of 0 where they write to the stream (knock-out, or zero ablation: Meng et al., *Locating
and editing factual associations in GPT*, 2202.05262, compare parts likewise), so that one compiled program serves every
layer, head, neuron and token.

Invariants: the model that was given stays as it is; knock-outs add up; a gain multiplies what a part writes, its bias
included, except that the bias of the output map belongs to the attention as a whole and to none of its heads.
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
    """The model without a part: what the part would write to the stream is zero (knock-out).

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load()
        >>> silent = probe.without(model, "attention", layer=0, head=[1, 2])
        >>> silent.name
        'clusterjax-albert without attention, layer 0, head 1, 2'
        ```

    **Arguments:**

    - `model`: What `load` returned; it stays as it is.
    - `part`: "attention" or "feed_forward".

    **Other arguments:**

    - `layer`: Which layers, counted from 0, or with negative numbers from the end; None is all.
    - `head`: Which heads of the attention; None is the attention whole, with the bias of its output.
    - `neuron`: Which neurons of the feed-forward; None is the feed-forward whole, with its bias.
    - `token`: At which places of every text, counted from 0, the part writes nothing; None is at all places. A network
        is refused texts that have no such place.

    **Returns:**

    A `Model`. Knock-outs of a model that has some already are added to them.

    **Raises:**

    - `ValueError` if there is no such part, layer, head, neuron or token; if heads are named of a feed-forward, or
        neurons of an attention.

    ??? cite "Source"

        Meng et al., *Locating and editing factual associations in GPT* (2202.05262), Section 2, for effects of single
        parts at single tokens; Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913).
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
    # The last entry stands for all further places.
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
    """The model with another attention mask in place of the one that it was trained with.

    !!! example

        ```python
        >>> from clusterjax import SinkMask, probe
        >>> streaming = probe.with_mask(probe.load(), SinkMask(8, 1))
        >>> streaming.name
        'clusterjax-albert with SinkMask(width=8, kept=1)'
        ```

    **Arguments:**

    - `model`: What `load` returned; it stays as it is.
    - `mask`: Which tokens may attend to which, as `FullMask`, `CausalMask`, `WindowMask`, `SinkMask`: those of the core
        dynamics. Windows that the network was trained with (Mistral) are replaced as well. Padding is never attended
        to.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if `mask` is no mask.

    ??? cite "Source"

        Xiao et al., *Efficient streaming language models with attention sinks* (2309.17453), for windows that keep the
        first tokens.
    """
    network: Any = nnx.clone(check_model(model).network)
    network.mask = nnx.data(check_mask(mask))
    return replace_network(model, network, f"{model.name} with {mask}")


def _places(value: Any, name: str, count: int | None) -> list[int]:
    """The numbers that `value` names, from 0; of `count` things, all if it is None, and negative ones from the end."""
    if value is None:
        return list(range(count or 0))
    # What is no list is refused by `check_integer` below.
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
    """The product of two gains, (..., places) each, whose last entries stand for all further places."""
    if known is None:
        return jnp.asarray(more, dtype)
    longest = max(known.shape[-1], more.shape[-1])
    return jnp.asarray(at_places(np.asarray(known), longest) * at_places(more, longest), dtype)


def _told(value: Any) -> str:
    return (
        ", ".join(str(each) for each in value) if isinstance(value, list | tuple | range | np.ndarray) else str(value)
    )
