"""The Wasserstein distance between two clouds of tokens: the least cost of transporting the mass of one to the other.

**Algorithm.** $W_p^p = min ∑_{ij} π_{ij} d(x_i, y_j)^p$ over the couplings π of the masses. Equal numbers of equal
masses give an assignment problem (`scipy.optimize.linear_sum_assignment`, a Jonker-Volgenant algorithm); other masses
use successive shortest augmenting paths. On the line an optimal coupling is monotone, so that sorting suffices. On the
circle it is monotone on the covering line: the cost is a convex function of the mass by which one quantile function is
shifted against the other, and golden section finds its minimum.

**Reference.** Peyre and Cuturi, *Computational Optimal Transport*, 2019, sections 2.2, 2.6 and 3; Rabin, Delon and
Gousseau, *Transportation distances on the circle*, 2011. **Invariants.** The distance is a metric on clouds of equal
mass, and in Euclidean space at least the distance of the means.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import check_concrete, check_host_array, check_instance, check_number, refusal, shown
from .._base.types import Masses, Numbers, Tokens
from .._model.space import AbstractSpace, Euclidean, Sphere


# The largest number of distances: more would take more memory and time than a host function should.
_MOST = 2**26
_MOST_WEIGHTED = 2**20
# The number of steps of golden section, which shrink the bracket to the resolution of doubles.
_SECTIONS = 90
# The largest size of coordinates whose differences, and their norms, are finite.
_LARGEST = 1e300


def wasserstein(
    x: Tokens | Numbers,
    y: Tokens | Numbers,
    p: float = 2.0,
    *,
    space: AbstractSpace = Sphere(),
    masses: tuple[Masses | Numbers, Masses | Numbers] | None = None,
) -> float:
    """$W_p(μ, ν) = min_π (∑_{ij} π_{ij} d(x_i, y_j)^p)^{1/p}$, with d the distance in the space.

    A host function, exact to the rounding of tokens and masses: by sorting on the line and on the circle, by an
    assignment for equal masses, and by shortest augmenting paths for other masses. A mass of the size of the rounding
    error is not transported.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> print(f"{cjx.wasserstein(x, -x):.3f}")  # each token goes a quarter of the circle
        1.571
        ```

    **Arguments:**

    - `x`, `y`: Tokens, (n, d) and (m, d).
    - `p`: The exponent, from 1 to 64.
    - `space`: `Sphere()`, whose distance is the angle, or `Euclidean()`.
    - `masses`: The masses of x and of y, (n,) and (m,), each divided by its sum; None means equal masses.

    **Returns:**

    The distance.

    **Raises:**

    - `ValueError` for clouds of different dimensions, masses that do not fit the clouds, p out of range, or too many
        pairs: 2^26 for equal numbers of equal masses, 2^20 for others, without a limit on the line and on the circle.

    ??? cite "Source"

        Geshkovski, Letrouit, Polyanskiy, Rigollet, *A mathematical perspective on transformers* (2312.10794), Section
        3: gradient flows in Wasserstein space.
    """
    check_instance(space, "space", (Sphere, Euclidean), "Sphere() or Euclidean()", "pass one of these")
    p = check_number(p, "p", least=1, most=64, remedy="pass 1 or 2, for example")
    points = [_host(cloud, name, isinstance(space, Sphere)) for name, cloud in (("x", x), ("y", y))]
    if points[0].shape[1] != points[1].shape[1]:
        shapes = f"the shapes are {points[0].shape} and {points[1].shape}"
        raise refusal("y", "be tokens of the same dimension as x", shapes, "pass clouds of one space")
    first, second = _shares(masses, points)
    if points[0].shape[1] == 1 and isinstance(space, Euclidean):
        return _on_the_line(points[0][:, 0], points[1][:, 0], first, second, p)
    if points[0].shape[1] == 2 and isinstance(space, Sphere):
        angles = [np.arctan2(cloud[:, 1], cloud[:, 0]) for cloud in points]
        return _on_the_circle(angles[0], angles[1], first, second, p)
    equal = masses is None and len(points[0]) == len(points[1])
    if (pairs := len(points[0]) * len(points[1])) > (most := _MOST if equal else _MOST_WEIGHTED):
        raise refusal("x", f"make at most {most} pairs with y", f"there are {pairs}", "take fewer tokens of each")
    distances = _distances(points[0], points[1], isinstance(space, Sphere))
    return _by_pairs(distances, p, _assigned if equal else lambda costs: _coupled(costs, first, second))


def _host(cloud: Any, name: str, sphere: bool) -> NDArray:
    """Tokens on the host, in double precision, normalised on the sphere."""
    check_concrete(cloud, name)
    points = check_host_array(cloud, name, shape=("n", "d"), remedy="pass tokens (n, d)")
    if not points.size:
        raise refusal(name, "have a token", f"its shape is {points.shape}", "pass one or more")
    if not sphere:
        if np.abs(points).max() > _LARGEST:
            raise refusal(name, f"be at most {_LARGEST:g} in size", "a number of it is more", "rescale both clouds")
        return points
    size = np.abs(points).max(axis=1, keepdims=True)
    if not size.all():
        raise refusal(name, "have a direction", "a token of it is zero", "pass Euclidean() for tokens of the plane")
    return points / size / np.linalg.norm(points / size, axis=1, keepdims=True)


def _shares(masses: Any, points: list[NDArray]) -> tuple[NDArray, NDArray]:
    """The masses of both clouds, each times the sum of the other, so that whole masses have exactly equal sums."""
    if masses is None:
        masses = tuple(np.ones(len(cloud)) for cloud in points)
    if not isinstance(masses, tuple | list) or len(masses) != 2:
        raise refusal("masses", "be a pair, those of x and of y", f"it is {shown(masses)}", "pass those of x and of y")
    shares = []
    for cloud_masses, cloud in zip(masses, points, strict=True):
        check_concrete(cloud_masses, "masses")
        mass = check_host_array(cloud_masses, "masses", shape=(len(cloud),), remedy="pass one a token")
        if np.any(mass < 0) or not mass.sum() > 0:
            raise refusal("masses", "be not negative and not all zero", "they are not", "pass weights of tokens")
        shares.append(np.ldexp(mass, -np.frexp(mass.max())[1]))  # the scale by a power of two does not round
    return shares[0] * shares[1].sum(), shares[1] * shares[0].sum()


def _distances(x: NDArray, y: NDArray, sphere: bool) -> NDArray:
    """The distances of all pairs in the space."""
    along = range(x.shape[1])
    norm = lambda sign: reduce(np.hypot, (x[:, None, k] + sign * y[None, :, k] for k in along), np.zeros(()))
    # This formula for the angle between unit vectors is accurate both near zero and near pi (Kahan).
    return 2 * np.arctan2(norm(-1), norm(1)) if sphere else norm(-1)


def _power_mean(distances: NDArray, shares: NDArray, p: float) -> float:
    """The p-th root of the mean of p-th powers, with the largest distance factored out to prevent underflow."""
    largest = distances.max(initial=0.0, where=shares > 0)
    ratios = np.minimum(distances / largest, 1) if largest else distances
    return float(largest * (np.sum(shares * ratios**p) / shares.sum()) ** (1 / p))


def _by_pairs(distances: NDArray, p: float, couple: Callable[[NDArray], NDArray]) -> float:
    """The distance by a coupling of least cost, in a unit in which the costs of this coupling do not underflow."""
    unit = distances.max()
    while unit > 0:
        coupling = couple(np.minimum(distances / unit, 1e150 ** (1 / p)) ** p)
        largest = distances[coupling > 0].max()
        if largest >= unit / 2:
            return _power_mean(distances, coupling, p)
        unit = largest
    return 0.0


def _assigned(costs: NDArray) -> NDArray:
    from scipy.optimize import linear_sum_assignment  # imported only when needed

    coupling = np.zeros_like(costs)
    coupling[linear_sum_assignment(costs)] = 1
    return coupling


def _coupled(costs: NDArray, first: NDArray, second: NDArray) -> NDArray:
    """The coupling (n, m) of least cost: the mass of each row moves along shortest paths to columns with room.

    A path may take mass back from the rows that sent it. The reduced costs, after subtraction of the potentials u and
    v, are never negative, and zero where mass is transported, so that Dijkstra's algorithm finds these paths.
    """
    n, m = costs.shape
    least = _rounding(first, second)
    remaining, room, coupling = first.copy(), second.copy(), np.zeros((n, m))
    u, v = np.zeros(n), costs.min(axis=0)
    for start in range(n):
        while remaining[start] > least and room.max() > least:
            # Lengths of paths to columns and rows, with the last row before a column and the last column before a row.
            to_column, last = costs[start] - u[start] - v, np.full(m, start)
            to_row, left_from = np.full(n, np.inf), np.full(n, -1)
            to_row[start] = 0
            unsettled = np.ones(m, bool)
            while True:
                at = to_column.min(where=unsettled, initial=np.inf)
                nearest = np.flatnonzero(unsettled & (to_column <= at))
                ends = nearest[room[nearest] > least]
                if ends.size:
                    break
                unsettled[nearest] = False
                for row in np.flatnonzero((coupling[:, nearest] > 0).any(axis=1) & np.isinf(to_row)):
                    to_row[row], left_from[row] = at, nearest[np.argmax(coupling[row, nearest] > 0)]
                    length = at + (costs[row] - u[row] - v)
                    nearer = unsettled & (length < to_column)
                    to_column[nearer], last[nearer] = length[nearer], row
            reached = np.isfinite(to_row)
            u[reached] += at - to_row[reached]
            v[~unsettled] -= at - to_column[~unsettled]
            end = column = ends[0]
            path = [(last[column], column)]
            while (row := path[-1][0]) != start:
                column = left_from[row]
                path += [(row, column), (last[column], column)]
            rows, columns = np.array(path).T
            mass = min(remaining[start], room[end], coupling[rows[1::2], columns[1::2]].min(initial=np.inf))
            coupling[rows[::2], columns[::2]] += mass
            coupling[rows[1::2], columns[1::2]] -= mass
            remaining[start] -= mass
            room[end] -= mass
    return coupling


def _rounding(first: NDArray, second: NDArray) -> float:
    """A bound on the rounding error of sums of masses; smaller masses are not transported."""
    return (len(first) + len(second)) * np.finfo(float).eps * first.sum()


def _quantiles(first: NDArray, second: NDArray, least: float) -> tuple[NDArray, NDArray]:
    """The midpoints of the pieces on which both quantile functions are constant, and their lengths, above `least`."""
    cuts = np.unique(np.concatenate([[0.0], first, second]))
    lengths = np.diff(cuts)
    return ((cuts[1:] + cuts[:-1]) / 2)[lengths > least], lengths[lengths > least]


def _on_the_line(x: NDArray, y: NDArray, first: NDArray, second: NDArray, p: float) -> float:
    places = []
    for points, shares in ((x, first), (y, second)):
        order = np.argsort(points)
        places.append((points[order], np.cumsum(shares[order])))
    middles, lengths = _quantiles(places[0][1], places[1][1], _rounding(first, second))
    values = [points[np.minimum(np.searchsorted(before, middles), len(points) - 1)] for points, before in places]
    return _power_mean(np.abs(values[0] - values[1]), lengths, p)


def _on_the_circle(x: NDArray, y: NDArray, first: NDArray, second: NDArray, p: float) -> float:
    order, other = np.argsort(x), np.argsort(y)
    least, total = _rounding(first, second), first.sum()
    x, first, y, second = x[order], np.cumsum(first[order]), y[other], np.cumsum(second[other])

    def cost(shift: float) -> float:
        """The cost of the coupling that is monotone on the covering line, with mass `shift` before the cut of y."""
        # The pieces end at the jumps of the shifted quantile function within one turn.
        middles, lengths = _quantiles(first, np.append(np.mod(second + shift, total), total), least)
        from_x = x[np.minimum(np.searchsorted(first, middles), len(x) - 1)]
        turns = np.floor((middles - shift) / total)
        places = np.minimum(np.searchsorted(second, middles - shift - turns * total), len(y) - 1)
        return _power_mean(np.abs(from_x - y[places] - 2 * np.pi * turns), lengths, p)

    low, high = -total, total
    ratio = (np.sqrt(5) - 1) / 2
    inner = [high - ratio * (high - low), low + ratio * (high - low)]
    values = [cost(shift) for shift in inner]
    best = min(values)
    for _ in range(_SECTIONS):
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - ratio * (high - low)
            values[0] = cost(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + ratio * (high - low)
            values[1] = cost(inner[1])
        best = min(best, *values)
    return best
