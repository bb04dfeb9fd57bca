"""The limit set S of the hardmax dynamics, its polytope K, and the point to which each token converges.

**Algorithm.** The layers run to a fixed point. A token near a leader belongs to that leader; connected components at a
radius group the other tokens; a point of S is a vertex of K if it is outside the convex hull of the other points.
**Reference.** Alcalde, Fantuzzi, Zuazua (2407.01602), the theorem on leaders and clusters.
**Invariants.** The points of the leaders come first, in the order of the tokens; geometry is in float64 NumPy.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._base.checks import MOST_ENTRIES, check_integer, refusal
from .._base.defaults import DEPTH
from .._base.numerics import is_concrete
from .._base.types import Tokens
from .._model.schedule import at_time
from .._observables.clusters import nearest_in_hull
from ._layer import HardmaxLayer
from ._leaders import Leaders, advance, check_fit, no_leaders


# Applies hardmax layers until no token moves by more than a tolerance: the fixed point of the dynamics.
#
# A `lax.while_loop` applies one layer per step, and compiles once for each shape. Each layer multiplies the distance of
# a token from the mean to which it moves by 1 / (1 + alpha) (Alcalde, Fantuzzi, Zuazua, 2407.01602, eq. (1a)), so that
# this distance, `left`, measures convergence for any alpha. Leaders are recorded at each layer.


class FixedPoint(eqx.Module):
    """The tokens after the last layer, and their remaining distance from a fixed point."""

    x: Float[Array, "n d"]
    leaders: Leaders  # the leaders of all layers
    layers: Int[Array, ""]  # the number of applied layers
    left: Float[Array, ""]  # the largest distance of a token from the mean to which it moves, over the largest norm


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
        distance = moved / (layer.step(k, z0.dtype) * length)
        return FixedPoint(x, leaders, k + 1, distance)

    start = FixedPoint(z0, no_leaders(z0), jnp.asarray(0), jnp.asarray(jnp.inf, z0.dtype))
    end = lax.while_loop(unsettled, apply, start)
    # `advance` finds the leaders before a layer, so that a further call finds the leaders of the last tokens.
    return FixedPoint(end.x, advance(end.x, end.leaders, layer, end.layers)[1], end.layers, end.left)


# Convex hulls in any dimension, of clouds that may be flat: the distance from a hull, and facets, which Qhull finds in
# coordinates of the affine span.


def outside(points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, " m"]:
    """The distance of each point from the convex hull of the others; infinite for a single point."""
    if len(points) == 1:
        return np.array([np.inf])
    others = [np.delete(points, i, axis=0) - points[i] for i in range(len(points))]
    return np.array([np.linalg.norm(nearest_in_hull(shifted)) for shifted in others])


def affine_coordinates(points: Float[np.ndarray, "m d"], flat: float) -> Float[np.ndarray, "m k"]:
    """Orthonormal coordinates within the affine span, without directions in which the cloud is thinner than `flat`."""
    # Singular values grow as the square root of the number of points.
    centred = points - points.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    return centred @ axes[sizes > flat * np.sqrt(len(points))].T


def facets(points: Float[np.ndarray, "m d"], flat: float) -> Int[np.ndarray, "f k"]:
    """The facets of the hull of vertices `points`, as indices of corners: simplices, edges in order, or two ends."""
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


# Tolerances relative to the largest norm of a token: for equal points, for points outside a hull, and for settled
# tokens. A pair (k, floor) stands for max(k * eps, floor), with eps the machine epsilon of the dtype; see `small`.
_SAME = (2048, 1e-6)
_OUTSIDE = (64, 1e-10)
_SETTLED = (256, 0.0)


class LimitSet(eqx.Module):
    """The limit set of the tokens.

    **Attributes:**

    - `points`: S, (m, d): the limits of the tokens, first those of the leaders, in the order of the tokens.
    - `is_vertex`: (m,), True if the point is a vertex of the polytope K, the convex hull of S.
    - `outside`: (m,), the distance of the point from the convex hull of the others; infinite for a single point.
    - `vertices`: The vertices of K, (v, d).
    - `facets`: (f, k), the indices in `points` of the corners of each facet within the affine span of K, computed
        on access. In the plane the facets are the edges in order; facets that are not simplices are triangulated.
    - `dimension`: The dimension of the affine span of K.
    - `goes_to`: (n,), the index in `points` of each token's limit; -1 for padding.
    - `distance`: (n,), the distance of the token from its limit after the last layer; 0 for padding.
    - `leaders`: The `Leaders`.
    - `layers`: The number of layers that were applied.
    - `settled`: True if the tokens had stopped moving by then, up to rounding.
    """

    points: Float[np.ndarray, "m d"]
    is_vertex: Bool[np.ndarray, " m"]
    outside: Float[np.ndarray, " m"]
    goes_to: Int[np.ndarray, " n"]
    distance: Float[np.ndarray, " n"]
    leaders: Leaders
    layers: int
    settled: bool

    @property
    def vertices(self) -> Float[np.ndarray, "v d"]:
        return self.points[self.is_vertex]

    @property
    def facets(self) -> Int[np.ndarray, "f k"]:
        return np.flatnonzero(self.is_vertex)[facets(self.vertices, _SAME[1] * _length(self.points))]

    @property
    def dimension(self) -> int:
        return affine_coordinates(self.vertices, _SAME[1] * _length(self.points)).shape[1]

    def __repr__(self) -> str:
        corners = int(self.is_vertex.sum())
        return (
            f"LimitSet({counted(len(self.goes_to), 'token')}, {counted(len(self.leaders.indices), 'leader')}, polytope "
            f"of dimension {self.dimension} with {counted(corners, 'vertex', 'vertices')}, "
            f"{counted(len(self.points) - corners, 'other point')}; "
            f"{'settled' if self.settled else 'not settled'} after {counted(self.layers, 'layer')})"
        )


def limit_set(z0: Tokens, layer: HardmaxLayer, depth: int = DEPTH) -> LimitSet:
    r"""The set S of the limits of the tokens, and its convex hull K; the layers run until no token moves.

    The position of each leader is a point of S. Every other token belongs to the leader within 1e-6 of it after the
    last layer, relative to the largest norm of a token (2.4e-4 in single precision). Tokens without such a leader form
    a point if they are within that distance of each other. Vertices are the points of S outside the hull of the others,
    so that clouds of any dimension, on a line or in a plane of space, need no special treatment. A host function, for
    any A; if A is not positive definite, the tokens need not settle, and `settled` says so.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> z0 = jnp.array([[4.0, 0.0], [0.0, 4.0], [1.0, 0.0], [1.0, 1.0]])
        >>> end = cjx.hardmax.limit_set(z0, cjx.hardmax.HardmaxLayer(1.0))
        >>> print(end.points.round(3))
        [[4. 0.]
         [0. 4.]
         [2. 2.]]
        >>> end.is_vertex.tolist(), end.goes_to.tolist()
        ([True, True, False], [0, 1, 0, 2])
        ```

    **Arguments:**

    - `z0`: Tokens at layer 0, (n, d).
    - `layer`: A `HardmaxLayer`.
    - `depth`: The maximal number of layers, a positive integer.

    **Returns:**

    A `LimitSet`, with NumPy arrays in double precision.

    **Raises:**

    - `ValueError` if `z0` is not a finite cloud that fits the layer, of float32 or float64, or is traced, or `depth` is
        no positive integer.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), the theorem's
        polytope K and set S.
    """
    z0, depth = check_run(z0, layer, depth)
    end = run_to_fixed_point(z0, layer, jnp.asarray(depth), settled_tolerance(z0.dtype))
    return limit_of(end, np.asarray(z0), present_tokens(layer, len(z0)))


def check_run(z0: Any, layer: Any, depth: Any) -> tuple[Tokens, int]:
    """Tokens and depth of a run to the fixed point; raises a ValueError if they do not fit, or a value is traced."""
    z0 = check_fit(z0, layer)
    check_host(z0, layer)
    return check_precision(z0), check_integer(depth, "depth", most=MOST_ENTRIES, remedy="pass the most layers to apply")


def check_host(*values: Any) -> None:
    if not is_concrete(values):
        raise ValueError("z0 must not be traced, but it is; call this host function outside jax.jit.")


def check_precision(z0: Tokens) -> Tokens:
    """`z0`; raises a ValueError if rounding in its dtype exceeds the steps of tokens that have not settled."""
    if z0.dtype not in (jnp.float32, jnp.float64):
        problem = f"its dtype is {z0.dtype}, in which tokens that still move look settled"
        raise refusal("z0", "be of float32 or float64", problem, "pass z0.astype(jax.numpy.float32)")
    return z0


def small(size: tuple[int, float], dtype: Any) -> float:
    """max(k * eps, floor) of the pair `size` = (k, floor), with the machine epsilon eps of `dtype`."""
    return max(size[0] * float(np.finfo(dtype).eps), size[1])


def settled_tolerance(dtype: Any) -> Float[Array, ""]:
    """The largest distance of settled tokens from the mean to which they move, relative to the largest norm."""
    return jnp.asarray(small(_SETTLED, dtype), dtype)


def present_tokens(layer: HardmaxLayer, n: int) -> Bool[np.ndarray, " n"]:
    """True for tokens that are not padding, by the masses of layer 0."""
    masses = at_time(layer.masses, 0)
    return np.ones(n, bool) if masses is None else np.asarray(masses) > 0


def limit_of(end: FixedPoint, z0: Float[np.ndarray, "n d"], present: Bool[np.ndarray, " n"]) -> LimitSet:
    """The limit set of a run with the result `end`."""
    # Geometry is in float64, whatever the dtype of the run.
    x, led = np.asarray(end.x, np.float64), np.asarray(end.leaders.mask)
    scale = max(_length(np.asarray(z0, np.float64)[present]), float(np.finfo(np.float32).tiny))
    radius = small(_SAME, z0.dtype) * scale
    points, goes_to, distance = _gather(x, np.asarray(end.leaders.points, np.float64), led, present, radius)
    # `outside` solves one non-negative least squares problem for each point of S.
    far = outside(points)
    settled = bool(end.left <= small(_SETTLED, z0.dtype))
    return LimitSet(
        points, far > small(_OUTSIDE, z0.dtype) * scale, far, goes_to, distance, end.leaders, int(end.layers), settled
    )


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, in the singular or plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _gather(
    x: np.ndarray, positions: np.ndarray, led: np.ndarray, present: np.ndarray, radius: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points of S, first those of the leaders, the index of each token's point, and the distance from it."""
    points, goes_to = list(positions[led]), np.full(len(x), -1)
    goes_to[led] = np.arange(led.sum())
    for i in np.flatnonzero(present & ~led):
        # Tokens near a leader belong to it without a mean, because the leader stays exactly where it is.
        gaps = np.linalg.norm(positions[led] - x[i], axis=1)
        if gaps.size and gaps.min() <= radius:
            goes_to[i] = int(gaps.argmin())
    free = np.flatnonzero(present & (goes_to < 0))
    if free.size:
        from scipy.sparse import coo_array  # imported here, because the import takes as long as a small run
        from scipy.sparse.csgraph import connected_components
        from scipy.spatial import KDTree

        # The other tokens form connected components at the radius, and the mean of each is a point of S.
        pairs = KDTree(x[free]).query_pairs(radius, output_type="ndarray")
        graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(free.size, free.size))
        labels = connected_components(graph, directed=False)[1]
        for label in np.unique(labels):
            goes_to[free[labels == label]] = len(points)
            points.append(x[free[labels == label]].mean(axis=0))
    limits = np.stack(points)
    distance = np.where(present, np.linalg.norm(x - limits[goes_to], axis=1), 0.0)
    return limits, goes_to, distance


def _length(x: np.ndarray) -> float:
    return float(np.linalg.norm(x, axis=1).max())
