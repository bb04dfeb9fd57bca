"""The time in which equiangular tokens change their mutual cosine, and the inverse function in beta.

**Algorithm.** Separation of variables gives the time as an integral (Geshkovski et al., 2312.10794, eq. (6.9)). The
integral is split into parts without cancellation, and the exponential is factored out. Composite Gauss-Legendre
quadrature integrates each part over the interval where the integrand is not negligible. The inverse function is found
by bisection and one Newton step.

**Invariants.** Every part of the integrand is positive; the logarithm of the time is finite for every finite beta; the
Newton step has the derivative of the inverse function.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Real

from .._base.checks import check_array, check_flag, check_host_array, check_integer, check_number, check_scalar, refusal
from .._base.numerics import as_float, is_concrete
from .._model.mask import AbstractMask, FullMask, check_mask


# Gauss-Legendre quadrature has 16 nodes on each of `_PIECES` equal pieces of [0, 1], where each integrand is smooth.
_PIECES = 16
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_POINTS = ((np.arange(_PIECES)[:, None] + (_NODES + 1) / 2) / _PIECES).ravel()
_MASSES = np.tile(_WEIGHTS / (2 * _PIECES), _PIECES)
_FAR = 60.0  # values below e^-60 of the largest are neglected
_HALVINGS = 80


def equiangular_time(
    gamma: Real[ArrayLike, "..."],
    beta: Real[ArrayLike, "..."],
    n: int,
    gamma0: Real[ArrayLike, "..."] = 0.0,
    *,
    unnormalised: bool = False,
    log: bool = False,
) -> Float[Array, "..."]:
    """The exact time at which n tokens, with all cosines $γ_0$ at first and V = Q = K = I, have cosines γ.

    Tokens stay equiangular, so that $γ' = 2(1-γ)((n-1)γ+1) / (exp(β(1-γ)) + n-1)$ for softmax attention and
    $2/n e^{βγ} (1-γ)((n-1)γ+1)$ for unnormalised attention. For d → ∞ random tokens start orthogonal, and γ = 0.999
    gives the transition curve of their phase diagram: the time $½ log(((n-1)γ+1)/(1-γ))$ at β = 0, and $e^β/(2β)$ at
    large β with softmax attention. The exponential is factored out, so that the logarithm is finite for every β.
    Differentiable.

    **Arguments:**

    - `gamma`: The final cosine, from `gamma0` to below 1; the shapes of `gamma`, `beta` and `gamma0` broadcast.
    - `beta`: Inverse temperature, not negative.
    - `n`: The number of tokens, at least 2.
    - `gamma0`: The initial cosine, above -1 / (n - 1).
    - `unnormalised`: True for unnormalised attention.
    - `log`: True to return the logarithm of the time: for softmax attention the time overflows beyond β = 710 in double
        precision, and beyond 88 in single precision.

    **Returns:**

    The time, of the broadcast shape of the arguments; zero (or minus infinity) at `gamma0`.

    **Raises:**

    - `ValueError` for fewer than two tokens, and for a concrete cosine or beta out of range.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Theorem 6.9 and eq. (6.9), which
        is integrated here.
    """
    n = _check_tokens(n)
    unnormalised, log = check_flag(unnormalised, "unnormalised"), check_flag(log, "log")
    gamma, beta, gamma0 = _broadcast(gamma=gamma, beta=beta, gamma0=gamma0)
    lowest = f"above -1 / (n - 1) = {-1 / (n - 1):.3g} and below 1"
    _check_range(gamma0, "gamma0", (gamma0 > -1 / (n - 1)) & (gamma0 < 1), lowest)
    _check_range(gamma, "gamma", (gamma >= gamma0) & (gamma < 1), "from gamma0 up to below 1")
    _check_range(beta, "beta", (beta >= 0) & (beta < jnp.inf), "not negative, and finite")
    # The function takes 1 - gamma, whose digits near gamma = 1 would otherwise be lost.
    log_time = _log_time(1 - gamma, 1 - gamma0, beta, n, unnormalised)
    return log_time if log else jnp.exp(log_time)


def equiangular_beta(
    t: Real[ArrayLike, "..."], n: int, delta: float = 1e-3, *, unnormalised: bool = False
) -> Float[Array, "..."]:
    """The inverse temperature at which n initially orthogonal tokens have all cosines 1 - δ at time t.

    **Arguments:**

    - `t`: Times, positive.
    - `n`: The number of tokens, at least 2.
    - `delta`: The distance of the cosines from 1, in (0, 1).
    - `unnormalised`: True for unnormalised attention, which is faster for larger β.

    **Returns:**

    An array of the shape of `t`, differentiable; NaN where no β ≥ 0 exists: for times before the time of β = 0 with
    softmax attention, and after it with unnormalised attention.

    **Raises:**

    - `ValueError` for fewer than two tokens, times that are not positive, or `delta` outside (0, 1).

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 6.2: the curve $Γ_{∞,δ}$.
    """
    n, unnormalised = _check_tokens(n), check_flag(unnormalised, "unnormalised")
    delta = check_number(delta, "delta", above=0, below=1, remedy="pass 1e-3, say")
    (t,) = _broadcast(t=t)
    _check_range(t, "t", (t > 0) & (t < jnp.inf), "positive, and finite")
    return _beta(t, jnp.asarray(delta, t.dtype), n, unnormalised)


@partial(jax.jit, static_argnames=("n", "unnormalised"))
def _beta(t: Float[Array, "..."], delta: Float[Array, ""], n: int, unnormalised: bool) -> Float[Array, "..."]:
    ones, target = jnp.ones_like(t), jnp.log(t)
    # The time increases with beta for softmax attention and decreases for unnormalised; `sign` makes it increasing.
    sign = -1 if unnormalised else 1
    gap = lambda beta: sign * (_log_time(jnp.broadcast_to(delta, t.shape), ones, beta, n, unnormalised) - target)
    # `high` bounds beta from above, because t >= e^beta / (2 n beta) for softmax, or t <= n / beta for unnormalised.
    high = 50 + 2 * n / t if unnormalised else 1 + 2 * jnp.maximum(target + math.log(2 * n), 0)

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        late = gap(middle) > 0
        return jnp.where(late, low, middle), jnp.where(late, middle, high)

    low, high = jax.lax.fori_loop(0, _HALVINGS, halve, jax.lax.stop_gradient((0 * ones, high)))
    beta = (low + high) / 2
    # Bisection has no derivative. The Newton step has the derivatives of the inverse function with respect to t and
    # delta, if the derivative of `gap` with respect to beta is not differentiated.
    late, derivative = jax.jvp(gap, (beta,), (ones,))
    beta = beta - late / jax.lax.stop_gradient(derivative)
    # If the time at beta = 0 is too late already, by more than rounding, no beta satisfies the equation.
    return jnp.where(gap(0 * ones) <= 16 * jnp.finfo(t.dtype).eps, beta, jnp.nan)


@partial(jax.jit, static_argnames=("n", "unnormalised"))
def _log_time(
    u: Float[Array, "..."], u0: Float[Array, "..."], beta: Float[Array, "..."], n: int, unnormalised: bool
) -> Float[Array, "..."]:
    """The logarithm of the time from $1 - γ = u_0$ to u.

    For softmax attention the time is $1/(2n) ∫_u^{u_0} (e^{βs} + n - 1)(1/s + 1/(1 + 1/(n-1) - s)) ds$ with s = 1 - γ:
    every part of it is positive, so that nothing cancels.
    """
    # u = 1 - gamma and v = gamma + a are the two factors of the flow that may vanish.
    a = 1 / (n - 1)
    v, v0 = 1 + a - u, 1 + a - u0
    # Quadrature nodes lie along a new first axis, and broadcast against arguments of any shape.
    nodes = lambda values: jnp.asarray(values, u.dtype).reshape((-1, *(1,) * u.ndim))
    points, masses = nodes(_POINTS), nodes(_MASSES)
    expand = lambda value: value[None]
    # The interval on which e^{beta s} is above e^-60 of its largest value.
    near = _FAR / jnp.maximum(beta, 1e-30)
    # `first` is e^{-beta u0} times the integral of (e^{beta s} - 1) / s, over s, from u0 downwards.
    length = jnp.minimum(u0 - u, near)
    s = expand(u0) - expand(length) * points
    rate = expand(beta)
    first = length * jnp.sum(jnp.exp(-rate * (expand(u0) - s)) * -jnp.expm1(-rate * s) / s * masses, axis=0)
    # `second` is the integral with e^{beta s} / (1 + a - s), over the logarithm of v, from v0 upwards.
    length = jnp.log1p(jnp.minimum(u0 - u, near) / v0)
    rise = jnp.expm1(expand(length) * points)
    second = length * jnp.sum(jnp.exp(-expand(beta * v0) * rise) * masses, axis=0)
    logs, log_integrals = jnp.log(u0 / u), beta * u0 + jnp.log(first + second)
    if unnormalised:
        return jnp.logaddexp(jnp.log(logs) - beta, log_integrals - beta) - math.log(2)
    # The parts without exponential: (n - 1) (1/s + 1/v) in closed form, and the 1/s that was subtracted in `first`.
    plain = (n - 1) * jnp.log(v * u0 / (v0 * u)) + logs
    return jnp.logaddexp(jnp.log(plain), log_integrals) - math.log(2 * n)


def _broadcast(**named: Any) -> tuple[Array, ...]:
    """Arrays of one shape and one floating dtype, the dtype of those arguments that are arrays already."""
    values = [check_array(value, name, finite=False) for name, value in named.items()]
    for name, value in named.items():
        if isinstance(value, bool | np.bool_):
            check_scalar(value, name)
    dtypes = [value.dtype for value, argument in zip(values, named.values(), strict=True) if hasattr(argument, "dtype")]
    dtype = jnp.result_type(*dtypes) if dtypes else jnp.result_type(float)
    # Python numbers take the dtype of the arrays, or the default float if there are no arrays.
    values = [as_float(value, dtype) for value in values]
    try:
        return tuple(jnp.broadcast_arrays(*values))
    except ValueError:
        shapes = " and ".join(str(value.shape) for value in values)
        raise ValueError(
            f"{', '.join(named)} must have shapes that broadcast, but they are {shapes}; pass numbers, or equal shapes."
        ) from None


def _check_tokens(n: int) -> int:
    return check_integer(n, "n", least=2, remedy="pass the number of tokens, such as 32")


def _check_range(value: Array, name: str, allowed: Array, words: str) -> None:
    if is_concrete(allowed) and not bool(np.all(np.asarray(allowed))):
        wrong = np.asarray(value)[~np.asarray(allowed)].ravel()[0]
        raise ValueError(f"{name} must be {words}, but it is {wrong:.6g}; pass one in that range.")


# The cosines of initially orthogonal tokens under any mask, and the times at which given shares of pairs are close.
#
# Random tokens are orthogonal for d → ∞. With V = Q = K = I their matrix of cosines obeys a closed equation without d.
# With a full mask all cosines equal the cosine of `equiangular_time`; with a causal mask each pair comes together at a
# separate time.
#
# **Algorithm.** $Ġ = AG + (AG)^T - (r_i + r_j) G_{ij}$, with A the matrix of weights and $r_i = (AG)_{ii}$, is
# integrated by LSODA (Petzold, 1983); bisection within a step finds the times at which shares are reached.
# **Invariants.** G is symmetric with ones on its diagonal; the first tokens of a causal run are independent of the
# number of later tokens.


_RELATIVE, _ABSOLUTE = 1e-9, 1e-11
# Beyond these bounds LSODA is too slow: the number of steps grows as e^beta.
MOST_BETA, MOST_TOKENS, _MOST_STEPS = 12.0, 64, 100_000
_ORTHOGONAL_HALVINGS = 50
# The last time: beyond it, powers of the time overflow in the interpolant of LSODA, and the cosines would be NaN.
_LATEST = 1e20
_Rate = Callable[[float, np.ndarray], np.ndarray]


def orthogonal_cosines(
    ts: Real[ArrayLike, " times"],
    beta: float | int,
    n: int,
    *,
    mask: AbstractMask = FullMask(),
    unnormalised: bool = False,
) -> Float[np.ndarray, "times n n"]:
    """The cosines at each time of n initially orthogonal tokens, with V = Q = K = I; exact.

    Random tokens are orthogonal for d → ∞. Their cosines $G_{ij}$ obey a closed equation with the weights $A_{ij}$ of
    softmax or unnormalised attention: $Ġ_{ij} = (AG)_{ij} + (AG)_{ji} - (r_i + r_j) G_{ij}$, $r_i = (AG)_{ii}$. With a
    full mask all cosines equal the cosine of `equiangular_time`. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx, numpy as np
        >>> c = cjx.orthogonal_cosines(np.array([0.0, 5.0]), 1.0, 4, mask=cjx.CausalMask())
        >>> bool(c[1, 0, 1] < c[1, 2, 3])  # the last tokens, which see more, are together before the first ones are
        True
        ```

    **Arguments:**

    - `ts`: Times (times,), not negative, increasing and at most 1e20.
    - `beta`: Inverse temperature, from 0 to 12; for larger beta, follow `jax.numpy.eye(n)` with `coarsen`.
    - `n`: The number of tokens, from 2 to 64.
    - `mask`: The mask.
    - `unnormalised`: True for unnormalised attention.

    **Returns:**

    An array (times, n, n), accurate to about 1e-7.

    **Raises:**

    - `ValueError` if an argument is out of its range.
    - `RuntimeError` if more than 100,000 steps are needed.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 6, for a full mask; this
        library derives the equation for any mask.
    """
    remedy = "pass numpy.linspace(0, 30, 61), say"
    times: Any = check_host_array(ts, "ts", shape=("times",), least=0, most=_LATEST, remedy=remedy)
    times = times.astype(float)
    if np.any(np.diff(times) <= 0):
        raise refusal("ts", "increase", "two neighbours do not", "sort them, each once")
    beta, n, mask, unnormalised = _checked(beta, n, mask, unnormalised)
    places = np.triu_indices(n, 1)
    cosines, num_done = np.zeros((len(times), len(places[0]))), int(times[0] == 0)
    for solver in _steps(beta, n, mask, unnormalised, float(times[-1])):
        last = int(np.searchsorted(times, solver.t, side="right"))
        if last > num_done:
            cosines[num_done:last] = solver.dense_output()(times[num_done:last]).T
            num_done = last
    full = np.zeros((len(times), n, n))
    full[:, places[0], places[1]] = cosines
    return full + np.swapaxes(full, 1, 2) + np.eye(n)


def orthogonal_time(
    share: Real[ArrayLike, " shares"],
    beta: float | int,
    n: int,
    gamma: float | int = 0.999,
    *,
    mask: AbstractMask = FullMask(),
    unnormalised: bool = False,
) -> Float[np.ndarray, " shares"]:
    """The first time at which a given share of the pairs of n initially orthogonal tokens has cosines >= `gamma`.

    With a full mask all shares are reached at the time of `equiangular_time`: the transition of the phase diagram is a
    line. With a causal mask pairs come together one after the other, also for d → ∞. The first pair, which attends to
    no other token, takes the time $∫_0^γ (exp(β(1-c)) + 1) / (1 - c²) dc$.

    !!! example

        ```python
        >>> import clusterjax as cjx, numpy as np
        >>> print(cjx.orthogonal_time(np.array([0.1, 0.9]), 1.0, 32).round(4))
        [5.2703 5.2703]
        >>> print(cjx.orthogonal_time(np.array([0.1, 0.9]), 1.0, 32, mask=cjx.CausalMask()).round(2))
        [ 5.87 12.55]
        ```

    **Arguments:**

    - `share`: Shares (shares,), from 0 to 1, in any order.
    - `beta`: Inverse temperature, from 0 to 12.
    - `n`: The number of tokens, from 2 to 64.
    - `gamma`: The cosine at which a pair counts as close, in (0, 1).

    **Other arguments:**

    - `mask`, `unnormalised`: As for `orthogonal_cosines`.

    **Returns:**

    The times, (shares,), for pairs i < j. A pair may separate again, because a follower lags behind a fast token.

    **Raises:**

    - `ValueError` if an argument is out of its range.
    - `RuntimeError` if the mask keeps tokens apart for ever, or more than 100,000 steps are needed.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 6.2, for a full mask;
        other masks are this library's extension.
    """
    shares: Any = check_host_array(
        share, "share", shape=("shares",), least=0, most=1, remedy="pass numpy.array([0.1, 0.5, 0.9])"
    )
    gamma = check_number(gamma, "gamma", above=0, below=1, remedy="pass 0.999, say")
    beta, n, mask, unnormalised = _checked(beta, n, mask, unnormalised)
    pairs = n * (n - 1) // 2
    # The k-th pair reaches the share s if k / pairs >= s.
    needed = np.ceil(shares.astype(float) * pairs - 1e-6).astype(int)
    # Times are found in the order of the number of pairs; a larger number is never reached earlier.
    when, reached = np.zeros(pairs + 1), 0
    for solver in _steps(beta, n, mask, unnormalised, np.inf):
        count = int(np.sum(solver.y >= gamma))
        if count > reached:
            state, edge = solver.dense_output(), solver.t_old
            for k in range(reached + 1, count + 1):
                low, high = edge, solver.t
                for _ in range(_ORTHOGONAL_HALVINGS):
                    middle = (low + high) / 2
                    enough = np.sum(state(middle) >= gamma) >= k
                    low, high = (low, middle) if enough else (middle, high)
                when[k] = edge = high
            reached = count
        if reached >= needed.max(initial=0):
            return when[needed]
    # If no token moves, the solver reaches infinite time in few steps.
    raise RuntimeError(
        f"the cosines of {n} orthogonal tokens stay below {gamma:g} for ever: the mask keeps tokens apart."
    )


def _checked(beta: Any, n: Any, mask: Any, unnormalised: Any) -> tuple[float, int, AbstractMask, bool]:
    beta = check_number(beta, "beta", least=0, most=MOST_BETA, remedy="beyond, follow jax.numpy.eye(n) with coarsen")
    n = check_integer(n, "n", least=2, most=MOST_TOKENS, remedy="pass the number of tokens, such as 32")
    mask = check_mask(mask)
    mask.check(n)
    return beta, n, mask, check_flag(unnormalised, "unnormalised")


def _rate(beta: float, n: int, mask: AbstractMask, unnormalised: bool) -> _Rate:
    """The velocity of the upper triangle of the cosines."""
    permitted = np.asarray(mask.matrix(n))
    places, ones = np.triu_indices(n, 1), np.eye(n)
    counts = permitted.sum(axis=1, keepdims=True)

    def rate(t: float, upper: np.ndarray) -> np.ndarray:
        g = np.zeros((n, n))
        g[places] = upper
        g = g + g.T + ones
        # e^{beta (g - 1)} does not overflow if a step has taken a cosine slightly beyond 1.
        weights = np.where(permitted, np.exp(beta * (g - 1)), 0.0)
        weights = weights * (np.exp(beta) / counts) if unnormalised else weights / weights.sum(axis=1, keepdims=True)
        pulled = weights @ g
        along = np.diag(pulled)
        return (pulled + pulled.T - (along[:, None] + along) * g)[places]

    return rate


def _steps(beta: float, n: int, mask: AbstractMask, unnormalised: bool, end: float) -> Iterator[Any]:
    """The solver after each of its steps, from orthogonal tokens to the time `end`."""
    if end == 0:
        return
    from scipy.integrate import LSODA  # imported here, because the import takes as long as a small run

    rate, start = _rate(beta, n, mask, unnormalised), np.zeros(n * (n - 1) // 2)
    first = min(1e-3 / (1 + np.exp(beta) * unnormalised), end)
    solver = LSODA(rate, 0.0, start, end, rtol=_RELATIVE, atol=_ABSOLUTE, first_step=first)
    for _ in range(_MOST_STEPS):
        words = solver.step()
        if solver.status == "failed":
            raise RuntimeError(
                f"the cosines of {n} orthogonal tokens cannot be followed beyond t = {solver.t:g}: {words}"
            )
        yield solver
        if solver.status == "finished":
            return
    raise RuntimeError(
        f"the cosines of {n} orthogonal tokens need more than {_MOST_STEPS:,} steps, which have come to t = "
        f"{solver.t:g}: the mask keeps tokens apart, or beta is too large."
    )
