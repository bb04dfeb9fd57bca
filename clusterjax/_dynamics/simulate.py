"""`simulate`: integrates a field from tokens over times, by diffrax.

`simulate` checks all arguments and chooses the defaults, outside of `jit`; `_run` is compiled once for each structure
of the arguments. Invariants: times and tokens have the dtype of `x0`; saved tokens are retracted to the space of the
field; every number of the field, of `x0` and of `args` is traced, so that its value never compiles anew.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import (
    as_numbers,
    call_traced,
    check_args,
    check_array,
    check_callable,
    check_fits,
    check_flag,
    check_instance,
    check_integer,
    check_room,
    check_scalar,
    check_tokens,
    refusal,
)
from .._base.defaults import ATOL, MAX_STEPS, RTOL
from .._base.numerics import addressable, as_float, is_concrete, warn_of_rounding
from .._base.summary import StaticString
from .._base.types import RealScalarLike, Tokens
from .._model.attention import (
    AbstractAttention,
    KernelAttention,
    SoftmaxAttention,
    UnnormalisedAttention,
    log_weights_of,
)
from .._model.density import unresolved
from .._model.field import AbstractField, check_field
from .._model.further_attention import SigmoidAttention, SinkhornAttention
from .._model.heads import MultiHeadField
from .._model.schedule import AbstractSchedule, check_schedules, jumps_of
from .._model.space import AbstractSpace, check_directions
from .._summation import Auto, Harmonic, Names, recorded
from .._trajectory.interpolants import Stored
from .._trajectory.trajectory import Trajectory, with_error
from .failure import why_stopped
from .integrate import (
    KnownTimes,
    Resumed,
    Saved,
    SolverOptions,
    TokensAnd,
    blanked,
    forward_mode_told,
    integrate,
    setup_of,
)
from .noise import CommonNoise, check_noise, check_noisy_steps, check_solver_of_noise, make_terms
from .retract import Retract
from .rodas5p import check_suits


# The defaults are made once, so that a call outside of `jit` costs little more than its run.
_ADAPTIVE = dfx.PIDController(rtol=RTOL, atol=ATOL)
_EXPLICIT = dfx.Tsit5()
_ADJOINT = dfx.RecursiveCheckpointAdjoint()
_AUTO = Auto()


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
    save: Callable[[Array, Tokens, Any], Any] | TokensAnd | None = None,
    dense: bool = False,
    noise: RealScalarLike | CommonNoise | None = None,
    key: PRNGKeyArray | None = None,
    max_steps: int = MAX_STEPS,
    throw: bool = True,
    progress: dfx.AbstractProgressMeter = dfx.NoProgressMeter(),
) -> Trajectory:
    """Integrate $ẋ = field(t, x, args)$ from `x0` at `ts[0]`, and save the tokens at `ts`.

    The result is one trajectory of n tokens; `jax.vmap` or `equinox.filter_vmap` map over many (each run then has its
    own steps, and the longest run determines the time). Tokens that are sharded over devices by rows remain so, see
    `Sharded`. A run is compiled once for each shape and structure: no value of beta, V or x0 compiles again. The run is
    differentiable with respect to the field, `x0` and `args`. Times and tokens have the dtype of `x0`. On the sphere
    `x0` is retracted first, and saved tokens are retracted. jax rounds a float64 `x0` to float32 unless
    `jax_enable_x64` is set; one warning reports this.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x0 = cjx.Sphere().sample(jax.random.key(0), n=16, d=8)
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(2.0))
        >>> traj = cjx.simulate(field, x0, jnp.array([0.0, 20.0]))
        >>> traj.xs.shape, [int(cjx.num_clusters(x, radius=0.1)) for x in traj.xs]
        ((2, 16, 8), [16, 1])
        ```

    **Main arguments:**

    - `field`: The velocity, such as `AttentionField`; any sum or multiple of fields.
    - `x0`: Tokens, (n, d).
    - `ts`: The save times, (T,), strictly increasing, at least two; `ts[0]` is the start.
    - `args`: Passed to `field` and `save`.

    **Other arguments:**

    - `solver`: Any diffrax solver; None is Tsit5 (with `noise`: `Retract(Heun())`), which is explicit: its steps remain
        near 3 where tokens contract at rate 1. For very long, stiff runs, beyond t of about 1e4, pass the implicit
        `Rodas5P()`: t = 1e8 then takes a few hundred steps, also for each run of a batch.
    - `stepsize_controller`: None is `PIDController(rtol=1e-6, atol=1e-8)` (with `noise`: `ConstantStepSize()`).
        Adaptive controllers and constant steps step onto the jumps of every `PiecewiseConstant` parameter and onto the
        knots of every `Interpolated` one. Constant steps divide each layer into equal steps of at most `dt0`, and no
        stage of a step evaluates the next layer. `StepTo` takes exactly its own steps.
    - `dt0`: The first step, which `ConstantStepSize` needs; otherwise None lets diffrax choose it.
    - `event`: Ends the run early: a `diffrax.Event`, for example `clustered_event(radius)`, or `diffrax.Event(fn)` of
        a function `fn(t, x, args, **kwargs)`. An event that begins and ends within one step is not detected. With
        `noise` the run ends at the end of the step in which the event happened, since a straight line within the step
        has too little noise to find the time. With noise the times of events are therefore late, by an error of the
        order of √`dt0`: 12 % for Brownian motion that leaves an interval of width w, at 2 T `dt0` = .0025 w^2.
    - `adjoint`: The method of differentiation, as in diffrax; None is `RecursiveCheckpointAdjoint()`, for reverse mode.
        Use `diffrax.ForwardMode()` for forward mode, also twice, and `diffrax.DirectAdjoint()` for `jax.hessian`.
    - `save`: `save(t, x, args)` is saved in place of the tokens, so that long runs store only the results: arrays or
        trees of them, of any dtype, such as `lambda t, x, args: num_clusters(x, 0.1)`. At times that the run did not
        reach floats are NaN, integers -1 (the largest number if unsigned) and booleans False. `TokensAnd(fn)` saves
        both the tokens and the results of `fn`, the latter in `Trajectory.saved`.
    - `dense`: Whether to keep the interpolants of the solver for `Trajectory.at`: the memory of nine states for each of
        `max_steps` steps.
    - `noise`: The temperature T >= 0 of $dX = field dt + √(2T) dB$, with Brownian motion on `field.space` (on the
        sphere in the sense of Stratonovich). Noise requires `key` and `dt0`. Steps end exactly at the times `ts`; there
        is no interpolation between them, since a straight line has too little noise: list every wanted time in `ts`. On
        the sphere averages have an error of first order in `dt0`: 8 % at 2 T `dt0` = .05 in d = 3. A `CommonNoise` is
        an equation of Ito, whose solver is `Retract(Euler())`.
    - `key`: PRNG key of the noise.
    - `max_steps`: The largest number of steps, by default 16,384.
    - `throw`: Whether a failed run raises an error; if False, see `Trajectory.result`, which under vmap is separate for
        each run, and `Trajectory.failure`, which gives the cause and the remedy in words.
    - `progress`: A diffrax progress meter, such as `diffrax.TextProgressMeter()`.

    **Returns:**

    A `Trajectory`.

    **Raises:**

    - `ValueError` for tokens that are not (n, d), finite and, on the sphere, not zero; for `ts` that are not at least
        two increasing finite times; for parameters that do not fit the tokens; for options that contradict each other.
    - `TypeError` for derivatives that `adjoint` does not support.
    - `RuntimeError` if the run fails and `throw` is True.

    Built on `diffrax.diffeqsolve`; the noise is that of 2604.16288 and 2606.05140.
    """
    x0 = check_start(field, x0)
    ts = check_times(ts, x0.dtype)
    check_schedules(field, ts)
    _check_options(solver, stepsize_controller, event, adjoint, progress)
    max_steps = check_integer(max_steps, "max_steps", remedy="pass the largest number of steps, such as 16_384")
    dense, throw = check_flag(dense, "dense"), check_flag(throw, "throw")
    # The interpolation keeps the tokens at both ends of each step, and seven slopes with the default solver.
    num_bytes = max_steps * x0.size * x0.dtype.itemsize * (9 if solver is None else 2) if dense else 0
    content = "what the interpolation keeps of each step"
    check_room(max_steps, "max_steps", num_bytes, content, longest=max_steps, remedy="pass fewer steps")
    if save is not None and not isinstance(save, TokensAnd):
        check_callable(save, "save", "a function of t, x and args", takes=3)
    if dt0 is not None:
        dt0 = check_scalar(dt0, "dt0", x0.dtype, above=0, remedy="pass the length of a step, such as 0.01")
    noise = check_noise(noise, key, dt0, x0.dtype)
    controller = stepsize_controller
    if controller is None:
        controller = _ADAPTIVE if noise is None else dfx.ConstantStepSize()
    if isinstance(controller, dfx.ConstantStepSize) and dt0 is None:
        raise ValueError("dt0 must be given with ConstantStepSize, but it is None; pass the length of a step.")
    if noise is not None:
        check_noisy_steps(controller, ts, dense)
    # diffrax refuses these combinations with messages about its own arguments, or not at all.
    if dense and isinstance(adjoint, dfx.BacksolveAdjoint):
        raise ValueError(
            "dense must be False with BacksolveAdjoint, which saves at ts only, but it is True; leave it out."
        )
    if solver is None and noise is None:
        solver = _EXPLICIT
    elif solver is None:
        solver = Retract(dfx.Euler() if isinstance(noise, CommonNoise) else dfx.Heun(), field.space)
    check_solver_of_noise(solver, noise)
    options = SolverOptions(solver, controller, dt0, adjoint or _ADJOINT, max_steps)
    # The watch is made outside of `jit`, where beta and the tokens have values.
    watch = unresolved(field, x0)
    if watch is not None and noise is not None:
        raise ValueError("noise must be None with MeanField, but it is a number; give the field a temperature.")
    field, sharding, args = _with_summations(field, x0), _sharding(x0), check_args(args)
    check_suits(solver, field, ts, adjoint=adjoint, noise=noise, sharded=sharding is not None)
    # An error that is raised here can name the time that the run reached; several devices need an error within the run.
    inside = throw and (sharding is not None or not addressable((field, x0, ts, args, options, event, save, noise)))
    request = _Request(event, watch, save, dense, noise, key, inside, is_concrete(ts), progress, sharding)
    with forward_mode_told(options.adjoint):
        traj, okay = _run(field, x0, ts, args, options, request)
    if throw and not inside:
        # Under `jit` and `vmap` the result is traced; in a derivative outside of both, only the trajectory is traced.
        if isinstance(okay, Tracer) or not (okay or is_concrete((traj, field, args))):
            return _with_error(traj)
        # The field is passed, since a run with a `save` function, noise or polynomials stores only a description of it.
        if not okay:
            raise RuntimeError(why_stopped(traj, (field, args)))
    return traj


@eqx.filter_jit
def _with_error(traj: Trajectory) -> Trajectory:
    return with_error(traj)


class _Request(NamedTuple):
    """The options of a run except for its solver.

    `throw` is True if a failed run raises an error within the compiled run, and `checked` if the save times are known.
    """

    event: dfx.Event | None
    watch: Any
    save: Callable[[Array, Tokens, Any], Any] | TokensAnd | None
    dense: bool
    noise: Array | CommonNoise | None
    key: PRNGKeyArray | None
    throw: bool
    checked: bool
    progress: dfx.AbstractProgressMeter
    sharding: NamedSharding | None


@eqx.filter_jit
def _run(field: AbstractField, x0: Tokens, ts: Array, args: Any, options: SolverOptions, request: _Request):
    """The trajectory, and whether the run reached its end."""
    save, noise, watch, sharding = request.save, request.noise, request.watch, request.sharding
    # The start is retracted, so that the tokens saved at ts[0] lie on the space too.
    start = _shard(field.space.retract(x0), sharding)
    stops = None if noise is None else ts
    names = Names()
    jumps = jumps_of((field, args), x0.dtype)
    terms = make_terms(recorded(field, names), x0, ts, noise, request.key, options.dt0, jumps)
    saveat = _save_at(field.space, ts, request, options.adjoint)
    # The result is checked below, and not by `integrate`.
    ends = _any_of(request.event, watch, noise is not None)
    solution = integrate(
        terms, field, start, ts[0], ts[-1], args, options, saveat, ends, False, request.progress, stops
    )
    # BacksolveAdjoint supports only a plain `SaveAt(ts=...)`.
    if isinstance(options.adjoint, dfx.BacksolveAdjoint):
        saved, saved_ts = solution.ys, solution.ts
        t1, x1 = ts[-1], field.space.retract(saved[-1])
    else:
        saved, saved_ts = solution.ys["at_ts"], solution.ts["at_ts"]
        t1, x1 = solution.ts["end"][-1], field.space.retract(solution.ys["end"][-1])
    tokens_saved = save is None or isinstance(save, TokensAnd)
    if tokens_saved:
        saved = _shard(jax.vmap(field.space.retract)(saved), sharding)
    # diffrax fills the times that were not reached with infinity.
    reached = jnp.isfinite(jnp.asarray(saved_ts))
    saved = blanked(saved, reached)
    beside = blanked(solution.ys["beside"], reached) if isinstance(save, TokensAnd) else None
    further = {"event": request.event, "save": save, "noise": noise, "key": request.key}
    if solution.interpolation is None and tokens_saved and noise is None:
        interpolant = Resumed.make(field, args, options, **further)
    else:
        setup = setup_of(field, args, options, **further)
        lost = "the run had a save function; simulate with dense=True, or put the time into ts"
        if noise is not None:
            lost = "between them a run with noise is not interpolated, but random; put the time into ts"
        polynomials = solution.interpolation
        interpolant = Stored(setup, lost=lost) if polynomials is None else Stored(setup, polynomials, field.space)
    stats = solution.stats | _summations(names, field)
    okay = dfx.is_okay(solution.result)
    if watch is not None:
        stats = stats | {"resolved": ~watch(t1, x1, args)}
        okay &= stats["resolved"]
    traj = Trajectory(ts, saved, stats, solution.result, t1, _shard(x1, sharding), interpolant, beside)
    if request.throw:
        # `error_if` gathers its operands on one device, and is therefore given only a scalar if the tokens are sharded.
        checked = with_error(traj) if sharding is None else with_error(traj, t1)
        traj = checked if sharding is None else eqx.tree_at(lambda traj: traj.t1, traj, checked)
    return traj, okay


class _Condition(eqx.Module):
    """A condition of the caller's event, which jax must be able to trace."""

    fn: Callable[..., Any]

    def __call__(self, *args, **kwargs):
        return call_traced(self.fn, "event", "a function of t, x and args", *args, **kwargs)


def _any_of(event: dfx.Event | None, watch: Any, noisy: bool) -> dfx.Event | None:
    """The caller's event, joined with `watch`, which ends a run whose coefficients no longer resolve the density."""
    if event is not None:
        conditions = jtu.tree_map(_Condition, event.cond_fn, is_leaf=callable)
        # A path with noise is known only at the ends of steps, and has no root within them.
        event = dfx.Event(conditions, None if noisy else event.root_finder, event.direction)
    if watch is None or event is None:
        return event if watch is None else dfx.Event(watch)
    return dfx.Event((event.cond_fn, watch), event.root_finder, (event.direction, None))


def _sharding(x0: Any) -> NamedSharding | None:
    """The sharding of `x0` over devices; None if `x0` is on one device, replicated or traced."""
    sharding = None if isinstance(x0, Tracer) else x0.sharding
    if not isinstance(sharding, NamedSharding) or sharding.is_fully_replicated:
        return None
    # Explicit axes would need a sharding rule for every operation of the solver.
    if any(kind != AxisType.Auto for kind in sharding.mesh.axis_types):
        raise ValueError(
            f"x0 must be cut over a mesh whose axes are Auto, but they are {sharding.mesh.axis_types}: a solver does "
            "not say how each of its sums is cut; make the mesh with jax.sharding.Mesh(devices, names)."
        )
    return sharding


def _shard(x: Array, sharding: NamedSharding | None) -> Array:
    """`x` sharded over devices as the start was; the compiler would otherwise replicate saved tokens."""
    if sharding is None:
        return x
    # Leading axes, such as that of the save times, are not sharded.
    spec = PartitionSpec(*(None,) * (x.ndim - 2), *sharding.spec)
    return jax.lax.with_sharding_constraint(x, NamedSharding(sharding.mesh, spec))


# The attentions that sum pairs themselves, without a summation.
_SUM_THEMSELVES = (KernelAttention, SigmoidAttention, SinkhornAttention)


def _is_attention(part: Any) -> bool:
    return isinstance(part, AbstractAttention | MultiHeadField)


def _with_summations(field: AbstractField, x: Tokens) -> AbstractField:
    """The field, where `Auto` is replaced by its choice if the queries are too long for `Harmonic`.

    Inside of `jit` queries have no values, and `Auto` would choose `Harmonic`, which would then sum all rows pair by
    pair. Here beta, B and the starting tokens may be concrete.
    """

    # For fewer tokens the choice of `Auto` does not depend on the queries. The method is called on the class as below.
    if not isinstance(Auto.choose(_AUTO, x.shape[0], x.shape[1], x.dtype), Harmonic):
        return field

    def resolve(part: Any) -> Any:
        by_exponentials = isinstance(part, SoftmaxAttention | UnnormalisedAttention)
        parameters = (part.beta, part.query_key) if by_exponentials else ()
        summation = part.summation if parameters else None
        if not isinstance(summation, Auto) or not is_concrete((parameters, x)):
            return part
        # With None the choice depends on the size alone: only `Harmonic` depends on the queries.
        log_weights = log_weights_of(part.position, 0.0, x.shape[0], x.dtype)
        choose = lambda queries: summation.choose(x.shape[0], x.shape[1], x.dtype, part.mask, queries, log_weights)
        if any(isinstance(p, AbstractSchedule) for p in parameters) or not isinstance(choose(None), Harmonic):
            return part
        chosen = choose(jnp.asarray(part.beta, x.dtype) * part.queries(field.space.retract(x), 0.0))
        return part if isinstance(chosen, Harmonic) else eqx.tree_at(lambda part: part.summation, part, chosen)

    return jtu.tree_map(resolve, field, is_leaf=_is_attention)


def _summations(names: Names, field: AbstractField) -> dict[str, Any]:
    """The names of the summations that a run has used; empty if there are none."""
    parts = jtu.tree_leaves(field, is_leaf=_is_attention)
    used = [*names.used, *dict.fromkeys(type(part).__name__ for part in parts if isinstance(part, _SUM_THEMSELVES))]
    return {"summation": StaticString(" and ".join(used))} if used else {}


def _save_at(space: AbstractSpace, ts: Array, request: _Request, adjoint: dfx.AbstractAdjoint) -> dfx.SaveAt:
    save = request.save
    if isinstance(adjoint, dfx.BacksolveAdjoint):
        if save is not None:
            raise ValueError(
                "save must be None with BacksolveAdjoint, which saves the tokens themselves; leave it out."
            )
        return dfx.SaveAt(ts=ts)
    # The end is saved separately, since an event may lie between two times of `ts`.
    subs = {"at_ts": dfx.SubSaveAt(ts=ts), "end": dfx.SubSaveAt(t1=True)}
    if isinstance(save, TokensAnd):
        subs["beside"] = dfx.SubSaveAt(ts=ts, fn=Saved(space, save.fn))
    elif save is not None:
        subs["at_ts"] = dfx.SubSaveAt(ts=ts, fn=Saved(space, save))
    saveat = dfx.SaveAt(subs=subs, dense=request.dense)
    times = lambda saveat: [sub.ts for sub in saveat.subs.values() if sub.ts is not None]
    return eqx.tree_at(times, saveat, replace_fn=KnownTimes) if request.checked else saveat


def check_start(field: AbstractField, x0: Any) -> Tokens:
    """`x0` as an array from which `field` can start, or a ValueError."""
    check_field(field)
    x0 = check_tokens(x0, "x0")
    # With 16 bits or fewer the dtype resolves neither the times of steps nor the tolerances of a solver.
    if x0.dtype not in (jnp.float32, jnp.float64):
        problem = f"its dtype is {x0.dtype}, in which a solver cannot tell its steps apart"
        raise refusal("x0", "be of float32 or float64", problem, "pass x0.astype(jax.numpy.float32)")
    check_directions(field.space, x0)
    # The method is called on the class: binding it to a module makes a new module, which takes longer than the check.
    type(field).check(field, *x0.shape)
    return x0


def _check_options(solver: Any, controller: Any, event: Any, adjoint: Any, progress: Any) -> None:
    """Raise a ValueError unless each option is an object of its diffrax class, or None where that is allowed."""
    for name, value, kind, example in (
        ("solver", solver, dfx.AbstractSolver, "diffrax.Tsit5()"),
        ("stepsize_controller", controller, dfx.AbstractStepSizeController, "diffrax.PIDController(rtol, atol)"),
        ("event", event, dfx.Event, "clustered_event(radius)"),
        ("adjoint", adjoint, dfx.AbstractAdjoint, "diffrax.ForwardMode()"),
    ):
        # diffrax does not accept a bare function either; it calls one with more arguments than t, x and args.
        if name == "event" and callable(value) and not isinstance(value, type | dfx.Event):
            example = (
                "diffrax.Event(fn), where fn(t, x, args, **kwargs) is true, or changes its sign, at the end of the run"
            )
        if value is not None:
            check_instance(value, name, kind, f"a diffrax {kind.__name__.removeprefix('Abstract')}", f"pass {example}")
    meter = dfx.AbstractProgressMeter
    check_instance(progress, "progress", meter, "a diffrax progress meter", "pass diffrax.TextProgressMeter()")


def check_times(ts: Any, dtype: Any) -> Array:
    array = as_numbers(ts, "ts")
    if array is None or np.iscomplexobj(array):
        check_array(ts, "ts", shape=(None,), remedy="pass the start and the end")
    check_fits(array, "ts", dtype)
    warn_of_rounding(ts, "ts")
    ts = as_float(array)
    if ts.ndim != 1 or ts.shape[0] < 2:
        raise ValueError(
            f"ts must be a vector of at least two times, but its shape is {ts.shape}; pass the start and the end."
        )
    # The times are checked in the dtype of the run, in which neighbouring times may have become equal.
    ts = ts.astype(dtype)
    if is_concrete(ts):
        times = np.asarray(ts)
        if not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0):
            raise ValueError(
                f"ts must be finite and strictly increasing in {ts.dtype}, but it is {times}; "
                "sort it, or run backwards with the field -field."
            )
    return ts
