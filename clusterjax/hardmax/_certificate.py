"""The theorem of the hardmax dynamics, checked clause by clause on a cloud, each with a margin.

**Algorithm.** The layers are applied until they reach a fixed point (`_fixed_point.py`), `_limit.py` forms the limit
set, and each clause compares two numbers. **Reference.** Alcalde, Fantuzzi, Zuazua (2407.01602), the theorem on leaders
and clusters. **Invariants.** Lengths are relative to the largest norm of a token; a violated assumption of the theorem
raises a ValueError, and is never reported as a failed clause.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import lcm
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._base.checks import MOST_ENTRIES, check_integer
from .._base.numerics import is_concrete
from .._base.types import Tokens
from .._model.mask import FullMask
from .._model.schedule import AbstractSchedule
from ._layer import HardmaxLayer
from ._leaders import check_fit
from ._limit import (
    FixedPoint,
    LimitSet,
    check_precision,
    counted,
    limit_of,
    nearest_in_hull,
    present_tokens,
    run_to_fixed_point,
    settled_tolerance,
    small,
)


# A difference up to max(k * eps, floor), relative to the largest norm of a token, counts as zero; eps is the epsilon.
_ZERO = (1024, 1e-7)
# Multiples of the rounding error: within EQUAL of them a matrix counts as symmetric, or as a multiple of the identity;
# above APART of them an eigenvalue counts as positive, or as larger than others. In between no theorem is certified.
EQUAL, APART = 16, 100


class Clause(NamedTuple):
    """One clause of the theorem, and the outcome of its test.

    **Attributes:**

    - `says`: The clause, in words.
    - `held`: True if the clause holds.
    - `margin`: The margin, relative to the largest norm of a token: positive if and only if the clause holds. Infinite
        if the clause is vacuous for this cloud.
    - `measured`: The measured quantities, in words and numbers.
    """

    says: str
    held: bool
    margin: float
    measured: str


class Certificate(eqx.Module):
    """The clauses of the theorem for one cloud; prints as a list.

    **Attributes:**

    - `clauses`: The five `Clause`s: leaders, vertices, tokens, boundary, projections.
    - `limit`: The `LimitSet` of the cloud.
    - `held`: True if all clauses hold.
    """

    clauses: tuple[Clause, ...]
    limit: LimitSet

    @property
    def held(self) -> bool:
        return all(clause.held for clause in self.clauses)

    def __repr__(self) -> str:
        lines = [repr(self.limit)]
        for clause in self.clauses:
            lines.append(f"  {'held  ' if clause.held else 'FAILED'}  {clause.says}")
            lines.append(f"          margin {clause.margin:.1e}; {clause.measured}")
        return "\n".join(lines)


def certificate(z0: Tokens, layer: HardmaxLayer, depth: int = 100_000) -> Certificate:
    r"""The theorem on leaders and clusters, checked clause by clause for the tokens `z0`, each clause with a margin.

    If the tokens are nonzero and distinct and A is symmetric positive definite, then there are leaders. Each leader
    reaches in finitely many layers a vertex of its own of a polytope K, which has no other vertices. Every token
    converges to a point of a finite set S on the boundary of K. A point s of S that is no vertex is the point nearest
    to the origin, in the norm of A, of the face of K on which $\langle A s, \cdot\rangle$ is largest. A token counts as
    arrived within 1e-7 of the largest norm of a token (1.2e-4 in single precision). If the layers end before the tokens
    have settled, the clause on tokens says so. A host function.

    **Arguments:**

    - `z0`: Tokens, (n, d), nonzero and distinct, except for padding.
    - `layer`: A `HardmaxLayer` with a symmetric positive definite A, or None, with the full mask, and with a
        `tie_tolerance` of at most 1e-7 (1.2e-4 in single precision).
    - `depth`: The maximal number of layers.

    **Returns:**

    A `Certificate`.

    **Raises:**

    - `ValueError` if `A` is not symmetric positive definite or depends on the layer, the mask is not full, the
        `tie_tolerance` is larger, or `z0` has a zero row or two equal rows, because the theorem excludes these cases;
        and as for `limit_set`.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), the theorem on
        leaders and clusters.
    """
    # The values of traced tokens are unknown.
    z0 = check_fit(z0, layer)
    if not is_concrete((z0, layer)):
        raise ValueError("z0 must not be traced, but it is; call this host function outside jax.jit.")
    check_precision(z0)
    form = definite_form(layer, z0.shape[1])
    if not isinstance(layer.mask, FullMask):
        raise ValueError(
            f"mask must be full, but it is a {type(layer.mask).__name__}; the theorem is about FullMask()."
        )
    _check_ties(layer, z0.dtype)
    depth = check_integer(depth, "depth", most=MOST_ENTRIES, remedy="pass the most layers to apply")
    present = present_tokens(layer, len(z0))
    _check_assumptions(np.asarray(z0), np.flatnonzero(present))
    end = run_to_fixed_point(z0, layer, jnp.asarray(depth), settled_tolerance(z0.dtype))
    return make_certificate(end, np.asarray(z0), present, form)


def rounding_of(matrix: np.ndarray) -> float:
    """A bound on the change by rounding of an eigenvalue of a symmetric matrix, or of an entry that is a product."""
    return len(matrix) * float(np.finfo(np.float64).eps) * float(np.linalg.norm(matrix, 2))


def definite_form(layer: HardmaxLayer, d: int) -> np.ndarray:
    """A as an array if it is symmetric positive definite; raises a `ValueError` otherwise."""
    if isinstance(layer.A, AbstractSchedule):
        raise ValueError(f"A must be one matrix, but it is a {type(layer.A).__name__}; the theorem fixes A.")
    form = np.eye(d) if layer.A is None else np.asarray(layer.A, np.float64)
    rounding = rounding_of(form)
    # A must be symmetric only to rounding, because A is often computed as a product.
    if np.abs(form - form.T).max() > EQUAL * rounding:
        raise ValueError(
            f"A must be symmetric, but A - A^T has an entry of {np.abs(form - form.T).max():.3g}; "
            "the theorem asks for a symmetric positive definite A, and limit_set takes any."
        )
    least = float(np.linalg.eigvalsh(form)[0])
    if least <= APART * rounding:
        raise ValueError(
            f"A must be positive definite by more than rounding can make, but its least eigenvalue is {least:.3g}; "
            "the theorem asks for a symmetric positive definite A, and limit_set takes any."
        )
    return form


def _check_ties(layer: HardmaxLayer, dtype: Any) -> None:
    """Raise a ValueError if scores that differ by more than the tolerance of the certificate count as equal."""
    most = small(_ZERO, dtype)
    if layer.tie_tolerance is not None and layer.tie_tolerance > most:
        raise ValueError(
            f"tie_tolerance must be at most {most:.2g} for a certificate in {dtype}, but it is "
            f"{float(layer.tie_tolerance):.3g}: the theorem is about tokens that attend to the largest score alone; "
            "leave it out, or use limit_set, which takes any."
        )


def _check_assumptions(z0: np.ndarray, rows: np.ndarray) -> None:
    zero = rows[~z0[rows].any(axis=1)]
    if zero.size:
        raise ValueError(
            f"z0 must hold no zero token, but row {zero[0]} is zero; the theorem excludes it: remove or move it."
        )
    # Lexicographic order makes equal rows neighbours.
    order = rows[np.lexsort(z0[rows].T)]
    same = np.flatnonzero((z0[order[1:]] == z0[order[:-1]]).all(axis=1))
    if same.size:
        i, j = sorted(int(order[same[0] + k]) for k in (0, 1))
        raise ValueError(
            f"z0 must hold distinct tokens, but rows {i} and {j} are equal; the theorem excludes it: keep one of them, "
            "with the masses of both."
        )


def make_certificate(end: FixedPoint, z0: np.ndarray, present: np.ndarray, form: np.ndarray) -> Certificate:
    """The certificate of a run with the result `end`."""
    limit = limit_of(end, z0, present)
    start = z0[present].astype(np.float64)
    scale = float(np.linalg.norm(start, axis=1).max())
    zero = small(_ZERO, z0.dtype)
    # The points of the leaders come first; by the theorem they are the vertices of K.
    corners = limit.points[: len(limit.leaders.indices)]
    faces = [_face(point, corners, form, zero * scale) for point in limit.points]
    clauses = (
        _leaders_clause(start, form, limit),
        _vertices_clause(end, limit, scale, zero),
        _tokens_clause(end, limit, faces, scale, zero),
        _boundary_clause(faces, scale, zero),
        _projections_clause(limit, faces, scale, zero),
    )
    return Certificate(clauses, limit)


class _Face(NamedTuple):
    """The face of K on which <A s, .> is largest, for a point s of S."""

    below: float  # the distance of s below the supporting hyperplane with normal A s
    nearest: np.ndarray  # the point of the face nearest to the origin in the norm of A


def _face(point: np.ndarray, corners: np.ndarray, form: np.ndarray, zero: float) -> _Face:
    # In the theorem the supporting hyperplane at s has the normal A s.
    normal = form @ point
    length = np.linalg.norm(normal)
    if len(corners) == 0 or length == 0:
        return _Face(np.inf, np.zeros_like(point))
    heights = corners @ (normal / length)
    reached = corners[heights >= heights.max() - zero]
    # In the coordinates A^(1/2) z, from the Cholesky factor, the norm of A is Euclidean.
    root = np.linalg.cholesky(form).T
    nearest = np.linalg.solve(root, nearest_in_hull(reached @ root.T)) if len(reached) > 1 else reached[0]
    return _Face(float(heights.max() - point @ (normal / length)), nearest)


def _leaders_clause(z: np.ndarray, form: np.ndarray, limit: LimitSet) -> Clause:
    """The clause on leaders; by the Cauchy-Schwarz inequality the token of largest A-norm attends to itself alone."""
    # <A z_i, z_j> < |z_i|_A^2 for every other token j, because |z_j|_A is no larger and z_j differs.
    longest = int(np.argmax(np.einsum("ia,ab,ib->i", z, form, z)))
    query = form @ z[longest]
    gaps = np.delete((z[longest] - z) @ query, longest) / (np.linalg.norm(query) * np.linalg.norm(z, axis=1).max())
    gap = float(gaps.min(initial=np.inf))
    count, start = len(limit.leaders.indices), int(np.sum(np.asarray(limit.leaders.first) == 0))
    found = f"{counted(count, 'leader')}, {start} from the start; the margin is that of the token of largest norm"
    return Clause("There are leaders.", count > 0, gap if count > 0 else -1.0, found)


def _vertices_clause(end: FixedPoint, limit: LimitSet, scale: float, zero: float) -> Clause:
    led = limit.leaders.indices
    says = "Each leader comes in finitely many layers to a vertex of its own of K, which has no others."
    if led.size == 0:
        return Clause(says, False, -1.0, "there are none")
    places = np.asarray(limit.leaders.points, np.float64)[led]
    moved = float(np.linalg.norm(np.asarray(end.x, np.float64)[led] - places, axis=1).max()) / scale
    # The margin is the distance of the points of the leaders from the hull of the others; zero would be no vertex.
    margin = float(limit.outside[: led.size].min()) / scale
    others = int(limit.is_vertex[led.size :].sum())
    last = int(np.asarray(limit.leaders.first)[led].max())
    held = moved <= zero and bool(limit.is_vertex[: led.size].all()) and others == 0
    found = f"from layer {last} on the leaders moved by {moved:.1e}; vertices that are no leaders: {others}"
    return Clause(says, held, margin if held else min(margin, 0.0), found)


def _tokens_clause(end: FixedPoint, limit: LimitSet, faces: list[_Face], scale: float, zero: float) -> Clause:
    """The clause on convergence: distances to vertices, or to the points of faces nearest to the origin."""
    vertices = len(limit.leaders.indices)
    targets = [p if i < vertices else faces[i].nearest for i, p in enumerate(limit.points)]
    ends, goes_to = np.asarray(end.x, np.float64), limit.goes_to
    # Padding has no limit, and the index -1.
    rest = max(float(np.linalg.norm(ends[i] - targets[goes_to[i]])) for i in np.flatnonzero(goes_to >= 0)) / scale
    held = limit.settled and rest <= zero
    state = "settled" if limit.settled else "not settled"
    found = f"the farthest is {rest:.1e} from its point of S after {counted(limit.layers, 'layer')}, {state}"
    return Clause("Every token converges to a point of S.", held, zero - rest if held else min(zero - rest, 0.0), found)


def _boundary_clause(faces: list[_Face], scale: float, zero: float) -> Clause:
    below = max(face.below for face in faces) / scale
    found = f"{counted(len(faces), 'point')}, the deepest {max(below, 0.0):.1e} below its face"
    return Clause("S lies on the boundary of K.", below <= zero, zero - below, found)


def _projections_clause(limit: LimitSet, faces: list[_Face], scale: float, zero: float) -> Clause:
    says = "A point of S that is no vertex is the A-projection of the origin onto a face of K."
    others = range(len(limit.leaders.indices), len(limit.points))
    if not others:
        return Clause(says, True, np.inf, "all points of S are vertices")
    error = max(float(np.linalg.norm(limit.points[i] - faces[i].nearest)) for i in others) / scale
    found = f"{counted(len(others), 'such point')}, {error:.1e} from the projections"
    return Clause(says, error <= zero, zero - error, found)


# The hardmax layers in exact arithmetic, until the choices are proved never to change, for any rational A.
#
# **Algorithm.** A scaling of all tokens or of A multiplies the scores by a positive factor, so that tokens are kept as
# integers over a common denominator. After each layer the choices $C_i$ are tentatively frozen. Let $m_i$ be the mean
# over $C_i$. If the mean of $m_j$ over $j \in C_i$ is $m_i$ for each i, for example because attended tokens stand still
# or move to their own mean, then the $m_i$ are constant, and all tokens move along straight lines at a common pace,
# $z_i + \tau(m_i - z_i)$ with $\tau$ from 0 to 1. Scores are quadratic in $\tau$, and their Bernstein coefficients
# prove that no choice ever changes. **Invariants.** Nothing is rounded; a question not decided within the allowed
# layers is reported as open.


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


# The clauses of the theorem for a cloud and any matrix A, each proved, refuted or left open.
#
# For every A and every step two statements are true (with scores $\langle\cdot,\cdot\rangle$):
#
# - *A leader stays, at a vertex of its own.* If $\langle Az_i, z_j\rangle < \langle Az_i, z_i\rangle$ for all $j\ne i$,
#   then token i does not move, and the new $z_j$ is a convex combination of the old tokens with a positive weight of
#   $z_j$, so that the inequality persists. The hull of the tokens meets $\langle Az_i, \cdot\rangle = \langle
#   Az_i, z_i\rangle$ in $z_i$ alone. Hulls are nested, so that $z_i$ is a vertex of all later hulls and of K.
# - *Limits are stationary.* If all tokens converge, then for every s of S the score $\langle As, \cdot\rangle$ is
# largest
#   over K at s: the mean over $C_i$ converges to s, and along layers with equal $C_i$ all attended tokens have the
#   largest score in the limit. If A is positive definite, s is the A-projection of the origin onto a face.
#   So s is on the boundary of K unless As = 0.
#
# Four clauses can fail: that there are leaders, that each vertex of K has a leader, that tokens converge, and, where As
# = 0, the boundary. **Invariants.** Arithmetic is exact (`_exact.py`); "held" and "failed" are proved for the given
# numbers.


Verdict = Literal["held", "failed", "open"]
LEADERS, VERTICES, TOKENS, BOUNDARY, PROJECTIONS = range(5)
# Both bounds exist because the number of digits grows with each layer, and each layer has n^2 scores.
_MOST_TOKENS, _MOST_DEPTH = 64, 1000


class ExaminedClause(NamedTuple):
    """One clause of the theorem, and its proof status.

    **Attributes:**

    - `says`: The clause, in words.
    - `verdict`: "held" or "failed", both proved, or "open".
    - `residual`: The violation: vertices without a leader, points within K, the largest gap of a score; 0 if the clause
        holds, NaN if it is open.
    - `measured`: The findings, in words.
    """

    says: str
    verdict: Verdict
    residual: float
    measured: str


class Examination(eqx.Module):
    """The proved statements on one cloud; prints as a list.

    **Attributes:**

    - `violates`: The hypotheses of the theorem that A and the tokens do not satisfy, in words; none if it applies.
    - `clauses`: The five `ExaminedClause`s: leaders, vertices, tokens, boundary, projections.
    - `first`: (n,), the first layer at which the token attended to itself alone; -1 if it did not within `layers`.
    - `limits`: (n, d), the limit of each token, rounded; None if it is open.
    - `layers`: The number of layers that were applied exactly, until a proof was found or `depth` was reached.
    """

    violates: tuple[str, ...]
    clauses: tuple[ExaminedClause, ...]
    first: np.ndarray
    limits: Float[np.ndarray, "n d"] | None
    layers: int

    @property
    def applies(self) -> bool:
        """True if the theorem applies."""
        return not self.violates

    def __repr__(self) -> str:
        of = f"Examination({counted(len(self.first), 'token')}, {counted(self.layers, 'layer')})"
        outside = f"outside the theorem: {'; '.join(self.violates)}"
        return "\n".join(
            [
                f"{of}: {outside if self.violates else 'the theorem applies'}",
                *(f"  {one.verdict:<6}  {one.says} ({one.measured})" for one in self.clauses),
            ]
        )


def examine(z0: Tokens, layer: HardmaxLayer, depth: int = 60) -> Examination:
    r"""The clauses of the theorem on leaders and clusters for `z0` and any A, each proved, refuted or left open.

    A may be of low rank, indefinite or not symmetric, and tokens may be zero or equal; `violates` names the violated
    hypotheses of the theorem. The layers run in exact arithmetic on the given numbers, until it is proved that the
    choices of all tokens are final. Then the limits are known exactly; otherwise clauses that need the limits are open.
    The boundary is taken in $\mathbb{R}^d$. If A is no inner product, the clause on projections says that
    $\langle As, \cdot\rangle$ is largest over K at s, which is equivalent for a positive definite A. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> z0 = jnp.array([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
        >>> found = cjx.hardmax.examine(z0, cjx.hardmax.HardmaxLayer(1.0, jnp.array([[1.0, 0.0], [0.0, 0.0]])))
        >>> found.violates, [clause.verdict for clause in found.clauses]
        (('A is of rank 1',), ['held', 'failed', 'held', 'held', 'held'])
        ```

    **Arguments:**

    - `z0`: Tokens, (n, d), 64 at most.
    - `layer`: A `HardmaxLayer` with one A and one alpha, the full mask and no masses; its tie tolerance is ignored,
        because ties are exact.
    - `depth`: The maximal number of layers, 1000 at most.

    **Returns:**

    An `Examination`.

    **Raises:**

    - `ValueError` if `z0` is not a finite cloud that fits the layer, or is traced or too large, or if the layer or
        `depth` is of another kind.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), the theorem on
        leaders and clusters, and their question for other A. This library adds the two statements on any A.
    """
    z0 = check_fit(z0, layer)
    if not is_concrete((z0, layer)):
        raise ValueError("z0 must not be traced, but it is; call this host function outside jax.jit.")
    if len(z0) > _MOST_TOKENS:
        raise ValueError(
            f"z0 must hold {_MOST_TOKENS} tokens at most, but it holds {len(z0)}; take fewer, for the layers are exact."
        )
    for name, value in (("A", layer.A), ("alpha", layer.alpha)):
        if isinstance(value, AbstractSchedule):
            raise ValueError(f"{name} must be one value, but it is a {type(value).__name__}; the theorem fixes it.")
    if layer.masses is not None or not isinstance(layer.mask, FullMask):
        found = f"masses of shape {layer.masses.shape}" if layer.masses is not None else type(layer.mask).__name__
        raise ValueError(f"layer must have the full mask and no masses, but it has {found}; leave them out.")
    depth = check_integer(depth, "depth", most=_MOST_DEPTH, remedy="pass the most layers to apply")
    d = z0.shape[1]
    tokens = rational(z0)
    form = rational(np.eye(d) if layer.A is None else layer.A)
    alpha = Fraction(float(np.asarray(layer.alpha)))
    return examine_exactly(tokens, form, alpha / (1 + alpha), depth)


def rational(rows: Any) -> tuple[Point, ...]:
    """Rows of numbers as exact fractions."""
    return tuple(tuple(Fraction(float(entry)) for entry in row) for row in np.asarray(rows))


def examine_exactly(z0: tuple[Point, ...], form: tuple[Point, ...], share: Fraction, depth: int) -> Examination:
    """`examine` for fractions; `share` is alpha / (1 + alpha)."""
    run = run_exactly(z0, form, share, depth)
    limits = None if run.limits is None else np.array([[float(entry) for entry in point] for point in run.limits])
    return Examination(violated_hypotheses(z0, form), _clauses(run, form), np.array(run.first), limits, run.layers)


def violated_hypotheses(z0: tuple[Point, ...], form: tuple[Point, ...]) -> tuple[str, ...]:
    """The violated hypotheses of the theorem on A and the tokens, in words."""
    d, found = len(form), []
    if any(form[a][b] != form[b][a] for a in range(d) for b in range(a)):
        found.append("A is not symmetric")
    elif inertia(form)[1] > 0:
        positive, negative = inertia(form)
        kind = "indefinite" if positive else "negative definite" if negative == d else "negative semidefinite"
        found.append(f"A is {kind}, of signature ({positive}, {negative})")
    if (rank := rank_of(form)) < d:
        found.append(f"A is of rank {rank}")
    if zeros := [i for i, z in enumerate(z0) if not any(z)]:
        found.append(f"token {zeros[0]} is zero")
    if same := [(z0.index(z), i) for i, z in enumerate(z0) if z0.index(z) < i]:
        found.append(f"tokens {same[0][0]} and {same[0][1]} are equal")
    return tuple(found)


def _clauses(run: ExactRun, form: tuple[Point, ...]) -> tuple[ExaminedClause, ...]:
    says = (
        "There are leaders.",
        "Each leader stays at a vertex of its own of K, which has no others.",
        "Every token converges to a point of S.",
        "S lies on the boundary of K.",
        "At a point s of S that is no vertex of a leader, <A s, .> is largest over K.",
    )
    led = sum(k >= 0 for k in run.first)
    if run.limits is None:
        unknown = f"not proved within {counted(run.layers, 'layer')}"
        some: tuple[Verdict, float, str] = ("held", 0.0, counted(led, "leader")) if led else ("open", np.nan, unknown)
        rest: tuple[Verdict, float, str] = ("open", np.nan, unknown)
        return tuple(ExaminedClause(words, *(rest if k else some)) for k, words in enumerate(says))
    points, places = set(run.limits), {run.limits[i] for i, k in enumerate(run.first) if k >= 0}
    # K is the hull of the limits. The points of leaders are vertices, for any A; another point is a vertex unless it is
    # in the hull of the rest.
    bare = [point for point in points - places if not in_hull(point, sorted(points - {point}))]
    deep = [point for point in points - places if not any(image(form, point)) and is_interior(point, sorted(points))]
    gaps = [max(inner(image(form, s), v) for v in points) - inner(image(form, s), s) for s in points - places]
    gap = max(gaps, default=Fraction(0))
    found = (
        (led > 0, float(not led), counted(led, "leader")),
        (not bare, float(len(bare)), f"{counted(len(bare), 'vertex', 'vertices')} of no leader"),
        (True, 0.0, f"no choice changes after {counted(run.layers, 'layer')}"),
        (not deep, float(len(deep)), f"{counted(len(deep), 'point')} in the interior"),
        (gap == 0, float(gap), f"{counted(len(gaps), 'such point')}"),
    )
    return tuple(
        ExaminedClause(words, "held" if held else "failed", residual, measured)
        for words, (held, residual, measured) in zip(says, found, strict=True)
    )
