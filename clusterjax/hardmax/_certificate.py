"""The theorem of the hardmax dynamics, checked clause by clause on a cloud, each with a margin.

**Algorithm.** Layers are applied up to a fixed point, whose tokens are the limit set (`_limit.py`). Each clause
compares two numbers. **Reference.** Alcalde, Fantuzzi, Zuazua (2407.01602), the theorem on leaders and clusters.
**Invariants.** Lengths are relative to the largest norm of a token. A violated assumption of the theorem raises a
ValueError, and is never reported as a failed clause.
"""

from fractions import Fraction
from itertools import combinations
from math import lcm
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._base.checks import check_integer
from .._base.defaults import DEPTH
from .._base.types import Tokens
from .._model.mask import FullMask
from .._model.schedule import AbstractSchedule
from .._observables.clusters import nearest_in_hull
from ._layer import HardmaxLayer
from ._leaders import check_fit
from ._limit import (
    FixedPoint,
    LimitSet,
    check_host,
    check_run,
    counted,
    limit_of,
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


def certificate(z0: Tokens, layer: HardmaxLayer, depth: int = DEPTH) -> Certificate:
    """The theorem on leaders and clusters, checked clause by clause for the tokens `z0`, each clause with a margin.

    If the tokens are nonzero and distinct and A is symmetric positive definite, then there are leaders. In finitely
    many layers each leader reaches a separate vertex of a polytope K, and K has no other vertices. Every token
    converges to a point of a finite set S on the boundary of K. If s in S is not a vertex, then s is the point nearest
    to the origin, in the norm of A, of the face of K on which ⟨As, ·⟩ is largest. A token counts as arrived within 1e-7
    of the largest norm of a token (1.2e-4 in single precision). If the layers end before the tokens have settled, the
    clause on tokens says so. A host function.

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
    z0, depth = check_run(z0, layer, depth)
    form = definite_form(layer, z0.shape[1])
    if not isinstance(layer.mask, FullMask):
        raise ValueError(
            f"mask must be full, but it is a {type(layer.mask).__name__}; the theorem is about FullMask()."
        )
    _check_ties(layer, z0.dtype)
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
    measured = f"{counted(count, 'leader')}, {start} from the start; the margin is that of the token of largest norm"
    return Clause("There are leaders.", count > 0, gap if count > 0 else -1.0, measured)


def _vertices_clause(end: FixedPoint, limit: LimitSet, scale: float, zero: float) -> Clause:
    led = limit.leaders.indices
    says = "Each leader comes in finitely many layers to a vertex of its own of K, which has no others."
    if led.size == 0:
        return Clause(says, False, -1.0, "there are none")
    places = np.asarray(limit.leaders.points, np.float64)[led]
    moved = float(np.linalg.norm(np.asarray(end.x, np.float64)[led] - places, axis=1).max()) / scale
    # The margin is the distance of the points of the leaders from the hull of the others, positive for a vertex.
    margin = float(limit.outside[: led.size].min()) / scale
    others = int(limit.is_vertex[led.size :].sum())
    last = int(np.asarray(limit.leaders.first)[led].max())
    held = moved <= zero and bool(limit.is_vertex[: led.size].all()) and others == 0
    measured = f"from layer {last} on the leaders moved by {moved:.1e}; vertices that are no leaders: {others}"
    return Clause(says, held, margin if held else min(margin, 0.0), measured)


def _tokens_clause(end: FixedPoint, limit: LimitSet, faces: list[_Face], scale: float, zero: float) -> Clause:
    """The clause on convergence: distances to vertices, or to the points of faces nearest to the origin."""
    vertices = len(limit.leaders.indices)
    targets = [p if i < vertices else faces[i].nearest for i, p in enumerate(limit.points)]
    ends, goes_to = np.asarray(end.x, np.float64), limit.goes_to
    # Padding has no limit, and the index -1.
    farthest = max(float(np.linalg.norm(ends[i] - targets[goes_to[i]])) for i in np.flatnonzero(goes_to >= 0)) / scale
    held = limit.settled and farthest <= zero
    state = "settled" if limit.settled else "not settled"
    measured = f"the farthest is {farthest:.1e} from its point of S after {counted(limit.layers, 'layer')}, {state}"
    return Clause(
        "Every token converges to a point of S.", held, zero - farthest if held else min(zero - farthest, 0.0), measured
    )


def _boundary_clause(faces: list[_Face], scale: float, zero: float) -> Clause:
    below = max(face.below for face in faces) / scale
    measured = f"{counted(len(faces), 'point')}, the deepest {max(below, 0.0):.1e} below its face"
    return Clause("S lies on the boundary of K.", below <= zero, zero - below, measured)


def _projections_clause(limit: LimitSet, faces: list[_Face], scale: float, zero: float) -> Clause:
    says = "A point of S that is no vertex is the A-projection of the origin onto a face of K."
    others = range(len(limit.leaders.indices), len(limit.points))
    if not others:
        return Clause(says, True, np.inf, "all points of S are vertices")
    error = max(float(np.linalg.norm(limit.points[i] - faces[i].nearest)) for i in others) / scale
    measured = f"{counted(len(others), 'such point')}, {error:.1e} from the projections"
    return Clause(says, error <= zero, zero - error, measured)


# The hardmax layers in exact arithmetic, until the choices are proved never to change, for any rational A.
#
# **Algorithm.** A scaling of all tokens or of A multiplies the scores by a positive factor, so that tokens are kept as
# integers over a common denominator, in arrays of Python integers. After each layer the choices $C_i$ are tentatively
# frozen. Let $m_i$ be the mean over $C_i$. If the mean of $m_j$ over $j ∈ C_i$ is $m_i$ for each i, for example because
# attended tokens stand still or move to their own mean, then the $m_i$ are constant, and all tokens move along straight
# lines at a common pace, $z_i + τ(m_i - z_i)$ with τ from 0 to 1. Scores are quadratic in τ, and their Bernstein
# coefficients prove that no choice ever changes. **Invariants.** Nothing is rounded; a question not decided within the
# allowed layers is reported as open.


Point = tuple[Fraction, ...]
# An array of Python integers or fractions, of dtype object.
Exact = np.ndarray


class ExactRun(NamedTuple):
    """The result of a run: the first layer at which each token attends to itself alone, or -1; the number of layers
    that were applied; and the limit of each token, or None if the limits are not proved."""

    first: tuple[int, ...]
    layers: int
    limits: tuple[Point, ...] | None


def rational(rows: Any) -> Exact:
    """Rows of numbers as exact fractions."""
    rows = np.asarray(rows, float)
    return np.array([Fraction(entry) for entry in rows.ravel().tolist()], dtype=object).reshape(rows.shape)


def _whole(rows: Exact) -> tuple[Exact, int]:
    """Fractions as integers over their least common denominator, and this denominator."""
    scale = lcm(*(entry.denominator for entry in rows.flat))
    return np.array([int(entry * scale) for entry in rows.flat], dtype=object).reshape(rows.shape), scale


def run_exactly(z0: Exact, form: Exact, share: Fraction, depth: int) -> ExactRun:
    """Apply layers until the choices are proved to be final, but at most `depth`."""
    (z, scale), matrix = _whole(z0), _whole(form)[0]
    first, layer = np.full(len(z), -1), 0
    for layer in range(depth + 1):
        scores = z @ matrix.T @ z.T
        chosen = scores == scores.max(axis=1, keepdims=True)
        counts = chosen.sum(axis=1).astype(object)
        first = np.where((first < 0) & (counts == 1) & np.diag(chosen), layer, first)
        # Means are multiplied by the least common multiple of the counts, so that they are integers.
        whole = lcm(*counts)
        means = chosen.astype(object) @ z * (whole // counts)[:, None]
        if _frozen(whole * z, means, matrix, chosen):
            limits = tuple(tuple(Fraction(entry, scale * whole) for entry in mean) for mean in means)
            return ExactRun(tuple(first.tolist()), layer, limits)
        p, q = share.numerator, share.denominator
        z = (q - p) * whole * z + p * means
        scale *= q * whole
    return ExactRun(tuple(first.tolist()), layer, None)


def _frozen(z: Exact, means: Exact, matrix: Exact, chosen: np.ndarray) -> bool:
    """True if the choices of all later layers are proved to equal `chosen`."""
    counts = chosen.sum(axis=1).astype(object)
    if np.any(chosen.astype(object) @ means != counts[:, None] * means):
        return False
    rows, lead = np.arange(len(z)), chosen.argmax(axis=1)

    def gaps(left: Exact, right: Exact) -> Exact:
        """The score of the first choice minus the scores of all tokens."""
        scores = left @ matrix.T @ right.T
        return scores[rows, lead][:, None] - scores

    # Bernstein coefficients of these differences, the middle one doubled. The coefficient at the start is zero for a
    # tie, and otherwise positive. Ties must stay ties; otherwise no negative coefficient keeps the polynomial positive.
    middle, end = gaps(means, z) + gaps(z, means), gaps(means, means)
    return bool(np.all(np.where(chosen, (middle == 0) & (end == 0), (middle >= 0) & (end >= 0))))


def inertia(form: Exact) -> tuple[int, int]:
    """The numbers of positive and negative squares of a symmetric form (Sylvester), by elimination."""
    a, remaining, signs = form.copy(), list(range(len(form))), []
    while remaining:
        pivot = next((i for i in remaining if a[i, i] != 0), None)
        if pivot is None:
            pair = next(((i, j) for i, j in combinations(remaining, 2) if a[i, j] != 0), None)
            if pair is None:
                break
            # A change of coordinates turns x_i x_j into a square.
            pivot, j = pair
            a[pivot] += a[j]
            a[:, pivot] += a[:, j]
        signs.append(a[pivot, pivot] > 0)
        remaining.remove(pivot)
        a = a - np.outer(a[:, pivot], a[pivot]) / a[pivot, pivot]
    return sum(signs), len(signs) - sum(signs)


def _eliminated(rows: Exact) -> tuple[Exact, int]:
    """The reduced row echelon form of a matrix of fractions, and its rank."""
    a, rank = rows.copy(), 0
    for column in range(a.shape[1]):
        pivot = next((row for row in range(rank, len(a)) if a[row, column] != 0), None)
        if pivot is None:
            continue
        a[[rank, pivot]] = a[[pivot, rank]]
        a[rank] = a[rank] / a[rank, column]
        others = np.arange(len(a)) != rank
        a[others] -= np.outer(a[others, column], a[rank])
        rank += 1
    return a, rank


def rank_of(rows: Exact) -> int:
    """The rank of a matrix of fractions."""
    return _eliminated(rows)[1]


def in_cone(target: Exact, generators: Exact) -> bool:
    """True if the target is in the cone, by non-negative least squares (Lawson and Hanson, 1974) in fractions."""
    weights: dict[int, Fraction] = {}
    while True:
        residual = target - sum(weight * generators[i] for i, weight in weights.items())
        if not residual.any():
            return True
        gains = generators @ residual
        if not (gains > 0).any():
            # The residual is orthogonal to the active generators: a hyperplane separates the target from the cone.
            return False
        weights[int(gains.argmax())] = Fraction(0)
        while True:
            # The active generators are linearly independent, so that the normal equations have a unique solution.
            active = generators[list(weights)]
            solution = _eliminated(np.column_stack([active @ active.T, active @ target]))[0][:, -1]
            solved = dict(zip(weights, solution, strict=True))
            if min(solved.values()) > 0:
                weights = solved
                break
            # The step ends where the first weight becomes zero; that generator becomes inactive.
            step = min(weights[i] / (weights[i] - weight) for i, weight in solved.items() if weight <= 0)
            moved = {i: weight + step * (solved[i] - weight) for i, weight in weights.items()}
            weights = {i: weight for i, weight in moved.items() if weight > 0}


def in_hull(point: Exact, corners: Exact) -> bool:
    """True if the point is a convex combination of the corners."""
    ones = rational(np.ones((len(corners) + 1, 1)))
    return in_cone(np.concatenate([point, ones[0]]), np.concatenate([corners, ones[1:]], axis=1))


def is_interior(point: Exact, corners: Exact) -> bool:
    """True if a point is interior to the hull: directions to the corners span R^d with positive weights."""
    directions = corners - point
    return rank_of(directions) == len(point) and in_cone(-directions.sum(axis=0), directions)


# The clauses of the theorem for a cloud and any matrix A, each proved, refuted or left open.
#
# For every A and every step two statements are true (with scores ⟨·, ·⟩):
#
# - *A leader stays at a separate vertex.* If $⟨Az_i, z_j⟩ < ⟨Az_i, z_i⟩$ for all j ≠ i, then token i does not move,
#   and the new $z_j$ is a convex combination of the old tokens with a positive weight of $z_j$, so that the inequality
#   persists. The hull of the tokens meets $⟨Az_i, ·⟩ = ⟨Az_i, z_i⟩$ in $z_i$ alone. Hulls are nested, so that $z_i$ is
#   a vertex of all later hulls and of K.
# - *Limits are stationary.* If all tokens converge, then for every s of S the score ⟨As, ·⟩ is largest over K at s: the
#   mean over $C_i$ converges to s, and along layers with equal $C_i$ all attended tokens have the largest score in the
#   limit. If A is positive definite, s is the A-projection of the origin onto a face. So s is on the boundary of K
#   unless As = 0.
#
# Four clauses can fail: that there are leaders, that each vertex of K has a leader, that tokens converge, and, where As
# = 0, the boundary. **Invariants.** Arithmetic is exact; "held" and "failed" are proved for the given
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
        title = f"Examination({counted(len(self.first), 'token')}, {counted(self.layers, 'layer')})"
        outside = f"outside the theorem: {'; '.join(self.violates)}"
        return "\n".join(
            [
                f"{title}: {outside if self.violates else 'the theorem applies'}",
                *(f"  {clause.verdict:<6}  {clause.says} ({clause.measured})" for clause in self.clauses),
            ]
        )


def examine(z0: Tokens, layer: HardmaxLayer, depth: int = 60) -> Examination:
    """The clauses of the theorem on leaders and clusters for `z0` and any A, each proved, refuted or left open.

    A may be of low rank, indefinite or not symmetric, and tokens may be zero or equal; `violates` names the violated
    hypotheses of the theorem. The layers run in exact arithmetic on the given numbers, until it is proved that the
    choices of all tokens are final. Then the limits are known exactly; otherwise clauses that need the limits are open.
    The boundary is taken in $ℝ^d$. If A is not an inner product, the clause on projections says that ⟨As, ·⟩ is largest
    over K at s, which is equivalent for a positive definite A. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> z0 = jnp.array([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
        >>> proof = cjx.hardmax.examine(z0, cjx.hardmax.HardmaxLayer(1.0, jnp.array([[1.0, 0.0], [0.0, 0.0]])))
        >>> proof.violates, [clause.verdict for clause in proof.clauses]
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
    check_host(z0, layer)
    if len(z0) > _MOST_TOKENS:
        raise ValueError(
            f"z0 must hold {_MOST_TOKENS} tokens at most, but it holds {len(z0)}; take fewer, for the layers are exact."
        )
    for name, value in (("A", layer.A), ("alpha", layer.alpha)):
        if isinstance(value, AbstractSchedule):
            raise ValueError(f"{name} must be one value, but it is a {type(value).__name__}; the theorem fixes it.")
    if layer.masses is not None or not isinstance(layer.mask, FullMask):
        other = f"masses of shape {layer.masses.shape}" if layer.masses is not None else type(layer.mask).__name__
        raise ValueError(f"layer must have the full mask and no masses, but it has {other}; leave them out.")
    depth = check_integer(depth, "depth", most=_MOST_DEPTH, remedy="pass the most layers to apply")
    d = z0.shape[1]
    tokens = rational(z0)
    form = rational(np.eye(d) if layer.A is None else layer.A)
    alpha = Fraction(float(np.asarray(layer.alpha)))
    return examine_exactly(tokens, form, alpha / (1 + alpha), depth)


def examine_exactly(z0: Exact, form: Exact, share: Fraction, depth: int) -> Examination:
    """`examine` for fractions; `share` is alpha / (1 + alpha)."""
    run = run_exactly(z0, form, share, depth)
    limits = None if run.limits is None else np.array(run.limits, dtype=object).astype(float)
    return Examination(violated_hypotheses(z0, form), _clauses(run, form), np.array(run.first), limits, run.layers)


def violated_hypotheses(z0: Exact, form: Exact) -> tuple[str, ...]:
    """The violated hypotheses of the theorem on A and the tokens, in words."""
    d, violated, tokens = len(form), [], [tuple(z) for z in z0]
    if (form != form.T).any():
        violated.append("A is not symmetric")
    elif (signature := inertia(form))[1] > 0:
        positive, negative = signature
        kind = "indefinite" if positive else "negative definite" if negative == d else "negative semidefinite"
        violated.append(f"A is {kind}, of signature ({positive}, {negative})")
    if (rank := rank_of(form)) < d:
        violated.append(f"A is of rank {rank}")
    if zeros := [i for i, z in enumerate(tokens) if not any(z)]:
        violated.append(f"token {zeros[0]} is zero")
    if same := [(tokens.index(z), i) for i, z in enumerate(tokens) if tokens.index(z) < i]:
        violated.append(f"tokens {same[0][0]} and {same[0][1]} are equal")
    return tuple(violated)


def _clauses(run: ExactRun, form: Exact) -> tuple[ExaminedClause, ...]:
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
        unproved: tuple[Verdict, float, str] = ("open", np.nan, unknown)
        return tuple(ExaminedClause(words, *(unproved if k else some)) for k, words in enumerate(says))
    points, places = set(run.limits), {run.limits[i] for i, k in enumerate(run.first) if k >= 0}
    exact = lambda points: np.array(sorted(points), dtype=object).reshape(len(points), len(form))
    hull, others = exact(points), exact(points - places)
    # K is the hull of the limits. The points of leaders are vertices, for any A; another point is a vertex unless it is
    # in the hull of the rest.
    bare = [point for point in others if not in_hull(point, exact(points - {tuple(point)}))]
    deep = [point for point in others if not (form @ point).any() and is_interior(point, hull)]
    gaps = [max(hull @ (form @ point)) - point @ (form @ point) for point in others]
    gap = max(gaps, default=Fraction(0))
    outcomes = (
        (led > 0, float(not led), counted(led, "leader")),
        (not bare, float(len(bare)), f"{counted(len(bare), 'vertex', 'vertices')} of no leader"),
        (True, 0.0, f"no choice changes after {counted(run.layers, 'layer')}"),
        (not deep, float(len(deep)), f"{counted(len(deep), 'point')} in the interior"),
        (gap == 0, float(gap), f"{counted(len(gaps), 'such point')}"),
    )
    return tuple(
        ExaminedClause(words, "held" if held else "failed", residual, measured)
        for words, (held, residual, measured) in zip(says, outcomes, strict=True)
    )
