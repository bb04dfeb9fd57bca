"""Tokens in the plane so far inside the convex hull of all tokens that hardmax never attends to them.

**Algorithm.** The farthest present token in each of 64 directions is a corner of a convex polygon. A token is interior
if its distance to the left of each edge of the polygon, in anticlockwise order, is at least `depth`.

**Reference.** Akl and Toussaint, *A fast convex hull algorithm* (1978), with eight directions.

**Invariant.** For an interior token and every direction, some present token is at least `depth` farther out in that
direction. If all corners coincide, no token is interior.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


# More directions find more interior tokens, and each direction costs one pass over the tokens.
_DIRECTIONS = 64


def interior_mask(
    tokens: Float[Array, "m 2"], present: Bool[Array, " m"], depth: Float[Array, ""]
) -> Bool[Array, " m"]:
    """True if the disc of radius `depth` around a token lies in a polygon of present tokens, for `tokens` (m, 2).

    A token to the left of every edge of a closed chain of tokens is inside their convex hull, also if rounding changes
    the choice of corners. Distances to an edge have rounding errors below 16 eps times the largest norm of a token.
    """
    angle = jnp.linspace(0, 2 * jnp.pi, _DIRECTIONS, endpoint=False, dtype=tokens.dtype)

    def farthest(direction):
        projection = tokens[:, 0] * direction[0] + tokens[:, 1] * direction[1]
        return tokens[jnp.argmax(jnp.where(present, projection, -jnp.inf))]

    corners = lax.map(farthest, jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1))
    edges = jnp.roll(corners, -1, axis=0) - corners
    lengths = jnp.sqrt(edges[:, 0] ** 2 + edges[:, 1] ** 2)

    def left_of_edge(inside, corner_edge_length):
        corner, edge, length = corner_edge_length
        # The cross product is the distance to the edge times its length. Edges of length zero are no constraint.
        cross = (tokens[:, 1] - corner[1]) * edge[0] - (tokens[:, 0] - corner[0]) * edge[1]
        return inside & ((cross >= depth * length) | (length == 0)), None

    # Without edges, the polygon is a point, and no token is interior.
    has_edges = jnp.broadcast_to(jnp.any(lengths > 0), present.shape)
    return lax.scan(left_of_edge, has_edges, (corners, edges, lengths))[0]
