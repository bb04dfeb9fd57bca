"""The limit set S of the hardmax dynamics, its polytope K, and the point that each token converges to.

**Algorithm.** The layers are run to a fixed point. A token near a leader belongs to it; the others are grouped into
connected components at a radius; a point of S is a vertex of K if it is outside the convex hull of the other points.
**Reference.** Alcalde, Fantuzzi, Zuazua (2407.01602), the theorem on leaders and clusters.
**Invariants.** The leaders' points come first, in the order of the tokens; geometry is in float64 NumPy.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._check import MOST_ENTRIES, check_integer, refusal
from .._custom_types import Tokens
from .._misc import is_concrete
from .._schedule import at_time
from ._fixed_point import FixedPoint, run_to_fixed_point
from ._hull import affine_coordinates, facets, outside
from ._layer import HardmaxLayer
from ._leaders import Leaders, check_fit


# Relative to the longest token: what counts as one point, and as outside a hull; and when tokens have settled. Each
# pair (k, floor) stands for max(k * eps, floor), with the machine epsilon eps of the dtype; see `small`.
_SAME = (2048, 1e-6)
_OUTSIDE = (64, 1e-10)
_SETTLED = (256, 0.0)


class LimitSet(eqx.Module):
    """Where the tokens end.

    **Attributes:**

    - `points`: S, (m, d): the points that tokens converge to, the leaders' first, in the order of the tokens.
    - `is_vertex`: (m,), whether the point is a vertex of the polytope K, the convex hull of S.
    - `outside`: (m,), how far the point is from the convex hull of the others; infinitely far if it is the only one.
    - `vertices`: The vertices of K, (v, d).
    - `facets`: (f, k), the indices in `points` of the corners of each facet within the affine span of K, computed
        on access. In the plane they are the edges in order; facets that are no simplices are triangulated.
    - `dimension`: Of the affine span of K.
    - `goes_to`: (n,), the index in `points` of each token's limit; -1 for padding.
    - `distance`: (n,), how far the token is from there after the last layer; 0 for padding.
    - `leaders`: The `Leaders`.
    - `layers`: How many layers were applied.
    - `settled`: Whether the tokens had stopped moving by then, but for rounding.
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


def limit_set(z0: Tokens, layer: HardmaxLayer, depth: int = 100_000) -> LimitSet:
    r"""The set S of the points that tokens converge to, and its convex hull K; the layers run until nothing moves.

    Each leader is a point of S where it stays. Every other token goes to the leader beside it after the last layer,
    within 1e-6 of the length of the longest token (2.4e-4 in single precision), and where there is none, tokens that
    are that near to each other make a point. Vertices are the points of S outside the hull of the others, so that
    clouds of any dimension, on a line or in a plane of space, need no special care. A host function, for any A; for
    one that is not positive definite the tokens need not settle, and `settled` says so.

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

    - `z0`: Tokens, (n, d): layer 0.
    - `layer`: A `HardmaxLayer`.
    - `depth`: The most layers that are applied, a positive integer.

    **Returns:**

    A `LimitSet`, of NumPy arrays in double precision.

    **Raises:**

    - `ValueError` if `z0` is not a finite cloud that fits the layer, of float32 or float64, or is traced, or `depth` is
        no positive integer.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), the theorem's
        polytope K and set S.
    """
    z0 = check_fit(z0, layer)
    if not is_concrete((z0, layer)):
        raise ValueError("z0 must not be traced, but it is; call this host function outside jax.jit.")
    check_precision(z0)
    depth = check_integer(depth, "depth", most=MOST_ENTRIES, remedy="pass the most layers to apply")
    end = run_to_fixed_point(z0, layer, jnp.asarray(depth), settled_tolerance(z0.dtype))
    return limit_of(end, np.asarray(z0), present_tokens(layer, len(z0)))


def check_precision(z0: Tokens) -> None:
    """Raise a ValueError if rounding in the dtype of `z0` is larger than the steps of tokens that have not settled."""
    if z0.dtype not in (jnp.float32, jnp.float64):
        found = f"its dtype is {z0.dtype}, in which tokens that still move look settled"
        raise refusal("z0", "be of float32 or float64", found, "pass z0.astype(jax.numpy.float32)")


def small(size: tuple[int, float], dtype: Any) -> float:
    """max(k * eps, floor) of the pair `size` = (k, floor), with the machine epsilon eps of `dtype`."""
    return max(size[0] * float(np.finfo(dtype).eps), size[1])


def settled_tolerance(dtype: Any) -> Float[Array, ""]:
    """How far tokens may be from the mean that they go to when they have settled, relative to the longest."""
    return jnp.asarray(small(_SETTLED, dtype), dtype)


def present_tokens(layer: HardmaxLayer, n: int) -> Bool[np.ndarray, " n"]:
    """Which tokens are no padding; by the masses of layer 0, where they depend on the layer."""
    masses = at_time(layer.masses, 0)
    return np.ones(n, bool) if masses is None else np.asarray(masses) > 0


def limit_of(end: FixedPoint, z0: Float[np.ndarray, "n d"], present: Bool[np.ndarray, " n"]) -> LimitSet:
    """The limit set of a run that has come to its `end`."""
    # In float64 from here on, whatever the dtype of the run.
    x, led = np.asarray(end.x, np.float64), np.asarray(end.leaders.mask)
    scale = max(_length(np.asarray(z0, np.float64)[present]), float(np.finfo(np.float32).tiny))
    radius = small(_SAME, z0.dtype) * scale
    points, goes_to, distance = _gather(x, np.asarray(end.leaders.points, np.float64), led, present, radius)
    # One non-negative least squares problem for each point of S.
    far = outside(points)
    settled = bool(end.left <= small(_SETTLED, z0.dtype))
    return LimitSet(
        points, far > small(_OUTSIDE, z0.dtype) * scale, far, goes_to, distance, end.leaders, int(end.layers), settled
    )


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number and what it counts."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _gather(
    x: np.ndarray, positions: np.ndarray, led: np.ndarray, present: np.ndarray, radius: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points of S, leaders' first, the index of each token's point, and its distance from there."""
    points, goes_to = list(positions[led]), np.full(len(x), -1)
    goes_to[led] = np.arange(led.sum())
    for i in np.flatnonzero(present & ~led):
        # A leader takes the tokens near it: it stays where it is, and no mean with them is formed.
        gaps = np.linalg.norm(positions[led] - x[i], axis=1)
        if gaps.size and gaps.min() <= radius:
            goes_to[i] = int(gaps.argmin())
    rest = np.flatnonzero(present & (goes_to < 0))
    if rest.size:
        from scipy.sparse import coo_array  # here, since its import takes as long as a small run
        from scipy.sparse.csgraph import connected_components
        from scipy.spatial import KDTree

        # Tokens that are no leaders and near none: connected components at the radius, each a point of S, its mean.
        pairs = KDTree(x[rest]).query_pairs(radius, output_type="ndarray")
        graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(rest.size, rest.size))
        labels = connected_components(graph, directed=False)[1]
        for label in np.unique(labels):
            goes_to[rest[labels == label]] = len(points)
            points.append(x[rest[labels == label]].mean(axis=0))
    limits = np.stack(points)
    distance = np.where(present, np.linalg.norm(x - limits[goes_to], axis=1), 0.0)
    return limits, goes_to, distance


def _length(x: np.ndarray) -> float:
    return float(np.linalg.norm(x, axis=1).max())
