"""The time in which equiangular tokens change their mutual cosine, and the inverse function in beta.

**Algorithm.** Separation of variables gives the time as an integral (Geshkovski et al., 2312.10794, eq. (6.9)). The
integral is split into parts without cancellation, and the exponential is factored out. Composite Gauss-Legendre
quadrature integrates each part over the interval where the integrand is not negligible. The inverse function is found
by bisection and one Newton step.

**Invariants.** Every part of the integrand is positive; the logarithm of the time is finite for every finite beta; the
Newton step has the derivative of the inverse function.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Real

from .._check import check_array, check_flag, check_integer, check_number, check_scalar
from .._misc import as_float, is_concrete


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
    r"""The exact time at which n tokens, with all cosines $\gamma_0$ at first and V = Q = K = I, have cosines $\gamma$.

    Tokens stay equiangular, so that $\gamma' = 2(1-\gamma)((n-1)\gamma+1) / (e^{\beta(1-\gamma)}+n-1)$ for softmax
    attention and $\frac2n e^{\beta\gamma}(1-\gamma)((n-1)\gamma+1)$ for unnormalised attention. For $d \to \infty$
    random tokens start orthogonal, and $\gamma$ = 0.999 gives the transition curve of their phase diagram: the time
    $\frac12\log(((n-1)\gamma+1)/(1-\gamma))$ at $\beta$ = 0, and $e^\beta/(2\beta)$ at large $\beta$ with softmax
    attention. The exponential is factored out, so that the logarithm is finite for every $\beta$. Differentiable.

    **Arguments:**

    - `gamma`: The final cosine, from `gamma0` to below 1; the shapes of `gamma`, `beta` and `gamma0` broadcast.
    - `beta`: Inverse temperature, not negative.
    - `n`: The number of tokens, at least 2.
    - `gamma0`: The initial cosine, above -1 / (n - 1).
    - `unnormalised`: True for unnormalised attention.
    - `log`: True to return the logarithm of the time: for softmax attention the time overflows beyond $\beta$ = 710 in
        double precision, and beyond 88 in single precision.

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
    r"""The inverse temperature at which n initially orthogonal tokens have all cosines $1 - \delta$ at time t.

    **Arguments:**

    - `t`: Times, positive.
    - `n`: The number of tokens, at least 2.
    - `delta`: The distance of the cosines from 1, in (0, 1).
    - `unnormalised`: True for unnormalised attention, which is faster for larger $\beta$.

    **Returns:**

    An array of the shape of `t`, differentiable; NaN where no $\beta \ge 0$ exists: for times before the time of
    $\beta$ = 0 with softmax attention, and after it with unnormalised attention.

    **Raises:**

    - `ValueError` for fewer than two tokens, times that are not positive, or `delta` outside (0, 1).

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 6.2: the curve
        $\Gamma_{\infty,\delta}$.
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
    # Bisection has no derivative. The Newton step has the derivative of the inverse function in t and delta, if its own
    # derivative in beta is stopped.
    late, derivative = jax.jvp(gap, (beta,), (ones,))
    beta = beta - late / jax.lax.stop_gradient(derivative)
    # If the time at beta = 0 is too late already, no beta satisfies the equation.
    return jnp.where(gap(0 * ones) <= 0, beta, jnp.nan)


@partial(jax.jit, static_argnames=("n", "unnormalised"))
def _log_time(
    u: Float[Array, "..."], u0: Float[Array, "..."], beta: Float[Array, "..."], n: int, unnormalised: bool
) -> Float[Array, "..."]:
    r"""The logarithm of the time from $1 - \gamma = u_0$ to u.

    For softmax attention the time is $\frac1{2n}\int_u^{u_0} (e^{\beta s} + n - 1)(1/s + 1/(1 + 1/(n-1) - s))\,ds$ with
    $s = 1 - \gamma$: every part of it is positive, so that nothing cancels.
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
    logs, both = jnp.log(u0 / u), beta * u0 + jnp.log(first + second)
    if unnormalised:
        return jnp.logaddexp(jnp.log(logs) - beta, both - beta) - math.log(2)
    # The parts without exponential: (n - 1) (1/s + 1/v) in closed form, and the 1/s that was subtracted in `first`.
    plain = (n - 1) * jnp.log(v * u0 / (v0 * u)) + logs
    return jnp.logaddexp(jnp.log(plain), both) - math.log(2 * n)


def _broadcast(**named: Any) -> tuple[Array, ...]:
    """Arrays of one shape and one floating dtype, the dtype of those arguments that are arrays already."""
    values = [check_array(value, name, finite=False) for name, value in named.items()]
    for name, value in named.items():
        if isinstance(value, bool | np.bool_):
            check_scalar(value, name)
    dtypes = [value.dtype for value, given in zip(values, named.values(), strict=True) if hasattr(given, "dtype")]
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
