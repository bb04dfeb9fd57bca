r"""The hardmax layers in whole numbers, to a moment from which on nothing changes any more, for any rational A.

**Algorithm.** Scores only change by a positive factor if all tokens or A are scaled, so that tokens stay integers over
one denominator. After each layer the choices $C_i$ are frozen on trial: if every token that is attended to stands
still, all tokens move on straight lines at one common pace, $z_i + \tau(t_i - z_i)$ with $\tau$ from 0 to 1, scores are
quadratic in $\tau$, and their Bernstein coefficients prove that no choice ever changes. **Invariants.** Nothing is
rounded; what is not proved within the layers that were allowed is said to be open.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import lcm
from typing import NamedTuple


Point = tuple[Fraction, ...]
_Whole = tuple[int, ...]


class ExactRun(NamedTuple):
    """How a run ended.

    **Attributes:**

    - `first`: The first layer at which each token attends to itself alone; -1 if it did not.
    - `layers`: How many layers were applied.
    - `limits`: Where each token goes; None if that is not proved.
    - `still`: Which tokens stand still at the end; their points are corners of all that is attended to.
    """

    first: tuple[int, ...]
    layers: int
    limits: tuple[Point, ...] | None
    still: tuple[bool, ...]


def run_exactly(z0: Sequence[Point], form: Sequence[Point], share: Fraction, depth: int) -> ExactRun:
    """Layers until the choices are proved to stay as they are, and no more than `depth`."""
    scale = lcm(*(entry.denominator for z in z0 for entry in z))
    z = [tuple(int(entry * scale) for entry in row) for row in z0]
    factor = lcm(*(entry.denominator for row in form for entry in row))
    matrix = [tuple(int(entry * factor) for entry in row) for row in form]
    first, still, k = [-1] * len(z), (), 0
    for k in range(depth + 1):
        chosen = _choices(z, matrix)
        first = [k if old < 0 and one == [i] else old for i, (old, one) in enumerate(zip(first, chosen, strict=True))]
        # Means times the least common multiple of the sizes, so that they are integers.
        whole = lcm(*map(len, chosen))
        means = [_scaled([sum(axis) for axis in zip(*(z[j] for j in one), strict=True)], whole // len(one))
                 for one in chosen]  # fmt: skip
        still = tuple(mean == _scaled(own, whole) for mean, own in zip(means, z, strict=True))
        if _frozen([_scaled(own, whole) for own in z], means, matrix, chosen, still):
            limits = tuple(tuple(Fraction(entry, scale * whole) for entry in mean) for mean in means)
            return ExactRun(tuple(first), k, limits, still)
        p, q = share.numerator, share.denominator
        z = [tuple((q - p) * whole * a + p * b for a, b in zip(own, mean, strict=True))
             for own, mean in zip(z, means, strict=True)]  # fmt: skip
        scale *= q * whole
    return ExactRun(tuple(first), k, None, still)


def _choices(z: list[_Whole], matrix: list[_Whole]) -> list[list[int]]:
    """C_i of each token, in order."""
    chosen = []
    for own in z:
        query = _image(matrix, own)
        scores = [_inner(query, other) for other in z]
        top = max(scores)
        chosen.append([j for j, score in enumerate(scores) if score == top])
    return chosen


def _frozen(
    z: list[_Whole], means: list[_Whole], matrix: list[_Whole], chosen: list[list[int]], still: tuple[bool, ...]
) -> bool:
    """Whether it is proved that the choices of all later layers are these."""
    if not all(still[j] for one in chosen for j in one):
        return False
    for own, mean, one in zip(z, means, chosen, strict=True):
        now, later, lead = _image(matrix, own), _image(matrix, mean), z[one[0]]
        # Ties stay ties: what is tied stands still, so that scores are linear along the way.
        if any(_inner(later, z[c]) != _inner(later, lead) for c in one[1:]):
            return False
        for j in set(range(len(z))).difference(one):
            # The coefficient at the start is positive by choice; with the others not negative no later one is zero.
            here, there = _minus(lead, z[j]), _minus(lead, means[j])
            if _inner(later, here) + _inner(now, there) < 0 or _inner(later, there) < 0:
                return False
    return True


def inertia(form: Sequence[Point]) -> tuple[int, int]:
    """How many positive and negative squares a symmetric form has (Sylvester), by elimination."""
    a = [list(row) for row in form]
    rest, positive, negative = list(range(len(a))), 0, 0
    while rest:
        pivot = next((i for i in rest if a[i][i] != 0), None)
        if pivot is None:
            pair = next(((i, j) for i, j in combinations(rest, 2) if a[i][j] != 0), None)
            if pair is None:
                break
            # x_i x_j is made a square by a change of coordinates.
            pivot, j = pair
            for k in range(len(a)):
                a[pivot][k] += a[j][k]
            for k in range(len(a)):
                a[k][pivot] += a[k][j]
        positive, negative = positive + (a[pivot][pivot] > 0), negative + (a[pivot][pivot] < 0)
        rest.remove(pivot)
        for i in rest:
            ratio = a[i][pivot] / a[pivot][pivot]
            for k in rest:
                a[i][k] -= ratio * a[pivot][k]
    return positive, negative


def rank_of(rows: Sequence[Point]) -> int:
    """The rank, by elimination."""
    left, rank = [list(row) for row in rows], 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((r for r in range(rank, len(left)) if left[r][column] != 0), None)
        if pivot is None:
            continue
        left[rank], left[pivot] = left[pivot], left[rank]
        for r in range(rank + 1, len(left)):
            ratio = left[r][column] / left[rank][column]
            left[r] = [a - ratio * b for a, b in zip(left[r], left[rank], strict=True)]
        rank += 1
    return rank


def solve(matrix: Sequence[Sequence[Fraction]], right: Sequence[Fraction]) -> list[Fraction] | None:
    """The unique solution of a system of at least as many equations as unknowns; None if there is none."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    unknowns = len(rows[0]) - 1
    for column in range(unknowns):
        pivot = next((r for r in range(column, len(rows)) if rows[r][column] != 0), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [entry / rows[column][column] for entry in rows[column]]
        for r in range(len(rows)):
            if r != column and rows[r][column] != 0:
                ratio = rows[r][column]
                rows[r] = [a - ratio * b for a, b in zip(rows[r], rows[column], strict=True)]
    return None if any(row[-1] != 0 for row in rows[unknowns:]) else [row[-1] for row in rows[:unknowns]]


def in_hull(point: Point, corners: Sequence[Point]) -> bool:
    """Whether the point is a convex combination, by Caratheodory: of d + 1 corners at most, affinely independent."""
    for size in range(1, min(len(point) + 1, len(corners)) + 1):
        for some in combinations(corners, size):
            system = [*(list(axis) for axis in zip(*some, strict=True)), [Fraction(1)] * size]
            shares = solve(system, [*point, Fraction(1)])
            if shares is not None and min(shares) >= 0:
                return True
    return False


def is_interior(point: Point, corners: Sequence[Point]) -> bool:
    """Whether a point of the hull is in its interior in R^d: on no hyperplane that has the hull on one side."""
    d = len(point)
    directions = [tuple(a - b for a, b in zip(corner, point, strict=True)) for corner in corners]
    if rank_of(directions) < d:
        return False
    # On the boundary there is a supporting hyperplane through the point that holds d - 1 independent directions.
    for some in combinations(directions, d - 1):
        normal = _normal(some, d)
        if normal is not None:
            heights = [sum(a * b for a, b in zip(normal, direction, strict=True)) for direction in directions]
            if min(heights) >= 0 or max(heights) <= 0:
                return False
    return True


def _normal(directions: Sequence[Point], d: int) -> list[Fraction] | None:
    """The vector orthogonal to d - 1 independent ones; None if they are dependent."""
    if rank_of(directions) < d - 1:
        return None
    for axis in range(d):
        unit = [Fraction(int(k == axis)) for k in range(d)]
        normal = solve([*directions, unit], [*[Fraction(0)] * (d - 1), Fraction(1)])
        if normal is not None:
            return normal
    raise AssertionError("d - 1 independent vectors have an orthogonal one with an entry that is not zero")


def _scaled(point: Sequence[int], factor: int) -> _Whole:
    return tuple(entry * factor for entry in point)


def _image(matrix: Sequence[_Whole], point: _Whole) -> _Whole:
    return tuple(_inner(row, point) for row in matrix)


def _inner(one: _Whole, other: _Whole) -> int:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _minus(one: _Whole, other: _Whole) -> _Whole:
    return tuple(a - b for a, b in zip(one, other, strict=True))
