"""Clouds in the coordinates of F: how far tokens are from the faces that they attend to, corners, nested hulls.

**Invariants.** A depth is not negative and is zero for a token that attends to itself or to the face that it lies on;
rounding is bounded beside each, so that a clause may count it against itself; tokens without mass are attended to by
nobody and make no corner.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..hardmax._hull import outside


_EPS = float(np.finfo(np.float64).eps)
# Directions in which hulls are compared, in the plane and above; on a line there are two.
_DIRECTIONS = 256


class Depths(NamedTuple):
    """How far tokens are from the set S, in units of the longest.

    **Attributes:**

    - `residual`: (n,), the smaller of the distance from the origin and the depth below the face.
    - `rounding`: (n,), by how much rounding may have made it too small.
    """

    residual: Float[np.ndarray, " n"]
    rounding: Float[np.ndarray, " n"]


def length_of(c: Float[np.ndarray, "n r"]) -> float:
    """The length of the longest row."""
    return float(np.linalg.norm(c, axis=1).max())


def depths(
    c: Float[np.ndarray, "n r"], form: Float[np.ndarray, "r r"], present: Bool[np.ndarray, " n"], moved: float
) -> Depths:
    r"""The distance of each token from the origin, or below the face that its direction $B^\top c_i$ supports.

    S = {c: <B^T c, c> = max_j <B^T c, c_j>}: a token of S lies in a supporting hyperplane of the hull whose normal is
    the direction in which it attends. `moved` is how far rounding may have moved a token.
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
        # Products of r terms, by Cauchy and Schwarz, over the length that they are divided by.
        weight = np.linalg.norm(form) * lengths / sizes
        rounding = 8 * (c.shape[1] + 2) * _EPS * weight + (2 + 2 * weight) * moved / scale
    # A token that attends to all alike has no face of its own: only the origin counts.
    below, rounding = np.where(sizes > 0, below, np.inf), np.where(sizes > 0, rounding, 0.0)
    at_origin = lengths <= below
    return Depths(np.where(at_origin, lengths, below), np.where(at_origin, _EPS + moved / scale, rounding))


def corners(
    c: Float[np.ndarray, "n r"], present: Bool[np.ndarray, " n"], radius: float, *, of_hull: bool = True
) -> tuple[Float[np.ndarray, "m r"], Int[np.ndarray, " n"]]:
    """The corners of the hull, tokens within `radius` of each other being one; and each token's, -1 where it has none.

    Longer tokens stand for shorter ones, so that a token on its way to a corner is not taken for it. Without `of_hull`
    all the places where tokens are.
    """
    chosen: list[np.ndarray] = []
    for i in np.argsort(-np.linalg.norm(c, axis=1), kind="stable"):
        if present[i] and all(np.linalg.norm(c[i] - other) > radius for other in chosen):
            chosen.append(c[i])
    places = np.stack(chosen)
    # Thinner than the radius: the point is on an edge, or within.
    places = places[outside(places) > radius] if of_hull and len(places) > 1 else places
    gaps = np.linalg.norm(c[:, None] - places[None], axis=-1)
    nearest = np.argmin(gaps, axis=1)
    return places, np.where(gaps.min(axis=1) <= radius, nearest, -1)


def directions(r: int) -> Float[np.ndarray, "m r"]:
    """Unit vectors in which hulls are compared."""
    if r == 1:
        return np.array([[1.0], [-1.0]])
    if r == 2:
        angles = 2 * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    drawn = np.random.default_rng(0).normal(size=(_DIRECTIONS, r))
    axes = np.concatenate([np.eye(r), -np.eye(r), drawn])
    return axes / np.linalg.norm(axes, axis=1, keepdims=True)


def growth(cs: Float[np.ndarray, "times n r"]) -> float:
    """By how much the hull grows in any direction between any two saved times, in units of the longest token.

    The hull at each time is compared with the smallest reach of all earlier ones.
    """
    reach = np.stack([(c @ directions(cs.shape[2]).T).max(axis=0) for c in cs])
    scale = max(length_of(cs.reshape(-1, cs.shape[2])), np.finfo(np.float64).tiny)
    return float((reach - np.minimum.accumulate(reach, axis=0)).max() / scale)
