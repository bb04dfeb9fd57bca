"""What `limit_shape` answers: the shape, its clauses with their residuals, the theorem and its hypotheses."""

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from .._check import check_number
from ..hardmax._hull import facets
from .geometry import corners


POLYTOPE, HYPERPLANES, MIXED, BOOLEAN = "polytope", "hyperplanes", "polytope x subspace", "Boolean"
ONE, OPPOSITE, SEVERAL, CIRCLE, SUBSPACE = "one point", "opposite points", "several points", "circle", "subspace"
NONE, METASTABLE = "none", "metastable"
FLAT = (POLYTOPE, HYPERPLANES, MIXED, BOOLEAN)


class LimitHypothesis(NamedTuple):
    """What a theorem asks of the field, and what was found.

    **Attributes:**

    - `says`: The hypothesis, in words.
    - `held`: Whether it holds, to rounding.
    - `measured`: What was found, in words and numbers.
    """

    says: str
    held: bool
    measured: str


class LimitClause(NamedTuple):
    """One clause of a shape, and by how much the tokens miss it.

    **Attributes:**

    - `says`: The clause, in words.
    - `held`: Whether residual and rounding together are within the tolerance.
    - `residual`: By how much the clause is missed, relative to the longest token; infinite if nothing can be said.
    - `measured`: What was found, in words and numbers.
    """

    says: str
    held: bool
    residual: float
    measured: str


class LimitShape(eqx.Module):
    """Where the tokens are in the end, clause by clause; prints as a list.

    **Attributes:**

    - `kind`: In R^d "polytope", "hyperplanes", "polytope x subspace" or "Boolean"; on the sphere "one point", "opposite
        points", "several points", "circle" or "subspace", or "metastable": opposite or several points, two of which
        merge later; "none" where no shape of these fits or is to be expected.
    - `seen`: The shape that the tokens have: `kind`, but for what is metastable.
    - `clauses`: The `LimitClause`s of this shape.
    - `hypotheses`: The `LimitHypothesis`es of the theorem that is nearest to the field.
    - `theorem`: Which theorem says that tokens come to this shape; empty if none applies.
    - `proof`: Why the tokens keep this shape for ever: the theorem, or what bounds them; empty if nothing is known.
    - `remark`: What else is to be said, or why no theorem applies.
    - `residuals`: (n,), how far each token is from the shape, relative to the longest.
    - `coordinates`: (n, r), the tokens in the directions of the shape: all of R^d for a polytope, F for the others in
        R^d. On the sphere the tokens.
    - `frame`: (d, r), the unit vectors of these directions; on the sphere those that the shape spans.
    - `rest`: (d, d - r), a basis of the directions in which tokens go their own ways.
    - `present`: (n,), which tokens have mass.
    - `t`: The time at which the tokens are judged; infinite where they are taken for the limit itself.
    - `until`: Of what is metastable the time at which `coarsen` has its next merger; infinite for all else.
    - `tolerance`: Up to which a residual counts as zero.
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
        """Whether the tokens fit the shape, and a theorem of which all hypotheses hold, or a bound, says that they do
        so for ever."""
        return bool(self.proof)

    @property
    def fits(self) -> bool:
        """Whether all clauses hold now, within the tolerance, rounding counted; of a shape "none" they do not."""
        return self.kind != NONE and all(clause.held for clause in self.clauses)

    @property
    def applies(self) -> bool:
        """Whether a theorem applies to the field."""
        return bool(self.theorem)

    @property
    def points(self) -> Float[np.ndarray, "m r"]:
        """The corners of a polytope, the levels of the hyperplanes (at most three), or the points on the sphere."""
        return self._places()[0]

    @property
    def labels(self) -> Int[np.ndarray, " n"]:
        """The index in `points` of the point that each token is at, within the tolerance; -1 where it is at none."""
        return self._places()[1]

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        scale = float(np.linalg.norm(self.coordinates, axis=1).max())
        if self.kind in (HYPERPLANES, BOOLEAN):
            c = self.coordinates[:, 0]
            ends = {max(float(c[self.present].max()), 0.0), min(float(c[self.present].min()), 0.0), 0.0}
            levels = np.array(sorted(ends))[:, None]
            gaps = np.abs(c[:, None] - levels[:, 0])
            return levels, np.where(gaps.min(axis=1) <= self.tolerance * scale, gaps.argmin(axis=1), -1)
        # Twice: tokens on either side of a corner, each within the tolerance of it.
        radius = 2 * self.tolerance * scale
        return corners(self.coordinates, self.present, radius, of_hull=self.kind in FLAT)

    def outline(self, reach: float) -> list[Float[np.ndarray, "k d"]]:
        """The shape as lines, for pictures of d = 2 or 3; what is unbounded goes on for `reach` on either side.

        **Arguments:**

        - `reach`: A length, above zero.

        **Returns:**

        A list of lines (points, d); of points on the sphere none.

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
            # A small circle lies in a plane beside the origin.
            middle = self.coordinates.mean(axis=0)
            middle = middle - self.frame @ (self.frame.T @ middle)
            return [middle + np.sqrt(max(1 - middle @ middle, 0.0)) * ring]
        return []

    def summary(self) -> str:
        """The shape, the theorem and each clause, in a few lines."""
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
    """The edges of the hull of corners, by their numbers; of a body those of its triangles."""
    if len(points) < 2:
        return []
    faces = facets(points, 1e-9 * float(np.abs(points).max()))
    if faces.shape[1] == 1:
        return [faces[:, 0]]
    pairs = {tuple(sorted((int(a), int(b)))) for face in faces for a in face for b in face if a != b}
    return [np.array(pair) for pair in sorted(pairs)]


def _sheet(middle: np.ndarray, along: list[np.ndarray]) -> list[np.ndarray]:
    """A line through a point along one direction, or the outline of a square along two."""
    if len(along) == 1:
        return [np.stack([middle - along[0], middle + along[0]])]
    if len(along) == 2:
        signs = ((1, 1), (1, -1), (-1, -1), (-1, 1), (1, 1))
        return [np.stack([middle + a * along[0] + b * along[1] for a, b in signs])]
    return []
