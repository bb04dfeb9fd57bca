"""Least squares through the integrator: the Levenberg-Marquardt method, and the runs that produce its residuals.

**Algorithm.** Each step solves a damped linear least-squares problem with the Jacobian from forward mode. The damping
of a parameter is proportional to the norm of its column, and is adapted to the ratio of the actual to the predicted
decrease. `optimistix.LevenbergMarquardt` is not used, because a step whose run fails must be rejected and damped more.
**Reference.** Marquardt, *An algorithm for least-squares estimation of nonlinear parameters* (1963); Nielsen, *Damping
parameter in Marquardt's method* (1999).
**Invariants.** The sum of squares never rises; a residual that is not finite, from a run that failed, is rejected; each
structure of the residual is compiled once, whatever the values in it.
"""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import check_instance, check_integer, check_number
from .._field import AbstractField
from .._misc import matmul
from .._simulate import simulate


class Runs(eqx.Module):
    """The options that the runs of a design pass to `simulate`."""

    solver: dfx.AbstractSolver | None
    controller: dfx.AbstractStepSizeController
    dt0: Any
    max_steps: int

    def __call__(self, field: AbstractField, x0: Array, ts: Array, **further: Any) -> Any:
        """The run of `field` from `x0`, differentiable by forward mode."""
        options = {"adjoint": dfx.ForwardMode(), "throw": False} | further
        return simulate(field, x0, ts, solver=self.solver, stepsize_controller=self.controller, dt0=self.dt0,
                        max_steps=self.max_steps, **options)  # fmt: skip


def read_runs(solver: Any, controller: Any, dt0: Any, max_steps: Any, dtype: Any) -> Runs:
    """The options of the runs, with the checks that `simulate` does not make.

    The default tolerances are tighter than in `simulate`, because an estimate is only as accurate as its runs.
    """
    if controller is None:
        tight = jnp.finfo(dtype).bits == 64
        controller = dfx.PIDController(rtol=1e-8 if tight else 1e-5, atol=1e-10 if tight else 1e-6)
    if solver is not None:
        check_instance(solver, "solver", dfx.AbstractSolver, "a diffrax solver", "pass diffrax.Tsit5(), or None")
    dt0 = None if dt0 is None else check_number(dt0, "dt0", above=0, remedy="pass the first step, or None")
    remedy = "pass one, such as diffrax.PIDController(rtol=1e-8, atol=1e-10)"
    kind = dfx.AbstractStepSizeController
    controller = check_instance(controller, "stepsize_controller", kind, "a step size controller of diffrax", remedy)
    max_steps = check_integer(max_steps, "max_steps", remedy="pass the most steps of one run, such as 4096")
    return Runs(solver, controller, dt0, max_steps)


class Fit(eqx.Module):
    """The result of the Levenberg-Marquardt method.

    **Attributes:**

    - `vector`: (p,), the final parameters.
    - `residual`, `jacobian`: (N,) and (N, p), the residual at `vector` and its derivative.
    - `settled`: True if the next step would be below the tolerance, or the residual is as small as requested.
    - `steps`: The number of steps, including rejected steps.
    - `started`: True if the residual was finite at the start.
    """

    vector: Float[Array, " p"]
    residual: Float[Array, " N"]
    jacobian: Float[Array, "N p"]
    settled: Array
    steps: Array
    started: Array


class _State(eqx.Module):
    vector: Array
    residual: Array
    jacobian: Array
    cost: Array  # infinite before the first evaluation
    trial: Array  # the parameters that are evaluated next
    foreseen: Array  # the predicted decrease of the cost at `trial`
    damping: Array
    growth: Array
    settled: Array
    steps: Array


@eqx.filter_jit
def fit(
    residual: Callable[[Array], Array],
    start: Float[Array, " p"],
    tolerance: Array,
    most: Array,
    enough: Array,
    share: Array,
) -> Fit:
    """The parameters near `start` that minimise the sum of squares of `residual`, in at most `most` steps; the fit ends
    early if no entry of the residual exceeds `enough`.

    `share` is the least column norm used for damping, relative to the largest. Near 0, parameters of little effect move
    freely, which suits estimation; with 1 all parameters are damped alike, and of many solutions a near one is found.
    """
    evaluate = jax.jacfwd(lambda vector: (residual(vector),) * 2, has_aux=True)

    def going(state: _State) -> Array:
        return ~state.settled & (state.steps <= most)

    def step(state: _State) -> _State:
        # The start is the first trial, so that the runs are compiled only once.
        jacobian, trial = evaluate(state.trial)
        cost = jnp.sum(jnp.square(trial))
        # A cost of NaN fails this comparison, so that a failed run is rejected.
        better = (cost < state.cost) & jnp.all(jnp.isfinite(jacobian))
        first = state.steps == 0
        ratio = jnp.where(first, 0.5, (state.cost - cost) / jnp.where(state.foreseen > 0, state.foreseen, 1))
        eased = jnp.maximum(state.damping * jnp.clip(1 - (2 * ratio - 1) ** 3, 1 / 3, 2.0), least)
        vector, kept, jacobian, cost, damping, growth = jax.tree.map(
            lambda new, old: jnp.where(better, new, old),
            (state.trial, trial, jacobian, cost, eased, number(2.0)),
            (state.vector, state.residual, state.jacobian, state.cost, state.damping * state.growth, 2 * state.growth),
        )
        move, foreseen = _damped(kept, jacobian, damping, share)
        small = jnp.max(jnp.abs(move)) <= tolerance * (jnp.max(jnp.abs(vector)) + tolerance)
        settled = small | (foreseen <= tolerance * cost) | (jnp.max(jnp.abs(kept)) <= enough) | ~jnp.isfinite(cost)
        return _State(vector, kept, jacobian, cost, vector + move, foreseen, damping, growth, settled, state.steps + 1)

    number = lambda value: jnp.asarray(value, start.dtype)
    least = number(jnp.finfo(start.dtype).eps ** 2)
    shape = jax.eval_shape(residual, start)
    empty = jnp.zeros(shape.shape, start.dtype), jnp.zeros((*shape.shape, *start.shape), start.dtype)
    state = _State(start, *empty, number(jnp.inf), start, number(0.0), number(1e-3), number(2.0), jnp.asarray(False),
                   jnp.zeros((), int))  # fmt: skip
    end = jax.lax.while_loop(going, step, state)
    started = jnp.isfinite(end.cost)
    return Fit(end.vector, end.residual, end.jacobian, end.settled & started, end.steps - 1, started)


def _damped(residual: Array, jacobian: Array, damping: Array, share: Array) -> tuple[Array, Array]:
    """The step s that minimises |r + J s|^2 + damping |D s|^2, and the predicted decrease of the sum of squares."""
    lengths = jnp.linalg.norm(jacobian, axis=0)
    lengths = jnp.maximum(lengths, share * jnp.max(lengths))
    lengths = jnp.where(lengths > 0, lengths, 1)
    if jacobian.shape[0] < jacobian.shape[1]:
        # With more parameters than residuals, the dual (N, N) system gives the same step.
        scaled = jacobian / lengths[None, :]
        gram = matmul(scaled, scaled.T) + damping * jnp.eye(len(residual), dtype=residual.dtype)
        move = -matmul(scaled.T, jnp.linalg.solve(gram, residual)) / lengths
    else:
        # A QR factorisation of the stacked matrix is used, because normal equations would lose half the digits.
        q, r = jnp.linalg.qr(jnp.concatenate([jacobian, jnp.diag(jnp.sqrt(damping) * lengths)]))
        move = -jax.scipy.linalg.solve_triangular(r, matmul(q[: len(residual)].T, residual))
    along = matmul(jacobian, move)
    return move, -jnp.sum(along * (2 * residual + along))


def slope(fit: Fit) -> Float[Array, ""]:
    """The largest absolute cosine between the residual and a column of its Jacobian; 0 at a stationary point."""
    columns, length = jnp.linalg.norm(fit.jacobian, axis=0), jnp.linalg.norm(fit.residual)
    products = jnp.abs(matmul(fit.residual, fit.jacobian))
    cosines = jnp.where(columns * length > 0, products / jnp.where(columns * length > 0, columns * length, 1), 0)
    return jnp.max(cosines, initial=0.0)
