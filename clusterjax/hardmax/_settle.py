"""Layers until nothing moves."""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from .._custom_types import Tokens
from .._schedule import at_time
from ._layer import HardmaxLayer
from ._leaders import Leaders, advanced, nobody


class Settled(eqx.Module):
    """The end of a run.

    **Attributes:**

    - `x`: (n, d), the last tokens.
    - `leaders`: Who led on the way.
    - `layers`: How many layers were applied.
    - `left`: The farthest that a token still is from the mean of those it attends to, over the length of the longest.

    Source: this library.
    """

    x: Float[Array, "n d"]
    leaders: Leaders
    layers: Int[Array, ""]
    left: Float[Array, ""]


@eqx.filter_jit
def settle(z0: Tokens, layer: HardmaxLayer, depth: Int[Array, ""], tolerance: Float[Array, ""]) -> Settled:
    """Layers until `left` is `tolerance` at most, and no more than `depth`; leaders are looked for on the way."""
    masses = at_time(layer.masses, 0, z0.dtype)
    lengths = jnp.sqrt(jnp.sum(z0 * z0, axis=1))
    length = jnp.max(lengths if masses is None else jnp.where(masses > 0, lengths, 0))
    length = jnp.where(length > 0, length, 1)

    def unsettled(state: Settled) -> Array:
        return (state.layers < depth) & (state.left > tolerance)

    def one(state: Settled) -> Settled:
        k = state.layers
        x, found = advanced(state.x, state.leaders, layer, k)
        moved = jnp.max(jnp.sqrt(jnp.sum((x - state.x) ** 2, axis=1)))
        left = moved / (layer.step(k, z0.dtype) * length)
        return Settled(x, found, k + 1, left)

    start = Settled(z0, nobody(z0), jnp.asarray(0), jnp.asarray(jnp.inf, z0.dtype))
    end = lax.while_loop(unsettled, one, start)
    return Settled(end.x, advanced(end.x, end.leaders, layer, end.layers)[1], end.layers, end.left)
