r"""The cosines of initially orthogonal tokens under any mask, and the times at which given shares of pairs are close.

Random tokens are orthogonal for $d \to \infty$. With V = Q = K = I their matrix of cosines obeys a closed equation
without d. With a full mask all cosines equal the cosine of `equiangular_time`; with a causal mask each pair comes
together at a separate time.

**Algorithm.** $\dot G = AG + (AG)^\top - (r_i + r_j) G_{ij}$, with A the matrix of weights and $r_i = (AG)_{ii}$, is
integrated by LSODA (Petzold, 1983); bisection within a step finds the times at which shares are reached.
**Invariants.** G is symmetric with ones on its diagonal; the first tokens of a causal run are independent of the number
of later tokens.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float, Real

from .._check import check_flag, check_host_array, check_integer, check_number, refusal
from .._mask import AbstractMask, FullMask, check_mask


_RELATIVE, _ABSOLUTE = 1e-9, 1e-11
# Beyond these bounds LSODA is too slow: the number of steps grows as e^beta.
MOST_BETA, MOST_TOKENS, _MOST_STEPS = 12.0, 64, 100_000
_HALVINGS = 50
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
    r"""The cosines at each time of n initially orthogonal tokens, with V = Q = K = I; exact.

    Random tokens are orthogonal for $d \to \infty$. Their cosines $G_{ij}$ obey a closed equation with the weights
    $A_{ij}$ of softmax or unnormalised attention: $\dot G_{ij} = (AG)_{ij} + (AG)_{ji} - (r_i + r_j) G_{ij}$,
    $r_i = (AG)_{ii}$. With a full mask all cosines equal the cosine of `equiangular_time`. A host function.

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
    found, done = np.zeros((len(times), len(places[0]))), int(times[0] == 0)
    for solver in _steps(beta, n, mask, unnormalised, float(times[-1])):
        last = int(np.searchsorted(times, solver.t, side="right"))
        if last > done:
            found[done:last] = solver.dense_output()(times[done:last]).T
            done = last
    full = np.zeros((len(times), n, n))
    full[:, places[0], places[1]] = found
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
    r"""The first time at which a given share of the pairs of n initially orthogonal tokens has cosines >= `gamma`.

    With a full mask all shares are reached at the time of `equiangular_time`: the transition of the phase diagram is a
    line. With a causal mask pairs come together one after the other, also for $d \to \infty$. The first pair, which
    attends to no other token, takes the time $\int_0^\gamma (e^{\beta(1-c)} + 1) / (1 - c^2)\,dc$.

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
    wanted = np.ceil(shares.astype(float) * pairs - 1e-6).astype(int)
    # Times are found in the order of the number of pairs; a larger number is never reached earlier.
    when, reached = np.zeros(pairs + 1), 0
    for solver in _steps(beta, n, mask, unnormalised, np.inf):
        count = int(np.sum(solver.y >= gamma))
        if count > reached:
            state, edge = solver.dense_output(), solver.t_old
            for k in range(reached + 1, count + 1):
                low, high = edge, solver.t
                for _ in range(_HALVINGS):
                    middle = (low + high) / 2
                    enough = np.sum(state(middle) >= gamma) >= k
                    low, high = (low, middle) if enough else (middle, high)
                when[k] = edge = high
            reached = count
        if reached >= wanted.max(initial=0):
            return when[wanted]
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
    many = permitted.sum(axis=1, keepdims=True)

    def rate(t: float, upper: np.ndarray) -> np.ndarray:
        g = np.zeros((n, n))
        g[places] = upper
        g = g + g.T + ones
        # e^{beta (g - 1)} does not overflow if a step has taken a cosine slightly beyond 1.
        weights = np.where(permitted, np.exp(beta * (g - 1)), 0.0)
        weights = weights * (np.exp(beta) / many) if unnormalised else weights / weights.sum(axis=1, keepdims=True)
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
