"""Explains in words why a run stopped before its end.

**Algorithm.** diffrax reports only that `max_steps` steps did not suffice. After such a run the velocity is evaluated
once more, at the time at which the run stopped and a few floating-point spacings later. If the velocity is not finite
there, or changes much within one spacing, no step is possible; otherwise there were many steps because their length is
constant, or because they remained short.

**Invariants.** A successful run costs nothing. Without the field, as under `jit`, the message names all causes.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._base.numerics import double_precision, matmul
from .._base.types import Tokens
from .._model.attention import KernelAttention, UnnormalisedAttention, turned
from .._model.field import AbstractField
from .._model.schedule import check_schedules
from .integrate import Resumed
from .rodas5p import Rodas5P, check_suits


_SHORT = "where clusters have formed the flow is stiff, and the steps of an explicit solver stay short"
_STIFF = f"{_SHORT}; for a very long run pass solver=Rodas5P(), which is implicit, else a larger max_steps"
# Used where float32 does not resolve the long times for which an implicit solver is the remedy.
_STIFF_IN_SINGLE = (
    f"{_SHORT}; pass x0 in float64, with jax_enable_x64 set, and solver=Rodas5P(), or follow the mergers by coarsen"
)
# Used where the field is not known, or may have been replaced.
_UNTOLD = (
    "the velocity may not be finite from there on, or ts may be too large for their dtype to tell two steps apart; or,"
)
UNDER_JIT = (
    "A run stopped before ts[-1] after max_steps steps: with a constant dt0 more steps may be needed; "
    f"{_UNTOLD} {_STIFF}; with throw=False, Trajectory.failure names the cause outside of jit."
)
# Used for a `MeanField`.
UNRESOLVED = (
    "the density has steepened beyond the degree of the MeanField, whose highest coefficients exceed its tolerance; "
    "raise degree or temperature, or end earlier"
)
# Used for a run by `Rodas5P`.
_STIFF_IMPLICIT = (
    "steps of Rodas5P stay short where the tokens go on moving, as they do for ever under a V with complex "
    "eigenvalues; end earlier, or pass a larger max_steps"
)
# The velocity is evaluated these numbers of spacings after the time reached, over which the stages of a step spread.
_BEYOND = (0, *(2**k for k in range(11)))
# A change of the tokens within one spacing, relative to their size, that exceeds rounding: steps are then rejected.
_JUMP = 1e-4


def why_stopped(run: Any, law: tuple[AbstractField, Any] | None = None) -> str:
    """What stopped a run, and at which time; of a batch, the run that stopped first counts. Empty if no run failed.

    **Arguments:**

    - `law`: The field and `args` of the run; if None, those that the run has stored are used, if there are any.
    """
    okay = np.asarray(dfx.is_okay(run.result)) & np.asarray(run.stats.get("resolved", True))
    if okay.all():
        return ""
    first = np.unravel_index(np.argmin(np.where(okay, np.inf, np.asarray(run.t1))), okay.shape)
    settings = run.interpolant.settings()
    law = run.interpolant.law() if law is None and isinstance(run.interpolant, Resumed) else law
    parts = (run.ts, run.t1, run.x1, run.stats, run.result, law)
    ts, t1, x1, stats, result, law = jtu.tree_map(lambda leaf: leaf[first] if eqx.is_array(leaf) else leaf, parts)
    ts, t1, who = np.asarray(ts), np.asarray(t1)[()], "The run stopped"
    if okay.ndim:
        index = str(first[0] if len(first) == 1 else tuple(map(int, first)))
        who = f"{okay.size - np.count_nonzero(okay)} of {okay.size} runs stopped, the first of them run {index}"
    digits = 6 if f"{t1:.6g}" != f"{ts[-1]:.6g}" else 17
    where = f"{who} at t = {t1:.{digits}g}, before the end {ts[-1]:.{digits}g}"
    full = bool(result == dfx.RESULTS.max_steps_reached)
    if not full and not stats.get("resolved", True):
        return f"{where}: {UNRESOLVED}."
    most = int(stats["max_steps"])
    after = f"{where}, after max_steps = {most:,} steps" if full else where
    cause = None
    if law is not None and np.isfinite(np.asarray(x1)).all():
        row = "degree" if "resolved" in stats else "token"
        try:
            cause = _velocity_told(*law, ts, t1, x1, int(stats["num_accepted_steps"]), row)
        except jax.errors.UnexpectedTracerError:  # a function of the field uses values that were traced in the run
            law = None
    if cause is not None:
        return f"{after}: {cause}."
    if not full:
        return f"{where}: {dfx.RESULTS[result]}"
    return f"{after}: {_steps_told(law, settings, ts, t1, x1, most)}."


def _velocity_told(
    field: AbstractField, args: Any, ts: np.ndarray, t1: Any, x1: Tokens, accepted: int, row: str
) -> str | None:
    """A description of the defect of the velocity where a run stopped; None if it has none."""
    spacing = max(np.spacing(np.abs(t1)), np.finfo(ts.dtype).tiny)
    start = _velocity(field, t1, x1, args)
    for count in _BEYOND:
        t = np.minimum(t1 + count * spacing, ts[-1])
        # At count 0 the product would be zero times a number that may be infinite.
        x = x1 + (t - t1) * start if count else x1
        velocity = _velocity(field, t, x, args)
        wrong = np.flatnonzero(~np.isfinite(velocity).all(axis=1))
        if wrong.size:
            words = f"the velocity of {row} {wrong[0]} is not finite at t = {t:.6g}"
            return _overflow_told(field, args, t, x, words, "end earlier" if t > ts[0] else "pass smaller tokens")
        change = spacing * np.max(np.abs(velocity - start))
        stuck = t1 - ts[0] < accepted * spacing
        if count == 1 and (stuck or change > _JUMP * np.max(np.abs(np.asarray(x1)))):
            words = f"steps would have to be shorter than {spacing:.3g}, the spacing of {ts.dtype} at t = {t1:.6g}"
            if ts[0] != 0 and (stuck or t1 == ts[0]):
                wider = ", or pass x0 in float64, with jax_enable_x64 set" if ts.dtype == np.float32 else ""
                return f"{words}; let ts begin at 0, and the schedules of the field with it{wider}"
            fastest = int(np.argmax(np.max(np.abs(start), axis=1)))
            return (
                f"{words}, for the velocity of {row} {fastest}, {np.max(np.abs(start)):.3g} there, jumps or grows "
                "without bound; end earlier"
            )
    return None


@eqx.filter_jit
def _compiled(field: AbstractField, t: Any, x: Tokens, args: Any) -> Tokens:
    # Under `jit` no check refuses a velocity that is not finite.
    return field(t, x, args)


def _velocity(field: AbstractField, t: Any, x: Tokens, args: Any) -> np.ndarray:
    return np.asarray(_compiled(field, jnp.asarray(t), x, args))


def _overflow_told(field: AbstractField, args: Any, t: Any, x: Tokens, words: str, smaller: str) -> str:
    """Extend `words`, on a velocity that is not finite, by its cause in the field, where it is found, and a remedy."""
    try:
        check_schedules(field, (jnp.asarray(t),))
    except ValueError as error:
        return f"{words}: {str(error).removesuffix('.')}"
    largest = np.max(np.abs(np.asarray(x)))
    if largest > np.sqrt(np.finfo(x.dtype).max / x.shape[1]):
        return f"{words}: coordinates are as large as {largest:.3g}, and their squares overflow {x.dtype}; {smaller}"
    is_part = lambda part: isinstance(part, KernelAttention | UnnormalisedAttention)
    for part in filter(is_part, jtu.tree_leaves(field, is_leaf=is_part)):
        if isinstance(part, KernelAttention):
            y = field.space.retract(x)
            queries, keys = turned(part.position, part.queries(y, t), y, t)
            scores = matmul(queries, keys.T)
            wrong = ~np.isfinite(np.asarray(part.function(scores), x.dtype))
            if wrong.any():
                at = f"function(s) of KernelAttention is not finite in {x.dtype} at s = {scores[wrong][0]:.6g}"
                return f"{words}: {at}; return finite numbers, such as exp(beta * (s - 1))"
    less = lambda part: (
        eqx.tree_at(lambda part: part.offset, part, part.beta) if isinstance(part, UnnormalisedAttention) else part
    )
    if np.isfinite(_velocity(jtu.tree_map(less, field, is_leaf=is_part), t, x, args)).all():
        return (
            f"{words}: weights as large as e^beta of UnnormalisedAttention overflow {x.dtype}; pass offset=beta, "
            "which changes the unit of time alone"
        )
    return f"{words}; give the field a finite velocity there, or end earlier"


def _steps_told(
    law: tuple[AbstractField, Any] | None, settings: dict[str, Any], ts: np.ndarray, t1: Any, x1: Tokens, most: int
) -> str:
    """The reason why `max_steps` steps did not suffice, if the velocity allows steps."""
    if "'ConstantStepSize'" in str(settings.get("stepsize_controller")):
        needed = f"about {most * (ts[-1] - ts[0]) / (t1 - ts[0]):.3g} " if t1 > ts[0] else "more "
        words = f"steps of the constant length dt0 reach the end after {needed}of them"
        return f"{words}; pass as large a max_steps, or a longer dt0"
    # The name is searched in the text of the settings, since the solver may be wrapped.
    implicit = "'Rodas5P'" in str(settings.get("solver"))
    if law is None:
        return f"{_UNTOLD} {_STIFF_IMPLICIT if implicit else _STIFF}"
    if implicit:
        return _STIFF_IMPLICIT
    adjoint = dfx.BacksolveAdjoint() if "'BacksolveAdjoint'" in str(settings.get("adjoint")) else None
    with double_precision():
        in_double = jnp.asarray(ts, jnp.float64)
    for times, words in ((jnp.asarray(ts), _STIFF), (in_double, _STIFF_IN_SINGLE)):
        try:
            sharded = len(x1.devices()) > 1
            check_suits(Rodas5P(), law[0], times, adjoint=adjoint, noise=settings.get("noise"), sharded=sharded)
        except ValueError:
            continue
        return words
    return f"{_SHORT}, as they do where the velocity jumps; pass a larger max_steps"
