"""Steps along the orbit: the step variable is the length of the path, and time is integrated along it.

**Algorithm.** $dy/ds = f / |f|$, $dt/ds = 1 / |f|$ by the explicit method of Dormand and Prince of order 8 with its
interpolant of order 7. Velocities of clusters span hundreds of orders of magnitude, but the length of their path is
bounded: where all clusters wait, a step lasts 1e30, and a collapse, which ends at a rate of 1, takes a few steps.
Within a step, time is in the unit of the *clock*, the time that a unit of length takes at the beginning of the step.
The clock is stored as a logarithm.

**Reference.** Hairer, Norsett, Wanner, *Solving Ordinary Differential Equations I*, section II.5: DOP853, with the
coefficients from SciPy.

**Invariants.** Velocities do not depend on time, so that t + h == t does no harm. Clusters that met are one, so that
no contraction is much faster than the motion along the orbit.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from .._base.defaults import COARSEN_ACCURACY, COARSEN_MANY_ACCURACY
from .._dynamics import rodas5p
from .clouds import Cloud
from .velocity import AttendedMasses, Law, Moves, jacobian, moves


# Squares between this value and its inverse lose no digits by underflow or overflow.
_LEAST_SQUARE = 1e-250


@functools.cache
def _tables() -> Any:
    from scipy.integrate import DOP853  # a late import, since it takes as long as a small run

    return DOP853


class Step(NamedTuple):
    """One step from time `t`: its stages, whose last component is the time by the clock of the step.

    - `y0`, `y1`: Clusters at the two ends, (m, d).
    - `t`, `span`: The time of the beginning, and the duration by the clock.
    - `length`: The length of the path.
    - `slopes`: The derivatives with respect to the length at the twelve stages and the end, (13, m d + 1).
    - `error`: The estimate of the error of each component, (m d + 1,).
    - `last`: The velocities at the end.
    - `inner`: For an implicit step, the terms of its interpolant except the first, (k, m d + 1).
    """

    y0: np.ndarray
    y1: np.ndarray
    t: float
    span: float
    length: float
    slopes: np.ndarray
    error: np.ndarray
    last: Moves
    inner: np.ndarray | None = None
    clock: float = 0.0


def lasting(span: float, clock: float) -> float:
    """Convert a duration from units of e^clock to units of 1; infinite beyond the range of float64."""
    half = math.exp(min(clock / 2, 700.0))
    return span * half * half


def slope(law: Law, y: np.ndarray, attended: AttendedMasses, clock: float = 0.0) -> np.ndarray:
    """The derivative with respect to the step variable of the clusters and, last, of the time by a clock."""
    return slope_of(moves(law, y, attended), attended, clock)


def slope_of(now: Moves, attended: AttendedMasses, clock: float | None = None) -> np.ndarray:
    """The derivative with respect to the step variable from known velocities; the clock is by default theirs. The
    step variable is time for clouds by tiles, otherwise the length of the path."""
    if attended.tiled:
        # While many tokens gather, all motion has a time scale of order one.
        return np.append(now.velocity.ravel(), 1.0)
    derivative = np.empty(now.velocity.size + 1)
    derivative[:-1], slowness = along_orbit(now.velocity, now.unit)
    derivative[-1] = 1.0 if clock is None else np.exp(slowness - clock)
    return derivative


def clock_of(now: Moves, attended: AttendedMasses) -> float:
    """The logarithm of the time that a unit of the step variable lasts."""
    return 0.0 if attended.tiled else along_orbit(now.velocity, now.unit)[1]


def along_orbit(velocity: np.ndarray, unit: float) -> tuple[np.ndarray, float]:
    """The direction of the path and the logarithm of the time per unit of its length, for velocities in a unit of time
    with the logarithm `unit`."""
    flat, largest = velocity.ravel(), 1.0
    with np.errstate(over="ignore"):
        square = flat @ flat
    if not _LEAST_SQUARE < square < 1 / _LEAST_SQUARE:
        # Squares of velocities of 1e-200 underflow: divide by the largest component.
        largest = max(flat.max(), -flat.min())
        flat = flat / largest
        square = flat @ flat
    speed = math.sqrt(square)
    return flat / speed, unit - (math.log(speed) + math.log(largest) if speed > 0 else -math.inf)


def step(
    law: Law, attended: AttendedMasses, y0: np.ndarray, t: float, length: float, first: np.ndarray, clock: float = 0.0
) -> Step:
    """One explicit step; `first` is the slope at its beginning, by this clock."""
    table = _tables()
    slopes = np.empty((13, y0.size + 1))
    slopes[0] = first
    shares = length * table.A
    for i in range(1, 12):
        change = shares[i, :i] @ slopes[:i, :-1]
        slopes[i] = slope(law, y0 + change.reshape(y0.shape), attended, clock)
    change = length * (table.B @ slopes[:12])
    y1 = y0 + change[:-1].reshape(y0.shape)
    y1 = y1 / np.sqrt(np.sum(y1 * y1, axis=1, keepdims=True))
    last = moves(law, y1, attended)
    slopes[12] = slope_of(last, attended, clock)
    fifth, third = table.E5 @ slopes, table.E3 @ slopes
    size = np.abs(fifth)
    scale = size + 0.1 * np.abs(third)
    # Hairer's estimate of order 7 from both formulas, by components and without squares, which overflow for times.
    error = length * fifth * (size / np.where(scale > 0, scale, 1))
    return Step(y0, y1, t, float(change[-1]), length, slopes, error, last, clock=clock)


class Between(NamedTuple):
    """The interpolant of a step: `clusters(share)` and `time(share)`, for shares of the length from 0 to 1."""

    start: np.ndarray
    rows: np.ndarray
    shape: tuple[int, int]
    t: float
    clock: float

    @staticmethod
    def blend(start: Any, rows: np.ndarray, share: Any) -> Any:
        """Hairer's form of the polynomial by Horner's rule, with the factors share and 1 - share in turn."""
        value = np.zeros_like(start)
        for i, row in enumerate(rows[::-1]):
            value = (value + row) * (share if i % 2 == 0 else 1 - share)
        return value + start

    def _at(self, share: float, part: slice | int) -> Any:
        return self.blend(self.start[part], self.rows[:, part], share)

    def clusters(self, share: float) -> np.ndarray:
        """The normalised clusters at a share, (m, d)."""
        y = self._at(share, slice(None, -1)).reshape(self.shape)
        return y / np.linalg.norm(y, axis=1, keepdims=True)

    def last_term(self) -> np.ndarray:
        """The largest norm of the highest-order term of each cluster within the step, (m,), which bounds its error."""
        sizes = np.linalg.norm(self.rows[-1, :-1].reshape(self.shape), axis=1)
        return (4 / 7) ** 4 * (3 / 7) ** 3 * sizes

    def rows_at(self, share: float, rows: Any) -> np.ndarray:
        """The normalised positions of the clusters `rows` alone."""
        start = self.start[:-1].reshape(self.shape)[rows]
        y = self.blend(start, self.rows[:, :-1].reshape(-1, *self.shape)[:, rows], share)
        return y / np.linalg.norm(y, axis=-1, keepdims=True)

    def time(self, share: float) -> float:
        """The time at a share."""
        return self.t + lasting(self.elapsed(share), self.clock)

    def elapsed(self, share: float) -> float:
        """The time since the beginning of the step, by its clock."""
        return float(self._at(share, -1))


def between(law: Law, attended: AttendedMasses, done: Step) -> Between:
    """The interpolant of a step, by three further stages for an explicit step."""
    if done.inner is not None:
        change = np.append((done.y1 - done.y0).reshape(-1), done.span)
        rows = np.vstack([change, done.inner])
        return Between(np.append(done.y0.reshape(-1), 0.0), rows, done.y0.shape, done.t, done.clock)
    table = _tables()
    slopes = np.empty((16, done.slopes.shape[1]))
    slopes[:13] = done.slopes
    for i in range(13, 16):
        change = done.length * (table.A_EXTRA[i - 13, :i] @ slopes[:i, :-1])
        slopes[i] = slope(law, done.y0 + change.reshape(done.y0.shape), attended, done.clock)
    change = np.append((done.y1 - done.y0).reshape(-1), done.span)
    h = done.length
    rows = [change, h * slopes[0] - change, 2 * change - h * (slopes[12] + slopes[0])]
    rows += list(h * (table.D @ slopes))
    start = np.append(done.y0.reshape(-1), 0.0)
    return Between(start, np.array(rows), done.y0.shape, done.t, done.clock)


def root(function: Any, low: float = 0.0, high: float = 1.0) -> float:
    """A root of `function` between `low` and `high`, where its signs differ, by Brent's method."""
    from scipy.optimize import root_scalar

    at_low, at_high = function(low), function(high)
    if at_low == 0 or at_low * at_high > 0:
        return low if abs(at_low) <= abs(at_high) else high
    solution = root_scalar(function, bracket=(low, high), method="brentq", xtol=1e-15, rtol=1e-14, maxiter=200)
    return float(solution.root)


# Implicit steps in time, where clusters contract onto a curve much faster than they move along it.
#
# **Algorithm.** Rodas5P, a linearly implicit Rosenbrock method of order 5, L-stable, with its interpolant of order 4.
# A step lasts no longer than the time scale of the fastest growing perturbation, since L-stability damps growth too.
#
# **Reference.** Steinebach, *Construction of Rosenbrock-Wanner method Rodas5P* (BIT 63, 2023). Hairer, Wanner, *Solving
# Ordinary Differential Equations II*, section IV.7 (this form of the stages).


class Linear(NamedTuple):
    """The derivative at the beginning of a step, its fastest growth rate, and its largest eigenvalue in modulus."""

    change: np.ndarray
    growth: float
    fastest: float

    @staticmethod
    def at(law: Law, y: np.ndarray, attended: AttendedMasses) -> "Linear":
        change, _ = jacobian(law, y, attended)
        rates = np.linalg.eigvals(change)
        return Linear(change, max(float(rates.real.max()), 0.0), float(np.abs(rates).max()))


def implicit_step(
    law: Law, attended: AttendedMasses, y0: np.ndarray, t: float, span: float, now: Moves, linear: Linear
) -> Step:
    """A step of duration `span`; its slopes are the time derivatives at the two ends."""
    from scipy.linalg import lu_factor, lu_solve

    gamma, size = rodas5p._GAMMA, y0.size
    factors = lu_factor(np.eye(size) - span * gamma * linear.change)
    k = np.zeros((8, size))
    for i, (stages, coupling) in enumerate(zip(rodas5p._STAGES, rodas5p._COUPLING, strict=True)):
        velocity = now.velocity
        if i > 0:
            velocity = moves(law, y0 + (stages @ k[:i]).reshape(y0.shape), attended).velocity
        right = span * velocity.ravel() + (np.array(coupling) @ k[:i] if i > 0 else 0)
        k[i] = lu_solve(factors, gamma * right)
    change = (np.array((*rodas5p._LAST, 1.0, 1.0, 1.0)) @ k).reshape(y0.shape)
    y1 = y0 + change
    y1 = y1 / np.sqrt(np.sum(y1 * y1, axis=1, keepdims=True))
    last = moves(law, y1, attended)
    slopes = np.stack([np.append(end.velocity.ravel(), 1.0) for end in (now, last)])
    a, b, c = np.array(rodas5p._DENSE) @ k
    inner = np.zeros((4, size + 1))
    inner[:3, :-1] = a, b + c, -c
    return Step(y0, y1, t, span, span, slopes, np.append(k[7], 0.0), last, inner)


# The control of step sizes: by errors, with implicit steps where stability limits explicit steps.
#
# **Algorithm.** Explicit steps are in the length of the path, or in time for clouds by tiles. After `_STIFF` steps that
# could not be longer although the slope hardly changed, steps are implicit and in time, until they bring no gain.
#
# **Reference.** Hairer, Wanner, *Solving Ordinary Differential Equations II*, section IV.8: step-size control.


# The first step to try for clouds by tiles.
_TILED_START = 0.5
# Steps become implicit after an excess of `_STIFF` steps that could not grow although the slope changed below `_QUIET`.
# An implicit step must last `_WORTH` of the fastest time scales; the derivative has at most `_MOST_ROWS` rows.
_STIFF, _QUIET, _WORTH, _MOST_ROWS = 12, 0.05, 10.0, 400


class Stalled(Exception):
    """The run cannot continue at `time` with `clusters` clusters: the steps ran out or became too short."""

    def __init__(self, time: float, clusters: int):
        self.time, self.clusters = time, clusters


class Pace(NamedTuple):
    """The length of the next step to try, and the history of the control.

    - `past`: The length of the last step and its error, in units of the tolerance.
    - `stiff`: The number of steps limited by stability minus the number of other steps.
    - `span`: The duration of the next implicit step; 0 where steps are explicit.
    """

    length: float
    past: tuple[float, float] | None = None
    stiff: int = 0
    span: float = 0.0

    @staticmethod
    def at_start(cloud: Cloud) -> "Pace":
        """The pace before the first step."""
        return Pace(_TILED_START if cloud.attended.tiled else 0.01)

    def along_orbit(self, now: Moves) -> "Pace":
        """Convert the next step from a time to a length of the path, for softmax attention, whose unit of time is 1."""
        return Pace(self.length * float(np.linalg.norm(now.velocity)))


def advance(
    law: Law, cloud: Cloud, t: float, now: Moves, slopes: np.ndarray, reach: float, pace: Pace, most: int
) -> tuple[Step, Pace, int]:
    """A step of at most `reach`, the pace after it, and the number of tries, at most `most`.

    `slopes` is the slope at the beginning of the step, by the clock of the velocities `now`.
    """
    tries = 0
    if pace.span > 0:
        done, span, tries = _implicit(law, cloud, t, now, reach, pace.span, most)
        if done is not None:
            return done, pace._replace(span=span), tries
        pace = Pace(pace.length, stiff=-_STIFF)
    done, size, more = _accepted(law, cloud, t, min(pace.length, reach), now, slopes, most - tries)
    length = _next(done.length, size, more, pace.past)
    stiff, span = 0, 0.0
    if law.normalised and not cloud.attended.tiled and cloud.y.size <= _MOST_ROWS:
        bound = length < 1.5 * done.length < 1.5 * reach and _change_of_slope(done) < _QUIET
        stiff = pace.stiff + 1 if bound else min(max(pace.stiff - 1, 0), pace.stiff + 1)
        span = 30 * lasting(done.span, done.clock) if stiff >= _STIFF else 0.0
    return done, Pace(length, (done.length, size), 0 if span else stiff, span), tries + more


def _implicit(
    law: Law, cloud: Cloud, t: float, now: Moves, reach: float, span: float, most: int
) -> tuple[Step | None, float, int]:
    """An implicit step, or None where explicit steps would be as long; the duration of the next step; the tries."""
    linear = Linear.at(law, cloud.y, cloud.attended)
    # A long L-stable step would damp growing modes. Steps of at most `ahead` keep clusters on straight paths separate.
    ahead = lasting(reach, clock_of(now, cloud.attended))
    span = min(span, 1 / linear.growth if linear.growth > 0 else np.inf, ahead)
    for tries in range(1, most + 1):
        if span * linear.fastest < _WORTH:
            return None, 0.0, tries
        with np.errstate(all="ignore"):
            done = implicit_step(law, cloud.attended, cloud.y, t, span, now, linear)
        size = float(np.linalg.norm(done.error)) / COARSEN_ACCURACY
        change = _change(size, 5)
        if np.isfinite(size) and size <= 1:
            return done, span * min(6.0, max(change, 0.2)), tries
        span *= min(0.8, max(change, 0.1))
    raise Stalled(t, len(cloud.first))


def _accepted(
    law: Law, cloud: Cloud, t: float, length: float, now: Moves, slopes: np.ndarray, most: int
) -> tuple[Step, float, int]:
    """A step of at most `length` within the tolerance, its error in units of the tolerance, and the number of tries."""
    speeds = np.max(np.abs(now.velocity), axis=1)
    # A velocity is a difference of pulls and carries their rounding error, as does the duration of a step.
    noise = 16 * np.finfo(float).eps * float(now.pull[np.argmax(speeds)] / np.max(speeds))
    accuracy = COARSEN_MANY_ACCURACY * len(cloud.y) ** 0.5 if cloud.attended.tiled else COARSEN_ACCURACY
    clock = clock_of(now, cloud.attended)
    before = lasting(t, -clock)
    for tries in range(1, most + 1):
        with np.errstate(all="ignore"):
            done = step(law, cloud.attended, cloud.y, t, length, slopes, clock)
            late = COARSEN_ACCURACY * (before + abs(done.span)) + noise * abs(done.span)
            # np.maximum propagates NaN, which must reject the step.
            size = float(np.maximum(np.linalg.norm(done.error[:-1]) / accuracy, abs(done.error[-1]) / late))
        if np.isfinite(size) and size <= 1 and done.span > 0:
            return done, size, tries
        length *= min(0.8, max(_change(size), 0.1))
        if length < 1e-15:
            break
    raise Stalled(t, len(cloud.first))


def _change_of_slope(done: Step) -> float:
    """The change of the direction in a step, or of the logarithm of the speed, whichever is larger."""
    first, last = done.slopes[0], done.slopes[12]
    return max(float(np.linalg.norm(last[:-1] - first[:-1])), abs(float(np.log(last[-1] / first[-1]))))


def _change(size: float, order: int = 8) -> float:
    """The factor that brings the error `size` of a step of this order to 1."""
    if not np.isfinite(size):
        return 0.1
    return 0.9 * size ** (-1 / order) if size > 0 else 6.0


def _next(length: float, size: float, tries: int, past: tuple[float, float] | None) -> float:
    """The length of the next step, by the errors of the last two steps (Gustafsson's controller).

    Where clusters collapse, successive steps shorten by a constant factor, which the controller anticipates.
    """
    change = min(_change(size), 6.0 if tries == 1 else 1.0)
    if past is not None and size > 0:
        before, error = past
        change = min(change, _change(size) * length / before * (max(error, 1e-3) / size) ** 0.125)
    return length * max(change, 0.2)
