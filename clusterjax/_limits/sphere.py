"""The limit shapes on the sphere: one point, opposite points, several points, a circle, a subspace.

**Algorithm.** The simplest shape that the tokens fit within the tolerance is chosen: points by their mean direction,
their leading singular vector, or as connected components; flat shapes by singular values. `coarsen` follows uncertified
points at rest to their next merger. **Reference.** Geshkovski et al. (2312.10794) and Karagodin et al. (2411.04990) for
the theorem on one point; the other shapes are observed, not proved. **Invariants.** Distances are chords of the unit
sphere. One point is certified by a theorem or by a cap that tokens never leave; opposite points only if the tokens are
opposite bit by bit; no other shape is certified, however slowly it moves.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._coarsen import coarsen
from .._model.field import AbstractField, AttentionField
from .._model.schedule import AbstractSchedule
from .hypotheses import Theorem, is_at_rest_exactly, never_leaves_a_cap
from .result import CIRCLE, METASTABLE, NONE, ONE, OPPOSITE, SEVERAL, SUBSPACE, LimitClause, LimitShape


# Bounds the rounding error of sums of products of unit vectors, per dimension.
_ROUNDING = 16 * float(np.finfo(np.float64).eps)
# The time until which `coarsen` looks for a merger, a shorter time for a V that `coarsen` cannot follow so far, and the
# maximal numbers of steps and of tokens.
_NEVER, _DRIFTS, _MOST_STEPS, _MOST_TOKENS = 1e300, 1e10, 3000, 1024


class Fit(NamedTuple):
    """A shape, and the distance of each token from it."""

    kind: str
    residuals: Float[np.ndarray, " n"]
    frame: Float[np.ndarray, "d r"]
    says: str
    found: str
    groups: tuple[np.ndarray, ...] = ()  # for several points, the indices of the tokens at each


def fit(x: Float[np.ndarray, "n d"], tolerance: float, at_rest: bool) -> Fit:
    """The simplest shape that unit tokens fit; several points with one token each fit only if at rest."""
    n, d = x.shape
    whole = np.eye(d)
    mean = x.mean(axis=0)
    length = float(np.linalg.norm(mean))
    middle = mean / length if length > 0 else x[0]
    single = np.linalg.norm(x - middle, axis=1)
    if single.max() <= tolerance:
        return Fit(ONE, single, middle[:, None], "All tokens are at one point.", f"|mean| = {length:.6f}")
    # The singular vectors of the tokens, by decreasing singular value.
    axes = np.linalg.svd(x, full_matrices=True)[2]
    side = np.where(x @ axes[0] >= 0, 1.0, -1.0)
    pair = np.linalg.norm(x - side[:, None] * axes[0], axis=1)
    if pair.max() <= tolerance:
        measured = f"{int((side > 0).sum())} tokens at one, {int((side < 0).sum())} at the other"
        return Fit(OPPOSITE, pair, axes[:1].T, "Every token is at one of two opposite points.", measured)
    labels = components(x, tolerance)
    count = int(labels.max()) + 1
    centres = np.stack([x[labels == k].mean(axis=0) for k in range(count)])
    spread = np.linalg.norm(x - centres[labels], axis=1)
    if spread.max() <= tolerance and (count < n or at_rest):
        gaps = np.linalg.norm(centres[:, None] - centres, axis=-1)[~np.eye(count, dtype=bool)]
        says = "Every token is at one of several points."
        groups = tuple(np.flatnonzero(labels == k) for k in range(count))
        return Fit(SEVERAL, spread, whole, says, f"{count} points, at least {gaps.min():.4g} apart", groups)
    if (flat := _flat(x, axes, tolerance)) is not None:
        return flat
    return Fit(NONE, spread, whole, "", f"{count} groups, of rank {d}")


def _flat(x: np.ndarray, axes: np.ndarray, tolerance: float) -> Fit | None:
    n, d = x.shape
    for r in range(1, d):
        beside = np.linalg.norm(x @ axes[r:].T, axis=1)
        if beside.max() <= tolerance and n > r:
            if r == 2:
                return Fit(CIRCLE, beside, axes[:2].T, "All tokens are on one great circle.", "of dimension 2")
            return Fit(SUBSPACE, beside, axes[:r].T, "All tokens are in one subspace.", f"of dimension {r} of {d}")
    # The plane of a small circle does not contain the origin.
    centred = x - x.mean(axis=0)
    planes = np.linalg.svd(centred, full_matrices=True)[2]
    beside = np.linalg.norm(centred @ planes[2:].T, axis=1)
    if d > 2 and n > 3 and beside.max() <= tolerance:
        off = float(np.linalg.norm(x.mean(axis=0) @ planes[2:].T))
        return Fit(
            CIRCLE, beside, planes[:2].T, "All tokens are on one circle.", f"its plane is {off:.4g} from the origin"
        )
    return None


def components(x: Float[np.ndarray, "n d"], radius: float) -> np.ndarray:
    """The component of each token, (n,), where tokens within `radius` are connected; numbered by first members."""
    from scipy.sparse.csgraph import connected_components  # imported only when needed

    return connected_components(np.linalg.norm(x[:, None] - x[None], axis=-1) <= radius, directed=False)[1]


def next_merger(field: AbstractField, x: np.ndarray, t: float, tolerance: float) -> tuple[float, str]:
    """The time of the next merger of two points according to `coarsen`, or infinity, and an explanation."""
    if not isinstance(field, AttentionField) or len(x) > _MOST_TOKENS:
        return np.inf, "It is not known whether these points merge: coarsen cannot follow them."
    least, value = float(np.finfo(x.dtype).eps) ** 0.5, field.value
    strength = 1.0 if value is None or isinstance(value, AbstractSchedule) else float(np.linalg.norm(value, 2))
    for end in (_NEVER, _DRIFTS / max(strength, 1.0)):
        try:
            tree = coarsen(field, jnp.asarray(x), end, tolerance=max(tolerance, least), max_steps=_MOST_STEPS)
        except ValueError as error:
            why = str(error).split(";")[0]
        except RuntimeError as error:
            return np.inf, f"It is not known whether these points merge: {error}"
        else:
            later = tree.times[tree.times > 0]
            if len(later):
                bound = float(tree.bound[len(tree) - len(later)])
                return t + float(later[0]), f"Two points merge at t = {t + later[0]:.4g}, to a relative {bound:.0e}."
            return np.inf, f"coarsen finds no merger to t = {t + end:.3g}, which proves nothing of later times."
    return np.inf, f"coarsen does not follow these points: {why}."


def shape_on_sphere(
    field: AbstractField,
    theorem: Theorem | None,
    ts: np.ndarray,
    xs: np.ndarray,
    velocity: np.ndarray,
    t: float,
    present: np.ndarray,
    tolerance: float,
    judged: np.ndarray,
    follow: bool,
) -> LimitShape:
    """The shape of unit tokens (times, n, d) at the last time; `judged` holds the last tokens before normalisation."""
    x = xs[-1]
    d = x.shape[1]
    speed = np.linalg.norm(velocity, axis=1)
    fastest = float(speed.max())
    shape = fit(x, tolerance, fastest <= tolerance)
    rounding = d * _ROUNDING
    state = "at rest" if fastest <= tolerance else "NOT CONVERGED: run for longer"
    clauses = [] if shape.kind == NONE else [
        LimitClause(shape.says, bool(shape.residuals.max() + rounding <= tolerance), float(shape.residuals.max()),
                    shape.found)
    ]  # fmt: skip
    if shape.kind != NONE:
        moves = f"token {int(speed.argmax())} moves by that in a unit of time, {state}"
        clauses.append(LimitClause("The tokens have come to rest there.", fastest <= tolerance, fastest, moves))
    applies = theorem is not None and theorem.applies
    remark, until = "", np.inf
    fits = shape.kind != NONE and all(clause.held for clause in clauses)
    proof = _proof(field, theorem, shape.kind, t, judged) if fits else ""
    if applies and shape.kind != ONE and not proof:
        # A shape that a theorem excludes is not certified as a limit, however long it lasts.
        off = float(np.linalg.norm(x - x[0], axis=1).max())
        clauses.append(LimitClause("It is the limit of the theorem, one point.", off <= tolerance, off,
                                   f"the farthest token is {off:.3g} from token 0"))  # fmt: skip
        remark = "The theorem says that all tokens come to one point: these tokens are metastable or still move."
    elif theorem is None:
        remark = f"No theorem is known here of the limits of a {type(field).__name__}; only the shape is judged."
    if shape.kind == NONE:
        remark = f"{remark} The tokens fit no shape: {shape.found}.".strip()
    if fits and not proof and shape.kind in (OPPOSITE, SEVERAL) and follow:
        until, how = next_merger(field, judged, t, tolerance)
        remark = f"{remark} {how}".strip()
    history = np.array([_residual(y, shape) for y in xs[: len(ts)]])
    return LimitShape(
        shape.kind if np.isinf(until) else METASTABLE, shape.kind, tuple(clauses),
        () if theorem is None else theorem.hypotheses, theorem.name if theorem is not None and applies else "", proof,
        remark, shape.residuals, x, np.eye(d) if shape.kind in (SEVERAL, NONE) else shape.frame, np.zeros((d, 0)),
        present, t, until, tolerance, ts, history,
    )  # fmt: skip


def _proof(field: AbstractField, theorem: Theorem | None, kind: str, t: float, x: np.ndarray) -> str:
    """The reason that tokens that fit a shape keep it for ever; empty if none is known."""
    if kind == ONE and theorem is not None and theorem.applies:
        return theorem.name
    if not isinstance(field, AttentionField):
        return ""
    if kind in (ONE, OPPOSITE) and is_at_rest_exactly(field, x):
        return "all tokens are on one line through zero, exactly, and V is a multiple of the identity: none moves"
    if kind == ONE and never_leaves_a_cap(field, t, jnp.asarray(x)):
        return "V is a positive multiple of the identity and no weight negative: tokens do not leave the cap about them"
    return ""


def _residual(x: np.ndarray, fitted: Fit) -> float:
    """The largest distance of the tokens at another time from a shape of the kind of `fitted`."""
    if fitted.kind == NONE:
        return np.inf
    if fitted.kind == ONE:
        mean = x.mean(axis=0)
        return float(np.linalg.norm(x - mean / max(np.linalg.norm(mean), 1e-300), axis=1).max())
    axes = np.linalg.svd(x, full_matrices=True)[2]
    if fitted.kind == OPPOSITE:
        side = np.where(x @ axes[0] >= 0, 1.0, -1.0)
        return float(np.linalg.norm(x - side[:, None] * axes[0], axis=1).max())
    if fitted.kind == SEVERAL:
        return max(
            float(np.linalg.norm(part - part.mean(axis=0), axis=1).max()) for part in (x[g] for g in fitted.groups)
        )
    r = fitted.frame.shape[1]
    return float(np.linalg.norm(x @ axes[r:].T, axis=1).max())
