"""`time_to_cluster`: the first time at which all tokens are within a radius of their mean, and whether it was reached.

**Algorithm.** One run of `simulate` with `clustered_event`. A run that ends without the event is *censored*: its time
is a lower bound, and `reached` is False. **Invariant.** Tokens that are within the radius at the start have the time 0,
also where they part afterwards.
"""

from typing import Any, NamedTuple

import diffrax as dfx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._base.checks import check_flag, check_scalar, refusal
from .._base.defaults import MAX_STEPS
from .._base.types import RealScalarLike, Tokens
from .._model.density import AbstractMeanField
from .._model.field import AbstractField
from .events import clustered_event
from .simulate import check_start, simulate


class TimeToCluster(NamedTuple):
    """The result of `time_to_cluster`: unpacks into two values, and is an output of `sweep.run` as it is.

    **Attributes:**

    - `time`: The time at which the tokens were within the radius; where `reached` is False, the end of the run.
    - `reached`: True if the tokens came within the radius; False if the run ended before, so that `time` is only a
        lower bound.
    """

    time: Float[Array, "*batch"]
    reached: Bool[Array, "*batch"]


def time_to_cluster(
    field: AbstractField,
    x0: Tokens,
    radius: RealScalarLike,
    until: RealScalarLike,
    args: Any = None,
    *,
    solver: dfx.AbstractSolver | None = None,
    stepsize_controller: dfx.AbstractStepSizeController | None = None,
    dt0: RealScalarLike | None = None,
    adjoint: dfx.AbstractAdjoint | None = None,
    noise: RealScalarLike | None = None,
    key: PRNGKeyArray | None = None,
    max_steps: int = MAX_STEPS,
    throw: bool = True,
) -> TimeToCluster:
    """The first time at which $|x_i - m|$ ≤ `radius` for every token, where m is the mean, and whether it was reached.

    The run starts at t = 0, and the time is that of `clustered_event`, found within the step. A run that ends first
    gives the time of its end and False, and a mean of such times is wrong: `survival(times, reached)` estimates the
    mean up to a horizon from both kinds of runs. `jax.vmap` maps over starts and parameters. The time is
    differentiable with respect to the field, `x0` and `radius`; where it was not reached, and where it is 0, these
    derivatives are 0.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
        >>> x0 = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> found = cjx.time_to_cluster(field, x0, 0.1, 20.0)
        >>> round(float(found.time), 2), bool(found.reached)
        (2.76, True)
        >>> found = cjx.time_to_cluster(field, x0, 0.1, 2.0)
        >>> float(found.time), bool(found.reached)
        (2.0, False)
        ```

    **Main arguments:**

    - `field`, `x0`, `args`: As in `simulate`.
    - `radius`: The largest distance from the mean, above zero.
    - `until`: The end of the run, above zero: the longest time that is followed.

    **Other arguments:**

    - `solver`, `stepsize_controller`, `dt0`, `adjoint`, `max_steps`: As in `simulate`.
    - `noise`, `key`: As in `simulate`; with noise the time is the end of a step, and therefore late.
    - `throw`: Whether a failed run raises an error; if False, a failed run is censored at the time that it reached.

    **Returns:**

    A `TimeToCluster`, the tuple `(time, reached)`.

    **Raises:**

    - `ValueError` as `simulate` does, if `radius` or `until` is not a number above zero, or for a field of densities.
    - `RuntimeError` if the run fails and `throw` is True.
    """
    if isinstance(field, AbstractMeanField):
        kind = type(field).__name__
        raise refusal("field", "move tokens", f"it is a {kind}, whose state is a density", "pass an AttentionField")
    x0 = check_start(field, x0)
    radius = check_scalar(radius, "radius", x0.dtype, above=0, remedy="pass a distance above zero")
    until = check_scalar(until, "until", x0.dtype, above=0, remedy="pass how long to wait")
    event = clustered_event(radius, space=field.space)
    traj = simulate(
        field, x0, jnp.stack([jnp.zeros_like(until), until]), args, solver=solver, event=event, adjoint=adjoint,
        stepsize_controller=stepsize_controller, dt0=dt0, noise=noise, key=key, max_steps=max_steps,
        throw=check_flag(throw, "throw"),
    )  # fmt: skip
    # The event also asks that tokens are still together after one step.
    x = field.space.retract(x0)
    away = jnp.sum(jnp.square((x - jnp.mean(x, axis=0, keepdims=True)) / radius), axis=1)
    together = jnp.max(away) <= 1
    return TimeToCluster(jnp.where(together, 0, traj.t1), together | traj.event_reached)
