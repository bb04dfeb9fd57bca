"""simulate: a field, tokens and times in, a trajectory out."""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ._custom_types import RealScalarLike, Tokens
from ._field import AbstractField
from ._misc import as_float, check_tokens, is_concrete
from ._schedule import AbstractSchedule
from ._solver import Retract
from ._space import AbstractSpace, Sphere
from ._trajectory import Trajectory


def simulate(
    field: AbstractField,
    x0: Tokens,
    ts: Float[Array, " times"],
    args: Any = None,
    *,
    solver: dfx.AbstractSolver | None = None,
    stepsize_controller: dfx.AbstractStepSizeController | None = None,
    dt0: RealScalarLike | None = None,
    event: dfx.Event | None = None,
    adjoint: dfx.AbstractAdjoint | None = None,
    save: Callable[[Array, Tokens, Any], Any] | None = None,
    dense: bool = False,
    noise: RealScalarLike | None = None,
    key: PRNGKeyArray | None = None,
    max_steps: int = 16_384,
    throw: bool = True,
    progress: dfx.AbstractProgressMeter = dfx.NoProgressMeter(),
) -> Trajectory:
    r"""Integrate $\dot x = \text{field}(t, x, \text{args})$ from `x0` at `ts[0]`, and save the tokens at `ts`.

    One trajectory of n tokens; map over many with `jax.vmap` or `equinox.filter_vmap` (the steps are then each run's
    own, and the longest run decides the time). Compiled once for each shape and structure: no value of beta, V or
    x0 compiles again. Differentiable in the field, `x0` and `args`. Times and tokens have the dtype of `x0`. On the
    sphere `x0` is retracted first, and what is saved is retracted.

    **Main arguments:**

    - `field`: The velocity, such as `AttentionField`; any sum or multiple of fields.
    - `x0`: Tokens, (n, d).
    - `ts`: The save times, (T,), strictly increasing, at least two; `ts[0]` is the start.
    - `args`: Passed on to `field` and `save`.

    **Other arguments:**

    - `solver`: Any diffrax solver; None is Tsit5 (with `noise`: `Retract(Heun())`).
    - `stepsize_controller`: None is `PIDController(rtol=1e-6, atol=1e-8)` (with `noise`: `ConstantStepSize()`).
        Adaptive controllers step onto the jumps of every `PiecewiseConstant` parameter.
    - `dt0`: The first step; needed by `ConstantStepSize`, otherwise None lets diffrax choose.
    - `event`: Stops the run early, for example `clustered_event(radius)`.
    - `adjoint`: How derivatives are taken, as in diffrax; None is `RecursiveCheckpointAdjoint()`. Use
        `diffrax.ForwardMode()` for forward mode.
    - `save`: `save(t, x, args)` is saved in place of the tokens, so that long runs keep only what is looked at.
    - `dense`: Whether to keep the solver's interpolants for `Trajectory.at`: the memory of nine states for each of
        `max_steps` steps.
    - `noise`: The temperature T >= 0 of $dX = \text{field}\,dt + \sqrt{2T}\,dB$, Brownian motion on `field.space`
        (on the sphere in the sense of Stratonovich). Needs `key` and `dt0`.
    - `key`: PRNG key of the noise.
    - `max_steps`: The largest number of steps.
    - `throw`: Whether a failed run raises; if False look at `Trajectory.result`, which under vmap is each run's own.
    - `progress`: A diffrax progress meter, such as `diffrax.TextProgressMeter()`.

    **Returns:**

    A `Trajectory`.

    **Raises:**

    - `ValueError` for tokens that are not (n, d), finite and, on the sphere, not zero; for `ts` that are not at least
        two increasing finite times; for parameters that do not fit the tokens; for options that do not fit together.
    - `RuntimeError` if the run fails and `throw` is True.

    Source: this library, on `diffrax.diffeqsolve`; the noise is that of 2604.16288 and 2606.05140.
    """
    x0 = check_start(field, x0)
    ts = _check_times(ts, x0.dtype)
    noise = _check_noise(noise, key, dt0, x0.dtype)
    controller = stepsize_controller
    if controller is None:
        controller = dfx.PIDController(rtol=1e-6, atol=1e-8) if noise is None else dfx.ConstantStepSize()
    if isinstance(controller, dfx.ConstantStepSize) and dt0 is None:
        raise ValueError("dt0 must be given with ConstantStepSize, but it is None; pass the length of a step.")
    if dense and isinstance(adjoint, dfx.BacksolveAdjoint):
        raise ValueError("dense must be False with BacksolveAdjoint, which saves at ts only; leave it out.")
    if solver is None:
        solver = dfx.Tsit5() if noise is None else Retract(dfx.Heun(), field.space)
    machinery = _Machinery(
        solver,
        controller,
        None if dt0 is None else jnp.asarray(dt0, x0.dtype),
        adjoint or _default_adjoint(),
        max_steps,
    )
    return _run(field, x0, ts, args, machinery, event, save, dense, noise, key, throw, progress)


class _Machinery(eqx.Module):
    """What a run is integrated with."""

    solver: dfx.AbstractSolver
    controller: dfx.AbstractStepSizeController
    dt0: Float[Array, ""] | None
    adjoint: dfx.AbstractAdjoint
    max_steps: int


def _default_adjoint() -> dfx.AbstractAdjoint:
    return dfx.RecursiveCheckpointAdjoint()


@eqx.filter_jit
def _run(field, x0, ts, args, machinery, event, save, dense, noise, key, throw, progress) -> Trajectory:
    start = field.space.retract(x0)
    terms = _terms(field, x0, ts, noise, key, machinery.dt0)
    saveat = _save_at(field.space, ts, save, dense, machinery.adjoint)
    solution = _solve(terms, field, start, ts[0], ts[-1], args, machinery, saveat, event, throw, progress)
    if isinstance(machinery.adjoint, dfx.BacksolveAdjoint):
        saved, saved_ts = solution.ys, solution.ts
        t1, x1 = ts[-1], field.space.retract(saved[-1])
    else:
        saved, saved_ts = solution.ys["at_ts"], solution.ts["at_ts"]
        t1, x1 = solution.ts["end"][-1], field.space.retract(solution.ys["end"][-1])
    if save is None:
        saved = jax.vmap(field.space.retract)(saved)
    saved = jtu.tree_map(lambda leaf: _blank(leaf, jnp.isfinite(saved_ts)), saved)
    if dense:
        interpolant = _Polynomials(solution.interpolation, field.space)
    elif save is None and noise is None:
        interpolant = _Resumed.make(field, args, machinery, ts, saved)
    else:
        interpolant = _NotKept()
    return Trajectory(ts, saved, solution.stats, solution.result, t1, x1, interpolant)


def _solve(terms, field, y0, t0, t1, args, machinery, saveat, event=None, throw=True, progress=dfx.NoProgressMeter()):
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


class _Saved(eqx.Module):
    """Applies the caller's `save` to retracted tokens."""

    space: AbstractSpace
    save: Callable[..., Any]

    def __call__(self, t, y, args):
        return self.save(t, self.space.retract(y), args)


def _save_at(space: AbstractSpace, ts: Array, save: Any, dense: bool, adjoint: dfx.AbstractAdjoint) -> dfx.SaveAt:
    if isinstance(adjoint, dfx.BacksolveAdjoint):
        if save is not None:
            raise ValueError(
                "save must be None with BacksolveAdjoint, which saves the tokens themselves; leave it out."
            )
        return dfx.SaveAt(ts=ts)
    at_ts = dfx.SubSaveAt(ts=ts) if save is None else dfx.SubSaveAt(ts=ts, fn=_Saved(space, save))
    return dfx.SaveAt(subs={"at_ts": at_ts, "end": dfx.SubSaveAt(t1=True)}, dense=dense)


def _blank(saved: Array, reached: Array) -> Array:
    """`saved`, with NaN (in integers: -1) at the times that were not reached."""
    mark = jnp.asarray(jnp.nan, saved.dtype) if jnp.issubdtype(saved.dtype, jnp.inexact) else -1
    if saved.dtype == bool:
        mark = False
    return jnp.where(reached.reshape(-1, *(1,) * (saved.ndim - 1)), saved, jnp.asarray(mark, saved.dtype))


def _terms(field: AbstractField, x0: Tokens, ts: Array, noise: Any, key: Any, dt0: Any) -> dfx.AbstractTerm:
    drift = dfx.ODETerm(field)
    if noise is None:
        return drift
    path = dfx.VirtualBrownianTree(ts[0], ts[-1], tol=dt0 / 2, shape=jax.ShapeDtypeStruct(x0.shape, x0.dtype), key=key)
    return dfx.MultiTerm(drift, dfx.ControlTerm(_Diffusion(field.space, noise), path))


class _Diffusion(eqx.Module):
    """Brownian motion of the space: increments are projected to the tangent space, times the square root of 2T."""

    space: AbstractSpace
    temperature: Float[Array, ""]

    def __call__(self, t, y, args):
        point, size = self.space.retract(y), jnp.sqrt(2 * self.temperature)
        return lx.FunctionLinearOperator(
            lambda increment: size * self.space.tangent(point, increment), jax.eval_shape(lambda: y)
        )


def _on_jumps(controller: dfx.AbstractStepSizeController, field: AbstractField, dtype: Any) -> Any:
    """The controller, made to step onto the discontinuities of the field's schedules."""
    is_schedule = lambda leaf: isinstance(leaf, AbstractSchedule)
    schedules = [leaf for leaf in jtu.tree_leaves(field, is_leaf=is_schedule) if is_schedule(leaf)]
    jumps = [times for times in (schedule.jumps() for schedule in schedules) if times is not None and times.size]
    if not jumps or not isinstance(controller, dfx.PIDController):
        return controller
    return dfx.ClipStepSizeController(controller, jump_ts=jnp.sort(jnp.concatenate(jumps)).astype(dtype))


class _Polynomials(eqx.Module):
    """diffrax's dense output, retracted."""

    interpolation: dfx.DenseInterpolation
    space: AbstractSpace

    def __call__(self, t: Array) -> Array:
        return self.space.retract(self.interpolation.evaluate(t))


class _Resumed(eqx.Module):
    """The run taken up again from the last saved time."""

    arrays: Any
    rest: Any = eqx.field(static=True)

    @classmethod
    def make(cls, field, args, machinery, ts, xs) -> "_Resumed":
        is_array = lambda leaf: eqx.is_array(leaf) or isinstance(leaf, np.ndarray)
        return cls(*eqx.partition((field, args, machinery, ts, xs), is_array))

    def __call__(self, t: Array) -> Array:
        return _resume(*eqx.combine(self.arrays, self.rest), t)


@eqx.filter_jit
def _resume(field, args, machinery, ts, xs, t) -> Array:
    last = jnp.clip(jnp.searchsorted(ts, t, side="right") - 1, 0, ts.shape[0] - 1)
    solution = _solve(dfx.ODETerm(field), field, xs[last], ts[last], t, args, machinery, dfx.SaveAt(t1=True))
    return field.space.retract(solution.ys[-1])


class _NotKept(eqx.Module):
    """Stands where neither states nor polynomials were kept."""

    def __call__(self, t: Array) -> Array:
        raise ValueError(
            "at needs the tokens between the save times, but the run had noise or a save function; "
            "simulate with dense=True, or put the time into ts."
        )


def check_start(field: AbstractField, x0: Any) -> Tokens:
    """`x0` as an array that `field` can start from, or a ValueError."""
    if not isinstance(field, AbstractField):
        raise ValueError(
            f"field must be a field of clusterjax, but it is a {type(field).__name__}; "
            "build one with AttentionField, or subclass AbstractField."
        )
    x0 = check_tokens(x0, "x0")
    if isinstance(field.space, Sphere) and is_concrete(x0):
        zero = np.flatnonzero(~np.any(np.asarray(x0), axis=1))
        if zero.size:
            raise ValueError(f"x0 must have no zero row on the sphere, but row {zero[0]} is zero; give it a direction.")
    field.check(*x0.shape)
    return x0


def _check_times(ts: Any, dtype: Any) -> Array:
    ts = as_float(ts)
    if ts.ndim != 1 or ts.shape[0] < 2:
        raise ValueError(
            f"ts must be a vector of at least two times, but its shape is {ts.shape}; pass the start and the end."
        )
    ts = ts.astype(dtype)
    if is_concrete(ts):
        times = np.asarray(ts)
        if not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0):
            raise ValueError(
                f"ts must be finite and strictly increasing in {ts.dtype}, but it is {times}; "
                "sort it, or run backwards with the field -field."
            )
    return ts


def _check_noise(noise: Any, key: Any, dt0: Any, dtype: Any) -> Array | None:
    if noise is None:
        return None
    if key is None:
        raise ValueError("key must be given with noise, but it is None; pass jax.random.key(0), or another.")
    if dt0 is None:
        raise ValueError("dt0 must be given with noise, but it is None; pass the length of a step, such as 0.01.")
    noise = as_float(noise).astype(dtype)
    if is_concrete(noise) and not (noise.ndim == 0 and np.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise must be a finite temperature >= 0, but it is {noise}; None is no noise.")
    return noise
