r"""What is measured of causal attention with V = I and random Q and K: when each token is at the first for good.

With a causal mask the first token $a$ rests, and a token sees those before it alone. Token k (from 0), once all before
it are at $a$, sees k tokens there and itself: it moves along the great circle through $a$, at the angle $\theta$ from
it by

$$\dot\theta = -\sin\theta \, \frac{k e^{\beta\langle x, Ba\rangle}}{k e^{\beta\langle x, Ba\rangle} +
e^{\beta\langle x, Bx\rangle}}, \qquad T = \int \Big(1 + \tfrac1k e^{\beta\langle x, B(x - a)\rangle}\Big)
\frac{d\theta}{\sin\theta},$$

$B = Q^\top K$. The time is exponential in the *barrier* $\max \langle x, B(x - a)\rangle$ over the arc that is left.
The last token to come comes after all before it, so that this is the time of the collapse.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..._attention import SoftmaxAttention
from ..._coarsen import MergeTree, coarsen
from ..._field import AttentionField
from ..._mask import CausalMask
from ..framework.ensemble import draw_starts
from ..framework.experiment import Settings
from ..framework.parameters import parameter


# As good as never.
END = 1e300
# At beta = 9 some starts are known to have several clusters left by then.
LATE = 2e4
# Waits as long as this are compared with the integral: those before it have contracted to the first token by then.
LEAST_WAIT = 100.0
ANGLES = 20_001
# Most runs take some hundreds.
MOST_STEPS = 3000


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(16, "the number of tokens", quick=12, least=3, most=64)
    d: int = parameter(3, "the dimension", least=2, most=8)
    beta: float = parameter(9.0, "the inverse temperature", least=1, most=20)
    reach: float = parameter(0.01, "the distance from the first token at which one has come", least=3e-3, most=0.1)


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


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `arrivals`: When each token came to the first for good, (starts, n); NaN for a start that `coarsen` cannot follow.
    - `waits`: The long waits of all starts.
    - `astray`: How far a token of any start is from the first in the end.
    - `moved`: How far the first token of any start moved.
    """

    p: Parameters
    starts: int
    arrivals: np.ndarray
    waits: tuple[Wait, ...]
    astray: float
    moved: float

    @property
    def last(self) -> np.ndarray:
        """When all tokens are at the first, of the starts that were followed."""
        return self.arrivals[self.followed].max(axis=1)

    @property
    def followed(self) -> np.ndarray:
        """Which starts were followed to their end, (starts,)."""
        return ~np.isnan(self.arrivals[:, 0])

    @property
    def log_last(self) -> np.ndarray:
        """log10 of these times, of `END` where there is none, and at least -2."""
        return np.log10(np.clip(self.last, 1e-2, END))


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Follow all starts to their end."""
    say(f"following {settings.starts} starts to one cluster")
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    arrivals, waits, astray, moved = [], [], 0.0, 0.0
    for form, x in zip(draw_forms(settings.seed, settings.starts, p.d), x0, strict=True):
        attention = SoftmaxAttention(p.beta, query_key=jnp.asarray(form), mask=CausalMask())
        try:
            tree = coarsen(AttentionField(attention), jnp.asarray(x, float), END, tolerance=0.1, max_steps=MOST_STEPS)
        except RuntimeError:
            # Tokens that contract onto a curve much faster than they move along it: steps come to nothing.
            arrivals.append(np.full(p.n, np.nan))
            continue
        came = arrivals_of(tree, p.reach)
        arrivals.append(came)
        waits += waits_of(tree, came, p.beta * form, p.reach)
        end = np.asarray(tree.at(END))
        astray = max(astray, float(np.linalg.norm(end - end[0], axis=1).max()))
        moved = max(moved, float(np.linalg.norm(end[0] - np.asarray(tree.at(0.0))[0])))
    if np.all(np.isnan(arrivals)):
        raise ValueError(
            f"starts must hold one that coarsen can follow, but of {settings.starts} it can follow none; pass more "
            "starts, or another seed."
        )
    return Results(p, settings.starts, np.array(arrivals), tuple(waits), astray, moved)


def draw_forms(seed: int, starts: int, d: int) -> np.ndarray:
    """Q^T K of each start, entries of Q and K standard normal; (starts, d, d)."""
    pairs = np.stack([np.random.default_rng([seed, 2411, start]).normal(size=(2, d, d)) for start in range(starts)])
    return np.swapaxes(pairs[:, 0], 1, 2) @ pairs[:, 1]


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
