"""Networks with one part removed or replaced, which show the effect of that part.

Each function clones the network and replaces modules or parameters of the clone. The forward pass is unchanged, so
every function that accepts a `Model` accepts the results.

Invariants: the given model is not modified; parameters are set to zero rather than removed where the structure of the
tree matters; the name of the returned model states the change.
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
    return _changed(check_model(model), lambda block: block.set_norms(_Nothing()), "without norms")


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
    remaining_lengths = iter(check_radius(model, radius).tolist())

    # `blocks()` yields each block with its own weights once, in the order of `radius`.
    def hold(block: AbstractBlock) -> None:
        length = _Length(next(remaining_lengths), dtype_of(model))
        if block.post_norm:
            block.set_norms(length)
        else:
            # The rescaling precedes the first norm of the block, which then reads tokens of a known norm.
            block.length = nnx.data(length)

    return _changed(model, hold, "on the sphere")


def check_radius(model: Model, radius: Any) -> np.ndarray:
    """The norm of the tokens that enter each block, (blocks,); the blocks of ALBERT share one norm."""
    blocks, remedy = len(check_model(model).network.blocks()), "pass the length of the tokens"
    check_concrete(radius, "radius")
    if isinstance(radius, bool):
        raise refusal("radius", "be positive", f"it is {radius}", remedy)
    # The scores contain the square of the radius, which must not overflow.
    check_array(radius, "radius", most=float(np.sqrt(np.finfo(dtype_of(model)).max)), remedy=remedy)
    lengths = np.asarray(radius, np.float64)
    if np.any(lengths <= 0):
        raise refusal("radius", "be positive", f"it is {lengths}", remedy)
    # Norms that act on the tokens themselves impose the same norm in all blocks.
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
    """Rescales every row to one norm, held in an array so that another norm does not trigger compilation."""

    def __init__(self, radius: float, dtype: Any):
        # A `Variable` and not a `Param`: it is not trained, not written to checkpoints and not drawn by `randomise`.
        self.radius = nnx.Variable(jnp.asarray(radius, dtype))

    def carry(self, x: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]) -> Array:
        square = jnp.sum(x * x, axis=-1, keepdims=True)
        # Rows of padding are zero and stay zero.
        scale = self.radius[...] / jnp.sqrt(jnp.where(square > 0, square, jnp.ones_like(square)))
        return share * jnp.expand_dims(scale, tuple(range(share.ndim - scale.ndim)))

    def offset(self) -> None:
        return None


def _changed(model: Model, change: Callable[[AbstractBlock], None], what: str) -> Model:
    network = nnx.clone(model.network)
    # Layers that share the weights of a block change with it.
    for block in network.blocks():
        change(block)
    return replace_network(model, network, f"{model.name} {what}")
