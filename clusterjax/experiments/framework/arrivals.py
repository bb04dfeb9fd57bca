r"""When tokens of causal attention with V = I are at the first for good, and the integral of the time that they take.

With a causal mask the first token $a$ rests, and a token sees those before it alone. Token k (from 0), once all before
it are at $a$, sees k tokens there and itself: it moves along the great circle through $a$, at the angle $\theta$ from
it by

$$\dot\theta = -\sin\theta \, \frac{k e^{\beta\langle x, Ba\rangle}}{k e^{\beta\langle x, Ba\rangle} +
e^{\beta\langle x, Bx\rangle}}, \qquad T = \int \Big(1 + \tfrac1k e^{\beta\langle x, B(x - a)\rangle}\Big)
\frac{d\theta}{\sin\theta},$$

$B = Q^\top K$. The time is exponential in the *barrier* $\max \langle x, B(x - a)\rangle$ over the arc that is left.
"""

from typing import NamedTuple

import numpy as np

from ..._coarsen import MergeTree


# Waits as long as this are compared with the integral: those before it have contracted to the first token by then.
LEAST_WAIT = 100.0
ANGLES = 20_001
# Of log10, and the share of the waits: a time is right to some two per cent.
OFF, MOST = 0.01, 0.95


class Wait(NamedTuple):
    """A token that came after all before it, and long after: log10 of the times, and the barrier.

    **Attributes:**

    - `token`: Its index.
    - `waited`, `law`: log10 of the time since the last token before it came, and of the integral from there.
    - `barrier`: log10 of the exponential of beta times the barrier.
    """

    token: int
    waited: float
    law: float
    barrier: float


def arrivals_of(tree: MergeTree, reach: float) -> np.ndarray:
    """When each token was within `reach` of the first for good, (n,); 0 if always, infinite if never.

    To a ten-thousandth where it is later than of all before it, and else to the next step of the run.
    """
    times, xs = tree.steps()
    away = np.linalg.norm(xs - xs[:, :1], axis=2) > reach
    came = np.zeros(tree.num_tokens)
    for token in range(1, len(came)):
        if not away[:, token].any():
            continue
        at = int(np.flatnonzero(away[:, token])[-1])
        low, high = (float(times[at]), float(times[at + 1])) if at + 1 < len(times) else (np.inf, np.inf)
        if high > came.max() and np.isfinite(high):
            while high - low > 1e-4 * high:
                middle = (low + high) / 2
                low, high = (middle, high) if _distances(tree, middle)[token] > reach else (low, middle)
        came[token] = high
    return came


def _distances(tree: MergeTree, t: float) -> np.ndarray:
    x = np.asarray(tree.at(t))
    return np.linalg.norm(x - x[0], axis=1)


def waits_of(tree: MergeTree, came: np.ndarray, scaled: np.ndarray, reach: float) -> list[Wait]:
    """The long waits of a run; `scaled` is beta Q^T K."""
    found = []
    for token in range(1, len(came)):
        since = float(came[:token].max())
        if not LEAST_WAIT < came[token] - since < np.inf:
            continue
        x = np.asarray(tree.at(since), float)
        law, barrier = log_law(x[0], x[token], scaled, token, reach)
        found.append(Wait(token, float(np.log10(came[token] - since)), law, barrier))
    return found


def log_law(a: np.ndarray, x: np.ndarray, scaled: np.ndarray, before: int, reach: float) -> tuple[float, float]:
    """log10 of the integral from x to the distance `reach` from a, of `before` tokens there, and of the exponential of
    the largest exponent on the way."""
    side = x - (a @ x) * a
    side = side / np.linalg.norm(side)
    theta = np.linspace(2 * np.arcsin(reach / 2), np.arctan2(x @ side, x @ a), ANGLES)
    arc = np.cos(theta)[:, None] * a + np.sin(theta)[:, None] * side
    exponents = np.einsum("ti,ij,tj->t", arc, scaled, arc - a)
    # The largest exponent is taken out of the integral, which would overflow.
    top = max(float(exponents.max()), 0.0)
    slowness = (np.exp(-top) + np.exp(exponents - top) / before) / np.sin(theta)
    return float((np.log(np.trapezoid(slowness, theta)) + top) / np.log(10)), float(exponents.max() / np.log(10))
