"""Events that end a run: all tokens are within a radius of their mean, or all are slower than a threshold.

**Algorithm.** diffrax looks for a sign change of a condition between two steps, and then for its root within the step,
which `Bracket` finds by bisection. The conditions are logarithms of ratios, which are nearly linear in time where
tokens converge exponentially.

**Invariants.** The search always ends, whatever the rounding error of the condition. The condition holds at the time
that is returned, or the crossing is at the start of the step. A run that starts below the threshold ends at its start.
"""

from collections.abc import Callable
from typing import Any, ClassVar, final

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float, PyTree

from .._base.checks import check_instance, check_scalar, refusal
from .._base.types import RealScalarLike, Tokens
from .._model.space import AbstractSpace, Sphere, check_space


class _BracketState(eqx.Module):
    """The start of the step, the current bracket, and its width below which the search ends."""

    start: Float[Array, ""]
    lower: Float[Array, ""]
    upper: Float[Array, ""]
    resolution: Float[Array, ""]


@final
class Bracket(optx.AbstractRootFinder):
    """Bisects the step in which an event happened until the time of the event is known to the precision of the dtype.

    The condition must be positive before the event and not positive after it, so that each bisection keeps the
    crossing. The time returned is the end of the last bracket, where the condition is met, or the start of the step if
    the dtype cannot tell the crossing from it. Tolerances on the value of the condition are not used, since in single
    precision rounding may keep the value from reaching them; the search therefore always ends.
    """

    rtol: ClassVar[float] = 0.0
    atol: ClassVar[float] = 0.0
    norm: ClassVar[Callable[[PyTree], Array]] = optx.max_norm

    def init(self, fn, y, args, options, f_struct, aux_struct, tags) -> _BracketState:
        lower = jnp.asarray(options["lower"], y.dtype)
        upper = jnp.asarray(options["upper"], y.dtype)
        # The resolution is two spacings of floating-point numbers at the larger end: a bracket cannot shrink below one.
        largest = jnp.maximum(jnp.abs(lower), jnp.abs(upper))
        return _BracketState(lower, lower, upper, 2 * jnp.finfo(y.dtype).eps * largest)

    def step(self, fn, y, args, options, state, tags) -> tuple[Float[Array, ""], _BracketState, Any]:
        # (lower + upper) / 2 may round to a number outside of the bracket.
        middle = state.lower + (state.upper - state.lower) / 2
        value, aux = fn(middle, args)
        # NaN counts as not positive: the event is then at or before the middle.
        lower, upper = jnp.where(value > 0, middle, state.lower), jnp.where(value > 0, state.upper, middle)
        # The condition is met at the upper end, unless the dtype cannot tell the crossing from the start of the step.
        y = jnp.where(lower == state.start, lower, upper)
        return y, _BracketState(state.start, lower, upper, state.resolution), aux

    def terminate(self, fn, y, args, options, state, tags) -> tuple[Bool[Array, ""], Any]:
        return state.upper - state.lower <= state.resolution, optx.RESULTS.successful

    def postprocess(self, fn, y, aux, args, options, state, tags, result) -> tuple[Float[Array, ""], Any, dict]:
        return y, aux, {}


def clustered_event(
    radius: RealScalarLike, *, space: AbstractSpace = Sphere(), root_finder: optx.AbstractRootFinder | None = Bracket()
) -> dfx.Event:
    """An event that ends a run when $|x_i - m|$ ≤ `radius` for every token, where m is the mean.

    The distance is the Euclidean distance of the ambient space, between tokens retracted to `space`. The time of the
    event is found within the step, to the accuracy of the solver's interpolation, and is differentiable; with `noise`
    it is the end of the step, see `simulate`. A run whose tokens are clustered at the start, and still are after one
    step, ends at its start. An event that begins and ends within one step is not detected.

    **Arguments:**

    - `radius`: The largest distance from the mean, positive, kept as an array, so that a new value does not recompile.
    - `space`: The space of the tokens.
    - `root_finder`: Finds the time within the step; None ends the run at the end of the step.

    **Returns:**

    A `diffrax.Event`, for `simulate(..., event=...)` or `diffrax.diffeqsolve`.

    **Raises:**

    - `ValueError` if `radius` is not a positive number.
    """
    # An array: the condition is part of the compiled run, and a new radius does not compile again.
    radius = check_scalar(radius, "radius", above=0, remedy="pass a number above zero")
    return _event(_Spread(radius, check_space(space)), root_finder)


def stationary_event(
    speed: RealScalarLike, *, space: AbstractSpace = Sphere(), root_finder: optx.AbstractRootFinder | None = Bracket()
) -> dfx.Event:
    """An event that ends a run when $|ẋ_i|$ ≤ `speed` for every token.

    The velocity is that of the terms of the run, evaluated at the tokens retracted to `space`, which costs one more
    evaluation per step. The time of the event, its gradient and a start below the threshold are as in
    `clustered_event`. Slow tokens need not have converged: a metastable state moves at a speed of the order of
    $e^{-cβ}$. A run with noise has no velocity, and is refused.

    **Arguments:**

    - `speed`: The largest speed of any token, positive, kept as an array, so that a new value does not recompile.
    - `space`: The space of the tokens.
    - `root_finder`: Finds the time within the step; None ends the run at the end of the step.

    **Returns:**

    A `diffrax.Event`, for `simulate(..., event=...)` or `diffrax.diffeqsolve`.

    **Raises:**

    - `ValueError` if `speed` is not a positive number, or, at the start of the run, if the run has noise.
    """
    speed = check_scalar(speed, "speed", above=0, remedy="pass a number above zero")
    return _event(_Speed(speed, check_space(space)), root_finder)


def _event(condition: Callable[..., Array], root_finder: Any) -> dfx.Event:
    if root_finder is not None:
        rule = "a root finder of optimistix or None"
        check_instance(root_finder, "root_finder", optx.AbstractRootFinder, rule, "leave it out")
    return dfx.Event(_Downward(condition), root_finder, direction=False)


class _Spread(eqx.Module):
    """The logarithm of the largest distance from the mean divided by the radius."""

    radius: Float[Array, ""]
    space: AbstractSpace

    def __call__(self, t, y, args, **kwargs) -> Float[Array, ""]:
        # The states of a solver may lie off the sphere between retractions.
        x = self.space.retract(y)
        return _log_ratio(x - jnp.mean(x, axis=0, keepdims=True), self.radius)


class _Speed(eqx.Module):
    """The logarithm of the largest speed divided by the threshold."""

    speed: Float[Array, ""]
    space: AbstractSpace

    def __call__(self, t, y, args, *, terms, solver, **kwargs) -> Float[Array, ""]:
        velocity = solver.func(terms, t, self.space.retract(y), args)
        # With noise the value is a pair: the drift, and a linear operator for the noise.
        if isinstance(velocity, tuple):
            problem = "it is stationary_event: a path with noise has no speed"
            raise refusal("event", "be of the tokens themselves with noise", problem, "use clustered_event, or none")
        return _log_ratio(velocity, self.speed)


class _Downward(eqx.Module):
    """A condition that crosses zero downward, even if it is below zero from the start.

    diffrax looks for a sign change from one step to the next, so that the value at t0 must be positive. A negative
    value at t0 is replaced by 1 + t0 - t, which depends on time only: the derivative of the event time is zero.
    """

    condition: Callable[..., Array]

    def __call__(self, t, y, args, *, t0, **kwargs) -> Float[Array, ""]:
        # diffrax compares the value with a Python zero, which strict promotion allows for the default float dtype only.
        value = self.condition(t, y, args, t0=t0, **kwargs).astype(float)
        at_start = 1 + (t0 - t).astype(float)
        return jnp.where((t <= t0) & (value <= 0), at_start, value)


def _log_ratio(rows: Tokens, threshold: Float[Array, ""]) -> Float[Array, ""]:
    """log(max_i |row_i| / threshold): nearly linear in time where tokens converge exponentially."""
    threshold = threshold.astype(rows.dtype)
    # Half the logarithm of the square needs no square root, whose derivative is infinite at zero.
    largest = jnp.max(jnp.sum(jnp.square(rows / threshold), axis=1))
    return jnp.log(jnp.maximum(largest, jnp.finfo(rows.dtype).tiny)) / 2
