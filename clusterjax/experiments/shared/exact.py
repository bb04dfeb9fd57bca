"""Exact results on two tokens, and on causal attention: the angle of two tokens, the limits of early tokens, and the
waits of late tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import exp1, expi, ive

from ..._coarsen import MergeTree
from ..framework.experiment import Claim
from .ensemble import LEAST_WAITS


def pair_time(theta0: np.ndarray | float, theta: np.ndarray | float, beta: float) -> np.ndarray:
    """The time at which the angle between tokens 1 and 2 is θ if it starts at $θ_0$ and V = Q = K = I.

    $$t = log(tan(θ_0/2) / tan(θ/2)) + ½(Ei(β(1-c_0)) - Ei(β(1-c)) + e^{2β} (E_1(β(1+c_0)) - E_1(β(1+c)))),
    where c = cos θ.$$

    Under causal attention tokens 1 and 2 attend to no later token, so that the formula holds for any number of tokens.
    For V = -I the angle grows, and the formula gives -t. The angles are in (0, pi), of shapes that broadcast.

    Source: the two-token case of Karagodin et al. (2411.04990), eq. (CSA), integrated here.
    """
    theta0, theta = np.asarray(theta0, float), np.asarray(theta, float)
    # 1 - cos(angle) = 2 sin^2(angle / 2) has no cancellation at small angles.
    near = lambda angle: expi(2 * beta * np.sin(angle / 2) ** 2)
    far = lambda angle: np.exp(2 * beta) * exp1(2 * beta * np.cos(angle / 2) ** 2)
    log_ratio = np.log(np.tan(theta0 / 2) / np.tan(theta / 2))
    return np.asarray(log_ratio + (near(theta0) - near(theta) + far(theta0) - far(theta)) / 2)


def pair_error(ts: np.ndarray, xs: np.ndarray, beta: float, sign: float) -> float:
    """The largest error, in radians, of the angle between tokens 1 and 2 of `xs`, (starts, times, n, d), when Q = K = I
    and V is `sign` times I, from the start on.

    The error of the angle is the error in time times the velocity of the angle. Angles within 1e-4 of 0 and pi are
    omitted, because the time has no correct digit there.
    """
    chord = np.linalg.norm(xs[:, :, 1] - xs[:, :, 0], axis=-1)
    # The angle comes from the chords |x_2 - x_1| and |x_2 + x_1|: arccos of a cosine near 1 loses half of the digits.
    theta = 2 * np.arctan2(chord, np.linalg.norm(xs[:, :, 1] + xs[:, :, 0], axis=-1))
    usable = (theta > 1e-4) & (theta < np.pi - 1e-4) & (theta[:, :1] > 1e-4) & (theta[:, :1] < np.pi - 1e-4)
    # The angle 1 replaces omitted angles, at which the formula has logarithms of zero.
    safe = np.where(usable, theta, 1.0)
    late = sign * pair_time(safe[:, :1], safe, beta) - ts
    # This is |d theta / dt| of two tokens under softmax attention.
    speed = np.sin(safe) / (1 + np.exp(beta * (1 - np.cos(safe))))
    return float(np.max(np.where(usable, np.abs(late) * speed, 0.0)))


def turning_angle(beta: float) -> float:
    """The angle at which the attraction of two tokens under unnormalised attention is largest, so that its derivative
    changes its sign."""
    return float(np.arccos((np.sqrt(4 * beta**2 + 1) - 1) / (2 * beta)))


def dyadic_distance(x: np.ndarray) -> np.ndarray:
    """The distance, in degrees, of tokens 2 to 8 of `x`, (..., n, 2), from their limits under V = -I, (..., 7).

    The angle of token 2 to token 1 tends to 180 degrees, the angles of tokens 3 and 4 to 90 and 270, and the angles of
    tokens 5 to 8 to the odd multiples of 45: each token comes to the middle of a gap. The result is the distance to the
    nearest limit of the generation of the token.

    Source: derived here from Karagodin et al. (2411.04990), eq. (CSA): with β = 1 the midpoints of the gaps are the
    stable equilibria.
    """
    theta = np.degrees(np.arctan2(x[..., 1], x[..., 0]))
    # Token 1 does not move under V = -I.
    relative = theta[..., 1:8] - theta[..., :1]
    # A token of generation g has 2^(g-1) possible limits, 360 / 2^(g-1) degrees apart, halfway between older tokens.
    spacing = np.array([360.0, 180.0, 180.0, 90.0, 90.0, 90.0, 90.0])
    return np.abs(np.mod(relative, spacing) - spacing / 2)


# The waits of late tokens. With V = I and a causal mask the first token $a$ does not move, and a token attends only to
# itself and to earlier tokens. Token k (counted from 0) attends to k tokens at $a$ and to itself once all earlier
# tokens are at $a$. It moves along the great circle through $a$, and its angle θ to $a$ satisfies
#
# $$dθ/dt = -k exp(β⟨x, Ba⟩) sin θ / (k exp(β⟨x, Ba⟩) + exp(β⟨x, Bx⟩)),
# and T = ∫ (1 + exp(β⟨x, B(x - a)⟩)/k) dθ / sin θ,$$
#
# $B = Q^T K$. The time T is exponential in the *barrier* $max ⟨x, B(x - a)⟩$ over the arc to $a$.


LEAST_WAIT = 100.0  # waits below are not compared with T, because earlier tokens may still be moving
ANGLES = 20_001  # the number of points of the integral
OFF, MOST = 0.01, 0.95  # the tolerance of log10 of a wait (2 % of the wait), and the share of waits within it
LEAST_EXPONENT = 5.0  # the law of a pair of clusters holds for large exponents


class Wait(NamedTuple):
    """A token that arrived at the first token long after all earlier tokens."""

    token: int  # the index of the token
    # `waited`, `law`: log10 of the time since the last earlier token arrived, and log10 of the integral from that time
    waited: float
    law: float
    barrier: float  # log10 of the exponential of beta times the barrier


def arrivals_of(tree: MergeTree, reach: float) -> np.ndarray:
    """The time from which each token stays within `reach` of the first token, (n,): 0 if always, infinite if never.

    The relative error is 1e-4 for a token that arrives later than all earlier tokens; the time of any other token is
    rounded up to a step of the run.
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
    """The waits of a run that are longer than `LEAST_WAIT`; `scaled` is beta Q^T K."""
    waits = []
    for token in range(1, len(came)):
        since = float(came[:token].max())
        if not LEAST_WAIT < came[token] - since < np.inf:
            continue
        x = np.asarray(tree.at(since), float)
        law, barrier = log_law(x[0], x[token], scaled, token, reach)
        waits.append(Wait(token, float(np.log10(came[token] - since)), law, barrier))
    return waits


def log_law(a: np.ndarray, x: np.ndarray, scaled: np.ndarray, before: int, reach: float) -> tuple[float, float]:
    """log10 of the integral from x to the distance `reach` from a, where `before` tokens are, and log10 of the
    exponential of the largest exponent on the way."""
    side = x - (a @ x) * a
    side = side / np.linalg.norm(side)
    theta = np.linspace(2 * np.arcsin(reach / 2), np.arctan2(x @ side, x @ a), ANGLES)
    arc = np.cos(theta)[:, None] * a + np.sin(theta)[:, None] * side
    exponents = np.einsum("ti,ij,tj->t", arc, scaled, arc - a)
    # The integral would overflow if the largest exponent were not factored out.
    top = max(float(exponents.max()), 0.0)
    slowness = (np.exp(-top) + np.exp(exponents - top) / before) / np.sin(theta)
    return float((np.log(np.trapezoid(slowness, theta)) + top) / np.log(10)), float(exponents.max() / np.log(10))


def integral_claim(waits: Sequence[Wait], lead: str = "") -> Claim:
    """The claim that each long wait takes the time of the integral; `lead` are words before it."""
    says = "a token that arrives at the first after all earlier tokens takes the time of an integral along its arc."
    errors = np.abs([wait.waited - wait.law for wait in waits])
    near = float(np.mean(errors < OFF)) if len(errors) >= LEAST_WAITS else np.nan
    return Claim(
        says=f"{lead} {says}" if lead else says.capitalize(),
        measured=f"the log10 of the time and of the integral differ by less than {OFF:g} in {100 * near:.1f} % of "
        f"{len(errors)} waits longer than {LEAST_WAIT:g}; the largest difference is {errors.max(initial=0.0):.2g}",
        criterion=f"more than {100 * MOST:g} % of the waits",
        holds=near > MOST,
        kind="finding",
        value=near,
    )


def log_pair_law(a: np.ndarray, b: np.ndarray, beta: float, mass: float) -> float | None:
    """log10 of $exp(β(1 - c)) / (β(1 - c²) mass)$ of clusters at a and b; None for small exponents."""
    apart = float(np.sum(np.square(a - b))) / 2  # the difference keeps the digits of 1 - c
    if beta * apart < LEAST_EXPONENT:
        return None
    return float(beta * apart / np.log(10) - np.log10(beta * apart * (2 - apart) * mass))


def log_cluster_law(first: np.ndarray, second: np.ndarray, beta: float) -> float | None:
    """`log_pair_law` of two clusters of tokens under full attention, whose masses are their numbers of tokens."""
    a, b = (tokens.mean(axis=0) / np.linalg.norm(tokens.mean(axis=0)) for tokens in (first, second))
    return log_pair_law(a, b, beta, len(first) / len(second) + len(second) / len(first))


def pair_waits(
    tree: MergeTree, beta: float, formed: float, *, causal: bool = False, whole: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """log10 of the time from each merger, or from `formed`, to the next merger, and log10 of the time by the law.

    The law takes the pair that merges next at its cosine at the beginning of the wait. If `whole`, the waits that began
    before `formed` are left out.
    """
    rows = []
    for k, at in enumerate(tree.times):
        begin = tree.times[k - 1] if k else 0.0
        since = max(formed, begin)
        if at <= since or (whole and begin < formed):
            continue
        x, labels = np.asarray(tree.at(since)), np.asarray(tree.clusters(since))
        first, second = (np.flatnonzero(labels == label) for label in tree.pairs[k])
        if causal:
            # The later cluster moves as its first token, which sees the tokens of the earlier cluster before it.
            law = log_pair_law(x[first[0]], x[second[0]], beta, float(np.sum(first < second[0])))
        else:
            law = log_cluster_law(x[first], x[second], beta)
        if law is not None:
            rows.append((np.log10(at - since), law))
    waits, laws = np.array(rows).reshape(-1, 2).T
    return waits, laws


def influence_of_place(s: np.ndarray, rate: float, time: float) -> np.ndarray:
    """The influence of the place s in (0, 1] on the last token of a causal prompt whose weights decay with distance.

    $g(s) = λ e^{λs}/(e^λ - 1) √(at/w) I_1(2√(atw))$ with $w = log((e^λ - 1)/(e^{λs} - 1))$, whose integral over s is
    $e^{at} - 1$; `rate` is λ > 0, and `time` is at, the growth rate of the first harmonic times the time. It is the
    limit of n times the correlation of the token at s with the last one (2605.09213).
    """
    log = lambda x: rate * x + np.log(-np.expm1(-rate * x))  # log(e^(rate x) - 1)
    z = 2 * np.sqrt(time * np.maximum(log(1.0) - log(s), 0.0))
    # sqrt(at / w) I_1(z) = at 2 I_1(z) / z, which is at for z = 0.
    bessel = np.where(z > 1e-8, 2 * ive(1, z) * np.exp(z) / np.maximum(z, 1e-8), 1.0)
    return np.asarray(rate / -np.expm1(-rate) * np.exp(rate * (s - 1)) * time * bessel)
