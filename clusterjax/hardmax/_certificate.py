"""The theorem of the hardmax dynamics, checked clause by clause on a cloud, each with a margin.

**Algorithm.** The layers are applied until they reach a fixed point (`_fixed_point.py`), `_limit.py` forms the limit
set, and each clause compares two numbers. **Reference.** Alcalde, Fantuzzi, Zuazua (2407.01602), the theorem on leaders
and clusters. **Invariants.** Lengths are relative to the largest norm of a token; a violated assumption of the theorem
raises a ValueError, and is never reported as a failed clause.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._check import MOST_ENTRIES, check_integer
from .._custom_types import Tokens
from .._mask import FullMask
from .._misc import is_concrete
from .._schedule import AbstractSchedule
from ._fixed_point import FixedPoint, run_to_fixed_point
from ._hull import nearest_in_hull
from ._layer import HardmaxLayer
from ._leaders import check_fit
from ._limit import LimitSet, check_precision, counted, limit_of, present_tokens, settled_tolerance, small


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
