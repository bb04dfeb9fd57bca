"""`delay` finds the change of the parameters, of a given norm, that leaves tokens farthest apart at a given time.

**Algorithm.** The change c = r w / |w| has norm r for every w, so that the maximisation over w is unconstrained. BFGS
maximises the logarithm of the dispersion of the tokens at that time, with derivatives in forward mode. The first
attempt starts along the gradient at c = 0, the others in random directions, and the best is returned. **Reference.**
Nocedal, Wright, *Numerical optimization* (2006), Section 6.1; `scipy.optimize`. **Invariants.** The change always has
norm r; the reported dispersion is computed by a run with the change.
"""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import check_fits, check_integer, check_key, check_number, refusal
from .._base.random import draw_normal
from .._base.summary import short
from .._base.types import Tokens
from .._model.field import AbstractField, check_field
from ._parameters import Parameters, check_host, pick_parameters, read_start
from ._recover import Runs


# Relative difference from the largest dispersion below which an attempt counts as having found that maximum.
SAME = 1e-3


class Delay(eqx.Module):
    """A change of parameters that delays collapse, and the dispersion of the tokens with and without the change.

    **Attributes:**

    - `field`: The field with the change.
    - `names`, `changes`: The names of the parameters, and the change of each. All changes together have norm `norm`.
    - `dispersion`, `without`: The mean square distance of the tokens from their mean at the given time, with the change
        and for the original field.
    - `by_attempt`, `same`: (attempts,), the dispersion found by each attempt, and the number of attempts that found the
        largest.
    - `runs`: The number of simulated runs; the derivative with respect to one parameter counts as one run.
    """

    field: AbstractField = eqx.field(repr=False)
    names: tuple[str, ...]
    changes: tuple[Float[np.ndarray, "..."], ...]
    norm: float
    dispersion: float
    without: float
    by_attempt: Float[np.ndarray, " attempts"]
    same: int
    runs: int

    def summary(self) -> str:
        """A few lines with the dispersion and the change of each parameter."""
        times = f"{self.dispersion / self.without:.3g} times" if self.without > 0 else "from zero"
        lines = [f"dispersion {self.dispersion:.4g} in place of {self.without:.4g}, {times}, by a change of norm "
                 f"{self.norm:g}"]  # fmt: skip
        lines += [
            f"  {name}: {float(change):.4g}" if np.ndim(change) == 0 else f"  {name}: norm {np.linalg.norm(change):.4g}"
            for name, change in zip(self.names, self.changes, strict=True)
        ]
        return "\n".join([*lines, f"  the same by {self.same} of {len(self.by_attempt)} attempts, {self.runs} runs"])

    __repr__ = short


class _Apart(eqx.Module):
    """The logarithm of the dispersion at the end, as a function of the parameters."""

    field: AbstractField
    parameters: Parameters
    runs: Runs
    x0: Tokens
    ts: Float[Array, " 2"]

    @eqx.filter_jit
    def value(self, vector: Array) -> Float[Array, ""]:
        field = self.parameters.with_vector(self.field, vector)
        return log_dispersion(self.field.space.retract(self.runs(field, self.x0, self.ts).xs[-1]))

    @eqx.filter_jit
    def slope(self, vector: Array) -> tuple[Float[Array, ""], Float[Array, " p"]]:
        """The value and its gradient."""
        value = lambda vector: (self.value(vector),) * 2
        slope, result = jax.jacfwd(value, has_aux=True)(vector)
        return result, slope


def log_dispersion(x: Tokens) -> Float[Array, ""]:
    """The logarithm of the mean square distance of the tokens from their mean."""
    return jnp.log(jnp.mean(jnp.sum(jnp.square(x - jnp.mean(x, axis=0, keepdims=True)), axis=1)))


def delay(
    field: AbstractField,
    x0: Tokens,
    *,
    until: float | int,
    norm: float | int,
    key: PRNGKeyArray,
    which: Callable[[Any], Any] | None = None,
    attempts: int = 5,
    most: int = 50,
    max_steps: int = 4096,
) -> Delay:
    r"""The change of parameters, of a given norm, that leaves tokens farthest apart at a given time.

    The result tells how much a small change, of V for instance, can delay collapse. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x0 = cjx.Sphere().sample(jax.random.key(0), n=8, d=3)
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(1.0), jnp.eye(3))
        >>> options = {"until": 5.0, "norm": 0.5, "which": lambda f: f.value, "key": jax.random.key(1)}
        >>> found = cjx.design.delay(field, x0, **options)
        >>> found.dispersion > 2 * found.without, found.changes[0].shape
        (True, (3, 3))
        ```

    **Arguments:**

    - `field`: The field whose parameters are changed.
    - `x0`: Tokens at time 0, (n, d).

    **Other arguments:**

    - `until`: The time at which the dispersion is maximised.
    - `norm`: The Euclidean norm of the change of all picked parameters together (for one matrix, the Frobenius norm).
    - `key`: PRNG key for the initial directions of the attempts; the first attempt starts along the gradient.
    - `which`: A function of the field that returns the array, or the tuple of arrays, that may change; None frees all
        floating-point arrays.
    - `attempts`: The number of searches; the best result is returned.
    - `most`, `max_steps`: The maximal number of steps of a search, and of a run.

    **Returns:**

    A `Delay`.

    **Raises:**

    - `ValueError` if `until` or `norm` is not above zero, if all tokens are at one point, or if `which` picks no arrays
        of the field.
    - `RuntimeError` if the run without a change stops before `until`.
    """
    parameters = pick_parameters(check_field(field), which)
    check_host(field=field, x0=x0, until=until, norm=norm, key=key)
    x0 = read_start(field, x0)
    until = check_number(until, "until", above=0, remedy="pass a time above 0")
    norm = check_number(norm, "norm", above=0, remedy="pass how large the change is")
    check_fits(np.float64(until), "until", x0.dtype)
    check_fits(np.float64(norm), "norm", x0.dtype)
    attempts = check_integer(attempts, "attempts", remedy="pass how many searches to make")
    most = check_integer(most, "most", remedy="pass the most steps of a search")
    max_steps = check_integer(max_steps, "max_steps", remedy="pass the most steps of a run")
    # The computed dispersion of tokens at one point is rounding error.
    if not float(log_dispersion(x0)) > 2 * np.log(10 * jnp.finfo(x0.dtype).eps):
        raise refusal("x0", "be at several points", "they are at one", "pass tokens that are apart")
    tight = jnp.finfo(x0.dtype).bits == 64
    # The derivatives are those of the discretised run, which coarse tolerances would make noisy.
    controller = dfx.PIDController(rtol=1e-7 if tight else 1e-5, atol=1e-9 if tight else 1e-6)
    apart = _Apart(field, parameters, Runs(None, controller, None, max_steps), x0, jnp.asarray([0, until], x0.dtype))
    base = parameters.vector(parameters.values(field), x0.dtype)
    without = float(jnp.exp(apart.value(base)))
    if not np.isfinite(without):
        # Repeating the run with `throw=True` raises the reason for its failure.
        apart.runs(field, x0, apart.ts, throw=True)
    directions, dispersions, runs = [], [], 0
    for attempt in range(attempts):
        start = draw_normal(jr.fold_in(check_key(key), attempt), (len(base), 1), x0.dtype)[:, 0]
        if attempt == 0:
            gradient = apart.slope(base)[1]
            runs += 1 + len(base)
            start = jnp.where(jnp.linalg.norm(gradient) > 0, gradient, start)
        direction, count = _search(apart, base, np.asarray(start, float), norm, most)
        runs += count * (1 + len(base))
        directions.append(direction)
        dispersions.append(float(jnp.exp(apart.value(_changed(base, direction, norm)))))
    by_attempt = np.array(dispersions)
    best = int(np.argmax(np.where(np.isfinite(by_attempt), by_attempt, -np.inf)))
    vector = _changed(base, directions[best], norm)
    return Delay(
        parameters.with_vector(field, vector), parameters.names,
        tuple(np.asarray(part) for part in parameters.split(np.asarray(vector - base))), norm, float(by_attempt[best]),
        without, by_attempt, int(np.sum(by_attempt >= (1 - SAME) * by_attempt[best])), runs,
    )  # fmt: skip


def _changed(base: Array, direction: np.ndarray, norm: float) -> Array:
    """The parameters after a change of norm `norm` along `direction`."""
    return base + jnp.asarray(norm * direction / np.linalg.norm(direction), base.dtype)


def _search(made: _Apart, base: Array, start: np.ndarray, norm: float, most: int) -> tuple[np.ndarray, int]:
    """The best direction near `start`, and the number of evaluations of the value and its gradient."""
    from scipy.optimize import minimize  # imported only when needed

    start = start / np.linalg.norm(start)

    def fallen(w: np.ndarray) -> tuple[float, np.ndarray]:
        length = np.linalg.norm(w)
        value, slope = (np.asarray(part, float) for part in made.slope(_changed(base, w, norm)))
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            # The run failed: a huge objective makes the line search shorten its step.
            return 1e10, np.zeros_like(w)
        unit = w / length
        return -float(value), -norm * (slope - np.dot(slope, unit) * unit) / length

    minimum = minimize(fallen, start, jac=True, method="BFGS", options={"maxiter": most, "gtol": 1e-5})
    return (minimum.x if np.isfinite(minimum.fun) and minimum.fun < 1e10 else start), int(minimum.nfev)
