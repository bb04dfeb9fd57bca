r"""`steer` finds parameters, piecewise constant in time, with which tokens end at given points.

**Algorithm.** The pieces are first fitted one after the other: each piece should take the tokens from their current
points a share of the way to their targets, in the sense of least squares. The next piece begins where an accurate run
of the last one ends, and so corrects its error; the last pieces only correct. If tokens still miss their targets and
the parameters are few, all pieces are fitted together. The Levenberg-Marquardt method makes each fit, from random
parameters, in several attempts. **Reference.** Geshkovski, Rigollet, Ruiz-Balet (2411.04551), who construct parameters
that are piecewise constant in time in closed form. **Invariants.** The reported distances come from a separate run with
tolerances tighter than the defaults of `simulate`; every attempt is a function of the key alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._base.checks import (
    check_array,
    check_fits,
    check_integer,
    check_key,
    check_number,
    check_tokens,
    refusal,
)
from .._base.random import draw_normal
from .._base.summary import short
from .._base.types import Numbers, RealScalarLike, Tokens
from .._dynamics.failure import why_stopped
from .._model.field import AbstractField
from .._model.space import AbstractSpace, Sphere
from .._trajectory.trajectory import Trajectory
from ._parameters import Parameters, check_host, check_pieces, pick_parameters, read_start
from ._recover import Runs, fit, read_runs


# One piece in SPARE is reserved for correcting the errors of the others.
SPARE = 4
# A fit of a piece that goes part of the way takes at most `most` / HASTE steps: the next piece corrects the rest.
HASTE = 5
# The largest number of parameters that are fitted together: each step costs one run per parameter.
TOGETHER = 500
# The largest distance of a target from the sphere, relative to the radius.
OFF = 1e-4


class Steering(eqx.Module):
    """Parameters that lead tokens to targets, and the distances that remain.

    **Attributes:**

    - `field`: The field with parameters that are piecewise constant in time.
    - `names`, `values`: The names of the parameters, and the values of each, (pieces, ...).
    - `missed`: (n,), the distance of each token from its target at the end: a chord on the sphere, a distance in R^d.
    - `end`: (n, d), the tokens at the end.
    - `reached`, `reason`: True if all tokens end within the tolerance, and the explanation.
    - `attempts`, `runs`: The number of attempts, and the total number of integrated runs of a piece.
    """

    field: AbstractField = eqx.field(repr=False)
    names: tuple[str, ...]
    values: tuple[Float[np.ndarray, "..."], ...]
    missed: Float[np.ndarray, " n"]
    end: Float[np.ndarray, "n d"]
    reached: bool
    reason: str
    attempts: int
    runs: int

    def summary(self) -> str:
        """A few lines with the distances that remain and the range of each parameter."""
        lines = [f"{len(self.missed)} tokens, {'all reached' if self.reached else 'NOT reached'}: {self.reason}"]
        lines.append(f"  missed: {self.missed.max():.3g} at most, {self.missed.mean():.3g} on average")
        lines += [
            f"  {name}: {len(value)} pieces, from {value.min():.3g} to {value.max():.3g}"
            for name, value in zip(self.names, self.values, strict=True)
        ]
        return "\n".join([*lines, f"  attempts: {self.attempts}, runs of a piece: {self.runs}"])

    __repr__ = short


class _Missed(eqx.Module):
    """The difference between the tokens at the end of one piece, or of all pieces, and where they should be.

    `starts` holds the times at which the pieces begin; None stands for a single piece, whose parameters are constant.
    """

    field: AbstractField
    parameters: Parameters
    runs: Runs
    x: Tokens
    ts: Float[Array, " 2"]
    goal: Tokens
    starts: Float[Array, " pieces"] | None = None

    def __call__(self, vector: Array) -> Float[Array, " N"]:
        if self.starts is None:
            field = self.parameters.with_vector(self.field, vector)
        else:
            field = self.parameters.in_pieces(self.field, self.starts, vector)
        return jnp.ravel(self.runs(field, self.x, self.ts).xs[-1] - self.goal)


def steer(
    field: AbstractField,
    x0: Tokens,
    targets: Numbers,
    *,
    key: PRNGKeyArray,
    pieces: int,
    t_end: float | int | None = None,
    labels: Numbers | None = None,
    which: Callable[[Any], Any] | None = None,
    spread: float | int | Sequence[float | int] = 1.0,
    tolerance: float = 1e-2,
    attempts: int = 5,
    solver: dfx.AbstractSolver | None = None,
    stepsize_controller: dfx.AbstractStepSizeController | None = None,
    max_steps: int = 1024,
    most: int = 60,
) -> Steering:
    r"""Parameters of a field, piecewise constant in time, that lead tokens to given points.

    Attention alone has few parameters per piece; with several heads, or an added perceptron, fewer pieces suffice.
    Tokens that start at one point stay together. Distinct tokens never meet in finite time, but can come as near as the
    tolerance requires. On a circle, tokens that all attend to one another keep their cyclic order. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x0 = cjx.Sphere().sample(jax.random.key(0), n=4, d=3)
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(2.0, query_key=jnp.eye(3)), value=jnp.eye(3))
        >>> pick = lambda f: (f.attention.query_key, f.value)
        >>> targets, labels = jnp.eye(3)[:2], jnp.array([0, 0, 1, 1])
        >>> found = cjx.design.steer(field, x0, targets, labels=labels, key=jax.random.key(1), pieces=4, which=pick)
        >>> found.reached, found.values[1].shape
        (True, (4, 3, 3))
        ```

    **Arguments:**

    - `field`: The field; its parameters are the means of the random initial values where `which` frees them.
    - `x0`: Tokens at time 0, (n, d).
    - `targets`: (n, d), the target of each token, or with `labels` (k, d), the targets of k clusters. Targets lie in
        the space of the field: on the sphere they have unit norm.

    **Other arguments:**

    - `key`: PRNG key for the initial values.
    - `pieces`: The number of pieces of equal length in which the parameters are constant.
    - `t_end`: The time at which the tokens should reach their targets; None means one unit of time for each piece.
    - `labels`: (n,), the index in `targets` of the target of each token.
    - `which`: A function of the field that returns the free array, or a tuple of free arrays; None frees all
        floating-point arrays. No free array may be a schedule.
    - `spread`: The standard deviation of the initial values around the values of `field`, or one for each free array.
    - `tolerance`: The largest distance from its target at which a token may end.
    - `attempts`: The maximal number of attempts, each with other initial values, until the targets are reached.
    - `solver`, `stepsize_controller`, `max_steps`: Options of the runs of the search, as in `simulate`; the default is
        the solver of `simulate` with relative tolerance 1e-5.
    - `most`: The maximal number of steps of each fit.

    **Returns:**

    A `Steering`, for the attempt that came nearest.

    **Raises:**

    - `ValueError` if there are more targets than tokens, or fewer without `labels`; if a target is not in the space of
        the field; or if `which` picks no arrays of the field, or an array that must not depend on time, such as the
        gain of a norm.

    ??? cite "Source"

        Geshkovski, Rigollet, Ruiz-Balet, *Measure-to-measure interpolation using transformers* (2411.04551), for
        parameters that are piecewise constant in time. The search is our own.
    """
    check_host(field=field, x0=x0, targets=targets, labels=labels, spread=spread, key=key)
    x0, goal = _read(field, x0, targets, labels)
    pieces = check_integer(pieces, "pieces", remedy="pass in how many pieces the parameters are constant")
    t_end = float(pieces) if t_end is None else check_number(t_end, "t_end", above=0, remedy="pass a time above 0")
    check_fits(np.float64(t_end), "t_end", x0.dtype)
    tolerance = check_number(tolerance, "tolerance", above=0, remedy="pass a distance, such as 1e-2")
    attempts = check_integer(attempts, "attempts", remedy="pass how often to begin anew")
    most = check_integer(most, "most", remedy="pass the most steps of a fit")
    parameters = pick_parameters(field, which, pieces=True)
    check_pieces(field, parameters, x0, pieces)
    controller = dfx.PIDController(rtol=1e-5, atol=1e-6) if stepsize_controller is None else stepsize_controller
    runs = read_runs(solver, controller, None, max_steps, x0.dtype)
    knots = jnp.linspace(0, t_end, pieces + 1).astype(x0.dtype)
    search = _Search(field, parameters, runs, x0, goal, knots, _spreads(spread, parameters), tolerance, most)
    best, count = None, 0
    for attempt in range(attempts):
        vector, evaluated = search.attempt(jr.fold_in(check_key(key), attempt))
        count += evaluated
        steering = search.judged(vector)
        if best is None or steering.missed.max() < best.missed.max() or not np.isfinite(best.missed.max()):
            best = steering
        if best.reached:
            break
    assert best is not None  # there is at least one attempt
    return eqx.tree_at(lambda s: (s.attempts, s.runs), best, (attempt + 1, count))  # pyright: ignore[reportPossiblyUnboundVariable]


class _Search(eqx.Module):
    """A steering problem, with the method for one attempt."""

    field: AbstractField
    parameters: Parameters
    runs: Runs
    x0: Tokens
    goal: Tokens
    knots: Float[Array, " edges"]
    spread: Float[Array, " p"]
    tolerance: float
    most: int

    def attempt(self, key: Any) -> tuple[Array, int]:
        """The parameters of all pieces, concatenated, and the number of integrated runs of a piece."""
        # The tolerance is tighter than requested, because the runs of the search are coarser than the final run.
        number = lambda value: jnp.asarray(value, self.x0.dtype)
        options = number(1e-3), jnp.asarray(self.most), number(self.tolerance / 4), number(1.0)
        few = number(1e-3), jnp.asarray(-(-self.most // HASTE)), number(self.tolerance / 4), number(1.0)
        pieces, x, rows, count = len(self.knots) - 1, self.x0, [], 0
        base = self.parameters.vector(self.parameters.values(self.field), self.x0.dtype)
        for piece in range(pieces):
            draw = draw_normal(jr.fold_in(key, piece), (self.parameters.count, 1), self.x0.dtype)[:, 0]
            first = base + self.spread * draw
            remaining = max(pieces - pieces // SPARE - piece, 1)
            aim = along(self.field.space, x, self.goal, 1 / remaining)
            residual = _Missed(self.field, self.parameters, self.runs, x, self.knots[piece : piece + 2], aim)
            fitted = fit(residual, first, *(options if remaining == 1 else few))
            count += int(fitted.steps) + 1
            rows.append(fitted.vector)
            # An accurate run of the piece is used, so that errors of the coarse runs do not accumulate over the pieces.
            x = _run_of(self.parameters.with_vector(self.field, fitted.vector), x, self.knots[piece : piece + 2]).xs[-1]
        vector = jnp.concatenate(rows)
        farthest = float(jnp.max(jnp.linalg.norm(x - self.goal, axis=1)))
        if farthest > self.tolerance / 2 and 1 < pieces and len(vector) <= TOGETHER:
            ends, starts = self.knots[jnp.array([0, -1])], self.knots[:-1]
            residual = _Missed(self.field, self.parameters, self.runs, self.x0, ends, self.goal, starts)
            whole = fit(residual, vector, *options)
            count += (int(whole.steps) + 1) * pieces
            vector = whole.vector
        return vector, count

    def judged(self, vector: Array) -> Steering:
        """The result for the parameters `vector`, measured by a separate run with tight tolerances."""
        field = self.parameters.in_pieces(self.field, self.knots[:-1], vector)
        run = _run_of(field, self.x0, self.knots[jnp.array([0, -1])])
        end = run.xs[-1]
        missed = np.linalg.norm(np.asarray(end - self.goal), axis=1)
        reached = bool(missed.max() <= self.tolerance)
        far = int(np.sum(~(missed <= self.tolerance)))
        reason = "every token comes within the tolerance"
        if failure := why_stopped(run, (field, None)):
            reason = failure
        elif not reached:
            reason = f"{far} of {len(missed)} tokens end beyond the tolerance; " + (
                "on a line or a circle tokens that see one another cannot pass, and the targets are in another order"
                if passes(self.field.space, np.asarray(self.x0), np.asarray(self.goal))
                else "pass more pieces, attempts or parameters"
            )
        values = self.parameters.pieces(vector)
        return Steering(field, self.parameters.names, values, missed, np.asarray(end), reached, reason, 0, 0)


@eqx.filter_jit
def _run_of(field: AbstractField, x0: Array, ts: Array) -> Trajectory:
    return read_runs(None, None, None, 100_000, x0.dtype)(field, x0, ts)


def along(space: AbstractSpace, x: Tokens, goal: Tokens, share: RealScalarLike) -> Tokens:
    """The points at the fraction `share` of the way from `x` to `goal`: on great circles of the sphere, else on
    straight lines, retracted. Halfway between antipodes the point is undefined, and the token stays."""
    if not isinstance(space, Sphere):
        point = space.retract(x + share * (goal - x))
        return jnp.where(jnp.all(jnp.isfinite(point), axis=1, keepdims=True), point, x)
    angle = space.distance(x, goal)[:, None]
    # At angles near 0 and pi the formula divides by zero, and the retracted point of the chord is used.
    sine = jnp.sin(angle)
    plain = sine < 1e-6
    safe = jnp.where(plain, 1, sine)
    start, end = jnp.where(plain, 1 - share, jnp.sin((1 - share) * angle) / safe), jnp.sin(share * angle) / safe
    point = start * x + jnp.where(plain, share, end) * goal
    return space.retract(jnp.where(jnp.sum(jnp.abs(point), axis=1, keepdims=True) > 1e-6, point, x))


def passes(space: AbstractSpace, x: np.ndarray, goal: np.ndarray) -> bool:
    """True if tokens of a line or a circle would have to pass one another on the way from `x` to `goal`."""
    circle = isinstance(space, Sphere)
    if x.shape[1] != (2 if circle else 1):
        return False
    place = (lambda p: np.arctan2(p[:, 1], p[:, 0])) if circle else (lambda p: p[:, 0])
    steps = np.diff(place(goal)[np.argsort(place(x))])
    if not circle:
        return bool((steps < 0).any())
    # Cyclic order is kept if the targets, in the order of the start, go around the circle at most once.
    last = place(goal)[np.argsort(place(x))]
    turns = np.mod(np.append(steps, last[0] - last[-1]), 2 * np.pi)
    turns[np.isclose(turns, 2 * np.pi)] = 0.0
    return bool(turns.sum() > 2 * np.pi + 1e-6)


def _spreads(spread: Any, parameters: Parameters) -> Array:
    if isinstance(spread, bool | int | float):
        spread = check_number(spread, "spread", least=0, remedy="pass a number that is not negative")
    given = check_array(spread, "spread", least=0, remedy="pass a number, or one for each parameter that is picked")
    if given.ndim > 1 or given.ndim == 1 and len(given) != len(parameters.names):
        raise refusal("spread", f"be a number or {len(parameters.names)} of them", f"its shape is {given.shape}",
                      f"pass one for each of {', '.join(parameters.names)}")  # fmt: skip
    spreads = np.broadcast_to(np.asarray(given), (len(parameters.names),))
    return jnp.asarray(np.repeat(spreads, parameters.sizes))


def _read(field: Any, x0: Any, targets: Any, labels: Any) -> tuple[Tokens, Tokens]:
    """The tokens, and the target of each token."""
    x0 = read_start(field, x0)
    targets = check_tokens(targets, "targets").astype(x0.dtype)
    if targets.shape[1] != x0.shape[1]:
        raise refusal("targets", f"be points of R^{x0.shape[1]}, as the tokens are", f"the shape is {targets.shape}",
                      "pass one row for each target")  # fmt: skip
    if len(targets) > len(x0):
        raise refusal("targets", "be no more than the tokens", f"there are {len(targets)} for {len(x0)} tokens",
                      "a token ends at one point: pass one target for each")  # fmt: skip
    points = np.asarray(targets)
    lengths = np.linalg.norm(points, axis=1)
    with jax.ensure_compile_time_eval():  # also where another argument is traced, which is refused later
        nearest = np.asarray(field.space.retract(targets))
    # A point without a nearest point on the space, such as the centre of a sphere, retracts to NaN.
    off = np.flatnonzero(~(np.linalg.norm(nearest - points, axis=1) <= OFF * np.maximum(lengths, 1)))
    if off.size and isinstance(field.space, Sphere):
        raise refusal("targets", "be on the sphere", f"row {off[0]} has length {lengths[off[0]]:.6g}",
                      "divide each by its length, Sphere().retract(targets)")  # fmt: skip
    if off.size:
        name = type(field.space).__name__
        raise refusal("targets", f"be on {name}, where the tokens of the field are", f"row {off[0]} is not",
                      "pass field.space.retract(targets)")  # fmt: skip
    return x0, targets[_labels(labels, len(x0), len(targets))]


def _labels(labels: Any, n: int, count: int) -> Int[np.ndarray, " n"]:
    if labels is None:
        if count < n:
            raise refusal("targets", "be one for each token without labels", f"there are {count} for {n} tokens",
                          "pass labels, the index of the target of each token")  # fmt: skip
        return np.arange(n)
    rule = "pass for each token the index of its target"
    return np.asarray(check_array(labels, "labels", shape=(n,), integers=True, least=0, most=count - 1, remedy=rule))
