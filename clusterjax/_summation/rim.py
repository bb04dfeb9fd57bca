"""Which tokens in the plane lie too deep inside the cloud ever to be attended to by hardmax.

**Algorithm.** The farthest tokens in 64 directions are the corners of a polygon; a token that is `depth` or more to the
left of each of its edges is deep. **Reference.** Akl and Toussaint, *A fast convex hull algorithm* (1978), with eight
directions. **Invariant.** For a deep token and any direction there is a present token that is `depth` farther out in
it; where all corners are one point nobody is deep.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


_DIRECTIONS = 64


def deep(tokens: Float[Array, "m 2"], present: Bool[Array, " m"], depth: Float[Array, ""]) -> Bool[Array, " m"]:
    """Whether a disc of radius `depth` around each token lies in a polygon of tokens.

    Then in every direction another token is `depth` farther out. The corners are the farthest tokens in 64 directions.
    A token that lies to the left of every edge of a closed chain of tokens is inside their hull, however the corners
    were rounded; distances to an edge are rounded by less than 16 units of the longest token.
    """
    angle = jnp.linspace(0, 2 * jnp.pi, _DIRECTIONS, endpoint=False, dtype=tokens.dtype)

    def farthest(direction):
        place = tokens[:, 0] * direction[0] + tokens[:, 1] * direction[1]
        return tokens[jnp.argmax(jnp.where(present, place, -jnp.inf))]

    corners = lax.map(farthest, jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1))
    edges = jnp.roll(corners, -1, axis=0) - corners
    lengths = jnp.sqrt(edges[:, 0] ** 2 + edges[:, 1] ** 2)

    def left(inside, side):
        corner, edge, length = side
        across = (tokens[:, 1] - corner[1]) * edge[0] - (tokens[:, 0] - corner[0]) * edge[1]
        return inside & ((across >= depth * length) | (length == 0)), None

    somewhere = jnp.broadcast_to(jnp.any(lengths > 0), present.shape)
    return lax.scan(left, somewhere, (corners, edges, lengths))[0]
