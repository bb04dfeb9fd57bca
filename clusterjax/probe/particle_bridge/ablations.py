"""Networks with one part removed or replaced, which show the effect of that part.

Each function clones the network and replaces modules or parameters of the clone. The forward pass is unchanged, so
every function that accepts a `Model` accepts the results.

Invariants: the given model is not modified; parameters are set to zero rather than removed where the structure of the
tree matters; the name of the returned model states the change.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from ..._base.checks import check_array, check_choice, check_concrete, check_integer, refusal, shown
from ..._model.mask import AbstractMask, check_mask
from ..measures.survey import dtype_of
from ..networks.block import AbstractNorm, Block, Gains, at_places
from ..networks.directions import norms_of
from ..networks.edits import chosen
from ..networks.load import Model, check_model, replace_network
from ..networks.recorded import Recorded


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
    layers = chosen(layer, "layer", network.num_layers)
    num_neurons = network.sizes.intermediate_size
    heads = None if head is None else chosen(head, "head", network.num_heads)
    neurons = None if neuron is None else chosen(neuron, "neuron", num_neurons)
    tokens = None if token is None else chosen(token, "token", None)
    # The last entry holds for all further positions.
    silent = np.ones((network.num_layers, 1 if tokens is None else max(tokens) + 2))
    silent[np.ix_(layers, [0] if tokens is None else tokens)] = 0
    field = part
    for name, units, count in (("heads", heads, network.num_heads), ("neurons", neurons, num_neurons)):
        if units is not None:
            of_units = np.ones((network.num_layers, count, silent.shape[1]))
            of_units[:, units] = silent[:, None]
            field, silent = name, of_units
    gains = Gains() if network.gains is None else network.gains
    network.gains = nnx.data(gains._replace(**{field: _joined(getattr(gains, field), silent, dtype_of(model))}))
    named = {"layer": layer, "head": head, "neuron": neuron, "token": token}
    where = "".join(f", {name} {_told(value)}" for name, value in named.items() if value is not None)
    return replace_network(model, network, f"{model.name} without {part.replace('_', '-')}{where}")


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


def _joined(known: Any, more: np.ndarray, dtype: Any) -> Any:
    """The product of two gains, (..., positions) each, whose last entries hold for all further positions."""
    if known is None:
        return jnp.asarray(more, dtype)
    longest = max(known.shape[-1], more.shape[-1])
    return jnp.asarray(at_places(np.asarray(known), longest) * at_places(more, longest), dtype)


def _told(value: Any) -> str:
    return (
        ", ".join(str(entry) for entry in value) if isinstance(value, list | tuple | range | np.ndarray) else str(value)
    )


def deeper(model: Model, times: int) -> Model:
    """The model with its trained sequence of layers applied `times` times with the same weights.

    **Arguments:**

    - `model`: The model that `load` returned; it is not modified.
    - `times`: The number of applications.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if `times` is not a positive integer.

    Source: T. Peat, *Clustering in Transformers*, Section 3.
    """
    # A clone shares no parameters with the given model.
    network: Any = nnx.clone(check_model(model).network)
    if network.gains is not None:
        raise refusal(
            "model", "be made deeper before parts of its layers are knocked out",
            "it has layers with parts knocked out", "call deeper first, then without",
        )  # fmt: skip
    network.depth = check_integer(times, "times", remedy="pass 2, say") * network.depth
    return replace_network(model, network, f"{model.name} {times} times as deep")


def without_feed_forward(model: Model) -> Model:
    """The model with a feed-forward that returns zero, so that only attention and norms move the tokens.

    All norms stay, including the norm after the feed-forward.

    **Arguments:**

    - `model`: The model that `load` returned.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if `model` is not a `Model`.
    """
    return without(model, "feed_forward")


def without_norms(model: Model) -> Model:
    """The model whose layers have no norms: x + A(x), then x + F(x), so that the norm of a token is unbounded.

    The norm of ALBERT's embedding and the norm after the last block of T5 or Llama stay, because they do not act
    between layers. Deep networks may overflow.

    **Arguments:**

    - `model`: The model that `load` returned.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if `model` is not a `Model`.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eq. (1.1): dynamics
        without norms.
    """

    def remove(block: Block) -> None:
        for norms in (block.attention_norms, block.feed_forward_norms):
            norms.read = norms.update = norms.stream = None

    return _changed(check_model(model), remove, "without norms")


def on_sphere(model: Model, radius: float | Float[np.ndarray, " blocks"]) -> Model:
    """The model whose tokens are held at the norm `radius`.

    The norms of ALBERT only rescale then, without centring and without learnt parameters. The norms of T5 and Llama
    act on the input of attention and not on the tokens: they stay, and the tokens are rescaled before each block. For a
    model without feed-forward, each layer is one Euler step of length 1 of the particle model with biases.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `radius`: The norm of the tokens, positive; for T5 and Llama also (blocks,), one number for each block.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if a radius is not positive, or the number of radii is not the number of blocks.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: layer norm as the
        projection onto the sphere.
    """
    remaining_lengths = iter(check_radius(check_model(model), radius).tolist())

    # `blocks()` yields each block with its own weights once, in the order of `radius`.
    def hold(block: Block) -> None:
        length = _Length(next(remaining_lengths), dtype_of(model))
        if block.post_norm:
            block.attention_norms.stream = block.feed_forward_norms.stream = length
        else:
            # The rescaling precedes the first norm of the block, which then reads tokens of a known norm.
            block.length = nnx.data(length)

    return _changed(model, hold, "on the sphere")


def check_radius(model: Model | Recorded, radius: Any) -> np.ndarray:
    """The norm of the tokens that enter each block, (blocks,); the blocks of ALBERT share one norm."""
    (norm, _, order), remedy = norms_of(model), "pass the length of the tokens"
    blocks = int(order.max()) + 1
    check_concrete(radius, "radius")
    if isinstance(radius, bool):
        raise refusal("radius", "be positive", f"it is {radius}", remedy)
    # The scores contain the square of the radius, which must not overflow.
    check_array(radius, "radius", most=float(np.sqrt(np.finfo(dtype_of(model)).max)), remedy=remedy)
    lengths = np.asarray(radius, np.float64)
    if np.any(lengths <= 0):
        raise refusal("radius", "be positive", f"it is {lengths}", remedy)
    # Norms that act on the tokens themselves impose the same norm in all blocks.
    shared_norm = norm is None
    if lengths.shape != () and (shared_norm or lengths.shape != (blocks,)):
        allowed = "a number" if shared_norm else f"a number, or one for each of {blocks} blocks"
        raise refusal("radius", f"be {allowed}", f"it has shape {lengths.shape}", remedy)
    return np.broadcast_to(lengths, (blocks,))


class _Length(AbstractNorm):
    """Rescales every row to one norm, held in an array so that another norm does not trigger compilation."""

    def __init__(self, radius: float, dtype: Any):
        # A `Variable` and not a `Param`: it is not trained, not written to checkpoints and not drawn by `randomise`.
        self.radius = nnx.Variable(jnp.asarray(radius, dtype))

    def factor(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n 1"]:
        square = jnp.sum(x * x, axis=-1, keepdims=True)
        # Rows of padding are zero and stay zero.
        return self.radius[...] / jnp.sqrt(jnp.where(square > 0, square, jnp.ones_like(square)))

    def linear(self, share: Float[Array, "*shares batch n d"]) -> Float[Array, "*shares batch n d"]:
        return share

    def offset(self) -> None:
        return None


def _changed(model: Model, change: Callable[[Block], None], what: str) -> Model:
    network = nnx.clone(model.network)
    # Layers that share the weights of a block change with it.
    for block in network.blocks():
        change(block)
    return replace_network(model, network, f"{model.name} {what}")
