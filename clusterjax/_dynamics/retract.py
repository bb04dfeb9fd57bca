"""`Retract`, a wrapper of diffrax solvers; constant steps that end at jumps; and Tsit5 with stored stages."""

from collections.abc import Callable
from typing import Any, TypeAlias

import diffrax as dfx
import equinox as eqx
import equinox.internal as eqxi
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Inexact, PyTree

from .._base.checks import check_instance
from .._base.numerics import tensordot
from .._model.schedule import AbstractSchedule
from .._model.space import AbstractSpace, Sphere, check_space


# `Retract`: wraps a diffrax solver so that every step ends on the space.
#
# This is a projection method (Hairer, Lubich, Wanner, *Geometric Numerical Integration*, section IV.4). Invariants: the
# state after each step, and every value of the dense output, is retracted; for tangent fields the order is that of the
# wrapped solver; no evaluation at the unretracted end of a step is used in the next step.


Time: TypeAlias = float | Array  # the type of times that diffrax passes to a solver


def _check_solver(solver: dfx.AbstractSolver) -> dfx.AbstractSolver:
    return check_instance(
        solver, "solver", dfx.AbstractSolver, "a diffrax solver", "pass an instance such as diffrax.Euler()"
    )


# equinox gives the parameter of `__init__` the type of the parameter of its converter, which `check_space` leaves open.
def _check_space(space: AbstractSpace) -> AbstractSpace:
    return check_space(space)


class Retract(dfx.AbstractWrappedSolver):
    """Any diffrax solver, where each step ends on `space`: $x_{k+1} = retract(step(x_k))$.

    `Retract(Euler())` with constant steps is the normalised Euler scheme of the papers; with a field on `Euclidean()`
    it is their scheme without tangent projection. The order is that of the wrapped solver if the field is tangent to
    `space`; for another field the scheme follows the tangent part, to first order. Values that are interpolated within
    a step are retracted too, so that dense output is continuous. A solver whose last evaluation is the first of the
    next step (FSAL, such as Tsit5) evaluates the field again at the retracted tokens: one more evaluation per step.

    The state is an array of tokens; of a tuple, such as the state of `BacksolveAdjoint`, the first entry is retracted.
    `BacksolveAdjoint` solves the unretracted adjoint equation, which is correct only if the field is tangent to
    `space`.

    **Arguments:**

    - `solver`: Any diffrax solver; it may be adaptive, implicit, or for stochastic equations.
    - `space`: The space on which each step ends.

    **Raises:**

    - `ValueError` if `solver` is not a diffrax solver or `space` not a space.

    ??? cite "Source"

        The scheme $x ← normalise(x + Δt v(x))$ of the simulations of Geshkovski et al., *A mathematical perspective on
        transformers* (2312.10794), and of Peat, *Clustering in Transformers*, Section 3.2.
    """

    solver: dfx.AbstractSolver = eqx.field(converter=_check_solver)
    space: AbstractSpace = eqx.field(converter=_check_space)

    # The `__init__` of a dataclass would let equinox flatten its arguments before the converters check them.
    def __init__(self, solver: dfx.AbstractSolver, space: AbstractSpace = Sphere()):
        self.solver, self.space = solver, space

    @property
    def term_structure(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.solver.term_structure

    @property
    def interpolation_cls(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        # diffrax calls the result with the `dense_info` of a step: see `step`.
        return _Interpolations(self.solver.interpolation_cls)

    @property
    def term_compatible_contr_kwargs(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.solver.term_compatible_contr_kwargs

    # diffrax reads these attributes of Runge-Kutta and implicit solvers from the wrapper, since it identifies the kind
    # of the wrapper with that of the wrapped solver.
    @property
    def scan_kind(self):
        return self.solver.scan_kind  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def root_finder(self):
        return self.solver.root_finder  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def root_find_max_steps(self):
        return self.solver.root_find_max_steps  # pyright: ignore[reportAttributeAccessIssue]

    def order(self, terms: PyTree) -> int | None:
        return self.solver.order(terms)

    def strong_order(self, terms: PyTree):
        return self.solver.strong_order(terms)

    def error_order(self, terms: PyTree):
        return self.solver.error_order(terms)

    def init(self, terms: PyTree, t0: Time, t1: Time, y0: PyTree, args: PyTree) -> PyTree:
        return self.solver.init(terms, t0, t1, y0, args)

    def step(
        self, terms: PyTree, t0: Time, t1: Time, y0: PyTree, args: PyTree, solver_state: PyTree, made_jump: bool | Array
    ):
        # The end of the last step was retracted, so that a first-same-as-last evaluation from there belongs to another
        # point. `made_jump=True` makes diffrax evaluate the field again at y0.
        y1, error, dense_info, solver_state, result = self.solver.step(
            terms, t0, t1, y0, args, solver_state, made_jump=True
        )
        # The space is part of `dense_info`, since diffrax builds the interpolation from `dense_info` alone.
        dense_info = {"space": self.space, "info": dense_info}
        return _retract(self.space, y1), error, dense_info, solver_state, result

    def func(self, terms: PyTree, t0: Time, y0: PyTree, args: PyTree) -> PyTree:
        return self.solver.func(terms, t0, y0, args)


def _retract(space: AbstractSpace, y: PyTree) -> PyTree:
    """`y` retracted; of the tuple (tokens, adjoint, ...) of `BacksolveAdjoint` only the tokens."""
    # The adjoint is a cotangent, and not a point of the space.
    return (space.retract(y[0]), *y[1:]) if isinstance(y, tuple) else space.retract(y)


class _Interpolations(eqx.Module):
    """Builds the retracted interpolation of a step from its `dense_info`."""

    wrapped: Callable[..., dfx.AbstractLocalInterpolation] = eqx.field(static=True)

    def __call__(self, *, t0, t1, space: AbstractSpace, info: PyTree) -> "_RetractedInterpolation":
        return _RetractedInterpolation(t0, t1, self.wrapped(t0=t0, t1=t1, **info), space)


class _RetractedInterpolation(dfx.AbstractLocalInterpolation):
    """The interpolation of the wrapped solver within a step, retracted."""

    t0: Any
    t1: Any
    interpolation: dfx.AbstractLocalInterpolation
    space: AbstractSpace

    def evaluate(self, t0, t1=None, left: bool = True) -> PyTree[Array]:
        if t1 is not None:
            # diffrax requires the increment from t0 to t1.
            return jtu.tree_map(jnp.subtract, self.evaluate(t1, left=left), self.evaluate(t0, left=left))
        return _retract(self.space, self.interpolation.evaluate(t0, left=left))


# Constant steps that end at the jumps of schedules, and runs that end at a jump.
#
# **Algorithm.** The jumps divide a run into layers. Each layer is divided into the smallest number of equal steps that
# are not longer than `dt0`, as `diffrax.ConstantStepSize` divides a run. As in `diffrax.ClipStepSizeController`, which
# accepts adaptive controllers only, the last step of a layer ends one floating-point number before the jump, and the
# next step begins one number after it, so that no stage, even at the end of a step, evaluates another layer. If a run
# ends at a jump, the last stage is at the time of the jump, and schedules are evaluated one number earlier. At a stop,
# such as a save time of a run with noise, a step ends and the next one begins at exactly that time.
#
# **Invariants.** A run is the composition of the runs of its layers, to the order of the solver. Times have the
# direction of diffrax, which always integrates forwards; the value at a jump may belong to either side.


# A layer that is longer than its steps by this fraction of a step, as by rounding, needs no further step.
_SLACK = 1e-5


def neighbour(t: Array, side: int) -> Array:
    """The floating-point number after `t`, or before `t` for a `side` of -1, with the derivative of `t`."""
    value = lax.stop_gradient(t)
    # Numbers below `tiny` are skipped, since some processors compute with them and others treat them as zero.
    tiny = jnp.finfo(t.dtype).tiny
    near = jnp.nextafter(value, jnp.full_like(value, side * jnp.inf))
    near = jnp.where(jnp.abs(value) < tiny, side * tiny, jnp.where(jnp.abs(near) < tiny, 0, near))
    return near + (t - value)


class StepsByLayer(dfx.AbstractStepSizeController):
    """Equal steps of at most `dt0` within each layer: a `ConstantStepSize` that respects the jumps.

    **Arguments:**

    - `jumps`: The times at which layers end, in increasing order.
    - `stops`: Further times at which a step ends, in increasing order; the field is continuous there.
    """

    jumps: Float[Array, " jumps"]
    stops: Float[Array, " stops"]

    def wrap(self, direction: Any) -> "StepsByLayer":
        return StepsByLayer(jnp.sort(self.jumps * direction), jnp.sort(self.stops * direction))

    def init(self, terms, t0: Any, t1: Any, y0, dt0: Any, args, func, error_order):
        state = self._layer(t0, t1, dt0)
        return _end(state), state

    def adapt_step_size(self, t0, t1: Any, y0, y1_candidate, args, y_error, error_order, controller_state):
        start, stop, count, done, jumped, last, dt0 = controller_state
        over = done + 1 == count
        onward = (start, stop, count, done + 1, jumped, last, dt0)
        # The next layer begins beyond the jump itself. At the end of the run diffrax takes no further step.
        begun = jnp.where(jumped, neighbour(neighbour(t1, 1), 1), t1)
        state = jtu.tree_map(lambda new, old: jnp.where(over, new, old), self._layer(begun, last, dt0), onward)
        return True, jnp.where(over, begun, t1), _end(state), over & jumped, state, dfx.RESULTS.successful

    def _layer(self, start: Array, last: Array, dt0: Array) -> tuple[Array, ...]:
        """The layer from `start`: its ends, its number of steps, the number of steps done, whether it ends at a jump,
        the end of the run, and `dt0`.

        A layer of at most two floating-point numbers is skipped.
        """
        jump = jnp.min(jnp.where(self.jumps > neighbour(start, 1), self.jumps, jnp.inf), initial=jnp.inf)
        halt = jnp.min(jnp.where(self.stops > neighbour(start, 1), self.stops, jnp.inf), initial=jnp.inf)
        stop = jnp.where(jump < last, neighbour(jnp.minimum(jump, last), -1), last)
        jumped = halt >= stop
        stop = jnp.minimum(stop, halt)
        count = jnp.ceil((stop - start) / (dt0 * (1 + _SLACK)))
        count = jnp.maximum(lax.stop_gradient(count), 1).astype(jnp.int32)
        return start, stop, count, jnp.zeros_like(count), jumped, last, dt0


def _end(state: tuple[Array, ...]) -> Array:
    """The time at which the next step ends."""
    start, stop, count, done, *_ = state
    share = (done + 1).astype(start.dtype) / count.astype(start.dtype)
    return jnp.where(done + 1 == count, stop, start + (stop - start) * share)


class _Until(AbstractSchedule):
    """A schedule in a run that ends at `end`; if `end` is a jump, its value there is that of the layer before."""

    schedule: AbstractSchedule
    end: Float[Array, ""]

    def __call__(self, t: Any) -> Inexact[Array, "..."]:
        jumps = self.jumps()
        if jumps is None or not jumps.size:
            return self.schedule(t)
        t = jnp.asarray(t, self.end.dtype)
        at_end = (t == self.end) & jnp.any(jumps.astype(t.dtype) == self.end)
        return self.schedule(jnp.where(at_end, neighbour(t, -1), t))

    def jumps(self) -> Float[Array, " jumps"] | None:
        return self.schedule.jumps()


def ending(tree: Any, end: Array) -> Any:
    """`tree` with schedules that, at the end of the run, do not give the value of a layer that begins there."""
    jumping = lambda node: _is_schedule(node) and (times := node.jumps()) is not None and times.size > 0
    return jtu.tree_map(lambda node: _Until(node, end) if jumping(node) else node, tree, is_leaf=_is_schedule)


def _is_schedule(node: Any) -> bool:
    return isinstance(node, AbstractSchedule)


# `StoredStages`: Tsit5 whose backward pass stores the values of all stages of a step.
#
# **Algorithm.** The stages of an explicit Runge-Kutta step are one `lax.scan`. diffrax loops over them with
# checkpoints: in reverse mode it computes a step again from its start, and then each of its stages again from the
# start of the stage. This solver omits the second recomputation, at the cost of the memory of one step: gradients of
# some dozens of tokens take three quarters of the time.
#
# **Reference.** Tsitouras, *Runge-Kutta pairs of order 5(4)* (2011); the coefficients are those of `diffrax.Tsit5`.
#
# **Invariants.** Steps, error estimates and interpolants are those of `diffrax.Tsit5` except for rounding. The field is
# evaluated as often: the last stage of a step is the first of the next step, unless the state jumped.


# Six stages of all pairs of this many tokens take 0.2 MB in float64, less than the 1 MB of the checkpoints of a run.
_MOST_TOKENS = 64


def stored_stages(solver: dfx.AbstractSolver, terms: Any, y0: Any, adjoint: dfx.AbstractAdjoint) -> dfx.AbstractSolver:
    """`solver`, or `StoredStages` in its place where the two are equivalent and the stages need little memory."""
    plain = type(solver) is dfx.Tsit5 and solver.scan_kind is None and type(terms) is dfx.ODETerm
    reverse = type(adjoint) is dfx.RecursiveCheckpointAdjoint
    return StoredStages() if plain and reverse and y0.shape[0] <= _MOST_TOKENS else solver


class StoredStages(dfx.Tsit5):
    """`diffrax.Tsit5` for a state that is one array, which stores all stages of a step for the backward pass."""

    def init(self, terms: Any, t0: Time, t1: Time, y0: Any, args: Any) -> Any:
        # diffrax evaluates the field there too, to choose the first step, and XLA evaluates it once.
        return terms.vf(t0, y0, args)

    def step(self, terms: Any, t0: Time, t1: Time, y0: Any, args: Any, solver_state: Any, made_jump: Any):
        vf, last = terms.vf, solver_state
        if made_jump is not False:  # a controller that steps onto jumps
            # The field is traced once here, since it is used twice below. All runs of a batch evaluate the first stage
            # if one of them must: under `vmap` a condition that differs between runs would evaluate it in every step.
            vf = eqx.filter_closure_convert(terms.vf, t0, y0, args)
            last = lax.cond(eqxi.unvmap_any(made_jump), lambda: vf(t0, y0, args), lambda: solver_state)
        control, weights = terms.contr(t0, t1), self._weights(y0.dtype)

        def stage(carry, of_stage):
            ks, _, _ = carry
            number, weights, c = of_stage
            y = y0 + tensordot(weights, ks, 1)
            f = vf(jnp.where(c == 1, t1, t0 + c * (t1 - t0)), y, args)
            return (lax.dynamic_update_index_in_dim(ks, terms.prod(f, control), number, 0), y, f), None

        # Entries that are not known yet are zero, since they are multiplied by weights that are zero.
        ks = jnp.zeros((len(weights) + 1, *y0.shape), y0.dtype).at[0].set(terms.prod(last, control))
        of_stages = (jnp.arange(1, len(ks)), weights, jnp.asarray(self.tableau.c, jnp.result_type(t0, t1)))
        (ks, y1, f1), _ = lax.scan(stage, (ks, y0, last), of_stages)
        error = tensordot(jnp.asarray(self.tableau.b_error, y0.dtype), ks, 1)
        return y1, error, {"y0": y0, "y1": y1, "k": ks}, f1, dfx.RESULTS.successful

    def _weights(self, dtype: Any) -> Array:
        """The weights of all stages in each stage except the first, (stages - 1, stages)."""
        weights = np.zeros((self.tableau.num_stages - 1, self.tableau.num_stages))
        for row, of_stage in zip(weights, self.tableau.a_lower, strict=True):
            row[: len(of_stage)] = of_stage
        return jnp.asarray(weights, dtype)
