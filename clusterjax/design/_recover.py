r"""`recover` estimates the parameters of a run from its tokens at some times, and finds what the tokens leave open.

**Algorithm.** The Levenberg-Marquardt method minimises the difference between simulated and observed tokens. At the
minimum, forward derivatives of the runs give the Fisher information (`identify`). **Reference.** Bard, *Nonlinear
parameter estimation* (1974). **Invariants.** A fit with fewer observations than parameters is refused; a fit that did
not settle is reported as such; a parameter that the observations do not determine has an infinite bound.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import (
    call_traced,
    check_array,
    check_callable,
    check_instance,
    check_integer,
    check_number,
    refusal,
)
from .._base.numerics import matmul
from .._base.summary import short
from .._base.types import Numbers, RealScalarLike
from .._dynamics.failure import why_stopped
from .._dynamics.simulate import simulate
from .._model.field import AbstractField, check_field
from .._model.space import Sphere, check_directions
from ._parameters import Parameters, check_host, pick_parameters


# Identifiability of parameters: Fisher information, its null space in words, and the Cramer-Rao bound.
#
# **Algorithm.** With independent normal errors of standard deviation σ the information of parameters θ is
# $F = J^T J / σ²$, where J is the derivative of the observations. Each column is scaled by the root mean square of its
# leaf, so that the singular values are comparable. Singular values below `ROUNDING` √ε times the largest span the null
# space: no observation changes along its directions. Known symmetries are then tested for membership in the null space:
# a scaling of two leaves against each other, and a change of basis between two leaves. **Reference.** Rothenberg,
# *Identification in parametric models* (1971); Stoica and Marzetta, *Parameter estimation problems with singular
# information matrices* (2001), for the pseudo-inverse. **Invariants.** The null space and the identifiable directions
# together span all parameters; a named direction lies in the null space up to ten square roots of the machine epsilon.


# Threshold for a singular value relative to the largest, in square roots of the machine epsilon.
ROUNDING = 1.0
# The largest component of a named unit vector outside of the null space, in square roots of the machine epsilon.
OUTSIDE = 10.0


class Identified(NamedTuple):
    """The directions in parameter space that observations determine, and the directions that they do not determine."""

    fisher: np.ndarray  # (p, p)
    covariance: np.ndarray  # (p, p), the pseudo-inverse of `fisher`
    combinations: np.ndarray  # (r, p), orthonormal directions, the best determined first
    bounds: np.ndarray  # (r,), the least standard deviation of each combination
    null: np.ndarray  # (p - r, p), orthonormal
    words: tuple[str, ...]  # a description of the null space


def identify(jacobian: np.ndarray, noise: float, parameters: Parameters, leaves: tuple[np.ndarray, ...]) -> Identified:
    """The directions that residuals with derivative `jacobian`, (N, p), and standard deviation `noise` determine."""
    jacobian, point = np.asarray(jacobian, np.float64), np.concatenate([np.ravel(leaf) for leaf in leaves])
    sizes = np.repeat([_size(leaf) for leaf in leaves], parameters.sizes)
    # The triangular factor has the same singular values and right vectors, and avoids an (N, N) matrix.
    _, singular, rows = np.linalg.svd(np.linalg.qr(jacobian * sizes, mode="r"), full_matrices=True)
    singular = np.concatenate([singular, np.zeros(len(rows) - len(singular))])
    epsilon = np.finfo(np.asarray(leaves[0]).dtype).eps
    determined = singular > ROUNDING * math.sqrt(epsilon) * singular.max(initial=0.0)
    # Undoing the scaling of the columns makes the null vectors oblique, so they are orthonormalised.
    null = np.linalg.qr((rows[~determined] * sizes).T)[0].T if not determined.all() else np.zeros((0, len(point)))
    # The projection orthogonal to the null space, along which the observations give no bound.
    keep = np.eye(len(point)) - null.T @ null
    fisher = jacobian.T @ jacobian / noise**2 if noise > 0 else np.full((len(point),) * 2, np.inf)
    wide = keep @ (rows[determined] * sizes[None, :]).T / np.where(determined, singular, 1)[determined]
    spread = wide @ wide.T
    values, vectors = np.linalg.eigh(spread)
    last = len(point) - len(null)
    # eigh sorts in ascending order: the zeros of the null space come first, then the best determined combinations.
    values, vectors = values[len(point) - last :], vectors[:, len(point) - last :]
    bounds = noise * np.sqrt(np.maximum(values, 0.0))
    return Identified(
        fisher,
        noise**2 * spread,
        vectors.T,
        bounds,
        null,
        _words(null, point, parameters, OUTSIDE * math.sqrt(epsilon)),
    )


def _size(leaf: np.ndarray) -> float:
    size = float(np.sqrt(np.mean(np.square(leaf)))) if np.size(leaf) else 1.0
    return size if size > 0 else 1.0


def _words(null: np.ndarray, point: np.ndarray, parameters: Parameters, outside: float) -> tuple[str, ...]:
    """The null space in words: the symmetries that it contains, and the leaves that its other directions change."""
    words, spanned = [], np.zeros((0, len(point)))
    for says, directions in _symmetries(point, parameters):
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        directions = directions[lengths[:, 0] > 0] / lengths[lengths[:, 0] > 0]
        inside = (
            bool(len(directions)) and np.linalg.norm(directions - directions @ null.T @ null, axis=1).max() < outside
        )
        more = _basis(np.concatenate([spanned, directions]), outside) if inside else spanned
        if len(more) > len(spanned):
            words.append(f"{says} ({_dimensions(len(more) - len(spanned))})")
            spanned = more
    remaining = _basis(null - null @ spanned.T @ spanned, outside) if len(null) > len(spanned) else null[:0]
    if len(remaining):
        shares = [float(np.sum(np.square(part))) / len(remaining) for part in parameters.split(remaining)]
        named = ", ".join(n for n, share in zip(parameters.names, shares, strict=True) if share > outside)
        words.append(f"combinations of {named} that no observed token shows ({_dimensions(len(remaining))})")
    return tuple(words)


def _dimensions(count: int) -> str:
    return f"{count} dimension{'s' if count > 1 else ''}"


def _basis(rows: np.ndarray, outside: float) -> np.ndarray:
    """Orthonormal rows with the span of `rows`."""
    _, singular, basis = np.linalg.svd(rows, full_matrices=False)
    return basis[singular > outside]


def _symmetries(point: np.ndarray, parameters: Parameters) -> list[tuple[str, np.ndarray]]:
    """Candidate symmetries, each a description and its directions; the caller tests which ones hold for the field."""
    parts, names = parameters.split(point), parameters.names
    along = [np.concatenate([np.ravel(p if k == a else 0 * p) for k, p in enumerate(parts)]) for a in range(len(parts))]
    tries: list[tuple[str, np.ndarray]] = []
    for a, name in enumerate(names):
        tries.append((f"the scale of {name}", along[a][None, :]))
    pairs = [(a, b) for a in range(len(parts)) for b in range(a + 1, len(parts))]
    for a, b in pairs:
        # The stacked factors are (..., d, k) and (..., d, k), or (..., d, k) and (..., k, e), contracted over k.
        for turned in (False, True):
            directions = _changes(parts, a, b, turned)
            if directions is not None:
                says = f"the basis between {names[a]} and {names[b]}, rotations among its changes"
                tries.append((says, directions))
    # The relative scale of two factors is a change of basis, so it is tried after the changes of basis.
    for a, b in pairs:
        tries.append((f"the scale of {names[a]} against {names[b]}", (along[a] - along[b])[None, :]))
    return tries


def _changes(parts: tuple[Any, ...], a: int, b: int, turned: bool) -> np.ndarray | None:
    """The directions of A -> A (1 + E), B -> (1 - E) B for each elementary matrix E; B transposed unless `turned`."""
    left, right = parts[a], parts[b] if turned else np.swapaxes(parts[b], -1, -2) if np.ndim(parts[b]) > 1 else parts[b]
    if left.ndim not in (2, 3) or right.ndim != left.ndim or left.shape[-1] != right.shape[-2]:
        return None
    if left.shape[:-2] != right.shape[:-2]:
        return None
    k, rows = left.shape[-1], []
    for head in range(left.shape[0] if left.ndim == 3 else 1):
        for i in range(k):
            for j in range(k):
                unit = np.zeros((*left.shape[:-2], k, k))
                unit[(head, i, j) if left.ndim == 3 else (i, j)] = 1.0
                moved = -unit @ right
                changed = {a: left @ unit, b: moved if turned else np.swapaxes(moved, -1, -2)}
                rows.append(np.concatenate([np.ravel(changed.get(m, 0 * part)) for m, part in enumerate(parts)]))
    return np.stack(rows)


# Least squares through the integrator: the Levenberg-Marquardt method, and the runs that produce its residuals.
#
# **Algorithm.** Each step solves a damped linear least-squares problem with the Jacobian from forward mode. The damping
# of a parameter is proportional to the norm of its column, and is adapted to the ratio of the actual to the predicted
# decrease. `optimistix.LevenbergMarquardt` is not used, because a step whose run fails must be rejected and damped
# more.
# **Reference.** Marquardt, *An algorithm for least-squares estimation of nonlinear parameters* (1963); Nielsen,
# *Damping parameter in Marquardt's method* (1999).
# **Invariants.** The sum of squares never rises; a residual that is not finite, from a run that failed, is rejected;
# each structure of the residual is compiled once, whatever the values in it.


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
    """The checked options of the runs; tolerances are tight, because an estimate is only as accurate as its runs."""
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
    """The result of the Levenberg-Marquardt method."""

    vector: Float[Array, " p"]  # the final parameters
    residual: Float[Array, " N"]
    jacobian: Float[Array, "N p"]
    settled: Array  # the next step would be below the tolerance, or the residual is as small as requested
    steps: Array  # including rejected steps
    started: Array  # the residual was finite at the start


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
        vector, error, jacobian, cost, damping, growth = jax.tree.map(
            lambda new, old: jnp.where(better, new, old),
            (state.trial, trial, jacobian, cost, eased, number(2.0)),
            (state.vector, state.residual, state.jacobian, state.cost, state.damping * state.growth, 2 * state.growth),
        )
        move, foreseen = _damped(error, jacobian, damping, share)
        small = jnp.max(jnp.abs(move)) <= tolerance * (jnp.max(jnp.abs(vector)) + tolerance)
        settled = small | (foreseen <= tolerance * cost) | (jnp.max(jnp.abs(error)) <= enough) | ~jnp.isfinite(cost)
        return _State(vector, error, jacobian, cost, vector + move, foreseen, damping, growth, settled, state.steps + 1)

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


# A fit whose residual makes at most this cosine with every column of its Jacobian is at a stationary point.
STATIONARY = 1e-5


class Recovery(eqx.Module):
    """The parameters that explain observed tokens best, and how well the observations determine the parameters.

    **Attributes:**

    - `field`: The field with the estimated parameters.
    - `names`: The names of the parameters.
    - `estimate`: The parameters, an array for each name.
    - `residual`: The root mean square of simulated minus observed coordinates.
    - `noise`: The standard deviation of the observations, as passed or as estimated from the residual.
    - `fisher`: (p, p), the Fisher information.
    - `covariance`: (p, p), the pseudo-inverse of `fisher`: the Cramer-Rao bound for the identifiable part.
    - `combinations`, `combination_bounds`: (r, p) and (r,), orthonormal combinations of parameters that the
        observations determine, the best first, and the least standard deviation of an unbiased estimate of each
        combination.
    - `null`, `unidentified`: (p - r, p), orthonormal directions that the observations do not determine, and their
        description in words.
    - `observations`, `parameters`: The number of independent observed numbers, and of fitted numbers.
    - `converged`, `reason`: True if the fit is at a minimum of the sum of squares, and the explanation.
    - `steps`: The number of steps of the fit.
    - `candidates`: (m,), the residual of each field that was passed; this result has the least.
    """

    field: AbstractField = eqx.field(repr=False)
    names: tuple[str, ...]
    estimate: tuple[Float[np.ndarray, "..."], ...]
    residual: float
    noise: float
    fisher: Float[np.ndarray, "p p"]
    covariance: Float[np.ndarray, "p p"]
    combinations: Float[np.ndarray, "r p"]
    combination_bounds: Float[np.ndarray, " r"]
    null: Float[np.ndarray, "q p"]
    unidentified: tuple[str, ...]
    observations: int
    parameters: int
    converged: bool
    reason: str
    steps: int
    candidates: Float[np.ndarray, " m"]
    picked: Parameters = eqx.field(repr=False)

    @property
    def bounds(self) -> tuple[Float[np.ndarray, "..."], ...]:
        """The least standard deviation of an unbiased estimate of each parameter; infinite where none exists."""
        return self.picked.split(self._spread(np.eye(self.parameters)))

    def bound_of(self, function: Callable[..., Any]) -> Float[np.ndarray, "..."]:
        """The Cramer-Rao bound of a function of the parameters, such as `lambda beta, form: beta * form`.

        **Arguments:**

        - `function`: A differentiable function that takes one array for each name.

        **Returns:**

        For each number that `function` returns, the least standard deviation of an unbiased estimate; infinite where
        the number changes along a direction that the observations do not determine.

        **Raises:**

        - `ValueError` if `function` takes another number of arrays, or returns no finite numbers.
        """
        value, jacobian = self._derivative(function)
        return self._spread(np.asarray(jacobian, np.float64)).reshape(np.shape(value))

    def _derivative(self, function: Callable[..., Any]) -> tuple[Any, Any]:
        signature = "a function of the parameters"
        check_callable(function, "function", signature, takes=len(self.names))
        call = lambda *parts: call_traced(function, "function", signature, *parts)
        point = jnp.concatenate([jnp.ravel(jnp.asarray(part)) for part in self.estimate])
        remedy = "return numbers in an array"
        value_of = lambda *parts: check_array(call(*parts), "what function returns", remedy=remedy)
        flat = lambda vector: jnp.ravel(value_of(*self.picked.split(vector)))
        return value_of(*map(jnp.asarray, self.estimate)), jax.jacfwd(flat)(point)

    def _spread(self, rows: np.ndarray) -> np.ndarray:
        """The standard deviation of each row of `rows`, (k, p), as a combination of parameters."""
        lengths = np.linalg.norm(rows, axis=1)
        lost = np.linalg.norm(rows @ self.null.T, axis=1) > 1e-6 * lengths
        return np.where(lost, np.inf, np.sqrt(np.einsum("kp,pq,kq->k", rows, self.covariance, rows)))

    def summary(self) -> str:
        """A few lines with the estimate and its bounds, the undetermined directions, and the outcome of the fit."""
        said = "converged" if self.converged else "NOT converged"
        lines = [f"{self.parameters} parameters from {self.observations} observations, {said}: {self.reason}"]
        lines += [f"  not determined: {words}" for words in self.unidentified]
        lines += [
            f"  {name}: {value:.6g} (bound {bound:.2g})" if np.ndim(value) == 0 else
            f"  {name}: {np.shape(value)}, bounds from {bound.min():.2g} to {bound.max():.2g}"
            for name, value, bound in zip(self.names, self.estimate, self.bounds, strict=True)
        ]  # fmt: skip
        shown = ("residual", "noise", "steps") + (("candidates",) if len(self.candidates) > 1 else ())
        return "\n".join([*lines, *(f"  {name}: {_numbers(getattr(self, name))}" for name in shown)])

    __repr__ = short


def _numbers(value: Any) -> str:
    return ", ".join(f"{number:.4g}" for number in np.ravel(value))


def recover(
    field: AbstractField | Sequence[AbstractField],
    observed: Numbers,
    ts: Numbers,
    *,
    which: Callable[[Any], Any] | None = None,
    noise: float | int | None = None,
    x0: Numbers | None = None,
    solver: dfx.AbstractSolver | None = None,
    stepsize_controller: dfx.AbstractStepSizeController | None = None,
    dt0: RealScalarLike | None = None,
    max_steps: int = 4096,
    tolerance: float = 1e-10,
    most: int = 200,
) -> Recovery:
    r"""The parameters of a field whose run is nearest to observed tokens, in the sense of least squares.

    Without noise the parameters are recovered up to rounding error and up to directions that the tokens do not
    determine. The null space of the Fisher information gives these directions, which are also described in words. With
    independent normal errors the estimate is the maximum-likelihood estimate, and its errors over many draws are near
    the Cramer-Rao bound. The Levenberg-Marquardt method finds a minimum near the first guess, `field`. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x0, ts = cjx.Sphere().sample(jax.random.key(0), n=8, d=2), jnp.linspace(0.0, 2.0, 5)
        >>> observed = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(3.0)), x0, ts).xs
        >>> guess = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
        >>> found = cjx.design.recover(guess, observed, ts, which=lambda f: f.attention.beta)
        >>> round(float(found.estimate[0]), 2), found.unidentified
        (3.0, ())
        ```

    **Arguments:**

    - `field`: The field with a first guess of its parameters. The fields in a list may differ in settings that are no
        numbers, such as the width of a `WindowMask`: each field is fitted, and the fit of least residual is returned.
    - `observed`: Tokens at `ts`, (T, n, d), or for several runs, (runs, T, n, d). The tokens need not lie on the space.
    - `ts`: (T,), strictly increasing times; `ts[0]` is the start.

    **Other arguments:**

    - `which`: A function of the field that returns the free array, or a tuple of free arrays, such as
        `lambda f: (f.attention.beta, f.value)`; None frees all floating-point arrays.
    - `noise`: The standard deviation of each observed coordinate; None estimates it from the residual.
    - `x0`: The exact tokens at `ts[0]`, (n, d) or (runs, n, d). None takes the first observed tokens as exact, and
        their errors then bias the estimate.
    - `solver`, `stepsize_controller`, `dt0`, `max_steps`: As in `simulate`; the default tolerances are tighter, 1e-8
        relative and 1e-10 absolute in float64.
    - `tolerance`: The fit ends when a step changes the parameters and the residuals by less, relatively.
    - `most`: The maximal number of steps of the fit.

    **Returns:**

    A `Recovery`.

    **Raises:**

    - `ValueError` if there are fewer observations than parameters, if `which` picks no arrays of the field, or if
        tokens, times and field do not fit together.

    ??? cite "Source"

        Rothenberg, *Identification in parametric models* (1971). Own synthesis.
    """
    fields = list(field) if isinstance(field, list | tuple) else [field]
    if not fields:
        raise refusal("field", "be a field or several", "it is an empty list", "pass a first guess")
    fields = [check_field(guess, "field" if len(fields) == 1 else f"field[{k}]") for k, guess in enumerate(fields)]
    check_host(field=fields, observed=observed, ts=ts, x0=x0)
    data = _read(fields[0], observed, ts, x0)
    runs = read_runs(solver, stepsize_controller, dt0, max_steps, data.x0.dtype)
    if noise is not None:
        # The square of a number near the largest float is infinite.
        noise = check_number(noise, "noise", above=0, most=1e150, remedy="pass a standard deviation, or None")
    tolerance = check_number(tolerance, "tolerance", above=0, remedy="pass a small number, such as 1e-10")
    most = check_integer(most, "most", remedy="pass the most steps of the fit")
    results = [_recover(guess, data, pick_parameters(guess, which), noise, runs, tolerance, most) for guess in fields]
    residuals = np.array([result.residual for result in results])
    best = results[int(np.argmin(np.where(np.isfinite(residuals), residuals, np.inf)))]
    return eqx.tree_at(lambda result: result.candidates, best, residuals)


class _Data(eqx.Module):
    """The observations of runs whose starts are known."""

    x0: Float[Array, "runs n d"]
    ts: Float[Array, " times"]
    observed: Float[Array, "runs later n d"]


class _Residual(eqx.Module):
    """Simulated minus observed tokens, as one vector."""

    field: AbstractField
    parameters: Parameters
    data: _Data
    runs: Runs

    def __call__(self, vector: Array) -> Float[Array, " N"]:
        field, data = self.parameters.with_vector(self.field, vector), self.data
        misfit = lambda x0, observed: self.runs(field, x0, data.ts).xs[1:] - observed
        # A single run stays unbatched, because a batch takes as many steps as its slowest run.
        if data.x0.shape[0] == 1:
            return jnp.ravel(misfit(data.x0[0], data.observed[0]))
        return jnp.ravel(jax.vmap(misfit)(data.x0, data.observed))


def _read(field: AbstractField, observed: Any, ts: Any, x0: Any) -> _Data:
    """The checked observations."""
    observed = check_array(observed, "observed", remedy="pass tokens at the times ts, (T, n, d)")
    ts = check_array(ts, "ts", shape=("times",), remedy="pass the times of the observations")
    if observed.ndim not in (3, 4) or observed.shape[-3] != len(ts) or len(ts) < 2 or 0 in observed.shape:
        problem = f"its shape is {observed.shape} and ts has {len(ts)} times"
        raise refusal("observed", "be (T, n, d) or (runs, T, n, d), with T the number of ts, two or more", problem,
                      "pass the tokens at each time")  # fmt: skip
    observed = observed if observed.ndim == 4 else observed[None]
    start = observed[:, 0]
    if x0 is not None:
        start = check_array(x0, "x0", remedy="pass the tokens at ts[0], (n, d)").astype(observed.dtype)
        start = start if start.ndim == 3 else start[None]
        if start.shape != observed[:, 0].shape:
            raise refusal("x0", f"fit the observed tokens, {observed[:, 0].shape}", f"its shape is {start.shape}",
                          "pass one start for each run")  # fmt: skip
    for points in start:
        check_directions(field.space, points, "observed" if x0 is None else "x0")
    return _Data(start, ts.astype(observed.dtype), observed[:, 1:])


def _recover(field, data, parameters, noise, runs, tolerance, most) -> Recovery:
    field.check(*data.x0.shape[1:])
    runs_of, later, n, d = data.observed.shape
    # On the sphere the norm of a token is fixed, and carries no information.
    count = runs_of * later * n * (d - 1 if isinstance(field.space, Sphere) else d)
    if count < parameters.count:
        found = f"it holds {count} after the start, and {', '.join(parameters.names)} are {parameters.count}"
        raise refusal("observed", "hold at least as many independent numbers as there are parameters", found,
                      "observe more times, or pick fewer parameters by which")  # fmt: skip
    residual = _Residual(field, parameters, data, runs)
    start = parameters.vector(parameters.values(field), data.x0.dtype)
    number = lambda value: jnp.asarray(value, start.dtype)
    found = fit(residual, start, number(tolerance), jnp.asarray(most), number(0.0), number(1e-3))
    return _result(found, field, parameters, noise, count, data, runs)


def _result(found: Fit, field, parameters: Parameters, noise, count: int, data: _Data, runs: Runs) -> Recovery:
    leaves = tuple(np.asarray(part) for part in parameters.split(np.asarray(found.vector)))
    jacobian, misfit = np.asarray(found.jacobian), _misfit(found, field, data)
    finite = bool(np.isfinite(jacobian).all() and np.isfinite(misfit))
    identified = identify(jacobian if finite else np.zeros_like(jacobian), 1.0, parameters, leaves)
    # Only the identifiable directions reduce the degrees of freedom of the residual.
    free = max(count - len(identified.bounds), 1)
    sigma = misfit / np.sqrt(free) if noise is None else noise
    if finite:
        identified = identify(jacobian, sigma, parameters, leaves)
    converged, reason = _verdict(found, finite, noise, misfit, free)
    if not (bool(found.started) and finite):
        last = parameters.with_vector(field, found.vector)
        failures = (why_stopped(runs(last, x0, data.ts), (last, None)) for x0 in data.x0)
        reason = next((f"{reason.split(';')[0]}: {failure}" for failure in failures if failure), reason)
    residual = float(jnp.sqrt(jnp.mean(jnp.square(found.residual))))
    return Recovery(
        parameters.with_vector(field, found.vector), parameters.names, leaves, residual, sigma, *identified, count,
        parameters.count, converged, reason, int(found.steps), np.array([residual]), parameters,
    )  # fmt: skip


def _misfit(found: Fit, field: AbstractField, data: _Data) -> float:
    """The norm of the residual; on the sphere only its tangent part counts, because the norm of a token is fixed."""
    residual = found.residual.reshape(data.observed.shape)
    return float(jnp.linalg.norm(field.space.tangent(data.observed + residual, residual)))


def _verdict(found: Fit, finite: bool, noise: float | None, misfit: float, free: int) -> tuple[bool, str]:
    """True if the fit is at a minimum, and the explanation."""
    if not bool(found.started):
        return False, "the run of the first guess failed; pass one whose parameters are smaller, or more max_steps"
    if not finite:
        return False, "the run at the last parameters failed; pass another first guess, or more max_steps"
    stationary = float(slope(found))
    if not bool(found.settled) and stationary > STATIONARY:
        return False, f"steps had not become small after {int(found.steps)} of them; raise most"
    how = f"a minimum after {int(found.steps)} steps"
    if noise is None:
        return True, how
    # The sum of squares over the variance is chi-squared distributed, with mean `free` and variance 2 `free`.
    excess = (misfit / noise) ** 2 / free
    if excess > 1 + 5 * np.sqrt(2 / free):
        times = f"{how}, whose residual is {np.sqrt(excess):.3g} times what the noise explains"
        return True, f"{times}: it may be a local minimum, or the model may be wrong; try another first guess"
    return True, f"{how}, with a residual that the noise explains"
