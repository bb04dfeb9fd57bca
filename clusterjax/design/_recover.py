r"""`recover` estimates the parameters of a run from its tokens at some times, and finds what the tokens leave open.

**Algorithm.** The Levenberg-Marquardt method minimises the difference between simulated and observed tokens. At the
minimum, forward derivatives of the runs give the Fisher information (`_identify.py`). **Reference.** Bard, *Nonlinear
parameter estimation* (1974). **Invariants.** A fit with fewer observations than parameters is refused; a fit that did
not settle is reported as such; a parameter that the observations do not determine has an infinite bound.
"""

from collections.abc import Callable, Sequence
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import call_traced, check_array, check_callable, check_integer, check_number, refusal
from .._custom_types import Numbers, RealScalarLike
from .._failure import why_stopped
from .._field import AbstractField
from .._field.base import check_field
from .._misc import is_concrete
from .._space import Sphere, check_directions
from .._summary import short
from ._identify import identify
from ._least_squares import Fit, Runs, fit, read_runs, slope
from ._parameters import Parameters, pick_parameters


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
        what = "a function of the parameters"
        check_callable(function, "function", what, takes=len(self.names))
        call = lambda *parts: call_traced(function, "function", what, *parts)
        point = jnp.concatenate([jnp.ravel(jnp.asarray(part)) for part in self.estimate])
        remedy = "return numbers in an array"
        of = lambda *parts: check_array(call(*parts), "what function returns", remedy=remedy)
        flat = lambda vector: jnp.ravel(of(*self.picked.split(vector)))
        return of(*map(jnp.asarray, self.estimate)), jax.jacfwd(flat)(point)

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
    fields = [check_field(each, "field" if len(fields) == 1 else f"field[{k}]") for k, each in enumerate(fields)]
    data = _read(fields[0], observed, ts, x0)
    runs = read_runs(solver, stepsize_controller, dt0, max_steps, data.x0.dtype)
    noise = (
        None if noise is None else check_number(noise, "noise", above=0, remedy="pass a standard deviation, or None")
    )
    tolerance = check_number(tolerance, "tolerance", above=0, remedy="pass a small number, such as 1e-10")
    most = check_integer(most, "most", remedy="pass the most steps of the fit")
    results = [_recover(each, data, pick_parameters(each, which), noise, runs, tolerance, most) for each in fields]
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
        one = lambda x0, seen: self.runs(field, x0, data.ts).xs[1:] - seen
        # A single run stays unbatched, because a batch takes as many steps as its slowest run.
        if data.x0.shape[0] == 1:
            return jnp.ravel(one(data.x0[0], data.observed[0]))
        return jnp.ravel(jax.vmap(one)(data.x0, data.observed))


def _read(field: AbstractField, observed: Any, ts: Any, x0: Any) -> _Data:
    """The checked observations, which must be concrete because the fit branches on them."""
    observed = check_array(observed, "observed", remedy="pass tokens at the times ts, (T, n, d)")
    ts = check_array(ts, "ts", shape=("times",), remedy="pass the times of the observations")
    if not is_concrete((field, observed, ts, x0)):
        raise refusal("observed", "not be traced", "it is", "call this host function outside of jax.jit")
    if observed.ndim not in (3, 4) or observed.shape[-3] != len(ts) or len(ts) < 2 or 0 in observed.shape:
        found = f"its shape is {observed.shape} and ts has {len(ts)} times"
        raise refusal("observed", "be (T, n, d) or (runs, T, n, d), with T the number of ts, two or more", found,
                      "pass the tokens at each time")  # fmt: skip
    observed = observed if observed.ndim == 4 else observed[None]
    start = observed[:, 0]
    if x0 is not None:
        start = check_array(x0, "x0", remedy="pass the tokens at ts[0], (n, d)").astype(observed.dtype)
        start = start if start.ndim == 3 else start[None]
        if start.shape != observed[:, 0].shape:
            raise refusal("x0", f"fit the observed tokens, {observed[:, 0].shape}", f"its shape is {start.shape}",
                          "pass one start for each run")  # fmt: skip
    for each in start:
        check_directions(field.space, each, "observed" if x0 is None else "x0")
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
    told = identify(jacobian if finite else np.zeros_like(jacobian), 1.0, parameters, leaves)
    # Only the identifiable directions reduce the degrees of freedom of the residual.
    free = max(count - len(told.bounds), 1)
    sigma = misfit / np.sqrt(free) if noise is None else noise
    if finite:
        told = identify(jacobian, sigma, parameters, leaves)
    converged, reason = _verdict(found, finite, noise, misfit, free)
    if not (bool(found.started) and finite):
        last = parameters.with_vector(field, found.vector)
        failures = (why_stopped(runs(last, x0, data.ts), (last, None)) for x0 in data.x0)
        reason = next((f"{reason.split(';')[0]}: {failure}" for failure in failures if failure), reason)
    residual = float(jnp.sqrt(jnp.mean(jnp.square(found.residual))))
    return Recovery(
        parameters.with_vector(field, found.vector), parameters.names, leaves, residual, sigma, *told, count,
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
