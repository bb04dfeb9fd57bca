"""Events that end a run: all tokens within a radius of their mean, or all slower than a threshold.

**Algorithm.** diffrax looks for a sign change of a condition between two steps, and then for its root within the step,
for which `Bracket` bisects. Conditions are logarithms of ratios, nearly linear in time where tokens converge
exponentially.

**Invariants.** The search always ends, whatever the rounding of the condition; the condition holds at the time that is
returned, or the crossing is at the start of the step; a run that starts below the threshold ends at its start.
"""

from collections.abc import Callable
from typing import Any, ClassVar, final

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float, PyTree

from ._check import check_instance, check_scalar, refusal
from ._custom_types import RealScalarLike, Tokens
from ._space import AbstractSpace, Sphere, check_space


class _BracketState(eqx.Module):
    """The start of the step, the current bracket, and its width below which the search ends."""

    start: Float[Array, ""]
    lower: Float[Array, ""]
    upper: Float[Array, ""]
    resolution: Float[Array, ""]


@final
class Bracket(optx.AbstractRootFinder):
    """Halves the step in which an event happened until its time is known to the last digits of the dtype.

    For conditions that are positive before the event, and not after it: each halving keeps the crossing. The time
    returned is the end of the last bracket, where the condition is met, or the start of the step if the crossing is as
    near to it as the dtype can tell. Tolerances on the value of the condition, which in single precision rounding may
    keep from ever being reached, play no part: this always ends.
    """

    rtol: ClassVar[float] = 0.0
    atol: ClassVar[float] = 0.0
    norm: ClassVar[Callable[[PyTree], Array]] = optx.max_norm

    def init(self, fn, y, args, options, f_struct, aux_struct, tags) -> _BracketState:
        lower = jnp.asarray(options["lower"], y.dtype)
        upper = jnp.asarray(options["upper"], y.dtype)
        # Two spacings of floating-point numbers at the larger end: a bracket cannot shrink below one.
        largest = jnp.maximum(jnp.abs(lower), jnp.abs(upper))
        return _BracketState(lower, lower, upper, 2 * jnp.finfo(y.dtype).eps * largest)

    def step(self, fn, y, args, options, state, tags) -> tuple[Float[Array, ""], _BracketState, Any]:
        # Not (lower + upper) / 2, which may round to outside of the bracket.
        middle = state.lower + (state.upper - state.lower) / 2
        value, aux = fn(middle, args)
        # NaN counts as not positive: the event is at or before it.
        lower, upper = jnp.where(value > 0, middle, state.lower), jnp.where(value > 0, state.upper, middle)
        # The upper end, where the condition is met, unless the crossing cannot be told from the start of the step.
        y = jnp.where(lower == state.start, lower, upper)
        return y, _BracketState(state.start, lower, upper, state.resolution), aux

    def terminate(self, fn, y, args, options, state, tags) -> tuple[Bool[Array, ""], Any]:
        return state.upper - state.lower <= state.resolution, optx.RESULTS.successful

    def postprocess(self, fn, y, aux, args, options, state, tags, result) -> tuple[Float[Array, ""], Any, dict]:
        return y, aux, {}


def clustered_event(
    radius: RealScalarLike,
    *,
    space: AbstractSpace = Sphere(),
    root_finder: optx.AbstractRootFinder | None = Bracket(),
) -> dfx.Event:
    r"""Ends a run as soon as $|x_i - \bar x| \le$ `radius` for every token, $\bar x$ their mean.

    The distance is the Euclidean one of the ambient space, between tokens brought back to `space`. The time is found
    inside the step, to the accuracy of the solver's interpolation, and is differentiable; with `noise` it is the end of
    that step, see `simulate`. A run that starts clustered, and still is so after one step, ends at its start. Tokens
    that gather and part again within one step go unseen.

    **Arguments:**

    - `radius`: The largest distance from the mean, positive. An array, so that changing it does not recompile.
    - `space`: Where the tokens live.
    - `root_finder`: Finds the time within the step; None ends the run with the step.

    **Returns:**

    A `diffrax.Event`, for `simulate(..., event=...)` or `diffrax.diffeqsolve`.

    **Raises:**

    - `ValueError` if `radius` is not a positive number.

    """
    # An array: the condition is part of the compiled run, and a new radius does not compile again.
    radius = check_scalar(radius, "radius", above=0, remedy="pass a number above zero")
    condition = _Downward(_Spread(radius, check_space(space)))
    return dfx.Event(condition, _check_finder(root_finder), direction=False)


def stationary_event(
    speed: RealScalarLike,
    *,
    space: AbstractSpace = Sphere(),
    root_finder: optx.AbstractRootFinder | None = Bracket(),
) -> dfx.Event:
    r"""Ends a run as soon as $|\dot x_i| \le$ `speed` for every token.

    The velocity is that of the run's own terms, evaluated at the tokens brought back to `space`; it is one more
    evaluation per step. Its time, its gradient and a start at rest are as in `clustered_event`. Slow is not
    converged: a metastable state moves at a speed of the order of $e^{-c\beta}$. A run with noise has no speed, and is
    refused.

    **Arguments:**

    - `speed`: The largest speed of any token, positive. An array, so that changing it does not recompile.
    - `space`: Where the tokens live.
    - `root_finder`: Finds the time within the step; None ends the run with the step.

    **Returns:**

    A `diffrax.Event`, for `simulate(..., event=...)` or `diffrax.diffeqsolve`.

    **Raises:**

    - `ValueError` if `speed` is not a positive number, or as the run begins if that has noise.

    """
    speed = check_scalar(speed, "speed", above=0, remedy="pass a number above zero")
    condition = _Downward(_Speed(speed, check_space(space)))
    return dfx.Event(condition, _check_finder(root_finder), direction=False)


def _check_finder(root_finder: Any) -> optx.AbstractRootFinder | None:
    if root_finder is None:
        return None
    return check_instance(
        root_finder, "root_finder", optx.AbstractRootFinder, "a root finder of optimistix or None", "leave it out"
    )


class _Spread(eqx.Module):
    """log of the largest distance from the mean over the radius."""

    radius: Float[Array, ""]
    space: AbstractSpace

    def __call__(self, t, y, args, **kwargs) -> Float[Array, ""]:
        # Solver states may be off the sphere between retractions.
        x = self.space.retract(y)
        return _log_ratio(x - jnp.mean(x, axis=0, keepdims=True), self.radius)


class _Speed(eqx.Module):
    """log of the largest speed over the threshold."""

    speed: Float[Array, ""]
    space: AbstractSpace

    def __call__(self, t, y, args, *, terms, solver, **kwargs) -> Float[Array, ""]:
        velocity = solver.func(terms, t, self.space.retract(y), args)
        # With noise it is the drift and an operator for the noise.
        if isinstance(velocity, tuple):
            found = "it is stationary_event: a path with noise has no speed"
            raise refusal("event", "be of the tokens themselves with noise", found, "use clustered_event, or none")
        return _log_ratio(velocity, self.speed)


class _Downward(eqx.Module):
    """A condition that crosses zero downward, also when it is below zero from the start.

    diffrax looks for a change of sign from one step to the next, so that at t0 the value has to be positive. The value
    1 + t0 - t is used there: its derivative in the time and in nothing else makes that of the event time zero.
    """

    condition: Callable[..., Array]

    def __call__(self, t, y, args, *, t0, **kwargs) -> Float[Array, ""]:
        # diffrax compares with a Python zero: under strict promotion only the default float can be.
        value = self.condition(t, y, args, t0=t0, **kwargs).astype(float)
        at_start = 1 + (t0 - t).astype(float)
        return jnp.where((t <= t0) & (value <= 0), at_start, value)


def _log_ratio(rows: Tokens, threshold: Float[Array, ""]) -> Float[Array, ""]:
    """log(max_i |row_i| / threshold): nearly linear in time where tokens converge exponentially."""
    threshold = threshold.astype(rows.dtype)
    # The logarithm of the square, halved: no square root, whose derivative is infinite at zero.
    largest = jnp.max(jnp.sum(jnp.square(rows / threshold), axis=1))
    return jnp.log(jnp.maximum(largest, jnp.finfo(rows.dtype).tiny)) / 2
