"""A network with a part of it removed or replaced, to see what that part did.

Each function clones the network and replaces modules or parameters in it; the forward pass is that of the network, so
that whatever runs a `Model` runs these too.

Invariants: the model that was given stays as it is; parameters are set to zero and not removed where the shape of the
tree matters, and the name of the model says what was done.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from ..._check import check_array, check_concrete, check_integer, refusal
from ..measures.survey import dtype_of
from ..networks.block import AbstractBlock
from ..networks.layers import AbstractNorm
from ..networks.load import Model, check_model, replace_network
from .knock_out import without


def deeper(model: Model, times: int) -> Model:
    """The model with its trained sequence of layers applied so many times, by the same weights.

    **Arguments:**

    - `model`: What `load` returned; it stays as it is.
    - `times`: How many times.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if `times` is not a positive integer.

    Source: T. Peat, *Clustering in Transformers*, Section 3.
    """
    # A clone shares no parameter with the model that was given.
    network: Any = nnx.clone(check_model(model).network)
    if network.gains is not None:
        raise refusal(
            "model", "be made deeper before parts of its layers are knocked out",
            "it has layers with parts knocked out", "call deeper first, then without",
        )  # fmt: skip
    network.depth = check_integer(times, "times", remedy="pass 2, say") * network.depth
    return replace_network(model, network, f"{model.name} {times} times as deep")


def without_feed_forward(model: Model) -> Model:
    """The model whose feed-forward gives zero, so that only attention and norms move the tokens.

    The norms stay where they are, also the one after the feed-forward.

    **Arguments:**

    - `model`: What `load` returned.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if `model` is no `Model`.
    """
    return without(model, "feed_forward")


def without_norms(model: Model) -> Model:
    """The model whose layers have no norms: x + A(x), then x + F(x), and nothing holds the tokens back.

    The norm of ALBERT's embedding, and that after the last block of T5 or Llama, which do not act between layers, stay.
    Deep networks may overflow.

    **Arguments:**

    - `model`: What `load` returned.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if `model` is no `Model`.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eq. (1.1), has dynamics
        without norms.
    """
    return _changed(check_model(model), lambda block: block.set_norms(_Nothing()), "without norms")


def on_sphere(model: Model, radius: float | Float[np.ndarray, " blocks"]) -> Model:
    """The model whose tokens are held at the length `radius`.

    The norms of ALBERT then only scale, without centring or anything learnt. T5 and Llama, whose norms act on what
    attention reads and not on the tokens, keep them, and their tokens are scaled before each block. Without its
    feed-forward this is one Euler step of length 1 of the particle model for each layer, with biases.

    **Arguments:**

    - `model`: What `load` returned.
    - `radius`: The length, positive; for T5 and Llama also (blocks,), one for each block.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if a radius is not positive, or there are not as many as blocks.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: layer norm as the
        projection onto the sphere.
    """
    remaining_lengths = iter(check_radius(model, radius).tolist())

    # `blocks()` gives each block with weights of its own once, in the order of `radius`.
    def hold(block: AbstractBlock) -> None:
        length = _Length(next(remaining_lengths), dtype_of(model))
        if block.post_norm:
            block.set_norms(length)
        else:
            # Before the first norm of the block, which is then of a stream of known length.
            block.length = nnx.data(length)

    return _changed(model, hold, "on the sphere")


def check_radius(model: Model, radius: Any) -> np.ndarray:
    """The length of the tokens that enter each block, (blocks,); in ALBERT they share one."""
    blocks, remedy = len(check_model(model).network.blocks()), "pass the length of the tokens"
    check_concrete(radius, "radius")
    if isinstance(radius, bool):
        raise refusal("radius", "be positive", f"it is {radius}", remedy)
    # Scores contain the square of the radius, which must not overflow.
    check_array(radius, "radius", most=float(np.sqrt(np.finfo(dtype_of(model)).max)), remedy=remedy)
    lengths = np.asarray(radius, np.float64)
    if np.any(lengths <= 0):
        raise refusal("radius", "be positive", f"it is {lengths}", remedy)
    # Norms on the stream hold one length in all blocks.
    one = model.network.norm_scales() is None
    if lengths.shape != () and (one or lengths.shape != (blocks,)):
        allowed = "a number" if one else f"a number, or one for each of {blocks} blocks"
        raise refusal("radius", f"be {allowed}", f"it has shape {lengths.shape}", remedy)
    return np.broadcast_to(lengths, (blocks,))


class _Nothing(AbstractNorm):
    def carry(self, x: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]) -> Array:
        return share

    def offset(self) -> None:
        return None


class _Length(AbstractNorm):
    """Every row scaled to one length; an array, so that another length compiles nothing anew."""

    def __init__(self, radius: float, dtype: Any):
        # A `Variable` and no `Param`: it is not trained, not written to checkpoints and not drawn by `randomise`.
        self.radius = nnx.Variable(jnp.asarray(radius, dtype))

    def carry(self, x: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]) -> Array:
        square = jnp.sum(x * x, axis=-1, keepdims=True)
        # A row of padding is zero, and stays.
        scale = self.radius[...] / jnp.sqrt(jnp.where(square > 0, square, jnp.ones_like(square)))
        return share * jnp.expand_dims(scale, tuple(range(share.ndim - scale.ndim)))

    def offset(self) -> None:
        return None


def _changed(model: Model, change: Callable[[AbstractBlock], None], what: str) -> Model:
    network = nnx.clone(model.network)
    # Each block with weights of its own; layers that share it change with it.
    for block in network.blocks():
        change(block)
    return replace_network(model, network, f"{model.name} {what}")
