"""Convex hulls in any dimension, of clouds that may be flat: nearest points, vertices, facets.

The point nearest to the origin solves a non-negative least squares problem (Lawson, Hanson, *Solving Least Squares
Problems*, section 23.4), which requires no general position; Qhull finds facets in coordinates of the affine span.
"""

import numpy as np
from jaxtyping import Float, Int


# The active set changes about once for each point or dimension, so that this factor is never needed in practice.
_MAX_ROUNDS = 30


def nearest_in_hull(points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, " d"]:
    r"""The point of the convex hull of `points` that is nearest to the origin.

    With $\lambda\ge 0$ the least squares solution of $\sum_i\lambda_i (p_i, 1)\approx (0, 1)$, that point is
    $\sum_i\lambda_i p_i / \sum_i\lambda_i$.
    """
    import scipy.optimize  # imported here, because the import takes as long as a small run

    # The scale gives the coordinates and the row of ones below equal weight.
    scale = np.abs(points).max(initial=0.0)
    if scale == 0:
        return np.zeros(points.shape[1])
    m, d = points.shape
    system = np.vstack([points.T / scale, np.ones(m)])
    shares, _ = scipy.optimize.nnls(system, np.append(np.zeros(d), 1.0), maxiter=_MAX_ROUNDS * (m + d))
    return points.T @ (shares / shares.sum())


def outside(points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, " m"]:
    """The distance of each point from the convex hull of the others; infinite for a single point."""
    if len(points) == 1:
        return np.array([np.inf])
    others = [np.delete(points, i, axis=0) - points[i] for i in range(len(points))]
    return np.array([np.linalg.norm(nearest_in_hull(rest)) for rest in others])


def affine_coordinates(points: Float[np.ndarray, "m d"], flat: float) -> Float[np.ndarray, "m k"]:
    """Orthonormal coordinates within the affine span, without directions in which the cloud is thinner than `flat`."""
    # Singular values grow as the square root of the number of points.
    centred = points - points.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    return centred @ axes[sizes > flat * np.sqrt(len(points))].T


def facets(points: Float[np.ndarray, "m d"], flat: float) -> Int[np.ndarray, "f k"]:
    """The facets of the hull of vertices `points`, as indices of their corners; triangulated if they are no simplices.

    In the plane the facets are the edges, in order; for a segment its ends; a point has none.
    """
    inside = affine_coordinates(points, flat)
    k = inside.shape[1]
    # Qhull requires at least two dimensions.
    if k == 0:
        return np.empty((0, 0), int)
    if k == 1:
        return np.array([[np.argmin(inside[:, 0])], [np.argmax(inside[:, 0])]])
    from scipy.spatial import ConvexHull

    hull = ConvexHull(inside)
    if k == 2:
        return np.stack([hull.vertices, np.roll(hull.vertices, -1)], axis=1).astype(int)
    return hull.simplices.astype(int)
