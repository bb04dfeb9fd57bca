"""One stretch of a run, by diffrax, and what is needed to take it up again."""

from contextlib import nullcontext
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from ._field import AbstractField
from ._schedule import AbstractSchedule
from ._space import AbstractSpace


class Machinery(eqx.Module):
    """What a run is integrated with."""

    solver: dfx.AbstractSolver
    controller: dfx.AbstractStepSizeController
    dt0: Float[Array, ""] | None
    adjoint: dfx.AbstractAdjoint
    max_steps: int


def integrate(
    terms, field, y0, t0, t1, args, machinery, saveat, event=None, throw=True, progress=dfx.NoProgressMeter()
):
    """diffrax's solution from `t0` to `t1`, stepping onto the jumps of the field's schedules."""
    # diffrax mixes dtypes while it looks for the time of an event; everything else promotes as the caller has it.
    promotion = nullcontext() if event is None else jax.numpy_dtype_promotion("standard")
    with promotion:
        return dfx.diffeqsolve(
            terms,
            machinery.solver,
            t0,
            t1,
            machinery.dt0,
            y0,
            args,
            saveat=saveat,
            stepsize_controller=_on_jumps(machinery.controller, field, y0.dtype),
            adjoint=machinery.adjoint,
            event=event,
            max_steps=machinery.max_steps,
            throw=throw,
            progress_meter=progress,
        )


def _on_jumps(controller: dfx.AbstractStepSizeController, field: AbstractField, dtype: Any) -> Any:
    """The controller, made to step onto the discontinuities of the field's schedules."""
    is_schedule = lambda leaf: isinstance(leaf, AbstractSchedule)
    schedules = [leaf for leaf in jtu.tree_leaves(field, is_leaf=is_schedule) if is_schedule(leaf)]
    jumps = [times for times in (schedule.jumps() for schedule in schedules) if times is not None and times.size]
    if not jumps or not isinstance(controller, dfx.PIDController):
        return controller
    return dfx.ClipStepSizeController(controller, jump_ts=jnp.sort(jnp.concatenate(jumps)).astype(dtype))


class Polynomials(eqx.Module):
    """diffrax's dense output, retracted."""

    interpolation: dfx.DenseInterpolation
    space: AbstractSpace

    def __call__(self, t: Array) -> Array:
        return self.space.retract(self.interpolation.evaluate(t))


class Resumed(eqx.Module):
    """The run taken up again from the last saved time."""

    arrays: Any
    rest: Any = eqx.field(static=True)

    @classmethod
    def make(cls, field, args, machinery, ts, xs) -> "Resumed":
        is_array = lambda leaf: eqx.is_array(leaf) or isinstance(leaf, np.ndarray)
        return cls(*eqx.partition((field, args, machinery, ts, xs), is_array))

    def __call__(self, t: Array) -> Array:
        field, args, machinery, ts, xs = eqx.combine(self.arrays, self.rest)
        return _resume(field, args, machinery, ts, xs, t)


@eqx.filter_jit
def _resume(field, args, machinery, ts, xs, t) -> Array:
    last = jnp.clip(jnp.searchsorted(ts, t, side="right") - 1, 0, ts.shape[0] - 1)
    solution = integrate(dfx.ODETerm(field), field, xs[last], ts[last], t, args, machinery, dfx.SaveAt(t1=True))
    return field.space.retract(solution.ys[-1])


class NotKept(eqx.Module):
    """Stands where neither states nor polynomials were kept."""

    def __call__(self, t: Array) -> Array:
        raise ValueError(
            "at needs the tokens between the save times, but the run had noise or a save function; "
            "simulate with dense=True, or put the time into ts."
        )
