"""A call of diffrax, and the interpolant that repeats it.

`Resumed` integrates again from the last save time before t, and stores nothing beyond the saved tokens. Invariant:
adaptive controllers and constant steps step onto every jump of a schedule, so that no step crosses a discontinuity of
the field, or sees the value after it at its own end. With noise they also step onto every save time, since a straight
line between the ends of a step varies less than the path does.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._describe import MOST_NUMBERS, Setup
from ._field import AbstractField
from ._interpolants import AbstractInterpolant
from ._schedule import jumps_of
from ._solver import StepsByLayer, ending, stored_stages


class SolverOptions(eqx.Module):
    """The solver and its options, as `integrate` passes them to diffrax."""

    solver: dfx.AbstractSolver
    controller: dfx.AbstractStepSizeController
    dt0: Float[Array, ""] | None
    adjoint: dfx.AbstractAdjoint
    max_steps: int


def setup_of(
    field: AbstractField, args: Any, options: SolverOptions, most: int | None = MOST_NUMBERS, **further: Any
) -> Setup:
    """The description of a run."""
    names = {"stepsize_controller": "controller"}
    solving = ("solver", "stepsize_controller", "dt0", "adjoint", "max_steps")
    told = {name: getattr(options, names.get(name, name)) for name in solving}
    return Setup.of(most, field=field, args=args, **told, **further)


@contextmanager
def forward_mode_told(adjoint: dfx.AbstractAdjoint) -> Iterator[None]:
    """Replaces the error of forward mode through an adjoint of reverse mode, as in `jax.hessian`, by a clearer message.

    Within a `jit` of the caller jax differentiates the traced computation, and raises its own message.
    """
    try:
        yield
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise TypeError(
            f"adjoint must be diffrax.ForwardMode() for jax.jvp, jax.jacfwd and jax.jacfwd(jax.jacfwd(...)), or "
            f"diffrax.DirectAdjoint() for jax.hessian, but it is {type(adjoint).__name__}, which has reverse mode "
            "alone; pass one of these."
        ) from error


def integrate(
    terms, field, y0, t0, t1, args, options, saveat, event=None, throw=True, progress=dfx.NoProgressMeter(), stops=None
):
    """The solution of diffrax from `t0` to `t1`, with steps onto the jumps of the schedules in the field and in `args`,
    and onto the `stops`; see `_solver/jumps.py`."""
    # diffrax mixes dtypes in the search for the time of an event, which strict promotion would refuse.
    promotion = nullcontext() if event is None else jax.numpy_dtype_promotion("standard")
    with promotion:
        return dfx.diffeqsolve(
            ending(terms, jnp.asarray(t1, y0.dtype)),
            stored_stages(options.solver, terms, y0, options.adjoint),
            t0,
            t1,
            options.dt0,
            y0,
            ending(args, jnp.asarray(t1, y0.dtype)),
            saveat=saveat,
            stepsize_controller=_on_times(options.controller, jumps_of((field, args), y0.dtype), stops),
            adjoint=options.adjoint,
            event=event,
            max_steps=options.max_steps,
            throw=throw,
            progress_meter=progress,
        )


def _on_times(controller: dfx.AbstractStepSizeController, jumps: Array | None, stops: Array | None) -> Any:
    """The controller, made to step onto the discontinuities of the field's schedules and onto the stops."""
    if jumps is None and stops is None:
        return controller
    if isinstance(controller, dfx.AbstractAdaptiveStepSizeController):
        return dfx.ClipStepSizeController(controller, step_ts=stops, jump_ts=jumps)
    # Steps that the caller lists one by one, as in `StepTo`, are not changed.
    if not isinstance(controller, dfx.ConstantStepSize):
        return controller
    given = [times for times in (jumps, stops) if times is not None]
    none = given[0][:0]
    return StepsByLayer(none if jumps is None else jumps, none if stops is None else stops)


class Resumed(AbstractInterpolant):
    """Integrates the run again from the last save time before t."""

    arrays: Any
    further: Setup  # the settings that are not needed to integrate again
    rest: Any = eqx.field(static=True)

    @classmethod
    def make(cls, field, args, options, ts, xs, **further) -> "Resumed":
        # NumPy arrays are stored as arrays too: as static fields they could not be compared, and `jit` would fail.
        is_array = lambda leaf: eqx.is_array(leaf) or isinstance(leaf, np.ndarray)
        arrays, rest = eqx.partition((field, args, options, ts, xs), is_array)
        return cls(arrays, Setup.of(**further), rest)

    def settings(self) -> dict[str, Any]:
        field, args, options, _, _ = eqx.combine(self.arrays, self.rest)
        return setup_of(field, args, options, None).settings() | self.further.settings()

    def law(self) -> tuple[AbstractField, Any]:
        """The field and `args` of the run."""
        return eqx.combine(self.arrays, self.rest)[:2]

    def __call__(self, t: Array) -> Array:
        field, args, options, ts, xs = eqx.combine(self.arrays, self.rest)
        return _resume(field, args, options, ts, xs, t)


@eqx.filter_jit
def _resume(field, args, options, ts, xs, t) -> Array:
    # The index of the last save time <= t is clipped, since a traced t may lie outside of the run.
    last = jnp.clip(jnp.searchsorted(ts, t, side="right") - 1, 0, ts.shape[0] - 1)
    # The solver and the controller are those of the run, and the first step is chosen as at its start.
    solution = integrate(dfx.ODETerm(field), field, xs[last], ts[last], t, args, options, dfx.SaveAt(t1=True))
    return field.space.retract(solution.ys[-1])
