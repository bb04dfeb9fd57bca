r"""The Wasserstein distance between two clouds of tokens: how far mass must be carried to turn one into the other.

**Algorithm.** $W_p^p = \min\sum_{ij}\pi_{ij}\,d(x_i, y_j)^p$ over the couplings $\pi$ of the masses. With as many equal
masses on either side it is an assignment (`scipy.optimize.linear_sum_assignment`, a Jonker-Volgenant algorithm); with
other masses a linear programme (`scipy.optimize.linprog`, HiGHS). On the line an optimal coupling is monotone, so that
sorting suffices. On the circle it is monotone on the line that covers it: the cost is a convex function of the mass by
which one quantile function is shifted against the other, whose minimum is found by golden section.

**Reference.** Peyre and Cuturi, *Computational Optimal Transport*, 2019, sections 2.2, 2.6 and 3; Rabin, Delon and
Gousseau, *Transportation distances on the circle*, 2011. **Invariants.** A metric on clouds of the same mass; no
smaller than the distance of the means in Euclidean space.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._check import check_concrete, check_host_array, check_instance, check_number, refusal, shown
from .._custom_types import Masses, Numbers, Tokens
from .._space import AbstractSpace, Euclidean, Sphere


# Entries of the matrix of distances; more take more memory and time than a host function should.
_MOST = 2**26
_MOST_WEIGHTED = 2**20
# Golden section: halvings of the bracket to the root of what doubles can tell.
_SECTIONS = 90


def wasserstein(
    x: Tokens | Numbers,
    y: Tokens | Numbers,
    p: float = 2.0,
    *,
    space: AbstractSpace = Sphere(),
    masses: tuple[Masses | Numbers, Masses | Numbers] | None = None,
) -> float:
    r"""$W_p(\mu, \nu) = \min_\pi\left(\sum_{ij}\pi_{ij}\,d(x_i, y_j)^p\right)^{1/p}$, d the distance along the space.

    A host function, exact to rounding: by sorting on the line and on the circle, by an assignment for equal masses, by
    a linear programme for others.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> print(f"{cjx.wasserstein(x, -x):.3f}")  # each token goes a quarter of the circle
        1.571
        ```

    **Arguments:**

    - `x`, `y`: Tokens, (n, d) and (m, d).
    - `p`: At least 1.
    - `space`: `Sphere()`, whose distance is the angle, or `Euclidean()`.
    - `masses`: Those of both, (n,) and (m,), each brought to the sum one; None is equal ones.

    **Returns:**

    The distance.

    **Raises:**

    - `ValueError` for tokens that do not fit each other, masses that do not fit them, p below 1, or more pairs than are
        solved: 2^26 of equal numbers of equal masses, 2^20 of others, but on the line and on the circle.

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
        angles = [np.arctan2(one[:, 1], one[:, 0]) for one in points]
        return _on_the_circle(angles[0], angles[1], first, second, p)
    equal = masses is None and len(points[0]) == len(points[1])
    if (pairs := len(points[0]) * len(points[1])) > (most := _MOST if equal else _MOST_WEIGHTED):
        raise refusal("x", f"make at most {most} pairs with y", f"there are {pairs}", "take fewer tokens of each")
    costs = _distances(points[0], points[1], space) ** p
    return float((_assigned(costs) if equal else _coupled(costs, first, second)) ** (1 / p))


def _host(cloud: Any, name: str, sphere: bool) -> NDArray:
    """Tokens on the host, in double precision, of unit length on the sphere."""
    check_concrete(cloud, name)
    points = check_host_array(cloud, name, shape=("n", "d"), remedy="pass tokens (n, d)")
    if not points.size:
        raise refusal(name, "have a token", f"its shape is {points.shape}", "pass one or more")
    if not sphere:
        return points
    length = np.sqrt((points**2).sum(axis=1, keepdims=True))
    if not length.all():
        raise refusal(name, "have a direction", "a token of it is zero", "pass Euclidean() for tokens of the plane")
    return points / length


def _shares(masses: Any, points: list[NDArray]) -> tuple[NDArray, NDArray]:
    """The masses of both, of sum one."""
    if masses is None:
        masses = tuple(np.ones(len(one)) for one in points)
    if not isinstance(masses, tuple | list) or len(masses) != 2:
        raise refusal("masses", "be a pair, those of x and of y", f"it is {shown(masses)}", "pass those of x and of y")
    found = []
    for given, cloud in zip(masses, points, strict=True):
        check_concrete(given, "masses")
        one = check_host_array(given, "masses", shape=(len(cloud),), remedy="pass one a token")
        if np.any(one < 0) or not one.sum() > 0:
            raise refusal("masses", "be not negative and not all zero", "they are not", "pass weights of tokens")
        found.append(one / one.sum())
    return found[0], found[1]


def _distances(x: NDArray, y: NDArray, space: AbstractSpace) -> NDArray:
    """All of them, along the space."""
    chord = np.sqrt(np.maximum(((x[:, None] - y[None]) ** 2).sum(axis=2), 0))
    # The arc of a chord: near zero right to rounding, where the arc cosine is not.
    return 2 * np.arcsin(np.minimum(chord / 2, 1)) if isinstance(space, Sphere) else chord


def _assigned(costs: NDArray) -> float:
    from scipy.optimize import linear_sum_assignment  # loaded when it is needed

    return float(costs[linear_sum_assignment(costs)].mean())


def _coupled(costs: NDArray, first: NDArray, second: NDArray) -> float:
    from scipy.optimize import linprog  # loaded when it is needed
    from scipy.sparse import identity, kron, vstack

    n, m = costs.shape
    rows, columns = kron(identity(n), np.ones((1, m))), kron(np.ones((1, n)), identity(m))
    found = linprog(costs.ravel(), A_eq=vstack([rows, columns]).tocsr(), b_eq=np.concatenate([first, second]))
    if found.status != 0:
        raise refusal("masses", "be such that the linear programme is solved", found.message, "scale or merge them")
    return max(float(found.fun), 0.0)


def _quantiles(first: NDArray, second: NDArray) -> tuple[NDArray, NDArray]:
    """The shares at which either quantile function jumps, and the lengths between them."""
    cuts = np.unique(np.concatenate([[0.0], np.minimum(first, 1), np.minimum(second, 1), [1.0]]))
    return (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)


def _on_the_line(x: NDArray, y: NDArray, first: NDArray, second: NDArray, p: float) -> float:
    places = []
    for points, shares in ((x, first), (y, second)):
        order = np.argsort(points)
        places.append((points[order], np.cumsum(shares[order])))
    middles, lengths = _quantiles(places[0][1], places[1][1])
    values = [points[np.minimum(np.searchsorted(before, middles), len(points) - 1)] for points, before in places]
    return float(np.sum(lengths * np.abs(values[0] - values[1]) ** p) ** (1 / p))


def _on_the_circle(x: NDArray, y: NDArray, first: NDArray, second: NDArray, p: float) -> float:
    order, other = np.argsort(x), np.argsort(y)
    x, first, y, second = x[order], np.cumsum(first[order]), y[other], np.cumsum(second[other])

    def cost(shift: float) -> float:
        """Of the coupling that is monotone on the line covering the circle, mass `shift` before y's cut."""
        moved = second + shift
        # The jumps of the shifted quantile function within one turn.
        jumps = moved - np.floor(moved)
        middles, lengths = _quantiles(first, np.sort(jumps))
        from_x = x[np.minimum(np.searchsorted(first, middles), len(x) - 1)]
        turns = np.floor(middles - shift)
        places = np.minimum(np.searchsorted(second, middles - shift - turns), len(y) - 1)
        return float(np.sum(lengths * np.abs(from_x - y[places] - 2 * np.pi * turns) ** p))

    low, high = -1.0, 1.0
    ratio = (np.sqrt(5) - 1) / 2
    inner = [high - ratio * (high - low), low + ratio * (high - low)]
    values = [cost(one) for one in inner]
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
    return best ** (1 / p)
