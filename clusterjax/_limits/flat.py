"""The limit shapes in R^d: polytope, hyperplanes, polytope x subspace, and Boolean attention in one dimension.

**Algorithm.** Every test uses the coordinates c, along G, of the part of a token in the leading eigenspace F of V (see
`hypotheses.py`). There the scores grow fastest, tokens move by $ċ_i = λ ∑_j P_{ij} (c_j - c_i)$, and the limits are the
origin and $S = {c : ⟨B^T c, c⟩ = max_j ⟨B^T c, c_j⟩}$. If F is a line, S consists of two levels and zero: three
hyperplanes. **Reference.** Geshkovski et al. (2305.05465), Sections 2 to 5. **Invariants.** Residuals are relative to
the largest norm of a token; rounding error counts against a clause.
"""

from typing import NamedTuple

import numpy as np

from ..hardmax._certificate import EQUAL, rounding_of
from .hypotheses import Matrices, Splitting, split, theorem_in_space
from .result import BOOLEAN, HYPERPLANES, MIXED, NONE, POLYTOPE, LimitClause, LimitShape, depths, growth, length_of


class Run(NamedTuple):
    """The rescaled tokens at the saved times, and the velocity at the last; `ts` is empty without a run."""

    ts: np.ndarray
    zs: np.ndarray  # (times, n, d); the shape is that of the last tokens
    velocity: np.ndarray | None
    t: float


# The largest factor of the scores, at which a softmax is a hardmax in double precision.
_LARGEST = 1e250


def shape_in_space(m: Matrices, run: Run, tolerance: float) -> LimitShape:
    """The limit shape of rescaled tokens."""
    parts = split(m.value)
    theorem = theorem_in_space(m, parts)
    if not parts.is_real or not np.isfinite(parts.error):
        return no_shape(run, m.present, tolerance, _why(parts), theorem.hypotheses)
    form = parts.frame.T @ m.form @ parts.frame
    cs = run.zs @ parts.dual.T
    moved = parts.rounding * length_of(run.zs[-1])
    judged = [depths(c, form, m.present, moved) for c in cs]
    last = judged[-1]
    worst = int(np.argmax(last.residual + last.rounding))
    if theorem.kind == BOOLEAN:
        rate, product = float(m.value[0, 0]), float(m.form[0, 0])
        far, history, clauses = _boolean(cs[:, :, 0], rate, product, m.present, run, tolerance)
        residuals = far[-1]
    else:
        measured = f"token {worst} is the farthest; rounding is at most {last.rounding[worst]:.0e}"
        clauses = (_clause(_SAYS[theorem.kind], last.residual[worst], last.rounding[worst], tolerance, measured),)
        history, residuals = np.array([depth.residual.max() for depth in judged]), last.residual
    clauses = (*_nested(cs, tolerance), *clauses, *_rest(parts, cs[-1], run, tolerance))
    name = theorem.name if theorem.applies else ""
    proof = name if all(clause.held for clause in clauses) else ""
    return LimitShape(
        theorem.kind, theorem.kind, clauses, theorem.hypotheses, name, proof, _remark(theorem.kind, m, parts),
        residuals, cs[-1], parts.frame, parts.rest, m.present, run.t, np.inf, tolerance, run.ts, history[: len(run.ts)],
    )  # fmt: skip


_SAYS = {
    POLYTOPE: "Every token is at the origin, or on the face of the polytope that it attends to.",
    HYPERPLANES: "phi_1* of every token is zero, or the largest, if positive, or the smallest, if negative.",
    MIXED: "The part in F of every token is the origin, or on the face that it attends to.",
}


def no_shape(run: Run, present: np.ndarray, tolerance: float, why: str, hypotheses: tuple = ()) -> LimitShape:
    """The shape "none" of the last tokens of a run."""
    z = run.zs[-1]
    n, d = z.shape
    unknown = np.full(n, np.inf)
    return LimitShape(
        NONE, NONE, (), hypotheses, "", "", why, unknown, z, np.eye(d), np.zeros((d, 0)), present, run.t, np.inf,
        tolerance, run.ts, np.full(len(run.ts), np.inf),
    )  # fmt: skip


def _why(parts: Splitting) -> str:
    lead = parts.eigenvalue
    if not parts.is_real:
        eigenvalue = f"{lead.real:.4g} ± {abs(lead.imag):.4g}i" if lead.imag else f"{lead.real:.4g}"
        return f"The eigenvalue of V of largest real part is {eigenvalue}, not a positive real number."
    return (
        f"V is no multiple of the identity to rounding where its leading eigenvalue is {lead.real:.6g}, nor is this "
        "apart from others by more than rounding: a Jordan block, or eigenvalues that nearly coincide."
    )


def _remark(kind: str, m: Matrices, parts: Splitting) -> str:
    if kind in (POLYTOPE, BOOLEAN, HYPERPLANES):
        return ""
    coupling = float(np.abs(parts.frame.T @ m.form @ parts.rest).max())
    if coupling <= EQUAL * rounding_of(m.form):
        return ""
    return (
        "Q^T K couples F and G: the paper states the theorem all the same, but a bound within its proof is of matrices "
        "that keep the two apart."
    )


def _clause(says: str, residual: float, rounding: float, tolerance: float, measured: str) -> LimitClause:
    held = bool(residual + rounding <= tolerance)
    return LimitClause(says, held, float(residual), measured)


def _nested(cs: np.ndarray, tolerance: float) -> tuple[LimitClause, ...]:
    if len(cs) < 2:
        return ()
    more = growth(cs)
    return (_clause("The hull of the tokens never grows.", more, 0.0, tolerance, f"over {len(cs)} saved times"),)


def _rest(parts: Splitting, c: np.ndarray, run: Run, tolerance: float) -> tuple[LimitClause, ...]:
    if run.velocity is None:
        return ()
    speed = np.linalg.norm(run.velocity @ parts.dual.T, axis=1) / (parts.eigenvalue.real or 1.0)
    scale = length_of(c)
    relative = float(speed.max() / scale) if scale > 0 else 0.0
    state = "at rest" if relative <= tolerance else "NOT CONVERGED: run for longer"
    measured = f"token {int(speed.argmax())} moves by that in a time of 1 / lambda, {state}"
    return (_clause("The tokens have come to rest there.", relative, 0.0, tolerance, measured),)


def boolean_distances(
    z: np.ndarray, growth_rate: float, form: float, present: np.ndarray, t: float
) -> tuple[np.ndarray, np.ndarray]:
    """One minus the larger of the weights on the two ends, for each row of attention, (n,); the attention, (n, n).

    Weights of coinciding tokens are added up. At infinite t attention is hardmax, and ties share the weight.
    """
    scale = max(float(np.abs(z).max()), np.finfo(np.float64).tiny)
    unit = z / scale
    scores = np.sign(form) * np.outer(unit, unit)
    scores = np.where(present[None], scores, -np.inf)
    gaps = scores - scores.max(axis=1, keepdims=True)
    if np.isinf(t):
        weights = np.where(gaps >= -8 * np.finfo(np.float64).eps, 1.0, 0.0)
    else:
        # e^{2tV} overflows, and a softmax of such large scores is a hardmax.
        log_size = min(2 * t * growth_rate + 2 * np.log(scale) + np.log(max(abs(form), 1e-300)), np.log(_LARGEST))
        with np.errstate(over="ignore"):
            weights = np.exp(np.exp(log_size) * gaps)
    weights = weights / weights.sum(axis=1, keepdims=True)
    same = 8 * np.finfo(np.float64).eps * scale
    low, high = (np.abs(z - end) <= same for end in (z[present].min(), z[present].max()))
    return 1 - np.maximum(weights[:, low].sum(axis=1), weights[:, high].sum(axis=1)), weights


def _boolean(
    zs: np.ndarray, rate: float, form: float, present: np.ndarray, run: Run, tolerance: float
) -> tuple[np.ndarray, np.ndarray, tuple[LimitClause, ...]]:
    """The distance of each row from Boolean at each time, the largest one without excepted rows, and the clause."""
    times = run.ts if len(run.ts) else np.array([run.t])
    results = [boolean_distances(z, rate, form, present, t) for z, t in zip(zs, times, strict=True)]
    far, z, weights = np.stack([result[0] for result in results]), zs[-1], results[-1][1]
    worst = int(far[-1].argmax())
    # Coinciding tokens have equal rows, which are excepted together.
    excepted = np.abs(z - z[worst]) <= 8 * np.finfo(np.float64).eps * np.abs(z).max()
    others = float(far[-1][~excepted].max(initial=0.0))
    values = np.linalg.svd(weights, compute_uv=False)
    rank = int(np.sum(values > tolerance * values[0]))
    alone = f"token {worst} is excepted, its row {far[-1].max():.1e} from it; " if far[-1].max() > tolerance else ""
    n = len(z)
    rounding = 8 * n * float(np.finfo(np.float64).eps)
    says = "Every row of attention but at most one attends to the smallest token alone, or to the largest."
    return (
        far,
        np.where(excepted, 0.0, far).max(axis=1),
        (_clause(says, others, rounding, tolerance, f"{alone}the rank of attention is {rank}"),),
    )
