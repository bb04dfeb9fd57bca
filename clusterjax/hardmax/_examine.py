r"""The clauses of the theorem for a cloud and any matrix A, each proved, refuted or left open.

For every A and every step two statements are true (with scores $\langle\cdot,\cdot\rangle$):

- *A leader stays, at a vertex of its own.* If $\langle Az_i, z_j\rangle < \langle Az_i, z_i\rangle$ for all $j\ne i$,
  then token i does not move, and the new $z_j$ is a convex combination of the old tokens with a positive weight of
  $z_j$, so that the inequality persists. The hull of the tokens meets $\langle Az_i, \cdot\rangle = \langle
  Az_i, z_i\rangle$ in $z_i$ alone. Hulls are nested, so that $z_i$ is a vertex of all later hulls and of K.
- *Limits are stationary.* If all tokens converge, then for every s of S the score $\langle As, \cdot\rangle$ is largest
  over K at s: the mean over $C_i$ converges to s, and along layers with equal $C_i$ all attended tokens have the
  largest score in the limit. If A is positive definite, s is the A-projection of the origin onto a face.
  So s is on the boundary of K unless As = 0.

Four clauses can fail: that there are leaders, that each vertex of K has a leader, that tokens converge, and, where
As = 0, the boundary. **Invariants.** Arithmetic is exact (`_exact.py`); "held" and "failed" are proved for the given
numbers.
"""

from fractions import Fraction
from typing import Any, Literal, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from .._check import check_integer
from .._custom_types import Tokens
from .._mask import FullMask
from .._misc import is_concrete
from .._schedule import AbstractSchedule
from ._exact import ExactRun, Point, image, in_hull, inertia, inner, is_interior, rank_of, run_exactly
from ._layer import HardmaxLayer
from ._leaders import check_fit
from ._limit import counted


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
