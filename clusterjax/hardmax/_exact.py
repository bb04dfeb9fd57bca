r"""The hardmax layers in exact arithmetic, until the choices are proved never to change, for any rational A.

**Algorithm.** A scaling of all tokens or of A multiplies the scores by a positive factor, so that tokens are kept as
integers over a common denominator. After each layer the choices $C_i$ are tentatively frozen. Let $m_i$ be the mean
over $C_i$. If the mean of $m_j$ over $j \in C_i$ is $m_i$ for each i, for example because attended tokens stand still
or move to their own mean, then the $m_i$ are constant, and all tokens move along straight lines at a common pace,
$z_i + \tau(m_i - z_i)$ with $\tau$ from 0 to 1. Scores are quadratic in $\tau$, and their Bernstein coefficients prove
that no choice ever changes. **Invariants.** Nothing is rounded; a question not decided within the allowed layers is
reported as open.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import lcm
from typing import Any, NamedTuple


Point = tuple[Fraction, ...]
_Whole = tuple[int, ...]


class ExactRun(NamedTuple):
    """The result of a run.

    **Attributes:**

    - `first`: The first layer at which each token attends to itself alone; -1 if there is none.
    - `layers`: The number of layers that were applied.
    - `limits`: The limit of each token; None if it is not proved.
    """

    first: tuple[int, ...]
    layers: int
    limits: tuple[Point, ...] | None


def run_exactly(z0: Sequence[Point], form: Sequence[Point], share: Fraction, depth: int) -> ExactRun:
    """Apply layers until the choices are proved to be final, but at most `depth`."""
    scale = lcm(*(entry.denominator for z in z0 for entry in z))
    z = [tuple(int(entry * scale) for entry in row) for row in z0]
    factor = lcm(*(entry.denominator for row in form for entry in row))
    matrix = [tuple(int(entry * factor) for entry in row) for row in form]
    first, k = [-1] * len(z), 0
    for k in range(depth + 1):
        chosen = _choices(z, matrix)
        first = [k if old < 0 and one == [i] else old for i, (old, one) in enumerate(zip(first, chosen, strict=True))]
        # Means are multiplied by the least common multiple of the sizes, so that they are integers.
        whole = lcm(*map(len, chosen))
        means = [_scaled([sum(axis) for axis in zip(*(z[j] for j in one), strict=True)], whole // len(one))
                 for one in chosen]  # fmt: skip
        if _frozen([_scaled(own, whole) for own in z], means, matrix, chosen):
            limits = tuple(tuple(Fraction(entry, scale * whole) for entry in mean) for mean in means)
            return ExactRun(tuple(first), k, limits)
        p, q = share.numerator, share.denominator
        z = [tuple((q - p) * whole * a + p * b for a, b in zip(own, mean, strict=True))
             for own, mean in zip(z, means, strict=True)]  # fmt: skip
        scale *= q * whole
    return ExactRun(tuple(first), k, None)


def _choices(z: list[_Whole], matrix: list[_Whole]) -> list[list[int]]:
    """The indices C_i of each token, in increasing order."""
    chosen = []
    for own in z:
        query = image(matrix, own)
        scores = [inner(query, other) for other in z]
        top = max(scores)
        chosen.append([j for j, score in enumerate(scores) if score == top])
    return chosen


def _frozen(z: list[_Whole], means: list[_Whole], matrix: list[_Whole], chosen: list[list[int]]) -> bool:
    """True if the choices of all later layers are proved to equal `chosen`."""
    for mean, one in zip(means, chosen, strict=True):
        if any(sum(axis) != len(one) * entry for axis, entry in zip(zip(*(means[j] for j in one), strict=True), mean,
                                                                   strict=True)):  # fmt: skip
            return False
    for own, mean, one in zip(z, means, chosen, strict=True):
        now, later, lead = image(matrix, own), image(matrix, mean), one[0]
        for j in set(range(len(z))).difference([lead]):
            # Bernstein coefficients of the score of the first choice minus the score of j, the middle one doubled. The
            # coefficient at the start is zero for a tie, and otherwise positive.
            here, there = _minus(z[lead], z[j]), _minus(means[lead], means[j])
            middle, end = inner(later, here) + inner(now, there), inner(later, there)
            # Ties must stay ties; otherwise a positive first and no negative coefficient keep the polynomial positive.
            if (middle != 0 or end != 0) if j in one else (middle < 0 or end < 0):
                return False
    return True


def inertia(form: Sequence[Point]) -> tuple[int, int]:
    """The numbers of positive and negative squares of a symmetric form (Sylvester), by elimination."""
    a = [list(row) for row in form]
    rest, positive, negative = list(range(len(a))), 0, 0
    while rest:
        pivot = next((i for i in rest if a[i][i] != 0), None)
        if pivot is None:
            pair = next(((i, j) for i, j in combinations(rest, 2) if a[i][j] != 0), None)
            if pair is None:
                break
            # A change of coordinates turns x_i x_j into a square.
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
    """The rank, by Gaussian elimination."""
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
    """The unique solution of a system with at least as many equations as unknowns; None if there is none."""
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


def in_cone(target: Point, generators: Sequence[Point]) -> bool:
    """True if the target is a combination of generators with non-negative weights, by non-negative least squares
    (Lawson and Hanson, 1974) in fractions, which ends after finitely many steps with a proof."""
    shares: dict[int, Fraction] = {}
    while True:
        rest = [entry - sum(share * generators[i][k] for i, share in shares.items()) for k, entry in enumerate(target)]
        if not any(rest):
            return True
        gain, best = max(((inner(rest, one), i) for i, one in enumerate(generators)), default=(0, 0))
        if gain <= 0:
            # The rest is orthogonal to the active generators: a hyperplane separates the target from the cone.
            return False
        shares[best] = Fraction(0)
        while True:
            wanted = dict(zip(shares, _least_squares([generators[i] for i in shares], target), strict=True))
            if min(wanted.values()) > 0:
                shares = wanted
                break
            # The step ends where the first weight becomes zero; that generator becomes inactive.
            way = min(shares[i] / (shares[i] - share) for i, share in wanted.items() if share <= 0)
            moved = {i: share + way * (wanted[i] - share) for i, share in shares.items()}
            shares = {i: share for i, share in moved.items() if share > 0}


def _least_squares(columns: list[Point], target: Point) -> list[Fraction]:
    """The weights of linearly independent columns whose combination is nearest to the target."""
    found = solve(
        [[inner(one, other) for other in columns] for one in columns], [inner(one, target) for one in columns]
    )
    assert found is not None, "what gains is independent of what the rest is orthogonal to"
    return found


def in_hull(point: Point, corners: Sequence[Point]) -> bool:
    """True if the point is a convex combination of the corners."""
    one = Fraction(1)
    return in_cone((*point, one), [(*corner, one) for corner in corners])


def is_interior(point: Point, corners: Sequence[Point]) -> bool:
    """True if a point is in the interior in R^d of the hull: the directions to the corners span R^d with positive
    weights, which holds if minus their sum is in their cone."""
    directions = [tuple(a - b for a, b in zip(corner, point, strict=True)) for corner in corners]
    if rank_of(directions) < len(point):
        return False
    return in_cone(tuple(-sum(axis, Fraction(0)) for axis in zip(*directions, strict=True)), directions)


def image(matrix: Sequence[Sequence[Any]], point: Sequence[Any]) -> tuple[Any, ...]:
    """The matrix times the point."""
    return tuple(inner(row, point) for row in matrix)


def inner(one: Sequence[Any], other: Sequence[Any]) -> Any:
    """The inner product of integers or fractions."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def _scaled(point: Sequence[int], factor: int) -> _Whole:
    return tuple(entry * factor for entry in point)


def _minus(one: _Whole, other: _Whole) -> _Whole:
    return tuple(a - b for a, b in zip(one, other, strict=True))
