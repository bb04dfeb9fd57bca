"""Applies hardmax layers until no token moves by more than a tolerance: the fixed point of the dynamics.

A `lax.while_loop` applies one layer per step, and compiles once for each shape. Each layer multiplies the distance of
a token from the mean to which it moves by 1 / (1 + alpha) (Alcalde, Fantuzzi, Zuazua, 2407.01602, eq. (1a)), so that
this distance, `left`, measures convergence for any alpha. Leaders are recorded at each layer.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from .._custom_types import Tokens
from .._schedule import at_time
from ._layer import HardmaxLayer
from ._leaders import Leaders, advance, no_leaders


class FixedPoint(eqx.Module):
    """The tokens after the last layer, and their remaining distance from a fixed point.

    **Attributes:**

    - `x`: (n, d), the last tokens.
    - `leaders`: The leaders of all layers.
    - `layers`: The number of layers that were applied.
    - `left`: The largest distance of a token from the mean of the tokens to which it attends, over the largest norm.
    """

    x: Float[Array, "n d"]
    leaders: Leaders
    layers: Int[Array, ""]
    left: Float[Array, ""]


@eqx.filter_jit
def run_to_fixed_point(
    z0: Tokens, layer: HardmaxLayer, depth: Int[Array, ""], tolerance: Float[Array, ""]
) -> FixedPoint:
    """Apply layers until `left` is at most `tolerance`, but at most `depth`, and record the leaders."""
    masses = at_time(layer.masses, 0, z0.dtype)
    lengths = jnp.sqrt(jnp.sum(z0 * z0, axis=1))
    length = jnp.max(lengths if masses is None else jnp.where(masses > 0, lengths, 0))
    # If all tokens are at the origin, nothing moves, and zero over zero would be NaN.
    length = jnp.where(length > 0, length, 1)

    def unsettled(state: FixedPoint) -> Array:
        return (state.layers < depth) & (state.left > tolerance)

    def apply(state: FixedPoint) -> FixedPoint:
        k = state.layers
        x, leaders = advance(state.x, state.leaders, layer, k)
        # A token moves the fraction alpha / (1 + alpha) of its way, so that division gives the whole way.
        moved = jnp.max(jnp.sqrt(jnp.sum((x - state.x) ** 2, axis=1)))
        left = moved / (layer.step(k, z0.dtype) * length)
        return FixedPoint(x, leaders, k + 1, left)

    start = FixedPoint(z0, no_leaders(z0), jnp.asarray(0), jnp.asarray(jnp.inf, z0.dtype))
    end = lax.while_loop(unsettled, apply, start)
    # `advance` finds the leaders before a layer, so that a further call finds the leaders of the last tokens.
    return FixedPoint(end.x, advance(end.x, end.leaders, layer, end.layers)[1], end.layers, end.left)
