"""The result of `limit_shape`: the shape, its clauses with their residuals, the theorem and its hypotheses."""

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from .._base.checks import check_number
from ..hardmax._limit import facets, outside


# Geometry in the coordinates of F: distances from the faces to which tokens attend, corners, and nested hulls.
#
# **Invariants.** A depth is not negative, and is zero for a token that attends to itself or to the face on which it
# lies. A bound on the rounding error accompanies each depth, so that a clause may count it against itself. Tokens
# without mass receive no attention and are not corners.


_EPS = float(np.finfo(np.float64).eps)
# The number of directions in which hulls are compared, in two or more dimensions; a line has two directions.
_DIRECTIONS = 256


class Depths(NamedTuple):
    """The distance of tokens from the set S, relative to the largest norm of a token."""

    residual: Float[np.ndarray, " n"]  # the smaller of the distance from the origin and the depth below the face
    rounding: Float[np.ndarray, " n"]  # a bound on the amount by which rounding may have reduced the residual


def length_of(c: Float[np.ndarray, "n r"]) -> float:
    """The largest norm of a row."""
    return float(np.linalg.norm(c, axis=1).max())


def depths(
    c: Float[np.ndarray, "n r"], form: Float[np.ndarray, "r r"], present: Bool[np.ndarray, " n"], moved: float
) -> Depths:
    """The distance of each token from the origin, or below the face that its direction $B^T c_i$ supports.

    A token of S = {c: <B^T c, c> = max_j <B^T c, c_j>} lies in a supporting hyperplane of the hull, whose normal is the
    direction in which the token attends. `moved` bounds the displacement of a token by rounding.
    """
    scale = length_of(c)
    if scale == 0:
        return Depths(np.zeros(len(c)), np.zeros(len(c)))
    unit = c / scale
    queries = unit @ form
    sizes, lengths = np.linalg.norm(queries, axis=1), np.linalg.norm(unit, axis=1)
    scores = queries @ unit[present].T
    own = np.einsum("ir,ir->i", queries, unit)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.maximum(scores.max(axis=1) - own, 0.0) / sizes
        # The Cauchy-Schwarz inequality bounds products of r terms, divided by the norm of the query.
        weight = np.linalg.norm(form) * lengths / sizes
        rounding = 8 * (c.shape[1] + 2) * _EPS * weight + (2 + 2 * weight) * moved / scale
    # A token with zero query attends to all tokens equally and has no face: only the distance from the origin counts.
    below, rounding = np.where(sizes > 0, below, np.inf), np.where(sizes > 0, rounding, 0.0)
    at_origin = lengths <= below
    return Depths(np.where(at_origin, lengths, below), np.where(at_origin, _EPS + moved / scale, rounding))


def corners(
    c: Float[np.ndarray, "n r"], present: Bool[np.ndarray, " n"], radius: float, *, of_hull: bool = True
) -> tuple[Float[np.ndarray, "m r"], Int[np.ndarray, " n"]]:
    """The corners of the hull, (m, r), and the index of the corner of each token, -1 if the token is at none.

    Tokens within `radius` of each other count as one, represented by the longest, so that a token on its way to a
    corner is not taken for the corner. Without `of_hull` all positions of tokens count.
    """
    chosen: list[np.ndarray] = []
    for i in np.argsort(-np.linalg.norm(c, axis=1), kind="stable"):
        if present[i] and all(np.linalg.norm(c[i] - other) > radius for other in chosen):
            chosen.append(c[i])
    places = np.stack(chosen)
    # A point within the radius of the hull of the others lies on an edge or in the interior.
    places = places[outside(places) > radius] if of_hull and len(places) > 1 else places
    gaps = np.linalg.norm(c[:, None] - places[None], axis=-1)
    nearest = np.argmin(gaps, axis=1)
    return places, np.where(gaps.min(axis=1) <= radius, nearest, -1)


def directions(r: int) -> Float[np.ndarray, "m r"]:
    """Unit vectors in which hulls are compared, (m, r)."""
    if r == 1:
        return np.array([[1.0], [-1.0]])
    if r == 2:
        angles = 2 * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    drawn = np.random.default_rng(0).normal(size=(_DIRECTIONS, r))
    axes = np.concatenate([np.eye(r), -np.eye(r), drawn])
    return axes / np.linalg.norm(axes, axis=1, keepdims=True)


def growth(cs: Float[np.ndarray, "times n r"]) -> float:
    """The largest growth of the hull in any direction, beyond its least earlier extent, divided by the largest norm."""
    reach = np.stack([(c @ directions(cs.shape[2]).T).max(axis=0) for c in cs])
    scale = max(length_of(cs.reshape(-1, cs.shape[2])), np.finfo(np.float64).tiny)
    return float((reach - np.minimum.accumulate(reach, axis=0)).max() / scale)


POLYTOPE, HYPERPLANES, MIXED, BOOLEAN = "polytope", "hyperplanes", "polytope x subspace", "Boolean"
ONE, OPPOSITE, SEVERAL, CIRCLE, SUBSPACE = "one point", "opposite points", "several points", "circle", "subspace"
NONE, METASTABLE = "none", "metastable"
FLAT = (POLYTOPE, HYPERPLANES, MIXED, BOOLEAN)


class LimitHypothesis(NamedTuple):
    """A hypothesis of a theorem on the field, and the outcome of its test.

    **Attributes:**

    - `says`: The hypothesis, in words.
    - `held`: True if the hypothesis holds, to rounding.
    - `measured`: The measured quantities, in words and numbers.
    """

    says: str
    held: bool
    measured: str


class LimitClause(NamedTuple):
    """One clause of a shape, and the residual of the tokens.

    **Attributes:**

    - `says`: The clause, in words.
    - `held`: True if residual and rounding error together are within the tolerance.
    - `residual`: The violation of the clause, relative to the largest norm of a token; infinite if it is unknown.
    - `measured`: The measured quantities, in words and numbers.
    """

    says: str
    held: bool
    residual: float
    measured: str


class LimitShape(eqx.Module):
    """The shape of the tokens in the limit, clause by clause; prints as a list.

    **Attributes:**

    - `kind`: In R^d "polytope", "hyperplanes", "polytope x subspace" or "Boolean"; on the sphere "one point", "opposite
        points", "several points", "circle" or "subspace", or "metastable": opposite or several points, two of which
        merge later; "none" if no shape fits or none is to be expected.
    - `seen`: The present shape of the tokens, which differs from `kind` only for "metastable".
    - `clauses`: The `LimitClause`s of the shape.
    - `hypotheses`: The `LimitHypothesis`es of the theorem nearest to the field.
    - `theorem`: The theorem by which tokens converge to this shape; empty if none applies.
    - `proof`: The reason that the tokens keep this shape for ever, a theorem or a bound; empty if none is known.
    - `remark`: Further remarks, or the reason that no theorem applies.
    - `residuals`: (n,), the distance of each token from the shape, relative to the largest norm of a token.
    - `coordinates`: (n, r), the coordinates of the tokens in the directions of the shape: in R^d, all of R^d for a
        polytope and F for the other shapes; on the sphere, the tokens themselves.
    - `frame`: (d, r), unit vectors along these directions; on the sphere they span the shape.
    - `rest`: (d, d - r), a basis of the directions in which the shape does not constrain the tokens.
    - `present`: (n,), True for tokens that have mass.
    - `t`: The time of the tokens; infinite if the tokens are taken for the limit itself.
    - `until`: For a metastable shape, the time of the next merger according to `coarsen`; otherwise infinite.
    - `tolerance`: The largest residual that counts as zero.
    - `ts`, `history`: (times,), the saved times of a run, and the largest residual of a token at each.
    """

    kind: str
    seen: str
    clauses: tuple[LimitClause, ...]
    hypotheses: tuple[LimitHypothesis, ...]
    theorem: str
    proof: str
    remark: str
    residuals: Float[np.ndarray, " n"]
    coordinates: Float[np.ndarray, "n r"]
    frame: Float[np.ndarray, "d k"]
    rest: Float[np.ndarray, "d g"]
    present: Bool[np.ndarray, " n"]
    t: float
    until: float
    tolerance: float
    ts: Float[np.ndarray, " times"]
    history: Float[np.ndarray, " times"]

    @property
    def certified(self) -> bool:
        """True if the tokens fit the shape, and keep it for ever by a theorem with all its hypotheses or by a bound."""
        return bool(self.proof)

    @property
    def fits(self) -> bool:
        """True if all clauses hold within the tolerance, counting rounding error; False for the shape "none"."""
        return self.kind != NONE and all(clause.held for clause in self.clauses)

    @property
    def applies(self) -> bool:
        """True if a theorem applies to the field."""
        return bool(self.theorem)

    @property
    def points(self) -> Float[np.ndarray, "m r"]:
        """The corners of a polytope, the levels of the hyperplanes (at most three), or the points on the sphere."""
        return self._places()[0]

    @property
    def labels(self) -> Int[np.ndarray, " n"]:
        """The index in `points` of the point of each token, within the tolerance; -1 for a token at no point."""
        return self._places()[1]

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        scale = float(np.linalg.norm(self.coordinates, axis=1).max())
        if self.kind in (HYPERPLANES, BOOLEAN):
            c = self.coordinates[:, 0]
            ends = {max(float(c[self.present].max()), 0.0), min(float(c[self.present].min()), 0.0), 0.0}
            levels = np.array(sorted(ends))[:, None]
            gaps = np.abs(c[:, None] - levels[:, 0])
            return levels, np.where(gaps.min(axis=1) <= self.tolerance * scale, gaps.argmin(axis=1), -1)
        # The radius is doubled, because two tokens within the tolerance of a corner may lie on opposite sides.
        radius = 2 * self.tolerance * scale
        return corners(self.coordinates, self.present, radius, of_hull=self.kind in FLAT)

    def outline(self, reach: float) -> list[Float[np.ndarray, "k d"]]:
        """The shape as lines, for pictures with d = 2 or 3; unbounded parts extend by `reach` in both directions.

        **Arguments:**

        - `reach`: A length, above zero.

        **Returns:**

        A list of lines (points, d), which is empty for points on the sphere.

        **Raises:**

        - `ValueError` if `reach` is not a number above zero.
        """
        reach = check_number(reach, "reach", above=0)
        lift = lambda c: np.asarray(c) @ self.frame.T
        along = [reach * self.rest[:, k] for k in range(self.rest.shape[1])]
        if self.kind == HYPERPLANES:
            return [line for level in self.points for line in _sheet(lift(level), along)]
        if self.kind in (POLYTOPE, MIXED):
            edges = [lift(self.points[edge]) for edge in _edges(self.points)]
            return edges + [np.stack([lift(c) - g, lift(c) + g]) for c in self.points for g in along]
        if self.kind in (CIRCLE, SUBSPACE) and self.frame.shape[1] == 2:
            turn = np.linspace(0, 2 * np.pi, 121)
            ring = np.stack([np.cos(turn), np.sin(turn)], axis=1) @ self.frame.T
            # The plane of a small circle does not contain the origin.
            middle = self.coordinates.mean(axis=0)
            middle = middle - self.frame @ (self.frame.T @ middle)
            return [middle + np.sqrt(max(1 - middle @ middle, 0.0)) * ring]
        return []

    def summary(self) -> str:
        """A few lines with the shape, the theorem and each clause."""
        when = "as the limit itself" if np.isinf(self.t) else f"at t = {self.t:.6g}"
        said = "certified" if self.certified else "NOT certified"
        if self.kind == METASTABLE:
            said = f"{self.seen} until t = {self.until:.4g}, {said}"
        lines = [f"{self.kind}, {said} {when} within {self.tolerance:g} of the longest of {len(self.residuals)} tokens"]
        lines.append(f"  theorem: {self.theorem}" if self.applies else "  no theorem applies")
        lines += [f"  stays for ever: {self.proof}"] if self.proof not in ("", self.theorem) else []
        lines += [f"  {self.remark}"] if self.remark else []
        lines += [f"  {'meets ' if h.held else 'LACKS '}  {h.says} {h.measured}" for h in self.hypotheses]
        lines += [
            f"  {'held  ' if c.held else 'FAILED'}  {c.says} residual {c.residual:.1e}; {c.measured}"
            for c in self.clauses
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()


def _edges(points: np.ndarray) -> list[np.ndarray]:
    """The edges of the hull of corners as arrays of indices; for a polyhedron, the edges of its triangles."""
    if len(points) < 2:
        return []
    faces = facets(points, 1e-9 * float(np.abs(points).max()))
    if faces.shape[1] == 1:
        return [faces[:, 0]]
    pairs = {tuple(sorted((int(a), int(b)))) for face in faces for a in face for b in face if a != b}
    return [np.array(pair) for pair in sorted(pairs)]


def _sheet(middle: np.ndarray, along: list[np.ndarray]) -> list[np.ndarray]:
    """A line through `middle` along one direction, or the outline of a parallelogram along two."""
    if len(along) == 1:
        return [np.stack([middle - along[0], middle + along[0]])]
    if len(along) == 2:
        signs = ((1, 1), (1, -1), (-1, -1), (-1, 1), (1, 1))
        return [np.stack([middle + a * along[0] + b * along[1] for a, b in signs])]
    return []
