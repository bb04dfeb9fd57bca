"""`limit_shape`: determines the kind of the field, transforms the tokens to its coordinates, and finds the shape."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.checks import check_concrete, check_flag, check_number, check_tokens, refusal, shown
from .._base.defaults import SHAPE_TOLERANCE
from .._base.types import Tokens
from .._model.attention import AbstractAttention
from .._model.field import AbstractField, AttentionField, RescaledField, check_field
from .._model.schedule import AbstractSchedule
from .._model.space import Sphere, check_directions
from .._trajectory.trajectory import Trajectory
from .flat import Run, no_shape, shape_in_space
from .hypotheses import matrices_of, theorem_on_sphere
from .result import LimitShape
from .sphere import shape_on_sphere


_REMEDY = "pass a run of simulate, saved without save=, or tokens (n, d)"


def limit_shape(
    x: Trajectory | Tokens,
    field: AbstractField,
    *,
    t: float | int | None = None,
    tolerance: float | int = SHAPE_TOLERANCE,
    follow: bool = True,
) -> LimitShape:
    """The limit shape of tokens, which the spectrum of V determines, certified clause by clause.

    In $ℝ^d$ the shape is that of the rescaled tokens $z = e^{-tV}x$, with λ > 0 the leading eigenvalue of V.

    - A **polytope** if V = λI: every token is at the origin, or on the face that its direction $B^T z$ supports.
    - At most three **hyperplanes** $φ_1^*(z) ∈ {a, 0, b}$ if λ is simple.
    - A **polytope x subspace** if V = λI on a subspace F and smaller on G: the part in F is as in a polytope.
    - In one dimension **Boolean** attention: every row, except at most one, attends to one end alone.

    On the sphere the shape is the simplest that fits of **one point**, **opposite points**, **several points**,
    **circle** and **subspace**.

    The hypotheses of the theorems are tested numerically: V a multiple of the identity, paranormal, or with a simple
    leading eigenvalue; $Q^T K$ positive definite or $⟨Qφ_1, Kφ_1⟩ > 0$; softmax, full or causal mask, equal masses,
    constant matrices. An equality must hold to rounding, and an inequality by more than the rounding error. `fits` says
    that the tokens are within `tolerance` of the shape and at rest to that tolerance, and for a run also that its hulls
    are nested. `certified` says in addition that a theorem with this limit applies, or that a bound keeps the tokens
    there. If V is a positive multiple of the identity, attention keeps tokens within a cap, and does not move tokens
    that are bit by bit on one line through zero. `coarsen` follows uncertified opposite or several points at rest; if
    two of them merge, the kind is **metastable** and `until` is the time of the merger. In $ℝ^d$ a token at an unstable
    point of the shape may still move along the shape. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> field = cjx.RescaledField(cjx.SoftmaxAttention(1.0))
        >>> square = jnp.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [1.0, 0.0], [0.0, 0.0]])
        >>> end = cjx.limit_shape(square, field)
        >>> end.kind, end.certified, end.theorem, len(end.points)
        ('polytope', True, '2305.05465, Theorem 3.1', 4)
        >>> cjx.limit_shape(square.at[4, 0].set(0.5), field).certified  # on no face and not the origin
        False
        ```

    **Arguments:**

    - `x`: A run of `simulate` with this field, or tokens, (n, d), which are rescaled tokens for a `RescaledField`.
    - `field`: The field. The tokens of an `AttentionField` on `Euclidean()` are rescaled first. For a field without a
        known theorem the shape is determined only on the sphere, and is "none" in $ℝ^d$.
    - `t`: The time of the tokens; a run has its own. None takes tokens of a `RescaledField` for the limit itself, where
        attention is hardmax and rest is not tested; on the sphere None means 0.
    - `tolerance`: The largest residual that counts as zero, relative to the largest norm of a token; below 1, by
        default 1e-3.
    - `follow`: True to follow uncertified points at rest on the sphere by `coarsen`, for up to 1,024 tokens. False is
        faster, and never returns "metastable".

    **Returns:**

    A `LimitShape`.

    **Raises:**

    - `ValueError` if `x` is not a run or cloud of finite tokens that fits the field, is traced, a batch of runs, or
        a run that saved something other than tokens; or if unscaled tokens come without `t`, or too late to rescale.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Theorems 2.1, 3.1, 4.2
        and Section 5; on the sphere 2312.10794, Theorem 6.1 and Lemma 6.4, and 2411.04990, Theorem 4.1. This library
        defines the residuals and tolerances.
    """
    field = check_field(field)
    tolerance = check_number(tolerance, "tolerance", above=0, below=1)
    follow = check_flag(follow, "follow")
    ts, xs, when = _frames(x, t)
    n, d = xs.shape[1:]
    field.check(n, d)
    if isinstance(field, AttentionField) and not isinstance(field.space, Sphere):
        field, xs = _rescaled(field, ts, xs, when)
    if isinstance(field, RescaledField):
        m = matrices_of(field, 0.0 if when is None else when, jnp.asarray(xs[-1]))
        velocity = None if when is None else _velocity(field, when, xs[-1])
        run = Run(ts, xs.astype(np.float64), velocity, np.inf if when is None else when)
        return shape_in_space(m, run, tolerance)
    when = 0.0 if when is None else when
    present = _present(field, n)
    if not isinstance(field.space, Sphere):
        reason = f"No theorem is known here of the limits of a {type(field).__name__} in R^d."
        return no_shape(Run(ts, xs.astype(np.float64), None, when), present, tolerance, reason)
    check_directions(field.space, jnp.asarray(xs[-1]), "x")
    unit = xs.astype(np.float64)
    unit = unit / np.linalg.norm(unit, axis=-1, keepdims=True)
    theorem = None
    if isinstance(field, AttentionField) and isinstance(field.attention, AbstractAttention):
        theorem = theorem_on_sphere(field, when, jnp.asarray(xs[-1]), jnp.asarray(xs[0]))
    velocity = _velocity(field, when, xs[-1])
    return shape_on_sphere(field, theorem, ts, unit, velocity, when, present, tolerance, xs[-1], follow)


def _frames(x: Any, t: Any) -> tuple[np.ndarray, np.ndarray, float | None]:
    """The saved times, the tokens at these times, and the last time, at which the shape is determined."""
    when = None if t is None else check_number(t, "t")
    if not isinstance(x, Trajectory):
        check_concrete(x, "x")
        tokens = np.asarray(check_tokens(x))
        return np.zeros(0), tokens[None], when
    check_concrete((x.ts, x.x1), "x")
    if when is not None:
        raise refusal("t", "be None of a run, which knows its times", f"it is {shown(t)}", "leave it out")
    if np.ndim(x.x1) != 2:
        raise refusal("x", "be one run", f"its tokens have the shape {np.shape(x.x1)}", "take one run of the batch")
    saved = x.xs
    if not hasattr(saved, "shape") or np.shape(saved) != (len(x.ts), *np.shape(x.x1)):
        problem = f"it saved {shown(saved)}, and its tokens have the shape {np.shape(x.x1)}"
        raise refusal("x", "be a run that saved its tokens", problem, _REMEDY)
    ts, end = np.asarray(x.ts, np.float64), float(x.t1)
    last = np.asarray(check_tokens(x.x1))
    # Frames after an event are NaN; `x1` holds the last tokens of the run.
    earlier = (ts < end) & np.isfinite(np.asarray(saved)).all(axis=(1, 2))
    return np.append(ts[earlier], end), np.concatenate([np.asarray(saved)[earlier], last[None]]), end


def _rescaled(
    field: AttentionField, ts: np.ndarray, xs: np.ndarray, when: float | None
) -> tuple[AbstractField, np.ndarray]:
    """The rescaled field and tokens for attention in R^d, or the arguments if V or the masses depend on time."""
    if isinstance(field.value, AbstractSchedule) or isinstance(field.masses, AbstractSchedule):
        return field, xs
    if when is None:
        raise refusal(
            "t", "be given with tokens that are not rescaled", "it is None", "pass the time at which they are"
        )
    scaled = RescaledField(field.attention, field.value, masses=field.masses)
    times = ts if len(ts) else np.array([when])
    zs = np.stack([np.asarray(scaled.rescale(float(t), jnp.asarray(x))) for t, x in zip(times, xs, strict=True)])
    if not np.all(np.isfinite(zs[-1])):
        raise refusal("x", "be tokens that can be rescaled", f"e^(-tV) x is not finite at t = {when:g}",
                      "simulate the RescaledField")  # fmt: skip
    return scaled, zs


@eqx.filter_jit
def _at(field: AbstractField, t: Array, x: Array) -> Array:
    return field(t, x)


def _velocity(field: AbstractField, t: float, x: np.ndarray) -> np.ndarray:
    return np.asarray(_at(field, jnp.asarray(t, x.dtype), jnp.asarray(x)), np.float64)


def _present(field: AbstractField, n: int) -> np.ndarray:
    masses = getattr(field, "masses", None)
    fixed = masses is not None and not isinstance(masses, AbstractSchedule)
    return np.asarray(masses) > 0 if fixed else np.ones(n, bool)
