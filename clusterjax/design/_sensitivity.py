"""`sensitivity`: the derivative of the time of clustering with respect to the start and the parameters.

**Algorithm.** The time T solves $c(x(T)) = 0$, where c is the logarithm of the largest distance from the mean over the
radius. By the implicit function theorem $dT/dθ = -∂_θ c(x(T)) / ċ(T)$, with the numerator at a fixed time. One run
finds the event, and one reverse-mode derivative follows. **Reference.** Chen, Amos, Nickel, *Learning neural event
functions for ordinary differential equations* (2011.03902). **Invariants.** A derivative counts as determined only if
the errors of the run, multiplied by the derivative, move the time by a small fraction. Near the stable manifold of a
saddle, where clusters wait before they merge, the derivative grows as the inverse distance.
"""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import check_fits, check_number, check_scalar, refusal
from .._base.summary import short
from .._base.types import Tokens
from .._dynamics.events import clustered_event
from .._dynamics.failure import why_stopped
from .._dynamics.simulate import simulate
from .._model.field import AbstractField, check_field
from .._model.space import AbstractSpace
from ._parameters import Parameters, check_host, pick_parameters, read_start


# The largest fraction of the time by which errors of the run may move it if the derivative is called determined.
SHARE = 1e-3


class Sensitivity(eqx.Module):
    """The time of clustering, and its derivatives.

    **Attributes:**

    - `time`: The time at which all tokens are within the radius of their mean; infinite if that does not happen before
        the end, NaN if the run stops early.
    - `by_start`: (n, d), the derivative with respect to the initial tokens, tangent to the space.
    - `names`, `by_parameters`: The names of the parameters, and the derivative with respect to each.
    - `rate`: The time derivative of the logarithm of the largest distance at `time`, below zero.
    - `gain`: The norm of `by_start`: the largest change of the time per unit shift of the start.
    - `resolution`: The norm of the largest shift of the start that the run cannot resolve.
    - `determined`, `reason`: True if a shift of norm `resolution` changes the time by less than 1e-3 of its value, and
        the explanation.
    """

    time: float
    by_start: Float[np.ndarray, "n d"]
    names: tuple[str, ...]
    by_parameters: tuple[Float[np.ndarray, "..."], ...]
    rate: float
    gain: float
    resolution: float
    determined: bool
    reason: str

    def summary(self) -> str:
        """A few lines with the time, its derivatives, and whether they are determined."""
        said = "determined" if self.determined else "NOT determined"
        lines = [f"clustered at t = {self.time:.6g}, its derivative {said}: {self.reason}"]
        lines.append(f"  by the start: length {self.gain:.4g}; the run resolves shifts of {self.resolution:.1g}")
        lines += [
            f"  by {name}: {float(value):.4g}"
            if np.ndim(value) == 0
            else f"  by {name}: norm {np.linalg.norm(value):.4g}"
            for name, value in zip(self.names, self.by_parameters, strict=True)
        ]
        return "\n".join(lines)

    __repr__ = short


def sensitivity(
    field: AbstractField,
    x0: Tokens,
    radius: float | int,
    *,
    until: float | int,
    which: Callable[[Any], Any] | None = None,
    tolerance: float | None = None,
) -> Sensitivity:
    r"""The derivative of the time at which tokens have clustered, with respect to their start and the parameters.

    `clustered_event` defines the time. Clusters that wait before they merge are near a saddle, and a small shift of the
    start matters more the later they merge: the derivative grows as the inverse distance from the stable manifold of
    the saddle. On the manifold tokens never cluster and the derivative is infinite; the result reports this. A host
    function.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
        >>> x0 = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> found = cjx.design.sensitivity(field, x0, 0.1, until=20.0)
        >>> found.determined, bool(found.by_start[0, 1] < 0)  # the first token moves towards the second: earlier
        (True, True)
        ```

    **Arguments:**

    - `field`, `x0`: As in `simulate`; the run starts at t = 0.
    - `radius`: The largest distance from the mean, above zero.
    - `until`: The end of the run, if the tokens have not clustered before.
    - `which`: A function of the field that returns the array, or a tuple of arrays, to differentiate with respect to;
        None takes all floating-point arrays.
    - `tolerance`: The relative tolerance of the run; None is 1e-9 in float64 and 1e-6 in float32.

    **Returns:**

    A `Sensitivity`.

    **Raises:**

    - `ValueError` if the radius or `until` is not above zero, or the tokens are clustered at the start.

    ??? cite "Source"

        Chen, Amos, Nickel, *Learning neural event functions for ordinary differential equations* (2011.03902).
    """
    parameters = pick_parameters(check_field(field), which)
    check_host(field=field, x0=x0, radius=radius)
    x0 = read_start(field, x0)
    radius_ = check_scalar(radius, "radius", x0.dtype, above=0, remedy="pass a distance above zero")
    until = check_number(until, "until", above=0, remedy="pass how long to wait")
    check_fits(np.float64(until), "until", x0.dtype)
    single = jnp.finfo(x0.dtype).bits < 64
    tolerance = (1e-6 if single else 1e-9) if tolerance is None else tolerance
    tolerance = check_number(tolerance, "tolerance", above=0, remedy="pass a small number, such as 1e-9")
    if float(log_spread(field.space, x0, radius_)) <= 0:
        raise refusal("radius", "be smaller than the cloud at the start", f"it is {float(radius_):g}", "pass less")
    vector = parameters.vector(parameters.values(field), x0.dtype)
    number = lambda value: jnp.asarray(value, x0.dtype)
    run, *derivatives = _derivatives(field, parameters, vector, x0, radius_, number(until), number(tolerance))
    return _result(x0, parameters, until, tolerance, why_stopped(run, (field, None)), *derivatives)


def log_spread(space: AbstractSpace, x: Tokens, radius: Array) -> Array:
    """The logarithm of the largest distance from the mean over the radius; zero at the time of clustering."""
    x = space.retract(x)
    away = jnp.sum(jnp.square((x - jnp.mean(x, axis=0, keepdims=True)) / radius), axis=1)
    return jnp.log(jnp.max(away)) / 2


@eqx.filter_jit
def _derivatives(field, parameters: Parameters, vector, x0, radius, until, tolerance):
    """The run, its end, whether the event happened, and the derivatives of c by time, parameters and start."""
    controller = dfx.PIDController(rtol=tolerance, atol=tolerance)
    options = {"stepsize_controller": controller, "max_steps": 16_384, "throw": False}
    start = jnp.zeros_like(until)
    event = clustered_event(radius, space=field.space)
    run = simulate(field, x0, jnp.stack([start, until]), event=event, adjoint=dfx.ForwardMode(), **options)
    happened = run.event_reached
    # The end time is held fixed, because the implicit function theorem needs the derivative of c at a fixed time.
    end = jax.lax.stop_gradient(jnp.where(happened, run.t1, until))

    def last(vector: Array, x0: Array) -> Array:
        moved = parameters.with_vector(field, vector)
        return log_spread(field.space, simulate(moved, x0, jnp.stack([start, end]), **options).xs[-1], radius)

    by_vector, by_start = jax.grad(last, (0, 1))(vector, x0)
    x1 = field.space.retract(run.x1)
    rate = jax.jvp(lambda x: log_spread(field.space, x, radius), (x1,), (field(end, x1),))[1]
    return run, end, happened, rate, by_vector, field.space.tangent(x0, by_start)


def _result(
    x0, parameters: Parameters, until, tolerance, failure, end, happened, rate, by_vector, by_start
) -> Sensitivity:
    rate = float(rate)
    scale = -1 / rate if rate < 0 else np.nan
    shape = tuple(np.full(s, np.nan) for s in parameters.shapes)
    resolution = tolerance * float(jnp.linalg.norm(x0))
    if not bool(happened):
        reason = f"tokens are not within the radius by t = {until:g}: later, or never, as from the stable manifold of "
        reason += "a saddle, where the derivative is infinite"
        # A run that stopped early gives no information on the time.
        time = np.nan if failure else np.inf
        return Sensitivity(time, np.full(x0.shape, np.nan), parameters.names, shape, rate, np.inf, resolution, False,
                           failure or reason)  # fmt: skip
    starts = scale * np.asarray(by_start)
    gain, time = float(np.linalg.norm(starts)), float(end)
    moved = gain * resolution / time
    determined = bool(moved < SHARE)
    reason = f"what the run cannot tell moves the time by {moved:.1g} of itself"
    if not determined:
        reason += "; the start is as near to the stable manifold of a saddle, on which the derivative is infinite"
    by_parameters = parameters.split(scale * np.asarray(by_vector))
    return Sensitivity(time, starts, parameters.names, by_parameters, rate, gain, resolution, determined, reason)
