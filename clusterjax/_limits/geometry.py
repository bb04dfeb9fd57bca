"""Geometry in the coordinates of F: distances from the faces to which tokens attend, corners, and nested hulls.

**Invariants.** A depth is not negative, and is zero for a token that attends to itself or to the face on which it lies.
A bound on the rounding error accompanies each depth, so that a clause may count it against itself. Tokens without mass
receive no attention and are no corners.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..hardmax._hull import outside


_EPS = float(np.finfo(np.float64).eps)
# The number of directions in which hulls are compared, in two or more dimensions; a line has two directions.
_DIRECTIONS = 256


class Depths(NamedTuple):
    """The distance of tokens from the set S, relative to the largest norm of a token.

    **Attributes:**

    - `residual`: (n,), the smaller of the distance from the origin and the depth below the face.
    - `rounding`: (n,), a bound on the amount by which rounding may have reduced the residual.
    """

    residual: Float[np.ndarray, " n"]
    rounding: Float[np.ndarray, " n"]


def length_of(c: Float[np.ndarray, "n r"]) -> float:
    """The largest norm of a row."""
    return float(np.linalg.norm(c, axis=1).max())


def depths(
    c: Float[np.ndarray, "n r"], form: Float[np.ndarray, "r r"], present: Bool[np.ndarray, " n"], moved: float
) -> Depths:
    r"""The distance of each token from the origin, or below the face that its direction $B^\top c_i$ supports.

    A token of S = {c: <B^T c, c> = max_j <B^T c, c_j>} lies in a supporting hyperplane of the hull, whose normal is the
    direction in which the token attends. `moved` bounds the displacement of a token by rounding.
    """
    scale = length_of(c)
    if scale == 0:
        return Depths(np.zeros(len(c)), np.zeros(len(c)))
    unit = c / scale
    queries = unit @ form
    sizes, lengths = np.linalg.norm(queries, axis=1), np.linalg.norm(unit, axis=1)
    scores = queries @ unit[present].T
    own = np.einsum("ir,ir->i", queries, unit)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.maximum(scores.max(axis=1) - own, 0.0) / sizes
        # The Cauchy-Schwarz inequality bounds products of r terms, divided by the norm of the query.
        weight = np.linalg.norm(form) * lengths / sizes
        rounding = 8 * (c.shape[1] + 2) * _EPS * weight + (2 + 2 * weight) * moved / scale
    # A token with zero query attends to all tokens equally and has no face: only the distance from the origin counts.
    below, rounding = np.where(sizes > 0, below, np.inf), np.where(sizes > 0, rounding, 0.0)
    at_origin = lengths <= below
    return Depths(np.where(at_origin, lengths, below), np.where(at_origin, _EPS + moved / scale, rounding))


def corners(
    c: Float[np.ndarray, "n r"], present: Bool[np.ndarray, " n"], radius: float, *, of_hull: bool = True
) -> tuple[Float[np.ndarray, "m r"], Int[np.ndarray, " n"]]:
    """The corners of the hull, (m, r), and the index of the corner of each token, -1 if the token is at none.

    Tokens within `radius` of each other count as one, represented by the longest, so that a token on its way to a
    corner is not taken for the corner. Without `of_hull` all positions of tokens count.
    """
    chosen: list[np.ndarray] = []
    for i in np.argsort(-np.linalg.norm(c, axis=1), kind="stable"):
        if present[i] and all(np.linalg.norm(c[i] - other) > radius for other in chosen):
            chosen.append(c[i])
    places = np.stack(chosen)
    # A point within the radius of the hull of the others lies on an edge or in the interior.
    places = places[outside(places) > radius] if of_hull and len(places) > 1 else places
    gaps = np.linalg.norm(c[:, None] - places[None], axis=-1)
    nearest = np.argmin(gaps, axis=1)
    return places, np.where(gaps.min(axis=1) <= radius, nearest, -1)


def directions(r: int) -> Float[np.ndarray, "m r"]:
    """Unit vectors in which hulls are compared, (m, r)."""
    if r == 1:
        return np.array([[1.0], [-1.0]])
    if r == 2:
        angles = 2 * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    drawn = np.random.default_rng(0).normal(size=(_DIRECTIONS, r))
    axes = np.concatenate([np.eye(r), -np.eye(r), drawn])
    return axes / np.linalg.norm(axes, axis=1, keepdims=True)


def growth(cs: Float[np.ndarray, "times n r"]) -> float:
    """The largest growth of the hull in any direction between two saved times, relative to the largest norm of a token.

    The hull at each time is compared with the smallest extent at all earlier times.
    """
    reach = np.stack([(c @ directions(cs.shape[2]).T).max(axis=0) for c in cs])
    scale = max(length_of(cs.reshape(-1, cs.shape[2])), np.finfo(np.float64).tiny)
    return float((reach - np.minimum.accumulate(reach, axis=0)).max() / scale)
