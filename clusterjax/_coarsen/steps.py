r"""Steps along the orbit: the length of the path is what is stepped in, and time is only added up.

**Algorithm.** $dy/ds = f / |f|$, $dt/ds = 1 / |f|$ by the explicit method of Dormand and Prince of order 8 with its
interpolant of order 7. Velocities of clusters span hundreds of orders of magnitude, but their path is of bounded
length: where everything waits a step lasts $10^{30}$, and a collapse, which ends at a rate of 1, takes a few steps too.
Within a step time is in units of its own, the *clock*, of which the logarithm is kept: what a unit of length takes at
the beginning.

**Reference.** Hairer, Norsett, Wanner, *Solving Ordinary Differential Equations I*, section II.5: DOP853, whose
coefficients SciPy has.

**Invariants.** No time enters a velocity, so that t + h == t does no harm. Clusters that met are one, so that nothing
contracts much faster than the orbit moves.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from .law import AttendedMasses, Law, Moves, moves


# Squares between this and its inverse lose no digits.
_LEAST_SQUARE = 1e-250


@functools.cache
def _tables() -> Any:
    from scipy.integrate import DOP853  # here, since its import takes as long as a small run

    return DOP853


class Step(NamedTuple):
    """One step from time `t`: the stages, and, for the last component, times by the clock of the step.

    - `y0`, `y1`: Clusters at its two ends, (m, d).
    - `t`, `span`: When it begins and, by its clock, how long it lasts.
    - `length`: That of the path.
    - `slopes`: The derivatives by the length at the twelve stages and the end, (13, m d + 1).
    - `error`: The estimate of the error of each component, (m d + 1,).
    - `last`: The velocities at the end.
    - `inner`: Of an implicit step, the terms of its interpolant but for the first, (k, m d + 1).
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
    """A time by a clock of this logarithm, in units of 1: infinite beyond what float64 holds."""
    half = math.exp(min(clock / 2, 700.0))
    return span * half * half


def slope(law: Law, y: np.ndarray, attended: AttendedMasses, clock: float = 0.0) -> np.ndarray:
    """The derivative by what steps are taken in, of clusters and, last, of time by a clock."""
    return slope_of(moves(law, y, attended), attended, clock)


def slope_of(now: Moves, attended: AttendedMasses, clock: float | None = None) -> np.ndarray:
    """The same of velocities that are known: by the length of the path, or, by tiles, by time; by their own clock if
    none is given."""
    if attended.tiled:
        # While many tokens gather, all takes a time of the order of one.
        return np.append(now.velocity.ravel(), 1.0)
    found = np.empty(now.velocity.size + 1)
    found[:-1], slowness = along_orbit(now.velocity, now.unit)
    found[-1] = 1.0 if clock is None else np.exp(slowness - clock)
    return found


def clock_of(now: Moves, attended: AttendedMasses) -> float:
    """The logarithm of how long a unit of what steps are taken in lasts."""
    return 0.0 if attended.tiled else along_orbit(now.velocity, now.unit)[1]


def along_orbit(velocity: np.ndarray, unit: float) -> tuple[np.ndarray, float]:
    """The direction of the path, and the logarithm of the time that a unit of its length takes; of velocities in a unit
    of time of this logarithm."""
    flat, largest = velocity.ravel(), 1.0
    with np.errstate(over="ignore"):
        square = flat @ flat
    if not _LEAST_SQUARE < square < 1 / _LEAST_SQUARE:
        # In units of the largest: squares of velocities of 1e-200 are zero.
        largest = max(flat.max(), -flat.min())
        flat = flat / largest
        square = flat @ flat
    speed = math.sqrt(square)
    return flat / speed, unit - (math.log(speed) + math.log(largest) if speed > 0 else -math.inf)


def step(
    law: Law,
    attended: AttendedMasses,
    y0: np.ndarray,
    t: float,
    length: float,
    first: np.ndarray,
    clock: float = 0.0,
) -> Step:
    """A step; `first` is the slope at its beginning, by this clock."""
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
    # Of order 7, from the two: Hairer's combination, for each component. No squares: times overflow them.
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
        """Hairer's form of the polynomial by Horner's rule: factors share and 1 - share in turn."""
        value = np.zeros_like(start)
        for i, row in enumerate(rows[::-1]):
            value = (value + row) * (share if i % 2 == 0 else 1 - share)
        return value + start

    def _at(self, share: float, part: slice | int) -> Any:
        return self.blend(self.start[part], self.rows[:, part], share)

    def clusters(self, share: float) -> np.ndarray:
        """The clusters, (m, d), of unit length."""
        y = self._at(share, slice(None, -1)).reshape(self.shape)
        return y / np.linalg.norm(y, axis=1, keepdims=True)

    def last_term(self) -> np.ndarray:
        """The size of the term of highest order at its largest, of each cluster, (m,): its errors are smaller."""
        sizes = np.linalg.norm(self.rows[-1, :-1].reshape(self.shape), axis=1)
        return (4 / 7) ** 4 * (3 / 7) ** 3 * sizes

    def rows_at(self, share: float, rows: Any) -> np.ndarray:
        """Some clusters alone, of unit length."""
        start = self.start[:-1].reshape(self.shape)[rows]
        y = self.blend(start, self.rows[:, :-1].reshape(-1, *self.shape)[:, rows], share)
        return y / np.linalg.norm(y, axis=-1, keepdims=True)

    def time(self, share: float) -> float:
        """The time."""
        return self.t + lasting(self.elapsed(share), self.clock)

    def elapsed(self, share: float) -> float:
        """The time since the beginning, by the clock of the step."""
        return float(self._at(share, -1))


def between(law: Law, attended: AttendedMasses, done: Step) -> Between:
    """The interpolant, by three stages more."""
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
    """Where `function`, of one sign at `low` and of the other at `high`, is zero: Brent's method."""
    from scipy.optimize import root_scalar

    at_low, at_high = function(low), function(high)
    if at_low == 0 or at_low * at_high > 0:
        return low if abs(at_low) <= abs(at_high) else high
    found = root_scalar(function, bracket=(low, high), method="brentq", xtol=1e-15, rtol=1e-14, maxiter=200)
    return float(found.root)
